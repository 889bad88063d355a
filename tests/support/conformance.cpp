// The checks of conformance.hpp, compiled once for all suites of one instruction set.
#include "support/conformance.hpp"

#include <tiffin/executor/openmp.hpp>
#include <tiffin/view.hpp>
#if !defined(TIFFIN_TEST_CUDA)
#    include <tiffin/cpu/simd/lanes.hpp>
#endif

#include "support/doctest.hpp"
#include "support/executors.hpp"
#include "support/tensor_set.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <vector>

namespace tiffin_test {
namespace {

#if defined(TIFFIN_TEST_CUDA)
constexpr std::size_t lanes = 16;
#else
constexpr std::size_t lanes = tiffin::simd_detail::width<xsimd::default_arch>;
#endif

// The ways of giving a matrix. All lie at an odd multiple of 4 bytes: no alignment but a float's is asked.
enum class matrix_form { vector_or_span, view, strided_view, strided_eigen };

struct conformance_case {
    tiffin_test::sizes sizes;
    std::size_t tokens = 0;
    storage_form dense;
    storage_form tables;
    unsigned biases = ~0u;
    matrix_form x = matrix_form::vector_or_span;
    matrix_form y = matrix_form::vector_or_span;
    int executor = 0;
    std::size_t piece = 0;  // tokens the workspace is made for; 0: all

    [[nodiscard]] std::string text() const {
        std::ostringstream out;
        out << "d_model " << sizes.d_model << ", d_ff " << sizes.d_ff << ", vocab " << sizes.vocab
            << ", tokens " << tokens << ", dense " << tiffin::name_of(dense.type) << "+" << dense.offset
            << ", tables " << tiffin::name_of(tables.type) << "+" << tables.offset << ", biases "
            << (biases & 15u) << ", x form " << static_cast<int>(x) << ", y form " << static_cast<int>(y)
            << ", executor " << executor << ", piece " << piece;
        return out.str();
    }
};

// Rows within guarded memory: what lies around and between them must stay as it was.
class guarded_rows {
public:
    guarded_rows(std::size_t rows, std::size_t cols, matrix_form form)
        : rows_(rows),
          cols_(cols),
          form_(form),
          stride_(form == matrix_form::strided_view    ? cols + 1
                  : form == matrix_form::strided_eigen ? cols + lanes + 3
                                                       : cols),
          memory_((margin * 2 + rows * stride_) * sizeof(float), sizeof(float)) {
        std::memset(memory_.data(), guard, bytes());
    }
    [[nodiscard]] float* row(std::size_t i) { return begin() + i * stride_; }
    [[nodiscard]] float* begin() { return reinterpret_cast<float*>(memory_.data()) + margin; }
    void fill(const std::vector<float>& from) {
        for (std::size_t i = 0; i < rows_; ++i) std::copy_n(from.data() + i * cols_, cols_, row(i));
    }
    // Whether a byte outside the rows has changed.
    [[nodiscard]] bool broken() {
        std::vector<char> inside(bytes(), 0);
        for (std::size_t i = 0; i < rows_; ++i)
            std::fill_n(inside.begin() + static_cast<std::ptrdiff_t>((margin + i * stride_) * sizeof(float)),
                        cols_ * sizeof(float), 1);
        for (std::size_t i = 0; i < inside.size(); ++i)
            if (!inside[i] && memory_.data()[i] != std::byte{guard}) return true;
        return false;
    }
    // Calls use(matrix) with the rows in their form.
    template <class Use>
    auto as_matrix(const Use& use) {
        using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
        using map = Eigen::Map<matrix, Eigen::Unaligned, Eigen::OuterStride<>>;
        switch (form_) {
            case matrix_form::view: return use(tiffin::matrix_view<float>(begin(), rows_, cols_));
            case matrix_form::strided_view:
                return use(tiffin::matrix_view<float>(begin(), rows_, cols_, stride_));
            case matrix_form::strided_eigen:
                return use(map(begin(), static_cast<Eigen::Index>(rows_), static_cast<Eigen::Index>(cols_),
                               Eigen::OuterStride<>(static_cast<Eigen::Index>(stride_))));
            case matrix_form::vector_or_span: break;
        }
        return use(std::span<float>(begin(), rows_ * cols_));
    }

private:
    static constexpr std::size_t margin = 67;  // floats: more than a register and a cache line
    static constexpr unsigned char guard = 0xA5;
    [[nodiscard]] std::size_t bytes() const { return (margin * 2 + rows_ * stride_) * sizeof(float); }

    std::size_t rows_;
    std::size_t cols_;
    matrix_form form_;
    std::size_t stride_;
    placed_bytes memory_;
};

void with_executor(int which, const std::function<void(tiffin::executor_ref)>& use) {
    switch (which % 5) {
        case 0: return use(tiffin::serial{});
        case 1: return use(tiffin::openmp{3});
        case 2: return use(thread_per_task{});
        case 3: return use(reversed{});
        default: return use(odd_and_even{});
    }
}

// Runs a layer and compares every number; `x` and `ids` hold c.tokens tokens.
struct comparison_result {
    std::size_t compared = 0;   // outputs of the tokens that are compared
    std::size_t outside = 0;    // of these that the bound refuses
    std::size_t uncertain = 0;  // of which the bound does not know whether they are finite
    std::size_t not_finite = 0;
    std::string first;  // of those outside
};

std::vector<float> run_case(const tiffin::any_layer& layer, const conformance_case& c,
                            const std::vector<float>& x, const std::vector<std::int32_t>& ids) {
    guarded_rows in(c.tokens, c.sizes.d_model, c.x), out(c.tokens, c.sizes.d_model, c.y);
    in.fill(x);
    std::vector<float> residual, beside;
    for (const float v : x) residual.push_back(residual_of(v));
    const std::size_t width = layer.needs().given_width;
    for (std::size_t t = 0; t < c.tokens; ++t)
        for (std::size_t i = 0; i < width; ++i) beside.push_back(given_of(ids[t], i));
    tiffin::token_inputs inputs{.token_ids = ids};
    if (layer.needs().residual) inputs.residual = {residual.data(), c.tokens, c.sizes.d_model};
    if (width > 0) inputs.per_layer_input = {beside.data(), c.tokens, width};
    with_executor(c.executor, [&](tiffin::executor_ref execute) {
        const std::size_t workers = execute.concurrency() ? execute.concurrency() : 3;
        tiffin::workspace memory = layer.make_workspace(c.piece ? c.piece : c.tokens, workers);
        in.as_matrix([&](const auto& from) {
            out.as_matrix([&](auto&& to) {
                const tiffin::status s = layer.try_call(from, inputs, to, memory, execute);
                CHECK_MESSAGE(s.ok(), (s.ok() ? "" : s.failure().message()));
            });
        });
    });
    CHECK_FALSE(in.broken());
    CHECK_FALSE(out.broken());
    std::vector<float> y;
    for (std::size_t t = 0; t < c.tokens; ++t) y.insert(y.end(), out.row(t), out.row(t) + c.sizes.d_model);
    return y;
}

// The tokens whose outputs are compared: all; in the small form the first and the last, as the bounds take more time
// than all that the sanitizers are to see.
bool is_compared(std::size_t token, std::size_t tokens) {
#if defined(TIFFIN_TEST_SMALL)
    return token == 0 || token + 1 == tokens;
#else
    return token < tokens;
#endif
}

comparison_result compare(const std::vector<float>& y, const std::vector<expectation>& wanted,
                          std::size_t width) {
    comparison_result result;
    for (std::size_t i = 0; i < y.size(); ++i) {
        if (!is_compared(i / width, y.size() / width)) continue;
        ++result.compared;
        const expectation& w = wanted[i];
        const bool finite = std::isfinite(w.low) && std::isfinite(w.high) && w.nan == nan_result::never;
        const bool infinite = w.low == w.high && std::isinf(w.low) && w.nan == nan_result::never;
        result.uncertain += finite || infinite || w.nan == nan_result::certain ? 0u : 1u;
        result.not_finite += std::isfinite(y[i]) ? 0u : 1u;
        if (w.accepts(y[i])) continue;
        if (result.outside++ == 0) {
            std::ostringstream out;
            out.precision(9);
            out << "token " << i / width << ", feature " << i % width << ": computed " << y[i] << ", exact "
                << w.value << ", f32 within [" << w.low << ", " << w.high << "], NaN "
                << (w.nan == nan_result::never      ? "never"
                    : w.nan == nan_result::possible ? "possible"
                                                    : "certain");
            result.first = out.str();
        }
    }
    return result;
}

std::vector<expectation> expect_all(const oracle& expected, const std::vector<float>& x,
                                    const std::vector<std::int32_t>& ids, std::size_t width) {
    std::vector<expectation> wanted(x.size());
    for (std::size_t t = 0; t < ids.size(); ++t)
        if (is_compared(t, ids.size())) expected(x.data() + t * width, ids[t], wanted.data() + t * width);
    return wanted;
}

// Sizes around everything the kernels divide by: L lanes, panels of 2 L outputs (L where two weights are
// read together), groups of panels (more than one panel from 64 L outputs on), depth blocks of 256, tiles
// of 12, 8, 6 tokens, token blocks of 192. All values of each, and the pairs that interact; the
// other properties of a case turn over with its number.
std::vector<conformance_case> covering_cases() {
    constexpr std::size_t L = lanes;
    struct row {
        std::size_t d, f, tokens;
    };
    // In the small form the sizes that take longest have fewer tokens, or features beside their odd width.
#if defined(TIFFIN_TEST_SMALL)
    constexpr bool large = false;
#else
    constexpr bool large = true;
#endif
#if defined(TIFFIN_TEST_CUDA)
    // What the device's kernels divide by: 4 or 8 numbers an access, 32 threads a warp, tiles of 64, blocks
    // of 256; up to 4 tokens are few.
    const row rows[] = {{1, 1, 1},
                        {1, 8, 2},
                        {7, 9, 4},
                        {8, 7, 5},
                        {9, 1, 13},
                        {31, 32, 24},
                        {32, 33, 63},
                        {33, 31, 0},
                        {63, 64, 2},
                        {64, 65, 65},
                        {65, 63, 4},
                        {127, 129, 1},
                        {255, 8, 1},
                        {256, 33, 3},
                        {257, 63, 5},
                        {5, 257, 130},
                        {257, 257, large ? 12 : 2},
                        {300, large ? 520 : 10, 2}};
    static_cast<void>(L);
#else
    const row rows[] = {{1, 1, 1},
                        {1, L, 2},
                        {L - 1, L + 1, 11},
                        {L, L - 1, 12},
                        {L + 1, 1, 13},
                        {2 * L - 1, 2 * L, 24},
                        {2 * L, 2 * L + 1, 25},
                        {2 * L + 1, 2 * L - 1, 0},
                        {255, L, 2},
                        {256, 2 * L + 1, 12},
                        {257, L - 1, 25},
                        {L, 255, 13},
                        {2 * L - 1, 256, 11},
                        {1, 257, 1},
                        {257, 257, large ? 13 : 2},
                        {5, 2 * L + 1, 191},
                        {L + 1, 5, 192},
                        {257, 3, 193},
                        {L + 1, 2 * L - 1, 400},
                        {256, 256, 1},
                        {3, 64 * L + 5, 13},
                        {64 * L + 5, 7, 2},
                        {300, 40 * L + 3, large ? 3 : 1},
                        {2, 256 * L + 7, 12}};
#endif
    constexpr std::array types{tiffin::dtype::f32, tiffin::dtype::f16, tiffin::dtype::bf16};
    constexpr std::array<std::size_t, 4> offsets{0, 1, 4, 2};
    std::vector<conformance_case> cases;
    for (const row& r : rows) {
        const std::size_t n = cases.size();
        conformance_case c;
        c.sizes = {r.d, r.f, n % 5 == 0 ? 1 : 3 + n};
        c.tokens = r.tokens;
        c.dense = {types[n % 3], offsets[n % 4]};
        c.tables = {types[(n + n / 3) % 3], offsets[(n + 1) % 4]};
        c.biases = static_cast<unsigned>(n * 5 + n / 16);  // all subsets of four within 16 cases
        c.x = static_cast<matrix_form>((n + n / 4) % 4);
        c.y = static_cast<matrix_form>(n % 4);
        c.executor = static_cast<int>(n);
        c.piece = n % 3 == 2 ? r.tokens / 2 : 0;
        cases.push_back(c);
    }
    return cases;
}

// What decides a route is refused where it is not finite; the bias of a selection may be infinite.
bool is_refused(tiffin::tensor_kind kind, float number) {
    switch (kind) {
        case tiffin::tensor_kind::logits:
        case tiffin::tensor_kind::query:
        case tiffin::tensor_kind::query_bias:
        case tiffin::tensor_kind::half_keys: return !std::isfinite(number);
        case tiffin::tensor_kind::selection_bias: return std::isnan(number);
        default: return false;
    }
}

// A case on all contenders, and on `reference`.
numbers_compared check_case(const composition& what, const conformance_case& c) {
    INFO(what.name, ": ", c.text());
    numbers_compared all;
    const tensor_set tensors(what.tensors, {c.sizes, c.dense, c.tables, c.biases, 7});
    const std::vector<float> x = random_rows(c.tokens, c.sizes.d_model, 11);
    const std::vector<std::int32_t> ids = random_ids(c.tokens, c.sizes.vocab, 13);
    std::vector<expectation> wanted;
    for (const contender& backend : what.contenders) {
        INFO(backend.name);
        const tiffin::any_layer layer = backend.prepare(tensors.given());
        const std::vector<float> y = run_case(layer, c, x, ids);
        wanted = expect_all(backend.expect(tensors.given()), x, ids, c.sizes.d_model);
        const comparison_result result = compare(y, wanted, c.sizes.d_model);
        CHECK_MESSAGE(result.outside == 0, result.outside, " of ", result.compared, ": ", result.first);
        // Only where two experts are nearly as good may rounding decide, and then anything comes out.
        CHECK((result.uncertain == 0 || layer.choices() > 0));
        all.uncertain += result.uncertain;
        all.compared += result.compared;
    }
    if (!what.reference) return all;
    // The double reference rounds once, at the end: it is the oracle's own value to the bit.
    const std::vector<float> y = run_case(what.reference(tensors.given()), c, x, ids);
    std::size_t different = 0;
    for (std::size_t i = 0; i < y.size(); ++i)
        if (is_compared(i / c.sizes.d_model, c.tokens))
            different += y[i] == static_cast<float>(wanted[i].value) ? 0u : 1u;
    CHECK(different == 0);
    return all;
}

}  // namespace

void check_conformance(const composition& what) {
    CHECK_MESSAGE(what.differs.empty(), what.name, " is another plan than its type: ", what.differs);
#if defined(TIFFIN_TEST_LEARNING)
    if (gradients_are_asked_for())
        return check_gradients_of(what.name, what.tensors, what.contenders.size() > 1);
#endif
    numbers_compared all;
    std::size_t widest = 0;
    for (const conformance_case& c : covering_cases()) {
        const numbers_compared one = check_case(what, c);
        all.compared += one.compared;
        all.uncertain += one.uncertain;
        widest = std::max(widest, c.sizes.d_model);
    }
    // Where a route is uncertain a whole row is; and of so few tokens as the small form compares, one may be many.
    CHECK_MESSAGE(all.uncertain <= all.compared / 20 + widest, all.uncertain, " of ", all.compared);
}

numbers_compared check_random_case(const composition& what, random_numbers& random) {
    conformance_case c;
    c.sizes = {1 + random.below(2 * lanes + 2), 1 + random.below(2 * lanes + 2), 1 + random.below(5)};
    c.tokens = 1 + random.below(5);
    c.biases = static_cast<unsigned>(random.below(1u << 16));
    c.x = static_cast<matrix_form>(random.below(4));
    c.y = static_cast<matrix_form>(random.below(4));
    c.executor = static_cast<int>(random.below(5));
    c.piece = random.below(2) * c.tokens / 2;
    return check_case(what, c);
}

void check_special_values(const composition& what) {
    constexpr std::size_t L = lanes;
    conformance_case c;
    c.sizes = {L + 1, 2 * L + 1, 5};
    c.tokens = 7;
    const std::vector<std::int32_t> ids = random_ids(c.tokens, c.sizes.vocab, 17);
    std::size_t not_finite = 0, uncertain = 0, compared = 0;
    const auto check = [&](const tensor_set& tensors, const std::vector<float>& x) {
        for (const contender& backend : what.contenders) {
            INFO(backend.name);
            const std::vector<float> y = run_case(backend.prepare(tensors.given()), c, x, ids);
            const auto wanted = expect_all(backend.expect(tensors.given()), x, ids, c.sizes.d_model);
            const comparison_result result = compare(y, wanted, c.sizes.d_model);
            CHECK_MESSAGE(result.outside == 0, result.outside, " of ", result.compared, ": ", result.first);
            not_finite += result.not_finite;
            uncertain += result.uncertain;
            compared += result.compared;
        }
    };
    std::map<std::string, tiffin::tensor_kind> kinds;
    for (const tiffin::named_tensor& one : what.tensors(c.sizes)) kinds[one.name] = one.tensor.kind;
    constexpr float infinity = std::numeric_limits<float>::infinity();
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
#if defined(TIFFIN_TEST_SMALL)
    constexpr float specials[] = {nan, infinity};
#else
    constexpr float specials[] = {nan, infinity, -infinity, 150.0f, -150.0f, 1e-40f, 3e38f};
#endif
    for (const float special : specials) {
        const tensor_set plain(what.tensors, {c.sizes, {}, {}, ~0u, 19});
        for (const std::size_t i : {std::size_t{0}, 3 * c.sizes.d_model - 1}) {
            std::vector<float> x = random_rows(c.tokens, c.sizes.d_model, 23);
            x[i] = special;
            INFO(what.name, ": x[", i, "] = ", special);
            check(plain, x);
        }
        for (const std::string& name : plain.names()) {
            const std::size_t last = plain.view(name).shape.elements() - 1;
            for (const std::size_t i : {std::size_t{0}, last}) {
                tensor_set tensors(what.tensors, {c.sizes, {}, {}, ~0u, 19});
                tensors.set(name, i, special);
                INFO(what.name, ": ", name, "[", i, "] = ", special);
                if (is_refused(kinds.at(name), special)) {
                    for (const contender& backend : what.contenders)
                        CHECK_THROWS_WITH_AS(backend.prepare(tensors.given()),
                                             doctest::Contains("decides a route"), tiffin::error);
                    continue;
                }
                check(tensors, random_rows(c.tokens, c.sizes.d_model, 23));
            }
        }
    }
    // Rows of zeros, which a norm must leave as they are.
    tensor_set zeros(what.tensors, {c.sizes, {}, {}, ~0u, 19});
    for (const std::string& name : zeros.names()) zeros.fill(name, 0);
    INFO(what.name, ": zeros everywhere");
    check(zeros, std::vector<float>(c.tokens * c.sizes.d_model, 0.0f));

    CHECK(not_finite > 0);
    // Where the bound cannot tell, the comparison says little; that must stay the exception: a ninth (with AVX2 675 of
    // 6,678 of product_key_memory), an eighth where the order of sums is not promised either (on the device, 646 of 6,307).
#if defined(TIFFIN_TEST_CUDA)
    constexpr std::size_t one_of = 8;
#else
    constexpr std::size_t one_of = 9;
#endif
    CHECK_MESSAGE(uncertain * one_of < compared, uncertain, " of ", compared);
}

void check(const composition& what) {
    check_conformance(what);
#if defined(TIFFIN_TEST_LEARNING)
    if (gradients_are_asked_for()) return;
#endif
    check_special_values(what);
}

}  // namespace tiffin_test
