// AdamW against its formula in long double, step by step: dense tensors, rows of tables and pools, one clipping of all of
// them; what is refused; threads; a state that is saved and taken up again; the forms of a learning rate.
#include <tiffin/learn/adamw.hpp>

#include <tiffin/executor/thread_team.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/learn/learning_rate.hpp>
#include <tiffin/train/reference.hpp>
#include <tiffin/train/simd.hpp>

#include "support/doctest.hpp"
#include "support/executors.hpp"
#include "support/gradients.hpp"
#include "support/policies.hpp"
#include "support/random.hpp"
#include "support/tensor_set.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace learn_adamw_test {
using namespace tiffin;
using tiffin_test::random_ids;
using tiffin_test::random_rows;
using tiffin_test::tensor_set;

namespace {

constexpr std::size_t d = 7, f = 10, vocab = 40, tokens = 24;

// Tensors of a block in numbers that a test and an optimizer may write, all behind one prefix.
template <class Number>
class parameters {
public:
    parameters(const tensor_set& from, const std::string& prefix) {
        const tiffin::weights narrow = from.given();
        for (const auto& e : narrow.entries()) {
            auto& to = numbers_.emplace_back(e.tensor.shape.elements());
            for (std::size_t i = 0; i < to.size(); ++i)
                to[i] = static_cast<Number>(load_as_f32(e.tensor.data, e.tensor.type, i));
            given_.add(e.name, {to.data(), train_detail::parameter<Number>::own_type(), e.tensor.shape});
            memory_.add(prefix + e.name, to.data(), e.tensor.shape);
        }
    }
    parameters(const parameters&) = delete;
    [[nodiscard]] const tiffin::weights& given() const { return given_; }
    [[nodiscard]] const named_memory<Number>& memory() const { return memory_; }

private:
    std::deque<std::vector<Number>> numbers_;
    tiffin::weights given_;
    named_memory<Number> memory_;
};

// A layer that learns, the tensors that it reads, and steps with inputs of their own.
template <class Block, class Backend>
struct learner {
    using number = training_number<Backend>;
    std::string prefix;
    parameters<number> values;
    trainable_layer<number> layer;

    explicit learner(std::string name, std::uint32_t seed = 3)
        : prefix(std::move(name)),
          values(tensor_set::of(Block{}, {{d, f, vocab}, {}, {}, ~0u, seed}), prefix),
          layer(prepare_training<Block>(values.given(), Backend{}, {.tokens = tokens, .table_rows = vocab})) {
    }
    // Adds gradients of some tokens to those that are there.
    void learn(std::span<const std::int32_t> ids, std::uint32_t seed) {
        std::vector<number> x, dy, y(ids.size() * d);
        for (const float v : random_rows(ids.size(), d, seed)) x.push_back(static_cast<number>(v));
        for (const float v : random_rows(ids.size(), d, seed + 1000)) dy.push_back(static_cast<number>(v));
        layer.forward(x, {.token_ids = ids}, y);
        layer.backward(dy);
    }
};

// A tensor as the formula sees it: a gradient for each number that takes part in a step.
struct seen_gradient {
    std::string name;
    std::size_t numbers;
    std::size_t width;  // of a row of ids; else 0
    std::map<std::size_t, long double> parts;
};

template <class Number>
void see(std::vector<seen_gradient>& all, const std::string& prefix, const trainable_layer<Number>& layer) {
    for (const auto& g : layer.gradients()) {
        const bool rows = g.data == nullptr;
        const std::size_t width = g.shape[g.shape.rank() - 1];
        seen_gradient one{prefix + std::string(g.name), g.shape.elements(), rows ? width : 0, {}};
        if (!rows) {
            for (std::size_t i = 0; i < one.numbers; ++i) one.parts[i] = static_cast<long double>(g.data[i]);
        } else {
            const bool pool = g.shape.rank() == 3;
            const std::size_t ids_of_each = g.shape[g.shape.rank() - 2];
            for (std::size_t e = 0; e < (pool ? g.shape[0] : 1); ++e)
                for (std::size_t n = 0; n < layer.ids().size(); ++n) {
                    const std::size_t slot = layer.ids().slot(n);
                    if (!g.is_read(e, slot)) continue;
                    const std::size_t row = e * ids_of_each + static_cast<std::size_t>(layer.ids().id(n));
                    for (std::size_t j = 0; j < width; ++j)
                        one.parts[row * width + j] = static_cast<long double>(g.row(e, slot)[j]);
                }
        }
        all.push_back(std::move(one));
    }
}

// All that an optimizer has changed of one tensor.
template <class Number>
struct tensor_state {
    std::vector<Number> w, m, v;
    std::vector<std::int32_t> steps;

    friend bool operator==(const tensor_state&, const tensor_state&) = default;
};
template <class Number>
using state = std::map<std::string, tensor_state<Number>>;

template <class Backend>
state<training_number<Backend>> state_of(adamw<Backend>& optimizer,
                                         const named_memory<training_number<Backend>>& values) {
    using number = training_number<Backend>;
    state<number> all;
    optimizer.visit_state([&](const std::string& name, dtype type, const shape& sizes, void* at) {
        const std::size_t dot = name.rfind('.');
        const std::string what = name.substr(dot + 1);
        tensor_state<number>& one = all[name.substr(0, dot)];
        if (what == "row_steps") {
            CHECK(type == dtype::i32);
            const auto* const from = static_cast<const std::int32_t*>(at);
            one.steps.assign(from, from + sizes.elements());
            return;
        }
        CHECK(type == (sizeof(number) == 4 ? dtype::f32 : dtype::f64));
        const auto* const from = static_cast<const number*>(at);
        (what == "first_moment" ? one.m : one.v).assign(from, from + sizes.elements());
        CHECK((what == "first_moment" || what == "second_moment"));
    });
    for (auto& [name, one] : all) {
        const auto* const entry = values.find(name);
        REQUIRE(entry != nullptr);
        one.w.assign(entry->data, entry->data + entry->shape.elements());
    }
    return all;
}

template <class Number>
void join(named_memory<Number>& to, const named_memory<Number>& from) {
    for (const auto& e : from.entries()) to.add(e.name, e.data, e.shape);
}

// What one number may differ from the formula by after one step from w, m, v in memory. u: the unit roundoff of the
// backend's number. To the first order:
//   the norm's square    a square, 31 additions in a register and up to 5 across it, 37 u; the rest in double,
//                        n 2^-53 for n gradients: half of both of the norm, c; clip / norm rounded, c + u;
//   g' = g clipped       c + 2 u of it, or 0 where nothing is clipped;
//   m'                   beta1 and 1 - beta1 rounded, a product each, a sum: 3 u beta1 |m| + (c + 5 u) (1 - beta1) |g'|;
//   v'                   likewise 3 u beta2 v + (2 c + 9 u) (1 - beta2) g'^2;
//   corrections          1 - beta^t in double from a power that is off by 2^-53 and a difference of 0.05 or more: 2^-48,
//                        rounded: 2^-48 + u;
//   the quotient's foot  (v' / 2 of itself, a root, the correction, a product, eps rounded, a sum): + 5 u + 2^-48;
//   p, what is taken off rate m' / foot: the error of m' over the foot, (4 u + 2 2^-48 + that of the foot) |p|;
//   w'                   keep rounded, a product, a difference: 2 u |w| + u (|w| + |p|).
// 1.01 for what is of the second order. u also stands for the smallest numbers: nothing here is below 2^-100.
template <class Number>
struct formula {
    static constexpr long double u = sizeof(Number) == 4 ? 0x1p-24L : 0x1p-53L;
    adamw_options o;
    long double rate, clipped, off;  // off: c

    formula(const adamw_options& options, double at, long double norm, std::size_t gradients)
        : o(options), rate(at), clipped(1), off(0) {
        if (o.clip <= 0 || norm <= static_cast<long double>(o.clip)) return;
        clipped = static_cast<long double>(o.clip) / norm;
        off = norm_error(gradients);
    }
    static long double norm_error(std::size_t gradients) {
        return (37 * u + static_cast<long double>(gradients + 2) * 0x1p-53L) / 2;
    }
    // Whether the step from `before` led to `after` at number i. t counts the steps of this number.
    bool accepts(const tensor_state<Number>& before, const tensor_state<Number>& after, std::size_t i,
                 long double gradient, bool decays, std::int64_t t) const {
        const auto wide = [](double x) { return static_cast<long double>(x); };
        const long double b1 = wide(o.beta1), b2 = wide(o.beta2), eps = wide(o.eps);
        const long double w = before.w[i], m = before.m[i], v = before.v[i];
        const long double c = clipped == 1 ? 0 : off + 2 * u;
        const long double g = gradient * clipped;
        const long double first = b1 * m + (1 - b1) * g, second = b2 * v + (1 - b2) * g * g;
        const long double first_off = 3 * u * b1 * std::fabs(m) + (c + 5 * u) * (1 - b1) * std::fabs(g);
        const long double second_off = 3 * u * b2 * v + (2 * c + 9 * u) * (1 - b2) * g * g;
        const auto n = static_cast<long double>(t);
        const long double foot = std::sqrt(second / (1 - std::pow(b2, n))) + eps;
        const long double size = rate / (1 - std::pow(b1, n));
        const long double p = size * first / foot;
        const long double decay = decays ? rate * wide(o.decay) : 0;
        const long double exact = w - decay * w - p;
        const long double foot_off = (second > 0 ? second_off / second / 2 : 0) + 5 * u + 0x1p-48L;
        const long double p_off = size / foot * first_off + (4 * u + 2 * 0x1p-48L + foot_off) * std::fabs(p);
        const long double w_off = 2 * u * std::fabs(w) + u * (std::fabs(w) + std::fabs(p)) + p_off;
        const auto is_near = [](Number got, long double want, long double by) {
            return std::fabs(static_cast<long double>(got) - want) <= 1.01L * by;
        };
        return is_near(after.m[i], first, first_off) && is_near(after.v[i], second, second_off) &&
               is_near(after.w[i], exact, w_off);
    }
};

// One step, and whether everything in it is right: each number that takes part by the formula, all others unchanged.
template <class Backend>
void check_step(adamw<Backend>& optimizer, const adamw_options& options, double rate,
                const named_memory<training_number<Backend>>& values, const std::vector<seen_gradient>& seen,
                executor_ref execute = serially) {
    using number = training_number<Backend>;
    const auto before = state_of(optimizer, values);
    const std::uint64_t steps = optimizer.steps();
    REQUIRE(optimizer.step(rate, execute).ok());
    CHECK(optimizer.steps() == steps + 1);
    const auto after = state_of(optimizer, values);
    REQUIRE(after.size() == seen.size());

    long double squares = 0;
    std::size_t gradients = 0;
    for (const seen_gradient& s : seen)
        for (const auto& [at, g] : s.parts) {
            squares += g * g;
            ++gradients;
        }
    const long double norm = std::sqrt(squares);
    CHECK(std::fabs(static_cast<long double>(optimizer.gradient_norm()) - norm) <=
          1.01L * formula<number>::norm_error(gradients) * norm);
    const formula<number> exact(options, rate, norm, gradients);
    for (const seen_gradient& s : seen) {
        CAPTURE(s.name);
        REQUIRE(after.count(s.name) == 1);
        const auto &from = before.at(s.name), &to = after.at(s.name);
        REQUIRE(to.w.size() == s.numbers);
        REQUIRE(to.m.size() == s.numbers);
        REQUIRE(to.v.size() == s.numbers);
        CHECK(to.steps.size() == (s.width != 0 ? s.numbers / s.width : 0));
        const bool decays = values.find(s.name)->shape.rank() > 1;
        std::size_t wrong = 0, moved = 0, resting = 0;
        for (std::size_t i = 0; i < s.numbers; ++i) {
            const auto part = s.parts.find(i);
            const std::size_t row = s.width != 0 ? i / s.width : 0;
            if (part == s.parts.end()) {  // to the bit
                moved += to.w[i] == from.w[i] && to.m[i] == from.m[i] && to.v[i] == from.v[i] ? 0u : 1u;
                if (s.width != 0) moved += to.steps[row] == from.steps[row] ? 0u : 1u;
                ++resting;
                continue;
            }
            std::int64_t t = static_cast<std::int64_t>(steps) + 1;
            if (s.width != 0) {
                t = from.steps[row] + 1;
                wrong += to.steps[row] == t ? 0u : 1u;
            }
            wrong += exact.accepts(from, to, i, part->second, decays, t) ? 0u : 1u;
        }
        CHECK(wrong == 0);
        CHECK(moved == 0);
        CHECK(resting + s.parts.size() == s.numbers);
    }
}

// A dense tensor without a layer.
template <class Number>
struct dense_tensor {
    std::string name;
    tiffin::shape shape;
    std::vector<Number> w, g;

    dense_tensor(std::string called, tiffin::shape sizes, std::uint32_t seed)
        : name(std::move(called)), shape(sizes), w(sizes.elements()), g(sizes.elements()) {
        tiffin_test::random_numbers random(seed);
        for (Number& x : w) x = static_cast<Number>(random.signed_unit());
    }
    // Of both signs and of sizes from 2^-10 to 1; some are 0.
    void set_gradient(std::uint32_t seed, float scale) {
        tiffin_test::random_numbers random(seed);
        for (Number& x : g) {
            const float size = std::ldexp(scale, -static_cast<int>(random.below(11)));
            x = random.below(8) == 0 ? Number(0) : static_cast<Number>(random.signed_unit(size));
        }
    }
    [[nodiscard]] seen_gradient seen() const {
        seen_gradient one{name, g.size(), 0, {}};
        for (std::size_t i = 0; i < g.size(); ++i) one.parts[i] = static_cast<long double>(g[i]);
        return one;
    }
};

}  // namespace

TEST_CASE_TEMPLATE("adamw: dense tensors by the formula, step after step", Backend, reference<>, simd<>) {
    using number = training_number<Backend>;
    constexpr std::size_t w = training_machine<Backend>::type::width;
    for (const adamw_options& options :
         {adamw_options{}, adamw_options{.clip = 0}, adamw_options{.beta1 = 0, .beta2 = 0.5, .clip = 1e6},
          adamw_options{.beta1 = 0.95, .beta2 = 0.9, .eps = 0.1, .decay = 0, .clip = 0.01}}) {
        CAPTURE(options.clip);
        CAPTURE(options.beta1);
        // Pieces of 16384 numbers, whole registers and parts of them.
        std::deque<dense_tensor<number>> all;
        all.emplace_back("large", tiffin::shape(5, 3280), 1u);
        all.emplace_back("row", tiffin::shape(2 * w + 3), 2u);
        all.emplace_back("one", tiffin::shape(), 3u);
        all.emplace_back("register", tiffin::shape(1, w), 4u);
        all.emplace_back("bank", tiffin::shape(2, 3, w + 1), 5u);
        adamw<Backend> optimizer(options);
        named_memory<number> values;
        for (auto& t : all) {
            optimizer.add(t.name, t.w.data(), t.g.data(), t.shape, t.shape.rank() > 1);
            values.add(t.name, t.w.data(), t.shape);
        }
        // New moments are 0, and no step has been.
        for (const auto& [name, one] : state_of(optimizer, values)) {
            for (const number m : one.m) REQUIRE(m == 0);
            for (const number v : one.v) REQUIRE(v == 0);
        }
        CHECK(optimizer.steps() == 0);
        for (std::uint32_t step = 0; step < 6; ++step) {
            std::vector<seen_gradient> seen;
            for (auto& t : all) {
                t.set_gradient(step * 10 + static_cast<std::uint32_t>(t.w.size()), step == 3 ? 30.0f : 1.0f);
                seen.push_back(t.seen());
            }
            check_step(optimizer, options, 0.01 / (step + 1), values, seen);
        }
    }
}

// Twice the same number: a weight that decays falls by rate decay of itself, one that does not stays.
TEST_CASE_TEMPLATE("adamw: what decays", Backend, reference<>, simd<>) {
    using number = training_number<Backend>;
    constexpr std::size_t n = 21;
    std::vector<number> fixed(n, 2), falling(n, 2);
    const std::vector<number> none(n, 0);
    adamw<Backend> optimizer({.decay = 0.25});
    optimizer.add("fixed", fixed.data(), none.data(), {3, 7}, false);
    optimizer.add("falling", falling.data(), none.data(), {n}, true);
    REQUIRE(optimizer.step(0.5).ok());
    CHECK(optimizer.gradient_norm() == 0);
    CHECK(fixed == std::vector<number>(n, 2));
    CHECK(falling == std::vector<number>(n, 2 * 0.875));

    // Of a layer: tensors of more than one axis.
    learner<stem, Backend> one("");
    adamw<Backend> of_layer({.decay = 0.25});
    REQUIRE(of_layer.add("", one.layer, one.values.memory()).ok());
    std::vector<std::vector<number>> before;
    for (const auto& e : one.values.memory().entries())
        before.emplace_back(e.data, e.data + e.shape.elements());
    REQUIRE(of_layer.step(0.5).ok());
    std::size_t i = 0;
    for (const auto& e : one.values.memory().entries()) {
        CAPTURE(e.name);
        const bool falls = e.name == "gate_proj.weight" || e.name == "down_proj.weight";
        for (std::size_t j = 0; j < before[i].size(); ++j)
            REQUIRE(e.data[j] == (falls ? number(0.875) * before[i][j] : before[i][j]));
        ++i;
    }
    CHECK(i == 5);
}

// Steps of 1/2 at a decay of 1/4: whether a row rests or is read, 7/8 of it stays, beside what its gradient adds.
TEST_CASE_TEMPLATE("adamw: rows that rest decay where that is asked for", Backend, reference<>, simd<>) {
    using number = training_number<Backend>;
    const std::vector<std::int32_t> read{2, 7, 2};
    for (const bool all : {false, true}) {
        CAPTURE(all);
        learner<stem, Backend> usual(""), one("");
        adamw<Backend> of_usual({.decay = 0, .clip = 0}),
            optimizer({.decay = 0.25, .clip = 0, .resting_rows_decay = all});
        REQUIRE(of_usual.add("", usual.layer, usual.values.memory()).ok());
        REQUIRE(optimizer.add("", one.layer, one.values.memory()).ok());
        const auto* const table = one.values.memory().find("stem_embed.weight");
        const auto* const moved = usual.values.memory().find("stem_embed.weight");
        REQUIRE(table != nullptr);
        const std::vector<number> before(table->data, table->data + table->shape.elements());
        usual.learn(read, 1);
        one.learn(read, 1);
        tiffin::thread_team team(3);
        REQUIRE(of_usual.step(0.5).ok());
        REQUIRE(optimizer.step(0.5, team).ok());
        const std::size_t width = table->shape[1];
        for (std::size_t i = 0; i < before.size(); ++i) {
            const bool rests = i / width != 2 && i / width != 7;
            const number step = moved->data[i] - before[i], kept = number(0.875) * before[i];
            if (rests)
                REQUIRE(table->data[i] == (all ? kept : before[i]));
            else  // a rounding of each of the two sums, and of their difference
                REQUIRE(
                    std::fabs(static_cast<double>(table->data[i] - (kept + step))) <=
                    4 * std::numeric_limits<number>::epsilon() *
                        (std::fabs(static_cast<double>(before[i])) + std::fabs(static_cast<double>(step))));
        }
    }
}

TEST_CASE_TEMPLATE("adamw: rows take part in the steps in which a token has read them", Backend, reference<>,
                   simd<>) {
    using number = training_number<Backend>;
    // A table and a pool in two layers, with one optimizer.
    learner<stem, Backend> table("a.", 3);
    learner<tiffin_test::mort_of_three<mlp>, Backend> pool("b.", 4);
    std::vector<number> free(1000, 1), free_gradient(1000, number(0.01));
    named_memory<number> values;
    join(values, table.values.memory());
    join(values, pool.values.memory());
    values.add("free", free.data(), {1000});
    const adamw_options options{.clip = 0.75};
    adamw<Backend> optimizer(options);
    REQUIRE(optimizer.add("a.", table.layer, values).ok());
    REQUIRE(optimizer.add("b.", pool.layer, values).ok());
    optimizer.add("free", free.data(), free_gradient.data(), {1000}, false);

    // Ids of a call more than once; ids that rest; more than the 16 of a piece; none of the table's.
    std::vector<std::int32_t> many, others;  // together all
    for (std::size_t t = 0; t < vocab; ++t)
        (t < tokens ? many : others).push_back(static_cast<std::int32_t>((t * 7) % vocab));
    const std::vector<std::vector<std::int32_t>> of_table{{7, 2, 7, 39, 0}, {2, 11}, many, {},
                                                          {2, 2, 7},        many};
    const std::vector<std::vector<std::int32_t>> of_pool{{5}, {5, 5, 6}, {39, 0, 1}, many, {6, 5}, many};
    for (std::size_t step = 0; step < of_table.size(); ++step) {
        CAPTURE(step);
        const auto seed = static_cast<std::uint32_t>(step);
        table.layer.clear_gradients();
        pool.layer.clear_gradients();
        if (!of_table[step].empty()) table.learn(of_table[step], seed + 1);
        pool.learn(of_pool[step], seed + 50);
        // The gradients of two calls are one step.
        if (step == 2) {
            table.learn(std::vector<std::int32_t>{2, 38, 7}, 99);
            pool.learn(std::vector<std::int32_t>{4, 38, 17}, 98);
        }
        if (step == 5) table.learn(others, 97);
        std::vector<seen_gradient> seen;
        see(seen, "a.", table.layer);
        see(seen, "b.", pool.layer);
        seen_gradient dense{"free", 1000, 0, {}};
        for (std::size_t i = 0; i < 1000; ++i) dense.parts[i] = static_cast<long double>(free_gradient[i]);
        seen.push_back(dense);
        check_step(optimizer, options, 0.02, values, seen);
        CHECK(optimizer.gradient_norm() > 0.75);  // clipped
    }
    const auto all = state_of(optimizer, values);
    const auto& counts = all.at("a.stem_embed.weight").steps;
    REQUIRE(counts.size() == vocab);
    CHECK(counts[2] == 5);   // all steps but 3; once in step 2, whose two calls bring it
    CHECK(counts[7] == 4);   // 0, 2, 4, 5
    CHECK(counts[38] == 2);  // 2, 5
    CHECK(counts[3] == 1);   // 5, with all others
    // A token reads 2 of the pool's 4 experts.
    const auto& of_experts = all.at("b.modulators.weight").steps;
    REQUIRE(of_experts.size() == 4 * vocab);
    std::size_t reads = 0, resting = 0;
    for (std::size_t e = 0; e < 4; ++e) {
        reads += of_experts[e * vocab + 6] != 0 ? 1u : 0u;
        resting += of_experts[e * vocab + 6] == 0 ? 1u : 0u;
        CHECK(of_experts[e * vocab + 3] == 0);
    }
    CHECK(reads > 0);
    CHECK(resting > 0);
}

TEST_CASE("adamw: the norm is of dense numbers and rows together, before it is clipped") {
    learner<stem, reference<>> one("");
    adamw<reference<>> optimizer({.clip = 1e-3});
    REQUIRE(optimizer.add("", one.layer, one.values.memory()).ok());
    one.learn(random_ids(9, vocab, 5), 6);
    long double rows = 0, dense = 0;
    std::vector<seen_gradient> seen;
    see(seen, "", one.layer);
    for (const seen_gradient& s : seen)
        for (const auto& [at, g] : s.parts) (s.width != 0 ? rows : dense) += g * g;
    CHECK(rows > 0.01L * dense);
    CHECK(dense > 0.01L * rows);
    REQUIRE(optimizer.step(0).ok());
    CHECK(optimizer.gradient_norm() == doctest::Approx(static_cast<double>(std::sqrt(rows + dense))));
    // After it: (1 - beta1)^-1 times the moments of the first step are the clipped gradients.
    long double clipped = 0;
    for (const auto& [name, t] : state_of(optimizer, one.values.memory()))
        for (const double m : t.m) clipped += 100 * static_cast<long double>(m) * static_cast<long double>(m);
    CHECK(static_cast<double>(std::sqrt(clipped)) == doctest::Approx(1e-3));
    // A norm at the bound is left alone: 3 / 5 and 4 / 5.
    std::vector<double> w(2), g{0.75, 1.0};
    adamw<reference<>> at_bound({.clip = 1.25});
    at_bound.add("w", w.data(), g.data(), {2}, false);
    REQUIRE(at_bound.step(0).ok());
    CHECK(at_bound.gradient_norm() == 1.25);
    named_memory<double> of_w;
    of_w.add("w", w.data(), {2});
    const auto moments = state_of(at_bound, of_w).at("w").m;
    CHECK(moments[0] == (1 - 0.9) * 0.75);
    CHECK(moments[1] == 1 - 0.9);
}

TEST_CASE_TEMPLATE("adamw: a gradient that is not finite is refused, and nothing changes", Backend,
                   reference<>, simd<>) {
    using number = training_number<Backend>;
    learner<tiffin_test::mort_of_three<stem>, Backend> one("x.");
    std::vector<number> w(33, 1), g(33, number(0.5));
    named_memory<number> values;
    join(values, one.values.memory());
    values.add("last", w.data(), {33});
    adamw<Backend> optimizer;
    REQUIRE(optimizer.add("x.", one.layer, values).ok());
    optimizer.add("last", w.data(), g.data(), {33}, true);
    one.learn(random_ids(20, vocab, 5), 6);
    REQUIRE(optimizer.step(0.01).ok());
    const auto before = state_of(optimizer, values);
    const double norm = optimizer.gradient_norm();
    const auto check_refused = [&](number& at, const std::string& name) {
        const number good = at;
        for (const double bad : {std::numeric_limits<double>::quiet_NaN(), HUGE_VAL, -HUGE_VAL,
                                 static_cast<double>(std::numeric_limits<number>::max())}) {
            CAPTURE(name);
            CAPTURE(bad);
            at = static_cast<number>(bad);
            const status s = optimizer.step(0.01);
            at = good;
            REQUIRE_FALSE(s.ok());
            CHECK(s.failure().code == errc::value);
            CHECK(s.failure().where == name);
            CHECK(s.failure().what == "has a gradient that is not finite, or whose square is not, in step 2");
            CHECK(state_of(optimizer, values) == before);
            CHECK(optimizer.steps() == 1);
            CHECK(optimizer.gradient_norm() == norm);
        }
    };
    std::size_t rows = 0;
    for (const auto& gradient : one.layer.gradients()) {
        const std::string name = "x." + std::string(gradient.name);
        if (gradient.data != nullptr) {
            check_refused(gradient.data[0], name);
            check_refused(gradient.data[gradient.shape.elements() - 1], name);
            continue;
        }
        ++rows;
        const auto& ids = one.layer.ids();
        const std::size_t slot = ids.slot(ids.size() - 1);
        std::size_t e = 0;
        while (!gradient.is_read(e, slot)) ++e;
        check_refused(gradient.row(e, slot).back(), name);
    }
    CHECK(rows == 2);
    check_refused(g[32], "last");
    check_refused(g[0], "last");
    // And goes on where it was.
    REQUIRE(optimizer.step(0.01).ok());
    CHECK(optimizer.steps() == 2);
}

TEST_CASE_TEMPLATE("adamw: the same to the bit for any number of threads", Backend, reference<>, simd<>) {
    using number = training_number<Backend>;
    const auto run = [](executor_ref execute) {
        learner<tiffin_test::mort_of_three<stem>, Backend> one("");
        dense_tensor<number> large("large", {7, 9000}, 5);  // four pieces
        named_memory<number> values;
        join(values, one.values.memory());
        values.add(large.name, large.w.data(), large.shape);
        adamw<Backend> optimizer;
        REQUIRE(optimizer.add("", one.layer, values).ok());
        optimizer.add(large.name, large.w.data(), large.g.data(), large.shape, true);
        std::vector<double> norms;
        for (std::uint32_t step = 0; step < 3; ++step) {
            one.layer.clear_gradients();
            std::vector<std::int32_t> ids(tokens);
            for (std::size_t t = 0; t < tokens; ++t)
                ids[t] = static_cast<std::int32_t>((t * 3 + step) % vocab);
            one.learn(ids, step);
            large.set_gradient(step, 1);
            REQUIRE(optimizer.step(0.01, execute).ok());
            norms.push_back(optimizer.gradient_norm());
        }
        return std::pair(state_of(optimizer, values), norms);
    };
    const auto alone = run(serially);
    for (const std::size_t threads : {1u, 2u, 5u}) {
        CAPTURE(threads);
        thread_team team(threads);
        CHECK(run(team) == alone);
    }
    CHECK(run(tiffin_test::thread_per_task{}) == alone);
    CHECK(run(tiffin_test::odd_and_even{}) == alone);
    CHECK(run(tiffin_test::reversed{}) == alone);
}

TEST_CASE_TEMPLATE("adamw: a state that was saved is taken up again, to the bit", Backend, reference<>,
                   simd<>) {
    using number = training_number<Backend>;
    using block = tiffin_test::mort_of_three<stem>;
    const auto step = [](learner<block, Backend>& one, adamw<Backend>& optimizer, std::uint32_t n) {
        one.layer.clear_gradients();
        one.learn(random_ids(9, vocab, n), n);
        REQUIRE(optimizer.step(0.01).ok());
    };
    learner<block, Backend> one("m.");
    adamw<Backend> optimizer;
    REQUIRE(optimizer.add("m.", one.layer, one.values.memory()).ok());
    for (std::uint32_t n = 0; n < 4; ++n) step(one, optimizer, n);
    struct saved {
        std::string name;
        dtype type;
        tiffin::shape shape;
        std::vector<char> bytes;
    };
    std::vector<saved> file;
    optimizer.visit_state([&](const std::string& name, dtype type, const shape& sizes, void* at) {
        const auto* const bytes = static_cast<const char*>(at);
        file.push_back({name, type, sizes, {bytes, bytes + sizes.elements() * size_of(type)}});
    });
    const std::uint64_t steps = optimizer.steps();
    CHECK(steps == 4);
    // As the tensors are called, in their order.
    std::vector<std::string> names;
    for (const saved& s : file) names.push_back(s.name);
    const auto has = [&](const std::string& name) {
        return std::count(names.begin(), names.end(), name) == 1;
    };
    for (const auto& g : one.layer.gradients()) {
        const std::string name = "m." + std::string(g.name);
        CAPTURE(name);
        CHECK(has(name + ".first_moment"));
        CHECK(has(name + ".second_moment"));
        CHECK(has(name + ".row_steps") == (g.data == nullptr));
    }
    for (const saved& s : file) {
        const std::string name = s.name.substr(0, s.name.rfind('.'));
        const tiffin::shape& of = one.values.memory().find(name)->shape;
        if (s.name.ends_with(".row_steps"))
            CHECK(s.shape == tiffin::shape(of.elements() / of[of.rank() - 1]));
        else
            CHECK(s.shape == of);
    }

    learner<block, Backend> again("m.");
    for (const auto& e : one.values.memory().entries())
        std::copy_n(e.data, e.shape.elements(), again.values.memory().find(e.name)->data);
    adamw<Backend> resumed;
    REQUIRE(resumed.add("m.", again.layer, again.values.memory()).ok());
    std::size_t i = 0;
    resumed.visit_state([&](const std::string& name, dtype type, const shape& sizes, void* at) {
        REQUIRE(i < file.size());
        CHECK(name == file[i].name);
        CHECK(type == file[i].type);
        CHECK(sizes == file[i].shape);
        std::memcpy(at, file[i].bytes.data(), file[i].bytes.size());
        ++i;
    });
    CHECK(i == file.size());
    resumed.set_steps(steps);
    for (std::uint32_t n = 4; n < 8; ++n) {
        step(one, optimizer, n);
        step(again, resumed, n);
        CHECK(state_of(resumed, again.values.memory()) == state_of(optimizer, one.values.memory()));
    }
    CHECK(resumed.steps() == 8);
    static_assert(std::is_same_v<typename adamw<Backend>::number, number>);
}

TEST_CASE("adamw: the settings that are usual") {
    const adamw_options usual;
    CHECK(usual.beta1 == 0.9);
    CHECK(usual.beta2 == 0.95);
    CHECK(usual.eps == 1e-8);
    CHECK(usual.decay == 0.1);
    CHECK(usual.clip == 1);
}

TEST_CASE("adamw: of a layer, what is missing or misshapen, and what is left out") {
    learner<stem, reference<>> one("p.");
    const auto& whole = one.values.memory();
    const auto tensors_of = [](adamw<reference<>>& optimizer) {
        std::vector<std::string> names;
        optimizer.visit_state([&](const std::string& name, dtype, const shape&, void*) {
            if (name.ends_with(".first_moment")) names.push_back(name.substr(0, name.size() - 13));
        });
        return names;
    };
    for (const auto& wrong : whole.entries()) {
        named_memory<double> without, misshapen;
        for (const auto& e : whole.entries()) {
            if (e.name != wrong.name) without.add(e.name, e.data, e.shape);
            misshapen.add(e.name, e.data,
                          e.name == wrong.name ? tiffin::shape(e.shape.elements(), 1, 1) : e.shape);
        }
        adamw<reference<>> optimizer;
        const status missing = optimizer.add("p.", one.layer, without);
        REQUIRE_FALSE(missing.ok());
        CHECK(missing.failure().code == errc::missing_tensor);
        CHECK(missing.failure().where == wrong.name);
        const status shape = optimizer.add("p.", one.layer, misshapen);
        REQUIRE_FALSE(shape.ok());
        CHECK(shape.failure().code == errc::shape);
        CHECK(shape.failure().where == wrong.name);
        CHECK(shape.failure().what == "has shape " + to_string(tiffin::shape(wrong.shape.elements(), 1, 1)) +
                                          "; the layer's is " + to_string(wrong.shape));
        CHECK(tensors_of(optimizer).empty());
        // It has nothing to do then.
        REQUIRE(optimizer.step(1).ok());
        CHECK(optimizer.gradient_norm() == 0);
        // Left out, it may be missing.
        const std::string left = wrong.name.substr(2);
        REQUIRE(optimizer.add("p.", one.layer, without, [&](std::string_view name) { return name != left; })
                    .ok());
        CHECK(tensors_of(optimizer).size() == whole.entries().size() - 1);
    }
    CHECK_FALSE(adamw<reference<>>().add("", one.layer, whole).ok());

    adamw<reference<>> some;
    REQUIRE(
        some.add("p.", one.layer, whole, [](std::string_view name) { return name.ends_with("proj.weight"); })
            .ok());
    CHECK(tensors_of(some) == std::vector<std::string>{"p.gate_proj.weight", "p.down_proj.weight"});
    one.learn(random_ids(5, vocab, 1), 2);
    std::vector<std::vector<double>> before;
    for (const auto& e : whole.entries()) before.emplace_back(e.data, e.data + e.shape.elements());
    REQUIRE(some.step(0.01).ok());
    std::size_t i = 0;
    for (const auto& e : whole.entries()) {
        CAPTURE(e.name);
        const bool same = std::equal(before[i].begin(), before[i].end(), e.data);
        CHECK(same != e.name.ends_with("proj.weight"));
        ++i;
    }
}

TEST_CASE("learning rate: a linear warm-up, then each form to its end") {
    const auto near = [](double v) { return doctest::Approx(v).epsilon(1e-14); };
    for (const decay_form form : {decay_form::constant, decay_form::linear, decay_form::cosine}) {
        const learning_rate rate{.peak = 2, .warm_up = 9, .steps = 109, .form = form, .last = 0.25};
        for (std::size_t t = 0; t < 9; ++t) CHECK(rate.at(t) == near(0.2 * static_cast<double>(t + 1)));
        CHECK(rate.at(9) == 2);
        const bool falls = form != decay_form::constant;
        CHECK(rate.at(59) == near(falls ? 1.25 : 2));  // halfway
        CHECK(rate.at(109) == (falls ? 0.5 : 2));
        CHECK(rate.at(110) == rate.at(109));
        CHECK(rate.at(~std::size_t{0}) == rate.at(109));
        for (std::size_t t = 9; t < 109; ++t) {
            const double u = static_cast<double>(t - 9) / 100;
            const double half = std::sin(std::acos(-1.0) * u / 2);  // (1 + cos a) / 2 = 1 - sin(a / 2)^2
            const double want = form == decay_form::constant ? 2
                                : form == decay_form::linear ? 2 - 1.5 * u
                                                             : 0.5 + 1.5 * (1 - half * half);
            CHECK(rate.at(t) == near(want));
        }
    }
}

TEST_CASE("learning rate: without a warm-up, without a fall, and runs shorter than their warm-up") {
    for (const decay_form form : {decay_form::constant, decay_form::linear, decay_form::cosine}) {
        const bool falls = form != decay_form::constant;
        CHECK(learning_rate{.peak = 3, .steps = 10, .form = form}.at(0) == 3);
        CHECK(learning_rate{.peak = 3, .steps = 10, .form = form, .last = 0}.at(10) == (falls ? 0 : 3));
        for (const std::size_t t : {0u, 3u, 10u, 99u})
            CHECK(learning_rate{.peak = 3, .steps = 10, .form = form, .last = 1}.at(t) == doctest::Approx(3));
        for (const std::size_t steps : {0u, 1u, 5u}) {
            const learning_rate rate{.peak = 3, .warm_up = 5, .steps = steps, .form = form, .last = 0.5};
            CHECK(rate.at(4) == doctest::Approx(2.5));
            CHECK(rate.at(5) == 3);
            CHECK(rate.at(6) == doctest::Approx(falls ? 1.5 : 3));
        }
        const learning_rate none{.peak = 3, .steps = 0, .form = form, .last = 0.5};
        CHECK(none.at(0) == 3);
        CHECK(std::isfinite(none.at(1)));
    }
    const learning_rate usual;
    CHECK(usual.at(0) == 1e-3);
    CHECK(usual.at(1) == doctest::Approx(1e-4));
}

}  // namespace learn_adamw_test
