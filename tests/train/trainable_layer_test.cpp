// What a layer that learns promises beside right gradients (train.named and its like): what is refused, what is kept,
// what is frozen, rows of ids over several calls, delays, the logits of a router.
#include <tiffin/block/branch.hpp>
#include <tiffin/block/linear.hpp>
#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/plan/compose.hpp>
#include <tiffin/train/reference.hpp>
#include <tiffin/train/simd.hpp>

#include "support/combinators.hpp"
#include "support/doctest.hpp"
#include "support/executors.hpp"
#include "support/gradients.hpp"
#include "support/policies.hpp"
#include "support/tensor_set.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace train_trainable_layer_test {
using namespace tiffin;
using tiffin_test::double_tensors;
using tiffin_test::random_ids;
using tiffin_test::random_rows;
using tiffin_test::tensor_set;

namespace {

constexpr std::size_t d = 7, f = 10, vocab = 9;

template <class Block>
tensor_set tensors_for(const Block& block = {}, std::uint32_t seed = 3) {
    return tensor_set::of(block, {{d, f, vocab}, {}, {}, ~0u, seed});
}
std::vector<double> wide(const std::vector<float>& from) {
    return {from.begin(), from.end()};
}
template <class Number>
tensor_gradient<Number> gradient_of(const trainable_layer<Number>& layer, std::string_view name) {
    for (const auto& g : layer.gradients())
        if (g.name == name) return g;
    FAIL("no gradient of ", name);
    return {};
}
void refused(const status& s, errc code, std::string_view where, std::string_view part) {
    REQUIRE_FALSE(s.ok());
    CHECK(s.failure().code == code);
    CHECK(s.failure().where == where);
    CHECK_MESSAGE(s.failure().what.find(part) != std::string::npos, s.failure().what);
}

}  // namespace

TEST_CASE("training: the gradient of a saturated formula is its limit") {
    tensor_set large = tensors_for<swiglu>();
    large.fill("gate_proj.weight", -30.0f);
    large.fill("gate_proj.bias", 0.0f);
    auto layer = prepare_training<swiglu>(large.given(), simd<>{});
    const std::vector<float> x(2 * d, 1.0f), dy(2 * d, 1.0f);
    std::vector<float> y(2 * d), dx(2 * d);
    layer.forward(x, {}, y);
    layer.backward(dy, {.x = {dx.data(), 2, d}});
    for (const float v : dx) CHECK(v == 0.0f);
    for (const auto& g : layer.gradients())
        for (std::size_t i = 0; i < g.shape.elements(); ++i) CHECK(std::isfinite(g.data[i]));
}

TEST_CASE("training: what is frozen has no gradient, and the others have the same") {
    const tensor_set all = tensors_for<stem>();
    const std::vector<float> x = random_rows(5, d, 1), dy = random_rows(5, d, 2);
    const std::vector<std::int32_t> ids = random_ids(5, vocab, 4);
    std::vector<float> y(5 * d);
    const auto run = [&](const training_options<float>& options) {
        auto layer = prepare_training<stem>(all.given(), simd<>{}, options);
        layer.forward(x, {.token_ids = ids}, y);
        layer.backward(dy);
        return layer;
    };
    const auto whole = run({});
    const auto part = run({.trains = [](std::string_view name) { return name == "stem_embed.weight"; }});
    CHECK(whole.gradients().size() == 5);
    REQUIRE(part.gradients().size() == 1);
    const auto ours = part.gradients()[0], theirs = gradient_of(whole, "stem_embed.weight");
    for (std::size_t i = 0; i < part.ids().size(); ++i)
        for (std::size_t j = 0; j < f; ++j) CHECK(ours.row(0, i)[j] == theirs.row(0, i)[j]);
}

TEST_CASE("training: ids take no room where no table is trained") {
    const tensor_set all = tensors_for<stem>();
    training_options<float> options{.tokens = 4, .table_rows = 2};
    options.trains = [](std::string_view name) { return name == "down_proj.weight"; };
    auto layer = prepare_training<stem>(all.given(), simd<>{}, options);
    const std::vector<float> x = random_rows(4, d, 1);
    const std::vector<std::int32_t> ids{1, 2, 3, 4};
    std::vector<float> y(4 * d), dx(4 * d);
    CHECK(layer.try_forward(x, {.token_ids = ids}, y).ok());
    CHECK(layer.try_backward(x, {.x = {dx.data(), 4, d}}).ok());
    CHECK(layer.ids().size() == 0);
}

TEST_CASE("training: gradients that were cleared are those of the next forward") {
    const tensor_set all = tensors_for<stem>();
    auto layer = prepare_training<stem>(all.given(), simd<>{}, {.tokens = 4});
    const std::vector<float> x = random_rows(4, d, 1), dy = random_rows(4, d, 2);
    const std::vector<std::int32_t> ids{1, 2, 3, 4}, others{5, 6, 7, 8};
    std::vector<float> y(4 * d);
    layer.forward(x, {.token_ids = ids}, y);
    layer.clear_gradients();
    refused(layer.try_backward(dy), errc::empty, "backward", "no forward before it");
    layer.forward(x, {.token_ids = others}, y);
    for (std::size_t i = 0; i < 4; ++i)
        for (const float g : gradient_of(layer, "stem_embed.weight").row(0, layer.ids().slot(i)))
            CHECK(g == 0.0f);
}

// A norm of length has no derivative at a row of zeros, which is where a table or a model may begin.
TEST_CASE_TEMPLATE("training: a row of zeros has finite gradients", Backend, simd<>, reference<>) {
    using number = training_number<Backend>;
    using block = tiffin_test::mort_of_three<mlp>;
    tensor_set all = tensors_for<block>();
    all.fill("modulators.weight", 0.0f);
    auto layer = prepare_training<block>(all.given(), Backend{}, {.tokens = 4});
    std::vector<number> x(4 * d, number(1)), y(4 * d), dx(4 * d), dy(4 * d, number(1));
    std::fill_n(x.begin(), d, number(0));
    const std::vector<std::int32_t> ids{1, 2, 3, 4};
    layer.forward(x, {.token_ids = ids}, y);
    layer.backward(dy, {.x = {dx.data(), 4, d}});
    for (const number v : dx) CHECK(std::isfinite(v));
    for (const auto& g : layer.gradients())
        for (std::size_t i = 0; g.data != nullptr && i < g.shape.elements(); ++i)
            CHECK_MESSAGE(std::isfinite(g.data[i]), g.name);
    const auto rows = gradient_of(layer, "modulators.weight");
    for (std::size_t e = 0; e < layer.experts(); ++e)
        for (std::size_t i = 0; i < 4; ++i)
            for (const number v : rows.row(e, i)) CHECK(std::isfinite(v));
}

TEST_CASE("training: gradients are added up in memory of the caller's, rows by id over all calls") {
    const tensor_set all = tensors_for<stem>();
    std::vector<float> down(d * f, 1.0f);
    training_options<float> options{.tokens = 4, .table_rows = 6};
    options.into.add("down_proj.weight", down.data(), {d, f});
    auto layer = prepare_training<stem>(all.given(), simd<>{}, options);
    auto once = prepare_training<stem>(all.given(), reference<>{}, {.tokens = 6});
    const std::vector<float> x = random_rows(6, d, 1), dy = random_rows(6, d, 2);
    const std::vector<std::int32_t> ids{7, 2, 7, 4, 2, 0};
    std::vector<float> y(4 * d);
    for (const std::size_t first : {0u, 4u}) {
        const std::size_t n = first == 0 ? 4 : 2;
        const auto rows = [&](const std::vector<float>& of) {
            return std::span(of).subspan(first * d, n * d);
        };
        layer.forward(rows(x), {.token_ids = std::span(ids).subspan(first, n)}, std::span(y).first(n * d));
        layer.backward(rows(dy));
    }
    std::vector<double> exact(6 * d);
    const std::vector<double> exact_x = wide(x);  // read again by backward
    once.forward(exact_x, {.token_ids = ids}, exact);
    once.backward(wide(dy));
    const auto theirs = gradient_of(once, "down_proj.weight");
    for (std::size_t i = 0; i < down.size(); ++i) CHECK(std::fabs(down[i] - 1.0 - theirs.data[i]) < 1e-4);
    // 2 and 7 were first seen in the first call, 0 in the second: ids ascend all the same.
    REQUIRE(layer.ids().size() == 4);
    const std::int32_t wanted[] = {0, 2, 4, 7};
    for (std::size_t i = 0; i < 4; ++i) {
        CHECK(layer.ids().id(i) == wanted[i]);
        const auto row = gradient_of(layer, "stem_embed.weight").row(0, layer.ids().slot(i));
        const auto exact_row = gradient_of(once, "stem_embed.weight").row(0, once.ids().slot(i));
        for (std::size_t j = 0; j < f; ++j) CHECK(std::fabs(row[j] - exact_row[j]) < 1e-4);
    }
    layer.clear_gradients();
    CHECK(layer.ids().size() == 0);
    for (const float v : down) CHECK(v == 0.0f);
    // More ids than there are rows for, and nothing has changed.
    const std::vector<std::int32_t> four{0, 1, 2, 3}, others{4, 5, 6, 3};
    layer.forward(std::span(x).first(4 * d), {.token_ids = four}, y);
    refused(layer.try_forward(std::span(x).first(4 * d), {.token_ids = others}, y), errc::size, "token_ids",
            "more ids than the 6");
    CHECK(layer.ids().size() == 4);
}

TEST_CASE("training: rows that no route has read are there, and told") {
    const tensor_set all = tensors_for<tiffin_test::mort_of_three<mlp>>();
    auto layer = prepare_training<tiffin_test::mort_of_three<mlp>>(all.given(), simd<>{});
    const std::vector<float> x = random_rows(1, d, 1), dy = random_rows(1, d, 2);
    const std::vector<std::int32_t> ids{5};
    std::vector<float> y(d);
    std::vector<choice<float>> routes(layer.choices());
    layer.forward(x, {.token_ids = ids, .routes = routes}, y);
    layer.backward(dy);
    const auto pool = gradient_of(layer, "modulators.weight");
    std::size_t read = 0;
    for (std::size_t e = 0; e < pool.shape[0]; ++e) {
        bool chosen = false, zero = true;
        for (const choice<float>& c : routes) chosen = chosen || static_cast<std::size_t>(c.expert) == e;
        for (const float v : pool.row(e, 0)) zero = zero && v == 0.0f;
        CHECK(pool.is_read(e, 0) == chosen);
        CHECK(zero != chosen);
        read += pool.is_read(e, 0) ? 1u : 0u;
    }
    CHECK(read == 2);
}

TEST_CASE("training: a loss on the logits of a router goes back to it") {
    using block = moe<mlp>;
    const tensor_set narrow = tensors_for<block>();
    double_tensors given(narrow);
    auto layer = prepare_training<block>(given.given(), reference<>{});
    REQUIRE(layer.experts() == 4);
    const std::vector<double> x = wide(random_rows(3, d, 1)), dl = wide(random_rows(3, 4, 5)), dy(3 * d, 0.0);
    std::vector<double> y(3 * d), logits(12), dx(3 * d);
    const auto loss = [&] {
        layer.forward(x, {.logits = {logits.data(), 3, 4}}, y);
        double total = 0;
        for (std::size_t i = 0; i < 12; ++i) total += logits[i] * dl[i];
        return total;
    };
    loss();
    layer.backward(dy, {.x = {dx.data(), 3, d}, .logits = {dl.data(), 3, 4}});
    const auto router = gradient_of(layer, "router.weight");
    double* const weights = given.of("router.weight");
    for (std::size_t i = 0; i < 4 * d; ++i) {
        const double before = weights[i];
        weights[i] = before + 0.5;
        const double above = loss();
        weights[i] = before - 0.5;
        CHECK(std::fabs(above - loss() - router.data[i]) < 1e-12);  // the logits are linear in it
        weights[i] = before;
    }
}

// Layers of a network with a residual carried over some of them, by differences.
template <std::size_t Layers>
void check_delayed(activations keeps) {
    CAPTURE(Layers);
    using sent = source_block<tiffin_test::pool_of_three<>>;
    // The carried rows are a factor, so that backward needs them.
    using block = modulated<mlp, delayed<sent, Layers>, tiffin_test::gated_sum>;
    constexpr std::size_t depth = 4, tokens = 3;
    std::deque<double_tensors> all;
    std::vector<trainable_layer<double>> layers;
    for (std::uint32_t n = 0; n < depth; ++n) all.emplace_back(tensors_for<block>({}, n + 1));
    for (const double_tensors& t : all)
        layers.push_back(
            prepare_training<block>(t.given(), reference<>{}, {.tokens = tokens, .keeps = keeps}));
    const std::vector<std::int32_t> ids = random_ids(tokens, vocab, 4);
    const std::vector<double> dy = wide(random_rows(tokens, d, 2));
    std::vector<std::vector<double>> x(depth + 1, std::vector<double>(tokens * d));
    x[0] = wide(random_rows(tokens, d, 1));
    carried_rows<double> carried(Layers, tokens, d), back(Layers, tokens, d);
    const auto loss = [&] {
        carried.begin();
        for (std::size_t n = 0; n < depth; ++n)
            layers[n].forward(x[n], {.token_ids = ids, .carried = &carried}, x[n + 1]);
        double total = 0;
        for (std::size_t i = 0; i < dy.size(); ++i) total += x[depth][i] * dy[i];
        return total;
    };
    loss();
    std::vector<double> from = dy, to(tokens * d);
    for (std::size_t n = depth; n-- > 0;) {
        layers[n].backward(from, {.x = {to.data(), tokens, d}, .carried = &back});
        from = to;
    }
    std::size_t checked = 0;
    for (std::size_t n = 0; n < depth; ++n)
        for (const std::string name : {"scale", "base.up_proj.weight", "modulators.weight"}) {
            const auto g = gradient_of(layers[n], name);
            double* const numbers = all[n].of(name);
            std::vector<std::pair<std::size_t, double>> some;
            tiffin_test::each_gradient<double>(layers[n], g,
                                               [&](std::size_t at, double v) { some.emplace_back(at, v); });
            for (std::size_t i = 0; i < some.size(); i += some.size() / 5) {
                const std::size_t at = some[i].first;
                const double value = some[i].second;
                const auto by = tiffin_test::differentiate(loss, numbers[at], 1.0);
                if (!by.smooth) continue;
                ++checked;
                CHECK_MESSAGE(std::fabs(by.value - value) <= 1e-6 * (std::fabs(by.value) + 1), n, " ", name,
                              "[", at, "]: ", value, ", by differences ", by.value);
            }
        }
    CHECK(checked > 50);
}
TEST_CASE("training: the gradient of what arrives layers later") {
    check_delayed<1>(activations::kept);
    check_delayed<2>(activations::kept);
    check_delayed<2>(activations::recomputed);
    check_delayed<7>(activations::kept);  // nothing arrives
}

TEST_CASE("training: rows that come with the call") {
    const tensor_set all = tensors_for<stem>();
    const tensor_view table = all.view("stem_embed.weight");
    weights given;
    const weights plain = all.given();
    for (const auto& e : plain.entries())
        if (e.name != "stem_embed.weight") given.add(e.name, e.tensor);
    given.add_gathered("stem_embed.weight", dtype::f32, table.shape);
    auto layer = prepare_training<stem>(given, simd<>{});
    auto wanted = prepare_training<stem>(plain, simd<>{});
    const std::vector<float> x = random_rows(4, d, 1), dy = random_rows(4, d, 2);
    const std::vector<std::int32_t> ids{3, 8, 3, 0};
    std::vector<float> y(4 * d), z(4 * d), dx(4 * d), dz(4 * d);
    const gathered_rows rows{
        static_cast<const std::byte*>(table.data), vocab, f * sizeof(float), f, dtype::f32, ids};
    layer.forward(x, {.token_ids = ids, .gathered = {&rows, 1}}, y);
    wanted.forward(x, {.token_ids = ids}, z);
    CHECK(y == z);
    layer.backward(dy, {.x = {dx.data(), 4, d}});
    wanted.backward(dy, {.x = {dz.data(), 4, d}});
    CHECK(dx == dz);
    const auto ours = gradient_of(layer, "stem_embed.weight"),
               theirs = gradient_of(wanted, "stem_embed.weight");
    for (std::size_t i = 0; i < 3; ++i)
        for (std::size_t j = 0; j < f; ++j) CHECK(ours.row(0, i)[j] == theirs.row(0, i)[j]);
}

TEST_CASE("training: one product of a width of its own") {
    constexpr std::size_t tokens = 5, outputs = 11;
    const std::vector<float> w = random_rows(outputs, d, 3), b = random_rows(1, outputs, 4);
    weights given;
    given.add("proj.weight", w.data(), {outputs, d}).add("proj.bias", b.data(), {outputs});
    auto layer = prepare_training<linear<>>(given, reference<>{}, {.tokens = tokens});
    REQUIRE(layer.outputs() == outputs);
    const std::vector<double> x = wide(random_rows(tokens, d, 1)), dy = wide(random_rows(tokens, outputs, 2));
    std::vector<double> y(tokens * outputs), dx(tokens * d);
    layer.forward(x, {}, y);
    layer.backward(dy, {.x = {dx.data(), tokens, d}});
    const auto near = [](double value, double wanted) {
        CHECK(std::fabs(value - wanted) <= 1e-13 * (1 + std::fabs(wanted)));
    };
    const auto dw = gradient_of(layer, "proj.weight"), db = gradient_of(layer, "proj.bias");
    for (std::size_t o = 0; o < outputs; ++o) {
        double bias = 0;
        for (std::size_t t = 0; t < tokens; ++t) bias += dy[t * outputs + o];
        near(db.data[o], bias);
        for (std::size_t i = 0; i < d; ++i) {
            double weight = 0;
            for (std::size_t t = 0; t < tokens; ++t) weight += dy[t * outputs + o] * x[t * d + i];
            near(dw.data[o * d + i], weight);
        }
    }
    for (std::size_t t = 0; t < tokens; ++t)
        for (std::size_t i = 0; i < d; ++i) {
            double back = 0;
            for (std::size_t o = 0; o < outputs; ++o)
                back += dy[t * outputs + o] * static_cast<double>(w[o * d + i]);
            near(dx[t * d + i], back);
        }
}

// y, dx and every gradient of a step, one after the other.
template <class Block, class Backend>
std::vector<training_number<Backend>> all_of_a_step(const Block& block, const weights& given,
                                                    const Backend& backend, std::size_t workers = 1) {
    using number = training_number<Backend>;
    constexpr std::size_t tokens = 9;
    auto layer = prepare_training(block, given, backend, {.tokens = tokens, .workers = workers});
    tiffin_test::training_step<number> step(tokens, d, layer.needs(), vocab);
    tiffin_test::thread_per_task threads;
    step.run(layer, threads);
    std::vector<number> all = step.y;
    all.insert(all.end(), step.dx.begin(), step.dx.end());
    for (const auto& g : layer.gradients())
        tiffin_test::each_gradient<number>(layer, g, [&](std::size_t, number v) { all.push_back(v); });
    return all;
}

TEST_CASE("training: a composition of a text learns as its type does, bit for bit") {
    constexpr policies known{policy<ffn<gate_argument<0>, argument<1>>>("ffn", {"dense"}),
                             policy<gate<activation_argument<0>, argument<1>>>("gate", {"dense"}),
                             policy<silu>("silu"),
                             policy<dense>("dense"),
                             policy<token_embedding>("token_embedding"),
                             policy<softmax_topk_renorm>("softmax_topk_renorm"),
                             policy<mixture<router_argument<0>, argument<1>>>("mixture")};
    const auto step = [&](std::string_view text, const weights& given) {
        return all_of_a_step(compose<training<simd<>>::machine>(text, known).or_throw(), given, simd<>{});
    };
    const tensor_set alone = tensors_for<stem>();
    CHECK(step("ffn(gate(silu), token_embedding)", alone.given()) ==
          all_of_a_step(stem{}, alone.given(), simd<>{}));
    const tensor_set many = tensors_for<moe<stem>>();
    CHECK(step("mixture(softmax_topk_renorm, ffn(gate(silu), token_embedding))", many.given()) ==
          all_of_a_step(mixture<softmax_topk_renorm, stem>{}, many.given(), simd<>{}));
}

TEST_CASE("training: in double too the threads change no bit") {
    using block = tiffin_test::mort_of_three<ffn<gate<gelu, sum<dense, routed_low_rank<>>>>>;
    const tensor_set all = tensors_for<block>();
    const auto one = all_of_a_step(block{}, all.given(), reference<>{});
    CHECK(all_of_a_step(block{}, all.given(), reference<>{}, 2) == one);
    CHECK(all_of_a_step(block{}, all.given(), reference<>{}, 5) == one);
}

TEST_CASE("training: memory is told, and shared where forward is computed again") {
    const tensor_set all = tensors_for<swiglu>();
    const auto kept = prepare_training<swiglu>(all.given(), simd<>{}, {.tokens = 32, .workers = 1});
    // The products of gate, up and down, and the hidden values; each area ends on a cache line.
    constexpr std::size_t numbers = 32 * (3 * f + d);
    CHECK(kept.kept_bytes(32) >= numbers * sizeof(float));
    CHECK(kept.kept_bytes(32) <= numbers * sizeof(float) + 8 * 64);
    training_options<float> options{
        .tokens = 32, .keeps = activations::recomputed, .workers = 1, .shares_workspace = true};
    auto again = prepare_training<swiglu>(all.given(), simd<>{}, options);
    CHECK(again.workspace_bytes() >= kept.workspace_bytes() + kept.kept_bytes(32));
    const std::vector<float> x = random_rows(2, d, 1);
    std::vector<float> y(2 * d, 5.0f);
    refused(again.try_forward(x, {}, y), errc::workspace, "memory", "has 0 bytes");
    CHECK(y == std::vector<float>(2 * d, 5.0f));
    workspace memory(again.workspace_bytes());
    CHECK(again.try_forward(x, {}, y, memory).ok());
    CHECK(again.try_backward(x, {}, memory).ok());
}

TEST_CASE("training: what is wrong is found before anything is written") {
    const tensor_set all = tensors_for<stem>();
    auto layer = prepare_training<stem>(all.given(), simd<>{}, {.tokens = 4});
    const std::vector<float> x = random_rows(5, d, 1);
    const std::vector<std::int32_t> ids{1, 2, 9, 4};
    std::vector<float> y(4 * d, 5.0f), dx(4 * d, 6.0f);
    const std::span<const float> four = std::span(x).first(4 * d);
    refused(layer.try_backward(four), errc::empty, "backward", "no forward before it");
    refused(layer.try_forward(x, {.token_ids = random_ids(5, vocab, 1)}, y), errc::size, "x", "has 5 tokens");
    refused(layer.try_forward(four, {.token_ids = ids}, y), errc::token_id, "stem_embed.weight",
            "token_ids[2] = 9");
    refused(layer.try_forward(four, {}, y), errc::size, "token_ids", "has 0 ids");
    refused(layer.try_forward(matrix_view<const float>(x.data(), 2, d, 2 * d),
                              {.token_ids = std::span(ids).first(2)}, std::span(y).first(2 * d)),
            errc::size, "x", "rows are adjacent");
    std::vector<float> in(x.begin(), x.begin() + 4 * d);
    const std::vector<std::int32_t> right{1, 2, 3, 4};
    refused(layer.try_forward(in, {.token_ids = right}, in), errc::overlap, "y", "overlaps x");
    CHECK(y == std::vector<float>(4 * d, 5.0f));
    layer.forward(four, {.token_ids = right}, y);
    refused(layer.try_backward(std::span(x).first(3 * d)), errc::size, "dy", "has 3 rows");
    refused(layer.try_backward(four, {.x = {dx.data(), 3, d}}), errc::size, "dx", "has shape (3, 7)");
    refused(layer.try_backward(four, {.residual = {dx.data(), 4, d}}), errc::size, "d_residual",
            "reads no such rows");
    CHECK(dx == std::vector<float>(4 * d, 6.0f));
    for (const auto& g : layer.gradients())
        for (std::size_t i = 0; g.data != nullptr && i < g.shape.elements(); ++i) CHECK(g.data[i] == 0.0f);
}

TEST_CASE("training: what is written lies apart from what backward reads") {
    const tensor_set all = tensors_for<tiffin_test::mort_of_three<mlp>>();
    auto layer = prepare_training<tiffin_test::mort_of_three<mlp>>(all.given(), simd<>{}, {.tokens = 4});
    REQUIRE(layer.needs().residual == false);
    const std::vector<float> x = random_rows(4, d, 1);
    const std::vector<std::int32_t> ids{1, 2, 3, 4};
    std::vector<float> y(4 * d), dx(4 * d), wide(8 * d);
    const std::size_t E = layer.experts();
    const matrix_view<float> logits_in_y(y.data(), 4, E);
    refused(layer.try_forward(x, {.token_ids = ids, .logits = logits_in_y}, y), errc::overlap, "y",
            "overlaps logits");
    std::vector<float> in(x);
    refused(layer.try_forward(in, {.token_ids = ids, .logits = {in.data(), 4, E}}, y), errc::overlap,
            "logits", "overlaps x");
    layer.forward(in, {.token_ids = ids}, y);
    refused(layer.try_backward(y, {.x = {in.data(), 4, d}}), errc::overlap, "dx", "overlaps x");
    refused(layer.try_backward(y, {.x = {y.data(), 4, d}}), errc::overlap, "dx", "overlaps dy");
    refused(layer.try_backward(y, {.x = {dx.data(), 4, d}, .logits = {dx.data(), 4, E}}), errc::overlap, "dx",
            "overlaps d_logits");

    using reads_residual = branch<rms, mlp>;
    const tensor_set few = tensors_for<reads_residual>();
    auto other = prepare_training<reads_residual>(few.given(), simd<>{}, {.tokens = 4});
    REQUIRE(other.needs().residual);
    std::vector<float> residual(x);
    const matrix_view<const float> given(residual.data(), 4, d);
    refused(other.try_forward(x, {.token_ids = ids, .residual = given}, residual), errc::overlap, "y",
            "overlaps residual");
    other.forward(x, {.token_ids = ids, .residual = given}, y);
    const matrix_view<float> both(dx.data(), 4, d), kept(residual.data(), 4, d);
    refused(other.try_backward(y, {.x = both, .residual = both}), errc::overlap, "dx", "overlaps d_residual");
    refused(other.try_backward(y, {.residual = kept}), errc::overlap, "d_residual", "overlaps residual");
}

TEST_CASE("training: tensors in other formats, and memory that fits no tensor") {
    const tensor_set half = tensor_set::of(swiglu{}, {{d, f, vocab}, {dtype::bf16, 0}, {}, 0u, 3});
    const auto prepared = [](const weights& given, const training_options<float>& options) {
        auto made = try_prepare_training<swiglu>(given, simd<>{}, options);
        return made ? status{} : status(made.failure());
    };
    refused(prepared(half.given(), {}), errc::dtype, "gate_proj.weight", "a layer learns in F32");
    const tensor_set all = tensors_for<swiglu>();
    std::vector<float> memory(d * f);
    training_options<float> options;
    options.into.add("gate_proj.weight", memory.data(), {d, f});
    refused(prepared(all.given(), options), errc::shape, "gate_proj.weight", "its gradient (7, 10)");
    options.into = {};
    options.into.add("no_such.weight", memory.data(), {d, f});
    refused(prepared(all.given(), options), errc::unused_tensor, "no_such.weight", "has none");
    // More than any memory has, and more than can be counted.
    constexpr std::size_t most = std::numeric_limits<std::int32_t>::max();
    refused(prepared(all.given(), {.tokens = most}), errc::workspace, "tokens", "there is no memory for the");
    refused(prepared(all.given(), {.tokens = most + 1}), errc::option, "tokens",
            "are 2147483648; at most 2147483647");
    const tensor_set broad = tensor_set::of(stem{}, {{d, 100 * f, vocab}, {dtype::f32, 0}, {}, 0u, 3});
    const auto table = try_prepare_training<stem>(broad.given(), simd<>{}, {.tokens = 1, .table_rows = most});
    REQUIRE_FALSE(table);
    refused(table.failure(), errc::workspace, "stem_embed.weight", "has no memory for the 8589934588000");
    // What computes in f32 does not take doubles for granted.
    const double_tensors doubles(all);
    const auto inference = try_prepare<swiglu>(doubles.given(), simd<>{});
    REQUIRE_FALSE(inference);
    refused(inference.failure(), errc::dtype, "gate_proj.weight", "has dtype F64");
}

}  // namespace train_trainable_layer_test
