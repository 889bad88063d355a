// A row store that also has a row for ids beyond the end of a table.
#pragma once

#include <tiffin/format/f16.hpp>
#include <tiffin/format/q8_0.hpp>
#include <tiffin/table/row_store.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

TIFFIN_BEGIN

// The row that an id beyond the table reads: row 0, as in Gemma 3n, or a constant row that leaves the result unchanged:
// zeros where the row is added, ones where it is multiplied.
enum class outside_row { row_0, zeros, ones };

// A store with a row for every id from 0 on: the table rows of another store, and one fixed row for all ids beyond
// them. Without it such an id is an error.
// Numerics: zeros and ones are exact in every format of the library. Errors: those of the store;
//   errc::token_id where row 0 of a table without rows would be read.
// Cost: a copy of the ids; row 0 is read once per id beyond the table.
// Source: docs/layers.md#token-tables; row 0: Gemma 3n's per-layer embeddings.
template <row_store Store>
class any_id_rows {
public:
    // The store must outlive this.
    any_id_rows(const Store& store, outside_row outside)
        : store_(&store), inner_(store.shape()), outside_(outside), row_(inner_.row_bytes()) {
        const std::vector<float> numbers(inner_.width, outside == outside_row::ones ? 1.0f : 0.0f);
        encode_row(inner_, numbers.data(), row_.data());
        if (outside == outside_row::ones && inner_.type == dtype::q8_0) {
            // encode_row() would store 127 with the scale 1 / 127, which f16 rounds; code 1 times scale 1 is exact.
            q8_0::storage one{f32_to_f16(1.0f), {}};
            one.values.fill(1);
            for (std::size_t i = 0; i < row_.size(); i += sizeof one)
                std::memcpy(row_.data() + i, &one, sizeof one);
        }
    }
    any_id_rows(const Store&&, outside_row) = delete;

    [[nodiscard]] table_shape shape() const noexcept {
        return {std::size_t{std::numeric_limits<std::int32_t>::max()} + 1, inner_.width, inner_.type};
    }
    status read(std::span<const std::int32_t> ids, std::byte* to) const {
        const std::size_t rows = store_->shape().rows;  // an edit may have added rows
        const auto is_outside = [&](std::int32_t id) { return static_cast<std::size_t>(id) >= rows; };
        if (rows == 0 && outside_ == outside_row::row_0 && !ids.empty())
            return failure(errc::token_id, "ids",
                           "are read as row 0 beyond the table, which has no rows at all");
        std::vector<std::int32_t> inside;
        for (const std::int32_t id : ids)
            if (!is_outside(id))
                inside.push_back(id);
            else if (outside_ == outside_row::row_0)
                inside.push_back(0);
        if (!inside.empty())
            if (status s = store_->read(inside, to); !s) return s;
        if (outside_ == outside_row::row_0) return {};
        const auto elsewhere = [&](std::size_t i) { return is_outside(ids[i]) ? row_.data() : nullptr; };
        detail::scatter_rows(ids.size(), inside.size(), row_.size(), elsewhere, to);
        return {};
    }
    [[nodiscard]] std::uint64_t version() const { return version_of(*store_); }

private:
    const Store* store_;
    table_shape inner_;
    outside_row outside_;
    std::vector<std::byte> row_;
};

TIFFIN_END
