// Rows of a table as f32: one by one, or summed in groups.
#pragma once

#include <tiffin/aligned_buffer.hpp>
#include <tiffin/error.hpp>
#include <tiffin/format/number_format.hpp>
#include <tiffin/table/row_store.hpp>
#include <tiffin/tensor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

TIFFIN_BEGIN

// Rows of a store, widened exactly, or times their scales, by a backend's decoder of their format.
//
//     tiffin::float_rows rows(store, tiffin::simd<tiffin::f32, tiffin::any_format>{.tables = tiffin::kept_as_given}.formats());
//     rows.gather(ids, to);
//
// Errors: those of the store's read(); what was written is then unspecified. Precondition: ids lie in the table (check_ids).
// Cost: that of visit_rows(), and a buffer of a row per call.
template <row_store Store>
class float_rows {
public:
    float_rows(const Store& store, const number_formats& formats)
        : store_(&store), shape_(store.shape()), decode_(decoder_of(shape_, formats)) {}

    // to[i] = row ids[i], (ids, width).
    [[nodiscard]] status gather(std::span<const std::int32_t> ids, float* to) const {
        if (is_f32()) return store_->read(ids, reinterpret_cast<std::byte*>(to));
        return each(ids, [&](std::size_t i, const float* row) {
            std::memcpy(to + i * shape_.width, row, shape_.width * sizeof(float));
        });
    }

    // to[g] = sum of weights[i] row ids[i] over the i from first[g] up to first[g + 1], or to the end for the last g:
    // (groups, width), i ascending, in f32. Without weights each is 1. An empty group's sum is 0.
    // Errors, besides: errc::size where `first` does not begin at 0, descends or passes the ids, or weights are not one per id.
    [[nodiscard]] status sum(std::span<const std::int32_t> ids, std::span<const std::size_t> first,
                             std::span<const float> weights, float* to) const {
        if (status s = check_groups(ids.size(), first, weights.size()); !s) return s;
        std::fill(to, to + first.size() * shape_.width, 0.0f);
        std::size_t group = 0;
        return each(ids, [&](std::size_t i, const float* row) {
            while (group + 1 < first.size() && first[group + 1] <= i) ++group;
            float* const sum = to + group * shape_.width;
            if (weights.empty())
                for (std::size_t j = 0; j < shape_.width; ++j) sum[j] += row[j];
            else
                for (std::size_t j = 0; j < shape_.width; ++j) sum[j] += weights[i] * row[j];
        });
    }

private:
    [[nodiscard]] bool is_f32() const { return shape_.type == dtype::f32 && !shape_.scales.any(); }
    // Null where rows have scales, or the backend keeps tables in one format.
    static decode_row_function decoder_of(const table_shape& shape, const number_formats& formats) {
        if (shape.scales.any()) return nullptr;
        return formats.tables.of != nullptr ? formats.tables.of(shape.type).rows.decode : nullptr;
    }
    static status check_groups(std::size_t ids, std::span<const std::size_t> first, std::size_t weights) {
        if (weights != 0 && weights != ids)
            return failure(errc::size, "weights", "are ", weights, " for ", ids, " ids");
        if (first.empty() ? ids != 0 : first[0] != 0)
            return failure(errc::size, "first", "must begin with 0, the first id of the first group");
        for (std::size_t g = 1; g < first.size(); ++g)
            if (first[g] < first[g - 1] || first[g] > ids)
                return failure(errc::size, "first", "first[", g, "] = ", first[g], " must lie between first[",
                               g - 1, "] = ", first[g - 1], " and the ", ids, " ids");
        return {};
    }
    // Calls use(i, row) with each row as f32.
    template <class Use>
    status each(std::span<const std::int32_t> ids, const Use& use) const {
        constexpr std::size_t registers = 64;  // room for whole registers behind a row
        aligned_buffer memory((shape_.width + registers) * sizeof(float));
        float* const widened = memory.as<float>();
        return visit_rows(*store_, ids, [&](std::size_t i, const std::byte* row) {
            if (is_f32() && reinterpret_cast<std::uintptr_t>(row) % alignof(float) == 0)
                return use(i, reinterpret_cast<const float*>(row));  // where it lies
            if (is_f32())
                std::memcpy(widened, row, shape_.width * sizeof(float));
            else if (decode_ != nullptr)
                decode_(row, 0, shape_.width, widened);
            else
                decode_row(shape_, row, widened);
            use(i, widened);
        });
    }

    const Store* store_;
    table_shape shape_;
    decode_row_function decode_;
};

TIFFIN_END
