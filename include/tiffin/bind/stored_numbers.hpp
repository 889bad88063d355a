// A tensor in the format a backend computes with: where it lies, or in a converted copy.
#pragma once

#include <tiffin/aligned_buffer.hpp>
#include <tiffin/format/repacked.hpp>
#include <tiffin/grammar/concepts.hpp>
#include <tiffin/tensor.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>

TIFFIN_BEGIN

// Numbers of one format. Given memory is read in place where its format and alignment are right,
// and the caller keeps it alive; else it is converted once into memory of its own.
// AnyAlignment: every alignment is right; who reads them must not mind.
// Precondition: the last axis is a multiple of the format's block.
template <format_policy Format, bool AnyAlignment = false>
class stored_numbers {
public:
    using storage = typename Format::storage;

    stored_numbers() = default;
    // type: the format held, where Format is any_format.
    explicit stored_numbers(const tensor_view& given, [[maybe_unused]] dtype type = dtype::f32) {
        if (given.data == nullptr) return;
        if constexpr (codec<Format>) {
            hold<Format>(given, given.shape.elements());
        } else {
            type_ = type;
            with_format(type, [&](auto format) { hold<decltype(format)>(given, given.shape.elements()); });
        }
    }
    // A converted copy always, with zeros after the given numbers up to `padded` of them.
    stored_numbers(const tensor_view& given, std::size_t padded) requires std::same_as<Format, f32> {
        if (given.data != nullptr) copy<Format>(given, padded);
    }

    // Null where the tensor was not given.
    [[nodiscard]] const storage* data() const noexcept { return data_; }
    [[nodiscard]] const storage* at(std::size_t i) const noexcept { return at(data_, type_, i); }
    // Of a converted copy.
    [[nodiscard]] std::size_t own_bytes() const noexcept { return own_.size(); }
    // Where number i lies. Precondition: the first of a block.
    static const storage* at(const storage* data, [[maybe_unused]] dtype type, std::size_t i) noexcept {
        if constexpr (codec<Format>)
            return data + i / Format::block;
        else
            return data + bytes_of(type, i);
    }

private:
    template <codec F>
    void hold(const tensor_view& given, std::size_t size) {
        using stored = typename F::storage;
        const bool aligned =
            AnyAlignment || reinterpret_cast<std::uintptr_t>(given.data) % alignof(stored) == 0;
        if (is_stored_as<F>(given.type) && aligned)
            data_ = static_cast<const storage*>(given.data);
        else
            copy<F>(given, size);
    }
    template <codec F>
    void copy(const tensor_view& given, std::size_t size) {
        using stored = typename F::storage;
        own_ = aligned_buffer(size / F::block * sizeof(stored));
        auto* to = own_.as<stored>();
        const std::size_t count = given.shape.elements();
        if (is_stored_as<F>(given.type) && size == count) {
            std::memcpy(to, given.data, own_.size());
            data_ = own_.as<storage>();
            return;
        }
        std::array<float, F::block * std::max<std::size_t>(256 / F::block, 1)> numbers;
        for (std::size_t i = 0; i < size; i += numbers.size()) {
            const std::size_t taken = std::min(numbers.size(), std::max(count, i) - i);
            read_as_f32(given.data, given.type, i, taken, numbers.data());
            std::fill(numbers.begin() + static_cast<std::ptrdiff_t>(taken), numbers.end(), 0.0f);
            for (std::size_t j = 0; j < std::min(numbers.size(), size - i); j += F::block, ++to)
                if (!repack<F>(given.data, given.type, i + j, *to)) F::encode(numbers.data() + j, *to);
        }
        data_ = own_.as<storage>();
    }

    const storage* data_ = nullptr;
    dtype type_ = dtype::f32;
    aligned_buffer own_;
};

// Rows of tables: of files, too, in which they lie as they come.
template <format_policy Format>
using stored_rows = stored_numbers<Format, true>;

TIFFIN_END
