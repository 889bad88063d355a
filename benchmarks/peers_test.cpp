// Holds every peer against the block's formula in double: a peer that computed something else, or
// less, would make a ratio meaningless. Returns the number of failures.
#include "peers.hpp"

#include <tiffin/format/any_format.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <limits>
#include <random>
#include <string>
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

// How a format rounds weights, and what meets them.
struct rounding {
    // Rounds a row of weights, exactly as the format says, or leaves it.
    std::function<void(float* row, std::size_t count)> weights;
    // How far rounding may move one activation: `relative` of itself, and `of_largest` of the largest in its
    // block of so many; 0 for the whole row.
    double relative, of_largest;
    std::size_t block;
};

// A format of tiffin's, whose encode() gives the bits of ggml's quantizers.
template <class Format>
void round_to(float* row, std::size_t count) {
    typename Format::storage stored{};
    for (std::size_t i = 0; i < count; i += Format::block) {
        Format::encode(row + i, stored);
        Format::decode(stored, row + i);
    }
}

// A scale per row, as peers/onednn_s8.cpp says.
void round_to_s8(int levels, float* row, std::size_t count) {
    float largest = 0;
    for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(row[i]));
    const float scale = largest / static_cast<float>(levels);
    for (std::size_t i = 0; i < count; ++i) row[i] = scale * std::nearbyint(row[i] / scale);
}

// Half a unit in the last of the significant bits, 8 of bf16 and 11 of f16; of whole numbers up to 127 half a
// step, and in ggml's blocks the rounding of their scales to f16.
rounding rounding_of(const tiffin_bench::dense_peer_kind& kind) {
    const std::string& format = kind.format;
    constexpr double half_step = 1.0 / 254, scale = 0x1p-11;
    if (format == "bf16") return {round_to<tiffin::bf16>, 0x1p-8, 0, 1};
    if (format == "f16") return {round_to<tiffin::f16>, 0x1p-11, 0, 1};
    if (format == "s8") return {std::bind_front(round_to_s8, kind.weight_levels), 0, half_step, 0};
    if (format.starts_with("q8_0")) return {round_to<tiffin::q8_0>, scale, half_step, 32};
    if (format.starts_with("q4_0")) return {round_to<tiffin::q4_0>, scale, half_step, 32};
    if (format.starts_with("q4_1")) return {round_to<tiffin::q4_1>, scale, half_step, 32};
    return {[](float*, std::size_t) {}, 0, 0, 1};
}

// The squares of how far each number of a row may be moved.
template <class Number>
std::vector<double> squares_of_rounding(const rounding& how, const Number* row, std::size_t count) {
    const std::size_t block = how.block == 0 ? count : how.block;
    std::vector<double> squares(count);
    for (std::size_t from = 0; from < count; from += block) {
        const std::size_t end = std::min(count, from + block);
        double largest = 0;
        for (std::size_t i = from; i < end; ++i)
            largest = std::max(largest, std::abs(static_cast<double>(row[i])));
        for (std::size_t i = from; i < end; ++i) {
            const double most =
                how.relative * std::abs(static_cast<double>(row[i])) + how.of_largest * largest;
            squares[i] = most * most;
        }
    }
    return squares;
}

struct bounded {
    std::vector<double> value;
    std::vector<double> bound;  // how far a peer may be off
};

// The value is that of weights rounded as the format says. The bound that holds for any data, n u sum |a b| for a
// dot product of n terms with u = 2^-24, is here so wide that arithmetic in bf16 would pass. These data are
// random with mean 0, so their partial sums are random walks: a partial sum of k terms has variance
// k / n * squares, each addition rounds it by at most u of itself with either sign, and n of them in any order
// give
//     variance(dot) <= n u^2 squares / 2.
// Where activations are rounded, one that is moved by at most e, as likely by each part of it, has variance e^2 / 3,
// which adds sum w^2 e^2 / 3.
// Through h = silu(g) * v, where |silu'| < 1.1,
//     variance(h) <= (1.1 v)^2 variance(g) + silu(g)^2 variance(v),
// to which its own rounding comes, and the second product adds sum down^2 variance(h) to its own. A peer may also
// round v alone, relatively, which moves h as much: hence twice. Six standard deviations make a false alarm a
// matter of 1e-9 for each value. An exp may also be off to one side everywhere: 8 u of each h, for which the
// coarser ones are known.
bounded reference(const dense_shape& s, const layer_weights& w, const rounding& how, const float* x,
                  std::size_t tokens) {
    constexpr double u = 0x1p-24;
    const auto variance = [](const dot_product& of, std::size_t terms) {
        return static_cast<double>(terms) * u * u * of.squares / 2;
    };
    // Of a sum over inputs that were rounded before.
    const auto carried = [](const float* row, const std::vector<double>& input_variance) {
        double sum = 0;
        for (std::size_t i = 0; i < input_variance.size(); ++i) {
            const double factor = static_cast<double>(row[i]);
            sum += factor * factor * input_variance[i];
        }
        return sum;
    };
    bounded out;
    std::vector<double> h(s.d_ff);
    std::vector<double> h_variance(s.d_ff);
    for (std::size_t t = 0; t < tokens; ++t) {
        const float* in = x + t * s.d_model;
        std::vector<double> x_variance = squares_of_rounding(how, in, s.d_model);
        for (double& v : x_variance) v /= 3;
        for (std::size_t f = 0; f < s.d_ff; ++f) {
            const float* const gate = w.gate.data() + f * s.d_model;
            const float* const up = w.up.data() + f * s.d_model;
            const dot_product g = dot(in, gate, s.d_model);
            const dot_product v = dot(in, up, s.d_model);
            const double silu = g.value / (1 + std::exp(-g.value));
            h[f] = silu * v.value;
            h_variance[f] = 1.21 * v.value * v.value * (variance(g, s.d_model) + carried(gate, x_variance)) +
                            silu * silu * (variance(v, s.d_model) + carried(up, x_variance));
        }
        const std::vector<double> squares = squares_of_rounding(how, h.data(), s.d_ff);
        for (std::size_t f = 0; f < s.d_ff; ++f) h_variance[f] += 2 * squares[f] / 3;
        for (std::size_t m = 0; m < s.d_model; ++m) {
            const float* row = w.down.data() + m * s.d_ff;
            const dot_product y = dot(h.data(), row, s.d_ff);
            double magnitude = 0;
            for (std::size_t f = 0; f < s.d_ff; ++f)
                magnitude += std::abs(static_cast<double>(row[f]) * h[f]);
            out.value.push_back(y.value);
            out.bound.push_back(6 * std::sqrt(variance(y, s.d_ff) + carried(row, h_variance)) +
                                8 * u * magnitude);
        }
    }
    return out;
}

// Compares one call of each layer for each number of tokens; true if all is within its bound.
bool check(const tiffin_bench::dense_peer_kind& kind, const dense_shape& s, int threads,
           const std::vector<layer_weights>& given, const std::vector<std::size_t>& token_counts) {
    const rounding how = rounding_of(kind);
    std::vector<layer_weights> layers = given;
    for (layer_weights& w : layers)
        for (std::size_t f = 0; f < s.d_ff; ++f) {
            how.weights(w.gate.data() + f * s.d_model, s.d_model);
            how.weights(w.up.data() + f * s.d_model, s.d_model);
        }
    for (layer_weights& w : layers)
        for (std::size_t m = 0; m < s.d_model; ++m) how.weights(w.down.data() + m * s.d_ff, s.d_ff);
    const auto peer = kind.make(s, threads,
                                {[&](std::size_t l) { return given[l].gate.data(); },
                                 [&](std::size_t l) { return given[l].up.data(); },
                                 [&](std::size_t l) { return given[l].down.data(); }});
    bool right = true;
    double worst_error = 0;
    double worst_share = 0;
    std::mt19937 random(7);
    for (const std::size_t tokens : token_counts) {
        const std::vector<float> x = random_floats(tokens * s.d_model, 1.0f, random);
        // Without it, a call prepares for itself.
        if (tokens % 2 == 1) peer->prepare(tokens);
        for (std::size_t l = 0; l < s.layers; ++l) {
            const bounded expected = reference(s, layers[l], how, x.data(), tokens);
            // One float beyond the output shows whether a peer writes past it.
            constexpr float untouched = 12345.0f;
            std::vector<float> y(tokens * s.d_model + 1, std::numeric_limits<float>::quiet_NaN());
            y.back() = untouched;
            peer->run(l, x.data(), tokens, y.data());
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
    std::printf("%-8s %-13s d_model %3zu d_ff %3zu threads %d: largest error %.2e, %.2f of its bound\n",
                kind.library.c_str(), kind.format.c_str(), s.d_model, s.d_ff, threads, worst_error,
                worst_share);
    return right;
}

}  // namespace

int main() {
    int failures = 0;
    const auto kinds = tiffin_bench::dense_peer_kinds();
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
        for (const tiffin_bench::dense_peer_kind& kind : kinds)
            for (const int threads : {1, 2})
                if (s.d_model % kind.multiple == 0 && s.d_ff % kind.multiple == 0 &&
                    !check(kind, s, threads, layers, token_counts))
                    ++failures;
    }
    std::printf(failures ? "%d failures\n" : "all peers agree with the reference\n", failures);
    return failures;
}
