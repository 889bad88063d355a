#include "ffn_kinds.hpp"

#include <tiffin/all_policies.hpp>
#include <tiffin/plan/compose.hpp>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace {

using tiffin::block_shape;

std::size_t longest_delay(const tiffin::plan_node& node) {
    std::size_t longest = node.delay;
    for (const auto* parts : {&node.parts, &node.repeated})
        for (const tiffin::plan_node& part : *parts) longest = std::max(longest, longest_delay(part));
    return longest;
}

// Every part of the same sizes.
block_sizes one_size(const ffn_sizes& s) {
    return {{.d_model = s.d_model,
             .d_ff = s.d_ff,
             .vocab = s.vocabulary,
             .experts = s.experts,
             .rank = s.rank,
             .inner = {{s.d_mem, s.d_mem}}},
            {}};
}
block_sizes of_bank(const ffn_sizes& s) {
    block_sizes made = one_size(s);
    made.whole.experts = s.bank;
    return made;
}
// Experts whose widths sum to the dense block's: its FLOPs.
block_sizes experts_of(const ffn_sizes& s, std::size_t chosen) {
    block_sizes made = one_size(s);
    made.parts = {{.d_model = s.d_model, .d_ff = s.d_ff / chosen, .vocab = s.vocabulary}};
    return made;
}
block_sizes beside_a_memory(const ffn_sizes& s) {
    block_sizes made = one_size(s);
    made.parts = {{.d_model = s.d_model, .d_ff = s.d_ff},
                  {.d_model = s.d_model,
                   .d_ff = s.d_mem,
                   .vocab = s.vocabulary,
                   .inner = {{s.d_model, s.d_model / 2}}}};
    return made;
}

// With the number `value` in the place of `word`.
std::string replaced(std::string text, std::string_view word, std::size_t value) {
    if (const std::size_t at = text.find(word); at != text.npos)
        text.replace(at, word.size(), std::to_string(value));
    return text;
}

// In the text and the options, LAYERS and EXPERTS stand for the model's.
ffn_kind kind_of(std::string name, const std::string& text,
                 std::function<block_sizes(const ffn_sizes&)> sizes = one_size,
                 const std::map<std::string, std::string>& options = {}) {
    ffn_kind made{std::move(name), [text](const ffn_sizes& s) { return replaced(text, "LAYERS", s.layers); },
                  std::move(sizes)};
    if (!options.empty())
        made.options = [options](const ffn_sizes& s) {
            std::map<std::string, std::string> told = options;
            for (auto& [key, value] : told)
                value = replaced(replaced(value, "LAYERS", s.layers), "EXPERTS", s.experts);
            return told;
        };
    return made;
}
ffn_kind kind_of(const std::string& name, const std::string& text,
                 const std::map<std::string, std::string>& options) {
    return kind_of(name, text, one_size, options);
}

// SwiGLU, and MoRT's residual beside it, which arrives some layers later.
ffn_kind delayed_mort(const char* layers) {
    return kind_of(
        std::string("mort_delay") + layers,
        std::string("parallel(swiglu, delayed(modulator_pool(num_layers=LAYERS), layers=") + layers + "))");
}

ffn_kind meki_as_trained() {
    ffn_kind made = kind_of(
        "meki", "parallel(swiglu, meki_training)", beside_a_memory,
        {{"block", "parallel"}, {"branches", "2"}, {"branch.0.block", "glu"}, {"branch.1.block", "meki"}});
    made.reads_embedding = true;
    made.runs_as = "meki_folded";
    return made;
}

}  // namespace

ffn_kind::composition ffn_kind::composed(const ffn_sizes& s) const {
    return tiffin::compose<tiffin::training<tiffin::simd<>>::machine>(text(s), tiffin::all_policies)
        .or_throw();
}
std::map<std::string, std::string> ffn_kind::file_options(const ffn_sizes& s) const {
    if (options) return options(s);
    return {{"composition", composed(s).text()}};
}
std::vector<tiffin::named_tensor> ffn_kind::tensors(const ffn_sizes& s) const {
    const block_sizes of = sizes(s);
    auto all = tiffin::tensors_needed(composed(s).plan(), of.shape());
    std::erase_if(all, [](const auto& t) { return t.tensor.needed != tiffin::presence::required; });
    return all;
}
double ffn_kind::flops(const ffn_sizes& s) const {
    const block_sizes of = sizes(s);
    return tiffin::cost(of.shape(), composed(s).plan()).matrix_flops_per_token;
}
double ffn_kind::folded_flops(const ffn_sizes& s) const {
    return runs_as.empty() ? flops(s) : ffn_kind_of(runs_as).flops(s);
}
std::size_t ffn_kind::delay(const ffn_sizes& s) const {
    return longest_delay(composed(s).plan());
}
bool ffn_kind::routes_by_sigmoids(const ffn_sizes& s) const {
    return composed(s).text().find("sigmoid_topk_renorm(") != std::string::npos;
}
tiffin::status ffn_kind::initialise(const ffn_sizes& s, const tiffin::named_memory<float>& to,
                                    const tiffin::initial_values& how, const std::string& prefix) const {
    const block_sizes of = sizes(s);
    return tiffin::initialise(composed(s).plan(), of.shape(), to, how, prefix);
}
tiffin::status ffn_kind::initialise_part(const ffn_sizes& s, const std::string& tensor, std::size_t first,
                                         std::span<float> to, const tiffin::initial_values& how,
                                         const std::string& prefix) const {
    const block_sizes of = sizes(s);
    return tiffin::initialise_part(composed(s).plan(), of.shape(), tensor, first, to, how, prefix);
}
tiffin::trainable_layer<float> ffn_kind::prepare(const ffn_sizes& s, const tiffin::weights& weights,
                                                 const tiffin::training_options<float>& how,
                                                 bool bf16_products) const {
    auto made = bf16_products
                    ? tiffin::prepare_training(composed(s), weights, tiffin::simd<tiffin::bf16>{}, how)
                    : tiffin::prepare_training(composed(s), weights, tiffin::simd<>{}, how);
    if (made.needs().given_width != 0)
        throw std::invalid_argument(name + ": reads per_layer_input, which this model does not have");
    return made;
}

const std::vector<ffn_kind>& ffn_kinds() {
    const auto experts = [](std::size_t chosen) {
        return [chosen](const ffn_sizes& s) { return experts_of(s, chosen); };
    };
    static const std::vector<ffn_kind> all{
        kind_of("mlp", "mlp", {{"block", "mlp"}}),
        kind_of("swiglu", "swiglu", {{"block", "glu"}}),
        kind_of("stem", "stem", {{"block", "stem"}}),
        kind_of("stem_gate", "stem_gate", {{"block", "stem_gate"}}),
        kind_of("stem_hybrid", "stem_hybrid", {{"block", "stem_hybrid"}}),
        kind_of("moe", "moe(swiglu, top_k=2)", experts(2),
                {{"block", "moe"}, {"num_experts", "EXPERTS"}, {"top_k", "2"}, {"expert.block", "glu"}}),
        kind_of("hash_moe", "hash_moe(swiglu)", experts(1),
                {{"block", "hash_moe"}, {"num_experts", "EXPERTS"}, {"top_k", "1"}, {"expert.block", "glu"}}),
        kind_of("structmoe", "structmoe", of_bank, {{"block", "structmoe"}}),
        kind_of("retoken", "retoken(swiglu)", {{"block", "retoken"}, {"base.block", "glu"}}),
        kind_of("retoken_folded", "retoken_folded(swiglu)",
                {{"block", "retoken"}, {"base.block", "glu"}, {"folded", "true"}}),
        kind_of("mort", "mort(swiglu, num_layers=LAYERS)",
                {{"block", "mort"}, {"base.block", "glu"}, {"num_layers", "LAYERS"}}),
        delayed_mort("1"),
        delayed_mort("2"),
        meki_as_trained(),
        kind_of("meki_folded", "parallel(swiglu, meki)", beside_a_memory,
                {{"block", "parallel"},
                 {"branches", "2"},
                 {"branch.0.block", "glu"},
                 {"branch.1.block", "meki"},
                 {"branch.1.folded", "true"}})};
    return all;
}

const ffn_kind& ffn_kind_of(const std::string& name_or_text) {
    std::string names;
    for (const ffn_kind& kind : ffn_kinds()) {
        if (kind.name == name_or_text) return kind;
        names += (names.empty() ? "" : ", ") + kind.name;
    }
    static std::map<std::string, ffn_kind> of_texts;
    if (const auto at = of_texts.find(name_or_text); at != of_texts.end()) return at->second;
    const auto composed = tiffin::compose(name_or_text, tiffin::all_policies);
    if (!composed)
        throw std::invalid_argument("'" + name_or_text + "' is no kind of FFN; known are " + names +
                                    ", none, and compositions as text: " + composed.failure().message());
    return of_texts.emplace(name_or_text, kind_of(name_or_text, name_or_text)).first->second;
}
