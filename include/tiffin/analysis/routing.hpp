// How evenly a router, or a hash map, spreads the tokens of a text over its experts.
#pragma once

#include <tiffin/error.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

TIFFIN_BEGIN

// Counts the selections of every expert over any number of calls.
// With n_e the selections of expert e, N their sum and p_e = n_e / N: entropy -sum p_e log p_e in
//   nats, its share of log E (1 where all experts are equally busy), the share max p_e of the busiest.
// Shapes: routes (T,k), row by row; k may differ from call to call.
// Numerics: counts are exact, the rest is in double. Before anything is counted entropy and shares
//   are 0. With a single expert the entropy's share is 1.
// Errors: errc::size where the number of routes is not a multiple of k; errc::option where k is 0 or
//   an index lies outside [0, E). Found before anything is counted. An expert that occurs twice in a row
//   counts twice.
// Cost: adding O(T k) without allocation; every figure but total and tokens O(E).
// Source: docs/layers.md#routing-statistics.
//
//     routing_statistics text(16);
//     if (status s = text.add(routes, 2); !s) return s;
//     text.entropy_share();
class routing_statistics {
public:
    explicit routing_statistics(std::size_t experts) : selections_(experts) {}

    status add(std::span<const std::int32_t> routes, std::size_t k = 1) {
        if (k == 0) return failure(errc::option, "k", "is 0; a token selects at least one expert");
        if (routes.size() % k != 0)
            return failure(errc::size, "routes", routes.size(), " indices are no whole number of rows of ",
                           k);
        for (std::size_t i = 0; i < routes.size(); ++i)
            if (routes[i] < 0 || static_cast<std::size_t>(routes[i]) >= selections_.size())
                return failure(errc::option, "routes", "expert ", routes[i], " of token ", i / k,
                               " of the call lies outside [0, ", selections_.size(), ")");
        for (const std::int32_t e : routes) ++selections_[static_cast<std::size_t>(e)];
        total_ += routes.size();
        tokens_ += routes.size() / k;
        return {};
    }

    [[nodiscard]] std::size_t experts() const noexcept { return selections_.size(); }
    [[nodiscard]] std::span<const std::uint64_t> selections() const noexcept { return selections_; }
    [[nodiscard]] std::uint64_t total() const noexcept { return total_; }
    [[nodiscard]] std::uint64_t tokens() const noexcept { return tokens_; }

    // The share of all selections that went to expert e. Precondition: e < experts().
    [[nodiscard]] double share(std::size_t e) const noexcept {
        return total_ == 0 ? 0 : static_cast<double>(selections_[e]) / static_cast<double>(total_);
    }
    // The expert with the most selections, the lowest of equals. Precondition: experts() > 0.
    [[nodiscard]] std::size_t busiest() const noexcept {
        return static_cast<std::size_t>(std::max_element(selections_.begin(), selections_.end()) -
                                        selections_.begin());
    }
    [[nodiscard]] double busiest_share() const noexcept { return total_ == 0 ? 0 : share(busiest()); }
    [[nodiscard]] double entropy() const noexcept {
        double sum = 0;
        for (std::size_t e = 0; e < selections_.size(); ++e)
            if (selections_[e] != 0) sum -= share(e) * std::log(share(e));
        return sum;
    }
    [[nodiscard]] double entropy_share() const noexcept {
        if (total_ == 0) return 0;
        return experts() == 1 ? 1 : entropy() / std::log(static_cast<double>(experts()));
    }

private:
    std::vector<std::uint64_t> selections_;
    std::uint64_t total_ = 0;
    std::uint64_t tokens_ = 0;
};

TIFFIN_END
