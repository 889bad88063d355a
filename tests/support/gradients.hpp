// The gradient of a composition: central differences of the reference in double, and each backend that learns held
// against the same steps in numbers that know their error.
#pragma once

#include <tiffin/bind/bind_weights.hpp>
#include <tiffin/reference/reference.hpp>
#include <tiffin/train/reference.hpp>
#include <tiffin/train/simd.hpp>

#include "support/bounded.hpp"
#include "support/doctest.hpp"
#include "support/executors.hpp"
#include "support/tensor_set.hpp"

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

struct composition {
    std::string name;
    wanted_tensors tensors;
    std::function<double_oracle(const tiffin::weights&)> evaluate;
    learner<double> exact;
    learner<bounded> bound;
    learner<float> simd;
};

// The exact gradient alone: quicker to compile where the composition is what is tested.
template <class Block>
composition compose_readable(std::string name, const Block& block = {}) {
    const auto evaluate = [=](const tiffin::weights& given) -> double_oracle {
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
    return {std::move(name),
            tensors_wanted(block),
            evaluate,
            [=](const tiffin::weights& given, const tiffin::training_options<double>& options) {
                return tiffin::prepare_training(block, given, tiffin::reference<>{}, options);
            },
            {},
            {}};
}
template <class Block>
composition compose(std::string name, const Block& block = {}) {
    return compose_readable(std::move(name), block);
}
// Also on `simd`, against numbers that know their error: one composition of a kind is enough for that.
template <class Block>
composition compose_on_both(std::string name, const Block& block = {}) {
    composition what = compose_readable(std::move(name), block);
    what.bound = [=](const tiffin::weights& given, const tiffin::training_options<bounded>& options) {
        return tiffin::prepare_training(block, given, tiffin::reference<bounded>{}, options);
    };
    what.simd = [=](const tiffin::weights& given, const tiffin::training_options<float>& options) {
        return tiffin::prepare_training(block, given, tiffin::simd<>{}, options);
    };
    return what;
}
template <class Block>
composition compose_with_reference(std::string name, const Block& block = {}) {
    return compose_on_both(std::move(name), block);
}

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

// Central differences of two widths and their extrapolation, whose error is of the fourth order. Where the two differ
// by more than a smooth function's would there is a kink, or a route that changes.
struct difference {
    double value;
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
    const double wide = central(step), narrow = central(step / 2);
    return {(4 * narrow - wide) / 3, std::fabs(wide - narrow) <= 1e-3 * (std::fabs(narrow) + scale)};
}

struct gradient_case {
    tiffin_test::sizes sizes;
    std::size_t tokens;
    unsigned biases;
};

inline void check_differences(const composition& what, const gradient_case& c) {
    const tensor_set tensors(what.tensors, {c.sizes, {}, {}, c.biases, 7});
    double_tensors given(tensors);
    auto layer = what.exact(given.given(), {.tokens = c.tokens, .workers = 1});
    training_step<double> step(c.tokens, c.sizes.d_model, layer.needs(), c.sizes.vocab);
    step.run(layer);

    const double_oracle evaluate = what.evaluate(given.given());
    std::vector<double> y(c.sizes.d_model);
    const auto loss = [&] {
        double total = 0;
        for (std::size_t t = 0; t < c.tokens; ++t) {
            evaluate(step.ids[t], step.x.data() + t * step.d_model, step.residual.data() + t * step.d_model,
                     step.given.data() + t * step.given_width, y.data());
            for (std::size_t i = 0; i < y.size(); ++i) total += y[i] * step.dy[t * step.d_model + i];
        }
        return total;
    };
    // What forward computes is what the reference does.
    double total = 0, magnitude = 0;
    for (std::size_t i = 0; i < step.y.size(); ++i) {
        total += step.y[i] * step.dy[i];
        magnitude += std::fabs(step.y[i] * step.dy[i]);
    }
    CHECK(std::fabs(total - loss()) <= 1e-12 * (magnitude + 1));

    std::size_t checked = 0, rough = 0;
    const auto check = [&](const std::string& name, double* numbers,
                           const std::vector<std::pair<std::size_t, double>>& gradient) {
        double squares = 0;
        for (const auto& [at, g] : gradient) squares += g * g;
        const double scale = gradient.empty() ? 0 : std::sqrt(squares / static_cast<double>(gradient.size()));
        const std::size_t every = std::max<std::size_t>(1, gradient.size() / 40);
        for (std::size_t i = 0; i < gradient.size(); i += every) {
            const std::size_t at = gradient[i].first;  // no structured binding: clang 14 captures none
            const auto g = gradient[i].second;
            const difference d = differentiate(loss, numbers[at], scale);
            ++checked;
            rough += d.smooth ? 0u : 1u;
            const bool right =
                !d.smooth || std::fabs(g - d.value) <= 1e-6 * (std::fabs(d.value) + scale) + 1e-11;
            CHECK_MESSAGE(right, what.name, ": d", name, "[", at, "] = ", g, ", by differences ", d.value);
        }
    };
    const auto numbered = [](const std::vector<double>& all) {
        std::vector<std::pair<std::size_t, double>> with;
        for (std::size_t i = 0; i < all.size(); ++i) with.emplace_back(i, all[i]);
        return with;
    };
    check("x", step.x.data(), numbered(step.dx));
    if (step.reads_residual) check("residual", step.residual.data(), numbered(step.d_residual));
    if (step.given_width > 0) check("per_layer_input", step.given.data(), numbered(step.d_given));
    for (const auto& one : layer.gradients()) {
        std::vector<std::pair<std::size_t, double>> all;
        each_gradient<double>(layer, one, [&](std::size_t at, double g) { all.emplace_back(at, g); });
        check(std::string(one.name), given.of(one.name), all);
    }
    // Kinks are rare, and so are routes that change.
    CHECK_MESSAGE(rough * 20 <= checked, rough, " of ", checked);
}

// False where rounding may lead a token elsewhere with these tensors: nothing is checked then.
inline bool check_backends_with(const composition& what, const gradient_case& c, std::uint32_t seed) {
    const with_sums ordered(order::any);
    const tensor_set tensors(what.tensors, {c.sizes, {}, {}, c.biases, seed});
    auto bound = what.bound(tensors.given(), {.tokens = c.tokens, .workers = 1});
    training_step<bounded> wanted(c.tokens, c.sizes.d_model, bound.needs(), c.sizes.vocab);
    more_precise = true;
    route_is_uncertain = false;
    wanted.run(bound);
    more_precise = false;
    if (route_is_uncertain) return false;

    std::vector<float> first;
    for (const std::size_t workers : {std::size_t{1}, std::size_t{2}, std::size_t{5}}) {
        auto layer = what.simd(tensors.given(), {.tokens = c.tokens,
                                                 .keeps = workers == 2 ? tiffin::activations::recomputed
                                                                       : tiffin::activations::kept,
                                                 .workers = workers});
        training_step<float> step(c.tokens, c.sizes.d_model, layer.needs(), c.sizes.vocab);
        thread_per_task threads;
        step.run(layer, threads);
        std::vector<float> all;
        std::size_t outside = 0;
        std::string worst;
        const auto compare = [&](std::string_view name, std::size_t at, float g, const bounded& b) {
            all.push_back(g);
            if (b.accepts(g)) return;
            if (outside++ == 0)
                worst = std::string(name) + "[" + std::to_string(at) + "] = " + std::to_string(g) +
                        ", exact " + std::to_string(b.value());
        };
        for (std::size_t i = 0; i < step.y.size(); ++i) compare("y", i, step.y[i], wanted.y[i]);
        for (std::size_t i = 0; i < step.dx.size(); ++i) compare("dx", i, step.dx[i], wanted.dx[i]);
        for (std::size_t i = 0; step.reads_residual && i < step.dx.size(); ++i)
            compare("d_residual", i, step.d_residual[i], wanted.d_residual[i]);
        for (std::size_t i = 0; i < step.d_given.size(); ++i)
            compare("d_per_layer_input", i, step.d_given[i], wanted.d_given[i]);
        const auto theirs = bound.gradients();
        const auto ours = layer.gradients();
        REQUIRE(ours.size() == theirs.size());
        for (std::size_t n = 0; n < ours.size(); ++n) {
            std::vector<bounded> exact;
            each_gradient<bounded>(bound, theirs[n], [&](std::size_t, bounded g) { exact.push_back(g); });
            std::size_t i = 0;
            each_gradient<float>(layer, ours[n],
                                 [&](std::size_t at, float g) { compare(ours[n].name, at, g, exact[i++]); });
        }
        CHECK_MESSAGE(outside == 0, what.name, ": ", outside, " of ", all.size(), ", the first ", worst);
        // To the bit whatever the threads, and whether forward is computed again.
        if (first.empty()) first = all;
        CHECK(first == all);
    }
    return true;
}
inline void check_backends(const composition& what, const gradient_case& c) {
    std::uint32_t seed = 9;
    while (seed < 40 && !check_backends_with(what, c, seed)) ++seed;
    CHECK_MESSAGE(seed < 40, what.name, ": no tensors whose routes are certain");
}

inline void check_conformance(const composition& what) {
    constexpr std::size_t L = tiffin::simd_detail::width<xsimd::default_arch>;
    INFO(what.name);
    check_differences(what, {{7, 11, 6}, 5, ~0u});
    check_differences(what, {{5, 3, 2}, 18, 0u});
    if (!what.simd) return;
    check_backends(what, {{L + 1, 2 * L + 3, 9}, 21, ~0u});
    check_backends(what, {{3, L, 4}, 1, 0u});
}
inline void check(const composition& what) {
    check_conformance(what);
}

}  // namespace tiffin_test
