// Number formats as values: what is below a backend's name knows of a format what is said here, and calls what is
// pointed at.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/format/concepts.hpp>
#include <tiffin/format/repacked.hpp>
#include <tiffin/tensor.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

TIFFIN_BEGIN

// Given numbers as Format stores them, with zeros after the last up to `size` of them.
// Precondition: `size` is a multiple of the format's block, and no smaller than what is given.
template <codec Format>
void convert(const tensor_view& given, std::size_t size, std::byte* to) noexcept {
    using stored = typename Format::storage;
    const std::size_t count = given.shape.elements();
    if (is_stored_as<Format>(given.type) && size == count) {
        std::memcpy(to, given.data, size / Format::block * sizeof(stored));
        return;
    }
    std::array<float, Format::block * std::max<std::size_t>(256 / Format::block, 1)> numbers;
    for (std::size_t i = 0; i < size; i += numbers.size()) {
        const std::size_t taken = std::min(numbers.size(), std::max(count, i) - i);
        read_as_f32(given.data, given.type, i, taken, numbers.data());
        std::fill(numbers.begin() + static_cast<std::ptrdiff_t>(taken), numbers.end(), 0.0f);
        for (std::size_t j = 0; j < std::min(numbers.size(), size - i); j += Format::block) {
            stored block;
            if (!repack<Format>(given.data, given.type, i + j, block))
                Format::encode(numbers.data() + j, block);
            std::memcpy(to, &block, sizeof block);
            to += sizeof block;
        }
    }
}

// How the numbers of rows are read: numbers [first, first + count) of a row at any alignment, as f32, to memory
// that is aligned and has room for whole registers.
using decode_row_function = void (*)(const std::byte* row, std::size_t first, std::size_t count,
                                     float* to) noexcept;

// The numbers of rows as they lie.
struct row_format {
    std::uint32_t block_bits = 0;  // a block is 2^block_bits numbers
    std::uint32_t block_bytes = sizeof(float);
    decode_row_function decode = nullptr;  // null: they are f32

    // The bytes of `numbers` numbers. Precondition: a multiple of the block.
    [[nodiscard]] constexpr std::size_t bytes(std::size_t numbers) const noexcept {
        return (numbers >> block_bits) * block_bytes;
    }
};

// One format. Of those that tables are kept in, `convert` and what `rows` has; the other two are a backend's own.
struct number_format {
    std::string_view name = "F32";
    std::size_t block = 1;
    float largest = f32::largest;
    dtype type = dtype::f32;
    bool is_given = true;        // whether tensors can be given in it: not in a codec without a dtype
    std::string_view refused{};  // what was asked for, and numbers are not kept in
    row_format rows{};
    void (*convert)(const tensor_view& given, std::size_t size,
                    std::byte* to) noexcept = &tiffin::convert<f32>;
    // Where each tensor has a format of its own (kept_as_given): that of tensors given so.
    number_format (*of)(dtype given) = nullptr;
};

// What a backend multiplies weights with: its own business.
struct weight_kernels;

// The given tensors that a backend goes on reading where they lie, if they are in its own format and aligned.
// All others may be freed once prepare() has returned.
enum class in_place {
    nothing,
    tables,            // of ids: simd
    dense_and_tables,  // eigen
    everything,        // in whatever format, at any alignment: reference
};
// What prepare() knows of a backend's formats.
struct number_formats {
    number_format weights;
    number_format tables;
    number_format activations;
    bool any_table = false;  // tables are read in whatever format they have
    in_place reads = in_place::tables;
    // Where weights may lie in memory that the host cannot read: copies the numbers of such a tensor to `memory`.
    status (*bring)(tensor_view& given, std::vector<std::byte>& memory, const std::string& name) = nullptr;
    // Those of weights and activations in these formats.
    const weight_kernels& (*kernels)(const number_formats&) noexcept = nullptr;
};

template <stored_format Format>
constexpr number_format describe(const Format&) {
    number_format made{.name = "the format", .block = Format::block, .is_given = false};
    if constexpr (requires { Format::largest; }) made.largest = Format::largest;
    if constexpr (requires { Format::type; }) {
        made.name = name_of(Format::type);
        made.type = Format::type;
        made.is_given = true;
    }
    made.rows = {static_cast<std::uint32_t>(std::countr_zero(Format::block)),
                 sizeof(typename Format::storage)};
    if constexpr (codec<Format>) made.convert = &convert<Format>;
    return made;
}

// The format of a table that is given so.
inline number_format format_of_table(const number_formats& all, dtype given) noexcept {
    return all.tables.of != nullptr ? all.tables.of(given) : all.tables;
}

// The formats of weights that are kept together, where each is kept as given: those of all if they agree.
inline number_formats formats_of(const number_formats& all, std::span<const dtype> given) noexcept {
    if (all.weights.of == nullptr || given.empty()) return all;
    const bool rounded = all.activations.type == dtype::q8_0;
    dtype type = kept_as(given[0], rounded);
    for (const dtype other : given)
        if (kept_as(other, rounded) != type)
            type = block_of(type) > 1 && block_of(other) > 1 ? dtype::q8_0 : dtype::f32;
    number_formats made = all;
    made.weights = all.weights.of(type);
    return made;
}

TIFFIN_END
