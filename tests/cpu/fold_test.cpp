// Folding: the folded layer gives what the layer gave, to the bit, and nothing is folded twice.
#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/fold.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/executor/openmp.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/source/ple_memory.hpp>

#include "support/doctest.hpp"
#include "support/tensor_set.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

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
