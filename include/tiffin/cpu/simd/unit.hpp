// The layout of a number format's block within a panel, and its decoding to registers.
#pragma once

#include <tiffin/cpu/simd/lanes.hpp>
#include <tiffin/format/any_format.hpp>
#include <tiffin/format/concepts.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

TIFFIN_BEGIN

namespace simd_detail {

// One block of a format for all outputs of a panel: Format::block inputs of Registers registers. It has the size of
// one block per output, reordered for loads of whole registers.
//   put(block, column, unit) stores the block of one output;
//   each(unit, visit) calls visit(weights) for each input, with its registers.
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
            TIFFIN_UNROLL(24)
            for (std::size_t r = 0; r < Registers; ++r)
                weights[r] = load<Format, Arch>(at + r * width<Arch>, width<Arch>);
            visit(weights);
        } else {
            // A block format without a specialisation: decoded as a whole.
            alignas(64) std::array<float, Format::block * numbers> decoded;
            std::array<float, Format::block> one;
            for (std::size_t c = 0; c < numbers; ++c) {
                storage block;
                std::memcpy(&block, from + c * sizeof block, sizeof block);
                Format::decode(block, one.data());
                for (std::size_t k = 0; k < Format::block; ++k) decoded[k * numbers + c] = one[k];
            }
            for (std::size_t k = 0; k < Format::block; ++k) {
                TIFFIN_UNROLL(24)
                for (std::size_t r = 0; r < Registers; ++r)
                    weights[r] = lanes<Arch>::load_aligned(decoded.data() + k * numbers + r * width<Arch>);
                visit(weights);
            }
        }
    }
};

// Stores the f16 scales (and minima) of one output's block among those of all, one kind after the other.
template <stored_format Format, std::size_t Numbers>
void put_scales(const typename Format::storage& block, std::size_t column, std::byte* to) noexcept {
    const auto scales = Format::scales(block);
    for (std::size_t i = 0; i < scales.size(); ++i)
        std::memcpy(to + (i * Numbers + column) * sizeof scales[0], &scales[i], sizeof scales[0]);
}
// Register r of one kind of scale.
template <class Arch, std::size_t Numbers, std::size_t Which>
[[gnu::always_inline]] inline lanes<Arch> panel_scale(const std::byte* from, std::size_t r) noexcept {
    return load_all<f16, Arch>(reinterpret_cast<const std::uint16_t*>(from) + Which * Numbers +
                               r * width<Arch>);
}

// A block of one or two f16 scales and bytes: the scales of all outputs, one kind after the other, then row by row
// byte k of all outputs.
template <class Arch, codec Format, std::size_t Registers>
struct scaled_unit {
    static constexpr std::size_t numbers = Registers * width<Arch>;
    static constexpr std::size_t scale_bytes = sizeof(Format::scales({}));
    using storage = typename Format::storage;

    static void put(const storage& block, std::size_t column, std::byte* to) noexcept {
        put_scales<Format, numbers>(block, column, to);
        const auto* const bytes = reinterpret_cast<const std::byte*>(&block);
        for (std::size_t k = scale_bytes; k < sizeof block; ++k) to[k * numbers + column] = bytes[k];
    }

protected:
    // Which: 0 for the scales, 1 for the minima.
    template <std::size_t Which = 0>
    [[gnu::always_inline]] static void load_scales(const std::byte* from, lanes<Arch>* scale) noexcept {
        TIFFIN_UNROLL(24)
        for (std::size_t r = 0; r < Registers; ++r) scale[r] = panel_scale<Arch, numbers, Which>(from, r);
    }
    // Calls visit(weights) for each of `rows` rows, a register being weight(r, bytes).
    template <class Byte, class Weight, class Visit>
    [[gnu::always_inline]] static void each_row(const std::byte* from, std::size_t rows, const Weight& weight,
                                                const Visit& visit) noexcept {
        const auto* at = reinterpret_cast<const Byte*>(from + numbers * scale_bytes);
        for (std::size_t k = 0; k < rows; ++k, at += numbers) {
            lanes<Arch> weights[Registers];
            TIFFIN_UNROLL(24)
            for (std::size_t r = 0; r < Registers; ++r) weights[r] = weight(r, at + r * width<Arch>);
            visit(weights);
        }
    }
};

template <class Arch, std::size_t Registers>
struct unit<Arch, q8_0, Registers> : scaled_unit<Arch, q8_0, Registers> {
    template <class Visit>
    [[gnu::always_inline]] static void each(const std::byte* from, const Visit& visit) noexcept {
        lanes<Arch> scale[Registers];
        unit::load_scales(from, scale);
        unit::template each_row<std::int8_t>(
            from, q8_0::block,
            [&](std::size_t r, const std::int8_t* at) { return scale[r] * widen<Arch>(at); }, visit);
    }
};

// Row k holds inputs k and k + 16.
template <class Arch, std::size_t Registers>
struct unit<Arch, q4_0, Registers> : scaled_unit<Arch, q4_0, Registers> {
    template <class Visit>
    [[gnu::always_inline]] static void each(const std::byte* from, const Visit& visit) noexcept {
        lanes<Arch> scale[Registers];
        unit::load_scales(from, scale);
        const auto half = [&]<int Shift>(std::integral_constant<int, Shift>) __attribute__((always_inline)) {
            unit::template each_row<std::uint8_t>(
                from, q4_0::block / 2,
                [&](std::size_t r, const std::uint8_t* at) {
                    return scale[r] * widen_nibbles<Arch, Shift, 8>(at);
                },
                visit);
        };
        half(std::integral_constant<int, 0>{});
        half(std::integral_constant<int, 4>{});
    }
};

// The same plus a minimum. Scale and code are so short that their product is exact: one rounding.
template <class Arch, std::size_t Registers>
struct unit<Arch, q4_1, Registers> : scaled_unit<Arch, q4_1, Registers> {
    template <class Visit>
    [[gnu::always_inline]] static void each(const std::byte* from, const Visit& visit) noexcept {
        lanes<Arch> scale[Registers], least[Registers];
        unit::load_scales(from, scale);
        unit::template load_scales<1>(from, least);
        const auto half = [&]<int Shift>(std::integral_constant<int, Shift>) __attribute__((always_inline)) {
            unit::template each_row<std::uint8_t>(
                from, q4_1::block / 2,
                [&](std::size_t r, const std::uint8_t* at) {
                    return multiply_add<Arch>(scale[r], widen_nibbles<Arch, Shift, 0>(at), least[r]);
                },
                visit);
        };
        half(std::integral_constant<int, 0>{});
        half(std::integral_constant<int, 4>{});
    }
};

// A block of a table row at any alignment: its scales are copied, its bytes need no alignment. of(inside) is the
// register of its values from `inside` on.
template <class Arch, codec Format>
class row_block_registers {
    using stored = typename Format::storage;

public:
    explicit row_block_registers(const std::byte* block) noexcept : block_(block) {
        scale_ = f16_at(offsetof(stored, scale));
        if constexpr (std::same_as<Format, q4_1>) least_ = f16_at(offsetof(stored, least));
    }
    [[nodiscard]] lanes<Arch> of(std::size_t inside) const noexcept {
        if constexpr (std::same_as<Format, q8_0>) {
            const std::byte* const values = block_ + offsetof(stored, values) + inside;
            return scale_ * widen<Arch>(reinterpret_cast<const std::int8_t*>(values));
        } else {
            constexpr int bias = std::same_as<Format, q4_0> ? 8 : 0;
            const auto* const pairs =
                reinterpret_cast<const std::uint8_t*>(block_ + offsetof(stored, pairs)) + inside % 16;
            const lanes<Arch> levels =
                inside < 16 ? widen_nibbles<Arch, 0, bias>(pairs) : widen_nibbles<Arch, 4, bias>(pairs);
            if constexpr (std::same_as<Format, q4_1>)
                return multiply_add<Arch>(scale_, levels, least_);
            else
                return scale_ * levels;
        }
    }

private:
    [[nodiscard]] lanes<Arch> f16_at(std::size_t offset) const noexcept {
        std::uint16_t bits;
        std::memcpy(&bits, block_ + offset, sizeof bits);
#if defined(__F16C__)
        return lanes<Arch>(_cvtsh_ss(bits));
#else
        return lanes<Arch>(f16_to_f32(bits));
#endif
    }

    const std::byte* block_;
    lanes<Arch> scale_, least_;
};

template <class Chosen, stored_format Format>
void decode_row(const std::byte* row, std::size_t first, std::size_t count, float* to) noexcept {
    using Arch = xsimd_arch<Chosen>;
    const auto* const stored = reinterpret_cast<const typename Format::storage*>(row);
    if constexpr (Format::block == 1 && codec<Format>) {
        for (std::size_t i = 0; i < count; i += width<Arch>)
            load<Format, Arch>(stored + first + i, std::min(width<Arch>, count - i)).store_aligned(to + i);
    } else if constexpr (Format::block == 1) {
        for (std::size_t i = 0; i < count; ++i) Format::decode(stored[first + i], to + i);
    } else {
        for (std::size_t i = 0; i < count;) {
            std::size_t inside = (first + i) % Format::block;
            const typename Format::storage* const block = stored + (first + i) / Format::block;
            if constexpr (std::same_as<Format, q8_0> || std::same_as<Format, q4_0> ||
                          std::same_as<Format, q4_1>) {
                const row_block_registers<Arch, Format> registers(reinterpret_cast<const std::byte*>(block));
                for (; inside < Format::block && i < count; inside += width<Arch>, i += width<Arch>)
                    registers.of(inside).store_aligned(to + i);
            } else if (inside == 0 && count - i >= Format::block) {
                Format::decode(stored_at(block, 0), to + i);
                i += Format::block;
            } else {
                std::array<float, Format::block> numbers;
                Format::decode(stored_at(block, 0), numbers.data());
                for (; inside < Format::block && i < count; ++inside) to[i++] = numbers[inside];
            }
        }
    }
}

}  // namespace simd_detail

TIFFIN_END
