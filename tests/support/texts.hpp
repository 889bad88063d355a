// Compositions named by texts, on engines that are compiled once: what a suite compiles is the plans of their types.
#pragma once

#include <tiffin/plan/lower.hpp>
#include <tiffin/runtime/any_layer.hpp>
#include <tiffin/tensor.hpp>

#include "support/random.hpp"
#include "support/tensor_set.hpp"

#include <functional>
#include <string>

namespace tiffin_test {

struct expectation;
// Numbers whose gradient was checked, and those beside a kink or where a route changes.
struct differences_checked {
    std::size_t checked = 0, rough = 0;
};
using oracle = std::function<void(const float* x, std::int32_t token_id, expectation* y)>;

// What the tests' own policies and those of the library mean on a backend.
tiffin::any_layer prepare_on_simd(const std::string& text, const tiffin::weights& given);
tiffin::any_layer prepare_on_eigen(const std::string& text, const tiffin::weights& given);
tiffin::any_layer prepare_on_reference(const std::string& text, const tiffin::weights& given);
// In numbers that know their error, the sums in the order that `simd` promises or in any.
oracle oracle_of(const std::string& text, bool as_written, const tiffin::weights& given);

// Gradients, see gradients.hpp; `on_both`: on `simd` too.
bool gradients_are_asked_for();
void check_gradients_of(const std::string& text, const wanted_tensors& tensors, bool on_both);
differences_checked check_random_differences_of(const std::string& text, random_numbers& random);

// The tensors of a text; and where its plan is another than `type`, empty where it is not.
wanted_tensors tensors_wanted_by(const std::string& text);
std::string difference_from(const std::string& text, const tiffin::plan_node& type);

}  // namespace tiffin_test
