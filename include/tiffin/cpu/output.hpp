// Writes output rows, by assignment or accumulation, and splits the tokens of a call among tasks.
#pragma once

#include <tiffin/call/call_arguments.hpp>

#include <cstddef>

TIFFIN_BEGIN

namespace cpu_detail {

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

// Splits the tokens of a call among tasks where the work outweighs the hand-over: work(first, end).
template <class Work>
void for_token_ranges(const call_arguments& call, std::size_t numbers_per_token, const Work& work) {
    const std::size_t worth = call.tokens * numbers_per_token / 32768;
    const std::size_t most = call.workers < call.tokens ? call.workers : call.tokens;
    const std::size_t tasks = worth < 1 ? 1 : worth < most ? worth : most;
    const auto share = [&](std::size_t i) noexcept {
        work(call.tokens * i / tasks, call.tokens * (i + 1) / tasks);
    };
    call.execute(tasks, task_ref(share));
}
// The same, per token: work(token).
template <class Work>
void for_tokens(const call_arguments& call, std::size_t numbers_per_token, const Work& work) {
    for_token_ranges(call, numbers_per_token, [&](std::size_t first, std::size_t end) noexcept {
        for (std::size_t t = first; t < end; ++t) work(t);
    });
}

// Writes rows computed elsewhere to `to`: value(token, feature, count) returns a register of them.
template <class Machine, class Value>
void put_rows(const call_arguments& call, const output_rows& to, std::size_t width, const Value& value) {
    for_tokens(call, width, [&](std::size_t t) noexcept {
        for (std::size_t j = 0; j < width; j += Machine::lane_count) {
            const std::size_t n = Machine::lane_count < width - j ? Machine::lane_count : width - j;
            put<Machine>(to, t, j, value(t, j, n), n);
        }
    });
}

}  // namespace cpu_detail

TIFFIN_END
