// Dense weights in the order in which the kernel reads them.
#pragma once

#include <tiffin/aligned_buffer.hpp>
#include <tiffin/bind/preparation.hpp>
#include <tiffin/cpu/simd/weight_kernels.hpp>
#include <tiffin/executor/executor.hpp>
#include <tiffin/tensor.hpp>

#include <algorithm>
#include <cstddef>

TIFFIN_BEGIN

namespace simd_detail {

// One or two weights (outputs, inputs) that are multiplied with the same input, interleaved so that one pass reads both.
//
// A panel is panel_registers wide: adjacent outputs of each weight. It is contiguous, blocks of the format in the
// order of the inputs (see panel_product.hpp), and read as one stream. A group of panels is a task's unit of work.
// Outputs beyond the last are packed as zeros.
// Precondition: `inputs` is a multiple of the format's block.
class packed_weights {
public:
    // Tokens [first, first + count) of `tokens` activation rows in the tiles' layout, depth block by depth block.
    struct token_rows {
        const std::byte* rows;
        std::size_t tokens, first, count;
    };

    packed_weights(std::size_t outputs, std::size_t inputs, std::size_t count, std::size_t group_panels,
                   const weight_kernels& kernels);

    // Packs weight `which`, given in any format but an integer type, at any alignment.
    void pack(std::size_t which, const tensor_view& weight, const preparation& how);

    [[nodiscard]] const weight_kernels& kernels() const noexcept { return *kernels_; }
    [[nodiscard]] std::size_t outputs() const noexcept { return outputs_; }
    [[nodiscard]] std::size_t inputs() const noexcept { return inputs_; }
    // Inputs of the block that begins at k0, as packed.
    [[nodiscard]] std::size_t depth(std::size_t k0) const noexcept {
        return std::min(depth_block, packed_inputs_ - k0);
    }
    // Adjacent outputs of each weight in a panel.
    [[nodiscard]] std::size_t panel_outputs() const noexcept { return panel_outputs_; }
    // Weights of a panel per input.
    [[nodiscard]] std::size_t panel_numbers() const noexcept { return panel_registers * kernels_->lanes; }
    [[nodiscard]] std::size_t group_panels() const noexcept { return group_panels_; }
    [[nodiscard]] std::size_t groups() const noexcept {
        return (panels_ + group_panels_ - 1) / group_panels_;
    }
    // The panels of a group; the last group may be shorter.
    [[nodiscard]] std::size_t panels_in(std::size_t group) const noexcept {
        return std::min(group_panels_, panels_ - group * group_panels_);
    }
    // Bytes from one panel to the next.
    [[nodiscard]] std::size_t panel_bytes() const noexcept { return offset(1, 0); }
    // The block of panel p (of the whole weight) that begins at input k0.
    [[nodiscard]] const std::byte* block(std::size_t p, std::size_t k0) const noexcept {
        return buffer_.data() + offset(p, k0);
    }

    // acc[panel][token][register] = the sums of a group's panels. `next`: weights multiplied after these, to
    // prefetch; `unpacked`: room for a block of them.
    void multiply(std::size_t group, const token_rows& of, const std::byte* next, float* acc,
                  std::byte* unpacked) const noexcept;

private:
    void multiply_few(std::size_t panel, std::size_t panels, const token_rows& of, float* acc) const noexcept;
    void multiply_many(std::size_t panel, std::size_t panels, const token_rows& of, const std::byte* next,
                       float* acc, std::byte* unpacked) const noexcept;
    [[nodiscard]] std::size_t offset(std::size_t p, std::size_t k0) const noexcept {
        return kernels_->bytes((p * packed_inputs_ + k0) * panel_numbers());
    }

    std::size_t outputs_;
    std::size_t inputs_;
    std::size_t count_;
    std::size_t panel_outputs_;
    std::size_t packed_inputs_;
    std::size_t group_panels_;
    std::size_t panels_;
    const weight_kernels* kernels_;
    aligned_buffer buffer_;
};

}  // namespace simd_detail

TIFFIN_END
