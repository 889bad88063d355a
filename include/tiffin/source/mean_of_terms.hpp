#pragma once

#include <tiffin/error.hpp>
#include <tiffin/grammar/option.hpp>
#include <tiffin/grammar/tree.hpp>
#include <tiffin/scalar.hpp>

#include <cstddef>
#include <tuple>

TIFFIN_BEGIN

// A source that is a sum, divided by the number of its terms: z = source / terms.
// Shapes: source, z (T, width). Numerics: a quotient in the backend's scalar.
// Errors: terms has no default: prepare() refuses 0 with errc::option.
// Cost: 1 FLOP per element more than the source. Source: LongCat's embeddings; docs/layers.md#longcat.
template <class Source>
struct mean_of_terms {
    static_assert(source_policy<Source>, "tiffin: mean_of_terms<Source>: the argument is not a source");

    Source sum_of_terms{};
    std::size_t terms = 0;
    static constexpr auto options() noexcept { return std::tuple(option{"terms", &mean_of_terms::terms}); }

    [[nodiscard]] status check() const {
        if (terms > 0) return {};
        return failure(errc::option, "terms",
                       "is 0; it has no default: it counts the rows that are averaged");
    }
    TIFFIN_HD constexpr std::tuple<const Source&> parts() const noexcept { return {sum_of_terms}; }
    static constexpr double flops() noexcept { return 1; }

    template <class Value>
    TIFFIN_HD Value operator()(const Value& v) const {
        return v / constant<Value>(static_cast<double>(terms));
    }
};

TIFFIN_END
