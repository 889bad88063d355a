// Messages: one line of printable ASCII of bounded length, whatever names and values they quote.
#include <tiffin/error.hpp>
#include <tiffin/io/layer_options.hpp>
#include <tiffin/quoted.hpp>

#include "support/doctest.hpp"

#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>

namespace io_quoted_test {
using tiffin::errc;
using tiffin::failure;
using tiffin::detail::in_quotes;
using tiffin::detail::printable;

namespace {

using namespace std::string_literals;

// A line of its own, an escape sequence, a zero, a carriage return, bytes of UTF-8 and none.
const std::string hostile = "a\nrun_layer: all is well\x1b[2J\r\0\x7F\xC3\xA9\xFF"s;

void check_line(const std::string& text, std::size_t limit) {
    CHECK(text.size() <= limit);
    for (const char c : text) REQUIRE((c >= 0x20 && c < 0x7F));
}

}  // namespace

TEST_CASE("printable: bytes that are not are written out") {
    CHECK(printable("") == "");
    CHECK(printable("plain ~ text \\x0a") == "plain ~ text \\x0a");
    CHECK(printable(hostile) == "a\\x0arun_layer: all is well\\x1b[2J\\x0d\\x00\\x7f\\xc3\\xa9\\xff");
    CHECK(in_quotes("a'b\n") == "'a'b\\x0a'");
    for (int byte = 0; byte < 256; ++byte) check_line(printable(std::string(3, static_cast<char>(byte))), 12);
}

TEST_CASE("printable: what is too long is cut, and says so") {
    CHECK(printable(std::string(96, 'n')) == std::string(96, 'n'));
    CHECK(printable(std::string(97, 'n')) == std::string(82, 'n') + "... (97 bytes)");
    CHECK(printable(std::string(3'000'000, 'n')) == std::string(77, 'n') + "... (3000000 bytes)");
    // An escape is kept whole or left out; the length is that of the text.
    CHECK(printable(std::string(25, '\n'), 96).ends_with("\\x0a\\x0a... (25 bytes)"));
    CHECK(printable(std::string(24, '\n'), 96).size() == 96);
    for (const std::size_t limit : {32u, 33u, 34u, 35u, 96u, 2048u})
        for (const std::string_view unit : {"n", "\n", "n\n", "ab\x1b"})
            for (std::size_t times : {1u, 7u, 8u, 9u, 31u, 32u, 33u, 96u, 1000u}) {
                std::string text;
                while (times-- > 0) text += unit;
                const std::string once = printable(text, limit);
                check_line(once, limit);
                CHECK(printable(once, limit) == once);  // so that messages may quote messages
            }
}

TEST_CASE("failure: its message is one line, its place stays what it is") {
    CHECK(failure(errc::file, "path", "is gone").message() == "path: is gone");
    CHECK(failure(errc::file, "", "is gone").message() == "is gone");
    const failure odd{errc::option, hostile, hostile};
    CHECK(odd.where == hostile);
    CHECK(odd.message() == printable(hostile) + ": " + printable(hostile));
    CHECK(odd.message().find("\\x00\\x7f") != std::string::npos);  // a zero does not end it
    const failure long_ones{errc::file, std::string(1'000'000, '\n'), std::string(1'000'000, '\r')};
    check_line(long_ones.message(), 4096 + 2 + 2048);
    // A message that quotes another is no longer, and changes nothing of it.
    const failure outer{errc::file, "path", odd.message()};
    CHECK(outer.message() == "path: " + odd.message());
    // A path and a sentence as long as they come are left whole.
    const failure whole{errc::file, std::string(4096, 'p'), std::string(2048, 's')};
    CHECK(whole.message() == whole.where + ": " + whole.what);
#if TIFFIN_EXCEPTIONS
    CHECK(std::string(tiffin::error(odd).what()) == odd.message());
    CHECK(tiffin::error(odd).where() == hostile);
#endif
}

TEST_CASE("layer options: endless values leave room for what is wrong") {
    const std::string endless = hostile + std::string(1'000'000, 'v');
    const std::map<std::string, std::string> metadata{{"word", endless},   {"count", endless},
                                                      {"number", endless}, {"wrong", endless},
                                                      {endless, "1"},      {endless + ".format", endless}};
    const auto check = [&](const tiffin::status& s, std::string_view last) {
        REQUIRE_FALSE(s.ok());
        INFO(s.failure().message());
        CHECK(s.failure().code == errc::option);
        check_line(s.failure().what, 400);
        CHECK(s.failure().what.ends_with(last));
        CHECK(s.failure().message().ends_with(last));
    };
    tiffin::io::layer_options options(metadata);
    static constexpr std::array<std::string_view, 2> words{"one", "two"};
    std::string_view word;
    std::size_t count = 0;
    float number = 0;
    check(options.read("word", words, word), "known are one, two");
    check(options.read("count", count), "it must be a whole number from 1 up");
    check(options.read("number", number), "it must be a number not below 0 that f32 can hold");
    check(options.check_all_known(endless), "')");
    for (const auto& [key, value] : metadata) {
        const std::map<std::string, std::string> one{{key, value}};
        tiffin::io::layer_options unknown(one);
        const bool format = key.ends_with(".format");
        check(unknown.check_all_known("glu"), format ? "be there in bytes (U8)" : "')");
        CHECK(unknown.check_all_known("glu").failure().where == key);
    }
}

}  // namespace io_quoted_test
