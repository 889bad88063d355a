#pragma once

#include <tiffin/fixed_string.hpp>
#include <tiffin/norm/rms.hpp>
#include <tiffin/source/tree.hpp>

#include <string_view>
#include <tuple>
#include <type_traits>

TIFFIN_BEGIN

// A source normalised row by row: z = norm(source row), the weight called `<Name>.weight`.
// Shapes: source, z (T, width), weight (width) where the norm has one.
// Numerics: the sum of squares over the row is computed first, in the backend's scalar.
// Errors: a source below that multiplies x (dense) does not compile: its row is not known beforehand.
// Cost: the source twice, and the norm. Source: SPEC 2.5, 2.6.
template <norm_policy Norm, class Source, fixed_string Name = "norm">
struct normed {
    static_assert(source_policy<Source>, "tiffin: normed<Norm, Source>: the second argument is not a source");
    static_assert(count_of<Source>(tensor_kind::projection) == 0,
                  "tiffin: normed<Norm, Source>: the source multiplies x, and its row is not known before "
                  "the product; norm the block's output instead (project<Norm>), or wrap it in through<...>");
    using source_role = row_norm_role;
    using weight = vector<"weight">;
    using tensors =
        std::conditional_t<Norm::weighted, tensor_list<row_scale, weight>, tensor_list<row_scale>>;
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
