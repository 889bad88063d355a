// A source's products and its formula in one kernel, for few tokens.
#pragma once

#include <tiffin/cuda/values.hpp>
#include <tiffin/format/concepts.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

namespace cuda_detail {

// A warp for each feature, for up to Tokens tokens: products summed in registers, then the formula.
template <codec Format, class View, std::size_t Tokens, class Write>
struct few_body {
    static constexpr std::size_t projections = count_of<decltype(View::source)>(tensor_kind::projection);
    static constexpr std::size_t numbers = access<Format>;
    // Loads of each weight in flight at a time: few warps have to read much.
    static constexpr std::size_t together = 4;

    View view;
    activations<Format> in;
    std::array<const typename Format::storage*, projections + 1> weights;
    std::size_t inputs;
    Write write;

    __device__ void operator()(const warp& g, std::size_t feature) const {
        const std::size_t tokens = view.call.tokens.count();
        if (tokens == 0) return;
        float sums[Tokens][projections] = {};
        const std::size_t step = g.size() * numbers;
        std::size_t k = g.rank() * numbers;
        if (are_whole())
            for (; k + (together - 1) * step < inputs; k += together * step)
                add<together>(k, step, feature, tokens, sums);
        for (; k < inputs; k += step) add<1>(k, step, feature, tokens, sums);
        pack<1> mine[projections];
        for (std::size_t t = 0; t < Tokens; ++t)
            for (std::size_t i = 0; i != projections; ++i) {
                const float sum = g.sum(sums[t][i]);
                if (g.rank() == t) mine[i] = pack<1>(sum);
            }
        // Each token's formula in a thread of its own.
        const std::size_t t = g.rank();
        if (t >= tokens) return;
        write(t, feature, formula_value<Format, 1>(view, t, feature, 1, mine), std::size_t{1});
    }

private:
    using group = words<typename Format::storage, numbers>;

    // Whether all rows are read in accesses of 16 bytes.
    __device__ bool are_whole() const {
        std::uintptr_t all =
            reinterpret_cast<std::uintptr_t>(in.data) | (inputs | in.stride) * (16 / numbers);
        for (std::size_t i = 0; i != projections; ++i) all |= reinterpret_cast<std::uintptr_t>(weights[i]);
        return all % 16 == 0;
    }
    // Adds elements k, k + step, ... of the feature's weights times the tokens'. Count > 1 only if are_whole().
    template <std::size_t Count>
    __device__ void add(std::size_t k, std::size_t step, std::size_t feature, std::size_t tokens,
                        float (&sums)[Tokens][projections]) const {
        group read[Count][projections];
        pack<numbers> w[Count][projections];
        for (std::size_t c = 0; c < Count; ++c)
            for (std::size_t i = 0; i != projections; ++i) {
                const auto* const from = weights[i] + feature * inputs + k + c * step;
                if constexpr (Count > 1)
                    read[c][i] = *reinterpret_cast<const group*>(from);
                else
                    w[c][i] = load<Format, numbers>(from, inputs - k);
            }
        if constexpr (Count > 1)
            for (std::size_t c = 0; c < Count; ++c)
                for (std::size_t i = 0; i != projections; ++i)
                    for (std::size_t n = 0; n < numbers; ++n)
                        w[c][i].lane[n] = widen<Format>(read[c][i].number[n]);
        for (std::size_t t = 0; t < Tokens; ++t) {
            if (t >= tokens) break;
            for (std::size_t c = 0; c < Count; ++c) {
                const std::size_t at = k + c * step;
                const pack<numbers> x = load<Format, numbers>(in.data + t * in.stride + at, inputs - at);
                for (std::size_t i = 0; i != projections; ++i)
                    for (std::size_t n = 0; n < numbers; ++n) sums[t][i] += w[c][i].lane[n] * x.lane[n];
            }
        }
    }
};

}  // namespace cuda_detail

TIFFIN_END
