#include "support/known_policies.hpp"
#include "support/texts_that_learn.hpp"

namespace tiffin_test {

learner<float> learner_on_simd(const std::string& text) {
    return learner_of(compose_known<tiffin::training<tiffin::simd<>>::machine>(text), tiffin::simd<>{});
}

}  // namespace tiffin_test
