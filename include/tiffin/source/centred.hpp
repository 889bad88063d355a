#pragma once

#include <tiffin/grammar/tree.hpp>
#include <tiffin/source/source_input.hpp>

#include <string_view>
#include <tuple>

TIFFIN_BEGIN

namespace detail {

// 1 for each value of the input, whose product with these is their sum.
struct ones_of_input {
    source_input input{};

    TIFFIN_HD constexpr std::tuple<const source_input&> parts() const noexcept { return {input}; }
    static constexpr double flops() noexcept { return 0; }

    template <class Value>
    TIFFIN_HD Value operator()(const Value&) const {
        return Value(1);
    }
};

}  // namespace detail

// The input less its mean: z = x - sum(x) / width. LayerNorm is the rms norm of it: normed<rms, centred>, and with an
// offset sum<normed<rms, centred>, bias<"norm.bias">>; that of other rows through<"", rows, normed<rms, centred>>.
// Shapes: x, z (T, width), as of source_input.
// Numerics: the sum is computed first, in the backend's scalar and in an unspecified order of additions. The variance of
//   LayerNorm is that of the centred row, as in two passes.
// Cost: 3 width FLOPs, x read twice. Source: Ba, Kiros and Hinton, arXiv 1607.06450; StructMoE's backbone.
struct centred {
    using source_role = row_dot_role;
    using tensors = tensor_list<row_scale>;
    static constexpr std::string_view name = "";

    detail::ones_of_input ones{};
    source_input input{};

    TIFFIN_HD constexpr std::tuple<const detail::ones_of_input&, const source_input&, const source_input&>
    parts() const noexcept {
        return {ones, input, input};
    }
    static constexpr double flops() noexcept { return 3; }

    // The mean.
    template <class S>
    TIFFIN_HD S scale(const S& sum, const S& width) const {
        return sum / width;
    }
    template <class Place, class One, class V>
    TIFFIN_HD auto operator()(const Place& at, const One&, const V&, const V& v) const {
        return v - at[row_scale{}];
    }
};

TIFFIN_END
