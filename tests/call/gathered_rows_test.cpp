// Layers whose tables' rows come with each call: to the bit what the tables in memory give.
#include <tiffin/call/gathered_rows.hpp>

#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/eigen/eigen.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/executor/openmp.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>
#include <tiffin/table/edits.hpp>
#include <tiffin/table/prefetched_rows.hpp>

#include "support/doctest.hpp"
#include "support/policies.hpp"
#include "support/tables_apart.hpp"
#include "support/tensor_set.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

namespace call_gathered_rows_test {
using namespace tiffin;

namespace {

constexpr std::size_t vocab = 23;

template <class Block, class Backend>
void check_same(const Backend& backend, dtype type) {
    CAPTURE(std::string(name_of(type)));
    constexpr std::size_t d_model = 64, d_ff = 96, tokens = 37;
    tiffin_test::tables_apart both(Block{}, {d_model, d_ff, vocab}, type);
    if (both.cut) {
        CHECK(try_prepare<Block>(both.gathered_all, backend).failure().code == errc::shape);
        return;
    }
    REQUIRE(!both.stores.empty());
    auto whole = prepare<Block>(both.in_memory_all, backend, {.tokens = 0});
    auto apart = prepare<Block>(both.gathered_all, backend, {.tokens = 0});
    CHECK(apart.needs().gathered.size() == both.stores.size());
    const std::vector<float> x = tiffin_test::random_rows(tokens, d_model, 5);
    const std::vector<std::int32_t> ids = tiffin_test::random_ids(tokens, vocab, 11);
    const auto rows = both.gather(ids);
    for (const std::size_t piece : {tokens, std::size_t{5}}) {  // in one piece and in several
        CAPTURE(piece);
        workspace memory = whole.make_workspace(piece, 2);
        std::vector<float> expected(tokens * d_model, -1), y(tokens * d_model, -2);
        whole(x, ids, expected, memory, openmp{2});
        apart(x, {.token_ids = ids, .gathered = rows}, y, memory, openmp{2});
        CHECK(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)) == 0);
    }
}

using two_tables = parallel<stem_hybrid, meki>;
using stems_by_map = mixture<hash, stem>;

#if defined(TIFFIN_TEST_SMALL)
#    define FOR_EACH_BLOCK two_tables, tiffin_test::mort_of_three<stem>, stems_by_map
#else
#    define FOR_EACH_BLOCK                                                                          \
        stem, stem_gate, two_tables, meki_training, retoken<mlp>, tiffin_test::mort_of_three<stem>, \
            stems_by_map
#endif

}  // namespace

TEST_CASE_TEMPLATE("gathered_rows: any block, in simd", Block, FOR_EACH_BLOCK) {
    check_same<Block>(simd{}, dtype::f32);
    check_same<Block>(simd<f32, bf16>{}, dtype::bf16);
    check_same<Block>(simd<f32, q8_0>{}, dtype::q8_0);
    check_same<Block>(simd<f32, any_format>{{}, kept_as_given}, dtype::mxfp4);  // blocks of 17 bytes
}

TEST_CASE_TEMPLATE("gathered_rows: any block, in the other backends", Block, FOR_EACH_BLOCK) {
    check_same<Block>(eigen{}, dtype::f32);
    check_same<Block>(eigen{}, dtype::iq4_nl);
    check_same<Block>(reference<>{}, dtype::f16);
    check_same<Block>(reference<>{}, dtype::q4_0);
}

TEST_CASE("gathered_rows: a layer of gathered tables alone reads no ids; its ids may lie beyond the table") {
    tiffin_test::tables_apart both(stem{}, {32, 64, vocab}, dtype::f32);
    auto layer = prepare<stem>(both.gathered_all, simd{});
    CHECK(layer.needs().tables.empty());
    const std::vector<float> x = tiffin_test::random_rows(2, 32, 5);
    std::vector<float> y(2 * 32), expected(2 * 32);
    const auto rows = both.gather({3, 8});
    layer(x, {.gathered = rows}, y);
    const std::vector<std::int32_t> added{1000, -1};  // as rows that an edit has added have
    layer(x, {.token_ids = added, .gathered = rows}, expected);
    CHECK(y == expected);
}

TEST_CASE_TEMPLATE("gathered_rows: a knowledge edit, in any block: a token's rows are another's", Block, stem,
                   two_tables, retoken<mlp>, tiffin_test::mort_of_three<stem>) {
    constexpr std::size_t d_model = 32;
    tiffin_test::tables_apart both(Block{}, {d_model, 64, vocab}, dtype::f32);
    auto layer = prepare<Block>(both.gathered_all, simd{});
    const std::vector<float> x = tiffin_test::random_rows(3, d_model, 5);
    std::vector<float> as_other(3 * d_model), edited(3 * d_model), back(3 * d_model);
    const std::vector<std::int32_t> ids{4, 7, 4}, others{4, 9, 4};
    layer(x, {.gathered = both.gather(others)}, as_other);
    std::deque<edited_rows<row_store_ref>> views;
    for (const row_store_ref& store : both.stores) REQUIRE(views.emplace_back(store).replace(7, 9).ok());
    prefetched_tables tables({views.begin(), views.end()});
    layer(x, {.gathered = *tables.gather(ids)}, edited);
    CHECK(edited == as_other);
    for (edited_rows<row_store_ref>& view : views) CHECK(view.undo());
    std::vector<float> plain(3 * d_model);
    layer(x, {.gathered = both.gather(ids)}, plain);
    layer(x, {.gathered = *tables.gather(ids)}, back);
    CHECK(back == plain);
    CHECK(plain != as_other);
}

TEST_CASE("gathered_rows: columns of a token-major row") {
    tiffin_test::tables_apart both(stem{}, {32, 64, vocab}, dtype::f32);
    const std::vector<std::int32_t> ids{4, 4, 9};
    const auto rows = both.gather(ids);
    CHECK(rows[0].count == 2);
    // Rows of two layers of which the second is this one.
    std::vector<float> wide(2 * 128, -5);
    for (std::size_t i = 0; i < 2; ++i)
        std::memcpy(wide.data() + i * 128 + 64, rows[0].data + i * rows[0].stride, 64 * sizeof(float));
    const gathered_rows both_layers{
        reinterpret_cast<const std::byte*>(wide.data()), 2, 512, 128, dtype::f32, rows[0].index};
    const gathered_rows second = both_layers.columns(64, 64);
    auto layer = prepare<stem>(both.gathered_all, simd{});
    const std::vector<float> x = tiffin_test::random_rows(3, 32, 5);
    std::vector<float> y(3 * 32), expected(3 * 32);
    layer(x, {.gathered = rows}, expected);
    layer(x, {.gathered = {&second, 1}}, y);
    CHECK(y == expected);
}

TEST_CASE("gathered_rows: what does not fit is refused before y is written") {
    tiffin_test::tables_apart both(stem{}, {32, 64, vocab}, dtype::f32);
    auto layer = prepare<stem>(both.gathered_all, simd{});
    const std::vector<float> x = tiffin_test::random_rows(2, 32, 5);
    std::vector<float> y(2 * 32, 7);
    const auto rows = both.gather({3, 8});
    const auto refused = [&](errc code, const gathered_rows& given, const std::string& what) {
        CAPTURE(what);
        const status s = layer.try_call(x, token_inputs{.gathered = {&given, 1}}, y);
        REQUIRE(!s.ok());
        CHECK(s.failure().code == code);
        CHECK(s.failure().message().find(what) != std::string::npos);
        CHECK(y == std::vector<float>(2 * 32, 7));
    };
    gathered_rows bad = rows[0];
    bad.width = 32;
    refused(errc::dtype, bad, "stem_embed.weight: was gathered as rows of 32 F32; the layer reads 64 F32");
    bad = rows[0];
    bad.type = dtype::bf16;
    refused(errc::dtype, bad, "rows of 64 BF16; the layer reads 64 F32");
    bad = rows[0];
    bad.index = bad.index.subspan(1);
    refused(errc::size, bad, "for 1 tokens; the call has 2");
    const std::vector<std::int32_t> outside{0, 2};
    bad = rows[0];
    bad.index = outside;
    refused(errc::token_id, bad, "index[1] = 2 lies outside its 2 gathered rows");
    bad = rows[0];
    bad.data += 2;
    bad.count = 1;
    const std::vector<std::int32_t> first{0, 0};
    bad.index = first;
    refused(errc::size, bad, "do not lie at multiples of 4 bytes");
    bad = rows[0];
    bad.data = reinterpret_cast<const std::byte*>(y.data());
    bad.stride = 4;
    refused(errc::overlap, bad, "y: overlaps the gathered rows of stem_embed.weight");

    const status none = layer.try_call(x, token_inputs{}, y);
    REQUIRE(!none.ok());
    CHECK(none.failure().message() ==
          "stem_embed.weight: is to come with the call as table 1 of `gathered`, which has 0");

    const auto prepare_refuses = [](const weights& given, errc code, const std::string& what) {
        const auto made = try_prepare<stem>(given, simd{});
        REQUIRE(!made.ok());
        CHECK(made.failure().code == code);
        CHECK(made.failure().message().find(what) != std::string::npos);
    };
    weights other;
    other.add("gate_proj.weight", both.tensors.view("gate_proj.weight"));
    other.add_gathered("stem_embed.weight", dtype::bf16, {vocab, 64});
    other.add("down_proj.weight", both.tensors.view("down_proj.weight"));
    prepare_refuses(other, errc::dtype,
                    "has rows of BF16 that come with each call; the backend's tables are F32");
    weights dense;
    dense.add_gathered("gate_proj.weight", dtype::f32, {64, 32});
    prepare_refuses(dense, errc::option,
                    "gate_proj.weight: is to come with each call; only the rows of tables can");
}

}  // namespace call_gathered_rows_test
