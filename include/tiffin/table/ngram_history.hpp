// The last token ids of a sequence, kept by the caller from call to call.
#pragma once

#include <tiffin/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

TIFFIN_BEGIN

// The last ids of one sequence. Copies are independent: a beam that splits copies it.
// Cost: memory for 2 (order - 1 + `undoable`) ids.
class ngram_history {
public:
    static constexpr std::int32_t none = -1;  // no id: before the sequence begins

    // For hashes of up to `order` ids, 1 or more; the last `undoable` tokens can be undone.
    explicit ngram_history(std::size_t order, std::size_t undoable = 0)
        : order_(std::max<std::size_t>(order, 1)), room_(order_ - 1 + undoable) {
        ids_.reserve(2 * room_);
    }

    [[nodiscard]] std::size_t order() const noexcept { return order_; }
    // Tokens since the sequence began.
    [[nodiscard]] std::size_t length() const noexcept { return length_; }
    // The id k tokens before the next one, k from 1 to order - 1; `none` before the sequence's first.
    [[nodiscard]] std::int32_t before(std::size_t k) const noexcept {
        return k <= ids_.size() ? ids_[ids_.size() - k] : none;
    }
    void add(std::int32_t id) {
        if (room_ > 0 && ids_.size() == 2 * room_)
            ids_.erase(ids_.begin(), ids_.end() - static_cast<std::ptrdiff_t>(room_));
        if (room_ > 0) ids_.push_back(id);
        ++length_;
    }
    // Removes the last tokens, such as rejected tokens of speculative decoding.
    // Errors: errc::size for more tokens than can be undone, or than there are; nothing has changed then.
    status undo(std::size_t tokens) {
        // The order - 1 ids before them must still be kept.
        const std::size_t most = ids_.size() == length_ ? length_ : ids_.size() - (order_ - 1);
        if (tokens > most)
            return failure(errc::size, "tokens", "are ", tokens, " to be taken back; the history can undo ",
                           most, " of its ", length_);
        ids_.resize(ids_.size() - tokens);
        length_ -= tokens;
        return {};
    }
    // Begins a new sequence.
    void reset() noexcept {
        ids_.clear();
        length_ = 0;
    }

private:
    std::size_t order_;
    std::size_t room_;
    std::size_t length_ = 0;
    std::vector<std::int32_t> ids_;
};

TIFFIN_END
