// The rows of several tables side by side: by addresses, from one store or many, read before they are wanted.
#include <tiffin/table/ngram_rows.hpp>

#include <tiffin/table/ngram_addresses.hpp>
#include <tiffin/table/row_store.hpp>

#include "support/doctest.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace table_ngram_rows_test {
using namespace tiffin;

namespace {

std::vector<float> numbers(std::size_t n, unsigned seed) {
    std::vector<float> all(n);
    tiffin_test::random_numbers(seed).fill(all, 1.0f);
    return all;
}

tensor_view view_of(const std::vector<float>& of, std::size_t rows, std::size_t width) {
    return {of.data(), dtype::f32, {rows, width}};
}

// Rows in memory, which counts those that are asked for and may be told to fail.
struct counted {
    tensor_view table;
    mutable std::atomic<std::size_t> read = 0, calls = 0;
    std::atomic<bool> fails = false;
    std::atomic<std::uint64_t> changes = 0;

    explicit counted(const tensor_view& of) : table(of) {}
    [[nodiscard]] table_shape shape() const { return {table.shape[0], table.shape[1], dtype::f32}; }
    [[nodiscard]] std::uint64_t version() const { return changes; }
    status read_rows(std::span<const std::int32_t> ids, std::byte* to) const {
        if (fails) return failure(errc::file, "store", "is gone");
        const status done = in_memory::view(table)->read(ids, to);
        ++calls;
        read += ids.size();
        return done;
    }
};
struct counted_store {
    const counted* of;
    [[nodiscard]] table_shape shape() const { return of->shape(); }
    [[nodiscard]] std::uint64_t version() const { return of->version(); }
    status read(std::span<const std::int32_t> ids, std::byte* to) const { return of->read_rows(ids, to); }
};

}  // namespace

TEST_CASE("ngram_rows: what the addresses of Engram say, side by side") {
    // Two tables in one store, as published files have them, and one by itself, of another width.
    constexpr std::size_t ids = 40, tokens = 19;
    engram_hash of{std::vector<std::int32_t>(ids), {3, 7, 11}, {{5, 7}, {11}}, 0};
    for (std::size_t i = 0; i < ids; ++i) of.compressed[i] = static_cast<std::int32_t>(i / 2);
    const auto address = ngram_addresses<engram_hash>::of(of).or_throw();
    const std::vector<float> both = numbers(12 * 6, 3), third = numbers(11 * 4, 5);
    const counted joint(view_of(both, 12, 6)), alone(view_of(third, 11, 4));
    const counted_store first{&joint}, second{&alone};
    auto memory = ngram_rows::of({{first, 0, 5}, {first, 5}, {second}}).or_throw();
    CHECK(memory.width() == 6 + 6 + 4);
    CHECK(memory.tables() == address.tables());

    std::vector<ngram_history> past(1, ngram_history(address.order()));
    tiffin_test::random_numbers random(9);
    for (const bool ahead : {true, false, true}) {
        std::vector<std::int32_t> given(tokens), rows(3 * tokens);
        for (std::int32_t& id : given) id = static_cast<std::int32_t>(random.below(ids));
        address(given, std::vector<std::uint32_t>(tokens, 0), past, rows).or_throw();
        if (ahead) memory.prefetch(rows).or_throw();
        const matrix_view<const float> e = memory.gather(rows).or_throw();
        REQUIRE(e.rows == tokens);
        REQUIRE(e.cols == 16);
        std::size_t different = 0;
        for (std::size_t t = 0; t < tokens; ++t)
            for (std::size_t j = 0; j < 16; ++j) {
                const auto row = [&](std::size_t table) {
                    return static_cast<std::size_t>(rows[table * tokens + t]);
                };
                const float wanted = j < 6    ? both[row(0) * 6 + j]
                                     : j < 12 ? both[(5 + row(1)) * 6 + j - 6]
                                              : third[row(2) * 4 + j - 12];
                different += e.row(t)[j] == wanted ? 0u : 1u;
            }
        CHECK(different == 0);
    }
    // Equal rows of a table are read once: at most as many as it has.
    CHECK(joint.read <= 3 * 12);
    CHECK(alone.read <= 3 * 11);
    // A store is read once per call, whatever tables it holds.
    CHECK(joint.calls == 3);
    CHECK(alone.calls == 3);
}

TEST_CASE("ngram_rows: tables of two stores in turns, and one row in two tables") {
    const std::vector<float> a = numbers(9 * 3, 3), b = numbers(8 * 2, 5);
    const counted of_a(view_of(a, 9, 3)), of_b(view_of(b, 8, 2));
    const counted_store first{&of_a}, second{&of_b};
    auto memory = ngram_rows::of({{first}, {second, 4}, {first, 2, 3}, {second}}).or_throw();
    REQUIRE(memory.width() == 10);
    for (const bool ahead : {false, true}) {
        const std::vector<std::int32_t> rows{3, 8, 0, 3, 1, 0, 7, 4};  // two tokens
        if (ahead) memory.prefetch(rows).or_throw();
        const matrix_view<const float> e = memory.gather(rows).or_throw();
        const std::size_t of_first[2][2]{{3, 3}, {8, 2}}, of_second[2][2]{{4, 7}, {7, 4}};
        for (std::size_t t = 0; t < 2; ++t)
            for (std::size_t j = 0; j < 10; ++j) {
                const std::size_t in = j % 5, n = j / 5;
                CHECK(e.row(t)[j] == (in < 3 ? a[of_first[t][n] * 3 + in] : b[of_second[t][n] * 2 + in - 3]));
            }
    }
    CHECK(of_a.calls == 2);
    CHECK(of_a.read == 2 * 3);  // row 3 of both tables once
    CHECK(of_b.read == 2 * 2);
}

TEST_CASE("ngram_rows: a prefetch is advice, and a store that changes is read again") {
    std::vector<float> table = numbers(9 * 3, 3);
    counted counts(view_of(table, 9, 3));
    const counted_store store{&counts};
    auto memory = ngram_rows::of({{store}}).or_throw();
    const std::vector<std::int32_t> some{1, 1, 4}, others{2, 8};
    memory.prefetch(some).or_throw();
    memory.prefetch(others).or_throw();
    CHECK(memory.gather(some).or_throw().row(2)[1] == table[4 * 3 + 1]);
    CHECK(counts.read == 2 + 2 + 2);
    memory.prefetch(others).or_throw();
    static_cast<void>(memory.gather(others).or_throw());
    CHECK(counts.read == 6 + 2);
    memory.prefetch(some).or_throw();
    // The store reads on a thread of its own; what it reads changes afterwards.
    while (counts.read < 8 + 2) std::this_thread::yield();
    table[3] = 77;
    ++counts.changes;
    CHECK(memory.gather(some).or_throw().row(0)[0] == 77);
    CHECK(memory.gather(std::vector<std::int32_t>{}).or_throw().rows == 0);
    counts.fails = true;
    const auto gone = memory.gather(some);
    REQUIRE_FALSE(gone.ok());
    CHECK(gone.failure().code == errc::file);
    counts.fails = false;
    CHECK(memory.gather(some).or_throw().row(0)[0] == 77);
}

TEST_CASE("ngram_rows: what is wrong is told, with its numbers") {
    const std::vector<float> table = numbers(9 * 3, 3);
    const counted counts(view_of(table, 9, 3));
    const counted_store store{&counts};
    const auto says = [](const auto& outcome, errc code, const std::string& where, const std::string& words) {
        REQUIRE_FALSE(outcome.ok());
        CHECK(outcome.failure().code == code);
        CHECK(outcome.failure().where == where);
        CHECK_MESSAGE(outcome.failure().what.find(words) != std::string::npos, outcome.failure().what);
    };
    says(ngram_rows::of({}), errc::size, "tables", "none");
    says(ngram_rows::of({{store}, {store, 4, 6}}), errc::size, "tables[1]",
         "rows 4 to 10 of a store that has 9");
    says(ngram_rows::of({{store, 9}}), errc::size, "tables[0]", "of a store that has 9");
    auto memory = ngram_rows::of({{store, 0, 4}, {store, 4}}).or_throw();
    says(memory.gather(std::vector<std::int32_t>{1, 2, 3}), errc::size, "rows", "are 3 of 2 tables");
    says(memory.gather(std::vector<std::int32_t>{3, 4, 0, 0}), errc::token_id, "rows",
         "rows[1] = 4 lies outside the 4 rows of table 0");
    says(memory.prefetch(std::vector<std::int32_t>{3, 0, 0, -1}), errc::token_id, "rows", "rows[3] = -1");
    CHECK(memory.gather(std::vector<std::int32_t>{3, 4}).ok());
}

}  // namespace table_ngram_rows_test
