// Edits of a table: spans (docs/layers.md#table-edits), views over views, and that nothing stored changes.
#include <tiffin/table/edits.hpp>

#include <tiffin/table/any_id_rows.hpp>
#include <tiffin/table/cached_rows.hpp>
#include <tiffin/table/joined_columns.hpp>
#include <tiffin/table/prefetched_rows.hpp>

#include "support/doctest.hpp"
#include "support/stored_blocks.hpp"
#include "support/tensor_set.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace table_edits_test {
using namespace tiffin;
using ids_type = std::vector<std::int32_t>;

namespace {

constexpr std::size_t rows = 9, width = 32;

struct held_table {
    std::vector<float> numbers = tiffin_test::random_rows(rows, width, 5);
    in_memory store = *in_memory::view({numbers.data(), dtype::f32, {rows, width}});

    [[nodiscard]] std::vector<float> row(std::int32_t id) const {
        const auto first = numbers.begin() + id * static_cast<std::ptrdiff_t>(width);
        return {first, first + width};
    }
};

template <class Store>
std::vector<float> read_one(const Store& store, std::int32_t id) {
    std::vector<float> row(width);
    REQUIRE(check_ids({&id, 1}, store.shape()).ok());
    REQUIRE(store.read({&id, 1}, reinterpret_cast<std::byte*>(row.data())).ok());
    return row;
}

}  // namespace

TEST_CASE("edits: spans") {
    const ids_type three{7, 8, 9};
    CHECK(*fill_span(3, three) == three);
    CHECK(*fill_span(5, three, span_fill::pad_left, 1) == ids_type{1, 1, 7, 8, 9});
    CHECK(*fill_span(5, three, span_fill::pad_right, 1) == ids_type{7, 8, 9, 1, 1});
    CHECK(*fill_span(8, three, span_fill::copy) == ids_type{7, 7, 8, 8, 9, 9, 9, 9});
    CHECK(*fill_span(5, three, span_fill::copy) == ids_type{7, 8, 9, 9, 9});
    CHECK(*fill_span(6, three, span_fill::copy) == ids_type{7, 7, 8, 8, 9, 9});
    for (const std::size_t positions : {std::size_t{0}, std::size_t{2}}) {
        const auto fewer = fill_span(positions, three);
        REQUIRE(!fewer);
        CHECK(fewer.failure().code == errc::option);
        CHECK(fewer.failure().message().find("3 ids for " + std::to_string(positions)) != std::string::npos);
    }
    CHECK(!fill_span(4, ids_type{}));
}

TEST_CASE("edits: padding needs a pad id, row 0 stands in for none") {
    const ids_type three{7, 8, 9};
    for (const span_fill fill : {span_fill::pad_left, span_fill::pad_right}) {
        const auto padded = fill_span(5, three, fill);
        REQUIRE(!padded);
        CHECK(padded.failure().code == errc::option);
        CHECK(padded.failure().where == "pad_id");
        CHECK(padded.failure().what.find("is not given; 2 of 5 positions are padding") == 0);
        CHECK(*fill_span(3, three, fill) == three);
        CHECK(fill_span(5, three, fill, 0).ok());
    }
    CHECK(fill_span(5, three).failure().where == "pad_id");
    CHECK(fill_span(5, three, span_fill::copy).ok());
}

TEST_CASE("edits: by position") {
    ids_type call{0, 1, 2, 3};
    CHECK(replace_at(call, 1, ids_type{8, 7}).ok());
    CHECK(call == ids_type{0, 8, 7, 3});
    CHECK(replace_at(call, 4, {}).ok());
    for (const std::size_t first : {std::size_t{3}, std::size_t{5}, ~std::size_t{0}}) {
        CHECK(replace_at(call, first, ids_type{8, 7}).failure().code == errc::size);
        CHECK(call == ids_type{0, 8, 7, 3});
    }
}

TEST_CASE("edits: by token id, taken back, the store untouched") {
    const held_table t;
    const std::vector<float> before = t.numbers;
    edited_rows view(t.store);
    static_assert(row_store<decltype(view)>);
    CHECK(view.replace(2, 5).ok());
    CHECK(view.replace(5, 6).ok());
    CHECK(read_one(view, 2) == t.row(5));  // as it is stored: not what 5 is replaced by
    CHECK(read_one(view, 5) == t.row(6));
    CHECK(read_one(view, 3) == t.row(3));
    CHECK(view.replace(2, 8).ok());
    CHECK(read_one(view, 2) == t.row(8));
    CHECK(view.undo());
    CHECK(read_one(view, 2) == t.row(5));
    CHECK(view.undo());
    CHECK(view.undo());
    CHECK(!view.undo());
    CHECK(read_one(view, 2) == t.row(2));
    CHECK(t.numbers == before);
    CHECK(view.replace(2, 9).failure().code == errc::token_id);
    CHECK(view.replace(-1, 2).failure().code == errc::token_id);
}

TEST_CASE("edits: a mean is a row of its own") {
    const held_table t;
    edited_rows view(t.store);
    CHECK(view.shape().rows == rows);
    const auto mean = view.add_mean(ids_type{1, 4, 4});
    REQUIRE(mean.ok());
    CHECK(*mean == static_cast<std::int32_t>(rows));
    CHECK(view.shape().rows == rows + 1);
    const std::vector<float> row = read_one(view, *mean), a = t.row(1), b = t.row(4);
    for (std::size_t i = 0; i < width; ++i)
        CHECK(row[i] == static_cast<float>((static_cast<double>(a[i]) + 2 * static_cast<double>(b[i])) / 3));
    CHECK(view.replace(7, *mean).ok());
    CHECK(read_one(view, 7) == row);
    // Among others, in one call.
    std::vector<float> several(4 * width);
    REQUIRE(view.read(ids_type{7, 0, 1, *mean}, reinterpret_cast<std::byte*>(several.data())).ok());
    std::vector<float> wanted = row;
    for (const std::vector<float>& next : {t.row(0), t.row(1), row})
        wanted.insert(wanted.end(), next.begin(), next.end());
    CHECK(several == wanted);
    CHECK(view.add_mean({}).failure().code == errc::option);
    const std::vector<unsigned char> blocks = tiffin_test::noise_blocks(dtype::q5_k, 512, 3);
    const auto only_read = in_memory::view({blocks.data(), dtype::q5_k, {2, 256}});
    REQUIRE(only_read.ok());
    CHECK(edited_rows(*only_read).add_mean(ids_type{1}).failure().message() ==
          "table: holds rows of Q5_K, which is only read; a mean cannot be rounded to it");
    CHECK(view.add_mean(ids_type{1, 99}).failure().code == errc::token_id);
    CHECK(view.shape().rows == rows + 1);
}

TEST_CASE("edits: views over views") {
    const held_table t;
    edited_rows inner(t.store);
    CHECK(inner.replace(2, 5).ok());
    edited_rows<decltype(inner)> outer(inner);
    CHECK(outer.replace(1, 2).ok());
    CHECK(read_one(outer, 1) == t.row(5));
    CHECK(read_one(outer, 2) == t.row(5));
    CHECK(read_one(inner, 1) == t.row(1));
}

TEST_CASE("edits: a failing store") {
    const from_callback broken({rows, width, dtype::f32},
                               [](std::span<const std::int32_t>, std::byte*) -> status {
                                   return failure(errc::file, "table", "is away");
                               });
    edited_rows view(broken);
    CHECK(view.add_mean(ids_type{1}).failure().code == errc::file);
    CHECK(view.shape().rows == rows);
    CHECK(view.replace(1, 2).ok());
    std::vector<std::byte> row(width * sizeof(float));
    CHECK(view.read(ids_type{1}, row.data()).failure().what == "is away");
}

TEST_CASE("edits: a copy of a view has the edits so far, and its own after") {
    const held_table t;
    edited_rows view(t.store);
    CHECK(view.replace(2, 5).ok());
    edited_rows copy(view);
    static_assert(std::is_same_v<decltype(copy), decltype(view)>);
    CHECK(view.replace(2, 6).ok());
    CHECK(copy.replace(3, 7).ok());
    CHECK(read_one(copy, 2) == t.row(5));
    CHECK(read_one(copy, 3) == t.row(7));
    CHECK(read_one(view, 2) == t.row(6));
    CHECK(read_one(view, 3) == t.row(3));
}

TEST_CASE("edits: a table that has a row for every id has none left for a mean") {
    const held_table t;
    const any_id_rows all(t.store, outside_row::zeros);
    edited_rows view(all);
    const auto mean = view.add_mean(ids_type{1});
    REQUIRE(!mean);
    CHECK(mean.failure().code == errc::size);
    CHECK(mean.failure().message() == "ids: are int32 and cannot tell a row beyond the 2147483648 there are");
    CHECK(view.shape() == all.shape());
}

// Whoever keeps rows asks the store above for its version: it has to grow with those below.
TEST_CASE("edits: every change shows in the version of every store above") {
    const held_table t, other;
    CHECK(version_of(t.store) == 0);
    CHECK(row_store_ref(t.store).version() == 0);
    edited_rows below(t.store), beside(other.store);
    edited_rows<decltype(below)> view(below);
    const any_id_rows left(view, outside_row::row_0);
    const any_id_rows right(beside, outside_row::row_0);
    const cached_rows cache(left, {.rows = 3});
    const auto joined = joined_columns::of({cache, right});
    REQUIRE(joined.ok());
    const row_store_ref top(*joined);
    std::uint64_t last = top.version();
    const auto grew = [&] { return top.version() > std::exchange(last, top.version()); };
    CHECK(!grew());
    CHECK(below.replace(1, 2).ok());
    CHECK(grew());
    CHECK(view.replace(1, 3).ok());
    CHECK(grew());
    CHECK(below.undo());
    CHECK(grew());
    CHECK(beside.replace(1, 3).ok());
    CHECK(grew());
    CHECK(view.add_mean(ids_type{1, 2}).ok());
    CHECK(grew());
    CHECK(!below.undo());
    CHECK(!below.replace(1, 99).ok());
    CHECK(!grew());
}

TEST_CASE("edits: rows without numbers, and tables without rows") {
    const from_callback empty({5, 0, dtype::f32},
                              [](std::span<const std::int32_t>, std::byte*) -> status { return {}; });
    edited_rows view(empty);
    CHECK(view.shape().rows == 5);
    CHECK(*view.add_mean(ids_type{1, 2}) == 5);
    CHECK(view.replace(1, 5).ok());
    CHECK(view.shape() == table_shape{6, 0, dtype::f32});
    CHECK(view.read(ids_type{1, 0, 5}, nullptr).ok());

    const from_callback none({0, 4, dtype::f32},
                             [](std::span<const std::int32_t>, std::byte*) -> status { return {}; });
    edited_rows of_none(none);
    CHECK(of_none.add_mean(ids_type{0}).failure().code == errc::token_id);
    CHECK(of_none.replace(0, 0).failure().code == errc::token_id);
    CHECK(of_none.read({}, nullptr).ok());
}

}  // namespace table_edits_test
