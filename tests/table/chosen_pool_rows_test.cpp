// A pool of which only the chosen rows are read: a layer learns from them as from the whole pool in memory, to the bit; each row
// is read once; its gradients are those of a table of all experts' rows.
#include <tiffin/table/chosen_pool_rows.hpp>

#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/learn/learning_rows.hpp>
#include <tiffin/plan/tensors_needed.hpp>
#include <tiffin/train/simd.hpp>

#include "support/doctest.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace table_chosen_pool_rows_test {
using namespace tiffin;

namespace {

constexpr std::size_t d = 9, f = 14, vocab = 11, experts = 5, tokens = 13;
constexpr float poison = std::numeric_limits<float>::quiet_NaN();

// Rows in memory, which notes what is read of them.
struct noted_rows {
    const std::vector<float>* values;
    std::vector<std::int32_t>* read_rows;
    std::size_t* reads;
    bool fails = false;

    [[nodiscard]] table_shape shape() const { return {experts * vocab, d, dtype::f32, {}}; }
    status read(std::span<const std::int32_t> ids, std::byte* to) const {
        ++*reads;
        if (fails) return failure(errc::file, "rows", "cannot be read");
        for (const std::int32_t id : ids) {
            read_rows->push_back(id);
            const auto* const from =
                reinterpret_cast<const std::byte*>(values->data() + static_cast<std::size_t>(id) * d);
            to = std::copy_n(from, d * sizeof(float), to);
        }
        return {};
    }
};

template <class Block>
struct learner {
    std::map<std::string, std::pair<shape, std::vector<float>>> all;
    std::string pool;
    std::vector<float> x, y, dy, dx;
    std::vector<std::int32_t> ids;
    std::vector<std::int32_t> read_rows;
    std::size_t reads = 0;
    noted_rows store{nullptr, &read_rows, &reads};

    explicit learner(const Block& block, const std::string& of)
        : pool(of), x(tokens * d), y(x), dy(x), dx(x), ids(tokens) {
        std::uint32_t seed = 1;
        for (const auto& [name, t] :
             tensors_needed(block, {.d_model = d, .d_ff = f, .vocab = vocab, .experts = experts})) {
            auto& [sizes, values] = all[name];
            sizes = t.shape;
            values.resize(t.shape.elements());
            tiffin_test::random_numbers(seed++).fill(values, 0.5f);
        }
        tiffin_test::random_numbers random(77);
        random.fill(x, 1.0f);
        random.fill(dy, 1.0f);
        for (auto& id : ids) id = static_cast<std::int32_t>(random.below(vocab / 2));  // some twice
        store.values = &all.at(pool).second;
    }
    trainable_layer<float> prepared(const Block& block, bool gathered) const {
        weights given;
        for (const auto& [name, t] : all)
            if (gathered && name == pool)
                given.add_gathered(name, dtype::f32, t.first);
            else
                given.add(name, t.second.data(), t.first);
        return prepare_training(block, given, simd<>{}, {.tokens = tokens});
    }
};

mort<swiglu> small_mort() {
    mort<swiglu> block;
    block.modulator.num_layers = 2;
    return block;
}

}  // namespace

TEST_CASE("chosen pool rows: a layer learns as from the whole pool, and each chosen row is read once") {
    const mort<swiglu> block = small_mort();
    learner of(block, "modulators.weight");
    auto whole = of.prepared(block, false), part = of.prepared(block, true);
    std::vector<choice<float>> routes(tokens * whole.choices());
    whole.forward(of.x, {.token_ids = of.ids, .routes = routes}, of.y);
    whole.backward(of.dy, {.x = {of.dx.data(), tokens, d}});

    auto rows = chosen_pool_rows::of(of.store, experts).or_throw();
    gathered_rows now = rows.lay_out(of.ids).or_throw();
    REQUIRE(now.width == experts * d);
    // What is not chosen is not read: not even from what an earlier call has left.
    std::fill_n(reinterpret_cast<float*>(const_cast<std::byte*>(now.data)), now.count * now.width, poison);
    std::vector<float> y(of.y.size()), dx(of.dx.size());
    const std::function<status(const chosen_experts<float>&)> read =
        [&](const chosen_experts<float>& chosen) {
            CHECK(chosen.pool == 0);
            CHECK(chosen.top_k == whole.choices());
            CHECK(chosen.choices.size() == routes.size());
            return rows.read(chosen);
        };
    part.forward(of.x, {.token_ids = of.ids, .gathered = {&now, 1}, .on_chosen = &read}, y);
    part.backward(of.dy, {.x = {dx.data(), tokens, d}});
    CHECK(y == of.y);
    CHECK(dx == of.dx);
    std::set<std::int32_t> chosen;
    for (std::size_t i = 0; i < routes.size(); ++i)
        chosen.insert(routes[i].expert * static_cast<std::int32_t>(vocab) + of.ids[i / whole.choices()]);
    CHECK(of.reads == 1);
    CHECK(of.read_rows.size() == chosen.size());
    CHECK(std::set<std::int32_t>(of.read_rows.begin(), of.read_rows.end()) == chosen);
    CHECK(rows.rows_read() == chosen.size());

    // Gradients: one table's, ids ascending, of the chosen rows alone.
    const auto own = layer_row_gradients<float>::of(part, of.pool).or_throw();
    const pool_as_table<float> table(own, vocab);
    CHECK(table.experts() == 1);
    CHECK(table.width() == d);
    REQUIRE(table.size() == chosen.size());
    CHECK(table.size() <= table.capacity());
    std::size_t n = 0;
    for (const std::int32_t row : chosen) {
        CHECK(table.id(n) == row);
        const auto e = static_cast<std::size_t>(row) / vocab;
        std::size_t slot = 0;
        while (own.id(slot) != row % static_cast<std::int32_t>(vocab)) ++slot;
        CHECK(table.row(n++, 0) == own.row(slot, e));
    }
}

TEST_CASE("chosen pool rows: in a mixture each expert's tokens ask for theirs") {
    moe<mort<swiglu>> block;
    block.expert = small_mort();
    block.router.top_k = 2;
    std::size_t asked = 0, asking = 0;
    for (std::size_t e = 0; e < experts; ++e) {
        learner of(block, "experts." + std::to_string(e) + ".modulators.weight");
        auto whole = of.prepared(block, false), part = of.prepared(block, true);
        whole.forward(of.x, {.token_ids = of.ids}, of.y);
        auto rows = chosen_pool_rows::of(of.store, experts).or_throw();
        const gathered_rows now = rows.lay_out(of.ids).or_throw();
        std::fill_n(reinterpret_cast<float*>(const_cast<std::byte*>(now.data)), now.count * now.width,
                    poison);
        std::vector<float> y(of.y.size());
        const std::function<status(const chosen_experts<float>&)> read =
            [&](const chosen_experts<float>& chosen) {
                asked += chosen.choices.size() / chosen.top_k;
                ++asking;
                CHECK(chosen.positions != nullptr);
                return rows.read(chosen);
            };
        part.forward(of.x, {.token_ids = of.ids, .gathered = {&now, 1}, .on_chosen = &read}, y);
        CHECK(y == of.y);
    }
    CHECK(asked == 2 * tokens);
    CHECK(asking > 1);
}

TEST_CASE("chosen pool rows: all experts' rows, equal ones once, and what is wrong is told") {
    const mort<swiglu> block = small_mort();
    learner of(block, "modulators.weight");
    auto rows = chosen_pool_rows::of(of.store, experts).or_throw();
    const std::vector<std::int32_t> ids{4, 0, 4};
    const gathered_rows now = rows.lay_out(ids).or_throw();
    REQUIRE(rows.read_all().ok());
    CHECK(of.read_rows.size() == 2 * experts);
    REQUIRE(rows.read_all().ok());
    CHECK(of.reads == 2);  // collective stores count on it
    CHECK(of.read_rows.size() == 2 * experts);
    const auto& pool = of.all.at(of.pool).second;
    for (std::size_t t = 0; t < ids.size(); ++t)
        for (std::size_t e = 0; e < experts; ++e)
            CHECK(std::equal(pool.begin() + static_cast<std::ptrdiff_t>(
                                                (e * vocab + static_cast<std::size_t>(ids[t])) * d),
                             pool.begin() + static_cast<std::ptrdiff_t>(
                                                (e * vocab + static_cast<std::size_t>(ids[t]) + 1) * d),
                             reinterpret_cast<const float*>(now.row(t)) + e * d));

    const auto refused = [](const auto& made, errc code, const char* what) {
        REQUIRE_FALSE(made.ok());
        CHECK(made.failure().code == code);
        CHECK(made.failure().message().find(what) != std::string::npos);
    };
    refused(chosen_pool_rows::of(of.store, 4), errc::size, "55 rows for 4 experts");
    refused(chosen_pool_rows::of(of.store, 0), errc::size, "for 0 experts");
    refused(rows.lay_out(std::vector<std::int32_t>{1, 11}), errc::token_id, "ids[1] is 11, outside [0, 11)");
    REQUIRE(rows.lay_out(ids).ok());
    const std::vector<choice<float>> bad{{5, 1.0f}}, good{{2, 1.0f}}, none{{-1, 0.0f}};
    const std::uint32_t far = 3;
    refused(rows.read(chosen_experts<float>{0, bad, 1}), errc::option, "expert 5 lies outside [0, 5)");
    refused(rows.read(chosen_experts<float>{0, good, 1, &far}), errc::size, "of token 3 of 3");
    of.read_rows.clear();
    REQUIRE(rows.read(chosen_experts<float>{0, none, 1}).ok());
    CHECK(of.read_rows.empty());

    // A store that fails: the call fails, and the next one reads again.
    auto layer = of.prepared(block, true);
    noted_rows failing = of.store;
    failing.fails = true;
    auto broken = chosen_pool_rows::of(failing, experts).or_throw();
    const gathered_rows laid = broken.lay_out(of.ids).or_throw();
    const std::function<status(const chosen_experts<float>&)> read =
        [&](const chosen_experts<float>& chosen) { return broken.read(chosen); };
    const training_inputs<float> in{.token_ids = of.ids, .gathered = {&laid, 1}, .on_chosen = &read};
    refused(layer.try_forward(of.x, in, of.y), errc::file, "cannot be read");
    refused(layer.try_backward(of.dy), errc::empty, "no forward before it");
    failing.fails = false;
    CHECK(layer.try_forward(of.x, in, of.y).ok());
}

}  // namespace table_chosen_pool_rows_test
