// Blocks as nodes of a ggml graph: the bits of a direct call, whatever threads, layouts and numbers of tokens, and
// what goes wrong told.
#include "ggml_op/ggml_op.hpp"

#include <tiffin/tiffin.hpp>

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

using tiffin_in_ggml::ffn_op;
using tiffin_in_ggml::op_context;

namespace {

using numbers = std::vector<float>;
using id_list = std::vector<std::int32_t>;

template <auto Free>
struct freed_by {
    template <class T>
    void operator()(T* p) const {
        Free(p);
    }
};
using context_ptr = std::unique_ptr<ggml_context, freed_by<ggml_free>>;
using buffer_ptr = std::unique_ptr<ggml_backend_buffer, freed_by<ggml_backend_buffer_free>>;
using backend_ptr = std::unique_ptr<ggml_backend, freed_by<ggml_backend_free>>;

constexpr std::size_t d = 40, f = 104, vocab = 57;

numbers random_numbers(std::size_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    numbers made(count);
    for (float& v : made) v = uniform(random);
    return made;
}
id_list some_ids(std::size_t tokens) {
    id_list made(tokens);
    for (std::size_t i = 0; i < tokens; ++i) made[i] = static_cast<std::int32_t>(i * 23 % vocab);
    return made;
}
const numbers& gate() {
    static const numbers made = random_numbers(f * d, 1);
    return made;
}
const numbers& table() {
    static const numbers made = random_numbers(vocab * f, 2);
    return made;
}
const numbers& down() {
    static const numbers made = random_numbers(d * f, 3);
    return made;
}
// In f32, so that the reference below has the layer's own weights.
const tiffin::any_layer& stem() {
    static const tiffin::any_layer made(
        tiffin::prepare<tiffin::stem>(tiffin::weights{}
                                          .add("gate_proj.weight", gate().data(), {f, d})
                                          .add("stem_embed.weight", table().data(), {vocab, f})
                                          .add("down_proj.weight", down().data(), {d, f}),
                                      tiffin::simd{}, {.tokens = 0}));
    return made;
}
// An FFN of x, and beside it one of the residual.
tiffin::any_layer on_residual() {
    static const numbers up = random_numbers(f * d, 4);
    return tiffin::any_layer(tiffin::prepare<tiffin::parallel<tiffin::mlp, tiffin::on_residual<tiffin::mlp>>>(
        tiffin::weights{}
            .add("branch.0.up_proj.weight", up.data(), {f, d})
            .add("branch.0.down_proj.weight", down().data(), {d, f})
            .add("branch.1.up_proj.weight", gate().data(), {f, d})
            .add("branch.1.down_proj.weight", down().data(), {d, f}),
        tiffin::simd{}, {.tokens = 0}));
}

// The direct call, on one thread.
numbers direct(const tiffin::any_layer& layer, const numbers& x, const tiffin::token_inputs& inputs) {
    const std::size_t tokens = x.size() / d;
    tiffin::workspace workspace = layer.make_workspace(std::max<std::size_t>(tokens, 1), 1);
    numbers y(tokens * layer.outputs());
    layer(tiffin::matrix_view<const float>(x.data(), tokens, d), inputs,
          tiffin::matrix_view<float>(y.data(), tokens, layer.outputs()), workspace);
    return y;
}
numbers direct_stem(const numbers& x, const id_list& ids) {
    return direct(stem(), x, {.token_ids = ids});
}
bool same_bits(const numbers& a, const numbers& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// A graph on the CPU backend: tensors are made, then allocated and filled, then computed.
class small_graph {
public:
    explicit small_graph(int threads)
        : tensors_(ggml_init({ggml_tensor_overhead() * 64 + ggml_graph_overhead(), nullptr, true})),
          cpu_(ggml_backend_cpu_init()) {
        ggml_backend_cpu_set_n_threads(cpu_.get(), threads);
    }
    [[nodiscard]] ggml_context* c() const { return tensors_.get(); }
    [[nodiscard]] ggml_backend_t cpu() const { return cpu_.get(); }
    ggml_tensor* input(const numbers& values, std::int64_t ne0, std::int64_t ne1, std::int64_t ne2 = 1) {
        return keep(ggml_new_tensor_3d(c(), GGML_TYPE_F32, ne0, ne1, ne2), values);
    }
    ggml_tensor* input(const id_list& ids) {
        return keep(ggml_new_tensor_1d(c(), GGML_TYPE_I32, static_cast<std::int64_t>(ids.size())), ids);
    }
    ggml_status compute(std::initializer_list<ggml_tensor*> results) {
        if (!memory_) {
            graph_ = ggml_new_graph(c());
            for (ggml_tensor* r : results) ggml_build_forward_expand(graph_, r);
            memory_.reset(ggml_backend_alloc_ctx_tensors(c(), cpu()));
        }
        for (const auto& fill : fills_) fill();
        return ggml_backend_graph_compute(cpu(), graph_);
    }
    static numbers of(const ggml_tensor* t) {
        numbers got(static_cast<std::size_t>(ggml_nelements(t)));
        ggml_backend_tensor_get(t, got.data(), 0, got.size() * sizeof(float));
        return got;
    }

private:
    template <class Values>
    ggml_tensor* keep(ggml_tensor* t, const Values& values) {
        fills_.push_back([t, values] { ggml_backend_tensor_set(t, values.data(), 0, ggml_nbytes(t)); });
        return t;
    }
    context_ptr tensors_;
    backend_ptr cpu_;
    buffer_ptr memory_;
    ggml_cgraph* graph_ = nullptr;
    std::vector<std::function<void()>> fills_;
};

}  // namespace

TEST_CASE("ffn_op: STEM as its formula says, in double") {
    const numbers x = random_numbers(5 * d, 7);
    const id_list ids = some_ids(5);
    op_context context(2);
    ffn_op op(stem(), context, 5);
    small_graph g(2);
    ggml_tensor* const y = op(g.c(), g.input(x, d, 5), {.token_ids = g.input(ids)});
    REQUIRE(g.compute({y}) == GGML_STATUS_SUCCESS);
    const numbers got = small_graph::of(y);
    double off = 0, size = 0;
    for (std::size_t t = 0; t < 5; ++t) {
        std::vector<double> hidden(f);
        for (std::size_t j = 0; j < f; ++j) {
            double z = 0;
            for (std::size_t k = 0; k < d; ++k)
                z += static_cast<double>(gate()[j * d + k]) * static_cast<double>(x[t * d + k]);
            const auto row = static_cast<std::size_t>(ids[t]);
            hidden[j] = z / (1 + std::exp(-z)) * static_cast<double>(table()[row * f + j]);
        }
        for (std::size_t o = 0; o < d; ++o) {
            double sum = 0;
            for (std::size_t j = 0; j < f; ++j) sum += static_cast<double>(down()[o * f + j]) * hidden[j];
            off += std::pow(sum - static_cast<double>(got[t * d + o]), 2);
            size += sum * sum;
        }
    }
    // A rounding of f32 per term, of sums of a hundred of them.
    CHECK(std::sqrt(off / size) <= 1e-5);
}

TEST_CASE("ffn_op: the bits of a direct call, with more and fewer threads than were planned") {
    for (const std::size_t planned : {1u, 2u, 3u}) {
        op_context context(planned);
        ffn_op op(stem(), context, 16);  // 37 tokens: in pieces
        for (const int threads : {1, 2, 3})
            for (const std::size_t tokens : {1u, 37u}) {
                CAPTURE(planned);
                CAPTURE(threads);
                CAPTURE(tokens);
                const numbers x = random_numbers(tokens * d, 11);
                const id_list ids = some_ids(tokens);
                small_graph g(threads);
                ggml_tensor* const in = g.input(x, d, static_cast<std::int64_t>(tokens));
                ggml_tensor* const norm = ggml_rms_norm(g.c(), in, 1e-5f);
                ggml_tensor* const block = op(g.c(), norm, {.token_ids = g.input(ids)});
                ggml_tensor* const y = ggml_add(g.c(), in, block);
                for (int time = 0; time < 2; ++time) {  // a graph is computed many times
                    REQUIRE(g.compute({y}) == GGML_STATUS_SUCCESS);
                    CHECK(context.take_status().ok());
                    const numbers wanted = direct_stem(small_graph::of(norm), ids);
                    CHECK(same_bits(small_graph::of(block), wanted));
                    numbers sum(wanted);
                    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += x[i];
                    CHECK(same_bits(small_graph::of(y), sum));
                }
            }
    }
}

TEST_CASE("ffn_op: two nodes of one op, and a second op of the same context, in one graph") {
    const numbers x = random_numbers(7 * d, 13);
    const id_list ids = some_ids(7), others{0, 56, 3, 3, 3, 9, 1};
    op_context context(3);
    ffn_op op(stem(), context, 7);
    const tiffin::any_layer second = on_residual();
    ffn_op reads_residual(second, context, 7);
    small_graph g(3);
    ggml_tensor* const in = g.input(x, d, 7);
    ggml_tensor* const first = op(g.c(), in, {.token_ids = g.input(ids)});
    ggml_tensor* const next = op(g.c(), first, {.token_ids = g.input(others)});
    ggml_tensor* const last = reads_residual(g.c(), next, {.residual = in});
    REQUIRE(g.compute({last}) == GGML_STATUS_SUCCESS);
    CHECK(context.take_status().ok());
    const numbers a = direct_stem(x, ids), b = direct_stem(a, others);
    CHECK(same_bits(small_graph::of(first), a));
    CHECK(same_bits(small_graph::of(next), b));
    const tiffin::matrix_view<const float> residual(x.data(), 7, d);
    CHECK(same_bits(small_graph::of(last), direct(second, b, {.residual = residual})));
}

TEST_CASE("ffn_op: y is as wide as the block's outputs") {
    const numbers x = random_numbers(5 * d, 15);
    const tiffin::any_layer up(tiffin::prepare<tiffin::linear<>>(
        tiffin::weights{}.add("proj.weight", gate().data(), {f, d}), tiffin::simd{}, {.tokens = 0}));
    op_context context(2);
    ffn_op op(up, context, 5);
    small_graph g(2);
    ggml_tensor* const y = op(g.c(), g.input(x, d, 5));
    CHECK(y->ne[0] == f);
    REQUIRE(g.compute({y}) == GGML_STATUS_SUCCESS);
    CHECK(context.take_status().ok());
    CHECK(same_bits(small_graph::of(y), direct(up, x, {})));
}

TEST_CASE("ffn_op: views of wider rows are read where they lie, other layouts through a copy") {
    const numbers wide = random_numbers(6 * (d + 9), 17);
    const id_list ids = some_ids(6);
    numbers x;
    for (std::size_t t = 0; t < 6; ++t)
        x.insert(x.end(), wide.begin() + static_cast<std::ptrdiff_t>(t * (d + 9) + 4),
                 wide.begin() + static_cast<std::ptrdiff_t>(t * (d + 9) + 4 + d));
    numbers transposed(6 * d);
    for (std::size_t t = 0; t < 6; ++t)
        for (std::size_t k = 0; k < d; ++k) transposed[k * 6 + t] = x[t * d + k];
    op_context context(2);
    ffn_op op(stem(), context, 6);
    small_graph g(2);
    ggml_context* const c = g.c();
    ggml_tensor* const rows = g.input(wide, d + 9, 6);
    ggml_tensor* const view = ggml_view_2d(c, rows, d, 6, rows->nb[1], 4 * sizeof(float));
    ggml_tensor* const id_tensor = g.input(ids);
    ggml_tensor* const from_view = op(c, view, {.token_ids = id_tensor});
    CHECK(from_view->src[0] == view);
    ggml_tensor* const batch = ggml_reshape_3d(c, g.input(x, d, 6), d, 2, 3);
    ggml_tensor* const from_batch = op(c, batch, {.token_ids = ggml_reshape_2d(c, id_tensor, 2, 3)});
    CHECK(ggml_are_same_shape(from_batch, batch));
    ggml_tensor* const turned = ggml_transpose(c, g.input(transposed, 6, d));
    ggml_tensor* const from_turned = op(c, turned, {.token_ids = id_tensor});
    CHECK(from_turned->src[0]->op == GGML_OP_CONT);
    // One row for all tokens, by a stride of 0.
    ggml_tensor* const same = ggml_view_2d(c, rows, d, 6, 0, 4 * sizeof(float));
    ggml_tensor* const from_same = op(c, same, {.token_ids = id_tensor});
    // Every second id.
    ggml_tensor* const pairs = g.input(id_list{5, -1, 6, -1, 7, -1, 8, -1, 9, -1, 10, -1});
    ggml_tensor* const from_pairs =
        op(c, view, {.token_ids = ggml_view_2d(c, pairs, 1, 6, 2 * sizeof(std::int32_t), 0)});
    REQUIRE(g.compute({from_view, from_batch, from_turned, from_same, from_pairs}) == GGML_STATUS_SUCCESS);
    CHECK(context.take_status().ok());
    const numbers wanted = direct_stem(x, ids);
    CHECK(same_bits(small_graph::of(from_view), wanted));
    CHECK(same_bits(small_graph::of(from_batch), wanted));
    CHECK(same_bits(small_graph::of(from_turned), wanted));
    CHECK(same_bits(small_graph::of(from_pairs), direct_stem(x, {5, 6, 7, 8, 9, 10})));
    numbers repeated;
    for (int t = 0; t < 6; ++t) repeated.insert(repeated.end(), x.begin(), x.begin() + d);
    CHECK(same_bits(small_graph::of(from_same), direct_stem(repeated, ids)));
}

TEST_CASE("ffn_op: a token id outside its table is told, and y is no number") {
    const numbers x = random_numbers(4 * d, 19);
    for (const int threads : {1, 2})
        for (const bool ends : {false, true}) {
            CAPTURE(threads);
            CAPTURE(ends);
            op_context context(2);
            ffn_op op(stem(), context, 4);
            small_graph g(threads);
            if (ends) ggml_backend_cpu_set_abort_callback(g.cpu(), op_context::failed, &context);
            ggml_tensor* const in = g.input(x, d, 4);
            ggml_tensor* const bad = op(g.c(), in, {.token_ids = g.input({1, 2, vocab, 3})});
            ggml_set_name(bad, "blk.3.ffn");
            ggml_tensor* const worse = op(g.c(), in, {.token_ids = g.input({-1, 2, 3, 3})});
            ggml_tensor* const good = op(g.c(), in, {.token_ids = g.input({1, 2, 3, 3})});
            for (int time = 0; time < 2; ++time) {
                CHECK(g.compute({bad, worse, good}) == (ends ? GGML_STATUS_ABORTED : GGML_STATUS_SUCCESS));
                CHECK(op_context::failed(&context));
                const tiffin::status told = context.take_status();
                REQUIRE_FALSE(told.ok());
                CHECK(told.failure().code == tiffin::errc::token_id);
                CHECK(told.failure().message() ==
                      "stem_embed.weight: token_ids[2] = 57 lies outside its 57 rows (node blk.3.ffn)");
                CHECK(context.take_status().ok());
                CHECK_FALSE(op_context::failed(&context));
                const numbers y = small_graph::of(bad);
                CHECK(std::all_of(y.begin(), y.end(), [](float v) { return std::isnan(v); }));
                if (!ends) CHECK(same_bits(small_graph::of(good), direct_stem(x, {1, 2, 3, 3})));
            }
        }
}

TEST_CASE("ffn_op: what does not fit is refused as the node is made") {
    op_context context(1);
    ffn_op op(stem(), context, 4);
    small_graph g(1);
    ggml_context* const c = g.c();
    ggml_tensor* const x = ggml_new_tensor_2d(c, GGML_TYPE_F32, d, 4);
    const auto ids = [&](std::int64_t count) { return ggml_new_tensor_1d(c, GGML_TYPE_I32, count); };
    const auto said = [&](ggml_tensor* of, ggml_tensor* token_ids) -> std::string {
        try {
            op(c, of, {.token_ids = token_ids});
        } catch (const tiffin::error& e) {
            return e.what();
        }
        return "";
    };
    CHECK(said(x, ids(4)).empty());
    CHECK(said(x, nullptr) == "token_ids: is null, and the layer reads it");
    CHECK(said(nullptr, ids(4)) == "x: is null, and the layer reads it");
    CHECK(said(x, ids(3)) == "token_ids: has 3 numbers, 3 in a row, where 4 tokens of 1 are read");
    CHECK(said(x, ggml_new_tensor_1d(c, GGML_TYPE_F32, 4)) == "token_ids: is f32, not i32");
    CHECK(said(ggml_new_tensor_2d(c, GGML_TYPE_F16, d, 4), ids(4)) == "x: is f16, not f32");
    CHECK(said(ggml_new_tensor_2d(c, GGML_TYPE_F32, 41, 4), ids(4)) ==
          "x: has 164 numbers, 41 in a row, where 4 tokens of 40 are read");
}

TEST_CASE("ffn_op: two computes at the same time, each with a context of its own, of one layer") {
    const numbers x = random_numbers(9 * d, 23);
    const id_list ids = some_ids(9);
    const numbers wanted = direct_stem(x, ids);
    int wrong[2] = {};
    const auto work = [&](int& count) {
        op_context context(2);
        ffn_op op(stem(), context, 9);
        small_graph g(2);
        ggml_tensor* const y = op(g.c(), g.input(x, d, 9), {.token_ids = g.input(ids)});
        for (int time = 0; time < 20; ++time)
            count += g.compute({y}) != GGML_STATUS_SUCCESS || !same_bits(small_graph::of(y), wanted);
    };
    std::thread other(work, std::ref(wrong[1]));
    work(wrong[0]);
    other.join();
    CHECK(wrong[0] == 0);
    CHECK(wrong[1] == 0);
}

// What ggml does, without its OpenMP, which a thread sanitizer does not know: threads that enter each node, and wait
// for one another in between.
TEST_CASE("ffn_op: threads of a pool, one node after the other") {
    const numbers x = random_numbers(5 * d, 29);
    const id_list ids = some_ids(5);
    op_context context(2);
    ffn_op op(stem(), context, 5);
    for (const int threads : {1, 2, 3}) {
        CAPTURE(threads);
        const context_ptr tensors(ggml_init({ggml_tensor_overhead() * 16 + 8192, nullptr, false}));
        ggml_tensor* const in = ggml_new_tensor_2d(tensors.get(), GGML_TYPE_F32, d, 5);
        ggml_tensor* const id_tensor = ggml_new_tensor_1d(tensors.get(), GGML_TYPE_I32, 5);
        std::memcpy(in->data, x.data(), x.size() * sizeof(float));
        std::memcpy(id_tensor->data, ids.data(), ids.size() * sizeof(std::int32_t));
        ggml_tensor* const first = op(tensors.get(), in, {.token_ids = id_tensor});
        ggml_tensor* const second = op(tensors.get(), first, {.token_ids = id_tensor});
        std::barrier between(threads);
        const auto work = [&](int me) {
            for (int time = 0; time < 30; ++time)
                for (ggml_tensor* node : {first, second}) {
                    ffn_op::compute(node, me, threads, &op);
                    between.arrive_and_wait();
                }
        };
        std::vector<std::thread> others;
        for (int me = 1; me < threads; ++me) others.emplace_back(work, me);
        work(0);
        for (std::thread& t : others) t.join();
        CHECK(context.take_status().ok());
        const numbers a = direct_stem(x, ids);
        const float* const y = static_cast<const float*>(second->data);
        CHECK(same_bits(numbers(y, y + 5 * d), direct_stem(a, ids)));
    }
}
