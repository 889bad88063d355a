// A set of row ids.
#pragma once

#include <tiffin/config.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

TIFFIN_BEGIN
namespace detail {

// A bit set of ids in [0, rows). Cost: one bit per row.
class id_set {
public:
    id_set() = default;
    explicit id_set(std::size_t rows) : words_((rows + 63) / 64) {}

    // Precondition of both: the id is less than `rows`, and not negative.
    [[nodiscard]] bool contains(std::int32_t id) const noexcept {
        return (words_[static_cast<std::size_t>(id) / 64] >> (id % 64) & 1) != 0;
    }
    void insert(std::int32_t id) noexcept {
        words_[static_cast<std::size_t>(id) / 64] |= std::uint64_t{1} << (id % 64);
    }
    void clear() noexcept { std::fill(words_.begin(), words_.end(), 0); }
    [[nodiscard]] std::size_t size() const noexcept {
        std::size_t count = 0;
        for (const std::uint64_t word : words_) count += static_cast<std::size_t>(std::popcount(word));
        return count;
    }
    // The ids in the set, ascending.
    [[nodiscard]] std::vector<std::int32_t> ids() const {
        std::vector<std::int32_t> all;
        all.reserve(size());
        for (std::size_t word = 0; word < words_.size(); ++word)
            for (std::uint64_t left = words_[word]; left != 0; left &= left - 1)
                all.push_back(static_cast<std::int32_t>(64 * word) + std::countr_zero(left));
        return all;
    }

private:
    std::vector<std::uint64_t> words_;
};

}  // namespace detail
TIFFIN_END
