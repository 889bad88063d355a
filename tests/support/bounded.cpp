#include "support/bounded.hpp"

namespace tiffin_test {

bounded operator+(const bounded& a, const bounded& b) noexcept {
    if (b.is_zero()) return a;  // exact, and no term of a sum
    if (a.is_zero()) return b;
    bounded s(a.value_ + b.value_, a.low_ + b.low_, a.high_ + b.high_, bounded::either(a.nan_, b.nan_));
    if (more_precise) {
        s.low_ = detail::below(static_cast<double>(a.low_) + static_cast<double>(b.low_));
        s.high_ = detail::above(static_cast<double>(a.high_) + static_cast<double>(b.high_));
    }
    s.terms_ = a.terms_ + b.terms_;
    s.magnitude_ = a.magnitude_ + b.magnitude_;
    s.none_negative_ = a.none_negative_ && b.none_negative_;
    s.sum_low_ = bounded::not_nan(a.sum_low_ + b.sum_low_, -HUGE_VAL);
    s.sum_high_ = bounded::not_nan(a.sum_high_ + b.sum_high_, HUGE_VAL);
    s.low_ = static_cast<float>(bounded::not_nan(static_cast<double>(s.low_), -HUGE_VAL));
    s.high_ = static_cast<float>(bounded::not_nan(static_cast<double>(s.high_), HUGE_VAL));
    const bool opposite =
        (a.may_be(HUGE_VAL) && b.may_be(-HUGE_VAL)) || (a.may_be(-HUGE_VAL) && b.may_be(HUGE_VAL));
    if (opposite) s.worsen(a.is_infinite() && b.is_infinite());
    return s;
}
bounded operator-(const bounded& a) noexcept {
    bounded r = a;
    r.value_ = -a.value_;
    r.low_ = -a.high_;
    r.high_ = -a.low_;
    r.sum_low_ = -a.sum_high_;
    r.sum_high_ = -a.sum_low_;
    r.none_negative_ = a.high_ <= 0 && a.terms_ < 2;
    return r;
}
bounded operator-(const bounded& a, const bounded& b) noexcept {
    return a + (-b);
}

bounded operator*(const bounded& a, const bounded& b) noexcept {
    const float a0 = a.low(), a1 = a.high(), b0 = b.low(), b1 = b.high();
    // The usual case, sooner: no infinity, and so no NaN.
    if (&a != &b && std::fabs(a0) + std::fabs(a1) + std::fabs(b0) + std::fabs(b1) < detail::infinity) {
        const auto x0 = static_cast<double>(a0), x1 = static_cast<double>(a1), y0 = static_cast<double>(b0),
                   y1 = static_cast<double>(b1);
        const double p = x0 * y0, q = x0 * y1, r = x1 * y0, t = x1 * y1;
        return bounded(a.value_ * b.value_, detail::below(std::min(std::min(p, q), std::min(r, t))),
                       detail::above(std::max(std::max(p, q), std::max(r, t))),
                       bounded::either(a.nan_, b.nan_));
    }
    detail::hull r;
    if (&a == &b) {  // a square: its factors vary together
        const double most = std::max(std::fabs(a0), std::fabs(a1));
        const double least = a0 <= 0 && a1 >= 0 ? 0.0f : std::min(std::fabs(a0), std::fabs(a1));
        r.include_outwards({least * least, most * most});
    } else {
        const auto x0 = static_cast<double>(a0), x1 = static_cast<double>(a1), y0 = static_cast<double>(b0),
                   y1 = static_cast<double>(b1);
        r.include_outwards({x0 * y0, x0 * y1, x1 * y0, x1 * y1});
    }
    const auto zero = [](float from, float to) { return from <= 0 && to >= 0; };
    const auto infinite = [](float from, float to) { return std::isinf(from) || std::isinf(to); };
    r.nan = &a != &b && ((zero(a0, a1) && infinite(b0, b1)) || (zero(b0, b1) && infinite(a0, a1)));
    return bounded(a.value_ * b.value_, r, a, b);
}
bounded operator/(const bounded& a, const bounded& b) noexcept {
    const float b0 = b.low(), b1 = b.high();
    detail::hull r;
    for (const float x : {a.low(), a.high()})
        for (const float y : {b0, b1}) r.include_rounded(static_cast<double>(x) / static_cast<double>(y));
    if (b0 <= 0 && b1 >= 0)  // and a zero's sign is not known
        r = {-detail::infinity, detail::infinity, a.low() <= 0 && a.high() >= 0};
    return bounded(a.value_ / b.value_, r, a, b);
}

bounded sqrt(const bounded& a) noexcept {
    detail::hull r;
    r.include_rounded(std::sqrt(static_cast<double>(std::max(a.low(), 0.0f))));
    r.include_rounded(std::sqrt(static_cast<double>(a.high())));
    r.nan = r.nan || a.low() < 0;
    return bounded(std::sqrt(a.value_), r, a, a);
}
bounded exp(const bounded& a) noexcept {
    return bounded::library(
        a, [](double v) { return std::exp(v); }, [](float v) { return v > 88.37f; },
        [](double v) { return v < static_cast<double>(std::numeric_limits<float>::min()); });
}
bounded erf(const bounded& a) noexcept {
    return bounded::library(
        a, [](double v) { return std::erf(v); }, [](float) { return false; }, [](double) { return false; });
}
bounded tanh(const bounded& a) noexcept {
    return bounded::library(
        a, [](double v) { return std::tanh(v); }, [](float) { return false; }, [](double) { return false; });
}

comparison operator<(const bounded& a, const bounded& b) noexcept {
    const bool nan_possible = a.nan() != nan_result::never || b.nan() != nan_result::never;
    const bool nan_certain = a.nan() == nan_result::certain || b.nan() == nan_result::certain;
    return {a.value_ < b.value_, !nan_certain && a.low() < b.high(), nan_possible || !(a.high() < b.low())};
}
bounded select(const comparison& condition, const bounded& a, const bounded& b) noexcept {
    const double value = (condition.holds ? a : b).value_;
    detail::hull r;
    nan_result nan = nan_result::never;
    if (condition.may_hold) r.include(a.low(), a.high());
    if (condition.may_fail) r.include(b.low(), b.high());
    if (condition.may_hold && condition.may_fail)
        nan = a.nan() == b.nan() ? a.nan() : nan_result::possible;
    else
        nan = (condition.may_hold ? a : b).nan();
    return bounded(value, r.low, r.high, nan);
}

}  // namespace tiffin_test
