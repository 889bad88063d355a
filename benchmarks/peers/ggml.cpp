// ggml: the block as a graph on its CPU backend, as llama.cpp would run it.
//
// Numerics: weights are rounded as ggml's quantizers do. ggml_mul_mat rounds its other input beside weights that
// are not f32: to bf16 beside bf16, f16 beside f16, q8_0 beside q8_0 and q4_0, q8_1 beside q4_1; x once for gate
// and once for up.
#include "../machine.hpp"
#include "../peers.hpp"

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace tiffin_bench {
namespace {

template <auto Free>
struct freed_by {
    template <class T>
    void operator()(T* p) const {
        Free(p);
    }
};
using context = std::unique_ptr<ggml_context, freed_by<ggml_free>>;
using buffer = std::unique_ptr<ggml_backend_buffer, freed_by<ggml_backend_buffer_free>>;
using backend = std::unique_ptr<ggml_backend, freed_by<ggml_backend_free>>;

std::int64_t as_size(std::size_t n) {
    return static_cast<std::int64_t>(n);
}

// A context for tensors whose memory is elsewhere.
context make_context(std::size_t tensors, std::size_t graphs) {
    return context(ggml_init(
        {tensors * ggml_tensor_overhead() + graphs * ggml_graph_overhead_custom(8, false), nullptr, true}));
}

// Where llama.cpp keeps weights in the order in which its kernels read them; null in a ggml without.
ggml_backend_buffer_type_t repacked_buffers() {
    ggml_backend_reg_t cpu = ggml_backend_cpu_reg();
    ggml_backend_dev_t device = ggml_backend_reg_dev_get(cpu, 0);
    const auto extra_buffers = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
        ggml_backend_reg_get_proc_address(cpu, "ggml_backend_dev_get_extra_bufts"));
    if (extra_buffers == nullptr) return nullptr;
    for (ggml_backend_buffer_type_t* type = extra_buffers(device); type != nullptr && *type != nullptr;
         ++type)
        if (std::strcmp(ggml_backend_buft_name(*type), "CPU_REPACK") == 0) return *type;
    return nullptr;
}

class ggml_peer final : public dense_peer {
public:
    ggml_peer(dense_shape shape, int threads, const dense_weights& weights, ggml_type type,
              ggml_backend_buffer_type_t buffers)
        : shape_(shape), layers_(shape.layers), weights_(make_context(3 * shape.layers, 0)) {
        backend_.reset(ggml_backend_cpu_init());
        ggml_backend_cpu_set_n_threads(backend_.get(), threads);
        for (layer& l : layers_) {
            l.gate = ggml_new_tensor_2d(weights_.get(), type, as_size(shape.d_model), as_size(shape.d_ff));
            l.up = ggml_new_tensor_2d(weights_.get(), type, as_size(shape.d_model), as_size(shape.d_ff));
            l.down = ggml_new_tensor_2d(weights_.get(), type, as_size(shape.d_ff), as_size(shape.d_model));
        }
        memory_.reset(ggml_backend_alloc_ctx_tensors_from_buft(weights_.get(), buffers));
        if (!memory_) throw std::runtime_error("ggml: no memory for weights");
        ggml_backend_buffer_set_usage(memory_.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        ask_for_huge_pages(ggml_backend_buffer_get_base(memory_.get()),
                           ggml_backend_buffer_get_size(memory_.get()));
        for (std::size_t i = 0; i < shape.layers; ++i) {
            round(weights.gate(i), layers_[i].gate);
            round(weights.up(i), layers_[i].up);
            round(weights.down(i), layers_[i].down);
        }
    }
    ~ggml_peer() override { free_plans(); }

    void prepare(std::size_t tokens) override {
        if (tokens == tokens_) return;
        free_plans();
        gate_ = page_floats(tokens * shape_.d_ff);
        up_ = page_floats(tokens * shape_.d_ff);
        hidden_ = page_floats(tokens * shape_.d_ff);
        graphs_ = make_context(5 * shape_.layers, shape_.layers);
        ggml_context* const in = graphs_.get();
        for (layer& l : layers_) {
            // Nodes tell where they are computed to; x and y are told with each call.
            l.x = ggml_new_tensor_2d(in, GGML_TYPE_F32, as_size(shape_.d_model), as_size(tokens));
            ggml_tensor* const gate = ggml_mul_mat(in, l.gate, l.x);
            ggml_tensor* const up = ggml_mul_mat(in, l.up, l.x);
            ggml_tensor* const hidden = ggml_swiglu_split(in, gate, up);
            l.y = ggml_mul_mat(in, l.down, hidden);
            gate->data = gate_.data();
            up->data = up_.data();
            hidden->data = hidden_.data();
            ggml_cgraph* const graph = ggml_new_graph_custom(in, 8, false);
            ggml_build_forward_expand(graph, l.y);
            l.plan = ggml_backend_graph_plan_create(backend_.get(), graph);
        }
        tokens_ = tokens;
    }

    void run(std::size_t layer_index, const float* x, std::size_t tokens, float* y) override {
        prepare(tokens);
        const layer& l = layers_[layer_index];
        l.x->data = const_cast<float*>(x);
        l.y->data = y;
        if (ggml_backend_graph_plan_compute(backend_.get(), l.plan) != GGML_STATUS_SUCCESS)
            throw std::runtime_error("ggml: a graph was not computed");
    }

private:
    struct layer {
        ggml_tensor *gate = nullptr, *up = nullptr, *down = nullptr, *x = nullptr, *y = nullptr;
        ggml_backend_graph_plan_t plan = nullptr;
    };

    static void round(const float* from, ggml_tensor* to) {
        std::vector<std::byte> blocks(ggml_nbytes(to));
        ggml_quantize_chunk(to->type, from, blocks.data(), 0, to->ne[1], to->ne[0], nullptr);
        ggml_backend_tensor_set(to, blocks.data(), 0, blocks.size());
    }
    void free_plans() {
        for (layer& l : layers_)
            if (void* const plan = std::exchange(l.plan, nullptr))
                ggml_backend_graph_plan_free(backend_.get(), plan);
    }

    dense_shape shape_;
    backend backend_;
    std::vector<layer> layers_;
    context weights_;
    buffer memory_;
    context graphs_;
    std::size_t tokens_ = 0;
    page_floats gate_;
    page_floats up_;
    page_floats hidden_;
};

// Whether ggml has another order for weights of this type on this machine.
bool repacks(ggml_type type, std::size_t multiple) {
    ggml_backend_buffer_type_t buffers = repacked_buffers();
    if (buffers == nullptr) return false;
    const context in = make_context(1, 0);
    ggml_tensor* const weight = ggml_new_tensor_2d(in.get(), type, as_size(multiple), as_size(multiple));
    const buffer memory(ggml_backend_alloc_ctx_tensors_from_buft(in.get(), buffers));
    return memory && weight->extra != nullptr;
}

}  // namespace

std::vector<dense_peer_kind> ggml_peer_kinds() {
    ggml_cpu_init();
    // It tells of each tensor that it repacks.
    ggml_log_set(
        [](ggml_log_level level, const char* text, void*) {
            if (level >= GGML_LOG_LEVEL_WARN && level != GGML_LOG_LEVEL_CONT) std::fputs(text, stderr);
        },
        nullptr);
    std::vector<dense_peer_kind> kinds;
    const auto add = [&](const char* format, ggml_type type, arithmetic products) {
        const auto block = static_cast<std::size_t>(ggml_blck_size(type));
        dense_peer_kind kind{
            .library = "ggml",
            .format = format,
            .products = products,
            .bytes_per_weight = static_cast<double>(ggml_type_size(type)) / static_cast<double>(block),
            .multiple = block,
            .make = {}};
        const auto add_in = [&](auto buffers) {
            kind.make = [=](dense_shape shape, int threads, const dense_weights& weights) {
                return std::make_unique<ggml_peer>(shape, threads, weights, type, buffers());
            };
            kinds.push_back(kind);
        };
        add_in(ggml_backend_cpu_buffer_type);
        if (block == 1 || !repacks(type, block)) return;
        kind.format += "_repacked";
        add_in(repacked_buffers);
    };
    add("f32", GGML_TYPE_F32, arithmetic::f32);
    add("bf16", GGML_TYPE_BF16, arithmetic::bf16_dot);
    add("f16", GGML_TYPE_F16, arithmetic::f32);
    add("q8_0", GGML_TYPE_Q8_0, arithmetic::int8_dot);
    add("q4_0", GGML_TYPE_Q4_0, arithmetic::int8_dot);
    add("q4_1", GGML_TYPE_Q4_1, arithmetic::int8_dot);
    return kinds;
}

}  // namespace tiffin_bench
