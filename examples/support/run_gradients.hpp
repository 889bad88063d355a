// run_layer --gradients: the gradients of the sum of y dy, in files.
#pragma once

#include <tiffin/executor/executor.hpp>
#include <tiffin/io/safetensors_writer.hpp>

#include "layer_gradients.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <utility>
#include <vector>

// What a step reads. All in f32, rows adjacent; empty where the block reads none.
struct gradient_inputs {
    std::size_t tokens = 0;
    std::span<const float> x, dy, residual, per_layer_input;
    std::span<const std::int32_t> token_ids;
    std::size_t batch = 1;  // tokens of a call
};

// What it gives, as files have it: tensors, and the memory that they lie in.
class gradient_outputs {
public:
    tiffin::io::safetensors_writer output, gradients;

    // A tensor of numbers, rounded to f32 where they are double.
    template <class Number>
    void add(tiffin::io::safetensors_writer& to, const std::string& name, std::span<const Number> from,
             const tiffin::shape& shape) {
        std::vector<float>& numbers = numbers_.emplace_back(from.begin(), from.end());
        to.add(name, {data_of(numbers), tiffin::dtype::f32, shape});
    }
    void add(tiffin::io::safetensors_writer& to, const std::string& name, std::vector<std::int64_t> from,
             const tiffin::shape& shape) {
        to.add(name, {data_of(whole_.emplace_back(std::move(from))), tiffin::dtype::i64, shape});
    }
    // What is wrong, or nothing. Neither file is there unless both could be written; a stream keeps what went there.
    [[nodiscard]] std::string write(tiffin::io::unfinished_file output_to,
                                    tiffin::io::unfinished_file gradients_to) const {
        tiffin::status s = output.write(output_to);
        if (s) s = gradients.write(gradients_to);
        if (s) s = output_to.finish();
        if (s) s = gradients_to.finish();
        return s ? "" : s.failure().message();
    }

private:
    // An empty vector has no memory, and a tensor must.
    template <class T>
    static const void* data_of(std::vector<T>& numbers) {
        if (numbers.capacity() == 0) numbers.reserve(1);
        return numbers.data();
    }
    std::deque<std::vector<float>> numbers_;
    std::deque<std::vector<std::int64_t>> whole_;
};

template <class Number>
void add_tensors(const tiffin::trainable_layer<Number>& layer, gradient_outputs& to) {
    const std::size_t count = layer.ids().size();
    for (const tiffin::tensor_gradient<Number>& g : layer.gradients()) {
        const std::string name(g.name);
        if (g.data != nullptr) {
            to.add(to.gradients, name, std::span<const Number>(g.data, g.shape.elements()), g.shape);
            continue;
        }
        const bool pool = g.kind == tiffin::tensor_kind::pool;
        const std::size_t experts = pool ? g.shape[0] : 1, width = g.shape[pool ? 2 : 1];
        std::vector<std::int64_t> ids;
        std::vector<Number> rows;
        for (std::size_t i = 0; i < count; ++i) ids.push_back(layer.ids().id(i));
        for (std::size_t e = 0; e < experts; ++e)
            for (std::size_t i = 0; i < count; ++i) {
                const std::span<Number> row = g.row(e, layer.ids().slot(i));
                rows.insert(rows.end(), row.begin(), row.end());
            }
        to.add(to.gradients, name + ".ids", std::move(ids), {count});
        to.add(to.gradients, name + ".rows", std::span<const Number>(rows),
               pool ? tiffin::shape{experts, count, width} : tiffin::shape{count, width});
    }
}

// Runs a layer forward and back in calls of `batch` tokens, whose gradients add up. What is wrong, or nothing.
template <class Number>
std::string run_step(tiffin::trainable_layer<Number>& layer, const gradient_inputs& in,
                     const tiffin::executor_ref& execute, gradient_outputs& to) {
    const auto wide = [](std::span<const float> from) {
        return std::vector<Number>(from.begin(), from.end());
    };
    const std::vector<Number> x = wide(in.x), dy = wide(in.dy), residual = wide(in.residual),
                              given = wide(in.per_layer_input);
    const std::size_t d = layer.d_model(), m = layer.needs().given_width, choices = layer.choices();
    std::vector<Number> y(x.size()), dx(x.size()), d_residual(residual.size()), d_given(given.size());
    std::vector<tiffin::choice<float>> routes(in.tokens * choices);
    const auto rows = [](auto& all, std::size_t first, std::size_t count, std::size_t width) {
        return tiffin::matrix_view(all.data() + first * width, count, width);
    };
    for (std::size_t first = 0; first < in.tokens; first += in.batch) {
        const std::size_t n = std::min(in.batch, in.tokens - first);
        tiffin::training_inputs<Number> inputs;
        tiffin::input_gradients<Number> back{.x = rows(dx, first, n, d)};
        if (!in.token_ids.empty()) inputs.token_ids = in.token_ids.subspan(first, n);
        if (choices > 0) inputs.routes = std::span(routes).subspan(first * choices, n * choices);
        if (layer.needs().residual) {
            inputs.residual = rows(residual, first, n, d);
            back.residual = rows(d_residual, first, n, d);
        }
        if (m > 0) {
            inputs.per_layer_input = rows(given, first, n, m);
            back.per_layer_input = rows(d_given, first, n, m);
        }
        tiffin::status s = layer.try_forward(rows(x, first, n, d), inputs, rows(y, first, n, d), execute);
        if (s) s = layer.try_backward(rows(dy, first, n, d), back, execute);
        if (!s)
            return s.failure().message() +
                   (first > 0 ? ", counted from token " + std::to_string(first) : std::string());
    }
    const auto add = [&](const char* name, const std::vector<Number>& from, std::size_t width) {
        to.add(to.gradients, name, std::span<const Number>(from), {in.tokens, width});
    };
    to.add(to.output, "y", std::span<const Number>(y), {in.tokens, d});
    if (choices > 0) {
        std::vector<std::int64_t> route;
        std::vector<float> weight;
        for (const tiffin::choice<float>& c : routes) {
            route.push_back(c.expert);
            weight.push_back(c.weight);
        }
        to.add(to.output, "route", std::move(route), {in.tokens, choices});
        to.add(to.output, "route_weight", std::span<const float>(weight), {in.tokens, choices});
    }
    add("dx", dx, d);
    if (layer.needs().residual) add("d_residual", d_residual, d);
    if (m > 0) add("d_per_layer_input", d_given, m);
    add_tensors(layer, to);
    return "";
}
