// Gradients of compositions named by texts, by engines that are compiled once.
#pragma once

#include "support/gradients.hpp"
#include "support/texts.hpp"

namespace tiffin_test {

learner<float> learner_on_simd(const std::string& text);

}  // namespace tiffin_test
