// tiffin's layers as subjects.
#pragma once

#include <tiffin/cpu/eigen/eigen.hpp>
#include <tiffin/tiffin.hpp>

#include "../call_bytes.hpp"
#include "measuring.hpp"

#include <concepts>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tiffin_bench {

// The layers of one shape; an empty set of names stands for all of them.
struct layer_choice {
    shape sizes;
    std::set<std::string_view> names;

    [[nodiscard]] bool wants(std::string_view name) const { return names.empty() || names.contains(name); }
};
void add_dense_layers(const layer_choice& choice);
void add_routed_layers(const layer_choice& choice);
void add_memory_layers(const layer_choice& choice);
void add_layers_in_formats(const layer_choice& choice);

// The tensors of one layer.
struct given_layer {
    std::vector<page_floats> memory;
    tiffin::weights tensors;
};

// A tensor's memory full of noise: f32, the integers of a map of `experts` experts, or the blocks of a format.
page_floats noise_of(tiffin::dtype type, const tiffin::shape& sizes, std::size_t experts, std::uint32_t seed);

// Ranges of `each` rows among so many, one after the other and again from the first.
page_floats ranges_of(std::size_t ids, std::size_t rows, std::size_t each);

// Tensors by name that a layer was packed from and does not read any more: the next one may be packed from them
// too, which spares much of the time that a subject takes to be made.
using spare_tensors = std::map<std::string, page_floats>;

// Dense weights are given as `projections`, all else in f32.
template <class Block>
given_layer make_weights(const Block& block, const tiffin::block_shape& sizes, tiffin::dtype projections,
                         std::uint32_t seed, spare_tensors& spare) {
    given_layer given;
    for (const auto& [name, t] : tiffin::tensors_needed(block, sizes)) {
        if (t.needed == tiffin::presence::optional) continue;
        using kind = tiffin::tensor_kind;
        const tiffin::dtype type = is_map(t.kind)               ? tiffin::dtype::i32
                                   : t.kind == kind::projection ? projections
                                                                : tiffin::dtype::f32;
        auto found = spare.extract(std::string(name));
        if (t.kind == kind::row_ranges)
            given.memory.push_back(ranges_of(t.shape[0], sizes.experts, sizes.choices));
        else
            given.memory.push_back(found ? std::move(found.mapped())
                                         : noise_of(type, t.shape, sizes.experts, seed++));
        given.tensors.add(std::string(name), {given.memory.back().data(), type, t.shape});
    }
    return given;
}

// Takes back the tensors that a layer does not go on reading, which it names: simd has packed the dense weights,
// and copied tables that it keeps in another format.
void keep_in_place(given_layer& given, const std::vector<std::string>& names, spare_tensors& spare);

// Bytes a number of a tensor of this kind takes in a backend.
double bytes_of(const tiffin::number_formats& formats, tiffin::tensor_kind kind);

// What weights and activations of these formats are multiplied with.
arithmetic arithmetic_of(const tiffin::number_formats& formats);

template <class Backend>
tiffin::number_formats formats_of(const Backend& backend, tiffin::dtype given) {
    if constexpr (requires { backend.formats(); })
        return tiffin::formats_of(backend.formats(), std::span(&given, 1));
    else
        return {};
}

template <class Backend, class Block>
subject make_subject(const Block& block, const tiffin::block_shape& sizes, const Backend& backend,
                     tiffin::dtype projections) {
    struct state {
        std::vector<given_layer> given;
        std::vector<tiffin::layer<Block, Backend>> layers;
        tiffin::workspace workspace;
        tiffin::carried_residuals carried;
        page_floats beside{};    // rows given with a call, where the layer reads some
        std::size_t tokens = 0;  // of the last call
    };
    const tiffin::block_cost cost = tiffin::cost(sizes, block);
    const tiffin::number_formats formats = formats_of(backend, projections);
    const auto held = std::make_shared<state>(state{{}, {}, {}, {2, most_tokens, sizes.d_model}});
    subject made;
    const double dense_bytes =
        bytes_of(formats, tiffin::tensor_kind::projection) * (cost.parameters - cost.table_parameters);
    made.layers = layers_for(dense_bytes);
    spare_tensors spare;
    for (std::size_t i = 0; i < made.layers; ++i) {
        held->given.push_back(
            make_weights(block, sizes, projections, static_cast<std::uint32_t>(100 * i), spare));
        held->layers.push_back(tiffin::prepare(block, held->given[i].tensors, backend, {.tokens = 0}));
        keep_in_place(held->given[i], held->layers[i].reads_in_place(), spare);
    }
    held->workspace =
        held->layers[0].make_workspace(most_tokens, static_cast<std::size_t>(options().threads));
    const std::size_t given = held->layers[0].needs().given_width;
    if (given > 0) held->beside = random_numbers(most_tokens * given, 1);
    made.bytes = (dense_bytes + bytes_of(formats, tiffin::tensor_kind::table) * cost.table_parameters) *
                 static_cast<double>(made.layers);
    made.run = [held, sizes](std::size_t i, const float* x, const std::int32_t* ids, std::size_t tokens,
                             float* y, const tiffin::executor_ref& execute) {
        if (std::exchange(held->tokens, tokens) != tokens) held->carried.begin();
        tiffin::token_inputs inputs;
        inputs.token_ids = {ids, tokens};
        inputs.residual = {x, tokens, sizes.d_model};
        inputs.per_layer_input = {held->beside.data(), tokens, held->layers[i].needs().given_width};
        inputs.carried = &held->carried;
        const tiffin::matrix_view<const float> in(x, tokens, sizes.d_model);
        const tiffin::matrix_view<float> out(y, tokens, sizes.d_model);
        std::as_const(held->layers[i])(in, inputs, out, held->workspace, execute);
    };
    return made;
}

// `name` is <layer>/<backend>/<format>.
template <class Backend, class Block>
void add_on(const std::string& name, const Backend& backend, const shape& s, const Block& block,
            tiffin::block_shape sizes, tiffin::dtype projections = tiffin::dtype::f32) {
    sizes.d_model = s.d_model;
    sizes.d_ff = s.d_ff;
    sizes.vocab = vocab;
    const tiffin::number_formats formats = formats_of(backend, projections);
    add_subject("layer/" + name + "/" + name_of(s),
                {.make = [=] { return make_subject(block, sizes, backend, projections); },
                 .work =
                     [=](std::size_t tokens) {
                         const auto t = static_cast<double>(tokens);
                         return work_per_call{t * tiffin::cost(sizes, block).matrix_flops_per_token,
                                              bytes_of_call(block, sizes, t, [&](tiffin::tensor_kind kind) {
                                                  return bytes_of(formats, kind);
                                              })};
                     },
                 .kind = arithmetic_of(formats)});
}

template <class Block>
void add_layer(const std::string& name, const shape& s, const Block& block = {},
               const tiffin::block_shape& sizes = {}) {
    add_on(name + "/simd/f32", tiffin::simd<>{}, s, block, sizes);
    add_on(name + "/eigen/f32", tiffin::eigen{}, s, block, sizes);
}

}  // namespace tiffin_bench
