// A row router on the device: it chooses the table rows of each token.
#pragma once

#include <tiffin/bind/row_checks.hpp>
#include <tiffin/cuda/router.hpp>
#include <tiffin/format/concepts.hpp>
#include <tiffin/router/row_choice.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

TIFFIN_BEGIN

namespace cuda_detail {

struct add_bias_body {
    const float* bias;
    std::size_t width;
    float* rows;

    __device__ void operator()(std::size_t i) const { rows[i] += bias[i % width]; }
};

// A thread per token and head, which chooses rows by the scores of its half keys.
template <key_router Router>
struct choose_rows_body {
    Router router;
    token_range tokens;
    std::size_t heads;
    std::size_t keys;
    const float* scores;  // (tokens, heads, 2, keys)
    double* scratch;      // (tokens, heads, 7 top_k)
    chosen_experts to;

    __device__ void operator()(std::size_t i) const {
        const auto [t, head] = divide(i, heads);
        if (!tokens.has(t)) return;
        double* const weights = scratch + i * 7 * router.top_k;
        choose_rows(router, scores + i * 2 * keys, 1, keys,
                    reinterpret_cast<ranked<double>*>(weights + router.top_k), weights,
                    to.of(t) + head * router.top_k);
    }
};

struct take_range_body {
    row_source ranges;
    token_range tokens;
    refused_ids refused;
    chosen_experts to;

    __device__ void operator()(std::size_t t) const {
        if (!tokens.has(t)) return;
        const auto* const range = reinterpret_cast<const std::int32_t*>(ranges.row(tokens.row(t), refused));
        take_range(range[0], range[1], to.choices, to.of(t));
    }
};

// A warp per choice: the dot product of its row's key with the router's input.
template <codec Format>
struct row_products_body {
    activations<Format> in;
    token_range tokens;
    const typename Format::storage* keys;  // (rows, inputs); null: gathered by the caller
    row_source came;
    refused_ids refused;
    std::size_t inputs;
    chosen_experts chosen;
    float* products;  // (tokens, choices)

    __device__ void operator()(const warp& g, std::size_t item) const {
        constexpr std::size_t numbers = access<Format>;
        const auto [t, which] = divide(item, chosen.choices);
        if (!tokens.has(t)) return;
        const std::int32_t row = chosen.of(t)[which].expert;
        if (row < 0) return;
        const auto* const key = keys != nullptr
                                    ? keys + static_cast<std::size_t>(row) * inputs
                                    : reinterpret_cast<const typename Format::storage*>(
                                          came.row_of_choice(tokens.row(t), chosen.choices, which, refused));
        float sum = 0;
        for (std::size_t k = g.rank() * numbers; k < inputs; k += g.size() * numbers) {
            const pack<numbers> x = load<Format, numbers>(in.data + t * in.stride + k, inputs - k);
            const pack<numbers> w = load<Format, numbers>(key + k, inputs - k);
            for (std::size_t n = 0; n < numbers; ++n) sum += x.lane[n] * w.lane[n];
        }
        sum = g.sum(sum);
        if (g.rank() == 0) products[item] = sum;
    }
};

// A thread per token, which gates the weights of its rows.
template <gating_router Router>
struct gate_rows_body {
    Router router;
    token_range tokens;
    const float* products;
    double* scratch;  // (tokens, 2 choices)
    chosen_experts to;

    __device__ void operator()(std::size_t t) const {
        if (!tokens.has(t)) return;
        choice<float>* const chosen = to.of(t);
        gate_rows(router, products + t * to.choices, rows_chosen(chosen, to.choices),
                  scratch + t * 2 * to.choices, chosen);
    }
};

template <codec Format, row_router Router>
class device_router<Format, Router> {
    static constexpr bool keyed = key_router<Router>, gated = gating_router<Router>;

public:
    device_router(const Router& router, const bound_node& bound, std::span<const tensor_kind> kinds,
                  std::size_t inputs, uploads& up)
        : router_(router), choices_(bound.choices), inputs_(inputs) {
        for (std::size_t i = 0; i < kinds.size(); ++i) {
            const tensor_view& t = bound.tensors[i];
            switch (kinds[i]) {
                case tensor_kind::query: query_ = up.numbers<f32>(t); break;
                case tensor_kind::query_bias: bias_ = up.numbers<f32>(t); break;
                case tensor_kind::half_keys:
                    groups_ = t.shape[0];
                    keys_ = t.shape[1];
                    half_ = t.shape[2];
                    half_keys_ = up.numbers<f32>(t);
                    break;
                case tensor_kind::row_ranges: keep_ranges(t, up); break;
                case tensor_kind::row_keys:
                    row_keys_ = up.numbers<Format>(t);
                    gathered_ = t.gathered;
                    break;
                default: break;
            }
        }
    }
    [[nodiscard]] std::size_t choices() const noexcept { return choices_; }
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t /*workers*/) const noexcept {
        return lay_out(nullptr, tokens).used;
    }
    void run(const device_call<Format>& call, const activations<Format>& in, std::byte* memory,
             const chosen_experts& to) const {
        const areas at = lay_out(memory, call.tokens.most);
        if constexpr (keyed) {
            score(call, in, at);
            for_elements(*call.out, call.tokens.most * (groups_ / 2),
                         choose_rows_body<Router>{router_, call.tokens, groups_ / 2, keys_, at.scores,
                                                  at.scratch, to});
        } else {
            row_source ranges = ranges_;
            ranges.index = call.token_ids;
            ranges.first = call.first;
            for_elements(*call.out, call.tokens.most, take_range_body{ranges, call.tokens, call.refused, to});
        }
        if constexpr (gated) {
            const row_source came =
                gathered_ != 0 ? rows_of_choices(call.gathered[gathered_ - 1], call.first) : row_source{};
            for_warps(*call.out, call.tokens.most * choices_,
                      row_products_body<Format>{in, call.tokens, row_keys_, came, call.refused, inputs_, to,
                                                at.products});
            for_elements(*call.out, call.tokens.most,
                         gate_rows_body<Router>{router_, call.tokens, at.products, at.scratch, to});
        }
    }

private:
    struct areas {
        float* queries;
        float* scores;
        float* products;
        double* scratch;
        std::size_t used;
    };
    [[nodiscard]] areas lay_out(std::byte* memory, std::size_t tokens) const noexcept {
        device_arena all(memory);
        auto* const queries = all.take<float>(tokens * groups_ * half_);
        auto* const scores = all.take<float>(tokens * groups_ * keys_);
        auto* const products = all.take<float>(gated ? tokens * choices_ : 0);
        auto* const scratch = all.take<double>(tokens * choices_ * (keyed ? 7 : 2));
        return {queries, scores, products, scratch, all.used()};
    }
    void keep_ranges(const tensor_view& t, uploads& up) {
        const std::vector<std::int32_t> ranges = detail::ranges_of(t);
        ranges_.data = reinterpret_cast<const std::byte*>(up.copy(ranges.data(), ranges.size()));
        ranges_.count = t.shape[0];
        ranges_.stride = 2 * sizeof(std::int32_t);
    }
    void score(const device_call<Format>& call, const activations<Format>& in, const areas& at) const {
        const std::size_t tokens = call.tokens.most, width = groups_ * half_;
        const logits_body<Format, 1> query{in, tokens, query_, width, inputs_, at.queries, width};
        for_warps(*call.out, query.items(), query);
        if (bias_ != nullptr)
            for_elements(*call.out, tokens * width, add_bias_body{bias_, width, at.queries});
        for (std::size_t g = 0; g < groups_; ++g) {
            const logits_body<f32, 1> scores{
                {at.queries + g * half_, width}, tokens,         half_keys_ + g * keys_ * half_, keys_, half_,
                at.scores + g * keys_,           groups_ * keys_};
            for_warps(*call.out, scores.items(), scores);
        }
    }

    Router router_;
    std::size_t choices_;
    std::size_t inputs_;
    std::size_t groups_ = 0;
    std::size_t keys_ = 0;
    std::size_t half_ = 0;
    const float* query_ = nullptr;
    const float* bias_ = nullptr;
    const float* half_keys_ = nullptr;
    const typename Format::storage* row_keys_ = nullptr;
    std::size_t gathered_ = 0;  // row keys: 0, or the number of the call's gathered table
    row_source ranges_;
};

}  // namespace cuda_detail

TIFFIN_END
