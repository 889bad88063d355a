// Which sequences of a text a step learns from, in an order that depends on the seed alone.
#pragma once

#include <tiffin/analysis/initialise.hpp>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

class text_batches {
public:
    // Throws std::invalid_argument where the text is too short for one sequence.
    text_batches(std::vector<std::int32_t> tokens, std::size_t context, std::uint64_t seed)
        : tokens_(std::move(tokens)), context_(context), seed_(seed), order_(count(tokens_, context)) {}

    [[nodiscard]] std::size_t sequences() const { return order_.size(); }
    [[nodiscard]] const std::vector<std::int32_t>& tokens() const { return tokens_; }

    // Sequences `first` on, in the order of the epoch that each falls into: ids, and the tokens that follow each.
    void fill(std::uint64_t first, std::span<std::int32_t> ids, std::span<std::int32_t> targets) {
        for (std::size_t i = 0; i < ids.size() / context_; ++i) {
            const std::uint64_t at = first + i, epoch = at / sequences();
            if (!shuffled_ || epoch != epoch_) shuffle(epoch);
            const std::size_t begin = order_[at % sequences()] * context_;
            for (std::size_t t = 0; t < context_; ++t) {
                ids[i * context_ + t] = tokens_[begin + t];
                targets[i * context_ + t] = tokens_[begin + t + 1];
            }
        }
    }

private:
    static std::size_t count(const std::vector<std::int32_t>& tokens, std::size_t context) {
        if (tokens.size() > context) return (tokens.size() - 1) / context;
        throw std::invalid_argument("the text has " + std::to_string(tokens.size()) +
                                    " tokens; one sequence and the token behind it take " +
                                    std::to_string(context + 1));
    }
    void shuffle(std::uint64_t epoch) {
        tiffin::detail::counter_random random(seed_, epoch);
        std::iota(order_.begin(), order_.end(), std::size_t{0});
        for (std::size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random.below(i)]);
        epoch_ = epoch;
        shuffled_ = true;
    }

    std::vector<std::int32_t> tokens_;
    std::size_t context_;
    std::uint64_t seed_;
    std::vector<std::size_t> order_;
    std::uint64_t epoch_ = 0;
    bool shuffled_ = false;
};
