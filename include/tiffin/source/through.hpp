#pragma once

#include <tiffin/fixed_string.hpp>
#include <tiffin/grammar/parts.hpp>
#include <tiffin/grammar/tree.hpp>

#include <string_view>
#include <tuple>

TIFFIN_BEGIN

// A chain of sources, each computed for whole rows: v = Source(x, t), then z = Last(... First(v)). Tensors
// of the later sources are named after Scope: `<Scope>.gate_proj.weight`.
// Shapes: the source (T, any), each further width inferred from its tensors, z (T, width).
// Numerics: every step's row is stored in f32 (double in `reference`).
// Cost: that of the sources, a row of z per token, and one row of the widest step.
// Source: docs/layers.md#chains: MeKi's G(E[t]), PLE's context term.
template <fixed_string Scope, class Source, class... Steps>
struct through {
    static_assert(source_policy<Source> && (source_policy<Steps> && ...) && sizeof...(Steps) > 0,
                  "tiffin: through<Scope, Source, Steps...>: all but the first argument are sources, and "
                  "there are two of them or more");
    using source_role = chain_role;
    using tensors = tensor_list<computed>;
    static constexpr part_scope scope(std::size_t part) noexcept {
        return part == 0 ? part_scope{} : part_scope{text_of<Scope>};
    }

    std::tuple<Source, Steps...> steps;

    TIFFIN_HD constexpr const std::tuple<Source, Steps...>& parts() const noexcept { return steps; }
    static constexpr double flops() noexcept { return 0; }
};

TIFFIN_END
