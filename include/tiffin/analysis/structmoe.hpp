// Published accounting that no composition tells by itself: StructMoE's sizes, MeKi's memories, MoRT's
// effective size.
#pragma once

#include <tiffin/config.hpp>

#include <cstddef>

TIFFIN_BEGIN

// The sizes of a block y = phi(x W_1^T + delta) W_2^T with delta from k of L experts of rank r. d_ff is
// f', the width of W_1 and W_2. All counts here are without biases.
struct structmoe_shape {
    std::size_t d_model = 0;
    std::size_t d_ff = 0;
    std::size_t experts = 0;
    std::size_t rank = 0;
    std::size_t k = 1;
};

// The width at which a StructMoE block has no more parameters than a dense one of width d_ff.
// floor(f'), f' = (2 d f - d L (r + 1)) / (2 d + L r): the root of structmoe_parameters = 2 d f.
// Numerics: in integers. 0 where the experts alone have more parameters, or where d and L r are 0.
// Source: StructMoE, SPEC section 4.
//
//     structmoe_width_at_equal_parameters(2048, 7168, 16, 16) == 6618
constexpr std::size_t structmoe_width_at_equal_parameters(std::size_t d_model, std::size_t d_ff,
                                                          std::size_t experts, std::size_t rank) {
    const std::size_t dense = 2 * d_model * d_ff, of_experts = d_model * experts * (rank + 1);
    const std::size_t a_unit_of_width = 2 * d_model + experts * rank;
    return dense <= of_experts || a_unit_of_width == 0 ? 0 : (dense - of_experts) / a_unit_of_width;
}

// The parameters of a StructMoE block: W_1 and W_2, A and B of every expert, the router.
// 2 d f' + L r (d + f') + d L.
// Source: StructMoE, SPEC section 4.
constexpr double structmoe_parameters(const structmoe_shape& shape) {
    const auto d = static_cast<double>(shape.d_model), f = static_cast<double>(shape.d_ff);
    const auto L = static_cast<double>(shape.experts), r = static_cast<double>(shape.rank);
    return 2 * d * f + L * r * (d + f) + d * L;
}

// The matrix FLOPs of a token, a multiply-add counted as 2: W_1 and W_2, the router, k experts.
// 4 d f' + 2 d L + 2 k r (d + f').
// Source: StructMoE, SPEC section 4: 0.929 of the dense 4 d f at equal parameters.
constexpr double structmoe_flops_per_token(const structmoe_shape& shape) {
    const auto d = static_cast<double>(shape.d_model), f = static_cast<double>(shape.d_ff);
    const auto L = static_cast<double>(shape.experts), r = static_cast<double>(shape.rank);
    return 4 * d * f + 2 * d * L + 2 * static_cast<double>(shape.k) * r * (d + f);
}

// The weights of MeKi's memories in a whole network: layers * V * d_mem.
// Source: MeKi, SPEC section 4.
constexpr double meki_memory_weights(std::size_t layers, std::size_t vocab, std::size_t d_mem) {
    return static_cast<double>(layers) * static_cast<double>(vocab) * static_cast<double>(d_mem);
}

// The bytes that a token reads of MeKi's memories, one row a layer: layers * d_mem * bits / 8.
// Source: MeKi, SPEC section 4 (f16, 16 bits).
constexpr double meki_bytes_per_token(std::size_t layers, std::size_t d_mem, double bits = 16) {
    return static_cast<double>(layers) * static_cast<double>(d_mem) * bits / 8;
}

// What a backbone without modulators would have to spend for the loss of one with MoRT, over what MoRT
// spends: C / C_MoRT = 1 + gamma eta, with eta the measure of how many token-indexed parameters there are.
// gamma is an argument, for no single one gives the published 1.20, 1.25 and 1.29 at eta 30, 50 and 80:
//   they need 0.0067, 0.0050 and 0.0036, and rounding to two decimals explains less than 3 % of that. The
//   gain grows like a logarithm (0.20 + 0.092 log(eta / 30) gives all three), so a gamma holds for the
//   eta it was fitted at.
// Source: MoRT, SPEC section 4.
constexpr double mort_compute_ratio(double gamma, double eta) {
    return 1 + gamma * eta;
}

// The size of the backbone without modulators that reaches the loss of one of `parameters` with them:
// N_c (1 + gamma eta); gamma and eta as in mort_compute_ratio.
// Source: MoRT, SPEC section 4.
constexpr double mort_effective_parameters(double parameters, double gamma, double eta) {
    return parameters * mort_compute_ratio(gamma, eta);
}

TIFFIN_END
