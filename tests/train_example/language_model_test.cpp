// The model of examples/train: its gradient against differences of its loss, with every kind of block; a step changes
// what it should.
#include "../../examples/train/language_model.hpp"
#include "../../examples/train/run_options.hpp"

#include <tiffin/executor/thread_team.hpp>

#include "support/doctest.hpp"
#include "support/random.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace train_example_language_model_test {

namespace {

constexpr std::size_t length = 6, sequences = 2, rows = length * sequences;

model_sizes sizes_of(const std::vector<std::string>& kinds) {
    model_sizes sizes;
    sizes.ffn = {.d_model = 12,
                 .d_ff = 20,
                 .vocabulary = 29,
                 .layers = kinds.size(),
                 .experts = 4,
                 .bank = 3,
                 .rank = 2,
                 .d_mem = 5};
    sizes.attention = {.heads = 4, .kv_heads = 2, .head = 4};
    sizes.context = length;
    sizes.kinds = kinds;
    return sizes;
}
std::vector<std::int32_t> ids_of(std::uint32_t seed) {
    tiffin_test::random_numbers random(seed);
    std::vector<std::int32_t> ids(rows);
    for (auto& id : ids) id = static_cast<std::int32_t>(random.below(29));
    return ids;
}

struct learner {
    language_model model;
    std::vector<std::int32_t> ids = ids_of(1), targets = ids_of(2);

    explicit learner(const std::vector<std::string>& kinds,
                     const std::function<bool(std::string_view)>& trains = {},
                     tiffin::executor_ref execute = tiffin::serially)
        : learner(sizes_of(kinds), trains, execute) {}
    explicit learner(const model_sizes& sizes, const std::function<bool(std::string_view)>& trains = {},
                     tiffin::executor_ref execute = tiffin::serially)
        : model(sizes, rows, {}, execute, trains) {
        targets[3] = tiffin::no_target;
        model.initialise(5);
        // Larger than one would start with, so that every part has a say; not the integers of a map.
        tiffin_test::random_numbers random(5);  // with which no route changes within a difference
        const auto all = model.numbers().memory();
        for (const auto& t : all.entries()) {
            std::vector<float> noise(t.shape.elements());
            random.fill(noise, 0.3f);
            for (std::size_t i = 0; i < noise.size(); ++i) t.data[i] += noise[i];
        }
    }
    double loss() {
        std::vector<double> losses(rows);
        model.judge(ids, targets, length, losses);
        double sum = 0;
        for (const double l : losses) sum += l / rows;
        return sum;
    }
};

}  // namespace

// Differences of four losses have an error of the fourth power of h. A loss of about 4 is rounded to f32 in some tens of
// places, an error of 2e-7 or so each and of 1e-6 together; over 12 h that is 3e-4.
TEST_CASE("language model: gradients are the slope of the loss, for every kind of block") {
    std::vector<std::vector<std::string>> all{{"none", "none"}};
    for (const ffn_kind& kind : ffn_kinds()) all.emplace_back(2 + kind.delay(sizes_of({}).ffn), kind.name);
    // Texts: what has no name, a mixture under a modulator, a part that reads the residual stream.
    all.push_back({"none", "ffn(gate(sigmoid), sum(dense, token_embedding))"});
    all.push_back({"retoken(moe(stem, top_k=2))", "parallel(swiglu, on_residual(mlp))"});
    std::vector<model_sizes> models;
    for (const auto& kinds : all) models.push_back(sizes_of(kinds));
    // LayerNorm, and a head of its own: beside a block that reads the embedding too.
    for (const char* kind : {"swiglu", "meki"})
        for (const bool both : {false, true}) {
            models.push_back(sizes_of({"none", kind}));
            models.back().untied_head = true;
            models.back().layer_norm = both;
        }
    for (const model_sizes& sizes : models) {
        const auto& kinds = sizes.kinds;
        CAPTURE(kinds[0]);
        CAPTURE(sizes.layer_norm);
        CAPTURE(sizes.untied_head);
        learner one(sizes);
        tiffin::adamw<tiffin::simd<>> optimizer({.decay = 0, .clip = 0});
        one.model.add_to(optimizer);
        one.model.clear_gradients();
        const double before = one.loss();
        const step_losses sums = one.model.learn(one.ids, one.targets);
        CHECK(std::fabs(sums.prediction - before) < 1e-6 * before);
        // The optimizer's first moments after one step without clipping are (1 - beta1) times the gradients.
        REQUIRE(optimizer.step(0).ok());
        const auto memory = one.model.numbers().memory();
        std::size_t tensors = 0;
        optimizer.visit_state(
            [&](const std::string& name, tiffin::dtype, const tiffin::shape& shape, void* state) {
                if (!name.ends_with(".first_moment")) return;
                const auto* const at = memory.find(name.substr(0, name.size() - 13));
                REQUIRE(at != nullptr);
                CAPTURE(name);
                ++tensors;
                const auto* const g = static_cast<const float*>(state);
                double size = 0;
                for (std::size_t i = 0; i < shape.elements(); ++i) size += 100.0 * g[i] * g[i];
                // What the last layers of a delayed block send, nobody reads.
                bool arrives = true;
                for (std::size_t i = 2; i < kinds.size(); ++i)
                    arrives = arrives && !name.starts_with("layers." + std::to_string(i) + ".ffn.branch.1.");
                CHECK((size > 0) == arrives);
                if (!arrives) return;
                size = std::sqrt(size);
                // Along the gradient itself the slope is its length.
                constexpr double h = 4e-3;
                const std::vector<float> kept(at->data, at->data + shape.elements());
                const auto at_distance = [&](double distance) {
                    for (std::size_t i = 0; i < kept.size(); ++i)
                        at->data[i] = kept[i] + static_cast<float>(distance * 10 * g[i] / size);
                    return one.loss();
                };
                const double near = at_distance(h) - at_distance(-h),
                             far = at_distance(2 * h) - at_distance(-2 * h);
                std::copy(kept.begin(), kept.end(), at->data);
                const double slope = (8 * near - far) / (12 * h);
                CHECK(std::fabs(slope - size) < 2e-3 * size + 1e-4);
            });
        CHECK(tensors == memory.entries().size());
    }
}

TEST_CASE(
    "language model: what does not learn stays as it is, and the rest has the gradients that it has "
    "otherwise") {
    const auto is_table = [](std::string_view name) { return name.starts_with("layers.1.ffn.modulators"); };
    std::vector<std::vector<float>> moments;
    for (const bool frozen : {false, true}) {
        learner one({"swiglu", "retoken"}, frozen ? is_table : std::function<bool(std::string_view)>{});
        tiffin::adamw<tiffin::simd<>> optimizer({.decay = 0, .clip = 0});
        one.model.add_to(optimizer);
        one.model.clear_gradients();
        static_cast<void>(one.model.learn(one.ids, one.targets));
        REQUIRE(optimizer.step(1e-2).ok());
        std::size_t tensors = 0;
        optimizer.visit_state(
            [&](const std::string& name, tiffin::dtype, const tiffin::shape& shape, void* state) {
                if (!name.ends_with(".first_moment")) return;
                ++tensors;
                const auto* const g = static_cast<const float*>(state);
                if (is_table(name)) moments.emplace_back(g, g + shape.elements());
            });
        CHECK((tensors == 1) == frozen);
        const learner fresh({"swiglu", "retoken"});
        const auto all = one.model.numbers().behind("");
        const auto before = fresh.model.numbers().behind("");
        for (const auto& e : all.entries()) {
            CAPTURE(e.name);
            const bool same = std::memcmp(e.tensor.data, before.find(e.name)->data,
                                          e.tensor.shape.elements() * sizeof(float)) == 0;
            CHECK(same == (frozen && !is_table(e.name)));
        }
    }
    REQUIRE(moments.size() == 2);
    CHECK(moments[0] == moments[1]);
}

TEST_CASE("language model: the last layers of a model, from the stream before them") {
    learner whole({"swiglu", "stem"}), last({"stem"});
    const auto to = last.model.numbers().memory();
    for (const auto& t : to.entries()) {
        std::string name = t.name;
        if (name.starts_with("layers.0.")) name[7] = '1';
        std::copy_n(static_cast<const float*>(whole.model.numbers().behind("").find(name)->data),
                    t.shape.elements(), t.data);
    }
    std::vector<double> all(rows), from_stream(rows), from_ids(rows);
    whole.model.judge(whole.ids, whole.targets, length, all);
    const row_matrix stream = *whole.model.rows_of(1).residual;
    last.model.judge(last.ids, last.targets, length, from_stream, stream);
    last.model.judge(last.ids, last.targets, length, from_ids);
    CHECK(from_stream == all);
    CHECK(from_ids != all);
}

TEST_CASE("language model: what a token predicts does not depend on those after it") {
    learner one({"stem", "swiglu"});
    std::vector<double> whole(rows), changed(rows);
    one.model.judge(one.ids, one.targets, length, whole);
    one.ids[length - 1] = (one.ids[length - 1] + 1) % 29;
    one.model.judge(one.ids, one.targets, length, changed);
    for (std::size_t t = 0; t < rows; ++t) CHECK((whole[t] == changed[t]) == (t != length - 1));
    // What comes next is what the loss of the same token was computed from.
    const auto logits = one.model.next(std::span(one.ids).first(3));
    CHECK(logits.size() == 29);
    double sum = 0;
    for (const float z : logits) sum += std::exp(z - logits[static_cast<std::size_t>(one.targets[2])]);
    CHECK(std::fabs(std::log(sum) - whole[2]) < 1e-5);
}

TEST_CASE("run options: the layers that have the block which is asked for") {
    const auto kinds = [](const char* where) {
        run_options options;
        options.layers = 6;
        options.ffn = "stem";
        options.where = where;
        std::string all;
        for (const std::string& kind : options.sizes(29).kinds) all += kind == "stem" ? 'x' : '-';
        return all;
    };
    CHECK(kinds("all") == "xxxxxx");
    CHECK(kinds("all-but-0") == "-xxxxx");
    CHECK(kinds("thirds") == "--x--x");
    CHECK(kinds("halves") == "-x-x-x");
    CHECK(kinds("1,3") == "-x-x--");
    CHECK_THROWS_WITH_AS(kinds("6"), doctest::Contains("'6' is no layer below 6"), std::invalid_argument);
    CHECK_THROWS_WITH_AS(kinds(""), doctest::Contains("no layer"), std::invalid_argument);
}

TEST_CASE("language model: steps bring the loss down, and the same on several threads") {
    std::vector<double> ends;
    tiffin::thread_team three(3);
    for (const bool together : {false, true}) {
        const tiffin::executor_ref execute = together ? tiffin::executor_ref(three) : tiffin::serially;
        learner one({"moe", "meki", "mort"}, {}, execute);
        tiffin::adamw<tiffin::simd<>> optimizer;
        one.model.add_to(optimizer);
        const double before = one.loss();
        for (int step = 0; step < 30; ++step) {
            one.model.clear_gradients();
            static_cast<void>(one.model.learn(one.ids, one.targets));
            REQUIRE(optimizer.step(1e-2, execute).ok());
        }
        one.model.clear_gradients();
        ends.push_back(one.loss());
        CHECK(ends.back() < before / 2);
    }
    CHECK(ends[0] == ends[1]);
}

}  // namespace train_example_language_model_test
