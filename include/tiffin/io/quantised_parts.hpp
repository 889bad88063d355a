// Names of the tensors that other tools store beside quantised weights: scales, zero points, packed codes.
#pragma once

#include <tiffin/config.hpp>
#include <tiffin/error.hpp>

#include <array>
#include <string>
#include <string_view>
#include <utility>

TIFFIN_BEGIN
namespace io {

// What a tensor is, by the end of its name, as part of an error message; empty where it is no part of a quantised
// weight. A weight that has such parts is not read without them: its values would be wrong.
// Source: the names of compressed-tensors, FP8 and ModelOpt checkpoints, GPTQ, AWQ, bitsandbytes and llama.cpp.
constexpr std::string_view quantised_part(std::string_view tensor) noexcept {
    constexpr std::string_view scales =
                                   "scales that quantised weights, or products with them, are multiplied by",
                               activations = "the scale by which activations are rounded",
                               zeros = "the zero points of quantised weights",
                               order = "the groups of a quantised weight's columns",
                               packed = "quantised weights, packed", table = "how weights were quantised";
    constexpr std::array<std::pair<std::string_view, std::string_view>, 26> known{{
        {"scale", scales},
        {"scales", scales},
        {"weight_scale", scales},
        {"weight_scale_inv", scales},
        {"weight_scale_2", scales},
        {"weight_global_scale", scales},
        {"weights_scaling_factor", scales},
        {"scale_inv", scales},
        {"SCB", scales},
        {"absmax", scales},
        {"nested_absmax", scales},
        {"input_scale", activations},
        {"input_global_scale", activations},
        {"activation_scale", activations},
        {"zero_point", zeros},
        {"weight_zero_point", zeros},
        {"input_zero_point", zeros},
        {"zeros", zeros},
        {"qzeros", zeros},
        {"g_idx", order},
        {"weight_g_idx", order},
        {"qweight", packed},
        {"weight_packed", packed},
        {"weight_shape", table},
        {"quant_map", table},
        {"nested_quant_map", table},
    }};
    const std::string_view end = tensor.substr(tensor.rfind('.') + 1);  // all of it where there is no dot
    for (const auto& [name, meaning] : known)
        if (end == name) return meaning;
    return tensor.find(".quant_state.") == tensor.npos ? "" : table;
}

// The failure for a tensor that `owner`, such as "the FFN of 'llama'", has no use for. Nothing is ignored: what is not
// applied may change values.
inline failure unused_failure(std::string_view tensor, std::string_view owner) {
    const std::string_view part = quantised_part(tensor);
    return failure(errc::unused_tensor, std::string(tensor), owner, " has no tensor of this name",
                   part.empty() ? "" : ": it is ", part,
                   part.empty() ? "" : ", and weights that are quantised so are not read");
}

}  // namespace io
TIFFIN_END
