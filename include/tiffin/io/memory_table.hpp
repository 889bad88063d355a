// The table of a published memory: where its rows lie, and a store of them.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/table/joined_rows.hpp>
#include <tiffin/table/row_store.hpp>
#include <tiffin/table/rows_with_scales.hpp>
#include <tiffin/table/table_location.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io {

// A table in one place or in shards, one after the other, whose scales may lie elsewhere.
struct memory_table {
    std::vector<table_location> shards;
    std::vector<table_location> scales;  // of the rows of each shard, or none
    std::optional<float> scale;          // one for the whole table

    // Rows of all shards; the format and the width are those of the first.
    [[nodiscard]] table_shape shape() const noexcept {
        if (shards.empty()) return {};
        table_shape all = shards[0].shape;
        all.rows = 0;
        for (const table_location& part : shards) all.rows += part.shape.rows;
        return all;
    }
};

// The rows of a memory_table, in stores of type Store: mapped_file, direct_file<>, or what else opens a table_location.
// Errors: those of Store::open, joined_rows and rows_with_scales. Cost: a copy of each row where there are shards or scales.
//
//     auto rows = memory_rows<mapped_file>::open(found.table).or_throw();
//     auto around = memory_rows<direct_file<>>::open(found.table, file_cache::passed_by).or_throw();
template <class Store>
class memory_rows {
public:
    // `how`: what Store::open takes beside the location, for all of them.
    template <class... How>
    static result<memory_rows> open(const memory_table& table, const How&... how) {
        memory_rows made;
        const auto codes = made.join(table.shards, how...);
        if (!codes) return codes.failure();
        made.rows_ = *codes;
        if (!table.scales.empty()) {
            const auto scales = made.join(table.scales, how...);
            if (!scales) return scales.failure();
            if (status s = made.scale(rows_with_scales::of(*codes, *scales)); !s) return s.failure();
        } else if (table.scale) {
            if (status s = made.scale(rows_with_scales::of(*codes, *table.scale)); !s) return s.failure();
        }
        return {std::move(made)};
    }

    [[nodiscard]] table_shape shape() const { return rows_.shape(); }
    status read(std::span<const std::int32_t> ids, std::byte* to) const { return rows_.read(ids, to); }
    [[nodiscard]] std::uint64_t version() const { return rows_.version(); }

private:
    template <class... How>
    result<row_store_ref> join(const std::vector<table_location>& parts, const How&... how) {
        std::vector<row_store_ref> opened;
        for (const table_location& part : parts) {
            auto store = Store::open(part, how...);
            if (!store) return store.failure();
            stores_.push_back(std::make_unique<Store>(*std::move(store)));
            opened.emplace_back(*stores_.back());
        }
        if (opened.size() == 1) return opened[0];
        auto all = joined_rows::of(std::move(opened));
        if (!all) return all.failure();
        joined_.push_back(std::make_unique<joined_rows>(*std::move(all)));
        return row_store_ref(*joined_.back());
    }
    status scale(result<rows_with_scales> scaled) {
        if (!scaled) return scaled.failure();
        scaled_ = std::make_unique<rows_with_scales>(*std::move(scaled));
        rows_ = row_store_ref(*scaled_);
        return {};
    }

    std::vector<std::unique_ptr<Store>> stores_;
    std::vector<std::unique_ptr<joined_rows>> joined_;
    std::unique_ptr<rows_with_scales> scaled_;
    row_store_ref rows_;
};

}  // namespace io
TIFFIN_END
