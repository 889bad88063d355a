// Rows of tables in files as the C interface holds them, and what reads them for the tokens of a call.
#pragma once

#include <tiffin/tiffin_rows.h>

#include <tiffin/bind/bound.hpp>
#include <tiffin/call/call_checks.hpp>
#include <tiffin/call/gathered_rows.hpp>
#include <tiffin/error.hpp>
#include <tiffin/io/memory_table.hpp>
#include <tiffin/learn/stored_table.hpp>
#include <tiffin/table/cached_rows.hpp>
#include <tiffin/table/direct_file.hpp>
#include <tiffin/table/distinct_ids.hpp>
#include <tiffin/table/edits.hpp>
#include <tiffin/table/mapped_file.hpp>
#include <tiffin/table/row_store.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

TIFFIN_BEGIN
namespace c_detail {

// The values of a table that learns, without what its rows have beside them.
class stored_values {
public:
    explicit stored_values(const stored_table& table, const std::atomic<std::uint64_t>& version)
        : table_(&table), version_(&version) {}
    [[nodiscard]] table_shape shape() const { return {table_->vocab(), table_->width(), dtype::f32}; }
    status read(std::span<const std::int32_t> ids, std::byte* to) const {
        const std::size_t whole = table_->rows().row_bytes(), values = shape().row_bytes();
        constexpr std::size_t most = 256;  // rows at a time, so that a read takes a bounded amount of memory
        std::vector<std::byte> some(std::min(ids.size(), most) * whole);
        for (std::size_t first = 0; first < ids.size(); first += most) {
            const auto part = ids.subspan(first, std::min(most, ids.size() - first));
            if (status s = table_->rows().read(part, some.data()); !s) return s;
            for (std::size_t i = 0; i < part.size(); ++i)
                std::memcpy(to + (first + i) * values, some.data() + i * whole, values);
        }
        return {};
    }
    [[nodiscard]] std::uint64_t version() const { return *version_; }

private:
    const stored_table* table_;
    const std::atomic<std::uint64_t>* version_;
};

}  // namespace c_detail
TIFFIN_END

struct tiffin_rows {
    std::variant<std::monostate, tiffin::mapped_file, tiffin::direct_file<>,
                 tiffin::io::memory_rows<tiffin::mapped_file>, tiffin::c_detail::stored_values>
        file;
    tiffin::row_store_ref store;  // the file
    std::optional<tiffin::cached_rows<tiffin::row_store_ref>> cache;
    std::optional<tiffin::edited_rows<tiffin::row_store_ref>> edited;
    tiffin::row_store_ref cached;  // the cache, or the file where there is none
};

TIFFIN_BEGIN
namespace c_detail {

// Holds a store, in place, as what refers to it must not move; then what lies over it.
template <class Store>
void hold_rows(Store store, const tiffin_rows_options& how, tiffin_rows& to) {
    to.store = row_store_ref(to.file.emplace<Store>(std::move(store)));
    to.cached = to.store;
    if (how.cache_rows != 0 || how.cache_bytes != 0)
        to.cached = row_store_ref(to.cache.emplace(to.store, cache_limit{how.cache_rows, how.cache_bytes}));
    to.edited.emplace(to.cached);
}
template <class File, class Table>
status open_rows_as(const Table& table, const tiffin_rows_options& how, tiffin_rows& to) {
    auto opened = File::open(table);
    if (!opened) return opened.failure();
    hold_rows(*std::move(opened), how, to);
    return {};
}
// Mapped, unless `direct`; in shards or with scales elsewhere, it is always mapped.
inline status open_rows(const table_location& table, const tiffin_rows_options& how, tiffin_rows& to) {
    return how.direct != 0 ? open_rows_as<direct_file<>>(table, how, to)
                           : open_rows_as<mapped_file>(table, how, to);
}
inline status open_rows(const io::memory_table& table, const tiffin_rows_options& how, tiffin_rows& to) {
    return open_rows_as<io::memory_rows<mapped_file>>(table, how, to);
}

// A tensor whose type is TIFFIN_DTYPE_ROWS: its rows are read for each call. In the order of add_gathered().
struct rows_tensor {
    const tiffin_rows* rows;
    table_size table;     // when the layer was made: rows may be added
    std::size_t experts;  // of a pool; 1: a table
};

// The rows of one call, in memory that later calls use again.
class rows_of_call {
public:
    // Errors: errc::token_id, file.
    status read(const std::vector<rows_tensor>& tensors, std::span<const std::int32_t> ids) {
        distinct_.assign(ids);
        memory_.resize(tensors.size());
        gathered_.clear();
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            const auto& [rows, of_layer, experts] = tensors[i];
            if (status s = detail::check_ids_in(of_layer, ids); !s) return s;
            const table_shape table = rows->edited->shape();
            const std::size_t bytes = table.row_bytes();
            numbers_.clear();
            for (const std::int32_t id : distinct_.ids())
                for (std::size_t e = 0; e < experts; ++e)
                    numbers_.push_back(static_cast<std::int32_t>(e * of_layer.vocab) + id);
            memory_[i].resize(numbers_.size() * bytes);
            if (status s = rows->edited->read(numbers_, memory_[i].data()); !s) return s;
            gathered_.push_back({memory_[i].data(), distinct_.ids().size(), experts * bytes,
                                 experts * table.width, table.type, distinct_.index(), table.scales});
        }
        return {};
    }
    [[nodiscard]] std::span<const gathered_rows> gathered() const noexcept { return gathered_; }

private:
    distinct_ids distinct_;
    std::vector<std::int32_t> numbers_;
    std::vector<std::vector<std::byte>> memory_;
    std::vector<gathered_rows> gathered_;
};

// The tensors of a layer that are read from files. Any number of threads call it, each with rows of its own.
class tables_in_files {
public:
    explicit tables_in_files(std::vector<rows_tensor> tensors) : tensors_(std::move(tensors)) {}

    // Runs use(gathered rows).
    template <class Use>
    status with(std::span<const std::int32_t> ids, std::size_t tokens, const Use& use) const {
        if (tensors_.empty()) return use(std::span<const gathered_rows>());
        if (ids.size() != tokens)
            return failure(errc::size, "token_ids", "has ", ids.size(), " ids for the ", tokens,
                           " tokens of x");
        std::unique_ptr<rows_of_call> mine = take();
        status done = mine->read(tensors_, ids);
        if (done) done = use(mine->gathered());
        const std::lock_guard lock(*mutex_);
        spare_.push_back(std::move(mine));
        return done;
    }

private:
    std::unique_ptr<rows_of_call> take() const {
        const std::lock_guard lock(*mutex_);
        if (spare_.empty()) return std::make_unique<rows_of_call>();
        std::unique_ptr<rows_of_call> one = std::move(spare_.back());
        spare_.pop_back();
        return one;
    }

    std::vector<rows_tensor> tensors_;
    std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();
    mutable std::vector<std::unique_ptr<rows_of_call>> spare_;
};

// Why a layer cannot read its gathered tables by token ids, if it cannot.
inline status check_read_by_ids(const call_needs& needs) {
    for (const gathered_table& table : needs.gathered)
        if (table.choices != 0)
            return failure(errc::option, table.name,
                           "has rows that the layer chooses; only rows by token id are read from files");
    return {};
}

}  // namespace c_detail
TIFFIN_END
