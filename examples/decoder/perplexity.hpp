// The perplexity of a text as llama-perplexity counts it, so that figures can be compared.
#pragma once

#include "gguf_model.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

// exp of the mean of -log p(token | those before it in its chunk).
struct perplexity_sum {
    std::size_t predictions = 0;
    double sum = 0, squares = 0;

    [[nodiscard]] double value() const { return std::exp(sum / static_cast<double>(predictions)); }
    // Of the mean's own error, were the predictions independent.
    [[nodiscard]] double error() const {
        const double n = static_cast<double>(predictions), mean = sum / n, spread = squares / n - mean * mean;
        return spread > 0 && predictions > 1 ? std::sqrt(spread / (n - 1)) * value() : 0;
    }
};

// -log p(target) of each row of logits.
inline void surprise(const row_matrix& logits, std::span<const std::int32_t> targets, std::span<double> to,
                     tiffin::executor_ref execute) {
    in_parts(execute, targets.size(), 1, [&](Eigen::Index first, Eigen::Index count) {
        for (Eigen::Index t = first; t < first + count; ++t) {
            const auto row = logits.row(t).array();
            const float most = row.maxCoeff();
            const double all = (row - most).exp().cast<double>().sum();
            const auto i = static_cast<std::size_t>(t);
            to[i] = std::log(all) + static_cast<double>(most) - static_cast<double>(row[targets[i]]);
        }
    });
}

// Counts one chunk of tokens: the second half of it is predicted, all but its first token. Where texts begin with a
// token of their own, it takes the place of the chunk's first. from: its place in the text, for what is thrown.
inline void count_chunk(gguf_model& model, std::span<const std::int32_t> chunk, std::size_t from,
                        std::optional<std::int32_t> begin, tiffin::executor_ref execute, perplexity_sum& to) {
    std::vector<std::int32_t> given(chunk.begin(), chunk.end());
    if (begin) given[0] = *begin;
    model.begin(chunk.size(), from);
    const row_matrix hidden = model.append(given);
    constexpr std::size_t together = 64;  // rows of logits held at once
    row_matrix logits;
    std::vector<double> found(together);
    for (std::size_t first = chunk.size() / 2; first + 1 < chunk.size(); first += together) {
        const std::size_t count = std::min(together, chunk.size() - 1 - first);
        model.logits(hidden.middleRows(as_index(first), as_index(count)), logits, first);
        surprise(logits, chunk.subspan(first + 1, count), found, execute);
        for (std::size_t i = 0; i < count; ++i) {
            to.sum += found[i];
            to.squares += found[i] * found[i];
        }
        to.predictions += count;
    }
}
