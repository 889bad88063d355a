// Tables in host memory for device layers: prefetch() and gather() bring their rows to the device.
#pragma once

#include <tiffin/call/gathered_rows.hpp>
#include <tiffin/cuda/call_checks.hpp>
#include <tiffin/cuda/table/row_fetch.hpp>
#include <tiffin/table/row_store.hpp>
#include <tiffin/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

TIFFIN_BEGIN

struct offload_options {
    std::size_t tokens = 512;     // the most per call
    std::size_t cached_rows = 0;  // hot rows cached on the device
};

struct offload_counts {
    std::uint64_t calls = 0;
    std::uint64_t tokens = 0;
    std::uint64_t hits = 0;    // distinct rows of a call that were cached
    std::uint64_t misses = 0;  // distinct rows that were fetched
};

// Rows of a table in host memory, or of any row_store, for the tokens of successive calls: each distinct row of a call
// is fetched to the device once, on a stream of its own, and hot rows are cached there.
//
//     rows.prefetch(ids, stream);                                // before the layer that comes before
//     ...
//     auto now = rows.gather(ids, stream);
//     layer.try_call(x, {.token_ids = ids, .gathered = {&*now, 1}}, y);
//
// Shapes: ids (T) int32 on the device, T up to options.tokens. Gathered rows are valid until the next prefetch.
// Order: a prefetch waits for what is on `stream` when it is called; gather() makes `stream` wait for it. gather()
//   compares the ids' address and count with those of the prefetch: their values must stay unchanged until then. Both
//   on one stream; in one graph where they are captured, as the fetches are then part of it.
// Cache: from eight slots on. A miss compares eight slots and evicts the row used least often, if that was used less
//   often than the new row; use counts are halved after every 16 tokens per slot.
// Errors: errc::device, size, dtype. For an id outside the table row 0 is read instead; check() reports the id, and
//   what a store could not read.
// Threads: one at a time. Lifetime: as a layer's, and longer than a graph it was captured in.
// Cost: 8 bytes of device memory per table row; one row per slot and per token. No allocation in a call. Rows in memory
//   are read over the bus by the device itself; those of a store by the host, into memory that both read.
// Source: STEM keeps tables in host memory: prefetched, each row once, hot ones cached by LFU.
template <row_store Store>
class basic_offloaded_rows {
public:
    // A table (rows, width) of f32, bf16 or f16 in host memory: pinned by the caller for the lifetime of this object,
    // or else registered with CUDA by it. (Of several objects over one table that is not pinned, the one made first
    // must live longest.)
    static result<basic_offloaded_rows> make(const tensor_view& table, const offload_options& options = {}) {
        auto rows = in_memory::view(table);
        if (!rows) return rows.failure();
        if (status s = check(rows->shape(), options); !s) return s.failure();
        auto memory = cuda_detail::registered_memory::make(
            table.data, bytes_of(table.type, table.shape.elements()), "table");
        if (!memory) return memory.failure();
        return make_any(rows->shape(), {}, *std::move(memory), options);
    }
    // Rows of a store, which must outlive this.
    static result<basic_offloaded_rows> make(const Store& store, const offload_options& options = {}) {
        if (status s = check(store.shape(), options); !s) return s.failure();
        return make_any(store.shape(), store, {}, options);
    }

    status prefetch(std::span<const std::int32_t> ids, cudaStream_t stream) {
        if (ids.size() > options_.tokens)
            return failure(errc::size, "ids", "has ", ids.size(), " ids; there is room for ", options_.tokens,
                           " of a call");
        expected_ = {};  // until this fetch is enqueued
        if (ids.empty()) return {};
        if (status s = cuda_detail::check_memory(ids.data(), "ids", device_); !s) return s;
        if (status s = fetch_->run(ids, stream); !s) return s;
        expected_ = ids;
        return {};
    }
    // The rows of a call: from the last prefetch if it was of these ids and the store has not changed since (see
    // versioned_rows), else fetched now. A graph replays the fetch that was captured.
    result<gathered_rows> gather(std::span<const std::int32_t> ids, cudaStream_t stream) {
        if (ids.data() != expected_.data() || ids.size() != expected_.size() || !fetch_->is_current())
            if (status s = prefetch(ids, stream); !s) return s.failure();
        expected_ = {};
        if (!ids.empty())
            if (status s = fetch_->wait_on(stream); !s) return s.failure();
        return gathered_rows{fetch_->rows(),     options_.cached_rows + options_.tokens,
                             shape_.row_bytes(), shape_.width,
                             shape_.type,        {fetch_->index(), ids.size()}};
    }

    // Waits for the fetches, and reports what failed since the last time.
    [[nodiscard]] status check() {
        unsigned long long key = 0;
        if (status s = fetch_->finish(key); !s) return s;
        if (key == cuda_detail::refused_ids::none) return {};
        call_needs of_table;
        of_table.tables.push_back({"table", shape_.rows});
        return cuda_detail::refusal_of(of_table, key);
    }
    [[nodiscard]] result<offload_counts> counts() {
        cuda_detail::offload_counters now{};
        if (status s = fetch_->read(now); !s) return s.failure();
        return offload_counts{now.calls, now.tokens, now.hits, now.misses};
    }

private:
    basic_offloaded_rows(const table_shape& shape, const offload_options& options, int device,
                         std::unique_ptr<cuda_detail::row_fetch<Store>> fetch)
        : shape_(shape), options_(options), device_(device), fetch_(std::move(fetch)) {}

    static status check(const table_shape& shape, const offload_options& options) {
        if ((shape.type != dtype::f32 && shape.type != dtype::bf16 && shape.type != dtype::f16) ||
            shape.scales.any())
            return failure(errc::dtype, "table", "is ", name_of(shape.type),
                           (shape.scales.any() ? " with scales" : ""),
                           "; layers on a device read F32, BF16 or F16");
        if (shape.rows == 0 || shape.rows > 0x7FFFFFFFu)
            return failure(errc::size, "table", "has ", shape.rows,
                           " rows; it needs some, and ids are int32");
        if (options.cached_rows + options.tokens > 0x7FFFFFFFu)
            return failure(errc::size, "options", "ask for ", options.cached_rows + options.tokens,
                           " rows on the device; an index is int32");
        return {};
    }
    static result<basic_offloaded_rows> make_any(const table_shape& shape, const Store& store,
                                                 cuda_detail::registered_memory memory,
                                                 const offload_options& options) {
        int device = 0;
        if (status s = cuda_detail::checked(cudaGetDevice(&device), "device"); !s) return s.failure();
        auto fetch = std::make_unique<cuda_detail::row_fetch<Store>>(shape, store, std::move(memory),
                                                                     options.tokens, options.cached_rows);
        if (status s = fetch->prepare(); !s) return s.failure();
        return basic_offloaded_rows(shape, options, device, std::move(fetch));
    }

    table_shape shape_;
    offload_options options_;
    int device_;
    std::span<const std::int32_t> expected_{};
    std::unique_ptr<cuda_detail::row_fetch<Store>> fetch_;
};

using offloaded_rows = basic_offloaded_rows<row_store_ref>;

TIFFIN_END
