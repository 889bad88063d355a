// GGUF files written: the bytes of a file put together from the specification, and what readers make of them.
#include "../../examples/convert/gguf_writer.hpp"

#include <tiffin/io/gguf.hpp>

#include "support/doctest.hpp"
#include "support/gguf_bytes.hpp"
#include "support/scratch_folder.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace convert_example_gguf_writer_test {
using namespace tiffin;
using gguf_files::gguf_writer;
using tiffin::io::gguf_array;
using tiffin::io::gguf_file;
using tiffin_test::gguf_bytes;

namespace {

using bytes = std::vector<std::byte>;

bytes array_of(std::uint32_t type, std::uint64_t count) {
    bytes made;
    gguf_bytes::put(made, type);
    gguf_bytes::put(made, count);
    return made;
}

// Padded at the end, as ggml does, which the specification leaves open.
bytes padded(const gguf_bytes& file) {
    bytes all = file.bytes();
    all.resize((all.size() + file.alignment - 1) / file.alignment * file.alignment);
    return all;
}

const std::vector<float> three{1, 2, 3}, six{1, 2, 3, 4, 5, 6};
const std::vector<std::uint8_t> blocks_of_8(34, 1), blocks_unread(66, 2);

// A value of every kind, tensors of one to three axes, one in a format that is not read between others.
gguf_bytes example(std::uint32_t alignment) {
    gguf_bytes file;
    file.alignment = alignment;
    file.text("general.architecture", "llama").whole("general.alignment", alignment).real("f32", 0.5f);
    file.number("u8", 0, std::uint8_t{200}).number("i8", 1, std::int8_t{-3});
    file.number("u16", 2, std::uint16_t{60000}).number("i16", 3, std::int16_t{-300});
    file.number("i32", 5, std::int32_t{-70000}).number("yes", 7, std::uint8_t{1});
    file.number("u64", 10, std::uint64_t{1} << 40).number("i64", 11, -(std::int64_t{1} << 40));
    file.number("f64", 12, 0.25);
    bytes texts = array_of(8, 3), numbers = array_of(5, 2), truths = array_of(7, 3);
    for (const std::string_view t : {"a", "", "long"}) gguf_bytes::put_text(texts, t);
    for (const std::int32_t n : {7, -9}) gguf_bytes::put(numbers, n);
    for (const bool b : {true, false, true}) gguf_bytes::put(truths, b);
    file.key("texts", 9, texts).key("numbers", 9, numbers).key("truths", 9, truths);
    file.key("none", 9, array_of(8, 0)).key("no numbers", 9, array_of(6, 0));
    file.tensor("vector", {3}, three).tensor("unread", {256}, 16, blocks_unread.data(), blocks_unread.size());
    return file.tensor("cube", {1, 3, 2}, six).tensor("blocks", {32, 1}, 8, blocks_of_8.data(), 34);
}

// The same file by the writer, but for the tensor that it cannot be given.
gguf_writer written(std::uint32_t alignment) {
    gguf_writer made;
    made.set("general.architecture", "mistral").set("general.alignment", alignment).set("f32", 0.5f);
    made.set("u8", std::uint8_t{200}).set("i8", std::int8_t{-3}).set("u16", std::uint16_t{60000});
    made.set("i16", std::int16_t{-300}).set("i32", std::int32_t{-70000}).set("yes", true);
    made.set("u64", std::uint64_t{1} << 40).set("i64", -(std::int64_t{1} << 40)).set("f64", 0.25);
    made.set("texts", std::vector<std::string>{"a", "", "long"}).set("numbers", std::array{7, -9});
    made.set("truths", std::vector<bool>{true, false, true}).set("none", std::vector<std::string_view>{});
    made.set("no numbers", std::vector<float>{});
    made.set("general.architecture", std::string("llama"));  // takes the earlier one's place
    CHECK(made.add("vector", {three.data(), dtype::f32, {3}}).ok());
    return made;
}

std::string said(const status& s) {
    return s ? "" : s.failure().message();
}

}  // namespace

TEST_CASE("gguf_writer: a file that is taken and written again has the same bytes") {
    for (const std::uint32_t alignment : {8u, 32u, 64u, 4096u}) {
        const bytes file = padded(example(alignment));
        const auto writer = gguf_writer::from(file, "file");
        REQUIRE(writer.ok());
        CHECK(writer->to_bytes("file").or_throw() == file);
        // Version 2 differs in its number alone.
        gguf_bytes old = example(alignment);
        old.version = 2;
        const bytes second = padded(old);
        CHECK(gguf_writer::from(second, "file")->to_bytes("file").or_throw() == file);
    }
    const bytes empty = padded(gguf_bytes());
    CHECK(gguf_writer().to_bytes("file").or_throw() == empty);
    CHECK(gguf_writer::from(gguf_bytes().bytes(), "file")->to_bytes("file").or_throw() == empty);
}

TEST_CASE("gguf_writer: values and tensors have the bytes of the specification") {
    for (const std::uint32_t alignment : {16u, 32u, 128u}) {
        gguf_writer made = written(alignment);
        CHECK(made.add("cube", {six.data(), dtype::f32, {2, 3, 1}}).ok());
        CHECK(made.add("blocks", {blocks_of_8.data(), dtype::q8_0, {1, 32}}).ok());
        const bytes all = made.to_bytes("file").or_throw();
        const auto file = gguf_file::read(all, "file");
        REQUIRE(file.ok());
        CHECK(all.size() % alignment == 0);
        const bytes other = padded(example(alignment));
        // The keys' bytes: all that lies between the counts and the first tensor's name.
        const auto keys = [](const bytes& from) {
            const std::string text(reinterpret_cast<const char*>(from.data()), from.size());
            return text.substr(16, text.find("vector") - 16);
        };
        CHECK(keys(all).substr(8) == keys(other).substr(8));
        CHECK(file->tensors().find("cube")->shape == shape(2, 3, 1));
        CHECK(file->tensors().find("blocks")->type == dtype::q8_0);
        for (const auto& e : file->tensors().entries())
            CHECK(static_cast<std::size_t>(static_cast<const std::byte*>(e.tensor.data) - all.data()) %
                      alignment ==
                  0);
        for (std::size_t i = 0; i < six.size(); ++i)
            CHECK(load_as_f32(file->tensors().find("cube")->data, dtype::f32, i) == six[i]);
    }
}

TEST_CASE("gguf_writer: every format that ggml has is written under its number") {
    const std::vector<std::byte> memory(256 * 8);
    for (const dtype type :
         {dtype::f32, dtype::f16, dtype::bf16, dtype::i32, dtype::i64, dtype::q8_0, dtype::q4_0, dtype::q4_1,
          dtype::q5_0, dtype::q5_1, dtype::q2_k, dtype::q3_k, dtype::q4_k, dtype::q5_k, dtype::q6_k,
          dtype::iq4_nl, dtype::iq4_xs, dtype::mxfp4}) {
        gguf_writer made;
        REQUIRE(made.add("w", {memory.data(), type, {1, 256}}).ok());
        const bytes all = made.to_bytes("file").or_throw();
        const auto file = gguf_file::read(all, "file");
        REQUIRE(file.ok());
        REQUIRE(file->tensors().find("w") != nullptr);
        CHECK(file->tensors().find("w")->type == type);
    }
}

TEST_CASE("gguf_writer: tensors are replaced, whole and in parts, and nothing else changes") {
    const bytes before = padded(example(32));
    auto writer = gguf_writer::from(before, "file");
    REQUIRE(writer.ok());
    const std::vector<float> low{-1, -2, -3}, high{-4, -5, -6};
    const std::array<tensor_view, 2> halves{
        {{low.data(), dtype::f32, {3, 1}}, {high.data(), dtype::f32, {3, 1}}}};
    REQUIRE(writer->replace("cube", halves).ok());  // (2, 3, 1) from two of (3, 1)
    const std::vector<std::uint16_t> halfs{0x3c00, 0x4000, 0x4200};
    const tensor_view shorter{halfs.data(), dtype::f16, {3}};
    REQUIRE(writer->replace("vector", {&shorter, 1}).ok());
    const bytes after = writer->to_bytes("file").or_throw();
    const auto file = gguf_file::read(after, "file");
    REQUIRE(file.ok());
    CHECK(load_as_f32(file->tensors().find("cube")->data, dtype::f32, 0) == -1);
    CHECK(load_as_f32(file->tensors().find("cube")->data, dtype::f32, 5) == -6);
    CHECK(file->tensors().find("vector")->type == dtype::f16);
    CHECK(load_as_f32(file->tensors().find("vector")->data, dtype::f16, 2) == 3);
    CHECK(file->find<std::string_view>("general.architecture") == "llama");
    REQUIRE(file->unread().size() == 1);
    CHECK(std::memcmp(file->tensors().find("blocks")->data, blocks_of_8.data(), 34) == 0);

    // Put back, the first file comes again.
    const std::array<tensor_view, 2> rows{
        {{six.data(), dtype::f32, {1, 3, 1}}, {six.data() + 3, dtype::f32, {1, 3, 1}}}};
    REQUIRE(writer->replace("cube", rows).ok());
    const tensor_view vector{three.data(), dtype::f32, {3}};
    REQUIRE(writer->replace("vector", {&vector, 1}).ok());
    CHECK(writer->to_bytes("file").or_throw() == before);

    CHECK(said(writer->replace("none", rows)) == "none: missing from the GGUF file");
    CHECK(said(writer->replace("cube", {&vector, 1})) ==
          "cube: has shape (2, 3, 1) in the GGUF file; what is to take its place has (3)");
    CHECK(said(writer->replace("cube", {halves.data(), 1})) ==
          "cube: has shape (2, 3, 1) in the GGUF file; what is to take its place has (1, 3, 1)");
    CHECK(said(writer->replace("vector", {})) ==
          "vector: has shape (3) in the GGUF file; what is to take its place has (0)");
    const std::array<tensor_view, 2> mixed{{rows[0], {six.data(), dtype::f16, {1, 3, 1}}}};
    CHECK(said(writer->replace("cube", mixed)) == "cube: is given in parts: F32 (1, 3, 1) and F16 (1, 3, 1)");
    const std::array<tensor_view, 2> uneven{{rows[0], {six.data(), dtype::f32, {2, 3, 1}}}};
    CHECK(said(writer->replace("cube", uneven)) ==
          "cube: is given in parts: F32 (1, 3, 1) and F32 (2, 3, 1)");
    CHECK(writer->to_bytes("file").or_throw() == before);  // what was refused has changed nothing
}

TEST_CASE("gguf_writer: what cannot be written is said") {
    gguf_writer made;
    CHECK(made.add("w", {three.data(), dtype::f32, {3}}).ok());
    CHECK(said(made.add("w", {three.data(), dtype::f32, {3}})) == "w: was added already");
    CHECK(said(made.add("v", {three.data(), dtype::u8, {3}})) == "v: is U8, which ggml's tensors cannot be");
    CHECK(said(made.add("v", {three.data(), dtype::q8_0, {2, 33}})) ==
          "v: is Q8_0 of shape (2, 33); rows are no whole blocks of 32");
    for (const std::uint32_t alignment : {0u, 24u, 1u << 21}) {
        made.set("general.alignment", alignment);
        const auto all = made.to_bytes("file");
        REQUIRE(!all.ok());
        CHECK(all.failure().message() == "file: general.alignment is no power of two up to 2^20 in 32 bits");
    }
    made.set("general.alignment", "32");
    CHECK(!made.to_bytes("file").ok());
}

TEST_CASE("gguf_writer: cut off anywhere, or a byte changed: refused, or written again") {
    const bytes whole = padded(example(32));
    for (std::size_t size = 0; size < whole.size(); ++size) {
        const bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
        if (const auto writer = gguf_writer::from(cut, "file"); writer.ok())
            CHECK(gguf_file::read(writer->to_bytes("file").or_throw(), "file").ok());
    }
    for (std::size_t at = 0; at < whole.size(); ++at)
        for (const int change : {1, 0x80, 0xFF}) {
            bytes changed = whole;
            changed[at] ^= static_cast<std::byte>(change);
            const auto writer = gguf_writer::from(changed, "file");
            if (!writer.ok()) continue;
            const auto again = writer->to_bytes("file");
            if (again.ok()) CHECK(gguf_file::read(*again, "file").ok());
        }
}

TEST_CASE("gguf_writer: on disk, complete or not at all") {
    const tiffin_test::scratch_folder folder;
    const auto path = folder / "model.gguf";
    const bytes wanted = padded(example(32));
    const auto writer = gguf_writer::from(wanted, "file");
    std::size_t told = 0;
    REQUIRE(writer
                ->write(path,
                        [&](std::size_t done, std::size_t all) {
                            CHECK(done > told);
                            CHECK(all == wanted.size());
                            told = done;
                        })
                .ok());
    CHECK(told == wanted.size());
    std::ifstream in(path, std::ios::binary);
    const std::string got{std::istreambuf_iterator<char>(in), {}};
    CHECK(got == std::string(reinterpret_cast<const char*>(wanted.data()), wanted.size()));
    CHECK(folder.files() == 1);
    gguf_writer bad;
    bad.set("general.alignment", 3u);
    CHECK(!bad.write(path).ok());
    CHECK(folder.files() == 1);
    CHECK(gguf_file::open(path).ok());
    CHECK(said(writer->write(folder / "none" / "model.gguf")).find("cannot be written") != std::string::npos);
}

}  // namespace convert_example_gguf_writer_test
