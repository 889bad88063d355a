// The gradient of a composition: central differences of the reference in double, and each backend that learns held
// against the same steps in numbers that know their error.
#pragma once

#include <tiffin/bind/bind_weights.hpp>
#include <tiffin/reference/reference.hpp>
#include <tiffin/train/reference.hpp>
#include <tiffin/train/simd.hpp>

#include "support/bounded.hpp"
#include "support/random.hpp"
#include "support/tensor_set.hpp"
#include "support/texts.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tiffin_test {

// One token in double by the reference: x, residual, row given with the call, y.
using double_oracle = std::function<void(std::int32_t id, const double* x, const double* residual,
                                         const double* given, double* y)>;

template <class Number>
using learner = std::function<tiffin::trainable_layer<Number>(const tiffin::weights&,
                                                              const tiffin::training_options<Number>&)>;

// A composition that learns.
struct learning {
    std::string name;
    wanted_tensors tensors;
    std::function<double_oracle(const tiffin::weights&)> evaluate;
    learner<double> exact;
    learner<bounded> bound;
    learner<float> simd;
};

template <class Block>
auto oracle_in_double(const Block& block) {
    return [=](const tiffin::weights& given) -> double_oracle {
        tiffin::binding bound =
            tiffin::bind_weights(block, given, {.formats = {{}, {}, {}, true, tiffin::in_place::everything}})
                .or_throw();
        const auto engine =
            std::make_shared<const tiffin::reference<double>::engine<Block>>(block, std::move(bound));
        return
            [=](std::int32_t id, const double* x, const double* residual, const double* beside, double* y) {
                std::vector<double> scratch(engine->scratch());
                engine->evaluate_token({id, residual, beside}, x, y, scratch.data());
            };
    };
}
template <class Block, class Backend>
learner<tiffin::training_number<Backend>> learner_of(const Block& block, const Backend& backend) {
    using number = tiffin::training_number<Backend>;
    return [=](const tiffin::weights& given, const tiffin::training_options<number>& options) {
        return tiffin::prepare_training(block, given, backend, options);
    };
}
// What is compiled by its type.
template <class Block>
learning learn(std::string name, const Block& block = {}) {
    return {std::move(name),
            tensors_wanted(block),
            oracle_in_double(block),
            learner_of(block, tiffin::reference<>{}),
            learner_of(block, tiffin::reference<bounded>{}),
            learner_of(block, tiffin::simd<>{})};
}

// The gradient against central differences; on `simd` against numbers that know their error, if `what` has both.
void check_gradients(const learning& what);
// The former alone, of a few tokens and random sizes. Throws what prepare_training() refuses.
differences_checked check_random_differences(const learning& what, random_numbers& random);

// A step of a layer: what it reads and writes, in a number of one's own.
template <class Number>
struct training_step {
    std::vector<std::int32_t> ids;
    std::vector<Number> x, residual, given, dy, y, dx, d_residual, d_given;
    std::size_t tokens = 0, d_model = 0, given_width = 0;
    bool reads_residual = false;

    training_step(std::size_t n, std::size_t d, const tiffin::call_needs& needs, std::size_t vocab)
        : ids(random_ids(n, vocab, 13)),
          tokens(n),
          d_model(d),
          given_width(needs.given_width),
          reads_residual(needs.residual) {
        const std::vector<float> in = random_rows(n, d, 11), out = random_rows(n, d, 12);
        for (const float v : in) x.emplace_back(v);
        for (const float v : random_rows(n, d, 14)) residual.emplace_back(v);
        for (const float v : random_rows(n, given_width, 15)) given.emplace_back(v);
        for (const float v : out) dy.emplace_back(v);
        y.resize(n * d);
        dx = d_residual = y;
        d_given.resize(n * given_width);
    }
    void run(tiffin::trainable_layer<Number>& layer, tiffin::executor_ref execute = tiffin::serially) {
        tiffin::training_inputs<Number> in{.token_ids = ids};
        tiffin::input_gradients<Number> to{.x = {dx.data(), tokens, d_model}};
        if (reads_residual) {
            in.residual = {residual.data(), tokens, d_model};
            to.residual = {d_residual.data(), tokens, d_model};
        }
        if (given_width > 0) {
            in.per_layer_input = {given.data(), tokens, given_width};
            to.per_layer_input = {d_given.data(), tokens, given_width};
        }
        layer.forward(x, in, y, execute);
        layer.backward(dy, to, execute);
    }
};

// Tensors widened to double, which a test may move by less than f32 could tell.
class double_tensors {
public:
    explicit double_tensors(const tensor_set& from) {
        const tiffin::weights narrow = from.given();
        for (const auto& e : narrow.entries()) {
            if (tiffin::is_integer(e.tensor.type)) {
                all_.add(e.name, e.tensor);
                continue;
            }
            auto& to = numbers_.emplace_back(e.tensor.shape.elements());
            for (std::size_t i = 0; i < to.size(); ++i)
                to[i] = static_cast<double>(tiffin::load_as_f32(e.tensor.data, e.tensor.type, i));
            all_.add(e.name, {to.data(), tiffin::dtype::f64, e.tensor.shape});
        }
    }
    // Views of its numbers stay where they are.
    double_tensors(const double_tensors&) = delete;
    [[nodiscard]] const tiffin::weights& given() const { return all_; }
    [[nodiscard]] double* of(std::string_view name) {
        return const_cast<double*>(static_cast<const double*>(all_.find(name)->data));
    }

private:
    std::deque<std::vector<double>> numbers_;
    tiffin::weights all_;
};

// Every number of a gradient in one order: dense as they are; of rows, slot by slot, each with its place in the tensor.
template <class Number>
void each_gradient(const tiffin::trainable_layer<Number>& layer, const tiffin::tensor_gradient<Number>& of,
                   const std::function<void(std::size_t at, Number)>& visit) {
    if (of.data != nullptr) {
        for (std::size_t i = 0; i < of.shape.elements(); ++i) visit(i, of.data[i]);
        return;
    }
    const bool pool = of.shape.rank() == 3;
    const std::size_t experts = pool ? of.shape[0] : 1, vocab = of.shape[pool ? 1 : 0],
                      width = of.shape[pool ? 2 : 1];
    for (std::size_t e = 0; e < experts; ++e)
        for (std::size_t i = 0; i < layer.ids().size(); ++i) {
            const auto row = of.row(e, layer.ids().slot(i));
            for (std::size_t j = 0; j < width; ++j)
                visit((e * vocab + static_cast<std::size_t>(layer.ids().id(i))) * width + j, row[j]);
        }
}

// Central differences of three widths, extrapolated from the first two and from the last two: the error of the latter is
// of the fourth order, a fifteenth of their distance where the loss is smooth. Where they are further apart than a gradient
// may be from them there is a kink, a route that changes, or a curve too sharp for these widths.
struct difference {
    double value;
    double tolerance;
    bool smooth;
};
inline difference differentiate(const std::function<double()>& loss, double& at, double scale) {
    const double before = at, step = 0x1p-10;
    const auto central = [&](double h) {
        at = before + h;
        const double above = loss();
        at = before - h;
        const double below = loss();
        at = before;
        return (above - below) / (2 * h);
    };
    const double wide = central(step), half = central(step / 2), quarter = central(step / 4);
    const double first = (4 * half - wide) / 3, second = (4 * quarter - half) / 3;
    const double tolerance = 1e-6 * (std::fabs(second) + scale) + 1e-11;
    return {second, tolerance, std::fabs(first - second) <= tolerance};
}

}  // namespace tiffin_test
