// Knowledge edits: other rows than the stored ones, for chosen positions or token ids.
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

// How a span of more positions than targets is filled: with a pad id in front of the targets, or behind
// them; or with each target floor(positions / targets) times, the last one again until the span is full.
enum class span_fill { pad_left, pad_right, copy };

// The ids whose rows a span of positions reads instead of its own: one to one where there are as many
// targets as positions, else as `fill` says. `pad_id` is read by the two paddings only.
// Errors: errc::option where there is nothing to fill with, or more targets than positions: choose a
//   subset of as many targets, or their mean (edited_rows::add_mean).
// Source: STEM section 3.3, SPEC section 3.
inline result<std::vector<std::int32_t>> fill_span(std::size_t positions,
                                                   std::span<const std::int32_t> targets,
                                                   span_fill fill = span_fill::pad_left,
                                                   std::int32_t pad_id = 0) {
    const std::size_t n = targets.size();
    if (n == 0 || n > positions)
        return failure{errc::option, "targets",
                       "has " + std::to_string(n) + " ids for " + std::to_string(positions) +
                           " positions; it must have 1 to as many, a subset or the mean of more"};
    std::vector<std::int32_t> ids(positions, fill == span_fill::copy ? targets.back() : pad_id);
    const std::size_t first = fill == span_fill::pad_left ? positions - n : 0;
    const std::size_t times = fill == span_fill::copy ? positions / n : 1;
    for (std::size_t i = 0; i < n * times; ++i) ids[first + i] = targets[i / times];
    return ids;
}

// The rows of a store with some replaced. The store is not touched and must outlive the view, which is a
// store itself: views may be stacked (edited_rows<decltype(view)> over(view)). A later edit wins over an
// earlier one; undo() takes back the last. Not to be changed while another thread reads.
//
//     edited_rows view(table);
//     const auto mean = view.add_mean(ids_of("Berlin"));         // a row of its own, id table rows + 0
//     view.replace(id_of("Paris"), *mean);                       // by token id
//     replace_at(ids, 7, *fill_span(3, targets));                // by position: the ids of a call
template <row_store Store>
class edited_rows {
public:
    explicit edited_rows(const Store& store) : store_(&store), shape_(store.shape()) {}

    // The store's rows and those added.
    [[nodiscard]] table_shape shape() const noexcept {
        return {shape_.rows + added_.size() / shape_.row_bytes(), shape_.width, shape_.type};
    }

    // Whoever reads row `id` gets row `by` as it is stored or was added: edits do not follow one another.
    // Errors: errc::token_id.
    status replace(std::int32_t id, std::int32_t by) {
        const std::int32_t both[]{id, by};
        if (status s = check_ids(both, shape()); !s) return s;
        replaced_.emplace_back(id, by);
        return {};
    }
    // Takes the last replacement back; whether there was one.
    bool undo() noexcept {
        if (replaced_.empty()) return false;
        replaced_.pop_back();
        return true;
    }

    // Adds the mean of rows, taken in double and rounded to the table's format. Gives its id.
    // Errors: errc::token_id; errc::option where there are no ids; those of the store.
    result<std::int32_t> add_mean(std::span<const std::int32_t> ids) {
        if (ids.empty()) return failure{errc::option, "ids", "is empty; a mean is that of one row or more"};
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
        added_.insert(added_.end(), row.begin(), row.end());
        return static_cast<std::int32_t>(shape().rows - 1);
    }

    status read(std::span<const std::int32_t> ids, std::byte* to) const {
        if (replaced_.empty() && added_.empty()) return store_->read(ids, to);
        std::vector<std::int32_t> stored(ids.begin(), ids.end());
        for (std::int32_t& id : stored) {
            const auto edit = std::find_if(replaced_.rbegin(), replaced_.rend(),
                                           [&](const auto& one) { return one.first == id; });
            if (edit != replaced_.rend()) id = edit->second;
        }
        return read_stored(stored, to);
    }

private:
    // Rows as they are stored or were added, runs of stored ones in one go.
    status read_stored(std::span<const std::int32_t> ids, std::byte* to) const {
        const std::size_t bytes = shape_.row_bytes();
        const auto is_added = [&](std::int32_t id) { return static_cast<std::size_t>(id) >= shape_.rows; };
        for (std::size_t i = 0; i < ids.size();) {
            std::size_t end = i + 1;
            if (is_added(ids[i])) {
                std::memcpy(to + i * bytes,
                            added_.data() + (static_cast<std::size_t>(ids[i]) - shape_.rows) * bytes, bytes);
            } else {
                while (end < ids.size() && !is_added(ids[end])) ++end;
                if (status s = store_->read(ids.subspan(i, end - i), to + i * bytes); !s) return s;
            }
            i = end;
        }
        return {};
    }

    const Store* store_;
    table_shape shape_;
    std::vector<std::pair<std::int32_t, std::int32_t>> replaced_;
    std::vector<std::byte> added_;
};

// Puts the ids of an edit in place of those that positions from `first` on would read. The ids of a call are
// the caller's: keep a copy to go back.
// Errors: errc::size where they reach beyond the call.
inline status replace_at(std::span<std::int32_t> ids, std::size_t first, std::span<const std::int32_t> by) {
    if (first > ids.size() || by.size() > ids.size() - first)
        return failure{errc::size, "by",
                       "has " + std::to_string(by.size()) + " ids from position " + std::to_string(first) +
                           " on; the call has " + std::to_string(ids.size())};
    std::copy(by.begin(), by.end(), ids.begin() + static_cast<std::ptrdiff_t>(first));
    return {};
}

TIFFIN_END
