// The machine interface of a training step, and its reference: plain numbers, in double.
#pragma once

#include <tiffin/train/training_call.hpp>

#include <cstddef>

TIFFIN_BEGIN

namespace train_detail {

// A machine has registers and operations on them. Here a register is one number; sums add k in ascending order.
//   value                     a register of `width` numbers, on which formulas are evaluated;
//   load, store, all, first   the first `count` lanes; all: broadcast; first: sets lanes from `count` on to 0;
//   sum                       over the lanes;
//   by_number(formula, v...)  for a formula that takes plain numbers only.
template <class Scalar>
struct exact_machine {
    using number = Scalar;
    using value = Scalar;
    static constexpr std::size_t width = 1;

    static value load(const number* from, std::size_t) noexcept { return *from; }
    static void store(const value& v, number* to, std::size_t) noexcept { *to = v; }
    static value all(number v) noexcept { return v; }
    static value first(const value& v, std::size_t) noexcept { return v; }
    static number sum(const value& v) noexcept { return v; }
    template <class Formula, class... Values>
    static value by_number(const Formula& formula, const Values&... values) {
        return static_cast<value>(formula(values...));
    }
};

// Matrix products: k ascending, one accumulator per element.
template <class Scalar>
struct exact_product {
    using number = Scalar;

    static std::size_t bytes(std::size_t, std::size_t, std::size_t, std::size_t) noexcept { return 0; }
    static void run(const training_call<number>& call, std::size_t m, std::size_t n, std::size_t k,
                    const factor<number>& a, const factor<number>& b, number* c, bool add, std::byte*) {
        const auto at = [](const factor<number>& f, std::size_t i, std::size_t k0) {
            return f.data[f.transposed ? k0 * f.stride + i : i * f.stride + k0];
        };
        call.each(m, [&](std::size_t i) {
            for (std::size_t j = 0; j < n; ++j) {
                number total(0);
                for (std::size_t l = 0; l < k; ++l) total = total + at(a, i, l) * at(b, j, l);
                number& to = c[i * n + j];
                to = add ? to + total : total;
            }
        });
    }
};

}  // namespace train_detail

TIFFIN_END
