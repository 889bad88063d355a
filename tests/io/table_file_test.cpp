// Tables in safetensors files: which tensors are tables, and which stores can be written as one.
#include <tiffin/io/table_file.hpp>

#include "support/doctest.hpp"
#include "support/scratch_folder.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace io_table_file_test {
using namespace tiffin;

namespace {

// A store of which no row can be asked for.
auto never_read(std::size_t rows, std::size_t width, dtype type = dtype::f32) {
    return from_callback({rows, width, type}, [](std::span<const std::int32_t>, std::byte*) -> status {
        FAIL("a row was asked for");
        return {};
    });
}

}  // namespace

TEST_CASE("find_table: sizes of zero are no table") {
    const tiffin_test::scratch_folder folder;
    const std::vector<float> numbers(64);
    io::safetensors_writer writer;
    writer.add("no.width", tensor_view{numbers.data(), dtype::f32, {5, 0}});
    writer.add("no.rows", tensor_view{numbers.data(), dtype::f32, {0, 5}});
    writer.add("no.experts", tensor_view{numbers.data(), dtype::f32, {0, 3, 5}});
    writer.add("no.blocks", tensor_view{numbers.data(), dtype::q8_0, {5, 0}});
    writer.add("one", tensor_view{numbers.data(), dtype::f32, {1, 1}});
    REQUIRE(writer.write(folder / "file").ok());
    const auto refused = [&](const std::string& name, const std::string& sizes) {
        CAPTURE(name);
        const auto found = io::find_table(folder / "file", name);
        REQUIRE_FALSE(found.ok());
        CHECK(found.failure().code == errc::shape);
        CHECK(found.failure().what == "tensor '" + name + "' has shape " + sizes + ", and so holds no rows");
    };
    refused("no.width", "(5, 0)");
    refused("no.rows", "(0, 5)");
    refused("no.experts", "(0, 3, 5)");
    refused("no.blocks", "(5, 0)");
    CHECK(io::find_table(folder / "file", "one")->shape == table_shape{1, 1, dtype::f32});
}

TEST_CASE("find_table: tensors that are not read are in nobody's way") {
    const tiffin_test::scratch_folder folder;
    const std::string header = R"({"mask":{"dtype":"BOOL","shape":[4],"data_offsets":[0,4]},)"
                               R"("five":{"dtype":"F32","shape":[1,1,1,1,1],"data_offsets":[4,8]},)"
                               R"("table":{"dtype":"F32","shape":[1,1],"data_offsets":[8,12]}})";
    const std::uint64_t length = header.size();
    std::ofstream file(folder / "file", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof length) << header << std::string(12, 'x');
    file.close();
    CHECK(io::find_table(folder / "file", "table")->shape == table_shape{1, 1, dtype::f32});
    const auto said = [&](std::string_view name) {
        const auto found = io::find_table(folder / "file", name);
        return found.ok() ? "found" : found.failure().what;
    };
    CHECK(said("mask").find("tensor 'mask' is BOOL of shape (4), which is not read") == 0);
    CHECK(said("five").find("tensor 'five' is F32 of shape (1, 1, 1, 1, 1), which is not read") == 0);
}

TEST_CASE("add_table: a store that is no table is an error of write()") {
    const tiffin_test::scratch_folder folder;
    const auto refused = [&](const auto& store, const std::string& what) {
        CAPTURE(what);
        io::safetensors_writer writer;
        const status s = io::add_table(writer, "t", store).write(folder / "out");
        REQUIRE_FALSE(s.ok());
        CHECK(s.failure().code == errc::shape);
        CHECK(s.failure().what.find(what) != std::string::npos);
        CHECK(folder.files() == 0);
    };
    refused(never_read(5, 0), "has shape (5, 0); a table has numbers in each of 1 to 2^31 rows");
    refused(never_read(0, 5), "has shape (0, 5)");
    refused(never_read(0, 0), "has shape (0, 0)");
    refused(never_read(5, 0, dtype::q8_0), "has shape (5, 0)");
    // One row more than ids can name: from it on they would be negative.
    refused(never_read((std::size_t{1} << 31) + 1, 1, dtype::bf16), "has shape (2147483649, 1)");
    refused(never_read(5, 33, dtype::q4_0), "is Q4_0 of shape (5, 33): rows are no whole blocks of 32");
}

TEST_CASE("table files: blocks are written as bytes, found as numbers") {
    const tiffin_test::scratch_folder folder;
    for (const dtype type : {dtype::q8_0, dtype::q4_0}) {
        const table_shape shape{3, 64, type};
        std::vector<std::byte> bytes(3 * shape.row_bytes());
        for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
        const auto store = in_memory::view({bytes.data(), type, {3, 64}});
        REQUIRE(store.ok());
        io::safetensors_writer writer;
        io::add_table(writer, "t", *store);
        REQUIRE(writer.write(folder / "file").ok());
        const auto found = io::find_table(folder / "file", "t");
        REQUIRE(found.ok());
        CHECK(found->shape == shape);
        std::ifstream stream(folder / "file", std::ios::binary);
        const std::string text{std::istreambuf_iterator<char>(stream), {}};
        CHECK(std::memcmp(text.data() + found->offset, bytes.data(), bytes.size()) == 0);
        CHECK(text.find(type == dtype::q8_0 ? "\"t.format\":\"q8_0\"" : "\"t.format\":\"q4_0\"") !=
              std::string::npos);
        // Rows that are cut within a block are refused when the file is opened.
        std::string cut = text;
        const std::string sizes = type == dtype::q8_0 ? "[3,68]" : "[3,36]";
        REQUIRE(cut.find(sizes) != std::string::npos);
        cut.replace(cut.find(sizes), 6, type == dtype::q8_0 ? "[4,51]" : "[4,27]");
        std::ofstream(folder / "cut", std::ios::binary) << cut;
        const auto refused = io::find_table(folder / "cut", "t");
        REQUIRE_FALSE(refused.ok());
        CHECK(refused.failure().code == errc::shape);
    }
}

}  // namespace io_table_file_test
