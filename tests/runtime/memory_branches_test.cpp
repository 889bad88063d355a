// A memory over branches that share a value: the formula in double, and to the bit what a layer per branch gives.
#include <tiffin/runtime/memory_branches.hpp>

#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>

#include "support/doctest.hpp"
#include "support/random.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace runtime_memory_branches_test {
using namespace tiffin;

namespace {

constexpr std::size_t branches = 3, d = 20, c = 13, tokens = 11, taps = 4, all = branches * d;
const std::vector<std::uint32_t> sequence_of{0, 0, 1, 0, 1, 1, 0, 1, 1, 0, 0};

std::vector<float> random(std::size_t n, unsigned seed, float scale = 1) {
    std::vector<float> made(n);
    tiffin_test::random_numbers(seed).fill(made, scale);
    return made;
}

struct tensors {
    std::vector<float> key = random(all * c, 1, 0.3f), value = random(d * c, 2, 0.3f),
                       key_norm = random(all, 3), query_norm = random(all, 4), conv = random(all * taps, 5),
                       conv_norm = random(all, 6);

    // Of all branches, or of branch b alone.
    [[nodiscard]] weights given(bool convolution, bool flat = false) const {
        weights w;
        w.add("key_proj.weight", key.data(), {all, c}).add("value_proj.weight", value.data(), {d, c});
        w.add("key_norm.weight", key_norm.data(), flat ? shape(all) : shape(branches, d));
        w.add("query_norm.weight", query_norm.data(), flat ? shape(all) : shape(branches, d));
        if (!convolution) return w;
        w.add("conv.weight", conv.data(), flat ? shape(all, taps) : shape(all, 1, taps));
        w.add("conv_norm.weight", conv_norm.data(), {all});
        return w;
    }
    [[nodiscard]] weights of_branch(std::size_t b) const {
        weights w;
        w.add("key_proj.weight", key.data() + b * d * c, {d, c})
            .add("value_proj.weight", value.data(), {d, c});
        w.add("key_norm.weight", key_norm.data() + b * d, {d});
        w.add("query_norm.weight", query_norm.data() + b * d, {d});
        return w;
    }
    [[nodiscard]] weights convolution_of(std::size_t b) const {
        weights w;
        w.add("conv.weight", conv.data() + b * d * taps, {d, taps});
        w.add("conv_norm.weight", conv_norm.data() + b * d, {d});
        return w;
    }
};

std::vector<float> branch_of(const std::vector<float>& h, std::size_t b) {
    std::vector<float> part;
    for (std::size_t t = 0; t < tokens; ++t)
        for (std::size_t j = 0; j < d; ++j) part.push_back(h[t * all + b * d + j]);
    return part;
}

using whole = dot_gated<copysign_root_gate, engram_key, engram_query, engram_value>;

}  // namespace

TEST_CASE("memory_branches: a layer per branch, and its convolution") {
    const simd<> backend;
    const tensors w;
    const std::vector<float> h = random(tokens * all, 7), e = random(tokens * c, 8);
    for (const std::size_t dilation : {std::size_t{0}, std::size_t{2}}) {
        CAPTURE(dilation);
        auto memory = memory_branches::prepare<copysign_root_gate>(w.given(dilation > 0, dilation > 0),
                                                                   branches, backend, {.dilation = dilation})
                          .or_throw();
        CHECK(memory.branches() == branches);
        std::vector<row_history> past = memory.make_histories(2);
        std::vector<float> y = h;  // onto its input, in two calls
        const std::span<const std::uint32_t> sequences(sequence_of);
        for (const auto& [first, count] :
             {std::pair{std::size_t{0}, std::size_t{4}}, std::pair{std::size_t{4}, tokens - 4}}) {
            const matrix_view<float> rows(y.data() + first * all, count, all);
            memory(rows, {e.data() + first * c, count, c}, rows,
                   dilation > 0 ? sequences.subspan(first, count) : std::span<const std::uint32_t>(), past)
                .or_throw();
        }
        for (std::size_t b = 0; b < branches; ++b) {
            const std::vector<float> x = branch_of(h, b);
            std::vector<float> expected(tokens * d);
            auto layer = prepare<whole>(w.of_branch(b), backend);
            layer(x, {.per_layer_input = {e.data(), tokens, c}}, expected);
            if (dilation > 0) {
                const weights of = w.convolution_of(b);
                const auto convolution = short_convolution::prepare(of, dilation).or_throw();
                std::vector<row_history> alone(2, convolution.make_history());
                const matrix_view<float> z(expected.data(), tokens, d);
                convolution(z, sequence_of, alone, z).or_throw();
            }
            CHECK(branch_of(y, b) == expected);
        }
    }
}

TEST_CASE("memory_branches: the formula") {
    const tensors w;
    const std::vector<float> h = random(tokens * all, 7), e = random(tokens * c, 8);
    auto memory =
        memory_branches::prepare<signed_root_gate>(w.given(false), branches, reference<>{}, {.eps = 1e-3f})
            .or_throw();
    std::vector<float> y(h.size());
    memory({h.data(), tokens, all}, {e.data(), tokens, c}, {y.data(), tokens, all}).or_throw();
    const auto product = [&](const std::vector<float>& m, std::size_t row, std::size_t t) {
        double sum = 0;
        for (std::size_t k = 0; k < c; ++k)
            sum += static_cast<double>(m[row * c + k]) * static_cast<double>(e[t * c + k]);
        return sum;
    };
    for (std::size_t t = 0; t < tokens; ++t)
        for (std::size_t b = 0; b < branches; ++b) {
            double keys = 0, queries = 0, dot = 0;
            for (std::size_t j = 0; j < d; ++j) {
                const double k = product(w.key, b * d + j, t),
                             q = static_cast<double>(h[t * all + b * d + j]);
                keys += k * k;
                queries += q * q;
                dot += k * static_cast<double>(w.key_norm[b * d + j]) * q *
                       static_cast<double>(w.query_norm[b * d + j]);
            }
            const double eps = static_cast<double>(1e-3f), n = d;
            const double g = dot / std::sqrt(keys / n + eps) / std::sqrt(queries / n + eps) / std::sqrt(n);
            const double root = std::copysign(std::sqrt(std::max(std::fabs(g), 1e-6)), g);
            for (std::size_t j = 0; j < d; ++j) {
                const double expected = product(w.value, j, t) / (1 + std::exp(-root));
                CHECK(std::fabs(static_cast<double>(y[t * all + b * d + j]) - expected) <=
                      1e-6 * std::fabs(expected));
            }
        }
}

TEST_CASE("memory_branches: what is refused") {
    const tensors w;
    const auto why = [&](const weights& given, std::size_t count, const memory_branches::options& how) {
        const auto made = memory_branches::prepare<signed_root_gate>(given, count, simd{}, how);
        return made ? std::string("nothing") : made.failure().message();
    };
    CHECK(why(w.given(false), 4, {}) == "key_proj.weight: has shape (60, 13); it is of 4 branches of 20");
    CHECK(why(w.given(true), branches, {}) == "conv.weight: is of a convolution, whose dilation is 0");
    CHECK(why(w.given(false), branches, {.dilation = 3}) ==
          "conv.weight: missing; it has shape (width, taps)");
    CHECK(why(w.given(false), 0, {}).find("there are 0 branches") != std::string::npos);
    CHECK(why({}, branches, {}) == "value_proj.weight: missing; it has shape (d, c)");
    weights narrow = w.of_branch(0);
    weights other;
    for (const weights::entry& t : narrow.entries())
        other.add(t.name, t.name == "key_proj.weight" ? tensor_view{t.tensor.data, dtype::f32, {d, c - 1}}
                                                      : t.tensor);
    CHECK(why(other, 1, {}) == "key_proj.weight: reads rows of 12; value_proj.weight reads 13");
    // Without numbers, and of an axis too many.
    const auto with_key = [&](const shape& of) {
        weights changed;
        const weights one = w.of_branch(0);
        for (const weights::entry& t : one.entries())
            changed.add(t.name,
                        t.name == "key_proj.weight" ? tensor_view{t.tensor.data, dtype::f32, of} : t.tensor);
        return changed;
    };
    CHECK(why(with_key({d, 0}), 1, {}) == "key_proj.weight: has shape (20, 0); no axis may be 0");
    CHECK(why(with_key({d, 0, 0}), 1, {}) ==
          "key_proj.weight: has shape (20, 0, 0); it must have 2 axes, (d_model, width)");
    CHECK(why(with_key({d, 1, 1, c}), 1, {}) ==
          "key_proj.weight: has shape (20, 1, 1, 13); it is of 1 branches of 20");

    auto memory = memory_branches::prepare<signed_root_gate>(w.given(true), branches, simd{}, {.dilation = 2})
                      .or_throw();
    std::vector<row_history> past = memory.make_histories(2);
    std::vector<float> h(tokens * all, 1.0f), e(tokens * c, 1.0f), y(tokens * all, -7.0f);
    const auto call = [&](std::size_t rows, std::size_t given, std::span<const std::uint32_t> of,
                          std::span<row_history> histories) {
        const status s =
            memory({h.data(), rows, all}, {e.data(), given, c}, {y.data(), rows, all}, of, histories);
        CHECK(y == std::vector<float>(tokens * all, -7.0f));
        return s ? std::string("nothing") : s.failure().message();
    };
    CHECK(call(tokens, tokens - 1, sequence_of, past) ==
          "h: is (11, 60), y (11, 60), e (10, 13); they are (T, 60), the same, and (T, 13)");
    CHECK(call(tokens, tokens, sequence_of, std::span(past).first(5)) == "histories: are 5 for 3 branches");
    CHECK(call(tokens, tokens, sequence_of, std::span(past).first(3)) ==
          "sequence_of[2]: is 1; there are 1 histories");
    CHECK(call(tokens, tokens, std::span(sequence_of).first(3), past) == "sequence_of: are 3 for 11 rows");
}

}  // namespace runtime_memory_branches_test
