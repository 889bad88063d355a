// A row store that also has a row for ids beyond the end of a table.
#pragma once

#include <tiffin/format/given_format.hpp>
#include <tiffin/table/row_store.hpp>

#include <array>
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
        if (outside != outside_row::ones) return;  // bytes of 0 are numbers of 0 in every format
        with_table_format(inner_.type, [&](auto format) {
            const auto block = ones_of<decltype(format)>();
            const std::size_t codes = bytes_of(inner_.type, inner_.width);
            for (std::size_t i = 0; i < codes; i += sizeof block)
                std::memcpy(row_.data() + i, &block, sizeof block);
            write_scales(row_.data() + codes);
        });
    }
    any_id_rows(const Store&&, outside_row) = delete;

    [[nodiscard]] table_shape shape() const noexcept {
        return {std::size_t{std::numeric_limits<std::int32_t>::max()} + 1, inner_.width, inner_.type,
                inner_.scales};
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
    template <class Format>
    static typename Format::storage ones_of() noexcept {
        if constexpr (requires { Format::ones(); }) {
            return Format::ones();
        } else {
            std::array<float, Format::block> numbers;
            numbers.fill(1);
            typename Format::storage block{};
            Format::encode(numbers.data(), block);
            return block;
        }
    }

    // Scales of 1 and biases of 0.
    void write_scales(std::byte* to) const {
        const tensor_scales& scales = inner_.scales;
        if (!scales.any()) return;
        with_table_format(scales.type, [&](auto format) {
            const auto one = ones_of<decltype(format)>();
            for (std::size_t i = 0; i < scales.per_row(inner_.width); ++i)
                std::memcpy(to + i * sizeof one * (scales.has_bias ? 2 : 1), &one, sizeof one);
        });
    }

    const Store* store_;
    table_shape inner_;
    outside_row outside_;
    std::vector<std::byte> row_;
};

TIFFIN_END
