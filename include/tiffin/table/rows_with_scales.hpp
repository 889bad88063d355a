// A store of codes and the store of their scales, or one scale for all, as one store.
#pragma once

#include <tiffin/table/row_store.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// The rows of a store whose scales lie elsewhere: row[id] = codes[id] | scales[id], as a layer's gathered tables and
// decode_row() read them. Published tables keep both apart, as files do that have an F8 weight and its scales.
//
//     auto rows = rows_with_scales::of(codes, scales);     // (rows, 256) F8_E4M3 and (rows, 8) F8_E8M0: one per 32 values
//     auto rows = rows_with_scales::of(codes, 0.0078125f);  // one for the whole table
//
// The stores must outlive it; errors of read() are theirs.
// Cost: two reads per call instead of one, and a copy. One scale for all takes 4 bytes of each row that is read.
class rows_with_scales {
public:
    // Errors: errc::size where the numbers of rows differ, or a row's values cannot be shared among its scales evenly;
    //   errc::dtype where scales are not F32, F16, BF16 or F8_E8M0, or the codes have scales already.
    static result<rows_with_scales> of(row_store_ref codes, row_store_ref scales) {
        const table_shape all = codes.shape(), some = scales.shape();
        if (some.rows != all.rows)
            return failure(errc::size, "scales", "are of ", some.rows, " rows; the table has ", all.rows);
        if (some.width == 0 || all.width % some.width != 0)
            return failure(errc::size, "scales", "are ", some.width, " per row of ", all.width,
                           " values, which cannot be shared among them evenly");
        if (!holds_scales(some.type))
            return failure(errc::dtype, "scales", "are ", name_of(some.type),
                           "; they are F32, F16, BF16 or F8_E8M0");
        if (status s = check(all); !s) return s.failure();
        if (some.scales.any()) return failure(errc::dtype, "scales", "have scales themselves");
        return rows_with_scales(codes, scales, true, 0, {some.type, 1, all.width / some.width});
    }
    // Errors: errc::value where the scale is not finite; errc::dtype where the codes have scales already.
    static result<rows_with_scales> of(row_store_ref codes, float scale) {
        if (!std::isfinite(scale))
            return failure(errc::value, "scale", "is ", (std::isnan(scale) ? "NaN" : "infinite"));
        const table_shape all = codes.shape();
        if (status s = check(all); !s) return s.failure();
        return rows_with_scales(codes, {}, false, scale,
                                {dtype::f32, 1, std::max<std::size_t>(all.width, 1)});
    }

    [[nodiscard]] table_shape shape() const {
        table_shape made = codes_.shape();
        made.scales = kind_;
        return made;
    }
    status read(std::span<const std::int32_t> ids, std::byte* to) const {
        const table_shape whole = shape();
        const std::size_t bytes = whole.row_bytes(), codes = bytes_of(whole.type, whole.width);
        const std::size_t scales = bytes - codes;
        if (bytes == 0) return {};
        // The codes are read to the front of `to`, and moved to their places from the last to the first.
        if (status s = codes_.read(ids, to); !s) return s;
        std::vector<std::byte> some(ids.size() * scales);
        if (has_store_)
            if (status s = scales_.read(ids, some.data()); !s) return s;
        for (std::size_t i = ids.size(); i-- > 0;) {
            std::memmove(to + i * bytes, to + i * codes, codes);
            if (has_store_)
                std::memcpy(to + i * bytes + codes, some.data() + i * scales, scales);
            else
                std::memcpy(to + i * bytes + codes, &one_, scales);
        }
        return {};
    }
    [[nodiscard]] std::uint64_t version() const {
        return codes_.version() + (has_store_ ? scales_.version() : 0);
    }

private:
    rows_with_scales(row_store_ref codes, row_store_ref scales, bool has_store, float one,
                     const tensor_scales& kind) noexcept
        : codes_(codes), scales_(scales), has_store_(has_store), one_(one), kind_(kind) {}
    static status check(const table_shape& codes) {
        if (!codes.scales.any()) return {};
        return failure(errc::dtype, "table", "has ", codes.scales.text(), " already");
    }

    row_store_ref codes_, scales_;
    bool has_store_;
    float one_;
    tensor_scales kind_;
};

TIFFIN_END
