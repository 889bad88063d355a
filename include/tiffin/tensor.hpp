// Tensors as they are given: a pointer, a number format, a shape and a name.
#pragma once

#include <tiffin/config.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

TIFFIN_BEGIN

// A number format of given tensors, named as safetensors names it.
enum class dtype : std::uint8_t { f32, f16, bf16, i32, i64 };

constexpr std::string_view name_of(dtype t) noexcept {
    constexpr std::array<std::string_view, 5> names{"F32", "F16", "BF16", "I32", "I64"};
    return names[static_cast<std::size_t>(t)];
}

constexpr std::size_t size_of(dtype t) noexcept {
    constexpr std::array<std::size_t, 5> sizes{4, 2, 2, 4, 8};
    return sizes[static_cast<std::size_t>(t)];
}

// The f32 of a bf16's bits; exact.
constexpr float bf16_to_f32(std::uint16_t bits) noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// The f32 of an IEEE half's bits; exact, subnormals, infinities and NaN included.
constexpr float f16_to_f32(std::uint16_t bits) noexcept {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1Fu;
    const std::uint32_t mantissa = bits & 0x3FFu;
    if (exponent == 0) {  // zero or subnormal: mantissa units of 2^-24
        const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
        return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
    }
    const std::uint32_t widened = exponent == 31 ? 255u : exponent + 112u;
    return std::bit_cast<float>(sign | (widened << 23) | (mantissa << 13));
}

// The sizes of a tensor, outermost first; up to four axes, none for a scalar.
class shape {
public:
    static constexpr std::size_t max_rank = 4;
    constexpr shape() = default;
    constexpr shape(std::initializer_list<std::size_t> sizes) noexcept {
        for (std::size_t s : sizes)
            if (rank_ < max_rank) sizes_[rank_++] = s;
    }
    [[nodiscard]] constexpr std::size_t rank() const noexcept { return rank_; }
    constexpr std::size_t operator[](std::size_t axis) const noexcept { return sizes_[axis]; }
    // Precondition: rank() < max_rank.
    constexpr void push_back(std::size_t size) noexcept { sizes_[rank_++] = size; }
    [[nodiscard]] constexpr std::size_t elements() const noexcept {
        std::size_t n = 1;
        for (std::size_t i = 0; i < rank_; ++i) n *= sizes_[i];
        return n;
    }
    friend constexpr bool operator==(const shape&, const shape&) = default;

private:
    std::array<std::size_t, max_rank> sizes_{};
    std::size_t rank_ = 0;
};

inline std::string to_string(const shape& s) {
    std::string text = "(";
    for (std::size_t i = 0; i < s.rank(); ++i) text += (i ? ", " : "") + std::to_string(s[i]);
    return text + ")";
}

// A tensor somebody else owns: row-major, dense, at any alignment.
struct tensor_view {
    const void* data = nullptr;
    dtype type = dtype::f32;
    tiffin::shape shape;
};

// The value of element `i` of floating-point memory, widened exactly.
inline float load_as_f32(const void* data, dtype type, std::size_t i) noexcept {
    const auto* bytes = static_cast<const unsigned char*>(data) + i * size_of(type);
    if (type == dtype::f32) {
        float value;
        std::memcpy(&value, bytes, sizeof value);
        return value;
    }
    std::uint16_t bits;
    std::memcpy(&bits, bytes, sizeof bits);
    return type == dtype::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

// The tensors of a layer by name, in the order they were added. Views only: the memory is the
// caller's, and a prepared layer goes on reading it (see prepare.hpp).
class weights {
public:
    struct entry {
        std::string name;
        tensor_view tensor;
    };

    weights& add(std::string name, tensor_view tensor) {
        entries_.push_back({std::move(name), tensor});
        return *this;
    }
    weights& add(std::string name, const float* data, tiffin::shape sizes) {
        return add(std::move(name), tensor_view{data, dtype::f32, sizes});
    }
    [[nodiscard]] const tensor_view* find(std::string_view name) const noexcept {
        for (const entry& e : entries_)
            if (e.name == name) return &e.tensor;
        return nullptr;
    }
    [[nodiscard]] const std::vector<entry>& entries() const noexcept { return entries_; }

private:
    std::vector<entry> entries_;
};

TIFFIN_END
