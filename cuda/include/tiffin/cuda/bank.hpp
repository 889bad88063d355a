// The rank-r intermediate of a low-rank bank: A_e x per token and chosen expert.
#pragma once

#include <tiffin/cuda/grouping.hpp>
#include <tiffin/cuda/tiled_product.hpp>
#include <tiffin/cuda/uploads.hpp>
#include <tiffin/format/concepts.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

TIFFIN_BEGIN

namespace cuda_detail {

// The activation rows of the entries of a grouped product, and the destination of their rank-r intermediate.
template <codec Format>
struct entry_rows {
    activations<Format> in;
    const std::uint32_t* order;
    std::size_t choices;

    __device__ const typename Format::storage* operator()(std::size_t i) const {
        return in.data + order[i] / choices * in.stride;
    }
};
struct entry_numbers {
    const std::uint32_t* order;
    std::size_t choices;
    std::size_t rank;
    float* z;
    std::size_t stride;

    __device__ void operator()(std::size_t i, std::size_t r, float sum) const {
        const std::size_t entry = order[i];
        z[entry / choices * stride + entry % choices * rank + r] = sum;
    }
};

// Calls of up to this many tokens use a warp per element of A_e x: sorting them by expert would take longer.
inline constexpr std::size_t ungrouped_tokens = 64;

// A warp per element: (A_e x)[r] of a token and choice.
template <codec Format>
struct rank_body {
    activations<Format> in;
    const typename Format::storage* a;  // (experts, rank, inputs)
    chosen_experts chosen;
    token_range tokens;
    std::size_t rank;
    std::size_t inputs;
    float* z;
    std::size_t stride;

    __device__ void operator()(const warp& g, std::size_t item) const {
        constexpr std::size_t numbers = access<Format>;
        const std::size_t r = item % rank, i = item / rank % chosen.choices, t = item / rank / chosen.choices;
        if (!tokens.has(t)) return;
        const auto e = static_cast<std::size_t>(chosen.of(t)[i].expert);
        const auto* const x = in.data + t * in.stride;
        const auto* const weights = a + (e * rank + r) * inputs;
        float sum = 0;
        for (std::size_t k = g.rank() * numbers; k < inputs; k += g.size() * numbers) {
            const pack<numbers> v = load<Format, numbers>(x + k, inputs - k);
            const pack<numbers> w = load<Format, numbers>(weights + k, inputs - k);
            for (std::size_t n = 0; n < numbers; ++n) sum += v.lane[n] * w.lane[n];
        }
        sum = g.sum(sum);
        if (g.rank() == 0) z[t * stride + i * rank + r] = sum;
    }
};

// The bank A: A_e x per token and choice, each expert's weights read once per tile of tokens.
template <codec Format>
class device_bank_in {
public:
    device_bank_in(const tensor_view& a, std::size_t /*inputs*/, uploads& up)
        : experts_(a.shape[0]), rank_(a.shape[1]), inputs_(a.shape[2]), a_(up.numbers<Format>(a)) {}
    [[nodiscard]] std::size_t experts() const noexcept { return experts_; }
    [[nodiscard]] std::size_t rank() const noexcept { return rank_; }
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t choices,
                                              std::size_t /*workers*/) const noexcept {
        device_arena areas;
        grouped_entries<Format>::lay_out(areas, tokens * choices, experts_);
        return areas.used();
    }
    // Writes (A_e x)[r] of choice i of token t to element i * rank + r behind the choices in t's state.
    void run(const device_call<Format>& call, const activations<Format>& in, std::byte* memory,
             const chosen_experts& chosen) const {
        float* const z = chosen.state + 2 * chosen.choices;
        if (call.tokens.most <= ungrouped_tokens) {
            for_warps(*call.out, call.tokens.most * chosen.choices * rank_,
                      rank_body<Format>{in, a_, chosen, call.tokens, rank_, inputs_, z, chosen.stride});
            return;
        }
        device_arena areas(memory);
        const std::size_t most = call.tokens.most * chosen.choices;
        const grouped_entries<Format> groups = grouped_entries<Format>::lay_out(areas, most, experts_);
        groups.fill(*call.out, chosen, call.tokens, experts_);
        const auto in_tiles = [&]<unsigned Columns>(std::integral_constant<unsigned, Columns>) {
            multiply(*call.out, most,
                     tiled_product<Format, entry_rows<Format>, entry_numbers, Columns>{
                         a_,
                         experts_,
                         rank_,
                         inputs_,
                         groups.starts,
                         most,
                         {in, groups.order, chosen.choices},
                         {groups.order, chosen.choices, rank_, z, chosen.stride}});
        };
        if (rank_ > 32)
            in_tiles(std::integral_constant<unsigned, 64>{});
        else
            in_tiles(std::integral_constant<unsigned, 16>{});
    }

private:
    std::size_t experts_;
    std::size_t rank_;
    std::size_t inputs_;
    const typename Format::storage* a_;
};

// The bank B, transposed: (experts, rank, outputs).
template <codec Format>
class device_bank_out {
public:
    device_bank_out(const tensor_view& b, uploads& up) : numbers_(up.bank<Format>(b)) {}
    [[nodiscard]] const typename Format::storage* data() const noexcept { return numbers_; }

private:
    const typename Format::storage* numbers_;
};

}  // namespace cuda_detail

TIFFIN_END
