// A source of one's own: a formula and its tensors. Every backend serves it.
#include <tiffin/cpu/eigen/eigen.hpp>
#include <tiffin/tiffin.hpp>

#include <cstdint>
#include <cstdio>
#include <string_view>
#include <vector>

// A table row scaled feature by feature: z = s * U[t].
struct scaled_embedding {
    using rows = tiffin::table<"weight">;   // (vocab, width)
    using scale = tiffin::vector<"scale">;  // (width)
    using tensors = tiffin::tensor_list<rows, scale>;
    static constexpr std::string_view name = "scaled_embed";

    // TIFFIN_HD: a CUDA compiler builds it for the device too.
    TIFFIN_HD auto operator()(const auto& at) const { return at[scale{}] * at[rows{}]; }
};

using my_ffn = tiffin::ffn<tiffin::gate<tiffin::silu>, scaled_embedding>;

template <class Backend>
float first_output(const tiffin::weights& weights, const Backend& backend) {
    auto layer = tiffin::prepare<my_ffn>(weights, backend);
    const std::vector<float> x(layer.d_model(), 1.0f);
    const std::vector<std::int32_t> token_ids{2};
    std::vector<float> y(layer.d_model());
    layer(x, token_ids, y);
    return y[0];
}

int main() {
    const std::vector<float> gate(24 * 8, 0.1f), table(5 * 24, 0.5f), scale(24, 3.0f), down(8 * 24, 0.2f);
    tiffin::weights weights;
    weights.add("gate_proj.weight", gate.data(), {24, 8})
        .add("scaled_embed.weight", table.data(), {5, 24})
        .add("scaled_embed.scale", scale.data(), {24})
        .add("down_proj.weight", down.data(), {8, 24});
    std::printf("reference %.6f\n", static_cast<double>(first_output(weights, tiffin::reference{})));
    std::printf("eigen     %.6f\n", static_cast<double>(first_output(weights, tiffin::eigen{})));
    std::printf("simd      %.6f\n", static_cast<double>(first_output(weights, tiffin::simd{})));
}
