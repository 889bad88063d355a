#include "layers.hpp"

#include "support/layer_files.hpp"

#include <string>
#include <utility>

namespace tiffin_in_ggml {
namespace {

void add(tiffin::weights& to, const std::string& name, const projection& given) {
    if (given.weight.data == nullptr) return;
    to.add(name + ".weight", given.weight);
    if (given.bias != nullptr) to.add(name + ".bias", given.bias, {given.weight.shape[0]});
}

// The tensors of a block; its options are still to come.
tiffin::io::described_layer tensors_of(const ffn& block) {
    tiffin::io::described_layer made;
    add(made.tensors, "gate_proj", block.gate);
    add(made.tensors, "up_proj", block.up);
    add(made.tensors, "down_proj", block.down);
    return made;
}

tiffin::result<tiffin::any_layer> load(const tiffin::io::described_layer& given,
                                       tiffin::executor_ref execute) {
    tiffin::prepare_options how{.tokens = 0};
    how.execute = execute;
    return tiffin::io::load_layer(given, simd_of_any_format{tiffin::kept_as_given, {}, {}}, how);
}

}  // namespace

tiffin::result<tiffin::any_layer> prepare(const ffn& block, tiffin::executor_ref execute) {
    const bool gated = block.gate.weight.data != nullptr;
    const std::string of =
        "ffn(gate(" + std::string(block.activation) + ")" + (gated ? ", dense)" : ", none)");
    tiffin::io::described_layer given = tensors_of(block);
    given.options = {{"composition", block.residual ? "sum(" + of + ", residual_input)" : of}};
    return load(given, execute);
}

tiffin::result<tiffin::any_layer> prepare_around(const tiffin::io::side_file& side, std::size_t layer,
                                                 const ffn& block, std::size_t vocabulary,
                                                 tiffin::executor_ref execute) {
    tiffin::io::described_layer own = tensors_of(block);
    own.options = {{"block", block.gate.weight.data != nullptr ? "glu" : "mlp"},
                   {"activation", std::string(block.activation)}};
    const auto described = side.around(layer, own);
    if (!described) return described.failure();
    const auto ngrams = side.ngrams(layer);
    if (!ngrams) return ngrams.failure();
    if (*ngrams)
        return tiffin::failure(
            tiffin::errc::option, side.label(), "layer ", layer,
            ": reads rows by the last ids of a sequence, and a graph of ggml does not tell "
            "which tokens are of one sequence");
    auto made = load(*described, execute);
    if (!made)
        return tiffin::failure(made.failure().code, side.label(), "layer ", layer, ": ",
                               made.failure().message());
    for (const tiffin::table_size& table : made->needs().tables)
        if (table.vocab != vocabulary)
            return tiffin::failure(tiffin::errc::shape, side.label(), "layer ", layer, ": ", table.name,
                                   " has ", table.vocab, " rows; the model's vocabulary has ", vocabulary,
                                   " tokens");
    return made;
}

const char* instruction_set() noexcept {
    return xsimd::default_arch::name();
}

}  // namespace tiffin_in_ggml
