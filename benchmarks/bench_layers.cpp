// Every layer on every backend, beside the same block in other libraries.
//
// Names are layer/<name>/<backend>/<dtype>/<d>x<f>/tokens:<T> and peer/<library>/swiglu/.... Every
// iteration takes the next of several layers whose weights together exceed the last-level cache, as
// the layers of a model do: a benchmark that reruns one layer measures the cache.
#include <benchmark/benchmark.h>

#include <tiffin/cpu/eigen/eigen.hpp>
#include <tiffin/executor/openmp.hpp>
#include <tiffin/executor/thread_team.hpp>
#include <tiffin/tiffin.hpp>

#include "call_bytes.hpp"
#include "machine.hpp"
#include "peers.hpp"

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using tiffin_bench::dense_peer;
using tiffin_bench::page_floats;

struct shape {
    std::size_t d_model;
    std::size_t d_ff;
};

int threads = 0;
std::size_t layers_asked = 0;  // to rotate among; 0 for as many as the last-level cache cannot hold
constexpr std::size_t vocab = 4096;
constexpr std::size_t most_tokens = 512;

tiffin_bench::machine_meter& meter() {
    static tiffin_bench::machine_meter only(threads);
    return only;
}

// Numbers near those of a trained layer; their values do not change the time.
page_floats random_numbers(std::size_t count, std::uint32_t seed) {
    page_floats numbers(count);
    std::minstd_rand engine(seed + 1);
    for (std::size_t i = 0; i < count; ++i)
        numbers.data()[i] = (static_cast<float>(engine()) / 2147483648.0f - 0.5f) * 0.05f;
    return numbers;
}

struct given_layer {
    std::vector<page_floats> memory;
    std::vector<bool> tables;
    tiffin::weights tensors;
};

template <class Block>
given_layer make_weights(const Block& block, const tiffin::block_shape& sizes, std::uint32_t seed) {
    given_layer given;
    for (const auto& [name, t] : tiffin::tensors_needed(block, sizes)) {
        if (t.needed == tiffin::presence::optional) continue;
        const tiffin::tensor_kind kind = t.kind;
        given.memory.push_back(random_numbers(t.shape.elements(), seed++));
        given.tables.push_back(kind == tiffin::tensor_kind::table || kind == tiffin::tensor_kind::pool);
        given.tensors.add(name, given.memory.back().data(), t.shape);
    }
    return given;
}

// What a benchmark calls: run(layer, x, ids, tokens, y, executor) on one of several layers. Peers have
// threads of their own.
struct subject {
    std::function<void(std::size_t, const float*, const std::int32_t*, std::size_t, float*,
                       const tiffin::executor_ref&)>
        run;
    std::function<void(std::size_t)> warm_up;  // for a number of tokens
    std::size_t layers = 0;
    double bytes = 0;
};

std::size_t layers_for(double dense_bytes) {
    if (layers_asked > 0) return layers_asked;
    const double enough = 3.0 * static_cast<double>(tiffin_bench::last_level_cache_bytes());
    return std::clamp<std::size_t>(static_cast<std::size_t>(enough / dense_bytes) + 1, 2, 64);
}

// Bytes a number of a tensor of this kind takes in a backend.
double bytes_of(const tiffin::number_formats& formats, tiffin::tensor_kind kind) {
    using enum tiffin::tensor_kind;
    const bool dense = kind == projection || kind == low_rank_in, rows = kind == table || kind == pool;
    const tiffin::dtype type = dense ? formats.weights.type : rows ? formats.tables.type : tiffin::dtype::f32;
    return static_cast<double>(size_of(type)) / static_cast<double>(block_of(type));
}

tiffin::number_formats formats_of(const auto& backend) {
    if constexpr (requires { backend.formats(); })
        return backend.formats();
    else
        return {};
}

template <class Backend, class Block>
subject make_subject(const Block& block, const tiffin::block_shape& sizes, const Backend& backend) {
    struct state {
        std::vector<given_layer> given;
        std::vector<tiffin::layer<Block, Backend>> layers;
        tiffin::workspace workspace;
    };
    const tiffin::block_cost cost = tiffin::cost(sizes, block);
    const auto held = std::make_shared<state>();
    subject made;
    const tiffin::number_formats formats = formats_of(backend);
    const double dense_bytes =
        bytes_of(formats, tiffin::tensor_kind::projection) * (cost.parameters - cost.table_parameters);
    made.layers = layers_for(dense_bytes);
    for (std::size_t i = 0; i < made.layers; ++i) {
        given_layer given = make_weights(block, sizes, static_cast<std::uint32_t>(100 * i));
        held->layers.push_back(tiffin::prepare(block, given.tensors, backend, {.tokens = 0}));
        // simd has packed the dense weights, and copied tables that it keeps in another format.
        if constexpr (!std::same_as<Backend, tiffin::eigen>)
            for (std::size_t n = 0; n < given.memory.size(); ++n)
                if (!given.tables[n] || formats.tables.type != tiffin::dtype::f32)
                    given.memory[n] = page_floats();
        held->given.push_back(std::move(given));
    }
    held->workspace = held->layers[0].make_workspace(most_tokens, static_cast<std::size_t>(threads));
    made.bytes = (dense_bytes + bytes_of(formats, tiffin::tensor_kind::table) * cost.table_parameters) *
                 static_cast<double>(made.layers);
    made.warm_up = [](std::size_t) {};
    made.run = [held, d = sizes.d_model](std::size_t i, const float* x, const std::int32_t* ids,
                                         std::size_t tokens, float* y, const tiffin::executor_ref& execute) {
        const tiffin::matrix_view<float> out(y, tokens, d);
        std::as_const(held->layers[i])(tiffin::matrix_view<const float>(x, tokens, d), std::span(ids, tokens),
                                       out, held->workspace, execute);
    };
    return made;
}

template <class MakePeer>
subject make_peer_subject(const shape& s, const MakePeer& make_peer) {
    struct state {
        std::vector<page_floats> memory;
        std::unique_ptr<dense_peer> peer;
    };
    const auto held = std::make_shared<state>();
    subject made;
    const std::size_t size = s.d_model * s.d_ff;
    made.layers = layers_for(12.0 * static_cast<double>(size));
    for (std::size_t i = 0; i < 3 * made.layers; ++i)
        held->memory.push_back(random_numbers(size, static_cast<std::uint32_t>(i)));
    const auto tensor = [held](std::size_t which) {
        return [memory = std::weak_ptr(held), which](std::size_t i) {
            return static_cast<const float*>(memory.lock()->memory[3 * i + which].data());
        };
    };
    held->peer = make_peer({s.d_model, s.d_ff, made.layers}, threads, {tensor(0), tensor(1), tensor(2)});
    made.bytes = 24.0 * static_cast<double>(size * made.layers);
    made.warm_up = [held](std::size_t tokens) { held->peer->prepare(tokens); };
    made.run = [held](std::size_t i, const float* x, const std::int32_t*, std::size_t tokens, float* y,
                      const tiffin::executor_ref&) { held->peer->run(i, x, tokens, y); };
    return made;
}

// The subjects made so far, so that repetitions can be interleaved; the least recently used go when
// together they would take more than half of the memory.
class subject_cache {
public:
    subject& get(const std::string& key, const std::function<subject()>& make) {
        for (auto it = entries_.begin(); it != entries_.end(); ++it)
            if (it->first == key) {
                entries_.splice(entries_.begin(), entries_, it);
                return entries_.front().second;
            }
        const double most =
            0.5 * static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
        double total = 0;
        for (const auto& entry : entries_) total += entry.second.bytes;
        while (!entries_.empty() && total > most) {
            total -= entries_.back().second.bytes;
            entries_.pop_back();
        }
        entries_.emplace_front(key, make());
        return entries_.front().second;
    }

private:
    std::list<std::pair<std::string, subject>> entries_;
};

subject_cache cache;

struct work_per_call {
    double flops;
    double bytes;
};

// Runs of one subject, and the time that the machine would have needed at least. The machine's limits
// are measured between the runs, as on shared machines they drift; a run is held against the mean of
// those before and after it.
class run_record {
public:
    explicit run_record(const work_per_call& work)
        : work_(work), before_(meter().now()), start_(clock::now()) {}

    // Counts a run; true when the last measurement of the limits is some time ago.
    bool due() {
        ++runs_;
        return clock::now() - start_ > std::chrono::milliseconds(50);
    }
    void measure_limits() {
        const std::chrono::duration<double> took = clock::now() - start_;
        const tiffin_bench::machine_limits after = meter().now();
        const double flops = (before_.flops_per_second + after.flops_per_second) / 2;
        const double bytes = (before_.bytes_per_second + after.bytes_per_second) / 2;
        bound_ += static_cast<double>(runs_) * std::max(work_.flops / flops, work_.bytes / bytes);
        seconds_ += took.count();
        all_runs_ += runs_;
        runs_ = 0;
        before_ = after;
        start_ = clock::now();
    }

    void report(benchmark::State& state) {
        if (runs_ > 0) measure_limits();
        const double seconds = seconds_ / static_cast<double>(all_runs_);
        state.counters["roofline"] = bound_ / seconds_;
        state.counters["GFLOPs"] = work_.flops / seconds / 1e9;
        state.counters["GBs"] = work_.bytes / seconds / 1e9;
    }

private:
    using clock = std::chrono::steady_clock;

    work_per_call work_;
    tiffin_bench::machine_limits before_;
    clock::time_point start_;
    std::size_t runs_ = 0;
    std::size_t all_runs_ = 0;
    double bound_ = 0;
    double seconds_ = 0;
};

void measure(benchmark::State& state, const std::string& key, const std::function<subject()>& make,
             const shape& s, std::size_t tokens, const work_per_call& work) {
    subject& it = cache.get(key, make);
    static const page_floats x = random_numbers(most_tokens * 16384, 7);
    static page_floats y(most_tokens * 16384);
    if (s.d_model > 16384) return state.SkipWithError("d_model above 16384");
    std::vector<std::int32_t> ids(tokens);
    std::minstd_rand engine(3);
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(engine() % vocab);
    it.warm_up(tokens);
    std::size_t next = 0;
    it.run(next++ % it.layers, x.data(), ids.data(), tokens, y.data(), tiffin::openmp{threads});
    run_record record(work);
    for (auto _ : state) {
        it.run(next++ % it.layers, x.data(), ids.data(), tokens, y.data(), tiffin::openmp{threads});
        benchmark::ClobberMemory();
        if (record.due()) {
            state.PauseTiming();
            record.measure_limits();
            state.ResumeTiming();
        }
    }
    record.report(state);
}

// How the subjects that were registered are made, by name.
std::map<std::string, std::function<subject()>> makers;

// A layer's time over its base's, call by call in turns: what disturbs the machine disturbs both. The ratio
// is the median of those of neighbouring calls.
void measure_ratio(benchmark::State& state, const std::string& layer, const std::string& base,
                   std::size_t tokens) {
    subject& above = cache.get(layer, makers.at(layer));
    subject& below = cache.get(base, makers.at(base));
    static const page_floats x = random_numbers(most_tokens * 2048, 7);
    static page_floats y(most_tokens * 2048);
    std::vector<std::int32_t> ids(tokens);
    std::minstd_rand engine(3);
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(engine() % vocab);
    std::size_t next = 0;
    const auto seconds = [&](subject& it) {
        const auto start = std::chrono::steady_clock::now();
        it.run(next % it.layers, x.data(), ids.data(), tokens, y.data(), tiffin::openmp{threads});
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    above.warm_up(tokens);
    below.warm_up(tokens);
    seconds(above);
    seconds(below);
    std::vector<double> ratios;
    for (auto _ : state) {
        ++next;
        // Who goes first changes, as the second finds x in the cache.
        const double first = seconds(next % 2 ? below : above), second = seconds(next % 2 ? above : below);
        ratios.push_back(next % 2 ? second / first : first / second);
    }
    std::sort(ratios.begin(), ratios.end());
    state.counters["ratio"] = ratios[ratios.size() / 2];
    state.counters["quarter"] = ratios[ratios.size() / 4];
    state.counters["three_quarters"] = ratios[ratios.size() * 3 / 4];
}

// An executor that adds up how long the slowest task of each hand-over took.
struct watched {
    const tiffin::executor_ref& execute;
    double& seconds;
    std::vector<std::chrono::duration<double>>& took;  // a task, so many as any hand-over has

    [[nodiscard]] std::size_t concurrency() const { return static_cast<std::size_t>(threads); }
    void operator()(std::size_t n, const tiffin::task_ref& task) const {
        using clock = std::chrono::steady_clock;
        const auto timed = [&](std::size_t i) {
            const auto start = clock::now();
            task(i);
            took[i] = clock::now() - start;
        };
        execute(n, tiffin::task_ref(timed));
        seconds += std::max_element(took.begin(), took.begin() + static_cast<std::ptrdiff_t>(n))->count();
    }
};

// What a call of one token takes beyond its tasks: waking the threads, waiting for them, checks. Rounding of
// activations, which the calling thread does alone, counts too.
void measure_overhead(benchmark::State& state, const std::string& layer,
                      const tiffin::executor_ref& execute) {
    subject& it = cache.get(layer, makers.at(layer));
    static const page_floats x = random_numbers(2048, 7);
    static page_floats y(2048);
    const std::int32_t id = 3;
    std::vector<double> beyond;
    std::vector<std::chrono::duration<double>> of_tasks(1024);
    std::size_t next = 0;
    for (auto _ : state) {
        double tasks = 0;
        const watched watch{execute, tasks, of_tasks};
        const auto start = std::chrono::steady_clock::now();
        it.run(next++ % it.layers, x.data(), &id, 1, y.data(), watch);
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        beyond.push_back(took.count() - tasks);
    }
    std::sort(beyond.begin(), beyond.end());
    state.counters["microseconds"] = 1e6 * beyond[beyond.size() / 2];
    state.counters["quarter"] = 1e6 * beyond[beyond.size() / 4];
    state.counters["three_quarters"] = 1e6 * beyond[beyond.size() * 3 / 4];
}

void add_overhead(const std::string& layer) {
    benchmark::RegisterBenchmark(("overhead/openmp/" + layer).c_str(),
                                 [=](benchmark::State& state) {
                                     const tiffin::openmp execute{threads};
                                     measure_overhead(state, layer, execute);
                                 })
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
    benchmark::RegisterBenchmark(("overhead/thread_team/" + layer).c_str(),
                                 [=](benchmark::State& state) {
                                     tiffin::thread_team team(static_cast<std::size_t>(threads));
                                     measure_overhead(state, layer, team);
                                 })
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
}

void add_ratio(const std::string& layer, const std::string& base) {
    if (!makers.contains(layer) || !makers.contains(base)) return;  // a peer whose package is not there
    for (const std::size_t tokens : std::initializer_list<std::size_t>{1, 4, 16, 64, 256, 512})
        benchmark::RegisterBenchmark(
            ("ratio/" + layer + "/over/" + base + "/tokens:" + std::to_string(tokens)).c_str(),
            [=](benchmark::State& state) { measure_ratio(state, layer, base, tokens); })
            ->UseRealTime()
            ->Unit(benchmark::kMillisecond);
}

void add(const std::string& family, const shape& s, const std::function<subject()>& make,
         const std::function<work_per_call(std::size_t)>& work) {
    const std::string name = family + "/" + std::to_string(s.d_model) + "x" + std::to_string(s.d_ff);
    makers[name] = make;
    for (const std::size_t tokens : std::initializer_list<std::size_t>{1, 4, 8, 12, 16, 24, 64, 256, 512})
        benchmark::RegisterBenchmark(
            (name + "/tokens:" + std::to_string(tokens)).c_str(),
            [=](benchmark::State& state) { measure(state, name, make, s, tokens, work(tokens)); })
            ->UseRealTime()
            ->Unit(benchmark::kMillisecond);
}

template <class Backend, class Block>
void add_on(const std::string& name, const Backend& backend, const shape& s, const Block& block,
            tiffin::block_shape sizes) {
    sizes.d_model = s.d_model;
    sizes.d_ff = s.d_ff;
    sizes.vocab = vocab;
    const tiffin::number_formats formats = formats_of(backend);
    add(
        "layer/" + name, s, [=] { return make_subject(block, sizes, backend); },
        [=](std::size_t tokens) {
            const auto t = static_cast<double>(tokens);
            return work_per_call{t * tiffin::cost(sizes, block).matrix_flops_per_token,
                                 bytes_of_call(block, sizes, t, [&](tiffin::tensor_kind kind) {
                                     return bytes_of(formats, kind);
                                 })};
        });
}

template <class Block>
void add_layer(const std::string& name, const shape& s, const Block& block = {},
               const tiffin::block_shape& sizes = {}) {
    add_on(name + "/simd/f32", tiffin::simd<>{}, s, block, sizes);
    add_on(name + "/eigen/f32", tiffin::eigen{}, s, block, sizes);
}

// Weights and tables in one of the smaller formats.
template <class Block>
void add_formats(const std::string& name, const shape& s) {
    using tiffin::dtype;
    using backend = tiffin::simd<tiffin::any_format, tiffin::any_format>;
    for (const auto& [format, type] : std::initializer_list<std::pair<const char*, dtype>>{
             {"bf16", dtype::bf16}, {"f16", dtype::f16}, {"q8_0", dtype::q8_0}, {"q4_0", dtype::q4_0}})
        add_on(name + "/simd/" + format, backend{{type}, {type}}, s, Block{}, {});
}

// The layers of one shape; an empty set of names stands for all of them.
void add_layers(const shape& s, const std::set<std::string_view>& names) {
    const auto wanted = [&](std::string_view name) { return names.empty() || names.contains(name); };
    if (wanted("mlp")) add_layer<tiffin::mlp>("mlp", s);
    if (wanted("swiglu")) add_layer<tiffin::swiglu>("swiglu", s);
    if (wanted("swiglu")) add_formats<tiffin::swiglu>("swiglu", s);
    if (wanted("stem")) add_layer<tiffin::stem>("stem", s);
    if (wanted("stem")) add_formats<tiffin::stem>("stem", s);
    if (wanted("stem_gate")) add_layer<tiffin::stem_gate>("stem_gate", s);
    if (wanted("stem_hybrid")) add_layer<tiffin::stem_hybrid>("stem_hybrid", s);
    if (wanted("structmoe")) add_layer<tiffin::structmoe>("structmoe", s, {}, {.experts = 16, .rank = 16});
    if (wanted("retoken")) add_layer<tiffin::retoken_folded<tiffin::swiglu>>("retoken", s);
    tiffin::mort<tiffin::swiglu> mort;
    mort.modulator.num_layers = 28;
    if (wanted("mort")) add_layer("mort", s, mort, {.experts = 4});
    if (wanted("moe")) add_layer<tiffin::moe<tiffin::swiglu>>("moe", s, {{2}, {}, {}}, {.experts = 16});
    if (wanted("meki")) add_layer<tiffin::meki>("meki", {s.d_model, 256});
    if (wanted("ple")) add_layer<tiffin::ple>("ple", {s.d_model, 256});
    if (wanted("swiglu_meki")) {
        static std::list<std::array<tiffin::block_shape, 2>> branches;
        branches.push_back({{{.d_model = s.d_model, .d_ff = s.d_ff, .vocab = vocab},
                             {.d_model = s.d_model, .d_ff = 256, .vocab = vocab}}});
        add_layer<tiffin::parallel<tiffin::swiglu, tiffin::meki>>("swiglu_meki", s, {},
                                                                  {.parts = branches.back().data()});
    }
}

void add_peers(const shape& s) {
    const auto work = [s](std::size_t tokens) {
        const double size = static_cast<double>(s.d_model * s.d_ff);
        return work_per_call{6 * size * static_cast<double>(tokens), 12 * size};
    };
    const auto peer = [&](const char* library, auto make) {
        add(
            "peer/" + std::string(library) + "/swiglu/f32", s, [=] { return make_peer_subject(s, make); },
            work);
    };
    peer("eigen", tiffin_bench::make_eigen_peer);
#if defined(TIFFIN_BENCH_OPENBLAS)
    peer("openblas", tiffin_bench::make_openblas_peer);
#endif
#if defined(TIFFIN_BENCH_ONEDNN)
    peer("onednn", tiffin_bench::make_onednn_peer);
#endif
}

[[noreturn]] void usage_error(std::string_view flag) {
    std::fprintf(
        stderr,
        "bench_layers: cannot understand %.*s\n"
        "  --threads=N          OpenMP threads (default: all)\n"
        "  --layers=N           layers to rotate among (default: more than the last-level cache holds)\n"
        "  --shapes=DxF[,DxF]   d_model x d_ff (default: those of the published figures)\n"
        "  --benchmark_...      Google Benchmark's own flags, such as --benchmark_filter=stem\n",
        static_cast<int>(flag.size()), flag.data());
    std::exit(1);
}

std::vector<shape> parse_shapes(std::string_view text, std::string_view flag) {
    std::vector<shape> shapes;
    for (const char* p = text.data(); p < text.data() + text.size();) {
        char* end = nullptr;
        const unsigned long d = std::strtoul(p, &end, 10);
        if (d == 0 || *end != 'x') usage_error(flag);
        const unsigned long f = std::strtoul(end + 1, &end, 10);
        if (f == 0 || (*end != ',' && *end != '\0')) usage_error(flag);
        shapes.push_back({d, f});
        p = end + 1;
    }
    if (shapes.empty()) usage_error(flag);
    return shapes;
}

}  // namespace

int main(int argc, char** argv) {
    threads = omp_get_max_threads();
    std::vector<shape> shapes;
    benchmark::Initialize(&argc, argv);
    for (int i = 1; i < argc; ++i) {
        const std::string_view flag = argv[i];
        if (flag.starts_with("--threads=")) {
            threads = std::atoi(flag.substr(10).data());
            if (threads < 1) usage_error(flag);
        } else if (flag.starts_with("--layers=")) {
            layers_asked = std::strtoul(flag.substr(9).data(), nullptr, 10);
            if (layers_asked < 1) usage_error(flag);
        } else if (flag.starts_with("--shapes=")) {
            shapes = parse_shapes(flag.substr(9), flag);
        } else {
            usage_error(flag);
        }
    }
    for (const shape& s : shapes) {
        add_layers(s, {});
        add_peers(s);
    }
    if (shapes.empty()) {  // what the published overheads are about
        add_layers({2048, 8192}, {"mlp", "swiglu", "stem", "stem_gate", "stem_hybrid", "retoken", "mort"});
        add_peers({2048, 8192});
        add_layers({2048, 7168}, {"mlp"});
        add_layers({2048, 6618}, {"structmoe"});
        add_layers({2048, 6144}, {"swiglu", "swiglu_meki", "meki", "ple"});
        add_layers({1024, 2048}, {"swiglu", "moe"});
        for (const shape small : {shape{960, 2560}, shape{1024, 3072}}) {
            add_layers(small, {"swiglu", "stem"});
            for (const char* layer :
                 {"stem/simd/f32", "stem/simd/bf16", "swiglu/simd/f32", "swiglu/simd/q4_0"})
                add_overhead(std::string("layer/") + layer + "/" + std::to_string(small.d_model) + "x" +
                             std::to_string(small.d_ff));
        }
        // The overheads that the papers publish, and the dense peer.
        const std::string swiglu = "layer/swiglu/simd/f32/2048x8192", stem = "layer/stem/simd/f32/2048x8192",
                          onednn = "peer/onednn/swiglu/f32/2048x8192";
        add_ratio("layer/structmoe/simd/f32/2048x6618", "layer/mlp/simd/f32/2048x7168");
        add_ratio("layer/retoken/simd/f32/2048x8192", swiglu);
        add_ratio("layer/mort/simd/f32/2048x8192", swiglu);
        add_ratio("layer/swiglu_meki/simd/f32/2048x6144", "layer/swiglu/simd/f32/2048x6144");
        add_ratio("layer/stem_hybrid/simd/f32/2048x8192", swiglu);
        add_ratio(stem, swiglu);
        add_ratio(stem, onednn);
        add_ratio(swiglu, onednn);
    }
    benchmark::AddCustomContext("threads", std::to_string(threads));
    const tiffin_bench::machine_limits limits = meter().now();
    benchmark::AddCustomContext("peak_gflops", std::to_string(limits.flops_per_second / 1e9));
    benchmark::AddCustomContext("read_gbs", std::to_string(limits.bytes_per_second / 1e9));
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    return 0;
}
