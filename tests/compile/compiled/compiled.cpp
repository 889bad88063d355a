// Layers of the library tiffin::compiled, and one of one's own on its kernels, beside the reference.
#include <tiffin/compiled.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/reference/reference.hpp>
#include <tiffin/source/through.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

constexpr std::size_t d = 64, f = 96, vocab = 10, tokens = 5;

using tiffin::any_format;
using own_ffn = tiffin::ffn<tiffin::gate<tiffin::relu>, tiffin::sum<tiffin::dense, tiffin::token_embedding>>;

// The largest difference from the reference, relative to the largest output.
template <class Block, class Backend>
double difference(const Backend& backend) {
    std::vector<float> numbers(vocab * f * d);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i * 7 % 17 + 1) / 64.0f;
    tiffin::weights weights;
    weights.add("gate_proj.weight", numbers.data(), {f, d})
        .add("up_proj.weight", numbers.data() + 3, {f, d})
        .add("down_proj.weight", numbers.data() + 5, {d, f});
    if constexpr (std::same_as<Block, own_ffn>)
        weights.add("stem_embed.weight", numbers.data() + 9, {vocab, f});
    const std::vector<float> x(numbers.begin() + 11, numbers.begin() + 11 + tokens * d);
    const std::vector<std::int32_t> ids{0, 3, 9, 1, 1};
    std::vector<float> y(tokens * d), wanted(tokens * d);
    auto layer = tiffin::try_prepare<Block>(weights, backend);
    auto reference = tiffin::try_prepare<Block>(weights, tiffin::reference{});
    if (!layer || !reference) return HUGE_VAL;
    if (!layer->try_call(x, ids, y) || !reference->try_call(x, ids, wanted)) return HUGE_VAL;
    double most = 0, largest = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
        most = std::fmax(most, std::fabs(static_cast<double>(y[i]) - static_cast<double>(wanted[i])));
        largest = std::fmax(largest, std::fabs(static_cast<double>(wanted[i])));
    }
    return most / largest;
}

}  // namespace

int main() {
    // All numbers are positive, so that nothing cancels: a sum of n terms in f32 is off by n 2^-24 of itself.
    // A gate's silu(z) is off by less than twice what z > 0 is, and exp by 4 units: 2 (d + 4), d, f and 8 more.
    const double limit = (3 * d + f + 16) * 0x1p-24;
    const double layers[] = {difference<tiffin::swiglu>(tiffin::simd{}),
                             difference<tiffin::swiglu>(tiffin::simd<any_format, any_format>{
                                 {tiffin::dtype::f32}, {tiffin::dtype::f32}}),
                             difference<own_ffn>(tiffin::simd{})};
    int wrong = 0;
    for (const double one : layers) {
        std::printf("largest difference %.3g, limit %.3g\n", one, limit);
        wrong += one <= limit ? 0 : 1;
    }
    return wrong;
}
