// What a modulator's norm is where nobody says: the norm of its type, with the eps of the papers' layers.
#pragma once

#include <tiffin/concepts.hpp>

TIFFIN_BEGIN
namespace detail {

// Norm{} with eps = 1e-6, as a layer file has it, whatever the norm has in other places.
template <norm_policy Norm>
constexpr Norm modulator_norm() {
    Norm norm{};
    if constexpr (requires { norm.eps = 1e-6f; }) norm.eps = 1e-6f;
    return norm;
}

}  // namespace detail
TIFFIN_END
