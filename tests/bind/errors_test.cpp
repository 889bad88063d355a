// Everything that can be wrong is refused before anything is written: kind, place and numbers.
#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/eigen/eigen.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/norm/rms.hpp>
#include <tiffin/reference/reference.hpp>
#include <tiffin/source/named.hpp>

#include "support/doctest.hpp"
#include "support/tensor_set.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bind_errors_test {
using namespace tiffin;
using tiffin_test::random_ids;
using tiffin_test::random_rows;
using tiffin_test::tensor_set;

namespace {

// Two tables, of 4 and 5 rows, optional biases, a norm's weight: every kind of tensor.
using two_tables = ffn<gate<silu>, sum<dense, token_embedding, named<token_embedding, "extra_embed">>,
                       multiply, project<rms>>;
constexpr std::size_t d = 3, f = 7, vocab = 4;

[[gnu::noinline]] void check_failure(const failure& found, errc code, std::string_view where,
                                     std::initializer_list<std::string_view> words) {
    INFO(found.message());
    CHECK(found.code == code);
    CHECK(found.where == where);
    for (const std::string_view word : words) {
        CAPTURE(word);
        CHECK(found.what.find(word) != std::string::npos);
    }
    CHECK(found.message() == std::string(where) + ": " + found.what);
    for (const char c : found.message()) CHECK((c >= 0x20 && c < 0x7F));
}

// ---- prepare ----

struct editable_weights {
    tensor_set tensors{tiffin_test::tensors_wanted(two_tables{}), {{d, f, vocab}, {}, {}, ~0u, 3}};
    std::vector<weights::entry> entries = tensors.given().entries();

    tensor_view& operator[](std::string_view name) {
        return std::find_if(entries.begin(), entries.end(), [&](const auto& e) { return e.name == name; })
            ->tensor;
    }
    void remove(std::string_view name) {
        std::erase_if(entries, [&](const auto& e) { return e.name == name; });
    }
    [[nodiscard]] weights given() const {
        weights all;
        for (const weights::entry& e : entries) all.add(e.name, e.tensor);
        return all;
    }
};

template <class Block = two_tables>
void check_refused(const weights& given, errc code, std::string_view where,
                   std::initializer_list<std::string_view> words) {
    const auto one = try_prepare<Block>(given, reference{});
    REQUIRE_FALSE(one.ok());
    check_failure(one.failure(), code, where, words);
    const auto other = try_prepare(Block{}, given, reference{});
    REQUIRE_FALSE(other.ok());
    CHECK(other.failure().message() == one.failure().message());
    // The throwing forms say the same.
    const auto check_thrown = [&](const auto& throwing) {
        try {
            throwing();
            FAIL_CHECK("nothing was thrown");
        } catch (const error& e) {
            CHECK(e.code() == code);
            CHECK(e.where() == where);
            CHECK(e.what() == one.failure().message());
            CHECK(e.details().what == one.failure().what);
        }
    };
    check_thrown([&] { static_cast<void>(prepare<Block>(given, reference{})); });
    check_thrown([&] { static_cast<void>(prepare(Block{}, given, reference{})); });
}

}  // namespace

TEST_CASE("prepare: what the tests below spoil is accepted as it is") {
    const editable_weights w;
    const auto made = try_prepare<two_tables>(w.given(), reference{});
    REQUIRE(made.ok());
    CHECK(made->d_model() == d);
    CHECK(made->d_ff() == f);
    CHECK(w.entries.size() == 9);
}

TEST_CASE("prepare: missing tensors") {
    const auto missing = [](std::string_view name, std::string_view shape) {
        editable_weights w;
        w.remove(name);
        check_refused(w.given(), errc::missing_tensor, name, {"missing", shape});
    };
    missing("gate_proj.weight", "(d_ff, d_model)");
    missing("up_proj.weight", "(d_ff, d_model)");
    missing("stem_embed.weight", "(vocab, d_ff)");
    missing("extra_embed.weight", "(vocab, d_ff)");
    missing("down_proj.weight", "(d_model, d_ff)");
    missing("post_norm.weight", "(d_model)");
    check_refused(weights{}, errc::missing_tensor, "gate_proj.weight", {"missing"});
    for (const std::string_view name : {"gate_proj.bias", "up_proj.bias", "down_proj.bias"}) {
        editable_weights w;
        w.remove(name);
        CHECK(try_prepare<two_tables>(w.given(), reference{}).ok());
    }
}

TEST_CASE("prepare: unused and duplicate tensors") {
    editable_weights w;
    w.entries.insert(w.entries.begin() + 2, {"gate_proj.wieght", w["gate_proj.weight"]});
    check_refused(w.given(), errc::unused_tensor, "gate_proj.wieght", {"(7, 3)"});
    w = {};
    w.entries.push_back({"stem_embed.bias", w["gate_proj.bias"]});
    check_refused(w.given(), errc::unused_tensor, "stem_embed.bias", {"(7)"});
    w = {};
    w.entries.push_back({"down_proj.bias", w["down_proj.bias"]});
    std::size_t first = 0;
    while (w.entries[first].name != "down_proj.bias") ++first;
    check_refused(w.given(), errc::duplicate_tensor, "down_proj.bias",
                  {"tensors " + std::to_string(first) + " and 9"});
    // An unused one given twice is a duplicate first.
    w = {};
    w.entries.push_back({"x", w["down_proj.bias"]});
    w.entries.push_back({"x", w["down_proj.bias"]});
    check_refused(w.given(), errc::duplicate_tensor, "x", {"tensors 9 and 10"});
    // A name of another block's.
    tensor_set plain(tiffin_test::tensors_wanted(mlp{}), {{d, f, 1}, {}, {}, ~0u, 3});
    weights given = plain.given();
    given.add("gate_proj.weight", plain.view("up_proj.weight"));
    check_refused<mlp>(given, errc::unused_tensor, "gate_proj.weight", {"(7, 3)"});
}

TEST_CASE("prepare: null pointers and number formats") {
    for (const std::string name : {"gate_proj.weight", "gate_proj.bias", "stem_embed.weight",
                                   "down_proj.weight", "post_norm.weight"}) {
        editable_weights w;
        w[name].data = nullptr;
        check_refused(w.given(), errc::missing_tensor, name, {"null pointer", to_string(w[name].shape)});
        w = {};
        w[name].type = dtype::i32;
        check_refused(w.given(), errc::dtype, name, {"I32", "F32", "F16", "BF16"});
        w[name].type = dtype::i64;
        check_refused(w.given(), errc::dtype, name, {"I64"});
    }
}

TEST_CASE("prepare: shapes") {
    const auto misshapen = [](std::string_view name, const tiffin::shape& shape,
                              std::initializer_list<std::string_view> words) {
        editable_weights w;
        w[name].shape = shape;
        check_refused(w.given(), errc::shape, name, words);
    };
    // Ranks.
    misshapen("gate_proj.weight", {21}, {"(21)", "2 axes", "(d_ff, d_model)"});
    misshapen("gate_proj.weight", {1, 7, 3}, {"(1, 7, 3)", "2 axes", "(d_ff, d_model)"});
    misshapen("stem_embed.weight", {4, 7, 1, 1}, {"(4, 7, 1, 1)", "2 axes", "(vocab, d_ff)"});
    misshapen("up_proj.bias", {7, 1}, {"(7, 1)", "1 axes", "(d_ff)"});
    misshapen("post_norm.weight", {}, {"()", "1 axes", "(d_model)"});
    // Sizes: each tensor against those before it; the message says which told the size.
    misshapen("up_proj.weight", {7, 4}, {"(7, 4)", "axis 1", "d_model = 3", "gate_proj.weight"});
    misshapen("up_proj.weight", {3, 7}, {"(3, 7)", "axis 0", "d_ff = 7", "gate_proj.weight"});
    misshapen("gate_proj.bias", {8}, {"(8)", "axis 0", "d_ff = 7", "gate_proj.weight"});
    misshapen("stem_embed.weight", {4, 6}, {"(4, 6)", "axis 1", "d_ff = 7"});
    misshapen("extra_embed.weight", {7, 7}, {"(7, 7)", "axis 0", "vocab = 4", "stem_embed.weight"});
    misshapen("extra_embed.weight", {4, 5}, {"(4, 5)", "axis 1", "d_ff = 7"});
    misshapen("down_proj.weight", {3, 8}, {"(3, 8)", "axis 1", "d_ff = 7"});
    misshapen("down_proj.weight", {4, 7}, {"(4, 7)", "axis 0", "d_model = 3"});
    misshapen("down_proj.bias", {7}, {"(7)", "axis 0", "d_model = 3"});
    misshapen("post_norm.weight", {7}, {"(7)", "axis 0", "d_model = 3"});
    // Zeros.
    misshapen("gate_proj.weight", {0, 3}, {"(0, 3)", "no axis may be 0"});
    misshapen("gate_proj.weight", {7, 0}, {"(7, 0)", "no axis may be 0"});
    misshapen("stem_embed.weight", {0, 7}, {"(0, 7)", "no axis may be 0"});
    misshapen("down_proj.bias", {0}, {"(0)", "no axis may be 0"});
    editable_weights w;
    w["down_proj.bias"] = {nullptr, dtype::f32, {0}};
    check_refused(w.given(), errc::shape, "down_proj.bias", {"no axis may be 0"});
}

namespace {
struct bias_alone {
    using bias = tiffin::vector<"bias", presence::optional>;
    using tensors = tensor_list<bias>;
    auto operator()(const auto& at) const { return at[bias{}]; }
};
}  // namespace

TEST_CASE("prepare: a width that no tensor tells") {
    using block = ffn<gate<silu, token_embedding>, none, multiply, project<no_norm, bias_alone>>;
    const std::vector<float> numbers(4);
    weights given;
    given.add("stem_embed.weight", numbers.data(), {2, 2});
    const auto bound = bind_weights(block{}, given);
    REQUIRE_FALSE(bound.ok());
    check_failure(bound.failure(), errc::shape, "d_model", {"cannot be inferred"});
    given.add("down_proj.bias", numbers.data(), {3});
    const auto told = bind_weights(block{}, given);
    REQUIRE(told.ok());
    CHECK(told->needs.d_model == 3);
    CHECK(told->needs.d_ff == 2);
}

// ---- calls ----

namespace {

using row_major = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// A layer, a good call's arguments, and what it computes.
template <class Backend>
struct callable {
    static constexpr std::size_t tokens = 5;
    tensor_set tensors{tiffin_test::tensors_wanted(two_tables{}), {{d, f, vocab}, {}, {}, ~0u, 3}};
    layer<two_tables, Backend> computed = prepare<two_tables>(tensors.given(), Backend{});
    workspace memory = computed.make_workspace(tokens, 2);
    std::vector<float> x = random_rows(tokens, d, 5);
    std::vector<std::int32_t> ids = random_ids(tokens, vocab, 7);
    std::vector<float> y = std::vector<float>(tokens * d);
    std::vector<float> wanted;

    callable() {
        computed(x, ids, y, memory);
        wanted = y;
    }

    // The call is refused in all its forms, `watched` stays as it is, and the layer works afterwards.
    template <class X, class Y>
    [[gnu::noinline]] void refuses(const X& in, std::span<const std::int32_t> token_ids, Y&& out,
                                   std::span<std::byte> room, std::span<float> watched, errc code,
                                   std::string_view where, std::initializer_list<std::string_view> words) {
        const std::vector<float> before(watched.begin(), watched.end());
        const status s = std::as_const(computed).try_call(in, token_ids, out, room);
        REQUIRE_FALSE(s.ok());
        CHECK_FALSE(static_cast<bool>(s));
        check_failure(s.failure(), code, where, words);
        try {
            std::as_const(computed)(in, token_ids, out, room);
            FAIL_CHECK("nothing was thrown");
        } catch (const error& e) {
            CHECK(e.code() == code);
            CHECK(e.where() == where);
            CHECK(e.what() == s.failure().message());
        }
        if (code != errc::workspace) {  // the forms with the layer's own workspace, which suffices
            const status own = computed.try_call(in, token_ids, out);
            REQUIRE_FALSE(own.ok());
            CHECK(own.failure().message() == s.failure().message());
            CHECK_THROWS_AS(computed(in, token_ids, out), error);
        }
        CHECK(std::memcmp(before.data(), watched.data(), watched.size_bytes()) == 0);
        std::vector<float> again(tokens * d);
        std::as_const(computed)(x, ids, again, memory);
        CHECK(again == wanted);
    }
    template <class X, class Y>
    [[gnu::noinline]] void refuses(const X& in, std::span<const std::int32_t> token_ids, Y&& out, errc code,
                                   std::string_view where, std::initializer_list<std::string_view> words) {
        refuses(in, token_ids, out, memory, y, code, where, words);
    }
    void works() {
        std::fill(y.begin(), y.end(), -1.0f);
        computed(x, ids, y);
        CHECK(y == wanted);
    }
};

#define FOR_EACH_BACKEND reference<>, eigen, simd<>

}  // namespace

TEST_CASE_TEMPLATE("calls: token ids", Backend, FOR_EACH_BACKEND) {
    callable<Backend> c;
    const auto bad = [&](std::size_t at, std::int32_t id, std::string_view table, std::string_view rows) {
        auto ids = c.ids;
        ids[at] = id;
        c.refuses(c.x, ids, c.y, errc::token_id, table,
                  {"token_ids[" + std::to_string(at) + "] = " + std::to_string(id), rows});
    };
    bad(0, -1, "stem_embed.weight", "4 rows");
    bad(2, 4, "stem_embed.weight", "4 rows");
    bad(4, INT_MAX, "stem_embed.weight", "4 rows");
    bad(4, INT_MIN, "stem_embed.weight", "4 rows");
    // Found before the first piece is written, though it is read in the last.
    auto ids = c.ids;
    ids.back() = 99;
    workspace one = c.computed.make_workspace(1, 1);
    c.refuses(c.x, ids, c.y, one, c.y, errc::token_id, "stem_embed.weight", {"token_ids[4] = 99"});
    c.works();
}

// Blocks may differ in vocabulary; that of the second is the smaller one here.
TEST_CASE("calls: token ids are held against every table") {
    const std::vector<float> numbers(100, 0.5f);
    weights given;
    for (const auto& [prefix, rows] :
         {std::pair("branch.0.", std::size_t{9}), std::pair("branch.1.", std::size_t{6})})
        given.add(std::string(prefix) + "gate_proj.weight", numbers.data(), {2, 1})
            .add(std::string(prefix) + "stem_embed.weight", numbers.data(), {rows, 2})
            .add(std::string(prefix) + "down_proj.weight", numbers.data(), {1, 2});
    auto computed = prepare<parallel<stem, stem>>(given, reference{});
    float x[1]{}, y[1]{-3};
    for (const std::int32_t id : {6, 8}) {
        const status s = computed.try_call(x, std::span(&id, 1), y);
        REQUIRE_FALSE(s.ok());
        check_failure(s.failure(), errc::token_id, "branch.1.stem_embed.weight",
                      {"token_ids[0] = " + std::to_string(id), "6 rows"});
    }
    CHECK(y[0] == -3);
    const std::int32_t last = 5;
    CHECK(computed.try_call(x, std::span(&last, 1), y).ok());
}

// The checks of sizes and places are the layer's own: one backend stands for all.
TEST_CASE("calls: sizes") {
    callable<reference<>> c;
    const std::span<const std::int32_t> ids(c.ids);
    c.refuses(c.x, {}, c.y, errc::size, "token_ids", {"0 ids", "5 tokens"});
    c.refuses(c.x, ids.first(4), c.y, errc::size, "token_ids", {"4 ids", "5 tokens"});
    const std::vector<std::int32_t> six(6);
    c.refuses(c.x, six, c.y, errc::size, "token_ids", {"6 ids", "5 tokens"});

    const std::span<float> x(c.x), y(c.y);
    c.refuses(x.first(14), ids, y, errc::size, "x", {"14 numbers", "d_model = 3"});
    c.refuses(x, ids, y.first(13), errc::size, "y", {"13 numbers", "d_model = 3"});
    c.refuses(x, ids, y.first(12), errc::size, "y", {"4 rows", "5 tokens"});
    c.refuses(x.first(12), ids.first(4), y, errc::size, "y", {"5 rows", "4 tokens"});
    c.refuses(x, ids, std::span<float>(), errc::size, "y", {"0 rows", "5 tokens"});

    using in = matrix_view<const float>;
    using out = matrix_view<float>;
    c.refuses(in(c.x.data(), 3, 4), ids.first(3), y, errc::size, "x", {"rows of 4", "d_model is 3"});
    c.refuses(in(c.x.data(), 5, 2), ids, y, errc::size, "x", {"rows of 2", "d_model is 3"});
    c.refuses(x, ids, out(c.y.data(), 5, 2, 3), errc::size, "y", {"rows of 2", "d_model is 3"});
    c.refuses(x, ids, out(c.y.data(), 5, 4, 4), errc::size, "y", {"rows of 4", "d_model is 3"});
    c.refuses(in(c.x.data(), 5, 3, 2), ids, y, errc::size, "x", {"stride of 2", "width 3"});
    c.refuses(x, ids, out(c.y.data(), 5, 3, 0), errc::size, "y", {"stride of 0", "width 3"});

    Eigen::Map<row_major> wide(c.y.data(), 3, 5);
    c.refuses(x, ids, wide, errc::size, "y", {"rows of 5", "d_model is 3"});
    Eigen::Map<const row_major> wide_x(c.x.data(), 3, 5);
    c.refuses(wide_x, ids.first(3), y, errc::size, "x", {"rows of 5", "d_model is 3"});
    c.works();
}

TEST_CASE("calls: numbers of a row that are not adjacent") {
    callable<reference<>> c;
    using strided = Eigen::Map<row_major, Eigen::Unaligned, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;
    std::vector<float> spread(60);
    strided m(spread.data(), 5, 3, {12, 2});
    c.refuses(m, c.ids, c.y, errc::size, "x", {"inner stride of 2"});
    c.refuses(c.x, c.ids, m, c.memory, spread, errc::size, "y", {"inner stride of 2"});
    c.works();
}

TEST_CASE("calls: rows of an Eigen map that lie over one another") {
    callable<reference<>> c;
    using strided = Eigen::Map<row_major, Eigen::Unaligned, Eigen::OuterStride<>>;
    for (const Eigen::Index stride : {2, 1, 0}) {
        strided y(c.y.data(), 5, 3, Eigen::OuterStride<>(stride));
        REQUIRE_FALSE(c.computed.try_call(c.x, c.ids, y).ok());
    }
    strided same(c.y.data(), 5, 3, Eigen::OuterStride<>(0));
    CHECK_FALSE(c.computed.try_call(same, c.ids, same).ok());
}

TEST_CASE("calls: y over x or token ids") {
    callable<reference<>> c;
    constexpr std::size_t tokens = callable<reference<>>::tokens, n = tokens * d;
    std::vector<float> both(2 * n);
    const std::span<float> all(both);
    const auto refuse = [&](const auto& x, auto&& y, std::string_view word) {
        c.refuses(x, c.ids, y, c.memory, all, errc::overlap, "y", {word});
    };
    // x itself is allowed: see call/in_place_test.cpp.
    refuse(all.first(n), all.subspan(n - 1, n), "overlaps x");
    refuse(all.subspan(n - 1, n), all.first(n), "overlaps x");
    refuse(all.first(n), all.subspan(d, n), "overlaps x");

    // A wide matrix of 8 columns: x and y as column blocks of it.
    std::vector<float> wide(tokens * 8 + 8, 2.0f);
    using view = matrix_view<float>;
    const auto block = [&](std::size_t column) { return view(wide.data() + column, tokens, d, 8); };
    const auto accept = [&](std::size_t x_column, std::size_t y_column) {
        CAPTURE(x_column);
        CAPTURE(y_column);
        for (std::size_t t = 0; t < tokens; ++t) std::copy_n(c.x.data() + t * d, d, block(x_column).row(t));
        const status s =
            std::as_const(c.computed).try_call(block(x_column), c.ids, block(y_column), c.memory);
        CHECK_MESSAGE(s.ok(), (s.ok() ? "" : s.failure().message()));
        for (std::size_t t = 0; t < tokens; ++t)
            CHECK(std::equal(block(y_column).row(t), block(y_column).row(t) + d, c.wanted.data() + t * d));
        for (std::size_t t = 0; t < tokens; ++t)  // x is still x
            CHECK(std::equal(block(x_column).row(t), block(x_column).row(t) + d, c.x.data() + t * d));
    };
    accept(0, 3);
    accept(3, 0);
    accept(5, 0);
    accept(0, 5);
    accept(5, 8);  // the next row's first columns
    accept(8, 5);
    for (const auto& columns : {std::pair{0u, 2u}, {2u, 0u}, {0u, 6u}, {6u, 0u}, {8u, 0u}}) {
        const auto x_column = columns.first, y_column = columns.second;
        CAPTURE(x_column);
        CAPTURE(y_column);
        c.refuses(block(x_column), c.ids, block(y_column), c.memory, wide, errc::overlap, "y",
                  {"overlaps x"});
    }
    // One token: rows alone count, whatever the strides.
    const std::span<const std::int32_t> one_id = std::span(c.ids).first(1);
    const auto row = [&](std::size_t column) { return view(wide.data() + column, 1, d, 8); };
    CHECK(std::as_const(c.computed).try_call(row(0), one_id, row(3), c.memory).ok());
    c.refuses(row(0), one_id, row(2), c.memory, wide, errc::overlap, "y", {"overlaps x"});

    // Token ids inside y, at its first and last numbers, and just beside it.
    std::vector<float> memory(n + 2 * tokens, 1.0f);
    const auto ids_at = [&](std::size_t i) {
        std::memcpy(memory.data() + i, c.ids.data(), tokens * sizeof(std::int32_t));
        return std::span<const std::int32_t>(reinterpret_cast<const std::int32_t*>(memory.data() + i),
                                             tokens);
    };
    const std::span<float> y(memory.data() + tokens, n);
    for (const std::size_t i : {std::size_t{1}, tokens, tokens + n - 1})
        c.refuses(c.x, ids_at(i), y, c.memory, memory, errc::overlap, "y", {"overlaps token_ids"});
    CHECK(std::as_const(c.computed).try_call(c.x, ids_at(0), y, c.memory).ok());
    CHECK(std::equal(y.begin(), y.end(), c.wanted.begin()));
    CHECK(std::as_const(c.computed).try_call(c.x, ids_at(tokens + n), y, c.memory).ok());
    c.works();
}

TEST_CASE_TEMPLATE("calls: the workspace", Backend, FOR_EACH_BACKEND) {
    callable<Backend> c;
    const std::size_t enough = c.computed.workspace_bytes(1, 1);
    std::vector<std::byte> memory(enough + 128);
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    std::byte* const line = memory.data() + (64 - address % 64) % 64;
    const std::string needs = "one token needs " + std::to_string(enough);
    const auto refuse = [&](std::span<std::byte> room) {
        c.refuses(c.x, c.ids, c.y, room, c.y, errc::workspace, "workspace",
                  {"has " + std::to_string(room.size()) + " bytes", needs});
    };
    // The worst alignment needs every byte of it; the best leaves 63.
    refuse(std::span(line + 1, enough - 1));
    refuse(std::span(line, enough - 64));
    refuse({});
    refuse(std::span(line, 1));
    refuse(std::span(line + 1, 5));
    for (const auto& room : {std::span(line + 1, enough), std::span(line, enough - 63)}) {
        std::fill(c.y.begin(), c.y.end(), -1.0f);
        std::as_const(c.computed)(c.x, c.ids, c.y, room);
        CHECK(c.y == c.wanted);
    }
    // A layer that was prepared without a workspace.
    auto bare = prepare<two_tables>(c.tensors.given(), Backend{}, {.tokens = 0});
    const status s = bare.try_call(c.x, c.ids, c.y);
    REQUIRE_FALSE(s.ok());
    check_failure(s.failure(), errc::workspace, "workspace", {"has 0 bytes", needs});
    CHECK_THROWS_AS(bare(c.x, c.ids, c.y), error);
    CHECK(bare.reserve(1).ok());
    CHECK(bare.try_call(c.x, c.ids, c.y).ok());
    CHECK(c.y == c.wanted);
}

TEST_CASE_TEMPLATE("calls: no tokens", Backend, FOR_EACH_BACKEND) {
    callable<Backend> c;
    const std::span<const float> x;
    const std::span<float> y;
    CHECK(std::as_const(c.computed).try_call(x, {}, y, std::span<std::byte>()).ok());
    CHECK(c.computed.try_call(x, {}, y).ok());
    CHECK(c.computed.try_call(matrix_view<float>(nullptr, 0, d), {}, matrix_view<float>(c.y.data(), 0, d))
              .ok());
    c.refuses(x, c.ids, y, errc::size, "token_ids", {"5 ids", "0 tokens"});
    c.refuses(matrix_view<float>(nullptr, 0, d + 1), {}, y, errc::size, "x", {"rows of 4"});
    CHECK(c.y == c.wanted);
}

TEST_CASE_TEMPLATE("calls: token ids of a block that reads none", Backend, FOR_EACH_BACKEND) {
    const tensor_set tensors(tiffin_test::tensors_wanted(mlp{}), {{d, f, 1}, {}, {}, ~0u, 3});
    auto computed = prepare<mlp>(tensors.given(), Backend{});
    const std::vector<float> x = random_rows(4, d, 5);
    std::vector<float> y(4 * d), with_ids(4 * d);
    computed(x, {}, y);
    const std::vector<std::int32_t> any{-1, INT_MAX, 0, 5};
    computed(x, any, with_ids);
    CHECK(y == with_ids);
    const status s = computed.try_call(x, std::span(any).first(3), with_ids);
    REQUIRE_FALSE(s.ok());
    check_failure(s.failure(), errc::size, "token_ids", {"3 ids", "4 tokens"});
}

TEST_CASE("failures without a place are a sentence alone") {
    CHECK(failure(errc::option, "", "nothing").message() == "nothing");
    CHECK(failure(errc::option, "key", "nothing").message() == "key: nothing");
}

TEST_CASE("what an executor throws passes, and the layer still works") {
    callable<reference<>> c;
    struct refusing {
        void operator()(std::size_t, const task_ref&) const { throw std::bad_alloc(); }
        static std::size_t concurrency() { return 4; }
    };
    workspace memory = c.computed.make_workspace(callable<reference<>>::tokens, 4);
    CHECK_THROWS_AS(
        static_cast<void>(std::as_const(c.computed).try_call(c.x, c.ids, c.y, memory, refusing{})),
        std::bad_alloc);
    c.works();
}

}  // namespace bind_errors_test
