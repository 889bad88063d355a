// Starting values of whole blocks: each tensor's by the rule for it, by its name and the seed alone, and nothing written
// where something is missing.
#include <tiffin/analysis/initialise_block.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/norm/rms_cast_first.hpp>
#include <tiffin/norm/rms_one_plus.hpp>

#include "support/doctest.hpp"
#include "support/policies.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace analysis_initialise_block_test {
using namespace tiffin;

namespace {

// No two of them are alike, so that no rule can take one for another.
constexpr std::size_t d = 64, f = 160, vocab = 300, experts = 8, rank = 5, word = 48, inner = 24, layers = 7;
constexpr block_shape sizes{.d_model = d,
                            .d_ff = f,
                            .vocab = vocab,
                            .experts = experts,
                            .rank = rank,
                            .inner = {word, inner},
                            .choices = 2};
constexpr initial_values usual{.layers = layers, .seed = 11};

// What a tensor starts as: normal numbers of a sigma, or one number.
struct rule {
    double sigma = 0, constant = 0;
};
rule small_init_of(std::size_t inputs) {
    return {.sigma = std::sqrt(2.0 / (5.0 * static_cast<double>(inputs)))};
}
rule xavier(std::size_t rows, std::size_t columns) {
    return {.sigma = std::sqrt(2.0 / static_cast<double>(rows + columns))};
}
rule deep_norm(std::size_t n = d) {
    return {.sigma = 2.0 / (static_cast<double>(layers) * std::sqrt(static_cast<double>(n)))};
}
rule all_of(double constant) {
    return {.constant = constant};
}
using rules = std::map<std::string, rule>;

// Of a block: all tensors but those that `without` names, filled with 4, behind a prefix.
struct tensors {
    static constexpr float before = 4;
    std::deque<std::vector<float>> numbers;
    named_memory<float> memory;

    template <class Block>
    explicit tensors(const Block& block, const std::string& prefix = {},
                     const std::function<bool(const std::string&)>& without = {}) {
        for (const auto& [name, t] : tensors_needed(block, sizes)) {
            if (without && without(name)) continue;
            auto& to = numbers.emplace_back(t.shape.elements(), before);
            memory.add(prefix + name, to.data(), t.shape);
        }
    }
    [[nodiscard]] std::vector<float> of(const std::string& name) const {
        const auto* const at = memory.find(name);
        REQUIRE_MESSAGE(at != nullptr, name);
        return {at->data, at->data + at->shape.elements()};
    }
    [[nodiscard]] bool untouched() const {
        return std::all_of(numbers.begin(), numbers.end(), [](const auto& one) {
            return std::all_of(one.begin(), one.end(), [](float v) { return v == before; });
        });
    }
};

// The sum of n squares has the variance 2 n sigma^4, that of n numbers n sigma^2: 6 standard deviations, beyond which
// a normal number is once in 5e8 times.
void check_rule(const std::string& name, const std::vector<float>& values, const rule& wanted) {
    CAPTURE(name);
    if (wanted.sigma == 0) {
        for (const float v : values) CHECK(v == static_cast<float>(wanted.constant));
        return;
    }
    const auto n = static_cast<double>(values.size());
    double sum = 0, squares = 0;
    for (const float v : values) {
        sum += static_cast<double>(v);
        squares += static_cast<double>(v) * static_cast<double>(v);
    }
    CHECK(values.size() >= 320);  // rules differ by more than the bound then
    CHECK(std::fabs(sum / n / wanted.sigma) <= 6 / std::sqrt(n));
    CHECK(std::fabs(squares / n / (wanted.sigma * wanted.sigma) - 1) <= 6 * std::sqrt(2 / n));
}

template <class Block>
void check_block(const rules& wanted, const Block& block = {}, const initial_values& how = usual) {
    tensors all(block);
    REQUIRE(initialise(block, sizes, all.memory, how).ok());
    for (const auto& [name, one] : wanted) check_rule(name, all.of(name), one);
    // No tensor is without a rule; maps of experts are left as they are.
    for (const named_tensor& one : tensors_needed(block, sizes)) {
        const std::string& name = one.name;
        CAPTURE(name);
        if (is_map(one.tensor.kind))
            check_rule(name, all.of(name), all_of(static_cast<double>(tensors::before)));
        else
            CHECK(wanted.count(name) == 1);
    }
}

rules behind(const std::string& prefix, const rules& of) {
    rules all;
    for (const auto& [name, one] : of) all.emplace(prefix + name, one);
    return all;
}
rules joined(rules a, const rules& b) {
    a.insert(b.begin(), b.end());
    return a;
}

const rules of_down{{"down_proj.weight", deep_norm()}, {"down_proj.bias", all_of(0)}};
const rules of_gate{{"gate_proj.weight", small_init_of(d)}, {"gate_proj.bias", all_of(0)}};
const rules of_up{{"up_proj.weight", small_init_of(d)}, {"up_proj.bias", all_of(0)}};
const rules of_mlp = joined(of_up, of_down);
const rules of_swiglu = joined(of_gate, of_mlp);
const rules of_router{{"router.weight", small_init_of(d)}, {"router.selection_bias", all_of(0)}};

void refused(const status& s, errc code, std::string_view where, std::string_view what) {
    REQUIRE_FALSE(s.ok());
    CHECK(s.failure().code == code);
    CHECK(s.failure().where == where);
    CHECK(s.failure().what == what);
}

}  // namespace

TEST_CASE("initialise block: projections, biases, and what goes back to the stream") {
    check_block<mlp>(of_mlp);
    check_block<swiglu>(of_swiglu);
    check_block<stem>(joined(joined(of_gate, of_down), {{"stem_embed.weight", xavier(vocab, f)}}));
    // As wide as the model, but of another name.
    check_block<named<dense, "any_proj">>(
        {{"any_proj.weight", small_init_of(d)}, {"any_proj.bias", all_of(0)}});
}

TEST_CASE("initialise block: banks and routers") {
    rules of_bank = joined(joined(of_mlp, of_router),
                           {{"lore_a.weight", small_init_of(d)}, {"lore_b.weight", small_init_of(rank)}});
    check_block<structmoe>(of_bank);
    check_block<structmoe_gated>(of_bank);
    // The other reading: n is the width of the model for B too.
    of_bank["lore_b.weight"] = small_init_of(d);
    check_block<structmoe>(of_bank, {}, {.layers = layers, .banks_by_rank = false});
    // And n is what W2 reads.
    of_bank["lore_b.weight"] = small_init_of(rank);
    of_bank["down_proj.weight"] = deep_norm(f);
    check_block<structmoe>(of_bank, {}, {.layers = layers, .down_by_model = false});
    // Beside the down-projection a bank and its router read the hidden values.
    rules beside_down = joined(of_mlp, {{"router.weight", small_init_of(f)},
                                        {"router.selection_bias", all_of(0)},
                                        {"lore_a.weight", small_init_of(f)},
                                        {"lore_b.weight", small_init_of(rank)}});
    check_block<structmoe_down>(beside_down);
}

TEST_CASE("initialise block: memories, norms and factors") {
    const rules in_common{{"gate_proj.weight", small_init_of(d)}, {"gate_proj.bias", all_of(0)},
                          {"out_proj.weight", deep_norm()},       {"out_proj.bias", all_of(0)},
                          {"post_norm.weight", all_of(1)},        {"memory.weight", xavier(vocab, f)}};
    check_block<meki>(in_common);
    const rules trained = joined(in_common, {{"word_embed.weight", xavier(vocab, word)},
                                             {"mix_norm.weight", all_of(1)},
                                             {"alpha", all_of(1)},
                                             {"beta", all_of(1)}});
    check_block<meki_training>(joined(trained, {{"word_proj.gate_proj.weight", small_init_of(word)},
                                                {"word_proj.gate_proj.bias", all_of(0)},
                                                {"word_proj.up_proj.weight", small_init_of(word)},
                                                {"word_proj.up_proj.bias", all_of(0)},
                                                {"word_proj.down_proj.weight", small_init_of(inner)},
                                                {"word_proj.down_proj.bias", all_of(0)}}));
    check_block<meki_training_linear>(
        joined(trained, {{"word_proj.weight", small_init_of(word)}, {"word_proj.bias", all_of(0)}}));
    check_block<ple_full>(joined(in_common, {{"word_embed.weight", xavier(vocab, word)},
                                             {"per_layer_model_projection.weight", small_init_of(word)},
                                             {"per_layer_model_projection.bias", all_of(0)},
                                             {"per_layer_projection_norm.weight", all_of(1)}}));
}

TEST_CASE("initialise block: the weight of a norm that adds 1 is 0") {
    check_block<ffn<gate<silu>, dense, multiply, project<rms>>>(
        joined(of_swiglu, {{"post_norm.weight", all_of(1)}}));
    check_block<ffn<gate<silu>, dense, multiply, project<rms_cast_first>>>(
        joined(of_swiglu, {{"post_norm.weight", all_of(1)}}));
    check_block<ffn<gate<silu>, dense, multiply, project<rms_one_plus>>>(
        joined(of_swiglu, {{"post_norm.weight", all_of(0)}}));
}

TEST_CASE("initialise block: modulators, whose scale is asked for") {
    for (const float scale : {1.0f, 0.0f, 0.25f}) {
        const initial_values how{.layers = layers, .scale = scale};
        const rules of_scale{{"scale", all_of(static_cast<double>(scale))}};
        check_block<retoken<swiglu>>(
            joined(behind("base.", of_swiglu), joined(of_scale, {{"modulators.weight", xavier(vocab, d)}})),
            {}, how);
        check_block<tiffin_test::mort_of_three<mlp>>(
            joined(joined(behind("base.", of_mlp), of_router),
                   joined(of_scale, {{"modulators.weight", xavier(vocab, d)}})),
            {}, how);
    }
    // From scratch where nobody asks.
    check_block<retoken_folded<mlp>>(
        joined(behind("base.", of_mlp), {{"modulators.weight", xavier(vocab, d)}}));
    check_block<tiffin_test::mort_of_three<mlp>>(
        joined(joined(behind("base.", of_mlp), of_router),
               {{"modulators.weight", xavier(vocab, d)}, {"scale", all_of(1)}}));
}

TEST_CASE("initialise block: mixtures, each expert with numbers of its own") {
    rules of_moe = of_router, of_hash;
    for (std::size_t e = 0; e < experts; ++e) {
        const std::string prefix = "experts." + std::to_string(e) + ".";
        of_moe = joined(of_moe, behind(prefix, of_swiglu));
        of_hash = joined(of_hash, behind(prefix, joined(joined(of_gate, of_down),
                                                        {{"stem_embed.weight", xavier(vocab, f)}})));
    }
    check_block<moe<swiglu>>(of_moe);
    check_block<hash_moe<stem>>(of_hash);
    tensors all(moe<swiglu>{});
    REQUIRE(initialise(moe<swiglu>{}, sizes, all.memory, usual).ok());
    CHECK(all.of("experts.0.up_proj.weight") != all.of("experts.1.up_proj.weight"));
    CHECK(all.of("experts.0.up_proj.weight") != all.of("experts.0.gate_proj.weight"));
}

// Correlations of n pairs of independent numbers have the standard deviation 1 / sqrt(n).
TEST_CASE("initialise block: the values depend on the seed and the whole name, and on nothing else") {
    tensors one(swiglu{}), again(swiglu{}), other(swiglu{}), prefixed(swiglu{}, "layers.3.");
    initial_values how = usual;
    REQUIRE(initialise(swiglu{}, sizes, one.memory, how).ok());
    REQUIRE(initialise(swiglu{}, sizes, again.memory, how).ok());
    REQUIRE(initialise(swiglu{}, sizes, prefixed.memory, how, "layers.3.").ok());
    ++how.seed;
    REQUIRE(initialise(swiglu{}, sizes, other.memory, how).ok());
    CHECK(one.numbers == again.numbers);
    const auto independent = [](const std::vector<float>& a, const std::vector<float>& b) {
        REQUIRE(a.size() == b.size());
        double product = 0, of_a = 0, of_b = 0;
        for (std::size_t i = 0; i < a.size(); ++i) {
            product += static_cast<double>(a[i]) * static_cast<double>(b[i]);
            of_a += static_cast<double>(a[i]) * static_cast<double>(a[i]);
            of_b += static_cast<double>(b[i]) * static_cast<double>(b[i]);
        }
        CHECK(std::fabs(product / std::sqrt(of_a * of_b)) <= 6 / std::sqrt(static_cast<double>(a.size())));
    };
    const std::vector<float> gates = one.of("gate_proj.weight");
    independent(gates, other.of("gate_proj.weight"));
    independent(gates, one.of("up_proj.weight"));
    independent(gates, prefixed.of("layers.3.gate_proj.weight"));
    // The same by the whole name: a longer prefix of the memory, not of the call.
    tensors by_name(mlp{}, "layers.3.");
    REQUIRE(initialise(mlp{}, sizes, by_name.memory, usual, "layers.3.").ok());
    CHECK(by_name.of("layers.3.up_proj.weight") == prefixed.of("layers.3.up_proj.weight"));
    // Another block, other tensors beside it, optional ones left out.
    tensors hybrid(stem_hybrid{}),
        bare(swiglu{}, {}, [](const std::string&n) { return n.ends_with("bias"); });
    REQUIRE(initialise(stem_hybrid{}, sizes, hybrid.memory, usual).ok());
    REQUIRE(initialise(swiglu{}, sizes, bare.memory, usual).ok());
    for (const char* name : {"gate_proj.weight", "up_proj.weight", "down_proj.weight"}) {
        CAPTURE(name);
        CHECK(hybrid.of(name) == one.of(name));
        CHECK(bare.of(name) == one.of(name));
    }
    // Memory of other names is not touched.
    std::vector<float> stranger(6, 2.0f);
    one.memory.add("gate_proj", stranger.data(), {2, 3});
    REQUIRE(initialise(swiglu{}, sizes, one.memory, usual).ok());
    CHECK(stranger == std::vector<float>(6, 2.0f));
    CHECK(one.numbers == again.numbers);
}

TEST_CASE(
    "initialise block: a part of a tensor is the same numbers, and what has none or null memory is left "
    "alone") {
    tensors whole(stem{}), rest(stem{});
    REQUIRE(initialise(stem{}, sizes, whole.memory, usual).ok());
    const std::vector<float> table = whole.of("stem_embed.weight");
    const auto part = [&](std::string_view name, std::size_t first, std::span<float> to) {
        return initialise_part(lower(stem{}), sizes, name, first, to, usual);
    };
    std::vector<float> rows(3 * f, tensors::before);
    REQUIRE(part("stem_embed.weight", (vocab - 3) * f, rows).ok());
    CHECK(std::equal(rows.begin(), rows.end(), table.end() - 3 * f, table.end()));
    const std::vector<float> kept = rows;
    const status beyond = part("stem_embed.weight", (vocab - 3) * f + 1, rows);
    REQUIRE_FALSE(beyond.ok());
    CHECK(beyond.failure().code == errc::size);
    for (const char* name : {"stem_embed", "up_proj.weight"}) {
        const status absent = part(name, 0, rows);
        REQUIRE_FALSE(absent.ok());
        CHECK(absent.failure().code == errc::missing_tensor);
    }
    CHECK(rows == kept);
    // A table that lies elsewhere.
    named_memory<float> elsewhere;
    elsewhere.add("stem_embed.weight", nullptr, {vocab, f});
    for (const char* name : {"gate_proj.weight", "down_proj.weight"}) {
        const auto* const t = rest.memory.find(name);
        elsewhere.add(name, t->data, t->shape);
    }
    REQUIRE(initialise(stem{}, sizes, elsewhere, usual).ok());
    CHECK(rest.of("gate_proj.weight") == whole.of("gate_proj.weight"));
    CHECK(rest.of("stem_embed.weight") == std::vector<float>(vocab * f, tensors::before));
}

// The numbers themselves, so that they are the same everywhere: fill_normal (initialise_test.cpp) with FNV-1a's published
// values for a seed of 0, and of the seed in the offset basis.
TEST_CASE("initialise block: the seed of a name is FNV-1a") {
    CHECK(detail::seed_of("", 0) == 0xcbf29ce484222325u);
    CHECK(detail::seed_of("a", 0) == 0xaf63dc4c8601ec8cu);
    CHECK(detail::seed_of("foobar", 0) == 0x85944171f73967e8u);
    CHECK(detail::seed_of("a", 5) == (0xcbf29ce484222325u ^ 5u ^ 0x61u) * 0x100000001b3u);
    tensors all(stem{}, "a.");
    REQUIRE(initialise(stem{}, sizes, all.memory, usual, "a.").ok());
    std::vector<float> table(vocab * f);
    fill_normal(table, xavier(vocab, f).sigma, detail::seed_of("a.stem_embed.weight", usual.seed));
    CHECK(all.of("a.stem_embed.weight") == table);
}

TEST_CASE("initialise block: what is missing or misshapen, and that nothing is written then") {
    using block = tiffin_test::mort_of_three<stem>;
    for (const named_tensor& one : tensors_needed(block{}, sizes)) {
        const std::string& name = one.name;
        const sized_tensor& t = one.tensor;
        CAPTURE(name);
        tensors some(block{}, "x.", [&](const std::string& n) { return n == name; });
        const status missing = initialise(block{}, sizes, some.memory, usual, "x.");
        if (t.needed == presence::optional) {
            CHECK(missing.ok());
        } else {
            refused(missing, errc::missing_tensor, "x." + name, "has no memory for its starting values");
            CHECK(some.untouched());
        }
        // Of the same number of elements.
        tensors misshapen(block{}, "x.", [&](const std::string& n) { return n == name; });
        std::vector<float> other(t.shape.elements(), tensors::before);
        const shape flat{other.size(), 1, 1, 1};
        misshapen.memory.add("x." + name, other.data(), flat);
        refused(initialise(block{}, sizes, misshapen.memory, usual, "x."), errc::shape, "x." + name,
                "has shape " + to_string(flat) + "; the block's is " + to_string(t.shape));
        CHECK(misshapen.untouched());
        CHECK(std::all_of(other.begin(), other.end(), [](float v) { return v == tensors::before; }));
    }
    tensors all(block{}, "x.");
    refused(initialise(block{}, sizes, all.memory, {}, "x."), errc::option, "layers",
            "is 0; it has no default: it counts the layers of the model");
    refused(initialise(block{}, sizes, all.memory, usual), errc::missing_tensor, "base.gate_proj.weight",
            "has no memory for its starting values");
    CHECK(all.untouched());
    // A map is the caller's: it may be missing.
    tensors without_map(hash_moe<mlp>{}, {}, [](const std::string& n) { return n == "hash_map"; });
    CHECK(initialise(hash_moe<mlp>{}, sizes, without_map.memory, usual).ok());
}

// One number may have the shape () or (1), as prepare() takes it.
TEST_CASE("initialise block: scalars of either shape") {
    tensors all(meki_training{}, {}, [](const std::string& n) { return n == "alpha" || n == "beta"; });
    float alpha = 4, beta = 4;
    all.memory.add("alpha", &alpha, {1}).add("beta", &beta, {});
    REQUIRE(initialise(meki_training{}, sizes, all.memory, usual).ok());
    CHECK(alpha == 1);
    CHECK(beta == 1);
    float two[2] = {4, 4};
    tensors wrong(meki_training{}, {}, [](const std::string& n) { return n == "alpha"; });
    wrong.memory.add("alpha", two, {2});
    refused(initialise(meki_training{}, sizes, wrong.memory, usual), errc::shape, "alpha",
            "has shape (2); the block's is ()");
    CHECK(wrong.untouched());
}

TEST_CASE("named memory: entries in their order, the first of a name") {
    double a[2] = {}, b[6] = {}, c[1] = {};
    named_memory<double> all;
    CHECK(all.find("a") == nullptr);
    all.add("a", a, {2}).add("b", b, {2, 3}).add("a", c, {1});
    REQUIRE(all.entries().size() == 3);
    CHECK(all.entries()[1].name == "b");
    CHECK(all.entries()[1].shape == shape{2, 3});
    REQUIRE(all.find("a") != nullptr);
    CHECK(all.find("a")->data == a);
    CHECK(all.find("b") == &all.entries()[1]);
    CHECK(all.find("") == nullptr);
    CHECK(all.find("ab") == nullptr);
}

}  // namespace analysis_initialise_block_test
