// A table in a file learns as one in memory does, to the bit, and goes back to its last commit.
#include <tiffin/learn/stored_table.hpp>

#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/learn/adamw.hpp>
#include <tiffin/plan/tensors_needed.hpp>
#include <tiffin/train/simd.hpp>

#include "support/doctest.hpp"
#include "support/random.hpp"
#include "support/scratch_folder.hpp"
#include "support/tensor_set.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace learn_stored_table_test {
using namespace tiffin;

namespace {

constexpr std::size_t d = 8, f = 19, vocab = 40, tokens = 12;
constexpr const char* table_name = "stem_embed.weight";

// Steps of a STEM layer towards targets, with its table in memory or in a file.
struct learner {
    std::vector<float> gate, down, values;
    std::optional<stored_table> stored;
    std::optional<trainable_layer<float>> layer;
    adamw<simd<>> optimizer;
    int step = 0;

    explicit learner(const std::string& path = {}, bool again = false,
                     const adamw_options& options = {.decay = 0.1, .clip = 0.5})
        : gate(f * d), down(d * f), values(vocab * f), optimizer(options) {
        tiffin_test::random_numbers random(3);
        for (auto* const v : {&gate, &down, &values}) random.fill(*v, 0.3f);
        weights given;
        named_memory<float> memory;
        given.add("gate_proj.weight", gate.data(), {f, d}).add("down_proj.weight", down.data(), {d, f});
        memory.add("gate_proj.weight", gate.data(), {f, d}).add("down_proj.weight", down.data(), {d, f});
        if (path.empty()) {
            given.add(table_name, values.data(), {vocab, f});
            memory.add(table_name, values.data(), {vocab, f});
        } else {
            given.add_gathered(table_name, dtype::f32, {vocab, f});
            const auto first = [&](std::size_t id, std::span<float> to) {
                std::copy_n(values.data() + id * f, f, to.data());
            };
            stored.emplace(again ? stored_table::open(path).or_throw()
                                 : stored_table::create(path, vocab, f, first).or_throw());
        }
        layer.emplace(prepare_training<stem>(given, simd<>{}, {.tokens = tokens}));
        optimizer
            .add("", *layer, memory,
                 [&](std::string_view name) { return path.empty() || name != table_name; })
            .or_throw();
        if (stored) optimizer.add("", *layer, table_name, *stored).or_throw();
    }
    void learn() { REQUIRE(try_learn().ok()); }
    status try_learn() {
        tiffin_test::random_numbers random(static_cast<std::uint32_t>(100 + step++));
        std::vector<float> x(tokens * d), dy(tokens * d), y(tokens * d);
        random.fill(x, 1.0f);
        random.fill(dy, 1.0f);
        std::vector<std::int32_t> ids(tokens);
        for (auto& id : ids) id = static_cast<std::int32_t>(random.below(vocab));
        training_inputs<float> in{.token_ids = ids};
        if (stored) {
            REQUIRE(stored->fetch(ids).ok());
            in.gathered = stored->gathered();
        }
        layer->clear_gradients();
        layer->forward(x, in, y);
        layer->backward(dy);
        const status stepped = optimizer.step(1e-2);
        if (stored && stepped.ok()) REQUIRE(stored->put_back().ok());
        return stepped;
    }
    std::vector<float> table() {
        if (!stored) return values;
        std::vector<std::int32_t> all(vocab);
        for (std::size_t i = 0; i < vocab; ++i) all[i] = static_cast<std::int32_t>(i);
        REQUIRE(stored->fetch(all).ok());
        std::vector<float> rows;
        for (const std::int32_t id : all)
            rows.insert(rows.end(), stored->at(0, id).values, stored->at(0, id).values + f);
        return rows;
    }
};

}  // namespace

TEST_CASE("stored table: learns as in memory, to the bit") {
    const tiffin_test::scratch_folder folder;
    learner in_memory, in_file((folder / "rows").string());
    const std::vector<float> before = in_file.table();
    CHECK(before == in_memory.table());
    for (int i = 0; i < 12; ++i) {
        in_memory.learn();
        in_file.learn();
    }
    CHECK(in_file.table() == in_memory.table());
    CHECK(in_file.table() != before);
    CHECK(in_file.down == in_memory.down);
    CHECK(in_file.optimizer.gradient_norm() == in_memory.optimizer.gradient_norm());
}

TEST_CASE("stored table: a run that ends goes on from its last commit, to the bit") {
    const tiffin_test::scratch_folder folder;
    const std::string path = (folder / "rows").string();
    learner whole;
    std::vector<std::byte> state;
    std::vector<float> gate, down;
    {
        learner first(path);
        for (int i = 0; i < 4; ++i) first.learn();
        REQUIRE(first.stored->rows().commit().ok());
        gate = first.gate;
        down = first.down;
        first.optimizer.visit_state([&](const std::string&, dtype type, const shape& s, void* data) {
            const auto* const from = static_cast<const std::byte*>(data);
            state.insert(state.end(), from, from + s.elements() * size_of(type));
        });
        for (int i = 0; i < 3; ++i) first.learn();  // and no commit
    }
    learner second(path, true);
    REQUIRE(second.stored->rows().unfinished());
    CHECK_FALSE(second.stored->fetch(std::vector<std::int32_t>{1}).ok());
    CHECK(second.stored->resume(7).failure().code == errc::file);
    REQUIRE(second.stored->resume(1).ok());
    second.gate = gate;  // the same memory: the layer reads it where it lies
    second.down = down;
    std::size_t at = 0;
    second.optimizer.visit_state([&](const std::string& name, dtype type, const shape& s, void* data) {
        CHECK(name.find(table_name) == std::string::npos);  // the file has those
        std::memcpy(data, state.data() + at, s.elements() * size_of(type));
        at += s.elements() * size_of(type);
    });
    CHECK(at == state.size());
    second.optimizer.set_steps(4);
    second.step = 4;
    for (int i = 0; i < 9; ++i) {
        whole.learn();
        if (i >= 4) second.learn();
    }
    CHECK(second.table() == whole.table());
    CHECK(second.gate == whole.gate);
}

TEST_CASE("stored table: a run that ends between its checkpoint and its commit goes on from the checkpoint") {
    const tiffin_test::scratch_folder folder;
    const std::string path = (folder / "rows").string();
    std::vector<float> rows;
    std::uint64_t checkpoint = 0;
    {
        learner first(path);
        for (int i = 0; i < 4; ++i) first.learn();
        REQUIRE(first.stored->rows().commit().ok());
        for (int i = 0; i < 3; ++i) first.learn();
        checkpoint = first.stored->next_commit();
        rows = first.table();
    }
    learner second(path, true);
    REQUIRE(second.stored->rows().unfinished());
    REQUIRE(second.stored->resume(checkpoint).ok());
    CHECK(second.table() == rows);
    CHECK(second.stored->resume(checkpoint).ok());  // there already
}

TEST_CASE("stored table: gradients of other rows than were fetched are refused, and of pools") {
    const tiffin_test::scratch_folder folder;
    learner one((folder / "rows").string());
    const std::vector<float> x(tokens * d, 1.0f);
    std::vector<float> y(tokens * d);
    std::vector<std::int32_t> ids(tokens, 3);
    REQUIRE(one.stored->fetch(ids).ok());
    const auto forward = [&](std::span<const std::int32_t> read) {
        return one.layer->try_forward(x, {.token_ids = read, .gathered = one.stored->gathered()}, y);
    };
    CHECK(forward({}).failure().code == errc::size);
    ids[1] = static_cast<std::int32_t>(vocab);
    CHECK(forward(ids).failure().code == errc::token_id);
    ids[1] = 4;  // not fetched
    REQUIRE(forward(ids).ok());
    one.layer->backward(x);
    const std::vector<float> before = one.down;
    const status stopped = one.optimizer.step(1e-2);
    REQUIRE_FALSE(stopped.ok());
    CHECK(stopped.failure().code == errc::token_id);
    CHECK(stopped.failure().what.find("id 4") != std::string::npos);
    CHECK(one.down == before);
    CHECK(one.optimizer.add("", *one.layer, "down_proj.weight", *one.stored).failure().code ==
          errc::missing_tensor);

    mort<swiglu> block;
    block.modulator.num_layers = 2;
    std::vector<float> numbers(8 * 64 * 64);
    weights given;
    for (const auto& [name, t] :
         tensors_needed(block, {.d_model = d, .d_ff = f, .vocab = vocab, .experts = 3}))
        given.add(name, numbers.data(), t.shape);
    const auto layer = prepare_training(block, given, simd<>{}, {.tokens = tokens});
    const status refused = one.optimizer.add("", layer, "modulators.weight", *one.stored);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.failure().code == errc::shape);
    CHECK(refused.failure().what.find("3 experts' rows of 8") != std::string::npos);

    weights narrow;
    std::vector<float> numbers_of(d * f);
    narrow.add("gate_proj.weight", numbers_of.data(), {f, d})
        .add("down_proj.weight", numbers_of.data(), {d, f});
    narrow.add_gathered(table_name, dtype::bf16, {vocab, f});
    const auto made = try_prepare_training<stem>(narrow, simd<>{}, {.tokens = tokens});
    REQUIRE_FALSE(made.ok());
    CHECK(made.failure().code == errc::dtype);
}

TEST_CASE("stored table: rows that rest cannot decay, and nothing moves") {
    const tiffin_test::scratch_folder folder;
    learner in_file((folder / "rows").string(), false, {.decay = 0.1, .resting_rows_decay = true});
    const std::vector<float> table = in_file.table(), down = in_file.down;
    const status refused = in_file.try_learn();
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.failure().code == errc::option);
    CHECK(refused.failure().where == table_name);
    CHECK(in_file.down == down);
    CHECK(in_file.table() == table);
}

TEST_CASE("stored table: what is wrong is told") {
    const tiffin_test::scratch_folder folder;
    const std::string path = (folder / "rows").string();
    {
        auto rows = writable_rows::create(path, 5, 30);
        REQUIRE(rows.ok());
    }
    const auto opened = stored_table::open(path);
    REQUIRE_FALSE(opened.ok());
    CHECK(opened.failure().code == errc::file);
    CHECK(opened.failure().what.find("rows of 30 bytes") != std::string::npos);
    CHECK_FALSE(stored_table::open((folder / "nowhere").string()).ok());
    const auto nothing = [](std::size_t, std::span<float>) {};
    auto table = stored_table::create((folder / "table").string(), 4, 3, nothing).or_throw();
    CHECK(table.vocab() == 4);
    CHECK(table.width() == 3);
    const auto outside = table.fetch(std::vector<std::int32_t>{1, 4});
    REQUIRE_FALSE(outside.ok());
    CHECK(outside.failure().code == errc::token_id);
}

}  // namespace learn_stored_table_test
