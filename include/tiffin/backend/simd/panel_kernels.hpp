// What is done with panels of weights of one number format: packing, widening, multiplying.
#pragma once

#include <tiffin/backend/simd/tile.hpp>
#include <tiffin/tensor.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstring>

TIFFIN_BEGIN

namespace simd_detail {

// A part of a weight (outputs, inputs): `columns` outputs from `first` on, `depth` inputs from k0 on.
struct weight_part {
    const tensor_view& weight;
    std::size_t outputs, inputs;
    std::size_t first, columns;
    std::size_t k0, depth;
};

// Puts a part into a panel's block from column `column` on. Outputs beyond the last are zeros.
template <class Arch, codec Format, std::size_t Registers>
void pack(const weight_part& part, std::size_t column, std::byte* to) noexcept {
    using storage = typename Format::storage;
    constexpr std::size_t unit_bytes = Registers * width<Arch> * sizeof(storage);
    std::array<float, Format::block> numbers{};
    for (std::size_t j = 0; j < part.columns; ++j) {
        const std::size_t row = (part.first + j) * part.inputs + part.k0;
        std::byte* at = to;
        for (std::size_t k = 0; k < part.depth; k += Format::block, at += unit_bytes) {
            storage block{};
            if (part.first + j >= part.outputs) {
                Format::encode(numbers.data(), block);
            } else if (is_stored_as<Format>(part.weight.type)) {
                std::memcpy(&block,
                            static_cast<const std::byte*>(part.weight.data) +
                                (row + k) / Format::block * sizeof block,
                            sizeof block);
            } else {
                for (std::size_t i = 0; i < Format::block; ++i)
                    numbers[i] = load_as_f32(part.weight.data, part.weight.type, row + k + i);
                Format::encode(numbers.data(), block);
                numbers = {};
            }
            unit<Arch, Format, Registers>::put(block, column + j, at);
        }
    }
}

struct panel_kernels {
    std::size_t block;        // inputs stored together
    std::size_t block_bytes;  // of one output
    std::size_t unpack_from;  // tiles from which on a block of weights is widened once for all of them
    const tile_function* tiles;
    void (*unpack)(const std::byte*, std::size_t, float*) noexcept;
    void (*pack)(const weight_part&, std::size_t, std::byte*) noexcept;

    [[nodiscard]] std::size_t bytes(std::size_t numbers) const noexcept {
        return numbers / block * block_bytes;
    }
};

// Widening costs a pass over the block in the cache; not widening costs its instructions again each tile.
template <class Arch, codec Format, std::size_t Registers>
inline constexpr panel_kernels kernels_of{Format::block,
                                          sizeof(typename Format::storage),
                                          std::same_as<Format, f32> ? ~std::size_t{0} : 3,
                                          tiles<Arch, Format, Registers>.data(),
                                          &unpack<Arch, Format, Registers>,
                                          &pack<Arch, Format, Registers>};

// The kernels of a format, or those that `type` names where it is any_format.
template <class Arch, format_policy Format, std::size_t Registers>
const panel_kernels& kernels_for([[maybe_unused]] dtype type) noexcept {
    if constexpr (codec<Format>)
        return kernels_of<Arch, Format, Registers>;
    else
        return *with_format(type, [](auto format) { return &kernels_of<Arch, decltype(format), Registers>; });
}

}  // namespace simd_detail

TIFFIN_END
