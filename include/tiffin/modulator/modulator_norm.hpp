// The default norm of a modulator: that of its type, with the eps of the papers' layers.
#pragma once

#include <tiffin/grammar/concepts.hpp>
#include <tiffin/norm/rms.hpp>

#include <concepts>

TIFFIN_BEGIN
namespace detail {

// Norm{}; an rms with its usual eps, 1e-5, gets the eps of a modulator in a layer file, 1e-6.
template <norm_policy Norm>
constexpr Norm modulator_norm() {
    Norm norm{};
    if constexpr (std::derived_from<Norm, rms>)
        if (norm.eps == rms{}.eps) norm.eps = 1e-6f;
    return norm;
}

}  // namespace detail
TIFFIN_END
