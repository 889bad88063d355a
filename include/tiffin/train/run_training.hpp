// trainable_layer's forward and backward: checks of the arguments, and the memory of a call.
#pragma once

#include <tiffin/executor/checked_executor.hpp>
#include <tiffin/train/trainable_layer.hpp>
#include <tiffin/train/training_checks.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

TIFFIN_BEGIN

template <class Number>
status trainable_layer<Number>::check_forward(const matrix_view<const Number>& x,
                                              const training_inputs<Number>& in,
                                              const matrix_view<Number>& y) const {
    const std::size_t n = x.rows;
    if (n > tokens_)
        return failure(errc::size, "x", "has ", n, " tokens; the layer is prepared for ", tokens_);
    if (y.rows != n) return failure(errc::size, "y", "has ", y.rows, " rows for the ", n, " tokens of x");
    if (status s = train_detail::check_adjacent(x, "x"); !s) return s;
    if (status s = train_detail::check_adjacent(y, "y"); !s) return s;
    if (status s = detail::check_ids_given(needs_, in.token_ids.size(), n); !s) return s;
    if (in.token_ids.size() != n && !needs_.gathered.empty())
        return failure(errc::size, "token_ids", "has ", in.token_ids.size(), " ids for the ", n,
                       " tokens of x; gradients of gathered rows are rows of ids");
    if (status s = detail::check_routes_given(needs_, in.routes.size(), n); !s) return s;
    if (in.logits.data != nullptr)
        if (status s = train_detail::check_rows(in.logits, "logits", n, experts_); !s) return s;
    if (needs_.residual)
        if (status s = train_detail::check_rows(in.residual, "residual", n, needs_.d_model); !s) return s;
    if (needs_.given_width != 0)
        if (status s = train_detail::check_rows(in.per_layer_input, "per_layer_input", n, needs_.given_width);
            !s)
            return s;
    if (status s =
            train_detail::check_overlap({{"y", train_detail::bytes_of(y)},
                                         {"logits", train_detail::bytes_of(in.logits)},
                                         {"routes", train_detail::bytes_of(in.routes)}},
                                        {{"x", train_detail::bytes_of(x)},
                                         {"residual", train_detail::bytes_of(in.residual)},
                                         {"per_layer_input", train_detail::bytes_of(in.per_layer_input)},
                                         {"token_ids", train_detail::bytes_of(in.token_ids)}});
        !s)
        return s;
    if (needs_.delay != 0) {
        if (in.carried == nullptr)
            return failure(errc::size, "carried", "missing; a delayed block needs carried_rows(",
                           needs_.delay, ", tokens, d_model)");
        if (status s = in.carried->check(needs_.delay, n, needs_.d_model); !s) return s;
    }
    for (const table_size& table : needs_.tables)
        if (status s = detail::check_ids_in(table, in.token_ids); !s) return s;
    for (const gathered_table& table : needs_.gathered) {
        if (status s = detail::check_ids_in(table, in.token_ids); !s) return s;
        if (status s = detail::check_gathered_form(table, in.gathered, n); !s) return s;
        const gathered_rows& rows = in.gathered[table.number - 1];
        if (status s = detail::check_gathered_index(table, rows); !s) return s;
        if (status s = detail::check_gathered_memory(table, rows, y); !s) return s;
    }
    return {};
}

template <class Number>
status trainable_layer<Number>::check_backward(const matrix_view<const Number>& dy,
                                               const input_gradients<Number>& to) const {
    if (!is_forward_done_)
        return failure(errc::empty, "backward",
                       "has no forward before it, of which it would be the gradient");
    const std::size_t n = x_.rows;
    if (dy.rows != n) return failure(errc::size, "dy", "has ", dy.rows, " rows; forward had ", n);
    if (status s = train_detail::check_adjacent(dy, "dy"); !s) return s;
    const auto check = [&](const auto& m, const char* name, std::size_t width) -> status {
        if (m.data == nullptr) return {};
        if (width == 0) return failure(errc::size, name, "is asked for, and the block reads no such rows");
        return train_detail::check_rows(m, name, n, width);
    };
    if (status s = check(to.x, "dx", needs_.d_model); !s) return s;
    if (status s = check(to.residual, "d_residual", needs_.residual ? needs_.d_model : 0); !s) return s;
    if (status s = check(to.per_layer_input, "d_per_layer_input", needs_.given_width); !s) return s;
    if (to.logits.data != nullptr)
        if (status s = train_detail::check_rows(to.logits, "d_logits", n, experts_); !s) return s;
    if (status s = train_detail::check_overlap(
            {{"dx", train_detail::bytes_of(to.x)},
             {"d_residual", train_detail::bytes_of(to.residual)},
             {"d_per_layer_input", train_detail::bytes_of(to.per_layer_input)}},
            {{"d_logits", train_detail::bytes_of(to.logits)},
             {"dy", train_detail::bytes_of(dy)},
             {"x", train_detail::bytes_of(x_)},
             {"residual", train_detail::bytes_of(inputs_.residual)},
             {"per_layer_input", train_detail::bytes_of(inputs_.per_layer_input)}});
        !s)
        return s;
    if (needs_.delay != 0) {
        if (to.carried == nullptr)
            return failure(errc::size, "carried",
                           "missing; the gradients of a delayed block need carried_rows(", needs_.delay,
                           ", tokens, d_model) of their own");
        if (status s = to.carried->check(needs_.delay, n, needs_.d_model); !s) return s;
    }
    return {};
}

template <class Number>
status trainable_layer<Number>::check_memory(std::span<std::byte> memory) const {
    if (memory.size() >= workspace_bytes()) return {};
    return failure(errc::workspace, "memory", "has ", memory.size(), " bytes; a call needs ",
                   workspace_bytes());
}

template <class Number>
typename trainable_layer<Number>::call_type trainable_layer<Number>::call_of(
    executor_ref execute) const noexcept {
    call_type call;
    call.tokens = x_.rows;
    call.ids = inputs_.token_ids.empty() ? nullptr : ids_.data();
    call.token_slots = inputs_.token_ids.empty() ? nullptr : slots_.data();
    call.gathered = inputs_.gathered.data();
    call.residual = inputs_.residual.data;
    call.per_layer_input = inputs_.per_layer_input.data;
    call.execute = execute;
    call.workers = execute.concurrency() != 0 ? std::min(workers_, execute.concurrency()) : workers_;
    return call;
}

template <class Number>
template <class X, class Y>
status trainable_layer<Number>::try_forward(const X& x, const training_inputs<Number>& inputs, Y&& y,
                                            std::span<std::byte> memory, executor_ref execute) {
    auto in = detail::as_rows<const Number>(x, d_model(), "x");
    if (!in) return in.failure();
    auto out = detail::as_rows<Number>(y, outputs(), "y", "outputs");
    if (!out) return out.failure();
    if (status s = check_forward(*in, inputs, *out); !s) return s;
    if (status s = check_memory(memory); !s) return s;
    if (trains_rows_ && !touched_.take(inputs.token_ids, slots_.data()))
        return failure(errc::size, "token_ids", "brings more ids than the ", touched_.capacity(),
                       " that the tables' gradients have rows for (training_options::table_rows)");
    std::copy(inputs.token_ids.begin(), inputs.token_ids.end(), ids_.begin());
    x_ = *in;
    inputs_ = inputs;
    is_forward_done_ = false;
    for (auto& p : *parameters_) p.refresh();

    detail::checked_executor checked(execute);
    call_type call = call_of(checked);
    call.routes = inputs.routes.empty() ? nullptr : inputs.routes.data();
    call.logits = inputs.logits.data;
    status brought;
    call.on_chosen = inputs.on_chosen;
    call.failed = &brought;
    if (inputs.carried != nullptr && needs_.delay != 0) {
        call.carried_is_due = inputs.carried->due() != 0;
        call.carried = inputs.carried->slot(call.tokens).data;
        was_due_ = call.carried_is_due;
        if (taken_numbers() != 0)
            std::copy_n(call.carried, call.tokens * outputs(), taken_.template as<Number>());
    }
    train_detail::step_memory areas = areas_in(memory);
    train_detail::step_memory kept(kept_.data());
    if (keeps_ == activations::recomputed)
        kept = train_detail::step_memory(areas.take<std::byte>(kept_bytes(call.tokens)));
    if (call.tokens > 0)
        rows_->forward(call, x_.data, out->data, kept, train_detail::step_memory(areas.rest()));
    if (status s = checked.done(); !s) return s;
    if (!brought) return brought;
    is_forward_done_ = true;
    if (call.carried != nullptr) inputs.carried->advance(call.tokens);
    return {};
}

template <class Number>
template <class Y>
status trainable_layer<Number>::try_backward(const Y& dy, const input_gradients<Number>& to,
                                             std::span<std::byte> memory, executor_ref execute) {
    auto given = detail::as_rows<const Number>(dy, outputs(), "dy", "outputs");
    if (!given) return given.failure();
    if (status s = check_backward(*given, to); !s) return s;
    if (status s = check_memory(memory); !s) return s;

    is_backward_done_ = true;
    detail::checked_executor checked(execute);
    call_type call = call_of(checked);
    const auto cleared = [&](const matrix_view<Number>& m) {
        if (m.data != nullptr) std::fill_n(m.data, m.rows * m.cols, Number(0));
        return m.data;
    };
    Number* const dx = cleared(to.x);
    call.d_residual = cleared(to.residual);
    call.d_per_layer_input = cleared(to.per_layer_input);
    call.d_logits = to.logits.data;
    if (needs_.delay != 0) {
        call.carried_is_due = to.carried->due() != 0;
        call.carried = to.carried->slot(call.tokens).data;
    }
    train_detail::step_memory areas = areas_in(memory);
    train_detail::step_memory kept(kept_.data());
    if (keeps_ == activations::recomputed && call.tokens > 0) {
        auto* const again = areas.take<std::byte>(kept_bytes(call.tokens));
        auto* const y = areas.take<Number>(call.tokens * outputs());
        kept = train_detail::step_memory(again);
        call_type forward = call;
        forward.d_logits = nullptr;
        forward.carried = areas.take<Number>(taken_numbers());
        forward.carried_is_due = was_due_;
        std::copy_n(taken_.template as<Number>(), taken_numbers(), forward.carried);
        rows_->forward(forward, x_.data, y, kept, train_detail::step_memory(areas.rest()));
        kept = train_detail::step_memory(again);
    }
    if (call.tokens > 0)
        rows_->backward(call, x_.data, given->data, dx, kept, train_detail::step_memory(areas.rest()));
    if (status s = checked.done(); !s) return s;
    if (call.carried != nullptr) to.carried->advance(call.tokens);
    return {};
}

TIFFIN_END
