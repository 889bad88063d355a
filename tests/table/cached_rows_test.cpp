// The cache: the store's rows whatever it keeps, the rows that its policies keep, its bounds and counts.
#include <tiffin/table/cached_rows.hpp>
#include <tiffin/table/edits.hpp>
#include <tiffin/table/row_store.hpp>

#include "support/doctest.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

namespace table_cached_rows_test {

#if defined(__has_feature)
#    if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#        define TIFFIN_TEST_SANITIZED
#    endif
#endif

using namespace tiffin;

namespace {

using ids_type = std::vector<std::int32_t>;

// Rows of three numbers that begin with the id; counts what is read of it.
struct counted_store {
    std::size_t rows = 1000;
    bool fails = false;
    mutable std::size_t rows_read = 0;

    [[nodiscard]] table_shape shape() const { return {rows, 3, dtype::f32}; }
    status read(std::span<const std::int32_t> ids, std::byte* to) const {
        if (fails) return failure(errc::file, "table.bin", "is gone");
        rows_read += ids.size();
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const float row[]{static_cast<float>(ids[i]), 2, 3};
            std::memcpy(to + i * sizeof row, row, sizeof row);
        }
        return {};
    }
};

bool right(const ids_type& ids, const std::vector<float>& rows) {
    for (std::size_t i = 0; i < ids.size(); ++i)
        if (rows[i * 3] != static_cast<float>(ids[i]) || rows[i * 3 + 1] != 2 || rows[i * 3 + 2] != 3)
            return false;
    return true;
}

template <class Cache>
bool reads_right(const Cache& cache, const ids_type& ids) {
    std::vector<float> rows(ids.size() * 3, -1);
    return cache.read(ids, reinterpret_cast<std::byte*>(rows.data())).ok() && right(ids, rows);
}

// A cache written down without a heap: looks at every row for the smallest priority.
template <class Policy>
struct plain_cache {
    struct row {
        std::uint64_t uses = 0, priority = 0, last = 0;
    };
    std::size_t most = 0;
    std::map<std::int32_t, row> kept{};
    std::uint64_t now = 0, age = 0, hits = 0;

    // One id a call, so that the order of a call's ids is of no matter.
    void read(std::int32_t id) {
        hits += kept.contains(id) ? 1u : 0u;
        if (!kept.contains(id) && kept.size() == most) {
            const auto least = std::min_element(kept.begin(), kept.end(), [](const auto& a, const auto& b) {
                return std::pair(a.second.priority, a.second.last) <
                       std::pair(b.second.priority, b.second.last);
            });
            age = least->second.priority;
            kept.erase(least);
        }
        row& r = kept[id];
        r.last = ++now;
        r.priority = Policy::priority(++r.uses, now, age);
    }
};

// Ids of which some are far more common than others, as of words.
std::int32_t common_id(tiffin_test::random_numbers& random, std::size_t rows) {
    return static_cast<std::int32_t>(random.below(1 + random.below(1 + random.below(rows))));
}

}  // namespace

TEST_CASE_TEMPLATE("cached_rows: the store's rows, at any size of cache and of call", Policy,
                   least_recently_used, least_frequently_used) {
    tiffin_test::random_numbers random(3);
    for (const std::size_t most : {1u, 2u, 7u, 100u, 5000u}) {
        CAPTURE(most);
        const counted_store store;
        const cached_rows<counted_store, Policy> cache(store, {.rows = most});
        CHECK(cache.capacity() == std::min<std::size_t>(most, 1000));
        std::size_t asked = 0;
        for (int call = 0; call < 200; ++call) {
            ids_type ids(random.below(40));
            for (std::int32_t& id : ids) id = common_id(random, 1000);  // some twice
            asked += ids.size();
            REQUIRE(reads_right(cache, ids));
        }
        const cache_counts counts = cache.counts();
        CHECK(counts.hits + counts.misses == asked);
        CHECK(counts.misses == store.rows_read);
        CHECK(counts.bytes_read == store.rows_read * 12);
        if (most > 1) CHECK(counts.hits > 0);
    }
}

TEST_CASE("cached_rows: keeps what was read last") {
    const counted_store store;
    const cached_rows<counted_store, least_recently_used> cache(store, {.rows = 3});
    for (const std::int32_t id : {1, 2, 3, 1, 4}) REQUIRE(reads_right(cache, {id}));  // 2 leaves
    CHECK(store.rows_read == 4);
    REQUIRE(reads_right(cache, {1, 3, 4}));
    CHECK(store.rows_read == 4);
    REQUIRE(reads_right(cache, {2}));
    CHECK(store.rows_read == 5);
}

TEST_CASE("cached_rows: keeps what was read often, but not for ever") {
    const counted_store store;
    const cached_rows cache(store, {.rows = 2});
    for (int i = 0; i < 5; ++i) REQUIRE(reads_right(cache, {1}));
    for (std::int32_t id = 2; id < 5; ++id) REQUIRE(reads_right(cache, {id}));
    const std::size_t before = store.rows_read;
    REQUIRE(reads_right(cache, {1}));  // 2, 3 and 4 have only displaced one another
    CHECK(store.rows_read == before);
    for (std::int32_t id = 10; id < 30; ++id) REQUIRE(reads_right(cache, {id}));
    const std::size_t later = store.rows_read;
    REQUIRE(reads_right(cache, {1}));  // its six reads were long ago
    CHECK(store.rows_read == later + 1);
}

TEST_CASE_TEMPLATE("cached_rows: hits as a plain cache of the same policy", Policy, least_recently_used,
                   least_frequently_used) {
    const counted_store store;
    const cached_rows<counted_store, Policy> cache(store, {.rows = 50});
    plain_cache<Policy> plain{.most = 50};
    tiffin_test::random_numbers random(9);
    for (int i = 0; i < 5000; ++i) {
        const std::int32_t id = common_id(random, 1000);
        plain.read(id);
        REQUIRE(reads_right(cache, {id}));
    }
    CHECK(cache.counts().hits == plain.hits);
    CHECK(plain.hits > 1000);
}

TEST_CASE("cached_rows: bounds by bytes, with what finds the rows; a bound below one row keeps none") {
    const counted_store store;
    const cached_rows by_bytes(store, {.bytes = 10000});
    CHECK(by_bytes.capacity() >= 10000 / (12 + 100));
    CHECK(by_bytes.capacity() <= 10000 / (12 + sizeof(std::int32_t)));
    CHECK(cached_rows(store, {.rows = 5, .bytes = 10000}).capacity() == 5);
    CHECK(cached_rows(store, {}).capacity() == 1000);
    const cached_rows none(store, {.bytes = 11});
    CHECK(none.capacity() == 0);
    CHECK(reads_right(none, {4, 4}));
    CHECK(none.counts().hits == 0);
}

// Sanitizers keep memory of their own beside that of the program, and freed memory for a while.
#if defined(__linux__) && !defined(TIFFIN_TEST_SANITIZED)
TEST_CASE("cached_rows: the process grows by the limit, not more, over a table ten times as large") {
    const auto resident = [] {
        std::ifstream file("/proc/self/statm");
        double all = 0, pages = 0;
        file >> all >> pages;
        return pages * static_cast<double>(::sysconf(_SC_PAGESIZE));
    };
    constexpr std::size_t most = std::size_t{64} << 20;
    for (const std::size_t width : {128u, 4096u}) {  // rows of 512 bytes and of 16 KiB
        CAPTURE(width);
        const table_shape shape{10 * most / (width * sizeof(float)), width, dtype::f32};
        const from_callback store(shape, [=](std::span<const std::int32_t> ids, std::byte* to) -> status {
            std::memset(to, 1, ids.size() * shape.row_bytes());
            return {};
        });
        std::vector<std::byte> rows(64 * shape.row_bytes());
        std::memset(rows.data(), 0, rows.size());
        const double before = resident();
        const cached_rows cache(store, {.bytes = most});
        for (std::size_t first = 0; first + 64 <= shape.rows; first += 64) {
            ids_type ids(64);
            for (std::size_t i = 0; i < 64; ++i) ids[i] = static_cast<std::int32_t>(first + i);
            REQUIRE(cache.read(ids, rows.data()).ok());
        }
        const double grown = resident() - before;
        CAPTURE(grown);
        CHECK(grown <= 1.05 * most);
        CHECK(grown >= 0.9 * most);
        CHECK(cache.counts().hits == 0);
    }
}
#endif

TEST_CASE("cached_rows: a failed read changes nothing") {
    counted_store store;
    const cached_rows cache(store, {.rows = 4});
    REQUIRE(reads_right(cache, {1, 2}));
    store.fails = true;
    std::vector<float> rows(9);
    const status s = cache.read(ids_type{1, 5, 6}, reinterpret_cast<std::byte*>(rows.data()));
    REQUIRE(!s.ok());
    CHECK(s.failure().message() == "table.bin: is gone");
    CHECK(reads_right(cache, {2, 1}));  // needs no store
    store.fails = false;
    CHECK(reads_right(cache, {1, 5, 6}));
    CHECK(cache.counts().misses == 4);
}

TEST_CASE_TEMPLATE("cached_rows: what was kept before an edit below is read again", Policy,
                   least_recently_used, least_frequently_used) {
    const counted_store store;
    edited_rows view(store);
    const cached_rows<edited_rows<counted_store>, Policy> cache(view, {.rows = 2});
    const auto reads = [&](const ids_type& ids, const ids_type& as) {
        std::vector<float> rows(ids.size() * 3, -1);
        REQUIRE(cache.read(ids, reinterpret_cast<std::byte*>(rows.data())).ok());
        return right(as, rows);
    };
    CHECK(reads({1, 2}, {1, 2}));
    CHECK(cache.version() == view.version());
    REQUIRE(view.replace(2, 7).ok());
    CHECK(reads({2, 1}, {7, 1}));
    CHECK(reads({3, 2, 4, 1, 2}, {3, 7, 4, 1, 7}));
    REQUIRE(view.undo());
    CHECK(reads({1, 2}, {1, 2}));
    const auto mean = view.add_mean(ids_type{6});
    REQUIRE(mean.ok());
    CHECK(cache.shape().rows == 1001);
    CHECK(reads({*mean}, {6}));
    // Without an edit they are kept.
    const std::uint64_t before = cache.counts().hits;
    for (int i = 0; i < 3; ++i) CHECK(reads({*mean}, {6}));
    CHECK(cache.counts().hits == before + 3);
}

TEST_CASE("cached_rows: what was read while an edit came below is not kept for longer") {
    struct edited_store {
        std::function<void()> edit;
        float number = 1;
        std::uint64_t edits = 0;
        [[nodiscard]] table_shape shape() const { return {10, 1, dtype::f32}; }
        [[nodiscard]] std::uint64_t version() const { return edits; }
        status read(std::span<const std::int32_t> ids, std::byte* to) const {
            for (std::size_t i = 0; i < ids.size(); ++i) std::memcpy(to + i * 4, &number, 4);
            if (edit) edit();
            return {};
        }
    } store;
    const cached_rows cache(store, {.rows = 5});
    const auto row = [&] {
        float number = -1;
        REQUIRE(cache.read(ids_type{3}, reinterpret_cast<std::byte*>(&number)).ok());
        return number;
    };
    store.edit = [&] {
        store.number = 2;
        ++store.edits;
    };
    CHECK(row() == 1);
    store.edit = {};
    CHECK(row() == 2);
    CHECK(row() == 2);
    CHECK(cache.counts().hits == 1);
}

TEST_CASE("cached_rows: several threads") {
    const counted_store store;
    const cached_rows cache(store, {.rows = 20});
    std::vector<int> wrong(4, 0);
    std::vector<std::thread> threads;
    for (std::size_t n = 0; n < wrong.size(); ++n)
        threads.emplace_back([&, n] {
            tiffin_test::random_numbers random(static_cast<std::uint32_t>(n + 1));
            for (int i = 0; i < 500; ++i) {
                ids_type ids(1 + random.below(10));
                for (std::int32_t& id : ids) id = common_id(random, 1000);
                wrong[n] += reads_right(cache, ids) ? 0 : 1;
            }
        });
    for (std::thread& t : threads) t.join();
    CHECK(wrong == std::vector<int>(4, 0));
}

}  // namespace table_cached_rows_test
