// The kernels for panels of weights in one number format: packing, unpacking, multiplying.
#pragma once

#include <tiffin/cpu/simd/amx_product.hpp>
#include <tiffin/cpu/simd/backend.hpp>
#include <tiffin/cpu/simd/panel_product.hpp>
#include <tiffin/executor/executor.hpp>
#include <tiffin/format/concepts.hpp>
#include <tiffin/format/paired.hpp>
#include <tiffin/format/repacked.hpp>
#include <tiffin/tensor.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>

TIFFIN_BEGIN

namespace simd_detail {

// A part of a weight (outputs, inputs): `columns` outputs from `first` on, `depth` inputs from k0 on.
struct weight_part {
    const tensor_view& weight;
    std::size_t outputs, inputs;
    std::size_t first, columns;
    std::size_t k0, depth;
};

// Stores a part in a panel's block from column `column` on. Outputs and inputs beyond the last are zeros.
// Precondition: a weight kept in a format without encode() is given in that format.
template <class Product, stored_format Format>
void pack(const weight_part& part, std::size_t column, std::byte* to) noexcept {
    typename Format::storage block{};
    const bool scaled = part.weight.scales.any();
    const bool as_stored = is_stored_as<Format>(part.weight.type) && !scaled;
    for (std::size_t j = 0; j < part.columns; ++j) {
        const std::size_t row = (part.first + j) * part.inputs + part.k0;
        const std::size_t given =
            part.first + j < part.outputs ? std::min(part.depth, part.inputs - part.k0) : 0;
        std::array<float, depth_block> numbers{};
        bool widened = false;
        for (std::size_t k = 0; k < part.depth; k += Format::block) {
            if (as_stored && k < given) {
                std::memcpy(&block,
                            static_cast<const std::byte*>(part.weight.data) +
                                (row + k) / Format::block * sizeof block,
                            sizeof block);
            } else if constexpr (!codec<Format>) {
                block = {};
            } else if (k >= given || scaled ||
                       !repack<Format>(part.weight.data, part.weight.type, row + k, block)) {
                if (!std::exchange(widened, true)) read_as_f32(part.weight, row, given, numbers.data());
                Format::encode(numbers.data() + k, block);
            }
            Product::put(block, k, column + j, to);
        }
    }
}

// Tile functions for 1, 2, ... tokens.
struct tile_set {
    const tile_function* of = nullptr;  // of n tokens: of[n - 1]
    std::size_t tokens = 0;             // of the largest
    std::size_t rows = 1;               // read together; all tiles but the last have a multiple of it
    void (*around)(const task_ref&, std::size_t) noexcept = nullptr;  // null: the task is called as it is
};

// Activations in the tiles' layout: depth block by depth block, one row per token.
struct rounding {
    void (*round)(const float*, std::size_t, std::size_t,
                  std::byte*) noexcept = nullptr;  // null: they stay f32
    std::size_t block = 1;                         // inputs that are rounded together
    std::size_t row_bytes = 0;
    std::size_t spare_rows = 0;  // zero rows after the last, which tiles read

    [[nodiscard]] std::size_t bytes(std::size_t tokens, std::size_t features) const noexcept {
        return ((features + depth_block - 1) / depth_block * tokens + spare_rows) * row_bytes;
    }
    // Rounds features [first, first + count) of a token, all in one depth block, from the f32 row of that depth
    // block.
    void operator()(const float* row, std::size_t tokens, std::size_t token, std::size_t first,
                    std::size_t count, std::byte* to) const noexcept {
        features(row + first % depth_block, tokens, token, first, count, to);
    }
    // The same; `numbers` begins at feature `first`.
    void features(const float* numbers, std::size_t tokens, std::size_t token, std::size_t first,
                  std::size_t count, std::byte* to) const noexcept {
        round(numbers, first % depth_block, count, row(to, tokens, token, first));
    }
    // A token's row of the depth block that has feature `first`.
    [[nodiscard]] std::byte* row(std::byte* of, std::size_t tokens, std::size_t token,
                                 std::size_t first) const noexcept {
        return of + (first / depth_block * tokens + token) * row_bytes;
    }
};

// Registers of a panel: two of one weight, or one of each of two.
inline constexpr std::size_t panel_registers = 2;

}  // namespace simd_detail

struct weight_kernels {
    using rounding = simd_detail::rounding;
    using tile_set = simd_detail::tile_set;

    std::size_t lanes;        // floats of a register
    std::size_t block;        // inputs stored together
    std::size_t block_bytes;  // of one output
    std::size_t step;         // inputs are packed in multiples of this
    rounding rows;            // of activations
    tile_set few, many;
    std::size_t many_from;  // tokens
    tile_set side_by_side;  // of panels_at_once panels; of 0 tokens where panels are taken one at a time
    void (*unpack)(const std::byte*, std::size_t,
                   std::byte*) noexcept;  // for `many`; null: they take what is packed
    void (*pack)(const simd_detail::weight_part&, std::size_t, std::byte*) noexcept;

    [[nodiscard]] std::size_t bytes(std::size_t numbers) const noexcept {
        return numbers / block * block_bytes;
    }
    [[nodiscard]] const tile_set& tiles_for(std::size_t tokens) const noexcept {
        return tokens < many_from ? few : many;
    }
};

namespace simd_detail {

template <class Product>
inline constexpr auto tiles = []<std::size_t... T>(std::index_sequence<T...>) {
    return std::array<tile_function, sizeof...(T)>{{Product::template tile<T + 1, 1>...}};
}
(std::make_index_sequence<Product::tile_tokens>{});
template <class Product>
inline constexpr auto many_tiles = []<std::size_t... T>(std::index_sequence<T...>) {
    return std::array<tile_function, sizeof...(T)>{{Product::template many_tile<T + 1>...}};
}
(std::make_index_sequence<Product::many_tile_tokens>{});
template <class Product, std::size_t Tokens>
inline constexpr auto side_by_side = []<std::size_t... T>(std::index_sequence<T...>) {
    return std::array<tile_function, sizeof...(T)>{{Product::template tile<T + 1, panels_at_once>...}};
}
(std::make_index_sequence<Tokens>{});

template <class Arch, class Product, stored_format Weights>
inline constexpr weight_kernels kernels_of = [] {
    static_assert(96 % Product::tile_tokens == 0 && 96 % Product::many_tile_tokens == 0);
    weight_kernels made{.lanes = width<Arch>,
                        .block = Weights::block,
                        .block_bytes = Product::block_bytes,
                        .step = Product::step,
                        .rows = {.row_bytes = Product::row_bytes},
                        .few = {.of = tiles<Product>.data(), .tokens = Product::tile_tokens},
                        .many = {},
                        .many_from = Product::many_from,
                        .side_by_side = {},
                        .unpack = nullptr,
                        .pack = &pack<Product, Weights>};
    if constexpr (Product::many_from != never) {
        made.many.of = many_tiles<Product>.data();
        made.many.tokens = Product::many_tile_tokens;
        if constexpr (requires { Product::many_rows; }) {
            made.many.rows = Product::many_rows;
            made.rows.spare_rows = Product::many_rows - 1;
        }
        if constexpr (requires { &Product::around; }) made.many.around = &Product::around;
        if constexpr (requires { Product::unpack(nullptr, 0, nullptr); }) made.unpack = &Product::unpack;
    }
    // Formats of at least one byte per weight.
    constexpr std::size_t few = std::min(few_tokens<Weights>, Product::tile_tokens);
    if constexpr (sizeof(typename Weights::storage) >= Weights::block && Product::many_from > few)
        made.side_by_side = {.of = side_by_side<Product, few>.data(), .tokens = few};
    if constexpr (requires { Product::round(nullptr, 0, 0, nullptr); }) {
        made.rows.round = &Product::round;
        made.rows.block = Product::rounded_block;
    }
    return made;
}();

// One instance per program, which the library tiffin::compiled may have (see compiled.hpp).
template <class Arch, stored_format Weights, codec Activations>
[[gnu::noinline]] const weight_kernels& kernels() noexcept {
    using product = panel_product<Arch, Weights, Activations, panel_registers>;
    if constexpr (requires { typename amx_product<Arch, Weights, Activations, panel_registers>::panel; }) {
        using with_amx = amx_product<Arch, Weights, Activations, panel_registers>;
        return amx_permitted() ? kernels_of<Arch, with_amx, Weights> : kernels_of<Arch, product, Weights>;
    } else {
        return kernels_of<Arch, product, Weights>;
    }
}

// The kernels for the formats, or for those in `formats` where they are chosen at run time.
template <class Chosen, format_policy Weights, activation_format Activations>
const weight_kernels& kernels_for([[maybe_unused]] const number_formats& formats) noexcept {
    using Arch = xsimd_arch<Chosen>;
    const auto of = [&](auto weights) -> const weight_kernels& {
        using format = decltype(weights);
        if constexpr (!codec<format>)
            return kernels<Arch, format, q8_0>();
        else if constexpr (codec<Activations>)
            return kernels<Arch, format, Activations>();
        else if (formats.activations.type == dtype::f32)
            return kernels<Arch, format, f32>();
        else
            return kernels<Arch, format, decltype(pair_of<Arch, format>())>();
    };
    if constexpr (codec<Weights>)
        return of(Weights{});
    else
        return with_kept_format(formats.weights.type, of);
}

// With the compiled library these are linked, not instantiated.
#if defined(TIFFIN_COMPILED) && !defined(TIFFIN_COMPILED_KERNELS_HERE_)
#    define TIFFIN_COMPILED_KERNELS_(Format)                                                        \
        extern template const weight_kernels& kernels<xsimd::default_arch, Format, f32>() noexcept; \
        extern template const weight_kernels&                                                       \
        kernels<xsimd::default_arch, Format, decltype(pair_of<xsimd::default_arch, Format>())>() noexcept;
TIFFIN_COMPILED_KERNELS_(f32)
TIFFIN_COMPILED_KERNELS_(bf16)
TIFFIN_COMPILED_KERNELS_(f16)
TIFFIN_COMPILED_KERNELS_(q8_0)
TIFFIN_COMPILED_KERNELS_(q4_0)
TIFFIN_COMPILED_KERNELS_(q4_1)
#    undef TIFFIN_COMPILED_KERNELS_
#    define TIFFIN_COMPILED_KERNELS_(Format) \
        extern template const weight_kernels& kernels<xsimd::default_arch, Format, q8_0>() noexcept;
TIFFIN_COMPILED_KERNELS_(q5_0)
TIFFIN_COMPILED_KERNELS_(q4_k)
TIFFIN_COMPILED_KERNELS_(q5_k)
TIFFIN_COMPILED_KERNELS_(q6_k)
#    undef TIFFIN_COMPILED_KERNELS_
#endif

}  // namespace simd_detail

TIFFIN_END
