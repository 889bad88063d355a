// Learning-rate schedules: a linear warm-up, then a decay.
#pragma once

#include <tiffin/config.hpp>

#include <cmath>
#include <cstddef>

TIFFIN_BEGIN

// The schedule after the warm-up.
enum class decay_form { constant, linear, cosine };

// A linear warm-up, then a decay from `peak` to `peak` * `last`, or none.
// Step t counts from 0. t < warm_up: peak (t + 1) / (warm_up + 1). After it peak times, with
//   u = (t - warm_up) / (steps - warm_up), at most 1: constant 1 (warm-up-stable), linear 1 - u (1 - last),
//   cosine last + (1 - last) (1 + cos(pi u)) / 2.
// Source: docs/training.md#published-settings, e.g. STEM: {.peak = ..., .warm_up = steps / 10, .last = 0.1}.
struct learning_rate {
    double peak = 1e-3;
    std::size_t warm_up = 0;
    std::size_t steps = 1;  // of the whole run
    decay_form form = decay_form::cosine;
    double last = 0.1;

    [[nodiscard]] double at(std::size_t step) const noexcept {
        if (step < warm_up) return peak * static_cast<double>(step + 1) / static_cast<double>(warm_up + 1);
        if (form == decay_form::constant) return peak;
        const double whole = steps > warm_up ? static_cast<double>(steps - warm_up) : 1;
        const double u = std::fmin(static_cast<double>(step - warm_up) / whole, 1.0);
        const double left =
            form == decay_form::linear ? 1 - u : (1 + std::cos(3.14159265358979323846 * u)) / 2;
        return peak * (last + (1 - last) * left);
    }
};

TIFFIN_END
