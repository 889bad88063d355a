// The ways in which a caller may hold x and y: all are taken as they are, without a copy.
#include <tiffin/call/prepare.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>
#include <tiffin/view.hpp>

#include "support/doctest.hpp"
#include "support/tensor_set.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace call_call_forms_test {
using namespace tiffin;

namespace {

constexpr std::size_t d = 3, f = 5, tokens = 4, n = tokens * d;
using row_major = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

struct fixture {
    tiffin_test::tensor_set tensors{tiffin_test::tensors_wanted(mlp{}), {{d, f, 1}, {}, {}, ~0u, 3}};
    layer<mlp, reference<>> computed = prepare<mlp>(tensors.given(), reference{});
    std::vector<float> x = tiffin_test::random_rows(tokens, d, 5);
    std::vector<float> wanted = std::vector<float>(n);

    fixture() { computed(x, {}, wanted); }

    template <class X>
    void reads(const X& in) {
        std::vector<float> y(n);
        const status s = computed.try_call(in, {}, y);
        REQUIRE_MESSAGE(s.ok(), (s.ok() ? "" : s.failure().message()));
        CHECK(y == wanted);
    }
    // `number(t, i)` is where y's number i of token t must then be.
    template <class Y, class Number>
    void writes(Y&& out, const Number& number) {
        const status s = computed.try_call(x, {}, out);
        REQUIRE_MESSAGE(s.ok(), (s.ok() ? "" : s.failure().message()));
        for (std::size_t t = 0; t < tokens; ++t)
            for (std::size_t i = 0; i < d; ++i) CHECK(number(t, i) == wanted[t * d + i]);
    }
};

Eigen::Index index(std::size_t i) {
    return static_cast<Eigen::Index>(i);
}

}  // namespace

TEST_CASE("x as ranges, views and Eigen matrices") {
    fixture c;
    c.reads(std::span<const float>(c.x));
    c.reads(std::span<float, n>(c.x));
    std::array<float, n> array{};
    float plain[n];
    std::copy(c.x.begin(), c.x.end(), array.begin());
    std::copy(c.x.begin(), c.x.end(), plain);
    c.reads(array);
    c.reads(plain);
    c.reads(matrix_view<float>(plain, tokens, d));
    c.reads(matrix_view<const float>(plain, tokens, d));

    const row_major matrix = Eigen::Map<row_major>(plain, tokens, d);
    c.reads(matrix);
    c.reads(Eigen::Map<const row_major>(plain, tokens, d));
    const Eigen::Matrix<float, tokens, d, Eigen::RowMajor> fixed = matrix;
    c.reads(fixed);
    c.reads(Eigen::Ref<const row_major>(matrix));
    row_major wide = row_major::Zero(tokens + 2, d + 4);
    wide.block(1, 2, tokens, d) = matrix;
    c.reads(wide.block(1, 2, tokens, d));
    c.reads(Eigen::Ref<const row_major, 0, Eigen::OuterStride<>>(wide.block(1, 2, tokens, d)));
}

TEST_CASE("y as ranges, views and Eigen matrices") {
    fixture c;
    std::vector<float> vector(n);
    const auto in_rows = [](const auto& numbers) {
        return [&numbers](std::size_t t, std::size_t i) { return numbers[t * d + i]; };
    };
    const auto in_matrix = [](const auto& m) {
        return [&m](std::size_t t, std::size_t i) { return m(index(t), index(i)); };
    };
    c.writes(vector, in_rows(vector));
    std::array<float, n> array{};
    c.writes(array, in_rows(array));
    float plain[n]{};
    c.writes(plain, in_rows(plain));
    std::fill(vector.begin(), vector.end(), 0.0f);
    c.writes(std::span<float>(vector), in_rows(vector));
    std::fill(vector.begin(), vector.end(), 0.0f);
    const matrix_view<float> view(vector.data(), tokens, d);
    c.writes(view, in_rows(vector));

    row_major matrix = row_major::Zero(tokens, d);
    c.writes(matrix, in_matrix(matrix));
    Eigen::Matrix<float, tokens, d, Eigen::RowMajor> fixed;
    c.writes(fixed, in_matrix(fixed));
    row_major wide = row_major::Constant(tokens + 2, d + 4, 7.0f);
    auto block = wide.block(1, 2, tokens, d);
    c.writes(block, in_matrix(block));
    c.writes(wide.block(1, 2, tokens, d), in_matrix(block));
    block.setConstant(7.0f);
    CHECK(wide == row_major::Constant(tokens + 2, d + 4, 7.0f));  // nothing was written around it
    Eigen::Ref<row_major> reference_to(matrix);
    matrix.setZero();
    c.writes(reference_to, in_matrix(matrix));
}

TEST_CASE("one token as an Eigen row vector") {
    fixture c;
    const Eigen::RowVectorXf x = Eigen::Map<const Eigen::RowVectorXf>(c.x.data(), d);
    Eigen::RowVectorXf y(d);
    c.computed(x, {}, y);
    CHECK(std::equal(y.data(), y.data() + d, c.wanted.data()));
    row_major rows = row_major::Zero(2, d);
    c.computed(x, {}, rows.row(1));
    CHECK(rows.row(0).isZero(0));
    CHECK(std::equal(rows.row(1).data(), rows.row(1).data() + d, c.wanted.data()));
}

}  // namespace call_call_forms_test
