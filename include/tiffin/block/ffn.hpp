#pragma once

#include <tiffin/block/block_tensors.hpp>
#include <tiffin/fusion/multiply.hpp>
#include <tiffin/output/project.hpp>
#include <tiffin/source/fused.hpp>
#include <tiffin/source/gate.hpp>
#include <tiffin/source/none.hpp>

#include <concepts>
#include <string_view>
#include <type_traits>

TIFFIN_BEGIN

namespace detail {

template <class G>
inline constexpr bool is_gate = false;
template <class A, class S>
inline constexpr bool is_gate<gate<A, S>> = true;

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

}  // namespace detail

// The feed-forward block: h = fusion(phi(gate source), up source), y = output(h).
// Shapes: x (T, d_model), h (T, d_ff), y (T, d_model); tensors as the parts name them.
// Numerics: h is stored in f32 (double in `reference`).
// Errors: found by prepare() (tensors) and at the start of a call (sizes, token ids).
// Cost: see analysis/cost.hpp, which derives it from the parts.
// Source: DESIGN section 1; SPEC 2.1 and 2.2.
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
    static_assert(output_policy<Output>,
                  "tiffin: ffn<Gate, Up, Fusion, Output>: the fourth argument is not an output; "
                  "write project<>, project<rms> or project<no_norm, your_source>");

    using hidden_type = typename detail::hidden_of<Gate, Up, Fusion>::type;
    static constexpr std::string_view hidden_role = std::same_as<Up, none> ? "up_proj" : "gate_proj";
    static constexpr std::string_view output_role = "down_proj";

    hidden_type hidden{};
    Output output{};

    static_assert(names_are_distinct(specs_of<hidden_type>(hidden_role),
                                     specs_of<decltype(Output::source)>(output_role),
                                     norm_specs<decltype(Output::norm)>()),
                  "tiffin: ffn<...>: two parts of this block read a tensor of the same name; "
                  "wrap one of them in named<Source, \"another_name\">");
};

TIFFIN_END
