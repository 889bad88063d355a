// A tensor in the format a backend computes with: where it lies, or in a converted copy.
#pragma once

#include <tiffin/aligned_buffer.hpp>
#include <tiffin/format/number_format.hpp>
#include <tiffin/tensor.hpp>

#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

// Numbers of one format. Given memory is read in place where its format and alignment are right,
// and the caller keeps it alive; else it is converted once into memory of its own.
// Precondition: the last axis is a multiple of the format's block.
class stored_numbers {
public:
    stored_numbers() = default;
    // In f32.
    explicit stored_numbers(const tensor_view& given) : stored_numbers(given, {}, alignof(float)) {}
    // In any format. Rows of tables are read at every alignment: of files, too, in which they lie as they come.
    stored_numbers(const tensor_view& given, const number_format& format, std::size_t alignment = 1) {
        if (given.data == nullptr) return;
        if (format.is_given && format.type == given.type &&
            reinterpret_cast<std::uintptr_t>(given.data) % alignment == 0)
            data_ = static_cast<const std::byte*>(given.data);
        else
            copy(given, given.shape.elements(), format);
    }
    // A converted copy always, in f32, with zeros after the given numbers up to `padded` of them.
    stored_numbers(const tensor_view& given, std::size_t padded) {
        if (given.data != nullptr) copy(given, padded, {});
    }

    // Null where the tensor was not given.
    [[nodiscard]] const std::byte* data() const noexcept { return data_; }
    // Precondition: they are f32.
    [[nodiscard]] const float* floats() const noexcept { return reinterpret_cast<const float*>(data_); }
    // Of its own copy; 0 where it reads the given memory.
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
