#include "support/texts_that_learn.hpp"
#include "support/known_policies.hpp"

#include <cstdlib>
#include <string_view>

namespace tiffin_test {
namespace {

learning learning_of(const std::string& text) {
    learning what;
    what.name = text;
    what.tensors = tensors_wanted_by(text);
    what.evaluate = oracle_in_double(compose_known<tiffin::reference<>::machine>(text));
    what.exact = learner_of(compose_known<tiffin::training<tiffin::reference<>>::machine>(text),
                            tiffin::reference<>{});
    return what;
}

}  // namespace

bool gradients_are_asked_for() {
    const char* const asked = std::getenv("TIFFIN_TEST_GRADIENTS");
    return asked != nullptr && std::string_view(asked) == "1";
}
void check_gradients_of(const std::string& text, const wanted_tensors& tensors, bool on_both) {
    learning what = learning_of(text);
    what.tensors = tensors;
    if (on_both) {
        what.bound = learner_of(compose_known<tiffin::training<tiffin::reference<bounded>>::machine>(text),
                                tiffin::reference<bounded>{});
        what.simd = learner_on_simd(text);
    }
    check_gradients(what);
}
differences_checked check_random_differences_of(const std::string& text, random_numbers& random) {
    return check_random_differences(learning_of(text), random);
}

}  // namespace tiffin_test
