// The scales that a model's file has beside a weight.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/tensor.hpp>

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

TIFFIN_BEGIN
namespace io {

// The names that a tensor of scales has in place of "weight" at the end of its weight's name. Whatever the name says, the
// weight's codes are multiplied by them.
// Source: FP8 checkpoints of Transformers and vLLM; DeepSeek; DeepSeek's Engram, and llama.cpp.
inline constexpr std::array<std::string_view, 3> scale_names{{"weight_scale", "weight_scale_inv", "scale"}};

// Gives `weight` its scales, of a tensor named `name`. What a scale covers is told by the shapes: all values where there is
// one scale; all rows of an expert where there is one per expert of a weight (experts, rows, columns); a row (rows) or
// (rows, 1); `n` values of a row (rows, columns / n); or a block of n x n, n being 128, 64 or 32 where these shapes allow
// it, (rows / n, columns / n), rounded up.
// Errors: errc::shape where the shapes fit none of these, errc::dtype where the scales are in no format of scales.
inline status add_scales(tensor_view& weight, const tensor_view& scales, const std::string& name) {
    const shape& w = weight.shape;
    const shape& s = scales.shape;
    const std::size_t columns = w.last(), rows = columns == 0 ? 0 : w.elements() / columns;
    const auto refuse = [&](errc code, std::string_view why) {
        return failure(code, name, "is ", name_of(scales.type), " of shape ", to_string(s),
                       "; it has the scales of a weight ", to_string(w), why);
    };
    if (!holds_scales(scales.type)) return refuse(errc::dtype, ", which are F32, F16, BF16 or F8_E8M0");
    const auto parts = [](std::size_t n, std::size_t of) { return (of + n - 1) / n; };
    tensor_scales& made = weight.scales;
    made = {scales.type, 1, tensor_scales::all, false, scales.data};
    if (s.elements() == 1) {
        made.rows = tensor_scales::all;
    } else if (w.rank() == 3 && s.elements() == w[0]) {
        made.rows = w[1];
    } else if (s.elements() == rows && s.rank() > 0 && (s[0] == rows || s.last() == 1)) {
        // one per row
    } else if (s.elements() > 0 && s.rank() == w.rank() && s.rank() >= 2 && s.elements() / s.last() == rows &&
               columns % s.last() == 0) {
        made.columns = columns / s.last();
    } else {
        std::size_t n = 0;
        for (const std::size_t block : {std::size_t{128}, std::size_t{64}, std::size_t{32}})
            if (n == 0 && s.rank() == 2 && w.rank() == 2 && s[0] == parts(block, rows) &&
                s[1] == parts(block, columns))
                n = block;
        made.rows = made.columns = n;
        if (n == 0) {
            made = {};
            return refuse(errc::shape,
                          ", which are one for all, one per row, per expert, per part of a row or per "
                          "block of 128, 64 or 32 rows and columns");
        }
    }
    return {};
}

}  // namespace io
TIFFIN_END
