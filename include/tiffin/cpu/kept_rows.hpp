// The rows that a layer keeps of a table, or is given with each call.
#pragma once

#include <tiffin/bind/stored_numbers.hpp>
#include <tiffin/format/number_format.hpp>

#include <cstddef>
#include <cstring>

TIFFIN_BEGIN

namespace cpu_detail {

class kept_rows {
public:
    row_format format{};

    kept_rows() = default;
    // `stored`: the values of `given` as they are kept in format `kept`. It must outlive this.
    kept_rows(const tensor_view& given, const number_format& kept, const stored_numbers& stored)
        : format(kept.rows), table_(given), row_bytes_(kept.rows.bytes(given.shape.last())) {
        table_.data = stored.data();
        if (stored.own_bytes() != 0) table_.scales = {};  // its values are multiplied by them
    }
    // Row i of the last axis. Precondition: the table is in memory.
    [[nodiscard]] stored_row row(std::size_t i) const noexcept {
        if (table_.scales.any()) return table_.row(i);
        return {static_cast<const std::byte*>(table_.data) + i * row_bytes_};
    }
    // Whether rows are f32 without scales.
    [[nodiscard]] bool are_f32() const noexcept { return format.decode == nullptr && !table_.scales.any(); }
    // The values of such a row.
    static const float* values(const stored_row& row) noexcept {
        return reinterpret_cast<const float*>(row.codes);
    }
    // Copies values [first, first + count) of a row to aligned memory with room for whole registers.
    void read(const stored_row& row, std::size_t first, std::size_t count, float* to) const noexcept {
        if (format.decode != nullptr)
            format.decode(row.codes, first, count, to);
        else
            std::memcpy(to, row.codes + first * sizeof *to, count * sizeof *to);
        if (table_.scales.any()) scale_values(table_.scales, row, first, count, to);
    }

private:
    tensor_view table_{};
    std::size_t row_bytes_ = 0;
};

}  // namespace cpu_detail

TIFFIN_END
