// Ids beyond a table: row 0, zeros or ones, among rows that are the table's own.
#include <tiffin/table/any_id_rows.hpp>
#include <tiffin/table/edits.hpp>
#include <tiffin/table/prefetched_rows.hpp>
#include <tiffin/table/row_store.hpp>

#include "support/doctest.hpp"
#include "support/stored_blocks.hpp"
#include "support/tensor_set.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace table_any_id_rows_test {
using namespace tiffin;

namespace {

using ids_type = std::vector<std::int32_t>;

constexpr std::size_t width = 512;  // two blocks of the widest

// Four rows.
std::vector<std::byte> stored_rows(dtype type) {
    return tiffin_test::stored_blocks(type, tiffin_test::random_rows(4, width, 3).data(), 4 * width, 7);
}

}  // namespace

TEST_CASE("any_id_rows: every format, ids beyond the table in all places of a call") {
    for (const dtype type : tiffin_test::row_formats) {
        CAPTURE(std::string(name_of(type)));
        const auto bytes = stored_rows(type);
        const auto table = in_memory::view({bytes.data(), type, {4, width}});
        REQUIRE(table.ok());
        const table_shape shape{4, width, type};
        for (const outside_row outside : {outside_row::row_0, outside_row::zeros, outside_row::ones}) {
            const any_id_rows store(*table, outside);
            for (const ids_type& ids : {ids_type{}, ids_type{4}, ids_type{2}, ids_type{3, 4, 0},
                                        ids_type{9, 1, 2147483647, 3, 3, 4}, ids_type{1000, 2000}}) {
                std::vector<std::byte> rows(ids.size() * shape.row_bytes() + 1, std::byte{0xA5});
                REQUIRE(store.read(ids, rows.data()).ok());
                CHECK(rows.back() == std::byte{0xA5});
                std::vector<float> got(width), expected(width);
                for (std::size_t i = 0; i < ids.size(); ++i) {
                    decode_row(shape, rows.data() + i * shape.row_bytes(), got.data());
                    if (ids[i] < 4 || outside == outside_row::row_0)
                        read_as_f32(bytes.data(), type,
                                    (ids[i] < 4 ? static_cast<std::size_t>(ids[i]) : 0) * width, width,
                                    expected.data());
                    else
                        expected.assign(width, outside == outside_row::ones ? 1.0f : 0.0f);
                    CHECK(got == expected);
                }
            }
        }
    }
}

TEST_CASE("any_id_rows: an error without it; with it only below 0; a failing store") {
    const auto bytes = stored_rows(dtype::f32);
    const auto table = in_memory::view({bytes.data(), dtype::f32, {4, width}});
    CHECK(prefetched_rows(*table).gather(ids_type{4}).failure().code == errc::token_id);
    const any_id_rows store(*table, outside_row::zeros);
    prefetched_rows rows(store);
    CHECK(rows.gather(ids_type{4, 0}).ok());
    CHECK(rows.gather(ids_type{-1}).failure().code == errc::token_id);

    const from_callback gone({4, 64, dtype::f32}, [](std::span<const std::int32_t>, std::byte*) -> status {
        return failure(errc::file, "table.bin", "is gone");
    });
    const any_id_rows over(gone, outside_row::ones);
    std::vector<std::byte> to(2 * 256);
    CHECK(over.read(ids_type{9, 1}, to.data()).failure().message() == "table.bin: is gone");
    CHECK(over.read(ids_type{9, 9}, to.data()).ok());  // nothing is read
}

TEST_CASE("any_id_rows: a row that an edit has added lies inside") {
    const auto bytes = stored_rows(dtype::f32);
    const auto table = in_memory::view({bytes.data(), dtype::f32, {4, width}});
    edited_rows view(*table);
    const any_id_rows store(view, outside_row::zeros);
    REQUIRE(view.add_mean(ids_type{2}).ok());
    std::vector<float> rows(2 * width, -1), wanted(2 * width);  // the mean of one row, and zeros
    read_as_f32(bytes.data(), dtype::f32, 2 * width, width, wanted.data());
    REQUIRE(store.read(ids_type{4, 5}, reinterpret_cast<std::byte*>(rows.data())).ok());
    CHECK(rows == wanted);
}

TEST_CASE("any_id_rows: a table without rows, and rows without numbers") {
    const auto nothing = in_memory::view({nullptr, dtype::f32, {0, 64}});
    REQUIRE(nothing.ok());
    std::vector<float> row(64, -1);
    std::byte* const to = reinterpret_cast<std::byte*>(row.data());
    const any_id_rows first(*nothing, outside_row::row_0);
    const status s = first.read(ids_type{3}, to);
    REQUIRE(!s.ok());
    CHECK(s.failure().code == errc::token_id);
    CHECK(s.failure().message() == "ids: are read as row 0 beyond the table, which has no rows at all");
    CHECK(first.read({}, to).ok());
    CHECK(any_id_rows(*nothing, outside_row::ones).read(ids_type{3}, to).ok());
    CHECK(row == std::vector<float>(64, 1));

    for (const dtype type : {dtype::f32, dtype::q8_0}) {
        const from_callback empty({5, 0, type},
                                  [](std::span<const std::int32_t>, std::byte*) -> status { return {}; });
        for (const outside_row outside : {outside_row::row_0, outside_row::zeros, outside_row::ones})
            CHECK(any_id_rows(empty, outside).read(ids_type{1, 7, 0}, nullptr).ok());
    }
}

}  // namespace table_any_id_rows_test
