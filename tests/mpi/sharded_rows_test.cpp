// Tables that lie at 1, 2 and 4 ranks: the rows of the whole table, each read once; the same bits of mixed
// rows on every number of ranks; and failures of one rank that reach all.
#include <tiffin/mpi/shard_grid.hpp>
#include <tiffin/mpi/sharded_pool.hpp>
#include <tiffin/mpi/sharded_rows.hpp>
#include <tiffin/table/prefetched_rows.hpp>
#include <tiffin/table/row_store.hpp>

#include "support/doctest.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <mpi.h>
#include <sys/mman.h>

using namespace tiffin;
using tiffin_test::random_numbers;

namespace {

using ids_type = std::vector<std::int32_t>;

// What the library asks of MPI: records that this rank sends, and a call that is to fail.
struct watched_calls {
    std::vector<int> records_sent;  // a number per call of MPI_Alltoallv
    const char* failing = "";
    int succeed_before = 0;

    [[nodiscard]] bool fails(const char* call) {
        return std::strcmp(failing, call) == 0 && succeed_before-- == 0;
    }
} watched;

}  // namespace

// MPI's own functions have a second name, so that a program may put its own in their place.
extern "C" {
int MPI_Alltoallv(const void* from, const int* sent, const int* sent_start, MPI_Datatype sent_type, void* to,
                  const int* received, const int* received_start, MPI_Datatype received_type, MPI_Comm comm) {
    if (watched.fails("MPI_Alltoallv")) return MPI_ERR_OTHER;
    int ranks = 0;
    PMPI_Comm_size(comm, &ranks);
    CHECK(comm != MPI_COMM_WORLD);  // which is the caller's
    watched.records_sent.push_back(std::accumulate(sent, sent + ranks, 0));
    return PMPI_Alltoallv(from, sent, sent_start, sent_type, to, received, received_start, received_type,
                          comm);
}
int MPI_Alltoall(const void* from, int sent, MPI_Datatype sent_type, void* to, int received,
                 MPI_Datatype received_type, MPI_Comm comm) {
    if (watched.fails("MPI_Alltoall")) return MPI_ERR_OTHER;
    return PMPI_Alltoall(from, sent, sent_type, to, received, received_type, comm);
}
int MPI_Allreduce(const void* from, void* to, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    if (watched.fails("MPI_Allreduce")) return MPI_ERR_OTHER;
    return PMPI_Allreduce(from, to, count, type, op, comm);
}
int MPI_Bcast(void* buffer, int count, MPI_Datatype type, int root, MPI_Comm comm) {
    if (watched.fails("MPI_Bcast")) return MPI_ERR_OTHER;
    return PMPI_Bcast(buffer, count, type, root, comm);
}
int MPI_Allgather(const void* from, int sent, MPI_Datatype sent_type, void* to, int received,
                  MPI_Datatype received_type, MPI_Comm comm) {
    if (watched.fails("MPI_Allgather")) return MPI_ERR_OTHER;
    return PMPI_Allgather(from, sent, sent_type, to, received, received_type, comm);
}
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* copy) {
    if (watched.fails("MPI_Comm_dup")) return MPI_ERR_OTHER;
    return PMPI_Comm_dup(comm, copy);
}
int MPI_Type_contiguous(int count, MPI_Datatype one, MPI_Datatype* type) {
    if (watched.fails("MPI_Type_contiguous")) return MPI_ERR_OTHER;
    return PMPI_Type_contiguous(count, one, type);
}
}

namespace {

constexpr dtype formats[]{dtype::f32, dtype::bf16, dtype::q8_0};

int rank_in(MPI_Comm comm) {
    int rank = 0;
    PMPI_Comm_rank(comm, &rank);
    return rank;
}
int ranks_of(MPI_Comm comm) {
    int ranks = 0;
    PMPI_Comm_size(comm, &ranks);
    return ranks;
}
const MPI_Comm world = MPI_COMM_WORLD;

// A rank that left a test case alone would keep the others waiting: they leave it together.
bool on_all(bool here) {
    int all = here ? 1 : 0;
    PMPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_LAND, world);
    return all != 0;
}
// Whether a status failed on all ranks, for the same reason, which is returned; else nothing.
std::string failure_on_all(const status& s, errc code) {
    std::array<char, 600> words{};
    if (!s.ok()) s.failure().message().copy(words.data(), words.size() - 1);
    std::array<char, 600> of_first = words;
    PMPI_Bcast(of_first.data(), static_cast<int>(of_first.size()), MPI_CHAR, 0, world);
    const bool alike = !s.ok() && s.failure().code == code && words == of_first;
    return on_all(alike) ? words.data() : (s.ok() ? "(ok)" : "(not alike) " + s.failure().message());
}
template <class T>
std::string failure_on_all(const result<T>& r, errc code) {
    return failure_on_all(r.ok() ? status() : status(r.failure()), code);
}
bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

std::vector<shard_grid> grids(std::size_t ranks) {
    std::vector<shard_grid> all;
    for (std::size_t rows = 1; rows <= ranks; ++rows)
        if (ranks % rows == 0) all.push_back({rows, ranks / rows});
    return all;
}

// A whole table; every rank makes the same.
struct whole_table {
    table_shape shape;
    std::vector<std::byte> bytes;

    // Every byte random.
    whole_table(std::size_t rows, std::size_t width, dtype type) : shape{rows, width, type} {
        bytes.resize(rows * shape.row_bytes());
        random_numbers random(static_cast<std::uint32_t>(rows + width));
        for (std::byte& b : bytes) b = static_cast<std::byte>(random.below(256));
    }
    // Numbers in [-1, 1).
    static whole_table of_numbers(std::size_t rows, std::size_t width, dtype type) {
        whole_table table(rows, width, type);
        random_numbers random(static_cast<std::uint32_t>(7 * rows + width));
        std::vector<float> row(width);
        for (std::size_t r = 0; r < rows; ++r) {
            random.fill(row);
            encode_row(table.shape, row.data(), table.bytes.data() + r * table.shape.row_bytes());
        }
        return table;
    }
    [[nodiscard]] const std::byte* row(std::int32_t id) const {
        return bytes.data() + static_cast<std::size_t>(id) * shape.row_bytes();
    }
};

enum class store_state { works, fails, throws, throws_shape };

// One rank's part of a table. Counts what is read of it.
struct block_store {
    const whole_table* table;
    shard_range rows;
    std::size_t first_column, width;
    store_state state = store_state::works;
    mutable std::size_t rows_read = 0;

    [[nodiscard]] table_shape shape() const {
        if (state == store_state::throws_shape) throw std::runtime_error("no shape");
        return {rows.count, width, table->shape.type};
    }
    status read(std::span<const std::int32_t> ids, std::byte* to) const {
        rows_read += ids.size();
        if (state == store_state::fails) return failure(errc::file, "part.bin", "is gone");
        if (state == store_state::throws) throw std::runtime_error("no luck");
        const dtype type = table->shape.type;
        const std::size_t bytes = bytes_of(type, width);
        for (const std::int32_t id : ids) {
            CHECK(static_cast<std::size_t>(id) < rows.count);
            const auto whole = static_cast<std::int32_t>(rows.first + static_cast<std::size_t>(id));
            std::memcpy(to, table->row(whole) + bytes_of(type, first_column), bytes);
            to += bytes;
        }
        return {};
    }
};

// Widths of column shards that are no two neighbours' the same, the widest neither first nor last: 2, 5, 4, 3
// blocks of the format.
std::size_t odd_width(std::size_t column, dtype type) {
    return block_of(type) * (2 + column * 3 % 4);
}
block_store odd_block(const whole_table& table, const shard_grid& grid, int rank) {
    std::size_t first = 0;
    for (std::size_t c = 0; c < grid.column_shard(rank); ++c) first += odd_width(c, table.shape.type);
    return {&table, grid.rows_at(rank, table.shape.rows), first,
            odd_width(grid.column_shard(rank), table.shape.type)};
}
whole_table odd_table(std::size_t rows, const shard_grid& grid, dtype type) {
    std::size_t width = 0;
    for (std::size_t c = 0; c < grid.column_shards; ++c) width += odd_width(c, type);
    return {rows, width, type};
}
// The part of a pool of `experts` tables of d columns.
block_store pool_block(const whole_table& table, const shard_grid& grid, int rank, std::size_t experts) {
    const std::size_t d = table.shape.width / experts;
    const shard_range own = grid.experts_at(rank, experts);
    return {&table, grid.rows_at(rank, table.shape.rows), own.first * d, own.count * d};
}

// A rank's ids in a round: many more than rows in some, so that many repeat; none in others.
ids_type ids_of(int rank, std::size_t round, std::size_t rows) {
    random_numbers random(static_cast<std::uint32_t>(100 * round) + static_cast<std::uint32_t>(rank));
    const std::size_t counts[]{0, 1, 5, 60};
    ids_type ids(counts[(round + static_cast<std::size_t>(rank)) % 4]);
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random.below(rows));
    return ids;
}

bool reads_right(const sharded_rows& rows, const whole_table& table, const ids_type& ids) {
    const std::size_t bytes = table.shape.row_bytes();
    std::vector<std::byte> to(ids.size() * bytes + 1, std::byte{0xA5});
    if (const status s = rows.read(ids, to.data()); !s.ok()) {
        MESSAGE(s.failure().message());
        return false;
    }
    bool right = to.back() == std::byte{0xA5};
    for (std::size_t t = 0; t < ids.size(); ++t)
        right = right && std::memcmp(to.data() + t * bytes, table.row(ids[t]), bytes) == 0;
    return right;
}

std::string name(const shard_grid& grid, dtype type) {
    return std::to_string(grid.row_shards) + " x " + std::to_string(grid.column_shards) + ", " +
           std::string(name_of(type));
}

}  // namespace

static_assert(row_store<sharded_rows>);

TEST_CASE("shard_grid: shards follow one another, and every id has its own") {
    for (const shard_grid grid : {shard_grid{1, 1}, {3, 1}, {1, 4}, {4, 2}, {5, 3}})
        for (const std::size_t rows : {1u, 2u, 4u, 23u, 24u, 1000u}) {
            std::size_t next = 0;
            for (std::size_t s = 0; s < grid.row_shards; ++s) {
                const shard_range own = grid.rows_at(static_cast<int>(s * grid.column_shards), rows);
                CHECK(own == grid.rows_at(static_cast<int>((s + 1) * grid.column_shards - 1), rows));
                CHECK(own.first == next);
                CHECK(own.count * grid.row_shards + grid.row_shards > rows);  // rows / row_shards, rounded
                CHECK(own.count * grid.row_shards < rows + grid.row_shards);
                for (std::size_t id = own.first; id < own.first + own.count; ++id)
                    CHECK(grid.row_shard_of(id, rows) == s);
                next += own.count;
            }
            CHECK(next == rows);
        }
    // Eight shards of eleven experts, by hand: 11 -> 5 6 -> 2 3 3 3 -> 1 1, 1 2, 1 2, 1 2.
    const std::size_t firsts[]{0, 1, 2, 3, 5, 6, 8, 9, 11};
    for (int r = 0; r < 8; ++r) {
        const shard_range own = shard_grid{1, 8}.experts_at(r, 11);
        CHECK(own.first == firsts[r]);
        CHECK(own.first + own.count == firsts[r + 1]);
    }
}

TEST_CASE("sharded_rows: the rows of the whole table, by every grid and format") {
    const int rank = rank_in(world), ranks = ranks_of(world);
    for (const shard_grid grid : grids(static_cast<std::size_t>(ranks)))
        for (const dtype type : formats)
            for (const std::size_t count : {23u, 3u, 1u}) {  // 3 and 1: some shards have no rows
                CAPTURE(name(grid, type));
                CAPTURE(count);
                const whole_table table = odd_table(count, grid, type);
                const block_store own = odd_block(table, grid, rank);
                const auto rows = sharded_rows::of(world, own, grid, count);
                REQUIRE(on_all(rows.ok()));
                CHECK(rows->shape() == table.shape);
                for (std::size_t round = 0; round < 6; ++round) {
                    own.rows_read = 0;
                    watched.records_sent.clear();
                    const ids_type ids = ids_of(rank, round, count);
                    CHECK(reads_right(*rows, table, ids));
                    // Every id is asked for once by a rank, and read once for all.
                    std::set<std::int32_t> asked_here;
                    for (int r = 0; r < ranks; ++r)
                        for (const std::int32_t id : ids_of(r, round, count))
                            if (static_cast<std::size_t>(id) - own.rows.first < own.rows.count)
                                asked_here.insert(id);
                    CHECK(own.rows_read == asked_here.size());
                    const std::size_t different = std::set<std::int32_t>(ids.begin(), ids.end()).size();
                    REQUIRE(watched.records_sent.size() == 2);
                    CHECK(watched.records_sent[0] == static_cast<int>(different * grid.column_shards));
                }
                CHECK(reads_right(*rows, table, {}));  // on all ranks
            }
}

TEST_CASE("sharded_rows: ranks of another communicator, in another order") {
    MPI_Comm turned = MPI_COMM_NULL;
    PMPI_Comm_split(world, 0, -rank_in(world), &turned);
    for (const shard_grid grid : grids(static_cast<std::size_t>(ranks_of(turned)))) {
        const whole_table table = odd_table(23, grid, dtype::bf16);
        const block_store own = odd_block(table, grid, rank_in(turned));
        const auto rows = sharded_rows::of(turned, own, grid, 23);
        REQUIRE(on_all(rows.ok()));
        for (std::size_t round = 0; round < 4; ++round)
            CHECK(reads_right(*rows, table, ids_of(rank_in(turned), round, 23)));
    }
    PMPI_Comm_free(&turned);
}

TEST_CASE("sharded_rows: through the two calls of prefetched_rows") {
    const int rank = rank_in(world);
    int granted = 0;
    PMPI_Query_thread(&granted);
    for (const shard_grid grid : grids(static_cast<std::size_t>(ranks_of(world)))) {
        const whole_table table = odd_table(23, grid, dtype::q8_0);
        const block_store own = odd_block(table, grid, rank);
        const auto made = sharded_rows::of(world, own, grid, 23);
        REQUIRE(on_all(made.ok()));
        prefetched_rows rows(*made);
        for (const bool ahead : {false, true}) {
            if (ahead && granted < MPI_THREAD_MULTIPLE) {
                MESSAGE("not tested: prefetch; this MPI grants no MPI_THREAD_MULTIPLE");
                break;
            }
            for (std::size_t round = 0; round < 12; ++round) {
                const ids_type now = ids_of(rank, round, 23), next = ids_of(rank, round + 1, 23);
                CHECK(made->check(now).ok());  // while the rows may be on their way
                if (ahead && round < 11) CHECK(rows.prefetch(next).ok());  // no more than are gathered
                const auto got = rows.gather(now);
                REQUIRE(on_all(got.ok()));
                for (std::size_t t = 0; t < now.size(); ++t)
                    CHECK(std::memcmp(got->row(t), table.row(now[t]), table.shape.row_bytes()) == 0);
            }
        }
        // What prefetched_rows would refuse on one rank alone.
        ids_type ids{1, 2};
        if (rank == 0) ids[1] = 23;
        CHECK(failure_on_all(made->check(ids), errc::token_id) ==
              "rank 0, ids: ids[1] = 23 lies outside the table's 23 rows");
    }
}

TEST_CASE("sharded_rows: what does not fit on one rank is refused on all") {
    const int rank = rank_in(world), ranks = ranks_of(world), last = ranks - 1;
    const auto count = static_cast<std::size_t>(ranks);
    const std::string named = "rank " + std::to_string(last);
    const whole_table table(23, 8, dtype::f32);
    const whole_table other(23, 8, dtype::bf16);
    const auto block = [&](const shard_grid& grid) {
        return block_store{&table, grid.rows_at(rank, 23), 0, 8};
    };
    const auto refused = [&](const block_store& own, const shard_grid& grid, std::size_t rows, errc code) {
        return failure_on_all(sharded_rows::of(world, own, grid, rows), code);
    };
    for (const shard_grid grid : grids(count)) {
        CAPTURE(name(grid, dtype::f32));
        block_store own = block(grid);
        if (rank == last) ++own.rows.count;
        const shard_range shard = grid.rows_at(last, 23);
        CHECK(refused(own, grid, 23, errc::size) ==
              named + ": has " + std::to_string(shard.count + 1) + " rows; its shard has " +
                  std::to_string(shard.count) + ", from " + std::to_string(shard.first) + " on");
        if (rank == last) own.rows.count -= 2;
        CHECK(contains(refused(own, grid, 23, errc::size), named + ": has "));

        own = block(grid);
        if (rank == last) own.state = store_state::throws_shape;
        CHECK(refused(own, grid, 23, errc::file) == named + ", own: threw: no shape");

        own = block(grid);
        if (rank == last && last > 0) own.table = &other;
        if (last > 0) CHECK(refused(own, grid, 23, errc::dtype) == named + ": is BF16, rank 0 is F32");

        own = block(grid);
        if (rank == last && grid.row_shards > 1) own.width = 7;
        if (grid.row_shards > 1)
            CHECK(refused(own, grid, 23, errc::size) == named + ": has rows of 7, rank " +
                                                            std::to_string(grid.column_shards - 1) +
                                                            " of the same columns has rows of 8");

        own = block(grid);
        const std::size_t rows = rank == last ? 24 : 23;
        if (last > 0)
            CHECK(refused(own, grid, rows, errc::size) ==
                  named + ": has a table of 24 rows, rank 0 one of 23");
        own.width = std::size_t{1} << 29;  // on all ranks: 2^31 bytes
        CHECK(refused(own, grid, 23, errc::size) ==
              "rank 0: has rows of 2147483648 bytes; MPI takes at most 2147483647");
    }
    for (const shard_grid grid :
         {shard_grid{count + 1, 1}, {1, 2 * count}, {0, 1}, {1, 0}, {SIZE_MAX, SIZE_MAX}})
        CHECK(contains(refused(block({count, 1}), grid, 23, errc::option),
                       "; there are " + std::to_string(ranks) + " ranks"));
    if (ranks > 1) {
        const shard_grid grid = rank == last ? shard_grid{1, count} : shard_grid{count, 1};
        CHECK(refused(block(grid), grid, 23, errc::option) == named + ": has a grid of 1 x " +
                                                                  std::to_string(ranks) + ", rank 0 one of " +
                                                                  std::to_string(ranks) + " x 1");
    }
}

TEST_CASE("sharded_rows: a read that fails on one rank fails on all, and the next one works") {
    const int rank = rank_in(world), ranks = ranks_of(world);
    for (const shard_grid grid : grids(static_cast<std::size_t>(ranks)))
        for (int bad = 0; bad < ranks; ++bad) {
            CAPTURE(name(grid, dtype::f32));
            CAPTURE(bad);
            const std::string named = "rank " + std::to_string(bad);
            const whole_table table = odd_table(23, grid, dtype::f32);
            block_store own = odd_block(table, grid, rank);
            const auto rows = sharded_rows::of(world, own, grid, 23);
            REQUIRE(on_all(rows.ok()));
            ids_type all(23);
            std::iota(all.begin(), all.end(), 0);
            std::vector<std::byte> to(24 * table.shape.row_bytes(), std::byte{0xA5});
            const std::vector<std::byte> before = to;
            if (rank == bad) own.state = store_state::fails;
            CHECK(failure_on_all(rows->read(all, to.data()), errc::file) == named + ", part.bin: is gone");
            if (rank == bad) own.state = store_state::throws;
            CHECK(failure_on_all(rows->read(all, to.data()), errc::file) ==
                  named + ", store: threw: no luck");
            own.state = store_state::works;
            for (const std::int32_t wrong : {23, -1, INT_MAX, INT_MIN}) {
                ids_type ids = all;
                if (rank == bad) ids.push_back(wrong);
                CHECK(failure_on_all(rows->read(ids, to.data()), errc::token_id) ==
                      named + ", ids: ids[23] = " + std::to_string(wrong) +
                          " lies outside the table's 23 rows");
            }
            CHECK(to == before);
            CHECK(reads_right(*rows, table, all));

            // More ids than MPI counts: addresses only, which nobody may look at.
            const std::size_t most = INT_MAX / static_cast<std::size_t>(ranks);
            const std::size_t bytes = (most + 1) * sizeof(std::int32_t);
            void* const nothing =
                ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            REQUIRE(on_all(nothing != MAP_FAILED));
            const std::span<const std::int32_t> many(static_cast<const std::int32_t*>(nothing), most + 1);
            const status s = rank == bad ? rows->read(many, to.data()) : rows->read(all, to.data());
            CHECK(failure_on_all(s, errc::size) == named + ", ids: are " + std::to_string(most + 1) + "; " +
                                                       std::to_string(ranks) + " ranks exchange at most " +
                                                       std::to_string(most) + " each");
            ::munmap(nothing, bytes);
            CHECK(reads_right(*rows, table, all));
        }
}

TEST_CASE("sharded_rows: errors that MPI returns are failures") {
    const shard_grid grid{static_cast<std::size_t>(ranks_of(world)), 1};
    const whole_table table = odd_table(23, grid, dtype::f32);
    const block_store own = odd_block(table, grid, rank_in(world));
    const ids_type ids = ids_of(rank_in(world), 3, 23);
    std::vector<std::byte> to(ids.size() * table.shape.row_bytes());
    struct failing_call {
        const char* name;
        int succeed_before;
    };
    const auto failing = [](const failing_call& call) {
        watched.failing = call.name;
        watched.succeed_before = call.succeed_before;
    };
    // On all ranks: what MPI is like after an error on one is not said.
    for (const failing_call call :
         {failing_call{"MPI_Allreduce", 0}, {"MPI_Allgather", 0}, {"MPI_Comm_dup", 0}, {"MPI_Comm_dup", 1}}) {
        failing(call);
        CHECK(contains(failure_on_all(sharded_rows::of(world, own, grid, 23), errc::file),
                       std::string(call.name) + ": "));
    }
    failing({"", 0});
    const auto rows = sharded_rows::of(world, own, grid, 23);
    REQUIRE(on_all(rows.ok()));
    for (const failing_call call : {failing_call{"MPI_Alltoall", 0},
                                    {"MPI_Allreduce", 0},
                                    {"MPI_Allreduce", 1},
                                    {"MPI_Alltoallv", 0},
                                    {"MPI_Alltoallv", 1},
                                    {"MPI_Type_contiguous", 0},
                                    {"MPI_Type_contiguous", 1}}) {
        CAPTURE(call.name);
        CAPTURE(call.succeed_before);
        failing(call);
        CHECK(
            contains(failure_on_all(rows->read(ids, to.data()), errc::file), std::string(call.name) + ": "));
        failing({"", 0});
        CHECK(reads_right(*rows, table, ids));
    }
    failing({"MPI_Bcast", 0});  // of the words of a failure
    CHECK(contains(failure_on_all(rows->read(ids_type{99}, to.data()), errc::file), "MPI_Bcast: "));
    failing({"", 0});
}

namespace {

struct token {
    std::int32_t id;
    std::vector<choice<float>> choices;
};

// The tokens of a test, the same on any number of ranks. The first has only weights of 0, some of them -0;
// the second and third have the same id, the third with other choices.
std::vector<token> tokens_of(std::size_t rows, std::size_t experts, std::size_t top_k) {
    random_numbers random(static_cast<std::uint32_t>(31 * experts + top_k));
    std::vector<token> tokens(13);
    for (std::size_t t = 0; t < tokens.size(); ++t) {
        tokens[t].id = static_cast<std::int32_t>(random.below(rows));
        std::vector<std::int32_t> order(experts);
        std::iota(order.begin(), order.end(), 0);
        for (std::size_t i = 0; i < top_k; ++i) {
            std::swap(order[i], order[i + random.below(experts - i)]);
            tokens[t].choices.push_back({order[i], t == 0 ? (i % 2 ? 0.0f : -0.0f) : random.signed_unit()});
        }
    }
    tokens[2].id = tokens[1].id;
    return tokens;
}

// The sum over the experts [first, last), by the definition: one number at a time, and each result kept in
// memory, where it is a float and nothing else.
std::optional<float> halved(const std::vector<std::optional<float>>& terms, std::size_t first,
                            std::size_t last) {
    if (last - first == 1) return terms[first];
    const std::size_t middle = (first + last) / 2;
    const auto left = halved(terms, first, middle), right = halved(terms, middle, last);
    if (!left || !right) return left ? left : right;
    volatile float sum = *left + *right;
    return sum;
}

// The mixed row of a token, in the ways that are compared.
struct mixed_row {
    std::vector<float> by_halves, by_layer;   // as promised; best expert first with fused multiply-adds
    std::vector<double> exact, sum_of_sizes;  // but for 2^-53 a term; of |w E|
};
mixed_row mix(const whole_table& table, std::size_t experts, const token& one) {
    const std::size_t d = table.shape.width / experts;
    std::vector<float> row(table.shape.width);
    decode_row(table.shape, table.row(one.id), row.data());
    mixed_row mixed;
    for (std::size_t i = 0; i < d; ++i) {
        std::vector<std::optional<float>> terms(experts);
        float chain = 0;
        double exact = 0, size = 0;
        for (const auto& [expert, weight] : one.choices) {
            const auto e = static_cast<std::size_t>(expert);
            volatile float product = weight * row[e * d + i];
            terms[e] = product;
            chain = std::fma(weight, row[e * d + i], chain);
            const double term = static_cast<double>(weight) * static_cast<double>(row[e * d + i]);
            exact += term;
            size += std::abs(term);
        }
        mixed.by_halves.push_back(*halved(terms, 0, experts));
        mixed.by_layer.push_back(chain);
        mixed.exact.push_back(exact);
        mixed.sum_of_sizes.push_back(size);
    }
    return mixed;
}

// The rows of the tokens t with t % ranks == rank, mixed by all ranks together.
status read_mixed(const sharded_pool& pool, const std::vector<token>& tokens, std::size_t top_k,
                  std::vector<std::size_t>& which, std::vector<float>& to) {
    ids_type ids;
    std::vector<choice<float>> choices;
    const auto rank = static_cast<std::size_t>(rank_in(world)),
               ranks = static_cast<std::size_t>(ranks_of(world));
    for (std::size_t t = rank; t < tokens.size(); t += ranks) {
        which.push_back(t);
        ids.push_back(tokens[t].id);
        choices.insert(choices.end(), tokens[t].choices.begin(), tokens[t].choices.end());
    }
    return pool.read_mixed(ids, choices, top_k, to.data());
}

}  // namespace

TEST_CASE("sharded_pool: mixed rows are the same bits on any number of ranks") {
    const int rank = rank_in(world);
    std::size_t unlike_fused = 0;
    for (const shard_grid grid : grids(static_cast<std::size_t>(ranks_of(world))))
        for (const dtype type : formats)
            for (const std::size_t experts : {1u, 4u, 5u, 11u})
                for (const std::size_t top_k : {std::size_t{1}, std::size_t{2}, experts}) {
                    if (top_k > experts || grid.column_shards > experts) continue;
                    CAPTURE(name(grid, type));
                    CAPTURE(experts);
                    CAPTURE(top_k);
                    const std::size_t d = type == dtype::q8_0 ? 64 : 7;
                    const whole_table table = whole_table::of_numbers(9, experts * d, type);
                    const block_store own = pool_block(table, grid, rank, experts);
                    const auto rows = sharded_rows::of(world, own, grid, 9);
                    REQUIRE(on_all(rows.ok()));
                    const auto pool = sharded_pool::of(*rows, experts);
                    REQUIRE(on_all(pool.ok()));
                    const std::vector<token> tokens = tokens_of(9, experts, top_k);
                    std::vector<std::size_t> which;
                    std::vector<float> to(tokens.size() * d + 1, 77);
                    watched.records_sent.clear();
                    REQUIRE(on_all(read_mixed(*pool, tokens, top_k, which, to).ok()));
                    CHECK(to[which.size() * d] == 77);

                    int asked = 0;  // only where an expert of the token lies
                    std::set<std::int32_t> asked_here;
                    for (std::size_t t = 0; t < tokens.size(); ++t) {
                        std::set<int> columns;
                        for (const auto& one : tokens[t].choices)
                            for (int c = 0; c < static_cast<int>(grid.column_shards); ++c)
                                if (grid.experts_at(c, experts).has(static_cast<std::size_t>(one.expert)))
                                    columns.insert(c);
                        if (std::find(which.begin(), which.end(), t) != which.end())
                            asked += static_cast<int>(columns.size());
                        if (columns.contains(static_cast<int>(grid.column_shard(rank))) &&
                            own.rows.has(static_cast<std::size_t>(tokens[t].id)))
                            asked_here.insert(tokens[t].id);
                    }
                    CHECK(watched.records_sent[0] == asked);
                    CHECK(own.rows_read == asked_here.size());

                    // Of a sum of k rounded products by any tree, and of k fused multiply-adds in a row, no
                    // term is rounded more than k times, by a factor within 1 +- u each: both are within
                    // g sum |w E| of the exact sum (Higham, Accuracy and Stability, 3.1). `exact` is k
                    // roundings to double off at most. None underflows: what is not 0 is 2^-24 or more.
                    const double k = static_cast<double>(top_k), u = 0x1p-24;
                    const double g = k * u / (1 - k * u), of_double = k * 0x1p-52;
                    for (std::size_t n = 0; n < which.size(); ++n) {
                        const mixed_row mixed = mix(table, experts, tokens[which[n]]);
                        for (std::size_t i = 0; i < d; ++i) {
                            const float got = to[n * d + i];
                            CHECK(std::bit_cast<std::uint32_t>(got) ==
                                  std::bit_cast<std::uint32_t>(mixed.by_halves[i]));
                            const double size = mixed.sum_of_sizes[i], value = static_cast<double>(got);
                            CHECK(std::abs(value - mixed.exact[i]) <= (g + of_double) * size);
                            CHECK(std::abs(value - static_cast<double>(mixed.by_layer[i])) <= 2 * g * size);
                            unlike_fused += got != mixed.by_layer[i] ? 1u : 0u;
                        }
                    }
                }
    CHECK(unlike_fused > 0);  // so that the comparison of bits would see products that are not rounded
}

TEST_CASE("sharded_pool: what does not fit, on all ranks and on one") {
    const int rank = rank_in(world), ranks = ranks_of(world), last = ranks - 1;
    const std::string named = "rank " + std::to_string(last);
    const shard_grid grid{1, static_cast<std::size_t>(ranks)};
    const whole_table table = whole_table::of_numbers(9, 256, dtype::q8_0);
    block_store own = pool_block(table, grid, rank, 8);
    const auto rows = sharded_rows::of(world, own, grid, 9);
    REQUIRE(on_all(rows.ok()));
    const auto refused = [&](std::size_t experts, errc code) {
        return failure_on_all(sharded_pool::of(*rows, experts), code);
    };
    CHECK(contains(refused(0, errc::option), "of 0 experts it may have a power of two"));
    CHECK(refused(7, errc::size) == "experts: 7 do not share rows of 256 in blocks of 32");
    CHECK(refused(16, errc::size) == "experts: 16 do not share rows of 256 in blocks of 32");
    if (ranks == 4) CHECK(contains(refused(2, errc::option), "has 4 column shards; of 2 experts"));
    {
        // Other columns than the experts': all in the last shard but one number in each of the others.
        const whole_table numbers = whole_table::of_numbers(9, 256, dtype::f32);
        const std::size_t most = 256 - grid.column_shards + 1;
        const block_store uneven{&numbers, {0, 9}, static_cast<std::size_t>(rank), rank == last ? most : 1};
        const auto other = sharded_rows::of(world, uneven, grid, 9);
        REQUIRE(on_all(other.ok()));
        const auto pool = sharded_pool::of(*other, 8);
        CHECK(on_all(pool.ok() == (ranks == 1)));
        if (ranks > 1) CHECK(contains(pool.failure().message(), "column shard 0: has rows of 1; its "));
    }
    const auto pool = sharded_pool::of(*rows, 8);
    REQUIRE(on_all(pool.ok()));
    const std::vector<token> tokens = tokens_of(9, 8, 2);
    const ids_type ids{tokens[3].id, tokens[4].id};
    std::vector<choice<float>> good = tokens[3].choices;
    good.insert(good.end(), tokens[4].choices.begin(), tokens[4].choices.end());
    std::vector<float> to(64, 77);
    const std::vector<float> before = to;
    const auto fails = [&](const ids_type& of, const std::vector<choice<float>>& choices, std::size_t top_k,
                           errc code) {
        const bool mine = rank == last;
        return failure_on_all(
            pool->read_mixed(mine ? of : ids, mine ? choices : good, mine ? top_k : 2, to.data()), code);
    };
    auto wrong = good;
    wrong[3].expert = 8;
    CHECK(fails(ids, wrong, 2, errc::option) == named + ", choices[3]: is expert 8 of 8");
    wrong[3].expert = -1;
    CHECK(fails(ids, wrong, 2, errc::option) == named + ", choices[3]: is expert -1 of 8");
    wrong[3].expert = wrong[2].expert;
    CHECK(contains(fails(ids, wrong, 2, errc::option), ", which the token has chosen before"));
    wrong.pop_back();
    CHECK(fails(ids, wrong, 2, errc::size) == named + ", choices: are 3; 2 tokens make 2 each");
    CHECK(fails(ids, good, 0, errc::option) == named + ", top_k: is 0 of 8 experts");
    CHECK(fails(ids, good, 9, errc::option) == named + ", top_k: is 9 of 8 experts");
    CHECK(contains(fails({0, 9}, good, 2, errc::token_id), "ids[1] = 9 lies outside"));
    if (ranks > 1) {
        CHECK(
            fails({ids[0]}, good, 4, errc::option) ==
            "ranks: make different calls: they mix from 2 to 4 of from 8 to 8 experts (0: rows as they are)");
        std::vector<std::byte> row(table.shape.row_bytes());
        const status s =
            rank == last ? rows->read(ids_type{1}, row.data()) : pool->read_mixed(ids, good, 2, to.data());
        CHECK(contains(failure_on_all(s, errc::option), "they mix from 0 to 2 of from 0 to 8 experts"));
    }
    own.state = rank == last ? store_state::fails : store_state::works;
    std::vector<choice<float>> everyone(8);  // so that the last shard is asked
    for (std::int32_t e = 0; e < 8; ++e) everyone[static_cast<std::size_t>(e)] = {e, 1.0f};
    CHECK(failure_on_all(pool->read_mixed(ids_type{5}, everyone, 8, to.data()), errc::file) ==
          named + ", part.bin: is gone");
    CHECK(to == before);
    own.state = store_state::works;
    REQUIRE(on_all(pool->read_mixed(ids, good, 2, to.data()).ok()));
    for (std::size_t t = 0; t < 2; ++t) {
        const mixed_row mixed = mix(table, 8, tokens[3 + t]);
        CHECK(std::equal(mixed.by_halves.begin(), mixed.by_halves.end(),
                         to.begin() + static_cast<std::ptrdiff_t>(32 * t)));
    }
    CHECK(pool->read_mixed({}, {}, 2, nullptr).ok());
}
