// The tile registers of AMX: what the emulated ones compute, against the instructions' description and, on a machine
// that has them, against the instructions to the bit. The kernels' sums are those of cpu/activations, which is
// compiled for emulated registers too.
#include <tiffin/cpu/simd/amx.hpp>
#include <tiffin/cpu/simd/amx_permission.hpp>

#include "support/doctest.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>

namespace cpu_amx_test {
using namespace tiffin;
using simd_detail::amx_shapes;
using simd_detail::emulated_amx_unit;

namespace {

constexpr std::size_t row_words = simd_detail::amx_row_bytes / 4;
using tile = std::array<std::array<std::uint32_t, row_words>, simd_detail::amx_rows>;

// C (rows, columns) += A (rows, depth) B (depth, columns), in words.
constexpr amx_shapes shapes_of(std::size_t rows, std::size_t columns, std::size_t depth) {
    amx_shapes made;
    made.set(0, rows, columns * 4);
    made.set(1, rows, depth * 4);
    made.set(2, depth, columns * 4);
    return made;
}
constexpr amx_shapes all_shapes[] = {shapes_of(16, 16, 16), shapes_of(16, 16, 8), shapes_of(16, 8, 4),
                                     shapes_of(3, 5, 7), shapes_of(1, 1, 1)};

enum class numbers { bf16, bytes };

// Random words: any bytes, or pairs of bf16 of many magnitudes, subnormal ones and zeros among them.
tile random_tile(numbers kind, unsigned seed) {
    std::mt19937 random(seed);
    tile made;
    for (auto& row : made)
        for (auto& word : row) {
            word = static_cast<std::uint32_t>(random());
            if (kind == numbers::bf16) {
                const auto exponent = [&] {
                    return static_cast<std::uint32_t>(random() % 24 == 0 ? 0 : 112 + random() % 20);
                };
                word = (word & 0x807F807Fu) | exponent() << 23 | exponent() << 7;
            }
        }
    return made;
}
float low_half(std::uint32_t word) {
    return std::bit_cast<float>(word << 16);
}
float high_half(std::uint32_t word) {
    return std::bit_cast<float>(word & 0xFFFF0000u);
}

// What a unit makes of C += A B, where its rows lie in memory `row_words` apart.
template <class Unit>
tile product(const amx_shapes& shapes, numbers kind, const tile& c, const tile& a, const tile& b) {
    const simd_detail::amx_scope scope(shapes);
    Unit unit(shapes);
    unit.template load<0>(c.data(), sizeof c[0]);
    unit.template load<1>(a.data(), sizeof a[0]);
    unit.template load<2>(b.data(), sizeof b[0]);
    if (kind == numbers::bf16)
        unit.template multiply_bf16<0, 1, 2>();
    else
        unit.template multiply_bytes<0, 1, 2>();
    tile to = c;
    unit.template store<0>(to.data(), sizeof to[0]);
    return to;
}

}  // namespace

TEST_CASE("amx: signed bytes, exactly") {
    for (const amx_shapes& shapes : all_shapes) {
        const tile a = random_tile(numbers::bytes, 3), b = random_tile(numbers::bytes, 5);
        tile wanted = random_tile(numbers::bytes, 7);
        const tile got = product<emulated_amx_unit>(shapes, numbers::bytes, wanted, a, b);
        for (std::size_t m = 0; m < shapes.rows[0]; ++m)
            for (std::size_t n = 0; n < shapes.row_bytes[0] / 4u; ++n) {
                std::int64_t sum = static_cast<std::int32_t>(wanted[m][n]);
                for (std::size_t k = 0; k < shapes.rows[2]; ++k)
                    for (std::size_t i = 0; i < 4; ++i) {
                        std::int8_t left, right;
                        std::memcpy(&left, reinterpret_cast<const char*>(&a[m][k]) + i, 1);
                        std::memcpy(&right, reinterpret_cast<const char*>(&b[k][n]) + i, 1);
                        sum += std::int64_t{left} * right;
                    }
                wanted[m][n] = static_cast<std::uint32_t>(sum);
            }
        CHECK(got == wanted);  // beyond the shapes too: nothing is stored there
    }
}

TEST_CASE("amx: pairs of bf16, against double") {
    for (const amx_shapes& shapes : all_shapes) {
        const tile a = random_tile(numbers::bf16, 3), b = random_tile(numbers::bf16, 5);
        tile c{};
        for (std::size_t m = 0; m < simd_detail::amx_rows; ++m)
            for (std::size_t n = 0; n < row_words; ++n)
                c[m][n] = std::bit_cast<std::uint32_t>(
                    std::ldexp(static_cast<float>(m) - 7.5f, static_cast<int>(n) - 8));
        const tile got = product<emulated_amx_unit>(shapes, numbers::bf16, c, a, b);
        std::size_t beyond = 0;
        for (std::size_t m = 0; m < shapes.rows[0]; ++m)
            for (std::size_t n = 0; n < shapes.row_bytes[0] / 4u; ++n) {
                double sum = static_cast<double>(std::bit_cast<float>(c[m][n])), magnitude = std::fabs(sum);
                for (std::size_t k = 0; k < shapes.rows[2]; ++k)
                    for (const auto half : {low_half, high_half}) {
                        const double term =
                            static_cast<double>(half(a[m][k])) * static_cast<double>(half(b[k][n]));
                        sum += term;
                        magnitude += std::fabs(term);
                    }
                // A rounding for each pair and two more; subnormal numbers, of at most 2^-126, times at most 2^6.
                const double allowed =
                    magnitude * static_cast<double>(shapes.rows[2] + 2) * 0x1p-24 + 64 * 0x1p-120;
                beyond += !(std::fabs(static_cast<double>(std::bit_cast<float>(got[m][n])) - sum) <= allowed);
            }
        CHECK(beyond == 0);
    }
}

TEST_CASE("amx: the order in which pairs are added, and subnormal numbers") {
    constexpr amx_shapes shapes = shapes_of(1, 1, 3);
    const auto pair = [](float first, float second) {
        return std::bit_cast<std::uint32_t>(second) | std::bit_cast<std::uint32_t>(first) >> 16;
    };
    const auto of = [&](float c, const std::array<std::array<float, 2>, 3>& pairs) {
        tile a{}, b{}, to{};
        to[0][0] = std::bit_cast<std::uint32_t>(c);
        for (std::size_t k = 0; k < 3; ++k) {
            a[0][k] = pair(pairs[k][0], pairs[k][1]);
            b[k][0] = pair(1, 1);
        }
        return std::bit_cast<float>(product<emulated_amx_unit>(shapes, numbers::bf16, to, a, b)[0][0]);
    };
    // The first ones add up to 1 only if nothing comes between them; c would swallow them one by one.
    CHECK(of(0, {{{0x1p30f, 1}, {-0x1p30f, 0}, {1, 1}}}) == 3);
    CHECK(of(0x1p24f, {{{1, 0}, {1, 0}, {0, 0}}}) == 0x1p24f + 2);
    CHECK(of(0x1p24f, {{{1, 1}, {0, 0}, {0, 0}}}) == 0x1p24f + 2);
    CHECK(of(0x1p-127f, {{{0x1p-127f, 0}, {0, 0x1p-130f}, {0, 0}}}) == 0);
    CHECK(std::isnan(of(0, {{{INFINITY, 0}, {-INFINITY, 0}, {0, 0}}})));
}

TEST_CASE("amx: permission") {
    // Asking twice is asking once.
    const bool first = permit_amx();
    CHECK(permit_amx() == first);
    CHECK(amx_permitted() == first);
#if !TIFFIN_AMX_INSTRUCTIONS
    CHECK_FALSE(first);
#endif
}

TEST_CASE("amx: the instructions, to the bit, and the shapes that a thread had") {
    if (!TIFFIN_AMX_INSTRUCTIONS || !permit_amx()) {
        MESSAGE("skipped: compiled for no AMX, or the machine has none");
        return;
    }
    const simd_detail::amx_scope outer(all_shapes[0]);
    for (const amx_shapes& shapes : all_shapes)
        for (const numbers kind : {numbers::bf16, numbers::bytes})
            for (unsigned seed = 0; seed < 20; ++seed) {
                const tile a = random_tile(kind, seed), b = random_tile(kind, seed + 100),
                           c = random_tile(kind, seed + 200);
                CHECK(product<simd_detail::amx_unit>(shapes, kind, c, a, b) ==
                      product<emulated_amx_unit>(shapes, kind, c, a, b));
            }
    // In the outer scope's shapes again.
    simd_detail::amx_unit unit(all_shapes[0]);
    const tile given = random_tile(numbers::bytes, 1);
    tile back{};
    unit.load<2>(given.data(), sizeof given[0]);
    unit.store<2>(back.data(), sizeof back[0]);
    CHECK(back == given);
}

}  // namespace cpu_amx_test
