// Layers on a device beside SwiGLU through cuBLASLt alone.
//
// Names are those of bench_layers: layer/<name>/cuda/<dtype>/<d>x<f>/tokens:<T>, peer/cublaslt/swiglu/...,
// ratio/<name>/over/<base>/.... One run is a graph of calls of several layers one after the other, whose
// weights together exceed the L2 cache, timed by the device's own events; a ratio is the median of those of
// neighbouring runs. What the device can do at most is measured too: its copies, and its products of large
// matrices.
#include <benchmark/benchmark.h>

#include <tiffin/analysis/cost.hpp>
#include <tiffin/cuda.hpp>
#include <tiffin/layers.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace {

using tiffin::cuda_detail::device_memory;
using format = tiffin::bf16;
using storage = format::storage;
using rows_view = tiffin::matrix_view<storage>;

std::size_t d_model = 2048, d_ff = 8192, vocab = 32768, most_tokens = 8192;
std::size_t cache_bytes = std::size_t{50} << 20;

void must(cudaError_t code) {
    if (code == cudaSuccess) return;
    std::fprintf(stderr, "bench_cuda: %s (%s)\n", cudaGetErrorString(code), cudaGetErrorName(code));
    std::exit(1);
}
void must(const tiffin::status& s) {
    if (s.ok()) return;
    std::fprintf(stderr, "bench_cuda: %s\n", s.failure().message().c_str());
    std::exit(1);
}

cudaStream_t stream() {
    static const cudaStream_t only = [] {
        cudaStream_t made{};
        must(cudaStreamCreate(&made));
        return made;
    }();
    return only;
}

device_memory bytes_there(std::size_t bytes) {
    return device_memory::make(bytes, "bench_cuda").or_throw();
}
// Numbers near those of a trained layer; one piece of them over and over.
std::vector<storage> numbers(std::size_t count, std::uint32_t seed) {
    constexpr std::size_t piece = 1 << 16;
    std::vector<storage> made(count);
    std::minstd_rand random(seed + 1);
    for (std::size_t i = 0; i < std::min(count, piece); ++i) {
        const float v = (static_cast<float>(random()) / 2147483648.0f - 0.5f) * 0.05f;
        format::encode(&v, made[i]);
    }
    for (std::size_t i = piece; i < count; i += piece)
        std::memcpy(made.data() + i, made.data(), std::min(piece, count - i) * sizeof(storage));
    return made;
}
device_memory numbers_there(std::size_t count, std::uint32_t seed) {
    const std::vector<storage> here = numbers(count, seed);
    device_memory made = bytes_there(count * sizeof(storage));
    must(cudaMemcpy(made.data(), here.data(), made.size(), cudaMemcpyHostToDevice));
    return made;
}

// What all layers read and write.
struct activations {
    device_memory x = numbers_there(most_tokens * d_model, 1),
                  y = bytes_there(most_tokens * d_model * sizeof(storage)),
                  ids = bytes_there(most_tokens * sizeof(std::int32_t));

    activations() {
        std::vector<std::int32_t> here(most_tokens);
        std::minstd_rand random(3);
        for (auto& id : here) id = static_cast<std::int32_t>(random() % vocab);
        must(cudaMemcpy(ids.data(), here.data(), here.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice));
    }
    [[nodiscard]] rows_view in(std::size_t tokens) const { return {x.as<storage>(), tokens, d_model}; }
    [[nodiscard]] rows_view out(std::size_t tokens) const { return {y.as<storage>(), tokens, d_model}; }
    [[nodiscard]] std::span<const std::int32_t> token_ids(std::size_t tokens) const {
        return {ids.as<std::int32_t>(), tokens};
    }
};
activations& shared() {
    static activations only;
    return only;
}

// Calls of several layers: run(layer, tokens) puts one on the stream.
struct subject {
    std::function<void(std::size_t, std::size_t)> run;
    std::size_t layers = 0;
    double flops_a_token = 0;
    double dense_bytes = 0;  // of one layer, read by every call
    double bytes_a_token = 0;
    bool in_graph = true;
};

std::size_t layers_for(double dense_bytes) {
    return std::clamp<std::size_t>(
        static_cast<std::size_t>(3.0 * static_cast<double>(cache_bytes) / dense_bytes) + 1, 2, 16);
}

enum class tables { on_device, on_host };

template <class Block>
subject make_layers(const Block& block, tiffin::block_shape sizes, tables where = tables::on_device) {
    struct state {
        std::vector<device_memory> held;
        std::vector<std::vector<storage>> here;
        std::vector<tiffin::layer<Block, tiffin::cuda<format>>> layers;
        std::vector<tiffin::offloaded_rows> offloaded;
        device_memory workspace;
    };
    const auto made = std::make_shared<state>();
    const tiffin::block_cost cost = tiffin::cost(sizes, block);
    subject s;
    s.flops_a_token = cost.matrix_flops_per_token;
    s.dense_bytes = 2 * (cost.parameters - cost.table_parameters);
    s.bytes_a_token = 2 * (cost.row_parameters + 2.0 * static_cast<double>(d_model));
    s.layers = layers_for(s.dense_bytes);
    s.in_graph = where == tables::on_device;
    tiffin::weights given_tables;
    for (std::size_t i = 0; i < s.layers; ++i) {
        tiffin::weights given;
        for (const auto& [name, t] : tiffin::tensors_needed(block, sizes)) {
            if (t.tensor.spec.needed == tiffin::presence::optional) continue;
            const bool table = t.tensor.spec.kind == tiffin::tensor_kind::table ||
                               t.tensor.spec.kind == tiffin::tensor_kind::pool;
            const std::size_t count = t.shape.elements();
            if (table && where == tables::on_host) {
                // One table for all layers: what is read of it goes over the bus for each.
                if (made->here.empty()) made->here.push_back(numbers(count, 9));
                given.add_gathered(name, format::type, t.shape);
                made->offloaded.push_back(
                    tiffin::offloaded_rows::make({made->here[0].data(), format::type, t.shape},
                                                 {.tokens = most_tokens, .cached_rows = vocab / 10})
                        .or_throw());
                break;
            }
            const tiffin::tensor_view* const known = given_tables.find(name);
            if (table && known != nullptr) {
                given.add(name, *known);
                continue;
            }
            made->held.push_back(numbers_there(count, static_cast<std::uint32_t>(made->held.size())));
            given.add(name, {made->held.back().data(), format::type, t.shape});
            if (table) given_tables.add(name, given.entries().back().tensor);
        }
        if (where == tables::on_host)
            for (const auto& [name, t] : tiffin::tensors_needed(block, sizes)) {
                if (t.tensor.spec.needed == tiffin::presence::optional || given.find(name) != nullptr)
                    continue;
                made->held.push_back(
                    numbers_there(t.shape.elements(), static_cast<std::uint32_t>(made->held.size())));
                given.add(name, {made->held.back().data(), format::type, t.shape});
            }
        made->layers.push_back(tiffin::prepare(block, given, tiffin::cuda<format>{stream()}, {.tokens = 0}));
    }
    made->workspace = bytes_there(made->layers[0].workspace_bytes(most_tokens));
    s.run = [made, where](std::size_t i, std::size_t tokens) {
        const auto ids = shared().token_ids(tokens);
        const std::span<std::byte> memory(made->workspace.data(), made->workspace.size());
        tiffin::device_inputs<format> inputs{.token_ids = ids};
        tiffin::gathered_rows rows;
        if (where == tables::on_host) {
            // One layer ahead; the first finds its own.
            rows = made->offloaded[i].gather(ids, stream()).or_throw();
            must(made->offloaded[(i + 1) % made->offloaded.size()].prefetch(ids, stream()));
            inputs.gathered = {&rows, 1};
        }
        must(made->layers[i].try_call(shared().in(tokens), inputs, shared().out(tokens), memory, stream()));
    };
    return s;
}

// SwiGLU by three products of cuBLASLt and one kernel for silu(g) u between them.
struct silu_times {
    const storage* g;
    const storage* u;
    storage* h;

    __device__ void operator()(std::size_t i) const {
        using namespace tiffin::cuda_detail;
        const auto gate = load<format, 8>(g + i * 8, 8), up = load<format, 8>(u + i * 8, 8);
        store<format, 8>(tiffin::silu{}(gate)*up, h + i * 8, 8);
    }
};
subject make_peer() {
    struct state {
        std::vector<device_memory> held;
        device_memory planes, scratch;
        cublasLtHandle_t blas{};
    };
    const auto made = std::make_shared<state>();
    const std::size_t size = d_model * d_ff;
    subject s;
    s.dense_bytes = 6.0 * static_cast<double>(size);
    s.flops_a_token = 6.0 * static_cast<double>(size);
    s.bytes_a_token = 4.0 * static_cast<double>(d_model);
    s.layers = layers_for(s.dense_bytes);
    for (std::size_t i = 0; i < 3 * s.layers; ++i)
        made->held.push_back(numbers_there(size, static_cast<std::uint32_t>(i)));
    made->planes = bytes_there(3 * most_tokens * d_ff * sizeof(storage));
    made->scratch = bytes_there(tiffin::cuda_detail::blas_bytes);
    if (cublasLtCreate(&made->blas) != CUBLAS_STATUS_SUCCESS) must(cudaErrorInvalidValue);
    s.run = [made](std::size_t i, std::size_t tokens) {
        using namespace tiffin::cuda_detail;
        launches out(stream());
        const auto weight = [&](std::size_t which) { return made->held[3 * i + which].as<storage>(); };
        storage* const g = made->planes.as<storage>();
        storage *const u = g + tokens * d_ff, *const h = u + tokens * d_ff;
        const tiffin::cuda_detail::activations<format> x{shared().x.as<storage>(), d_model}, hidden{h, d_ff};
        bool ok = blas_product<format>(made->blas, x, tokens, weight(0), d_ff, d_model, g,
                                       made->scratch.data(), out);
        ok = ok && blas_product<format>(made->blas, x, tokens, weight(1), d_ff, d_model, u,
                                        made->scratch.data(), out);
        for_elements(out, tokens * d_ff / 8, silu_times{g, u, h});
        ok = ok && blas_product<format>(made->blas, hidden, tokens, weight(2), d_model, d_ff,
                                        shared().y.as<storage>(), made->scratch.data(), out);
        if (!ok) must(cudaErrorNotSupported);
        must(out.outcome());
    };
    return s;
}

// All layers of a subject one after the other, timed on the device.
class run_of_all {
public:
    run_of_all(const subject& s, std::size_t tokens) : subject_(s), tokens_(tokens) {
        must(cudaEventCreate(&begin_));
        must(cudaEventCreate(&end_));
        enqueue();  // the first is not timed: libraries set themselves up
        must(cudaStreamSynchronize(stream()));
        if (!s.in_graph) return;
        cudaGraph_t graph{};
        must(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal));
        enqueue();
        must(cudaStreamEndCapture(stream(), &graph));
        must(cudaGraphInstantiate(&graph_, graph, 0));
        must(cudaGraphDestroy(graph));
    }
    ~run_of_all() {
        if (graph_ != nullptr) static_cast<void>(cudaGraphExecDestroy(graph_));
        static_cast<void>(cudaEventDestroy(begin_));
        static_cast<void>(cudaEventDestroy(end_));
    }
    // Seconds a layer.
    double seconds() {
        must(cudaEventRecord(begin_, stream()));
        if (graph_ != nullptr)
            must(cudaGraphLaunch(graph_, stream()));
        else
            enqueue();
        must(cudaEventRecord(end_, stream()));
        must(cudaEventSynchronize(end_));
        float milliseconds = 0;
        must(cudaEventElapsedTime(&milliseconds, begin_, end_));
        return static_cast<double>(milliseconds) / 1000 / static_cast<double>(subject_.layers);
    }

private:
    void enqueue() {
        for (std::size_t i = 0; i < subject_.layers; ++i) subject_.run(i, tokens_);
    }

    const subject& subject_;
    std::size_t tokens_;
    cudaGraphExec_t graph_{};
    cudaEvent_t begin_{}, end_{};
};

// Bytes a second of copies within the device, and FLOPs a second of a product of 8192 x 8192 matrices.
struct limits {
    double bytes = 0;
    double flops = 0;
};
const limits& device_limits() {
    static const limits only = [] {
        limits found;
        const std::size_t side = most_tokens, size = side * side;
        const device_memory a = bytes_there(size * 2), b = bytes_there(size * 2), c = bytes_there(size * 2),
                            scratch = bytes_there(tiffin::cuda_detail::blas_bytes);
        must(cudaMemset(a.data(), 0, a.size()));
        must(cudaMemset(b.data(), 0, b.size()));
        cublasLtHandle_t blas{};
        if (cublasLtCreate(&blas) != CUBLAS_STATUS_SUCCESS) must(cudaErrorInvalidValue);
        subject copy{
            [&](std::size_t, std::size_t) {
                must(cudaMemcpyAsync(c.data(), a.data(), a.size(), cudaMemcpyDeviceToDevice, stream()));
            },
            4};
        subject product{[&](std::size_t, std::size_t) {
                            tiffin::cuda_detail::launches out(stream());
                            if (!tiffin::cuda_detail::blas_product<format>(
                                    blas, {a.as<storage>(), side}, side, b.as<storage>(), side, side,
                                    c.as<storage>(), scratch.data(), out))
                                must(cudaErrorNotSupported);
                        },
                        4};
        run_of_all copies(copy, 0), products(product, 0);
        for (int i = 0; i < 5; ++i) {
            found.bytes = std::max(found.bytes, 2.0 * static_cast<double>(a.size()) / copies.seconds());
            found.flops = std::max(found.flops, 2.0 * static_cast<double>(size * side) / products.seconds());
        }
        static_cast<void>(cublasLtDestroy(blas));
        return found;
    }();
    return only;
}

std::map<std::string, std::function<subject()>> makers;
subject& made(const std::string& name) {
    // Two at a time: a device's memory is not the host's.
    static std::vector<std::pair<std::string, std::unique_ptr<subject>>> held;
    for (auto it = held.begin(); it != held.end(); ++it)
        if (it->first == name) {
            std::rotate(it, it + 1, held.end());
            return *held.back().second;
        }
    if (held.size() == 2) held.erase(held.begin());
    held.emplace_back(name, std::make_unique<subject>(makers.at(name)()));
    return *held.back().second;
}

void measure(benchmark::State& state, const std::string& name, std::size_t tokens) {
    const subject& s = made(name);
    run_of_all run(s, tokens);
    double total = 0;
    std::size_t runs = 0;
    for (auto _ : state) {
        const double seconds = run.seconds();
        state.SetIterationTime(seconds);
        total += seconds;
        ++runs;
    }
    const double seconds = total / static_cast<double>(std::max<std::size_t>(runs, 1));
    const double flops = s.flops_a_token * static_cast<double>(tokens);
    const double bytes = s.dense_bytes + s.bytes_a_token * static_cast<double>(tokens);
    state.counters["GFLOPs"] = flops / seconds / 1e9;
    state.counters["GBs"] = bytes / seconds / 1e9;
    state.counters["roofline"] =
        std::max(flops / device_limits().flops, bytes / device_limits().bytes) / seconds;
}

void measure_ratio(benchmark::State& state, const std::string& name, const std::string& base,
                   std::size_t tokens) {
    subject& below_ = made(base);
    subject& above_ = made(name);
    run_of_all below(below_, tokens), above(above_, tokens);
    std::vector<double> ratios;
    for (auto _ : state) {
        const bool first = ratios.size() % 2 == 0;
        const double one = first ? above.seconds() : below.seconds(),
                     two = first ? below.seconds() : above.seconds();
        ratios.push_back(first ? one / two : two / one);
        state.SetIterationTime(one + two);
    }
    std::sort(ratios.begin(), ratios.end());
    state.counters["ratio"] = ratios[ratios.size() / 2];
    state.counters["quarter"] = ratios[ratios.size() / 4];
    state.counters["three_quarters"] = ratios[ratios.size() * 3 / 4];
}

void register_all() {
    tiffin::block_shape sizes{.d_model = d_model, .d_ff = d_ff, .vocab = vocab};
    makers["swiglu"] = [=] { return make_layers(tiffin::swiglu{}, sizes); };
    makers["stem"] = [=] { return make_layers(tiffin::stem{}, sizes); };
    makers["stem_on_host"] = [=] { return make_layers(tiffin::stem{}, sizes, tables::on_host); };
    makers["retoken_folded"] = [=] { return make_layers(tiffin::retoken_folded<tiffin::swiglu>{}, sizes); };
    tiffin::block_shape pool = sizes;
    pool.experts = 4;
    makers["mort"] = [=] { return make_layers(tiffin::mort<tiffin::swiglu>{}, pool); };
    makers["mlp"] = [=] { return make_layers(tiffin::mlp{}, sizes); };
    // As many parameters as mlp, of which a token meets fewer: eight experts of rank 64 for a part of d_ff.
    tiffin::block_shape banks = sizes;
    banks.experts = 8;
    banks.rank = d_model >= 1024 ? 64 : 4;
    banks.d_ff = (2 * d_model * d_ff - banks.experts * d_model * (banks.rank + 1)) /
                 (2 * d_model + banks.experts * banks.rank) / 8 * 8;
    makers["structmoe"] = [=] { return make_layers(tiffin::structmoe{}, banks); };
    makers["peer"] = [] { return make_peer(); };

    const std::string shape = std::to_string(d_model) + "x" + std::to_string(d_ff);
    const auto add = [&](const std::string& name, std::size_t tokens, const auto& run) {
        benchmark::RegisterBenchmark((name + "/bf16/" + shape + "/tokens:" + std::to_string(tokens)).c_str(),
                                     run)
            ->UseManualTime();
    };
    for (const std::size_t tokens : {std::size_t{1}, std::size_t{16}, std::size_t{512}, most_tokens}) {
        if (tokens > most_tokens) continue;
        const auto layer = [&](const std::string& name, const std::string& title) {
            add(title, tokens, [=](benchmark::State& state) { measure(state, name, tokens); });
        };
        layer("peer", "peer/cublaslt/swiglu");
        for (const char* name : {"swiglu", "stem", "retoken_folded", "mort", "structmoe"})
            layer(name, "layer/" + std::string(name) + "/cuda");
        for (const auto& [name, base] :
             std::initializer_list<std::pair<std::string, std::string>>{{"stem", "peer"},
                                                                        {"stem_on_host", "peer"},
                                                                        {"swiglu", "peer"},
                                                                        {"retoken_folded", "swiglu"},
                                                                        {"mort", "swiglu"},
                                                                        {"structmoe", "mlp"}})
            add("ratio/" + name + "/over/" + base, tokens,
                [=](benchmark::State& state) { measure_ratio(state, name, base, tokens); });
    }
}

}  // namespace

int main(int count, char** arguments) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        std::printf("skipped: no CUDA device\n");
        return 77;
    }
    cudaDeviceProp device{};
    must(cudaGetDeviceProperties(&device, 0));
    cache_bytes = static_cast<std::size_t>(device.l2CacheSize);
    for (int i = 1; i < count; ++i)
        if (std::string(arguments[i]) == "--small") {  // that everything runs, not how long it takes
            d_model = 64, d_ff = 96, vocab = 50, most_tokens = 40, cache_bytes = 1;
            std::swap(arguments[i--], arguments[--count]);
        }
    benchmark::Initialize(&count, arguments);
    if (benchmark::ReportUnrecognizedArguments(count, arguments)) return 1;
    register_all();
    benchmark::AddCustomContext("device", device.name);
    benchmark::AddCustomContext("copies, GB/s", std::to_string(device_limits().bytes / 1e9));
    benchmark::AddCustomContext("products, TFLOP/s", std::to_string(device_limits().flops / 1e12));
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
