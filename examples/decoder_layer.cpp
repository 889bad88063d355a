// Wiring MeKi into a decoder layer, in the four places that the paper compares. The attention is a small one
// of this example's own; the FFN and the memory are tiffin's.
//
//   A = residual + attention(norm(residual))                    the state after attention
//   beside the FFN        out = A + FFN(norm(A)) + MeKi(norm(A))          the paper's default: one block,
//                                                                         parallel<swiglu, meki>
//   beside attention      A'  = A + MeKi(norm(residual)); out = A' + FFN(norm(A'))
//   after attention       A'  = A + MeKi(norm(A));        out = A' + FFN(norm(A'))
//   after the FFN         F   = A + FFN(norm(A));         out = F + MeKi(norm(F))
//
// The published code reads the gate from A and not from norm(A): on_residual<meki>, with A in
// token_inputs::residual.
#include <tiffin/tiffin.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace {

constexpr std::size_t tokens = 12, d_model = 64, heads = 4, d_ff = 160, d_mem = 16, vocab = 50;
constexpr std::size_t head = d_model / heads;

using rows = std::vector<float>;  // (tokens, d_model)

// The weights of a block, small random numbers, and the memory they lie in.
struct initialised {
    std::vector<std::vector<float>> memory;
    tiffin::weights tensors;
};
template <class Block>
initialised initialise(const Block& block, const tiffin::block_shape& sizes, std::uint64_t seed) {
    initialised made;
    for (const auto& [name, t] : tiffin::tensors_needed(block, sizes)) {
        if (t.needed == tiffin::presence::optional) continue;
        auto& numbers = made.memory.emplace_back(t.shape.elements());
        tiffin::fill_normal(numbers, 0.1, seed++);
        if (name.ends_with("norm.weight")) std::fill(numbers.begin(), numbers.end(), 1.0f);
        made.tensors.add(name, numbers.data(), t.shape);
    }
    return made;
}

rows normed(const rows& in) {
    rows out(in.size());
    for (std::size_t t = 0; t < tokens; ++t) {
        float squares = 0;
        for (std::size_t i = 0; i < d_model; ++i) squares += in[t * d_model + i] * in[t * d_model + i];
        const float scale = tiffin::rms{}.scale(squares, static_cast<float>(d_model));
        for (std::size_t i = 0; i < d_model; ++i) out[t * d_model + i] = in[t * d_model + i] * scale;
    }
    return out;
}

rows sum(const rows& a, const rows& b) {
    rows out(a);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += b[i];
    return out;
}

// Causal self-attention with the inputs themselves as queries, keys and values.
rows attention(const rows& x) {
    rows out(x.size(), 0.0f);
    for (std::size_t t = 0; t < tokens; ++t)
        for (std::size_t h = 0; h < heads; ++h) {
            std::vector<float> score(t + 1);
            float total = 0;
            for (std::size_t s = 0; s <= t; ++s) {
                float dot = 0;
                for (std::size_t i = h * head; i < (h + 1) * head; ++i)
                    dot += x[t * d_model + i] * x[s * d_model + i];
                total += score[s] = std::exp(dot / std::sqrt(static_cast<float>(head)));
            }
            for (std::size_t s = 0; s <= t; ++s)
                for (std::size_t i = h * head; i < (h + 1) * head; ++i)
                    out[t * d_model + i] += score[s] / total * x[s * d_model + i];
        }
    return out;
}

}  // namespace

int main() {
    const tiffin::block_shape wide{.d_model = d_model, .d_ff = d_ff, .vocab = vocab};
    const tiffin::block_shape narrow{.d_model = d_model, .d_ff = d_mem, .vocab = vocab};
    const initialised ffn_weights = initialise(tiffin::swiglu{}, wide, 1);
    const initialised meki_weights = initialise(tiffin::meki{}, narrow, 100);
    auto ffn = tiffin::prepare<tiffin::swiglu>(ffn_weights.tensors, tiffin::simd{});
    auto meki = tiffin::prepare<tiffin::meki>(meki_weights.tensors, tiffin::simd{});

    // Both as one block: the same tensors under the branches' names.
    tiffin::weights both;
    for (const auto& [name, tensor] : ffn_weights.tensors.entries()) both.add("branch.0." + name, tensor);
    for (const auto& [name, tensor] : meki_weights.tensors.entries()) both.add("branch.1." + name, tensor);
    auto beside = tiffin::prepare<tiffin::parallel<tiffin::swiglu, tiffin::meki>>(both, tiffin::simd{});

    std::vector<std::int32_t> ids(tokens);
    for (std::size_t t = 0; t < tokens; ++t) ids[t] = static_cast<std::int32_t>(t * 7 % vocab);
    rows residual(tokens * d_model);
    tiffin::fill_normal(residual, 1.0, 7);
    const auto call = [&](auto& layer, const rows& x) {
        rows y(x.size());
        layer(x, ids, y);
        return y;
    };

    const rows a = sum(residual, attention(normed(residual)));
    std::printf("the last token's first three numbers, MeKi\n");
    const auto show = [](const char* name, const rows& out) {
        const float* const last_row = out.data() + (tokens - 1) * d_model;
        std::printf("%-18s %9.5f %9.5f %9.5f\n", name, static_cast<double>(last_row[0]),
                    static_cast<double>(last_row[1]), static_cast<double>(last_row[2]));
    };
    const rows in_one = sum(a, call(beside, normed(a)));
    show("beside the FFN", in_one);
    const rows with = sum(a, call(meki, normed(residual)));
    show("beside attention", sum(with, call(ffn, normed(with))));
    const rows after = sum(a, call(meki, normed(a)));
    show("after attention", sum(after, call(ffn, normed(after))));
    const rows last = sum(a, call(ffn, normed(a)));
    show("after the FFN", sum(last, call(meki, normed(last))));

    // The two ways of writing the first place differ by no more than the order of two additions.
    const rows by_parts = sum(a, sum(call(ffn, normed(a)), call(meki, normed(a))));
    for (std::size_t i = 0; i < in_one.size(); ++i)
        if (std::abs(in_one[i] - by_parts[i]) > 1e-5f) return 1;
    return 0;
}
