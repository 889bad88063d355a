// A tensor's entry in the header of a safetensors file, with checks of its size and offsets.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/io/safetensors_format.hpp>
#include <tiffin/tensor.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io {

namespace detail {

inline std::string sizes_text(const std::vector<std::uint64_t>& sizes) {
    constexpr std::size_t most = 8;  // axes that a message shows
    std::string text = "(";
    for (std::size_t a = 0; a < std::min(sizes.size(), most); ++a)
        text += (a != 0 ? ", " : "") + std::to_string(sizes[a]);
    if (sizes.size() > most) text += ", ...: " + std::to_string(sizes.size()) + " axes";
    return text + ")";
}

}  // namespace detail

// A tensor that is not read: of a format that is not supported, or of more axes than shape::max_rank.
struct unread_safetensor {
    std::string name;
    std::string type;  // its dtype in the file
    std::vector<std::uint64_t> sizes;

    // For error messages: what it is, and what can be read.
    [[nodiscard]] std::string reason() const {
        return "is " + detail::printable(type) + " of shape " + detail::sizes_text(sizes) +
               ", which is not read; F32, F16, BF16, F8_E4M3, F8_E5M2, F8_E8M0, I32, I64 and U8 of at most " +
               std::to_string(shape::max_rank) + " axes are";
    }
};

// Whether tensors that cannot be read are refused, or listed.
enum class unread_tensors { refused, listed };

namespace detail {

struct safetensors_entry {
    std::string name;
    tensor_view tensor;  // without data yet
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    bool is_read = true;  // false: `unread` has its type and sizes
    unread_safetensor unread{};
};

// The bits per value of a format; none for an unknown one.
// Source: https://github.com/huggingface/safetensors, Dtype in safetensors/src/tensor.rs.
inline std::optional<std::uint64_t> bits_of(std::string_view type) noexcept {
    constexpr std::array<std::pair<std::string_view, std::uint8_t>, 23> known{
        {{"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6},     {"F6_E3M2", 6},     {"U8", 8},      {"I8", 8},
         {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F8_E8M0", 8}, {"I16", 16},
         {"U16", 16},    {"F16", 16},    {"BF16", 16},       {"I32", 32},        {"U32", 32},    {"F32", 32},
         {"C64", 64},    {"F64", 64},    {"I64", 64},        {"U64", 64},        {"C128", 128}}};
    for (const auto& [name, bits] : known)
        if (name == type) return bits;
    return std::nullopt;
}

// The bytes of a tensor of any sizes; none where they overflow or are no integer. Precondition: a known format.
inline std::optional<std::uint64_t> byte_count(std::uint64_t bits,
                                               const std::vector<std::uint64_t>& sizes) noexcept {
    bool empty = false;
    for (const std::uint64_t size : sizes) {
        empty = empty || size == 0;
        if (size != 0 && __builtin_mul_overflow(bits, size, &bits)) return std::nullopt;
    }
    if (empty) return 0;
    return bits % 8 == 0 ? std::optional(bits / 8) : std::nullopt;
}

// Checks, as the official reader does, that the tensors cover the data without overlaps or holes.
// Errors: errc::file, with an empty `where`.
inline status check_layout(const std::vector<safetensors_entry>& entries, std::uint64_t data_size) {
    std::vector<const safetensors_entry*> order;
    for (const safetensors_entry& e : entries) order.push_back(&e);
    std::sort(order.begin(), order.end(), [](const safetensors_entry* a, const safetensors_entry* b) {
        return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
    });
    const safetensors_entry* before = nullptr;
    for (const safetensors_entry* e : order) {
        const std::uint64_t reached = before ? before->end : 0;
        if (e->begin < reached)
            return failure(errc::file, "", "tensor ", in_quotes(e->name), " begins at data byte ", e->begin,
                           " and overlaps tensor ", in_quotes(before->name), ", which ends at ", reached);
        if (e->begin > reached)
            return failure(errc::file, "", "tensor ", in_quotes(e->name), " begins at data byte ", e->begin,
                           ", but no tensor holds the bytes from ", reached);
        before = e;
    }
    const std::uint64_t reached = before ? before->end : 0;
    if (reached == data_size) return {};
    return failure(errc::file, "", "the tensors end at data byte ", reached, ", but the file has ", data_size,
                   " data bytes");
}

}  // namespace detail
}  // namespace io
TIFFIN_END
