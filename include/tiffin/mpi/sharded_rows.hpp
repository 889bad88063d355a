// A table whose rows lie at the ranks of an MPI program: in the memory of many machines.
#pragma once

#include <tiffin/aligned_buffer.hpp>
#include <tiffin/mpi/rank_exchange.hpp>
#include <tiffin/mpi/shard_checks.hpp>
#include <tiffin/mpi/shard_grid.hpp>
#include <tiffin/router/selection.hpp>
#include <tiffin/table/distinct_ids.hpp>
#include <tiffin/table/row_store.hpp>

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

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
        int rank = 0, ranks = 0;
        MPI_Comm_rank(comm, &rank);
        MPI_Comm_size(comm, &ranks);
        std::unique_ptr<shared_state> made;
        detail::shard_block mine;
        status s = detail::attempt("own", [&]() -> status {
            made = std::make_unique<shared_state>(static_cast<std::size_t>(ranks));
            mine = {grid, rows, own.shape()};
            return {};
        });
        if (s = detail::agreed(comm, s); !s) return s.failure();
        s = detail::of_mpi(
            MPI_Allgather(&mine, sizeof mine, MPI_BYTE, made->blocks.data(), sizeof mine, MPI_BYTE, comm),
            "MPI_Allgather");
        if (s.ok()) s = detail::check_blocks(made->blocks);
        if (s.ok()) s = made->reads.copy(comm);
        if (s.ok()) s = made->checks.copy(comm);
        if (!s.ok()) return s.failure();
        return sharded_rows(std::move(made), own, rank);
    }

    // The whole table's.
    [[nodiscard]] const table_shape& shape() const noexcept { return shape_; }

    // Collective. Whether the ids of all ranks lie in the table; all get the same answer.
    status check(std::span<const std::int32_t> ids) const {
        const std::lock_guard lock(shared_->turn_of_checks);
        return detail::agreed(shared_->checks.get(), detail::attempt("ids", [&] { return check_call(ids); }));
    }

    // Collective. As a row_store's, but that ids are checked.
    status read(std::span<const std::int32_t> ids, std::byte* to) const {
        distinct_ids distinct;
        const status own = detail::attempt("memory", [&]() -> status {
            if (status s = check_call(ids); !s) return s;
            distinct.assign(ids);
            return {};
        });
        const std::size_t bytes = part_bytes(column_);
        const auto copy = [&](const std::byte*, const std::byte* row, std::byte* answer) {
            std::memcpy(answer, row, bytes);
            std::memset(answer + bytes, 0, widest_ - bytes);
        };
        const auto always = [](std::size_t, std::size_t) { return true; };
        answers got;
        if (status s = ask({distinct.ids(), {}, 0, 0, widest_}, own, always, copy, got); !s) return s;
        for (const std::int32_t i : distinct.index())
            for (std::size_t c = 0; c < grid_.column_shards; ++c) {
                std::memcpy(to, got.row(static_cast<std::size_t>(i) * grid_.column_shards + c),
                            part_bytes(c));
                to += part_bytes(c);
            }
        return {};
    }

private:
    friend class sharded_pool;

    struct shared_state {
        explicit shared_state(std::size_t ranks) : blocks(ranks), sent(ranks), received(ranks) {}
        // Checks do not wait for reads, which another thread may do before or after them.
        detail::own_communicator reads, checks;
        std::mutex turn_of_reads, turn_of_checks;
        std::vector<detail::shard_block> blocks;
        detail::rank_counts sent, received;  // during a turn
    };
    // What a rank asks: rows of ids, or what is made of them by choices (ids, top_k) of so many experts.
    struct question {
        std::span<const std::int32_t> ids;
        std::span<const choice<float>> choices;
        std::size_t top_k, experts, answer_bytes;
    };
    struct answers {
        static constexpr std::int32_t none = -1;
        std::vector<std::int32_t> places;  // (ids, column shards), in the order in which answers come
        aligned_buffer rows;
        std::size_t bytes = 0;

        [[nodiscard]] std::byte* row(std::size_t i) noexcept {
            return places[i] == none ? nullptr : rows.data() + static_cast<std::size_t>(places[i]) * bytes;
        }
    };

    sharded_rows(std::unique_ptr<shared_state> shared, row_store_ref own, int rank)
        : shared_(std::move(shared)), own_(own), grid_(shared_->blocks[0].grid), rank_(rank) {
        shape_ = {shared_->blocks[0].rows, 0, shared_->blocks[0].own.type};
        for (std::size_t c = 0; c < grid_.column_shards; ++c) {
            shape_.width += shared_->blocks[c].own.width;
            widest_ = std::max(widest_, part_bytes(c));
        }
        column_ = grid_.column_shard(rank);
    }

    [[nodiscard]] status check_call(std::span<const std::int32_t> ids) const {
        return detail::check_ids_of_rank(ids, shape_, shared_->blocks.size());
    }
    [[nodiscard]] std::size_t part_bytes(std::size_t column) const noexcept {
        return shared_->blocks[column].own.row_bytes();
    }
    [[nodiscard]] std::size_t rank_of(std::int32_t id, std::size_t column) const noexcept {
        return grid_.row_shard_of(static_cast<std::size_t>(id), shape_.rows) * grid_.column_shards + column;
    }

    // Asks for ids[i] the ranks of its row and of the column shards c with wants(i, c). Those read the row,
    // and answer(record, row, to) makes of it and of the record (the id, its choices) what they send back.
    template <class Wants, class Answer>
    status ask(const question& q, status own, const Wants& wants, const Answer& answer, answers& got) const {
        const std::lock_guard lock(shared_->turn_of_reads);
        const MPI_Comm comm = shared_->reads.get();
        detail::rank_counts& sent = shared_->sent;
        detail::rank_counts& received = shared_->received;
        const std::size_t record = sizeof(std::int32_t) + q.top_k * sizeof(choice<float>);
        std::vector<std::byte> asked, records;
        sent.clear();
        if (own.ok()) own = detail::attempt("memory", [&] { return list(q, record, wants, asked, got); });
        if (!own.ok()) sent.clear();
        sent.add_up();
        if (status s = detail::exchange_counts(comm, sent, received); !s) return s;
        const std::size_t questions = received.add_up();
        aligned_buffer rows, out;
        distinct_ids different;
        if (own.ok())
            own = detail::attempt("memory", [&]() -> status {
                records.resize(questions * record);
                out = aligned_buffer(questions * q.answer_bytes);
                return {};
            });
        if (status s = detail::agreed(comm, own, q.top_k, q.experts); !s) return s;
        if (status s = detail::send_records(comm, record, asked.data(), sent, records.data(), received); !s)
            return s;
        own = detail::attempt("store", [&]() -> status {
            const auto first = static_cast<std::int32_t>(grid_.rows_at(rank_, shape_.rows).first);
            std::vector<std::int32_t> ids(questions);
            for (std::size_t i = 0; i < questions; ++i) {
                std::memcpy(&ids[i], records.data() + i * record, sizeof ids[i]);
                ids[i] -= first;
            }
            different.assign(ids);
            rows = aligned_buffer(different.ids().size() * part_bytes(column_));
            if (questions != 0)
                if (status s = own_.read(different.ids(), rows.data()); !s) return s;
            for (std::size_t i = 0; i < questions; ++i)
                answer(records.data() + i * record,
                       rows.data() + static_cast<std::size_t>(different.index()[i]) * part_bytes(column_),
                       out.data() + i * q.answer_bytes);
            return {};
        });
        if (status s = detail::agreed(comm, own, q.top_k, q.experts); !s) return s;
        return detail::send_records(comm, q.answer_bytes, out.data(), received, got.rows.data(), sent);
    }
    // The records by ranks, and where their answers will be.
    template <class Wants>
    status list(const question& q, std::size_t record, const Wants& wants, std::vector<std::byte>& asked,
                answers& got) const {
        detail::rank_counts& sent = shared_->sent;
        if (record > INT_MAX || q.answer_bytes > INT_MAX)
            return failure(errc::size, "choices", "travel in records of ", record, " bytes, their rows in ",
                           q.answer_bytes, "; MPI takes at most ", INT_MAX);
        const std::size_t columns = grid_.column_shards;
        got.places.assign(q.ids.size() * columns, answers::none);
        for (std::size_t i = 0; i < got.places.size(); ++i)
            if (wants(i / columns, i % columns))
                got.places[i] = sent.count[rank_of(q.ids[i / columns], i % columns)]++;
        const std::size_t all = sent.add_up();
        asked.resize(all * record);
        got.rows = aligned_buffer(all * q.answer_bytes);
        got.bytes = q.answer_bytes;
        for (std::size_t i = 0; i < got.places.size(); ++i) {
            if (got.places[i] == answers::none) continue;
            const std::size_t t = i / columns;
            got.places[i] += sent.start[rank_of(q.ids[t], i % columns)];
            std::byte* const to = asked.data() + static_cast<std::size_t>(got.places[i]) * record;
            std::memcpy(to, &q.ids[t], sizeof q.ids[t]);
            if (q.top_k != 0)
                std::memcpy(to + sizeof q.ids[t], &q.choices[t * q.top_k], record - sizeof q.ids[t]);
        }
        return {};
    }

    std::unique_ptr<shared_state> shared_;
    row_store_ref own_;
    shard_grid grid_;
    int rank_ = 0;
    std::size_t column_ = 0;
    table_shape shape_;
    std::size_t widest_ = 0;  // bytes of a block's row
};

TIFFIN_END
