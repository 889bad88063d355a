// oneDNN.
#include "../machine.hpp"
#include "../peers.hpp"

#include <omp.h>
#include <oneapi/dnnl/dnnl.hpp>

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tiffin_bench {
namespace {

using dnnl::matmul;
using dnnl::memory;
using arguments = std::unordered_map<int, memory>;

memory::desc f32(std::size_t rows, std::size_t columns, memory::format_tag layout) {
    const auto dim = [](std::size_t n) { return static_cast<memory::dim>(n); };
    return {{dim(rows), dim(columns)}, memory::data_type::f32, layout};
}

// Room for what a descriptor describes, which may be padded.
page_floats floats_for(const memory::desc& desc) {
    return page_floats((desc.get_size() + sizeof(float) - 1) / sizeof(float));
}

// The primitive is matmul with the weights' layout left to it. With release 2.6.3 on 2 cores with
// AVX-512 and (4096, 11008), times in ms for x gate^T with fused silu and product:
//
//     tokens                                       1      4     16     64    512
//     matmul, own layout                         5.5    6.2    9.7   22.7    150
//     matmul, rows as given                      7.6    7.9   11.1   24.1    155
//     inner_product, own layout                  5.8    8.9   13.8   22.4    172
//     inner_product, own layout, nothing fused   5.5    6.4    9.7   22.6    144
//
// inner_product loses its better kernel with a fused product, and for (11008, 4096) takes 1.2 times
// as long as matmul at 1 to 64 tokens even without. The whole block with silu and product in a pass
// of its own, vectorised and on all threads, takes as long as with both fused, to 1 or 2 %.
class onednn_peer final : public dense_peer {
public:
    onednn_peer(dense_shape shape, int threads, dense_weights weights)
        : shape_(shape),
          threads_(threads),
          weights_(std::move(weights)),
          engine_(dnnl::engine::kind::cpu, 0),
          stream_(engine_),
          layers_(shape.layers) {
        prepare(1);
    }

    const char* name() const override { return "onednn"; }

    void prepare(std::size_t tokens) override {
        if (tokens == tokens_) return;
        // oneDNN divides the work when it makes a primitive, and keeps those it made before.
        omp_set_num_threads(threads_);
        const auto rows = memory::format_tag::ab;
        const memory::desc outer = f32(tokens, shape_.d_model, rows);
        const memory::desc inner = f32(tokens, shape_.d_ff, rows);

        dnnl::post_ops silu_and_product;
        silu_and_product.append_eltwise(1.0f, dnnl::algorithm::eltwise_swish, 1.0f, 0.0f);
        silu_and_product.append_binary(dnnl::algorithm::binary_mul, inner);
        const auto up = primitive(outer, inner, {});
        const auto gate = primitive(outer, inner, silu_and_product);
        const auto down = primitive(inner, outer, {});
        up_ = matmul(up);
        gate_ = matmul(gate);
        down_ = matmul(down);

        up_values_ = page_floats(tokens * shape_.d_ff);
        hidden_values_ = page_floats(tokens * shape_.d_ff);
        const std::size_t scratch_bytes =
            std::max({up.scratchpad_desc().get_size(), gate.scratchpad_desc().get_size(),
                      down.scratchpad_desc().get_size()});
        scratch_ = page_floats(scratch_bytes / sizeof(float) + 1);

        x_ = memory(outer, engine_, nullptr);
        y_ = memory(outer, engine_, nullptr);
        const memory ups(inner, engine_, up_values_.data());
        const memory hidden(inner, engine_, hidden_values_.data());
        for (std::size_t l = 0; l < shape_.layers; ++l) {
            layer_state& mine = layers_[l];
            const auto [d_model, d_ff, count] = shape_;
            pack(mine.up, up.weights_desc(), weights_.up(l), d_model, d_ff);
            pack(mine.gate, gate.weights_desc(), weights_.gate(l), d_model, d_ff);
            pack(mine.down, down.weights_desc(), weights_.down(l), d_ff, d_model);
            mine.up_arguments = {{DNNL_ARG_SRC, x_},
                                 {DNNL_ARG_WEIGHTS, mine.up.view},
                                 {DNNL_ARG_DST, ups},
                                 {DNNL_ARG_SCRATCHPAD, scratch(up)}};
            mine.gate_arguments = {{DNNL_ARG_SRC, x_},
                                   {DNNL_ARG_WEIGHTS, mine.gate.view},
                                   {DNNL_ARG_DST, hidden},
                                   {DNNL_ARG_SCRATCHPAD, scratch(gate)},
                                   {DNNL_ARG_ATTR_MULTIPLE_POST_OP(1) | DNNL_ARG_SRC_1, ups}};
            mine.down_arguments = {{DNNL_ARG_SRC, hidden},
                                   {DNNL_ARG_WEIGHTS, mine.down.view},
                                   {DNNL_ARG_DST, y_},
                                   {DNNL_ARG_SCRATCHPAD, scratch(down)}};
        }
        tokens_ = tokens;
    }

    void run(std::size_t layer, const float* x, std::size_t tokens, float* y) override {
        prepare(tokens);
        omp_set_num_threads(threads_);
        // The arguments of all layers share these two.
        x_.set_data_handle(const_cast<float*>(x));
        y_.set_data_handle(y);
        up_.execute(stream_, layers_[layer].up_arguments);
        gate_.execute(stream_, layers_[layer].gate_arguments);
        down_.execute(stream_, layers_[layer].down_arguments);
        stream_.wait();
    }

private:
    struct packed {
        page_floats values;
        memory view;
    };
    struct layer_state {
        packed up;
        packed gate;
        packed down;
        arguments up_arguments;
        arguments gate_arguments;
        arguments down_arguments;
    };

    matmul::primitive_desc primitive(const memory::desc& in, const memory::desc& out,
                                     const dnnl::post_ops& after) const {
        dnnl::primitive_attr attributes;
        attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
        attributes.set_post_ops(after);
        const memory::desc weights({in.dims()[1], out.dims()[1]}, memory::data_type::f32,
                                   memory::format_tag::any);
        return {matmul::desc(in, weights, out), attributes, engine_};
    }

    memory scratch(const matmul::primitive_desc& of) {
        return {of.scratchpad_desc(), engine_, scratch_.data()};
    }

    // Brings weights of (outputs, inputs) rows, which to matmul are (inputs, outputs) columns, into
    // the layout `desc`; straight from the given memory, so that there are never two copies.
    void pack(packed& to, const memory::desc& desc, const float* from, std::size_t inputs,
              std::size_t outputs) {
        if (to.view && to.view.get_desc() == desc) return;
        to.view = memory();
        to.values = page_floats();  // frees the old copy before there is a new one
        to.values = floats_for(desc);
        to.view = memory(desc, engine_, to.values.data());
        memory given(f32(inputs, outputs, memory::format_tag::ba), engine_, const_cast<float*>(from));
        dnnl::reorder(given, to.view).execute(stream_, given, to.view);
        stream_.wait();
    }

    dense_shape shape_;
    int threads_;
    dense_weights weights_;
    dnnl::engine engine_;
    dnnl::stream stream_;
    std::size_t tokens_ = 0;
    matmul up_;
    matmul gate_;
    matmul down_;
    memory x_;
    memory y_;
    page_floats up_values_;
    page_floats hidden_values_;
    page_floats scratch_;
    std::vector<layer_state> layers_;
};

}  // namespace

std::unique_ptr<dense_peer> make_onednn_peer(dense_shape shape, int threads, dense_weights weights) {
    return std::make_unique<onednn_peer>(shape, threads, std::move(weights));
}

}  // namespace tiffin_bench
