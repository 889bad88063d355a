// Number formats as values: the descriptions and functions through which code below a backend's name uses a format.
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

// Converts a tensor to Format, padded with zeros to `size` values.
// Precondition: `size` is a multiple of the format's block, and at least the tensor's elements.
template <codec Format>
void convert(const tensor_view& given, std::size_t size, std::byte* to) noexcept {
    using stored = typename Format::storage;
    const std::size_t count = given.shape.elements();
    const bool scaled = given.scales.any();
    if (is_stored_as<Format>(given.type) && size == count && !scaled) {
        std::memcpy(to, given.data, size / Format::block * sizeof(stored));
        return;
    }
    std::array<float, Format::block * std::max<std::size_t>(256 / Format::block, 1)> numbers;
    for (std::size_t i = 0; i < size; i += numbers.size()) {
        const std::size_t taken = std::min(numbers.size(), std::max(count, i) - i);
        read_as_f32(given, i, taken, numbers.data());
        std::fill(numbers.begin() + static_cast<std::ptrdiff_t>(taken), numbers.end(), 0.0f);
        for (std::size_t j = 0; j < std::min(numbers.size(), size - i); j += Format::block) {
            stored block;
            if (scaled || !repack<Format>(given.data, given.type, i + j, block))
                Format::encode(numbers.data() + j, block);
            std::memcpy(to, &block, sizeof block);
            to += sizeof block;
        }
    }
}

// Decodes values [first, first + count) of a table row, at any alignment, to f32, to aligned memory with room for
// whole registers.
using decode_row_function = void (*)(const std::byte* row, std::size_t first, std::size_t count,
                                     float* to) noexcept;

// The storage of table rows.
struct row_format {
    std::uint32_t block_bits = 0;  // a block is 2^block_bits values
    std::uint32_t block_bytes = sizeof(float);
    decode_row_function decode = nullptr;  // null: the rows are f32

    // The bytes of `numbers` values. Precondition: a multiple of the block.
    [[nodiscard]] constexpr std::size_t bytes(std::size_t numbers) const noexcept {
        return (numbers >> block_bits) * block_bytes;
    }
};

// One format. `convert` and `rows` are used for tables and vectors; packed weights and activations have a backend's kernels.
struct number_format {
    std::string_view name = "F32";
    std::size_t block = 1;
    float largest = f32::largest;
    dtype type = dtype::f32;
    bool is_given = true;        // whether tensors can be given in it: not in a codec without a dtype
    std::string_view refused{};  // the requested format, if values cannot be kept in it
    row_format rows{};
    void (*convert)(const tensor_view& given, std::size_t size,
                    std::byte* to) noexcept = &tiffin::convert<f32>;
    // Whether scales that accompany a table are kept; else its rows are converted.
    bool keeps_scales = false;
    // With kept_as_given: the format in which tensors given so are kept.
    number_format (*of)(dtype given) = nullptr;
};

// A backend's kernels for weights; its own type.
struct weight_kernels;

// The given tensors that a backend reads in place after prepare(), if they are in its own format and aligned. All
// others may be freed once prepare() has returned.
enum class in_place {
    nothing,
    tables,            // of ids: simd
    dense_and_tables,  // eigen
    everything,        // in whatever format, at any alignment: reference
};
// The formats of a backend, as prepare() uses them.
struct number_formats {
    number_format weights;
    number_format tables;
    number_format activations;
    bool any_table = false;  // tables are read in whatever format they have
    in_place reads = in_place::tables;
    // Where weights may be in memory that the host cannot read: copies the values of such a tensor to `memory`.
    status (*bring)(tensor_view& given, std::vector<std::byte>& memory, const std::string& name) = nullptr;
    // The kernels for these formats of weights and activations.
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

// The format in which a table of format `given` is kept.
inline number_format format_of_table(const number_formats& all, dtype given) noexcept {
    if (all.tables.of == nullptr) return all.tables;
    number_format made = all.tables.of(given);
    made.keeps_scales = true;
    return made;
}

// The format by which the kept format of a weight is chosen. Blocks times their scales are no longer multiples of what the
// blocks can hold; Q8_0 rounds them least.
inline dtype chosen_by(const tensor_view& weight) noexcept {
    return weight.scales.any() && block_of(weight.type) > 1 ? dtype::q8_0 : weight.type;
}
// The formats for weights that are kept together, from their chosen_by(). With kept_as_given: one format for all, theirs if they agree, else
// q8_0 (two block formats) or f32.
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
