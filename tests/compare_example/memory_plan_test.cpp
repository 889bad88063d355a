// Which layers compare_layers has in memory together.
#include "../../examples/compare_layers/memory_plan.hpp"

#include "support/doctest.hpp"

#include <cstddef>
#include <vector>

namespace compare_example_memory_plan_test {

namespace {

// As at 2048 x 8192 in f32: SwiGLU, then layers of other sizes.
std::vector<layer_bytes> some_layers() {
    std::vector<layer_bytes> made{{.making = 406e6, .held = 205e6, .read = 201e6}};
    for (int i = 0; i < 20; ++i)
        made.push_back({.making = 3e8 + 1e7 * i, .held = 1.5e8 + 5e6 * i, .read = i % 3 == 0 ? 1e7 : 1.3e8});
    made.push_back({.making = 816e6, .held = 410e6, .read = 402e6});
    return made;
}

}  // namespace

TEST_CASE("memory_plan: each layer once, within the limit at any size of the cache") {
    const std::vector<layer_bytes> layers = some_layers();
    for (const double cache : {1e6, 32e6, 105e6, 315e6, 630e6, 1.2e9, 1e10}) {
        const memory_plan plan = memory_plan::of(layers, 2e8, 2 * cache, 2.2e9);
        CHECK(plan.peak <= 2.2e9);
        std::vector<int> seen(layers.size());
        bool all_swept = true;
        for (const memory_plan::group& g : plan.groups) {
            double read = layers[0].read + g.sweep, held = 2e8 + layers[0].held, most = held;
            for (const std::size_t i : g.layers) {
                ++seen[i];
                most = std::max(most, held + layers[i].making);
                held += layers[i].held;
                read += layers[i].read;
            }
            CHECK(std::max(most, held + g.sweep) <= plan.peak);
            all_swept = all_swept && read >= 2 * cache;
        }
        CHECK(all_swept == plan.all_swept);
        CHECK(plan.all_swept == (cache < 7e8));
        for (std::size_t i = 1; i < seen.size(); ++i) CHECK(seen[i] == 1);
    }
}

TEST_CASE("memory_plan: nothing is read that the layers themselves put out of the caches") {
    const memory_plan plan = memory_plan::of(some_layers(), 2e8, 6.4e7, 2.2e9);
    for (const memory_plan::group& g : plan.groups) CHECK(g.sweep == 0);
}

TEST_CASE("memory_plan: a layer that exceeds the limit is alone, and counted") {
    const memory_plan plan =
        memory_plan::of({{4e8, 2e8, 2e8}, {3e9, 1.5e9, 1e9}, {1e8, 5e7, 5e7}}, 1e8, 1e9, 1.8e9);
    REQUIRE(plan.groups.size() == 2);
    CHECK(plan.groups[0].layers == std::vector<std::size_t>{1});
    CHECK(plan.groups[1].layers == std::vector<std::size_t>{2});
    CHECK(plan.peak == 1e8 + 2e8 + 3e9);
}

TEST_CASE("memory_plan: the first layer alone") {
    const memory_plan plan = memory_plan::of({{4e8, 2e8, 2e8}}, 1e8, 6e8, 2e9);
    REQUIRE(plan.groups.size() == 1);
    CHECK(plan.groups[0].layers.empty());
    CHECK(plan.groups[0].sweep == 4e8);
    CHECK(plan.peak == 1e8 + 2e8 + 4e8);
}

}  // namespace compare_example_memory_plan_test
