// Where a table lies in a file.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/io/open_file.hpp>
#include <tiffin/table/row_store.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

TIFFIN_BEGIN

// A table (rows, width) in a file of any kind: row `id` begins at byte offset + id * stride. For a safetensors file,
// io::find_table() returns it.
struct table_location {
    std::filesystem::path path;
    std::uint64_t offset = 0;
    table_shape shape;
    std::uint64_t stride = shape.row_bytes();

    [[nodiscard]] std::uint64_t row(std::int32_t id) const noexcept {
        return offset + static_cast<std::uint64_t>(id) * stride;
    }
    // The byte after the last row; on overflow the largest uint64, which is beyond the end of any file.
    [[nodiscard]] std::uint64_t end() const noexcept {
        if (shape.rows == 0) return offset;
        std::uint64_t last = 0, at = 0;
        const bool beyond = __builtin_mul_overflow(shape.rows - 1, stride, &last) ||
                            __builtin_add_overflow(offset, last, &at) ||
                            __builtin_add_overflow(at, shape.row_bytes(), &at);
        return beyond ? ~std::uint64_t{0} : at;
    }

    // Columns [first, first + width) of every row: of a token-major table, those of one layer.
    // Errors: errc::size where rows are narrower, or blocks of the format would be cut.
    [[nodiscard]] result<table_location> columns(std::size_t first, std::size_t width) const {
        const std::string asked = std::to_string(width) + " columns from " + std::to_string(first) + " on; ";
        if (first > shape.width || width > shape.width - first)
            return failure(errc::size, path.string(), asked, "rows have ", shape.width);
        const std::size_t block = block_of(shape.type);
        if (first % block != 0 || width % block != 0)
            return failure(errc::size, path.string(), asked, name_of(shape.type), " keeps ", block,
                           " together");
        if (shape.scales.any())
            return failure(errc::size, path.string(), asked, "the scales of a row lie after all of them");
        return table_location{
            path, offset + bytes_of(shape.type, first), {shape.rows, width, shape.type}, stride};
    }
    // Rows [first, first + count), renumbered from 0: of a pool, the table of one expert.
    // Errors: errc::size where the table has fewer.
    [[nodiscard]] result<table_location> rows(std::size_t first, std::size_t count) const {
        if (first > shape.rows || count > shape.rows - first)
            return failure(errc::size, path.string(), count, " rows from ", first, " on; the table has ",
                           shape.rows);
        return table_location{
            path, offset + first * stride, {count, shape.width, shape.type, shape.scales}, stride};
    }
};

// Announces all rows to the system, which reads them in parallel, then reads them.
// Errors: those of open_file::read.
inline status read_announced(const io::open_file& file, const table_location& table,
                             std::span<const std::int32_t> ids, std::byte* to) {
    const std::size_t bytes = table.shape.row_bytes();
    for (const std::int32_t id : ids) file.will_read(table.row(id), bytes);
    for (std::size_t i = 0; i < ids.size(); ++i)
        if (status s = file.read(table.row(ids[i]), to + i * bytes, bytes, bytes); !s) return s;
    return {};
}

TIFFIN_END
