// Dense weights in the order in which the kernel reads them.
#pragma once

#include <tiffin/aligned_buffer.hpp>
#include <tiffin/backend/simd/tile.hpp>
#include <tiffin/tensor.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

TIFFIN_BEGIN

namespace simd_detail {

// `Count` weights (outputs, inputs) that are multiplied with the same input, interleaved so that one
// pass reads them all.
//
// A panel is `Registers` registers wide: `spread` registers of adjacent outputs of each weight. Panels
// are kept in groups, a group being what one task computes; within it the order is depth block,
// panel, k, weight, spread, lane, so that a task reads memory from front to back.
// Outputs beyond the last are packed as zeros. With Count = 0 there is nothing to multiply and only
// the division of the outputs into groups is left.
template <class Arch, format_policy Format, std::size_t Count>
class packed_weights {
public:
    using storage = typename Format::storage;
    static constexpr std::size_t spread = Count < 2 ? 2 : 1;
    static constexpr std::size_t registers = Count * spread;
    static constexpr std::size_t panel_outputs = spread * width<Arch>;
    static constexpr std::size_t panel_numbers = registers * width<Arch>;  // for one input

    packed_weights(std::size_t outputs, std::size_t inputs, std::size_t group_panels)
        : outputs_(outputs),
          inputs_(inputs),
          group_panels_(group_panels),
          panels_((outputs + panel_outputs - 1) / panel_outputs),
          buffer_(panels_ * inputs * panel_numbers * sizeof(storage)) {}

    // Packs weight number `which`. Any of the floating-point formats, at any alignment.
    void pack(std::size_t which, const tensor_view& weight) noexcept {
        std::array<float, depth_block> row;
        for (std::size_t p = 0; p < panels_; ++p)
            for (std::size_t k0 = 0; k0 < inputs_; k0 += depth_block) {
                const std::size_t depth = std::min(depth_block, inputs_ - k0);
                storage* const to = buffer_.as<storage>() + offset(p, k0) + which * panel_outputs;
                for (std::size_t j = 0; j < panel_outputs; ++j) {
                    const std::size_t output = p * panel_outputs + j;
                    for (std::size_t k = 0; k < depth; ++k)
                        row[k] = output < outputs_
                                     ? load_as_f32(weight.data, weight.type, output * inputs_ + k0 + k)
                                     : 0.0f;
                    for (std::size_t k = 0; k < depth; ++k) to[k * panel_numbers + j] = Format::store(row[k]);
                }
            }
    }

    [[nodiscard]] std::size_t outputs() const noexcept { return outputs_; }
    [[nodiscard]] std::size_t inputs() const noexcept { return inputs_; }
    [[nodiscard]] std::size_t group_panels() const noexcept { return group_panels_; }
    [[nodiscard]] std::size_t groups() const noexcept {
        return (panels_ + group_panels_ - 1) / group_panels_;
    }
    // The panels of a group; the last group may be shorter.
    [[nodiscard]] std::size_t panels_in(std::size_t group) const noexcept {
        return std::min(group_panels_, panels_ - group * group_panels_);
    }
    // The block of panel p (of the whole weight) that begins at input k0.
    [[nodiscard]] const storage* block(std::size_t p, std::size_t k0) const noexcept {
        return buffer_.template as<storage>() + offset(p, k0);
    }

private:
    [[nodiscard]] std::size_t offset(std::size_t p, std::size_t k0) const noexcept {
        const std::size_t group = p / group_panels_;
        const std::size_t depth = std::min(depth_block, inputs_ - k0);
        return (group * group_panels_ * inputs_ + panels_in(group) * k0 + (p % group_panels_) * depth) *
               panel_numbers;
    }

    std::size_t outputs_;
    std::size_t inputs_;
    std::size_t group_panels_;
    std::size_t panels_;
    aligned_buffer buffer_;
};

}  // namespace simd_detail

TIFFIN_END
