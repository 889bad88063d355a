// A block as a file of any format describes it: options and tensors by name.
#pragma once

#include <tiffin/all_policies.hpp>
#include <tiffin/call/prepare.hpp>
#include <tiffin/format/number_format.hpp>
#include <tiffin/io/layer_options.hpp>
#include <tiffin/io/layer_text.hpp>
#include <tiffin/plan/composition.hpp>
#include <tiffin/runtime/any_layer.hpp>
#include <tiffin/tensor.hpp>

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

TIFFIN_BEGIN
namespace io {

// Options and tensors with the names that layer files have (docs/layer_files.md).
struct described_layer {
    std::map<std::string, std::string> options;
    weights tensors;
    std::shared_ptr<const void> keep{};  // owns the tensors' memory
};

namespace detail {

// Adds one tensor (2 d_ff, d_model) as two: the gate's rows first, then the up projection's.
inline status add_gate_and_up(weights& to, const tensor_view& both, const std::string& name) {
    if (both.shape.rank() != 2 || both.shape[0] % 2 != 0)
        return failure(errc::shape, name, "has shape ", to_string(both.shape),
                       "; it must be (2 d_ff, d_model)");
    const std::size_t d_ff = both.shape[0] / 2;
    if (both.scales.any() && both.scales.rows < both.shape[0] && d_ff % both.scales.rows != 0)
        return failure(errc::shape, name, "has a scale per ", both.scales.rows,
                       " rows, which are not all of one of its "
                       "halves of ",
                       d_ff);
    to.add("gate_proj.weight", both.rows_from(0, {d_ff, both.shape[1]}));
    to.add("up_proj.weight", both.rows_from(d_ff, {d_ff, both.shape[1]}));
    return {};
}

// The options of a gated FFN; `above`: of its gate only values pass that are so many deviations above their mean.
inline std::map<std::string, std::string> gated_options(std::string_view activation,
                                                        std::optional<float> above = {}) {
    if (!above) return {{"block", "glu"}, {"activation", std::string(activation)}};
    return {
        {"composition", text_of("ffn(gate(", activation,
                                ", through('', named(dense, 'gate_proj'), normed(gaussian_top_k(deviations=",
                                number_text(*above), "), centred))), dense)")}};
}

// Of Gemma 4's mixtures.
inline failure experts_beside(const std::string& router) {
    return failure(errc::option, router,
                   "chooses experts beside the FFN, which read and write by norms of their own; tiffin's "
                   "blocks do not have that");
}

// The block as the first of two parallel branches.
inline described_layer first_branch(const described_layer& block) {
    described_layer made;
    made.options = {{"block", "parallel"}, {"branches", "2"}};
    for (const auto& [key, value] : block.options) made.options.insert({"branch.0." + key, value});
    for (const weights::entry& e : block.tensors.entries()) made.tensors.add("branch.0." + e.name, e.tensor);
    return made;
}

}  // namespace detail

// The composition text of the block: `composition`, or what `block` and its options mean (docs/layer_files.md).
// Errors: errc::option for an unknown or missing block or option. `where` is the key.
inline result<std::string> composition_of(const described_layer& from) {
    layer_options options(from.options);
    auto text = layer_text(options, from.tensors).read();
    if (!text) return text;
    const std::string* const block = options.find("block");
    if (status s = options.check_all_known(block != nullptr ? *block : "composition"); !s) return s.failure();
    return text;
}

// Prepares the described block with the policies `known`; the layer keeps the tensors' memory alive.
// Errors: those of composition_of(), compose() and prepare(). `where` is the key or tensor.
// Cost: that of prepare().
template <tiffin::detail::runs_plans Backend, policy_list Policies>
result<any_layer> load_layer(const described_layer& from, const Backend& backend, const prepare_options& how,
                             const Policies& known) {
    auto text = composition_of(from);
    if (!text) return text.failure();
    auto block = compose<typename Backend::machine>(*text, known);
    if (!block) return block.failure();
    auto made = try_prepare(*block, from.tensors, backend, how);
    if (!made) return made.failure();
    return any_layer(*std::move(made), from.keep);
}
// The same with all policies of the library.
template <tiffin::detail::runs_plans Backend>
result<any_layer> load_layer(const described_layer& from, const Backend& backend,
                             const prepare_options& how = {.tokens = 0}) {
    return load_layer(from, backend, how, all_policies);
}

// The format to keep the weights in without measurable loss: the tensors' own, if all have the same and weights can be
// kept in it; BF16 for F8; Q8_0 for block formats that are only read or have scales, or for several of them; else F32.
inline dtype kept_format(const described_layer& layer) noexcept {
    bool blocks = true, first = true, same = true;
    dtype type = dtype::f32;
    for (const weights::entry& e : layer.tensors.entries()) {
        if (e.tensor.shape.rank() < 2 || is_integer(e.tensor.type) || e.name.ends_with("router.weight"))
            continue;
        const dtype own = is_f8(e.tensor.type) ? dtype::bf16 : chosen_by(e.tensor);
        same = same && (first || own == type);
        blocks = blocks && block_of(own) > 1;
        type = own;
        first = false;
    }
    if (same && type <= dtype::q4_0) return type;
    return blocks && !first ? dtype::q8_0 : dtype::f32;
}

}  // namespace io
TIFFIN_END
