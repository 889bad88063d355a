// The width of a sparse layer that has as many parameters as a dense one.
#pragma once

#include <tiffin/config.hpp>

#include <cstddef>

TIFFIN_BEGIN

// The width at which a StructMoE block has no more parameters than a dense one of width d_ff.
// floor(f'), f' = (2 d f - d L (r + 1)) / (2 d + L r): the root of 2 d f' + L r (d + f') + d L = 2 d f.
// Numerics: in integers. 0 where the experts alone have more parameters, or where d and L r are 0.
// Source: StructMoE, docs/layers.md#equal-sizes.
//
//     structmoe_width_at_equal_parameters(2048, 7168, 16, 16) == 6618
constexpr std::size_t structmoe_width_at_equal_parameters(std::size_t d_model, std::size_t d_ff,
                                                          std::size_t experts, std::size_t rank) {
    const std::size_t dense = 2 * d_model * d_ff, of_experts = d_model * experts * (rank + 1);
    const std::size_t a_unit_of_width = 2 * d_model + experts * rank;
    return dense <= of_experts || a_unit_of_width == 0 ? 0 : (dense - of_experts) / a_unit_of_width;
}

TIFFIN_END
