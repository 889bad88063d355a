// A tensor in the format a backend computes with: in the caller's memory, or a converted copy.
#pragma once

#include <tiffin/aligned_buffer.hpp>
#include <tiffin/format/number_format.hpp>
#include <tiffin/tensor.hpp>

#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

// Values of one format. Given memory is read in place if its format and alignment fit,
// and the caller keeps it alive; else it is converted once into memory of its own.
// Precondition: the last axis is a multiple of the format's block.
class stored_numbers {
public:
    stored_numbers() = default;
    // In f32.
    explicit stored_numbers(const tensor_view& given) : stored_numbers(given, {}, alignof(float)) {}
    // In any format. Table rows are read at any alignment, also in mapped files.
    stored_numbers(const tensor_view& given, const number_format& format, std::size_t alignment = 1) {
        if (given.data == nullptr) return;
        if (format.is_given && format.type == given.type && (format.keeps_scales || !given.scales.any()) &&
            reinterpret_cast<std::uintptr_t>(given.data) % alignment == 0)
            data_ = static_cast<const std::byte*>(given.data);
        else
            copy(given, given.shape.elements(), format);
    }
    // Always a converted f32 copy, with zeros after the given values up to `padded` of them.
    stored_numbers(const tensor_view& given, std::size_t padded) {
        if (given.data != nullptr) copy(given, padded, {});
    }

    // Null where the tensor was not given.
    [[nodiscard]] const std::byte* data() const noexcept { return data_; }
    // Precondition: the values are f32.
    [[nodiscard]] const float* floats() const noexcept { return reinterpret_cast<const float*>(data_); }
    // Bytes of its own copy; 0 if it reads the given memory.
    [[nodiscard]] std::size_t own_bytes() const noexcept { return own_.size(); }

private:
    void copy(const tensor_view& given, std::size_t size, const number_format& format) {
        own_ = aligned_buffer(format.rows.bytes(size));
        format.convert(given, size, own_.data());
        data_ = own_.data();
    }

    const std::byte* data_ = nullptr;
    aligned_buffer own_;
};

TIFFIN_END
