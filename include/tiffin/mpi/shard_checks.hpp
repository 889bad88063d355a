// Checks of a sharded table's blocks, of sharded gradients' sizes on all ranks, and of a rank's ids of a call.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/mpi/shard_grid.hpp>
#include <tiffin/table/row_store.hpp>

#include <bit>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

TIFFIN_BEGIN

namespace detail {

// What a rank reports of its part: the whole table's grid and number of rows, and the shape of its own block.
struct shard_block {
    shard_grid grid;
    std::size_t rows = 0;
    table_shape own;
};

inline std::string to_string(const shard_grid& g) {
    return std::to_string(g.row_shards) + " x " + std::to_string(g.column_shards);
}

// What a rank reports of a table (experts, rows, width) whose row gradients are divided among the ranks.
struct gradient_shards {
    shard_grid grid;
    std::size_t rows = 0, width = 0, experts = 0, most_ids = 0;

    friend bool operator==(const gradient_shards&, const gradient_shards&) = default;
};

// Errors: see sharded_gradients::of(). All ranks get the same one, as all pass the same `ranks`, in rank order.
inline status check_owners(std::span<const gradient_shards> ranks) {
    const gradient_shards& first = ranks[0];
    const auto text = [](const gradient_shards& s) {
        return to_string(s.grid) + " blocks of " + std::to_string(s.rows) + " rows of " +
               std::to_string(s.width) + " numbers, " + std::to_string(s.experts) + " experts, at most " +
               std::to_string(s.most_ids) + " ids";
    };
    for (std::size_t r = 1; r < ranks.size(); ++r)
        if (ranks[r] != first)
            return failure(errc::option, "rank " + std::to_string(r), "has ", text(ranks[r]), "; rank 0 has ",
                           text(first));
    const auto [row_shards, column_shards] = first.grid;
    if (row_shards == 0 || ranks.size() % row_shards != 0 || ranks.size() / row_shards != column_shards)
        return failure(errc::option, "grid", "is ", to_string(first.grid), "; there are ", ranks.size(),
                       " ranks");
    if (row_shards > first.rows)
        return failure(errc::option, "grid", "has ", row_shards, " row shards of ", first.rows,
                       " rows; a rank would have none");
    if (!std::has_single_bit(column_shards) || column_shards > first.experts)
        return failure(errc::option, "grid", "has ", column_shards, " column shards; of ", first.experts,
                       " experts it may have a power of two, and not more than experts");
    if (first.width == 0 || first.width > (INT_MAX - 2 * sizeof(std::int32_t)) / sizeof(float))
        return failure(errc::size, "width", "is ", first.width,
                       "; a row has numbers, and takes at most INT_MAX bytes");
    return {};
}

// Errors: see sharded_rows::of(). All ranks get the same one, as all pass the same `blocks`, one per rank.
inline status check_blocks(std::span<const shard_block> blocks) {
    const shard_block& first = blocks[0];
    for (std::size_t r = 0; r < blocks.size(); ++r) {
        const shard_block& b = blocks[r];
        const std::string rank = "rank " + std::to_string(r);
        if (b.grid != first.grid)
            return failure(errc::option, rank, "has a grid of ", to_string(b.grid), ", rank 0 one of ",
                           to_string(first.grid));
        const auto [row_shards, column_shards] = b.grid;
        if (row_shards == 0 || blocks.size() % row_shards != 0 || blocks.size() / row_shards != column_shards)
            return failure(errc::option, "grid", "is ", to_string(b.grid), "; there are ", blocks.size(),
                           " ranks");
        if (b.rows != first.rows)
            return failure(errc::size, rank, "has a table of ", b.rows, " rows, rank 0 one of ", first.rows);
        const shard_range shard = b.grid.rows_at(static_cast<int>(r), b.rows);
        if (b.own.rows != shard.count)
            return failure(errc::size, rank, "has ", b.own.rows, " rows; its shard has ", shard.count,
                           ", from ", shard.first, " on");
        if (b.own.type != first.own.type)
            return failure(errc::dtype, rank, "is ", name_of(b.own.type), ", rank 0 is ",
                           name_of(first.own.type));
        if (!b.own.scales.stored_as(first.own.scales) || (b.own.scales.any() && column_shards > 1))
            return failure(errc::dtype, rank, "has rows with ", b.own.scales.text(), ", rank 0 rows with ",
                           first.own.scales.text(), "; rows that are split among ", column_shards,
                           " ranks have none");
        const std::size_t above = r % column_shards;
        if (b.own.width != blocks[above].own.width)
            return failure(errc::size, rank, "has rows of ", b.own.width, ", rank ", above,
                           " of the same columns has rows of ", blocks[above].own.width);
        if (b.own.row_bytes() > INT_MAX)
            return failure(errc::size, rank, "has rows of ", b.own.row_bytes(), " bytes; MPI takes at most ",
                           INT_MAX);
    }
    return {};
}

// Errors: errc::token_id; errc::size where an int could not count the records that a rank receives if all send as many,
//   or the answers of all column shards.
inline status check_ids_of_rank(std::span<const std::int32_t> ids, const table_shape& table,
                                std::size_t ranks) {
    const std::size_t most = INT_MAX / ranks;
    if (ids.size() > most)
        return failure(errc::size, "ids", "are ", ids.size(), "; ", ranks, " ranks exchange at most ", most,
                       " each");
    return check_ids(ids, table);
}

}  // namespace detail

TIFFIN_END
