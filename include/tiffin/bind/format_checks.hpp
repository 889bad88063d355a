// Whether given values can be read, and kept in the formats of a backend.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/format/number_format.hpp>
#include <tiffin/grammar/tensor_kinds.hpp>
#include <tiffin/tensor.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

TIFFIN_BEGIN

namespace detail {

// Whether values can be kept in the formats of a backend.
inline status check_kept(const number_formats& formats) {
    const auto check = [](const number_format& format, const char* which) -> status {
        if (format.refused.empty()) return {};
        return failure(errc::option, which, "cannot be kept in ", format.refused,
                       " by choice: any_format is F32, BF16, F16, Q8_0, Q4_0 or Q4_1; kept_as_given keeps "
                       "weights in formats that are only read");
    };
    if (status s = check(formats.weights, "weights"); !s) return s;
    return check(formats.tables, "tables");
}

// Checks that the scales of given blocks, read as f16, are finite.
inline status check_scales(const tensor_view& given, const std::string& name) {
    const odd_scale_function odd_scale = odd_scale_of(given.type);
    if (odd_scale == nullptr) return {};
    const std::size_t block = block_of(given.type);
    const auto* at = static_cast<const std::byte*>(given.data);
    for (std::size_t i = 0; i < given.shape.elements(); i += block, at += size_of(given.type))
        if (const std::uint16_t bits = odd_scale(at); bits != 0)
            return failure(errc::value, name, "the scale of block ", i / block, " (numbers from ", i,
                           " on) is ", ((bits & 0x3FFu) != 0 ? "NaN" : "infinite"));
    return {};
}

// Checks that every value is in a format's range; blocks hold neither NaN nor infinities.
inline status check_range(const tensor_view& given, const std::string& name, const number_format& format) {
    const std::size_t count = given.shape.elements();
    std::array<float, 256> some;
    for (std::size_t first = 0; first < count; first += some.size()) {
        const std::size_t taken = std::min(some.size(), count - first);
        read_as_f32(given, first, taken, some.data());
        for (std::size_t i = 0; i < taken; ++i) {
            const float v = some[i];
            if (std::fabs(v) <= format.largest || (format.block == 1 && !std::isfinite(v))) continue;
            return failure(errc::value, name, "number ", first + i, " is ",
                           (std::isnan(v) ? "NaN" : std::to_string(v)), "; ", format.name,
                           " holds magnitudes up to ", std::to_string(format.largest));
        }
    }
    return {};
}

// Checks that values that decide which rows or experts a token gets are finite: others would silently always, or never,
// be chosen. A selection bias may be infinite: its expert is always chosen first, or last.
inline status check_deciding(tensor_kind kind, tensor_view given, const std::string& name,
                             const number_formats& formats) {
    const bool bias = kind == tensor_kind::selection_bias;
    if (!bias && kind != tensor_kind::logits && kind != tensor_kind::query &&
        kind != tensor_kind::query_bias && kind != tensor_kind::half_keys)
        return {};
    std::vector<std::byte> memory;
    if (formats.bring != nullptr)
        if (status s = formats.bring(given, memory, name); !s) return s;
    for (std::size_t i = 0; i < given.shape.elements(); ++i) {
        double number = 0;
        if (given.type == dtype::f64)
            std::memcpy(&number, static_cast<const unsigned char*>(given.data) + i * sizeof number,
                        sizeof number);
        else
            number = static_cast<double>(load_as_f32(given, i));
        if (std::isfinite(number) || (bias && !std::isnan(number))) continue;
        return failure(errc::value, name, "number ", i, " is ",
                       (std::isnan(number) ? "NaN"
                        : number > 0       ? "infinite"
                                           : "-infinite"),
                       "; what decides a route is ", (bias ? "a number" : "finite"));
    }
    return {};
}

inline status check_blocks(const tensor_view& given, const std::string& name, std::string_view format,
                           std::size_t block) {
    const std::size_t last = given.shape.rank() == 0 ? 1 : given.shape[given.shape.rank() - 1];
    if (last % block == 0) return {};
    return failure(errc::shape, name, "has shape ", to_string(given.shape), "; in ", format,
                   " its last axis must be a multiple of ", block);
}

// Checks the scales that accompany a tensor: their format and places, and, where there is memory, that they are finite.
inline status check_scales_of(const tensor_view& given, const std::string& name) {
    const tensor_scales& s = given.scales;
    if (!s.any()) return {};
    if (!holds_scales(s.type))
        return failure(errc::dtype, name, "has scales of ", name_of(s.type),
                       "; they are F32, F16, BF16 or F8_E8M0");
    if (given.type == dtype::f64 || given.type == dtype::i32 || given.type == dtype::i64)
        return failure(errc::dtype, name, "is ", name_of(given.type), " and has scales");
    const std::size_t width = given.shape.last(),
                      all = given.shape.elements() / std::max<std::size_t>(width, 1);
    const std::size_t rank = given.shape.rank(), rows = rank > 1 ? given.shape[rank - 2] : 1;
    if (s.rows == 0 || (s.in_rows() && s.rows != 1))
        return failure(errc::shape, name, "has a scale per ", s.rows,
                       " rows; scales that lie in the rows are of one row");
    if (rank > 2 && s.rows < all && rows % s.rows != 0)
        return failure(errc::shape, name, "has shape ", to_string(given.shape), " and a scale per ", s.rows,
                       " rows, which ", rows, " is no multiple of");
    const std::size_t values = s.per_row(width) * (s.has_bias ? 2 : 1);
    for (std::size_t row = 0; given.data != nullptr && row < all; row += std::min(s.rows, all))
        for (std::size_t i = 0; i < values; ++i) {
            const float scale = load_as_f32(given.row(row).scales, s.type, i);
            if (!std::isfinite(scale))
                return failure(errc::value, name, "the scale of row ", row, ", number ", i, ", is ",
                               (std::isnan(scale) ? "NaN" : "infinite"));
        }
    return {};
}

// Rows that are given with a call are read without conversion.
inline status check_gathered(tensor_kind kind, const tensor_view& given, const std::string& name,
                             const number_formats& formats) {
    if (!holds_rows(kind))
        return failure(errc::option, name, "is to come with each call; only the rows of tables can");
    const number_format table = format_of_table(formats, given.type);
    if (!formats.any_table && given.type != table.type)
        return failure(errc::dtype, name, "has rows of ", name_of(given.type),
                       " that come with each call; the backend's tables are ", table.name);
    if (given.scales.any() && !formats.any_table && !table.keeps_scales)
        return failure(errc::dtype, name,
                       "has rows with scales that come with each call; the backend's tables are ", table.name,
                       " without");
    if (status s = check_scales_of(given, name); !s) return s;
    return check_blocks(given, name, name_of(given.type), block_of(given.type));
}

// Whether a layer keeps reading the memory of a given tensor (see in_place).
inline bool stays_in_place(tensor_kind kind, const tensor_view& given,
                           const number_formats& formats) noexcept {
    if (given.gathered != 0) return false;
    if (formats.reads == in_place::everything) return true;
    const bool table = holds_rows(kind);
    const bool dense = is_weight(kind);
    if (!table && !(dense && formats.reads == in_place::dense_and_tables)) return false;
    const number_format format = table ? format_of_table(formats, given.type) : formats.weights;
    if (!format.is_given || format.type != given.type) return false;
    if (given.scales.any() && !format.keeps_scales) return false;
    // Table rows are read at any alignment.
    const std::size_t alignment = block_of(given.type) > 1 ? 2 : size_of(given.type);
    return table || reinterpret_cast<std::uintptr_t>(given.data) % alignment == 0;
}

// Whether a tensor can be read as given, and kept in the backend's format for its kind.
inline status check_format(tensor_kind kind, const tensor_view& given, const std::string& name,
                           const number_formats& formats) {
    if (is_integer(given.type) && !given.scales.any()) return {};
    if (given.type == dtype::f64 && formats.reads != in_place::everything)
        return failure(errc::dtype, name, "has dtype F64, which `reference` alone reads; round it to F32");
    if (given.gathered != 0) return check_gathered(kind, given, name, formats);
    if (block_of(given.type) > 1) {
        if (status s = check_blocks(given, name, name_of(given.type), block_of(given.type)); !s) return s;
        if (!given.scales.any())
            if (status s = check_scales(given, name); !s) return s;
    }
    if (status s = check_scales_of(given, name); !s) return s;
    if (status s = check_deciding(kind, given, name, formats); !s) return s;
    const bool dense = kind == tensor_kind::projection || kind == tensor_kind::low_rank_in;
    if (!dense && !holds_rows(kind)) return {};
    const dtype type = chosen_by(given);
    const number_format format =
        dense ? formats_of(formats, std::span(&type, 1)).weights : format_of_table(formats, given.type);
    if (status s = check_blocks(given, name, format.name, format.block); !s) return s;
    if (dense)
        if (status s = check_blocks(given, name, "activations of " + std::string(formats.activations.name),
                                    formats.activations.block);
            !s)
            return s;
    const bool scaled = given.scales.any() && !format.keeps_scales;
    const bool as_given = format.type == given.type && format.type != dtype::f32;
    if (format.largest == f32::largest) return {};
    if (!scaled && (as_given || bound_of(given.type) <= format.largest)) return {};
    return check_range(given, name, format);
}

}  // namespace detail

TIFFIN_END
