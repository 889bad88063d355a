// The tensors of a whole block, with its own widths put for those of its sources.
#pragma once

#include <tiffin/norm/no_norm.hpp>
#include <tiffin/source/tree.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

TIFFIN_BEGIN

// A size of a block. `vocab` is free: each table has its own.
enum class extent : std::uint8_t { d_model, d_ff, vocab };

constexpr std::string_view name_of(extent e) noexcept {
    constexpr std::array<std::string_view, 3> names{"d_model", "d_ff", "vocab"};
    return names[static_cast<std::size_t>(e)];
}

struct block_tensor {
    tensor_spec spec;
    std::array<extent, 2> extents{};
};

// Whether no two tensors have the same name.
template <std::size_t... N>
constexpr bool names_are_distinct(const std::array<tensor_spec, N>&... groups) {
    std::array<tensor_spec, (N + ...)> all{};
    std::size_t n = 0;
    const auto append = [&](const auto& group) {
        for (const tensor_spec& spec : group) all[n++] = spec;
    };
    (append(groups), ...);
    for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j < i; ++j)
            if (all[i].same_name(all[j])) return false;
    return true;
}

// The weight of a norm, if it has one.
template <norm_policy Norm>
constexpr auto norm_specs() {
    using weight = vector<"weight">;
    std::array<tensor_spec, Norm::weighted ? 1 : 0> specs{};
    if constexpr (Norm::weighted)
        specs[0] = {"post_norm", weight::name, weight::kind, weight::needed, {axis::width, axis::width}, 1};
    return specs;
}

template <block_policy B>
using hidden_source = std::remove_cvref_t<decltype(B::hidden)>;
template <block_policy B>
using output_source = std::remove_cvref_t<decltype(B::output.source)>;
template <block_policy B>
using output_norm = std::remove_cvref_t<decltype(B::output.norm)>;

template <block_policy B>
inline constexpr bool has_norm = !std::same_as<output_norm<B>, no_norm>;

// Where the parts of a block's tensors begin.
template <block_policy B>
inline constexpr std::size_t hidden_tensors = tensor_count<hidden_source<B>>();
template <block_policy B>
inline constexpr std::size_t output_tensors = tensor_count<output_source<B>>();
template <block_policy B>
inline constexpr std::size_t norm_tensors = output_norm<B>::weighted ? 1 : 0;

// The tensors of the hidden source, of the output source, then the norm's weight.
template <block_policy B>
constexpr auto tensors_of() {
    std::array<block_tensor, hidden_tensors<B> + output_tensors<B> + norm_tensors<B>> all{};
    std::size_t n = 0;
    const auto append = [&](const auto& specs, extent width, extent input) {
        for (const tensor_spec& spec : specs) {
            block_tensor& t = all[n++];
            t.spec = spec;
            for (std::size_t i = 0; i < spec.rank; ++i)
                t.extents[i] = spec.axes[i] == axis::width   ? width
                               : spec.axes[i] == axis::input ? input
                                                             : extent::vocab;
        }
    };
    append(specs_of<hidden_source<B>>(B::hidden_role), extent::d_ff, extent::d_model);
    append(specs_of<output_source<B>>(B::output_role), extent::d_model, extent::d_ff);
    append(norm_specs<output_norm<B>>(), extent::d_model, extent::d_ff);
    return all;
}

// Whether any tensor of the block is looked up by token id.
template <block_policy B>
constexpr bool reads_token_ids() {
    for (const block_tensor& t : tensors_of<B>())
        if (t.spec.kind == tensor_kind::table) return true;
    return false;
}

TIFFIN_END
