// The dense sizes that sparse layers are compared with: equal parameters, equal loss.
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

// The compute that a backbone without modulators needs for the loss of one with MoRT, over what MoRT
// spends: C / C_MoRT = 1 + gamma eta, with eta the measure of how many token-indexed parameters there are.
// gamma is an argument, for no single one gives the published 1.20, 1.25 and 1.29 at eta 30, 50 and 80:
//   they need 0.0067, 0.0050 and 0.0036, and rounding to two decimals explains less than 3 % of that. The
//   gain grows like a logarithm (0.20 + 0.092 log(eta / 30) gives all three), so a gamma holds for the
//   eta it was fitted at.
// Source: MoRT, docs/layers.md#equal-sizes.
constexpr double mort_compute_ratio(double gamma, double eta) {
    return 1 + gamma * eta;
}

// The size of the backbone without modulators that reaches the loss of one of `parameters` with them:
// N_c (1 + gamma eta); gamma and eta as in mort_compute_ratio.
// Source: MoRT, docs/layers.md#equal-sizes.
constexpr double mort_effective_parameters(double parameters, double gamma, double eta) {
    return parameters * mort_compute_ratio(gamma, eta);
}

TIFFIN_END
