// The geometry of a table's rows: the distribution of their cosines, and the nearest rows of a row.
#pragma once

#include <tiffin/analysis/initialise.hpp>
#include <tiffin/table/row_store.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// Cosines of pairs of rows, counted in bins of equal width over [-1, 1].
struct cosine_distribution {
    std::array<std::uint64_t, 200> bins{};
    std::uint64_t pairs = 0;
    std::uint64_t without_direction = 0;  // pairs left out, as one of their rows is zero or not finite
    double mean = 0;
    double deviation = 0;  // standard
    double least = 0;
    double largest = 0;

    // The cosine that a share of the pairs does not exceed, to the width of a bin. Precondition: 0 <= share
    // <= 1. 0 where there are no pairs.
    [[nodiscard]] double quantile(double share) const noexcept {
        double below = 0;
        for (std::size_t b = 0; b < bins.size(); ++b) {
            below += static_cast<double>(bins[b]);
            if (below > 0 && below >= share * static_cast<double>(pairs))
                return -1 + 2 * static_cast<double>(b + 1) / static_cast<double>(bins.size());
        }
        return 0;
    }
};

struct row_cosine {
    std::int32_t id;
    double cosine;
};

namespace detail {

// Reads table rows as f32 in batches, so that only one batch is in memory.
template <row_store Store>
class row_batch {
public:
    static constexpr std::size_t most = 256;

    explicit row_batch(const Store& store)
        : store_(store), shape_(store.shape()), bytes_(most * shape_.row_bytes()), numbers_(shape_.width) {}

    // Calls visit(i, values) for the row of each id in order; at most `most` of them.
    template <class Visit>
    status read(std::span<const std::int32_t> ids, const Visit& visit) {
        if (status s = store_.read(ids, bytes_.data()); !s) return s;
        for (std::size_t i = 0; i < ids.size(); ++i) {
            decode_row(shape_, bytes_.data() + i * shape_.row_bytes(), numbers_.data());
            visit(i, std::span<const float>(numbers_));
        }
        return {};
    }

private:
    const Store& store_;
    table_shape shape_;
    std::vector<std::byte> bytes_;
    std::vector<float> numbers_;
};

inline double dot(std::span<const float> a, std::span<const float> b) noexcept {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    return sum;
}

// NaN where a row has no direction: it is zero or not finite.
inline double cosine(double product, double squares_a, double squares_b) noexcept {
    const double lengths = std::sqrt(squares_a) * std::sqrt(squares_b);
    return lengths > 0 && std::isfinite(lengths) ? std::clamp(product / lengths, -1.0, 1.0) : std::nan("");
}

}  // namespace detail

// The distribution of the cosines of `pairs` pairs of different rows, drawn evenly and with replacement; the
// same for the same seed. cos(a, b) = a b / (|a| |b|).
// Shapes: rows of any format. Numerics: in double.
// Errors: errc::option where the table has fewer than two rows; those of the store.
// Calls progress(pairs done) about every 128 pairs.
// Cost: 2 rows read per pair, 256 at a time in memory.
// Source: docs/layers.md#geometry (geometry), STEM's angular spread.
template <row_store Store, class Progress>
result<cosine_distribution> sample_cosines(const Store& store, std::uint64_t pairs, std::uint64_t seed,
                                           const Progress& progress) {
    const table_shape shape = store.shape();
    if (shape.rows < 2) return failure(errc::option, "table", "has ", shape.rows, " rows; a pair needs two");
    detail::counter_random random(seed);
    detail::row_batch batch(store);
    std::vector<std::int32_t> ids;
    std::vector<float> first(shape.width);
    cosine_distribution found;
    double sum = 0, squares = 0;
    for (std::uint64_t done = 0; done < pairs;) {
        ids.clear();
        for (; done < pairs && ids.size() + 2 <= batch.most; ++done) {
            ids.push_back(static_cast<std::int32_t>(random.below(shape.rows)));
            const auto other = static_cast<std::int32_t>(random.below(shape.rows - 1));
            ids.push_back(other + (other >= ids.back() ? 1 : 0));
        }
        const status read = batch.read(ids, [&](std::size_t i, std::span<const float> row) {
            if (i % 2 == 0) return void(std::copy(row.begin(), row.end(), first.begin()));
            const double c =
                detail::cosine(detail::dot(first, row), detail::dot(first, first), detail::dot(row, row));
            if (std::isnan(c)) return void(++found.without_direction);
            const auto bin = static_cast<std::size_t>((c + 1) / 2 * static_cast<double>(found.bins.size()));
            ++found.bins[std::min(bin, found.bins.size() - 1)];
            found.least = found.pairs == 0 ? c : std::min(found.least, c);
            found.largest = found.pairs == 0 ? c : std::max(found.largest, c);
            ++found.pairs;
            sum += c;
            squares += c * c;
        });
        if (!read) return read.failure();
        progress(done);
    }
    if (found.pairs > 0) {
        const auto n = static_cast<double>(found.pairs);
        found.mean = sum / n;
        found.deviation = std::sqrt(std::max(0.0, squares / n - found.mean * found.mean));
    }
    return found;
}

template <row_store Store>
result<cosine_distribution> sample_cosines(const Store& store, std::uint64_t pairs = 100000,
                                           std::uint64_t seed = 1) {
    return sample_cosines(store, pairs, seed, [](std::uint64_t) {});
}

// The `count` rows of the largest cosine with row `id`, itself left out, the nearest first; of equal ones the
// lower id. Rows without a direction are skipped.
// Numerics: in double. Errors: errc::token_id; errc::option where row `id` itself has no direction; those of
//   the store. Calls progress(rows done) every 256 rows.
// Cost: one pass over the table, 256 rows at a time in memory.
template <row_store Store, class Progress>
result<std::vector<row_cosine>> nearest_rows(const Store& store, std::int32_t id, std::size_t count,
                                             const Progress& progress) {
    const table_shape shape = store.shape();
    if (status s = check_ids({&id, 1}, shape); !s) return s.failure();
    detail::row_batch batch(store);
    std::vector<float> own(shape.width);
    if (status s = batch.read(
            {&id, 1},
            [&](std::size_t, std::span<const float> row) { std::copy(row.begin(), row.end(), own.begin()); });
        !s)
        return s.failure();
    const double own_squares = detail::dot(own, own);
    if (std::isnan(detail::cosine(own_squares, own_squares, own_squares)))
        return failure(errc::option, "id", "= ", id, ": the row is zero or not finite and has no direction");
    const auto nearer = [](const row_cosine& a, const row_cosine& b) {
        return a.cosine > b.cosine || (a.cosine == b.cosine && a.id < b.id);
    };
    std::vector<row_cosine> nearest;  // a heap, the farthest in front
    std::vector<std::int32_t> ids;
    for (std::size_t next = 0; next < shape.rows && count > 0;) {
        ids.clear();
        for (; next < shape.rows && ids.size() < batch.most; ++next)
            ids.push_back(static_cast<std::int32_t>(next));
        const status read = batch.read(ids, [&](std::size_t i, std::span<const float> row) {
            const row_cosine one{ids[i],
                                 detail::cosine(detail::dot(own, row), own_squares, detail::dot(row, row))};
            if (one.id == id || std::isnan(one.cosine)) return;
            if (nearest.size() == count) {
                if (!nearer(one, nearest.front())) return;
                std::pop_heap(nearest.begin(), nearest.end(), nearer);
                nearest.pop_back();
            }
            nearest.push_back(one);
            std::push_heap(nearest.begin(), nearest.end(), nearer);
        });
        if (!read) return read.failure();
        progress(next);
    }
    std::sort_heap(nearest.begin(), nearest.end(), nearer);
    return nearest;
}

template <row_store Store>
result<std::vector<row_cosine>> nearest_rows(const Store& store, std::int32_t id, std::size_t count) {
    return nearest_rows(store, id, count, [](std::size_t) {});
}

TIFFIN_END
