// The convolution that learns: its values are short_convolution's, its gradients those of differences, alone and behind the
// branches of a memory that share one value.
#include <tiffin/train/trainable_convolution.hpp>

#include <tiffin/block/linear.hpp>
#include <tiffin/call/short_convolution.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/train/reference.hpp>

#include "support/doctest.hpp"
#include "support/executors.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace train_trainable_convolution_test {
using namespace tiffin;

namespace {

constexpr std::size_t width = 5, taps = 3, dilation = 2;
// Two sequences, of which one has more tokens than are read together, in a mixed order.
const std::vector<std::uint32_t> sequence_of{7, 0, 7, 7, 7, 0, 7, 7, 0, 7};
const std::size_t tokens = sequence_of.size();

std::vector<double> random(std::size_t n, std::uint32_t seed) {
    std::vector<float> narrow(n);
    tiffin_test::random_numbers(seed).fill(narrow, 1.0f);
    return {narrow.begin(), narrow.end()};
}
template <class Number>
matrix_view<Number> rows(std::vector<Number>& of, std::size_t columns = width) {
    return {of.data(), of.size() / columns, columns};
}
double dot(const std::vector<double>& a, const std::vector<double>& b) {
    double all = 0;
    for (std::size_t i = 0; i < a.size(); ++i) all += a[i] * b[i];
    return all;
}
// d value() / d number, by central differences: off by h^2 / 6 of the third derivative, and by 2^-53 |value| / h. With
// h = 1e-5 and values of tens both are about 1e-10; a thousand times that is allowed below, and ten times more behind a gate.
template <class Value>
double slope(double& number, const Value& value) {
    constexpr double step = 1e-5;
    const double was = number;
    number = was + step;
    const double above = value();
    number = was - step;
    const double below = value();
    number = was;
    return (above - below) / (2 * step);
}

struct convolved {
    std::vector<double> conv = random(width * taps, 1), norm = random(width, 2);
    weights given;
    trainable_convolution<double> learns;

    convolved() : learns(of(given, conv, norm)) {}
    static trainable_convolution<double> of(weights& given, std::vector<double>& conv,
                                            std::vector<double>& norm) {
        given.add("conv.weight", {conv.data(), dtype::f64, {width, 1, taps}});
        given.add("conv_norm.weight", {norm.data(), dtype::f64, {width}});
        return trainable_convolution<double>::prepare(given, dilation).or_throw();
    }
};

}  // namespace

TEST_CASE("convolution that learns: the values of short_convolution") {
    convolved c;
    std::vector<double> v = random(tokens * width, 3), y(v.size());
    c.learns.forward(rows(v), sequence_of, rows(y)).or_throw();
    const auto whole = short_convolution::prepare(c.given, dilation).or_throw();
    std::vector<row_history> past(8, whole.make_history());
    std::vector<float> narrow(v.begin(), v.end());
    whole(rows(narrow), sequence_of, past, rows(narrow)).or_throw();
    // f32 there: some roundings of sums of up to three numbers of about 1.
    for (std::size_t i = 0; i < y.size(); ++i) CHECK(std::fabs(y[i] - static_cast<double>(narrow[i])) < 1e-5);
}

TEST_CASE("convolution that learns: gradients are slopes") {
    convolved c;
    std::vector<double> v = random(tokens * width, 4), y(v.size()), dv(v.size());
    const std::vector<double> dy = random(tokens * width, 5);
    const auto value = [&] {
        c.learns.forward(rows(v), sequence_of, rows(y)).or_throw();
        return dot(y, dy);
    };
    value();
    c.learns.backward({dy.data(), tokens, width}, rows(dv)).or_throw();
    const auto gradients = c.learns.gradients();
    REQUIRE(gradients.size() == 2);
    CHECK(gradients[0].name == "conv.weight");
    CHECK(gradients[1].name == "conv_norm.weight");
    const std::array<std::vector<double>*, 2> tensors{{&c.conv, &c.norm}};
    for (std::size_t k = 0; k < 2; ++k)
        for (std::size_t i = 0; i < tensors[k]->size(); ++i)
            CHECK(std::fabs(slope((*tensors[k])[i], value) - gradients[k].data[i]) < 1e-7);
    for (std::size_t i = 0; i < v.size(); ++i) CHECK(std::fabs(slope(v[i], value) - dv[i]) < 1e-7);
    // They accumulate, in place too, and begin anew.
    const double once = gradients[0].data[0];
    std::vector<double> in_place = dy;
    value();
    c.learns.backward(rows(in_place), rows(in_place)).or_throw();
    CHECK(gradients[0].data[0] == 2 * once);
    CHECK(in_place == dv);
    c.learns.clear_gradients();
    CHECK(gradients[0].data[0] == 0);
    std::vector<double> onto = v;
    c.learns.forward(rows(onto), sequence_of, rows(onto)).or_throw();
    value();
    CHECK(onto == y);
}

TEST_CASE("convolution that learns: the same bits on any number of threads") {
    struct three_threads : tiffin_test::thread_per_task {
        [[nodiscard]] static std::size_t concurrency() noexcept { return 3; }
    };
    std::vector<double> v = random(tokens * width, 6), y(v.size()), dv(v.size());
    const std::vector<double> dy = random(tokens * width, 7);
    std::vector<std::vector<double>> all;
    three_threads three;
    const std::array<executor_ref, 2> executors{{serially, three}};
    for (const executor_ref& execute : executors) {
        convolved c;
        c.learns.forward(rows(v), sequence_of, rows(y), execute).or_throw();
        c.learns.backward({dy.data(), tokens, width}, rows(dv), execute).or_throw();
        std::vector<double> made = y;
        made.insert(made.end(), dv.begin(), dv.end());
        for (const auto& g : c.learns.gradients())
            made.insert(made.end(), g.data, g.data + g.shape.elements());
        all.push_back(std::move(made));
    }
    CHECK(all[0] == all[1]);
}

// v = e W_v, z_b = gate(e, h_b) v, y_b = convolution_b(z_b): four branches, as memory_branches runs them.
TEST_CASE("convolution that learns: a memory of several branches") {
    constexpr std::size_t branches = 2, inputs = 6;
    std::vector<double> value_weight = random(width * inputs, 10), e = random(tokens * inputs, 11),
                        v(tokens * width);
    weights of_value;
    of_value.add("value_proj.weight", {value_weight.data(), dtype::f64, {width, inputs}});
    auto value = prepare_training<linear<"value_proj">>(of_value, reference{}, {.tokens = tokens});
    struct branch {
        std::vector<double> key, key_norm, query_norm, h, z, y, dy, dz, dv, de, dh;
        weights given;
        convolved smoothed;
    };
    std::vector<branch> all(branches);
    std::vector<trainable_layer<double>> gates;
    for (std::size_t b = 0; b < branches; ++b) {
        branch& one = all[b];
        const auto seed = static_cast<std::uint32_t>(20 + 10 * b);
        one.key = random(width * inputs, seed);
        one.key_norm = random(width, seed + 1);
        one.query_norm = random(width, seed + 2);
        one.h = random(tokens * width, seed + 3);
        one.dy = random(tokens * width, seed + 4);
        for (auto* const rows_of : {&one.z, &one.y, &one.dz, &one.dv, &one.dh})
            rows_of->resize(tokens * width);
        one.de.resize(tokens * inputs);
        one.given.add("key_proj.weight", {one.key.data(), dtype::f64, {width, inputs}});
        one.given.add("key_norm.weight", {one.key_norm.data(), dtype::f64, {width}});
        one.given.add("query_norm.weight", {one.query_norm.data(), dtype::f64, {width}});
        gates.push_back(prepare_training<engram_branch>(one.given, reference{}, {.tokens = tokens}));
    }
    const auto loss = [&] {
        double sum = 0;
        value.forward(rows(e, inputs), {}, rows(v));
        for (std::size_t b = 0; b < branches; ++b) {
            branch& one = all[b];
            gates[b].forward(rows(one.h), {.residual = rows(v), .per_layer_input = rows(e, inputs)},
                             rows(one.z));
            one.smoothed.learns.forward(rows(one.z), sequence_of, rows(one.y)).or_throw();
            sum += dot(one.y, one.dy);
        }
        return sum;
    };
    loss();
    std::vector<double> dv(v.size()), de(e.size()), of_value_in(e.size());
    for (std::size_t b = 0; b < branches; ++b) {
        branch& one = all[b];
        one.smoothed.learns.backward(rows(one.dy), rows(one.dz)).or_throw();
        gates[b].backward(
            rows(one.dz),
            {.x = rows(one.dh), .residual = rows(one.dv), .per_layer_input = rows(one.de, inputs)});
        for (std::size_t i = 0; i < dv.size(); ++i) dv[i] += one.dv[i];
        for (std::size_t i = 0; i < de.size(); ++i) de[i] += one.de[i];
    }
    value.backward(rows(dv), {.x = rows(of_value_in, inputs)});
    for (std::size_t i = 0; i < de.size(); ++i) de[i] += of_value_in[i];
    const auto same = [&](const char* what, std::vector<double>& of, const double* gradient) {
        CAPTURE(what);
        for (std::size_t i = 0; i < of.size(); ++i) {
            const double by_difference = slope(of[i], loss);
            CHECK(std::fabs(by_difference - gradient[i]) < 1e-6 * (1 + std::fabs(gradient[i])));
        }
    };
    const std::vector<double> of_words(value.gradients()[0].data,
                                       value.gradients()[0].data + value_weight.size());
    same("value_proj", value_weight, of_words.data());
    same("e", e, de.data());
    for (std::size_t b = 0; b < branches; ++b) {
        same("h", all[b].h, all[b].dh.data());
        const auto gradients = gates[b].gradients();
        REQUIRE(gradients.size() == 3);
        const std::array<std::vector<double>*, 3> tensors{
            {&all[b].key, &all[b].key_norm, &all[b].query_norm}};
        for (std::size_t k = 0; k < 3; ++k) same("a tensor of a branch", *tensors[k], gradients[k].data);
    }
}

TEST_CASE("convolution that learns: what is refused") {
    convolved c;
    std::vector<double> v = random(tokens * width, 8), y(v.size());
    const auto refused = [](const auto& s, errc code, const char* where, const char* part) {
        REQUIRE_FALSE(s.ok());
        CHECK(s.failure().code == code);
        CHECK(s.failure().where == where);
        CHECK_MESSAGE(s.failure().what.find(part) != std::string::npos, s.failure().what);
    };
    refused(trainable_convolution<float>::prepare(c.given, dilation), errc::dtype, "conv.weight",
            "is F64; where it learns it is F32");
    refused(trainable_convolution<double>::prepare(c.given, 0), errc::option, "dilation", "is 0");
    refused(c.learns.forward(rows(v), std::span(sequence_of).first(3), rows(y)), errc::size, "v",
            "of 3 tokens");
    refused(c.learns.backward(rows(v), rows(y)), errc::size, "dy", "the last forward had 0 tokens of 5");
    c.learns.forward(rows(v), sequence_of, rows(y)).or_throw();
    refused(c.learns.backward({v.data(), 3, width}, rows(y)), errc::size, "dy", "is (3, 5)");
    c.learns.backward(rows(v), rows(y)).or_throw();
    refused(c.learns.backward(rows(v), rows(y)), errc::size, "dy", "the last forward had 0 tokens");
}

}  // namespace train_trainable_convolution_test
