#pragma once

#include <tiffin/activation/sigmoid.hpp>
#include <tiffin/grammar/option.hpp>
#include <tiffin/grammar/parts_computed_first.hpp>
#include <tiffin/grammar/tree.hpp>
#include <tiffin/scalar.hpp>

#include <cmath>
#include <string_view>
#include <tuple>

TIFFIN_BEGIN

// A source gated by the dot product of two others: z = gate(<l, r>) v, one gate value per token row.
// Shapes: l, r, v, z (T, width). Left and Right must not multiply the input of the whole: wrap a projection of it in
//   through. Gate(dot, width) is a template over the scalar.
// Numerics: the dot product is computed first, in the backend's scalar and in an unspecified order of additions.
// Cost: 3 width FLOPs more than the parts; Left and Right are computed twice where they are formulas.
// Source: Engram; docs/layers.md#engram.
template <class Gate, class Left, class Right, class Value>
struct dot_gated {
    static_assert(source_policy<Left> && source_policy<Right> && source_policy<Value>,
                  "tiffin: dot_gated<Gate, Left, Right, Value>: all but the first argument are sources");
    static_assert(
        !detail::multiplies_input(detail::kind_of<Left>) && !detail::multiplies_input(detail::kind_of<Right>),
        "tiffin: dot_gated<Gate, Left, Right, Value>: Left or Right multiplies what the whole reads, so that "
        "its row is not known before the gate; write through<\"\", source_input, Left>");
    using source_role = row_dot_role;
    using formula_is = policy_of_values<dot_gated>;
    using tensors = tensor_list<row_scale>;
    static constexpr std::string_view name = "";

    Gate gate{};
    Left left{};
    Right right{};
    Value value{};

    TIFFIN_HD constexpr std::tuple<const Left&, const Right&, const Value&> parts() const noexcept {
        return {left, right, value};
    }
    static constexpr double flops() noexcept { return 3; }

    template <class S>
    TIFFIN_HD S scale(const S& dot, const S& width) const {
        return gate(dot, width);
    }
    template <class Place, class L, class R, class V>
    TIFFIN_HD auto operator()(const Place& at, const L&, const R&, const V& v) const {
        return at[row_scale{}] * v;
    }
};

namespace detail {

// sqrt(max(|g|, least)).
template <class S>
TIFFIN_HD S root_of_size(const S& g, float least) {
    using std::sqrt;
    const S size = select(g < S(0), -g, g), floor = constant<S>(least);
    return sqrt(select(size < floor, floor, size));
}

}  // namespace detail

// Engram's gate: sigmoid(sign(g) sqrt(max(|g|, least))), g = dot / sqrt(width); sigmoid(0) for g = 0; NaN for NaN.
struct signed_root_gate {
    float least = 1e-6f;
    static constexpr auto options() noexcept { return std::tuple(option{"least", &signed_root_gate::least}); }

    template <class S>
    TIFFIN_HD S operator()(const S& dot, const S& width) const {
        using std::sqrt;
        const S zero(0), g = dot / sqrt(width), root = detail::root_of_size(g, least);
        return sigmoid{}(select(g < zero, -root, select(zero < g, root, zero * g)));
    }
};

// The same with the sign copied: 0 has the root of `least`, as every other g has that is as small. DeepSeek's Engram.
struct copysign_root_gate {
    float least = 1e-6f;
    static constexpr auto options() noexcept {
        return std::tuple(option{"least", &copysign_root_gate::least});
    }

    template <class S>
    TIFFIN_HD S operator()(const S& dot, const S& width) const {
        using std::sqrt;
        const S g = dot / sqrt(width), root = detail::root_of_size(g, least);
        return sigmoid{}(select(g < S(0), -root, root));
    }
};

TIFFIN_END
