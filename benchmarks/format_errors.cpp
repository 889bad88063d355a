// What each number format costs in accuracy: the relative error of a layer's output, predicted and measured.
//
// Weights are normal numbers, as a trained layer's nearly are; the reference runs in double on the weights as
// given. The prediction: a format changes each stored number by an error of its own, of relative size e (root
// mean square, measured on the weights); the errors of the S tensors that a value passes one after the other
// are independent, so that the output is off by e sqrt(S). Where activations are rounded as well, to q8_0, x
// is once, and passes P products before it is a hidden value, and the hidden values are: sqrt(S e^2 + P a^2 +
// h^2), with a measured on normal numbers and h on gelu(n), or on silu(n) n' of gated layers, whose largest
// are larger and whose steps with them. Activation functions and products bend this a little: the budget
// is 1.15 of it, and for f32, whose numbers are not changed, 2 u sqrt(d_ff) for the roundings of the sums. A
// layer beyond its budget is marked, and the status is 1.
#include <tiffin/tiffin.hpp>

#include "published_rows.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <list>
#include <string>
#include <utility>
#include <vector>

namespace {

using any = tiffin::any_format;

constexpr std::size_t d_model = 512, d_ff = 1024, vocab = 64, tokens = 64;
struct choice {
    const char* name;
    tiffin::dtype type;
    bool rounds_activations;
};
constexpr choice formats[] = {
    {"f32", tiffin::dtype::f32, false},         {"f16", tiffin::dtype::f16, false},
    {"bf16", tiffin::dtype::bf16, false},       {"q8_0", tiffin::dtype::q8_0, false},
    {"q8_0 x q8_0", tiffin::dtype::q8_0, true}, {"q4_0", tiffin::dtype::q4_0, false},
    {"q4_0 x q8_0", tiffin::dtype::q4_0, true}, {"q4_1", tiffin::dtype::q4_1, false},
    {"q4_1 x q8_0", tiffin::dtype::q4_1, true}};

double relative(const std::vector<float>& got, const std::vector<float>& wanted) {
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        difference += std::pow(static_cast<double>(got[i]) - static_cast<double>(wanted[i]), 2);
        size += std::pow(static_cast<double>(wanted[i]), 2);
    }
    return std::sqrt(difference / size);
}

std::vector<float> normal_numbers(std::uint64_t seed = 3) {
    std::vector<float> numbers(1 << 16);
    tiffin::fill_normal(numbers, 1, seed);
    return numbers;
}

// Hidden values of normal products, of a gated layer or of an mlp.
std::vector<float> hidden_numbers(bool gated) {
    std::vector<float> numbers = normal_numbers();
    const std::vector<float> up = normal_numbers(4);
    for (std::size_t i = 0; i < numbers.size(); ++i)
        numbers[i] = gated ? tiffin::silu{}(numbers[i]) * up[i] : tiffin::gelu{}(numbers[i]);
    return numbers;
}

// e of a format.
double own_error(tiffin::dtype type, const std::vector<float>& numbers = normal_numbers()) {
    std::vector<float> widened(numbers.size());
    tiffin::with_format(type, [&](auto format) {
        using codec = decltype(format);
        for (std::size_t i = 0; i < numbers.size(); i += codec::block) {
            typename codec::storage stored;
            codec::encode(numbers.data() + i, stored);
            codec::decode(stored, widened.data() + i);
        }
    });
    return relative(widened, numbers);
}

bool all_within = true;

// The stored tensors that a value passes, S, and the products of x, P.
struct passed {
    double tensors;
    double products;
    bool gated;
};

// One line of the table.
template <class Block>
void show(const char* name, const passed& path, const Block& block, tiffin::block_shape sizes = {}) {
    sizes.d_model = d_model;
    sizes.d_ff = d_ff;
    sizes.vocab = vocab;
    std::list<std::vector<float>> memory;
    tiffin::weights weights;
    std::uint64_t seed = 1;
    for (const auto& [tensor, t] : tiffin::tensors_needed(block, sizes)) {
        if (t.needed == tiffin::presence::optional) continue;
        std::vector<float>& numbers = memory.emplace_back(t.shape.elements());
        const bool product =
            t.kind != tiffin::tensor_kind::table && t.kind != tiffin::tensor_kind::pool && t.shape.rank() > 1;
        const auto inputs = static_cast<double>(t.shape[t.shape.rank() - 1]);
        tiffin::fill_normal(numbers, product ? 1 / std::sqrt(inputs) : 1, seed++);
        weights.add(tensor, numbers.data(), t.shape);
    }
    std::vector<float> x(tokens * d_model), wanted(x.size()), y(x.size());
    tiffin::fill_normal(x, 1, 1000);
    std::vector<std::int32_t> ids(tokens);
    for (std::size_t i = 0; i < tokens; ++i) ids[i] = static_cast<std::int32_t>(i % vocab);
    tiffin::prepare(block, weights, tiffin::reference<>{})(x, ids, wanted);
    std::printf("| %s |", name);
    for (const auto& [format, type, rounds] : formats) {
        tiffin::prepare(block, weights, tiffin::simd<any, any>{{type}, {type}, {rounds}})(x, ids, y);
        const double measured = relative(y, wanted);
        double square = path.tensors * std::pow(own_error(type), 2);
        if (rounds)
            square += path.products * std::pow(own_error(tiffin::dtype::q8_0), 2) +
                      std::pow(own_error(tiffin::dtype::q8_0, hidden_numbers(path.gated)), 2);
        const double predicted = std::sqrt(square);
        const bool exact = type == tiffin::dtype::f32;
        const double budget = exact ? 2 * 0x1p-24 * std::sqrt(static_cast<double>(d_ff)) : 1.15 * predicted;
        const char* const mark = measured <= budget ? "" : " over budget";
        all_within = all_within && measured <= budget;
        if (exact)
            std::printf(" %.1e%s |", measured, mark);
        else
            std::printf(" %.1e / %.1e%s |", measured, predicted, mark);
    }
    std::printf("\n");
    std::fflush(stdout);
}

// A table's rows in a published format, weights in f32: e, and a layer's error, which is e.
void show_rows(const benchmarks::published_format& format) {
    constexpr std::size_t n = d_ff;
    std::vector<float> table(vocab * n), gate(n * d_model), down(d_model * n), x(tokens * d_model);
    tiffin::fill_normal(table, 1, 1);
    tiffin::fill_normal(gate, 1 / std::sqrt(static_cast<double>(d_model)), 2);
    tiffin::fill_normal(down, 1 / std::sqrt(static_cast<double>(n)), 3);
    tiffin::fill_normal(x, 1, 1000);
    const benchmarks::published_rows rows(format, table, n);
    std::vector<std::int32_t> ids(tokens);
    for (std::size_t i = 0; i < tokens; ++i) ids[i] = static_cast<std::int32_t>(i % vocab);
    const auto run = [&](const tiffin::tensor_view& memory) {
        tiffin::weights weights;
        weights.add("gate_proj.weight", gate.data(), {n, d_model});
        weights.add("down_proj.weight", down.data(), {d_model, n});
        weights.add("stem_embed.weight", memory);
        std::vector<float> y(x.size());
        using backend = tiffin::simd<tiffin::f32, any>;
        tiffin::prepare<tiffin::stem>(weights, backend{{}, tiffin::kept_as_given})(x, ids, y);
        return y;
    };
    std::vector<float> widened(table.size());
    tiffin::read_as_f32(rows.view(), 0, widened.size(), widened.data());
    const double own = relative(widened, table);
    const double measured = relative(run(rows.view()), run({table.data(), tiffin::dtype::f32, {vocab, n}}));
    const bool within = measured <= 1.15 * own;
    all_within = all_within && within;
    const auto bytes = static_cast<double>(tiffin::bytes_of(format.codes, n)) +
                       (format.per_tensor ? 0 : static_cast<double>(rows.view().scales.bytes_per_row(n)));
    std::printf("| %s | %.3f | %.1e | %.1e%s |\n", format.name, 8 * bytes / static_cast<double>(n), own,
                measured, within ? "" : " over budget");
}

}  // namespace

int main() {
    std::printf(
        "Relative error of y, root mean square: measured / predicted. Weights and tables in the format; x "
        "q8_0:\n"
        "activations in q8_0, else in f32.\n\n"
        "| layer |");
    for (const choice& one : formats) std::printf(" %s |", one.name);
    std::printf("\n|---|---|---|---|---|---|---|---|---|---|\n| a stored number |");
    for (const choice& one : formats) std::printf(" %.1e |", own_error(one.type));
    std::printf("\n");
    show("mlp", {2, 1, false}, tiffin::mlp{});
    show("SwiGLU", {3, 2, true}, tiffin::swiglu{});
    show("STEM", {3, 1, true}, tiffin::stem{});
    show("StructMoE, 16 experts of rank 16", {2, 1, false}, tiffin::structmoe{}, {.experts = 16, .rank = 16});
    show("ReToken folded over SwiGLU", {4, 2, true}, tiffin::retoken_folded<tiffin::swiglu>{});
    show("MoE of 4 SwiGLU, top 2", {3, 2, true}, tiffin::moe<tiffin::swiglu>{{2}, {}, {}}, {.experts = 4});
    std::printf(
        "\nRows of published tables, each value rounded to the nearest code; normal numbers.\n\n"
        "| rows | bits per value | a stored number | STEM, weights in f32 |\n|---|---|---|---|\n");
    for (const benchmarks::published_format& format : benchmarks::published_formats) show_rows(format);
    return all_within ? 0 : 1;
}
