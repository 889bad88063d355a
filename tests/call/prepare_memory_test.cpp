// What preparing costs in memory: the weights as they were given, one packed copy, and little else.
#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/layers.hpp>

#include "support/doctest.hpp"

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace call_prepare_memory_test {

namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

// The most memory this process has had at a time, in bytes; 0 where the system does not tell.
std::size_t peak() {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;)
        if (word == "VmHWM:") {
            std::size_t kibibytes = 0;
            status >> kibibytes;
            return kibibytes << 10;
        }
    return 0;
}

}  // namespace

// One test case: a peak does not sink again.
TEST_CASE("prepare for simd: given + packed + 64 MiB at the most") {
    if (peak() == 0) {
        MESSAGE("not tested: there is no VmHWM in /proc/self/status");
        return;
    }
    constexpr std::size_t d = 2048, f = 8192, vocab = 4096;
    constexpr std::size_t weight = d * f * sizeof(float);
    const std::size_t before = peak();
    tiffin::weights given;
    std::vector<std::vector<float>> numbers(3, std::vector<float>(d * f, 0.01f));
    given.add("gate_proj.weight", numbers[0].data(), {f, d});
    given.add("up_proj.weight", numbers[1].data(), {f, d});
    given.add("down_proj.weight", numbers[2].data(), {d, f});
    {
        const auto layer = tiffin::prepare<tiffin::swiglu>(given, tiffin::simd{});
        CHECK(layer.d_ff() == f);
        const std::size_t grown = peak() - before;
        CHECK(grown >= 6 * weight);  // or this test sees nothing
        CHECK_MESSAGE(grown <= 6 * weight + 64 * mebibyte, (grown / mebibyte), " MiB for ",
                      (6 * weight / mebibyte));
    }
    // An f32 table is read where it lies: with 128 MiB of it and one packed matrix less, the peak stays.
    const std::vector<float> table(vocab * f, 0.01f);
    tiffin::weights sparse;
    sparse.add("gate_proj.weight", numbers[0].data(), {f, d})
        .add("stem_embed.weight", table.data(), {vocab, f});
    sparse.add("down_proj.weight", numbers[2].data(), {d, f});
    const auto layer = tiffin::prepare<tiffin::stem>(sparse, tiffin::simd{});
    const std::size_t grown = peak() - before;
    const std::size_t wanted = 5 * weight + vocab * f * sizeof(float);
    CHECK(layer.d_ff() == f);
    CHECK_MESSAGE(grown <= wanted + 64 * mebibyte, (grown / mebibyte), " MiB for ", (wanted / mebibyte));
}

}  // namespace call_prepare_memory_test
