// What the tokens of a call have chosen of a gathered pool, told before its rows are read.
#pragma once

#include <tiffin/router/selection.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

TIFFIN_BEGIN

// Shapes: choices (T, top_k), best first; a negative expert ends those of a token. Valid during the call.
template <class Number>
struct chosen_experts {
    std::size_t pool = 0;  // its index among the call's gathered rows
    std::span<const choice<Number>> choices{};
    std::size_t top_k = 1;
    const std::uint32_t* positions = nullptr;  // (T): of these tokens among the call's; null: 0, 1, 2, ...
};

TIFFIN_END
