// Whether the blocks of all ranks make up a table, and a rank's ids of a call.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/mpi/shard_grid.hpp>
#include <tiffin/table/row_store.hpp>

#include <climits>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

TIFFIN_BEGIN

namespace detail {

// What a rank says of its part: the whole table's grid and rows, and its own block.
struct shard_block {
    shard_grid grid;
    std::size_t rows = 0;
    table_shape own;
};

// Errors: see sharded_rows::of(). They are the same wherever the blocks, one a rank, are.
inline status check_blocks(std::span<const shard_block> blocks) {
    const auto size = [&](const shard_grid& g) {
        return std::to_string(g.row_shards) + " x " + std::to_string(g.column_shards);
    };
    const shard_block& first = blocks[0];
    for (std::size_t r = 0; r < blocks.size(); ++r) {
        const shard_block& b = blocks[r];
        const std::string rank = "rank " + std::to_string(r);
        if (b.grid != first.grid)
            return failure(errc::option, rank, "has a grid of ", size(b.grid), ", rank 0 one of ",
                           size(first.grid));
        const auto [row_shards, column_shards] = b.grid;
        if (row_shards == 0 || blocks.size() % row_shards != 0 || blocks.size() / row_shards != column_shards)
            return failure(errc::option, "grid", "is ", size(b.grid), "; there are ", blocks.size(),
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

// Errors: errc::token_id; errc::size where an int would not hold what a rank receives of all that send as
//   much, or what all column shards answer.
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
