// What can be wrong with routed, modulated and combined blocks: named, with the numbers, before y is written.
#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/eigen/eigen.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>

#include "support/doctest.hpp"
#include "support/policies.hpp"
#include "support/tensor_set.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace bind_errors_routed_test {
using namespace tiffin;
using tiffin_test::random_ids;
using tiffin_test::random_rows;
using tiffin_test::tensor_set;

namespace {

constexpr std::size_t d = 12, f = 20, vocab = 9;

template <class Block>
weights given_for(tensor_set& memory,
                  const std::function<tensor_view(const std::string&, tensor_view)>& change) {
    const weights right = memory.given();
    weights all;
    for (const weights::entry& e : right.entries()) {
        const tensor_view changed = change(e.name, e.tensor);
        if (changed.data != nullptr) all.add(e.name, changed);
    }
    return all;
}

// Prepares with one tensor changed, or dropped where `change` returns no data, and expects a failure. `optional`: which
// optional tensors are there.
template <class Block>
void refuses(
    const Block& block, errc code, const std::string& where, const std::vector<std::string>& words,
    const std::function<tensor_view(const std::string&, tensor_view)>& change =
        [](const std::string&, tensor_view t) { return t; },
    std::uint32_t optional = 0u) {
    tensor_set memory(tiffin_test::tensors_wanted(Block{}), {{d, f, vocab}, {}, {}, optional, 3});
    const auto made = try_prepare(block, given_for<Block>(memory, change), simd{});
    CAPTURE(where);
    REQUIRE_FALSE(made.ok());
    CHECK(made.failure().code == code);
    CHECK(made.failure().where == where);
    for (const std::string& word : words)
        CHECK_MESSAGE(made.failure().what.find(word) != std::string::npos, made.failure().what, " lacks ",
                      word);
}

std::function<tensor_view(const std::string&, tensor_view)> with_shape(const std::string& name,
                                                                       const shape& sizes) {
    return [=](const std::string& which, tensor_view t) {
        if (which == name) t.shape = sizes;
        return t;
    };
}

}  // namespace

TEST_CASE("errors: more experts chosen than there are, and none") {
    moe<swiglu> mixed;
    mixed.router.top_k = 5;
    refuses(mixed, errc::option, "top_k", {"is 5", "4 experts"});
    mixed.router.top_k = 0;
    refuses(mixed, errc::option, "top_k", {"is 0"});
    structmoe bank;
    std::get<1>(bank.hidden.input.terms).router.top_k = 9;
    refuses(bank, errc::option, "top_k", {"is 9", "4 experts"});
    mort<mlp> pool_block;
    pool_block.modulator.mixed.input.router.top_k = 6;
    refuses(pool_block, errc::option, "top_k", {"is 6", "4 experts"});
}

// A router inside a chain is seen like any other; it is named after the chain.
TEST_CASE("errors: a router inside a chain") {
    using block = ffn<gate<gelu, through<"low", named<dense, "narrow">, routed_low_rank<>>>>;
    block chained;
    std::get<1>(chained.hidden.input.steps).router.top_k = 9;
    refuses(chained, errc::option, "low.top_k", {"is 9", "4 experts"});
    refuses(block{}, errc::shape, "low.router.weight", {"experts = 4"},
            [](const std::string& name, tensor_view t) {
                if (name == "low.router.weight") t.shape = {t.shape[0] - 1, t.shape[1]};
                return t;
            });
}

TEST_CASE("errors: rows chosen by keys") {
    product_key_memory memory;
    refuses(memory, errc::option, "top_k", {"is 0", "2 keys", "no default"});
    memory.router.top_k = 3;
    refuses(memory, errc::option, "top_k", {"is 3", "2 keys"});
    memory.router.top_k = 2;
    refuses(memory, errc::shape, "keys.weight", {"(3, 2, 3)", "two groups"},
            with_shape("keys.weight", {3, 2, 3}));
    refuses(memory, errc::shape, "query.weight", {"(11, 12)", "query of 12"},
            with_shape("query.weight", {11, d}));
    refuses(memory, errc::shape, "values.weight", {"3 rows", "2 * 2"}, with_shape("values.weight", {3, d}));
    refuses(memory, errc::shape, "query.weight", {"d_model = 11", "values.weight"},
            with_shape("values.weight", {4, d - 1}));
    peer neurons;
    neurons.router.top_k = 1;
    refuses(neurons, errc::shape, "down_embed.weight", {"rows = 4"}, with_shape("down_embed.weight", {3, d}));
}

TEST_CASE("errors: ranges of rows") {
    std::vector<std::int32_t> bounds(2 * vocab, 0);
    const auto given = [&](const shape& sizes) {
        return [&bounds, sizes](const std::string& name, tensor_view t) {
            return name == "ranges" ? tensor_view{bounds.data(), dtype::i32, sizes} : t;
        };
    };
    const auto refuses_range = [&](std::int32_t begin, std::int32_t end, const std::string& text) {
        bounds[6] = begin;
        bounds[7] = end;
        refuses(l3{}, errc::option, "ranges", {"id 3", text, "there are 4"}, given({vocab, 2}));
    };
    refuses_range(2, 5, "[2, 5)");
    refuses_range(3, 2, "[3, 2)");
    refuses_range(-1, 2, "[-1, 2)");
    bounds[6] = bounds[7] = 0;
    refuses(l3{}, errc::shape, "ranges", {"(6, 3)", "(vocab, 2)"}, given({6, 3}));
    const std::vector<float> numbers(2 * vocab);
    refuses(l3{}, errc::dtype, "ranges", {"F32"}, [&](const std::string& name, tensor_view t) {
        return name == "ranges" ? tensor_view{numbers.data(), dtype::f32, {vocab, 2}} : t;
    });
}

TEST_CASE("errors: numbers that decide routes are finite") {
    constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
    constexpr float inf = std::numeric_limits<float>::infinity();
    std::vector<float> numbers;
    std::vector<double> wide;
    const auto with = [&](const std::string& name, float bad, bool as_double = false) {
        return [&, name, bad, as_double](const std::string& which, tensor_view t) {
            if (which != name) return t;
            numbers.resize(t.shape.elements());
            for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = load_as_f32(t.data, t.type, i);
            numbers[3] = bad;
            wide.assign(numbers.begin(), numbers.end());
            if (as_double) wide[2] = 1e300;  // finite, and no f32
            if (as_double) return tensor_view{wide.data(), dtype::f64, t.shape};
            return tensor_view{numbers.data(), dtype::f32, t.shape};
        };
    };
    product_key_memory keyed;
    keyed.router.top_k = 1;
    peer weighed;
    weighed.router.top_k = 1;
    const std::vector<std::pair<float, std::string>> all{
        {nan_value, "NaN"}, {inf, "infinite"}, {-inf, "-infinite"}};
    for (const auto& [bad, word] : all) {
        const std::vector<std::string> words{"number 3 is " + word, "is finite"};
        for (const char* const name : {"query.weight", "query.bias", "keys.weight"}) {
            refuses(keyed, errc::value, name, words, with(name, bad), ~0u);
            refuses(weighed, errc::value, name, words, with(name, bad), ~0u);
        }
        refuses(moe<mlp>{}, errc::value, "router.weight", words, with("router.weight", bad));
        refuses(structmoe{}, errc::value, "router.weight", words, with("router.weight", bad));
        refuses(deep_embed_v7a{}, errc::value, "in_proj.weight", words, with("in_proj.weight", bad));
    }
    refuses(moe<mlp>{}, errc::value, "router.selection_bias", {"number 3 is NaN", "is a number"},
            with("router.selection_bias", nan_value), ~0u);

    // A bias may be infinite: an expert that is always picked, or never.
    tensor_set memory(tiffin_test::tensors_wanted(moe<mlp>{}), {{d, f, vocab}, {}, {}, ~0u, 3});
    const std::vector<float> x = random_rows(8, d, 1);
    for (const float bias : {inf, -inf}) {
        auto layer =
            prepare(moe<mlp>{}, given_for<moe<mlp>>(memory, with("router.selection_bias", bias)), simd{});
        std::vector<float> y(8 * d);
        std::vector<choice<float>> routes(8);
        layer(x, {.routes = routes}, y);
        for (const choice<float>& one : routes) CHECK((one.expert == 3) == (bias > 0));
        for (const float v : y) CHECK(std::isfinite(v));
    }
    tensor_set keys(tiffin_test::tensors_wanted(product_key_memory{}), {{d, f, vocab}, {}, {}, 0u, 3});
    const auto in_double = [&](float bad) {
        return try_prepare(keyed, given_for<product_key_memory>(keys, with("keys.weight", bad, true)),
                           reference{});
    };
    CHECK(in_double(0).ok());
    CHECK(in_double(inf).failure().code == errc::value);
}

TEST_CASE("errors: options without a default") {
    refuses(mort<mlp>{}, errc::option, "num_layers", {"is 0", "no default"});
    refuses(parallel<mlp, delayed<source_block<modulator_pool<>>, 2>>{}, errc::option, "branch.1.num_layers",
            {"is 0"});
}

TEST_CASE("errors: two parts that read a per-layer input of different widths") {
    refuses(parallel<ple_given, ple_given>{}, errc::shape, "branch.1.per_layer_input", {"widths"},
            [](const std::string& name, tensor_view t) {
                if (name == "branch.1.gate_proj.weight") t.shape = {f - 1, d};
                if (name == "branch.1.out_proj.weight") t.shape = {d, f - 1};
                return t;
            });
}

// The modulator tells d_model, so that nothing else would be missing.
TEST_CASE("errors: branches counted at run time, of which there are none") {
    const std::vector<float> rows(5 * d, 1.0f);
    weights given;
    given.add("modulators.weight", rows.data(), {5, d});
    const modulated<parallel_of<mlp>, folded_modulator> none{};
    const auto made = try_prepare(none, given, simd{});
    REQUIRE_FALSE(made.ok());
    CHECK(made.failure().code == errc::missing_tensor);
    CHECK(made.failure().where == "base.branch.0.");
}

TEST_CASE("errors: a router of another number of experts, a missing expert, banks that disagree") {
    refuses(moe<mlp>{}, errc::shape, "router.weight", {"(3, 12)", "4 experts"},
            with_shape("router.weight", {3, d}));
    refuses(moe<mlp>{}, errc::missing_tensor, "experts.2.down_proj.weight", {"missing"},
            [](const std::string& name, tensor_view t) {
                return name == "experts.2.down_proj.weight" ? tensor_view{} : t;
            });
    refuses(moe<mlp>{}, errc::shape, "experts.1.up_proj.weight", {"d_model = 12", "router.weight"},
            with_shape("experts.1.up_proj.weight", {f + 4, d - 2}));
    refuses(structmoe{}, errc::shape, "lore_b.weight", {"rank = 3", "lore_a.weight"},
            with_shape("lore_b.weight", {4, f, 2}));
    refuses(structmoe{}, errc::shape, "router.weight", {"experts = 4"}, with_shape("router.weight", {3, d}));
    refuses(mort<mlp>{}, errc::shape, "modulators.weight", {"d_model = 12"},
            with_shape("modulators.weight", {4, vocab, d - 1}));
}

TEST_CASE("errors: hash maps") {
    const std::vector<std::int32_t> outside{0, 1, 2, 3, 0, 4, 1, 0, 2, 3, 1, 2, 0, 3, 1, 0, 2, 1};
    const auto map = [](const std::int32_t* data, const shape& sizes) {
        return [=](const std::string& name, tensor_view t) {
            return name == "hash_map" ? tensor_view{data, dtype::i32, sizes} : t;
        };
    };
    refuses(hash_moe<mlp>{}, errc::option, "hash_map", {"number 5 is 4", "4 experts"},
            map(outside.data(), {vocab, 2}));
    const std::vector<std::int32_t> negative{0, -1, 2}, twice{0, 1, 2, 2, 1, 0};
    refuses(hash_moe<mlp>{}, errc::option, "hash_map", {"number 1 is -1"}, map(negative.data(), {3}));
    refuses(hash_moe<mlp>{}, errc::option, "hash_map", {"numbers 2 and 3", "both 2"},
            map(twice.data(), {3, 2}));
    const std::vector<float> numbers(vocab);
    refuses(hash_moe<mlp>{}, errc::dtype, "hash_map", {"F32", "I32 or I64"},
            [&](const std::string& name, tensor_view t) {
                return name == "hash_map" ? tensor_view{numbers.data(), dtype::f32, {vocab}} : t;
            });

    // Too short for a token id: found at the call.
    tensor_set memory(tiffin_test::tensors_wanted(hash_moe<mlp>{}), {{d, f, vocab}, {}, {}, 0u, 3});
    auto layer = prepare<hash_moe<mlp>>(
        given_for<hash_moe<mlp>>(memory, with_shape("hash_map", {vocab - 2, 2})), simd{});
    const std::vector<float> x = random_rows(3, d, 1);
    std::vector<float> y(3 * d, 5.0f);
    const std::vector<std::int32_t> ids{0, static_cast<std::int32_t>(vocab - 2), 1};
    const status s = layer.try_call(x, ids, y);
    REQUIRE_FALSE(s.ok());
    CHECK(s.failure().code == errc::token_id);
    CHECK(s.failure().where == "hash_map");
    CHECK(s.failure().what == "token_ids[1] = 7 lies outside its 7 rows");
    for (const float v : y) CHECK(v == 5.0f);
}

TEST_CASE("errors: branches of different widths") {
    refuses(parallel<mlp, mlp>{}, errc::shape, "branch.1.up_proj.weight", {"d_model = 12", "branch.0"},
            [](const std::string& name, tensor_view t) {
                if (name == "branch.1.up_proj.weight") t.shape = {f, d - 1};
                if (name == "branch.1.down_proj.weight") t.shape = {d - 1, f};
                return t;
            });
}

TEST_CASE("errors: what a call must bring") {
    using block = parallel<on_residual<mlp>, ple_given>;
    tensor_set memory(tiffin_test::tensors_wanted(block{}), {{d, f, vocab}, {}, {}, 0u, 3});
    auto layer = prepare<block>(memory.given(), simd{});
    const std::vector<float> x = random_rows(4, d, 1), residual = random_rows(4, d, 2),
                             beside = random_rows(4, f, 3);
    std::vector<float> y(4 * d, 5.0f);
    const matrix_view<const float> r(residual.data(), 4, d), p(beside.data(), 4, f);
    const auto refused = [&](const token_inputs& inputs, errc code, const std::string& where) {
        const status s = layer.try_call(x, inputs, y);
        REQUIRE_FALSE(s.ok());
        CHECK(s.failure().code == code);
        CHECK(s.failure().where == where);
        for (const float v : y) REQUIRE(v == 5.0f);
    };
    refused({.per_layer_input = p}, errc::size, "residual");
    refused({.residual = r}, errc::size, "per_layer_input");
    refused({.residual = {residual.data(), 3, d}, .per_layer_input = p}, errc::size, "residual");
    refused({.residual = r, .per_layer_input = {beside.data(), 4, f - 1}}, errc::size, "per_layer_input");
    refused({.residual = {residual.data(), 4, d, d - 1}, .per_layer_input = p}, errc::size, "residual");
    refused({.residual = {y.data() + 1, 4, d}, .per_layer_input = p}, errc::overlap, "y");
    refused({.residual = r, .per_layer_input = {y.data(), 4, f}}, errc::overlap, "y");
    CHECK(layer.try_call(x, {.residual = r, .per_layer_input = p}, y).ok());
}

TEST_CASE("routes: recorded of a router inside a chain, in every backend") {
    using block = ffn<gate<gelu, through<"low", named<dense, "narrow">, routed_low_rank<>>>>;
    block chained;
    std::get<1>(chained.hidden.input.steps).router.top_k = 2;
    tensor_set memory(tiffin_test::tensors_wanted(chained), {{d, f, vocab}, {}, {}, 0u, 3});
    const std::vector<float> x = random_rows(8, d, 1);
    std::vector<float> y(8 * d);
    const auto routes_on = [&](const auto& backend) {
        auto layer = prepare(chained, memory.given(), backend, {.tokens = 3});
        CHECK(layer.choices() == 2);
        std::vector<choice<float>> routes(16, {-1, 0});
        layer(x, {.routes = routes}, y);
        std::vector<std::int32_t> experts;
        for (const choice<float>& c : routes) experts.push_back(c.expert);
        return experts;
    };
    // By hand: the narrow row, its logits, the largest two.
    const std::size_t width = memory.view("narrow.weight").shape[0];
    std::vector<std::int32_t> wanted;
    for (std::size_t t = 0; t < 8; ++t) {
        std::vector<double> row(width, 0.0), logit(4, 0.0);
        for (std::size_t i = 0; i < width; ++i)
            for (std::size_t k = 0; k < d; ++k)
                row[i] += static_cast<double>(x[t * d + k]) *
                          static_cast<double>(memory.get("narrow.weight", i * d + k));
        for (std::size_t e = 0; e < 4; ++e)
            for (std::size_t i = 0; i < width; ++i)
                logit[e] += row[i] * static_cast<double>(memory.get("low.router.weight", e * width + i));
        for (int n = 0; n < 2; ++n) {
            const auto best = std::max_element(logit.begin(), logit.end());
            wanted.push_back(static_cast<std::int32_t>(best - logit.begin()));
            *best = -HUGE_VAL;
        }
    }
    CHECK(routes_on(reference{}) == wanted);
    CHECK(routes_on(eigen{}) == wanted);
    CHECK(routes_on(simd{}) == wanted);
}

TEST_CASE("routes: their room is that of the call") {
    using block = moe<mlp>;
    tensor_set memory(tiffin_test::tensors_wanted(block{}), {{d, f, vocab}, {}, {}, 0u, 3});
    auto layer = prepare<block>(memory.given(), simd{});
    const std::vector<float> x = random_rows(8, d, 1);
    std::vector<float> y(8 * d, 5.0f);
    for (const std::size_t room : {1u, 7u, 9u}) {
        std::vector<choice<float>> routes(room);
        const status s = layer.try_call(x, {.routes = routes}, y);
        REQUIRE_FALSE(s.ok());
        CHECK(s.failure().code == errc::size);
        CHECK(s.failure().where == "routes");
        CHECK(s.failure().what == "has room for " + std::to_string(room) + " choices; 8 tokens make 1 each");
        for (const float v : y) REQUIRE(v == 5.0f);
    }
    std::vector<choice<float>> routes(8);
    CHECK(layer.try_call(x, {.routes = routes}, y).ok());
}

TEST_CASE("routes: recorded best first, in pieces, and of the outermost part that routes") {
    using block = tiffin_test::mort_of_three<moe<mlp>>;
    tensor_set memory(tiffin_test::tensors_wanted(block{}), {{d, f, vocab}, {}, {}, 0u, 3});
    auto layer = prepare<block>(memory.given(), simd{}, {.tokens = 3});
    CHECK(layer.choices() == 2);
    const std::vector<float> x = random_rows(8, d, 1);
    std::vector<float> y(8 * d);
    std::vector<choice<float>> routes(16, {-1, 0});
    layer(x, {.token_ids = random_ids(8, vocab, 3), .routes = routes}, y);
    for (std::size_t t = 0; t < 8; ++t) {
        double logit[4];
        for (std::size_t e = 0; e < 4; ++e) {
            logit[e] = 0;
            for (std::size_t k = 0; k < d; ++k)
                logit[e] += static_cast<double>(x[t * d + k] * memory.get("router.weight", e * d + k));
        }
        const auto best = static_cast<std::size_t>(routes[2 * t].expert);
        const auto second = static_cast<std::size_t>(routes[2 * t + 1].expert);
        for (std::size_t e = 0; e < 4; ++e) CHECK((e == best || logit[e] < logit[best]));
        for (std::size_t e = 0; e < 4; ++e) CHECK((e == best || e == second || logit[e] < logit[second]));
        CHECK(routes[2 * t].weight + routes[2 * t + 1].weight == doctest::Approx(1));
    }
}

}  // namespace bind_errors_routed_test
