// libggml-tiffin.so in a scheduler of ggml's: its blocks against a reference in double, and everything that is no
// such block left to ggml. Argument: the library's path; the others are doctest's.
#include <tiffin/io/safetensors_writer.hpp>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

namespace {

ggml_backend_dev_t device = nullptr;
std::string log_text;  // what the library has said

using numbers = std::vector<float>;

numbers random_numbers(std::size_t count, unsigned seed, float size = 1) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-size, size);
    numbers made(count);
    for (float& v : made) v = uniform(random);
    return made;
}

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
using sched_ptr = std::unique_ptr<ggml_backend_sched, freed_by<ggml_backend_sched_free>>;

context_ptr make_context() {
    return context_ptr(ggml_init({ggml_tensor_overhead() * 64 + ggml_graph_overhead(), nullptr, true}));
}
void set_threads(ggml_backend_t backend, int threads) {
    auto* const set = reinterpret_cast<ggml_backend_set_n_threads_t>(ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(ggml_backend_get_device(backend)), "ggml_backend_set_n_threads"));
    REQUIRE(static_cast<bool>(set));
    set(backend, threads);
}

// Weights by name, as a model's, in the library's memory or in a mapped file's.
class model {
public:
    struct weight {
        std::string name;
        ggml_type type;
        std::vector<std::int64_t> sizes;  // inputs first, as ggml has them
        bool ours = true;                 // else in the CPU backend's memory
    };
    explicit model(const std::vector<weight>& wanted, unsigned seed = 1, ggml_backend_dev_t at = device)
        : ours_(make_context()), others_(make_context()) {
        for (const weight& w : wanted) {
            ggml_tensor* const t = ggml_new_tensor((w.ours ? ours_ : others_).get(), w.type,
                                                   static_cast<int>(w.sizes.size()), w.sizes.data());
            ggml_set_name(t, w.name.c_str());
            tensors_[w.name] = t;
        }
        const auto allocate = [](ggml_context* of, ggml_backend_buffer_type_t type) {
            buffer_ptr made(ggml_backend_alloc_ctx_tensors_from_buft(of, type));
            if (made) ggml_backend_buffer_set_usage(made.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
            return made;
        };
        memory_ = allocate(ours_.get(), ggml_backend_dev_buffer_type(at));
        other_memory_ = allocate(others_.get(), ggml_backend_cpu_buffer_type());
        fill(seed);
    }
    void fill(unsigned seed) {
        for (const auto& [name, t] : tensors_) {
            const auto count = static_cast<std::size_t>(ggml_nelements(t));
            // Products of this size have values around 1.
            const numbers v = random_numbers(count, seed++, 1.7f / std::sqrt(static_cast<float>(t->ne[0])));
            std::vector<std::byte> stored(ggml_nbytes(t));
            ggml_quantize_chunk(t->type, v.data(), stored.data(), 0,
                                static_cast<std::int64_t>(count) / t->ne[0], t->ne[0], nullptr);
            if (t->type == GGML_TYPE_F32) std::memcpy(stored.data(), v.data(), stored.size());
            ggml_backend_tensor_set(t, stored.data(), 0, stored.size());
            numbers& widened = widened_[name];
            widened = v;
            if (t->type != GGML_TYPE_F32)
                ggml_get_type_traits(t->type)->to_float(stored.data(), widened.data(),
                                                        static_cast<std::int64_t>(count));
        }
    }
    ggml_tensor* operator[](const std::string& name) const { return tensors_.at(name); }
    // The numbers that a weight stands for.
    const numbers& of(const std::string& name) const { return widened_.at(name); }

private:
    context_ptr ours_, others_;
    std::map<std::string, ggml_tensor*> tensors_;
    std::map<std::string, numbers> widened_;
    buffer_ptr memory_, other_memory_;
};

struct outcome {
    numbers y;
    int splits = 0;
};

// Computes build(context, x) for rows of x, by the library where it wants to and the CPU backend else. x is scaled
// by 1 first, so that it is computed, and y likewise, so that it is read. `first`, which build() may fill: nodes in
// their order in the graph.
outcome run(const std::function<ggml_tensor*(ggml_context*, ggml_tensor*)>& build, const numbers& x,
            std::int64_t d, int threads = 2, ggml_backend_t shared = nullptr,
            const std::vector<ggml_tensor*>& first = {}) {
    backend_ptr own(shared == nullptr ? ggml_backend_dev_init(device, nullptr) : nullptr);
    backend_ptr cpu(ggml_backend_cpu_init());
    ggml_backend_t both[] = {shared == nullptr ? own.get() : shared, cpu.get()};
    for (ggml_backend_t b : both) set_threads(b, threads);
    const context_ptr context = make_context();
    const auto tokens = static_cast<std::int64_t>(x.size()) / d;
    ggml_tensor* const in = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, d, tokens);
    ggml_set_input(in);
    ggml_tensor* const out =
        ggml_scale(context.get(), build(context.get(), ggml_scale(context.get(), in, 1)), 1);
    ggml_set_output(out);
    ggml_cgraph* const graph = ggml_new_graph(context.get());
    for (ggml_tensor* const node : first) ggml_build_forward_expand(graph, node);
    ggml_build_forward_expand(graph, out);
    sched_ptr sched(ggml_backend_sched_new(both, nullptr, 2, GGML_DEFAULT_GRAPH_SIZE, false, false));
    REQUIRE(ggml_backend_sched_alloc_graph(sched.get(), graph));
    outcome made;
    made.splits = ggml_backend_sched_get_n_splits(sched.get());
    for (int time = 0; time < 2; ++time) {  // a graph is computed many times
        ggml_backend_tensor_set(in, x.data(), 0, x.size() * sizeof(float));
        REQUIRE(ggml_backend_sched_graph_compute(sched.get(), graph) == GGML_STATUS_SUCCESS);
        numbers y(static_cast<std::size_t>(ggml_nelements(out)));
        ggml_backend_tensor_get(out, y.data(), 0, y.size() * sizeof(float));
        if (time > 0) CHECK(y == made.y);
        made.y = y;
    }
    return made;
}

// ---- the reference ----

double phi(ggml_glu_op op, double z) {
    switch (op) {
        case GGML_GLU_OP_REGLU: return z > 0 ? z : 0;
        case GGML_GLU_OP_SWIGLU: return z / (1 + std::exp(-z));
        case GGML_GLU_OP_GEGLU_ERF: return z / 2 * (1 + std::erf(z / std::sqrt(2.0)));
        default:
            return z / 2 *
                   (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (z + 0.044715 * z * z * z)));
    }
}
// Row t of x times w (outputs, inputs) from number `first` on.
std::vector<double> product(const numbers& w, std::size_t first, std::size_t outputs, const double* x,
                            std::size_t inputs) {
    std::vector<double> y(outputs);
    for (std::size_t o = 0; o < outputs; ++o)
        for (std::size_t k = 0; k < inputs; ++k)
            y[o] += x[k] * static_cast<double>(w[first + o * inputs + k]);
    return y;
}
struct ffn_names {
    std::string gate = "blk.0.ffn_gate", up = "blk.0.ffn_up", down = "blk.0.ffn_down";
};
// One row of a block; `expert` counts matrices. Without a gate if its name is empty.
std::vector<double> ffn_row(const model& m, ggml_glu_op op, const float* x, std::size_t d, std::size_t f,
                            std::size_t expert = 0, const ffn_names& names = {}, bool biased = false) {
    const std::vector<double> in(x, x + d);
    const auto projection = [&](const std::string& name, const std::vector<double>& of, std::size_t outputs) {
        auto y = product(m.of(name + ".weight"), expert * outputs * of.size(), outputs, of.data(), of.size());
        for (std::size_t o = 0; biased && o < outputs; ++o)
            y[o] += static_cast<double>(m.of(name + ".bias")[o]);
        return y;
    };
    std::vector<double> hidden = projection(names.up, in, f);
    if (names.gate.empty()) {
        for (double& h : hidden) h = phi(op, h);
    } else {
        const auto gate = projection(names.gate, in, f);
        for (std::size_t j = 0; j < f; ++j) hidden[j] *= phi(op, gate[j]);
    }
    return projection(names.down, hidden, d);
}

// The error of y, root mean square, over the size of the reference's rows.
double error_of(const numbers& y, const std::vector<double>& wanted) {
    REQUIRE(y.size() == wanted.size());
    double off = 0, size = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
        off += std::pow(static_cast<double>(y[i]) - wanted[i], 2);
        size += wanted[i] * wanted[i];
    }
    return size == 0 ? off : std::sqrt(off / size);
}
std::vector<double> ffn_rows(const model& m, ggml_glu_op op, const numbers& x, std::size_t d, std::size_t f,
                             const ffn_names& names = {}, bool biased = false) {
    std::vector<double> all;
    for (std::size_t t = 0; t < x.size() / d; ++t)
        for (const double v : ffn_row(m, op, x.data() + t * d, d, f, 0, names, biased)) all.push_back(v);
    return all;
}

// Products in f32: a rounding per term, of sums that grow like the square root of the number of terms.
constexpr double f32_error = 1e-5;
// Activations of 8 bits, twice on the way to the hidden values and once after (docs/numerics.md): of uniform numbers
// a is 4e-3, of hidden values h is 1e-2.
constexpr double q8_error = 1.4e-2;

constexpr std::int64_t d = 64, f = 160;

std::vector<model::weight> glu_weights(ggml_type type, std::int64_t inputs = d, std::int64_t hidden = f) {
    return {{"blk.0.ffn_gate.weight", type, {inputs, hidden}},
            {"blk.0.ffn_up.weight", type, {inputs, hidden}},
            {"blk.0.ffn_down.weight", type, {hidden, inputs}}};
}
ggml_tensor* build_glu(ggml_context* c, const model& m, ggml_tensor* x, ggml_glu_op op) {
    ggml_tensor* const up = ggml_mul_mat(c, m["blk.0.ffn_up.weight"], x);
    ggml_tensor* const gate = ggml_mul_mat(c, m["blk.0.ffn_gate.weight"], x);
    return ggml_mul_mat(c, m["blk.0.ffn_down.weight"], ggml_glu_split(c, gate, up, op));
}
std::string counts_of(const std::function<void()>& action) {
    log_text.clear();
    action();
    return log_text;
}

}  // namespace

TEST_CASE("a gated block is one split, with any activation, threads and number of tokens") {
    const model m(glu_weights(GGML_TYPE_F32));
    for (const ggml_glu_op op :
         {GGML_GLU_OP_SWIGLU, GGML_GLU_OP_GEGLU, GGML_GLU_OP_GEGLU_ERF, GGML_GLU_OP_REGLU})
        for (const std::size_t tokens : {1u, 3u, 70u})
            for (const int threads : {1, 2}) {
                CAPTURE(tokens);
                CAPTURE(threads);
                const numbers x = random_numbers(tokens * d, 5);
                outcome made;
                const std::string said = counts_of([&] {
                    made = run([&](ggml_context* c, ggml_tensor* in) { return build_glu(c, m, in, op); }, x,
                               d, threads);
                });
                CHECK(made.splits == 3);  // what is before, the block, what is after
                CHECK(error_of(made.y, ffn_rows(m, op, x, d, f)) <= f32_error);
                CHECK(said.find("2 feed-forward blocks computed, 0 nodes left") != std::string::npos);
            }
}

TEST_CASE("number formats of models") {
    constexpr std::int64_t wide = 256, hidden = 512;
    for (const ggml_type type :
         {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0,
          GGML_TYPE_Q5_1, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K}) {
        CAPTURE(ggml_type_name(type));
        const model m(glu_weights(type, wide, hidden));
        const numbers x = random_numbers(5 * wide, 5);
        const auto made =
            run([&](ggml_context* c, ggml_tensor* in) { return build_glu(c, m, in, GGML_GLU_OP_SWIGLU); }, x,
                wide);
        CHECK(made.splits == 3);
        CHECK(error_of(made.y, ffn_rows(m, GGML_GLU_OP_SWIGLU, x, wide, hidden)) <= q8_error);
    }
    auto mixed = glu_weights(GGML_TYPE_Q4_K, wide, hidden);
    mixed[2].type = GGML_TYPE_Q6_K;
    const model m(mixed);
    const numbers x = random_numbers(5 * wide, 5);
    const auto made = run(
        [&](ggml_context* c, ggml_tensor* in) { return build_glu(c, m, in, GGML_GLU_OP_SWIGLU); }, x, wide);
    CHECK(error_of(made.y, ffn_rows(m, GGML_GLU_OP_SWIGLU, x, wide, hidden)) <= q8_error);
}

TEST_CASE("a block without a gate, with biases, and a gated one with biases") {
    std::vector<model::weight> wanted = glu_weights(GGML_TYPE_F32);
    for (const char* name : {"gate", "up", "down"})
        wanted.push_back({std::string("blk.0.ffn_") + name + ".bias",
                          GGML_TYPE_F32,
                          {std::string_view(name) == "down" ? d : f}});
    const model m(wanted);
    const numbers x = random_numbers(7 * d, 5);
    const auto projection = [&](ggml_context* c, const std::string& name, ggml_tensor* of) {
        return ggml_add(c, ggml_mul_mat(c, m["blk.0.ffn_" + name + ".weight"], of),
                        m["blk.0.ffn_" + name + ".bias"]);
    };
    const auto mlp =
        run([&](ggml_context* c,
                ggml_tensor* in) { return projection(c, "down", ggml_gelu(c, projection(c, "up", in))); },
            x, d);
    CHECK(mlp.splits == 3);
    CHECK(error_of(mlp.y, ffn_rows(m, GGML_GLU_OP_GEGLU, x, d, f, {.gate = ""}, true)) <= f32_error);
    const auto glu = run(
        [&](ggml_context* c, ggml_tensor* in) {
            ggml_tensor* const up = projection(c, "up", in);
            return projection(c, "down", ggml_swiglu_split(c, projection(c, "gate", in), up));
        },
        x, d);
    CHECK(glu.splits == 3);
    CHECK(error_of(glu.y, ffn_rows(m, GGML_GLU_OP_SWIGLU, x, d, f, {}, true)) <= f32_error);
}

namespace {

// A mixture as llama.cpp builds it: the values of the experts chosen, or what is made of them.
enum class sum_of_experts {
    none,
    views_first,  // as llama.cpp orders the nodes
    views_between,
    backwards,      // the last choice first: not what is fused
    read_elsewhere  // the weighted values, too
};
struct mixture_in_ggml {
    static constexpr std::int64_t experts = 5, chosen = 3;
    model m{{{"blk.3.ffn_gate_exps.weight", GGML_TYPE_F32, {d, f, experts}},
             {"blk.3.ffn_up_exps.weight", GGML_TYPE_F32, {d, f, experts}},
             {"blk.3.ffn_down_exps.weight", GGML_TYPE_F32, {f, d, experts}},
             {"blk.3.ffn_gate_inp.weight", GGML_TYPE_F32, {d, experts}, false}}};
    ffn_names names{"blk.3.ffn_gate_exps", "blk.3.ffn_up_exps", "blk.3.ffn_down_exps"};
    std::vector<ggml_tensor*> first;

    ggml_tensor* build(ggml_context* c, ggml_tensor* in, sum_of_experts how) {
        first.clear();
        const std::int64_t tokens = in->ne[1];
        ggml_tensor* const logits = ggml_mul_mat(c, m["blk.3.ffn_gate_inp.weight"], in);
        ggml_tensor* const ids = ggml_argsort_top_k(c, logits, chosen);
        ggml_tensor* const routing =
            ggml_get_rows(c, ggml_reshape_3d(c, ggml_soft_max(c, logits), 1, experts, tokens), ids);
        ggml_tensor* const rows = ggml_reshape_3d(c, in, d, 1, tokens);
        ggml_tensor* const up = ggml_mul_mat_id(c, m[names.up + ".weight"], rows, ids);
        ggml_tensor* const gate = ggml_mul_mat_id(c, m[names.gate + ".weight"], rows, ids);
        ggml_tensor* const values =
            ggml_mul_mat_id(c, m[names.down + ".weight"], ggml_swiglu_split(c, gate, up), ids);
        if (how == sum_of_experts::none) return values;
        first.push_back(routing);
        ggml_tensor* const weighted = ggml_mul(c, values, routing);
        std::vector<ggml_tensor*> of;
        for (std::size_t i = 0; i < chosen; ++i)
            of.push_back(ggml_view_2d(c, weighted, d, tokens, weighted->nb[2], i * weighted->nb[1]));
        if (how == sum_of_experts::views_first) first.insert(first.end(), of.begin(), of.end());
        if (how == sum_of_experts::backwards) std::reverse(of.begin(), of.end());
        ggml_tensor* sum = of[0];
        for (std::size_t i = 1; i < chosen; ++i) sum = ggml_add(c, sum, of[i]);
        return how == sum_of_experts::read_elsewhere ? ggml_add(c, sum, ggml_cont(c, of[1])) : sum;
    }
    [[nodiscard]] std::vector<double> wanted(const numbers& x, sum_of_experts how) const {
        std::vector<double> all;
        for (std::size_t t = 0; t < x.size() / d; ++t) {
            const std::vector<double> in(x.data() + t * d, x.data() + (t + 1) * d);
            const auto logits = product(m.of("blk.3.ffn_gate_inp.weight"), 0, experts, in.data(), d);
            std::vector<std::size_t> order(experts);
            for (std::size_t e = 0; e < experts; ++e) order[e] = e;
            std::sort(order.begin(), order.end(), [&](auto a, auto b) { return logits[a] > logits[b]; });
            double total = 0;
            for (const double z : logits) total += std::exp(z);
            std::vector<double> sum(d);
            for (std::size_t i = 0; i < chosen; ++i) {
                const auto value = ffn_row(m, GGML_GLU_OP_SWIGLU, x.data() + t * d, d, f, order[i], names);
                if (how == sum_of_experts::none) all.insert(all.end(), value.begin(), value.end());
                const double times = how == sum_of_experts::read_elsewhere && i == 1 ? 2 : 1;
                for (std::size_t j = 0; j < d; ++j)
                    sum[j] += times * value[j] * std::exp(logits[order[i]]) / total;
            }
            if (how != sum_of_experts::none) all.insert(all.end(), sum.begin(), sum.end());
        }
        return all;
    }
};

}  // namespace

TEST_CASE("experts that the graph has chosen, and their weighted sum") {
    mixture_in_ggml mixture;
    for (const auto how : {sum_of_experts::none, sum_of_experts::views_first, sum_of_experts::views_between,
                           sum_of_experts::backwards, sum_of_experts::read_elsewhere})
        for (const std::size_t tokens : {1u, 2u, 16u, 33u})
            for (const int threads : {1, 2, 3}) {
                CAPTURE(how);
                CAPTURE(tokens);
                CAPTURE(threads);
                const numbers x = random_numbers(tokens * d, 9);
                outcome made;
                const std::string said = counts_of([&] {
                    made = run([&](ggml_context* c, ggml_tensor* in) { return mixture.build(c, in, how); }, x,
                               d, threads, nullptr, mixture.first);
                });
                CHECK(made.splits == 3);
                CHECK(error_of(made.y, mixture.wanted(x, how)) <= f32_error);
                CHECK(said.find("2 feed-forward blocks computed") != std::string::npos);
                const bool whole = how != sum_of_experts::backwards && how != sum_of_experts::read_elsewhere;
                CHECK((said.find(" 0 nodes left") != std::string::npos) == whole);
            }
}

TEST_CASE("what is no whole block is left to the CPU backend") {
    std::vector<model::weight> wanted = glu_weights(GGML_TYPE_F32);
    wanted.push_back({"lora", GGML_TYPE_F32, {d, f}, false});
    const model m(wanted);
    const numbers x = random_numbers(4 * d, 5);
    outcome made;
    const auto left = [&](const std::function<ggml_tensor*(ggml_context*, ggml_tensor*)>& build) {
        return counts_of([&] { made = run(build, x, d); });
    };
    // What a LoRA adds to a product.
    CHECK(left([&](ggml_context* c, ggml_tensor* in) {
              ggml_tensor* const up = ggml_mul_mat(c, m["blk.0.ffn_up.weight"], in);
              ggml_tensor* const gate = ggml_add(c, ggml_mul_mat(c, m["blk.0.ffn_gate.weight"], in),
                                                 ggml_mul_mat(c, m["lora"], in));
              return ggml_mul_mat(c, m["blk.0.ffn_down.weight"], ggml_swiglu_split(c, gate, up));
          }).find("none of the 6 products") != std::string::npos);
    std::vector<double> wanted_y;
    for (std::size_t t = 0; t < 4; ++t) {
        const std::vector<double> in(x.data() + t * d, x.data() + (t + 1) * d);
        auto gate = product(m.of("blk.0.ffn_gate.weight"), 0, f, in.data(), d);
        const auto lora = product(m.of("lora"), 0, f, in.data(), d);
        auto up = product(m.of("blk.0.ffn_up.weight"), 0, f, in.data(), d);
        for (std::size_t j = 0; j < f; ++j) up[j] *= phi(GGML_GLU_OP_SWIGLU, gate[j] + lora[j]);
        for (const double v : product(m.of("blk.0.ffn_down.weight"), 0, d, up.data(), f))
            wanted_y.push_back(v);
    }
    CHECK(error_of(made.y, wanted_y) <= f32_error);
    // Somebody else reads the hidden values.
    left([&](ggml_context* c, ggml_tensor* in) {
        ggml_tensor* const up = ggml_mul_mat(c, m["blk.0.ffn_up.weight"], in);
        ggml_tensor* const gate = ggml_mul_mat(c, m["blk.0.ffn_gate.weight"], in);
        ggml_tensor* const hidden = ggml_swiglu_split(c, gate, up);
        return ggml_add(c, ggml_mul_mat(c, m["blk.0.ffn_down.weight"], hidden), ggml_sum_rows(c, hidden));
    });
    CHECK(log_text.find("none of the") != std::string::npos);
    // An activation that tiffin has not.
    left([&](ggml_context* c, ggml_tensor* in) { return build_glu(c, m, in, GGML_GLU_OP_GEGLU_QUICK); });
    CHECK(log_text.find("none of the 6 products") != std::string::npos);
}

TEST_CASE("the residual is added where the block is computed") {
    for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_Q4_1}) {
        const model m(glu_weights(type));
        for (const std::size_t tokens : {1u, 9u}) {
            const numbers x = random_numbers(tokens * d, 5);
            outcome made;
            const std::string said = counts_of([&] {
                made = run(
                    [&](ggml_context* c, ggml_tensor* in) {
                        return ggml_add(c, build_glu(c, m, in, GGML_GLU_OP_SWIGLU), in);
                    },
                    x, d);
            });
            CHECK(made.splits == 3);
            CHECK(said.find("2 feed-forward blocks computed, 0 nodes left") != std::string::npos);
            std::vector<double> wanted = ffn_rows(m, GGML_GLU_OP_SWIGLU, x, d, f);
            for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += static_cast<double>(x[i]);
            CHECK(error_of(made.y, wanted) <= (type == GGML_TYPE_F32 ? f32_error : q8_error));
        }
    }
}

TEST_CASE("no tokens") {
    const model m(glu_weights(GGML_TYPE_F32));
    backend_ptr ours(ggml_backend_dev_init(device, nullptr));
    const context_ptr context = make_context();
    ggml_tensor* const x = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, d, 0);
    ggml_tensor* const y = build_glu(context.get(), m, x, GGML_GLU_OP_SWIGLU);
    ggml_cgraph* const graph = ggml_new_graph(context.get());
    ggml_build_forward_expand(graph, y);
    CHECK(ggml_backend_graph_compute(ours.get(), graph) == GGML_STATUS_SUCCESS);
}

TEST_CASE("y where x lies, wholly or in part") {
    const model m(glu_weights(GGML_TYPE_F32));
    constexpr std::size_t tokens = 6;
    const numbers x = random_numbers(tokens * d, 5);
    const auto wanted = ffn_rows(m, GGML_GLU_OP_SWIGLU, x, d, f);
    for (const std::size_t shift : {std::size_t{0}, std::size_t{32}, tokens * d * sizeof(float)}) {
        backend_ptr ours(ggml_backend_dev_init(device, nullptr));
        set_threads(ours.get(), 2);
        const context_ptr context = make_context();
        ggml_tensor* const in = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, d, tokens);
        ggml_tensor* const y = build_glu(context.get(), m, in, GGML_GLU_OP_SWIGLU);
        ggml_cgraph* const graph = ggml_new_graph(context.get());
        ggml_build_forward_expand(graph, y);
        const std::size_t room = std::size_t{1} << 20;
        buffer_ptr memory(ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(device), room));
        auto* const base = static_cast<std::byte*>(ggml_backend_buffer_get_base(memory.get()));
        std::size_t used = 4 * tokens * d * sizeof(float);
        for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
            ggml_tensor* const node = ggml_graph_node(graph, i);
            if (node == y) continue;
            ggml_backend_tensor_alloc(memory.get(), node, base + used);
            used += (ggml_nbytes(node) + 63) / 64 * 64;
        }
        ggml_backend_tensor_alloc(memory.get(), in, base);
        ggml_backend_tensor_alloc(memory.get(), y, base + shift);
        ggml_backend_tensor_set(in, x.data(), 0, x.size() * sizeof(float));
        REQUIRE(ggml_backend_graph_compute(ours.get(), graph) == GGML_STATUS_SUCCESS);
        numbers got(x.size());
        ggml_backend_tensor_get(y, got.data(), 0, got.size() * sizeof(float));
        CHECK(error_of(got, wanted) <= f32_error);
    }
}

TEST_CASE("weights that are written anew, and two contexts of one model") {
    model m(glu_weights(GGML_TYPE_Q8_0));
    const numbers x = random_numbers(3 * d, 5);
    const auto build = [&](ggml_context* c, ggml_tensor* in) {
        return build_glu(c, m, in, GGML_GLU_OP_SWIGLU);
    };
    const auto first = run(build, x, d), second = run(build, x, d);
    CHECK(first.y == second.y);
    m.fill(77);
    const auto other = run(build, x, d);
    CHECK(other.y != first.y);
    CHECK(error_of(other.y, ffn_rows(m, GGML_GLU_OP_SWIGLU, x, d, f)) <= q8_error);
    // A model that comes to lie where another was.
    for (unsigned seed = 3; seed < 6; ++seed) {
        const model again(glu_weights(GGML_TYPE_Q8_0), seed);
        const auto made =
            run([&](ggml_context* c, ggml_tensor* in) { return build_glu(c, again, in, GGML_GLU_OP_SWIGLU); },
                x, d);
        CHECK(error_of(made.y, ffn_rows(again, GGML_GLU_OP_SWIGLU, x, d, f)) <= q8_error);
    }
}

TEST_CASE("weights in a mapped file, whose pages are given back") {
    const std::size_t weight_bytes = d * f * sizeof(float), page = 4096;
    numbers all = random_numbers(3 * d * f, 3, 0.1f);
    const std::size_t bytes = (all.size() * sizeof(float) + page - 1) / page * page;
    std::FILE* const file = std::tmpfile();
    REQUIRE(file != nullptr);
    REQUIRE(std::fwrite(all.data(), sizeof(float), all.size(), file) == all.size());
    std::fflush(file);
    REQUIRE(ftruncate(fileno(file), static_cast<off_t>(bytes)) == 0);
    void* const mapped = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fileno(file), 0);
    REQUIRE(mapped != MAP_FAILED);
    {
        buffer_ptr memory(ggml_backend_dev_buffer_from_host_ptr(device, mapped, bytes, weight_bytes));
        REQUIRE(memory != nullptr);
        ggml_backend_buffer_set_usage(memory.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        const context_ptr context = make_context();
        ggml_tensor* weights[3];
        const char* const names[] = {"blk.0.ffn_gate.weight", "blk.0.ffn_up.weight", "blk.0.ffn_down.weight"};
        for (std::size_t i = 0; i < 3; ++i) {
            weights[i] = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, i == 2 ? f : d, i == 2 ? d : f);
            ggml_set_name(weights[i], names[i]);
            ggml_backend_tensor_alloc(memory.get(), weights[i],
                                      static_cast<std::byte*>(mapped) + i * weight_bytes);
        }
        const numbers x = random_numbers(3 * d, 5);
        const auto build = [&](ggml_context* c, ggml_tensor* in) {
            ggml_tensor* const up = ggml_mul_mat(c, weights[1], in);
            return ggml_mul_mat(c, weights[2], ggml_swiglu_split(c, ggml_mul_mat(c, weights[0], in), up));
        };
        const auto first = run(build, x, d), second = run(build, x, d);
        CHECK(first.splits == 3);
        CHECK(first.y == second.y);
        std::vector<double> wanted;
        for (std::size_t t = 0; t < 3; ++t) {
            const std::vector<double> in(x.data() + t * d, x.data() + (t + 1) * d);
            auto hidden = product(all, d * f, f, in.data(), d);
            const auto gate = product(all, 0, f, in.data(), d);
            for (std::size_t j = 0; j < f; ++j) hidden[j] *= phi(GGML_GLU_OP_SWIGLU, gate[j]);
            for (const double v : product(all, 2 * d * f, d, hidden.data(), f)) wanted.push_back(v);
        }
        CHECK(error_of(first.y, wanted) <= f32_error);
        // What was given back is read from the file again.
        CHECK(std::memcmp(mapped, all.data(), all.size() * sizeof(float)) == 0);
    }
    munmap(mapped, bytes);
    std::fclose(file);
}

namespace {

// Gate and up by their outputs, down by its inputs, all else whole on each of the parts: how llama.cpp splits them.
ggml_backend_meta_split_state split_in_parts(const ggml_tensor* t, void* parts) {
    const std::size_t count = *static_cast<const std::size_t*>(parts);
    ggml_backend_meta_split_state made{};
    made.axis = GGML_BACKEND_SPLIT_AXIS_MIRRORED;
    made.nr[0] = made.n_segments = 1;
    const std::string name = t->name;
    if (name.find("ffn_") == std::string::npos) return made;
    made.axis =
        name.find("down") == std::string::npos ? GGML_BACKEND_SPLIT_AXIS_1 : GGML_BACKEND_SPLIT_AXIS_0;
    for (std::size_t i = 0; i < count; ++i) made.ne[i] = t->ne[made.axis] / static_cast<std::int64_t>(count);
    return made;
}

}  // namespace

// A program of its own: it changes what the device says of itself.
TEST_CASE("tensors split over the device, as llama.cpp's split mode tensor does") {
    constexpr std::size_t tokens = 5, stored = 8;
    log_text.clear();
    const numbers x = random_numbers(tokens * d, 5);
    for (std::size_t parts : {1u, 2u}) {
        CAPTURE(parts);
        std::vector<ggml_backend_dev_t> devices(parts, device);
        ggml_backend_dev_t const split =
            ggml_backend_meta_device(devices.data(), parts, split_in_parts, &parts);
        std::vector<model::weight> wanted = glu_weights(GGML_TYPE_F32);
        wanted.push_back({"blk.0.attn_norm.weight", GGML_TYPE_F32, {d}});
        const model m(wanted, 1, split);
        // What earlier calls have left, as a cache of keys: in the device's memory too.
        const context_ptr kept = make_context();
        ggml_tensor* const cache = ggml_new_tensor_2d(kept.get(), GGML_TYPE_F32, d, stored);
        const buffer_ptr cache_memory(
            ggml_backend_alloc_ctx_tensors_from_buft(kept.get(), ggml_backend_dev_buffer_type(split)));
        REQUIRE(cache_memory != nullptr);
        ggml_backend_buffer_clear(cache_memory.get(), 0);

        backend_ptr meta(ggml_backend_dev_init(split, nullptr)), ours(ggml_backend_dev_init(device, nullptr)),
            cpu(ggml_backend_cpu_init());
        ggml_backend_t all[] = {meta.get(), ours.get(), cpu.get()};
        const context_ptr context = make_context();
        ggml_context* const c = context.get();
        ggml_tensor* const in = ggml_new_tensor_2d(c, GGML_TYPE_F32, d, tokens);
        ggml_tensor* const places = ggml_new_tensor_1d(c, GGML_TYPE_I64, tokens);
        ggml_set_input(in);
        ggml_set_input(places);
        ggml_tensor* const normed =
            ggml_mul(c, ggml_rms_norm(c, ggml_scale(c, in, 1), 1e-6f), m["blk.0.attn_norm.weight"]);
        ggml_tensor* const y = ggml_add(c, build_glu(c, m, normed, GGML_GLU_OP_SWIGLU), normed);
        ggml_cgraph* const graph = ggml_new_graph(c);
        ggml_build_forward_expand(graph, ggml_set_rows(c, cache, y, places));
        ggml_tensor* const keys = ggml_view_2d(c, cache, d, stored, cache->nb[1], 0);
        ggml_tensor* const out = ggml_soft_max_ext(c, ggml_mul_mat(c, keys, y), nullptr, 1.0f / d, 0);
        ggml_set_output(out);
        ggml_build_forward_expand(graph, out);
        sched_ptr sched(ggml_backend_sched_new(all, nullptr, 3, GGML_DEFAULT_GRAPH_SIZE, false, false));
        REQUIRE(ggml_backend_sched_alloc_graph(sched.get(), graph));
        const std::int64_t rows[tokens] = {6, 0, 7, 2, 3};
        ggml_backend_tensor_set(in, x.data(), 0, x.size() * sizeof(float));
        ggml_backend_tensor_set(places, rows, 0, sizeof rows);
        REQUIRE(ggml_backend_sched_graph_compute(sched.get(), graph) == GGML_STATUS_SUCCESS);
        numbers got(tokens * stored);
        ggml_backend_tensor_get(out, got.data(), 0, got.size() * sizeof(float));

        std::vector<double> value, wanted_out;
        for (std::size_t t = 0; t < tokens; ++t) {
            double squares = 0;
            for (std::size_t j = 0; j < d; ++j) squares += std::pow(static_cast<double>(x[t * d + j]), 2);
            numbers row(d);
            for (std::size_t j = 0; j < d; ++j)
                row[j] =
                    static_cast<float>(static_cast<double>(x[t * d + j]) / std::sqrt(squares / d + 1e-6) *
                                       static_cast<double>(m.of("blk.0.attn_norm.weight")[j]));
            const auto of = ffn_row(m, GGML_GLU_OP_SWIGLU, row.data(), d, f);
            for (std::size_t j = 0; j < d; ++j) value.push_back(of[j] + static_cast<double>(row[j]));
        }
        for (std::size_t t = 0; t < tokens; ++t) {
            std::vector<double> scores(stored), powers;
            for (std::size_t i = 0; i < tokens; ++i)
                for (std::size_t j = 0; j < d; ++j)
                    scores[static_cast<std::size_t>(rows[i])] += value[i * d + j] * value[t * d + j] / d;
            const double most = *std::max_element(scores.begin(), scores.end());
            double sum = 0;
            for (const double s : scores) sum += std::exp(s - most);
            for (const double s : scores) wanted_out.push_back(std::exp(s - most) / sum);
        }
        CHECK(error_of(got, wanted_out) <= f32_error);
    }
    const std::string sentence = "tensors are split over devices, and this one is among them";
    CHECK(log_text.find(sentence) != std::string::npos);
    CHECK(log_text.find(sentence) == log_text.rfind(sentence));
    // A model beside it whose tensors are whole.
    const model m(glu_weights(GGML_TYPE_Q8_0));
    const auto made =
        run([&](ggml_context* c, ggml_tensor* in) { return build_glu(c, m, in, GGML_GLU_OP_SWIGLU); }, x, d);
    CHECK(error_of(made.y, ffn_rows(m, GGML_GLU_OP_SWIGLU, x, d, f)) <= q8_error);
    CHECK(log_text.find("2 feed-forward blocks computed") != std::string::npos);
    // What lies in the device's memory and is no weight can be written nowhere else now.
    const context_ptr kept = make_context();
    ggml_tensor* const cache = ggml_new_tensor_2d(kept.get(), GGML_TYPE_F32, d, stored);
    const buffer_ptr cache_memory(
        ggml_backend_alloc_ctx_tensors_from_buft(kept.get(), ggml_backend_dev_buffer_type(device)));
    REQUIRE(cache_memory != nullptr);
    const context_ptr context = make_context();
    ggml_tensor* const rows = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, d, tokens);
    ggml_tensor* const places = ggml_new_tensor_1d(context.get(), GGML_TYPE_I64, tokens);
    CHECK(ggml_backend_dev_supports_op(device, ggml_set_rows(context.get(), cache, rows, places)));
}

namespace {

constexpr std::int64_t vocabulary = 11;

// What main() writes where TIFFIN_SIDE_FILE says.
struct side_tables {
    numbers modulators[2], scale[2];
    side_tables() {
        for (unsigned i = 0; i < 2; ++i) {
            modulators[i] = random_numbers(vocabulary * d, 50 + i);
            scale[i] = random_numbers(d, 60 + i, 3);
        }
    }
    void write(const char* path) const {
        tiffin::io::safetensors_writer writer;
        for (std::size_t i = 0; i < 2; ++i) {
            const std::string at = "blk." + std::to_string(i) + ".";
            writer.set(at + "block", "retoken").set(at + "base.block", "model");
            writer.add(at + "modulators.weight", {modulators[i].data(), tiffin::dtype::f32, {vocabulary, d}});
            writer.add(at + "scale", {scale[i].data(), tiffin::dtype::f32, {d}});
        }
        writer.write(path).or_throw();
    }
    // y times 1 + s e / (|e| + 1e-6), e the row of the token.
    void modulate(std::size_t layer, std::size_t id, double* y) const {
        double squares = 0;
        for (std::size_t j = 0; j < d; ++j)
            squares += std::pow(static_cast<double>(modulators[layer][id * d + j]), 2);
        for (std::size_t j = 0; j < d; ++j)
            y[j] *= 1 + static_cast<double>(scale[layer][j]) *
                            static_cast<double>(modulators[layer][id * d + j]) / (std::sqrt(squares) + 1e-6);
    }
};

}  // namespace

TEST_CASE(
    "side file: tables by token id around a model's blocks, the rows of the last chosen among the tokens") {
    if (std::getenv("TIFFIN_SIDE_FILE") == nullptr) return;  // ggml_backend.side_file runs this case alone
    std::vector<model::weight> wanted{{"token_embd.weight", GGML_TYPE_F32, {d, vocabulary}}};
    for (const char* layer : {"blk.0.", "blk.1."})
        for (const char* name : {"ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"})
            wanted.push_back({std::string(layer) + name, GGML_TYPE_F32,
                              std::string_view(name) == "ffn_down.weight" ? std::vector<std::int64_t>{f, d}
                                                                          : std::vector<std::int64_t>{d, f}});
    const model m(wanted);
    const std::vector<std::int32_t> ids{3, 0, 10, 3, 7}, chosen{4, 1};
    backend_ptr ours(ggml_backend_dev_init(device, nullptr)), cpu(ggml_backend_cpu_init());
    ggml_backend_t both[] = {ours.get(), cpu.get()};
    for (ggml_backend_t b : both) set_threads(b, 2);
    const context_ptr context = make_context();
    ggml_context* const c = context.get();
    const auto input = [&](const std::vector<std::int32_t>& of) {
        ggml_tensor* const t = ggml_new_tensor_1d(c, GGML_TYPE_I32, static_cast<std::int64_t>(of.size()));
        ggml_set_input(t);
        return t;
    };
    ggml_tensor *const in = input(ids), *const rows = input(chosen);
    const auto layer = [&](const std::string& at, ggml_tensor* x) {
        ggml_tensor* const up = ggml_mul_mat(c, m[at + "ffn_up.weight"], x);
        ggml_tensor* const gate = ggml_mul_mat(c, m[at + "ffn_gate.weight"], x);
        return ggml_add(c, ggml_mul_mat(c, m[at + "ffn_down.weight"], ggml_swiglu_split(c, gate, up)), x);
    };
    ggml_tensor* const stream = layer("blk.0.", ggml_get_rows(c, m["token_embd.weight"], in));
    ggml_tensor* const out = ggml_scale(c, layer("blk.1.", ggml_get_rows(c, stream, rows)), 1);
    ggml_set_output(out);
    ggml_cgraph* const graph = ggml_new_graph(c);
    ggml_build_forward_expand(graph, out);
    sched_ptr sched(ggml_backend_sched_new(both, nullptr, 2, GGML_DEFAULT_GRAPH_SIZE, false, false));
    REQUIRE(ggml_backend_sched_alloc_graph(sched.get(), graph));
    ggml_backend_tensor_set(in, ids.data(), 0, ids.size() * sizeof ids[0]);
    ggml_backend_tensor_set(rows, chosen.data(), 0, chosen.size() * sizeof chosen[0]);
    REQUIRE(ggml_backend_sched_graph_compute(sched.get(), graph) == GGML_STATUS_SUCCESS);
    numbers y(static_cast<std::size_t>(ggml_nelements(out)));
    ggml_backend_tensor_get(out, y.data(), 0, y.size() * sizeof(float));

    const side_tables side;
    std::vector<double> wanted_y;
    for (const std::int32_t t : chosen) {
        const auto id = static_cast<std::size_t>(ids[static_cast<std::size_t>(t)]);
        numbers x(m.of("token_embd.weight").begin() + static_cast<std::ptrdiff_t>(id * d),
                  m.of("token_embd.weight").begin() + static_cast<std::ptrdiff_t>((id + 1) * d));
        for (std::size_t i = 0; i < 2; ++i) {
            const std::string at = "blk." + std::to_string(i) + ".ffn_";
            std::vector<double> of =
                ffn_row(m, GGML_GLU_OP_SWIGLU, x.data(), d, f, 0, {at + "gate", at + "up", at + "down"});
            side.modulate(i, id, of.data());
            for (std::size_t j = 0; j < d; ++j) of[j] += static_cast<double>(x[j]);
            for (std::size_t j = 0; j < d; ++j) x[j] = static_cast<float>(of[j]);
            if (i == 1) wanted_y.insert(wanted_y.end(), of.begin(), of.end());
        }
    }
    CHECK(error_of(y, wanted_y) <= 2 * f32_error);
}

TEST_CASE("names and shapes that are no feed-forward block's are not claimed") {
    const context_ptr context = make_context();
    const auto claims = [&](const char* name, ggml_type type, std::int64_t inputs) {
        ggml_tensor* const w = ggml_new_tensor_2d(context.get(), type, inputs, 32);
        ggml_set_name(w, name);
        ggml_tensor* const x = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, inputs, 4);
        return ggml_backend_dev_supports_op(device, ggml_mul_mat(context.get(), w, x));
    };
    CHECK(claims("blk.12.ffn_gate.weight", GGML_TYPE_Q4_1, 32));
    CHECK(claims("blk.0.ffn_down.weight", GGML_TYPE_F32, 7));
    CHECK_FALSE(claims("blk.0.attn_q.weight", GGML_TYPE_F32, 32));
    CHECK_FALSE(claims("blk.0.ffn_gate_inp.weight", GGML_TYPE_F32, 32));
    CHECK_FALSE(claims("output.weight", GGML_TYPE_F32, 32));
    CHECK_FALSE(claims("blk.0.ffn_up.weight", GGML_TYPE_IQ2_XS, 256));
    CHECK_FALSE(claims("ffn_up.weight", GGML_TYPE_F32, 32));
}

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: %s LIBRARY [doctest's options]\n", argv[0]);
        return 1;
    }
    ggml_log_set([](ggml_log_level, const char* text, void*) { log_text += text; }, nullptr);
    if (const char* const path = std::getenv("TIFFIN_SIDE_FILE")) side_tables().write(path);
    ggml_backend_reg_t const loaded = ggml_backend_load(argv[1]);
    if (loaded == nullptr) {
        std::fprintf(stderr, "%s: %s\n", argv[1], log_text.c_str());
        return 1;
    }
    device = ggml_backend_reg_dev_get(loaded, 0);
    return doctest::Context(argc - 1, argv + 1).run();
}
