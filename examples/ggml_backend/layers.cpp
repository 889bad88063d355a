#include "layers.hpp"

#include "support/layer_files.hpp"

#include <tiffin/activation/any_activation.hpp>
#include <tiffin/block/ffn.hpp>
#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/source/dense.hpp>
#include <tiffin/source/gate.hpp>
#include <tiffin/source/none.hpp>
#include <tiffin/source/residual_input.hpp>
#include <tiffin/source/sum.hpp>

#include <string>
#include <utility>

namespace tiffin_in_ggml {
namespace {

void add(tiffin::weights& to, const std::string& name, const projection& given) {
    to.add(name + ".weight", given.weight);
    if (given.bias != nullptr) to.add(name + ".bias", given.bias, {given.weight.shape[0]});
}

template <class Block>
tiffin::result<tiffin::any_layer> prepare_block(const Block& block, const tiffin::weights& given,
                                                tiffin::executor_ref execute) {
    const tiffin::simd<tiffin::any_format> backend{.weights = tiffin::kept_as_given};
    tiffin::prepare_options how{.tokens = 0};
    how.execute = execute;
    auto made = tiffin::try_prepare(block, given, backend, how);
    if (!made) return made.failure();
    return tiffin::any_layer(*std::move(made));
}

// With the residual added, where there is one.
template <class Block>
tiffin::result<tiffin::any_layer> prepare_branch(const Block& block, const ffn& of,
                                                 const tiffin::weights& given, tiffin::executor_ref execute) {
    if (!of.residual) return prepare_block(block, given, execute);
    return prepare_block(tiffin::sum<Block, tiffin::residual_input>{{block, {}}}, given, execute);
}

}  // namespace

tiffin::result<tiffin::any_layer> prepare(const ffn& block, tiffin::executor_ref execute) {
    using any_gate = tiffin::gate<tiffin::any_activation>;
    const any_gate gate{tiffin::any_activation{block.activation}};
    tiffin::weights given;
    add(given, "down_proj", block.down);
    add(given, "up_proj", block.up);
    if (block.gate.weight.data == nullptr)
        return prepare_branch(tiffin::ffn<any_gate, tiffin::none>{gate}, block, given, execute);
    add(given, "gate_proj", block.gate);
    return prepare_branch(tiffin::ffn<any_gate, tiffin::dense>{{gate}}, block, given, execute);
}

tiffin::result<tiffin::any_layer> prepare_around(const tiffin::io::side_file& side, std::size_t layer,
                                                 const ffn& block, std::size_t vocabulary,
                                                 tiffin::executor_ref execute) {
    const bool gated = block.gate.weight.data != nullptr;
    const auto activation = tiffin::activation_names[static_cast<std::size_t>(block.activation)];
    tiffin::io::described_layer own{
        {{"block", gated ? "glu" : "mlp"}, {"activation", std::string(activation)}}, {}, {}};
    add(own.tensors, "down_proj", block.down);
    add(own.tensors, "up_proj", block.up);
    if (gated) add(own.tensors, "gate_proj", block.gate);
    const auto described = side.around(layer, own);
    if (!described) return described.failure();
    tiffin::prepare_options how{.tokens = 0};
    how.execute = execute;
    auto made = tiffin::io::load_layer(*described, simd_of_any_format{tiffin::kept_as_given, {}, {}}, how);
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
