// Holds every peer against the block's formula in double: a peer that computed something else, or
// less, would make a ratio meaningless. Returns the number of failures.
#include "peers.hpp"
#include "machine.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

namespace {

using tiffin_bench::dense_shape;

struct layer_weights {
    std::vector<float> gate;
    std::vector<float> up;
    std::vector<float> down;
};

std::vector<float> random_floats(std::size_t count, float spread, std::mt19937& random) {
    std::normal_distribution<float> normal(0.0f, spread);
    std::vector<float> values(count);
    for (float& v : values) v = normal(random);
    return values;
}

// sum(a[i] * b[i]) in double, and the sum of the squared terms, by which rounding is estimated.
struct dot_product {
    double value = 0;
    double squares = 0;
};

template <class A>
dot_product dot(const A* a, const float* b, std::size_t count) {
    dot_product sum;
    for (std::size_t i = 0; i < count; ++i) {
        const double term = static_cast<double>(a[i]) * static_cast<double>(b[i]);
        sum.value += term;
        sum.squares += term * term;
    }
    return sum;
}

struct bounded {
    std::vector<double> value;
    std::vector<double> bound;  // how far f32 arithmetic may be off
};

// The bound that holds for any data, n u sum |a b| for a dot product of n terms with u = 2^-24, is
// here so wide that arithmetic in bf16 would pass. These data are random with mean 0, so their
// partial sums are random walks: a partial sum of k terms has variance k / n * squares, each
// addition rounds it by at most u of itself with either sign, and n of them in any order give
//     variance(dot) <= n u^2 squares / 2.
// Through h = silu(g) * v, where |silu'| < 1.1,
//     variance(h) <= (1.1 v)^2 variance(g) + silu(g)^2 variance(v),
// and the second product adds sum down^2 variance(h) to its own. Six standard deviations make a
// false alarm a matter of 1e-9 for each value. An exp may also be off to one side everywhere: 8 u
// of each h, for which the coarser ones are known.
bounded reference(const dense_shape& s, const layer_weights& w, const float* x, std::size_t tokens) {
    constexpr double u = 0x1p-24;
    const auto variance = [](const dot_product& of, std::size_t terms) {
        return static_cast<double>(terms) * u * u * of.squares / 2;
    };
    bounded out;
    std::vector<double> h(s.d_ff);
    std::vector<double> h_variance(s.d_ff);
    for (std::size_t t = 0; t < tokens; ++t) {
        for (std::size_t f = 0; f < s.d_ff; ++f) {
            const float* in = x + t * s.d_model;
            const dot_product g = dot(in, w.gate.data() + f * s.d_model, s.d_model);
            const dot_product v = dot(in, w.up.data() + f * s.d_model, s.d_model);
            const double silu = g.value / (1 + std::exp(-g.value));
            h[f] = silu * v.value;
            h_variance[f] =
                1.21 * v.value * v.value * variance(g, s.d_model) + silu * silu * variance(v, s.d_model);
        }
        for (std::size_t m = 0; m < s.d_model; ++m) {
            const float* row = w.down.data() + m * s.d_ff;
            const dot_product y = dot(h.data(), row, s.d_ff);
            double y_variance = variance(y, s.d_ff);
            double magnitude = 0;
            for (std::size_t f = 0; f < s.d_ff; ++f) {
                const double factor = std::abs(static_cast<double>(row[f]));
                y_variance += factor * factor * h_variance[f];
                magnitude += factor * std::abs(h[f]);
            }
            out.value.push_back(y.value);
            out.bound.push_back(6 * std::sqrt(y_variance) + 8 * u * magnitude);
        }
    }
    return out;
}

// Compares one call of each layer for each number of tokens; true if all is within its bound.
bool check(tiffin_bench::dense_peer& peer, const dense_shape& s, int threads,
           const std::vector<layer_weights>& layers, const std::vector<std::size_t>& token_counts) {
    bool right = true;
    double worst_error = 0;
    double worst_share = 0;
    std::mt19937 random(7);
    for (const std::size_t tokens : token_counts) {
        const std::vector<float> x = random_floats(tokens * s.d_model, 1.0f, random);
        // Without it, a call prepares for itself.
        if (tokens % 2 == 1) peer.prepare(tokens);
        for (std::size_t l = 0; l < s.layers; ++l) {
            const bounded expected = reference(s, layers[l], x.data(), tokens);
            // One float beyond the output shows whether a peer writes past it.
            constexpr float untouched = 12345.0f;
            std::vector<float> y(tokens * s.d_model + 1, std::numeric_limits<float>::quiet_NaN());
            y.back() = untouched;
            peer.run(l, x.data(), tokens, y.data());
            bool all_right = y.back() == untouched;
            for (std::size_t i = 0; i < expected.value.size(); ++i) {
                const double error = std::abs(static_cast<double>(y[i]) - expected.value[i]);
                // Written so that a NaN fails.
                if (!(error <= expected.bound[i])) all_right = false;
                worst_error = std::max(worst_error, error);
                worst_share = std::max(worst_share, error / expected.bound[i]);
            }
            if (!all_right) std::printf("WRONG: layer %zu with %zu tokens\n", l, tokens);
            right = right && all_right;
        }
    }
    std::printf("%-9s d_model %3zu d_ff %3zu threads %d: largest error %.2e, %.2f of its bound\n",
                peer.name(), s.d_model, s.d_ff, threads, worst_error, worst_share);
    return right;
}

}  // namespace

int main() {
    int failures = 0;
    // Widths with and without a remainder after vectors and blocks; token counts on both sides of
    // each switch between kernels, and back to one seen before.
    const std::vector<dense_shape> shapes{{64, 160, 2}, {96, 256, 2}, {100, 267, 2}, {7, 5, 1}};
    const std::vector<std::size_t> token_counts{1, 5, 8, 9, 15, 16, 33, 100, 1};
    for (const dense_shape& s : shapes) {
        std::mt19937 random(1);
        std::vector<layer_weights> layers(s.layers);
        for (layer_weights& w : layers) {
            // Gates of a few units, so that silu is not close to linear.
            w.gate = random_floats(s.d_ff * s.d_model, 0.3f, random);
            w.up = random_floats(s.d_ff * s.d_model, 0.1f, random);
            w.down = random_floats(s.d_model * s.d_ff, 0.1f, random);
        }
        const tiffin_bench::dense_weights weights{[&](std::size_t l) { return layers[l].gate.data(); },
                                                  [&](std::size_t l) { return layers[l].up.data(); },
                                                  [&](std::size_t l) { return layers[l].down.data(); }};
        for (const auto& make : tiffin_bench::dense_peer_makers())
            for (const int threads : {1, 2})
                if (!check(*make(s, threads, weights), s, threads, layers, token_counts)) ++failures;
    }
    std::printf(failures ? "%d failures\n" : "all peers agree with the reference\n", failures);
    return failures;
}
