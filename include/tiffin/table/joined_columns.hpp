// A store whose rows are the concatenated rows of several stores.
#pragma once

#include <tiffin/table/row_store.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// The rows of several stores, concatenated: row[id] = part_0[id] | part_1[id] | ... From one table per layer it makes
// the token-major table; from one table per expert, the rows that a layer with a pool takes. The stores must outlive
// it; errors of read() are theirs.
class joined_columns {
public:
    // Errors: errc::size where there are no parts or their numbers of rows differ, errc::dtype where formats do.
    static result<joined_columns> of(std::vector<row_store_ref> parts) {
        if (parts.empty()) return failure(errc::size, "parts", "is empty; a row is joined of one or more");
        table_shape shape = parts[0].shape();
        for (std::size_t i = 1; i < parts.size(); ++i) {
            const table_shape part = parts[i].shape();
            if (part.rows != shape.rows)
                return failure(errc::size, "parts", "number ", i, " has ", part.rows, " rows, the first has ",
                               shape.rows);
            if (part.type != shape.type)
                return failure(errc::dtype, "parts", "number ", i, " is ", name_of(part.type),
                               ", the first is ", name_of(shape.type));
            if (part.scales.any() || shape.scales.any())
                if (status s = check_scales(i, part, parts[0].shape()); !s) return s.failure();
            shape.width += part.width;
        }
        // One scale per part is one per as many values of the whole row.
        if (shape.scales.any()) shape.scales.columns = std::min(shape.scales.columns, parts[0].shape().width);
        return joined_columns(std::move(parts), shape);
    }
    [[nodiscard]] const table_shape& shape() const noexcept { return shape_; }
    status read(std::span<const std::int32_t> ids, std::byte* to) const {
        std::vector<std::byte> rows;
        std::size_t code = 0, scale = bytes_of(shape_.type, shape_.width);  // of a row
        for (const row_store_ref& part : parts_) {
            const table_shape of = part.shape();
            const std::size_t bytes = of.row_bytes(), codes = bytes_of(of.type, of.width);
            if (bytes == 0) continue;
            rows.resize(ids.size() * bytes);
            if (status s = part.read(ids, rows.data()); !s) return s;
            for (std::size_t i = 0; i < ids.size(); ++i) {
                std::byte* const row = to + i * shape_.row_bytes();
                const std::byte* const from = rows.data() + i * bytes;
                std::memcpy(row + code, from, codes);
                std::memcpy(row + scale, from + codes, bytes - codes);
            }
            code += codes;
            scale += bytes - codes;
        }
        return {};
    }
    [[nodiscard]] std::uint64_t version() const {
        std::uint64_t sum = 0;  // grows whenever a part's version does
        for (const row_store_ref& part : parts_) sum += part.version();
        return sum;
    }

private:
    // The scales of the parts are those of one row only if each part has whole ones of the same kind.
    static status check_scales(std::size_t i, const table_shape& part, const table_shape& first) {
        const std::size_t columns = std::min(first.scales.columns, first.width);
        if (part.scales.stored_as(first.scales) && columns != 0 && part.width % columns == 0 &&
            (first.scales.columns <= first.width || part.width == first.width))
            return {};
        return failure(errc::dtype, "parts", "number ", i, " has rows of ", part.width, " values with ",
                       part.scales.text(), ", the first rows of ", first.width, " with ",
                       first.scales.text());
    }

    joined_columns(std::vector<row_store_ref> parts, const table_shape& shape)
        : parts_(std::move(parts)), shape_(shape) {}

    std::vector<row_store_ref> parts_;
    table_shape shape_;
};

TIFFIN_END
