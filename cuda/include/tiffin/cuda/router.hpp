// The experts of each token: by a learned router, or by its id.
#pragma once

#include <tiffin/bind/bound.hpp>
#include <tiffin/cuda/grouping.hpp>
#include <tiffin/cuda/uploads.hpp>
#include <tiffin/format/concepts.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

TIFFIN_BEGIN

namespace cuda_detail {

// A warp per eight experts and up to Tokens tokens: their logits, each weight read once for all of these tokens.
// Neighbouring warps have consecutive tokens, and read the same weights.
template <codec Format, std::size_t Tokens>
struct logits_body {
    static constexpr std::size_t together = 8;

    activations<Format> in;
    std::size_t tokens;
    const float* weight;  // (experts, inputs)
    std::size_t experts;
    std::size_t inputs;
    float* logits;       // (tokens, experts)
    std::size_t stride;  // between the logits of two tokens

    [[nodiscard]] TIFFIN_HD std::size_t groups() const { return (tokens + Tokens - 1) / Tokens; }
    [[nodiscard]] std::size_t items() const { return groups() * ((experts + together - 1) / together); }
    __device__ void operator()(const warp& g, std::size_t item) const {
        constexpr std::size_t numbers = access<Format>;
        const auto [which, group] = divide(item, groups());
        const std::size_t first = group * Tokens, e = which * together;
        float sums[Tokens][together] = {};
        for (std::size_t k = g.rank() * numbers; k < inputs; k += g.size() * numbers) {
            pack<numbers> x[Tokens];
            for (std::size_t t = 0; t < Tokens; ++t)
                x[t] = load<Format, numbers>(in.data + clamped(first + t) * in.stride + k, inputs - k);
            for (std::size_t i = 0; i < together && e + i < experts; ++i) {
                const pack<numbers> w = load<f32, numbers>(weight + (e + i) * inputs + k, inputs - k);
                for (std::size_t t = 0; t < Tokens; ++t)
                    for (std::size_t n = 0; n < numbers; ++n) sums[t][i] += x[t].lane[n] * w.lane[n];
            }
        }
        for (std::size_t t = 0; t < Tokens; ++t)
            for (std::size_t i = 0; i < together && e + i < experts; ++i) {
                const float sum = g.sum(sums[t][i]);
                if (g.rank() == t && first + t < tokens) logits[(first + t) * stride + e + i] = sum;
            }
    }

private:
    // Beyond the last token: the last one again.
    __device__ std::size_t clamped(std::size_t t) const { return t < tokens ? t : tokens - 1; }
};

// A thread per token, which chooses among its logits.
template <router_policy Router>
struct choose_body {
    Router router;
    token_range tokens;
    const float* bias;
    std::size_t experts;
    const float* logits;  // (tokens, experts)
    double* scratch;      // two numbers per token and expert
    chosen_experts to;

    __device__ void operator()(std::size_t t) const {
        if (!tokens.has(t)) return;
        choose(router, logits + t * experts, experts, bias, scratch + t * 2 * experts, to.of(t));
    }
};

// Logits and choice of a token by a block, a warp per expert, for few experts and few tokens.
template <codec Format, router_policy Router>
struct route_body {
    static constexpr std::size_t most_experts = 256;

    Router router;
    activations<Format> in;
    token_range tokens;
    const float* weight;  // (experts, inputs)
    const float* bias;
    std::size_t experts;
    std::size_t inputs;
    chosen_experts to;

    __device__ void operator()(std::size_t t, float* logits, double* scratch) const {
        if (!tokens.has(t)) return;
        constexpr std::size_t numbers = access<Format>;
        const warp g;
        for (std::size_t e = threadIdx.x / warp_threads; e < experts; e += block_threads / warp_threads) {
            float sum = 0;
            for (std::size_t k = g.rank() * numbers; k < inputs; k += g.size() * numbers) {
                const pack<numbers> x = load<Format, numbers>(in.data + t * in.stride + k, inputs - k),
                                    w = load<f32, numbers>(weight + e * inputs + k, inputs - k);
                for (std::size_t n = 0; n < numbers; ++n) sum += x.lane[n] * w.lane[n];
            }
            sum = g.sum(sum);
            if (g.rank() == 0) logits[e] = sum;
        }
        __syncthreads();
        if (threadIdx.x == 0) choose(router, logits, experts, bias, scratch, to.of(t));
    }
};
template <codec Format, router_policy Router>
__global__ void __launch_bounds__(block_threads) route_kernel(const route_body<Format, Router> body) {
    constexpr std::size_t most = route_body<Format, Router>::most_experts;
    __shared__ float logits[most];
    __shared__ double scratch[2 * most];
    body(blockIdx.x, logits, scratch);
}

struct map_body {
    row_source map;
    token_range tokens;
    refused_ids refused;
    chosen_experts to;

    __device__ void operator()(std::size_t t) const {
        if (!tokens.has(t)) return;
        const auto* const experts = reinterpret_cast<const std::int32_t*>(map.row(tokens.row(t), refused));
        for (std::size_t i = 0; i < to.choices; ++i) to.of(t)[i] = {experts[i], 1.0f};
    }
};

struct record_body {
    chosen_experts chosen;
    choice<float>* routes;

    __device__ void operator()(std::size_t i) const {
        routes[i] = chosen.of(i / chosen.choices)[i % chosen.choices];
    }
};

// The experts of each token by a router, written to its state.
template <codec Format, router_policy Router>
class device_router {
public:
    device_router(const Router& router, const bound_node& bound, std::span<const tensor_kind> kinds,
                  std::size_t inputs, uploads& up)
        : router_(router), choices_(bound.choices), inputs_(inputs) {
        const std::span<const tensor_view> tensors = bound.tensors;
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            if (kinds[i] == tensor_kind::logits) {
                experts_ = tensors[i].shape[0];
                weight_ = up.numbers<f32>(tensors[i]);
            } else if (kinds[i] == tensor_kind::selection_bias) {
                bias_ = up.numbers<f32>(tensors[i]);
            } else if (kinds[i] == tensor_kind::route_map) {
                std::vector<std::int32_t> map(tensors[i].shape.elements());
                for (std::size_t n = 0; n < map.size(); ++n)
                    map[n] = static_cast<std::int32_t>(detail::load_integer(tensors[i], n));
                map_.data = reinterpret_cast<const std::byte*>(up.copy(map.data(), map.size()));
                map_.count = tensors[i].shape[0];
                map_.stride = choices_ * sizeof(std::int32_t);
            }
        }
    }
    [[nodiscard]] std::size_t choices() const noexcept { return choices_; }
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t /*workers*/) const noexcept {
        return lay_out(nullptr, tokens).used;
    }
    void run(const device_call<Format>& call, const activations<Format>& in, std::byte* memory,
             const chosen_experts& to) const {
        if constexpr (learned_router<Router>) {
            if (call.tokens.most < many_tokens && experts_ <= route_body<Format, Router>::most_experts) {
                call.out->kernel(call.tokens.most, block_threads, route_kernel<Format, Router>,
                                 route_body<Format, Router>{router_, in, call.tokens, weight_, bias_,
                                                            experts_, inputs_, to});
                return;
            }
            // With many tokens there are enough warps, and the cache traffic of the weights is the limit.
            const areas at = lay_out(memory, call.tokens.most);
            if (call.tokens.most >= many_tokens)
                multiply<4>(call, in, at.logits);
            else
                multiply<1>(call, in, at.logits);
            for_elements(
                *call.out, call.tokens.most,
                choose_body<Router>{router_, call.tokens, bias_, experts_, at.logits, at.scratch, to});
        } else {
            row_source map = map_;
            map.index = call.token_ids;
            map.first = call.first;
            for_elements(*call.out, call.tokens.most, map_body{map, call.tokens, call.refused, to});
        }
    }

private:
    static constexpr std::size_t many_tokens = 1024;

    struct areas {
        float* logits;
        double* scratch;
        std::size_t used;
    };
    [[nodiscard]] areas lay_out(std::byte* memory, std::size_t tokens) const noexcept {
        device_arena all(memory);
        auto* const logits = all.take<float>(tokens * experts_);
        auto* const scratch = all.take<double>(tokens * 2 * experts_);
        return {logits, scratch, all.used()};
    }
    template <std::size_t Tokens>
    void multiply(const device_call<Format>& call, const activations<Format>& in, float* logits) const {
        const logits_body<Format, Tokens> body{in,      call.tokens.most, weight_, experts_,
                                               inputs_, logits,           experts_};
        for_warps(*call.out, body.items(), body);
    }

    Router router_;
    std::size_t choices_;
    std::size_t inputs_;
    std::size_t experts_ = 0;
    const float* weight_ = nullptr;
    const float* bias_ = nullptr;
    row_source map_;
};

}  // namespace cuda_detail

TIFFIN_END
