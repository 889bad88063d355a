// Folding: the folded layer gives what the layer gave, to the bit, and nothing is folded twice.
#include <tiffin/cpu/fold.hpp>

#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/executor/openmp.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/source/ple_memory.hpp>

#include "support/doctest.hpp"
#include "support/tensor_set.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cpu_fold_test {
using namespace tiffin;
using tiffin_test::random_ids;
using tiffin_test::random_rows;
using tiffin_test::tensor_set;

namespace {

constexpr std::size_t d = 45, f = 27, vocab = 131, tokens = 60;

// All tables of one vocabulary, as a model has them.
template <class Block>
struct given_weights {
    std::vector<std::vector<float>> memory;
    weights all;

    explicit given_weights(const Block& block) {
        tiffin_test::random_numbers random(5);
        for (const auto& [name, t] :
             tensors_needed(block, {.d_model = d, .d_ff = f, .vocab = vocab, .inner = {d, 22}})) {
            memory.emplace_back(t.shape.elements());
            random.fill(memory.back(), 0.8f);
            all.add(name, memory.back().data(), t.shape);
        }
    }
};

template <class Block>
std::vector<float> run(const Block& block, const weights& given) {
    std::vector<float> y(tokens * d);
    prepare(block, given, simd{})(random_rows(tokens, d, 3), random_ids(tokens, vocab, 7), y);
    return y;
}

// The weights of the folded block: those that it asks for, the table in its place.
template <class Block>
weights folded_weights(const Block& block, const weights& given, const std::string& name,
                       const folded_table& table) {
    weights all;
    for (const auto& [wanted, t] : tensors_needed(block, {.d_model = d, .d_ff = f, .vocab = vocab}))
        if (wanted != name && given.find(wanted) != nullptr) all.add(wanted, *given.find(wanted));
    return all.add(name, table.view());
}

}  // namespace

TEST_CASE("fold: meki") {
    meki_training block;
    block.hidden.up.input.norm.eps = 0.25f;
    const given_weights given(block);
    const auto table = fold(block.hidden.up, given.all, "", {}, openmp{2});
    REQUIRE(table.ok());
    CHECK(table->vocab == vocab);
    CHECK(table->width == f);
    const weights folded = folded_weights(meki{}, given.all, "memory.weight", *table);
    CHECK(run(meki{}, folded) == run(block, given.all));
}
TEST_CASE("fold: meki without its memory, without its words, with the words normed") {
    const auto check = [](const auto& block) {
        const given_weights given(block);
        const auto table = fold(block.hidden.up, given.all);
        REQUIRE(table.ok());
        CHECK(run(meki{}, folded_weights(meki{}, given.all, "memory.weight", *table)) ==
              run(block, given.all));
    };
    check(ffn<gate<sigmoid>, dynamic_memory<>, add, memory_output>{});
    check(ffn<gate<sigmoid>, static_memory, add, memory_output>{});
#if !defined(TIFFIN_TEST_SMALL)
    check(meki_training_linear{});
    check(ffn<gate<sigmoid>, dynamic_memory<linear_word_memory<normed_word>>, add, memory_output>{});
#endif
    check(ffn<gate<sigmoid>, trained_memory<word_memory<normed_word>>, add, memory_output>{});
}
TEST_CASE("fold: ple's row with its context term") {
    const ple_full block;
    const given_weights given(block);
    const auto table = fold(block.hidden.up, given.all);
    REQUIRE(table.ok());
    CHECK(run(ple{}, folded_weights(ple{}, given.all, "memory.weight", *table)) == run(block, given.all));
    // One number of it by the formula, in double.
    const auto number = [&](const char* name, std::size_t i) {
        const tensor_view& t = *given.all.find(name);
        return static_cast<double>(load_as_f32(t.data, t.type, i));
    };
    constexpr std::size_t id = 5, j = 3;
    std::vector<double> context(f, 0.0);
    double squares = 0;
    for (std::size_t i = 0; i < f; ++i) {
        context[i] = number("per_layer_model_projection.bias", i);
        for (std::size_t k = 0; k < d; ++k)
            context[i] += number("per_layer_model_projection.weight", i * d + k) *
                          number("word_embed.weight", id * d + k) / std::sqrt(static_cast<double>(d));
        squares += context[i] * context[i];
    }
    const double normed_context =
        context[j] / std::sqrt(squares / f + 1e-6) * number("per_layer_projection_norm.weight", j);
    const double wanted =
        (normed_context + std::sqrt(static_cast<double>(f)) * number("memory.weight", id * f + j)) /
        std::sqrt(2.0);
    // A sum of 45 products and a norm in f32: some 60 roundings.
    CHECK(static_cast<double>(table->rows[id * f + j]) == doctest::Approx(wanted).epsilon(60 * 0x1p-24));
}
TEST_CASE("fold: retoken") {
    const retoken<swiglu> block;
    const given_weights given(block);
    const auto table = fold(block.modulator, given.all);
    REQUIRE(table.ok());
    const weights folded = folded_weights(retoken_folded<swiglu>{}, given.all, "modulators.weight", *table);
    CHECK(run(retoken_folded<swiglu>{}, folded) == run(block, given.all));
}

// Each expert reads the token's word alone: its rows are a table, and the mixture of experts a pool of these.
TEST_CASE("fold: the experts of mole") {
    using word = normed<memory_norm, named<token_embedding, "word_embed">, "word_norm">;
    constexpr std::size_t experts = 3;
    std::vector<std::vector<float>> memory;
    weights trained, words;
    tiffin_test::random_numbers random(5);
    const auto add = [&](weights& to, const std::string& name, const shape& s) {
        memory.emplace_back(s.elements());
        random.fill(memory.back(), 0.8f);
        to.add(name, memory.back().data(), s);
    };
    for (const auto& [name, t] :
         tensors_needed(mole_training{}, {.d_model = d, .d_ff = f, .experts = experts, .inner = {22, 22}}))
        add(trained, name, t.shape);
    add(words, "word_embed.weight", {vocab, 22});
    add(words, "word_norm.weight", {22});
    const auto normed_words = fold(word{}, words).or_throw();

    std::vector<float> lookup;
    for (std::size_t e = 0; e < experts; ++e) {
        weights expert = words;
        const std::string prefix = "experts." + std::to_string(e) + ".";
        for (const weights::entry& one : trained.entries())
            if (one.name.starts_with(prefix)) expert.add(one.name.substr(prefix.size()), one.tensor);
        const auto table = fold(through<"", word, mlp>{}, expert).or_throw();
        lookup.insert(lookup.end(), table.rows.begin(), table.rows.end());
    }
    weights folded;
    for (const weights::entry& one : trained.entries())
        if (!one.name.starts_with("experts.")) folded.add(one.name, one.tensor);
    folded.add("lookup.weight", lookup.data(), {experts, vocab, d});

    const std::vector<float> x = random_rows(tokens, d, 3);
    const std::vector<std::int32_t> ids = random_ids(tokens, vocab, 7);
    std::vector<float> rows, y(tokens * d), y_folded(tokens * d);
    for (const std::int32_t id : ids)
        rows.insert(rows.end(), normed_words.rows.begin() + id * 22,
                    normed_words.rows.begin() + (id + 1) * 22);
    token_inputs inputs{.token_ids = ids};
    inputs.per_layer_input = {rows.data(), tokens, 22};
    std::vector<choice<float>> routes(tokens * experts);
    inputs.routes = routes;
    prepare(mole_training{}, trained, simd{})(x, inputs, y);
    prepare(mole{}, folded, simd{})(x, ids, y_folded);
    // The terms are the same numbers, and so is what is beside them; each passes through a product and as many
    // sums as there are terms, here and there.
    double worst = 0;
    for (std::size_t t = 0; t < tokens; ++t)
        for (std::size_t i = 0; i < d; ++i) {
            double mixed = 0, size = 0;
            for (std::size_t e = 0; e < experts; ++e) {
                const choice<float>& c = routes[t * experts + e];
                CHECK(c.expert == static_cast<std::int32_t>(e));
                const double term = static_cast<double>(c.weight) *
                                    static_cast<double>(lookup[(e * vocab + std::size_t(ids[t])) * d + i]);
                mixed += term;
                size += std::abs(term);
            }
            size += std::abs(static_cast<double>(y[t * d + i]) - mixed);
            const double off = std::abs(static_cast<double>(y[t * d + i] - y_folded[t * d + i]));
            worst = std::max(worst, off / (2 * (experts + 1) * 0x1p-24 * size));
        }
    CHECK(worst <= 1);
}

TEST_CASE("fold: progress ends with the last row, and only rises") {
    const given_weights given(retoken<swiglu>{});
    std::size_t last = 0, calls = 0;
    const auto table = fold(token_modulator<>{}, given.all, "", [&](std::size_t done, std::size_t rows) {
        CHECK(rows == vocab);
        CHECK(done > last);
        last = done;
        ++calls;
    });
    REQUIRE(table.ok());
    CHECK(last == vocab);
    CHECK(calls > 1);
}

TEST_CASE("fold: what is missing or does not fit is named") {
    const given_weights given(meki_training{});
    const given_weights folded(meki{});
    const auto twice = fold(trained_memory<>{}, folded.all);  // a folded layer has no alpha
    REQUIRE_FALSE(twice.ok());
    CHECK(twice.failure().code == errc::missing_tensor);
    CHECK(twice.failure().where == "alpha");
    weights shorter;
    for (const weights::entry& e : given.all.entries())
        shorter.add(e.name, e.name == "memory.weight" ? tensor_view{e.tensor.data, dtype::f32, {vocab - 1, f}}
                                                      : e.tensor);
    const auto uneven = fold(trained_memory<>{}, shorter);
    REQUIRE_FALSE(uneven.ok());
    CHECK(uneven.failure().code == errc::shape);
    CHECK(uneven.failure().what.find(std::to_string(vocab - 1)) != std::string::npos);
}

}  // namespace cpu_fold_test
