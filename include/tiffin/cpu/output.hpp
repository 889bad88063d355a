// Where values go: a row of y, over what is there or added to it; or rows that the next products read.
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

template <class Machine>
struct put_registers {
    output_rows to;

    void operator()(std::size_t token, std::size_t feature, const typename Machine::reg& value,
                    std::size_t count) const noexcept {
        put<Machine>(to, token, feature, value, count);
    }
};

// Puts registers where products read them.
template <class Machine>
struct put_in_buffer {
    typename Machine::buffer to;

    void operator()(std::size_t token, std::size_t feature, const typename Machine::reg& value,
                    std::size_t count) const noexcept {
        Machine::put(value, to, token, feature, count);
    }
    // The same for all of the outputs that a group of panels has.
    [[nodiscard]] auto of_group() const noexcept requires requires { typename Machine::part_writer; }
    { return typename Machine::part_writer(to); }
};

// Rows of activations that a source writes and the next one reads.
template <class Machine>
class row_buffer {
    using arena = detail::arena<64>;

public:
    row_buffer(arena& areas, std::size_t tokens, std::size_t width) noexcept
        : to_{areas.template take<float>(Machine::buffer::numbers(tokens, width)), tokens, width} {}
    // Between products, of which the second may want numbers in another form, and nothing else wants them.
    template <class From, class To>
    row_buffer(arena& areas, std::size_t tokens, std::size_t width, const From& from, const To& to) noexcept
        : to_{nullptr, tokens, width} {
        if constexpr (requires { Machine::rounding_between(from.packed(), to.packed()); }) {
            to_.how = Machine::rounding_between(from.packed(), to.packed());
            if (to_.how.round != nullptr) {
                to_.rounded = areas.template take<std::byte>(to_.how.bytes(tokens, width));
                return;
            }
        }
        *this = row_buffer(areas, tokens, width);
    }
    [[nodiscard]] typename Machine::activations rows() const noexcept { return to_.view(); }
    [[nodiscard]] put_in_buffer<Machine> writer() const noexcept { return {to_}; }

private:
    typename Machine::buffer to_;
};

// Splits the tokens of a call among tasks where there is enough to do to pay for the hand-over.
template <class Work>
void for_tokens(const call_arguments& call, std::size_t numbers_per_token, const Work& work) {
    const std::size_t worth = call.tokens * numbers_per_token / 32768;
    const std::size_t most = call.workers < call.tokens ? call.workers : call.tokens;
    const std::size_t tasks = worth < 1 ? 1 : worth < most ? worth : most;
    const auto share = [&](std::size_t i) noexcept {
        for (std::size_t t = call.tokens * i / tasks; t < call.tokens * (i + 1) / tasks; ++t) work(t);
    };
    call.execute(tasks, task_ref(share));
}

// Rows computed elsewhere, put in their place: value(token, feature, count) gives a register of them.
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
