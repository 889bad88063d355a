// The reference, which every other test builds upon, against loops written from docs/layers.md alone.
#include <tiffin/reference/reference.hpp>

#include <tiffin/activation/sigmoid.hpp>
#include <tiffin/call/prepare.hpp>
#include <tiffin/fusion/add.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/norm/rms.hpp>
#include <tiffin/scalar.hpp>
#include <tiffin/source/named.hpp>

#include "support/doctest.hpp"
#include "support/tensor_set.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace reference_reference_test {
using namespace tiffin;
using tiffin_test::random_ids;
using tiffin_test::random_rows;
using tiffin_test::tensor_set;

namespace {

constexpr std::size_t d = 11, f = 13, vocab = 5, tokens = 6;
using wide = long double;

// A value and how large the terms were that it was summed from.
struct summed {
    wide value = 0;
    wide size = 0;
};

// docs/layers.md, one function a symbol, tensors by their names.
class by_hand {
public:
    by_hand(const tensor_set& tensors, const float* x, std::int32_t id) : tensors_(tensors), x_(x), id_(id) {}

    // (x W^T + b)_j of `<name>.weight` and `<name>.bias`.
    [[nodiscard]] summed dense(const std::string& name, std::size_t j) const {
        return dense(
            name, j,
            [this](std::size_t k) {
                return summed{x_[k], std::fabs(x_[k])};
            },
            d);
    }
    template <class Input>
    [[nodiscard]] summed dense(const std::string& name, std::size_t j, const Input& in, std::size_t n) const {
        summed s;
        for (std::size_t k = 0; k < n; ++k) {
            const wide w = tensors_.get(name + ".weight", j * n + k);
            s.value += in(k).value * w;
            s.size += in(k).size * std::fabs(w);
        }
        const wide b = number_or_zero(name + ".bias", j);
        return {s.value + b, s.size + std::fabs(b)};
    }
    // U[t]_j, a row of `width` numbers.
    [[nodiscard]] summed row(const std::string& name, std::size_t j, std::size_t width = f) const {
        const wide v = tensors_.get(name + ".weight", static_cast<std::size_t>(id_) * width + j);
        return {v, std::fabs(v)};
    }
    [[nodiscard]] wide number(const std::string& name, std::size_t i) const { return tensors_.get(name, i); }
    [[nodiscard]] wide number_or_zero(const std::string& name, std::size_t i) const {
        const auto names = tensors_.names();
        return std::find(names.begin(), names.end(), name) == names.end() ? 0 : number(name, i);
    }

private:
    const tensor_set& tensors_;
    const float* x_;
    std::int32_t id_;
};

wide silu_of(wide z) {
    return z / (1 + std::exp(-z));
}
wide gelu_of(wide z) {
    return z / 2 * (1 + std::erf(z / std::sqrt(2.0L)));
}
wide sigmoid_of(wide z) {
    return 1 / (1 + std::exp(-z));
}
wide relu_of(wide z) {
    return z > 0 ? z : 0;
}
// No slope of these is above 1.13, no value above |z| + 1.
summed applied(wide (*phi)(wide), const summed& z) {
    return {phi(z.value), 1 + wide(1.13) * z.size};
}
summed operator*(const summed& a, const summed& b) {
    return {a.value * b.value, a.size * b.size};
}
summed operator+(const summed& a, const summed& b) {
    return {a.value + b.value, a.size + b.size};
}

using row_of = std::function<std::vector<summed>(const by_hand&)>;

// y = hidden W_down^T + b.
row_of down(const std::function<summed(const by_hand&, std::size_t)>& hidden) {
    return [=](const by_hand& at) {
        std::vector<summed> h(f), y(d);
        for (std::size_t j = 0; j < f; ++j) h[j] = hidden(at, j);
        for (std::size_t i = 0; i < d; ++i)
            y[i] = at.dense(
                "down_proj", i, [&](std::size_t j) { return h[j]; }, f);
        return y;
    };
}

// The reference evaluates in double and rounds y once: it may differ by half a unit of y in f32, and by
// d + f + 20 roundings in double of the terms that were summed.
template <class Block>
void check(const Block& block, unsigned optional, const row_of& wanted) {
    for (unsigned biases = 0; biases < 1u << optional; ++biases) {
        CAPTURE(biases);
        const tensor_set tensors(tiffin_test::tensors_wanted(Block{}),
                                 {{d, f, vocab}, {}, {}, biases, 3 + biases});
        auto computed = prepare(block, tensors.given(), reference{});
        const std::vector<float> x = random_rows(tokens, d, 5);
        const std::vector<std::int32_t> ids = random_ids(tokens, vocab, 7);
        std::vector<float> y(tokens * d);
        computed(x, ids, y);
        for (std::size_t t = 0; t < tokens; ++t) {
            const std::vector<summed> row = wanted(by_hand(tensors, x.data() + t * d, ids[t]));
            for (std::size_t i = 0; i < d; ++i) {
                CAPTURE(t);
                CAPTURE(i);
                const wide error = std::fabs(static_cast<wide>(y[t * d + i]) - row[i].value);
                CHECK(error <= 0x1p-24L * std::fabs(row[i].value) + 0x1p-53L * (d + f + 20) * row[i].size);
            }
        }
    }
}

}  // namespace

TEST_CASE("reference: mlp") {
    check(mlp{}, 2,
          down([](const by_hand& at, std::size_t j) { return applied(gelu_of, at.dense("up_proj", j)); }));
}
TEST_CASE("reference: glu") {
    const auto glu = [](wide (*phi)(wide)) {
        return down([=](const by_hand& at, std::size_t j) {
            return applied(phi, at.dense("gate_proj", j)) * at.dense("up_proj", j);
        });
    };
    check(swiglu{}, 3, glu(silu_of));
    check(geglu{}, 3, glu(gelu_of));
    check(reglu{}, 3, glu(relu_of));
}
TEST_CASE("reference: stem") {
    check(stem{}, 2, down([](const by_hand& at, std::size_t j) {
              return applied(silu_of, at.dense("gate_proj", j)) * at.row("stem_embed", j);
          }));
}
TEST_CASE("reference: stem_gate") {
    check(stem_gate{}, 2, down([](const by_hand& at, std::size_t j) {
              return applied(silu_of, at.row("stem_embed", j)) * at.dense("up_proj", j);
          }));
}
TEST_CASE("reference: stem_hybrid") {
    check(stem_hybrid{}, 3, down([](const by_hand& at, std::size_t j) {
              return applied(silu_of, at.dense("gate_proj", j)) *
                     (at.dense("up_proj", j) + at.row("stem_embed", j));
          }));
}

namespace {

// Which argument is which: g - u / 2.
struct difference {
    static constexpr double flops() noexcept { return 2; }
    template <class S>
    S operator()(const S& g, const S& u) const {
        return g - constant<S>(0.5) * u;
    }
};

// U[t] s + shift, its tensors declared in another order than they are used in.
struct scaled_embedding {
    using shift = tiffin::vector<"shift", presence::optional>;
    using rows = table<"weight">;
    using scale = tiffin::vector<"scale">;
    using tensors = tensor_list<shift, rows, scale>;
    static constexpr std::string_view name = "scaled_embed";
    auto operator()(const auto& at) const { return at[rows{}] * at[scale{}] + at[shift{}]; }
};

}  // namespace

// What the backends share with their oracle, and so only this test can see: the order of parts and tensors.
TEST_CASE("reference: a fusion and a source of one's own") {
    using block = ffn<gate<sigmoid, sum<token_embedding, dense>>, sum<dense, scaled_embedding>, difference>;
    check(block{}, 4, down([](const by_hand& at, std::size_t j) {
              const wide scale = at.number("scaled_embed.scale", j);
              const wide shift = at.number_or_zero("scaled_embed.shift", j);
              const summed row = at.row("scaled_embed", j) * summed{scale, std::fabs(scale)} +
                                 summed{shift, std::fabs(shift)};
              return applied(sigmoid_of, at.row("stem_embed", j) + at.dense("gate_proj", j)) +
                     (at.dense("up_proj", j) + row) * summed{-0.5, 0.5};
          }));
}

// The folded MeKi with its default fusion, and a table and a second matrix in the output.
TEST_CASE("reference: fusion add, sums, names, and a norm") {
    using out = project<rms, sum<dense, named<dense, "second">, named<token_embedding, "out_embed">>>;
    ffn<gate<sigmoid>, named<token_embedding, "memory">, add, out> block;
    block.output.norm.eps = 0.5f;
    check(block, 3, [](const by_hand& at) {
        std::vector<summed> h(f), y(d);
        for (std::size_t j = 0; j < f; ++j)
            h[j] = applied(sigmoid_of, at.dense("gate_proj", j)) + at.row("memory", j);
        const auto hidden = [&](std::size_t j) { return h[j]; };
        wide squares = 0;
        for (std::size_t i = 0; i < d; ++i) {
            y[i] = at.dense("down_proj", i, hidden, f) + at.dense("second", i, hidden, f) +
                   at.row("out_embed", i, d);
            squares += y[i].value * y[i].value;
        }
        const wide scale = 1 / std::sqrt(squares / d + wide(0.5));
        for (std::size_t i = 0; i < d; ++i) {
            const wide w = at.number("post_norm.weight", i);
            // The scale depends on all the others: their sizes add to its own.
            y[i] = {y[i].value * scale * w, 0};
        }
        wide most = 0;
        for (std::size_t i = 0; i < d; ++i) most = std::max(most, at.dense("down_proj", i, hidden, f).size);
        for (std::size_t i = 0; i < d; ++i) y[i].size = (most + 2) * (2 + 2 * std::fabs(y[i].value)) * d;
        return y;
    });
}

}  // namespace reference_reference_test
