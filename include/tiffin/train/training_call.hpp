// The arguments of a training call that every part of a layer gets: tokens, inputs, gradients, workers.
#pragma once

#include <tiffin/aligned_buffer.hpp>
#include <tiffin/call/call_arguments.hpp>
#include <tiffin/call/chosen_experts.hpp>
#include <tiffin/call/gathered_rows.hpp>
#include <tiffin/error.hpp>
#include <tiffin/executor/executor.hpp>
#include <tiffin/router/selection.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

TIFFIN_BEGIN

namespace train_detail {

// A bump allocator over the memory of a step; without memory it only counts. Forward stores in `kept` what backward
// reads: backward finds it by taking the same areas in the same order.
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

// Rows are contiguous: row t of width w begins at t w. Null: not given, or a gradient that is not computed.
template <class Number>
struct training_call {
    std::size_t tokens = 0;
    const std::int32_t* ids = nullptr;           // (tokens)
    const std::uint32_t* token_slots = nullptr;  // (tokens): slots of their ids in the tables' gradients
    const std::uint32_t* numbers = nullptr;      // (tokens): index in the whole call; null: t itself
    const gathered_rows* gathered = nullptr;
    const std::function<status(const chosen_experts<Number>&)>* on_chosen = nullptr;
    status* failed = nullptr;  // of on_chosen, the first time

    const Number* residual = nullptr;
    const Number* per_layer_input = nullptr;
    Number* d_residual = nullptr;
    Number* d_per_layer_input = nullptr;

    choice<float>* routes = nullptr;   // of the router that is recorded
    Number* logits = nullptr;          // likewise, (tokens, experts)
    const Number* d_logits = nullptr;  // of a router loss; backward adds it to the gradient of the logits

    Number* carried = nullptr;  // of a delayed block: read, then overwritten; in backward its gradients
    bool carried_is_due = false;

    executor_ref execute = serially;
    std::size_t workers = 1;

    [[nodiscard]] std::size_t number(std::size_t t) const noexcept { return numbers ? numbers[t] : t; }
    // Has the rows brought that the tokens have chosen of the pool that was gathered as number `pool`, from 1.
    void bring(std::size_t pool, const choice<Number>* chosen, std::size_t choices) const {
        if (on_chosen == nullptr || pool == 0) return;
        status s = (*on_chosen)({pool - 1, {chosen, tokens * choices}, choices, numbers});
        if (failed->ok()) *failed = std::move(s);
    }

    // Calls task(worker, i) once for each i in [0, n), with up to `workers` at a time.
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
    // Calls task(chunk, first, last) for chunks of the tokens; their size does not depend on the number of workers.
    static constexpr std::size_t chunk = 16;
    static constexpr std::size_t chunks_of(std::size_t n) noexcept { return (n + chunk - 1) / chunk; }
    template <class Task>
    void each_tokens(std::size_t n, const Task& task) const {
        each(chunks_of(n), [&](std::size_t c) { task(c, c * chunk, std::min(n, (c + 1) * chunk)); });
    }
    // The same with the worker, as task(worker, chunk, first, last).
    template <class Task>
    void each_tokens_by_worker(std::size_t n, const Task& task) const {
        each_by_worker(chunks_of(n), [&](std::size_t worker, std::size_t c) {
            task(worker, c, c * chunk, std::min(n, (c + 1) * chunk));
        });
    }
    // Calls task(first, last) for ranges of the columns [0, width). For sums over tokens: every range adds the tokens
    // in ascending order, so that the result does not depend on the workers.
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

// Matrix products in the backend's number format.
template <class Number>
struct product_functions {
    // Bytes of scratch memory for multiply().
    std::size_t (*bytes)(std::size_t m, std::size_t n, std::size_t k, std::size_t workers) noexcept;
    // c (m, n) (+)= sum_k a(i, k) b(j, k).
    void (*multiply)(const training_call<Number>& call, std::size_t m, std::size_t n, std::size_t k,
                     const factor<Number>& a, const factor<Number>& b, Number* c, bool add,
                     std::byte* memory);

    // Bytes for y (m, n) = x (m, k) W^T and both its gradients.
    [[nodiscard]] std::size_t bytes_both_ways(std::size_t m, std::size_t n, std::size_t k,
                                              std::size_t workers) const noexcept {
        return std::max({bytes(m, n, k, workers), bytes(n, k, m, workers), bytes(m, k, n, workers)});
    }
};

}  // namespace train_detail

TIFFIN_END
