// Training over MPI ranks: gradients of table rows go to the ranks that own the rows, dense gradients are summed.
#pragma once

#include <tiffin/learn/learning_rows.hpp>
#include <tiffin/mpi/rank_exchange.hpp>
#include <tiffin/mpi/shard_checks.hpp>
#include <tiffin/mpi/shard_grid.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <mpi.h>

TIFFIN_BEGIN

// The gradients of this rank's table rows, summed over the tokens of all ranks. Each rank has a part of the batch and a
// block of the table: by ids (row shards), by the experts of a pool (column shards), or both.
//
//     auto rows = sharded_gradients::of(comm, {ranks, 1}, {vocab, width}, most_ids).or_throw();
//     optimizer.add("stem_embed.weight", *rows, own_rows);          // ids and experts count from this rank's first
//     ...
//     rows->gather(layer, "stem_embed.weight").or_throw();          // collective, after backward
//     add_over_ranks(comm, layer).or_throw();                       // dense gradients
//     optimizer.step(rate, execute, sum_over_ranks(comm));
//
// Numerics: gradients of one row are summed in rank order, so that the rounding depends on the number of ranks.
// Errors: errc::option where the grid has not as many blocks as there are ranks, a rank would own no row or no expert
//   (a table of ids alone has one expert), column shards are no power of two, or arguments differ between ranks;
//   errc::size for a width of 0, for rows of more than INT_MAX bytes, and for more ids than `most_ids`; errc::shape,
//   token_id for gradients of another table; errc::file for errors of MPI. A failure on one rank is returned on all.
// Cost: an exchange of counts, and one of the rows that tokens have read. Memory for the rows sent and received.
// Source: MoRT, Appendix B.
class sharded_gradients final : public row_gradients<float> {
public:
    struct table_sizes {
        std::size_t rows = 0, width = 0, experts = 1;  // of the whole table
    };
    // Collective. `most_ids`: upper bound of the ids that all ranks together have in a step.
    static result<std::unique_ptr<sharded_gradients>> of(MPI_Comm comm, const shard_grid& grid,
                                                         const table_sizes& sizes, std::size_t most_ids) {
        std::unique_ptr<sharded_gradients> made(new sharded_gradients);
        MPI_Comm_rank(comm, &made->rank_);
        MPI_Comm_size(comm, &made->ranks_);
        made->grid_ = grid;
        made->sizes_ = sizes;
        made->most_ids_ = most_ids;
        const detail::gradient_shards mine{grid, sizes.rows, sizes.width, sizes.experts, most_ids};
        std::vector<detail::gradient_shards> all(static_cast<std::size_t>(made->ranks_));
        status s = detail::of_mpi(
            MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, comm),
            "MPI_Allgather");
        if (s) s = detail::check_owners(all);
        if (!s) return s.failure();
        if (s = made->own_.copy(comm); !s) return s.failure();
        return made;
    }

    // Collective. Sends the layer's gradients of its table `tensor` to their owners; afterwards this holds those of
    // this rank's rows.
    // Errors: errc::missing_tensor where the layer trains no such table.
    status gather(const trainable_layer<float>& layer, std::string_view tensor) {
        const auto trained = layer_row_gradients<float>::of(layer, tensor);
        return trained ? gather(*trained) : detail::agreed(own_.get(), trained.failure());
    }
    // Collective. The same for any row gradients of this rank's tokens.
    status gather(const row_gradients<float>& from) {
        if (status s = detail::agreed(own_.get(), check(from)); !s) return s;
        detail::rank_counts sent(static_cast<std::size_t>(ranks_)), received(sent);
        const auto each = [&](const auto& use) {
            for (std::size_t n = 0; n < from.size(); ++n)
                for (std::size_t e = 0; e < sizes_.experts; ++e)
                    if (const float* const row = from.row(n, e); row != nullptr)
                        use(owner_of(static_cast<std::size_t>(from.id(n)), e), from.id(n), e, row);
        };
        each([&](std::size_t rank, std::int32_t, std::size_t, const float*) { ++sent.count[rank]; });
        const std::size_t record = sizeof(header) + sizes_.width * sizeof(float);
        sending_.resize(sent.add_up() * record);
        std::vector<int> at = sent.start;
        each([&](std::size_t rank, std::int32_t id, std::size_t e, const float* row) {
            const shard_range rows = grid_.rows_at(static_cast<int>(rank), sizes_.rows);
            const shard_range experts = experts_at(static_cast<int>(rank));
            const header head{static_cast<std::int32_t>(static_cast<std::size_t>(id) - rows.first),
                              static_cast<std::int32_t>(e - experts.first)};
            std::byte* const to = sending_.data() + static_cast<std::size_t>(at[rank]++) * record;
            std::memcpy(to, &head, sizeof head);
            std::memcpy(to + sizeof head, row, sizes_.width * sizeof(float));
        });
        if (status s = detail::exchange_counts(own_.get(), sent, received); !s) return s;
        const std::size_t count = received.add_up();
        received_.resize(count * record);
        if (status s =
                detail::send_records(own_.get(), record, sending_.data(), sent, received_.data(), received);
            !s)
            return s;
        add_up(count, record);
        status s;
        if (size() > capacity()) {
            s = failure(errc::size, "most_ids", "is ", most_ids_, "; ", size(), " ids have come");
            ids_.clear();
        }
        return detail::agreed(own_.get(), s);
    }

    [[nodiscard]] std::size_t experts() const override { return experts_at(rank_).count; }
    [[nodiscard]] std::size_t width() const override { return sizes_.width; }
    [[nodiscard]] std::size_t capacity() const override {
        return std::min(most_ids_, grid_.rows_at(rank_, sizes_.rows).count);
    }
    [[nodiscard]] std::size_t size() const override { return ids_.size(); }
    [[nodiscard]] std::int32_t id(std::size_t n) const override { return ids_[n]; }
    [[nodiscard]] const float* row(std::size_t n, std::size_t expert) const override {
        const std::size_t at = places_[n * experts() + expert];
        return at == none ? nullptr : rows_.data() + at * sizes_.width;
    }

private:
    struct header {
        std::int32_t id, expert;  // relative to the owner's first
    };
    static constexpr std::size_t none = ~std::size_t{0};

    sharded_gradients() = default;
    [[nodiscard]] status check(const row_gradients<float>& from) const {
        if (from.experts() != sizes_.experts || from.width() != sizes_.width)
            return failure(errc::shape, "gradients", "are of ", from.experts(), " experts' rows of ",
                           from.width(), " numbers; the table is of ", sizes_.experts, " and ", sizes_.width);
        for (std::size_t n = 0; n < from.size(); ++n)
            if (from.id(n) < 0 || static_cast<std::size_t>(from.id(n)) >= sizes_.rows)
                return failure(errc::token_id, "gradients", "have id ", from.id(n), " outside the ",
                               sizes_.rows, " rows of the table");
        return {};
    }
    [[nodiscard]] shard_range experts_at(int rank) const { return grid_.experts_at(rank, sizes_.experts); }
    [[nodiscard]] std::size_t owner_of(std::size_t id, std::size_t expert) const {
        std::size_t rank = grid_.row_shard_of(id, sizes_.rows) * grid_.column_shards;
        while (!experts_at(static_cast<int>(rank)).has(expert)) ++rank;
        return rank;
    }
    // Received records lie in rank order and are summed in it.
    void add_up(std::size_t count, std::size_t record) {
        std::vector<std::tuple<std::int32_t, std::int32_t, std::size_t>> order(count);
        for (std::size_t i = 0; i < count; ++i) {
            header head;
            std::memcpy(&head, received_.data() + i * record, sizeof head);
            order[i] = {head.id, head.expert, i};
        }
        std::sort(order.begin(), order.end());
        ids_.clear();
        places_.clear();
        rows_.clear();
        std::int32_t last = -1;  // the expert of the last row
        std::vector<float> one(sizes_.width);
        for (const auto& [id, expert, i] : order) {
            std::memcpy(one.data(), received_.data() + i * record + sizeof(header),
                        sizes_.width * sizeof(float));
            const bool is_new_id = ids_.empty() || ids_.back() != id;
            if (is_new_id) {
                ids_.push_back(id);
                places_.resize(places_.size() + experts(), none);
            }
            if (is_new_id || expert != last) {
                places_[(ids_.size() - 1) * experts() + static_cast<std::size_t>(expert)] =
                    rows_.size() / sizes_.width;
                rows_.insert(rows_.end(), one.begin(), one.end());
            } else {
                float* const to = rows_.data() + rows_.size() - sizes_.width;
                for (std::size_t j = 0; j < sizes_.width; ++j) to[j] += one[j];
            }
            last = expert;
        }
    }

    int rank_ = 0, ranks_ = 1;
    shard_grid grid_;
    table_sizes sizes_;
    std::size_t most_ids_ = 0;
    detail::own_communicator own_;
    std::vector<std::byte> sending_, received_;
    std::vector<std::int32_t> ids_;
    std::vector<std::size_t> places_;
    std::vector<float> rows_;
};

// Collective. All ranks get the sums of these numbers over the ranks.
inline status add_over_ranks(MPI_Comm comm, std::span<float> numbers) {
    constexpr std::size_t piece = std::size_t{1} << 28;
    for (std::size_t first = 0; first < numbers.size(); first += piece) {
        const auto count = static_cast<int>(std::min(piece, numbers.size() - first));
        const int code = MPI_Allreduce(MPI_IN_PLACE, numbers.data() + first, count, MPI_FLOAT, MPI_SUM, comm);
        if (status s = detail::of_mpi(code, "MPI_Allreduce"); !s) return s;
    }
    return {};
}
// Collective. The same for the layer's dense gradients. Those of table rows are left to sharded_gradients: a table that
// every rank holds whole would diverge between ranks.
inline status add_over_ranks(MPI_Comm comm, const trainable_layer<float>& layer) {
    for (const auto& g : layer.gradients())
        if (g.data != nullptr)
            if (status s = add_over_ranks(comm, std::span(g.data, g.shape.elements())); !s) return s;
    return {};
}

// For adamw::step(): sums a value over the ranks. Collective. NaN, which stops the step, where MPI fails.
inline auto sum_over_ranks(MPI_Comm comm) {
    return [comm](double x) {
        const int code = MPI_Allreduce(MPI_IN_PLACE, &x, 1, MPI_DOUBLE, MPI_SUM, comm);
        return code == MPI_SUCCESS ? x : std::numeric_limits<double>::quiet_NaN();
    };
}

TIFFIN_END
