// Losses on a router's logits, with their gradients.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/router/selection.hpp>
#include <tiffin/view.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

TIFFIN_BEGIN

// The weight of each loss; 0: not computed.
struct router_loss_weights {
    double switch_balance = 0;  // alpha; StructMoE: 0.01
    double mort_balance = 0;    // lambda; MoRT: 1e-4
    double z = 0;               // router z-loss
};

// The sum of the losses on one router in a step, and its gradient with respect to the logits.
//   switch_balance E sum_e f_e P_e,  P_e the mean over the tokens of softmax(g)_e;
//   mort_balance   E sum_e f_e p_e,  p_e that of sigmoid(g_e) / sum_j sigmoid(g_j);
//   z              mean over the tokens of logsumexp(g)^2;
// f_e is the share of the selections that expert e got; it has no gradient.
// Shapes: logits, d_logits (T, E), routes (T, k): as training_inputs and input_gradients have them.
// Numerics: in double; d_logits is rounded once and added to.
// Over ranks: where each has a part of the tokens, over_ranks replaces numbers by their sums over the ranks. T, f_e and the
//   loss are then those of all tokens, and d_logits the gradient of this rank's. Every rank has tokens, and the same E.
// Errors: errc::size, errc::option for an expert outside [0, E), on another rank too; before anything is written.
// Cost: O(T E), a few exponentials per logit. No allocation after the first call with E experts.
// Source: Switch Transformer, MoRT Eq. 21, docs/layers.md#balance-losses.
class router_loss {
public:
    explicit router_loss(router_loss_weights weights) : weights_(weights) {}

    template <class Number>
    result<double> operator()(matrix_view<const Number> logits, std::span<const choice<float>> routes,
                              matrix_view<Number> d_logits,
                              const std::function<void(std::span<double>)>& over_ranks = {}) {
        const std::size_t T = logits.rows, E = logits.cols;
        const status here = check(logits, routes, d_logits);
        // Selections of each expert, selections, tokens. An error here is passed to the other ranks as NaN.
        share_.assign(E + 2, here ? 0.0 : std::numeric_limits<double>::quiet_NaN());
        if (here) {
            for (const choice<float>& c : routes) ++share_[static_cast<std::size_t>(c.expert)];
            share_[E] = static_cast<double>(routes.size());
            share_[E + 1] = static_cast<double>(T);
        }
        if (over_ranks) over_ranks(share_);
        if (!here) return here.failure();
        if (!std::isfinite(share_[E])) return failure(errc::option, "routes", "are wrong on another rank");
        for (std::size_t e = 0; e < E; ++e) share_[e] /= share_[E];
        row_.resize(E);

        const double each = 1 / share_[E + 1], balanced = each * static_cast<double>(E);
        double loss = 0;
        for (std::size_t t = 0; t < T; ++t) {
            const Number* const g = logits.data + t * logits.stride;
            Number* const to = d_logits.data + t * d_logits.stride;
            if (weights_.switch_balance != 0 || weights_.z != 0) {
                const double size = softmax_of(g);  // logsumexp
                loss += weights_.z * each * size * size;
                const double even = weighted();
                loss += weights_.switch_balance * balanced * even;
                for (std::size_t e = 0; e < E; ++e)
                    to[e] += static_cast<Number>(row_[e] *
                                                 (weights_.switch_balance * balanced * (share_[e] - even) +
                                                  2 * weights_.z * each * size));
            }
            if (weights_.mort_balance != 0) {
                for (std::size_t e = 0; e < E; ++e) row_[e] = log_sigmoid(static_cast<double>(g[e]));
                softmax_of(row_.data());
                const double even = weighted();
                loss += weights_.mort_balance * balanced * even;
                // d log sigmoid(g) / dg = sigmoid(-g)
                for (std::size_t e = 0; e < E; ++e)
                    to[e] +=
                        static_cast<Number>(weights_.mort_balance * balanced * row_[e] * (share_[e] - even) *
                                            std::exp(log_sigmoid(-static_cast<double>(g[e]))));
            }
        }
        if (over_ranks) over_ranks({&loss, 1});
        return loss;
    }

private:
    template <class Number>
    static status check(matrix_view<const Number> logits, std::span<const choice<float>> routes,
                        matrix_view<Number> d_logits) {
        const std::size_t T = logits.rows, E = logits.cols;
        if (T == 0 || E == 0) return failure(errc::size, "logits", "is (", T, ", ", E, ")");
        if (d_logits.rows != T || d_logits.cols != E)
            return failure(errc::size, "d_logits", "is (", d_logits.rows, ", ", d_logits.cols,
                           "); the logits are (", T, ", ", E, ")");
        if (T > 1 && (logits.stride < E || d_logits.stride < E))
            return failure(errc::size, logits.stride < E ? "logits" : "d_logits", "has a row stride of ",
                           logits.stride < E ? logits.stride : d_logits.stride, ", less than its width ", E);
        if (routes.empty() || routes.size() % T != 0)
            return failure(errc::size, "routes", "has ", routes.size(), " choices for ", T, " tokens");
        for (const choice<float>& c : routes)
            if (c.expert < 0 || static_cast<std::size_t>(c.expert) >= E)
                return failure(errc::option, "routes", "expert ", c.expert, " lies outside [0, ", E, ")");
        return {};
    }
    static double log_sigmoid(double g) { return std::fmin(g, 0.0) - std::log1p(std::exp(-std::fabs(g))); }
    // row_ <- softmax(g); returns log sum exp(g). g may be row_.
    template <class Number>
    double softmax_of(const Number* g) {
        const auto most = static_cast<double>(*std::max_element(g, g + row_.size()));
        double sum = 0;
        for (std::size_t e = 0; e < row_.size(); ++e)
            sum += row_[e] = std::exp(static_cast<double>(g[e]) - most);
        for (double& p : row_) p /= sum;
        return most + std::log(sum);
    }
    [[nodiscard]] double weighted() const {
        double sum = 0;
        for (std::size_t e = 0; e < row_.size(); ++e) sum += share_[e] * row_[e];
        return sum;
    }

    router_loss_weights weights_;
    std::vector<double> share_, row_;
};

TIFFIN_END
