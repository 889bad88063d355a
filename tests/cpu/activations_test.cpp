// Activations that are rounded before they are multiplied: what the products are then, to the last rounding,
// in every pair of formats; and that a token's output still does not depend on its company.
#include <tiffin/activation/identity.hpp>
#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/executor/openmp.hpp>
#include <tiffin/layers.hpp>

#include "support/doctest.hpp"
#include "support/random.hpp"
#include "support/stored_blocks.hpp"
#include "support/tensor_set.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace cpu_activations_test {
using namespace tiffin;
using tiffin_test::random_ids;
using tiffin_test::random_rows;

namespace {

// Rows of a whole number of blocks, as a format keeps them.
template <class Format>
std::vector<double> rounded(const std::vector<float>& numbers) {
    std::vector<double> made(numbers.size());
    std::vector<float> widened(Format::block);
    for (std::size_t i = 0; i < numbers.size(); i += Format::block) {
        typename Format::storage block;
        Format::encode(numbers.data() + i, block);
        Format::decode(block, widened.data());
        std::copy(widened.begin(), widened.end(), made.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return made;
}
// Rows as activations are rounded.
template <class Format>
std::vector<double> rounded_activations(const std::vector<float>& numbers) {
    if constexpr (requires(float* to) { Format::round(to, to); }) {
        std::vector<float> made(numbers.size());
        for (std::size_t i = 0; i < numbers.size(); i += Format::block)
            Format::round(numbers.data() + i, made.data() + i);
        return {made.begin(), made.end()};
    } else {
        return rounded<Format>(numbers);
    }
}

std::vector<float> random_weights(std::size_t count, unsigned seed) {
    std::vector<float> numbers(count);
    tiffin_test::random_numbers random(seed);
    random.fill(numbers, 0.3f);
    return numbers;
}

// Weights as a format keeps them: random numbers rounded to it, or random blocks of one that nothing is rounded to.
template <class Weights>
struct given_weights {
    std::vector<float> plain;
    std::vector<unsigned char> blocks;
    std::vector<double> exact;
    dtype type = dtype::f32;

    explicit given_weights(std::size_t count) {
        if constexpr (codec<Weights>) {
            plain = random_weights(count, 3);
            exact = rounded<Weights>(plain);
        } else {
            type = Weights::type;
            blocks = tiffin_test::noise_blocks(type, count, 3);
            const std::vector<float> numbers = tiffin_test::numbers_of_blocks(blocks, type, count);
            exact.assign(numbers.begin(), numbers.end());
        }
    }
    [[nodiscard]] const void* data() const {
        return plain.empty() ? static_cast<const void*>(blocks.data()) : plain.data();
    }
    [[nodiscard]] auto block_at(std::size_t i) const {
        typename Weights::storage block;
        if constexpr (codec<Weights>)
            Weights::encode(plain.data() + i, block);
        else
            std::memcpy(&block, blocks.data() + i / Weights::block * sizeof block, sizeof block);
        return block;
    }
};

// y = W x, of one product. Tokens with zeros, with large and with small numbers are among x.
template <class Weights, class Activations>
void check_product(std::size_t inputs, std::size_t outputs) {
    constexpr std::size_t tokens = 40;
    const given_weights<Weights> w(outputs * inputs);
    std::vector<float> x = random_rows(tokens, inputs, 5);
    for (std::size_t i = 0; i < inputs; ++i) {
        x[3 * inputs + i] = 0;
        x[5 * inputs + i] *= 1e4f;
        x[7 * inputs + i] *= 1e-4f;
    }
    using kept = std::conditional_t<codec<Weights>, Weights, any_format>;
    simd<kept, f32, Activations> backend;
    if constexpr (!codec<Weights>) backend.weights = kept_as_given;
    simd_detail::panel_products product(outputs, inputs, 1,
                                        formats_of(backend.formats(), std::span(&w.type, 1)));
    product.pack(0, {w.data(), w.type, {outputs, inputs}}, preparation{});
    const std::vector<double>& wr = w.exact;
    const std::vector<double> xr =
        rounded_activations<std::conditional_t<std::same_as<Activations, paired>, q8_0, Activations>>(x);
    // Tokens as the backend has them: in blocks of the depth.
    const auto blocked = [&](std::size_t count) {
        std::vector<float> made(simd_detail::blocked_size(count, inputs));
        for (std::size_t t = 0; t < count; ++t)
            for (std::size_t i = 0; i < inputs; ++i)
                made[i / simd_detail::depth_block * simd_detail::depth_block * count +
                     t * simd_detail::depth_block + i % simd_detail::depth_block] = x[t * inputs + i];
        return made;
    };
    std::vector<double> of_all;  // the sums of all tokens at once: those of fewer have the same bits
    for (const std::size_t count :
         {tokens, std::size_t{1}, std::size_t{2}, std::size_t{9}, std::size_t{14}, std::size_t{15},
          std::size_t{16}, std::size_t{17}, std::size_t{31}, std::size_t{32}, std::size_t{33}}) {
        CAPTURE(count);
        const std::vector<float> in = blocked(count);
        aligned_buffer scratch(product.scratch_numbers(count, 2) * sizeof(float));
        std::vector<double> y(count * outputs);
        std::size_t beyond = 0;
        product.run({in.data(), count}, scratch.as<float>(), 2, openmp{2},
                    [&](std::size_t first, std::size_t n, std::size_t first_output, std::size_t features,
                        const auto& sums) {
                        for (std::size_t t = 0; t < n; ++t)
                            for (std::size_t o = 0; o < features; ++o)
                                y[(first + t) * outputs + first_output + o] =
                                    static_cast<double>(*sums.first.at(t, o));
                    });
        for (std::size_t t = 0; t < count; ++t)
            for (std::size_t o = 0; o < outputs; ++o) {
                double wanted = 0, magnitude = 0;
                for (std::size_t i = 0; i < inputs; ++i) {
                    const double term = wr[o * inputs + i] * xr[t * inputs + i];
                    wanted += term;
                    magnitude += std::fabs(term);
                }
                // A rounding a term at most, each of a partial sum no larger than `magnitude`; half an ulp is
                // 2^-24 of it. With integers the blocks are the terms, three roundings each.
                const double allowed = magnitude * static_cast<double>(inputs) * 0x1p-24;
                beyond += !(std::fabs(y[t * outputs + o] - wanted) <= allowed);
            }
        CHECK(beyond == 0);
        if (of_all.empty()) of_all = y;
        CHECK(std::equal(y.begin(), y.end(), of_all.begin()));
    }
}

template <class Block, class Backend>
std::vector<float> run(const weights& given, const Backend& backend, const std::vector<float>& x,
                       std::size_t tokens, int threads = 2) {
    auto layer = prepare<Block>(given, backend);
    std::vector<float> y(x.size());
    layer(x, random_ids(tokens, 37, 7), y, openmp{threads});
    return y;
}

#if defined(TIFFIN_EMULATE_AMX) || TIFFIN_AMX_INSTRUCTIONS
constexpr std::size_t most_tile_tokens = 32;  // two tiles of tokens
#else
constexpr std::size_t most_tile_tokens = 12;
#endif
constexpr tiffin_test::sizes sizes{.d_model = 320, .d_ff = 544, .vocab = 37, .experts = 3, .rank = 5};

// Experts that round their input alike: it is rounded once for all of them.
struct two_of : softmax_topk_renorm {
    constexpr two_of() noexcept : softmax_topk_renorm{{2}} {}
};
using experts = mixture<two_of, mlp>;

// All bits as alone, whatever the number of tokens and threads.
template <class Block, class Weights, class Activations>
void check_alone() {
    const tiffin_test::tensor_set tensors(tiffin_test::tensors_wanted(Block{}), {sizes, {}, {}, ~0u, 29});
    auto layer = prepare<Block>(tensors.given(), simd<Weights, f32, Activations>{});
    constexpr std::size_t most = 200;
    const std::vector<float> x = random_rows(most, sizes.d_model, 31);
    const std::vector<std::int32_t> ids = random_ids(most, 37, 37);
    std::vector<float> alone(x.size());
    for (std::size_t t = 0; t < most; ++t)
        layer(std::span(x).subspan(t * sizes.d_model, sizes.d_model), std::span(ids).subspan(t, 1),
              std::span(alone).subspan(t * sizes.d_model, sizes.d_model));
    // Every tile's size, of whole numbers as of others, and what begins a tile or a pass more.
    std::vector<std::size_t> counts{40, 193, 200};
    for (std::size_t n = 2; n < (most_tile_tokens > 13 ? most_tile_tokens + 2 : 14); ++n) counts.push_back(n);
    if (most_tile_tokens <= 13) counts.insert(counts.end(), {24, 25});
    for (const std::size_t count : counts)
        for (const int threads : {1, 2, 3}) {
            CAPTURE(count);
            CAPTURE(threads);
            std::vector<float> y(count * sizes.d_model);
            layer(std::span(x).first(y.size()), std::span(ids).first(count), y, openmp{threads});
            CHECK(std::memcmp(y.data(), alone.data(), y.size() * sizeof(float)) == 0);
        }
}

// The dot of machines with an instruction for four bytes, with that instruction spelled out.
#if defined(__AVX2__)
using spelled_out = simd_detail::emulated_fours<simd_detail::bytes_256>;

template <class Weights, class Dot>
void check_dot() {
    using arch = xsimd::avx2;
    using panel = simd_detail::integer_panel<arch, Weights, 1, Dot>;
    using row_type = typename panel::row;
    constexpr std::size_t inputs = 256, outputs = 8;
    const given_weights<Weights> w(outputs * inputs);
    const std::vector<float> x = random_rows(1, inputs, 5);
    alignas(64) std::array<std::byte, panel::unit_bytes * inputs / Weights::block> packed;
    for (std::size_t o = 0; o < outputs; ++o)
        for (std::size_t k = 0; k < inputs; k += Weights::block)
            panel::put(w.block_at(o * inputs + k), o, packed.data() + k / Weights::block * panel::unit_bytes);
    alignas(64) row_type row;
    simd_detail::round_to_integers<arch, row_type>(x.data(), 0, inputs, reinterpret_cast<std::byte*>(&row));
    alignas(64) std::array<float, outputs> sums;
    simd_detail::multiply_integer_tile<panel, 1, 1, 1>(reinterpret_cast<const std::byte*>(&row), inputs,
                                                       packed.data(), 0, sums.data(), true, {});
    const std::vector<double>& wr = w.exact;
    const std::vector<double> xr = rounded_activations<q8_0>(x);
    for (std::size_t o = 0; o < outputs; ++o) {
        double wanted = 0, magnitude = 0;
        for (std::size_t k = 0; k < inputs; ++k) {
            wanted += wr[o * inputs + k] * xr[k];
            magnitude += std::fabs(wr[o * inputs + k] * xr[k]);
        }
        // Three roundings of half an ulp per 32 inputs: of what the least numbers add, up to twice `magnitude`; as
        // their sum is scaled by d_x; and as that is scaled and added.
        constexpr double pieces = inputs / 32;
        CHECK(std::fabs(static_cast<double>(sums[o]) - wanted) <= magnitude * 4 * pieces * 0x1p-24);
    }
}

// Of 4 to 6 bits: all that a machine may have.
template <class Weights>
void check_dots() {
    constexpr int bits = Weights::level_bits;
    check_dot<Weights, simd_detail::fours_dot<spelled_out, bits>>();
    check_dot<Weights, simd_detail::portable_dot<xsimd::avx2, bits>>();
    check_dot<Weights, simd_detail::wide_levels_dot<simd_detail::bytes_256>>();
}
#endif

}  // namespace

TEST_CASE("activations: products of every pair of formats") {
    check_product<q8_0, q8_0>(320, 77);
    check_product<q4_0, q8_0>(320, 77);
    check_product<q4_1, q8_0>(320, 77);
    check_product<q4_1, q8_0>(32, 5);
    check_product<q4_1, f32>(320, 77);
    check_product<q8_0, q8_0>(32, 5);
    check_product<q4_0, q8_0>(32, 5);
    check_product<bf16, bf16>(301, 77);
    check_product<bf16, bf16>(1, 1);
    check_product<f32, bf16>(301, 77);
    check_product<f16, f16>(301, 77);
    check_product<f32, q8_0>(320, 77);
    check_product<bf16, q4_0>(320, 77);
    check_product<q8_0, f32>(320, 77);
    check_product<q5_0, q8_0>(320, 77);
    check_product<q4_k, q8_0>(768, 77);
    check_product<q5_k, q8_0>(768, 77);
    check_product<q6_k, q8_0>(768, 77);
    check_product<q6_k, paired>(256, 5);
}

TEST_CASE("activations: rounded as q8_0 rounds, to the bit") {
    std::vector<float> numbers = random_rows(1, 128, 5);
    for (std::size_t i = 0; i < 32; ++i) numbers[i] = (static_cast<float>(i) - 15.5f) / 127;  // ties
    numbers[31] = 1;
    for (std::size_t i = 32; i < 64; ++i) numbers[i] = 0;
    for (std::size_t i = 64; i < 96; ++i) numbers[i] *= 1e-38f;  // 1 / scale is no f32
    using row_type = simd_detail::integer_panel<xsimd::default_arch, q8_0, 1>::row;
    row_type row;
    simd_detail::round_to_integers<xsimd::default_arch, row_type>(numbers.data(), 0, 128,
                                                                  reinterpret_cast<std::byte*>(&row));
    for (std::size_t b = 0; b < 4; ++b) {
        q8_0::storage wanted;
        q8_0::encode(numbers.data() + 32 * b, wanted);
        float most = 0;
        for (std::size_t i = 0; i < 32; ++i) most = std::max(most, std::fabs(numbers[32 * b + i]));
        CHECK(row.scales[b] == most / 127);
        for (std::size_t i = 0; i < 32; ++i) CHECK(int{row.values[32 * b + i]} == int{wanted.values[i]});
    }
}

#if defined(__AVX2__)
TEST_CASE("activations: instructions for four bytes, spelled out") {
    check_dot<q8_0, simd_detail::fours_dot<spelled_out, 8>>();
    check_dot<q4_0, simd_detail::fours_dot<spelled_out, 4>>();
    check_dot<q4_1, simd_detail::fours_dot<spelled_out, 4>>();
    check_dot<q4_1, simd_detail::nibbles_dot<simd_detail::bytes_256>>();
    check_dot<q8_0, simd_detail::pairs_dot<simd_detail::bytes_256>>();
    check_dot<q4_0, simd_detail::nibbles_dot<simd_detail::bytes_256>>();
    check_dot<q8_0, simd_detail::portable_dot<xsimd::avx2, 8>>();
    check_dot<q4_0, simd_detail::portable_dot<xsimd::avx2, 4>>();
    check_dots<q5_0>();
    check_dots<q5_1>();
    check_dots<q4_k>();
    check_dots<q5_k>();
    check_dots<q6_k>();
}
#endif

TEST_CASE("activations: a token's output does not depend on its company") {
    check_alone<stem_hybrid, q8_0, paired>();
    check_alone<mlp, q4_1, paired>();
    check_alone<structmoe, bf16, bf16>();
    check_alone<experts, q8_0, q8_0>();
    check_alone<experts, bf16, bf16>();
#if defined(TIFFIN_EMULATE_AMX)
    check_alone<mlp, q4_0, q8_0>();
#endif
#if !defined(TIFFIN_TEST_SMALL)
    check_alone<stem_hybrid, q4_0, q8_0>();
    check_alone<structmoe, q8_0, q8_0>();
    check_alone<mlp, f32, bf16>();
    check_alone<swiglu, f16, f32>();
#endif
}

#if defined(TIFFIN_EMULATE_AMX)
TEST_CASE("activations: tile registers are what is tested") {
    using arch = xsimd::default_arch;
    CHECK(simd_detail::kernels<arch, bf16, bf16>().tiles_for(1).rows == simd_detail::amx_rows);
    CHECK(simd_detail::kernels<arch, q8_0, q8_0>().tiles_for(1).rows == 1);
    CHECK(simd_detail::kernels<arch, q8_0, q8_0>().tiles_for(7).rows == simd_detail::amx_rows);
    CHECK(simd_detail::kernels<arch, q6_k, q8_0>().tiles_for(7).rows == simd_detail::amx_rows);
}
#endif

TEST_CASE("activations: what paired stands for") {
    const tiffin_test::tensor_set tensors(tiffin_test::tensors_wanted(swiglu{}), {sizes, {}, {}, ~0u, 29});
    const std::vector<float> x = random_rows(9, sizes.d_model, 31);
    const auto of = [&](const auto& backend) { return run<swiglu>(tensors.given(), backend, x, 9); };
    CHECK(of(simd<q8_0>{}) == of(simd<q8_0, f32, q8_0>{}));
    CHECK(of(simd<q4_0>{}) == of(simd<q4_0, f32, q8_0>{}));
    CHECK(of(simd<q4_1>{}) == of(simd<q4_1, f32, q8_0>{}));
    CHECK(of(simd<f16>{}) == of(simd<f16, f32, f32>{}));
    CHECK(of(simd<>{}) == of(simd<f32, f32, f32>{}));
    if (simd_detail::has_bf16_dot<xsimd::default_arch>)
        CHECK(of(simd<bf16>{}) == of(simd<bf16, f32, bf16>{}));
    else
        CHECK(of(simd<bf16>{}) == of(simd<bf16, f32, f32>{}));
    CHECK(of(simd<q8_0>{{}, {}, {false}}) == of(simd<q8_0, f32, f32>{}));
    CHECK(of(simd<q8_0>{}) != of(simd<q8_0, f32, f32>{}));
    const simd<any_format> chosen{{dtype::q4_0}, {}, {}};
    CHECK(of(chosen) == of(simd<q4_0>{}));
    CHECK(chosen.formats().activations.name == "Q8_0");
}

// A layer's hidden values are rounded too: the error is that of two roundings, each of a relative size that
// is measured here, and no more.
TEST_CASE("activations: a whole layer is off by its roundings") {
    const tiffin_test::tensor_set tensors(tiffin_test::tensors_wanted(swiglu{}), {sizes, {}, {}, ~0u, 29});
    const std::vector<float> x = random_rows(40, sizes.d_model, 31);
    const std::vector<float> exact = run<swiglu>(tensors.given(), simd<q8_0, f32, f32>{}, x, 40);
    const auto off = [&](const std::vector<float>& y) {
        double difference = 0, size = 0;
        for (std::size_t i = 0; i < y.size(); ++i) {
            difference += std::pow(static_cast<double>(y[i]) - static_cast<double>(exact[i]), 2);
            size += std::pow(static_cast<double>(exact[i]), 2);
        }
        return std::sqrt(difference / size);
    };
    const double measured = off(run<swiglu>(tensors.given(), simd<q8_0>{}, x, 40));
    // Uniform numbers: a step is 1/127 of the largest of 32, its error uniform within it: 1/127/sqrt(12) of
    // the largest, over sqrt(1/3) of it: 4e-3 for x; hidden values have longer tails, twice that.
    CHECK(measured > 4e-3);
    CHECK(measured < 1.3e-2);
}

// Powers of two scale every step of a linear layer exactly, as long as nothing leaves the range of f32: the
// same bits must come out, scaled.
template <class Backend>
void check_scaled(const Backend& backend) {
    using linear = ffn<gate<identity>, none>;
    const tiffin_test::tensor_set tensors(tiffin_test::tensors_wanted(linear{}), {sizes, {}, {}, 0, 29});
    const std::vector<float> x = random_rows(9, sizes.d_model, 31);
    const std::vector<float> fine = run<linear>(tensors.given(), backend, x, 9);
    for (int power = -100; power <= 100; power += 10) {  // 8e-31 to 1e30
        CAPTURE(power);
        std::vector<float> scaled = x;
        for (float& v : scaled) v = std::ldexp(v, power);
        std::vector<float> y = run<linear>(tensors.given(), backend, scaled, 9);
        for (float& v : y) v = std::ldexp(v, -power);
        CHECK(y == fine);
    }
}

TEST_CASE("activations: of any size are rounded alike") {
    check_scaled(simd<q8_0>{});
    check_scaled(simd<bf16, f32, q4_0>{});
#if !defined(TIFFIN_TEST_SMALL)
    check_scaled(simd<q4_0>{});
    check_scaled(simd<f32, f32, q8_0>{});
#endif
    check_scaled(simd<any_format>{{dtype::q8_0}, {}, {}});
}

// A GLU is quadratic in x where x is small, and silu is 0 or z where it is large: the error of the roundings
// is that of two products and of the hidden values at every size.
TEST_CASE("activations: a gated layer from 1e-12 to 1e6") {
    const tiffin_test::tensor_set tensors(tiffin_test::tensors_wanted(swiglu{}), {sizes, {}, {}, 0, 29});
    const std::vector<float> x = random_rows(9, sizes.d_model, 31);
    for (const float size : {1e-12f, 1e-9f, 1e-6f, 1e-4f, 1e-3f, 1.0f, 1e3f, 1e4f, 1e6f}) {
        CAPTURE(size);
        std::vector<float> sized = x;
        for (float& v : sized) v *= size;
        const std::vector<float> exact = run<swiglu>(tensors.given(), simd<q8_0, f32, f32>{}, sized, 9);
        const std::vector<float> y = run<swiglu>(tensors.given(), simd<q8_0>{}, sized, 9);
        double difference = 0, magnitude = 0;
        for (std::size_t i = 0; i < y.size(); ++i) {
            difference += std::pow(static_cast<double>(y[i]) - static_cast<double>(exact[i]), 2);
            magnitude += std::pow(static_cast<double>(exact[i]), 2);
        }
        // As below, where x is of size 1: 4e-3 for each of two products, twice that for the hidden values.
        CHECK(std::sqrt(difference / magnitude) < 1.3e-2);
    }
}

TEST_CASE("activations: numbers that no scale holds") {
    const tiffin_test::tensor_set tensors(tiffin_test::tensors_wanted(mlp{}), {sizes, {}, {}, ~0u, 29});
    const std::vector<float> x = random_rows(3, sizes.d_model, 31);
    const std::vector<float> fine = run<mlp>(tensors.given(), simd<q8_0>{}, x, 3);
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
        CAPTURE(bad);
        std::vector<float> with = x;
        with[sizes.d_model + 77] = bad;
        const std::vector<float> y = run<mlp>(tensors.given(), simd<q8_0>{}, with, 3);
        for (std::size_t i = 0; i < sizes.d_model; ++i) {
            CHECK(y[i] == fine[i]);
            CHECK(!std::isfinite(y[sizes.d_model + i]));
            CHECK(y[2 * sizes.d_model + i] == fine[2 * sizes.d_model + i]);
        }
    }
}

TEST_CASE("activations: widths that their blocks do not divide") {
    constexpr tiffin_test::sizes odd{.d_model = 64, .d_ff = 90, .vocab = 37};
    const tiffin_test::tensor_set tensors(tiffin_test::tensors_wanted(mlp{}), {odd, {}, {}, ~0u, 29});
    const auto made = try_prepare<mlp>(tensors.given(), simd<f32, f32, q8_0>{});
    REQUIRE(!made);
    CHECK(made.failure().code == errc::shape);
    CHECK(made.failure().message().find("down_proj.weight") != std::string::npos);
    CHECK(made.failure().message().find("(64, 90)") != std::string::npos);
    CHECK(made.failure().message().find("activations") != std::string::npos);
    CHECK(try_prepare<mlp>(tensors.given(), simd<f32, f32, bf16>{}).ok());
}

}  // namespace cpu_activations_test
