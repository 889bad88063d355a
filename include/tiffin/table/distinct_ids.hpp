// The distinct token ids of a call, so that each table row is read once.
#pragma once

#include <tiffin/config.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

TIFFIN_BEGIN

// The distinct ids of a call, in the order of their first occurrence, and per position the index of its id:
// ids()[index()[t]] == given[t].
// Cost: per id one lookup in a hash table of 2 to 4 slots per id; allocates only for more ids than ever before.
class distinct_ids {
public:
    void assign(std::span<const std::int32_t> given) {
        const std::size_t places = std::bit_ceil(2 * given.size() + 1);
        if (places_.size() < places) places_.resize(places);
        // Slots of earlier calls are recognised by their call number and need not be cleared.
        if (++call_ == 0) {
            places_.assign(places_.size(), {});
            call_ = 1;
        }
        ids_.clear();
        ids_.reserve(given.size());
        index_.resize(given.size());
        for (std::size_t t = 0; t < given.size(); ++t) index_[t] = place_of(given[t]);
    }
    [[nodiscard]] std::span<const std::int32_t> ids() const noexcept { return ids_; }
    [[nodiscard]] std::span<const std::int32_t> index() const noexcept { return index_; }

private:
    struct place {
        std::uint32_t call = 0;
        std::int32_t id = 0;
        std::int32_t number = 0;
    };

    std::int32_t place_of(std::int32_t id) {
        const std::size_t mask = places_.size() - 1;
        // Fibonacci hashing: the upper bits of the product spread neighbouring ids.
        std::size_t at = (static_cast<std::uint32_t>(id) * 0x9E3779B97F4A7C15u) >> 32 & mask;
        while (places_[at].call == call_ && places_[at].id != id) at = (at + 1) & mask;
        if (places_[at].call != call_) {
            places_[at] = {call_, id, static_cast<std::int32_t>(ids_.size())};
            ids_.push_back(id);
        }
        return places_[at].number;
    }

    std::vector<place> places_;  // a power of two of them
    std::uint32_t call_ = 0;
    std::vector<std::int32_t> ids_;
    std::vector<std::int32_t> index_;
};

TIFFIN_END
