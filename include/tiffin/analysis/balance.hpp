// Load-balancing losses of routers.
#pragma once

#include <tiffin/analysis/routing.hpp>
#include <tiffin/error.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

TIFFIN_BEGIN

// The sizes of a routed call: k of the experts for each token.
struct routing_shape {
    std::size_t tokens = 0;
    std::size_t experts = 0;
    std::size_t k = 1;
};

namespace detail {

// Checks that a span holds (rows, columns) values; columns is not 0.
inline status check_matrix(const char* name, std::size_t size, std::size_t rows, std::size_t columns) {
    if (size % columns == 0 && size / columns == rows) return {};  // rows * columns might overflow
    return failure(errc::size, name, "has ", size, " elements, not (", rows, ", ", columns, ")");
}

// sum_e f_e P_e with f_e the share of selections and P_e the mean over tokens of what `row` writes.
// row(const float* in, double* out): E values of one token.
template <class Row>
result<double> balance_sum(std::span<const float> values, const char* name,
                           std::span<const std::int32_t> routes, const routing_shape& shape, const Row& row) {
    const std::size_t E = shape.experts;
    if (shape.tokens == 0) return failure(errc::option, "tokens", "is 0; there is no mean over no tokens");
    if (E == 0) return failure(errc::option, "experts", "is 0");
    if (shape.k == 0 || shape.k > E)
        return failure(errc::option, "k", "is ", shape.k, ", not 1 to the ", E, " experts");
    if (status s = check_matrix(name, values.size(), shape.tokens, E); !s) return s.failure();
    if (status s = check_matrix("routes", routes.size(), shape.tokens, shape.k); !s) return s.failure();
    routing_statistics counted(E);
    if (status s = counted.add(routes, shape.k); !s) return s.failure();

    std::vector<double> mean(E), one(E);
    for (std::size_t t = 0; t < shape.tokens; ++t) {
        row(values.data() + t * E, one.data());
        for (std::size_t e = 0; e < E; ++e) mean[e] += one[e];
    }
    double sum = 0;
    for (std::size_t e = 0; e < E; ++e)
        sum += counted.share(e) * (mean[e] / static_cast<double>(shape.tokens));
    return sum;
}

}  // namespace detail

// The balance loss of the Switch Transformer.
// alpha * E * sum_e f_e P_e, f_e the share of all selections that went to e, P_e the mean over the
//   tokens of the router's probability of e. Selections spread evenly give alpha, whatever the
//   probabilities; all on one expert of probability 1, with k = 1, alpha * E.
// Shapes: probabilities (T,E), routes (T,k), row by row.
// Numerics: sums in double; probabilities are taken as they are, not normalised.
// Errors: errc::option for a size of 0, k > E, or an index outside [0, E); errc::size for a span that
//   is not of its shape.
// Cost: O(T (E + k)); allocates O(E).
// Source: docs/layers.md#balance-losses; alpha is StructMoE's.
inline result<double> switch_balance_loss(std::span<const float> probabilities,
                                          std::span<const std::int32_t> routes, const routing_shape& shape,
                                          double alpha = 0.01) {
    const auto as_given = [&](const float* in, double* out) {
        for (std::size_t e = 0; e < shape.experts; ++e) out[e] = static_cast<double>(in[e]);
    };
    result<double> sum = detail::balance_sum(probabilities, "probabilities", routes, shape, as_given);
    if (sum) *sum *= alpha * static_cast<double>(shape.experts);
    return sum;
}

// The balance loss of MoRT's routers.
// lambda * n_e * sum_i p_i f_i, f_i = n_i / (T K), p_i the mean over the tokens of
//   sigmoid(g_i) / sum_j sigmoid(g_j), j over all n_e experts. The paper leaves p open: this is one reading.
// Shapes: logits g (T,n_e), routes (T,K), row by row.
// Numerics: in double, with log sigmoid(g) = min(g, 0) - log(1 + exp(-|g|)) shifted by the row's
//   largest, so that rows of very negative logits keep their ratios. NaN for a row that holds a NaN or
//   -infinity alone.
// Errors: as switch_balance_loss.
// Cost: O(T (n_e + K)), two exponentials and a logarithm per logit; allocates O(n_e).
// Source: MoRT (Eq. 21), docs/layers.md#balance-losses.
inline result<double> mort_balance_loss(std::span<const float> logits, std::span<const std::int32_t> routes,
                                        const routing_shape& shape, double lambda = 1e-4) {
    const auto normalised_sigmoid = [&](const float* in, double* out) {
        for (std::size_t e = 0; e < shape.experts; ++e) {
            const auto g = static_cast<double>(in[e]);
            out[e] = std::min(g, 0.0) - std::log1p(std::exp(-std::fabs(g)));
        }
        const double largest = *std::max_element(out, out + shape.experts);
        double sum = 0;
        for (std::size_t e = 0; e < shape.experts; ++e) {
            out[e] = std::exp(out[e] - largest);
            sum += out[e];
        }
        for (std::size_t e = 0; e < shape.experts; ++e) out[e] /= sum;
    };
    result<double> sum = detail::balance_sum(logits, "logits", routes, shape, normalised_sigmoid);
    if (sum) *sum *= lambda * static_cast<double>(shape.experts);
    return sum;
}

TIFFIN_END
