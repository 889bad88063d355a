// The tensors of a block of two sources, with its own widths put for those of its sources.
#pragma once

#include <tiffin/norm/no_norm.hpp>
#include <tiffin/source/tree.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

TIFFIN_BEGIN

// A size of a block. From `first_inner` on: the experts, ranks and inner widths of its sources, each
// source's its own. `free` agrees with anything.
enum class extent : std::uint8_t {
    d_model,
    d_ff,
    first_inner,
    vocab = tensor_spec::vocab_size,
    free = tensor_spec::free_size
};

struct block_tensor {
    tensor_spec spec;
    std::array<extent, 3> extents{};

    // What axis i is called in an error.
    [[nodiscard]] constexpr std::string_view axis_name(std::size_t i) const noexcept {
        if (spec.axes[i] == axis::vocab) return "vocab";
        if (spec.axes[i] == axis::experts) return "experts";
        if (spec.axes[i] == axis::rank) return "rank";
        if (spec.axes[i] == axis::choices) return "choices";
        return extents[i] == extent::d_model ? "d_model" : extents[i] == extent::d_ff ? "d_ff" : "width";
    }
};

inline std::string full_name(const tensor_spec& spec) {
    std::string name;
    for (const std::string_view part : {spec.scope, spec.owner, spec.leaf})
        if (!part.empty()) name.append(name.empty() ? "" : ".").append(part);
    return name;
}

namespace detail {

// The prefix of part i of a block: "experts.3.". A prefix that keeps no text stays what it is.
template <class Prefix>
constexpr Prefix numbered(const Prefix& prefix, const char* text, std::size_t i) {
    if constexpr (std::same_as<Prefix, std::string>)
        return prefix + text + std::to_string(i) + ".";
    else
        return prefix;
}

}  // namespace detail

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
        specs[0] = {"", "post_norm", weight::name, weight::kind, weight::needed, {{axis::width}},
                    {}, 1,           false};
    return specs;
}

template <ffn_block B>
using hidden_source = std::remove_cvref_t<decltype(B::hidden)>;
template <ffn_block B>
using output_source = std::remove_cvref_t<decltype(B::output.source)>;
template <ffn_block B>
using output_norm = std::remove_cvref_t<decltype(B::output.norm)>;

template <ffn_block B>
inline constexpr bool has_norm = !std::same_as<output_norm<B>, no_norm>;

// Where the parts of a block's tensors begin.
template <ffn_block B>
inline constexpr std::size_t hidden_tensors = tensor_count<hidden_source<B>>();
template <ffn_block B>
inline constexpr std::size_t output_tensors = tensor_count<output_source<B>>();
template <ffn_block B>
inline constexpr std::size_t norm_tensors = output_norm<B>::weighted ? 1 : 0;

// A source's tensors in a block that gives it these widths; its inner sizes are numbered from `inner` on.
template <std::size_t N>
constexpr std::array<block_tensor, N> in_block(const std::array<tensor_spec, N>& specs, extent width,
                                               extent input, std::uint8_t inner = 0) {
    constexpr auto first = static_cast<std::uint8_t>(extent::first_inner);
    std::array<block_tensor, N> all{};
    for (std::size_t n = 0; n != N; ++n) {
        all[n].spec = specs[n];
        for (std::size_t i = 0; i < specs[n].rank; ++i) {
            const std::uint8_t size = specs[n].sizes[i];
            all[n].extents[i] = size >= tensor_spec::vocab_size ? extent(size)
                                : size == 0                     ? width
                                : size == 1                     ? input
                                                                : extent(first + inner + size - 2);
        }
    }
    return all;
}

// The tensors of the hidden source, of the output source, then the norm's weight.
template <ffn_block B>
constexpr auto tensors_of() {
    std::array<block_tensor, hidden_tensors<B> + output_tensors<B> + norm_tensors<B>> all{};
    std::size_t n = 0;
    const auto append = [&](const auto& tensors) {
        for (const block_tensor& t : tensors) all[n++] = t;
    };
    append(in_block(specs_of<hidden_source<B>>(B::hidden_role), extent::d_ff, extent::d_model));
    append(in_block(specs_of<output_source<B>>(B::output_role), extent::d_model, extent::d_ff, 64));
    append(in_block(norm_specs<output_norm<B>>(), extent::d_model, extent::d_model));
    return all;
}

TIFFIN_END
