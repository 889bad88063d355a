// Compositions as text: what is read, where a mistake is said to be, limits, random trees there and back, broken texts.
#include <tiffin/plan/text.hpp>

#include "support/doctest.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace plan_text_test {
using namespace tiffin;

namespace {

std::string printed(std::string_view text) {
    const auto read = parse_text(text);
    if (!read) return read.failure().message();
    return print_text(*read);
}
std::string refused(std::string_view text) {
    const auto read = parse_text(text);
    if (read) return "read";
    CHECK(read.failure().code == errc::option);
    CHECK(read.failure().where == "composition");
    return read.failure().what;
}
// `n` policies inside one another.
std::string nested(std::size_t n) {
    std::string text = "a";
    for (std::size_t i = 1; i < n; ++i) text = "a(" + text + ")";
    return text;
}

class random_trees {
public:
    explicit random_trees(std::uint32_t seed) : engine_(seed) {}

    text_node node(std::size_t depth) {
        text_node made{name(), {}, 0};
        if (depth == 0) return made;
        for (std::size_t i = below(5); i > 0; --i) made.arguments.push_back(argument(depth - 1));
        return made;
    }
    std::size_t below(std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(engine_); }

private:
    std::string name() {
        static constexpr std::array<std::string_view, 5> names{{"gate", "e", "_x9", "Sum2", "all"}};
        return std::string(names[below(names.size())]);
    }
    std::string string() {
        std::string made;
        const char quote = below(2) == 0 ? '"' : '\'';  // the one that it has none of
        for (std::size_t i = below(12); i > 0; --i) {
            const char c = static_cast<char>(' ' + below('~' - ' ' + 1));
            if (c != quote) made += c;
        }
        return made;
    }
    std::int64_t integer() {
        switch (below(4)) {
            case 0: return std::numeric_limits<std::int64_t>::min();
            case 1: return std::numeric_limits<std::int64_t>::max();
            default: return static_cast<std::int64_t>(below(100)) - 50;
        }
    }
    double real() {
        switch (below(4)) {
            case 0: return std::numeric_limits<double>::denorm_min();
            case 1: return -std::numeric_limits<double>::max();
            case 2: return static_cast<double>(below(10)) - 5;  // as a whole number is
            default: return std::normal_distribution<double>()(engine_);
        }
    }
    text_argument argument(std::size_t depth) {
        if (below(2) == 0) {
            text_argument option{name(), real(), 0};
            if (below(3) == 0) option.value = integer();
            if (below(3) == 0) option.value = node(depth);
            return option;
        }
        text_argument positional{{}, node(depth), 0};
        if (below(4) == 0) positional.value = string();
        if (below(4) == 0) positional.value = integer();
        return positional;
    }

    std::mt19937 engine_;
};

}  // namespace

TEST_CASE("what is read, and printed in one way") {
    CHECK(printed("swiglu") == "swiglu");
    CHECK(printed(" \t\n ffn ( gate(silu ),sum( dense , token_embedding) ) \n") ==
          "ffn(gate(silu), sum(dense, token_embedding))");
    CHECK(printed("none()") == "none");
    CHECK(printed("named(dense, 'up_proj')") == "named(dense, \"up_proj\")");
    CHECK(printed("a('say \"x\"')") == "a('say \"x\"')");
    CHECK(printed("through(\"\", dense)") == "through(\"\", dense)");
    CHECK(printed("times_roots(dense, -1, 0)") == "times_roots(dense, -1, 0)");
    CHECK(printed("pool(l2(eps=1e-6), sigmoid(top_k=2), top_k=all, num_layers=28)") ==
          "pool(l2(eps=1e-06), sigmoid(top_k=2), top_k=all, num_layers=28)");
    CHECK(printed("a(b=1.0, c=.5, d=-0.25e+2, e=f(g), h=9223372036854775807)") ==
          "a(b=1.0, c=0.5, d=-25.0, e=f(g), h=9223372036854775807)");
}

TEST_CASE("a number is an integer where it is written as one") {
    const auto read = parse_text("a(b=2, c=2.0, d=99999999999999999999)");
    REQUIRE(read.ok());
    CHECK(std::get<std::int64_t>(read->arguments[0].value) == 2);
    CHECK(std::get<double>(read->arguments[1].value) == 2.0);
    CHECK(std::get<double>(read->arguments[2].value) == 1e20);
}

TEST_CASE("positions are bytes of the text") {
    const auto read = parse_text("  ffn(gate(silu), top_k = all)");
    REQUIRE(read.ok());
    CHECK(read->position == 2);
    CHECK(read->arguments[0].position == 6);
    CHECK(std::get<text_node>(std::get<text_node>(read->arguments[0].value).arguments[0].value).position ==
          11);
    CHECK(read->arguments[1].position == 18);
    CHECK(std::get<text_node>(read->arguments[1].value).position == 26);
}

TEST_CASE("a mistake is told with its place and what was expected") {
    CHECK(refused("") == "ends at byte 0; expected the name of a policy");
    CHECK(refused("ffn(gate(silu)") == "ends at byte 14; expected ',' or ')'");
    CHECK(refused("ffn(gate(silu)))") == "')' at byte 15; expected the end");
    CHECK(refused("ffn(gate silu)") == "'silu)' at byte 9; expected ',' or ')'");
    CHECK(refused("ffn(,dense)") ==
          "',dense)' at byte 4; expected a policy, a string, an integer or an option");
    CHECK(refused("ffn(dense,)") == "')' at byte 10; expected a policy, a string, an integer or an option");
    CHECK(refused("a(b=)") == "')' at byte 4; expected a number or a name");
    CHECK(refused("a(b='c')") == "''c')' at byte 4; expected a number or a name");
    CHECK(refused("a(1.5)") == "'1.5)' at byte 2; expected an integer: other numbers belong to options");
    CHECK(refused("a(99999999999999999999)") ==
          "'99999999999999999999)' at byte 2; expected an integer: other numbers belong to options");
    CHECK(refused("a(b=1e999)") == "'1e999)' at byte 4; expected a finite number");
    CHECK(refused("a(b=-inf)") == "'-inf)' at byte 4; expected a finite number");
    CHECK(refused("a(b=+1)") == "'+1)' at byte 4; expected a finite number");
    CHECK(refused("a(b=1x)") == "'x)' at byte 5; expected the end of a number");
    CHECK(refused("a(b=1.5.5)") == "'.5)' at byte 7; expected the end of a number");
    CHECK(refused("a(\"b)") ==
          "ends at byte 5; expected the end of a string, in the quote that it began with");
    CHECK(refused("a('b\nc')") ==
          "'\\x0ac')' at byte 4; expected the end of a string, in the quote that it began with");
    CHECK(refused("gat\xC3\xA9") == "'\\xc3\\xa9' at byte 3; expected the end");
    CHECK(refused("2ffn") == "'2ffn' at byte 0; expected the name of a policy");
    CHECK(refused(std::string_view("a\0", 2)) == "'\\x00' at byte 1; expected the end");
}

TEST_CASE("limits: what has exactly so much is read") {
    CHECK(printed(nested(text_limits::depth)) == nested(text_limits::depth));
    CHECK(refused(nested(text_limits::depth + 1)) ==
          "'a' at byte 64 lies deeper than 32 policies inside one another");
    CHECK(refused(std::string(60'000, '(').insert(0, "a")).substr(0, 2) == "'(");

    std::string many = "a(b";
    for (std::size_t i = 2; i < text_limits::nodes; ++i) many += ",b";
    CHECK(parse_text(many + ")").ok());
    CHECK(refused(many + ",b)") == "names more than 10000 policies");

    const std::string longest(text_limits::bytes, 'a');
    CHECK(printed(longest) == longest);
    CHECK(refused(longest + ' ') == "has 65537 bytes, more than 65536");
}

TEST_CASE("random trees are what they are printed as") {
    const std::uint32_t seed = std::random_device{}();
    CAPTURE(seed);
    random_trees trees(seed);
    std::size_t options = 0;
    for (int i = 0; i < 5'000; ++i) {
        const text_node tree = trees.node(4);
        const std::string text = print_text(tree);
        CAPTURE(text);
        const auto read = parse_text(text);
        REQUIRE_MESSAGE(read.ok(), (read.ok() ? "" : read.failure().message()));
        REQUIRE(*read == tree);
        REQUIRE(print_text(*read) == text);
        for (const text_argument& a : tree.arguments) options += a.option.empty() ? 0u : 1u;
    }
    CHECK(options > 1'000);
}

TEST_CASE("a broken text is refused in one line, or is another text") {
    const std::uint32_t seed = std::random_device{}();
    CAPTURE(seed);
    random_trees trees(seed);
    std::size_t refusals = 0;
    for (int i = 0; i < 20'000; ++i) {
        std::string text = print_text(trees.node(3));
        for (std::size_t n = 1 + trees.below(3); n > 0 && !text.empty(); --n) {
            const std::size_t at = trees.below(text.size());
            switch (trees.below(3)) {
                case 0: text.erase(at, 1); break;
                case 1: text.insert(at, 1, "(),='\"1.-e\0\xFF"[trees.below(12)]); break;
                default: text[at] = static_cast<char>(trees.below(256));
            }
        }
        CAPTURE(text);
        const auto read = parse_text(text);
        if (read.ok()) {
            const std::string again = print_text(*read);
            const auto same = parse_text(again);
            REQUIRE(same.ok());
            REQUIRE(*same == *read);
            continue;
        }
        ++refusals;
        for (const char c : read.failure().message()) REQUIRE((c >= 0x20 && c < 0x7F));
    }
    CHECK(refusals > 1'000);
}

}  // namespace plan_text_test
