// Which part of a table each MPI rank holds.
#pragma once

#include <tiffin/config.hpp>

#include <cstddef>

TIFFIN_BEGIN

// A range [first, first + count) of table rows, or of a pool's experts.
struct shard_range {
    std::size_t first = 0;
    std::size_t count = 0;

    [[nodiscard]] constexpr bool has(std::size_t i) const noexcept { return i - first < count; }
    friend constexpr bool operator==(const shard_range&, const shard_range&) = default;
};

// A table cut into row_shards x column_shards blocks, one per rank, in row-major order: rank r has row shard r /
// column_shards and column shard r % column_shards.
//
//     const shard_grid grid{2, 2};
//     const shard_range rows = grid.rows_at(rank, table.shape.rows);
//     const shard_range experts = grid.experts_at(rank, 8);        // of a pool; other tables may cut columns freely
//     auto part = table.rows(rows.first, rows.count)->columns(experts.first * d, experts.count * d);
struct shard_grid {
    std::size_t row_shards = 1;     // by vocabulary
    std::size_t column_shards = 1;  // by modulator

    [[nodiscard]] constexpr std::size_t row_shard(int rank) const noexcept {
        return static_cast<std::size_t>(rank) / column_shards;
    }
    [[nodiscard]] constexpr std::size_t column_shard(int rank) const noexcept {
        return static_cast<std::size_t>(rank) % column_shards;
    }
    // The rows that a rank holds of a table of `rows` rows. Shards differ by one row at most.
    [[nodiscard]] constexpr shard_range rows_at(int rank, std::size_t rows) const noexcept {
        const std::size_t first = rows * row_shard(rank) / row_shards;
        return {first, rows * (row_shard(rank) + 1) / row_shards - first};
    }
    // The row shard that holds an id: the last one whose first row is not beyond it. Precondition: id < rows.
    [[nodiscard]] constexpr std::size_t row_shard_of(std::size_t id, std::size_t rows) const noexcept {
        return ((id + 1) * row_shards - 1) / rows;
    }
    // The experts that a rank holds of a pool of `experts`: [0, experts) is halved recursively at (first + last) / 2
    // into column_shards parts. Shards differ by one expert at most.
    // Precondition: column_shards is a power of two and at most `experts`.
    [[nodiscard]] constexpr shard_range experts_at(int rank, std::size_t experts) const noexcept {
        const std::size_t shard = column_shard(rank);
        std::size_t first = 0;
        std::size_t last = experts;
        for (std::size_t parts = column_shards; parts > 1; parts /= 2) {
            const std::size_t middle = (first + last) / 2;
            (shard % parts < parts / 2 ? last : first) = middle;
        }
        return {first, last - first};
    }
    friend constexpr bool operator==(const shard_grid&, const shard_grid&) = default;
};

TIFFIN_END
