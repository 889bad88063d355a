// A number with its partial derivatives (a dual number), for the forward-mode differentiation of formulas.
#pragma once

#include <tiffin/config.hpp>
#include <tiffin/scalar.hpp>

#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <limits>
#include <type_traits>

TIFFIN_BEGIN

namespace train_detail {

template <class V>
struct scalar_of {
    using type = V;
};
template <class V>
    requires requires {
        typename V::value_type;
    }
struct scalar_of<V> {
    using type = typename V::value_type;
};

// The lane type of a register, which scalar.hpp's constant() reads. Plain numbers have none.
template <class V>
struct lane_type {};
template <class V>
    requires requires {
        typename V::value_type;
    }
struct lane_type<V> {
    using value_type = typename V::value_type;
};

}  // namespace train_detail

// v and dv/du_i for N variables u: operations apply to v, the chain rule to the partials. V: a number or a register.
// Numerics: each partial in V; a quotient by infinity has the partials 0, which is their limit where a formula
//   saturates (silu far below zero). At a kink the partials are those of the side that `select` takes.
// Cost: up to 2 N + 1 products per operation. Source: forward-mode differentiation, docs/training.md.
template <class V, std::size_t N>
struct partials : train_detail::lane_type<V> {
    using scalar = typename train_detail::scalar_of<V>::type;

    V value{};
    std::array<V, N> by{};

    constexpr partials() = default;
    template <class A>
        requires std::is_arithmetic_v<A>
    constexpr partials(A a) : value(static_cast<scalar>(a)) { by.fill(V(scalar(0))); }
    constexpr explicit partials(const V& v) requires(!std::is_arithmetic_v<V>) : value(v) {
        by.fill(V(scalar(0)));
    }
    // Variable i, of value v: dv/du_i = 1.
    static constexpr partials variable(const V& v, std::size_t i) {
        partials p(v);
        p.by[i] = V(scalar(1));
        return p;
    }
    // f(v) whose derivative at v is `slope`.
    [[nodiscard]] constexpr partials chain(const V& f, const V& slope) const {
        partials out;
        out.value = f;
        for (std::size_t i = 0; i < N; ++i) out.by[i] = slope * by[i];
        return out;
    }

    friend constexpr partials operator-(const partials& a) { return a.chain(-a.value, V(scalar(-1))); }
    friend constexpr partials operator+(const partials& a, const partials& b) {
        return a.joined(b, a.value + b.value, [](const V& x, const V& y) { return x + y; });
    }
    friend constexpr partials operator-(const partials& a, const partials& b) {
        return a.joined(b, a.value - b.value, [](const V& x, const V& y) { return x - y; });
    }
    friend constexpr partials operator*(const partials& a, const partials& b) {
        return a.joined(b, a.value * b.value,
                        [&](const V& x, const V& y) { return x * b.value + a.value * y; });
    }
    friend constexpr partials operator/(const partials& a, const partials& b) {
        using tiffin::select;
        const V quotient = a.value / b.value, inverse = V(scalar(1)) / b.value, zero(scalar(0));
        const V most(static_cast<scalar>(largest()));
        return a.joined(b, quotient, [&](const V& x, const V& y) {
            const V d = (x - quotient * y) * inverse;
            return select(most < b.value, zero, select(b.value < -most, zero, d));
        });
    }
    constexpr partials& operator+=(const partials& b) { return *this = *this + b; }
    constexpr partials& operator-=(const partials& b) { return *this = *this - b; }
    constexpr partials& operator*=(const partials& b) { return *this = *this * b; }
    constexpr partials& operator/=(const partials& b) { return *this = *this / b; }

    friend constexpr auto operator<(const partials& a, const partials& b) { return a.value < b.value; }
    friend constexpr auto operator>(const partials& a, const partials& b) { return a.value > b.value; }
    friend constexpr auto operator<=(const partials& a, const partials& b) { return a.value <= b.value; }
    friend constexpr auto operator>=(const partials& a, const partials& b) { return a.value >= b.value; }
    friend constexpr auto operator==(const partials& a, const partials& b) { return a.value == b.value; }
    friend constexpr auto operator!=(const partials& a, const partials& b) { return a.value != b.value; }

    // By a register's mask; a bool uses scalar.hpp's select.
    template <class Condition>
        requires(!std::same_as<Condition, bool>)
    friend constexpr partials select(const Condition& condition, const partials& a, const partials& b) {
        using tiffin::select;
        return a.joined(b, select(condition, a.value, b.value),
                        [&](const V& x, const V& y) { return select(condition, x, y); });
    }

    friend partials exp(const partials& a) {
        using std::exp;
        const V e = exp(a.value);
        return a.chain(e, e);
    }
    friend partials expm1(const partials& a) {
        using std::expm1;
        const V e = expm1(a.value);
        return a.chain(e, e + V(scalar(1)));
    }
    friend partials log(const partials& a) {
        using std::log;
        return a.chain(log(a.value), V(scalar(1)) / a.value);
    }
    friend partials log1p(const partials& a) {
        using std::log1p;
        return a.chain(log1p(a.value), V(scalar(1)) / (V(scalar(1)) + a.value));
    }
    friend partials sqrt(const partials& a) {
        using std::sqrt;
        const V root = sqrt(a.value);
        return a.chain(root, V(scalar(0.5)) / root);
    }
    friend partials tanh(const partials& a) {
        using std::tanh;
        const V t = tanh(a.value);
        return a.chain(t, V(scalar(1)) - t * t);
    }
    friend partials erf(const partials& a) {
        using std::erf;
        using std::exp;
        // 2 / sqrt(pi)
        return a.chain(erf(a.value), V(static_cast<scalar>(1.1283791670955125739)) * exp(-a.value * a.value));
    }
    friend partials sin(const partials& a) {
        using std::cos;
        using std::sin;
        return a.chain(sin(a.value), cos(a.value));
    }
    friend partials cos(const partials& a) {
        using std::cos;
        using std::sin;
        return a.chain(cos(a.value), -sin(a.value));
    }
    friend partials abs(const partials& a) {
        const V zero(scalar(0));
        using tiffin::select;
        return select(a.value < zero, -a, a);
    }
    friend partials fabs(const partials& a) { return abs(a); }
    friend partials max(const partials& a, const partials& b) {
        using tiffin::select;
        return select(a.value < b.value, b, a);
    }
    friend partials min(const partials& a, const partials& b) {
        using tiffin::select;
        return select(b.value < a.value, b, a);
    }

private:
    // The largest finite value: double's, or f32's for every other type.
    static constexpr double largest() {
        return std::is_same_v<scalar, double> ? std::numeric_limits<double>::max()
                                              : static_cast<double>(std::numeric_limits<float>::max());
    }
    template <class Join>
    [[nodiscard]] constexpr partials joined(const partials& b, const V& v, const Join& join) const {
        partials out;
        out.value = v;
        for (std::size_t i = 0; i < N; ++i) out.by[i] = join(by[i], b.by[i]);
        return out;
    }
};

TIFFIN_END
