#include "support/texts.hpp"

#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/eigen/eigen.hpp>

#include "support/known_policies.hpp"

namespace tiffin_test {

tiffin::any_layer prepare_on_eigen(const std::string& text, const tiffin::weights& given) {
    const auto block = compose_known<tiffin::eigen::machine>(text);
    return tiffin::any_layer(tiffin::prepare(block, given, tiffin::eigen{}, {.tokens = 0}));
}

}  // namespace tiffin_test
