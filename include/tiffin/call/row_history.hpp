// The rows before a token in its sequence, kept by the caller between calls.
#pragma once

#include <tiffin/error.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

TIFFIN_BEGIN

// The last rows of one sequence. Copies are independent: where a beam splits, it is copied.
// Cost: rows + 1 + `undoable` rows of f32, allocated when it is made.
class row_history {
public:
    // For a token's row and the `rows` before it; up to `undoable` tokens can be taken back at a time.
    row_history(std::size_t rows, std::size_t width, std::size_t undoable = 0)
        : rows_(rows), width_(width), room_(rows + 1 + undoable), numbers_(room_ * width) {}

    [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
    [[nodiscard]] std::size_t width() const noexcept { return width_; }
    // Tokens since the sequence began.
    [[nodiscard]] std::size_t length() const noexcept { return length_; }
    // The row k positions before the next token, k from 1 to rows + 1; null: before the sequence begins.
    [[nodiscard]] const float* before(std::size_t k) const noexcept {
        return k <= kept_ ? numbers_.data() + (length_ - k) % room_ * width_ : nullptr;
    }
    // Adds a row that the caller must write at once: it reuses the memory of the oldest.
    [[nodiscard]] float* add() noexcept {
        kept_ = std::min(kept_ + 1, room_);
        return numbers_.data() + length_++ % room_ * width_;
    }
    // Removes the last tokens, such as those of a rejected speculation.
    // Errors: errc::size for more tokens than can be undone, or than there are; nothing has changed then.
    status undo(std::size_t tokens) {
        // The rows before them must still be stored.
        const std::size_t most = kept_ == length_ ? length_ : kept_ - rows_;
        if (tokens > most)
            return failure(errc::size, "tokens", "are ", tokens, " to be taken back; the history can undo ",
                           most, " of its ", length_);
        kept_ -= tokens;
        length_ -= tokens;
        return {};
    }
    // Begins a new sequence.
    void reset() noexcept { kept_ = length_ = 0; }

private:
    std::size_t rows_;
    std::size_t width_;
    std::size_t room_;
    std::vector<float> numbers_;
    std::size_t kept_ = 0;
    std::size_t length_ = 0;
};

TIFFIN_END
