// A store whose rows are those of several stores, one store after the other.
#pragma once

#include <tiffin/table/row_store.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// The shards of a table as one table: the first rows are those of the first store, and so on. The stores must outlive it;
// errors of read() are theirs. A store that grows later has its new rows ignored.
// Cost: one read per store that has rows of the call; a copy of each row.
class joined_rows {
public:
    // Errors: errc::size where there are no parts or more than 2^31 - 1 rows, errc::shape or errc::dtype where rows differ.
    static result<joined_rows> of(std::vector<row_store_ref> parts) {
        if (parts.empty()) return failure(errc::size, "parts", "is empty; a table is joined of one or more");
        table_shape all = parts[0].shape();
        std::vector<std::size_t> ends;
        all.rows = 0;
        for (std::size_t i = 0; i < parts.size(); ++i) {
            const table_shape part = parts[i].shape();
            if (part.width != all.width)
                return failure(errc::shape, "parts", "number ", i, " has rows of ", part.width,
                               ", the first of ", all.width);
            if (part.type != all.type || !part.scales.stored_as(all.scales))
                return failure(errc::dtype, "parts", "number ", i, " is ", name_of(part.type), " with ",
                               part.scales.text(), ", the first is ", name_of(all.type), " with ",
                               all.scales.text());
            all.rows += part.rows;
            if (part.rows > most || all.rows > most)
                return failure(errc::size, "parts", "have ", all.rows, " rows up to number ", i,
                               "; ids name ", most);
            ends.push_back(all.rows);
        }
        return joined_rows(std::move(parts), std::move(ends), all);
    }
    [[nodiscard]] const table_shape& shape() const noexcept { return shape_; }
    status read(std::span<const std::int32_t> ids, std::byte* to) const {
        const std::size_t bytes = shape_.row_bytes();
        std::vector<std::vector<std::size_t>> places(parts_.size());  // of the call's rows, by part
        for (std::size_t i = 0; i < ids.size(); ++i)
            places[static_cast<std::size_t>(
                       std::upper_bound(ends_.begin(), ends_.end(), static_cast<std::size_t>(ids[i])) -
                       ends_.begin())]
                .push_back(i);
        std::vector<std::int32_t> some;
        std::vector<std::byte> rows;
        for (std::size_t p = 0; p < parts_.size(); ++p) {
            if (places[p].empty()) continue;
            const std::size_t first = p == 0 ? 0 : ends_[p - 1];
            some.clear();
            for (const std::size_t i : places[p]) some.push_back(ids[i] - static_cast<std::int32_t>(first));
            if (some.size() == ids.size()) return parts_[p].read(some, to);
            rows.resize(some.size() * bytes);
            if (status s = parts_[p].read(some, rows.data()); !s) return s;
            for (std::size_t i = 0; i < some.size() && bytes > 0; ++i)
                std::memcpy(to + places[p][i] * bytes, rows.data() + i * bytes, bytes);
        }
        return {};
    }
    [[nodiscard]] std::uint64_t version() const {
        std::uint64_t sum = 0;  // grows whenever a part's version does
        for (const row_store_ref& part : parts_) sum += part.version();
        return sum;
    }

private:
    static constexpr std::size_t most = std::numeric_limits<std::int32_t>::max();

    joined_rows(std::vector<row_store_ref> parts, std::vector<std::size_t> ends, const table_shape& shape)
        : parts_(std::move(parts)), ends_(std::move(ends)), shape_(shape) {}

    std::vector<row_store_ref> parts_;
    std::vector<std::size_t> ends_;
    table_shape shape_;
};

TIFFIN_END
