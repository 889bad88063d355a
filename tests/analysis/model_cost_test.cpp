// The accounting of whole models against the tables of STEM, StructMoE and MeKi, and against counts by hand.
#include <tiffin/analysis/model_cost.hpp>

#include <tiffin/layers.hpp>

#include "support/doctest.hpp"

#include <cmath>
#include <cstddef>
#include <utility>

namespace analysis_model_cost_test {
using namespace tiffin;

namespace {

// As a table prints it: so many digits behind the point.
double printed(double x, int digits) {
    const double unit = std::pow(10.0, digits);
    return std::round(x * unit) / unit;
}
double billions(double parameters, int digits) {
    return printed(parameters / 1e9, digits);
}

// A Llama-like model of which `sparse` layers have STEM's blocks in the place of SwiGLU.
model_cost stem_model(const attention_shape& attention, const block_shape& sizes, std::size_t layers,
                      std::size_t sparse) {
    return cost({.d_model = sizes.d_model,
                 .vocab = sizes.vocab,
                 .attention = attention,
                 .tied = false,
                 .layers = {{layers - sparse, cost<swiglu>(sizes)}, {sparse, cost<stem>(sizes)}}});
}

// MobileLLM-350M and Llama-3.2-1B. STEM does not print the vocabularies: these give its totals.
model_cost stem_350m(std::size_t sparse) {
    return stem_model({15, 5, 64}, {.d_model = 960, .d_ff = 2560, .vocab = 32000}, 32, sparse);
}
model_cost stem_1b(std::size_t sparse) {
    return stem_model({32, 8, 64}, {.d_model = 2048, .d_ff = 8192, .vocab = 128256}, 16, sparse);
}

}  // namespace

// STEM's tables: one third of 32 layers is 10, of 16 is 5; all but the first are 31.
TEST_CASE("model_cost: STEM's active parameters and FLOPs") {
    CHECK(billions(stem_350m(0).active(), 3) == 0.376);
    CHECK(billions(stem_350m(10).active(), 3) == 0.351);
    CHECK(billions(stem_350m(16).active(), 3) == 0.337);
    CHECK(billions(stem_350m(31).active(), 3) == 0.300);
    CHECK(billions(stem_1b(0).active(), 3) == 1.498);
    CHECK(billions(stem_1b(5).active(), 2) == 1.41);
    // GFLOPs are twice that. The first is printed as 0.74.
    CHECK(billions(2 * stem_350m(0).active(), 2) == 0.75);
    CHECK(billions(2 * stem_350m(10).active(), 2) == 0.70);
    CHECK(billions(2 * stem_350m(16).active(), 2) == 0.67);
    CHECK(billions(2 * stem_350m(31).active(), 2) == 0.60);
    CHECK(billions(2 * stem_1b(0).active(), 2) == 3.00);
    CHECK(billions(2 * stem_1b(5).active(), 2) == 2.83);
}

TEST_CASE("model_cost: STEM's totals") {
    CHECK(billions(stem_1b(5).stored(), 2) == 6.67);
    // Printed 6.75: with the up projections that the tables replace.
    CHECK(billions(stem_1b(5).stored() + 5 * 2048.0 * 8192, 2) == 6.75);
    // Printed 1.14, 1.85 and 3.25: none follows, with the removed projections or without.
    CHECK(billions(stem_350m(10).stored(), 2) == 1.17);
    CHECK(billions(stem_350m(16).stored(), 2) == 1.65);
    CHECK(billions(stem_350m(31).stored(), 2) == 2.84);
    CHECK(billions(stem_350m(10).stored() + 10 * 960.0 * 2560, 2) == 1.20);
    CHECK(billions(stem_350m(16).stored() + 16 * 960.0 * 2560, 2) == 1.69);
    CHECK(billions(stem_350m(31).stored() + 31 * 960.0 * 2560, 2) == 2.92);
}

// STEM, Table 3: averages over GFLOPs as printed.
TEST_CASE("model_cost: return on training") {
    struct row {
        double score, gflops, roi;
    };
    for (const row& r : {row{49.72, 0.74, 1},
                         {50.58, 0.74, 1.02},
                         {50.90, 0.70, 1.08},
                         {49.10, 0.70, 1.04},
                         {50.60, 0.74, 1.02},
                         {54.20, 0.67, 1.20},
                         {53.43, 0.60, 1.33}}) {
        CAPTURE(r.score);
        CHECK(printed(return_on_training(r.score, r.gflops, 49.72, 0.74), 2) == r.roi);
    }
    CHECK(printed(return_on_training(56.63, 2.83, 55.82, 3.00), 2) == 1.08);
}

TEST_CASE("model_cost: StructMoE's models") {
    const block_shape sizes{.d_model = 2048, .d_ff = 6618, .experts = 16, .rank = 16};
    const auto stored = [&](std::size_t layers) {
        return cost({.d_model = 2048,
                     .vocab = 128256,
                     .attention = {32, 32, 64},
                     .tied = false,
                     .layers = {{layers, cost<structmoe>(sizes)}}})
            .stored();
    };
    CHECK(billions(stored(8), 3) == 0.894);
    CHECK(billions(stored(24), 3) == 1.633);
}

// MeKi: Qwen3's shapes, memories of d_mem per layer, folded into tables.
TEST_CASE("model_cost: MeKi's parameters in memory and on the disk") {
    struct model {
        std::size_t d, f, layers, heads, memory;
        double ram, rom;
        int digits;
    };
    for (const model& m : {model{1024, 3072, 28, 16, 128, 0.603, 0.544, 3},
                           {2048, 6144, 28, 16, 256, 1.749, 1.087, 3},
                           {2560, 9728, 36, 32, 512, 4.116, 2.796, 3}}) {
        CAPTURE(m.d);
        block_cost block = cost<swiglu>({.d_model = m.d, .d_ff = m.f});
        // The folded memory beside it: two projections of d_mem, and a table.
        const double d = static_cast<double>(m.d), inner = static_cast<double>(m.memory);
        block.parameters += 2 * d * inner + 151680 * inner;
        block.parameters_per_token += 2 * d * inner + inner;
        block.table_parameters += 151680 * inner;
        block.row_parameters += inner;
        const model_cost all = cost({.d_model = m.d,
                                     .vocab = 151680,
                                     .attention = {m.heads, 8, 128, true},
                                     .layers = {{m.layers, block}}});
        CHECK(billions(all.without_tables(), m.digits) == m.ram);
        CHECK(billions(all.tables, m.digits) == m.rom);
        CHECK(all.stored() == all.without_tables() + all.tables);
    }
}

TEST_CASE("model_cost: counts by hand") {
    const block_shape sizes{.d_model = 8, .d_ff = 24, .vocab = 50};
    const model_shape shape{.d_model = 8,
                            .vocab = 50,
                            .attention = {4, 2, 3, true},
                            .tied = false,
                            .layers = {{2, cost<swiglu>(sizes)}, {1, cost<stem>(sizes)}}};
    const model_cost c = cost(shape);
    const double projections = 2 * 8 * 12 + 2 * 8 * 6;
    CHECK(c.attention == 3 * (projections + 6));
    CHECK(c.norms == 7 * 8);
    CHECK(c.blocks == (2 * 3 + 2) * 8 * 24);
    CHECK(c.tables == 50 * 24);
    CHECK(c.rows_per_token == 24);
    CHECK(c.fetched_numbers(7) == 7 * 24);
    CHECK(c.active() == 2 * 50 * 8 + c.attention + c.norms + c.blocks);
    CHECK(c.stored() == c.active() + c.tables);
    const double once = 2 * 50 * 8 + 3 * 2 * projections + 2 * c.blocks + 3 * 5 * 24;
    CHECK(c.decode_flops(0) == once);
    CHECK(c.decode_flops(10) == once + 3 * 10 * 2 * 2 * 12);
    // A sequence is its tokens, one after the other.
    double sum = 0;
    for (int t = 1; t <= 9; ++t) sum += c.decode_flops(t);
    CHECK(c.prefill_flops(9) == sum);
    CHECK(c.training_flops(9) == 3 * sum);
    CHECK(c.cache_bytes(10) == 10 * 3 * 2 * 6 * 2);
    CHECK(c.decode_bytes(10, 8, 32, 16) ==
          c.attention + c.norms + c.blocks + 50 * 8 + 8 + 4 * 24 + c.cache_bytes(10));
    model_shape tied = shape;
    tied.tied = true;
    CHECK(cost(tied).stored() == c.stored() - 50 * 8);
    CHECK(cost(tied).decode_flops(3) == c.decode_flops(3));
    CHECK(cost(tied).decode_bytes(3) == c.decode_bytes(3));
}

}  // namespace analysis_model_cost_test
