// Formulas as ops: one for each policy, whatever it is composed with; what a derived source says itself; many operands,
// many temporaries, blocks of every form.
#include <tiffin/plan/ops_of.hpp>

#include <tiffin/block/ffn.hpp>
#include <tiffin/block/linear.hpp>
#include <tiffin/cpu/eigen/eigen.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/source/dense.hpp>
#include <tiffin/source/gate.hpp>
#include <tiffin/source/named.hpp>
#include <tiffin/source/sum.hpp>
#include <tiffin/source/token_embedding.hpp>
#include <tiffin/tiffin.hpp>

#include "support/doctest.hpp"
#include "support/random.hpp"
#include "support/tensor_set.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

namespace plan_op_test {
using namespace tiffin;

namespace {

using machine = simd<>::machine;

// A leaf and a node that say anew what those they are derived from say.
struct twice : dense {
    static constexpr std::string_view name = "twice";
    auto operator()(const auto& at) const { return at[weight{}] + at[weight{}]; }
};
template <class Source>
struct negated : gate<silu, Source> {
    template <class Value>
    Value operator()(const Value& z) const {
        return Value(0) - z;
    }
};

template <std::size_t I>
consteval fixed_string letter() {
    const char text[2] = {static_cast<char>('a' + I), 0};
    return fixed_string(text);
}
template <std::size_t I>
using row = named<token_embedding, letter<I>()>;

// Twelve parts, weighted by their number, and a vector: as many operands as a source may nearly have.
struct twelve {
    using bias = tiffin::vector<"bias">;
    using tensors = tensor_list<bias>;
    static constexpr std::string_view name = "";
    std::tuple<row<0>, row<1>, row<2>, row<3>, row<4>, row<5>, row<6>, row<7>, row<8>, row<9>, row<10>,
               row<11>>
        rows{};

    constexpr const auto& parts() const noexcept { return rows; }
    static constexpr double flops() noexcept { return 24; }
    template <class Place, class... Values>
    auto operator()(const Place& at, const Values&... values) const {
        auto total = at[bias{}];
        float n = 0;
        ((n += 1, total = total + decltype(total)(n) * values), ...);
        return total;
    }
};

// z_0 - (z_1 - (z_2 - ...)): every value is needed until all those after it are there.
template <class First, class Rest>
struct difference {
    First first{};
    Rest rest{};
    constexpr std::tuple<const First&, const Rest&> parts() const noexcept { return {first, rest}; }
    static constexpr double flops() noexcept { return 1; }
    template <class Value>
    Value operator()(const Value& a, const Value& b) const {
        return a - b;
    }
};
template <std::size_t I, std::size_t N>
struct chain_of {
    using type = difference<gate<silu, row<I>>, typename chain_of<I + 1, N>::type>;
};
template <std::size_t N>
struct chain_of<N, N> {
    using type = gate<silu, dense>;
};

// The largest distance of a backend from `reference`, over the largest number of that.
template <class Backend, class Block>
double distance(const Block& block, const tiffin_test::sizes& s, std::size_t tokens, const Backend& backend) {
    const tiffin_test::tensor_set set(tiffin_test::tensors_wanted(block),
                                      {.sizes = s, .dense = {}, .tables = {}});
    std::vector<float> x(tokens * s.d_model), expected(x.size()), y(x.size());
    tiffin_test::random_numbers(5).fill(x);
    std::vector<std::int32_t> ids(tokens);
    for (std::size_t t = 0; t < tokens; ++t) ids[t] = static_cast<std::int32_t>(t * 7 % s.vocab);
    const auto run = [&](const auto& with, std::vector<float>& to) {
        auto layer = prepare(block, set.given(), with);
        layer(matrix_view<const float>(x.data(), tokens, s.d_model), std::span<const std::int32_t>(ids),
              matrix_view<float>(to.data(), tokens, s.d_model));
    };
    run(reference<>{}, expected);
    run(backend, y);
    double most = 0, largest = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
        most = std::max(most, std::fabs(static_cast<double>(y[i]) - static_cast<double>(expected[i])));
        largest = std::max(largest, std::fabs(static_cast<double>(expected[i])));
    }
    return most / largest;
}
// f32 sums of up to 300 terms and a few operations on them; see tests/engine for bounds that follow from a formula.
constexpr double allowed = 1e-5;

template <class Block>
void check_sizes(const Block& block) {
    const auto check = [&](std::size_t tokens, std::size_t d_ff, std::size_t d_model) {
        CAPTURE(tokens);
        CAPTURE(d_ff);
        CAPTURE(d_model);
        const tiffin_test::sizes s{.d_model = d_model, .d_ff = d_ff, .vocab = 19};
        CHECK(distance(block, s, tokens, simd<>{}) < allowed);
        CHECK(distance(block, s, tokens, eigen{}) < allowed);
    };
    for (const std::size_t tokens : {1u, 2u, 65u})
        for (const std::size_t d_ff : {1u, 33u}) check(tokens, d_ff, 7);
    check(5, 300, 64);
    check(3, 33, 1100);
}

}  // namespace

TEST_CASE("ops: one per policy") {
    const auto of = [](auto source) { return ops_of<machine, decltype(source)>.formula; };
    CHECK((of(gate<silu>{}) == of(gate<silu, token_embedding>{})));
    CHECK((of(gate<silu>{}) != of(gate<gelu>{})));
    CHECK((of(fused<gate<silu>, dense, multiply>{}) == of(fused<gate<gelu>, token_embedding, multiply>{})));
    CHECK((of(modulated<swiglu, token_modulator<>>{}) == of(fused<gate<silu>, dense, multiply>{})));
    CHECK((of(normed<rms, dense>{}) == of(normed<rms, token_embedding, "other">{})));
}

TEST_CASE("ops: sums have none, and so what is derived from a sum or a gate has one of its own") {
    CHECK(detail::kind_of<dense>.sums);
    CHECK(detail::kind_of<named<dense, "other">>.sums);
    CHECK(detail::kind_of<sum<dense, token_embedding>>.sums);
    CHECK_FALSE(detail::kind_of<twice>.sums);
    CHECK((ops_of<machine, negated<dense>>.formula != ops_of<machine, gate<silu>>.formula));
    check_sizes(ffn<gate<silu, twice>>{});
    check_sizes(ffn<gate<silu>, negated<named<dense, "up_proj">>>{});
    check_sizes(ffn<gate<silu>, none, multiply, project<no_norm, linear<"down_proj">>>{});
}

TEST_CASE("ops: as many operands as there may be") {
    check_sizes(ffn<gate<silu>, twelve>{});
}

TEST_CASE("ops: temporaries that wait for each other, sixteen deep") {
    check_sizes(ffn<gate<silu>, chain_of<0, 16>::type>{});
}

}  // namespace plan_op_test
