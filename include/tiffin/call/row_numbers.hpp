// The table rows that tokens choose, as the row indices that stores read.
#pragma once

#include <tiffin/bind/row_checks.hpp>
#include <tiffin/call/call_checks.hpp>
#include <tiffin/router/selection.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

TIFFIN_BEGIN

// The row index of each choice, so that the rows of a gathered table can be read before a call:
//
//     n[t, i] = the row of choice i of token t; where it has none, the index before it, or 0: read, but not used
//
// Shapes: chosen, to (T, choices). Errors: errc::size. Source: docs/tables.md#rows-that-are-chosen.
//
//     router(x, chosen).or_throw();                                 // a token_router
//     row_numbers(chosen, rows).or_throw();
//     auto now = values.gather(rows).or_throw();                    // prefetched_rows, of any store
//     layer(x, {.token_ids = ids, .gathered = {&now, 1}}, y);
inline status row_numbers(std::span<const choice<float>> chosen, std::span<std::int32_t> to) {
    if (to.size() != chosen.size())
        return failure(errc::size, "to", "has room for ", to.size(), " numbers of ", chosen.size(),
                       " choices");
    std::int32_t number = 0;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
        if (chosen[i].expert >= 0) number = chosen[i].expert;
        to[i] = number;
    }
    return {};
}

// The same for token ids that have ranges of rows (see row_range), which are known before any layer runs.
// Shapes: ids (T), to (T, choices()), where choices() is the longest range, one at least.
// Errors: errc::token_id, size; those of of(): errc::dtype, shape, option.
// Cost: two integers per id in memory; choices() indices per token, whatever the length of its own range.
// Source: L3; docs/tables.md#rows-that-are-chosen.
//
//     auto address = range_addresses::of(*weights.find("ranges"), table.shape().rows).or_throw();
//     address(ids, rows).or_throw();
//     tables.prefetch(rows).or_throw();                             // prefetched_tables, of keys and values
class range_addresses {
public:
    // `ranges` (vocab, 2), I32 or I64; `rows`: of the table.
    static result<range_addresses> of(const tensor_view& ranges, std::size_t rows) {
        if (!is_integer(ranges.type) || ranges.type == dtype::u8)
            return failure(errc::dtype, "ranges", "has dtype ", name_of(ranges.type),
                           "; ranges are I32 or I64");
        if (rows > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
            return failure(errc::shape, "rows", "are ", rows, "; a choice is a number of 31 bits");
        if (status s = detail::check_ranges(ranges, "ranges", rows); !s) return s.failure();
        return range_addresses(ranges);
    }

    [[nodiscard]] std::size_t choices() const noexcept { return choices_; }

    status operator()(std::span<const std::int32_t> ids, std::span<std::int32_t> to) const {
        if (to.size() != ids.size() * choices_)
            return failure(errc::size, "to", "has room for ", to.size(), " numbers; ", ids.size(),
                           " tokens have ", choices_, " each");
        if (status s = detail::check_ids_in(table_size{"ranges", ranges_.size() / 2}, ids); !s) return s;
        std::int32_t number = 0;
        for (std::size_t i = 0; i < to.size(); ++i) {
            const std::int32_t* const range = &ranges_[2 * static_cast<std::size_t>(ids[i / choices_])];
            const auto which = static_cast<std::int32_t>(i % choices_);
            if (which < range[1] - range[0]) number = range[0] + which;
            to[i] = number;
        }
        return {};
    }

private:
    explicit range_addresses(const tensor_view& checked)
        : choices_(detail::longest_range(checked)), ranges_(detail::ranges_of(checked)) {}

    std::size_t choices_;
    std::vector<std::int32_t> ranges_;
};

TIFFIN_END
