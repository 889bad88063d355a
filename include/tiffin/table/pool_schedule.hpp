// Expert pools of a stack of layers that are not held in memory: only the rows of chosen experts are read, while the
// next layers compute.
#pragma once

#include <tiffin/router/selection.hpp>
#include <tiffin/table/background_reads.hpp>
#include <tiffin/table/distinct_ids.hpp>
#include <tiffin/view.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// Reads and mixes rows of each layer's pool by its router's choices, and delivers them `delay` layers later:
//
//     m[t] = sum over the choices (e, w) of t of w E_e[ids[t]]
//
// Each pool is a store whose row e * vocab + id is E_e[id], as a tensor (experts, vocab, width) lies in a file. top_k
// rows per token are read, equal ones once.
// Numerics: rows widened to f32; a product and a sum in f32 per choice, in the order of the choices.
// Errors: errc::token_id, errc::option (a choice that is no expert, calls out of turn), errc::size; those of the stores
//   and of background_reads, returned by receive(). After a failure begin() starts afresh.
// Threads: one pass at a time. Cost: the rows of 1 + `delay` layers in memory, and one mixed row per token.
// Source: MoRT Sec. 3.3.2 and App. C; docs/layers.md#mort.
//
//     auto pools = pool_schedule::of({stores.begin(), stores.end()}, 4, 2).or_throw();  // 4 experts, 2 layers later
//     pools.begin();
//     for (std::size_t l = 0; l < layers; ++l) {
//         router[l](x, chosen).or_throw();
//         pools.send(l, ids, chosen).or_throw();                            // returns at once
//         const auto mixed = pools.receive().or_throw();                    // of layer l - 2; waits if it must
//         mixed.rows ? with_pool[l](x, {.per_layer_input = mixed}, y) : plain[l](x, {}, y);
//     }
class pool_schedule {
public:
    // The stores must outlive this. `pools` has no entry for a layer without a pool: it calls send_nothing().
    static result<pool_schedule> of(std::vector<row_store_ref> pools, std::size_t experts,
                                    std::size_t delay) {
        for (std::size_t i = 0; i < pools.size(); ++i) {
            const table_shape shape = pools[i].shape();
            if (experts == 0 || shape.rows % experts != 0)
                return failure(errc::size, "pools", "number ", i, " has ", shape.rows, " rows for ", experts,
                               " experts");
            if (shape.width != pools[0].shape().width)
                return failure(errc::size, "pools", "number ", i, " has rows of ", shape.width,
                               ", the first of ", pools[0].shape().width);
            if (shape.rows > std::numeric_limits<std::int32_t>::max())
                return failure(errc::size, "pools", "number ", i, " has ", shape.rows,
                               " rows; a row's number has 31 bits");
        }
        return pool_schedule(std::move(pools), experts, delay);
    }

    // Begins a pass of the stack: reads in flight are waited for and dropped.
    void begin() {
        for (std::size_t area = 0; area < calls_.size(); ++area) static_cast<void>(reads_->wait(area));
        for (call& c : calls_) c.tokens = 0;
        layer_ = 0;
        sent_ = false;
    }

    // Starts reading the rows that the current layer's tokens chose from a pool. Shapes: ids (T), choices (T, top_k).
    status send(std::size_t pool, std::span<const std::int32_t> ids, std::span<const choice<float>> choices) {
        if (pool >= pools_.size()) return failure(errc::option, "pool", "is ", pool, " of ", pools_.size());
        if (status s = check_turn(false); !s) return s;
        if (status s = check(pool, ids, choices); !s) return s;
        call& c = calls_[layer_ % calls_.size()];
        const std::size_t vocab = pools_[pool].shape().rows / experts_, top_k = choices.size() / ids.size();
        c.rows.clear();
        c.weights.clear();
        for (std::size_t i = 0; i < choices.size(); ++i) {
            c.rows.push_back(static_cast<std::int32_t>(static_cast<std::size_t>(choices[i].expert) * vocab) +
                             ids[i / top_k]);
            c.weights.push_back(choices[i].weight);
        }
        c.distinct.assign(c.rows);
        c.pool = pool;
        c.tokens = ids.size();
        c.version = pools_[pool].version();
        reads_->start(layer_ % calls_.size(), pools_[pool], c.distinct.ids());
        sent_ = true;
        return {};
    }
    // In place of send(), for a layer without a pool or without tokens.
    status send_nothing() {
        if (status s = check_turn(false); !s) return s;
        calls_[layer_ % calls_.size()].tokens = 0;
        sent_ = true;
        return {};
    }

    // The mixed rows of the layer `delay` before this one, (T, width); empty where it sent nothing. Valid until the
    // next call. Advances to the next layer.
    result<matrix_view<const float>> receive() {
        if (status s = check_turn(true); !s) return s.failure();
        const std::size_t delay = calls_.size() - 1, layer = layer_++;
        sent_ = false;
        if (layer < delay) return matrix_view<const float>{};
        const std::size_t area = (layer - delay) % calls_.size();
        call& c = calls_[area];
        if (c.tokens == 0) return matrix_view<const float>{};
        const auto since = std::chrono::steady_clock::now();
        status read = reads_->wait(area);
        if (const std::uint64_t now = pools_[c.pool].version(); std::exchange(c.version, now) != now)
            static_cast<void>(read = reads_->read(area, pools_[c.pool], c.distinct.ids()));
        waited_ += std::chrono::steady_clock::now() - since;
        if (!read) return read.failure();
        rows_read_ += c.distinct.ids().size();
        mix(c, reads_->rows(area, c.distinct.index()));
        return matrix_view<const float>(mixed_.data(), std::exchange(c.tokens, 0), width());
    }

    // How long receive() has waited for rows, in all passes so far, and how many rows were read.
    [[nodiscard]] std::chrono::duration<double> waited() const noexcept { return waited_; }
    [[nodiscard]] std::size_t rows_read() const noexcept { return rows_read_; }

private:
    struct call {
        std::size_t pool = 0;
        std::size_t tokens = 0;
        std::uint64_t version = 0;
        std::vector<std::int32_t> rows;  // (tokens, top_k)
        std::vector<float> weights;
        distinct_ids distinct;
    };

    pool_schedule(std::vector<row_store_ref> pools, std::size_t experts, std::size_t delay)
        : pools_(std::move(pools)),
          experts_(experts),
          calls_(1 + delay),
          reads_(std::make_unique<background_reads>(1 + delay)) {}

    [[nodiscard]] std::size_t width() const { return pools_[0].shape().width; }
    [[nodiscard]] status check_turn(bool sent) const {
        if (sent_ == sent) return reads_->usable();
        return failure(errc::option, sent ? "receive" : "send", "is called ",
                       sent ? "before the layer has sent" : "twice by one layer");
    }
    [[nodiscard]] status check(std::size_t pool, std::span<const std::int32_t> ids,
                               std::span<const choice<float>> choices) const {
        const std::size_t vocab = pools_[pool].shape().rows / experts_;
        if (ids.empty() || choices.empty() || choices.size() % ids.size() != 0)
            return failure(errc::size, "choices", "are ", choices.size(), " for ", ids.size(),
                           " tokens; a layer without them calls send_nothing()");
        if (status s = check_ids(ids, {vocab, 0, dtype::f32}); !s) return s;
        for (std::size_t i = 0; i < choices.size(); ++i)
            if (choices[i].expert < 0 || static_cast<std::size_t>(choices[i].expert) >= experts_)
                return failure(errc::option, "choices[" + std::to_string(i) + "]", "is expert ",
                               choices[i].expert, " of ", experts_);
        return {};
    }
    void mix(const call& c, const gathered_rows& rows) {
        const std::size_t n = width(), top_k = c.rows.size() / c.tokens;
        mixed_.assign(c.tokens * n, 0.0f);
        row_.resize(n);
        for (std::size_t i = 0; i < c.rows.size(); ++i) {
            rows.read(i, row_.data());
            float* const to = mixed_.data() + i / top_k * n;
            for (std::size_t j = 0; j < n; ++j) to[j] += c.weights[i] * row_[j];
        }
    }

    std::vector<row_store_ref> pools_;
    std::size_t experts_;
    std::size_t layer_ = 0;
    bool sent_ = false;
    std::vector<call> calls_;  // of layer l at l % (1 + delay)
    std::vector<float> mixed_, row_;
    std::chrono::duration<double> waited_{};
    std::size_t rows_read_ = 0;
    std::unique_ptr<background_reads> reads_;  // last, so destroyed first: its thread reads the members above
};

TIFFIN_END
