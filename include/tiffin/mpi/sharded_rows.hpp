// A table sharded over MPI ranks, in the memory of many machines.
#pragma once

#include <tiffin/mpi/shard_requests.hpp>
#include <tiffin/table/distinct_ids.hpp>
#include <tiffin/table/row_store.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

TIFFIN_BEGIN

// Reads rows of a table (rows, width) that is sharded over MPI ranks, one block in a store of each rank.
//
//     row[id] = block(s, 0)[id - first_s] | block(s, 1)[id - first_s] | ...      s the row shard of id
//
// Sharded by vocabulary: grid {ranks, 1}. By modulator, for a pool whose table row is all experts' rows of an id (see
// joined_columns): grid {1, ranks}. Every rank reads ids of its own, any number of them, also none.
// Numerics: bytes are copied.
// Errors: an error of one rank is a failure on all, with its rank: errc::token_id for ids outside the table, errc::size
//   for more than INT_MAX / ranks of them; failures of a rank's own store; errc::file for its exceptions, and for MPI
//   errors where their handler returns: the default one ends the program. Nothing is written then, and the next read
//   works, after MPI errors perhaps not.
// Threads: of(), read(), check() and the destructor are collective: all ranks make the same number of reads, and of
//   checks. Those of several threads of a rank run one after the other, in any order. Threads other than the one that
//   initialised MPI, such as that of prefetched_rows::prefetch(), need MPI_THREAD_MULTIPLE: without it, use gather()
//   without prefetch().
// prefetched_rows checks ids locally; a failure there would leave the other ranks waiting, so check() the ids first.
// Prefetch two calls ahead at most and gather each: of rows that it replaces, or still has at its end, one rank may
// have made the read and another not. For the same reason this store has no version (see versioned_rows): edits below
// it after a prefetch are not seen by the gather of that prefetch.
// Cost: each distinct id is sent once to the ranks of its row, whose rows are sent back, padded to the widest block; a
//   row that several ranks request is read once. Two reductions of five ints, an exchange of counts, of ids, of rows.
//   Memory for the rows requested and twice for those that others request.
// Source: ReToken, Appendix B.
//
//     auto table = sharded_rows::of(MPI_COMM_WORLD, part, {4, 1}, vocabulary);   // part: this rank's rows
//     prefetched_rows rows(*table);
//     auto now = rows.gather(ids);                                               // of this rank's tokens
class sharded_rows {
public:
    // Collective. `rows`: of the whole table. `own` must outlive this. Where this outlives MPI_Finalize, its
    // communicators are not freed.
    // Errors: errc::option where grids differ or have not as many blocks as there are ranks; errc::size where a block
    //   has not its shard's number of rows or its column shard's width, or rows of more than INT_MAX bytes; errc::dtype
    //   where formats differ.
    static result<sharded_rows> of(MPI_Comm comm, row_store_ref own, const shard_grid& grid,
                                   std::size_t rows) {
        auto made = detail::shard_requests::of(comm, own, grid, rows);
        if (!made) return made.failure();
        return sharded_rows(*std::move(made));
    }

    // Of the whole table.
    [[nodiscard]] const table_shape& shape() const noexcept { return ranks_.shape(); }

    // Collective. Checks that the ids of all ranks lie in the table; all ranks get the same status.
    status check(std::span<const std::int32_t> ids) const { return ranks_.check(ids); }

    // Collective. As read() of any row_store, but ids are checked.
    status read(std::span<const std::int32_t> ids, std::byte* to) const {
        distinct_ids distinct;
        const status own = detail::attempt("memory", [&]() -> status {
            if (status s = ranks_.check_call(ids); !s) return s;
            distinct.assign(ids);
            return {};
        });
        const std::size_t bytes = ranks_.own_row_bytes(), most = ranks_.most_row_bytes();
        const auto copy = [&](const std::byte*, const std::byte* row, std::byte* answer) {
            std::memcpy(answer, row, bytes);
            std::memset(answer + bytes, 0, most - bytes);
        };
        const auto always = [](std::size_t, std::size_t) { return true; };
        detail::shard_requests::answers got;
        if (status s = ranks_.exchange({distinct.ids(), {}, 0, 0, most}, own, always, copy, got); !s)
            return s;
        const std::size_t columns = ranks_.grid().column_shards;
        for (const std::int32_t i : distinct.index())
            for (std::size_t c = 0; c < columns; ++c) {
                std::memcpy(to, got.row(static_cast<std::size_t>(i) * columns + c), ranks_.row_bytes_of(c));
                to += ranks_.row_bytes_of(c);
            }
        return {};
    }

private:
    friend class sharded_pool;

    explicit sharded_rows(detail::shard_requests&& ranks) : ranks_(std::move(ranks)) {}

    detail::shard_requests ranks_;
};

TIFFIN_END
