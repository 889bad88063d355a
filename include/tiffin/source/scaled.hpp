#pragma once

#include <tiffin/fixed_string.hpp>
#include <tiffin/grammar/tree.hpp>

#include <string_view>
#include <tuple>

TIFFIN_BEGIN

// A source times one learned scalar: z = a * source, `a` being the tensor Name, of shape () or (1).
// Shapes: source, z (T, width). Cost: one operation per element. Source: MeKi's alpha and beta,
//   docs/layers.md#meki.
template <fixed_string Name, class Source>
struct scaled {
    static_assert(source_policy<Source>, "tiffin: scaled<Name, Source>: the second argument is not a source");
    using factor = scalar<Name>;
    using tensors = tensor_list<factor>;
    static constexpr std::string_view name = "";

    Source input{};

    TIFFIN_HD constexpr std::tuple<const Source&> parts() const noexcept { return {input}; }
    static constexpr double flops() noexcept { return 1; }

    template <class Place, class Value>
    TIFFIN_HD auto operator()(const Place& at, const Value& v) const {
        return at[factor{}] * v;
    }
};

TIFFIN_END
