// Tensors with scales, and the values that they stand for, computed here from the definition.
#pragma once

#include <tiffin/table/row_store.hpp>
#include <tiffin/tensor.hpp>

#include "support/stored_blocks.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace tiffin_test {

// How a published table or weight is scaled.
struct scaling {
    const char* name;
    tiffin::dtype codes;
    tiffin::dtype scales;
    std::size_t rows, columns;  // that share a scale; 0: all of them
    bool has_bias = false;
};
inline constexpr scaling scalings[] = {
    {"one per tensor", tiffin::dtype::f8_e4m3, tiffin::dtype::f32, 0, 0},
    {"one per row", tiffin::dtype::f8_e5m2, tiffin::dtype::bf16, 1, 0},
    {"one per 32 values", tiffin::dtype::f8_e4m3, tiffin::dtype::f8_e8m0, 1, 32},
    {"one per block", tiffin::dtype::f8_e4m3, tiffin::dtype::f32, 4, 32},
    {"one per 48 values", tiffin::dtype::bf16, tiffin::dtype::f16, 2, 48},
    {"NVFP4", tiffin::dtype::nvfp4, tiffin::dtype::f32, 0, 0},
    {"Q8_0", tiffin::dtype::q8_0, tiffin::dtype::f32, 0, 0},
    {"int8 rows", tiffin::dtype::u8, tiffin::dtype::f32, 1, 0, true},
    {"int4 rows", tiffin::dtype::u4, tiffin::dtype::f16, 1, 0, true},
};

// A tensor (..., rows, width) of random codes with random scales.
class scaled_tensor {
public:
    // `in_rows`: the scales follow the codes of each row, as if every row had scales of its own.
    scaled_tensor(const scaling& how, const tiffin::shape& shape, bool in_rows, std::uint32_t seed)
        : type_(how.codes), shape_(shape) {
        const std::size_t width = shape.last(), all = shape.elements() / width;
        const std::size_t columns = how.columns == 0 ? width : how.columns;
        const std::size_t rows = in_rows ? 1 : how.rows == 0 ? all : how.rows;
        const std::size_t per_row = (width + columns - 1) / columns, per_scale = how.has_bias ? 2 : 1;
        const std::size_t scale_bytes = tiffin::size_of(how.scales);
        std::vector<unsigned char> codes = noise_blocks(type_, all * width, seed);
        for (unsigned char& c : codes) {
            if (type_ == tiffin::dtype::f8_e4m3) c &= 0xBF;                           // magnitudes below 2
            if (type_ == tiffin::dtype::f8_e5m2) c = c & 0x80 ? c & 0xBF : c & 0x3F;  // the same, without NaN
        }
        if (type_ == tiffin::dtype::bf16)
            for (std::size_t i = 1; i < codes.size(); i += 2) codes[i] = (codes[i] & 0x80) | 0x3F;
        if (type_ == tiffin::dtype::nvfp4)
            for (std::size_t i = 0; i < codes.size(); ++i)
                if (i % 36 < 4) codes[i] &= 0x37;
        const std::size_t groups = (all + rows - 1) / rows;
        std::vector<unsigned char> scales(groups * per_row * per_scale * scale_bytes);
        std::vector<float> scale_of(groups * per_row * per_scale);
        for (std::size_t i = 0; i < scale_of.size(); ++i) {
            seed = seed * 1664525u + 1013904223u;
            // Random bits between 2^-6 and 2^-5, exact in the scale's format.
            std::uint32_t bits = 0;
            switch (how.scales) {
                case tiffin::dtype::f32: bits = 0x3C800000u | (seed >> 9 & 0x7FFFFF); break;
                case tiffin::dtype::f16: bits = 0x2400u | (seed >> 22); break;
                case tiffin::dtype::bf16: bits = 0x3C80u | (seed >> 25); break;
                default: bits = 118 + (seed >> 30); break;
            }
            std::memcpy(scales.data() + i * scale_bytes, &bits, scale_bytes);
            tiffin::read_as_f32(scales.data() + i * scale_bytes, how.scales, 0, 1, &scale_of[i]);
        }
        values_.resize(all * width);
        tiffin::read_as_f32(codes.data(), type_, 0, values_.size(), values_.data());
        for (std::size_t r = 0; r < all; ++r)
            for (std::size_t j = 0; j < width; ++j) {
                const std::size_t at = (r / rows * per_row + j / columns) * per_scale;
                float& v = values_[r * width + j];
                v = how.has_bias ? std::fma(scale_of[at], v, scale_of[at + 1]) : scale_of[at] * v;
            }
        scales_.type = how.scales;
        scales_.columns = how.columns == 0 ? tiffin::tensor_scales::all : how.columns;
        scales_.rows = !in_rows && how.rows == 0 ? tiffin::tensor_scales::all : rows;
        scales_.has_bias = how.has_bias;
        const std::size_t row = tiffin::bytes_of(type_, width), beside = scales.size() / all;
        bytes_.resize(codes.size() + scales.size() + 1);
        std::byte* const to = bytes_.data() + 1;  // at an odd address
        for (std::size_t r = 0; r < all && in_rows; ++r) {
            std::memcpy(to + r * (row + beside), codes.data() + r * row, row);
            std::memcpy(to + r * (row + beside) + row, scales.data() + r * beside, beside);
        }
        if (in_rows) return;
        std::memcpy(to, codes.data(), codes.size());
        std::memcpy(to + codes.size(), scales.data(), scales.size());
        scales_.data = to + codes.size();
    }
    [[nodiscard]] tiffin::tensor_view view() const noexcept {
        return {bytes_.data() + 1, type_, shape_, 0, scales_};
    }
    [[nodiscard]] const std::vector<float>& values() const noexcept { return values_; }

private:
    tiffin::dtype type_;
    tiffin::shape shape_;
    tiffin::tensor_scales scales_{};
    std::vector<std::byte> bytes_;  // its memory stays where it is when the object is moved
    std::vector<float> values_;
};

}  // namespace tiffin_test
