// Knowledge edits: chosen positions or token ids read other table rows than their own.
#pragma once

#include <tiffin/table/row_store.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// How a span of more positions than targets is filled: with a pad id before the targets (pad_left) or after them
// (pad_right); or with each target floor(positions / targets) times, the last one again until the span is full (copy).
enum class span_fill { pad_left, pad_right, copy };

// The ids whose table rows a span of positions reads instead of its own: one to one where there are as many targets as
// positions, else by `fill`. `pad_id` is used by the two paddings only.
// Errors: errc::option where there are no targets; where there are more targets than positions (take a subset of as
//   many, or their mean, edited_rows::add_mean); where padding is needed without a pad id.
// Source: STEM section 3.3, docs/layers.md#table-edits.
inline result<std::vector<std::int32_t>> fill_span(std::size_t positions,
                                                   std::span<const std::int32_t> targets,
                                                   span_fill fill = span_fill::pad_left,
                                                   std::optional<std::int32_t> pad_id = {}) {
    const std::size_t n = targets.size();
    if (n == 0 || n > positions)
        return failure(errc::option, "targets", "has ", n, " ids for ", positions,
                       " positions; it must have 1 to as many, a subset or the mean of more");
    const bool pads = fill != span_fill::copy && n < positions;
    if (pads && !pad_id)
        return failure(errc::option, "pad_id", "is not given; ", positions - n, " of ", positions,
                       " positions are padding, which reads the row of an id that you choose");
    std::vector<std::int32_t> ids(positions, pads ? *pad_id : targets.back());
    const std::size_t first = fill == span_fill::pad_left ? positions - n : 0;
    const std::size_t times = fill == span_fill::copy ? positions / n : 1;
    for (std::size_t i = 0; i < n * times; ++i) ids[first + i] = targets[i / times];
    return ids;
}

// A view of a store with some rows replaced. The store is not modified and must outlive the view, which is itself a
// store: views may be stacked (edited_rows<decltype(view)> over(view)). A later edit overrides an earlier one; undo()
// reverts the last replacement.
// Threads: edits are allowed while other threads read, such as that of prefetched_rows: a read sees all of an edit or
//   nothing of it. Each edit increases version(), so that rows read before it are read again.
//
//     edited_rows view(table);
//     const auto mean = view.add_mean(ids_of("Berlin"));            // a row of its own, id table rows + 0
//     view.replace(id_of("Paris"), *mean);                          // by token id
//     replace_at(ids, 7, *fill_span(3, targets, span_fill::copy));  // by position: the ids of a call
template <row_store Store>
class edited_rows {
public:
    explicit edited_rows(const Store& store) : store_(&store), shape_(store.shape()) {}
    explicit edited_rows(const Store&&) = delete;
    edited_rows(const edited_rows& other)
        : store_(other.store_), shape_(other.shape_), edits_(other.edits_so_far()) {}
    edited_rows& operator=(const edited_rows&) = delete;

    // The store's rows plus the added ones.
    [[nodiscard]] table_shape shape() const {
        const std::lock_guard lock(mutex_);
        return {shape_.rows + edits_.rows_added, shape_.width, shape_.type, shape_.scales};
    }
    [[nodiscard]] std::uint64_t version() const {
        const std::lock_guard lock(mutex_);
        return edits_.count + version_of(*store_);
    }

    // Reads of row `id` return row `by` as it is stored or was added: replacements are not chained.
    // Errors: errc::token_id.
    status replace(std::int32_t id, std::int32_t by) {
        const std::int32_t both[]{id, by};
        if (status s = check_ids(both, shape()); !s) return s;
        const std::lock_guard lock(mutex_);
        edits_.latest[id].push_back(edits_.replaced.size());
        edits_.replaced.emplace_back(id, by);
        ++edits_.count;
        return {};
    }
    // Reverts the last replacement; returns whether there was one.
    bool undo() {
        const std::lock_guard lock(mutex_);
        if (edits_.replaced.empty()) return false;
        const auto of_id = edits_.latest.find(edits_.replaced.back().first);
        of_id->second.pop_back();
        if (of_id->second.empty()) edits_.latest.erase(of_id);
        edits_.replaced.pop_back();
        ++edits_.count;
        return true;
    }

    // Adds the mean of rows, computed in double and rounded to the table's format; returns its id.
    // Errors: errc::token_id; errc::option where there are no ids; errc::dtype where the table's format is only read;
    //   errc::size where no int32 is left as its id; those of the store.
    result<std::int32_t> add_mean(std::span<const std::int32_t> ids) {
        if (ids.empty()) return failure(errc::option, "ids", "is empty; a mean is that of one row or more");
        if (!has_encode(shape_.type) || shape_.scales.any())
            return failure(errc::dtype, "table", "holds rows of ", name_of(shape_.type),
                           (shape_.scales.any() ? " with scales" : ""),
                           ", which is only read; a mean cannot be rounded to it");
        if (status s = check_ids(ids, shape()); !s) return s.failure();
        std::vector<std::byte> row(shape_.row_bytes());
        std::vector<float> numbers(shape_.width);
        std::vector<double> sums(shape_.width);
        for (const std::int32_t& id : ids) {
            if (status s = read_stored({&id, 1}, row.data()); !s) return s.failure();
            decode_row(shape_, row.data(), numbers.data());
            for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += static_cast<double>(numbers[i]);
        }
        for (std::size_t i = 0; i < sums.size(); ++i)
            numbers[i] = static_cast<float>(sums[i] / static_cast<double>(ids.size()));
        encode_row(shape_, numbers.data(), row.data());
        const std::lock_guard lock(mutex_);
        const std::size_t id = shape_.rows + edits_.rows_added;
        if (id > std::size_t{std::numeric_limits<std::int32_t>::max()})
            return failure(errc::size, "ids", "are int32 and cannot tell a row beyond the ", id,
                           " there are");
        edits_.added.insert(edits_.added.end(), row.begin(), row.end());
        ++edits_.rows_added;
        ++edits_.count;
        return static_cast<std::int32_t>(id);
    }

    status read(std::span<const std::int32_t> ids, std::byte* to) const {
        std::vector<std::int32_t> stored;
        {
            const std::lock_guard lock(mutex_);
            if (!edits_.replaced.empty() || edits_.rows_added != 0)
                for (const std::int32_t id : ids) stored.push_back(edits_.row_of(id));
        }
        // Not under the lock: other threads must not wait for it while rows are read.
        return stored.empty() ? store_->read(ids, to) : read_stored(stored, to);
    }

    status visit(std::span<const std::int32_t> ids, const row_use& use) const {
        bool edited;
        {
            const std::lock_guard lock(mutex_);
            edited = !edits_.replaced.empty() || edits_.rows_added != 0;
        }
        if (!edited) return visit_rows(*store_, ids, use);
        const from_callback others(
            shape(), [&](std::span<const std::int32_t> some, std::byte* to) { return read(some, to); });
        return visit_rows(others, ids, use);
    }

private:
    struct edit_list {
        std::vector<std::pair<std::int32_t, std::int32_t>> replaced;
        std::unordered_map<std::int32_t, std::vector<std::size_t>> latest;  // by id: indices into `replaced`
        std::vector<std::byte> added;
        std::size_t rows_added = 0;
        std::uint64_t count = 0;  // of all changes, reverted ones included

        [[nodiscard]] std::int32_t row_of(std::int32_t id) const noexcept {
            const auto edit = latest.find(id);
            return edit == latest.end() ? id : replaced[edit->second.back()].second;
        }
    };

    [[nodiscard]] edit_list edits_so_far() const {
        const std::lock_guard lock(mutex_);
        return edits_;
    }
    [[nodiscard]] bool is_added(std::int32_t id) const noexcept {
        return static_cast<std::size_t>(id) >= shape_.rows;
    }
    // Rows as they are stored or were added, without replacements.
    status read_stored(std::span<const std::int32_t> ids, std::byte* to) const {
        std::vector<std::int32_t> own;
        for (const std::int32_t id : ids)
            if (!is_added(id)) own.push_back(id);
        if (!own.empty())
            if (status s = store_->read(own, to); !s) return s;
        // Added rows never change, but a later addition may move them in memory.
        const std::lock_guard lock(mutex_);
        const std::size_t bytes = shape_.row_bytes();
        const auto added = [&](std::size_t i) {
            return is_added(ids[i])
                       ? edits_.added.data() + (static_cast<std::size_t>(ids[i]) - shape_.rows) * bytes
                       : nullptr;
        };
        detail::scatter_rows(ids.size(), own.size(), bytes, added, to);
        return {};
    }

    const Store* store_;
    table_shape shape_;  // of the store
    mutable std::mutex mutex_;
    edit_list edits_;
};

// Overwrites the ids of positions from `first` on with those of an edit. Keep a copy of the ids to revert it.
// Errors: errc::size where they reach beyond the call.
inline status replace_at(std::span<std::int32_t> ids, std::size_t first, std::span<const std::int32_t> by) {
    if (first > ids.size() || by.size() > ids.size() - first)
        return failure(errc::size, "by", "has ", by.size(), " ids from position ", first,
                       " on; the call has ", ids.size());
    std::copy(by.begin(), by.end(), ids.begin() + static_cast<std::ptrdiff_t>(first));
    return {};
}

TIFFIN_END
