// A STEM block as a node of a ggml graph: norm, block, residual, computed by ggml's CPU backend.
#include "ggml_op.hpp"

#include <tiffin/executor/openmp.hpp>
#include <tiffin/tiffin.hpp>

#include <CLI/CLI.hpp>

#include "../support/command_line.hpp"
#include "../support/progress_bar.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

namespace {

struct arguments {
    std::size_t d_model = 1024, d_ff = 2816, vocab = 4096, tokens = 64, repeats = 20;
    int threads = 2;
};

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

std::vector<float> random_numbers(std::size_t count, unsigned seed, float size) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-size, size);
    std::vector<float> made(count);
    for (float& v : made) v = uniform(random);
    return made;
}

// Random weights, such that y has numbers of about x's size.
struct stem_weights {
    explicit stem_weights(const arguments& a)
        : gate(random_numbers(a.d_ff * a.d_model, 1, 3 / std::sqrt(static_cast<float>(a.d_model)))),
          table(random_numbers(a.vocab * a.d_ff, 2, 1)),
          down(random_numbers(a.d_model * a.d_ff, 3, 3 / std::sqrt(static_cast<float>(a.d_ff)))) {
        named.add("gate_proj.weight", gate.data(), {a.d_ff, a.d_model})
            .add("stem_embed.weight", table.data(), {a.vocab, a.d_ff})
            .add("down_proj.weight", down.data(), {a.d_model, a.d_ff});
    }
    std::vector<float> gate, table, down;
    tiffin::weights named;
};

// The least time of a few calls, in microseconds: what else runs on the machine only adds to it.
template <class Call>
double best_time(const arguments& args, const char* what, const Call& call) {
    progress_bar bar;
    double best = INFINITY;
    for (std::size_t i = 0; i < args.repeats; ++i) {
        bar.show(static_cast<double>(i) / static_cast<double>(args.repeats), what);
        const auto begin = std::chrono::steady_clock::now();
        call();
        const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
        best = std::min(best, took.count());
    }
    return best;
}

void run(const arguments& args) {
    const stem_weights weights(args);
    const tiffin::any_layer layer(
        tiffin::prepare<tiffin::stem>(weights.named, tiffin::simd{}, {.tokens = 0}));

    // The graph: y = x + stem(norm(x), ids).
    tiffin_in_ggml::op_context context(static_cast<std::size_t>(args.threads));
    tiffin_in_ggml::ffn_op stem(layer, context, args.tokens);
    const context_ptr tensors(
        ggml_init({ggml_tensor_overhead() * 16 + ggml_graph_overhead(), nullptr, true}));
    ggml_context* const c = tensors.get();
    const auto d = static_cast<std::int64_t>(args.d_model), t = static_cast<std::int64_t>(args.tokens);
    ggml_tensor* const x = ggml_new_tensor_2d(c, GGML_TYPE_F32, d, t);
    ggml_tensor* const ids = ggml_new_tensor_1d(c, GGML_TYPE_I32, t);
    ggml_tensor* const norm = ggml_rms_norm(c, x, 1e-5f);
    ggml_tensor* const block = stem(c, norm, {.token_ids = ids});
    ggml_set_name(block, "stem");
    ggml_tensor* const y = ggml_add(c, x, block);
    ggml_cgraph* const graph = ggml_new_graph(c);
    ggml_build_forward_expand(graph, y);

    const backend_ptr cpu(ggml_backend_cpu_init());
    if (!cpu) throw std::runtime_error("ggml has no CPU backend");
    ggml_backend_cpu_set_n_threads(cpu.get(), args.threads);
    // A failed node ends the graph, and ggml says so.
    ggml_backend_cpu_set_abort_callback(cpu.get(), tiffin_in_ggml::op_context::failed, &context);
    const buffer_ptr memory(ggml_backend_alloc_ctx_tensors(c, cpu.get()));
    if (!memory) throw std::runtime_error("there is no memory for the graph's tensors");

    const std::vector<float> input = random_numbers(args.tokens * args.d_model, 4, 1);
    std::vector<std::int32_t> token_ids(args.tokens);
    for (std::size_t i = 0; i < args.tokens; ++i)
        token_ids[i] = static_cast<std::int32_t>(i * 7919 % args.vocab);
    ggml_backend_tensor_set(x, input.data(), 0, ggml_nbytes(x));
    ggml_backend_tensor_set(ids, token_ids.data(), 0, ggml_nbytes(ids));
    const auto compute = [&] {
        if (ggml_backend_graph_compute(cpu.get(), graph) == GGML_STATUS_SUCCESS) return;
        context.take_status().or_throw();
        throw std::runtime_error("ggml did not compute the graph");
    };
    const double in_graph = best_time(args, "the graph", compute);
    std::vector<float> got(input.size()), normed(input.size());
    ggml_backend_tensor_get(y, got.data(), 0, ggml_nbytes(y));
    ggml_backend_tensor_get(norm, normed.data(), 0, ggml_nbytes(norm));

    // The same block, called directly on the same norm.
    const tiffin::openmp team{args.threads};
    tiffin::workspace workspace = layer.make_workspace(args.tokens, team.concurrency());
    const tiffin::matrix_view<const float> from(normed.data(), args.tokens, args.d_model);
    std::vector<float> wanted(input.size());
    const tiffin::matrix_view<float> to(wanted.data(), args.tokens, args.d_model);
    const double direct = best_time(args, "the layer", [&] { layer(from, token_ids, to, workspace, team); });
    float largest = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i)
        largest = std::max(largest, std::abs(got[i] - (input[i] + wanted[i])));
    std::printf("stem %zux%zu, %zu tokens, %d threads\n", args.d_model, args.d_ff, args.tokens, args.threads);
    std::printf("  graph of ggml: norm, block, residual  %10.1f us\n", in_graph);
    std::printf("  layer called directly: block alone    %10.1f us\n", direct);
    std::printf("  largest difference of the results     %10.3g\n", static_cast<double>(largest));

    // A wrong id ends the compute, and the context says why.
    token_ids.back() = static_cast<std::int32_t>(args.vocab);
    ggml_backend_tensor_set(ids, token_ids.data(), 0, ggml_nbytes(ids));
    if (ggml_backend_graph_compute(cpu.get(), graph) != GGML_STATUS_ABORTED)
        throw std::runtime_error("a token id outside the table was not refused");
    std::printf("a wrong id: %s\n", context.take_status().failure().message().c_str());
}

}  // namespace

int main(int argc, char** argv) {
    arguments args;
    CLI::App app(
        "Builds a graph of ggml, y = x + stem(norm(x), token ids), whose block is a node that tiffin "
        "computes,\n"
        "computes it on ggml's CPU backend, and compares it with the layer called directly: the largest\n"
        "difference, and the least time of both. Weights and inputs are random. How a block becomes a node\n"
        "is in examples/ggml_op/ggml_op.hpp.");
    const auto size = [&](const char* name, std::size_t& to, const char* what, std::size_t most) {
        app.add_option(name, to, what)->check(in_range<std::size_t>(1, most))->capture_default_str();
    };
    size("--d-model", args.d_model, "Width of the model", model_widths.most);
    size("--d-ff", args.d_ff, "Width of the hidden values", ffn_widths.most);
    size("--vocab", args.vocab, "Rows of the STEM table", 1u << 24);
    size("--tokens", args.tokens, "Tokens of a compute", 65536);
    size("--repeats", args.repeats, "Computes, of which the quickest counts", 1000000);
    app.add_option("--threads", args.threads, "Threads of ggml, and of the direct call")
        ->check(in_range(1, 512))
        ->capture_default_str();
    return run_command_line(app, "ggml_op", argc, argv, [&] {
        run(args);
        return std::string();
    });
}
