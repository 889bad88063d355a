// Packs of floats: the registers on which a thread evaluates formulas.
#pragma once

#include <tiffin/format/concepts.hpp>
#include <tiffin/grammar/concepts.hpp>
#include <tiffin/scalar.hpp>

#include <cuda_runtime.h>

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

namespace cuda_detail {

// N floats with the arithmetic of one, lane by lane.
template <std::size_t N>
struct pack {
    using value_type = float;
    float lane[N];

    pack() = default;
    TIFFIN_HD pack(float all) noexcept {
        for (std::size_t i = 0; i < N; ++i) lane[i] = all;
    }
};

template <std::size_t N>
struct pack_mask {
    bool lane[N];
};

template <std::size_t N, class Operation>
TIFFIN_HD pack<N> by_lane(const Operation& operation, const std::same_as<pack<N>> auto&... in) {
    pack<N> out;
    for (std::size_t i = 0; i < N; ++i) out.lane[i] = static_cast<float>(operation(in.lane[i]...));
    return out;
}

template <std::size_t N>
TIFFIN_HD pack<N> operator+(const pack<N>& a, const pack<N>& b) {
    pack<N> out;
    for (std::size_t i = 0; i < N; ++i) out.lane[i] = a.lane[i] + b.lane[i];
    return out;
}
template <std::size_t N>
TIFFIN_HD pack<N> operator-(const pack<N>& a, const pack<N>& b) {
    pack<N> out;
    for (std::size_t i = 0; i < N; ++i) out.lane[i] = a.lane[i] - b.lane[i];
    return out;
}
template <std::size_t N>
TIFFIN_HD pack<N> operator*(const pack<N>& a, const pack<N>& b) {
    pack<N> out;
    for (std::size_t i = 0; i < N; ++i) out.lane[i] = a.lane[i] * b.lane[i];
    return out;
}
template <std::size_t N>
TIFFIN_HD pack<N> operator/(const pack<N>& a, const pack<N>& b) {
    pack<N> out;
    for (std::size_t i = 0; i < N; ++i) out.lane[i] = a.lane[i] / b.lane[i];
    return out;
}
template <std::size_t N>
TIFFIN_HD pack<N> operator-(const pack<N>& a) {
    pack<N> out;
    for (std::size_t i = 0; i < N; ++i) out.lane[i] = -a.lane[i];
    return out;
}
template <std::size_t N>
TIFFIN_HD pack_mask<N> operator<(const pack<N>& a, const pack<N>& b) {
    pack_mask<N> out;
    for (std::size_t i = 0; i < N; ++i) out.lane[i] = a.lane[i] < b.lane[i];
    return out;
}
template <std::size_t N>
TIFFIN_HD pack<N> select(const pack_mask<N>& condition, const pack<N>& a, const pack<N>& b) {
    pack<N> out;
    for (std::size_t i = 0; i < N; ++i) out.lane[i] = condition.lane[i] ? a.lane[i] : b.lane[i];
    return out;
}

// Found by argument-dependent lookup, as those of CPU registers are.
struct exp_of {
    TIFFIN_HD float operator()(float v) const { return std::exp(v); }
};
struct erf_of {
    TIFFIN_HD float operator()(float v) const { return std::erf(v); }
};
struct tanh_of {
    TIFFIN_HD float operator()(float v) const { return std::tanh(v); }
};
struct sqrt_of {
    TIFFIN_HD float operator()(float v) const { return std::sqrt(v); }
};
template <std::size_t N>
TIFFIN_HD pack<N> exp(const pack<N>& v) {
    return by_lane<N>(exp_of{}, v);
}
template <std::size_t N>
TIFFIN_HD pack<N> erf(const pack<N>& v) {
    return by_lane<N>(erf_of{}, v);
}
template <std::size_t N>
TIFFIN_HD pack<N> tanh(const pack<N>& v) {
    return by_lane<N>(tanh_of{}, v);
}
template <std::size_t N>
TIFFIN_HD pack<N> sqrt(const pack<N>& v) {
    return by_lane<N>(sqrt_of{}, v);
}

// A formula over packs, lane by lane where it is written for plain numbers only.
template <std::size_t N, class Formula>
TIFFIN_HD pack<N> apply(const Formula& formula, const std::same_as<pack<N>> auto&... in) {
    if constexpr (std::invocable<const Formula&, decltype(in)...>)
        return static_cast<pack<N>>(formula(in...));
    else
        return by_lane<N>(formula, in...);
}

// Quotient and remainder. A device divides 64 bits in a hundred steps, 32 in twenty.
struct divided {
    std::size_t quotient;
    std::size_t remainder;
};
TIFFIN_HD inline divided divide(std::size_t a, std::size_t b) {
    if ((a | b) >> 32 != 0) return {a / b, a % b};
    const auto small = static_cast<std::uint32_t>(a), by = static_cast<std::uint32_t>(b);
    return {small / by, small % by};
}

// Elements per access of a thread: 16 bytes.
template <codec Format>
inline constexpr std::size_t access = 16 / sizeof(typename Format::storage);

template <class Storage, std::size_t N>
struct alignas(N * sizeof(Storage) < 16 ? N * sizeof(Storage) : 16) words {
    Storage number[N];
};

template <codec Format>
TIFFIN_HD float widen(const typename Format::storage& stored) {
    float number;
    Format::decode(stored, &number);
    return number;
}

// Loads `count` of N elements, the others 0; in one access where they are aligned to 16 bytes.
template <codec Format, std::size_t N>
TIFFIN_HD pack<N> load(const typename Format::storage* from, std::size_t count) {
    using group = words<typename Format::storage, N>;
    pack<N> out;
    if (count >= N && reinterpret_cast<std::uintptr_t>(from) % alignof(group) == 0) {
        const group read = *reinterpret_cast<const group*>(from);
        for (std::size_t i = 0; i < N; ++i) out.lane[i] = widen<Format>(read.number[i]);
    } else {
        for (std::size_t i = 0; i < N; ++i) out.lane[i] = i < count ? widen<Format>(from[i]) : 0.0f;
    }
    return out;
}
template <codec Format, std::size_t N>
TIFFIN_HD void store(const pack<N>& from, typename Format::storage* to, std::size_t count) {
    using group = words<typename Format::storage, N>;
    if (count >= N && reinterpret_cast<std::uintptr_t>(to) % alignof(group) == 0) {
        group written;
        for (std::size_t i = 0; i < N; ++i) Format::encode(&from.lane[i], written.number[i]);
        *reinterpret_cast<group*>(to) = written;
    } else {
        for (std::size_t i = 0; i < N; ++i)
            if (i < count) Format::encode(&from.lane[i], to[i]);
    }
}

}  // namespace cuda_detail

TIFFIN_END
