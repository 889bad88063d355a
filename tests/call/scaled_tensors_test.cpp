// Tables, pools, keys and weights with scales: on every backend to the bit what their values give.
#include <tiffin/format/scales.hpp>

#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/eigen/eigen.hpp>
#include <tiffin/cpu/kept_rows.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>
#include <tiffin/table/any_id_rows.hpp>
#include <tiffin/table/cached_rows.hpp>
#include <tiffin/table/direct_file.hpp>
#include <tiffin/table/joined_columns.hpp>
#include <tiffin/table/mapped_file.hpp>
#include <tiffin/table/prefetched_rows.hpp>
#include <tiffin/table/rows_with_scales.hpp>

#include "support/doctest.hpp"
#include "support/policies.hpp"
#include "support/scaled_table.hpp"
#include "support/scratch_folder.hpp"
#include "support/tensor_set.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <fstream>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace call_scaled_tensors_test {
using namespace tiffin;
using tiffin_test::scaled_tensor;
using tiffin_test::scaling;

namespace {

constexpr std::size_t vocab = 8, d_model = 64, d_ff = 128, tokens = 3;

#if defined(TIFFIN_TEST_SMALL)
constexpr std::span scalings(tiffin_test::scalings, 3);
#else
constexpr std::span scalings(tiffin_test::scalings);
#endif

// Rows of a table, of a pool of experts, and rows that a router chooses, with their keys.
using routed = tiffin_test::mort_of_three<parallel<stem_hybrid, l3>>;

bool holds(tensor_kind kind) {
    return holds_rows(kind);
}
bool is_dense(tensor_kind kind) {
    return kind == tensor_kind::projection || kind == tensor_kind::low_rank_in;
}

// The tensors of a block: those of some kinds scaled, and the same by their values.
struct both_ways {
    tiffin_test::tensor_set tensors;
    std::deque<scaled_tensor> scaled;
    weights as_scaled, as_values;
    std::vector<std::string> names;

    template <class Block>
    both_ways(const Block& block, const scaling& how, bool in_rows, bool (*which)(tensor_kind))
        : tensors(tiffin_test::tensor_set::of(block, {{d_model, d_ff, vocab, 4, 4}, {}, {}, ~0u, 7})) {
        std::vector<std::string> chosen;
        for (const named_tensor& t :
             tensors_needed(block, tiffin_test::sizes{d_model, d_ff, vocab, 4, 4}.shape()))
            if (which(t.tensor.kind)) chosen.push_back(t.name);
        const weights given = tensors.given();
        for (const weights::entry& e : given.entries()) {
            const bool cut = e.tensor.shape.last() % block_of(how.codes) != 0;
            if (cut || std::find(chosen.begin(), chosen.end(), e.name) == chosen.end()) {
                as_scaled.add(e.name, e.tensor);
                as_values.add(e.name, e.tensor);
                continue;
            }
            const auto& made = scaled.emplace_back(how, e.tensor.shape, in_rows,
                                                   static_cast<std::uint32_t>(scaled.size()) + 3);
            as_scaled.add(e.name, made.view());
            as_values.add(e.name, made.values().data(), e.tensor.shape);
            names.push_back(e.name);
        }
    }
};

template <class Layer>
std::vector<float> run(const Layer& layer, std::span<const gathered_rows> rows = {}) {
    const std::vector<float> x = tiffin_test::random_rows(tokens, d_model, 5);
    const std::vector<std::int32_t> ids = tiffin_test::random_ids(tokens, vocab, 11);
    std::vector<float> y(tokens * layer.needs().outputs, -1);
    workspace memory = layer.make_workspace(tokens, 1);
    layer(x, {.token_ids = ids, .gathered = rows}, y, memory);
    return y;
}

template <class Block, class Backend>
void check_same(const both_ways& both, const Backend& backend) {
    const auto expected = run(prepare<Block>(both.as_values, backend, {.tokens = 0}));
    const auto layer = prepare<Block>(both.as_scaled, backend, {.tokens = 0});
    CHECK(run(layer) == expected);
    for (const std::string& name : both.names)
        CHECK(std::count(layer.needs().in_place.begin(), layer.needs().in_place.end(), name) == 1);
}

using whole_tables = simd<f32, any_format>;

}  // namespace

TEST_CASE("scaled tensors: tables, pools, chosen rows and their keys in memory, in place") {
    for (const scaling& how : scalings)
        for (const bool in_rows : {false, true}) {
            CAPTURE(how.name);
            CAPTURE(in_rows);
            const both_ways both(routed{}, how, in_rows, holds);
            REQUIRE(both.names.size() >= (block_of(how.codes) > 2 ? 3u : 4u));
            check_same<routed>(both, reference<>{});
            check_same<routed>(both, eigen{});
            check_same<routed>(both, whole_tables{{}, kept_as_given});
            // Tables of one format: the rows are converted.
            const auto layer = prepare<routed>(both.as_scaled, simd{}, {.tokens = 0});
            CHECK(run(layer) == run(prepare<routed>(both.as_values, simd{}, {.tokens = 0})));
            for (const std::string& name : both.names)
                CHECK(std::count(layer.needs().in_place.begin(), layer.needs().in_place.end(), name) == 0);
        }
}

TEST_CASE("scaled tensors: gathered rows have their scales after them") {
    for (const scaling& how : scalings)
        for (const bool in_rows : {false, true}) {
            CAPTURE(how.name);
            const both_ways both(routed{}, how, in_rows, [](tensor_kind k) {
                return k == tensor_kind::table || k == tensor_kind::pool;
            });
            weights gathered;
            std::deque<in_memory> tables;
            std::deque<joined_columns> pools;
            std::vector<row_store_ref> stores;
            for (const weights::entry& e : both.as_scaled.entries()) {
                if (!e.tensor.scales.any()) {
                    gathered.add(e.name, e.tensor);
                    continue;
                }
                const shape& s = e.tensor.shape;
                const std::size_t experts = s.rank() == 3 ? s[0] : 1, count = s[s.rank() - 2];
                std::vector<row_store_ref> parts;
                for (std::size_t i = 0; i < experts; ++i) {
                    tables.push_back(*in_memory::view(e.tensor.rows_from(i * count, {count, s.last()})));
                    parts.emplace_back(tables.back());
                }
                auto joined = joined_columns::of(parts);
                if (experts > 1 && how.columns != 0 && s.last() % how.columns != 0) {
                    // A scale would cover values of two experts.
                    CHECK(joined.failure().code == errc::dtype);
                    gathered.add(e.name, e.tensor);
                    continue;
                }
                stores.push_back(experts == 1 ? parts[0] : pools.emplace_back(*std::move(joined)));
                gathered.add_gathered(e.name, e.tensor.type, s, stores.back().shape().scales);
            }
            REQUIRE(!stores.empty());
            prefetched_tables rows(stores);
            const std::vector<std::int32_t> ids = tiffin_test::random_ids(tokens, vocab, 11);
            const auto of_call = rows.gather(ids).or_throw();
            const auto check = [&](const auto& backend) {
                CHECK(run(prepare<routed>(gathered, backend, {.tokens = 0}), of_call) ==
                      run(prepare<routed>(both.as_values, backend, {.tokens = 0})));
            };
            check(reference<>{});
            check(eigen{});
            check(whole_tables{{}, kept_as_given});
            CHECK(try_prepare<routed>(gathered, simd{}).failure().code == errc::dtype);
        }
}

TEST_CASE("scaled tensors: weights are multiplied by their scales") {
    using block = parallel<swiglu, structmoe>;
    for (const scaling& how : scalings)
        for (const bool in_rows : {false, true}) {
            CAPTURE(how.name);
            CAPTURE(in_rows);
            const both_ways both(block{}, how, in_rows, is_dense);
            REQUIRE(both.names.size() == 6);
            const auto check = [&](const auto& backend) {
                CHECK(run(prepare<block>(both.as_scaled, backend, {.tokens = 0})) ==
                      run(prepare<block>(both.as_values, backend, {.tokens = 0})));
            };
            check(reference<>{});
            check(eigen{});
            check(simd{});
            check(simd<q8_0>{});
            // Kept as given: what is stored in blocks in Q8_0, what is not in its own format, F8 in bf16.
            const dtype kept = how.codes == dtype::u4 || block_of(how.codes) > 1 ? dtype::q8_0
                               : how.codes == dtype::u8                          ? dtype::q8_0
                                                                                 : dtype::bf16;
            CHECK(run(prepare<block>(both.as_scaled, simd<any_format>{kept_as_given}, {.tokens = 0})) ==
                  run(prepare<block>(both.as_values, simd<any_format>{{kept}}, {.tokens = 0})));
        }
}

TEST_CASE("scaled tensors: what is refused") {
    const std::vector<float> values(d_model * d_ff), scales(d_model * d_ff, 0.5f);
    const auto why = [&](const tensor_view& up, dtype type = dtype::f32) {
        tensor_view given = up;
        given.data = values.data();
        given.shape = {d_ff, d_model};
        given.scales.type = type;
        weights all;
        all.add("gate_proj.weight", values.data(), {d_ff, d_model});
        all.add("up_proj.weight", given);
        all.add("down_proj.weight", values.data(), {d_model, d_ff});
        const auto made = try_prepare<swiglu>(all, simd{});
        return made ? std::string("nothing") : made.failure().message();
    };
    const auto with = [&](tensor_scales s) {
        if (s.data == nullptr) s.data = scales.data();
        return tensor_view{nullptr, dtype::f8_e4m3, {}, 0, s};
    };
    CHECK(why(with({.columns = 32})) == "nothing");
    CHECK(why(with({.columns = 32}), dtype::f64) ==
          "up_proj.weight: has scales of F64; they are F32, F16, BF16 or F8_E8M0");
    CHECK(why(with({.rows = 0, .columns = 32})) ==
          "up_proj.weight: has a scale per 0 rows; scales that lie in the rows are of one row");
    CHECK(why({nullptr, dtype::u8, {}}) ==
          "up_proj.weight: has dtype U8, which are codes; their scales are to be given with them");
    CHECK(why({nullptr, dtype::i64, {}, 0, {.columns = 32, .data = scales.data()}}) ==
          "up_proj.weight: is I64 and has scales");
    std::vector<float> bad = scales;
    bad[7] = std::numeric_limits<float>::infinity();
    CHECK(why(with({.columns = 32, .data = bad.data()})) ==
          "up_proj.weight: the scale of row 3, number 1, is infinite");
    // A scale of two experts' rows.
    structmoe routed_block;
    const tiffin_test::tensor_set tensors =
        tiffin_test::tensor_set::of(routed_block, {{d_model, d_ff, vocab}, {}, {}, ~0u, 7});
    weights given;
    const weights all = tensors.given();
    for (const weights::entry& e : all.entries()) {
        tensor_view t = e.tensor;
        if (t.shape.rank() == 3) t.scales = {.rows = 2, .columns = 32, .data = scales.data()};
        given.add(e.name, t);
    }
    CHECK(try_prepare<structmoe>(given, simd{})
              .failure()
              .what.find("and a scale per 2 rows, which 3 is no multiple of") != std::string::npos);
}

TEST_CASE("rows with scales: codes and their scales from two stores, or one scale for all") {
    const scaled_tensor made({"", dtype::f8_e4m3, dtype::f8_e8m0, 1, 32}, {vocab, 64}, false, 5);
    const tensor_view table = made.view();
    const auto codes = in_memory::view({table.data, table.type, table.shape}).or_throw();
    const auto scales = in_memory::view({table.scales.data, dtype::f8_e8m0, {vocab, 2}}).or_throw();
    const auto rows = rows_with_scales::of(codes, scales).or_throw();
    CHECK(rows.shape().row_bytes() == 66);
    const std::vector<std::int32_t> ids{7, 0, 3, 3};
    std::vector<std::byte> read(ids.size() * 66);
    std::vector<float> row(64);
    const auto check = [&](const auto& store, const auto& value) {
        REQUIRE(store.read(ids, read.data()).ok());
        for (std::size_t i = 0; i < ids.size(); ++i) {
            decode_row(store.shape(), read.data() + i * store.shape().row_bytes(), row.data());
            for (std::size_t j = 0; j < row.size(); ++j)
                CHECK(row[j] == value(static_cast<std::size_t>(ids[i]) * 64 + j));
        }
    };
    check(rows, [&](std::size_t i) { return made.values()[i]; });
    read.resize(ids.size() * 68);
    const auto one = rows_with_scales::of(codes, 0.375f).or_throw();
    check(one, [&](std::size_t i) { return 0.375f * load_as_f32(table.data, table.type, i); });
    // From a cache, and from a file of whole rows.
    read.resize(ids.size() * 66);
    const cached_rows<rows_with_scales> cache(rows, {.rows = 2});
    for (int again = 0; again < 2; ++again) check(cache, [&](std::size_t i) { return made.values()[i]; });
    const tiffin_test::scratch_folder folder;
    std::vector<std::byte> all(vocab * 66);
    std::vector<std::int32_t> every(vocab);
    std::iota(every.begin(), every.end(), 0);
    REQUIRE(rows.read(every, all.data()).ok());
    std::ofstream(folder / "rows", std::ios::binary)
        .write(reinterpret_cast<const char*>(all.data()), static_cast<std::streamsize>(all.size()));
    const table_location whole{folder / "rows", 0, rows.shape()};
    check(*mapped_file::open(whole), [&](std::size_t i) { return made.values()[i]; });
    check(*direct_file<>::open(whole), [&](std::size_t i) { return made.values()[i]; });
    CHECK(whole.columns(0, 32).failure().message().find("the scales of a row lie after all of them") !=
          std::string::npos);
    // Ids beyond the table.
    const any_id_rows beyond(one, outside_row::ones);
    const std::vector<std::int32_t> far{100};
    REQUIRE(beyond.read(far, read.data()).ok());
    decode_row(beyond.shape(), read.data(), row.data());
    CHECK(row == std::vector<float>(64, 1.0f));

    const auto why = [](const auto& r) { return r ? std::string("nothing") : r.failure().message(); };
    const auto three = in_memory::view({table.data, dtype::f8_e8m0, {vocab, 3}}).or_throw();
    const auto short_one = in_memory::view({table.data, dtype::f8_e8m0, {4, 2}}).or_throw();
    CHECK(why(rows_with_scales::of(codes, three)) ==
          "scales: are 3 per row of 64 values, which cannot be shared among them evenly");
    CHECK(why(rows_with_scales::of(codes, short_one)) == "scales: are of 4 rows; the table has 8");
    CHECK(why(rows_with_scales::of(codes, codes)) ==
          "scales: are F8_E4M3; they are F32, F16, BF16 or F8_E8M0");
    CHECK(why(rows_with_scales::of(rows, 2.0f)) == "table: has one F8_E8M0 scale per 32 values already");
    CHECK(why(rows_with_scales::of(codes, HUGE_VALF)) == "scale: is infinite");
}

}  // namespace call_scaled_tensors_test
