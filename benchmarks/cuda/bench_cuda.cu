// Layers on a device beside SwiGLU through cuBLASLt alone.
//
// Names are those of bench_layers: layer/<name>/cuda/<dtype>/<d>x<f>/tokens:<T>, peer/cublaslt/swiglu/...,
// ratio/<layer>/over/<base>/tokens:<T>. One run is a graph of calls of several layers one after the other,
// whose weights together exceed the L2 cache, timed by the device's own events, on other token ids than the
// last; ids are as in text, some much more often than others. A ratio is the median of those of neighbouring
// runs. What the device can do at most is measured too: its copies, and its products of large matrices.
#include <benchmark/benchmark.h>

#include <tiffin/cuda.hpp>
#include <tiffin/layers.hpp>

#include "../call_bytes.hpp"

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
void must(cublasStatus_t code) {
    if (code == CUBLAS_STATUS_SUCCESS) return;
    std::fprintf(stderr, "bench_cuda: cuBLASLt: %s\n", cublasLtGetStatusString(code));
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
std::shared_ptr<tiffin::cuda_detail::blas> blas_here() {
    return tiffin::cuda_detail::blas::make().or_throw();
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
class activations {
public:
    activations() {
        // The n-th id about as often as 1 / n, as words are.
        std::vector<double> weights(vocab);
        for (std::size_t id = 0; id < vocab; ++id) weights[id] = 1 / (static_cast<double>(id) + 2.7);
        std::discrete_distribution<std::int32_t> draw(weights.begin(), weights.end());
        std::vector<std::int32_t> here(texts * most_tokens);
        std::minstd_rand random(3);
        for (auto& id : here) id = draw(random);
        must(cudaMemcpy(all_ids_.data(), here.data(), all_ids_.size(), cudaMemcpyHostToDevice));
    }
    [[nodiscard]] storage* x() const { return x_.as<storage>(); }
    [[nodiscard]] storage* y() const { return y_.as<storage>(); }
    [[nodiscard]] rows_view in(std::size_t tokens) const { return {x(), tokens, d_model}; }
    [[nodiscard]] rows_view out(std::size_t tokens) const { return {y(), tokens, d_model}; }
    [[nodiscard]] std::span<const std::int32_t> token_ids(std::size_t tokens) const {
        return {ids_.as<std::int32_t>(), tokens};
    }
    // Puts other ids where token_ids() are.
    void next_ids() {
        const std::int32_t* const from = all_ids_.as<std::int32_t>() + (++text_ % texts) * most_tokens;
        must(cudaMemcpyAsync(ids_.data(), from, ids_.size(), cudaMemcpyDeviceToDevice, stream()));
    }

private:
    static constexpr std::size_t texts = 32;

    device_memory x_ = numbers_there(most_tokens * d_model, 1),
                  y_ = bytes_there(most_tokens * d_model * sizeof(storage)),
                  ids_ = bytes_there(most_tokens * sizeof(std::int32_t)),
                  all_ids_ = bytes_there(texts * most_tokens * sizeof(std::int32_t));
    std::size_t text_ = 0;
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
    std::function<double(std::size_t)> bytes =
        nullptr;  // that a call of so many tokens reads or writes at least
    std::function<tiffin::offload_counts()> fetched = nullptr;  // where rows are: by all layers so far
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
        tiffin::cuda_detail::registered_memory table;
        std::vector<tiffin::layer<Block, tiffin::cuda<format>>> layers;
        std::vector<tiffin::offloaded_rows> offloaded;
        device_memory workspace;
    };
    const auto made = std::make_shared<state>();
    const tiffin::block_cost cost = tiffin::cost(sizes, block);
    subject s;
    s.flops_a_token = cost.matrix_flops_per_token;
    s.bytes = [=](std::size_t tokens) {
        using enum tiffin::tensor_kind;
        const auto number_bytes = [](tiffin::tensor_kind kind) {
            return kind == logits || kind == vector || kind == selection_bias ? 4.0 : 2.0;
        };
        const auto t = static_cast<double>(tokens);
        return bytes_of_call(block, sizes, t, number_bytes) + 4 * t * static_cast<double>(sizes.d_model);
    };
    s.layers = layers_for(2 * (cost.parameters - cost.table_parameters));
    // Of a model's layers the first waits for its rows, the others find theirs.
    if (where == tables::on_host) s.layers = std::max<std::size_t>(s.layers, 16);
    tiffin::weights given_tables;
    for (std::size_t i = 0; i < s.layers; ++i) {
        tiffin::weights given;
        for (const auto& [name, t] : tiffin::tensors_needed(block, sizes)) {
            if (t.needed == tiffin::presence::optional) continue;
            const bool table = t.kind == tiffin::tensor_kind::table || t.kind == tiffin::tensor_kind::pool;
            const std::size_t count = t.shape.elements();
            if (table && where == tables::on_host) {
                // One table for all layers, and a cache each of a tenth of its rows.
                if (made->table.host() == nullptr) {
                    const std::vector<storage> here = numbers(count, 9);
                    made->table =
                        tiffin::cuda_detail::registered_memory::make(count * sizeof(storage), name.c_str())
                            .or_throw();
                    std::memcpy(made->table.host(), here.data(), count * sizeof(storage));
                }
                given.add_gathered(name, format::type, t.shape);
                made->offloaded.push_back(tiffin::offloaded_rows::make(
                                              tiffin::tensor_view{made->table.host(), format::type, t.shape},
                                              {.tokens = most_tokens, .cached_rows = vocab / 10 + 8})
                                              .or_throw());
                continue;
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
        made->layers.push_back(tiffin::prepare(block, given, tiffin::cuda<format>{stream()}, {.tokens = 0}));
    }
    made->workspace = bytes_there(made->layers[0].workspace_bytes(most_tokens));
    s.run = [made](std::size_t i, std::size_t tokens) {
        const auto ids = shared().token_ids(tokens);
        const std::span<std::byte> memory(made->workspace.data(), made->workspace.size());
        tiffin::device_inputs<format> inputs{.token_ids = ids};
        tiffin::gathered_rows rows;
        if (!made->offloaded.empty()) {
            rows = made->offloaded[i].gather(ids, stream()).or_throw();
            // One layer ahead.
            if (i + 1 < made->offloaded.size()) must(made->offloaded[i + 1].prefetch(ids, stream()));
            inputs.gathered = {&rows, 1};
        }
        must(made->layers[i].try_call(shared().in(tokens), inputs, shared().out(tokens), memory, stream()));
    };
    if (where == tables::on_host)
        s.fetched = [made] {
            tiffin::offload_counts all;
            for (auto& rows : made->offloaded) {
                const tiffin::offload_counts one = rows.counts().or_throw();
                all.calls += one.calls, all.tokens += one.tokens, all.hits += one.hits,
                    all.misses += one.misses;
            }
            return all;
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
        std::shared_ptr<tiffin::cuda_detail::blas> blas = blas_here();
    };
    const auto made = std::make_shared<state>();
    const std::size_t size = d_model * d_ff;
    subject s;
    s.flops_a_token = 6.0 * static_cast<double>(size);
    s.bytes = [size](std::size_t tokens) { return static_cast<double>(6 * size + 4 * tokens * d_model); };
    s.layers = layers_for(6.0 * static_cast<double>(size));
    for (std::size_t i = 0; i < 3 * s.layers; ++i)
        made->held.push_back(numbers_there(size, static_cast<std::uint32_t>(i)));
    made->planes = bytes_there(3 * most_tokens * d_ff * sizeof(storage));
    made->scratch = bytes_there(tiffin::cuda_detail::blas::memory_bytes);
    s.run = [made](std::size_t i, std::size_t tokens) {
        using namespace tiffin::cuda_detail;
        launches out(stream());
        const auto weight = [&](std::size_t which) { return made->held[3 * i + which].as<storage>(); };
        storage* const g = made->planes.as<storage>();
        storage *const u = g + tokens * d_ff, *const h = u + tokens * d_ff;
        const auto product = [&](std::size_t which, const storage* from, std::size_t outputs,
                                 std::size_t inputs, storage* to) {
            must(made->blas->product<format>(from, inputs, tokens, weight(which), outputs, inputs, to,
                                             made->scratch.data(), stream()));
        };
        product(0, shared().x(), d_ff, d_model, g);
        product(1, shared().x(), d_ff, d_model, u);
        for_elements(out, tokens * d_ff / 8, silu_times{g, u, h});
        product(2, h, d_model, d_ff, shared().y());
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
        cudaGraph_t graph{};
        must(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal));
        enqueue();
        must(cudaStreamEndCapture(stream(), &graph));
        must(cudaGraphInstantiate(&graph_, graph, 0));
        must(cudaGraphDestroy(graph));
    }
    ~run_of_all() {
        static_cast<void>(cudaGraphExecDestroy(graph_));
        static_cast<void>(cudaEventDestroy(begin_));
        static_cast<void>(cudaEventDestroy(end_));
    }
    // Seconds a layer.
    double seconds() {
        shared().next_ids();
        must(cudaEventRecord(begin_, stream()));
        must(cudaGraphLaunch(graph_, stream()));
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

// Bytes a second of copies within the device, and FLOPs per second of a product of 8192 x 8192 matrices.
struct limits {
    double bytes = 0;
    double flops = 0;
};
const limits& device_limits() {
    static const limits only = [] {
        limits found;
        const std::size_t side = most_tokens, size = side * side;
        // Products of zeros would take less power, and so less time.
        const device_memory a = numbers_there(size, 1), b = numbers_there(size, 2), c = bytes_there(size * 2),
                            scratch = bytes_there(tiffin::cuda_detail::blas::memory_bytes);
        const auto blas = blas_here();
        subject copy{
            [&](std::size_t, std::size_t) {
                must(cudaMemcpyAsync(c.data(), a.data(), a.size(), cudaMemcpyDeviceToDevice, stream()));
            },
            4};
        subject product{[&](std::size_t, std::size_t) {
                            must(blas->product<format>(a.as<storage>(), side, side, b.as<storage>(), side,
                                                       side, c.as<storage>(), scratch.data(), stream()));
                        },
                        4};
        run_of_all copies(copy, 0), products(product, 0);
        for (int i = 0; i < 5; ++i) {
            found.bytes = std::max(found.bytes, 2.0 * static_cast<double>(a.size()) / copies.seconds());
            found.flops = std::max(found.flops, 2.0 * static_cast<double>(size * side) / products.seconds());
        }
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
    const double bytes = s.bytes(tokens);
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
    const tiffin::offload_counts before = above_.fetched ? above_.fetched() : tiffin::offload_counts{};
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
    if (!above_.fetched) return;
    // Different rows of a call: found on the device, and fetched over the bus.
    const tiffin::offload_counts now = above_.fetched();
    const auto calls = static_cast<double>(now.calls - before.calls);
    state.counters["hits"] = static_cast<double>(now.hits - before.hits) / calls;
    state.counters["misses"] = static_cast<double>(now.misses - before.misses) / calls;
}

// A layer of a shape, and what it is called.
template <class Block>
std::string add_layer(const std::string& name, const Block& block, const tiffin::block_shape& sizes,
                      tables where = tables::on_device) {
    const std::string title =
        "layer/" + name + "/cuda/bf16/" + std::to_string(sizes.d_model) + "x" + std::to_string(sizes.d_ff);
    makers[title] = [=] { return make_layers(block, sizes, where); };
    return title;
}

void register_all() {
    const tiffin::block_shape sizes{.d_model = d_model, .d_ff = d_ff, .vocab = vocab};
    tiffin::block_shape pool = sizes, plain = sizes, banks = sizes;
    pool.experts = 4;
    // The published pair: as many parameters as mlp of 7/8 of d_ff, of which a token meets fewer.
    plain.d_ff = d_ff / 8 * 7;
    banks.experts = banks.rank = d_model >= 1024 ? 16 : 4;
    banks.d_ff = (2 * d_model * plain.d_ff - banks.experts * d_model * (banks.rank + 1)) /
                 (2 * d_model + banks.experts * banks.rank) / 8 * 8;
    tiffin::mort<tiffin::swiglu> mort_of_28_layers;
    mort_of_28_layers.modulator.num_layers = 28;
    const std::string peer =
        "peer/cublaslt/swiglu/bf16/" + std::to_string(d_model) + "x" + std::to_string(d_ff);
    makers[peer] = [] { return make_peer(); };
    const std::string swiglu = add_layer("swiglu", tiffin::swiglu{}, sizes),
                      stem = add_layer("stem", tiffin::stem{}, sizes),
                      on_host = add_layer("stem_on_host", tiffin::stem{}, sizes, tables::on_host),
                      retoken = add_layer("retoken", tiffin::retoken_folded<tiffin::swiglu>{}, sizes),
                      mort = add_layer("mort", mort_of_28_layers, pool),
                      mlp = add_layer("mlp", tiffin::mlp{}, plain),
                      structmoe = add_layer("structmoe", tiffin::structmoe{}, banks);

    const auto add = [&](const std::string& name, std::size_t tokens, const auto& run) {
        benchmark::RegisterBenchmark((name + "/tokens:" + std::to_string(tokens)).c_str(), run)
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond);
    };
    for (const std::size_t tokens : {std::size_t{1}, std::size_t{16}, std::size_t{512}, most_tokens}) {
        if (tokens > most_tokens) continue;
        for (const std::string& name : {peer, swiglu, stem, retoken, mort, structmoe})
            add(name, tokens, [=](benchmark::State& state) { measure(state, name, tokens); });
        for (const auto& [name, base] :
             std::initializer_list<std::pair<std::string, std::string>>{{stem, peer},
                                                                        {on_host, peer},
                                                                        {swiglu, peer},
                                                                        {retoken, swiglu},
                                                                        {mort, swiglu},
                                                                        {structmoe, mlp}})
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
    benchmark::AddCustomContext("read_gbs", std::to_string(device_limits().bytes / 1e9));
    benchmark::AddCustomContext("peak_gflops", std::to_string(device_limits().flops / 1e9));
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
