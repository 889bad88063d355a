// Where values go: a row of y, over what is there or added to it.
#pragma once

#include <tiffin/backend/call.hpp>

#include <cstddef>

TIFFIN_BEGIN

namespace fused_detail {

// y[row] (+)= weight * value, one register.
template <class Machine>
void put(const output_rows& to, std::size_t token, std::size_t feature, typename Machine::reg value,
         std::size_t count) noexcept {
    using reg = typename Machine::reg;
    float* const at = to.row(token) + feature;
    if (to.add) {
        const reg before = Machine::load(at, count);
        value = to.weights ? Machine::multiply_add(reg(to.weights[token]), value, before) : before + value;
    } else if (to.weights) {
        value = reg(to.weights[token]) * value;
    }
    Machine::store(value, at, count);
}

// Rows computed elsewhere, put in their place: value(token, feature, count) gives a register of them.
template <class Machine, class Value>
void put_rows(const call_arguments& call, std::size_t d_model, const Value& value) {
    for_tokens(call, d_model, [&](std::size_t t) noexcept {
        for (std::size_t j = 0; j < d_model; j += Machine::lane_count) {
            const std::size_t n = Machine::lane_count < d_model - j ? Machine::lane_count : d_model - j;
            put<Machine>(call.to, t, j, value(t, j, n), n);
        }
    });
}

}  // namespace fused_detail

TIFFIN_END
