// Tables of published memories by every way of reading them: inside GGUF and safetensors files, at odd bytes, in shards,
// with scales of their rows or one for all.
#include <tiffin/io/memory_table.hpp>

#include <tiffin/io/gguf.hpp>
#include <tiffin/io/safetensors_writer.hpp>
#include <tiffin/io/table_file.hpp>
#include <tiffin/table/cached_rows.hpp>
#include <tiffin/table/direct_file.hpp>
#include <tiffin/table/mapped_file.hpp>
#if defined(TIFFIN_TEST_LIBURING)
#    include <tiffin/io/reading_ring.hpp>
#endif

#include "support/doctest.hpp"
#include "support/gguf_bytes.hpp"
#include "support/random.hpp"
#include "support/scratch_folder.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace io_memory_table_test {
using namespace tiffin;
namespace fs = std::filesystem;

namespace {

using bytes_type = std::vector<std::byte>;
using ids_type = std::vector<std::int32_t>;

bytes_type random_bytes(std::size_t count, std::uint32_t seed) {
    tiffin_test::random_numbers random(seed);
    bytes_type made(count);
    for (std::byte& b : made) b = static_cast<std::byte>(random.below(256));
    return made;
}

// A tensor (rows, width) to be put into a file.
struct part {
    std::string name;
    table_shape shape;
    bytes_type bytes;
};
part random_part(const std::string& name, const table_shape& shape, std::uint32_t seed) {
    return {name, shape, random_bytes(shape.rows * shape.row_bytes(), seed)};
}

void write(const fs::path& path, const bytes_type& bytes) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}
// A file of parts behind `before` bytes of another; the last part ends the file.
std::vector<table_location> in_gguf(const fs::path& path, const std::vector<part>& parts,
                                    std::size_t before) {
    const auto number = [](dtype type) -> std::uint32_t {
        return type == dtype::f32 ? 0 : type == dtype::bf16 ? 30 : type == dtype::q8_0 ? 8 : 12;
    };
    tiffin_test::gguf_bytes file;
    file.alignment = 1;
    file.whole("general.alignment", 1).tensor("before", {before}, 24, bytes_type(before).data(), before);
    for (const part& one : parts)
        file.tensor(one.name, {one.shape.width, one.shape.rows}, number(one.shape.type), one.bytes.data(),
                    one.bytes.size());
    write(path, file.bytes());
    const auto opened = io::gguf_file::open(path).or_throw();
    std::vector<table_location> made;
    for (const part& one : parts)
        made.push_back({path, opened.offset_of(*opened.tensors().find(one.name)), one.shape});
    return made;
}
std::vector<table_location> in_safetensors(const fs::path& path, const std::vector<part>& parts,
                                           std::size_t before) {
    std::string header = R"({"before":{"dtype":"I8","shape":[)" + std::to_string(before) +
                         R"(],"data_offsets":[0,)" + std::to_string(before) + "]}";
    std::string formats;
    std::size_t at = before;
    for (const part& one : parts) {
        const bool blocks = block_of(one.shape.type) > 1;  // bytes, whose format the metadata tell
        if (blocks)
            formats += (formats.empty() ? "\"" : ",\"") + one.name + ".format\":\"" +
                       (one.shape.type == dtype::q8_0 ? "q8_0" : "q4_k") + "\"";
        header += ",\"" + one.name + R"(":{"dtype":")" +
                  (blocks ? "U8" : std::string(name_of(one.shape.type))) + R"(","shape":[)" +
                  std::to_string(one.shape.rows) + "," +
                  std::to_string(blocks ? one.shape.row_bytes() : one.shape.width) + R"(],"data_offsets":[)" +
                  std::to_string(at) + "," + std::to_string(at + one.bytes.size()) + "]}";
        at += one.bytes.size();
    }
    header += ",\"__metadata__\":{" + formats + "}}";
    bytes_type file;
    tiffin_test::gguf_bytes::put(file, std::uint64_t{header.size()});
    for (const char c : header) file.push_back(static_cast<std::byte>(c));
    file.resize(file.size() + before);
    for (const part& one : parts) file.insert(file.end(), one.bytes.begin(), one.bytes.end());
    write(path, file);
    std::vector<table_location> made;
    for (const part& one : parts) made.push_back(io::find_table(path, one.name).or_throw());
    return made;
}

// A table in three shards, of two files, and what its rows are.
struct written_table {
    io::memory_table where;
    std::vector<bytes_type> rows;
};
enum class scaling { none, by_row, one };

written_table write_table(const tiffin_test::scratch_folder& folder, dtype type, bool gguf, scaling scaled) {
    constexpr std::size_t width = 256, rows_of[]{19, 1, 40};
    const auto put = gguf ? in_gguf : in_safetensors;
    written_table made;
    std::vector<part> codes, scales;
    for (std::uint32_t i = 0; i < 3; ++i) {
        codes.push_back(random_part("shard." + std::to_string(i), {rows_of[i], width, type}, i + 1));
        scales.push_back(random_part("scale." + std::to_string(i), {rows_of[i], 1, dtype::f32}, i + 11));
    }
    for (const std::size_t file : {0u, 1u}) {
        std::vector<part> some(codes.begin() + (file == 0 ? 0 : 2), codes.begin() + (file == 0 ? 2 : 3));
        const std::size_t shards = some.size();
        if (scaled == scaling::by_row)
            some.insert(some.begin(), scales.begin() + (file == 0 ? 0 : 2),
                        scales.begin() + (file == 0 ? 2 : 3));
        const fs::path path = folder / ("file" + std::to_string(file));
        std::vector<table_location> at = put(path, some, 4097);
        if (at[0].offset % 2 == 0) at = put(path, some, 4098);  // the header has an odd size
        made.where.shards.insert(made.where.shards.end(), at.end() - static_cast<std::ptrdiff_t>(shards),
                                 at.end());
        made.where.scales.insert(made.where.scales.end(), at.begin(),
                                 at.end() - static_cast<std::ptrdiff_t>(shards));
    }
    if (scaled == scaling::one) made.where.scale = 0.0078125f;
    for (std::size_t i = 0; i < 3; ++i)
        for (std::size_t r = 0; r < rows_of[i]; ++r) {
            const auto row_of = [&](const part& one) {
                const auto bytes = static_cast<std::ptrdiff_t>(one.shape.row_bytes());
                const auto first = one.bytes.begin() + static_cast<std::ptrdiff_t>(r) * bytes;
                return bytes_type(first, first + bytes);
            };
            bytes_type row = row_of(codes[i]);
            if (scaled == scaling::by_row) {
                const bytes_type factor = row_of(scales[i]);
                row.insert(row.end(), factor.begin(), factor.end());
            } else if (scaled == scaling::one) {
                tiffin_test::gguf_bytes::put(row, *made.where.scale);
            }
            made.rows.push_back(std::move(row));
        }
    return made;
}

// Calls use(name, open) with every way of reading a table's file, where open(table) gives memory_rows of it.
template <class Use>
void with_ways(const Use& use) {
    use("mapped", [](const io::memory_table& t) { return io::memory_rows<mapped_file>::open(t); });
    use("through the cache",
        [](const io::memory_table& t) { return io::memory_rows<direct_file<>>::open(t); });
    use("around the cache, threads", [](const io::memory_table& t) {
        return io::memory_rows<direct_file<>>::open(t, file_cache::passed_by);
    });
#if defined(TIFFIN_TEST_LIBURING)
    if (io::reading_ring().works())
        use("around the cache, io_uring", [](const io::memory_table& t) {
            return io::memory_rows<direct_file<io::reading_ring>>::open(t, file_cache::passed_by);
        });
    else
        MESSAGE("not tested: io_uring");
#endif
}
// Not every file system reads around its cache (those in memory do not).
template <class Opened>
bool cannot_pass_by(const Opened& opened, const std::string& name) {
    if (opened.ok() || !name.starts_with("around")) return false;
    MESSAGE("not tested: " << opened.failure().message());
    return true;
}

void check_rows(row_store_ref store, const std::vector<bytes_type>& rows, const ids_type& ids) {
    const std::size_t bytes = rows[0].size();
    REQUIRE(store.shape().row_bytes() == bytes);
    bytes_type got(ids.size() * bytes + 1, std::byte{0xA5});
    store.read(ids, got.data()).or_throw();
    CHECK(got.back() == std::byte{0xA5});
    for (std::size_t i = 0; i < ids.size(); ++i) {
        CAPTURE(ids[i]);
        REQUIRE(std::memcmp(got.data() + i * bytes, rows[static_cast<std::size_t>(ids[i])].data(), bytes) ==
                0);
    }
}

}  // namespace

TEST_CASE("every way of reading gives the same rows, of every format, in any order") {
    constexpr dtype formats[]{dtype::f32, dtype::bf16, dtype::f8_e4m3, dtype::q8_0, dtype::q4_k};
    tiffin_test::random_numbers random(5);
    for (const dtype type : formats)
        for (const bool gguf : {false, true})
            for (const scaling scaled : {scaling::none, scaling::by_row, scaling::one}) {
                if (gguf && type == dtype::f8_e4m3) continue;  // no format of GGUF
                CAPTURE(std::string(name_of(type)));
                CAPTURE(gguf);
                CAPTURE(static_cast<int>(scaled));
                const tiffin_test::scratch_folder folder;
                const written_table table = write_table(folder, type, gguf, scaled);
                const table_location& last = table.where.shards.back();
                CHECK(table.where.shards.front().offset % 2 == 1);
                REQUIRE(last.end() == fs::file_size(last.path));
                REQUIRE(last.end() % 4096 != 0);
                const auto rows = static_cast<std::int32_t>(table.rows.size());
                ids_type all(table.rows.size()), some(200);
                std::iota(all.rbegin(), all.rend(), 0);
                for (std::int32_t& id : some) id = static_cast<std::int32_t>(random.below(table.rows.size()));
                with_ways([&](const std::string& name, const auto& open) {
                    CAPTURE(name);
                    const auto store = open(table.where);
                    if (cannot_pass_by(store, name)) return;
                    REQUIRE(store.ok());
                    CHECK(store->shape().rows == table.rows.size());
                    // The cache holds some of the rows; the second time, others are in it.
                    const cached_rows cached(*store, {.rows = 7});
                    for (const ids_type& ids :
                         {ids_type{rows - 1}, all, some, ids_type{19, 19, 18, 20, 19}, ids_type{}}) {
                        check_rows(*store, table.rows, ids);
                        check_rows(cached, table.rows, ids);
                        check_rows(cached, table.rows, ids);
                    }
                    CHECK(cached.counts().hits > 0);
                });
            }
}

TEST_CASE("a table larger than its file is not opened, and one that becomes so is not read") {
    const tiffin_test::scratch_folder folder;
    const written_table table = write_table(folder, dtype::q8_0, true, scaling::by_row);
    const fs::path path = folder / "file1";
    const std::uint64_t whole = fs::file_size(path);
    with_ways([&](const std::string& name, const auto& open) {
        CAPTURE(name);
        if (cannot_pass_by(open(table.where), name)) return;
        io::memory_table longer = table.where;
        ++longer.shards[2].shape.rows;
        const auto opened = open(longer);
        REQUIRE_FALSE(opened.ok());
        CHECK(opened.failure().code == errc::file);
        CHECK(opened.failure().message() == path.string() + ": the file has " + std::to_string(whole) +
                                                " bytes; what is read of it ends at byte " +
                                                std::to_string(whole + longer.shards[2].shape.row_bytes()));
        longer = table.where;
        longer.scales[2].shape.rows = whole;
        CHECK(open(longer).failure().code == errc::file);

        const auto store = open(table.where).or_throw();
        const ids_type last{static_cast<std::int32_t>(table.rows.size()) - 1};
        bytes_type row(table.rows[0].size());
        fs::resize_file(path, whole - 1);
        const status cut = store.read(last, row.data());
        REQUIRE_FALSE(cut.ok());
        CHECK(cut.failure().code == errc::file);
        CHECK(cut.failure().message().find(std::to_string(whole - 1)) != std::string::npos);
        // What the failure has left behind is no row of a cache.
        const cached_rows cached(store, {.rows = 7});
        CHECK_FALSE(cached.read(last, row.data()).ok());
        fs::resize_file(path, whole);
        std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
        file.seekp(-1, std::ios::end)
            .put(static_cast<char>(table.rows.back()[table.where.shards[2].shape.row_bytes() - 1]));
        file.close();
        check_rows(cached, table.rows, last);
    });
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

}  // namespace io_memory_table_test
