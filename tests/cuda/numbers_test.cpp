// What kernels compute with, on the host: numbers in every format, formulas over several of them, quotients.
#include <tiffin/activation/gelu_tanh.hpp>
#include <tiffin/activation/silu.hpp>
#include <tiffin/cuda.hpp>
#include <tiffin/format/f16.hpp>

#include "support/doctest.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

namespace cuda_numbers_test {

namespace {

namespace on_device = tiffin::cuda_detail;

// The same number, or both none.
bool same(float a, float b) {
    return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
           (std::isnan(a) && std::isnan(b));
}

// Loads and stores `count` of N numbers `off` numbers behind a border of 16 bytes, between others that stay.
template <class Format, std::size_t N>
void check_places(const std::vector<typename Format::storage>& numbers) {
    using storage = typename Format::storage;
    alignas(16) std::array<storage, 2 * N + 16> memory, before;
    for (std::size_t off = 0; off < 16 / sizeof(storage); ++off)
        for (std::size_t count = 1; count <= N; ++count) {
            CAPTURE(off);
            CAPTURE(count);
            for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = numbers[i * 37 % numbers.size()];
            before = memory;
            const auto loaded = on_device::load<Format, N>(memory.data() + off, count);
            for (std::size_t i = 0; i < N; ++i) {
                float wanted = 0;
                if (i < count) Format::decode(memory[off + i], &wanted);
                CHECK(same(loaded.lane[i], wanted));
            }
            on_device::store<Format, N>(on_device::pack<N>(3.0f), memory.data() + off, count);
            const float three = 3;
            storage stored;
            Format::encode(&three, stored);
            for (std::size_t i = off; i < off + count; ++i) before[i] = stored;
            CHECK(memory == before);
        }
}

}  // namespace

TEST_CASE_TEMPLATE("numbers of 16 bits go through a pack unchanged", Format, tiffin::bf16, tiffin::f16) {
    std::vector<std::uint16_t> all(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    std::size_t changed = 0;
    for (std::size_t i = 0; i < all.size(); i += 8) {
        alignas(16) std::uint16_t back[8];
        const auto loaded = on_device::load<Format, 8>(all.data() + i, 8);
        on_device::store<Format, 8>(loaded, back, 8);
        for (std::size_t n = 0; n < 8; ++n) {
            float wanted;
            Format::decode(all[i + n], &wanted);
            if (!same(loaded.lane[n], wanted)) ++changed;
            if (back[n] != all[i + n] && !std::isnan(wanted)) ++changed;
        }
    }
    CHECK(changed == 0);
    check_places<Format, 8>(all);
    check_places<Format, 4>(all);
}

TEST_CASE("numbers of 32 bits are read and written wherever they lie") {
    std::vector<float> some(101);
    for (std::size_t i = 0; i < some.size(); ++i) some[i] = static_cast<float>(i) * 0.37f - 5;
    check_places<tiffin::f32, 4>(some);
    check_places<tiffin::f32, 8>(some);
}

TEST_CASE_TEMPLATE("a formula over a pack is that over each number", Formula, tiffin::silu,
                   tiffin::gelu_tanh) {
    for (float v = -20; v < 20; v += 0.37f) {
        on_device::pack<4> in;
        for (std::size_t i = 0; i < 4; ++i) in.lane[i] = v + static_cast<float>(i);
        const auto out = on_device::apply<4>(Formula{}, in);
        for (std::size_t i = 0; i < 4; ++i)
            CHECK(same(out.lane[i], static_cast<float>(Formula{}(in.lane[i]))));
    }
}

TEST_CASE("quotients of 32 and of 64 bits") {
    const std::uint64_t edges[] = {1,
                                   2,
                                   3,
                                   7,
                                   255,
                                   65535,
                                   0x7FFFFFFFu,
                                   0x80000000u,
                                   0xFFFFFFFFu,
                                   1ull << 32,
                                   (1ull << 32) + 1,
                                   1ull << 40,
                                   ~0ull - 1,
                                   ~0ull};
    for (const std::uint64_t a : edges)
        for (const std::uint64_t b : edges) {
            const auto made = on_device::divide(a, b);
            CHECK(made.quotient == a / b);
            CHECK(made.remainder == a % b);
        }
    CHECK(on_device::divide(0, 5).quotient == 0);
}

}  // namespace cuda_numbers_test
