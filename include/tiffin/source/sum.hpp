#pragma once

#include <tiffin/grammar/tree.hpp>

#include <cstddef>
#include <tuple>

TIFFIN_BEGIN

// The sum of sources: z = z_1 + z_2 + ... + z_n, added from left to right.
// Shapes: each part (T, width). Numerics: n - 1 roundings. Cost: that of the parts and n - 1 adds.
// Errors: two parts with tensors of one name do not compile; wrap one in `named`.
// Source: STEM Eq. 5, StructMoE Eq. 5.
template <class... Parts>
struct sum {
    static_assert(sizeof...(Parts) >= 2, "tiffin: sum<...> needs two sources or more");
    static_assert((source_policy<Parts> && ...),
                  "tiffin: sum<...>: one of the parts is not a source; a source has a `tensors` list and "
                  "a formula operator()(at), as dense has, or parts()");

    using formula_is = sum_of_values<sum>;

    std::tuple<Parts...> terms;

    TIFFIN_HD constexpr const std::tuple<Parts...>& parts() const noexcept { return terms; }
    static constexpr double flops() noexcept { return sizeof...(Parts) - 1.0; }

    template <class... Values>
    TIFFIN_HD auto operator()(const Values&... values) const {
        return (... + values);
    }
};

TIFFIN_END
