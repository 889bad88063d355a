// The options of layer files: which spellings of a number there are, whatever the program's locale.
#include <tiffin/io/layer_options.hpp>

#include "support/doctest.hpp"
#include "support/scratch_folder.hpp"

#include <clocale>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace io_layer_options_test {
using tiffin::errc;
using tiffin::io::layer_options;

namespace {

// Reads one option's text to `to`.
template <class Number>
tiffin::status read(const std::string& text, Number& to) {
    const std::map<std::string, std::string> metadata{{"key", text}};
    return layer_options(metadata).read("key", to);
}

void check_numbers() {
    const std::vector<std::pair<std::string, float>> accepted{
        {"0", 0.0f},
        {"1", 1.0f},
        {"007", 7.0f},
        {"0.00001", 0.00001f},
        {"1e-5", 1e-5f},
        {"1E-5", 1e-5f},
        {"1e+5", 1e5f},
        {".5", 0.5f},
        {"5.", 5.0f},
        {"0.1", 0.1f},
        {"16777217", 16777216.0f},
        {"1.00000017881393421514957253748434595763683319091796875", 1.00000011920928955f},
        {"3.4028235e38", std::numeric_limits<float>::max()},
        {"1.1754944e-38", std::numeric_limits<float>::min()},
        {"1e-45", std::numeric_limits<float>::denorm_min()},
    };
    for (const auto& each : accepted) {  // no structured binding: clang 14 cannot capture those
        CAPTURE(each.first);
        float got = -1;
        CHECK(read(each.first, got).ok());
        CHECK(got == each.second);
    }
    for (const std::string text :
         {"",       " ",       "x",      "+1",    "+0.5",  "-1",    "-1e-30",   "-0",  "-0.0", "--1",
          "1,5",    "0,00001", "1.5.",   "1 ",    " 1",    "1\n",   "1x",       "1e",  "1e+",  "e5",
          ".",      "-",       "0x1p3",  "0x10",  "inf",   "-inf",  "infinity", "INF", "nan",  "NaN",
          "nan(1)", "1e39",    "3.5e38", "1e999", "1e-60", "1'000", "1_000"}) {
        CAPTURE(text);
        float got = 7;
        const tiffin::status s = read(text, got);
        REQUIRE_FALSE(s.ok());
        CHECK(s.failure().code == errc::option);
        CHECK(s.failure().where == "key");
        CHECK(s.failure().what == "is '" + (text == "1\n" ? "1\\x0a" : text) +
                                      "'; it must be a number not below 0 that f32 can hold");
        CHECK(got == 7.0f);  // left as it is
    }
    float cut = 7;
    CHECK_FALSE(read(std::string("1\0", 2), cut).ok());
    CHECK_FALSE(read(std::string("1\0005", 3), cut).ok());
    CHECK(cut == 7.0f);
}

// Puts a locale with decimal commas in force, from those installed, else from one compiled to `folder`.
bool with_decimal_commas(const tiffin_test::scratch_folder& folder) {
    const auto set = [](const char* name) {
        return std::setlocale(LC_NUMERIC, name) != nullptr && *std::localeconv()->decimal_point == ',';
    };
    for (const char* const name :
         {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8", "fr_FR.utf8", "nl_NL.UTF-8", "es_ES.UTF-8",
          "it_IT.UTF-8", "pt_BR.UTF-8", "ru_RU.UTF-8", "German", "French"})
        if (set(name)) return true;
#if defined(__linux__)
    const std::string made = folder / "de_DE.UTF-8";
    if (std::system(("localedef -c -i de_DE -f UTF-8 '" + made + "' >/dev/null 2>&1").c_str()) == -1)
        return false;
    ::setenv("LOCPATH", folder.path().c_str(), 1);
    const bool is_set = set("de_DE.UTF-8");
    ::unsetenv("LOCPATH");
    return is_set;
#else
    static_cast<void>(folder);
    return false;
#endif
}

}  // namespace

TEST_CASE("layer options: the spellings of a number") {
    check_numbers();
}

TEST_CASE("layer options: the same where the locale writes decimal commas") {
    const tiffin_test::scratch_folder folder;
    if (!with_decimal_commas(folder)) {
        MESSAGE("not tested: no locale with decimal commas is installed, and none can be made");
        return;
    }
    char* rest = nullptr;
    const bool changed = std::strtod("1,5", &rest) == 1.5;  // else the test would show nothing
    check_numbers();
    std::setlocale(LC_NUMERIC, "C");
    CHECK(changed);
}

TEST_CASE("layer options: whole numbers from 1 up") {
    const std::vector<std::pair<std::string, std::size_t>> accepted{
        {"1", 1}, {"28", 28}, {"007", 7}, {"18446744073709551614", ~std::size_t{1}}};
    for (const auto& each : accepted) {
        CAPTURE(each.first);
        std::size_t got = 0;
        CHECK(read(each.first, got).ok());
        CHECK(got == each.second);
    }
    for (const std::string text : {"", "0", "00", "-1", "+1", " 1", "1 ", "1.0", "1e2", "0x1",
                                   "18446744073709551615", "18446744073709551616"}) {
        CAPTURE(text);
        std::size_t got = 7;
        CHECK_FALSE(read(text, got).ok());
        CHECK(got == 7);
    }
}

}  // namespace io_layer_options_test
