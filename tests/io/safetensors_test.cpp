// Safetensors files: what is written is read back, and every malformed file is refused by name.
#include <tiffin/io/safetensors.hpp>
#include <tiffin/io/safetensors_writer.hpp>

#include "support/doctest.hpp"
#include "support/scratch_folder.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__unix__)
#    include <sys/resource.h>
#    include <sys/stat.h>
#    include <unistd.h>
#    include <csignal>
#endif

namespace io_safetensors_test {

using tiffin::dtype;
using tiffin::errc;
using tiffin::tensor_view;
using tiffin::io::safetensors_file;
using tiffin::io::safetensors_writer;

namespace {

namespace fs = std::filesystem;

std::vector<std::byte> bytes_of(std::string_view text) {
    std::vector<std::byte> bytes(text.size());
    if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
    return bytes;
}

std::string little_endian(std::uint64_t value) {
    std::string text(8, '\0');
    std::memcpy(text.data(), &value, 8);
    return text;
}

// A file with this header and so many data bytes 0, 1, 2, ...
std::string file_text(const std::string& header, std::size_t data_size) {
    std::string text = little_endian(header.size()) + header;
    for (std::size_t i = 0; i < data_size; ++i) text += static_cast<char>(i);
    return text;
}

void check_text(const std::string& message) {
    for (const char c : message) CHECK((c >= 0x20 && c < 0x7F));
    CHECK(message.size() < 8000);
}

void check_failure(const tiffin::failure& f, errc code, const std::string& where,
                   std::initializer_list<std::string_view> words) {
    INFO(f.message());
    CHECK(f.code == code);
    CHECK(f.where == where);
    for (const std::string_view word : words) {
        INFO(word);
        CHECK(f.what.find(word) != std::string::npos);
    }
    check_text(f.message());
}

void check_refused(const std::string& text, errc code, std::initializer_list<std::string_view> words) {
    const auto file = safetensors_file::parse(bytes_of(text), "bad.safetensors");
    INFO(text.substr(0, 300));
    REQUIRE_FALSE(file.ok());
    check_failure(file.failure(), code, "bad.safetensors", words);
}

// The same for a file of one tensor 'w', given its entry's text.
void check_entry_refused(const std::string& entry, std::size_t data_size, errc code,
                         std::initializer_list<std::string_view> words) {
    check_refused(file_text("{\"w\":" + entry + "}", data_size), code, words);
    const auto file =
        safetensors_file::parse(bytes_of(file_text("{\"w\":" + entry + "}", data_size)), "bad.safetensors");
    CHECK(file.failure().what.find("'w'") != std::string::npos);
}

std::string entry(std::string_view type, std::string_view sizes, std::string_view offsets) {
    return "{\"dtype\":\"" + std::string(type) + "\",\"shape\":" + std::string(sizes) +
           ",\"data_offsets\":" + std::string(offsets) + "}";
}

safetensors_file accepted(const std::string& text) {
    auto file = safetensors_file::parse(bytes_of(text), "good.safetensors");
    if (!file.ok()) FAIL(file.failure().message());
    return std::move(*file);
}

std::size_t byte_size(const tensor_view& t) {
    return tiffin::bytes_of(t.type, t.shape.elements());
}

std::string content(const tensor_view& t) {
    return {static_cast<const char*>(t.data), byte_size(t)};
}

std::string read_all(const fs::path& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
}

void write_all(const fs::path& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
}

const float values[6] = {1, -2, 0.5F, 3, 4, 5};

}  // namespace

TEST_CASE("safetensors: every number format and rank comes back as written") {
    const std::vector<tiffin::shape> shapes{{},  {1},       {3},    {2, 3},       {2, 3, 2},    {2, 1, 3, 2},
                                            {0}, {4, 0, 2}, {0, 0}, {1, 1, 1, 1}, {5, 1, 2, 3}, {7}};
    std::vector<unsigned char> memory(1024);
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<unsigned char>(i * 37);
    safetensors_writer writer;
    writer.set("block", "mlp").set("", "").set("odd \"\\\n\x01 key", "\xC3\xA9\xE2\x82\xAC");
    std::map<std::string, tensor_view> given;
    for (const dtype type : {dtype::f16, dtype::i64, dtype::f32, dtype::bf16, dtype::i32})
        for (std::size_t i = 0; i < shapes.size(); ++i) {
            const auto name = std::string(name_of(type)) + "." + std::to_string(i);
            given[name] = {memory.data() + i, type, shapes[i]};
        }
    given["\xE2\x82\xAC \"quoted\" \\ \n \x7F"] = {values, dtype::f32, {6}};
    given[""] = {values, dtype::f32, {2}};
    given[std::string("a\0b", 3)] = {values, dtype::f32, {3}};
    given["empty without memory"] = {nullptr, dtype::f32, {0, 3}};
    for (const auto& [name, tensor] : given) writer.add(name, tensor);

    const tiffin_test::scratch_folder directory;
    const fs::path path = directory / "all.safetensors";
    const auto written = writer.write(path);
    REQUIRE(written.ok());
    CHECK(directory.files() == 1);
    auto opened = safetensors_file::open(path);
    REQUIRE(opened.ok());
    const safetensors_file moved = std::move(*opened);  // the views survive the move
    CHECK(moved.label() == path.string());
    CHECK(moved.metadata() ==
          std::map<std::string, std::string>{
              {"block", "mlp"}, {"", ""}, {"odd \"\\\n\x01 key", "\xC3\xA9\xE2\x82\xAC"}});
    REQUIRE(moved.tensors().entries().size() == given.size());
    const auto* first = static_cast<const std::byte*>(moved.tensors().entries()[0].tensor.data);
    CHECK(reinterpret_cast<std::uintptr_t>(first) % 64 == 0);
    for (const auto& each : given) {
        INFO(each.first);
        const tensor_view& tensor = each.second;
        const tensor_view* read = moved.tensors().find(each.first);
        REQUIRE(read != nullptr);
        CHECK(read->type == tensor.type);
        CHECK(read->shape == tensor.shape);
        CHECK(reinterpret_cast<std::uintptr_t>(read->data) % size_of(read->type) == 0);
        if (byte_size(tensor) != 0) CHECK(content(*read) == content(tensor));
    }

    const auto bytes = writer.to_bytes("memory");
    REQUIRE(bytes.ok());
    CHECK(*bytes == bytes_of(read_all(path)));
}

TEST_CASE("safetensors: the written bytes are those of the official writer") {
    const float data[6] = {0, 1, 2, 3, 4, 5};
    const auto bytes = safetensors_writer().add("attn0", {data, dtype::f32, {1, 1, 2, 3}}).to_bytes("memory");
    REQUIRE(bytes.ok());
    std::string expected =
        little_endian(72) +
        "{\"attn0\":{\"dtype\":\"F32\",\"shape\":[1,1,2,3],\"data_offsets\":[0,24]}}       ";
    expected.append(reinterpret_cast<const char*>(data), sizeof data);
    CHECK(*bytes == bytes_of(expected));

    const auto empty = safetensors_writer().to_bytes("memory");
    REQUIRE(empty.ok());
    CHECK(*empty == bytes_of(little_endian(8) + "{}      "));
    CHECK(accepted(file_text("{}", 0)).tensors().entries().empty());

    const auto strings = safetensors_writer().set("framework", "pt").to_bytes("memory");
    REQUIRE(strings.ok());
    CHECK(*strings == bytes_of(little_endian(40) + "{\"__metadata__\":{\"framework\":\"pt\"}}     "));
}

TEST_CASE("safetensors: tensors are laid out by element size, then by name") {
    const std::int64_t wide[2] = {1, 2};
    const tensor_view half{values, dtype::f16, {3}};
    const tensor_view single{values, dtype::f32, {3}};
    const tensor_view integer{wide, dtype::i64, {2}};
    const auto one = safetensors_writer().add("a", half).add("c", single).add("b", single).add("z", integer);
    const auto other =
        safetensors_writer().add("z", integer).add("b", single).add("c", single).add("a", half);
    const auto bytes = one.to_bytes("memory");
    REQUIRE(bytes.ok());
    CHECK(*bytes == *other.to_bytes("memory"));
    const auto file = safetensors_file::parse(*bytes, "memory");
    REQUIRE(file.ok());
    std::string order;
    for (const auto& e : file->tensors().entries()) order += e.name;
    CHECK(order == "zbca");
}

TEST_CASE("safetensors: foreign layouts are read") {
    // Not the writer's order, misaligned, with white space, an escape and four bytes of UTF-8.
    const std::string bento = "\xF0\x9F\x8D\xB1";
    const std::string header = "{\n \"b\\u0061\" : " + entry("F32", "[1]", "[2, 6]") + ", \"" + bento +
                               "\":" + entry("BF16", "[1, 1]", "[0,2]") +
                               ",\"e\":" + entry("I64", "[9, 0]", "[2,2]") + "}\t\r\n ";
    const auto file = accepted(file_text(header, 6));
    const auto& all = file.tensors().entries();
    REQUIRE(all.size() == 3);
    CHECK(all[0].name == "ba");
    CHECK(content(all[0].tensor) == "\x02\x03\x04\x05");
    CHECK(all[1].name == bento);
    CHECK(content(all[1].tensor) == std::string("\x00\x01", 2));
    CHECK(all[2].tensor.shape == tiffin::shape{9, 0});
    CHECK(all[2].tensor.data != nullptr);
    CHECK(accepted(file_text("{\"__metadata__\":{}}", 0)).metadata().empty());
    // A length of exactly the rest of the file, no data.
    CHECK(accepted(file_text("{\"s\":" + entry("F32", "[0]", "[0,0]") + "}", 0)).tensors().entries().size() ==
          1);
    static_assert(!std::is_copy_constructible_v<safetensors_file>);
    static_assert(std::is_nothrow_move_constructible_v<tiffin::weights>);
}

TEST_CASE("safetensors: blocks are bytes in the file and numbers in memory") {
    std::vector<unsigned char> memory(4096);
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<unsigned char>(i * 41);
    for (const dtype type : {dtype::q8_0, dtype::q4_0}) {
        const std::vector<tiffin::shape> shapes{{32}, {3, 64}, {2, 3, 96}, {2, 1, 3, 32}, {0, 32}, {4, 0}};
        safetensors_writer writer;
        for (std::size_t i = 0; i < shapes.size(); ++i)
            writer.add("w" + std::to_string(i), {memory.data() + i, type, shapes[i]});
        writer.add("produced", type, {2, 64}, [&](const tiffin::io::byte_sink& put) -> tiffin::status {
            put(memory.data(), tiffin::bytes_of(type, 64));
            put(memory.data() + 7, tiffin::bytes_of(type, 64));
            return {};
        });
        const auto bytes = writer.to_bytes("memory");
        REQUIRE(bytes.ok());
        const auto file = safetensors_file::parse(*bytes, "memory");
        REQUIRE_MESSAGE(file.ok(), (file.ok() ? "" : file.failure().message()));
        for (std::size_t i = 0; i < shapes.size(); ++i) {
            CAPTURE(i);
            const tensor_view* const read = file->tensors().find("w" + std::to_string(i));
            REQUIRE(read != nullptr);
            CHECK(read->type == type);
            CHECK(read->shape == shapes[i]);
            if (byte_size(*read) != 0) CHECK(content(*read) == content({memory.data() + i, type, shapes[i]}));
        }
        const tensor_view half{memory.data(), type, {1, 64}}, other{memory.data() + 7, type, {1, 64}};
        CHECK(content(*file->tensors().find("produced")) == content(half) + content(other));
        // The tensors say it; who copies the metadata beside other tensors copies no wrong formats.
        CHECK(file->metadata().empty());
    }
    // As other programs see it. A value set by hand, as copied from an older file, does not stand.
    const auto two = safetensors_writer()
                         .set("w.format", "Q4_0")
                         .add("w", {memory.data(), dtype::q4_0, {2, 32}})
                         .add("a", {memory.data(), dtype::f16, {1}})
                         .to_bytes("memory");
    REQUIRE(two.ok());
    const std::string header =
        "{\"__metadata__\":{\"w.format\":\"q4_0\"},\"a\":" + entry("F16", "[1]", "[0,2]") +
        ",\"w\":" + entry("U8", "[2,18]", "[2,38]") + "}";
    const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
    const std::string got(reinterpret_cast<const char*>(two->data()), two->size());
    CHECK(got.substr(0, 8 + padded.size()) == little_endian(padded.size()) + padded);
    CHECK(got.size() == 8 + padded.size() + 38);
}

TEST_CASE("safetensors: the formats of bytes that are read") {
    const auto with = [](const std::string& value, const std::string& shape, std::size_t bytes) {
        // Metadata may come after the tensors.
        return file_text("{\"w\":" + entry("U8", shape, "[0," + std::to_string(bytes) + "]") +
                             ",\"__metadata__\":{\"w.format\":\"" + value + "\",\"v.format\":\"q8_0\"}}",
                         bytes);
    };
    const std::map<std::string, std::string> other{{"v.format", "q8_0"}};  // of no tensor: it stays
    const auto eight = accepted(with("q8_0", "[2,68]", 136));
    CHECK(eight.tensors().find("w")->type == dtype::q8_0);
    CHECK(eight.tensors().find("w")->shape == tiffin::shape{2, 64});
    CHECK(eight.metadata() == other);
    const auto four = accepted(with("q4_0", "[1,2,54]", 108));
    CHECK(four.tensors().find("w")->type == dtype::q4_0);
    CHECK(four.tensors().find("w")->shape == tiffin::shape{1, 2, 96});
    CHECK(four.metadata() == other);
    for (const std::string name : {"q9_1", "", "q8_0 ", "Q8_0", "Q8_0\\n", "U8", "F32"}) {
        const auto file = accepted(with(name, "[2,35]", 70));
        CHECK(file.tensors().find("w")->type == dtype::u8);
        CHECK(file.tensors().find("w")->shape == tiffin::shape{2, 35});
        CHECK(file.metadata().contains("w.format"));
    }
    // Without its key bytes are bytes, and numbers are numbers whatever a key says.
    CHECK(
        accepted(file_text("{\"w\":" + entry("U8", "[34]", "[0,34]") + "}", 34)).tensors().find("w")->type ==
        dtype::u8);
    const auto floats = accepted(file_text(
        "{\"w\":" + entry("F32", "[2]", "[0,8]") + ",\"__metadata__\":{\"w.format\":\"q8_0\"}}", 8));
    CHECK(floats.tensors().find("w")->type == dtype::f32);
    CHECK(floats.metadata().contains("w.format"));

    check_refused(with("q8_0", "[2,35]", 70), errc::shape, {"'w'", "q8_0", "(2, 35)", "34 bytes"});
    check_refused(with("q4_0", "[35]", 35), errc::shape, {"'w'", "q4_0", "(35)", "18 bytes"});
    check_refused(with("q4_0", "[18,17]", 306), errc::shape, {"(18, 17)", "18 bytes"});
    check_refused(with("q4_0", "[]", 1), errc::shape, {"()", "18 bytes"});
    check_refused(with("q8_0", "[0,1]", 0), errc::shape, {"(0, 1)", "34 bytes"});
    // Of q4_0 there are more numbers than bytes: 2^64 of them, in one axis and in two.
    for (const std::string wide : {"[0,10376293541461622784]", "[0,1099511627776,9437184]"})
        check_refused(with("q4_0", wide, 0), errc::file, {"'w'", "overflow", "q4_0"});
    CHECK(accepted(with("q4_0", "[0,549755813888,9437184]", 0)).tensors().find("w")->shape ==
          tiffin::shape{0, std::size_t{1} << 39, std::size_t{1} << 24});
}

TEST_CASE("safetensors: the frame of the file") {
    for (std::size_t n = 0; n < 8; ++n)
        check_refused(std::string(n, '{'), errc::file, {std::to_string(n) + " bytes", "8"});
    check_refused(little_endian(3) + "{}", errc::file, {"3", "2 bytes"});
    check_refused(little_endian(100'000'001) + "{}", errc::file, {"100000001", "100000000"});
    check_refused(little_endian(std::uint64_t{1} << 63) + "{}", errc::file,
                  {"9223372036854775808", "100000000"});
    check_refused(little_endian(~std::uint64_t{0}) + "{}", errc::file, {"18446744073709551615"});
    check_refused(little_endian(~std::uint64_t{0} - 7) + "{}", errc::file, {"18446744073709551608"});
    check_refused(little_endian(100'000'000) + "{}", errc::file, {"100000000", "2 bytes"});
    check_refused(little_endian(0), errc::file, {"empty"});
}

TEST_CASE("safetensors: the header's text") {
    for (const std::string start : {" {}", "[]", "\"a\"", "1", "\xEF\xBB\xBF{}", "n"})
        check_refused(file_text(start, 0), errc::file, {"begins with", "'{'"});
    check_refused(file_text("{", 0), errc::file, {"JSON", "byte 2"});
    check_refused(file_text("{}}", 0), errc::file, {"JSON", "byte 3"});
    check_refused(file_text("{} x", 0), errc::file, {"JSON"});
    check_refused(file_text("{}{}", 0), errc::file, {"JSON"});
    check_refused(file_text("{,}", 0), errc::file, {"JSON"});
    check_refused(file_text("{/**/}", 0), errc::file, {"JSON"});
    check_refused(file_text("{'w':1}", 0), errc::file, {"JSON"});
    check_refused(file_text("{\"w\":" + entry("F32", "[1]", "[0,4]") + ",}", 4), errc::file, {"JSON"});
    check_refused(file_text("{\"w\":" + entry("F32", "[01]", "[0,4]") + "}", 4), errc::file, {"JSON"});
    check_refused(file_text("{\"w\":" + entry("F32", "[1e999]", "[0,4]") + "}", 4), errc::file, {"1e999"});
    check_refused(file_text("{\"w\":" + entry("F32", "[NaN]", "[0,4]") + "}", 4), errc::file, {"JSON"});
    for (const std::string bad : {"\xFF", "\xC3", "\xC0\x80", "\xED\xA0\x80", "\xF5\x80\x80\x80", "\\ud800",
                                  "\\udc00", "\\x", "\n", "\x01"})
        check_refused(file_text("{\"" + bad + "\":" + entry("F32", "[]", "[0,4]") + "}", 4), errc::file,
                      {"UTF-8 JSON"});
    // A parser that stops at a zero byte would take all of these for '{}'.
    check_refused(file_text(std::string("{}\0", 3), 0), errc::file, {"zero byte", "2"});
    check_refused(file_text(std::string("{}\0garbage", 10), 0), errc::file, {"zero byte", "2"});
}

TEST_CASE("safetensors: nesting is refused at once") {
    const std::size_t deep = 1'000'000;
    check_refused(file_text("{\"w\":" + std::string(deep, '['), 0), errc::file,
                  {"'w'", "an array", "not an object"});
    check_refused(file_text("{\"w\":{\"shape\":" + std::string(deep, '['), 0), errc::file,
                  {"'w'", "an array in its shape"});
    std::string objects = "{";
    for (std::size_t i = 0; i < deep; ++i) objects += "\"dtype\":{";
    check_refused(file_text(objects, 0), errc::file, {"'dtype'", "an object as its dtype"});
}

TEST_CASE("safetensors: duplicate keys, wherever they stand") {
    const std::string w = "\"w\":" + entry("F32", "[1]", "[0,4]");
    check_refused(file_text("{" + w + "," + w + "}", 4), errc::duplicate_tensor, {"'w'", "twice"});
    check_refused(file_text("{" + w + ",\"\\u0077\":" + entry("F32", "[1]", "[4,8]") + "}", 8),
                  errc::duplicate_tensor, {"'w'", "twice"});
    check_refused(file_text("{\"__metadata__\":{},\"__metadata__\":{}}", 0), errc::file,
                  {"__metadata__", "twice"});
    check_refused(file_text("{\"__metadata__\":{\"k\":\"1\",\"j\":\"\",\"k\":\"1\"}}", 0), errc::file,
                  {"__metadata__", "'k'", "twice"});
    check_entry_refused("{\"dtype\":\"F32\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,4]}", 4,
                        errc::file, {"shape twice"});
    check_entry_refused("{\"dtype\":\"F32\",\"dtype\":\"F32\"}", 4, errc::file, {"dtype twice"});
    check_entry_refused("{\"data_offsets\":[0,4],\"data_offsets\":[0,4]}", 4, errc::file,
                        {"data_offsets twice"});
}

TEST_CASE("safetensors: metadata holds strings only") {
    for (const std::string value : {"1", "null", "true", "-1.5", "[]", "{}", "[\"a\"]"})
        check_refused(file_text("{\"__metadata__\":{\"key\":" + value + "}}", 0), errc::file,
                      {"__metadata__", "'key'", "not a string"});
    for (const std::string value : {"1", "null", "false", "\"text\"", "[]"})
        check_refused(file_text("{\"__metadata__\":" + value + "}", 0), errc::file,
                      {"__metadata__", "not an object"});
}

TEST_CASE("safetensors: a tensor's fields") {
    for (const std::string value : {"1", "null", "true", "-7", "2.5", "\"text\"", "[]"})
        check_entry_refused(value, 0, errc::file, {"not an object"});
    check_entry_refused("{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"strides\":[1]}", 4,
                        errc::file, {"unknown field 'strides'"});
    check_entry_refused("{}", 0, errc::file, {"no dtype"});
    check_entry_refused("{\"shape\":[1],\"data_offsets\":[0,4]}", 4, errc::file, {"no dtype"});
    check_entry_refused("{\"dtype\":\"F32\",\"data_offsets\":[0,4]}", 4, errc::file, {"no shape"});
    check_entry_refused("{\"dtype\":\"F32\",\"shape\":[1]}", 4, errc::file, {"no data_offsets"});
}

TEST_CASE("safetensors: a tensor's number format") {
    for (const std::string type :
         {"F64", "I8", "BOOL", "I16", "U16", "U32", "U64", "F8_E4M3FNUZ", "f32", "F32 ", "", "float32"})
        check_entry_refused(entry(type, "[1]", "[0,4]"), 4, errc::dtype, {"'" + type + "'", "BF16"});
    for (const std::string value : {"1", "null", "true", "-1", "0.5", "[\"F32\"]", "{}"})
        check_entry_refused("{\"dtype\":" + value + ",\"shape\":[1],\"data_offsets\":[0,4]}", 4, errc::file,
                            {"as its dtype", "not a string"});
}

TEST_CASE("safetensors: tensors that are not read are listed where that is asked for") {
    const auto listed = [](const std::string& header, std::size_t data) {
        return safetensors_file::parse(bytes_of(file_text(header, data)), "file",
                                       tiffin::io::unread_tensors::listed);
    };
    const auto file = listed(
        "{\"a\":" + entry("F64", "[1]", "[0,8]") + ",\"w\":" + entry("F32", "[1]", "[8,12]") +
            ",\"b\":" + entry("F32", "[1,1,1,1,2]", "[12,20]") + ",\"c\":" + entry("F4", "[3,2]", "[20,23]") +
            ",\"d\":" + entry("NEW", "[]", "[23,30]") + ",\"e\":" + entry("U8", "[1,1,1,1,34]", "[30,64]") +
            ",\"__metadata__\":{\"e.format\":\"q8_0\"}}",
        64);
    REQUIRE(file.ok());
    REQUIRE(file->tensors().entries().size() == 1);
    CHECK(file->tensors().find("w")->shape == tiffin::shape{1});
    REQUIRE(file->unread().size() == 5);
    CHECK(file->unread()[1].reason() ==
          "is F32 of shape (1, 1, 1, 1, 2), which is not read; F32, F16, BF16, F8_E4M3, F8_E5M2, F8_E8M0, "
          "I32, I64 and U8 of at most 4 "
          "axes are");
    CHECK(file->unread()[4].name == "e");
    CHECK(file->metadata().contains("e.format"));

    const auto wrong = [&](const std::string& one, std::size_t data) {
        const auto got = listed("{\"w\":" + one + "}", data);
        return got.ok() ? std::string("read") : got.failure().what;
    };
    CHECK(wrong(entry("F64", "[1]", "[0,7]"), 7).find("is 7 bytes, but F64 of shape (1) takes 8") !=
          std::string::npos);
    CHECK(wrong(entry("F4", "[3]", "[0,2]"), 2).find("no whole ones") != std::string::npos);
    CHECK(wrong(entry("F64", "[4294967296,4294967296]", "[0,8]"), 8).find("overflow") != std::string::npos);
    CHECK(wrong(entry("NEW", "[1]", "[0,9]"), 8).find("outside the 8 data bytes") != std::string::npos);
    CHECK(wrong(entry("NEW", "[1]", "[4,0]"), 4).find("end before they begin") != std::string::npos);
    CHECK(wrong(entry("NEW", "[1]", "[0,4]"), 8).find("the tensors end at data byte 4") != std::string::npos);
    CHECK(wrong(entry("NEW", "[0.5]", "[0,4]"), 4).find("in its shape") != std::string::npos);
}

TEST_CASE("safetensors: a tensor's shape") {
    for (const std::string value : {"1", "null", "true", "\"2\"", "{}"})
        check_entry_refused(entry("F32", value, "[0,4]"), 4, errc::file, {"as its shape", "not an array"});
    const std::pair<std::string, std::string> sizes[] = {{"-1", "-1"},
                                                         {"-0", "-0"},
                                                         {"1.0", "1.0"},
                                                         {"1e0", "1e0"},
                                                         {"18446744073709551616", "18446744073709551616"},
                                                         {"-9223372036854775808", "-9223372036854775808"},
                                                         {"null", "null"},
                                                         {"true", "true"},
                                                         {"\"1\"", "'1'"},
                                                         {"[1]", "an array"},
                                                         {"{}", "an object"}};
    for (const auto& [size, word] : sizes)
        check_entry_refused(entry("F32", "[1," + size + "]", "[0,4]"), 4, errc::file, {"in its shape", word});
    check_entry_refused(entry("F32", "[1,1,1,1,1]", "[0,4]"), 4, errc::file, {"5 axes", "4"});
    check_entry_refused(entry("F32", "[1,1,1,1,1,1,1]", "[0,4]"), 4, errc::file, {"7 axes", "4"});
    // The product wraps to 0, 1 or 4 bytes in 64 bits.
    for (const std::string wide :
         {"[4294967296,4294967296]", "[4611686018427387904]", "[4611686018427387905]",
          "[18446744073709551615,18446744073709551615]", "[18446744073709551615]",
          "[65536,65536,65536,65536]", "[0,4294967296,4294967296]", "[4294967296,0,4294967296]"}) {
        check_entry_refused(entry("F32", wide, "[0,4]"), 4, errc::file, {"overflow", "F32"});
        check_entry_refused(entry("F32", wide, "[0,0]"), 0, errc::file, {"overflow", "F32"});
    }
    check_entry_refused(entry("I64", "[2305843009213693952]", "[0,0]"), 0, errc::file,
                        {"(2305843009213693952)", "overflow"});
}

TEST_CASE("safetensors: a tensor's place in the data") {
    for (const std::string value : {"1", "null", "true", "\"0,4\"", "{}"})
        check_entry_refused(entry("F32", "[1]", value), 4, errc::file,
                            {"as its data_offsets", "not an array"});
    check_entry_refused(entry("F32", "[1]", "[]"), 4, errc::file, {"0 data_offsets"});
    check_entry_refused(entry("F32", "[1]", "[4]"), 4, errc::file, {"1 data_offsets"});
    check_entry_refused(entry("F32", "[1]", "[0,4,4]"), 4, errc::file, {"3 data_offsets"});
    for (const std::string value : {"-1", "0.0", "18446744073709551616", "null", "\"0\"", "[0]"})
        check_entry_refused(entry("F32", "[1]", "[0," + value + "]"), 4, errc::file,
                            {"in its data_offsets", "whole number"});
    check_entry_refused(entry("F32", "[1]", "[4,0]"), 4, errc::file, {"[4, 0]", "before"});
    check_entry_refused(entry("F32", "[1]", "[18446744073709551615,3]"), 4, errc::file,
                        {"[18446744073709551615, 3]", "before"});
    check_entry_refused(entry("F32", "[1]", "[0,4]"), 3, errc::file, {"[0, 4]", "3 data bytes"});
    check_entry_refused(entry("F32", "[1]", "[18446744073709551611,18446744073709551615]"), 4, errc::file,
                        {"18446744073709551611", "outside", "4 data bytes"});
    check_entry_refused(entry("F32", "[2,2]", "[0,12]"), 12, errc::file,
                        {"[0, 12]", "12 bytes", "F32", "(2, 2)", "16"});
    check_entry_refused(entry("F16", "[]", "[0,4]"), 4, errc::file, {"4 bytes", "F16", "()", "2"});
    check_entry_refused(entry("F32", "[3,0]", "[0,4]"), 4, errc::file, {"4 bytes", "(3, 0)", "0"});
}

TEST_CASE("safetensors: the tensors cover the data once, without holes") {
    const auto two = [](std::string_view a, std::string_view b, std::string_view sizes, std::size_t n) {
        return file_text("{\"a\":" + entry("F32", "[2]", a) + ",\"b\":" + entry("F32", sizes, b) + "}", n);
    };
    check_refused(two("[0,8]", "[4,12]", "[2]", 12), errc::file, {"'b'", "byte 4", "overlaps", "'a'", "8"});
    check_refused(two("[0,8]", "[0,8]", "[2]", 8), errc::file, {"overlaps", "'a'", "'b'"});
    check_refused(two("[4,12]", "[0,8]", "[2]", 12), errc::file, {"'a'", "byte 4", "overlaps", "'b'", "8"});
    check_refused(two("[0,8]", "[4,8]", "[1]", 8), errc::file, {"overlaps"});
    check_refused(two("[0,8]", "[4,4]", "[0]", 8), errc::file, {"overlaps"});
    check_refused(two("[0,8]", "[12,20]", "[2]", 20), errc::file, {"'b'", "byte 12", "from 8"});
    check_refused(two("[4,12]", "[12,20]", "[2]", 20), errc::file, {"'a'", "byte 4", "from 0"});
    check_refused(two("[0,8]", "[8,16]", "[2]", 19), errc::file, {"byte 16", "19 data bytes"});
    check_refused(file_text("{}", 1), errc::file, {"byte 0", "1 data bytes"});
    CHECK(accepted(two("[8,16]", "[0,8]", "[2]", 16)).tensors().entries().size() == 2);
    CHECK(accepted(two("[0,8]", "[8,8]", "[0]", 8)).tensors().entries().size() == 2);
    CHECK(accepted(two("[0,8]", "[0,0]", "[0]", 8)).tensors().entries().size() == 2);
}

TEST_CASE("safetensors: odd and endless names are tamed in messages") {
    const std::string name = "a\xC3\xA9\\n\\\"\\u0000";
    check_refused(file_text("{\"" + name + "\":1}", 0), errc::file,
                  {"'a\\xc3\\xa9\\x0a\"\\x00'", "number 1"});
    const std::string endless(3'000'000, 'n');
    check_refused(file_text("{\"" + endless + "\":1}", 0), errc::file,
                  {"nnn... (3000000 bytes)", "number 1"});
    check_refused(file_text("{\"" + endless, 0), errc::file, {"bytes)"});
    check_entry_refused(entry(endless, "[1]", "[0,4]"), 4, errc::dtype, {"3000000 bytes"});
    check_entry_refused("{\"" + endless + "\":1}", 4, errc::file, {"3000000 bytes"});
    check_entry_refused(entry("F32", "[0." + std::string(5000, '1') + "]", "[0,4]"), 4, errc::file,
                        {"5002 bytes"});
    check_refused(file_text("{\"__metadata__\":{\"" + endless + "\":0}}", 0), errc::file, {"3000000 bytes"});
    // The frame, the header, the number format: the place is the name itself, the message is for people.
    for (const std::string& text : {std::string("x"), file_text("{\"w\":1}", 0),
                                    file_text("{\"w\":" + entry("F8", "[1]", "[0,1]") + "}", 1)}) {
        const auto file = safetensors_file::parse(bytes_of(text), "odd\n\xC3\xA9 label");
        REQUIRE_FALSE(file.ok());
        CHECK(file.failure().where == "odd\n\xC3\xA9 label");
        CHECK(file.failure().message().find("odd\\x0a\\xc3\\xa9 label: ") == 0);
        check_text(file.failure().message());
    }
}

TEST_CASE("safetensors: opening what is not a readable file") {
    const tiffin_test::scratch_folder directory;
    const auto refused = [](const fs::path& path, std::string_view word) {
        for (const auto& file : {safetensors_file::open(path), safetensors_file::map(path)}) {
            REQUIRE_FALSE(file.ok());
            check_failure(file.failure(), errc::file, path.string(), {word});
        }
    };
    refused(directory.path(), "directory");
    refused(directory / "missing", "no such file");
    refused("", "no such file");
    write_all(directory / "empty", "");
    refused(directory / "empty", "0 bytes");
    refused(directory / "empty/below", "no such file");
    write_all(directory / "cut", file_text("{\"w\":" + entry("F32", "[2]", "[0,8]") + "}", 7));
    refused(directory / "cut", "7 data bytes");
#if defined(__unix__)
    refused("/dev/null", "not a regular file");
    REQUIRE(::mkfifo((directory / "pipe").c_str(), 0600) == 0);
    refused(directory / "pipe", "not a regular file");  // and does not wait for a writer
    write_all(directory / "locked", file_text("{}", 0));
    REQUIRE(::chmod((directory / "locked").c_str(), 0) == 0);
    if (::geteuid() != 0) refused(directory / "locked", "cannot be opened");
    fs::create_symlink("loop", directory / "loop");
    refused(directory / "loop", "cannot be reached");
#endif
    // A huge file that holds little: refused by its header, before its size matters.
    write_all(directory / "sparse", "{}");
    fs::resize_file(directory / "sparse", std::uintmax_t{1} << 40);
    refused(directory / "sparse", "header");
}

TEST_CASE("safetensors: a mapped file is the file that was opened") {
    const tiffin_test::scratch_folder directory;
    const fs::path path = directory / "layer";
    std::vector<float> many(100'003);
    for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<float>(i);
    const auto writer = safetensors_writer().set("k", "v").add("w", {many.data(), dtype::f32, {many.size()}});
    REQUIRE(writer.write(path).ok());
    auto opened = safetensors_file::map(path);
    REQUIRE(opened.ok());
    CHECK(opened->label() == path.string());
    CHECK(opened->metadata() == std::map<std::string, std::string>{{"k", "v"}});
    // Another file under its name, and its being moved, leave it what it was.
    REQUIRE(safetensors_writer().write(path).ok());
    const safetensors_file file = *std::move(opened);
    const tensor_view* const w = file.tensors().find("w");
    REQUIRE(w != nullptr);
    CHECK(w->shape == tiffin::shape{many.size()});
    CHECK(std::memcmp(w->data, many.data(), many.size() * sizeof(float)) == 0);
    // Nothing but a header.
    const auto none = safetensors_file::map(path);
    REQUIRE(none.ok());
    CHECK(none->tensors().entries().empty());
}

TEST_CASE("safetensors: what cannot be written") {
    const tiffin_test::scratch_folder directory;
    const fs::path path = directory / "out.safetensors";
    write_all(path, "old");
    const auto refused = [&](const safetensors_writer& writer, errc code,
                             std::initializer_list<std::string_view> words) {
        const auto written = writer.write(path);
        REQUIRE_FALSE(written.ok());
        check_failure(written.failure(), code, path.string(), words);
        const auto bytes = writer.to_bytes("memory");
        REQUIRE_FALSE(bytes.ok());
        check_failure(bytes.failure(), code, "memory", words);
        CHECK(read_all(path) == "old");
        CHECK(directory.files() == 1);
    };
    const tensor_view one{values, dtype::f32, {1}};
    refused(safetensors_writer().add("w", one).add("v", one).add("w", one), errc::duplicate_tensor,
            {"'w'", "twice"});
    refused(safetensors_writer().add("w", one).add("w", {values, dtype::f16, {1}}), errc::duplicate_tensor,
            {"'w'", "twice"});
    refused(safetensors_writer().add("__metadata__", one), errc::file, {"'__metadata__'"});
    for (const std::string bad : {"\xFF", "n\xC3", "\xED\xA0\x80", "\xC0\x80z", "a\x80"}) {
        refused(safetensors_writer().add(bad, one), errc::file, {"UTF-8", "\\x"});
        refused(safetensors_writer().set(bad, "v"), errc::file, {"UTF-8", "\\x"});
        refused(safetensors_writer().set("key", bad), errc::file, {"UTF-8", "\\x", "'key'"});
    }
    refused(safetensors_writer().add("w", {nullptr, dtype::f32, {2, 3}}), errc::file,
            {"'w'", "no data", "(2, 3)", "24"});
    const std::size_t half = std::size_t{1} << 32;
    refused(safetensors_writer().add("w", {values, dtype::f32, {half, half}}), errc::file,
            {"'w'", "overflow", "4294967296"});
    refused(safetensors_writer().add("w", {values, dtype::f32, {0, half, half}}), errc::file,
            {"'w'", "overflow"});
    refused(safetensors_writer()
                .add("v", {values, dtype::f32, {half, half / 8}})
                .add("w", {values, dtype::f32, {half, half / 8}}),
            errc::file, {"'w'", "overflow"});
    for (const tiffin::shape& cut : {tiffin::shape{2, 33}, {64, 1}, {31}, {}, {0, 16}})
        refused(safetensors_writer().add("w", {values, dtype::q8_0, cut}), errc::shape,
                {"'w'", "Q8_0", to_string(cut), "whole blocks of 32"});
    // Bytes that overflow, and numbers that do.
    refused(safetensors_writer().add("w", {values, dtype::q8_0, {half, half - 32}}), errc::file,
            {"'w'", "overflow"});
    refused(safetensors_writer().add("w", {values, dtype::q4_0, {0, half, half}}), errc::file,
            {"'w'", "overflow"});
    refused(safetensors_writer().set("key", std::string(100'000'001, 'v')), errc::file,
            {"100000000", "header"});
    // A later value of a key replaces the earlier one.
    const auto replaced = safetensors_writer().set("k", "1").set("k", "2").to_bytes("memory");
    REQUIRE(replaced.ok());
    const auto reread = safetensors_file::parse(*replaced, "memory");
    REQUIRE(reread.ok());
    CHECK(reread->metadata() == std::map<std::string, std::string>{{"k", "2"}});
}

TEST_CASE("safetensors: where nothing can be written, nothing is left") {
    const tiffin_test::scratch_folder directory;
    const auto writer = safetensors_writer().add("w", {values, dtype::f32, {6}});
    const auto refused = [&](const fs::path& path, std::string_view word) {
        const auto before = directory.files();
        const auto written = writer.write(path);
        REQUIRE_FALSE(written.ok());
        check_failure(written.failure(), errc::file, path.string(), {word});
        CHECK(directory.files() == before);
    };
    refused(directory / "missing/out", "cannot be written");
    fs::create_directory(directory / "target");
    refused(directory / "target", "directory");
    CHECK(fs::is_empty(directory / "target"));
    write_all(directory / "plain", "text");
    refused(directory / "plain/out", "cannot be written");
    CHECK(read_all(directory / "plain") == "text");
    refused(directory / std::string(300, 'n'), "cannot be");
#if defined(__unix__)
    CHECK(writer.write("/dev/null").ok());  // written to, and not replaced
    CHECK(fs::is_character_file("/dev/null"));
    refused("/dev/full", "cannot be written");
    CHECK(fs::is_character_file("/dev/full"));
    fs::create_symlink("loop", directory / "loop");
    refused(directory / "loop", "cannot be reached");
    if (::geteuid() != 0) {
        REQUIRE(::chmod((directory / "target").c_str(), 0500) == 0);
        refused(directory / "target" / "out", "cannot be written");
        REQUIRE(::chmod((directory / "target").c_str(), 0700) == 0);
    }
#endif
}

TEST_CASE("safetensors: writing replaces a file, through a link, beside foreign leftovers") {
    const tiffin_test::scratch_folder directory;
    const fs::path path = directory / "out";
    write_all(path, std::string(10'000, 'x'));
    write_all(directory / "tiffin.part0", "another writer's");
    fs::create_symlink("out", directory / "link");
    const auto writer = safetensors_writer().add("w", {values, dtype::f32, {6}});
    REQUIRE(writer.write(directory / "link").ok());
    CHECK(fs::is_symlink(directory / "link"));
    CHECK(bytes_of(read_all(path)) == *writer.to_bytes("memory"));
    CHECK(read_all(directory / "tiffin.part0") == "another writer's");
    CHECK(directory.files() == 3);
    // A file that is read may be rewritten from its own tensors.
    const auto file = safetensors_file::open(path);
    REQUIRE(file.ok());
    safetensors_writer copy;
    for (const auto& e : file->tensors().entries()) copy.add(e.name, e.tensor);
    REQUIRE(copy.write(path).ok());
    CHECK(bytes_of(read_all(path)) == *writer.to_bytes("memory"));
}

TEST_CASE("safetensors: a link that names nothing yet is written through") {
    const tiffin_test::scratch_folder directory;
    const auto writer = safetensors_writer().add("w", {values, dtype::f32, {6}});
    fs::create_directory(directory / "folder");
    fs::create_symlink("folder/made", directory / "link");
    REQUIRE(writer.write(directory / "link").ok());
    CHECK(fs::is_symlink(directory / "link"));
    CHECK(bytes_of(read_all(directory / "folder/made")) == *writer.to_bytes("memory"));
}

TEST_CASE("safetensors: outputs that are begun, and which of them are one file") {
    const tiffin_test::scratch_folder directory;
    const auto writer = safetensors_writer().add("w", {values, dtype::f32, {6}});
    using tiffin::io::output_place;
    using tiffin::io::unfinished_file;
    const auto same = [&](const fs::path& a, const fs::path& b) {
        return output_place::of(a)->is_same(*output_place::of(b));
    };
    fs::create_directory(directory / "folder");
    fs::create_symlink("folder", directory / "link");
    fs::create_symlink("folder/out", directory / "to_out");
    for (int twice = 0; twice < 2; ++twice) {  // not there yet, and there
        CHECK(same(directory / "folder/out", directory / "link/out"));
        CHECK(same(directory / "to_out", directory / "folder/../folder/out"));
        CHECK_FALSE(same(directory / "folder/out", directory / "folder/other"));
        CHECK_FALSE(same(directory / "folder/out", directory / "out"));
        write_all(directory / "folder/out", "old");
    }
    {
        auto begun = unfinished_file::begin(directory / "to_out");
        REQUIRE(begun.ok());
        REQUIRE(writer.write(*begun).ok());
        CHECK(read_all(directory / "folder/out") == "old");  // until it is finished
        REQUIRE(begun->finish().ok());
        CHECK(bytes_of(read_all(directory / "folder/out")) == *writer.to_bytes("memory"));
        // One that is not.
        auto left = unfinished_file::begin(directory / "to_out");
        REQUIRE(left.ok());
        REQUIRE(writer.write(*left).ok());
    }
    CHECK(directory.files() == 3);
    CHECK(std::distance(fs::directory_iterator(directory / "folder"), fs::directory_iterator()) == 1);
}

TEST_CASE("safetensors: a name as long as names can be") {
    const tiffin_test::scratch_folder directory;
    const auto writer = safetensors_writer().add("w", {values, dtype::f32, {6}});
    for (const std::size_t length : {250u, 255u}) {
        const fs::path path = directory / std::string(length, 'n');
        for (int twice = 0; twice < 2; ++twice) {
            const auto written = writer.write(path);
            REQUIRE_MESSAGE(written.ok(), (written.ok() ? "" : written.failure().message()));
        }
        CHECK(safetensors_file::open(path).ok());
    }
    CHECK(directory.files() == 2);
}

#if defined(__unix__)
TEST_CASE("safetensors: a file that replaces another has its mode, from the first byte on") {
    const tiffin_test::scratch_folder directory;
    const fs::path path = directory / "out";
    const auto mode = [](const fs::path& of) { return static_cast<unsigned>(fs::status(of).permissions()); };
    for (const unsigned wanted : {0600u, 0640u, 0666u, 0400u}) {
        CAPTURE(wanted);
        write_all(path, "old");
        REQUIRE(::chmod(path.c_str(), wanted) == 0);
        unsigned meanwhile = 0;
        safetensors_writer writer;
        writer.add("w", dtype::f32, {2}, [&](const tiffin::io::byte_sink& put) -> tiffin::status {
            // It has a name where the file system has no files without one.
            meanwhile = fs::exists(directory / "tiffin.part0") ? mode(directory / "tiffin.part0") : wanted;
            put(values, 8);
            return {};
        });
        const auto written = writer.write(path);
        if (::geteuid() != 0 && (wanted & 0200u) == 0) {  // what is protected stays
            REQUIRE_FALSE(written.ok());
            check_failure(written.failure(), errc::file, path.string(), {"cannot be written"});
            CHECK(read_all(path) == "old");
            REQUIRE(::chmod(path.c_str(), 0600) == 0);
            continue;
        }
        REQUIRE(written.ok());
        CHECK(meanwhile == wanted);
        CHECK(mode(path) == wanted);
        CHECK(safetensors_file::map(path).ok() == (::geteuid() == 0 || (wanted & 0400u) != 0));
        REQUIRE(::chmod(path.c_str(), 0600) == 0);
    }
    // A new file has the mode that the system gives to new files.
    write_all(directory / "plain", "");
    REQUIRE(safetensors_writer().write(directory / "new").ok());
    CHECK(mode(directory / "new") == mode(directory / "plain"));
}

TEST_CASE("safetensors: a write that stops half-way leaves the old file and nothing else") {
    const tiffin_test::scratch_folder directory;
    const fs::path path = directory / "out";
    write_all(path, "old");
    const std::vector<float> large(100'000);
    const auto writer = safetensors_writer().add("w", {large.data(), dtype::f32, {large.size()}});
    const auto small = safetensors_writer().add("w", {values, dtype::f32, {6}});
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    for (const rlim_t limit : {rlim_t{0}, rlim_t{50}, rlim_t{20'000}}) {
        rlimit tight = before;
        tight.rlim_cur = limit;
        REQUIRE(::setrlimit(RLIMIT_FSIZE, &tight) == 0);
        const auto written = (limit == 50 ? small : writer).write(path);
        REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
        REQUIRE_FALSE(written.ok());
        check_failure(written.failure(), errc::file, path.string(), {"cannot be written"});
        CHECK(read_all(path) == "old");
        CHECK(directory.files() == 1);
    }
    std::signal(SIGXFSZ, handler);
    REQUIRE(writer.write(path).ok());
    CHECK(safetensors_file::open(path).ok());
}
#endif

}  // namespace io_safetensors_test
