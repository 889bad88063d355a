// Requests for table rows between the ranks of a sharded table, answered from the rows of each rank's own block.
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
#include <utility>
#include <vector>

TIFFIN_BEGIN

namespace detail {

// The request protocol of a sharded table, one object per rank. Errors, threads, cost: those of sharded_rows.
class shard_requests {
public:
    // A rank's requests: the rows of `ids`, or what is computed from them by choices (ids, top_k) of `experts`.
    struct request {
        std::span<const std::int32_t> ids;
        std::span<const choice<float>> choices;
        std::size_t top_k, experts, answer_bytes;
    };
    struct answers {
        static constexpr std::int32_t none = -1;
        std::vector<std::int32_t> places;  // (ids, column shards): index in `rows`, or none
        aligned_buffer rows;
        std::size_t bytes = 0;

        [[nodiscard]] std::byte* row(std::size_t i) noexcept {
            return places[i] == none ? nullptr : rows.data() + static_cast<std::size_t>(places[i]) * bytes;
        }
    };

    // Collective.
    static result<shard_requests> of(MPI_Comm comm, row_store_ref own, const shard_grid& grid,
                                     std::size_t rows) {
        int rank = 0, ranks = 0;
        MPI_Comm_rank(comm, &rank);
        MPI_Comm_size(comm, &ranks);
        std::unique_ptr<shared_state> made;
        shard_block mine;
        status s = attempt("own", [&]() -> status {
            made = std::make_unique<shared_state>(static_cast<std::size_t>(ranks));
            mine = {grid, rows, own.shape()};
            return {};
        });
        if (s = agreed(comm, s); !s) return s.failure();
        s = of_mpi(
            MPI_Allgather(&mine, sizeof mine, MPI_BYTE, made->blocks.data(), sizeof mine, MPI_BYTE, comm),
            "MPI_Allgather");
        if (s.ok()) s = check_blocks(made->blocks);
        if (s.ok()) s = made->reads.copy(comm);
        if (s.ok()) s = made->checks.copy(comm);
        if (!s.ok()) return s.failure();
        return shard_requests(std::move(made), own, rank);
    }

    [[nodiscard]] const table_shape& shape() const noexcept { return shape_; }
    [[nodiscard]] const shard_grid& grid() const noexcept { return grid_; }
    [[nodiscard]] int rank() const noexcept { return rank_; }
    // Row sizes: of the blocks of a column shard; of the widest block; of this rank's block.
    [[nodiscard]] std::size_t width_of(std::size_t column) const noexcept {
        return shared_->blocks[column].own.width;
    }
    [[nodiscard]] std::size_t row_bytes_of(std::size_t column) const noexcept {
        return shared_->blocks[column].own.row_bytes();
    }
    [[nodiscard]] std::size_t most_row_bytes() const noexcept { return most_row_bytes_; }
    [[nodiscard]] std::size_t own_row_bytes() const noexcept {
        return row_bytes_of(grid_.column_shard(rank_));
    }

    // Checks this rank's ids alone; not collective.
    [[nodiscard]] status check_call(std::span<const std::int32_t> ids) const {
        return check_ids_of_rank(ids, shape_, shared_->blocks.size());
    }
    // Collective.
    status check(std::span<const std::int32_t> ids) const {
        const std::lock_guard lock(shared_->turn_of_checks);
        return agreed(shared_->checks.get(), attempt("ids", [&] { return check_call(ids); }));
    }

    // Collective. Requests ids[i] from the rank of its row shard and of each column shard c with wants(i, c). That rank
    // reads the row; answer(record, row, to) computes what it sends back from it and the record (the id, its choices).
    // `own`: this rank's status so far; a failure becomes the failure of all ranks.
    template <class Wants, class Answer>
    status exchange(const request& q, status own, const Wants& wants, const Answer& answer,
                    answers& got) const {
        const std::lock_guard lock(shared_->turn_of_reads);
        const MPI_Comm comm = shared_->reads.get();
        rank_counts& sent = shared_->sent;
        rank_counts& received = shared_->received;
        const std::size_t record = sizeof(std::int32_t) + q.top_k * sizeof(choice<float>);
        std::vector<std::byte> asked, records;
        sent.clear();
        if (own.ok()) own = attempt("memory", [&] { return list(q, record, wants, asked, got); });
        if (!own.ok()) sent.clear();
        sent.add_up();
        if (status s = exchange_counts(comm, sent, received); !s) return s;
        const std::size_t questions = received.add_up();
        aligned_buffer rows, out;
        distinct_ids different;
        if (own.ok())
            own = attempt("memory", [&]() -> status {
                records.resize(questions * record);
                out = aligned_buffer(questions * q.answer_bytes);
                return {};
            });
        if (status s = agreed(comm, own, q.top_k, q.experts); !s) return s;
        if (status s = send_records(comm, record, asked.data(), sent, records.data(), received); !s) return s;
        own = attempt("store", [&]() -> status {
            const auto first = static_cast<std::int32_t>(grid_.rows_at(rank_, shape_.rows).first);
            std::vector<std::int32_t> ids(questions);
            for (std::size_t i = 0; i < questions; ++i) {
                std::memcpy(&ids[i], records.data() + i * record, sizeof ids[i]);
                ids[i] -= first;
            }
            different.assign(ids);
            rows = aligned_buffer(different.ids().size() * own_row_bytes());
            if (questions != 0)
                if (status s = own_.read(different.ids(), rows.data()); !s) return s;
            for (std::size_t i = 0; i < questions; ++i)
                answer(records.data() + i * record,
                       rows.data() + static_cast<std::size_t>(different.index()[i]) * own_row_bytes(),
                       out.data() + i * q.answer_bytes);
            return {};
        });
        if (status s = agreed(comm, own, q.top_k, q.experts); !s) return s;
        return send_records(comm, q.answer_bytes, out.data(), received, got.rows.data(), sent);
    }

private:
    struct shared_state {
        explicit shared_state(std::size_t ranks) : blocks(ranks), sent(ranks), received(ranks) {}
        // Two communicators, so that checks do not wait for reads of another thread.
        own_communicator reads, checks;
        std::mutex turn_of_reads, turn_of_checks;
        std::vector<shard_block> blocks;
        rank_counts sent, received;  // valid under turn_of_reads
    };
    shard_requests(std::unique_ptr<shared_state> shared, row_store_ref own, int rank)
        : shared_(std::move(shared)), own_(own), grid_(shared_->blocks[0].grid), rank_(rank) {
        shape_ = {shared_->blocks[0].rows, 0, shared_->blocks[0].own.type, shared_->blocks[0].own.scales};
        for (std::size_t c = 0; c < grid_.column_shards; ++c) {
            shape_.width += width_of(c);
            most_row_bytes_ = std::max(most_row_bytes_, row_bytes_of(c));
        }
    }

    [[nodiscard]] std::size_t rank_of(std::int32_t id, std::size_t column) const noexcept {
        return grid_.row_shard_of(static_cast<std::size_t>(id), shape_.rows) * grid_.column_shards + column;
    }
    // Lists the records in rank order, and the index of each answer.
    template <class Wants>
    status list(const request& q, std::size_t record, const Wants& wants, std::vector<std::byte>& asked,
                answers& got) const {
        rank_counts& sent = shared_->sent;
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
    table_shape shape_;
    std::size_t most_row_bytes_ = 0;
};

}  // namespace detail

TIFFIN_END
