// Table rows for a stack of layers: those of the next layers are read while one computes.
#pragma once

#include <tiffin/call/gathered_rows.hpp>
#include <tiffin/table/background_reads.hpp>
#include <tiffin/table/distinct_ids.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// Reads the rows of one store per layer for the same tokens, in each pass through the stack, of many tokens (prefill)
// or of one (decode). Each distinct row is read once per layer, and again where the store's version has changed.
//
//     row_schedule rows({tables.begin(), tables.end()});
//     if (status s = rows.begin(ids); !s) ...                       // begins to read for the first layers
//     for (auto& layer : layers) {
//         auto now = rows.next();                                   // waits if it must; begins the next read
//         layer(x, {.token_ids = ids, .gathered = {&*now, 1}}, y);
//         ...
//     }
//
// Errors: begin(): errc::token_id; next(): those of the store and of background_reads, and errc::size beyond
//   the last layer. After a failure begin() starts afresh. Not to be used by two threads at a time.
// Cost: memory for the rows of 1 + `ahead` layers.
class row_schedule {
public:
    // `layers`: a store per layer, which must outlive this. `ahead`: how many layers beyond the current one are read.
    explicit row_schedule(std::vector<row_store_ref> layers, std::size_t ahead = 1)
        : layers_(std::move(layers)),
          ahead_(std::min(ahead, layers_.size())),
          next_(layers_.size()),
          versions_(1 + ahead_),
          reads_(1 + ahead_) {}

    // Begins a pass of the stack, whether or not the last has ended. The ids are copied.
    status begin(std::span<const std::int32_t> ids) {
        if (status s = reads_.usable(); !s) return s;
        for (const row_store_ref& layer : layers_)
            if (status s = check_ids(ids, layer.shape()); !s) return s;
        next_ = layers_.size();  // next() fails until all reads are started
        // Reads of the last pass that are in flight use the ids that are about to change.
        for (std::size_t area = 0; area <= ahead_; ++area) static_cast<void>(reads_.wait(area));
        distinct_.assign(ids);
        for (std::size_t layer = 0; layer < ahead_; ++layer) start(layer);
        next_ = 0;
        return {};
    }

    // The rows of the next layer, valid until the call after this.
    result<gathered_rows> next() {
        if (next_ == layers_.size())
            return failure(errc::size, "next", "the pass has no layer ", next_, "; begin() starts another");
        if (status s = reads_.usable(); !s) return s.failure();
        const std::size_t layer = std::exchange(next_, layers_.size());  // restored below on success
        if (layer + ahead_ < layers_.size()) start(layer + ahead_);
        const auto since = std::chrono::steady_clock::now();
        const std::size_t area = area_of(layer);
        status read = reads_.wait(area);
        if (const std::uint64_t now = layers_[layer].version(); std::exchange(versions_[area], now) != now)
            static_cast<void>(read = reads_.read(area, layers_[layer], distinct_.ids()));
        waited_ += std::chrono::steady_clock::now() - since;
        if (!read) return read.failure();
        next_ = layer + 1;
        return reads_.rows(area, distinct_.index());
    }

    // How long next() has waited for rows, in all passes so far.
    [[nodiscard]] std::chrono::duration<double> waited() const noexcept { return waited_; }

private:
    [[nodiscard]] std::size_t area_of(std::size_t layer) const noexcept { return layer % (1 + ahead_); }
    void start(std::size_t layer) {
        versions_[area_of(layer)] = layers_[layer].version();
        reads_.start(area_of(layer), layers_[layer], distinct_.ids());
    }

    std::vector<row_store_ref> layers_;
    std::size_t ahead_;
    std::size_t next_;
    distinct_ids distinct_;
    std::vector<std::uint64_t> versions_;  // per area: the store's, before the read
    std::chrono::duration<double> waited_{};
    background_reads reads_;  // last, so destroyed first: its thread reads the members above
};

TIFFIN_END
