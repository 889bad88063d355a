// GGUF files: what is read of whole ones, and the sentence for every way in which one can be wrong.
#include <tiffin/io/gguf.hpp>

#include "support/doctest.hpp"
#include "support/gguf_bytes.hpp"
#include "support/scratch_folder.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace io_gguf_test {
using namespace tiffin;
using tiffin::io::gguf_array;
using tiffin::io::gguf_file;
using tiffin_test::gguf_bytes;

namespace {

// One file with a value of every kind, and tensors of one to three axes.
gguf_bytes example() {
    gguf_bytes file;
    file.text("general.architecture", "llama").whole("llama.block_count", 2).real("eps", 0.5f);
    file.number("u8", 0, std::uint8_t{200})
        .number("i8", 1, std::int8_t{-3})
        .number("u16", 2, std::uint16_t{60000});
    file.number("i16", 3, std::int16_t{-300})
        .number("i32", 5, std::int32_t{-70000})
        .number("yes", 7, std::uint8_t{1});
    file.number("u64", 10, std::uint64_t{1} << 40)
        .number("i64", 11, -(std::int64_t{1} << 40))
        .number("f64", 12, 0.25);
    std::vector<std::byte> texts;
    gguf_bytes::put(texts, std::uint32_t{8});
    gguf_bytes::put(texts, std::uint64_t{3});
    for (const std::string_view t : {"a", "", "long"}) gguf_bytes::put_text(texts, t);
    file.key("texts", 9, texts);
    std::vector<std::byte> numbers;
    gguf_bytes::put(numbers, std::uint32_t{5});
    gguf_bytes::put(numbers, std::uint64_t{2});
    for (const std::int32_t n : {7, -9}) gguf_bytes::put(numbers, n);
    file.key("numbers", 9, numbers);
    file.tensor("vector", {3}, {1, 2, 3}).tensor("matrix", {2, 3}, {1, 2, 3, 4, 5, 6});
    file.tensor("cube", {1, 2, 2}, {7, 8, 9, 10});
    const std::vector<std::uint8_t> block(34, 1), odd(66, 2);
    file.tensor("blocks", {32, 1}, 8, block.data(), block.size())
        .tensor("odd", {256}, 16, odd.data(), odd.size());
    return file;
}

// Of these bytes; of none where they are read.
std::string refused(const std::vector<std::byte>& bytes) {
    const auto file = gguf_file::read(bytes, "file");
    return file.ok() ? "" : file.failure().message();
}

}  // namespace

TEST_CASE("gguf: metadata of every kind, tensors in every shape") {
    for (const std::uint32_t version : {2u, 3u}) {
        gguf_bytes made = example();
        made.version = version;
        const auto bytes = made.bytes();
        const auto file = gguf_file::read(bytes, "file");
        REQUIRE(file.ok());
        CHECK(file->version() == version);
        CHECK(file->label() == "file");
        CHECK(file->find<std::string_view>("general.architecture") == "llama");
        CHECK(file->find<std::uint64_t>("llama.block_count") == 2u);
        CHECK(file->find<double>("eps") == 0.5);
        CHECK(file->find<std::uint64_t>("u8") == 200u);
        CHECK(file->find<double>("i8") == -3.0);
        CHECK(!file->find<std::uint64_t>("i8"));
        CHECK(file->find<std::uint64_t>("u16") == 60000u);
        CHECK(file->find<double>("i16") == -300.0);
        CHECK(file->find<double>("i32") == -70000.0);
        CHECK(file->find<bool>("yes") == true);
        CHECK(file->find<std::uint64_t>("u64") == std::uint64_t{1} << 40);
        CHECK(file->find<double>("i64") == -0x1p40);
        CHECK(file->find<double>("f64") == 0.25);
        CHECK(!file->find<double>("general.architecture"));
        CHECK(!file->find<double>("nothing"));
        std::vector<std::string> texts;
        file->find<gguf_array>("texts")->for_texts([&](std::string_view t) { texts.emplace_back(t); });
        CHECK(texts == std::vector<std::string>{"a", "", "long"});
        const auto numbers = *file->find<gguf_array>("numbers");
        REQUIRE(numbers.size == 2);
        CHECK(numbers.number<std::int64_t>(0) == 7);
        CHECK(numbers.number<std::int64_t>(1) == -9);

        const weights& tensors = file->tensors();
        REQUIRE(tensors.entries().size() == 4);
        CHECK(tensors.find("vector")->shape == shape(3));
        CHECK(tensors.find("matrix")->shape == shape(3, 2));
        CHECK(tensors.find("cube")->shape == shape(2, 2, 1));
        CHECK(load_as_f32(tensors.find("matrix")->data, dtype::f32, 5) == 6);
        CHECK(load_as_f32(tensors.find("cube")->data, dtype::f32, 0) == 7);
        CHECK(tensors.find("blocks")->type == dtype::q8_0);
        REQUIRE(file->unread().size() == 1);
        CHECK(file->unread()[0].name == "odd");
        CHECK(io::gguf_unread_name(file->unread()[0].type) == "IQ2_XXS");
    }
}

TEST_CASE("gguf: a file on disk; views survive its being moved") {
    const tiffin_test::scratch_folder folder;
    const auto path = folder / "model.gguf";
    const auto bytes = example().bytes();
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    auto file = gguf_file::open(path);
    REQUIRE(file.ok());
    const tensor_view matrix = *file->tensors().find("matrix");
    const gguf_file moved = *std::move(file);
    CHECK(moved.tensors().find("matrix")->data == matrix.data);
    CHECK(load_as_f32(matrix.data, dtype::f32, 1) == 2);
    CHECK(moved.find<std::string_view>("general.architecture") == "llama");
    CHECK(moved.label() == path.string());
    const auto none = gguf_file::open(folder / "none.gguf");
    REQUIRE(!none.ok());
    CHECK(none.failure().code == errc::file);
}

TEST_CASE("gguf: cut off anywhere it is refused, and says where") {
    const auto whole = example().bytes();
    for (std::size_t size = 0; size < whole.size(); ++size) {
        const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
        const auto file = gguf_file::read(cut, "file");
        REQUIRE(!file.ok());
        CHECK(file.failure().code == errc::file);
        const std::string& what = file.failure().what;
        const bool says = what.find("ends inside") != what.npos || what.find("does not begin") != what.npos ||
                          what.find("bytes of data") != what.npos;
        INFO(what);
        CHECK(says);
    }
    CHECK(refused({}) == "file: the file does not begin with 'GGUF'");
    CHECK(refused({whole.begin(), whole.begin() + 6}) ==
          "file: the file ends inside its version, after byte 4");
}

TEST_CASE("gguf: any byte changed, it is read or refused") {
    const auto whole = example().bytes();
    for (std::size_t at = 0; at < whole.size(); ++at)
        for (const int change : {1, 0x80, 0xFF}) {
            auto bytes = whole;
            bytes[at] ^= static_cast<std::byte>(change);
            const auto file = gguf_file::read(bytes, "file");
            if (!file.ok()) continue;
            // What is given can be touched.
            float sum = 0;
            for (const auto& e : file->tensors().entries())
                if (!is_integer(e.tensor.type))
                    for (std::size_t i = 0; i < e.tensor.shape.elements(); ++i)
                        sum += load_as_f32(e.tensor.data, e.tensor.type, i);
            static_cast<void>(sum);
        }
}

TEST_CASE("gguf: what is wrong is said") {
    const std::vector<float> one(64, 1.0f);
    gguf_bytes f;
    f.version = 1;
    CHECK(refused(f.bytes()) == "file: the file has version 1; versions 2 and 3 are read");
    f.version = 0x03000000;
    CHECK(refused(f.bytes()) == "file: the file is big-endian; little-endian files are read");

    CHECK(refused(gguf_bytes().whole("a", 1).whole("a", 2).bytes()) ==
          "file: the metadata has the key 'a' twice");
    CHECK(refused(gguf_bytes().key("a", 13, {}).bytes()) ==
          "file: the value of 'a' has type 13; types go up to 12");
    std::vector<std::byte> nested;
    gguf_bytes::put(nested, std::uint32_t{9});
    gguf_bytes::put(nested, std::uint64_t{1});
    CHECK(refused(gguf_bytes().key("a", 9, nested).bytes()) ==
          "file: the array of 'a' has elements of type 9; numbers, truths and texts are read");
    for (const std::uint32_t type : {4u, 8u, 12u}) {
        std::vector<std::byte> endless;
        gguf_bytes::put(endless, type);
        gguf_bytes::put(endless, std::numeric_limits<std::uint64_t>::max());
        CHECK(refused(gguf_bytes().key("a", 9, endless).bytes()).find("ends inside the array of 'a'") !=
              std::string::npos);
    }
    for (const std::uint32_t alignment : {0u, 24u, 1u << 21})
        CHECK(refused(gguf_bytes().whole("general.alignment", alignment).bytes()) ==
              "file: general.alignment is not a power of two up to 2^20");
    CHECK(refused(gguf_bytes().text("general.alignment", "32").bytes()).find("general.alignment") !=
          std::string::npos);

    CHECK(refused(gguf_bytes().tensor("w", {1}, one).tensor("w", {1}, one).bytes()) ==
          "file: tensor 'w' is given twice");
    CHECK(refused(gguf_bytes().tensor("w", {1, 1, 1, 1, 1}, one).bytes()) ==
          "file: tensor 'w' has 5 axes; there are at most 4");
    CHECK(refused(gguf_bytes().tensor("w", {1ull << 40, 1ull << 40}, one).bytes()) ==
          "file: tensor 'w' has a shape whose numbers overflow");
    CHECK(refused(gguf_bytes().tensor("w", {40, 2}, 12, one.data(), 64).bytes()) ==
          "file: tensor 'w' is Q4_K of shape (2, 40); rows are no whole blocks of 256");
    CHECK(refused(gguf_bytes().tensor("w", {65}, one).bytes()) ==
          "file: tensor 'w' takes 260 bytes from byte 0 of the data on; the file has 256 bytes of data");
    gguf_bytes askew;
    askew.alignment = 8;
    CHECK(refused(askew.tensor("v", {2}, 0, one.data(), 8).tensor("w", {2}, 0, one.data(), 8).bytes())
              .find("tensor 'w' begins at byte 8 of the data, no multiple of 32") != std::string::npos);
    // 'w' inside 'v': where it begins, 256, comes behind its name, its one axis of 64 and its type.
    auto shared = gguf_bytes().tensor("v", {64}, one).tensor("w", {64}, one).bytes();
    const auto begin_of_w = [](const std::vector<std::byte>& bytes) {
        return static_cast<std::size_t>(std::find(bytes.begin(), bytes.end(), std::byte{'w'}) -
                                        bytes.begin()) +
               1 + 4 + 8 + 4;
    };
    shared.at(begin_of_w(shared)) = std::byte{32};
    shared.at(begin_of_w(shared) + 1) = std::byte{0};
    CHECK(refused(shared) == "file: tensor 'w' begins at byte 32 of the data, inside tensor 'v'");
    // Of a type that nobody knows only the begin can be looked at.
    CHECK(gguf_file::read(gguf_bytes().tensor("w", {7}, 99, one.data(), 1).bytes(), "file").ok());
    auto beyond = gguf_bytes().tensor("w", {7}, 99, one.data(), 1).bytes();
    beyond.at(begin_of_w(beyond)) = std::byte{32};
    CHECK(refused(beyond) ==
          "file: tensor 'w' takes 0 bytes from byte 32 of the data on; the file has 1 bytes of data");
    const std::string hostile = "w\n\x1b";
    CHECK(refused(gguf_bytes().tensor(hostile, {65}, one).bytes()).find("tensor 'w\\x0a\\x1b'") !=
          std::string::npos);
}

}  // namespace io_gguf_test
