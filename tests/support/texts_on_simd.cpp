#include "support/texts.hpp"

#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/simd/simd.hpp>

#include "support/known_policies.hpp"

namespace tiffin_test {

tiffin::any_layer prepare_on_simd(const std::string& text, const tiffin::weights& given) {
    const auto block = compose_known<tiffin::simd<>::machine>(text);
    return tiffin::any_layer(tiffin::prepare(block, given, tiffin::simd{}, {.tokens = 0}));
}

}  // namespace tiffin_test
