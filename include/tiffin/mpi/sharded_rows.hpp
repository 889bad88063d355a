// A table whose rows lie at the ranks of an MPI program: in the memory of many machines.
#pragma once

#include <tiffin/mpi/shard_questions.hpp>
#include <tiffin/table/distinct_ids.hpp>
#include <tiffin/table/row_store.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

TIFFIN_BEGIN

// The rows of a table (rows, width) that lies at several ranks, a block of it in a store of each.
//
//     row[id] = block(s, 0)[id - first_s] | block(s, 1)[id - first_s] | ...      s the row shard of id
//
// By vocabulary: grid {ranks, 1}. By modulator, the experts of a pool whose row is all experts' rows of an id
// (see joined_columns): grid {1, ranks}. Every rank reads ids of its own, as many as it likes, also none.
// Numerics: bytes are copied.
// Errors: what is wrong on one rank is a failure on all, with that rank's number: errc::token_id for ids
//   outside the table, errc::size for more than INT_MAX / ranks of them; what a rank's own store fails with;
//   errc::file for what it throws, and for errors of MPI where their handler lets them come back: its default
//   one ends the program. Nothing is written then, and the next read works, after errors of MPI perhaps not.
// Threads: of(), read(), check() and the destructor are collective: all ranks make as many reads, and as many
//   checks. Those of several threads of a rank run one after the other, in any order. Threads other than the
//   one that initialised MPI, as that of prefetched_rows::prefetch(), need MPI_THREAD_MULTIPLE: where there
//   is less, gather() without prefetch().
// prefetched_rows: it looks at ids by itself and would leave the other ranks waiting where they are wrong, so
//   check() them before. Prefetch two calls ahead at most and gather each: what it gives up for others, or at
//   its end, one rank may have read and another not. It tells no version (see versioned_rows), for the same
//   reason: edits below it that come after a prefetch are not seen by that one's gather.
// Cost: each different id travels once to the ranks of its row, whose blocks travel back, filled up to the
//   widest block; what several ranks ask for is read once. Two reductions of five numbers, an exchange of
//   counts, of ids, of rows. Memory for the rows asked for and twice for those that others ask for.
// Source: ReToken, Appendix B.
//
//     auto table = sharded_rows::of(MPI_COMM_WORLD, part, {4, 1}, vocabulary);   // part: this rank's rows
//     prefetched_rows rows(*table);
//     auto now = rows.gather(ids);                                               // of this rank's tokens
class sharded_rows {
public:
    // Collective. `rows` are those of the whole table. The own store must outlive this. Where this outlives
    // MPI_Finalize, its communicators are not freed.
    // Errors: errc::option where grids differ or have not as many blocks as there are ranks; errc::size where
    //   a block has not its shard's rows or its column shard's width, or rows of more than INT_MAX bytes;
    //   errc::dtype where formats differ.
    static result<sharded_rows> of(MPI_Comm comm, row_store_ref own, const shard_grid& grid,
                                   std::size_t rows) {
        auto made = detail::shard_questions::of(comm, own, grid, rows);
        if (!made) return made.failure();
        return sharded_rows(*std::move(made));
    }

    // The whole table's.
    [[nodiscard]] const table_shape& shape() const noexcept { return ranks_.shape(); }

    // Collective. Whether the ids of all ranks lie in the table; all get the same answer.
    status check(std::span<const std::int32_t> ids) const { return ranks_.check(ids); }

    // Collective. As a row_store's, but that ids are checked.
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
        detail::shard_questions::answers got;
        if (status s = ranks_.ask({distinct.ids(), {}, 0, 0, most}, own, always, copy, got); !s) return s;
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

    explicit sharded_rows(detail::shard_questions&& ranks) : ranks_(std::move(ranks)) {}

    detail::shard_questions ranks_;
};

TIFFIN_END
