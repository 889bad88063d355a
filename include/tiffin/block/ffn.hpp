#pragma once

#include <tiffin/fusion/multiply.hpp>
#include <tiffin/grammar/parts.hpp>
#include <tiffin/norm/no_norm.hpp>
#include <tiffin/source/dense.hpp>
#include <tiffin/source/fused.hpp>
#include <tiffin/source/gate.hpp>
#include <tiffin/source/none.hpp>
#include <tiffin/source/normed.hpp>

#include <array>
#include <concepts>
#include <string_view>
#include <tuple>

TIFFIN_BEGIN

namespace detail {

template <class G>
inline constexpr bool is_gate = false;
template <class A, class S>
inline constexpr bool is_gate<gate<A, S>> = true;
template <std::size_t K>
inline constexpr bool is_gate<gate_argument<K>> = true;

// The hidden values of an ffn; without an up source the gate alone, whose dense part is then the
// block's only one and called `up_proj`.
template <class Gate, class Up, class Fusion>
struct hidden_of {
    using type = fused<Gate, Up, Fusion>;
};
template <class Gate, class Fusion>
struct hidden_of<Gate, none, Fusion> {
    using type = Gate;
};

template <class Norm, class Source>
struct projected {
    static_assert(norm_policy<Norm>,
                  "tiffin: project<Norm, Source>: the first argument is not a norm; a norm has "
                  "`weighted`, scale(sum_of_squares, count), operator()(x, scale, weight) and "
                  "flops(), as rms has. Write project<> or project<rms>");
    static_assert(source_policy<Source>,
                  "tiffin: project<Norm, Source>: the second argument is not a source; a source has "
                  "a `tensors` list and a formula operator()(at), as dense has, or parts()");
    using type = normed<Norm, Source, "post_norm">;
};
template <class Source>
struct projected<no_norm, Source> {
    using type = Source;
};

}  // namespace detail

// The output of an ffn: y = norm(source(h)), with the dense down-projection as the default source.
// Shapes: h (T, d_ff), y (T, d_model); `down_proj.weight` (d_model, d_ff), `down_proj.bias` (d_model,
//   optional), and `post_norm.weight` (d_model) where the norm is weighted.
// Cost: that of the source and the norm. Source: docs/layers.md#sources.
template <class Norm = no_norm, class Source = dense>
using project = typename detail::projected<Norm, Source>::type;

// The feed-forward block: h = fusion(phi(gate source), up source), y = output(h).
// Shapes: x (T, d_model), h (T, d_ff), y (T, d_model); tensors as the parts name them.
// Numerics: h is stored in f32 (double in `reference`), or as the backend rounds activations.
// Errors: found by prepare() (tensors) and at the start of a call (sizes, token ids).
// Cost: see analysis/cost.hpp, which derives it from the parts.
// Source: docs/layers.md#what-the-layers-compute.
//
//     using my_ffn = ffn<gate<silu>, sum<dense, token_embedding>>;
template <class Gate, class Up = none, class Fusion = multiply, class Output = project<>>
struct ffn {
    static_assert(detail::is_gate<Gate>,
                  "tiffin: ffn<Gate, Up, Fusion, Output>: the first argument is not a gate; write "
                  "ffn<gate<silu>, ...> or ffn<gate<silu, your_source>, ...>");
    static_assert(source_policy<Up> || std::same_as<Up, none>,
                  "tiffin: ffn<Gate, Up, Fusion, Output>: the second argument is not a source; a "
                  "source has a `tensors` list and a formula operator()(at), as dense has, or "
                  "parts(). Write dense, token_embedding, sum<...>, or none for no up source");
    static_assert(fusion_policy<Fusion>,
                  "tiffin: ffn<Gate, Up, Fusion, Output>: the third argument is not a fusion; a "
                  "fusion has a const operator()(g, u) and a const flops(), as multiply has");
    static_assert(source_policy<Output>,
                  "tiffin: ffn<Gate, Up, Fusion, Output>: the fourth argument is not an output; "
                  "write project<>, project<rms> or project<no_norm, your_source>");

    using source_role = chain_role;
    using tensors = tensor_list<computed>;
    using hidden_type = typename detail::hidden_of<Gate, Up, Fusion>::type;
    static constexpr std::array<std::string_view, 2> roles{
        {std::same_as<Up, none> ? "up_proj" : "gate_proj", "down_proj"}};
    static constexpr std::string_view inner_width = "d_ff";

    hidden_type hidden{};
    Output output{};

    TIFFIN_HD constexpr std::tuple<const hidden_type&, const Output&> parts() const noexcept {
        return {hidden, output};
    }
    static constexpr double flops() noexcept { return 0; }

    static_assert(names_are_distinct<hidden_type, Output>(roles[0], roles[1]),
                  "tiffin: ffn<...>: two parts of this block read a tensor of the same name; "
                  "wrap one of them in named<Source, \"another_name\">");
};

TIFFIN_END
