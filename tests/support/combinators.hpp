// Combinators, a router, a norm and a fusion of the tests' own: nothing in include/ knows them.
#pragma once

#include <tiffin/grammar/parts.hpp>
#include <tiffin/source/routed_low_rank.hpp>

#include <cmath>
#include <cstddef>
#include <string_view>
#include <tuple>

namespace tiffin_test {

// y = s A(x) + (1 - s) B(x), s (width) a vector: a combinator with a tensor of its own.
template <class A, class B>
struct blend {
    using share = tiffin::vector<"share">;
    using tensors = tiffin::tensor_list<share>;
    static constexpr std::string_view name = "";

    A a{};
    B b{};

    static constexpr tiffin::part_scope scope(std::size_t part) noexcept { return {part == 0 ? "a" : "b"}; }
    TIFFIN_HD constexpr std::tuple<const A&, const B&> parts() const noexcept { return {a, b}; }
    static constexpr double flops() noexcept { return 4; }

    template <class Place, class Value>
    TIFFIN_HD auto operator()(const Place& at, const Value& v, const Value& w) const {
        return at[share{}] * v + (Value(1) - at[share{}]) * w;
    }
};

// y = Block(x) times a bank of low-rank matrices: a combinator with a part that routes.
template <class Block, class Router>
struct times_bank {
    using bank_type = tiffin::routed_low_rank<Router>;

    Block block{};
    bank_type bank{};

    static constexpr tiffin::part_scope scope(std::size_t part) noexcept {
        return part == 0 ? tiffin::part_scope{"whole"} : tiffin::part_scope{};
    }
    TIFFIN_HD constexpr std::tuple<const Block&, const bank_type&> parts() const noexcept {
        return {block, bank};
    }
    static constexpr double flops() noexcept { return 2; }

    template <class Value>
    TIFFIN_HD Value operator()(const Value& v, const Value& b) const {
        return v + v * b;
    }
};

// The two largest logits, with the weights l / (1 + l^2).
struct tempered_top_2 {
    using tensors = tiffin::tensor_list<tiffin::logits<"tempered.weight">>;
    static constexpr std::size_t top_k = 2;

    template <class S>
    TIFFIN_HD static void score(S*, std::size_t) {}
    template <class S>
    TIFFIN_HD static void weigh(const S* values, S* weights, std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) weights[i] = values[i] / (S(1) + values[i] * values[i]);
    }
};

// x (w + 1) / (1 + rms(x)).
struct damped {
    static constexpr bool weighted = true;

    template <class S>
    TIFFIN_HD S scale(const S& squares, const S& count) const {
        using std::sqrt;
        return S(1) / (S(1) + sqrt(squares / count));
    }
    template <class S>
    TIFFIN_HD S operator()(const S& x, const S& by, const S& weight) const {
        return x * by * (weight + S(1));
    }
    static constexpr double flops() noexcept { return 5; }
};

// g u + g.
struct gated_sum {
    template <class S>
    TIFFIN_HD S operator()(const S& g, const S& u) const {
        return g * u + g;
    }
    static constexpr double flops() noexcept { return 2; }
};

}  // namespace tiffin_test
