#pragma once

#include <tiffin/error.hpp>
#include <tiffin/view.hpp>

#include <cstddef>
#include <string>
#include <vector>

TIFFIN_BEGIN

// What delayed blocks carry from one layer of a network to a later one: a handle that the caller makes
// once, and passes to every delayed layer of a forward pass in turn (token_inputs::carried).
// In training a backward pass has a handle of its own, for the gradients, and its layers are called in reverse.
// Shapes: `layers` matrices of up to `tokens` rows of d_model values. Threads: one pass uses it at a time.
// Cost: layers * tokens * d_model values, allocated when it is made.
template <class Number>
class carried_rows {
public:
    carried_rows(std::size_t layers, std::size_t tokens, std::size_t d_model)
        : carried_rows(layers, tokens, d_model, nullptr) {
        rows_.resize(layers_ * tokens_ * d_model);
    }
    // In the caller's memory, of layers * tokens * d_model values, accessible to the backend of the layers.
    carried_rows(std::size_t layers, std::size_t tokens, std::size_t d_model, Number* memory)
        : layers_(layers),
          tokens_(can_be_counted(layers, tokens, d_model) ? tokens : 0),
          d_model_(d_model),
          memory_(memory),
          held_(layers, 0) {}

    // Begins a forward pass: pending rows are dropped.
    void begin() noexcept {
        next_ = 0;
        for (std::size_t& tokens : held_) tokens = 0;
    }
    [[nodiscard]] std::size_t layers() const noexcept { return layers_; }
    [[nodiscard]] std::size_t d_model() const noexcept { return d_model_; }
    // The tokens of the rows due at the next layer; 0 if none are due.
    [[nodiscard]] std::size_t due() const noexcept { return held_.empty() ? 0 : held_[next_]; }

    // Checks that the next delayed layer can be called with this number of tokens.
    [[nodiscard]] status check(std::size_t layers, std::size_t tokens, std::size_t d_model) const {
        if (layers != layers_ || d_model != d_model_)
            return failure(errc::size, "carried", "carries over ", layers_, " layers of d_model ", d_model_,
                           "; the block delays by ", layers, " and has d_model ", d_model);
        if (tokens > tokens_)
            return failure(errc::size, "carried", "has room for ", tokens_, " tokens; the call has ", tokens);
        if (due() != 0 && due() != tokens)
            return failure(errc::size, "carried", "brings a residual of ", due(), " tokens to a call of ",
                           tokens);
        return {};
    }
    // The rows that are due, which the layer replaces by its own. Precondition: check() passed.
    [[nodiscard]] matrix_view<Number> slot(std::size_t tokens) noexcept {
        return {(memory_ != nullptr ? memory_ : rows_.data()) + next_ * tokens_ * d_model_, tokens, d_model_};
    }
    // Moves on to the next layer. Called by the layer after it has read and written its slot.
    void advance(std::size_t tokens) noexcept {
        held_[next_] = tokens;
        next_ = (next_ + 1) % layers_;
    }

private:
    // If the size in bytes overflows there is room for no token, which check() reports.
    static constexpr bool can_be_counted(std::size_t layers, std::size_t tokens,
                                         std::size_t d_model) noexcept {
        std::size_t bytes = sizeof(Number);
        return !__builtin_mul_overflow(bytes, layers, &bytes) &&
               !__builtin_mul_overflow(bytes, tokens, &bytes) &&
               !__builtin_mul_overflow(bytes, d_model, &bytes);
    }

    std::size_t layers_;
    std::size_t tokens_;
    std::size_t d_model_;
    Number* memory_;  // null: rows_
    std::vector<Number> rows_;
    std::vector<std::size_t> held_;
    std::size_t next_ = 0;
};

// The handle of inference.
using carried_residuals = carried_rows<float>;

TIFFIN_END
