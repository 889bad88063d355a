// Rows of tables in host memory on their way to the device: always those of the ids, fetched once, hot ones
// kept.
#include <tiffin/cuda.hpp>
#include <tiffin/table/edits.hpp>

#include "support/doctest.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace cuda_offloaded_rows_test {

// Not for the whole file: with `cuda` of tiffin's in sight, the code that nvcc generates does not find the
// toolkit's.
using namespace tiffin;

namespace {

struct table_fixture {
    static constexpr std::size_t vocab = 500, width = 6;
    std::vector<float> numbers = std::vector<float>(vocab * width);
    tensor_view view{nullptr, dtype::f32, {vocab, width}};
    cudaStream_t stream{};

    table_fixture() {
        for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
        view.data = numbers.data();
        REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
    }
    ~table_fixture() { static_cast<void>(cudaStreamDestroy(stream)); }

    // The rows of these ids as a layer on the device would read them.
    std::vector<float> read(offloaded_rows& from, const std::vector<std::int32_t>& ids, bool prefetched) {
        auto there =
            cuda_detail::device_memory::make(ids.size() * sizeof(std::int32_t) + 1, "test").or_throw();
        REQUIRE(cudaMemcpy(there.data(), ids.data(), ids.size() * sizeof(std::int32_t),
                           cudaMemcpyHostToDevice) == cudaSuccess);
        const std::span<const std::int32_t> given(there.as<std::int32_t>(), ids.size());
        if (prefetched) CHECK(from.prefetch(given, stream).ok());
        const auto now = from.gather(given, stream);
        REQUIRE(now.ok());
        REQUIRE(now->index.size() == ids.size());
        REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
        return rows_of(*now);
    }
    // What is gathered now, a row per token.
    static std::vector<float> rows_of(const gathered_rows& now) {
        std::vector<std::int32_t> index(now.index.size());
        std::vector<std::byte> all(now.bytes());
        REQUIRE(cudaMemcpy(index.data(), now.index.data(), index.size() * sizeof(std::int32_t),
                           cudaMemcpyDeviceToHost) == cudaSuccess);
        REQUIRE(cudaMemcpy(all.data(), now.data, all.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
        std::vector<float> read(index.size() * width);
        for (std::size_t t = 0; t < index.size(); ++t) {
            REQUIRE(index[t] >= 0);
            REQUIRE(static_cast<std::size_t>(index[t]) < now.count);
            std::memcpy(read.data() + t * width, all.data() + static_cast<std::size_t>(index[t]) * now.stride,
                        width * sizeof(float));
        }
        return read;
    }
    [[nodiscard]] std::vector<float> wanted(const std::vector<std::int32_t>& ids) const {
        std::vector<float> made;
        for (const std::int32_t id : ids)
            for (std::size_t i = 0; i < width; ++i)
                made.push_back(numbers[static_cast<std::size_t>(id) * width + i]);
        return made;
    }
    static std::size_t different(const std::vector<std::int32_t>& ids) {
        return std::set<std::int32_t>(ids.begin(), ids.end()).size();
    }
};

// Ids as in text: some much more often than others.
std::vector<std::int32_t> skewed_ids(std::size_t count, std::mt19937& random) {
    std::vector<std::int32_t> made(count);
    for (auto& id : made) {
        const double u = std::uniform_real_distribution<double>(0, 1)(random);
        id = static_cast<std::int32_t>(499.0 * u * u * u * u);
    }
    return made;
}

}  // namespace

TEST_CASE_FIXTURE(table_fixture, "rows are those of the ids, whatever is cached") {
    for (const std::size_t cached : {0u, 1u, 8u, 64u, 500u, 4000u}) {
        CAPTURE(cached);
        auto rows = offloaded_rows::make(view, {.tokens = 70, .cached_rows = cached}).or_throw();
        std::mt19937 random(3);
        std::uint64_t tokens = 0, distinct = 0;
        std::set<std::int32_t> seen;
        for (std::size_t call = 0; call < 40; ++call) {
            const std::vector<std::int32_t> ids = skewed_ids(1 + call * 17 % 70, random);
            CHECK(read(rows, ids, call % 3 != 0) == wanted(ids));
            tokens += ids.size();
            distinct += different(ids);
            seen.insert(ids.begin(), ids.end());
        }
        CHECK(rows.check().ok());
        const offload_counts counts = rows.counts().or_throw();
        CHECK(counts.calls == 40);
        CHECK(counts.tokens == tokens);
        CHECK(counts.hits + counts.misses == distinct);
        if (cached < 8) CHECK(counts.hits == 0);
        if (cached == 4000)
            CHECK(counts.misses == seen.size());  // a slot for every row: each is fetched once
    }
}

TEST_CASE_FIXTURE(table_fixture, "hot rows stay, and make room when others become hot") {
    auto rows = offloaded_rows::make(view, {.tokens = 8, .cached_rows = 16}).or_throw();
    const std::vector<std::int32_t> hot{1, 2, 3}, later{10, 11, 12}, once{100, 101};
    const auto misses = [&] { return rows.counts().or_throw().misses; };
    for (int i = 0; i < 5; ++i) CHECK(read(rows, hot, true) == wanted(hot));
    CHECK(misses() <= 6);  // two misses of a call can look at 16 slots: the third comes in with the next call
    for (std::int32_t i = 0; i < 40; ++i)
        CHECK(read(rows, {200 + i, 250 + i}, true) == wanted({200 + i, 250 + i}));
    const auto before = misses();
    CHECK(read(rows, hot, true) == wanted(hot));
    CHECK(misses() - before <= 1);  // forty rows seen once did not drive out those seen five times
    for (int i = 0; i < 60; ++i) CHECK(read(rows, later, true) == wanted(later));
    const auto then = misses();
    CHECK(read(rows, later, true) == wanted(later));
    CHECK(misses() == then);
}

TEST_CASE_FIXTURE(table_fixture, "rows that were hot long ago make room for those that are now") {
    auto rows = offloaded_rows::make(view, {.tokens = 8, .cached_rows = 8}).or_throw();
    const std::vector<std::int32_t> old{1, 2, 3, 4, 5, 6, 7, 8}, now{11, 12, 13, 14, 15, 16, 17, 18};
    for (int i = 0; i < 100; ++i) read(rows, old, true);
    // Fewer than a hundred uses: without ageing none of them would get a place.
    for (int i = 0; i < 60; ++i) read(rows, now, true);
    const std::uint64_t hits = rows.counts().or_throw().hits;
    CHECK(read(rows, now, true) == wanted(now));
    CHECK(rows.counts().or_throw().hits > hits);
}

TEST_CASE_FIXTURE(table_fixture, "a store gives the rows, and its failure is told") {
    bool fails = false, throws = false;
    std::size_t most = 0;
    const auto held = in_memory::view(view).or_throw();
    const from_callback store(held.shape(), [&](std::span<const std::int32_t> ids, std::byte* to) -> status {
        if (fails) return failure(errc::file, "the disk", "is gone");
        if (throws) throw std::runtime_error("no luck");
        most = std::max(most, ids.size());
        return held.read(ids, to);
    });
    auto rows = offloaded_rows::make(store, {.tokens = 30, .cached_rows = 40}).or_throw();
    const std::vector<std::int32_t> ids{5, 7, 5, 5, 499, 0, 7};
    CHECK(read(rows, ids, true) == wanted(ids));
    CHECK(most == 4);  // each row once
    CHECK(read(rows, ids, false) == wanted(ids));
    CHECK(rows.check().ok());
    fails = true;
    read(rows, {300}, true);
    const status s = rows.check();
    REQUIRE_FALSE(s.ok());
    CHECK(s.failure().message() == "the disk: is gone");
    fails = false;
    throws = true;
    read(rows, {301, 5}, true);
    const status thrown = rows.check();
    REQUIRE_FALSE(thrown.ok());
    CHECK(thrown.failure().message() == "store: threw: no luck");
    throws = false;
    // What did not come is not taken for cached, what was cached before still is.
    CHECK(read(rows, {300, 301, 5}, true) == wanted({300, 301, 5}));
    CHECK(rows.check().ok());
}

TEST_CASE_FIXTURE(table_fixture, "an edit below is seen: by the cache on the device, and after a prefetch") {
    const in_memory held = in_memory::view(view).or_throw();
    edited_rows edited(held);
    auto rows = offloaded_rows::make(edited, {.tokens = 8, .cached_rows = 16}).or_throw();
    const std::vector<std::int32_t> ids{5, 7, 5};
    for (int i = 0; i < 3; ++i) CHECK(read(rows, ids, true) == wanted(ids));  // cached by then
    CHECK(edited.replace(5, 499).ok());
    CHECK(read(rows, ids, true) == wanted({499, 7, 499}));
    auto there = cuda_detail::device_memory::make(sizeof(std::int32_t) * ids.size(), "test").or_throw();
    REQUIRE(cudaMemcpy(there.data(), ids.data(), ids.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice) ==
            cudaSuccess);
    const std::span<const std::int32_t> given(there.as<std::int32_t>(), ids.size());
    REQUIRE(rows.prefetch(given, stream).ok());
    REQUIRE(rows.check().ok());  // it has been read
    CHECK(edited.undo());
    const auto now = rows.gather(given, stream);
    REQUIRE(now.ok());
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(rows_of(*now) == wanted(ids));
}

TEST_CASE_FIXTURE(table_fixture, "what is wrong with a call") {
    auto rows = offloaded_rows::make(view, {.tokens = 4, .cached_rows = 8}).or_throw();
    const std::vector<std::int32_t> bad{3, 500, 3}, host{1, 2}, many{1, 2, 3, 4, 5};
    read(rows, bad, true);
    const status outside = rows.check();
    REQUIRE_FALSE(outside.ok());
    CHECK(outside.failure().message() == "table: token_ids[1] = 500 lies outside its 500 rows");
    CHECK(rows.check().ok());
    CHECK(rows.prefetch(host, stream).failure().code == errc::device);
    CHECK(rows.prefetch(many, stream).failure().message() == "ids: has 5 ids; there is room for 4 of a call");
    tensor_view blocks = view;
    blocks.type = dtype::q8_0;
    blocks.shape = {10, 32};
    CHECK(offloaded_rows::make(blocks).failure().code == errc::dtype);
}

TEST_CASE_FIXTURE(table_fixture, "memory that is pinned already is taken as it is") {
    auto first = offloaded_rows::make(view, {.tokens = 8, .cached_rows = 8}).or_throw();
    auto second = offloaded_rows::make(view, {.tokens = 8}).or_throw();
    CHECK(read(first, {5, 499}, true) == wanted({5, 499}));
    CHECK(read(second, {5, 0}, true) == wanted({5, 0}));
    auto pinned = cuda_detail::registered_memory::make(numbers.size() * sizeof(float), "test").or_throw();
    std::memcpy(pinned.host(), numbers.data(), numbers.size() * sizeof(float));
    tensor_view there = view;
    there.data = pinned.host();
    auto third = offloaded_rows::make(there, {.tokens = 8}).or_throw();
    CHECK(read(third, {7, 7, 8}, false) == wanted({7, 7, 8}));
}

TEST_CASE_FIXTURE(table_fixture, "fetch and gathering are captured in a graph and replayed on other ids") {
    auto rows = offloaded_rows::make(view, {.tokens = 30, .cached_rows = 40}).or_throw();
    std::mt19937 random(5);
    constexpr std::size_t tokens = 20;
    auto ids = cuda_detail::device_memory::make(tokens * sizeof(std::int32_t), "test").or_throw();
    const std::span<const std::int32_t> given(ids.as<std::int32_t>(), tokens);
    cudaGraph_t graph{};
    cudaGraphExec_t ready{};
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(rows.prefetch(given, stream).ok());
    CHECK(rows.check().failure().message().find("captured") != std::string::npos);
    const gathered_rows now = rows.gather(given, stream).or_throw();
    REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&ready, graph, 0) == cudaSuccess);
    std::uint64_t distinct = 0;
    for (int replay = 0; replay < 60; ++replay) {
        const std::vector<std::int32_t> here = skewed_ids(tokens, random);
        distinct += different(here);
        REQUIRE(cudaMemcpy(ids.data(), here.data(), ids.size(), cudaMemcpyHostToDevice) == cudaSuccess);
        REQUIRE(cudaGraphLaunch(ready, stream) == cudaSuccess);
        REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
        CHECK(rows_of(now) == wanted(here));
    }
    const offload_counts counts = rows.counts().or_throw();
    CHECK(counts.calls == 60);
    CHECK(counts.hits > 0);
    CHECK(counts.hits + counts.misses == distinct);
    static_cast<void>(cudaGraphExecDestroy(ready));
    static_cast<void>(cudaGraphDestroy(graph));
}

#if defined(TIFFIN_CUDA_ON_HOST)
TEST_CASE_FIXTURE(table_fixture, "a prefetch waits for what reads the rows of the last one") {
    auto rows = offloaded_rows::make(view, {.tokens = 8}).or_throw();
    const std::vector<std::int32_t> ids{4, 9, 11, 13};
    auto there = cuda_detail::device_memory::make(ids.size() * sizeof(std::int32_t), "test").or_throw();
    REQUIRE(cudaMemcpy(there.data(), ids.data(), there.size(), cudaMemcpyHostToDevice) == cudaSuccess);
    const std::int32_t* const first = there.as<std::int32_t>();
    auto copied = cuda_detail::device_memory::make(2 * width * sizeof(float), "test").or_throw();
    const gathered_rows now = rows.gather({first, 2}, stream).or_throw();
    // Two rows, in the order in which they were asked for: there is no cache.
    REQUIRE(cudaMemcpyAsync(copied.data(), now.data, copied.size(), cudaMemcpyDeviceToDevice, stream) ==
            cudaSuccess);
    CHECK(rows.prefetch({first + 2, 2}, stream).ok());
    CHECK(rows.check().ok());  // waits for the fetch, and for the stream only as far as the fetch does
    std::vector<float> read(2 * width);
    emulated::look_into(read.data(), copied.data(), copied.size());
    CHECK(read == wanted({4, 9}));
}

TEST_CASE_FIXTURE(table_fixture, "what a fetch that was refused half-way admitted is not taken for cached") {
    const std::vector<std::int32_t> ids{4, 9};
    auto there = cuda_detail::device_memory::make(ids.size() * sizeof(std::int32_t), "test").or_throw();
    REQUIRE(cudaMemcpy(there.data(), ids.data(), there.size(), cudaMemcpyHostToDevice) == cudaSuccess);
    const std::span<const std::int32_t> given(there.as<std::int32_t>(), 2);
    for (std::size_t after = 0; after < 8; ++after) {
        CAPTURE(after);
        auto rows = offloaded_rows::make(view, {.tokens = 4, .cached_rows = 16}).or_throw();
        emulated::device().launches_before_next = after;
        emulated::device().next_launch = cudaErrorInvalidConfiguration;
        const bool refused = !rows.prefetch(given, stream).ok();
        CHECK(refused == (after < 7));
        emulated::device().next_launch = cudaSuccess;
        CHECK(read(rows, ids, true) == wanted(ids));
    }
    emulated::device().launches_before_next = 0;
}

TEST_CASE_FIXTURE(table_fixture, "a prefetch that failed is not taken for one that is under way") {
    auto rows = offloaded_rows::make(view, {.tokens = 4, .cached_rows = 8}).or_throw();
    const std::vector<std::int32_t> ids{4, 9};
    auto there = cuda_detail::device_memory::make(sizeof(std::int32_t) * 2, "test").or_throw();
    REQUIRE(cudaMemcpy(there.data(), ids.data(), there.size(), cudaMemcpyHostToDevice) == cudaSuccess);
    const std::span<const std::int32_t> given(there.as<std::int32_t>(), 2);
    emulated::device().next_launch = cudaErrorInvalidConfiguration;
    CHECK_FALSE(rows.prefetch(given, stream).ok());
    CHECK(rows.gather(given, stream).ok());
    CHECK(rows.counts().or_throw().misses == 2);  // fetched by gather()
}
#endif

}  // namespace cuda_offloaded_rows_test
