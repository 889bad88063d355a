// A trained table in a file: each step reads its rows, and writes them back with their optimizer moments.
#pragma once

#include <tiffin/aligned_buffer.hpp>
#include <tiffin/call/gathered_rows.hpp>
#include <tiffin/error.hpp>
#include <tiffin/executor/executor.hpp>
#include <tiffin/learn/learning_rows.hpp>
#include <tiffin/table/writable_rows.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// A table (vocab, width) of f32 in a file of writable_rows. A row of the file: the table row, its first moment, its
// second moment and its count of steps, 12 width + 4 bytes.
//
//     weights.add_gathered("stem_embed.weight", tiffin::dtype::f32, {vocab, width});
//     auto layer = tiffin::prepare_training<tiffin::stem>(weights, tiffin::simd{}, {.tokens = 512});
//     tiffin::adamw<tiffin::simd<>> optimizer;
//     optimizer.add("", layer, "stem_embed.weight", table).or_throw();
//     ...
//     table.fetch(ids);                                       // of the step
//     layer.forward(x, {.token_ids = ids, .gathered = table.gathered()}, y);
//     layer.backward(dy);
//     optimizer.step(rate);
//     table.put_back();
//     // Per checkpoint: store next_commit() in it; when it has its final name, commit the rows.
//     table.rows().commit();
//
// After a run that ended at any moment, resume() restores the rows of the checkpoint that it continues from.
// Errors: those of writable_rows. Threads: one call at a time; at() from several.
// Cost: memory for the rows of a step; a read and a write of each.
class stored_table final : public learning_rows<float> {
public:
    // Writes the starting values of row `id` over zeros.
    using first_row = std::function<void(std::size_t id, std::span<float> to)>;

    static constexpr std::size_t row_bytes(std::size_t width) noexcept {
        return 3 * width * sizeof(float) + sizeof(std::int32_t);
    }
    static result<stored_table> create(const std::filesystem::path& path, std::size_t vocab,
                                       std::size_t width, const first_row& first = {}) {
        writable_rows::first_row values;
        if (first)
            values = [&](std::size_t id, std::span<std::byte> to) {
                first(id, {reinterpret_cast<float*>(to.data()), width});
            };
        auto rows = writable_rows::create(path, vocab, row_bytes(width), values);
        if (!rows) return rows.failure();
        return stored_table(*std::move(rows));
    }
    // Errors: errc::file where the rows of the file have another layout.
    static result<stored_table> open(const std::filesystem::path& path) {
        auto rows = writable_rows::open(path);
        if (!rows) return rows.failure();
        if (rows->row_bytes() < row_bytes(1) || (rows->row_bytes() - row_bytes(0)) % (3 * sizeof(float)) != 0)
            return failure(errc::file, path.string(), "has rows of ", rows->row_bytes(),
                           " bytes, which are no row of numbers with two moments and a count");
        return stored_table(*std::move(rows));
    }

    [[nodiscard]] std::size_t vocab() const noexcept { return rows_.rows(); }
    [[nodiscard]] std::size_t width() const noexcept override { return width_; }
    // For unfinished(), roll_back(), commit().
    [[nodiscard]] writable_rows& rows() noexcept { return rows_; }
    [[nodiscard]] const writable_rows& rows() const noexcept { return rows_; }

    // Reads the rows of these ids, each once.
    status fetch(std::span<const std::int32_t> ids, executor_ref execute = serially) {
        ids_.assign(ids.begin(), ids.end());
        std::sort(ids_.begin(), ids_.end());
        ids_.erase(std::unique(ids_.begin(), ids_.end()), ids_.end());
        const std::size_t bytes = ids_.size() * rows_.row_bytes();
        if (memory_.size() < bytes) memory_ = aligned_buffer(bytes);
        if (status s = rows_.read(ids_, memory_.data(), execute); !s) {
            ids_.clear();
            return s;
        }
        index_.clear();
        for (const std::int32_t id : ids) index_.push_back(static_cast<std::int32_t>(place_of(id)));
        view_ = {memory_.data(), ids_.size(), rows_.row_bytes(), width_, dtype::f32, index_};
        return {};
    }
    // The rows of the ids of the last fetch(), for a layer with no other gathered table.
    [[nodiscard]] std::span<const gathered_rows> gathered() const noexcept { return {&view_, 1}; }
    // Writes back the rows of the last fetch(), as updated by the optimizer.
    status put_back(executor_ref execute = serially) { return rows_.write(ids_, memory_.data(), execute); }

    // The commit number to store in a checkpoint that is about to be written.
    [[nodiscard]] std::uint64_t next_commit() const noexcept { return rows_.commits() + 1; }
    // Restores the rows of the checkpoint that stores this next_commit(): rolls back to the last commit or, where the
    // run ended between checkpoint and commit, keeps the changes.
    // Errors: errc::file where the file is neither at this commit nor one before it.
    status resume(std::uint64_t commit) {
        const std::uint64_t now = rows_.commits();
        if (commit == now) return rows_.unfinished() ? rows_.roll_back() : status{};
        if (commit == now + 1) return rows_.keep_changes();
        return failure(errc::file, "commit", "of the checkpoint is ", commit, "; the rows are at ", now);
    }

    [[nodiscard]] std::size_t experts() const override { return 1; }
    // Whether the last fetch() had this id.
    [[nodiscard]] bool has(std::int32_t id) const override {
        return std::binary_search(ids_.begin(), ids_.end(), id);
    }
    // Precondition: has(id).
    [[nodiscard]] learning_row<float> at(std::size_t, std::int32_t id) override {
        auto* const row = reinterpret_cast<float*>(memory_.data() + place_of(id) * rows_.row_bytes());
        return {row, row + width_, row + 2 * width_, reinterpret_cast<std::int32_t*>(row + 3 * width_)};
    }

private:
    explicit stored_table(writable_rows rows)
        : rows_(std::move(rows)), width_((rows_.row_bytes() - row_bytes(0)) / (3 * sizeof(float))) {}
    [[nodiscard]] std::size_t place_of(std::int32_t id) const noexcept {
        return static_cast<std::size_t>(std::lower_bound(ids_.begin(), ids_.end(), id) - ids_.begin());
    }

    writable_rows rows_;
    std::size_t width_;
    std::vector<std::int32_t> ids_, index_;  // ascending; position per token
    aligned_buffer memory_;
    gathered_rows view_;
};

TIFFIN_END
