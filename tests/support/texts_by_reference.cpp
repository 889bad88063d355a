#include "support/texts.hpp"

#include <tiffin/call/prepare.hpp>
#include <tiffin/reference/reference.hpp>

#include "support/composition.hpp"
#include "support/known_policies.hpp"
#include "support/same_plan.hpp"

namespace tiffin_test {

tiffin::any_layer prepare_on_reference(const std::string& text, const tiffin::weights& given) {
    const auto block = compose_known<tiffin::reference<>::machine>(text);
    return tiffin::any_layer(tiffin::prepare(block, given, tiffin::reference{}, {.tokens = 0}));
}
oracle oracle_of(const std::string& text, bool as_written, const tiffin::weights& given) {
    const auto block = compose_known<tiffin::reference<bounded>::machine>(text);
    return make_oracle(as_written ? order::as_written : order::any, block, given);
}
wanted_tensors tensors_wanted_by(const std::string& text) {
    return tensors_wanted(compose_known<void>(text));
}
std::string difference_from(const std::string& text, const tiffin::plan_node& type) {
    return difference(compose_known<void>(text).plan(), type);
}

}  // namespace tiffin_test
