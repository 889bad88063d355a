// The two calls, and the schedule of a stack: what is read when, and that rows are always those asked for.
#include <tiffin/table/prefetched_rows.hpp>
#include <tiffin/table/row_schedule.hpp>
#include <tiffin/table/row_store.hpp>

#include "support/doctest.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <semaphore>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace tiffin;

namespace {

using ids_type = std::vector<std::int32_t>;

// Rows of two numbers: the id, and a number of the table's own. Reads wait for leave where it is to be given.
class watched_store {
public:
    explicit watched_store(float number = 0, std::size_t rows = 100) : number_(number), rows_(rows) {}

    [[nodiscard]] table_shape shape() const { return {rows_, 2, dtype::f32}; }
    status read(std::span<const std::int32_t> ids, std::byte* to) const {
        if (waits) leave.acquire();
        ++reads;
        rows_read += ids.size();
        if (fails) return failure{errc::file, "table.bin", "is gone"};
        if (throws) throw std::runtime_error("no luck");
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const float row[]{static_cast<float>(ids[i]), number_};
            std::memcpy(to + i * sizeof row, row, sizeof row);
        }
        return {};
    }

    mutable std::counting_semaphore<> leave{0};
    mutable std::atomic<std::size_t> reads{0}, rows_read{0};
    std::atomic<bool> waits{false}, fails{false}, throws{false};

private:
    float number_;
    std::size_t rows_;
};

void check_rows(const result<gathered_rows>& got, const ids_type& ids, float number = 0) {
    REQUIRE(got.ok());
    REQUIRE(got->index.size() == ids.size());
    for (std::size_t t = 0; t < ids.size(); ++t) {
        float row[2];
        std::memcpy(row, got->row(t), sizeof row);
        CHECK(row[0] == static_cast<float>(ids[t]));
        CHECK(row[1] == number);
    }
}

}  // namespace

TEST_CASE("distinct_ids: every id once, in the order in which they come") {
    distinct_ids distinct;
    for (const ids_type& ids : {ids_type{5, 3, 5, 5, 0, 3}, ids_type{}, ids_type{7}, ids_type(1000, 2)}) {
        distinct.assign(ids);
        CHECK(distinct.index().size() == ids.size());
        ids_type seen;
        for (const std::int32_t id : ids)
            if (std::find(seen.begin(), seen.end(), id) == seen.end()) seen.push_back(id);
        CHECK(std::ranges::equal(distinct.ids(), seen));
        for (std::size_t t = 0; t < ids.size(); ++t)
            CHECK(distinct.ids()[static_cast<std::size_t>(distinct.index()[t])] == ids[t]);
    }
    ids_type many(5000);  // more than ever before, from far apart
    for (std::size_t i = 0; i < many.size(); ++i)
        many[i] = static_cast<std::int32_t>(i * 2654435761u % 2000 * 1048573);
    distinct.assign(many);
    for (std::size_t t = 0; t < many.size(); ++t)
        REQUIRE(distinct.ids()[static_cast<std::size_t>(distinct.index()[t])] == many[t]);
    CHECK(distinct.ids().size() == 2000);
}

TEST_CASE("prefetched_rows: prefetch returns before the rows are there, gather waits for them") {
    watched_store store;
    store.waits = true;
    prefetched_rows rows(store);
    const ids_type ids{3, 9, 3};
    REQUIRE(rows.prefetch(ids).ok());
    CHECK(store.reads == 0);  // it has not been given leave
    store.leave.release();
    check_rows(rows.gather(ids), ids);
    CHECK(store.reads == 1);
    CHECK(store.rows_read == 2);
}

TEST_CASE(
    "prefetched_rows: two in flight, gathered in any order, and rows that stay while the next are read") {
    watched_store store;
    prefetched_rows rows(store);
    const ids_type a{1, 2}, b{3, 4, 5}, c{6};
    REQUIRE(rows.prefetch(a).ok());
    REQUIRE(rows.prefetch(b).ok());
    const auto got_b = rows.gather(b);
    REQUIRE(rows.prefetch(c).ok());
    check_rows(got_b, b);
    check_rows(rows.gather(a), a);
    check_rows(rows.gather(c), c);
    CHECK(store.reads == 3);
}

TEST_CASE("prefetched_rows: without a prefetch, after another one, and after more than can be kept") {
    watched_store store;
    prefetched_rows rows(store);
    check_rows(rows.gather(ids_type{8, 8}), {8, 8});
    REQUIRE(rows.prefetch(ids_type{1}).ok());
    check_rows(rows.gather(ids_type{2}), {2});  // the prefetch is dropped
    for (std::int32_t i = 10; i < 20; ++i) REQUIRE(rows.prefetch(ids_type{i}).ok());
    for (std::int32_t i = 10; i < 20; ++i) check_rows(rows.gather(ids_type{i}), {i});
    check_rows(rows.gather(ids_type{}), {});
    check_rows(rows.gather(ids_type{19}), {19});
}

TEST_CASE("prefetched_rows: a third while two are in flight is no more than advice that comes too late") {
    watched_store store;
    store.waits = true;
    prefetched_rows rows(store);
    for (std::int32_t i = 0; i < 5; ++i) REQUIRE(rows.prefetch(ids_type{i}).ok());  // never waits
    store.leave.release(100);
    for (std::int32_t i = 0; i < 5; ++i) check_rows(rows.gather(ids_type{i}), {i});
}

TEST_CASE("prefetched_rows: failures come to the caller of gather, and the next call tries again") {
    watched_store store;
    prefetched_rows rows(store);
    const ids_type ids{3};
    for (const bool ahead : {true, false}) {
        CAPTURE(ahead);
        store.fails = true;
        if (ahead) REQUIRE(rows.prefetch(ids).ok());
        const auto lost = rows.gather(ids);
        REQUIRE(!lost.ok());
        CHECK(lost.failure().message() == "table.bin: is gone");
        store.fails = false;
        check_rows(rows.gather(ids), ids);

        store.throws = true;
        if (ahead) REQUIRE(rows.prefetch(ids).ok());
        const auto thrown = rows.gather(ids);
        REQUIRE(!thrown.ok());
        CHECK(thrown.failure().message() == "store: threw: no luck");
        store.throws = false;
        check_rows(rows.gather(ids), ids);
    }
    for (const ids_type& bad : {ids_type{0, 100}, ids_type{-1}}) {
        CHECK(rows.prefetch(bad).failure().code == errc::token_id);
        CHECK(rows.gather(bad).failure().code == errc::token_id);
    }
}

TEST_CASE("prefetched_rows: ends while reads are in flight") {
    watched_store store;
    store.waits = true;
    {
        prefetched_rows rows(store);
        REQUIRE(rows.prefetch(ids_type{1}).ok());
        REQUIRE(rows.prefetch(ids_type{2}).ok());
        store.leave.release(2);
    }
    CHECK(store.reads <= 2);
}

TEST_CASE("row_schedule: every layer's rows, pass by pass, the next ones read meanwhile") {
    for (const std::size_t ahead : {0u, 1u, 2u, 7u}) {
        CAPTURE(ahead);
        const watched_store a(1), b(2), c(3), d(4);
        row_schedule rows({a, b, c, d}, ahead);
        const std::vector<ids_type> passes{{5, 5, 2}, {7}, {1, 2, 3, 4, 1}};
        for (const ids_type& ids : passes) {
            REQUIRE(rows.begin(ids).ok());
            for (std::size_t layer = 0; layer < 4; ++layer)
                check_rows(rows.next(), ids, static_cast<float>(layer + 1));
            CHECK(rows.next().failure().code == errc::size);
        }
        CHECK(a.reads == 3);
        CHECK(d.reads == 3);
        CHECK(a.rows_read == 2 + 1 + 4);
    }
}

TEST_CASE("row_schedule: layer l + 1 is read while l computes, and l + 2 is not yet") {
    watched_store a(1), b(2), c(3);
    b.waits = true;
    c.waits = true;
    row_schedule rows({a, b, c});
    const ids_type ids{4};
    REQUIRE(rows.begin(ids).ok());
    const auto first = rows.next();
    b.leave.release();
    while (b.reads == 0) std::this_thread::yield();  // nobody asks for it; ends or the test does not
    check_rows(first, ids, 1);
    CHECK(c.reads == 0);
    c.leave.release();
    check_rows(rows.next(), ids, 2);
    check_rows(rows.next(), ids, 3);
    CHECK(rows.waited().count() >= 0);
}

TEST_CASE("row_schedule: a failed layer ends the pass; the next pass is whole; a pass may be left") {
    watched_store a(1), b(2), c(3);
    row_schedule rows({a, b, c});
    b.fails = true;
    REQUIRE(rows.begin(ids_type{4}).ok());
    check_rows(rows.next(), {4}, 1);
    CHECK(rows.next().failure().message() == "table.bin: is gone");
    CHECK(rows.next().failure().code == errc::size);
    b.fails = false;
    REQUIRE(rows.begin(ids_type{6, 7}).ok());
    check_rows(rows.next(), {6, 7}, 1);
    REQUIRE(rows.begin(ids_type{8}).ok());  // the rest of the last is not wanted
    for (std::size_t layer = 0; layer < 3; ++layer)
        check_rows(rows.next(), {8}, static_cast<float>(layer + 1));
    CHECK(rows.begin(ids_type{100}).failure().code == errc::token_id);
    const watched_store shorter(4, 50);
    row_schedule unequal({a, shorter});
    CHECK(unequal.begin(ids_type{60}).failure().code == errc::token_id);
}
