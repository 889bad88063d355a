// Values of metadata and types of tensors as GGUF files have them.
#pragma once

#include <tiffin/dtype.hpp>
#include <tiffin/error.hpp>
#include <tiffin/io/gguf_value.hpp>
#include <tiffin/io/safetensors_format.hpp>
#include <tiffin/tensor.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

namespace gguf_files {

using namespace tiffin;
using namespace tiffin::io;

// The type that metadata has for values of T: numbers by their size, what reads as a text, else a range of those.
template <class T>
constexpr gguf_type gguf_type_of() noexcept {
    using enum gguf_type;
    constexpr std::array<gguf_type, 4> whole{{u8, u16, u32, u64}}, with_sign{{i8, i16, i32, i64}};
    if constexpr (std::is_same_v<T, bool>)
        return boolean;
    else if constexpr (std::is_floating_point_v<T>)
        return sizeof(T) == 4 ? f32 : f64;
    else if constexpr (std::is_integral_v<T>)
        return (std::is_signed_v<T> ? with_sign : whole)[std::bit_width(sizeof(T)) - 1];
    else
        return std::is_convertible_v<const T&, std::string_view> ? string : array;
}

// The type of a tensor as numbered in files; none for a format that ggml has not.
constexpr std::optional<std::uint32_t> gguf_number_of(dtype type) noexcept {
    for (std::uint32_t n = 0; n < 64; ++n)
        if (gguf_dtype(n) == type) return n;
    return std::nullopt;
}

// Whether ggml can have such a tensor. Errors: errc::dtype, errc::shape.
inline status check_gguf_tensor(std::string_view name, const tensor_view& t) {
    if (!gguf_number_of(t.type))
        return failure(errc::dtype, name, "is ", name_of(t.type), ", which ggml's tensors cannot be");
    if (t.scales.any())
        return failure(errc::dtype, name, "has ", t.scales.text(), "; a GGUF file holds its numbers");
    if (io::detail::is_whole_blocks(t.type, t.shape)) return {};
    return failure(errc::shape, name, "is ", name_of(t.type), " of shape ", to_string(t.shape),
                   "; rows are no whole blocks of ", block_of(t.type));
}

template <class T>
void append(std::vector<std::byte>& to, const T& value) {
    if constexpr (std::is_convertible_v<const T&, std::string_view>) {
        const std::string_view text = value;
        append(to, std::uint64_t{text.size()});
        const auto* const first = reinterpret_cast<const std::byte*>(text.data());
        to.insert(to.end(), first, first + text.size());
    } else {
        const auto* const first = reinterpret_cast<const std::byte*>(&value);
        to.insert(to.end(), first, first + sizeof value);
    }
}

// The value's type, then the value. A range is an array of its elements, which are numbers, truths or texts.
template <class T>
std::vector<std::byte> gguf_value_bytes(const T& value) {
    constexpr gguf_type type = gguf_type_of<T>();
    std::vector<std::byte> made;
    append(made, type);
    if constexpr (type == gguf_type::array) {
        using element = std::remove_cvref_t<decltype(*std::begin(value))>;
        static_assert(gguf_type_of<element>() != gguf_type::array, "tiffin: GGUF: an array of arrays");
        append(made, gguf_type_of<element>());
        append(made, static_cast<std::uint64_t>(std::distance(std::begin(value), std::end(value))));
        for (const element& each : value) append(made, each);
    } else {
        append(made, value);
    }
    return made;
}

}  // namespace gguf_files
