// A number that knows what f32 would have made of it: the tolerance of every comparison in the tests.
//
// reference<bounded> evaluates a block's own formula and yields, for each output, the exact value
// (in double) and an interval that holds every result a faithful f32 evaluation can have. So no test
// chooses a tolerance: it follows from the formula, for any composition and policy.
//
// Derivation. Let [low, high], both f32, hold every value an operand can have in f32.
//   +, /, sqrt   One IEEE operation rounds once, and rounding is monotone: the result lies between the
//                rounded results of the operands' extremes. (Higham, Accuracy and Stability of Numerical
//                Algorithms, 2nd ed.: the model of section 2.2; intervals instead of the running error
//                bound of section 3.3, because they also follow overflow, underflow and NaN.)
//   *            As above, but rounded outwards: where a product feeds a sum the machine may fuse the
//                two, and the exact product then takes the place of the rounded one.
//   exp, erf,    Monotone; the extremes' exact values, widened by `library_ulps` units in the last place.
//   tanh         exp may also flush results below the smallest normal number to 0 and give infinity from
//                88.37 on, as xsimd does (its limits maxlog, minlog are +-88.3762626647949).
//   routers      Every operation rounds outwards (more_precise): they are computed in double.
//   a < b        May hold, may fail, or both; select() then gives the hull of its two values.
//   sums         order::as_written: the additions of the formula, one after the other. This is what
//                `simd` promises for its products (k ascending, one accumulator per output), so the
//                interval is only a few units wide there.
//                order::any: any tree of additions. With n terms t_i the computed sum differs from the
//                exact one by at most gamma_(n-1) sum |t_i|, gamma_n = n u / (1 - n u), u = 2^-24
//                (Higham, section 4.2, inequality 4.4; 3.5 for inner products).
//                Sums of three or more terms of which none is negative are always taken as order::any:
//                `simd` adds the squares of a norm lane by lane.
#pragma once

#include <tiffin/router/row_choice.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <utility>

namespace tiffin_test {

enum class order { as_written, any };

// How sums are ordered by what is held against a bound: read where the bound of a sum is asked for.
inline order sums_are = order::as_written;
class with_sums {
public:
    explicit with_sums(order how) : before_(std::exchange(sums_are, how)) {}
    with_sums(const with_sums&) = delete;
    with_sums& operator=(const with_sums&) = delete;
    ~with_sums() { sums_are = before_; }

private:
    order before_;
};

// Whether an f32 evaluation gives NaN.
enum class nan_result { never, possible, certain };

// What exp, erf and tanh may be off by. Measured over every 61st f32, xsimd 8.1 is off by up to 1.5 (exp),
// 2.4 (erf) and 1.4 (tanh); glibc documents at most 2. xsimd documents no bound: hence the margin.
inline constexpr double library_ulps = 4;

// The result of a comparison that rounding errors may have decided.
struct comparison {
    bool holds;  // in exact arithmetic
    bool may_hold;
    bool may_fail;
};

// Whether the operations at hand may be more precise than f32: a formula that is rounded to f32 once, at its
// end. Every result is then rounded outwards.
inline thread_local bool more_precise = false;

namespace detail {

inline constexpr float infinity = std::numeric_limits<float>::infinity();
inline constexpr float largest = std::numeric_limits<float>::max();
inline constexpr double unit_roundoff = 0x1p-24;

// The nearest f32 not above and not below. A rounded v has the sign of v, so that one unit more or less in its bits is the
// next number away from zero or towards it. Without a branch: which way v is rounded is anybody's guess.
inline float below(double v) noexcept {
    const auto f = static_cast<float>(v);
    const auto bits = std::bit_cast<std::uint32_t>(f);
    const auto over = static_cast<std::uint32_t>(static_cast<double>(f) > v);
    return std::bit_cast<float>(bits + ((0 - over) & (2 * (bits >> 31) - 1)));
}
inline float above(double v) noexcept {
    return -below(-v);
}

// The hull of some results; NaN among them is noted apart.
struct hull {
    float low = infinity;
    float high = -infinity;
    bool nan = false;

    void include(float from, float to) noexcept {
        low = std::min(low, from);
        high = std::max(high, to);
    }
    // Rounded once, not one by one: rounding is monotone.
    void include_outwards(std::initializer_list<double> exact) noexcept {
        double least = HUGE_VAL, most = -HUGE_VAL;
        for (const double v : exact) {
            nan = nan || std::isnan(v);
            least = std::min(least, v);  // of v that is NaN, the other
            most = std::max(most, v);
        }
        if (least <= most) include(below(least), above(most));
    }
    // `exact` of an operation on numbers of f32, in double.
    void include_rounded(double exact) noexcept {
        if (more_precise) return include_outwards({exact});
        const auto rounded = static_cast<float>(exact);
        std::isnan(rounded) ? static_cast<void>(nan = true) : include(rounded, rounded);
    }
};

}  // namespace detail

// Set where a router's choice lay within rounding error of another.
inline thread_local bool route_is_uncertain = false;

// Its operators are in bounded.cpp, compiled once and optimised: hundreds of formulas use them, in files that are not.
class bounded {
public:
    bounded() = default;
    // An input or a constant: exact in double, rounded once to f32.
    template <class Number>
        requires std::is_arithmetic_v<Number>
    explicit bounded(Number exact)
        : bounded(static_cast<double>(exact), static_cast<float>(exact), static_cast<float>(exact),
                  std::isnan(static_cast<double>(exact)) ? nan_result::certain : nan_result::never) {}
    explicit operator float() const noexcept { return static_cast<float>(value_); }

    // In double arithmetic.
    [[nodiscard]] double value() const noexcept { return value_; }
    // Every f32 result that is not NaN lies in [low(), high()].
    [[nodiscard]] float low() const noexcept { return in_any_order() ? any_order_low() : low_; }
    [[nodiscard]] float high() const noexcept { return in_any_order() ? any_order_high() : high_; }
    [[nodiscard]] nan_result nan() const noexcept {
        const bool overflow = in_any_order() && !none_negative_ && partial_sums_overflow();
        return overflow ? either(nan_, nan_result::possible) : nan_;
    }
    // The same sum, its terms added in an order that is not told.
    [[nodiscard]] bounded added_in_any_order() const noexcept {
        bounded same = *this;
        same.reordered_ = true;
        return same;
    }
    // The most by which an f32 result that is not NaN differs from value().
    [[nodiscard]] double error() const noexcept { return std::max(high() - value_, value_ - low()); }
    // Whether a faithful f32 evaluation may give `computed`.
    [[nodiscard]] bool accepts(float computed) const noexcept {
        if (std::isnan(computed)) return nan() != nan_result::never;
        return nan() != nan_result::certain && low() <= computed && computed <= high();
    }

    friend bounded operator+(const bounded& a, const bounded& b) noexcept;
    friend bounded operator-(const bounded& a) noexcept;
    friend bounded operator-(const bounded& a, const bounded& b) noexcept;
    friend bounded operator*(const bounded& a, const bounded& b) noexcept;
    friend bounded operator/(const bounded& a, const bounded& b) noexcept;
    friend bounded sqrt(const bounded& a) noexcept;
    friend bounded exp(const bounded& a) noexcept;
    friend bounded erf(const bounded& a) noexcept;
    friend bounded tanh(const bounded& a) noexcept;
    friend comparison operator<(const bounded& a, const bounded& b) noexcept;
    friend bounded select(const comparison& condition, const bounded& a, const bounded& b) noexcept;

private:
    bounded(double value, float low, float high, nan_result nan) noexcept
        : value_(value),
          low_(nan == nan_result::certain ? -detail::infinity : low),
          high_(nan == nan_result::certain ? detail::infinity : high),
          nan_(nan),
          none_negative_(low_ >= 0),
          sum_low_(static_cast<double>(low_)),
          sum_high_(static_cast<double>(high_)),
          magnitude_(std::max(finite_part(low_), finite_part(high_))) {}
    // The result of an operation on a and b whose f32 values lie in `r`.
    bounded(double value, const detail::hull& r, const bounded& a, const bounded& b) noexcept
        : bounded(value, r.low <= r.high ? r.low : -detail::infinity,
                  r.low <= r.high ? r.high : detail::infinity, either(a.nan(), b.nan())) {
        const bool points = a.low() == a.high() && b.low() == b.high();
        if (r.nan) worsen(points);
    }

    static nan_result either(nan_result a, nan_result b) noexcept { return std::max(a, b); }
    void worsen(bool certain) noexcept {
        nan_ = either(nan_, certain ? nan_result::certain : nan_result::possible);
        if (nan_ == nan_result::certain) *this = bounded(value_, 0, 0, nan_);
    }
    static double not_nan(double v, double instead) noexcept { return std::isnan(v) ? instead : v; }
    // In double, as what is made of it is: the larger of two is then chosen without a branch.
    static double finite_part(float v) noexcept {
        return std::min(static_cast<double>(std::fabs(v)), static_cast<double>(detail::largest));
    }
    [[nodiscard]] bool is_zero() const noexcept {
        return value_ == 0 && low_ == 0 && high_ == 0 && nan_ == nan_result::never;
    }
    [[nodiscard]] bool may_be(double infinite) const noexcept {
        return infinite > 0 ? sum_high_ == infinite : sum_low_ == infinite;
    }
    [[nodiscard]] bool is_infinite() const noexcept { return sum_low_ == sum_high_ && std::isinf(sum_low_); }

    [[nodiscard]] bool in_any_order() const noexcept {
        return terms_ > 2 && (sums_are == order::any || none_negative_ || reordered_);
    }
    // gamma_n instead of gamma_(n-1): the difference covers the rounding of these sums in double.
    [[nodiscard]] double any_order_error() const noexcept {
        return terms_ * detail::unit_roundoff / (1 - terms_ * detail::unit_roundoff) * magnitude_;
    }
    [[nodiscard]] bool partial_sums_overflow() const noexcept {
        return magnitude_ + any_order_error() > static_cast<double>(detail::largest) && !is_infinite();
    }
    [[nodiscard]] float any_order_low() const noexcept {
        if (partial_sums_overflow()) return none_negative_ ? 0.0f : -detail::infinity;
        const float least = detail::below(sum_low_ - any_order_error());
        return none_negative_ ? std::max(least, 0.0f) : least;
    }
    [[nodiscard]] float any_order_high() const noexcept {
        return partial_sums_overflow() ? detail::infinity : detail::above(sum_high_ + any_order_error());
    }

    // A monotone function of a library. It may overflow early, and flush small results to 0.
    template <class Function, class Overflows, class Flushes>
    static bounded library(const bounded& a, const Function& function, const Overflows& may_overflow,
                           const Flushes& may_flush) noexcept {
        const auto exact = [&](float v) { return function(static_cast<double>(v)); };
        const auto slack = [](float v, double result) {
            if (std::isinf(v)) return 0.0;  // the limit, which every library hits
            return library_ulps * (std::fabs(result) * 0x1p-23 + 0x1p-149);
        };
        const float from = a.low(), to = a.high();
        const double least = exact(from), most = exact(to);
        detail::hull r;
        r.include(detail::below(least - slack(from, least)), detail::above(most + slack(to, most)));
        if (may_flush(least)) r.include(0, 0);
        if (may_overflow(to)) r.high = detail::infinity;
        r.low = std::max(r.low, static_cast<float>(function(-HUGE_VAL)) * (1 + 0x1p-20f));
        return bounded(function(a.value_), r, a, a);
    }

    double value_ = 0;
    float low_ = 0;
    float high_ = 0;
    nan_result nan_ = nan_result::never;
    // As a sum: the terms, whether all are >= 0, the sums of their extremes and of their magnitudes.
    bool none_negative_ = true;
    bool reordered_ = false;
    double terms_ = 1;
    double sum_low_ = 0;
    double sum_high_ = 0;
    double magnitude_ = 0;
};

// Whether a router picks a before b: by their exact values, NaN last. Notes where f32 may decide otherwise.
inline bool exceeds(const bounded& a, const bounded& b) noexcept {
    const bool apart = a.low() > b.high() || a.high() < b.low();
    const bool same = a.low() == a.high() && b.low() == b.high() && a.low() == b.low();
    const bool numbers = a.nan() == nan_result::never && b.nan() == nan_result::never;
    const bool known = a.nan() != nan_result::possible && b.nan() != nan_result::possible;
    const bool certain = numbers ? apart || same : known;  // NaN comes last
    route_is_uncertain = route_is_uncertain || !certain;
    return a.value() > b.value() || (std::isnan(b.value()) && !std::isnan(a.value()));
}

// Whether a is no worse than b, by their exact values. Those that a router has compared by exceeds() are known to be
// certain.
inline bool is_as_good(const bounded& a, const bounded& b) noexcept {
    return std::isnan(b.value()) || a.value() >= b.value();
}

// Backends choose in double from their f32 logits, and round the weights once.
template <tiffin::learned_router Router>
void choose(const Router& router, const bounded* logits, std::size_t experts, const bounded* bias,
            bounded* scratch, tiffin::choice<bounded>* chosen) {
    more_precise = true;
    tiffin::choose<Router, bounded, bounded>(router, logits, experts, bias, scratch, chosen);
    more_precise = false;
}

template <tiffin::key_router Router>
void choose_rows(const Router& router, const bounded* scores, std::size_t heads, std::size_t keys,
                 tiffin::ranked<bounded>* scratch, bounded* weights, tiffin::choice<bounded>* chosen) {
    more_precise = true;
    tiffin::choose_rows<Router, bounded, bounded>(router, scores, heads, keys, scratch, weights, chosen);
    more_precise = false;
}
template <tiffin::gating_router Router>
void gate_rows(const Router& router, const bounded* products, std::size_t n, bounded* scratch,
               tiffin::choice<bounded>* chosen) {
    more_precise = true;
    tiffin::gate_rows<Router, bounded, bounded>(router, products, n, scratch, chosen);
    more_precise = false;
}

// Backends add the products of a row's numbers lane by lane.
inline bounded sum_in_any_order(const bounded* numbers, std::size_t n) {
    bounded total(0);
    for (std::size_t i = 0; i < n; ++i) total = total + numbers[i];
    return total.added_in_any_order();
}

}  // namespace tiffin_test
