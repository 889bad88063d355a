// An FFN nobody has named, in one line.
#include <tiffin/tiffin.hpp>

#include <cstdint>
#include <cstdio>
#include <vector>

// GELU gate; up source: the dense projection plus a table row; the output normalised.
using my_ffn = tiffin::ffn<tiffin::gate<tiffin::gelu>, tiffin::sum<tiffin::dense, tiffin::token_embedding>,
                           tiffin::multiply, tiffin::project<tiffin::rms>>;

int main() {
    const std::size_t d_model = 64, d_ff = 160, vocab = 100, tokens = 3;
    const std::vector<float> gate(d_ff * d_model, 0.02f), up(d_ff * d_model, 0.01f),
        table(vocab * d_ff, 0.5f), down(d_model * d_ff, 0.03f), norm(d_model, 1.0f);

    // Tensors by name: what the composition reads, and nothing else.
    tiffin::weights weights;
    weights.add("gate_proj.weight", gate.data(), {d_ff, d_model})
        .add("up_proj.weight", up.data(), {d_ff, d_model})
        .add("stem_embed.weight", table.data(), {vocab, d_ff})
        .add("down_proj.weight", down.data(), {d_model, d_ff})
        .add("post_norm.weight", norm.data(), {d_model});

    auto layer = tiffin::prepare<my_ffn>(weights, tiffin::simd{});

    const std::vector<float> x(tokens * d_model, 1.0f);
    const std::vector<std::int32_t> token_ids{7, 42, 99};
    std::vector<float> y(tokens * d_model);
    layer(x, token_ids, y);

    constexpr tiffin::block_cost cost = tiffin::cost<my_ffn>({d_model, d_ff, vocab});
    std::printf("y[0] = %.4f; %.0f FLOPs and %.0f bytes a token\n", static_cast<double>(y[0]),
                cost.matrix_flops_per_token, cost.bytes_per_token());
}
