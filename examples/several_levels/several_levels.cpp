// One binary for several instruction sets: the same layer compiled once a level, the best chosen as it
// starts.
#include "levels.hpp"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <vector>

namespace {

struct level {
    const char* name;
    bool runs_here;
    std::unique_ptr<stem_layer> (*prepare)(const stem_weights&);
};

// From the lowest to the highest.
std::vector<level> levels() {
    std::vector<level> all{{"baseline", true, prepare_baseline}};
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    all.push_back({"avx2", avx2, prepare_avx2});
    all.push_back({"avx512",
                   avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"),
                   prepare_avx512});
#endif
    return all;
}

}  // namespace

int main() {
    constexpr std::size_t d_model = 512, d_ff = 1024, vocab = 100, tokens = 64;
    std::vector<float> gate(d_ff * d_model), table(vocab * d_ff), down(d_model * d_ff), x(tokens * d_model);
    unsigned state = 1;
    const auto fill = [&](std::vector<float>& numbers, float scale) {
        for (float& v : numbers) {
            state = state * 1664525u + 1013904223u;
            v = (static_cast<float>(state >> 8) * 0x1p-23f - 1.0f) * scale;
        }
    };
    fill(gate, 0.05f);
    fill(table, 1);
    fill(down, 0.05f);
    fill(x, 1);
    std::vector<std::int32_t> ids(tokens);
    for (std::size_t i = 0; i < tokens; ++i) ids[i] = static_cast<std::int32_t>(i % vocab);

    std::vector<float> first;
    const char* chosen = "";
    for (const level& one : levels()) {
        if (!one.runs_here) {
            std::printf("%-9s not on this machine\n", one.name);
            continue;
        }
        const auto layer = one.prepare({d_model, d_ff, vocab, gate.data(), table.data(), down.data()});
        std::vector<float> y(tokens * d_model);
        if (!layer || !layer->run(x.data(), ids.data(), tokens, y.data())) return 1;
        double best = 1e9;
        for (int repeat = 0; repeat < 20; ++repeat) {
            const auto start = std::chrono::steady_clock::now();
            if (!layer->run(x.data(), ids.data(), tokens, y.data())) return 1;
            const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
            best = std::fmin(best, took.count());
        }
        if (first.empty()) first = y;
        // Levels differ in the roundings of sums of some thousand terms, no more.
        double most = 0;
        for (std::size_t i = 0; i < y.size(); ++i)
            most = std::fmax(most, std::fabs(static_cast<double>(y[i]) - static_cast<double>(first[i])));
        std::printf("%-9s %.2f ms for %zu tokens, largest difference to the first level %.1e\n", one.name,
                    best, tokens, most);
        if (!(most < 1e-4)) return 1;
        chosen = one.name;
    }
    std::printf("an engine would run %s here\n", chosen);
}
