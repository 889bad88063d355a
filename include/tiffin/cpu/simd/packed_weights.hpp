// Dense weights in the order in which the kernel reads them.
#pragma once

#include <tiffin/aligned_buffer.hpp>
#include <tiffin/bind/preparation.hpp>
#include <tiffin/cpu/simd/panel_kernels.hpp>
#include <tiffin/executor/executor.hpp>
#include <tiffin/tensor.hpp>

#include <algorithm>
#include <cstddef>

TIFFIN_BEGIN

namespace simd_detail {

// `Count` weights (outputs, inputs) that are multiplied with the same input, interleaved so that one
// pass reads them all.
//
// A panel is `Registers` registers wide: `spread` registers of adjacent outputs of each weight. It is kept
// in one piece, blocks of the format in the order of the inputs (see panel_product.hpp): a stream of
// memory. A group of panels is what one task computes in one go. Outputs beyond the last are packed as zeros.
// Precondition: `inputs` is a multiple of the format's block.
template <class Arch, format_policy Format, activation_format Activations, std::size_t Count>
class packed_weights {
public:
    static constexpr std::size_t spread = Count < 2 ? 2 : 1;
    static constexpr std::size_t registers = Count * spread;
    static constexpr std::size_t panel_outputs = spread * width<Arch>;
    static constexpr std::size_t panel_numbers = registers * width<Arch>;  // for one input

    packed_weights(std::size_t outputs, std::size_t inputs, std::size_t group_panels,
                   const number_formats& formats)
        : outputs_(outputs),
          inputs_(inputs),
          group_panels_(group_panels),
          panels_((outputs + panel_outputs - 1) / panel_outputs) {
        kernels_ = &kernels_for<Arch, Format, Activations, registers>(formats);
        packed_inputs_ = (inputs + kernels_->step - 1) / kernels_->step * kernels_->step;
        buffer_ = aligned_buffer(kernels_->bytes(panels_ * packed_inputs_ * panel_numbers));
    }

    // Packs weight number `which`, given in any format that is no integer's, at any alignment.
    void pack(std::size_t which, const tensor_view& weight, const preparation& how) {
        constexpr std::size_t at_once = 8;  // panels of a task: tens of microseconds
        const auto work = [&](std::size_t task) noexcept {
            for (std::size_t p = task * at_once; p < std::min(panels_, (task + 1) * at_once); ++p)
                for (std::size_t k0 = 0; k0 < inputs_; k0 += depth_block)
                    kernels_->pack(
                        {weight, outputs_, inputs_, p * panel_outputs, panel_outputs, k0, depth(k0)},
                        which * panel_outputs, buffer_.data() + offset(p, k0));
        };
        how.execute((panels_ + at_once - 1) / at_once, task_ref(work));
        how.hold(buffer_.size() / Count);
    }

    [[nodiscard]] const panel_kernels& kernels() const noexcept { return *kernels_; }
    [[nodiscard]] std::size_t outputs() const noexcept { return outputs_; }
    [[nodiscard]] std::size_t inputs() const noexcept { return inputs_; }
    // Inputs of the block that begins at k0, as packed.
    [[nodiscard]] std::size_t depth(std::size_t k0) const noexcept {
        return std::min(depth_block, packed_inputs_ - k0);
    }
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

private:
    [[nodiscard]] std::size_t offset(std::size_t p, std::size_t k0) const noexcept {
        return kernels_->bytes((p * packed_inputs_ + k0) * panel_numbers);
    }

    std::size_t outputs_;
    std::size_t inputs_;
    std::size_t packed_inputs_ = 0;
    std::size_t group_panels_;
    std::size_t panels_;
    const panel_kernels* kernels_ = nullptr;
    aligned_buffer buffer_;
};

}  // namespace simd_detail

TIFFIN_END
