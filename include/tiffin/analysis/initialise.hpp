// Initial values of weights: normally distributed, the same on every machine.
#pragma once

#include <tiffin/error.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

TIFFIN_BEGIN

namespace detail {

// The generator splitmix64, one stream for each pair of a seed and an index: a value at an index
// does not depend on what was drawn for others. Source: Steele, Lea and Flood, OOPSLA 2014.
class counter_random {
public:
    explicit counter_random(std::uint64_t seed, std::uint64_t index = 0)
        : state_(mixed(mixed(seed) + golden * index)) {}

    std::uint64_t bits() noexcept { return mixed(state_ += golden); }
    // Uniform in [0, n), exactly. Precondition: n > 0.
    std::uint64_t below(std::uint64_t n) noexcept {
        const std::uint64_t surplus = (0 - n) % n;  // 2^64 mod n
        for (;;)
            if (const std::uint64_t b = bits(); b >= surplus) return b % n;
    }

private:
    static constexpr std::uint64_t golden = 0x9e3779b97f4a7c15u;
    static std::uint64_t mixed(std::uint64_t z) noexcept {
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }

    std::uint64_t state_;
};

// True with probability exp(-x (2 k + x) / (2 k + 2)), x as a fraction of 2^64: whether the longest
// run x > z_1 > z_2 > ... of uniform z, each step of which also passes with (2 k + x) / (2 k + 2), is
// of even length (von Neumann).
inline bool passes_fraction(counter_random& random, std::uint64_t k, std::uint64_t x) noexcept {
    bool even = true;
    for (std::uint64_t least = x;; even = !even) {
        const std::uint64_t z = random.bits();
        if (z >= least) return even;
        const std::uint64_t c = random.below(2 * k + 2);
        if (c > 2 * k || (c == 2 * k && random.bits() >= x)) return even;
        least = z;
    }
}

// True with probability exp(-1/2), by the same argument.
inline bool passes_half(counter_random& random) noexcept {
    std::uint64_t least = std::uint64_t{1} << 63;
    for (bool even = true;; even = !even) {
        const std::uint64_t z = random.bits();
        if (z >= least) return even;
        least = z;
    }
}

// A sample of N(0, 1): |y| = k + x has the density exp(-y^2 / 2) where k is drawn with exp(-k / 2),
// kept with exp(-k (k - 1) / 2), and x, uniform in [0, 1), with exp(-x (2 k + x) / 2). Comparisons of
// integers decide all of it: log and cos, as Box and Muller need, round differently from one C library
// to the next. y is an odd multiple of 2^-41, exact in double.
// Source: Karney, Sampling exactly from the normal distribution, ACM TOMS 42 (2016), algorithm N.
inline double standard_normal(counter_random random) noexcept {
    for (;;) {
        std::uint64_t k = 0;
        while (passes_half(random)) ++k;
        bool kept = true;
        for (std::uint64_t i = 0; kept && k > 1 && i < k * (k - 1); ++i) kept = passes_half(random);
        if (!kept) continue;
        const std::uint64_t x = random.bits();
        for (std::uint64_t i = 0; kept && i <= k; ++i) kept = passes_fraction(random, k, x);
        if (!kept) continue;
        const auto y = static_cast<double>((((k << 40) | (x >> 24)) << 1) | 1) * 0x1p-41;
        return (random.bits() >> 63) != 0 ? -y : y;
    }
}

}  // namespace detail

// Fills `to` with samples of N(0, sigma^2) that depend on the seed and their indices only.
// to[i] = float(sigma * y(seed, first + i)): parts filled separately equal the whole.
// Numerics: y is decided in integers; then one product in double, one rounding to f32. Every IEEE
//   machine and compiler gives the same bits for the same sigma.
// Cost: 17.5 draws per value on average, about 0.1 us; no allocation.
// Source: splitmix64 and Karney's algorithm N, above.
inline void fill_normal(std::span<float> to, double sigma, std::uint64_t seed,
                        std::uint64_t first = 0) noexcept {
    for (std::size_t i = 0; i < to.size(); ++i)
        to[i] = static_cast<float>(sigma * detail::standard_normal(detail::counter_random(seed, first + i)));
}

// SmallInit: N(0, 2 / (5 n)), n the matrix's own input dimension; for W_1, A, B and W_R.
// to[i] = float(sqrt(2 / (5 n)) * y(seed, i)); 2 / (5 n) is the variance.
// Shapes: any; n = `inputs` is d_model for W_1, A and W_R, and the rank r for a bank's B. The paper writes
//   "for input dimension d"; passing d_model for all of them is the other reading. Give every tensor a
//   seed of its own.
// Errors: errc::option where inputs is 0, before anything is written. Numerics, cost: as fill_normal.
// Source: StructMoE, docs/layers.md#initialisers.
inline status small_init(std::span<float> to, std::size_t inputs, std::uint64_t seed) {
    if (inputs == 0) return failure(errc::option, "inputs", "is 0; sigma is sqrt(2 / (5 inputs))");
    fill_normal(to, std::sqrt(2 / (5 * static_cast<double>(inputs))), seed);
    return {};
}

// DeepNorm: N(0, sigma^2) with sigma = 2 / (N_layers sqrt(d)), d the model's width; for W_2.
// Shapes: any. Numerics, cost: as fill_normal. Source: as small_init.
// Errors: errc::option where layers or d_model is 0, before anything is written.
inline status deep_norm_init(std::span<float> to, std::size_t layers, std::size_t d_model,
                             std::uint64_t seed) {
    if (layers == 0 || d_model == 0)
        return failure(errc::option, layers == 0 ? "layers" : "d_model",
                       "is 0; sigma is 2 / (layers sqrt(d_model))");
    fill_normal(to, 2 / (static_cast<double>(layers) * std::sqrt(static_cast<double>(d_model))), seed);
    return {};
}

TIFFIN_END
