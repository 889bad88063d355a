// A tensor in the format a backend computes with: where it lies, or in a converted copy.
#pragma once

#include <tiffin/aligned_buffer.hpp>
#include <tiffin/concepts.hpp>
#include <tiffin/tensor.hpp>

#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

// Numbers of one format. Given memory is read in place where its format and alignment are right,
// and the caller keeps it alive; else it is converted once into memory of its own.
template <format_policy Format>
class held_numbers {
public:
    using storage = typename Format::storage;

    held_numbers() = default;
    explicit held_numbers(const tensor_view& given) {
        const bool aligned = reinterpret_cast<std::uintptr_t>(given.data) % alignof(storage) == 0;
        if (given.data != nullptr && given.type == Format::type && aligned)
            data_ = static_cast<const storage*>(given.data);
        else if (given.data != nullptr)
            copy(given, given.shape.elements());
    }
    // A converted copy always, with zeros after the given numbers up to `padded` of them.
    held_numbers(const tensor_view& given, std::size_t padded) {
        if (given.data != nullptr) copy(given, padded);
    }

    // Null where the tensor was not given.
    [[nodiscard]] const storage* data() const noexcept { return data_; }

private:
    void copy(const tensor_view& given, std::size_t size) {
        own_ = aligned_buffer(size * sizeof(storage));
        auto* const to = own_.as<storage>();
        const std::size_t count = given.shape.elements();
        for (std::size_t i = 0; i < size; ++i)
            to[i] = Format::store(i < count ? load_as_f32(given.data, given.type, i) : 0.0f);
        data_ = to;
    }

    const storage* data_ = nullptr;
    aligned_buffer own_;
};

TIFFIN_END
