// Training over 1 to 4 ranks: a table by ids, a pool by ids and by experts, whose rows are fetched from their owners in each step;
// losses as on one rank, to rounding, and bytes as many as the rows have.
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/learn/adamw.hpp>
#include <tiffin/mpi/sharded_gradients.hpp>
#include <tiffin/mpi/sharded_rows.hpp>
#include <tiffin/plan/tensors_needed.hpp>
#include <tiffin/table/chosen_pool_rows.hpp>
#include <tiffin/table/joined_columns.hpp>
#include <tiffin/table/prefetched_rows.hpp>
#include <tiffin/train/simd.hpp>

#include "support/doctest.hpp"
#include "support/random.hpp"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <mpi.h>

using namespace tiffin;

namespace {

std::uint64_t bytes_sent = 0;  // by this rank, to itself too

}  // namespace

// In the place of MPI's: counts what is sent.
extern "C" int MPI_Alltoallv(const void* from, const int sent[], const int starts[], MPI_Datatype type,
                             void* to, const int received[], const int places[], MPI_Datatype type_there,
                             MPI_Comm comm) {
    int ranks = 0, size = 0;
    MPI_Comm_size(comm, &ranks);
    MPI_Type_size(type, &size);
    for (int i = 0; i < ranks; ++i)
        bytes_sent += static_cast<std::uint64_t>(sent[i]) * static_cast<std::uint64_t>(size);
    return PMPI_Alltoallv(from, sent, starts, type, to, received, places, type_there, comm);
}

namespace {

constexpr std::size_t d = 8, f = 13, vocab = 29, experts = 4, batch = 24;
constexpr int steps = 8;

int rank_of(MPI_Comm comm) {
    int rank = 0;
    MPI_Comm_rank(comm, &rank);
    return rank;
}
int ranks_of(MPI_Comm comm) {
    int ranks = 0;
    MPI_Comm_size(comm, &ranks);
    return ranks;
}

// A block's numbers, the same on every rank.
struct numbers {
    std::map<std::string, std::pair<tiffin::shape, std::vector<float>>> all;

    void add_to(weights& given, named_memory<float>& memory) {
        for (auto& [tensor, values] : all) {
            given.add(tensor, values.second.data(), values.first);
            memory.add(tensor, values.second.data(), values.first);
        }
    }
    template <class Block>
    static numbers of(const Block& block) {
        numbers made;
        std::uint32_t seed = 1;
        for (const auto& [name, t] :
             tensors_needed(block, {.d_model = d, .d_ff = f, .vocab = vocab, .experts = experts})) {
            auto& [shape, values] = made.all[name];
            shape = t.shape;
            values.resize(t.shape.elements());
            tiffin_test::random_numbers(seed++).fill(values, 0.4f);
        }
        return made;
    }
};

// The share of the batch that a rank has, of ids and of rows of d.
template <class T>
std::vector<T> part(const std::vector<T>& whole, int rank, int ranks) {
    const std::size_t each = whole.size() / static_cast<std::size_t>(ranks);
    const auto from = whole.begin() + static_cast<std::ptrdiff_t>(each * static_cast<std::size_t>(rank));
    return {from, from + static_cast<std::ptrdiff_t>(each)};
}

// What a rank has of the batch of a step: one of two, in turns.
struct step_data {
    std::vector<float> x, target;
    std::vector<std::int32_t> ids;

    step_data(int step, int rank, int ranks) : x(batch * d), target(batch * d), ids(batch) {
        tiffin_test::random_numbers random(static_cast<std::uint32_t>(50 + step % 2));
        random.fill(x, 1.0f);
        random.fill(target, 1.0f);
        for (auto& id : ids) id = static_cast<std::int32_t>(random.below(vocab));
        x = part(x, rank, ranks);
        target = part(target, rank, ranks);
        ids = part(ids, rank, ranks);
    }
    // The loss, whose gradient y becomes.
    double squares(std::vector<float>& y) const {
        double loss = 0;
        for (std::size_t i = 0; i < y.size(); ++i) {
            y[i] -= target[i];
            loss += static_cast<double>(y[i]) * static_cast<double>(y[i]);
        }
        return loss;
    }
};

// Rows of this rank's block, in memory: (experts, ids, width) of the block.
struct own_block {
    shard_range rows, chosen;
    std::vector<float> values;
    std::unique_ptr<rows_in_memory<float>> learning;

    own_block(const shard_grid& grid, int rank, const std::vector<float>& whole, std::size_t n_experts,
              std::size_t width, std::size_t ids = vocab) {
        rows = grid.rows_at(rank, ids);
        chosen = n_experts == 1 ? shard_range{0, 1} : grid.experts_at(rank, n_experts);
        for (std::size_t e = 0; e < chosen.count; ++e) {
            const auto from =
                whole.begin() + static_cast<std::ptrdiff_t>(((chosen.first + e) * ids + rows.first) * width);
            values.insert(values.end(), from, from + static_cast<std::ptrdiff_t>(rows.count * width));
        }
        learning = std::make_unique<rows_in_memory<float>>(values.data(), chosen.count, rows.count, width);
    }
    // A row of an id: those of all experts of the block, side by side. The tables must stay where they are.
    [[nodiscard]] joined_columns store(std::size_t width, std::vector<in_memory>& tables) const {
        for (std::size_t e = 0; e < chosen.count; ++e)
            tables.push_back(
                in_memory::view({values.data() + e * rows.count * width, dtype::f32, {rows.count, width}})
                    .or_throw());
        return joined_columns::of({tables.begin(), tables.end()}).or_throw();
    }
};

// What a run makes: a loss per step, and the bytes that all ranks have sent, beside the most that rows allow.
struct trained {
    std::vector<double> losses;
    double bytes = 0, most_bytes = 0;
};

// The squares of y - target over the whole batch, in each step, where the batch and the table lie at the ranks of `comm`: no
// rank has more of the table than its own block.
template <class Block>
trained losses_at(MPI_Comm comm, const shard_grid& grid, const Block& block, const std::string& name,
                  std::size_t n_experts) {
    const int rank = rank_of(comm), ranks = ranks_of(comm);
    numbers mine = numbers::of(block);
    weights given;
    named_memory<float> memory;
    const tiffin::shape sizes = mine.all.at(name).first;
    const std::size_t width = sizes.last();
    const own_block own(grid, rank, mine.all.at(name).second, n_experts, width);
    mine.all.erase(name);
    mine.add_to(given, memory);
    given.add_gathered(name, dtype::f32, sizes);
    std::vector<in_memory> tables;
    tables.reserve(own.chosen.count);
    const joined_columns store = own.store(width, tables);
    const auto table = sharded_rows::of(comm, store, grid, vocab).or_throw();
    prefetched_rows gathered(table);
    auto layer = prepare_training(block, given, simd<>{}, {.tokens = batch});
    auto rows = sharded_gradients::of(comm, grid, {vocab, width, n_experts}, batch).or_throw();
    adamw<simd<>> optimizer({.decay = 0.1, .clip = 0.3});
    optimizer.add("", layer, memory, [&](std::string_view tensor) { return tensor != name; }).or_throw();
    optimizer.add(name, *rows, *own.learning).or_throw();
    trained made;
    bytes_sent = 0;
    for (int step = 0; step < steps; ++step) {
        const step_data batch_part(step, rank, ranks);
        const auto& [x, target, ids] = batch_part;
        const auto different = static_cast<double>(std::set<std::int32_t>(ids.begin(), ids.end()).size());
        // Ids to each shard of columns, rows back; then gradients, which have a header of 8 bytes.
        made.most_bytes += different * static_cast<double>(4 * grid.column_shards + 4 * n_experts * width +
                                                           n_experts * (8 + 4 * width));
        std::vector<float> y(x.size());
        layer.clear_gradients();
        const gathered_rows now = gathered.gather(ids).or_throw();
        layer.forward(x, {.token_ids = ids, .gathered = {&now, 1}}, y);
        made.losses.push_back(sum_over_ranks(comm)(batch_part.squares(y)));
        layer.backward(y);
        REQUIRE(rows->gather(layer, name).ok());
        REQUIRE(add_over_ranks(comm, layer).ok());
        REQUIRE(optimizer.step(1e-2, serially, sum_over_ranks(comm)).ok());
    }
    made.bytes = sum_over_ranks(comm)(static_cast<double>(bytes_sent));
    made.most_bytes = sum_over_ranks(comm)(made.most_bytes);
    return made;
}

// Adding in another order errs by some 2^-24 of each sum, and Adam divides small gradients by their size: a step's
// change of about the rate may differ by its 1e-3 part where a gradient is that much noise.
void check_same(const std::vector<double>& some, const std::vector<double>& whole) {
    REQUIRE(some.size() == whole.size());
    CHECK(whole[6] < whole[0]);  // of the same batch
    for (std::size_t i = 0; i < some.size(); ++i) CHECK(std::fabs(some[i] - whole[i]) < 1e-4 * whole[i]);
}

}  // namespace

TEST_CASE("sharded gradients: a table by ids learns as on one rank") {
    const auto ranks = static_cast<std::size_t>(ranks_of(MPI_COMM_WORLD));
    const auto some = losses_at(MPI_COMM_WORLD, {ranks, 1}, stem{}, "stem_embed.weight", 1);
    check_same(some.losses, losses_at(MPI_COMM_SELF, {1, 1}, stem{}, "stem_embed.weight", 1).losses);
    CHECK(some.bytes == some.most_bytes);
}

TEST_CASE("sharded gradients: a pool by ids, by experts, by both learns as on one rank") {
    const auto ranks = static_cast<std::size_t>(ranks_of(MPI_COMM_WORLD));
    mort<swiglu> block;
    block.modulator.num_layers = 2;
    const auto whole = losses_at(MPI_COMM_SELF, {1, 1}, block, "modulators.weight", experts);
    for (std::size_t columns = 1; columns <= ranks; columns *= 2) {
        if (ranks % columns != 0) continue;
        const auto some =
            losses_at(MPI_COMM_WORLD, {ranks / columns, columns}, block, "modulators.weight", experts);
        check_same(some.losses, whole.losses);
        CHECK(some.bytes <= some.most_bytes);
        CHECK(some.bytes >= some.most_bytes / 2);  // gradients are of chosen rows alone
    }
}

// A pool as the table of experts vocab rows that it is in memory, cut evenly at any number of ranks: a row is fetched once it is
// chosen, and once for each different pair of an id and an expert.
TEST_CASE("sharded gradients: of a pool the chosen rows alone are fetched, and it learns as on one rank") {
    mort<swiglu> block;
    block.modulator.num_layers = 2;
    const auto whole = losses_at(MPI_COMM_SELF, {1, 1}, block, "modulators.weight", experts);
    const MPI_Comm comm = MPI_COMM_WORLD;
    const int rank = rank_of(comm), ranks = ranks_of(comm);
    const shard_grid grid{static_cast<std::size_t>(ranks), 1};
    numbers mine = numbers::of(block);
    const std::string name = "modulators.weight";
    const tiffin::shape sizes = mine.all.at(name).first;
    const own_block own(grid, rank, mine.all.at(name).second, 1, d, experts * vocab);
    mine.all.erase(name);
    weights given;
    named_memory<float> memory;
    mine.add_to(given, memory);
    given.add_gathered(name, dtype::f32, sizes);
    const auto store = in_memory::view({own.values.data(), dtype::f32, {own.rows.count, d}}).or_throw();
    const auto table = sharded_rows::of(comm, store, grid, experts * vocab).or_throw();
    auto rows = chosen_pool_rows::of(table, experts).or_throw();
    auto layer = prepare_training(block, given, simd<>{}, {.tokens = batch});
    auto gradients = sharded_gradients::of(comm, grid, {experts * vocab, d, 1}, batch * experts).or_throw();
    adamw<simd<>> optimizer({.decay = 0.1, .clip = 0.3});
    optimizer.add("", layer, memory, [&](std::string_view tensor) { return tensor != name; }).or_throw();
    optimizer.add(name, *gradients, *own.learning).or_throw();
    trained made;
    bytes_sent = 0;
    for (int step = 0; step < steps; ++step) {
        const step_data now(step, rank, ranks);
        const gathered_rows laid = rows.lay_out(now.ids).or_throw();
        std::set<std::pair<std::int32_t, std::int32_t>> pairs;
        const std::function<status(const chosen_experts<float>&)> read =
            [&](const chosen_experts<float>& chosen) {
                for (std::size_t i = 0; i < chosen.choices.size(); ++i)
                    pairs.emplace(now.ids[i / chosen.top_k], chosen.choices[i].expert);
                return rows.read(chosen);
            };
        std::vector<float> y(now.x.size());
        layer.clear_gradients();
        layer.forward(now.x, {.token_ids = now.ids, .gathered = {&laid, 1}, .on_chosen = &read}, y);
        made.losses.push_back(sum_over_ranks(comm)(now.squares(y)));
        layer.backward(y);
        const auto of_layer = layer_row_gradients<float>::of(layer, name).or_throw();
        REQUIRE(gradients->gather(pool_as_table<float>(of_layer, vocab)).ok());
        REQUIRE(add_over_ranks(comm, layer).ok());
        REQUIRE(optimizer.step(1e-2, serially, sum_over_ranks(comm)).ok());
        // A number to the owner and a row back; then a gradient row behind a header of 8 bytes.
        made.most_bytes += static_cast<double>(pairs.size() * (4 + 4 * d + 8 + 4 * d));
    }
    check_same(made.losses, whole.losses);
    CHECK(sum_over_ranks(comm)(static_cast<double>(bytes_sent)) == sum_over_ranks(comm)(made.most_bytes));
}

TEST_CASE("sharded gradients: a gradient that is not finite stops all ranks, and a wrong grid too") {
    const int rank = rank_of(MPI_COMM_WORLD), ranks = ranks_of(MPI_COMM_WORLD);
    const auto wrong =
        sharded_gradients::of(MPI_COMM_WORLD, {static_cast<std::size_t>(ranks) + 1, 1}, {9, 2, 1}, 4);
    REQUIRE_FALSE(wrong.ok());
    CHECK(wrong.failure().code == errc::option);
    struct one_row final : row_gradients<float> {
        std::vector<float> values{1, 2};
        [[nodiscard]] std::size_t experts() const override { return 1; }
        [[nodiscard]] std::size_t width() const override { return 2; }
        [[nodiscard]] std::size_t capacity() const override { return 1; }
        [[nodiscard]] std::size_t size() const override { return 1; }
        [[nodiscard]] std::int32_t id(std::size_t) const override { return 8; }
        [[nodiscard]] const float* row(std::size_t, std::size_t) const override { return values.data(); }
    } mine;
    auto rows =
        sharded_gradients::of(MPI_COMM_WORLD, {static_cast<std::size_t>(ranks), 1}, {9, 2, 1}, 4).or_throw();
    REQUIRE(rows->gather(mine).ok());
    const bool owns = rank == ranks - 1;
    REQUIRE(rows->size() == (owns ? 1u : 0u));
    if (owns) CHECK(rows->row(0, 0)[1] == 2.0f * static_cast<float>(ranks));
    if (rank == 0) mine.values[0] = std::numeric_limits<float>::quiet_NaN();
    REQUIRE(rows->gather(mine).ok());
    std::vector<float> values(9 * 2, 1.0f);
    rows_in_memory<float> own(values.data(), 1, 9, 2);
    adamw<simd<>> optimizer;
    optimizer.add("table", *rows, own).or_throw();
    const status stopped = optimizer.step(1e-2, serially, sum_over_ranks(MPI_COMM_WORLD));
    REQUIRE_FALSE(stopped.ok());
    CHECK(stopped.failure().where == (owns ? "table" : "rows of another rank"));
    CHECK(values == std::vector<float>(9 * 2, 1.0f));
}

TEST_CASE("sharded gradients: a grid in which a rank would never get anything is refused on all ranks") {
    const int rank = rank_of(MPI_COMM_WORLD);
    const auto ranks = static_cast<std::size_t>(ranks_of(MPI_COMM_WORLD));
    const auto refused = [&](const shard_grid& grid, const sharded_gradients::table_sizes& sizes,
                             std::size_t most_ids = 4) {
        const auto made = sharded_gradients::of(MPI_COMM_WORLD, grid, sizes, most_ids);
        return made.ok() ? std::string() : made.failure().message();
    };
    const std::string n = std::to_string(ranks);
    CHECK(refused({ranks, 1}, {ranks - 1, 2, 1}) ==
          "grid: has " + n + " row shards of " + std::to_string(ranks - 1) + " rows; a rank would have none");
    CHECK(refused({ranks, 1}, {ranks, 2, 1}).empty());
    if (ranks > 1) {
        CHECK(refused({1, ranks}, {9, 2, 1}) ==
              "grid: has " + n +
                  " column shards; of 1 experts it may have a power of two, and not more than experts");
        CHECK_FALSE(refused({1, ranks}, {9, 2, ranks - 1}).empty());
        CHECK(refused({1, ranks}, {9, 2, ranks}).empty() == std::has_single_bit(ranks));
        // Different grids, sizes and limits, each right by itself.
        const bool last = rank + 1 == static_cast<int>(ranks);
        CHECK(refused(last ? shard_grid{1, ranks} : shard_grid{ranks, 1}, {9, 2, ranks})
                  .find("rank " + std::to_string(ranks - 1) + ": has 1 x " + n + " blocks of 9 rows") == 0);
        CHECK_FALSE(refused({ranks, 1}, {9, last ? 2u : 3u, 1}).empty());
        CHECK_FALSE(refused({ranks, 1}, {9, 2, 1}, last ? 4 : 5).empty());
    }
    CHECK_FALSE(refused({0, ranks}, {9, 2, 1}).empty());
    CHECK_FALSE(refused({std::size_t{1} << 63, 2 * ranks}, {9, 2, 1}).empty());
    CHECK_FALSE(refused({ranks, 1}, {9, 2, 0}).empty());
    CHECK(refused({ranks, 1}, {9, 0, 1}).find("width: is 0") == 0);
}

TEST_CASE("sharded gradients: what is wrong on one rank is told on all, and nothing is written") {
    const int rank = rank_of(MPI_COMM_WORLD), ranks = ranks_of(MPI_COMM_WORLD);
    struct some_rows final : row_gradients<float> {
        std::vector<std::int32_t> ids{0, 1, 2};
        std::size_t wide = 2;
        std::vector<float> values{1, 2, 3};
        [[nodiscard]] std::size_t experts() const override { return 1; }
        [[nodiscard]] std::size_t width() const override { return wide; }
        [[nodiscard]] std::size_t capacity() const override { return ids.size(); }
        [[nodiscard]] std::size_t size() const override { return ids.size(); }
        [[nodiscard]] std::int32_t id(std::size_t n) const override { return ids[n]; }
        [[nodiscard]] const float* row(std::size_t, std::size_t) const override { return values.data(); }
    } mine;
    const shard_grid grid{static_cast<std::size_t>(ranks), 1};
    const auto refused = [&](sharded_gradients& rows, errc code) {
        const status s = rows.gather(mine);
        REQUIRE_FALSE(s.ok());
        CHECK(s.failure().code == code);
        return s.failure().what;
    };
    // The first rank owns ids 0 to 2 of 40, whatever the number of ranks.
    auto rows = sharded_gradients::of(MPI_COMM_WORLD, grid, {40, 2, 1}, 2).or_throw();
    CHECK(refused(*rows, errc::size).find("is 2; 3 ids have come") != std::string::npos);
    if (rank == ranks - 1) mine.ids[2] = 40;
    CHECK(refused(*rows, errc::token_id).find("id 40 outside the 40 rows") != std::string::npos);
    mine.ids[2] = 1;
    if (rank == 0) mine.wide = 3;
    CHECK(refused(*rows, errc::shape).find("rows of 3 numbers; the table is of 1 and 2") !=
          std::string::npos);
    std::vector<float> values(40 * 2, 1.0f);
    rows_in_memory<float> narrow(values.data(), 1, 40, 1);
    adamw<simd<>> optimizer;
    CHECK(optimizer.add("table", *rows, narrow).failure().code == errc::shape);
}
