// Steps of training, forward and back (gradients are added up, as when batches are accumulated), in turns with each other and with the same products in oneDNN.
//
//     step/<layer>/<d>x<f>                   milliseconds; kept_MB, GFLOPs and the roofline of its matrix products
//     ratio/<above>/over/<below>/<d>x<f>     the median and quartiles of the ratios of neighbouring steps; `flops`, the
//                                            ratio of their matrix products; `over_flops`, the one over the other
#include <tiffin/analysis/cost.hpp>
#include <tiffin/executor/openmp.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/plan/tensors_needed.hpp>
#include <tiffin/train/simd.hpp>

#include "../examples/support/number_range.hpp"
#include "disturbance.hpp"
#include "machine.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#if defined(TIFFIN_BENCH_ONEDNN)
#    include <oneapi/dnnl/dnnl.h>
#endif

namespace {

using tiffin_bench::page_floats;
constexpr std::size_t tokens = 512;

struct sizes {
    std::size_t d, f;
    [[nodiscard]] std::string text() const { return std::to_string(d) + "x" + std::to_string(f); }
};

// Numbers in [-1, 1), the same on every machine.
page_floats noise(std::size_t count, std::uint32_t seed) {
    page_floats made(count);
    for (std::size_t i = 0; i < count; ++i) {
        seed = seed * 1664525u + 1013904223u;
        made.data()[i] = static_cast<float>(static_cast<std::int32_t>(seed)) * 0x1p-31f;
    }
    return made;
}

// A step that can be taken again and again.
struct subject {
    std::function<void()> step;
    double flops = 0;  // of its matrix products
    double kept_bytes = 0;
};
using maker = std::function<subject(const sizes&, int threads)>;

template <class Block>
subject make_layer(const Block& block, const tiffin::block_shape& shape, int threads) {
    struct state {
        std::vector<page_floats> memory;
        std::unique_ptr<tiffin::trainable_layer<float>> layer;
        page_floats x, y, dy, dx;
        std::vector<std::int32_t> ids;
    };
    auto s = std::make_shared<state>();
    tiffin::weights weights;
    for (const auto& [name, t] : tiffin::tensors_needed(block, shape)) {
        if (t.needed == tiffin::presence::optional) continue;
        s->memory.push_back(noise(t.shape.elements(), 7));
        const float scale = 1.0f / static_cast<float>(shape.d_model);
        for (std::size_t i = 0; i < t.shape.elements() && t.shape.rank() > 1; ++i)
            s->memory.back().data()[i] *= scale;
        weights.add(name, s->memory.back().data(), t.shape);
    }
    s->layer = std::make_unique<tiffin::trainable_layer<float>>(tiffin::prepare_training(
        block, weights, tiffin::simd<>{}, {.tokens = tokens, .workers = static_cast<std::size_t>(threads)}));
    const std::size_t n = tokens * shape.d_model;
    s->x = noise(n, 1);
    s->dy = noise(n, 2);
    s->y = page_floats(n);
    s->dx = page_floats(n);
    for (std::size_t t = 0; t < tokens; ++t)
        s->ids.push_back(static_cast<std::int32_t>(t * 7919 % shape.vocab));
    subject made;
    made.flops = 3 * tiffin::cost<Block>(shape).matrix_flops_per_token * static_cast<double>(tokens);
    made.kept_bytes = static_cast<double>(s->layer->kept_bytes(tokens));
    made.step = [s, threads, d = shape.d_model] {
        const tiffin::openmp execute{threads};
        const tiffin::matrix_view<const float> x(s->x.data(), tokens, d), dy(s->dy.data(), tokens, d);
        s->layer->forward(x, {.token_ids = s->ids}, tiffin::matrix_view<float>(s->y.data(), tokens, d),
                          execute);
        s->layer->backward(dy, {.x = {s->dx.data(), tokens, d}}, execute);
    };
    return made;
}

#if defined(TIFFIN_BENCH_ONEDNN)
// The nine products of SwiGLU's step, nothing else.
subject make_onednn(const sizes& of, int) {
    struct state {
        page_floats x, h, w, gradient;
    };
    auto s = std::make_shared<state>();
    s->x = noise(tokens * of.d, 1);
    s->h = noise(tokens * of.f, 2);
    s->w = noise(3 * of.d * of.f, 3);
    s->gradient = noise(3 * of.d * of.f, 4);
    subject made;
    made.flops = 18.0 * static_cast<double>(tokens * of.d * of.f);
    made.step = [s, of] {
        const auto d = static_cast<dnnl_dim_t>(of.d), f = static_cast<dnnl_dim_t>(of.f),
                   t = static_cast<dnnl_dim_t>(tokens);
        const auto multiply = [](char ta, char tb, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k, const float* a,
                                 const float* b, float beta, float* c) {
            dnnl_sgemm(ta, tb, m, n, k, 1.0f, a, ta == 'T' ? m : k, b, tb == 'T' ? k : n, beta, c, n);
        };
        for (int i = 0; i < 2; ++i) {  // gate and up
            float* const w = s->w.data() + static_cast<std::size_t>(i) * of.d * of.f;
            float* const g = s->gradient.data() + static_cast<std::size_t>(i) * of.d * of.f;
            multiply('N', 'T', t, f, d, s->x.data(), w, 0, s->h.data());  // z = x W^T
            multiply('N', 'N', t, d, f, s->h.data(), w, 1, s->x.data());  // dx += dz W
            multiply('T', 'N', f, d, t, s->h.data(), s->x.data(), 1, g);  // dW += dz^T x
        }
        float* const w = s->w.data() + 2 * of.d * of.f;
        float* const g = s->gradient.data() + 2 * of.d * of.f;
        multiply('N', 'T', t, d, f, s->h.data(), w, 0, s->x.data());
        multiply('N', 'N', t, f, d, s->x.data(), w, 0, s->h.data());
        multiply('T', 'N', d, f, t, s->x.data(), s->h.data(), 1, g);
    };
    return made;
}
#endif

// Milliseconds of one step.
double time_of(const subject& s) {
    const auto begin = std::chrono::steady_clock::now();
    s.step();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}
double quantile(std::vector<double> all, double q) {
    std::sort(all.begin(), all.end());
    return all[static_cast<std::size_t>(q * static_cast<double>(all.size() - 1))];
}

tiffin_bench::machine_meter& meter(int threads) {
    static tiffin_bench::machine_meter one(threads);
    return one;
}

void measure_step(benchmark::State& state, const maker& make, const sizes& of, int threads) {
    const subject s = make(of, threads);
    s.step();
    std::vector<double> rooflines, rates;
    const tiffin_bench::disturbance others;
    for (auto _ : state) {
        const double ms = time_of(s);
        state.SetIterationTime(ms / 1e3);
        const double peak = meter(threads).now().operations_per_second[0];
        rates.push_back(s.flops / ms / 1e6);
        rooflines.push_back(s.flops / peak / (ms / 1e3));
    }
    state.counters["GFLOPs"] = quantile(rates, 0.5);
    state.counters["roofline"] = quantile(rooflines, 0.5);
    state.counters["kept_MB"] = s.kept_bytes / 1e6;
    state.counters["others"] = others.share();
}
void measure_ratio(benchmark::State& state, const maker& above, const maker& below, const sizes& of,
                   int threads) {
    const subject a = above(of, threads), b = below(of, threads);
    a.step();
    b.step();
    std::vector<double> ratios;
    const tiffin_bench::disturbance others;
    for (auto _ : state) {
        const bool first = ratios.size() % 2 == 0;  // who goes first changes
        const double one = time_of(first ? a : b), other = time_of(first ? b : a);
        state.SetIterationTime((one + other) / 1e3);
        ratios.push_back(first ? one / other : other / one);
    }
    state.counters["ratio"] = quantile(ratios, 0.5);
    state.counters["quarter"] = quantile(ratios, 0.25);
    state.counters["three_quarters"] = quantile(ratios, 0.75);
    state.counters["flops"] = a.flops / b.flops;
    state.counters["others"] = others.share();
    state.counters["over_flops"] = quantile(ratios, 0.5) * b.flops / a.flops;
}

tiffin::block_shape shape_of(const sizes& of) {
    return {.d_model = of.d, .d_ff = of.f, .vocab = 4096, .experts = 16, .rank = 16, .inner = {of.d / 2, 1}};
}
template <class Block>
maker layer_of(const Block& block = {}) {
    return [=](const sizes& of, int threads) { return make_layer(block, shape_of(of), threads); };
}

[[noreturn]] void usage_error(const std::string& wrong) {
    std::fprintf(stderr, "bench_train: %s\n", wrong.c_str());
    std::exit(1);
}

// --threads=N (default 2) and --shapes=DxF,DxF; what is left is Google Benchmark's.
struct flags {
    int threads = 2;
    std::vector<sizes> shapes{{2048, 8192}, {960, 2560}};
};
flags take_flags(int& argc, char** argv) {
    flags given;
    int kept = 1;
    for (int i = 1; i < argc; ++i) {
        const std::string text = argv[i];
        if (text.starts_with("--threads=")) {
            const number_range<int> range{1, 1024};
            const auto threads = range.read(std::string_view(text).substr(10));
            if (!threads) usage_error("--threads: " + range.wrong(text.substr(10)));
            given.threads = *threads;
        } else if (text.starts_with("--shapes=")) {
            given.shapes.clear();
            std::string_view rest = std::string_view(text).substr(9);
            for (std::size_t end = 0; end != rest.npos;) {
                end = rest.find(',');
                const auto one = read_shape(rest.substr(0, end), model_widths, ffn_widths);
                if (!one) usage_error("--shapes=DxF,DxF, as 960x2560; not " + text);
                given.shapes.push_back({one->first, one->second});
                rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
            }
        } else {
            argv[kept++] = argv[i];
        }
    }
    argc = kept;
    return given;
}

}  // namespace

int main(int argc, char** argv) {
    const flags given = take_flags(argc, argv);
    tiffin::mort<tiffin::swiglu> mort;
    mort.modulator.num_layers = 28;
    std::vector<std::pair<std::string, maker>> all{
        {"swiglu", layer_of<tiffin::swiglu>()},
        {"stem", layer_of<tiffin::stem>()},
        {"mlp", layer_of<tiffin::mlp>()},
        {"structmoe", layer_of<tiffin::structmoe>()},
        {"retoken", layer_of<tiffin::retoken<tiffin::swiglu>>()},
        {"mort",
         [=](const sizes& of, int threads) {
             tiffin::block_shape shape = shape_of(of);
             shape.experts = 4;
             return make_layer(mort, shape, threads);
         }},
        {"swiglu_meki", [](const sizes& of, int threads) {
             tiffin::block_shape parts[2] = {shape_of(of), shape_of(of)};
             parts[1].d_ff = 256;
             tiffin::block_shape whole = shape_of(of);
             whole.parts = parts;
             return make_layer(tiffin::parallel<tiffin::swiglu, tiffin::meki>{}, whole, threads);
         }}};
#if defined(TIFFIN_BENCH_ONEDNN)
    all.emplace_back("onednn_products", make_onednn);
#endif
    const auto find = [&](const std::string& name) -> const maker* {
        for (const auto& [known, make] : all)
            if (known == name) return &make;
        return nullptr;
    };
    for (const sizes& of : given.shapes) {
        for (const auto& [name, make] : all)
            benchmark::RegisterBenchmark(
                ("step/" + name + "/" + of.text()).c_str(),
                [=, make = make](benchmark::State& s) { measure_step(s, make, of, given.threads); })
                ->UseManualTime()
                ->Unit(benchmark::kMillisecond);
        for (const auto& [above, below] :
             {std::pair{"swiglu", "onednn_products"}, std::pair{"stem", "swiglu"},
              std::pair{"structmoe", "mlp"}, std::pair{"retoken", "swiglu"}, std::pair{"mort", "swiglu"},
              std::pair{"swiglu_meki", "swiglu"}}) {
            const maker *a = find(above), *b = find(below);
            if (a == nullptr || b == nullptr) continue;
            benchmark::RegisterBenchmark(
                (std::string("ratio/") + above + "/over/" + below + "/" + of.text()).c_str(),
                [=, a = *a, b = *b](benchmark::State& s) { measure_ratio(s, a, b, of, given.threads); })
                ->UseManualTime()
                ->Unit(benchmark::kMillisecond);
        }
    }
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
