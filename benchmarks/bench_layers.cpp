// Every layer on every backend, beside the same block in other libraries.
//
//     layer/<name>/<backend>/<format>/<d>x<f>/tokens:<T>    time, and share of the machine's limit
//     peer/<library>/swiglu/<format>/<d>x<f>/tokens:<T>     the same of another library's SwiGLU
//     ratio/<one>/over/<other>/tokens:<T>                   two of these, call by call in turns
//     curve/<one>                                           time over tokens, 1 to 32, and the worst step
//     overhead/<executor>/<one>                             what one token takes beyond its tasks
// Every call takes the next of several layers whose weights together exceed the last-level cache, as the layers
// of a model do.
#include <tiffin/cpu/simd/amx_permission.hpp>

#include <benchmark/benchmark.h>
#include <xsimd/xsimd.hpp>

#include "../examples/support/number_range.hpp"
#include "layers/layer_subject.hpp"
#include "layers/measuring.hpp"
#include "layers/peer_subjects.hpp"
#include "peers.hpp"

#include <omp.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace tiffin_bench;

void add_layers(const shape& s, const std::set<std::string_view>& names) {
    const layer_choice choice{s, names};
    add_dense_layers(choice);
    add_routed_layers(choice);
    add_memory_layers(choice);
    add_layers_in_formats(choice);
}

std::string layer_name(const std::string& layer, const std::string& format, const shape& s) {
    return "layer/" + layer + "/simd/" + format + "/" + name_of(s);
}

// SwiGLU and STEM over each peer in the peer's format, STEM over SwiGLU in each, and SwiGLU's curve in each.
void add_formats_compared(const shape& s) {
    for (const dense_peer_kind& kind : dense_peer_kinds()) {
        // What is nearest to it here: a layout of a format is still that format, and q8_0 has whole numbers of 8
        // bits too.
        std::string format = kind.format.substr(0, kind.format.find("_repacked"));
        if (format == "s8") format = "q8_0";
        for (const char* layer : {"swiglu", "stem"})
            add_ratios(layer_name(layer, format, s), peer_name(kind.library, kind.format, s));
    }
    for (const char* format :
         {"f32", "bf16", "f16", "q8_0", "q4_0", "q4_1", "q5_0", "q4_k", "q5_k", "q6_k"}) {
        add_ratios(layer_name("stem", format, s), layer_name("swiglu", format, s));
        add_curve(layer_name("swiglu", format, s));
    }
}

struct sized_layer {
    const char* name;
    shape sizes;
};

// A layer over the one that it is more than, or instead of.
void add_over_base(const sized_layer& layer, const sized_layer& base) {
    add_ratios(layer_name(layer.name, "f32", layer.sizes), layer_name(base.name, "f32", base.sizes));
}

void add_overheads(const shape& s) {
    add_overhead(layer_name("stem", "f32", s));
    add_overhead(layer_name("swiglu", "f32", s));
}

// Every layer of one shape. Those in the smaller formats where whole blocks fit.
void add_shape(const shape& s) {
    add_layers(s, {});
    add_peers(s);
    add_formats_compared(s);
    const shape memory{s.d_model, 256};
    for (const char* layer :
         {"structmoe", "structmoe_gated", "structmoe_post", "structmoe_down", "deep_embed_1x",
          "deep_embed_4x", "deep_embed_v7a", "mole", "product_keys", "peer", "peer_relu", "l3"})
        add_over_base({layer, s}, {"mlp", s});
    add_over_base({"memory_plus", {s.d_model, s.d_model}}, {"mlp", s});
    for (const char* layer : {"engram", "engram_branch", "longcat", "longcat_sparse"})
        add_over_base({layer, {s.d_model, 1024}}, {"mlp", s});
    add_over_base({"mole_training", {s.d_model, s.d_ff / 4}}, {"mlp", s});
    for (const char* layer : {"retoken", "mort", "swiglu_meki", "swiglu_delayed", "stem_gate", "stem_hybrid",
                              "moe", "hash_moe", "moe_stem"})
        add_over_base({layer, s}, {"swiglu", s});
    add_over_base({"meki_training", memory}, {"meki", memory});
    add_over_base({"ple_given", memory}, {"ple", memory});
    add_overheads(s);
}

// The shapes of the published overheads, and of small models.
void add_published_shapes() {
    const shape wide{2048, 8192};
    add_layers(wide,
               {"mlp", "swiglu", "stem", "stem_gate", "stem_hybrid", "retoken", "mort", "swiglu_delayed"});
    const std::set<std::string_view> relatives{
        "deep_embed_1x", "deep_embed_4x", "deep_embed_v7a", "mole",          "mole_training",
        "product_keys",  "memory_plus",   "peer",           "peer_relu",     "l3",
        "engram",        "engram_branch", "longcat",        "longcat_sparse"};
    add_layers(wide, relatives);
    const auto shape_of = [&](std::string_view layer) {
        if (layer == "memory_plus" || layer == "mole_training") return shape{2048, 2048};
        return layer.starts_with("engram") || layer.starts_with("longcat") ? shape{2048, 1024} : wide;
    };
    for (const std::string_view layer : relatives)
        add_over_base({layer.data(), shape_of(layer)}, {"mlp", wide});
    add_peers(wide);
    add_formats_compared(wide);
    for (const char* layer : {"retoken", "mort", "swiglu_delayed", "stem_gate", "stem_hybrid"})
        add_over_base({layer, wide}, {"swiglu", wide});

    // StructMoE's published base has as many parameters; each of its other forms beside the block it extends.
    const shape matched{2048, 7168}, structured{2048, 6618};
    add_layers(matched, {"mlp"});
    add_layers(structured, {"mlp", "structmoe", "structmoe_gated", "structmoe_post", "structmoe_down"});
    add_over_base({"structmoe", structured}, {"mlp", matched});
    for (const char* layer : {"structmoe", "structmoe_gated", "structmoe_post", "structmoe_down"})
        add_over_base({layer, structured}, {"mlp", structured});

    const shape beside{2048, 6144}, memory{2048, 256};
    add_layers(beside, {"swiglu", "swiglu_meki", "meki", "meki_training", "ple", "ple_given"});
    add_over_base({"swiglu_meki", beside}, {"swiglu", beside});
    add_over_base({"meki_training", memory}, {"meki", memory});
    add_over_base({"ple_given", memory}, {"ple", memory});

    // Two of 16 experts, over a dense block of their size.
    const shape expert{1024, 2048}, both{1024, 4096};
    add_layers(expert, {"moe", "hash_moe", "moe_stem"});
    add_layers(both, {"swiglu", "stem"});
    add_over_base({"moe", expert}, {"swiglu", both});
    add_over_base({"hash_moe", expert}, {"swiglu", both});
    add_over_base({"moe_stem", expert}, {"stem", both});
    add_over_base({"moe_stem", expert}, {"moe", expert});

    for (const shape& small : {shape{576, 1536}, shape{640, 2048}, shape{960, 2560}, shape{1024, 3072}}) {
        add_layers(small, {"swiglu", "stem"});
        add_peers(small);
        add_formats_compared(small);
        add_overheads(small);
        add_overhead(layer_name("stem", "bf16", small));
        add_overhead(layer_name("swiglu", "q4_0", small));
    }
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
    for (std::size_t end = 0; end != text.npos;) {
        end = text.find(',');
        const auto one = read_shape(text.substr(0, end), {1, most_features}, ffn_widths);
        if (!one) usage_error(flag);
        shapes.push_back({one->first, one->second});
        text.remove_prefix(end == text.npos ? text.size() : end + 1);
    }
    return shapes;
}

}  // namespace

int main(int argc, char** argv) {
    tiffin::permit_amx();  // before layers are prepared
    options().threads = omp_get_max_threads();
    std::vector<shape> shapes;
    benchmark::Initialize(&argc, argv);
    for (int i = 1; i < argc; ++i) {
        const std::string_view flag = argv[i];
        if (flag.starts_with("--threads=")) {
            const auto threads = number_range<int>{1, 1024}.read(flag.substr(10));
            if (!threads) usage_error(flag);
            options().threads = *threads;
        } else if (flag.starts_with("--layers=")) {
            const auto layers = number_range<std::size_t>{1, 65536}.read(flag.substr(9));
            if (!layers) usage_error(flag);
            options().layers = *layers;
        } else if (flag.starts_with("--shapes=")) {
            shapes = parse_shapes(flag.substr(9), flag);
        } else {
            usage_error(flag);
        }
    }
    for (const shape& s : shapes) add_shape(s);
    if (shapes.empty()) add_published_shapes();
    benchmark::AddCustomContext("threads", std::to_string(options().threads));
    benchmark::AddCustomContext("instructions", xsimd::default_arch::name());
#if defined(__clang__)
    benchmark::AddCustomContext("compiler", "clang " __clang_version__);
#else
    benchmark::AddCustomContext("compiler", "g++ " __VERSION__);
#endif
    const machine_limits limits = meter().now();
    for (std::size_t kind = 0; kind < arithmetic_kinds; ++kind)
        benchmark::AddCustomContext(std::string("peak_gflops_") + arithmetic_names[kind],
                                    std::to_string(limits.operations_per_second[kind] / 1e9));
    benchmark::AddCustomContext("read_gbs", std::to_string(limits.bytes_per_second / 1e9));
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    return 0;
}
