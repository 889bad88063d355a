// Layers whose rows are chosen, by ranges or by keys, from tables that are not in memory: to the bit what tables in
// memory give.
#include <tiffin/call/row_numbers.hpp>

#include <tiffin/call/prepare.hpp>
#include <tiffin/call/token_router.hpp>
#include <tiffin/cpu/eigen/eigen.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/executor/openmp.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>
#include <tiffin/table/prefetched_rows.hpp>
#include <tiffin/train/prepare_training.hpp>
#include <tiffin/train/reference.hpp>

#include "support/doctest.hpp"
#include "support/tables_apart.hpp"
#include "support/tensor_set.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace call_row_numbers_test {
using namespace tiffin;

namespace {

constexpr std::size_t d_model = 64, tokens = 23, vocab = 11;
constexpr tiffin_test::sizes sizes{d_model, 32, vocab, 36, 3};  // 36 rows, 6 keys

template <class Block>
struct three_per_head : Block {
    constexpr three_per_head() { this->router.top_k = 3; }
};
using keyed_memory = ffn<gate<silu>, three_per_head<product_key_memory>>;
using neurons = three_per_head<peer>;
// Two routers, of which the tables' calls bring the rows of one each.
using ranges_and_keys = parallel<l3, neurons>;

// Rows in memory, and which of them were read.
struct counted_rows {
    row_store_ref rows;
    std::vector<std::int32_t>* read_ids;

    [[nodiscard]] table_shape shape() const { return rows.shape(); }
    status read(std::span<const std::int32_t> ids, std::byte* to) const {
        read_ids->insert(read_ids->end(), ids.begin(), ids.end());
        return rows.read(ids, to);
    }
};

std::vector<std::int32_t> numbers_of(std::span<const choice<float>> chosen) {
    std::vector<std::int32_t> numbers(chosen.size());
    row_numbers(chosen, numbers).or_throw();
    return numbers;
}

template <class Block, class Backend>
void check_same(const Backend& backend, dtype type) {
    CAPTURE(std::string(name_of(type)));
    tiffin_test::tables_apart both(Block{}, sizes, type);
    REQUIRE(!both.cut);
    REQUIRE(!both.stores.empty());
    auto whole = prepare<Block>(both.in_memory_all, backend, {.tokens = 0});
    auto apart = prepare<Block>(both.gathered_all, backend, {.tokens = 0});
    for (const std::string& name : apart.reads_in_place()) CHECK(both.gathered_all.find(name)->gathered == 0);
    const std::vector<float> x = tiffin_test::random_rows(tokens, d_model, 5);
    const std::vector<std::int32_t> ids = tiffin_test::random_ids(tokens, vocab, 11);
    for (const std::size_t piece : {tokens, std::size_t{5}}) {
        CAPTURE(piece);
        workspace memory = whole.make_workspace(piece, 2);
        std::vector<float> expected(tokens * d_model, -1), y(tokens * d_model, -2);
        std::vector<choice<float>> chosen(tokens * whole.choices()), again(chosen.size());
        whole(x, {.token_ids = ids, .routes = chosen}, expected, memory, openmp{2});
        const auto rows = both.gather(numbers_of(chosen));
        apart(x, {.token_ids = ids, .routes = again, .gathered = rows}, y, memory, openmp{2});
        CHECK(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)) == 0);
        CHECK(std::memcmp(again.data(), chosen.data(), chosen.size() * sizeof chosen[0]) == 0);
    }
}

// What a call with these rows is refused for.
template <class Layer>
status refused(Layer& layer, std::span<const std::int32_t> ids, std::span<const gathered_rows> rows) {
    const std::vector<float> x = tiffin_test::random_rows(ids.size(), d_model, 5);
    std::vector<float> y(x.size(), 7);
    status s = layer.try_call(x, token_inputs{.token_ids = ids, .gathered = rows}, y);
    CHECK(y == std::vector<float>(y.size(), 7));
    return s;
}

}  // namespace

TEST_CASE_TEMPLATE("row_numbers: chosen rows come with the call, in simd", Block, keyed_memory, neurons, l3) {
    check_same<Block>(simd{}, dtype::f32);
    check_same<Block>(simd<f32, bf16>{}, dtype::bf16);
}
TEST_CASE_TEMPLATE("row_numbers: blocks of numbers", Block, three_per_head<product_key_memory>, neurons) {
    check_same<Block>(simd<f32, q8_0>{}, dtype::q8_0);
    check_same<Block>(reference<>{}, dtype::q4_0);
}
TEST_CASE_TEMPLATE("row_numbers: in the other backends", Block, keyed_memory, neurons, l3) {
    check_same<Block>(eigen{}, dtype::f32);
    check_same<Block>(reference<>{}, dtype::f16);
}

TEST_CASE("row_numbers: of a token without a row, or with fewer than others, the number before") {
    const std::vector<choice<float>> chosen{{-1, 0}, {5, 1}, {-1, 0}, {-1, 0}, {2, 1}};
    CHECK(numbers_of(chosen) == std::vector<std::int32_t>{0, 5, 5, 5, 2});
    const std::vector<std::int64_t> ranges{3, 3, 4, 6, 1, 2};  // of ids 0, 1 and 2
    const auto address = range_addresses::of({ranges.data(), dtype::i64, {3, 2}}, 6).or_throw();
    REQUIRE(address.choices() == 2);
    std::vector<std::int32_t> numbers(8);
    CHECK(address(std::vector<std::int32_t>{0, 1, 2, 0}, numbers).ok());
    CHECK(numbers == std::vector<std::int32_t>{0, 0, 4, 5, 1, 1, 1, 1});
}

TEST_CASE("row_numbers: the rows of ranges are known before the layer, and read once") {
    tiffin_test::tables_apart both(l3{}, sizes, dtype::f32);
    auto whole = prepare<l3>(both.in_memory_all, simd{});
    auto apart = prepare<l3>(both.gathered_all, simd{});
    std::vector<std::int32_t> ids = tiffin_test::random_ids(tokens, vocab, 3);
    std::replace(ids.begin(), ids.end(), 10, 0);  // which has all rows
    const tensor_view& ranges = both.tensors.view("ranges");
    const auto address = range_addresses::of(ranges, 36).or_throw();
    REQUIRE(address.choices() == whole.choices());

    std::vector<std::int32_t> numbers(tokens * address.choices());
    CHECK(address(ids, numbers).ok());
    std::set<std::int32_t> wanted;
    for (const std::int32_t id : ids) {
        const auto* const range = static_cast<const std::int32_t*>(ranges.data) + 2 * id;
        for (std::int32_t row = range[0]; row < range[1]; ++row) wanted.insert(row);
    }
    REQUIRE(wanted.size() < 36);
    REQUIRE(wanted.count(0) == 1);                 // what stands for a row where the first tokens have none
    std::vector<std::int32_t> of_values, of_keys;  // each read on a thread of its own
    const counted_rows values{both.stores[0], &of_values}, keys{both.stores[1], &of_keys};
    prefetched_tables tables({values, keys});
    CHECK(tables.prefetch(numbers).ok());
    const std::vector<float> x = tiffin_test::random_rows(tokens, d_model, 5);
    std::vector<float> expected(x.size()), y(x.size());
    std::vector<choice<float>> chosen(tokens * whole.choices());
    whole(x, {.token_ids = ids, .routes = chosen}, expected);
    apart(x, {.token_ids = ids, .gathered = tables.gather(numbers).or_throw()}, y);
    CHECK(y == expected);
    CHECK(numbers == numbers_of(chosen));
    for (const auto& read_ids : {of_values, of_keys}) {
        CHECK(read_ids.size() == wanted.size());
        CHECK(std::set<std::int32_t>(read_ids.begin(), read_ids.end()) == wanted);
    }
}

TEST_CASE("row_numbers: what keys choose is told by the router alone") {
    tiffin_test::tables_apart both(neurons{}, sizes, dtype::f32);
    auto whole = prepare<neurons>(both.in_memory_all, simd{});
    auto apart = prepare<neurons>(both.gathered_all, simd{});
    const product_keys three{.top_k = 3};
    auto router = token_router<product_keys, simd<>>::prepare(three, both.in_memory_all, simd{}).or_throw();
    const std::vector<float> x = tiffin_test::random_rows(tokens, d_model, 5);
    std::vector<choice<float>> chosen(tokens * router.choices());
    CHECK(router(x, chosen).ok());
    std::vector<float> expected(x.size()), y(x.size());
    whole(x, {}, expected);
    apart(x, {.gathered = both.gather(numbers_of(chosen))}, y);
    CHECK(y == expected);

    // The router that weighs rows by keys of their own would need the rows to choose them.
    const auto gated = token_router<peer_rows, simd<>>::prepare({{.top_k = 3}}, both.gathered_all, simd{});
    REQUIRE(!gated.ok());
    CHECK(gated.failure().message() ==
          "down_embed.weight: is to come with each call; rows are chosen before it does, by a router without "
          "it");
}

// An expert sees some of the call's tokens, wherever they stand in it.
TEST_CASE("row_numbers: experts that read chosen rows, and keys alone that come with the call") {
    using experts = mixture<hash, l3>;
    tiffin_test::tables_apart both(experts{}, sizes, dtype::f32);
    const weights& in_memory_all = both.in_memory_all;
    const std::vector<float> x = tiffin_test::random_rows(tokens, d_model, 5);
    const std::vector<std::int32_t> ids = tiffin_test::random_ids(tokens, vocab, 3);
    for (const bool keys_alone : {false, true}) {
        weights given;
        std::list<std::vector<std::int32_t>> numbers;
        std::list<in_memory> stores;
        std::list<prefetched_rows> held;
        std::vector<gathered_rows> rows;
        for (const weights::entry& e : in_memory_all.entries()) {
            const bool keys = e.name.ends_with(".keys.weight"), values = e.name.ends_with(".values.weight");
            if (!keys && (keys_alone || !values)) {
                given.add(e.name, e.tensor);
                continue;
            }
            given.add_gathered(e.name, dtype::f32, e.tensor.shape);
            const std::string expert = e.name.substr(0, e.name.find(keys ? "keys" : "values"));
            const auto address = range_addresses::of(*in_memory_all.find(expert + "ranges"), 36).or_throw();
            address(ids, numbers.emplace_back(tokens * address.choices())).or_throw();
            held.emplace_back(stores.emplace_back(*in_memory::view(e.tensor)));
            rows.push_back(held.back().gather(numbers.back()).or_throw());
        }
        auto whole = prepare<experts>(in_memory_all, simd{}, {.tokens = 0});
        auto apart = prepare<experts>(given, simd{}, {.tokens = 0});
        for (const std::size_t piece : {tokens, std::size_t{5}}) {
            CAPTURE(piece);
            workspace memory = whole.make_workspace(piece, 2);
            std::vector<float> expected(x.size(), -1), y(x.size(), -2);
            whole(x, ids, expected, memory, openmp{2});
            apart(x, {.token_ids = ids, .gathered = rows}, y, memory, openmp{2});
            CHECK(y == expected);
        }
    }
}

TEST_CASE("row_numbers: two routers in a block, each table with the rows of its own") {
    const std::vector<block_shape> parts(2, sizes.shape());
    const auto wanted = [&](const tiffin_test::sizes& s) {
        block_shape shape = s.shape();
        shape.parts = parts.data();
        return tensors_needed(ranges_and_keys{}, shape);
    };
    const tiffin_test::tensor_set tensors(wanted, {sizes, {}, {}, ~0u, 7});
    const weights given = tensors.given();
    weights gathered;
    std::vector<std::size_t> choices;
    std::vector<in_memory> stores;
    for (const weights::entry& e : given.entries()) {
        const bool of_keys = e.name.find("_embed.weight") != std::string::npos;
        if (!of_keys && e.name.find("values.weight") == std::string::npos) {
            gathered.add(e.name, e.tensor);
            continue;
        }
        gathered.add_gathered(e.name, dtype::f32, e.tensor.shape);
        stores.push_back(*in_memory::view(e.tensor));
        choices.push_back(of_keys ? 2 * 3 : 0);
    }
    auto whole = prepare<ranges_and_keys>(given, simd{});
    auto apart = prepare<ranges_and_keys>(gathered, simd{});
    REQUIRE(apart.needs().gathered.size() == 3);

    const std::vector<float> x = tiffin_test::random_rows(tokens, d_model, 5);
    const std::vector<std::int32_t> ids = tiffin_test::random_ids(tokens, vocab, 3);
    const auto address = range_addresses::of(*given.find("branch.0.ranges"), 36).or_throw();
    std::vector<std::int32_t> of_ranges(tokens * address.choices());
    CHECK(address(ids, of_ranges).ok());
    const product_keys three{.top_k = 3};
    auto router =
        token_router<product_keys, simd<>>::prepare(three, given, simd{}, {}, "branch.1.").or_throw();
    std::vector<choice<float>> chosen(tokens * router.choices());
    CHECK(router(x, chosen).ok());

    std::vector<gathered_rows> rows;
    std::vector<std::unique_ptr<prefetched_rows>> held;
    for (std::size_t i = 0; i < stores.size(); ++i) {
        held.push_back(std::make_unique<prefetched_rows>(stores[i]));
        rows.push_back(held[i]->gather(choices[i] == 0 ? of_ranges : numbers_of(chosen)).or_throw());
    }
    std::vector<float> expected(x.size()), y(x.size());
    whole(x, ids, expected);
    apart(x, {.token_ids = ids, .gathered = rows}, y);
    CHECK(y == expected);
}

TEST_CASE("row_numbers: what does not fit is refused before y is written") {
    tiffin_test::tables_apart both(l3{}, sizes, dtype::f32);
    auto layer = prepare<l3>(both.gathered_all, simd{});
    const auto address = range_addresses::of(both.tensors.view("ranges"), 36).or_throw();
    const std::vector<std::int32_t> ids{1, 10};
    std::vector<std::int32_t> numbers(2 * address.choices());
    CHECK(address.choices() == 36);
    CHECK(address(ids, numbers).ok());
    const auto rows = both.gather(numbers);
    const auto says = [](const status& s, errc code, const std::string& what) {
        CAPTURE(what);
        REQUIRE(!s.ok());
        CHECK(s.failure().code == code);
        CHECK(s.failure().message() == what);
    };
    says(refused(layer, ids, rows.first(1)), errc::size,
         "keys.weight: is to come with the call as table 2 of `gathered`, which has 1");
    std::vector<gathered_rows> bad(rows.begin(), rows.end());
    bad[0].index = bad[0].index.first(2);  // one row per token, as of a table
    says(refused(layer, ids, bad), errc::size,
         "values.weight: was gathered for 2 choices; 2 tokens make 36 each");
    bad.assign(rows.begin(), rows.end());
    bad[1].count = 35;
    says(refused(layer, ids, bad), errc::token_id,
         "keys.weight: index[" +
             std::to_string(std::find(bad[1].index.begin(), bad[1].index.end(), 35) - bad[1].index.begin()) +
             "] = 35 lies outside its 35 gathered rows");
    const std::vector<std::int32_t> beyond{1, 11};
    says(refused(layer, beyond, rows), errc::token_id, "ranges: token_ids[1] = 11 lies outside its 11 rows");

    says(row_numbers(std::vector<choice<float>>(3), numbers), errc::size,
         "to: has room for 72 numbers of 3 choices");
    says(address(beyond, numbers), errc::token_id, "ranges: token_ids[1] = 11 lies outside its 11 rows");
    says(address(std::vector<std::int32_t>{1}, numbers), errc::size,
         "to: has room for 72 numbers; 1 tokens have 36 each");
    const auto of = [](const tensor_view& ranges, std::size_t count) {
        auto made = range_addresses::of(ranges, count);
        return made ? status{} : status(made.failure());
    };
    says(of(both.tensors.view("ranges"), 35), errc::option,
         "ranges: of id 10 are the rows [0, 36); there are 35");
    says(of({numbers.data(), dtype::i32, {24, 3}}, 36), errc::shape,
         "ranges: has shape (24, 3); it must be (vocab, 2), where the rows of an id begin and end");
    says(of(both.tensors.view("mix_input.weight"), 36), errc::dtype,
         "ranges: has dtype F32; ranges are I32 or I64");
    says(of(both.tensors.view("ranges"), std::size_t{1} << 31), errc::shape,
         "rows: are 2147483648; a choice is a number of 31 bits");
}

TEST_CASE("row_numbers: rows that a router chooses learn in memory alone") {
    tiffin_test::tables_apart both(l3{}, sizes, dtype::f32);
    const auto made = try_prepare_training(l3{}, both.gathered_all, reference<>{});
    REQUIRE(!made.ok());
    CHECK(made.failure().message() ==
          "values.weight: is to come with each call; rows that a router chooses learn in memory");
}

}  // namespace call_row_numbers_test
