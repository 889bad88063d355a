// oneDNN in f32 and in bf16.
#include "onednn.hpp"

#include <omp.h>

#include <algorithm>
#include <utility>

namespace tiffin_bench {
namespace onednn {
namespace {

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
//
// Numerics: `type` of weights, of x, of x up^T and of the hidden values, each rounded to it once; sums and y in
// f32.
class matmul_peer final : public dense_peer {
public:
    matmul_peer(dense_shape shape, int threads, dense_weights weights, memory::data_type type)
        : shape_(shape),
          threads_(threads),
          type_(type),
          weights_(std::move(weights)),
          engine_(dnnl::engine::kind::cpu, 0),
          stream_(engine_),
          layers_(shape.layers) {
        prepare(1);
    }

    void prepare(std::size_t tokens) override {
        if (tokens == tokens_) return;
        // oneDNN divides the work when it makes a primitive, and keeps those it made before.
        omp_set_num_threads(threads_);
        const memory::desc given = matrix(tokens, shape_.d_model, memory::data_type::f32);
        const memory::desc outer = matrix(tokens, shape_.d_model, type_);
        const memory::desc inner = matrix(tokens, shape_.d_ff, type_);

        const auto up = product(engine_, outer, type_, inner);
        const auto gate = product(engine_, outer, type_, inner, silu_times(inner));
        const auto down = product(engine_, inner, type_, given);
        up_ = matmul(up);
        gate_ = matmul(gate);
        down_ = matmul(down);

        ups_ = matrix_memory(engine_, inner);
        hidden_ = matrix_memory(engine_, inner);
        const std::size_t scratch_bytes =
            std::max({up.scratchpad_desc().get_size(), gate.scratchpad_desc().get_size(),
                      down.scratchpad_desc().get_size()});
        scratch_ = page_floats(scratch_bytes / sizeof(float) + 1);

        x_ = memory(given, engine_, nullptr);
        y_ = memory(given, engine_, nullptr);
        memory in = x_;
        if (type_ != memory::data_type::f32) {
            rounded_ = matrix_memory(engine_, outer);
            in = rounded_.view();
            round_ = dnnl::reorder(x_, in);
        }
        for (std::size_t l = 0; l < shape_.layers; ++l) {
            layer_state& mine = layers_[l];
            const auto [d_model, d_ff, count] = shape_;
            constexpr auto f32 = memory::data_type::f32;
            pack(stream_, mine.up, up.weights_desc(), weights_.up(l), f32, d_model, d_ff);
            pack(stream_, mine.gate, gate.weights_desc(), weights_.gate(l), f32, d_model, d_ff);
            pack(stream_, mine.down, down.weights_desc(), weights_.down(l), f32, d_ff, d_model);
            mine.up_arguments = {{DNNL_ARG_SRC, in},
                                 {DNNL_ARG_WEIGHTS, mine.up.view()},
                                 {DNNL_ARG_DST, ups_.view()},
                                 {DNNL_ARG_SCRATCHPAD, scratch(up)}};
            mine.gate_arguments = {{DNNL_ARG_SRC, in},
                                   {DNNL_ARG_WEIGHTS, mine.gate.view()},
                                   {DNNL_ARG_DST, hidden_.view()},
                                   {DNNL_ARG_SCRATCHPAD, scratch(gate)},
                                   {DNNL_ARG_ATTR_MULTIPLE_POST_OP(1) | DNNL_ARG_SRC_1, ups_.view()}};
            mine.down_arguments = {{DNNL_ARG_SRC, hidden_.view()},
                                   {DNNL_ARG_WEIGHTS, mine.down.view()},
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
        if (round_) round_.execute(stream_, {{DNNL_ARG_FROM, x_}, {DNNL_ARG_TO, rounded_.view()}});
        up_.execute(stream_, layers_[layer].up_arguments);
        gate_.execute(stream_, layers_[layer].gate_arguments);
        down_.execute(stream_, layers_[layer].down_arguments);
        stream_.wait();
    }

private:
    struct layer_state {
        matrix_memory up, gate, down;
        arguments up_arguments, gate_arguments, down_arguments;
    };

    memory scratch(const matmul::primitive_desc& of) {
        return {of.scratchpad_desc(), engine_, scratch_.data()};
    }

    dense_shape shape_;
    int threads_;
    memory::data_type type_;
    dense_weights weights_;
    dnnl::engine engine_;
    dnnl::stream stream_;
    std::size_t tokens_ = 0;
    dnnl::reorder round_;
    matmul up_;
    matmul gate_;
    matmul down_;
    memory x_;
    memory y_;
    matrix_memory rounded_;
    matrix_memory ups_;
    matrix_memory hidden_;
    page_floats scratch_;
    std::vector<layer_state> layers_;
};

bool multiplies_bf16() {
    try {
        constexpr auto bf16 = memory::data_type::bf16;
        product(dnnl::engine(dnnl::engine::kind::cpu, 0), matrix(1, 16, bf16), bf16, matrix(1, 16, bf16));
        return true;
    } catch (const dnnl::error&) {
        return false;
    }
}

dense_peer_kind kind_of(const char* format, memory::data_type type, arithmetic products, double bytes) {
    return {.library = "onednn",
            .format = format,
            .products = products,
            .bytes_per_weight = bytes,
            .make = [=](dense_shape shape, int threads, dense_weights weights) {
                return std::make_unique<matmul_peer>(shape, threads, std::move(weights), type);
            }};
}

}  // namespace
}  // namespace onednn

std::vector<dense_peer_kind> onednn_peer_kinds() {
    using type = dnnl::memory::data_type;
    std::vector<dense_peer_kind> kinds{onednn::kind_of("f32", type::f32, arithmetic::f32, 4)};
    if (onednn::multiplies_bf16())
        kinds.push_back(onednn::kind_of("bf16", type::bf16, arithmetic::bf16_dot, 2));
    kinds.push_back(onednn::s8_kind());
    return kinds;
}

}  // namespace tiffin_bench
