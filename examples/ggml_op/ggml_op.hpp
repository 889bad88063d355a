// tiffin's blocks as nodes of a ggml graph that one builds oneself. Public headers of ggml alone; throws where a
// graph is built, never where it is computed.
#pragma once

#include <tiffin/executor/thread_gang.hpp>
#include <tiffin/runtime/any_layer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <span>
#include <utility>

#include "ggml.h"

namespace tiffin_in_ggml {

// What the ops of a graph share, since ggml computes its nodes one after the other: gangs of its threads, a
// workspace, and the first failure. A context lives as long as the graphs, and serves one compute at a time.
// threads: those that tiffin works on. Of a compute on more the others wait; of one on fewer all work.
class op_context {
public:
    explicit op_context(std::size_t threads) {
        // Of each size one: every thread finds that of a call by the number of threads which ggml tells it.
        for (std::size_t n = 1; n <= std::max<std::size_t>(threads, 1); ++n) gangs_.emplace_back(n);
    }
    op_context(const op_context&) = delete;  // ops know its address
    op_context& operator=(const op_context&) = delete;
    // The first failure since the last time this was asked. Call it after a compute, never during one.
    [[nodiscard]] tiffin::status take_status() { return std::exchange(first_, {}); }
    // Whether there is a failure: a ggml_abort_callback. With it a compute ends after the node that failed, and
    // returns GGML_STATUS_ABORTED: ggml_backend_cpu_set_abort_callback(cpu, op_context::failed, &context).
    static bool failed(void* context) { return !static_cast<const op_context*>(context)->first_.ok(); }

private:
    friend class ffn_op;
    std::deque<tiffin::thread_gang> gangs_;
    tiffin::workspace workspace_;
    tiffin::status first_;
};

// What a node reads beside x: what the layer needs, and null else. Rows of f32, one per token; ids of i32.
struct op_inputs {
    ggml_tensor *token_ids = nullptr, *residual = nullptr, *per_layer_input = nullptr;
};

// A prepared layer that makes nodes: y = block(x), computed by all threads that compute the graph.
// Shapes: x (d_model, tokens, ...) and y (outputs, tokens, ...) of f32, as ggml counts axes. x may be a view: rows at
//   one distance are read where they lie, of other layouts a node makes a copy. ggml gives y memory of its own.
// Numerics: the bits of a direct call, on any number of threads.
// Errors: a layer or an input that does not fit throws tiffin::error as the op or the node is made. What only a
//   compute finds, a token id outside its table, is in op_context::take_status(), with the node's name; y is then
//   NaN throughout, so that nobody takes it for a result.
// Preconditions: op and context stay where they are as long as the graph does. One compute at a time per context;
//   ops of several contexts may share a layer and compute at the same time.
// Cost: that of the layer, and a hand-over of about a microsecond per step of it. `tokens` is for how many a call
//   has workspace at once; more run in pieces, with the same result.
//
//     tiffin_in_ggml::op_context context(threads);
//     tiffin_in_ggml::ffn_op stem(tiffin::any_layer(std::move(layer)), context, 512);
//     ggml_tensor* y = ggml_add(ctx, x, stem(ctx, ggml_rms_norm(ctx, x, 1e-5f), {.token_ids = ids}));
class ffn_op {
public:
    ffn_op(tiffin::any_layer layer, op_context& context, std::size_t tokens)
        : layer_(std::move(layer)), context_(context) {
        if (layer_.needs().delay > 0 || !layer_.needs().gathered.empty())
            refuse(tiffin::errc::option, "layer",
                   "reads carried residuals or gathered rows: no node has them");
        const std::size_t bytes = layer_.workspace_bytes(tokens > 0 ? tokens : 1, context.gangs_.size());
        if (context.workspace_.size() < bytes) context.workspace_ = tiffin::workspace(bytes);
    }
    ffn_op(const ffn_op&) = delete;  // nodes know its address
    ffn_op& operator=(const ffn_op&) = delete;

    ggml_tensor* operator()(ggml_context* graph, ggml_tensor* x, const op_inputs& inputs = {}) {
        const auto& needs = layer_.needs();
        const std::int64_t rows = x != nullptr && x->ne[0] > 0 ? ggml_nelements(x) / x->ne[0] : 0;
        const auto rows_of = [&](ggml_tensor* t, std::size_t width, const char* name) {
            return width == 0 ? nullptr : readable(graph, t, GGML_TYPE_F32, width, rows, name);
        };
        ggml_tensor* from[] = {rows_of(x, needs.d_model, "x"),
                               layer_.reads_token_ids()
                                   ? readable(graph, inputs.token_ids, GGML_TYPE_I32, 1, rows, "token_ids")
                                   : nullptr,
                               rows_of(inputs.residual, needs.residual ? needs.d_model : 0, "residual"),
                               rows_of(inputs.per_layer_input, needs.given_width, "per_layer_input")};
        return ggml_custom_4d(graph, GGML_TYPE_F32, static_cast<std::int64_t>(layer_.outputs()), x->ne[1],
                              x->ne[2], x->ne[3], from, 4, compute, GGML_N_TASKS_MAX, this);
    }

    // What ggml calls on each thread. It calls it on all, whatever number of tasks a node asks for.
    static void compute(ggml_tensor* y, int me, int threads, void* op) noexcept {
        auto& self = *static_cast<ffn_op*>(op);
        auto& gangs = self.context_.gangs_;
        tiffin::thread_gang& gang = gangs[std::min(static_cast<std::size_t>(threads), gangs.size()) - 1];
        const auto number = static_cast<std::size_t>(me);
        if (number < gang.concurrency()) gang.enter(number, [&] { self.lead(y, gang); });
    }

private:
    template <class... Pieces>
    [[noreturn]] static void refuse(const Pieces&... pieces) {
        throw tiffin::error(tiffin::failure(pieces...));
    }
    // t, or a node that copies it to where tiffin can read it.
    static ggml_tensor* readable(ggml_context* graph, ggml_tensor* t, ggml_type type, std::size_t width,
                                 std::int64_t rows, const char* name) {
        const bool ids = type == GGML_TYPE_I32;
        if (t == nullptr) refuse(tiffin::errc::size, name, "is null, and the layer reads it");
        if (t->type != type)
            refuse(tiffin::errc::dtype, name, "is ", ggml_type_name(t->type), ", not ", ggml_type_name(type));
        if (ggml_nelements(t) != rows * static_cast<std::int64_t>(width) ||
            (!ids && t->ne[0] != static_cast<std::int64_t>(width)))
            refuse(tiffin::errc::size, name, "has ", ggml_nelements(t), " numbers, ", t->ne[0],
                   " in a row, where ", rows, " tokens of ", width, " are read");
        const bool as_it_is = ids ? ggml_is_contiguous(t)
                                  : ggml_is_contiguous_1(t) && t->nb[1] % sizeof(float) == 0 &&
                                        t->nb[1] >= width * sizeof(float);
        return as_it_is ? t : ggml_cont(graph, t);
    }
    static tiffin::matrix_view<float> matrix(const ggml_tensor* t) {
        if (t == nullptr) return {};
        const auto width = static_cast<std::size_t>(t->ne[0]);
        return {static_cast<float*>(t->data), static_cast<std::size_t>(ggml_nrows(t)), width,
                t->nb[1] / sizeof(float)};
    }
    void lead(ggml_tensor* y, tiffin::thread_gang& gang) {
        tiffin::token_inputs inputs{.residual = matrix(y->src[2]), .per_layer_input = matrix(y->src[3])};
        if (const ggml_tensor* ids = y->src[1])
            inputs.token_ids = {static_cast<const std::int32_t*>(ids->data),
                                static_cast<std::size_t>(ggml_nelements(ids))};
        // Nothing may be thrown through ggml.
        const tiffin::status done = tiffin::detail::attempt("layer", [&] {
            return layer_.try_call(tiffin::matrix_view<const float>(matrix(y->src[0])), inputs, matrix(y),
                                   std::span<std::byte>(context_.workspace_), gang);
        });
        if (done) return;
        std::fill_n(static_cast<float*>(y->data), ggml_nelements(y), std::numeric_limits<float>::quiet_NaN());
        if (!context_.first_) return;
        const auto& f = done.failure();
        context_.first_ = tiffin::failure(f.code, f.where, f.what, " (node ", y->name, ")");
    }

    tiffin::any_layer layer_;
    op_context& context_;
};

}  // namespace tiffin_in_ggml
