#pragma once

#include <tiffin/fixed_string.hpp>
#include <tiffin/grammar/tree.hpp>
#include <tiffin/norm/rms.hpp>

#include <string_view>
#include <tuple>
#include <type_traits>

TIFFIN_BEGIN

// A source normalised row by row: z = norm(source row), the weight called `<Name>.weight`.
// Shapes: source, z (T, width), weight (width) where the norm has one.
// Numerics: the sum of squares over the row is computed first, in the backend's scalar. If the source
//   multiplies x, its row is stored in f32 (double in `reference`).
// Cost: the norm, and the source twice, or one stored row more if the source multiplies x.
// Source: docs/layers.md#meki.
template <norm_policy Norm, class Source, fixed_string Name = "norm">
struct normed {
    static_assert(source_policy<Source>, "tiffin: normed<Norm, Source>: the second argument is not a source");
    using source_role = row_norm_role;
    using weight = vector<"weight">;
    using formula_is = policy_of_values<normed>;
    using tensors = std::conditional_t<Norm::weighted, tensor_list<row_scale, computed, weight>,
                                       tensor_list<row_scale, computed>>;
    static constexpr std::string_view name = text_of<Name>;

    Norm norm{};
    Source input{};

    TIFFIN_HD constexpr std::tuple<const Source&> parts() const noexcept { return {input}; }
    [[nodiscard]] constexpr double flops() const noexcept { return norm.flops(); }

    template <class Place, class Value>
    TIFFIN_HD auto operator()(const Place& at, const Value& v) const {
        if constexpr (Norm::weighted)
            return at.apply(norm, v, at[row_scale{}], at[weight{}]);
        else
            return at.apply(norm, v, at[row_scale{}], Value(1));
    }
};

TIFFIN_END
