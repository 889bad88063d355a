// GGUF metadata values, and the tensor types of ggml.
#pragma once

#include <tiffin/dtype.hpp>
#include <tiffin/error.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

TIFFIN_BEGIN
namespace io {

// Types of metadata values; the enumerators' numbers are those of the file format.
enum class gguf_type : std::uint32_t {
    u8,
    i8,
    u16,
    i16,
    u32,
    i32,
    f32,
    boolean,
    string,
    array,
    u64,
    i64,
    f64
};

namespace detail {

// The bytes of a value of a scalar type; 0 for strings, arrays and unknown types.
constexpr std::size_t gguf_size_of(gguf_type t) noexcept {
    constexpr std::array<std::size_t, 13> sizes{{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8}};
    const auto i = static_cast<std::size_t>(t);
    return i < sizes.size() ? sizes[i] : 0;
}

// Reads bytes from front to back, never beyond their end.
class byte_reader {
public:
    explicit byte_reader(std::span<const std::byte> bytes) : rest_(bytes), all_(bytes.size()) {}
    [[nodiscard]] std::size_t at() const noexcept { return all_ - rest_.size(); }
    [[nodiscard]] std::size_t left() const noexcept { return rest_.size(); }

    [[nodiscard]] std::optional<std::span<const std::byte>> take(std::uint64_t bytes) noexcept {
        if (bytes > rest_.size()) return std::nullopt;
        const auto taken = rest_.first(static_cast<std::size_t>(bytes));
        rest_ = rest_.subspan(taken.size());
        return taken;
    }
    template <class T>
    [[nodiscard]] std::optional<T> number() noexcept {
        const auto bytes = take(sizeof(T));
        if (!bytes) return std::nullopt;
        T value;
        std::memcpy(&value, bytes->data(), sizeof value);
        return value;
    }
    // A 64-bit length, then the text.
    [[nodiscard]] std::optional<std::string_view> text() noexcept {
        const auto length = number<std::uint64_t>();
        if (!length) return std::nullopt;
        const auto bytes = take(*length);
        if (!bytes) return std::nullopt;
        return std::string_view(reinterpret_cast<const char*>(bytes->data()), bytes->size());
    }

private:
    std::span<const std::byte> rest_;
    std::size_t all_;
};

}  // namespace detail

// A metadata array, a view of the file's bytes.
struct gguf_array {
    gguf_type type{};
    std::size_t size = 0;
    std::span<const std::byte> bytes;

    // Calls visit(text) for each string. Does nothing where the elements are no strings.
    template <class Visit>
    void for_texts(const Visit& visit) const {
        if (type != gguf_type::string) return;
        detail::byte_reader from(bytes);
        for (std::size_t i = 0; i < size; ++i) visit(*from.text());
    }
    // Element i as T. Precondition: i < size, and an array of numbers.
    template <class T>
    [[nodiscard]] T number(std::size_t i) const noexcept {
        const auto as = [&]<class Stored>(Stored) {
            Stored v;
            std::memcpy(&v, bytes.data() + i * sizeof v, sizeof v);
            return static_cast<T>(v);
        };
        switch (type) {
            case gguf_type::u8: return as(std::uint8_t{});
            case gguf_type::i8: return as(std::int8_t{});
            case gguf_type::u16: return as(std::uint16_t{});
            case gguf_type::i16: return as(std::int16_t{});
            case gguf_type::u32: return as(std::uint32_t{});
            case gguf_type::i32: return as(std::int32_t{});
            case gguf_type::f32: return as(float{});
            case gguf_type::u64: return as(std::uint64_t{});
            case gguf_type::i64: return as(std::int64_t{});
            case gguf_type::f64: return as(double{});
            default: return as(std::uint8_t{});
        }
    }
};

// One value: an integer, a float, a boolean, a text or an array. Texts and arrays are views of the file's bytes.
using gguf_value = std::variant<std::uint64_t, std::int64_t, double, bool, std::string_view, gguf_array>;

// The dtype of a ggml tensor type; none for one that is not read.
constexpr std::optional<dtype> gguf_dtype(std::uint32_t type) noexcept {
    switch (type) {
        case 0: return dtype::f32;
        case 1: return dtype::f16;
        case 2: return dtype::q4_0;
        case 3: return dtype::q4_1;
        case 6: return dtype::q5_0;
        case 7: return dtype::q5_1;
        case 8: return dtype::q8_0;
        case 10: return dtype::q2_k;
        case 11: return dtype::q3_k;
        case 12: return dtype::q4_k;
        case 13: return dtype::q5_k;
        case 14: return dtype::q6_k;
        case 20: return dtype::iq4_nl;
        case 23: return dtype::iq4_xs;
        case 26: return dtype::i32;
        case 27: return dtype::i64;
        case 30: return dtype::bf16;
        case 39: return dtype::mxfp4;
        case 40: return dtype::nvfp4;
        default: return std::nullopt;
    }
}

// A ggml tensor type that is not read.
struct gguf_unread_type {
    std::uint32_t number;
    std::string_view name;
    std::size_t block;  // values per block
    std::size_t bytes;  // per block
};
inline constexpr std::array<gguf_unread_type, 14> gguf_unread_types{{
    {9, "Q8_1", 32, 36},
    {15, "Q8_K", 256, 292},
    {16, "IQ2_XXS", 256, 66},
    {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98},
    {19, "IQ1_S", 256, 50},
    {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},
    {24, "I8", 1, 1},
    {25, "I16", 1, 2},
    {28, "F64", 1, 8},
    {29, "IQ1_M", 256, 56},
    {34, "TQ1_0", 256, 54},
    {35, "TQ2_0", 256, 66},
}};
constexpr const gguf_unread_type* find_gguf_unread_type(std::uint32_t number) noexcept {
    for (const gguf_unread_type& t : gguf_unread_types)
        if (t.number == number) return &t;
    return nullptr;
}

// ggml's name of a tensor type that is not read; empty for an unknown one.
constexpr std::string_view gguf_unread_name(std::uint32_t type) noexcept {
    const gguf_unread_type* const known = find_gguf_unread_type(type);
    return known != nullptr ? known->name : std::string_view();
}

}  // namespace io
TIFFIN_END
