// A mixture of experts at few tokens, where it is its memory that takes time, and at many, where it is its products.
//
//     mixtures [ROUNDS] [THREADS]           defaults: 21, all
//
// Layers of 8 of 64 experts (d 2048, f 768) and 2 of 8 (d 2048, f 4096) in f32, bf16, q8_0 and q4_0, each call on tokens of its
// own. Told, as medians with quartiles: at 1, 4, 8 and 16 tokens the bytes of the experts that were chosen, once each, per second,
// over the bytes per second that the same threads read of memory, in turns, and the share of all threads' time in a call that
// none of its tasks took; at 512 tokens the time of a dense layer of the
// same products over the mixture's, in turns, with even routes and with those of Zipf's law (the expert e as often as 1 / e).
#include <tiffin/aligned_buffer.hpp>
#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/executor/openmp.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/plan/tensors_needed.hpp>

#include "disturbance.hpp"
#include "machine.hpp"
#include "small_program.hpp"

#include <omp.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

using clock_type = std::chrono::steady_clock;
using tiffin_bench::page_floats, tiffin_bench::quartiles_text;

constexpr std::size_t d = 2048, most_tokens = 512;
// x of this feature is 1, so that the router's weights for it are a bias.
constexpr std::size_t constant = 0;

template <class Work>
double seconds(const Work& work) {
    const auto start = clock_type::now();
    work();
    return std::chrono::duration<double>(clock_type::now() - start).count();
}

// Tensors of noise, by name, but for optional ones.
struct noise {
    std::deque<page_floats> memory;
    tiffin::weights weights;

    template <class Block>
    noise(const Block& block, const tiffin::block_shape& sizes) {
        std::minstd_rand engine(1);
        for (const auto& [name, needed] : tiffin::tensors_needed(block, sizes)) {
            if (needed.needed == tiffin::presence::optional) continue;
            page_floats& to = memory.emplace_back(needed.shape.elements());
            for (std::size_t i = 0; i < to.size(); ++i)
                to.data()[i] = (static_cast<float>(engine()) / 2147483648.0f - 0.5f) * 0.05f;
            weights.add(name, tiffin::tensor_view{to.data(), tiffin::dtype::f32, needed.shape});
        }
    }
    [[nodiscard]] float* of(std::string_view name) {
        for (std::size_t i = 0; i < memory.size(); ++i)
            if (weights.entries()[i].name == name) return memory[i].data();
        throw std::runtime_error("there is no tensor " + std::string(name));
    }
};

// Reads `bytes` from where the last read ended, on all threads: huge pages, prefetched, as packed weights are.
class stream {
public:
    explicit stream(std::size_t bytes) : memory_(bytes) { std::memset(memory_.data(), 1, bytes); }
    void read(std::size_t bytes) {
        constexpr std::size_t line = 8, ahead = 64 * line;  // words
        const std::size_t size = memory_.size() / (line * sizeof(std::uint64_t));
        const std::size_t count = std::min(bytes / (line * sizeof(std::uint64_t)), size);
        if (at_ + count > size) at_ = 0;
        const std::uint64_t* const from = memory_.as<std::uint64_t>() + at_ * line;
        std::uint64_t sum = 0;
#pragma omp parallel for reduction(+ : sum) schedule(static)
        for (std::size_t i = 0; i < count; ++i) {
            __builtin_prefetch(from + i * line + ahead);
            for (std::size_t j = 0; j < line; ++j) sum += from[i * line + j];
        }
        at_ += count;
        told_ += sum;
    }
    [[nodiscard]] std::uint64_t told() const {
        return told_;
    }

private:
    tiffin::aligned_buffer memory_;
    std::size_t at_ = 0;
    std::uint64_t told_ = 0;
};

// Runs tasks as openmp does, and adds up the time that they take.
class watched_openmp {
public:
    [[nodiscard]] static std::size_t concurrency() noexcept {
        return static_cast<std::size_t>(omp_get_max_threads());
    }
    template <class Task>
    void operator()(std::size_t n, const Task& task) {
        const auto timed = [&](std::size_t i) {
            const double took = seconds([&] { task(i); });
#pragma omp atomic
            worked_ += took;
        };
        tiffin::openmp{omp_get_max_threads()}(n, timed);
    }
    [[nodiscard]] double worked() const {
        return worked_;
    }

private:
    double worked_ = 0;
};

struct shape {
    std::size_t experts, chosen, f;
};

template <class Format>
void measure(const char* format, const shape& s, noise& given, stream& memory, std::size_t rounds) {
    const tiffin::moe<tiffin::swiglu> block{.router = {.top_k = s.chosen}};
    float* const router = given.of("router.weight");
    std::mt19937 random(1);
    page_floats x(most_tokens * d), y(most_tokens * d);
    const auto bring_tokens = [&](std::size_t tokens) {
        for (std::size_t i = 0; i < tokens * d; ++i)
            x.data()[i] = static_cast<float>(random()) / 4294967296.0f - 0.5f;
        for (std::size_t t = 0; t < tokens; ++t) x.data()[t * d + constant] = 1;
    };
    std::vector<tiffin::choice<float>> chosen;
    double idle = 0;  // of the last call
    const auto call = [&](auto& layer, std::size_t tokens) {
        watched_openmp execute;
        chosen.resize(tokens * layer.choices());
        tiffin::token_inputs inputs;
        inputs.routes = chosen;
        const double took = seconds([&] {
            layer(tiffin::matrix_view<const float>(x.data(), tokens, d), inputs,
                  tiffin::matrix_view<float>(y.data(), tokens, d), execute);
        });
        idle = 1 - execute.worked() / (took * static_cast<double>(execute.concurrency()));
        return took;
    };
    const double expert_bytes = static_cast<double>(3 * tiffin::bytes_of(Format::type, d * s.f));
    std::printf("%zu of %zu, f %zu, %s:", s.chosen, s.experts, s.f, format);
    for (const bool zipf : {false, true}) {
        for (std::size_t e = 0; e < s.experts; ++e)
            router[e * d + constant] = zipf ? -std::log(static_cast<float>(e + 1)) : 0.0f;
        auto layer = tiffin::prepare(block, given.weights, tiffin::simd<Format>{}, {.tokens = most_tokens});
        if (!zipf)
            for (const std::size_t tokens : std::array<std::size_t, 4>{{1, 4, 8, 16}}) {
                std::vector<double> shares, idles;
                double speed = 0;
                for (std::size_t round = 0; round < rounds + 1; ++round) {
                    bring_tokens(tokens);
                    const double own = call(layer, tokens);
                    std::set<std::int32_t> different;
                    for (const auto& c : chosen) different.insert(c.expert);
                    const double bytes = expert_bytes * static_cast<double>(different.size());
                    const double read = seconds([&] { memory.read(static_cast<std::size_t>(bytes)); });
                    speed = std::max(speed, bytes / read);
                    if (round == 0) continue;
                    shares.push_back(read / own);
                    idles.push_back(100 * idle);
                }
                std::printf(" %zu tokens %s of %.0f GB/s, idle %s %%,", tokens,
                            quartiles_text(shares, 2).c_str(), speed / 1e9, quartiles_text(idles, 1).c_str());
            }
        const tiffin::block_shape dense_sizes{.d_model = d, .d_ff = s.f * s.chosen};
        noise dense_weights(tiffin::swiglu{}, dense_sizes);
        auto dense = tiffin::prepare<tiffin::swiglu>(dense_weights.weights, tiffin::simd<Format>{},
                                                     {.tokens = most_tokens});
        std::vector<double> ratios;
        for (std::size_t round = 0; round < std::max<std::size_t>(rounds / 3, 3) + 1; ++round) {
            bring_tokens(most_tokens);
            const double own = call(layer, most_tokens), other = call(dense, most_tokens);
            if (round > 0) ratios.push_back(other / own);
        }
        std::printf(" 512%s %s%s", zipf ? " by Zipf" : "", quartiles_text(ratios, 2).c_str(),
                    zipf ? "\n" : ",");
        std::fflush(stdout);
    }
}

int run(std::size_t rounds) {
    stream memory(std::size_t{1} << 30);
    const tiffin_bench::disturbance others;
    for (const shape& s : {shape{64, 8, 768}, shape{8, 2, 4096}}) {
        const tiffin::moe<tiffin::swiglu> block{.router = {.top_k = s.chosen}};
        tiffin::block_shape sizes{.d_model = d, .d_ff = s.f};
        sizes.experts = s.experts;
        noise given(block, sizes);
        measure<tiffin::f32>("f32", s, given, memory, rounds);
        measure<tiffin::bf16>("bf16", s, given, memory, rounds);
        measure<tiffin::q8_0>("q8_0", s, given, memory, rounds);
        measure<tiffin::q4_0>("q4_0", s, given, memory, rounds);
    }
    std::printf("%d threads; others had %.0f %% of the processors' time (%llu)\n", omp_get_max_threads(),
                100 * others.share(), static_cast<unsigned long long>(memory.told() % 10));
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    return tiffin_bench::run_program("mixtures", argc, argv, [&](const auto& number) {
        if (number(1, 1) == 0 || number(2, 1) == 0)
            throw std::runtime_error("takes [ROUNDS] [THREADS], numbers from 1");
        if (argc > 2) omp_set_num_threads(static_cast<int>(number(2, 1)));
        return run(number(1, 21));
    });
}
