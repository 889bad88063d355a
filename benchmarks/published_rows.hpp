// Rows rounded to the formats of published tables, value by value to the nearest code.
#pragma once

#include <tiffin/format/scales.hpp>
#include <tiffin/tensor.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace benchmarks {

struct published_format {
    const char* name;
    tiffin::dtype codes;
    tiffin::dtype scales;
    std::size_t columns;  // that share a scale; 0: the whole row
    bool per_tensor = false;
    bool has_bias = false;
};
inline constexpr std::array<published_format, 8> published_formats{{
    {"F8_E5M2, one scale", tiffin::dtype::f8_e5m2, tiffin::dtype::f32, 0, true},
    {"F8_E4M3, one scale", tiffin::dtype::f8_e4m3, tiffin::dtype::f32, 0, true},
    {"F8_E4M3, a scale per row", tiffin::dtype::f8_e4m3, tiffin::dtype::f32, 0},
    {"F8_E4M3, E8M0 per 32", tiffin::dtype::f8_e4m3, tiffin::dtype::f8_e8m0, 32},
    {"NVFP4, one factor", tiffin::dtype::nvfp4, tiffin::dtype::f32, 0, true},
    {"8 bits, scale and bias per row", tiffin::dtype::u8, tiffin::dtype::f32, 0, false, true},
    {"4 bits, scale and bias per row", tiffin::dtype::u4, tiffin::dtype::f16, 0, false, true},
    {"4 bits, scale and bias per 32", tiffin::dtype::u4, tiffin::dtype::f16, 32, false, true},
}};

// The number of 8 bits that is nearest to v, without NaN and infinities. Ties go to the lower bits.
template <class Format>
std::uint8_t nearest(float v) {
    std::uint8_t best = 0;
    float distance = HUGE_VALF;
    for (unsigned bits = 0; bits < 256; ++bits) {
        float number;
        Format::decode(static_cast<std::uint8_t>(bits), &number);
        if (!(std::fabs(number - v) < distance)) continue;
        distance = std::fabs(number - v);
        best = static_cast<std::uint8_t>(bits);
    }
    return best;
}

// A table (rows, width) in one of these formats.
class published_rows {
public:
    published_rows(const published_format& how, const std::vector<float>& numbers, std::size_t width)
        : shape_{numbers.size() / width, width}, type_(how.codes) {
        const std::size_t part = how.columns == 0 ? width : how.columns, rows = shape_[0];
        const auto largest = [&](std::size_t first, std::size_t count) {
            float most = 0;
            for (std::size_t i = first; i < first + count; ++i) most = std::max(most, std::fabs(numbers[i]));
            return most;
        };
        codes_.resize(tiffin::bytes_of(how.codes, numbers.size()));
        const float all = largest(0, numbers.size());
        for (std::size_t first = 0; first < numbers.size(); first += part) {
            float scale = 0, bias = 0;
            if (how.has_bias) {
                const auto [low, high] = std::minmax_element(numbers.begin() + signed_(first),
                                                             numbers.begin() + signed_(first + part));
                bias = stored(*low, how.scales);
                scale =
                    stored((*high - bias) / (how.codes == tiffin::dtype::u8 ? 255.0f : 15.0f), how.scales);
            } else {
                const float most = how.codes == tiffin::dtype::f8_e5m2 ? 57344.0f
                                   : how.codes == tiffin::dtype::nvfp4 ? 6 * 448.0f
                                                                       : 448.0f;
                scale = (how.per_tensor ? all : largest(first, part)) / most;
                if (how.scales == tiffin::dtype::f8_e8m0) scale = std::exp2(std::ceil(std::log2(scale)));
            }
            encode(how.codes, numbers.data(), first, part, scale, bias);
            if (how.per_tensor && first != 0) continue;
            add(scale, how.scales);
            if (how.has_bias) add(bias, how.scales);
        }
        scales_ = {how.scales, how.per_tensor ? rows : 1, part, how.has_bias, scale_bytes_.data()};
    }
    // Views: valid as long as this.
    [[nodiscard]] tiffin::tensor_view view() const noexcept {
        return {codes_.data(), type_, shape_, 0, scales_};
    }

private:
    static std::ptrdiff_t signed_(std::size_t i) noexcept { return static_cast<std::ptrdiff_t>(i); }
    static float stored(float v, tiffin::dtype type) noexcept {
        return type == tiffin::dtype::f16 ? tiffin::f16_to_f32(tiffin::f32_to_f16(v)) : v;
    }
    void add(float v, tiffin::dtype type) {
        std::uint32_t bits;
        std::memcpy(&bits, &v, sizeof bits);
        if (type == tiffin::dtype::f16) bits = tiffin::f32_to_f16(v);
        if (type == tiffin::dtype::f8_e8m0) bits >>= 23;
        const auto* const bytes = reinterpret_cast<const unsigned char*>(&bits);
        scale_bytes_.insert(scale_bytes_.end(), bytes, bytes + tiffin::size_of(type));
    }
    void encode(tiffin::dtype type, const float* numbers, std::size_t first, std::size_t count, float scale,
                float bias) {
        for (std::size_t i = first; i < first + count; ++i) {
            const float v = scale == 0 ? 0 : (numbers[i] - bias) / scale;
            if (type == tiffin::dtype::f8_e4m3) codes_[i] = nearest<tiffin::f8_e4m3>(v);
            if (type == tiffin::dtype::f8_e5m2) codes_[i] = nearest<tiffin::f8_e5m2>(v);
            const auto whole = static_cast<unsigned>(std::lround(std::max(v, 0.0f)));
            if (type == tiffin::dtype::u8) codes_[i] = static_cast<unsigned char>(std::min(whole, 255u));
            if (type == tiffin::dtype::u4)
                codes_[i / 2] = static_cast<unsigned char>(codes_[i / 2] | std::min(whole, 15u) << i % 2 * 4);
        }
        for (std::size_t i = first; type == tiffin::dtype::nvfp4 && i < first + count; i += 16) {
            float most = 0;
            for (std::size_t j = i; j < i + 16; ++j) most = std::max(most, std::fabs(numbers[j] / scale));
            const std::uint8_t bits = nearest<tiffin::f8_e4m3>(most / 6);
            float of_part;
            tiffin::f8_e4m3::decode(bits, &of_part);
            unsigned char* const block = codes_.data() + i / 64 * 36;
            block[i % 64 / 16] = bits;
            for (std::size_t j = 0; j < 16; ++j) {
                const float v = of_part == 0 ? 0 : 2 * numbers[i + j] / scale / of_part;  // as doubled codes
                unsigned best = 0;
                for (unsigned c = 1; c < 16; ++c)
                    if (std::fabs(static_cast<float>(tiffin::mxfp4::doubled[c]) - v) <
                        std::fabs(static_cast<float>(tiffin::mxfp4::doubled[best]) - v))
                        best = c;
                unsigned char& pair = block[4 + i % 64 / 2 + j % 8];
                pair = static_cast<unsigned char>(pair | best << j / 8 * 4);
            }
        }
    }

    tiffin::shape shape_;
    tiffin::dtype type_;
    std::vector<unsigned char> codes_, scale_bytes_;
    tiffin::tensor_scales scales_{};
};

}  // namespace benchmarks
