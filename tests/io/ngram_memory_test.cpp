// What a memory by the last ids is made of: constants as numpy draws them, their file, and tables in shards with scales.
#include <tiffin/io/engram_constants.hpp>
#include <tiffin/io/memory_table.hpp>

#include <tiffin/io/safetensors_writer.hpp>
#include <tiffin/io/table_file.hpp>
#include <tiffin/table/mapped_file.hpp>
#include <tiffin/tensor.hpp>

#include "support/doctest.hpp"
#include "support/scratch_folder.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace io_ngram_memory_test {
using namespace tiffin;
using numbers = std::vector<std::int64_t>;

TEST_CASE("multipliers are those of numpy.random.default_rng") {
    // numpy 2.3: default_rng(seed).integers(0, bound, 4), bound = (2^63 - 1) // compressed // 2, times 2, plus 1
    CHECK(io::draw_multipliers(0, 14, 99092, 4) ==
          numbers{67716810739261, 51510806800915, 30921347202721, 82619226485591});
    // A seed of more than 32 bits, and a bound at which numbers are drawn again.
    io::detail::numpy_generator from(0x123456789ABCDEF);
    CHECK(numbers{static_cast<std::int64_t>(from.below(6000000000000000001)),
                  static_cast<std::int64_t>(from.below(6000000000000000001)),
                  static_cast<std::int64_t>(from.below(6000000000000000001)),
                  static_cast<std::int64_t>(from.below(6000000000000000001))} ==
          numbers{4267623666481025201, 5747999371306584690, 3005871465094054406, 2948996014258795634});
}

TEST_CASE("primes are those that no length or layer before has taken") {
    CHECK(io::draw_primes(8, 2, 2, 2) == numbers{11, 13, 17, 19, 23, 29, 31, 37});
    CHECK(io::draw_primes(2, 1, 1, 3) == numbers{2, 3, 5});
}

TEST_CASE("a file of constants") {
    const tiffin_test::scratch_folder folder;
    const auto path = folder / "constants.safetensors";
    const std::int64_t pad = 3;
    const std::int32_t map[] = {0, 1, 1};
    io::safetensors_writer writer;
    writer.add("pad_id", {&pad, dtype::i64, {1}});
    writer.add("token_map", {map, dtype::i32, {3}});
    writer.write(path).or_throw();
    const auto read = io::read_engram_constants(path).or_throw();
    CHECK(read.pad == numbers{3});
    CHECK(read.token_map == numbers{0, 1, 1});
    CHECK(read.primes.empty());
    CHECK(io::read_engram_constants(folder / "none").failure().code == errc::file);
}

TEST_CASE("a table in shards, with a scale for all or scales of its rows") {
    const tiffin_test::scratch_folder folder;
    const auto path = folder / "table.safetensors";
    const std::uint8_t first[] = {0x38, 0x40, 0x48, 0xB8}, second[] = {0x30, 0x28};  // 1, 2, 4, -1; 0.5, 0.25
    const std::uint8_t scales_of_first[] = {127, 128}, scales_of_second[] = {130};   // 1, 2; 8
    io::safetensors_writer writer;
    writer.add("first", {first, dtype::f8_e4m3, {2, 2}});
    writer.add("second", {second, dtype::f8_e4m3, {1, 2}});
    writer.add("scales.first", {scales_of_first, dtype::f8_e8m0, {2, 1}});
    writer.add("scales.second", {scales_of_second, dtype::f8_e8m0, {1, 1}});
    writer.write(path).or_throw();
    const auto at = [&](const char* name) { return io::find_table(path, name).or_throw(); };
    io::memory_table table{{at("first"), at("second")}, {}, 0.5f};
    CHECK(table.shape().rows == 3);
    const auto row_of = [&](std::int32_t id) {
        const auto rows = io::memory_rows<mapped_file>::open(table).or_throw();
        CHECK(rows.shape().rows == 3);
        std::vector<std::byte> stored(rows.shape().row_bytes());
        rows.read({&id, 1}, stored.data()).or_throw();
        std::vector<float> row(2);
        decode_row(rows.shape(), stored.data(), row.data());
        return row;
    };
    CHECK(row_of(1) == std::vector<float>{2, -0.5f});
    CHECK(row_of(2) == std::vector<float>{0.25f, 0.125f});
    table.scale.reset();
    table.scales = {at("scales.first"), at("scales.second")};
    CHECK(row_of(0) == std::vector<float>{1, 2});
    CHECK(row_of(1) == std::vector<float>{8, -2});
    CHECK(row_of(2) == std::vector<float>{4, 2});
    table.scales.pop_back();
    CHECK(io::memory_rows<mapped_file>::open(table).failure().message() ==
          "scales: are of 2 rows; the table has 3");
    table.scales.clear();
    table.shards[1] = at("scales.first");
    CHECK(io::memory_rows<mapped_file>::open(table).failure().code == errc::shape);
    table.shards.clear();
    CHECK(io::memory_rows<mapped_file>::open(table).failure().code == errc::size);
}

}  // namespace io_ngram_memory_test
