// The tile registers of AMX, and their emulation in plain C++ for machines without them.
#pragma once

#include <tiffin/config.hpp>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

TIFFIN_BEGIN

namespace simd_detail {

// Most rows of a tile, and most bytes of a row.
inline constexpr std::size_t amx_rows = 16, amx_row_bytes = 64;

// The shapes of the tiles, as the instruction ldtilecfg reads them.
struct alignas(64) amx_shapes {
    std::uint8_t palette = 1, start_row = 0;
    std::array<std::uint8_t, 14> reserved{};
    std::array<std::uint16_t, 16> row_bytes{};
    std::array<std::uint8_t, 16> rows{};

    constexpr void set(std::size_t tile, std::size_t count, std::size_t bytes) {
        rows[tile] = static_cast<std::uint8_t>(count);
        row_bytes[tile] = static_cast<std::uint16_t>(bytes);
    }
};

// The operations of the kernels on tile registers 0 to 7, whose shapes are configured before:
//   zero<Tile>(); load<Tile>(from, stride), store<Tile>(to, stride)   rows `stride` bytes apart;
//   multiply_bf16<C, A, B>()    C += A B, rows of A and columns of B (4 bytes wide) as bf16 pairs: the first elements
//                               of all pairs are summed from 0 by fused multiply-adds, the second ones likewise,
//                               then both sums are added to each other and to C. Subnormals count as 0;
//   multiply_bytes<C, A, B>()   C += A B, groups of four signed bytes; exact.
struct emulated_amx_unit {
    explicit emulated_amx_unit(const amx_shapes& shapes) noexcept : shapes_(shapes) {}

    template <std::size_t Tile>
    void zero() noexcept {
        tiles_[Tile] = {};
    }
    template <std::size_t Tile>
    void load(const void* from, std::size_t stride) noexcept {
        for (std::size_t i = 0; i < shapes_.rows[Tile]; ++i)
            std::memcpy(&tiles_[Tile][i], static_cast<const std::byte*>(from) + i * stride,
                        shapes_.row_bytes[Tile]);
    }
    template <std::size_t Tile>
    void store(void* to, std::size_t stride) const noexcept {
        for (std::size_t i = 0; i < shapes_.rows[Tile]; ++i)
            std::memcpy(static_cast<std::byte*>(to) + i * stride, &tiles_[Tile][i], shapes_.row_bytes[Tile]);
    }
    template <std::size_t C, std::size_t A, std::size_t B>
    void multiply_bf16() noexcept {
        const auto widened = [](std::uint32_t pair, int which) {
            return flushed(std::bit_cast<float>(which == 0 ? pair << 16 : pair & 0xFFFF0000u));
        };
        each_element<C, A>([&](std::size_t m, std::size_t n, std::size_t depth) {
            float sums[2] = {0, 0};
            for (std::size_t k = 0; k < depth; ++k)
                for (int i = 0; i < 2; ++i)
                    sums[i] =
                        flushed(std::fma(widened(tiles_[A][m][k], i), widened(tiles_[B][k][n], i), sums[i]));
            const float before = flushed(std::bit_cast<float>(tiles_[C][m][n]));
            tiles_[C][m][n] = std::bit_cast<std::uint32_t>(flushed(before + flushed(sums[0] + sums[1])));
        });
    }
    template <std::size_t C, std::size_t A, std::size_t B>
    void multiply_bytes() noexcept {
        each_element<C, A>([&](std::size_t m, std::size_t n, std::size_t depth) {
            for (std::size_t k = 0; k < depth; ++k)
                for (int bit = 0; bit < 32; bit += 8)
                    tiles_[C][m][n] +=
                        static_cast<std::uint32_t>(int{static_cast<std::int8_t>(tiles_[A][m][k] >> bit)} *
                                                   int{static_cast<std::int8_t>(tiles_[B][k][n] >> bit)});
        });
    }

private:
    using row = std::array<std::uint32_t, amx_row_bytes / 4>;

    static float flushed(float v) noexcept {
        return std::fabs(v) < std::numeric_limits<float>::min() ? std::copysign(0.0f, v) : v;
    }
    template <std::size_t C, std::size_t A, class Visit>
    void each_element(const Visit& visit) const noexcept {
        for (std::size_t m = 0; m < shapes_.rows[C]; ++m)
            for (std::size_t n = 0; n < shapes_.row_bytes[C] / 4u; ++n)
                visit(m, n, std::size_t{shapes_.row_bytes[A]} / 4);
    }

    const amx_shapes& shapes_;
    std::array<std::array<row, amx_rows>, 8> tiles_{};
};

// `Bytes` with an emulated VNNI instruction, which every machine with tile registers has.
template <class Bytes>
struct emulated_fours : Bytes {
    using reg = typename Bytes::reg;
    static reg fours(reg to, reg unsigned_bytes, reg signed_bytes) noexcept {
        std::array<std::int32_t, sizeof to / 4> sums;
        std::array<std::uint8_t, sizeof to> a;
        std::array<std::int8_t, sizeof to> b;
        std::memcpy(sums.data(), &to, sizeof to);
        std::memcpy(a.data(), &unsigned_bytes, sizeof to);
        std::memcpy(b.data(), &signed_bytes, sizeof to);
        for (std::size_t i = 0; i < sizeof to; ++i) sums[i / 4] += int{a[i]} * int{b[i]};
        std::memcpy(&to, sums.data(), sizeof to);
        return to;
    }
};

#if TIFFIN_AMX_INSTRUCTIONS
// Inline assembly: g++'s intrinsics take a tile index only as a literal.
struct amx_unit {
    explicit amx_unit(const amx_shapes&) noexcept {}  // which amx_scope has set

    template <std::size_t Tile>
    void zero() noexcept {
        asm volatile("tilezero %%tmm%c0" : : "i"(Tile));
    }
    template <std::size_t Tile>
    void load(const void* from, std::size_t stride) noexcept {
        asm volatile("{tileloadd (%0,%1,1), %%tmm%c2|tileloadd %%tmm%c2, [%0+%1*1]}"
                     :
                     : "r"(from), "r"(stride), "i"(Tile)
                     : "memory");
    }
    template <std::size_t Tile>
    void store(void* to, std::size_t stride) const noexcept {
        asm volatile("{tilestored %%tmm%c2, (%0,%1,1)|tilestored [%0+%1*1], %%tmm%c2}"
                     :
                     : "r"(to), "r"(stride), "i"(Tile)
                     : "memory");
    }
    template <std::size_t C, std::size_t A, std::size_t B>
    void multiply_bf16() noexcept {
        asm volatile("{tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0|tdpbf16ps %%tmm%c0, %%tmm%c1, %%tmm%c2}"
                     :
                     : "i"(C), "i"(A), "i"(B));
    }
    template <std::size_t C, std::size_t A, std::size_t B>
    void multiply_bytes() noexcept {
        asm volatile("{tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0|tdpbssd %%tmm%c0, %%tmm%c1, %%tmm%c2}"
                     :
                     : "i"(C), "i"(A), "i"(B));
    }
};

// Configures this thread's tiles; the destructor restores the previous shapes, as the calling engine may have
// configured its own once for good.
class amx_scope {
public:
    explicit amx_scope(const amx_shapes& shapes) noexcept {
        asm volatile("sttilecfg %0" : "=m"(before_));
        asm volatile("ldtilecfg %0" : : "m"(shapes));
    }
    ~amx_scope() { asm volatile("ldtilecfg %0" : : "m"(before_)); }
    amx_scope(const amx_scope&) = delete;
    amx_scope& operator=(const amx_scope&) = delete;

private:
    amx_shapes before_;
};
#else
struct amx_scope {
    explicit amx_scope(const amx_shapes&) noexcept {}
};
using amx_unit = emulated_amx_unit;
#endif

}  // namespace simd_detail

TIFFIN_END
