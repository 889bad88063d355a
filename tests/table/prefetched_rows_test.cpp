// The two calls, and the schedule of a stack: what is read when, and that rows are always those asked for.
#include <tiffin/table/prefetched_rows.hpp>

#include <tiffin/table/cached_rows.hpp>
#include <tiffin/table/edits.hpp>
#include <tiffin/table/row_schedule.hpp>
#include <tiffin/table/row_store.hpp>

#include "executor/in_child.hpp"
#include "support/doctest.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <semaphore>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace table_prefetched_rows_test {
using namespace tiffin;

namespace {

using ids_type = std::vector<std::int32_t>;

// Rows of two numbers: the id, and a number of the table's own. Reads wait for leave where it is to be given.
class watched_store {
public:
    explicit watched_store(float number = 0, std::size_t rows = 100) : number_(number), rows_(rows) {}

    [[nodiscard]] table_shape shape() const { return {rows_, 2, dtype::f32}; }
    status read(std::span<const std::int32_t> ids, std::byte* to) const {
        ++begun;
        if (waits) leave.acquire();
        ++reads;
        rows_read += ids.size();
        if (fails) return failure(errc::file, "table.bin", "is gone");
        if (throws) throw std::runtime_error("no luck");
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const float row[]{static_cast<float>(ids[i]), number_};
            std::memcpy(to + i * sizeof row, row, sizeof row);
        }
        return {};
    }

    mutable std::counting_semaphore<> leave{0};
    mutable std::atomic<std::size_t> begun{0}, reads{0}, rows_read{0};
    std::atomic<bool> waits{false}, fails{false}, throws{false};

private:
    float number_;
    std::size_t rows_;
};

bool right_rows(const result<gathered_rows>& got, const ids_type& ids, float number = 0) {
    if (!got.ok() || got->index.size() != ids.size()) return false;
    for (std::size_t t = 0; t < ids.size(); ++t) {
        float row[2];
        std::memcpy(row, got->row(t), sizeof row);
        if (row[0] != static_cast<float>(ids[t]) || row[1] != number) return false;
    }
    return true;
}

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

TEST_CASE("row_schedule: more layers ahead than there are, and no layers at all") {
    const watched_store a(1), b(2);
    row_schedule rows({a, b}, ~std::size_t{0});
    REQUIRE(rows.begin(ids_type{4}).ok());
    check_rows(rows.next(), {4}, 1);
    check_rows(rows.next(), {4}, 2);
    row_schedule none({}, ~std::size_t{0});
    CHECK(none.begin(ids_type{4}).ok());
    CHECK(none.next().failure().code == errc::size);
}

// The count of reads tells when the edited ids have been looked up: an edit comes too late for them then.
TEST_CASE("prefetched_rows: rows prefetched before an edit are read again") {
    watched_store store;
    edited_rows view(store);
    prefetched_rows rows(view);
    const ids_type ids{3, 9, 3};
    const auto prefetch_twice = [&] {
        const std::size_t before = store.reads;
        REQUIRE(rows.prefetch(ids).ok());
        REQUIRE(rows.prefetch(ids).ok());
        while (store.reads != before + 2) std::this_thread::yield();
    };
    prefetch_twice();
    REQUIRE(view.replace(3, 5).ok());
    check_rows(rows.gather(ids), {5, 9, 5});
    check_rows(rows.gather(ids), {5, 9, 5});
    CHECK(store.reads == 4);

    prefetch_twice();
    REQUIRE(view.undo());
    check_rows(rows.gather(ids), ids);
    check_rows(rows.gather(ids), ids);
    CHECK(store.reads == 8);

    prefetch_twice();  // nothing is read again without an edit
    check_rows(rows.gather(ids), ids);
    check_rows(rows.gather(ids), ids);
    CHECK(store.reads == 10);
}

TEST_CASE("prefetched_rows: an edit while rows are being read; one after a failed read") {
    watched_store store;
    edited_rows view(store);
    prefetched_rows rows(view);
    const ids_type ids{3};
    store.waits = true;
    REQUIRE(rows.prefetch(ids).ok());
    while (store.begun == 0) std::this_thread::yield();
    REQUIRE(view.replace(3, 5).ok());  // does not wait for the read
    store.leave.release(2);
    check_rows(rows.gather(ids), {5});

    store.waits = false;
    store.fails = true;
    const std::size_t before = store.reads;
    REQUIRE(rows.prefetch(ids).ok());
    while (store.reads == before) std::this_thread::yield();
    store.fails = false;
    REQUIRE(view.replace(3, 6).ok());
    check_rows(rows.gather(ids), {6});
}

TEST_CASE("prefetched_rows: edits from this thread while the other reads") {
    watched_store store;
    edited_rows view(store);
    cached_rows cache(view, {.rows = 4});
    prefetched_rows rows(view), kept(cache);
    const ids_type ids{3, 9};
    std::size_t wrong = 0;
    for (int i = 0; i < 300; ++i) {
        const std::int32_t by = i % 50 + 10;
        REQUIRE(rows.prefetch(ids).ok());
        REQUIRE(kept.prefetch(ids).ok());
        if (i % 3 == 0) REQUIRE(view.add_mean(ids).ok());
        REQUIRE(view.replace(3, by).ok());
        wrong += !right_rows(rows.gather(ids), {by, 9});
        wrong += !right_rows(kept.gather(ids), {by, 9});
        if (i % 2 == 0) REQUIRE(view.undo());
    }
    CHECK(wrong == 0);
}

TEST_CASE("row_schedule: rows read ahead of an edit are read again") {
    watched_store a(1), b(2);
    edited_rows view_a(a), view_b(b);
    row_schedule rows({view_a, view_b});
    const ids_type ids{4, 7};
    REQUIRE(rows.begin(ids).ok());
    while (a.reads != 1) std::this_thread::yield();
    REQUIRE(view_a.replace(4, 8).ok());
    check_rows(rows.next(), {8, 7}, 1);
    while (b.reads != 1) std::this_thread::yield();
    REQUIRE(view_b.replace(7, 9).ok());
    check_rows(rows.next(), {4, 9}, 2);
    CHECK(a.reads == 2);
    CHECK(b.reads == 2);
    REQUIRE(rows.begin(ids).ok());  // and not without an edit
    check_rows(rows.next(), {8, 7}, 1);
    check_rows(rows.next(), {4, 9}, 2);
    CHECK(a.reads == 3);
    CHECK(b.reads == 3);
}

// Wrong rows came: those read last into the memory that was to become larger.
TEST_CASE("prefetched_rows, row_schedule: no earlier rows where memory was short" NOT_UNDER_SANITIZERS) {
    struct growing_store {
        std::size_t width = 2;
        [[nodiscard]] table_shape shape() const { return {100, width, dtype::f32}; }
        status read(std::span<const std::int32_t> ids, std::byte* to) const {
            const watched_store rows;
            return rows.read(ids, to);
        }
    } store;
    prefetched_rows rows(store);
    row_schedule schedule({store});
    check_rows(rows.gather(ids_type{1}), {1});
    check_rows(rows.gather(ids_type{2}), {2});
    check_rows(rows.gather(ids_type{3}), {3});
    REQUIRE(schedule.begin(ids_type{1}).ok());
    check_rows(schedule.next(), {1});
    store.width = std::size_t{1} << 55;
    CHECK_THROWS_AS(static_cast<void>(rows.prefetch(ids_type{4})), std::bad_alloc);
    CHECK_THROWS_AS(static_cast<void>(rows.gather(ids_type{5})), std::bad_alloc);
    CHECK_THROWS_AS(static_cast<void>(schedule.begin(ids_type{4})), std::bad_alloc);
    store.width = 2;
    check_rows(rows.gather(ids_type{4}), {4});
    check_rows(rows.gather(ids_type{5}), {5});
    CHECK(schedule.next().failure().code == errc::size);  // no pass
    REQUIRE(schedule.begin(ids_type{4}).ok());
    check_rows(schedule.next(), {4});
}

TEST_CASE("prefetched_rows: in a child of fork(), rows read before and there" NOT_UNDER_TSAN) {
    watched_store store;
    auto rows = std::make_unique<prefetched_rows>(store);
    check_rows(rows->gather(ids_type{1}), {1});
    REQUIRE(rows->prefetch(ids_type{2}).ok());
    while (store.reads != 2) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // until the reader sleeps
    CHECK(tiffin_test::holds_in_child([&] {
        bool right = right_rows(rows->gather(ids_type{2}), {2}) && store.reads == 2;
        for (std::int32_t i = 3; i < 9; ++i)
            right = right && rows->prefetch(ids_type{i, 50}).ok() && rows->prefetch(ids_type{i}).ok() &&
                    right_rows(rows->gather(ids_type{i}), {i});
        store.fails = true;
        right = right && rows->prefetch(ids_type{90}).ok() && !rows->gather(ids_type{90}).ok();
        prefetched_rows own(store);  // its thread may get the handle of the one that is not there
        rows.reset();
        store.fails = false;
        return right && own.prefetch(ids_type{4}).ok() && right_rows(own.gather(ids_type{4}), {4});
    }));
    check_rows(rows->gather(ids_type{2}), {2});
}

TEST_CASE("prefetched_rows: in a child of fork() that came during a read" NOT_UNDER_TSAN) {
    watched_store store;
    const cached_rows cache(store, {.rows = 10});  // locked by the read
    auto rows = std::make_unique<prefetched_rows>(cache);
    check_rows(rows->gather(ids_type{1}), {1});
    store.waits = true;
    REQUIRE(rows->prefetch(ids_type{2}).ok());
    REQUIRE(rows->prefetch(ids_type{3}).ok());
    while (store.begun != 2) std::this_thread::yield();
    CHECK(tiffin_test::holds_in_child([&] {
        bool failed = true;
        for (const std::int32_t id : {2, 3, 1, 4}) {
            failed = failed && !rows->prefetch(ids_type{id}).ok();
            const auto got = rows->gather(ids_type{id});
            failed = failed && !got.ok() && got.failure().code == errc::file &&
                     got.failure().message().find("store: was being read by a thread") == 0;
        }
        rows.reset();
        return failed;
    }));
    store.leave.release(2);
    check_rows(rows->gather(ids_type{2}), {2});
    check_rows(rows->gather(ids_type{3}), {3});
}

TEST_CASE("row_schedule: in a child of fork()" NOT_UNDER_TSAN) {
    watched_store a(1), b(2), c(3);
    auto rows = std::make_unique<row_schedule>(std::vector<row_store_ref>{a, b, c});
    const ids_type ids{4};
    REQUIRE(rows->begin(ids).ok());
    check_rows(rows->next(), ids, 1);
    while (b.reads != 1) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    CHECK(tiffin_test::holds_in_child([&] {
        bool right = right_rows(rows->next(), ids, 2) && right_rows(rows->next(), ids, 3);
        right = right && rows->begin(ids_type{5}).ok();
        for (const float number : {1.0f, 2.0f, 3.0f}) right = right && right_rows(rows->next(), {5}, number);
        rows.reset();
        return right;
    }));
    check_rows(rows->next(), ids, 2);
    check_rows(rows->next(), ids, 3);
    c.waits = true;
    REQUIRE(rows->begin(ids).ok());
    for (const float number : {1.0f, 2.0f}) check_rows(rows->next(), ids, number);
    while (c.begun != 2) std::this_thread::yield();
    CHECK(tiffin_test::holds_in_child([&] {
        const bool failed = !rows->next().ok() && !rows->begin(ids_type{5}).ok() && !rows->next().ok();
        rows.reset();
        return failed;
    }));
    c.leave.release();
    check_rows(rows->next(), ids, 3);
}

}  // namespace table_prefetched_rows_test
