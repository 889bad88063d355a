// Shards of a table as one table: rows of any of them, in any order, with scales, and errors.
#include <tiffin/table/joined_rows.hpp>

#include <tiffin/table/prefetched_rows.hpp>

#include "support/doctest.hpp"
#include "support/tensor_set.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace table_joined_rows_test {
using namespace tiffin;

namespace {

constexpr std::size_t width = 5;

// A table of 12 rows in shards of 4, 0, 7 and 1.
struct shards {
    std::vector<float> numbers = tiffin_test::random_rows(12, width, 3);
    std::deque<in_memory> parts;
    std::vector<row_store_ref> stores;

    shards() {
        std::size_t first = 0;
        for (const std::size_t rows : {4u, 0u, 7u, 1u}) {
            parts.push_back(*in_memory::view({numbers.data() + first * width, dtype::f32, {rows, width}}));
            stores.emplace_back(parts.back());
            first += rows;
        }
    }
};

}  // namespace

TEST_CASE("joined_rows: the rows of the whole table") {
    const shards all;
    const auto table = joined_rows::of(all.stores).or_throw();
    CHECK(table.shape() == table_shape{12, width, dtype::f32});
    for (const std::vector<std::int32_t>& ids :
         {std::vector<std::int32_t>{}, {0}, {11}, {4, 5, 10}, {11, 0, 4, 3, 10, 4, 11, 7, 0}}) {
        std::vector<float> rows(ids.size() * width + 1, -7.0f);
        REQUIRE(table.read(ids, reinterpret_cast<std::byte*>(rows.data())).ok());
        for (std::size_t i = 0; i < ids.size(); ++i)
            for (std::size_t j = 0; j < width; ++j)
                CHECK(rows[i * width + j] == all.numbers[static_cast<std::size_t>(ids[i]) * width + j]);
        CHECK(rows.back() == -7.0f);
    }
    prefetched_rows reader(table);
    CHECK(reader.gather(std::vector<std::int32_t>{11, 2}).ok());
    CHECK(reader.gather(std::vector<std::int32_t>{12}).failure().code == errc::token_id);
}

TEST_CASE("joined_rows: what is refused, and a shard that fails") {
    const shards all;
    const auto why = [](std::vector<row_store_ref> parts) {
        const auto made = joined_rows::of(std::move(parts));
        return made ? std::string("nothing") : made.failure().message();
    };
    CHECK(why({}) == "parts: is empty; a table is joined of one or more");
    const auto narrow = in_memory::view({all.numbers.data(), dtype::f32, {2, 4}}).or_throw();
    CHECK(why({all.parts[0], narrow}) == "parts: number 1 has rows of 4, the first of 5");
    const auto half = in_memory::view({all.numbers.data(), dtype::f16, {2, 5}}).or_throw();
    CHECK(why({all.parts[0], half}) ==
          "parts: number 1 is F16 with no scales, the first is F32 with no scales");
    const auto none = [](std::span<const std::int32_t>, std::byte*) -> status {
        return failure(errc::file, "shard.bin", "is gone");
    };
    const from_callback far({2147483640, 5, dtype::f32}, none);
    CHECK(why({all.parts[0], far, all.parts[2]}) ==
          "parts: have 2147483651 rows up to number 2; ids name 2147483647");
    const auto table = joined_rows::of({all.parts[0], far}).or_throw();
    std::vector<std::byte> rows(2 * 20);
    CHECK(table.read(std::vector<std::int32_t>{0, 3}, rows.data()).ok());
    CHECK(table.read(std::vector<std::int32_t>{0, 4}, rows.data()).failure().message() ==
          "shard.bin: is gone");
}

}  // namespace table_joined_rows_test
