// Activations times packed weights, group by group, with the next group's weights prefetched. Not templates: the
// formula, the formats of the weights and their number are function pointers and sizes.
#pragma once

#include <tiffin/cpu/product_sums.hpp>
#include <tiffin/cpu/simd/packed_weights.hpp>
#include <tiffin/executor/executor.hpp>

#include <cstddef>
#include <vector>

TIFFIN_BEGIN

namespace simd_detail {

// Activations in depth blocks: (inputs / depth_block, tokens, depth_block). The rows of a tile are then a constant
// distance apart, whatever the width, and never collide in a cache set. A single token's row has this layout already.
struct activations {
    const float* data;
    std::size_t tokens;
    std::byte* rounded = nullptr;  // the same, where they were rounded as they were written

    [[nodiscard]] const float* row(std::size_t k0, std::size_t token) const noexcept {
        return data + (k0 * tokens + token * depth_block);
    }
};

inline constexpr std::size_t blocked_size(std::size_t tokens, std::size_t features) noexcept {
    return (features + depth_block - 1) / depth_block * depth_block * tokens;
}

// `count` weights (outputs, inputs) times the same activations, two by two.
class panel_products {
public:
    panel_products(std::size_t outputs, std::size_t inputs, std::size_t count, const weight_kernels& kernels);
    panel_products(std::size_t outputs, std::size_t inputs, std::size_t count, const number_formats& formats)
        : panel_products(outputs, inputs, count, formats.kernels(formats)) {}
    void pack(std::size_t which, const tensor_view& weight, const preparation& how) {
        packs_[which / 2].pack(which % 2, weight, how);
    }

    // Floats for the sums of as many tasks as `most_workers` allows.
    [[nodiscard]] std::size_t scratch_numbers(std::size_t tokens, std::size_t most_workers) const noexcept;

    // Calls finish(first token, tokens, first output, outputs, sums) for every part of the result.
    void run(const activations& in, float* scratch, std::size_t most_workers, const executor_ref& execute,
             const cpu_detail::epilogue_ref& finish) const;

    // How the activations of these products are to be rounded.
    [[nodiscard]] const rounding& rounding_of_inputs() const noexcept { return first().kernels().rows; }
    // Outputs are finished in aligned groups of this many; the last group may be smaller.
    [[nodiscard]] std::size_t outputs_at_once() const noexcept {
        return first().group_panels() * first().panel_outputs();
    }

private:
    [[nodiscard]] const packed_weights& first() const noexcept { return packs_.front(); }
    [[nodiscard]] std::size_t rounded_numbers(std::size_t tokens) const noexcept;
    [[nodiscard]] std::size_t sum_numbers(const packed_weights& pack, std::size_t tokens) const noexcept;
    [[nodiscard]] std::size_t floats_per_worker(std::size_t tokens) const noexcept;
    const std::byte* round(const activations& in, float* to, std::size_t most_workers,
                           const executor_ref& execute) const;
    void run_group(std::size_t group, std::size_t following, const std::byte* rows, std::size_t tokens,
                   float* acc, const cpu_detail::epilogue_ref& finish) const noexcept;

    std::vector<packed_weights> packs_;  // pairs of weights; the last of an odd number alone
};

}  // namespace simd_detail

TIFFIN_END

// The definitions, unless the compiled library provides them.
#if !defined(TIFFIN_COMPILED)
#    include <tiffin/cpu/simd/run_products.hpp>
#endif
