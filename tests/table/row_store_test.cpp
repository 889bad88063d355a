// Stores of rows: what they read, in every format, and what they refuse.
#include <tiffin/table/row_store.hpp>

#include <tiffin/table/cached_rows.hpp>
#include <tiffin/table/joined_columns.hpp>
#include <tiffin/table/prefetched_rows.hpp>

#include "support/doctest.hpp"
#include "support/stored_blocks.hpp"
#include "support/tensor_set.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace table_row_store_test {
using namespace tiffin;

namespace {

// A table in a format, one byte beyond any alignment, and its numbers as that format keeps them.
struct stored_table {
    table_shape shape;
    std::vector<std::byte> bytes;
    std::vector<float> numbers;

    stored_table(std::size_t rows, std::size_t width, dtype type) : shape{rows, width, type} {
        numbers = tiffin_test::random_rows(rows, width, 3);
        bytes = tiffin_test::stored_blocks(type, numbers.data(), rows * width, 7);
        bytes.insert(bytes.begin(), std::byte{0xA5});
        for (std::size_t i = 0; i < rows * width; ++i) numbers[i] = load_as_f32(bytes.data() + 1, type, i);
    }
    [[nodiscard]] tensor_view view() const {
        return {bytes.data() + 1, shape.type, {shape.rows, shape.width}};
    }
};

}  // namespace

TEST_CASE("row_store: rows of memory, in every format and at any alignment") {
    for (const dtype type : tiffin_test::row_formats) {
        CAPTURE(std::string(name_of(type)));
        const stored_table table(7, 512, type);
        const auto store = in_memory::view(table.view());
        REQUIRE(store.ok());
        CHECK(store->shape() == table.shape);
        const std::vector<std::int32_t> ids{6, 0, 3, 3};
        std::vector<std::byte> rows(ids.size() * table.shape.row_bytes());
        REQUIRE(store->read(ids, rows.data()).ok());
        std::vector<float> numbers(512);
        for (std::size_t i = 0; i < ids.size(); ++i) {
            decode_row(table.shape, rows.data() + i * table.shape.row_bytes(), numbers.data());
            const auto id = static_cast<std::size_t>(ids[i]);
            CHECK(std::memcmp(numbers.data(), table.numbers.data() + id * 512, 512 * sizeof(float)) == 0);
        }
    }
}

TEST_CASE("row_store: a callback") {
    const from_callback store({5, 2, dtype::f32},
                              [](std::span<const std::int32_t> ids, std::byte* to) -> status {
                                  for (const std::int32_t id : ids) {
                                      if (id == 4) return failure(errc::file, "elsewhere", "row 4 is away");
                                      const float row[]{static_cast<float>(id), 0.5f};
                                      std::memcpy(to, row, sizeof row);
                                      to += sizeof row;
                                  }
                                  return {};
                              });
    static_assert(row_store<decltype(store)>);
    std::vector<float> rows(4);
    REQUIRE(store.read(std::vector<std::int32_t>{3, 1}, reinterpret_cast<std::byte*>(rows.data())).ok());
    CHECK(rows == std::vector<float>{3, 0.5f, 1, 0.5f});
    const status away = store.read(std::vector<std::int32_t>{4}, reinterpret_cast<std::byte*>(rows.data()));
    REQUIRE(!away);
    CHECK(away.failure().where == "elsewhere");
}

TEST_CASE("row_store: what is refused") {
    const std::vector<float> numbers(70);
    const auto code = [&](const tensor_view& t) { return in_memory::view(t).failure().code; };
    CHECK(code({numbers.data(), dtype::i32, {7, 10}}) == errc::dtype);
    CHECK(code({numbers.data(), dtype::f32, {70}}) == errc::shape);
    CHECK(code({numbers.data(), dtype::f32, {7, 0}}) == errc::shape);
    CHECK(code({numbers.data(), dtype::q8_0, {1, 40}}) == errc::shape);
    const auto wrong = in_memory::view({numbers.data(), dtype::q8_0, {1, 40}});
    CHECK(wrong.failure().message().find("(1, 40)") != std::string::npos);

    const table_shape table{7, 10, dtype::f32};
    CHECK(check_ids(std::vector<std::int32_t>{0, 6}, table).ok());
    CHECK(check_ids({}, table).ok());
    for (const std::int32_t id : {7, -1}) {
        const status outside = check_ids(std::vector<std::int32_t>{3, id}, table);
        REQUIRE(!outside);
        CHECK(outside.failure().code == errc::token_id);
        CHECK(outside.failure().message().find("ids[1] = " + std::to_string(id)) != std::string::npos);
    }
}

TEST_CASE("row_store: rows without numbers, and tables without rows, through what stands on a store") {
    const auto copies_nothing = [](std::span<const std::int32_t>, std::byte*) -> status { return {}; };
    for (const table_shape& shape : {table_shape{5, 0, dtype::f32}, table_shape{0, 4, dtype::f32}}) {
        const from_callback store(shape, copies_nothing);
        const std::vector<std::int32_t> ids(shape.rows == 0 ? 0 : 3, 4);
        const cached_rows cache(store, {.bytes = 1000});
        CHECK(cache.capacity() == 0);
        CHECK(cache.read(ids, nullptr).ok());
        CHECK(cache.read(ids, nullptr).ok());
        const auto joined = joined_columns::of({store, cache});
        REQUIRE(joined.ok());
        CHECK(joined->read(ids, nullptr).ok());
        prefetched_rows rows(*joined);
        REQUIRE(rows.prefetch(ids).ok());
        const auto got = rows.gather(ids);
        REQUIRE(got.ok());
        CHECK(got->index.size() == ids.size());
        CHECK(got->bytes() == 0);
        if (shape.rows == 0)
            CHECK(rows.gather(std::vector<std::int32_t>{0}).failure().code == errc::token_id);
    }
}

}  // namespace table_row_store_test
