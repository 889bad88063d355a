// The tensors of any block at given sizes, for initialising, costing and testing it.
#pragma once

#include <tiffin/grammar/parts.hpp>
#include <tiffin/plan/lower.hpp>
#include <tiffin/tensor.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

TIFFIN_BEGIN

// The sizes of a block. `inner` are the widths inside a chain (through.hpp), `choices` the width of a hash
// map, `parts` the sizes of the parts that have a scope ("base.", "branch.0.", "experts.", "shared."), in
// their order; null: the same sizes.
struct block_shape {
    std::size_t d_model = 0;
    std::size_t d_ff = 0;
    std::size_t vocab = 0;
    std::size_t experts = 1;
    std::size_t rank = 1;
    std::array<std::size_t, 2> inner{{1, 1}};
    std::size_t choices = 1;
    const block_shape* parts = nullptr;
    std::size_t outputs = 0;  // of a block with a width of its own
    std::size_t heads =
        1;  // of product keys, whose rows are `experts`, a square, and half a query's values `rank`

    [[nodiscard]] constexpr const block_shape& part(std::size_t i) const noexcept {
        return parts ? parts[i] : *this;
    }
};

// A tensor of a block at given sizes.
struct sized_tensor {
    tensor_kind kind = tensor_kind::projection;
    presence needed = presence::required;
    tiffin::shape shape;
    std::array<axis, 3> axes{};
    double share = 1;         // fraction of the tokens that use it: top_k / experts in a mixture
    std::size_t choices = 1;  // experts per token, if the tensor is an expert's
    std::size_t width = 0;    // features of the source it belongs to
    std::size_t input = 0;    // features that this source reads
    double neutral = 0;       // of vectors and scalars: the value without effect: a bias of 0, a factor of 1
};

namespace detail {

// The position of a source in a block of given sizes.
template <class Prefix>
struct sized_place : standing<Prefix, std::size_t> {
    const block_shape* sizes = nullptr;
    double share = 1;
};

// The experts per token that the router of a source chooses; 0 if it has none.
constexpr std::size_t choices_of(const plan_node& source, const block_shape& sizes) {
    switch (source.kind->router) {
        case router_kind::none: return 0;
        case router_kind::learned: return source.choices_among(sizes.experts);
        case router_kind::keys: return sizes.heads * source.top_k;
        case router_kind::map:
        case router_kind::ranges: break;
    }
    return sizes.choices;
}

template <class Prefix>
class sized_walk {
public:
    using place = sized_place<Prefix>;

    // Calls visit(node, place) for a source and all its parts. Inner widths are taken from `inner` in order.
    template <class Visit>
    constexpr void visit_sources(const plan_node& node, const place& at, const Visit& visit) {
        visit(node, at);
        const node_kind& kind = *node.kind;
        const bool repeats = !kind.repeated_name.empty();
        const auto fresh = [&](std::string_view name, const place& where) { return size(name, where); };
        std::size_t input = at.input;
        for (std::size_t i = 0; i < node.parts.size(); ++i) {
            place of = stand(kind, i, at, input, fresh);
            if (kind.role != node_role::chain && !kind.parts[i].scope.name.empty())
                of = with_sizes(of, at.sizes->part(i + (repeats ? 1 : 0)));
            visit_sources(node.parts[i], of, visit);
        }
        if (!repeats) return;
        const std::size_t count =
            node.repetitions == plan_node::as_given ? at.sizes->experts : node.repetitions;
        const std::size_t before = inner_;  // all parts have the same inner widths
        for (std::size_t e = 0; e < count; ++e) {
            inner_ = before;
            place of = with_sizes(at, at.sizes->part(0));
            of.prefix = extended(at.prefix, part_scope{kind.repeated_name, e});
            if (kind.router != router_kind::none)
                of.share *= static_cast<double>(choices_of(node, *at.sizes)) / static_cast<double>(count);
            visit_sources(node.repeated_part(e), of, visit);
        }
    }
    static constexpr place whole(const plan_node& block, const block_shape& sizes, const Prefix& prefix) {
        place at{};
        at.prefix = prefix;
        at.width = at.input = at.d_model = sizes.d_model;
        if (block.kind->own_width) at.width = sizes.outputs;
        return with_sizes(at, sizes);
    }

private:
    static constexpr place with_sizes(place at, const block_shape& sizes) {
        at.sizes = &sizes;
        at.vocab = sizes.vocab;
        return at;
    }
    constexpr std::size_t size(std::string_view name, const place& at) {
        if (name == "d_ff") return at.sizes->d_ff;
        if (name == "vocab") return at.sizes->vocab;
        return at.sizes->inner[std::min<std::size_t>(inner_++, 1)];
    }

    std::size_t inner_ = 0;
};

constexpr std::size_t root_of(std::size_t square) noexcept {
    std::size_t root = 0;
    while ((root + 1) * (root + 1) <= square) ++root;
    return root;
}

constexpr std::size_t size_of_axis(axis a, const auto& at) noexcept {
    const block_shape& sizes = *at.sizes;
    switch (a) {
        case axis::width: return at.width;
        case axis::input: return at.input;
        case axis::vocab: return at.vocab;
        case axis::experts: return sizes.experts;
        case axis::rank:
        case axis::half: return sizes.rank;
        case axis::choices: return sizes.choices;
        case axis::queries: return 2 * sizes.heads * sizes.rank;
        case axis::groups: return 2 * sizes.heads;
        case axis::keys: return root_of(sizes.experts);
        case axis::bounds: return 2;
    }
    return 0;
}

}  // namespace detail

// Calls visit(place, owner, leaf, sized_tensor) for every stored tensor of the block, whose name is
// "<place.prefix><owner>.<leaf>" without what is empty. Prefix: a string, or any type with extended().
template <class Prefix, class Visit>
constexpr void visit_tensors(const plan_node& block, const block_shape& sizes, const Prefix& prefix,
                             const Visit& visit) {
    detail::sized_walk<Prefix> walk;
    walk.visit_sources(block, walk.whole(block, sizes, prefix), [&](const plan_node& source, const auto& at) {
        const std::size_t choices = detail::choices_of(source, *at.sizes);
        for (const detail::node_tensor& t : source.kind->tensors) {
            if (!is_stored(t.kind)) continue;
            sized_tensor sized{t.kind, t.needed, {}, {}, at.share, choices ? choices : 1, at.width, at.input};
            if (t.kind == tensor_kind::vector || t.kind == tensor_kind::scalar) sized.neutral = t.neutral;
            for (std::size_t i = 0; i < t.rank; ++i) {
                sized.axes[i] = t.axes[i];
                if (t.axes[i] == axis::choices && at.sizes->choices == 1) continue;
                sized.shape.push_back(detail::size_of_axis(t.axes[i], at));
            }
            visit(at, source.kind->owner(at.role), t.name, sized);
        }
    });
}

struct named_tensor {
    std::string name;
    sized_tensor tensor;
};

// The tensors of a block by name, with their shapes: what prepare() needs.
//
//     for (const auto& [name, t] : tensors_needed(stem{}, {.d_model = 8, .d_ff = 24, .vocab = 5})) ...
inline std::vector<named_tensor> tensors_needed(const plan_node& block, const block_shape& sizes) {
    std::vector<named_tensor> all;
    visit_tensors(block, sizes, std::string(),
                  [&](const auto& at, std::string_view owner, std::string_view leaf, const sized_tensor& t) {
                      all.push_back({detail::tensor_name(at.prefix, owner, leaf), t});
                  });
    return all;
}
template <block_policy Block>
std::vector<named_tensor> tensors_needed(const Block& block, const block_shape& sizes) {
    return tensors_needed(lower(block), sizes);
}

TIFFIN_END
