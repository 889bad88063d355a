// What the parts of a layer compute together in a step of training: some tokens, and what was given for them.
#pragma once

#include <tiffin/aligned_buffer.hpp>
#include <tiffin/call/call_arguments.hpp>
#include <tiffin/call/gathered_rows.hpp>
#include <tiffin/executor/executor.hpp>
#include <tiffin/router/selection.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

namespace train_detail {

// Memory that a step takes front to back; without memory it only counts. Forward leaves in `kept` what backward reads,
// which finds it again by taking the same in the same order.
class step_memory {
public:
    explicit step_memory(std::byte* memory = nullptr) noexcept : begin_(memory) {}
    template <class T>
    T* take(std::size_t count) noexcept {
        constexpr std::size_t line = aligned_buffer::line;
        std::byte* const at = begin_ ? begin_ + used_ : nullptr;
        used_ += (count * sizeof(T) + line - 1) / line * line;
        return reinterpret_cast<T*>(at);
    }
    [[nodiscard]] std::byte* rest() const noexcept { return begin_ ? begin_ + used_ : nullptr; }
    [[nodiscard]] std::size_t used() const noexcept { return used_; }
    void move_to(std::size_t used) noexcept { used_ = used; }

private:
    std::byte* begin_;
    std::size_t used_ = 0;
};

// Rows are adjacent: row t of a width w begins at t w. Null: not given, or its gradient is not asked for.
template <class Number>
struct training_call {
    std::size_t tokens = 0;
    const std::int32_t* ids = nullptr;  // (tokens)
    const std::uint32_t* token_slots =
        nullptr;  // (tokens): the rows of the tables' gradients that are theirs
    const std::uint32_t* numbers =
        nullptr;  // (tokens): among those of the whole call; null: all of them in order
    const gathered_rows* gathered = nullptr;

    const Number* residual = nullptr;
    const Number* per_layer_input = nullptr;
    Number* d_residual = nullptr;
    Number* d_per_layer_input = nullptr;

    choice<float>* routes = nullptr;   // of the part whose routes are recorded
    Number* logits = nullptr;          // likewise, (tokens, experts)
    const Number* d_logits = nullptr;  // added to what the chosen weights give; read by backward

    Number* carried = nullptr;  // of a delayed block: taken from and left in; in backward its gradients
    bool carried_is_due = false;

    executor_ref execute = serially;
    std::size_t workers = 1;

    [[nodiscard]] std::size_t number(std::size_t t) const noexcept { return numbers ? numbers[t] : t; }

    // task(worker, i) for i in [0, n), each once, as many at a time as there are workers.
    template <class Task>
    void each_by_worker(std::size_t n, const Task& task) const {
        const std::size_t at_once = std::min(workers, n);
        const auto work = [&](std::size_t worker) {
            for (std::size_t i = worker; i < n; i += at_once) task(worker, i);
        };
        execute(at_once, task_ref(work));
    }
    template <class Task>
    void each(std::size_t n, const Task& task) const {
        each_by_worker(n, [&](std::size_t, std::size_t i) { task(i); });
    }
    // task(chunk, first, last) for the tokens in chunks of a size that does not depend on the workers.
    static constexpr std::size_t chunk = 16;
    static constexpr std::size_t chunks_of(std::size_t n) noexcept { return (n + chunk - 1) / chunk; }
    template <class Task>
    void each_tokens(std::size_t n, const Task& task) const {
        each(chunks_of(n), [&](std::size_t c) { task(c, c * chunk, std::min(n, (c + 1) * chunk)); });
    }
    // The same with the worker that computes it, as task(worker, chunk, first, last).
    template <class Task>
    void each_tokens_by_worker(std::size_t n, const Task& task) const {
        each_by_worker(chunks_of(n), [&](std::size_t worker, std::size_t c) {
            task(worker, c, c * chunk, std::min(n, (c + 1) * chunk));
        });
    }
    // task(first, last) for columns [0, width) in pieces. What is summed over tokens is summed so: by every piece in
    // the order of the tokens, whoever computes it.
    template <class Task>
    void each_columns(std::size_t width, const Task& task) const {
        constexpr std::size_t piece = 256;
        each((width + piece - 1) / piece,
             [&](std::size_t i) { task(i * piece, std::min(width, (i + 1) * piece)); });
    }
};

// One factor of a product: element (i, k) is data[i stride + k], or data[k stride + i] where it is transposed.
template <class Number>
struct factor {
    const Number* data;
    std::size_t stride;
    bool transposed = false;
};

// Products of matrices, in the number format that a backend has for them.
template <class Number>
struct product_functions {
    // Memory that multiply() wants.
    std::size_t (*bytes)(std::size_t m, std::size_t n, std::size_t k, std::size_t workers) noexcept;
    // c (m, n) (+)= sum_k a(i, k) b(j, k).
    void (*multiply)(const training_call<Number>& call, std::size_t m, std::size_t n, std::size_t k,
                     const factor<Number>& a, const factor<Number>& b, Number* c, bool add,
                     std::byte* memory);

    // Of y (m, n) = x (m, k) W^T and both its gradients.
    [[nodiscard]] std::size_t bytes_both_ways(std::size_t m, std::size_t n, std::size_t k,
                                              std::size_t workers) const noexcept {
        return std::max({bytes(m, n, k, workers), bytes(n, k, m, workers), bytes(m, k, n, workers)});
    }
};

}  // namespace train_detail

TIFFIN_END
