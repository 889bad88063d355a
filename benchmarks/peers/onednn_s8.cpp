// oneDNN in 8 bits: matmul of u8 and s8 into s32, which it has its best kernels for, and the scales around it.
//
// Numerics: a weight is s8 with a scale per output, max |w| / 127 of its row, and / 63 on machines without VNNI: there
// oneDNN adds pairs of products in 16 bits, which 255 * 127 * 2 overflows and 255 * 63 * 2 does not. x and the hidden
// values are rounded in each call, with a scale per token, max |x| / 127, and lie as u8 from 1 to 255 around 128; what
// the 128 add to a sum is known for each output. Sums are exact; scales, silu and the product are f32.
#include "onednn.hpp"

#include <omp.h>
#include <xsimd/xsimd.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <utility>

namespace tiffin_bench::onednn {
namespace {

using lanes = xsimd::batch<float>;
using int_lanes = xsimd::batch<std::int32_t>;

// What the largest weight of a row becomes.
int weight_levels() {
    const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
    const auto has = [&](dnnl::cpu_isa vnni) {
        return (isa & static_cast<unsigned>(vnni)) == static_cast<unsigned>(vnni);
    };
    return has(dnnl::cpu_isa::avx512_core_vnni) || has(dnnl::cpu_isa::avx2_vnni) ? 127 : 63;
}

// The scale with which numbers up to `largest` become whole ones up to `levels`.
float scale_of(float largest, int levels = 127) {
    return largest > 0 ? largest / static_cast<float>(levels) : 1;
}

float largest_of(const float* numbers, std::size_t count) {
    float largest = 0;
#pragma omp simd reduction(max : largest)
    for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(numbers[i]));
    return largest;
}

// Rounds a token's row; its scale.
float round_row(const float* from, std::size_t count, std::uint8_t* to) {
    const float scale = scale_of(largest_of(from, count)), inverse = 1 / scale;
#pragma omp simd
    for (std::size_t i = 0; i < count; ++i)
        to[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(from[i] * inverse + 128.5f));
    return scale;
}

// What products with weights of one kind need beside the weights.
struct output_scales {
    std::vector<float> scale;
    std::vector<std::int32_t> of_128;  // 128 times the sum of an output's weights

    // Calls use(from, values) for registers of the sums of outputs from `from` on, brought back to scale; a
    // single one at the end where they do not fill a register.
    template <class Use>
    void each(const std::int32_t* sums, float token_scale, const Use& use) const {
        std::size_t i = 0;
        for (; i + lanes::size <= scale.size(); i += lanes::size)
            use(i, xsimd::to_float(int_lanes::load_unaligned(sums + i) -
                                   int_lanes::load_unaligned(of_128.data() + i)) *
                       lanes::load_unaligned(scale.data() + i) * token_scale);
        for (; i < scale.size(); ++i)
            use(i, static_cast<float>(sums[i] - of_128[i]) * scale[i] * token_scale);
    }
};

template <class Number>
void store(Number* to, const xsimd::batch<Number>& values) {
    values.store_unaligned(to);
}
void store(float* to, float value) {
    *to = value;
}

class s8_peer final : public dense_peer {
public:
    s8_peer(dense_shape shape, int threads, dense_weights weights)
        : shape_(shape),
          threads_(threads),
          weights_(std::move(weights)),
          engine_(dnnl::engine::kind::cpu, 0),
          stream_(engine_),
          layers_(shape.layers) {
        prepare(1);
    }

    void prepare(std::size_t tokens) override {
        if (tokens == tokens_) return;
        omp_set_num_threads(threads_);
        using type = memory::data_type;
        const auto [d_model, d_ff, count] = shape_;
        x_ = matrix_memory(engine_, matrix(tokens, d_model, type::u8));
        gates_ = matrix_memory(engine_, matrix(tokens, d_ff, type::s32));
        ups_ = matrix_memory(engine_, matrix(tokens, d_ff, type::s32));
        hidden_ = matrix_memory(engine_, matrix(tokens, d_ff, type::u8));
        outs_ = matrix_memory(engine_, matrix(tokens, d_model, type::s32));
        x_scales_.resize(tokens);
        hidden_scales_.resize(tokens);
        rows_ = page_floats(d_ff * static_cast<std::size_t>(threads_));
        const auto in = product(engine_, x_.view().get_desc(), type::s8, gates_.view().get_desc());
        const auto out = product(engine_, hidden_.view().get_desc(), type::s8, outs_.view().get_desc());
        in_ = matmul(in);
        out_ = matmul(out);
        scratch_ = page_floats(
            std::max(in.scratchpad_desc().get_size(), out.scratchpad_desc().get_size()) / sizeof(float) + 1);
        for (std::size_t l = 0; l < count; ++l) {
            round_weights(layers_[l].gate, in.weights_desc(), weights_.gate(l), d_model, d_ff);
            round_weights(layers_[l].up, in.weights_desc(), weights_.up(l), d_model, d_ff);
            round_weights(layers_[l].down, out.weights_desc(), weights_.down(l), d_ff, d_model);
        }
        in_scratch_ = memory(in.scratchpad_desc(), engine_, scratch_.data());
        out_scratch_ = memory(out.scratchpad_desc(), engine_, scratch_.data());
        tokens_ = tokens;
    }

    void run(std::size_t layer, const float* x, std::size_t tokens, float* y) override {
        prepare(tokens);
        omp_set_num_threads(threads_);
        const layer_state& mine = layers_[layer];
#pragma omp parallel for num_threads(threads_)
        for (std::size_t t = 0; t < tokens; ++t)
            x_scales_[t] = round_row(x + t * shape_.d_model, shape_.d_model,
                                     x_.data<std::uint8_t>() + t * shape_.d_model);
        multiply(in_, x_, mine.gate, gates_, in_scratch_);
        multiply(in_, x_, mine.up, ups_, in_scratch_);
#pragma omp parallel for num_threads(threads_)
        for (std::size_t t = 0; t < tokens; ++t) {
            const std::size_t width = shape_.d_ff;
            float* const row = rows_.data() + static_cast<std::size_t>(omp_get_thread_num()) * width;
            const std::int32_t* const ups = ups_.data<std::int32_t>() + t * width;
            mine.up.scales.each(ups, x_scales_[t], [&](std::size_t i, auto u) { store(row + i, u); });
            mine.gate.scales.each(gates_.data<std::int32_t>() + t * width, x_scales_[t],
                                  [&](std::size_t i, auto g) {
                                      using std::exp;
                                      using value = decltype(g);
                                      value u;
                                      if constexpr (std::same_as<value, float>)
                                          u = row[i];
                                      else
                                          u = value::load_unaligned(row + i);
                                      store(row + i, g / (value(1.0f) + exp(-g)) * u);
                                  });
            hidden_scales_[t] = round_row(row, width, hidden_.data<std::uint8_t>() + t * width);
        }
        multiply(out_, hidden_, mine.down, outs_, out_scratch_);
#pragma omp parallel for num_threads(threads_)
        for (std::size_t t = 0; t < tokens; ++t)
            mine.down.scales.each(outs_.data<std::int32_t>() + t * shape_.d_model, hidden_scales_[t],
                                  [&](std::size_t i, auto v) { store(y + t * shape_.d_model + i, v); });
    }

private:
    struct rounded_weights {
        matrix_memory values;
        output_scales scales;
    };
    struct layer_state {
        rounded_weights gate, up, down;
    };

    void multiply(const matmul& by, const matrix_memory& in, const rounded_weights& weights,
                  const matrix_memory& out, const memory& scratch) {
        by.execute(stream_, {{DNNL_ARG_SRC, in.view()},
                             {DNNL_ARG_WEIGHTS, weights.values.view()},
                             {DNNL_ARG_DST, out.view()},
                             {DNNL_ARG_SCRATCHPAD, scratch}});
        stream_.wait();
    }

    void round_weights(rounded_weights& to, const memory::desc& desc, const float* from, std::size_t inputs,
                       std::size_t outputs) {
        if (to.values.is(desc)) return;
        to.scales.scale.resize(outputs);
        to.scales.of_128.resize(outputs);
        std::vector<std::int8_t> rounded(inputs * outputs);
#pragma omp parallel for num_threads(threads_)
        for (std::size_t o = 0; o < outputs; ++o) {
            const float* const row = from + o * inputs;
            const float scale = scale_of(largest_of(row, inputs), levels_);
            std::int32_t sum = 0;
            for (std::size_t i = 0; i < inputs; ++i) {
                const auto level = static_cast<std::int32_t>(std::nearbyint(row[i] / scale));
                rounded[o * inputs + i] = static_cast<std::int8_t>(level);
                sum += level;
            }
            to.scales.scale[o] = scale;
            to.scales.of_128[o] = 128 * sum;
        }
        pack(stream_, to.values, desc, rounded.data(), memory::data_type::s8, inputs, outputs);
    }

    const int levels_ = weight_levels();
    dense_shape shape_;
    int threads_;
    dense_weights weights_;
    dnnl::engine engine_;
    dnnl::stream stream_;
    std::size_t tokens_ = 0;
    matmul in_;
    matmul out_;
    matrix_memory x_, gates_, ups_, hidden_, outs_;
    std::vector<float> x_scales_;
    std::vector<float> hidden_scales_;
    page_floats rows_;  // of each thread, a token's hidden values
    page_floats scratch_;
    memory in_scratch_;
    memory out_scratch_;
    std::vector<layer_state> layers_;
};

}  // namespace

dense_peer_kind s8_kind() {
    return {.library = "onednn",
            .format = "s8",
            .products = arithmetic::int8_dot,
            .bytes_per_weight = 1,
            .weight_levels = weight_levels(),
            .make = [](dense_shape shape, int threads, dense_weights weights) {
                return std::make_unique<s8_peer>(shape, threads, std::move(weights));
            }};
}

}  // namespace tiffin_bench::onednn
