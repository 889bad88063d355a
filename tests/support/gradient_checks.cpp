// The checks of conformance.hpp for gradients, compiled once for all suites.
#include "support/doctest.hpp"
#include "support/executors.hpp"
#include "support/gradients.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tiffin_test {
namespace {

struct gradient_case {
    tiffin_test::sizes sizes;
    std::size_t tokens;
    unsigned biases;
};

differences_checked check_differences(const learning& what, const gradient_case& c) {
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
            const bool right = !d.smooth || std::fabs(g - d.value) <= d.tolerance;
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
    return {checked, rough};
}
void check_smooth_differences(const learning& what, const gradient_case& c) {
    const differences_checked all = check_differences(what, c);
    // Kinks are rare, and so are routes that change.
    CHECK_MESSAGE(all.rough * 20 <= all.checked, all.rough, " of ", all.checked);
}

// False where rounding may lead a token elsewhere with these tensors: nothing is checked then.
bool check_backends_with(const learning& what, const gradient_case& c, std::uint32_t seed) {
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
void check_backends(const learning& what, const gradient_case& c) {
    std::uint32_t seed = 9;
    while (seed < 40 && !check_backends_with(what, c, seed)) ++seed;
    CHECK_MESSAGE(seed < 40, what.name, ": no tensors whose routes are certain");
}

}  // namespace

void check_gradients(const learning& what) {
    constexpr std::size_t L = tiffin::simd_detail::width<xsimd::default_arch>;
    INFO(what.name);
    check_smooth_differences(what, {{7, 11, 6}, 5, ~0u});
    check_smooth_differences(what, {{5, 3, 2}, 18, 0u});
    if (!what.simd) return;
    check_backends(what, {{L + 1, 2 * L + 3, 9}, 21, ~0u});
    check_backends(what, {{3, L, 4}, 1, 0u});
}
differences_checked check_random_differences(const learning& what, random_numbers& random) {
    const tiffin_test::sizes of{1 + random.below(9), 1 + random.below(9), 1 + random.below(6)};
    return check_differences(what, {of, 1 + random.below(4), random.below(2) == 0 ? ~0u : 0u});
}

}  // namespace tiffin_test
