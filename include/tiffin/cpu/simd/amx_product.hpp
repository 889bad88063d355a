// Which products of panels use the tile registers of AMX, where the machine has them.
#pragma once

#include <tiffin/cpu/simd/amx_permission.hpp>
#include <tiffin/cpu/simd/amx_tile.hpp>
#include <tiffin/cpu/simd/panel_product.hpp>
#include <tiffin/executor/executor.hpp>
#include <tiffin/format/concepts.hpp>

#include <cstddef>
#include <type_traits>

TIFFIN_BEGIN

namespace simd_detail {

// A panel_product with AMX tiles; for few tokens it may use the tiles of the one that it extends. Empty without AMX.
template <class Arch, stored_format Weights, codec Activations, std::size_t Registers>
struct amx_product {};

template <const amx_shapes& Shapes>
void around_amx(const task_ref& work, std::size_t task) noexcept {
    const amx_scope scope(Shapes);
    work(task);
}

#if TIFFIN_AMX_INSTRUCTIONS || defined(TIFFIN_EMULATE_AMX)
// At every number of tokens, in tiles as large as the registers allow: the instruction adds in its own order, and a
// token's sums must not depend on the number of tokens.
template <class Arch, std::size_t Registers>
struct amx_product<Arch, bf16, bf16, Registers> : panel_product<Arch, bf16, bf16, Registers> {
    using panel = bf16_panel<Arch, Registers>;
    static constexpr std::size_t token_tiles = Registers == 2 ? 2 : 1;
    static constexpr std::size_t many_from = 1, many_rows = amx_rows,
                                 many_tile_tokens = token_tiles * amx_rows;
    static constexpr std::size_t step = amx_row_bytes / sizeof(bf16::storage);

    static constexpr std::size_t rounded_block = step;
    static void round(const float* from, std::size_t first, std::size_t count, std::byte* row) noexcept {
        round_to_bf16<step>(from, first, count, row);
    }
    template <std::size_t Tokens>
    static void many_tile(const std::byte* x, std::size_t depth, const std::byte* w, std::size_t, float* acc,
                          bool fresh, ahead next) noexcept {
        multiply_bf16_amx<amx_unit, Arch, Registers, (Tokens + amx_rows - 1) / amx_rows>(Tokens, x, depth, w,
                                                                                         acc, fresh, next);
    }
    static void around(const task_ref& work, std::size_t task) noexcept {
        around_amx<amx_bf16_tiles<Arch, Registers, token_tiles>::shapes>(work, task);
    }
};

// From one token more than the vector units' largest tile on; the sums are the same.
template <class Arch, quantised_format Weights, std::size_t Registers>
    requires(panel_product<Arch, Weights, q8_0, Registers>::panel::dot::fours)
struct amx_product<Arch, Weights, q8_0, Registers> : panel_product<Arch, Weights, q8_0, Registers> {
    using vector_product = panel_product<Arch, Weights, q8_0, Registers>;
    using levels = signed_integer_panel<Arch, Weights, Registers>;
    static constexpr std::size_t many_from = vector_product::tile_tokens + 1;
    static constexpr std::size_t many_rows = amx_rows, many_tile_tokens = amx_rows;

    static void unpack(const std::byte* from, std::size_t depth, std::byte* to) noexcept {
        levels::unpack(from, depth, to);
    }
    template <std::size_t Tokens>
    static void many_tile(const std::byte* x, std::size_t depth, const std::byte* w, std::size_t, float* acc,
                          bool fresh, ahead next) noexcept {
        multiply_integer_amx<amx_unit, levels, Registers, Tokens == amx_rows>(Tokens, x, depth, w, acc, fresh,
                                                                              next);
    }
    static void around(const task_ref& work, std::size_t task) noexcept {
        around_amx<amx_integer_shapes<levels>>(work, task);
    }
};
#endif

}  // namespace simd_detail

TIFFIN_END
