// Stored weights in registers: what a block of a number format looks like within a panel.
#pragma once

#include <tiffin/backend/simd/lanes.hpp>
#include <tiffin/format/any_format.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

TIFFIN_BEGIN

namespace simd_detail {

// One block of a format for all outputs of a panel: Format::block inputs of Registers registers. It takes
// the bytes of as many blocks as there are outputs, in an order that suits the registers.
//   put(block, column, unit) puts the block of one output in its place;
//   each(unit, visit) calls visit(weights) with the registers of one input after the other.
template <class Arch, codec Format, std::size_t Registers>
struct unit {
    static constexpr std::size_t numbers = Registers * width<Arch>;
    using storage = typename Format::storage;

    static void put(const storage& block, std::size_t column, std::byte* to) noexcept {
        std::memcpy(to + column * sizeof block, &block, sizeof block);
    }
    template <class Visit>
    [[gnu::always_inline]] static void each(const std::byte* from, const Visit& visit) noexcept {
        lanes<Arch> weights[Registers];
        if constexpr (Format::block == 1) {
            const auto* const at = reinterpret_cast<const storage*>(from);
            for (std::size_t r = 0; r < Registers; ++r)
                weights[r] = load<Format, Arch>(at + r * width<Arch>, width<Arch>);
            visit(weights);
        } else {
            // Any format of blocks: decoded as a whole.
            alignas(64) std::array<float, Format::block * numbers> decoded;
            std::array<float, Format::block> one;
            for (std::size_t c = 0; c < numbers; ++c) {
                storage block;
                std::memcpy(&block, from + c * sizeof block, sizeof block);
                Format::decode(block, one.data());
                for (std::size_t k = 0; k < Format::block; ++k) decoded[k * numbers + c] = one[k];
            }
            for (std::size_t k = 0; k < Format::block; ++k) {
                for (std::size_t r = 0; r < Registers; ++r)
                    weights[r] = lanes<Arch>::load_aligned(decoded.data() + k * numbers + r * width<Arch>);
                visit(weights);
            }
        }
    }
};

// The scales of all outputs, then the bytes of all outputs for one input after the other.
template <class Arch, std::size_t Registers>
struct unit<Arch, q8_0, Registers> {
    static constexpr std::size_t numbers = Registers * width<Arch>;
    using storage = q8_0::storage;

    static void put(const storage& block, std::size_t column, std::byte* to) noexcept {
        std::memcpy(to + column * sizeof block.scale, &block.scale, sizeof block.scale);
        for (std::size_t k = 0; k < q8_0::block; ++k)
            std::memcpy(to + numbers * sizeof block.scale + k * numbers + column, &block.values[k], 1);
    }
    template <class Visit>
    [[gnu::always_inline]] static void each(const std::byte* from, const Visit& visit) noexcept {
        lanes<Arch> scale[Registers];
        for (std::size_t r = 0; r < Registers; ++r)
            scale[r] =
                load<f16, Arch>(reinterpret_cast<const std::uint16_t*>(from) + r * width<Arch>, width<Arch>);
        const auto* at = reinterpret_cast<const std::int8_t*>(from + numbers * sizeof(std::uint16_t));
        for (std::size_t k = 0; k < q8_0::block; ++k, at += numbers) {
            lanes<Arch> weights[Registers];
            for (std::size_t r = 0; r < Registers; ++r)
                weights[r] = scale[r] * widen<Arch>(at + r * width<Arch>);
            visit(weights);
        }
    }
};

// The scales of all outputs, then the pairs of all outputs, numbers k and k + 16 in row k.
template <class Arch, std::size_t Registers>
struct unit<Arch, q4_0, Registers> {
    static constexpr std::size_t numbers = Registers * width<Arch>;
    using storage = q4_0::storage;

    static void put(const storage& block, std::size_t column, std::byte* to) noexcept {
        std::memcpy(to + column * sizeof block.scale, &block.scale, sizeof block.scale);
        for (std::size_t k = 0; k < block.pairs.size(); ++k)
            std::memcpy(to + numbers * sizeof block.scale + k * numbers + column, &block.pairs[k], 1);
    }
    template <class Visit>
    [[gnu::always_inline]] static void each(const std::byte* from, const Visit& visit) noexcept {
        lanes<Arch> scale[Registers];
        for (std::size_t r = 0; r < Registers; ++r)
            scale[r] =
                load<f16, Arch>(reinterpret_cast<const std::uint16_t*>(from) + r * width<Arch>, width<Arch>);
        const auto* const pairs =
            reinterpret_cast<const std::uint8_t*>(from + numbers * sizeof(std::uint16_t));
        half<0>(pairs, scale, visit);
        half<4>(pairs, scale, visit);
    }

private:
    template <int Shift, class Visit>
    [[gnu::always_inline]] static void half(const std::uint8_t* at, const lanes<Arch>* scale,
                                            const Visit& visit) noexcept {
        for (std::size_t k = 0; k < q4_0::block / 2; ++k, at += numbers) {
            lanes<Arch> weights[Registers];
            for (std::size_t r = 0; r < Registers; ++r)
                weights[r] = scale[r] * widen_nibbles<Arch, Shift>(at + r * width<Arch>);
            visit(weights);
        }
    }
};

// A register of a row of blocks, from number `first` on; width<Arch> numbers of one or more blocks.
template <codec Format, class Arch>
lanes<Arch> load_row(const typename Format::storage* row, std::size_t first, std::size_t count) noexcept {
    if constexpr (Format::block == 1) {
        return load<Format, Arch>(row + first, count);
    } else {
        const auto& block = row[first / Format::block];
        const std::size_t inside = first % Format::block;
        if constexpr (std::same_as<Format, q8_0>) {
            return lanes<Arch>(f16_to_f32(block.scale)) * widen<Arch>(block.values.data() + inside);
        } else if constexpr (std::same_as<Format, q4_0>) {
            const lanes<Arch> scale(f16_to_f32(block.scale));
            const std::uint8_t* const pairs = block.pairs.data() + inside % 16;
            return scale * (inside < 16 ? widen_nibbles<Arch, 0>(pairs) : widen_nibbles<Arch, 4>(pairs));
        } else {
            alignas(64) float part[width<Arch>] = {};
            std::array<float, Format::block> numbers;
            for (std::size_t done = 0; done < count;) {
                const std::size_t from = (first + done) % Format::block;
                Format::decode(row[(first + done) / Format::block], numbers.data());
                for (std::size_t i = from; i < Format::block && done < count; ++i) part[done++] = numbers[i];
            }
            return lanes<Arch>::load_aligned(part);
        }
    }
}

}  // namespace simd_detail

TIFFIN_END
