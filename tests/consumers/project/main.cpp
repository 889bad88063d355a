// What every consumer builds: a layer on the CPU whose one number can be worked out by hand.
#include <tiffin/tiffin.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

int main() {
    // x = (1, 5), gate z = x_0 = 1, row 1 of the table is 3: y = silu(1) * 3 * (1, -1).
    const std::vector<float> gate{1, 0}, table{2, 3}, down{1, -1}, x{1, 5};
    const std::vector<std::int32_t> ids{1};
    std::vector<float> y(2);
    tiffin::weights weights;
    weights.add("gate_proj.weight", gate.data(), {1, 2})
        .add("stem_embed.weight", table.data(), {2, 1})
        .add("down_proj.weight", down.data(), {2, 1});
    auto layer = tiffin::prepare<tiffin::stem>(weights, tiffin::simd{});
    layer(x, ids, y);
    const double expected = 3 / (1 + std::exp(-1.0));
    std::printf("y = (%g, %g), expected is (%g, %g)\n", double(y[0]), double(y[1]), expected, -expected);
    return std::abs(double(y[0]) - expected) < 1e-5 && std::abs(double(y[1]) + expected) < 1e-5 ? 0 : 1;
}
