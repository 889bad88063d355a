// What the layers of the four papers cost, from their composition: published figures
// (docs/layers.md#published-figures).
#include <tiffin/analysis/cost.hpp>
#include <tiffin/analysis/equivalence.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/source/through.hpp>

#include "support/doctest.hpp"

#include <array>

namespace analysis_cost_layers_test {
using namespace tiffin;

TEST_CASE("cost: structmoe at equal parameters") {
    constexpr double d = 2048, f = 7168, L = 16, r = 16, width = 6618;
    constexpr block_shape shape{.d_model = 2048, .d_ff = 6618, .experts = 16, .rank = 16};
    for (const std::size_t k : {1u, 3u}) {
        structmoe block;
        std::get<1>(block.hidden.input.terms).router.top_k = k;
        const block_cost c = cost(shape, block);
        CHECK(c.parameters == 2 * d * width + L * r * (d + width) + d * L);
        CHECK(c.matrix_flops_per_token ==
              4 * d * width + 2 * d * L + 2 * static_cast<double>(k) * r * (d + width));
        // Of the bank, a token reads its own experts.
        CHECK(c.parameters_per_token == 2 * d * width + static_cast<double>(k) * r * (d + width) + d * L);
    }
    // As many parameters as the dense block, to within one column of the hidden width.
    const double dense = cost<mlp>({.d_model = 2048, .d_ff = 7168}).parameters;
    CHECK(cost<structmoe>(shape).parameters <= dense);
    CHECK(dense - cost<structmoe>(shape).parameters < 2 * d + L * r);
    CHECK(cost<structmoe>(shape).matrix_flops_per_token / (4 * d * f) ==
          doctest::Approx(0.929).epsilon(0.0005));
}

TEST_CASE("cost: meki's memory") {
    const auto layers = [](std::size_t d_mem) {
        return 28 * cost<meki>({.d_model = 1024, .d_ff = d_mem, .vocab = 151680}).table_parameters;
    };
    CHECK(layers(128) == doctest::Approx(5.44e8).epsilon(0.002));
    CHECK(layers(192) == doctest::Approx(8.15e8).epsilon(0.002));
    CHECK(layers(256) == doctest::Approx(1.09e9).epsilon(0.003));
    // 14 KiB a token in f16 through 28 layers.
    const block_cost c = cost<meki>({.d_model = 1024, .d_ff = 256, .vocab = 151680});
    CHECK(28 * c.row_parameters * 2 == 14 * 1024);
    // As trained, a token reads a row of words as well, and G.
    const block_cost trained =
        cost<meki_training>({.d_model = 1024, .d_ff = 256, .vocab = 151680, .inner = {1024, 512}});
    CHECK(trained.row_parameters == 256 + 1024);
    CHECK(trained.matrix_flops_per_token - c.matrix_flops_per_token == 2.0 * (2 * 1024 * 512 + 512 * 256));
}

TEST_CASE("cost: a bank inside a chain counts the experts that it picks, and the chain's own formulas") {
    using chain = through<"low", gate<silu, named<dense, "narrow">>, routed_low_rank<>>;
    using block = ffn<gate<gelu>, chain, add>;
    block made;
    std::get<1>(made.hidden.up.steps).router.top_k = 2;
    constexpr double d = 64, f = 96, n = 24, r = 3, experts = 8;
    const block_shape sizes{.d_model = 64, .d_ff = 96, .vocab = 1, .experts = 8, .rank = 3, .inner = {24, 1}};
    const block_cost c = cost<block>(sizes, made);
    CHECK(c.matrix_flops_per_token == 2 * (d * f + d * n + experts * n + 2 * r * (n + f) + f * d));
    CHECK(c.parameters_per_token == d * f + d * n + experts * n + 2 * r * (n + f) + f * d);
    CHECK(c.elementwise_flops_per_token == gelu::flops() * f + silu::flops() * n + add::flops() * f);
}

TEST_CASE("cost: retoken and mort") {
    constexpr block_shape shape{.d_model = 2048, .d_ff = 8192, .vocab = 1000, .experts = 4};
    const block_cost base = cost<swiglu>(shape), re = cost<retoken<swiglu>>(shape),
                     mo = cost<mort<swiglu>>(shape);
    // The paper's "about 4d" are v^2 + ., v * n, s * . + 1 and y * p, a multiply-add counted once; here it
    // counts as 2, which makes 6.
    CHECK(re.elementwise_flops_per_token - base.elementwise_flops_per_token == 6 * 2048);
    CHECK(re.matrix_flops_per_token == base.matrix_flops_per_token);
    CHECK(re.parameters - base.parameters == 1000 * 2048 + 2048);
    CHECK(re.row_parameters == 2048);
    CHECK(mo.parameters - base.parameters == 4 * 1000 * 2048 + 2048 + 4 * 2048);
    CHECK(mo.row_parameters == 2 * 2048);
    CHECK(mo.matrix_flops_per_token - base.matrix_flops_per_token == 2 * 4 * 2048);
    // Eq. 7's other terms, 2 d K + 6 d: the mix, and norm, scale, divisor and sum.
    CHECK(mo.elementwise_flops_per_token - base.elementwise_flops_per_token == 2 * 2048 * 2 + 6 * 2048);
    // The comments of the two modulators: without the product by F(x), or the sum with it.
    CHECK(detail::modulator_norm<l2>().flops() + token_modulator<>::flops() == 5);
    CHECK(detail::modulator_norm<l2>().flops() + modulator_pool<>::flops() == 5);
}

TEST_CASE("cost: deep_embed and mole") {
    constexpr double d = 100, f = 300, V = 1000, n = 7, w = 11;
    constexpr block_shape shape{.d_model = 100, .d_ff = 300, .vocab = 1000, .experts = 7, .inner = {11, 11}};
    const block_cost c = cost<deep_embed_v7a>(shape);
    CHECK(c.parameters == 2 * d * f + n * d + w * f + V * n * w);
    CHECK(c.row_parameters == n * w);  // of the token's matrix all rows
    CHECK(c.matrix_flops_per_token == 4 * d * f + 2 * n * d + 2 * w * f);
    CHECK(c.elementwise_flops_per_token == 2 * n * w + 3 * f);
    const block_cost m = cost<mole>(shape);
    CHECK(m.parameters == 2 * d * f + n * d + n * V * d);
    CHECK(m.row_parameters == n * d);
    CHECK(m.matrix_flops_per_token == 4 * d * f + 2 * n * d);
    CHECK(m.elementwise_flops_per_token == 2 * n * d + d + gelu::flops() * f);
    // As trained, each of the experts is computed.
    const block_cost trained = cost<mole_training>(shape);
    CHECK(trained.matrix_flops_per_token == 4 * d * f + 2 * n * d + n * 2 * (w * f + f * d));
}

TEST_CASE("cost: mixtures and branches") {
    const moe<swiglu> block{{2}, {}, {}};
    constexpr block_shape shape{.d_model = 64, .d_ff = 96, .vocab = 10, .experts = 16};
    const double expert = cost<swiglu>(shape).parameters;
    const block_cost c = cost(shape, block);
    CHECK(c.parameters == 16 * expert + 16 * 64);
    CHECK(c.parameters_per_token == doctest::Approx(2 * expert + 16 * 64));
    CHECK(c.matrix_flops_per_token == doctest::Approx(4 * expert + 2 * 16 * 64));
    const block_cost shared = cost(shape, mixture<softmax_topk, swiglu, stem>{{2}, {}, {}});
    CHECK(shared.parameters == c.parameters + cost<stem>(shape).parameters);
    block_shape hashed = shape;
    hashed.choices = 3;
    CHECK(cost<hash_moe<swiglu>>(hashed).matrix_flops_per_token == doctest::Approx(6 * expert));

    const std::array<block_shape, 2> parts{{shape, {.d_model = 64, .d_ff = 8, .vocab = 10}}};
    block_shape both = shape;
    both.parts = parts.data();
    CHECK(cost<parallel<swiglu, meki>>(both).parameters ==
          cost<swiglu>(parts[0]).parameters + cost<meki>(parts[1]).parameters);
}

// docs/layers.md#product-keys, #l3: their tables of costs.
TEST_CASE("cost: rows chosen by keys and by ranges") {
    constexpr double d = 64, f = 96, n = 32, c = 8, heads = 3, k = 5, w = 24, u = 40, range = 7, rows = 500;
    constexpr double keys = 2 * heads * c * d + 2 * heads * n * c, key_flops = 4 * heads * (c * d + n * c);
    const block_shape sizes{.d_model = 64, .d_ff = 96, .vocab = 9, .experts = 32 * 32, .rank = 8, .heads = 3};
    product_key_memory memory;
    memory.router.top_k = 5;
    const block_cost pkm = cost(sizes, memory);
    CHECK(pkm.parameters == keys + n * n * d);
    CHECK(pkm.table_parameters == n * n * d);
    CHECK(pkm.parameters_per_token == keys + heads * k * d);
    CHECK(pkm.row_parameters == heads * k * d);
    CHECK(pkm.matrix_flops_per_token == key_flops);
    CHECK(pkm.elementwise_flops_per_token == 2 * heads * k * d);
    memory_plus gated;
    gated.hidden.up = memory;
    const block_cost plus = cost(sizes, gated);
    CHECK(plus.parameters == keys + n * n * f + 2 * d * f);
    CHECK(plus.parameters_per_token == keys + heads * k * f + 2 * d * f);
    CHECK(plus.matrix_flops_per_token == key_flops + 4 * d * f);
    CHECK(plus.elementwise_flops_per_token == 2 * heads * k * f + 5 * f);
    peer neurons;
    neurons.router.top_k = 5;
    const block_cost experts = cost(sizes, neurons);
    CHECK(experts.parameters == keys + 2 * n * n * d);
    CHECK(experts.row_parameters == 2 * heads * k * d);
    CHECK(experts.matrix_flops_per_token == key_flops + 2 * heads * k * d);
    CHECK(experts.elementwise_flops_per_token == 2 * heads * k * d);
    const block_cost ranges =
        cost<l3>({.d_model = 64, .vocab = 9, .experts = 500, .inner = {24, 40}, .choices = 7});
    CHECK(ranges.parameters == rows * (d + w) + u * w + d * u + d * d + u + 2 * 9);
    CHECK(ranges.row_parameters == range * (d + w));
    CHECK(ranges.matrix_flops_per_token == 2 * (range * d + u * w + d * u + d * d));
    CHECK(ranges.elementwise_flops_per_token == 2 * range * w + 4 * u + d);
}

// docs/layers.md#engram, #longcat.
TEST_CASE("cost: rows of the last ids") {
    constexpr double d = 64, c = 40;
    const block_cost gate = cost<engram>({.d_model = 64, .inner = {40, 40}});
    CHECK(gate.parameters == 2 * c * d + 2 * d);
    CHECK(gate.matrix_flops_per_token == 4 * c * d);
    CHECK(gate.elementwise_flops_per_token == 11 * d);
    const block_cost branch = cost<engram_branch>({.d_model = 64, .inner = {40}});
    CHECK(branch.parameters == c * d + 2 * d);
    CHECK(branch.matrix_flops_per_token == 2 * c * d);
    CHECK(branch.elementwise_flops_per_token == 11 * d);
    const block_cost whole = cost<longcat_sparse_embedding>({.d_model = 64, .vocab = 9, .inner = {40, 1}});
    CHECK(whole.parameters == c * d + 9 * d);
    CHECK(whole.elementwise_flops_per_token == 2 * d);
    const block_cost mean = cost<longcat_embedding>({.d_model = 64, .vocab = 9, .inner = {40, 1}});
    CHECK(mean.parameters == c * d + 9 * d);
    CHECK(mean.row_parameters == d);
    CHECK(mean.matrix_flops_per_token == 2 * c * d);
    CHECK(mean.elementwise_flops_per_token == 2 * d);
}

}  // namespace analysis_cost_layers_test
