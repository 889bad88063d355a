// Compiled twice, for two instruction sets: SUFFIX tells which half this is.
#include "layer.hpp"

#include <tiffin/cpu/eigen/eigen.hpp>
#include <tiffin/tiffin.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)

namespace {

constexpr std::size_t tokens = 7, d_model = 37, d_ff = 83, vocab = 11;

// Numbers of (-1, 1) that differ from place to place.
std::vector<float> numbers(std::size_t count, unsigned seed) {
    std::vector<float> all(count);
    for (float& each : all) {
        seed = seed * 1664525u + 1013904223u;
        each = static_cast<float>(seed >> 8) * 0x1p-23f - 1.0f;
    }
    return all;
}

struct problem {
    std::vector<float> gate = numbers(d_ff * d_model, 1), up = numbers(vocab * d_ff, 2),
                       down = numbers(d_model * d_ff, 3), x = numbers(tokens * d_model, 4);
    std::vector<std::int32_t> ids{3, 0, 10, 3, 7, 1, 9};
};

// y and, beside it, the sum of the magnitudes of all terms: what a rounding error is relative to.
struct expectation {
    std::vector<double> y, magnitude;
};

expectation expected(const problem& p) {
    expectation e{std::vector<double>(tokens * d_model), std::vector<double>(tokens * d_model)};
    for (std::size_t t = 0; t < tokens; ++t)
        for (std::size_t j = 0; j < d_ff; ++j) {
            double z = 0, size = 0;
            for (std::size_t k = 0; k < d_model; ++k) {
                const double term = double(p.gate[j * d_model + k]) * double(p.x[t * d_model + k]);
                z += term;
                size += std::abs(term);
            }
            const double row = double(p.up[static_cast<std::size_t>(p.ids[t]) * d_ff + j]);
            for (std::size_t i = 0; i < d_model; ++i) {
                const double w = double(p.down[i * d_ff + j]);
                e.y[t * d_model + i] += z / (1 + std::exp(-z)) * row * w;
                e.magnitude[t * d_model + i] += std::abs(size * row * w);
            }
        }
    return e;
}

template <class Backend>
int mistakes(const problem& p, const expectation& want, const Backend& backend) {
    tiffin::weights given;
    given.add("gate_proj.weight", p.gate.data(), {d_ff, d_model});
    given.add("stem_embed.weight", p.up.data(), {vocab, d_ff});
    given.add("down_proj.weight", p.down.data(), {d_model, d_ff});
    auto layer = tiffin::prepare<tiffin::stem>(given, backend);
    std::vector<float> y(tokens * d_model);
    layer(p.x, p.ids, y);
    int wrong = 0;
    // Sums of 37 and of 83 terms: each addition rounds by 2^-24 at most; twice that for silu and products.
    constexpr double bound = 2 * (d_model + d_ff) * 0x1p-24;
    for (std::size_t i = 0; i < y.size(); ++i)
        if (!(std::abs(double(y[i]) - want.y[i]) <= bound * want.magnitude[i])) ++wrong;
    return wrong;
}

}  // namespace

int PASTE(run_, SUFFIX)() {
    const problem p;
    const expectation want = expected(p);
    return mistakes(p, want, tiffin::simd{}) + mistakes(p, want, tiffin::eigen{}) +
           mistakes(p, want, tiffin::reference<>{});
}

std::string PASTE(registers_of_, SUFFIX)() {
    return xsimd::default_arch::name();
}

std::string PASTE(tiffin_of_, SUFFIX)() {
    return TEXT(TIFFIN_ABI);
}
