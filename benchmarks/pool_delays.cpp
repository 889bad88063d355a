// What a delay hides of the reads of MoRT's pools: a stack of blocks whose pools lie in a cold file, their rows chosen by
// routers, read while the next blocks compute and added 0, 1 or 2 blocks later.
//
//     pool_delays FOLDER [D_MODEL] [D_FF] [TOKENS] [ROUNDS]           defaults: 1024 4096 64 21
//
// Eight blocks of SwiGLU in f32, pools of 4 experts of 16,384 ids, 2 chosen, in one file (2 GiB at 1024). All delays run in
// turns, on ids of their own; the file's pages are given up before each (fsync, POSIX_FADV_DONTNEED). Told: time over that with
// pools in memory, and the share that receive() has waited.
#include <tiffin/call/prepare.hpp>
#include <tiffin/call/token_router.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/executor/openmp.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/table/direct_file.hpp>
#include <tiffin/table/pool_schedule.hpp>
#include <tiffin/table/row_store.hpp>

#include "cold_file.hpp"
#include "disturbance.hpp"
#include "machine.hpp"
#include "small_program.hpp"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using clock_type = std::chrono::steady_clock;
using tiffin_bench::give_up_pages, tiffin_bench::page_floats, tiffin_bench::quartiles_text;
using router_type = tiffin::token_router<tiffin::sigmoid_topk_renorm, tiffin::simd<>>;
using layer_type = tiffin::layer<tiffin::mort_given<tiffin::swiglu>, tiffin::simd<>>;

constexpr std::size_t depth = 8, experts = 4, vocab = 16384, chosen_of_token = 2;

struct stack {
    std::size_t d, tokens;
    std::filesystem::path path;
    std::vector<page_floats> weights;
    page_floats x, y, none, pool;  // the pool in memory is that of every block
    std::vector<layer_type> layers;
    std::vector<router_type> routers;
    std::vector<tiffin::choice<float>> chosen;
    tiffin::openmp execute{omp_get_max_threads()};

    stack(const std::filesystem::path& folder, std::size_t d_model, std::size_t f, std::size_t n)
        : d(d_model),
          tokens(n),
          path(folder / "pool_delays.table"),
          x(n * d),
          y(n * d),
          none(n * d),
          pool(experts * vocab * d),
          chosen(n * chosen_of_token) {
        std::minstd_rand engine(1);
        const auto fill = [&](page_floats& numbers) {
            for (std::size_t i = 0; i < numbers.size(); ++i)
                numbers.data()[i] = (static_cast<float>(engine()) / 2147483648.0f - 0.5f) * 0.05f;
        };
        fill(x);
        fill(pool);
        std::fill_n(none.data(), none.size(), 0.0f);
        std::ofstream to(path, std::ios::binary);
        for (std::size_t l = 0; l < depth; ++l) {
            to.write(reinterpret_cast<const char*>(pool.data()),
                     static_cast<std::streamsize>(pool.size() * sizeof(float)));
            const auto tensor = [&](std::size_t size) {
                weights.emplace_back(size);
                fill(weights.back());
                return weights.back().data();
            };
            tiffin::weights given;
            given.add("base.gate_proj.weight", tensor(f * d), {f, d})
                .add("base.up_proj.weight", tensor(f * d), {f, d})
                .add("base.down_proj.weight", tensor(d * f), {d, f})
                .add("scale", tensor(d), {d});
            tiffin::mort_given<tiffin::swiglu> block;
            block.modulator.num_layers = depth;
            layers.push_back(tiffin::prepare(block, given, tiffin::simd{}, {.tokens = n}));
            tiffin::weights router;
            router.add("router.weight", tensor(experts * d), {experts, d});
            routers.push_back(
                router_type::prepare({.top_k = chosen_of_token}, router, tiffin::simd{}, {.tokens = n})
                    .or_throw());
        }
        if (!to) throw std::runtime_error(path.string() + " cannot be written");
    }
    ~stack() {
        std::error_code ignored;
        std::filesystem::remove(path, ignored);
    }
    stack(const stack&) = delete;
    stack& operator=(const stack&) = delete;

    // A pass over ids of its own; the seconds that it took.
    double pass(tiffin::pool_schedule& pools, std::mt19937& random) {
        std::vector<std::int32_t> ids(tokens);
        for (auto& id : ids) id = static_cast<std::int32_t>(random() % vocab);
        const tiffin::matrix_view<const float> in(x.data(), tokens, d);
        const auto start = clock_type::now();
        pools.begin();
        for (std::size_t l = 0; l < depth; ++l) {
            routers[l](in, chosen, execute).or_throw();
            pools.send(l, ids, chosen).or_throw();
            tiffin::token_inputs inputs;
            inputs.per_layer_input = pools.receive().or_throw();
            if (inputs.per_layer_input.rows == 0) inputs.per_layer_input = {none.data(), tokens, d};
            layers[l](in, inputs, tiffin::matrix_view<float>(y.data(), tokens, d), execute);
        }
        return std::chrono::duration<double>(clock_type::now() - start).count();
    }
};

int run(const std::filesystem::path& folder, std::size_t d, std::size_t f, std::size_t tokens,
        std::size_t rounds) {
    stack it(folder, d, f, tokens);
    std::mt19937 random(1);
    const tiffin::tensor_view whole{it.pool.data(), tiffin::dtype::f32, {experts * vocab, d}};
    const auto in_memory = tiffin::in_memory::view(whole).or_throw();
    auto from_memory = tiffin::pool_schedule::of({depth, in_memory}, experts, 0).or_throw();
    std::printf("%zu blocks of %zux%zu, %zu tokens, %zu rounds, %d threads\n", depth, d, f, tokens, rounds,
                omp_get_max_threads());
    struct delayed {
        std::vector<double> ratios, shares;
    };
    std::vector<delayed> all(3);
    std::vector<double> milliseconds;
    it.pass(from_memory, random);
    const tiffin_bench::disturbance others;
    for (std::size_t round = 0; round < rounds; ++round)
        for (std::size_t i = 0; i < all.size(); ++i) {
            const std::size_t delay = (round + i) % all.size();
            give_up_pages(it.path);
            std::deque<tiffin::direct_file<>> files;
            for (std::size_t l = 0; l < depth; ++l)
                files.push_back(tiffin::direct_file<>::open({it.path,
                                                             l * it.pool.size() * sizeof(float),
                                                             {experts * vocab, d, tiffin::dtype::f32, {}}})
                                    .or_throw());
            auto pools = tiffin::pool_schedule::of({files.begin(), files.end()}, experts, delay).or_throw();
            const double memory = it.pass(from_memory, random), file = it.pass(pools, random);
            all[delay].ratios.push_back(file / memory);
            all[delay].shares.push_back(pools.waited().count() / file);
            milliseconds.push_back(1e3 * memory);
        }
    std::printf("pools in memory: %s ms; others had %.0f %% of the processors' time\n",
                quartiles_text(milliseconds, 2).c_str(), 100 * others.share());
    for (std::size_t delay = 0; delay < all.size(); ++delay)
        std::printf("delay %zu, cold: time over that %s, of it waiting %s\n", delay,
                    quartiles_text(all[delay].ratios, 2).c_str(),
                    quartiles_text(all[delay].shares, 3).c_str());
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    return tiffin_bench::run_program("pool_delays", argc, argv, [&](const auto& number) {
        if (argc < 2 || number(2, 1) == 0 || number(3, 1) == 0 || number(4, 1) == 0 || number(5, 1) == 0)
            throw std::runtime_error("takes FOLDER [D_MODEL] [D_FF] [TOKENS] [ROUNDS], numbers from 1");
        return run(argv[1], number(2, 1024), number(3, 4096), number(4, 64), number(5, 21));
    });
}
