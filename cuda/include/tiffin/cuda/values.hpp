// A source's formula in kernels: after its products, or, for few tokens, with them.
#pragma once

#include <tiffin/cuda/kernels.hpp>
#include <tiffin/cuda/place.hpp>

#include <cstddef>

TIFFIN_BEGIN

namespace cuda_detail {

// The value of a source at some features, its products read from planes.
template <codec Format, source_policy Source>
struct source_value {
    static constexpr std::size_t projections = count_of<Source>(tensor_kind::projection);
    // Whether tokens read the same weights here, of a bank: see value_body.
    static constexpr bool shares_weights = count_of<Source>(tensor_kind::low_rank_out) > 0;

    stage_view<Format, Source> view;
    const typename Format::storage* planes;
    std::size_t plane;

    template <std::size_t N>
    __device__ pack<N> at(std::size_t t, std::size_t feature, std::size_t count) const {
        pack<N> products[projections + 1];
        for (std::size_t i = 0; i != projections; ++i)
            products[i] = load<Format, N>(planes + i * plane + t * view.outputs + feature, count);
        return evaluate(view.source, place<Format, Source, N>{view, t, feature, count, products});
    }
};

// A thread some features of a token: write(t, feature, value, count). One token after the other; or, where
// tokens share weights, the same features of all tokens, a warp of each, so that these weights stay in the
// cache of a multiprocessor.
template <codec Format, class Value, class Write>
struct value_body {
    static constexpr std::size_t numbers = access<Format>;
    static constexpr bool shared = requires { requires Value::shares_weights; };

    Value value;
    token_range tokens;
    std::size_t features;
    Write write;

    [[nodiscard]] std::size_t items() const {
        const std::size_t chunks = (features + numbers - 1) / numbers;
        return tokens.most * (shared ? (chunks + warp_threads - 1) / warp_threads * warp_threads : chunks);
    }
    __device__ void operator()(std::size_t item) const {
        const std::size_t chunks = (features + numbers - 1) / numbers;
        divided at{};  // token, chunk
        if constexpr (shared) {
            const auto [group, t] = divide(item / warp_threads, tokens.most);
            at = {t, group * warp_threads + item % warp_threads};
            if (at.remainder >= chunks) return;
        } else {
            at = divide(item, chunks);
        }
        const std::size_t t = at.quotient, feature = at.remainder * numbers;
        if (!tokens.has(t)) return;
        const std::size_t count = features - feature < numbers ? features - feature : numbers;
        write(t, feature, value.template at<numbers>(t, feature, count), count);
    }
};
template <codec Format, class Value, class Write>
void write_values(launches& out, const Value& value, const token_range& tokens, std::size_t features,
                  const Write& write) {
    const value_body<Format, Value, Write> body{value, tokens, features, write};
    for_elements(out, body.items(), body);
}

// A warp a feature, for up to Tokens tokens: products summed in registers, then the formula.
template <codec Format, source_policy Source, std::size_t Tokens, class Write>
struct few_body {
    static constexpr std::size_t projections = count_of<Source>(tensor_kind::projection);

    stage_view<Format, Source> view;
    activations<Format> in;
    const typename Format::storage* weights[projections];
    std::size_t inputs;
    Write write;

    __device__ void operator()(const warp& g, std::size_t feature) const {
        constexpr std::size_t numbers = access<Format>;
        float sums[Tokens][projections] = {};
        for (std::size_t k = g.rank() * numbers; k < inputs; k += g.size() * numbers) {
            pack<numbers> w[projections];
            for (std::size_t i = 0; i != projections; ++i)
                w[i] = load<Format, numbers>(weights[i] + feature * inputs + k, inputs - k);
            for (std::size_t t = 0; t < Tokens; ++t) {
                if (t >= view.tokens.most) break;
                const pack<numbers> x = load<Format, numbers>(in.data + t * in.stride + k, inputs - k);
                for (std::size_t i = 0; i != projections; ++i)
                    for (std::size_t n = 0; n < numbers; ++n) sums[t][i] += w[i].lane[n] * x.lane[n];
            }
        }
        pack<1> mine[projections];
        for (std::size_t t = 0; t < Tokens; ++t)
            for (std::size_t i = 0; i != projections; ++i) {
                const float sum = g.sum(sums[t][i]);
                if (g.rank() == t) mine[i] = pack<1>(sum);
            }
        // Each token's formula in a thread of its own.
        const std::size_t t = g.rank();
        if (t >= view.tokens.most) return;
        write(t, feature, pack<1>(evaluate(view.source, place<Format, Source, 1>{view, t, feature, 1, mine})),
              std::size_t{1});
    }
};

}  // namespace cuda_detail

TIFFIN_END
