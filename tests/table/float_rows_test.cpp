// Rows as f32: gathered and summed in every format, against sums of the widened rows in double.
#include <tiffin/table/float_rows.hpp>

#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/reference/reference.hpp>
#include <tiffin/table/cached_rows.hpp>
#include <tiffin/table/edits.hpp>

#include "support/doctest.hpp"
#include "support/stored_blocks.hpp"
#include "support/tensor_set.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace table_float_rows_test {
using namespace tiffin;

namespace {

const number_formats by_simd = simd<f32, any_format>{.tables = kept_as_given}.formats();

// A table in a format, and its numbers as that format keeps them.
struct stored_table {
    std::vector<float> numbers;
    std::vector<std::byte> bytes;
    in_memory store;

    stored_table(std::size_t rows, std::size_t width, dtype type)
        : numbers(tiffin_test::random_rows(rows, width, 3)),
          bytes(tiffin_test::stored_blocks(type, numbers.data(), rows * width, 7)),
          store(*in_memory::view({bytes.data(), type, {rows, width}})) {
        for (std::size_t i = 0; i < rows * width; ++i) numbers[i] = load_as_f32(bytes.data(), type, i);
    }
};

// More rows than one piece of the buffer holds, with repetitions, in no order.
std::vector<std::int32_t> some_ids(std::size_t count, std::size_t rows) {
    std::vector<std::int32_t> ids(count);
    for (std::size_t i = 0; i < count; ++i) ids[i] = static_cast<std::int32_t>(i * i * 7 % rows);
    return ids;
}

// What differs from the sums in double by more than n roundings of the sum of magnitudes, n terms each.
std::size_t wrong_sums(const stored_table& table, std::size_t width, std::span<const std::int32_t> ids,
                       std::span<const std::size_t> first, std::span<const float> weights,
                       std::span<const float> found) {
    std::size_t wrong = 0;
    for (std::size_t g = 0; g < first.size(); ++g) {
        const std::size_t end = g + 1 < first.size() ? first[g + 1] : ids.size();
        for (std::size_t j = 0; j < width; ++j) {
            double sum = 0, size = 0;
            for (std::size_t i = first[g]; i < end; ++i) {
                const double term = (weights.empty() ? 1.0 : double{weights[i]}) *
                                    double{table.numbers[static_cast<std::size_t>(ids[i]) * width + j]};
                sum += term;
                size += std::fabs(term);
            }
            const double allowed =
                static_cast<double>(end - first[g] + 1) * size * std::numeric_limits<float>::epsilon();
            if (!(std::fabs(double{found[g * width + j]} - sum) <= allowed)) ++wrong;
        }
    }
    return wrong;
}

}  // namespace

TEST_CASE("float_rows: the bits of every format, gathered") {
    for (const dtype type : tiffin_test::row_formats) {
        CAPTURE(std::string(name_of(type)));
        for (const std::size_t width : {std::size_t{256}, std::size_t{37}}) {
            if (width % block_of(type) != 0) continue;
            const stored_table table(11, width, type);
            const std::vector<std::int32_t> ids = some_ids(width == 37 ? 2000 : 300, 11);
            std::vector<float> found(ids.size() * width + 1, -5.0f);
            for (const number_formats& formats : {by_simd, reference<>{}.formats()}) {
                REQUIRE(float_rows(table.store, formats).gather(ids, found.data()).ok());
                std::size_t wrong = 0;
                for (std::size_t i = 0; i < ids.size(); ++i)
                    wrong += std::memcmp(found.data() + i * width,
                                         table.numbers.data() + static_cast<std::size_t>(ids[i]) * width,
                                         width * sizeof(float)) != 0;
                CHECK(wrong == 0);
                CHECK(found.back() == -5.0f);
            }
        }
    }
}

TEST_CASE("float_rows: sums of groups, empty ones among them, with weights and without") {
    for (const dtype type : tiffin_test::row_formats) {
        CAPTURE(std::string(name_of(type)));
        constexpr std::size_t width = 256;
        const stored_table table(11, width, type);
        const std::vector<std::int32_t> ids = some_ids(300, 11);
        const std::vector<std::size_t> first{0, 0, 1, 7, 7, 290, 300};
        const std::vector<float> weights = tiffin_test::random_rows(1, ids.size(), 5);
        std::vector<float> found(first.size() * width);
        const float_rows rows(table.store, by_simd);
        REQUIRE(rows.sum(ids, first, {}, found.data()).ok());
        CHECK(wrong_sums(table, width, ids, first, {}, found) == 0);
        for (const std::size_t g : {std::size_t{0}, std::size_t{3}, std::size_t{6}})
            CHECK(std::count(found.begin() + static_cast<std::ptrdiff_t>(g * width),
                             found.begin() + static_cast<std::ptrdiff_t>((g + 1) * width), 0.0f) == width);
        REQUIRE(rows.sum(ids, first, weights, found.data()).ok());
        CHECK(wrong_sums(table, width, ids, first, weights, found) == 0);
    }
    const stored_table table(3, 5, dtype::f32);
    CHECK(float_rows(table.store, by_simd).sum({}, {}, {}, nullptr).ok());
}

TEST_CASE("float_rows: over caches, edits and references") {
    for (const dtype type : {dtype::f32, dtype::bf16, dtype::q8_0}) {
        CAPTURE(std::string(name_of(type)));
        const stored_table table(6, 64, type);
        edited_rows edited(table.store);
        const std::int32_t means[]{1, 2};
        const std::int32_t mean = *edited.add_mean(means);
        const row_store_ref any(edited);
        const cached_rows cached(any, cache_limit{.rows = 3});
        const auto row_of = [&](auto& store, std::int32_t id) {
            std::vector<float> found(64), summed(64);
            const std::size_t first = 0;
            CHECK(float_rows(store, by_simd).gather({&id, 1}, found.data()).ok());
            CHECK(float_rows(store, by_simd).sum({&id, 1}, {&first, 1}, {}, summed.data()).ok());
            CHECK(found == summed);
            return found;
        };
        const auto stored = [&](std::ptrdiff_t id) {
            return std::vector<float>(table.numbers.begin() + 64 * id, table.numbers.begin() + 64 * (id + 1));
        };
        CHECK(row_of(any, 4) == stored(4));
        REQUIRE(edited.replace(4, 5).ok());
        CHECK(row_of(any, 4) == stored(5));
        CHECK(row_of(cached, 4) == stored(5));
        CHECK(row_of(any, mean) == row_of(cached, mean));
        CHECK(row_of(any, mean) != stored(1));
        REQUIRE(edited.undo());
        CHECK(row_of(any, 4) == stored(4));
        CHECK(row_of(cached, 4) == stored(4));
    }
}

TEST_CASE("float_rows: groups that do not fit the ids are refused before anything is written") {
    const stored_table table(3, 5, dtype::f32);
    const float_rows rows(table.store, by_simd);
    const std::vector<std::int32_t> ids{0, 1, 2};
    std::vector<float> found(15, -5.0f);
    const auto refused = [&](std::vector<std::size_t> first, std::vector<float> weights,
                             const char* sentence) {
        const status s = rows.sum(ids, first, weights, found.data());
        REQUIRE(!s.ok());
        CHECK(s.failure().code == errc::size);
        CHECK(s.failure().message() == sentence);
        CHECK(std::count(found.begin(), found.end(), -5.0f) == 15);
    };
    refused({}, {}, "first: must begin with 0, the first id of the first group");
    refused({1, 2}, {}, "first: must begin with 0, the first id of the first group");
    refused({0, 2, 1}, {}, "first: first[2] = 1 must lie between first[1] = 2 and the 3 ids");
    refused({0, 4}, {}, "first: first[1] = 4 must lie between first[0] = 0 and the 3 ids");
    refused({0}, {1, 2}, "weights: are 2 for 3 ids");
}

}  // namespace table_float_rows_test
