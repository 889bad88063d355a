// Rows that a router chooses, fetched from tables in host memory: on the device the same bits as with the tables there.
#include <tiffin/call/row_numbers.hpp>
#include <tiffin/cuda.hpp>
#include <tiffin/layers.hpp>

#include "cuda/whole_numbers.hpp"
#include "support/doctest.hpp"
#include "support/tables_apart.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <string>
#include <vector>

namespace cuda_row_numbers_test {
using namespace tiffin_test;

// Not for the whole file: with `cuda` of tiffin's in sight, the code that nvcc generates does not find the
// toolkit's.
using namespace tiffin;
using tiffin_cuda_test::there;

namespace {

constexpr std::size_t d_model = 24, tokens = 10, vocab = 11;
constexpr sizes with_36_rows{d_model, 16, vocab, 36, 3};  // 6 keys

struct two_neurons_per_head : peer {
    constexpr two_neurons_per_head() { router.top_k = 2; }
};

using experts = mixture<hash, l3>;

// A layer with its tables on the device, and one whose rows come with each call.
template <class Block, class Format>
struct fixture {
    using storage = typename Format::storage;
    using backend = tiffin::cuda<Format>;

    tables_apart both{Block{}, with_36_rows, Format::type};
    cudaStream_t stream{};
    std::vector<std::int32_t> ids = random_ids(tokens, vocab, 3);
    there<storage> in{tiffin_cuda_test::encoded<Format>(random_rows(tokens, d_model, 5))};
    there<storage> out{tokens * d_model};
    there<std::int32_t> their_ids{ids};

    fixture() { REQUIRE(cudaStreamCreate(&stream) == cudaSuccess); }
    ~fixture() { static_cast<void>(cudaStreamDestroy(stream)); }

    // y of a layer with the tables in memory, in calls that are cut into pieces of this many tokens.
    std::vector<storage> expected(std::size_t piece) const {
        auto whole = prepare<Block>(both.in_memory_all, backend{stream}, {.tokens = piece});
        REQUIRE(whole.try_call(in.rows(d_model), {.token_ids = their_ids.span()}, out.rows(d_model)).ok());
        REQUIRE(whole.synchronise().ok());
        return out.here();
    }
    // What it chose.
    std::vector<choice<float>> chosen() const {
        auto whole = prepare<Block>(both.in_memory_all, backend{stream}, {.tokens = tokens});
        const there<choice<float>> routes(tokens * whole.choices());
        REQUIRE(whole
                    .try_call(in.rows(d_model), {.token_ids = their_ids.span(), .routes = routes.span()},
                              out.rows(d_model))
                    .ok());
        REQUIRE(whole.synchronise().ok());
        return routes.here();
    }
    // y of the other, with rows that are fetched from where the tables lie in host memory. `numbers`: those of each.
    std::vector<storage> call(std::size_t piece,
                              const std::vector<std::vector<std::int32_t>>& numbers) const {
        auto apart = prepare<Block>(both.gathered_all, backend{stream}, {.tokens = piece});
        std::list<offloaded_rows> tables;
        std::list<there<std::int32_t>> their;
        std::vector<gathered_rows> now;
        for (const weights::entry& e : both.in_memory_all.entries()) {
            if (both.gathered_all.find(e.name)->gathered == 0) continue;
            const auto& of_table = numbers[now.size() % numbers.size()];
            tables.push_back(offloaded_rows::make(e.tensor, {.tokens = of_table.size()}).or_throw());
            now.push_back(tables.back().gather(their.emplace_back(of_table).span(), stream).or_throw());
        }
        REQUIRE(apart
                    .try_call(in.rows(d_model), {.token_ids = their_ids.span(), .gathered = now},
                              out.rows(d_model))
                    .ok());
        REQUIRE(apart.synchronise().ok());
        for (offloaded_rows& table : tables) {
            CHECK(table.check().ok());
            CHECK(table.counts()->misses <= 36);  // equal ones once
        }
        return out.here();
    }
};

}  // namespace

TEST_CASE_TEMPLATE("chosen rows that are fetched from the host", Fixture, fixture<l3, f32>, fixture<l3, bf16>,
                   fixture<two_neurons_per_head, f32>, fixture<two_neurons_per_head, bf16>) {
    const Fixture of;
    std::vector<std::vector<std::int32_t>> numbers(1);
    numbers[0].resize(of.chosen().size());
    REQUIRE(row_numbers(of.chosen(), numbers[0]).ok());
    for (const std::size_t piece : {std::size_t{4}, std::size_t{16}}) {
        CAPTURE(piece);
        CHECK(of.call(piece, numbers) == of.expected(piece));
    }
    std::reverse(numbers[0].begin(), numbers[0].end());
    CHECK(of.call(16, numbers) != of.expected(16));
}

// An expert sees some of the call's tokens, wherever they stand in it.
TEST_CASE("experts whose chosen rows are fetched from the host") {
    const fixture<experts, f32> of;
    std::vector<std::vector<std::int32_t>>
        numbers;  // of the values and the keys of one expert after the other
    for (const weights::entry& e : of.both.in_memory_all.entries()) {
        if (of.both.gathered_all.find(e.name)->gathered == 0) continue;
        const std::string expert = e.name.substr(0, e.name.find('.', 8) + 1);
        const auto address =
            range_addresses::of(*of.both.in_memory_all.find(expert + "ranges"), 36).or_throw();
        address(of.ids, numbers.emplace_back(tokens * address.choices())).or_throw();
    }
    for (const std::size_t piece : {std::size_t{4}, std::size_t{16}}) {
        CAPTURE(piece);
        CHECK(of.call(piece, numbers) == of.expected(piece));
    }
}

TEST_CASE("chosen rows: an index outside what was gathered is told") {
    const fixture<two_neurons_per_head, f32> of;
    auto layer =
        prepare<two_neurons_per_head>(of.both.gathered_all, tiffin::cuda<>{of.stream}, {.tokens = 4});
    const std::size_t choices = layer.choices();
    std::vector<std::int32_t> index(tokens * choices, 2);
    index[7 * choices + 1] = 3;
    const there<std::int32_t> their(index);
    const there<float> memory(std::vector<float>(3 * d_model, 1.0f));
    const gathered_rows three{reinterpret_cast<const std::byte*>(memory.data()),
                              3,
                              d_model * sizeof(float),
                              d_model,
                              dtype::f32,
                              their.span()};
    const auto call = [&](const gathered_rows& rows) {
        const std::vector<gathered_rows> all(2, rows);
        return layer.try_call(of.in.rows(d_model), {.token_ids = of.their_ids.span(), .gathered = all},
                              of.out.rows(d_model));
    };
    CHECK(call(three).ok());
    const status s = layer.synchronise();
    REQUIRE(!s.ok());
    CHECK(s.failure().message() ==
          "gathered: index[" + std::to_string(7 * choices + 1) + "] = 3 lies outside its gathered rows");
    gathered_rows one_each = three;
    one_each.index = one_each.index.first(tokens);
    const status refused = call(one_each);
    REQUIRE(!refused.ok());
    CHECK(refused.failure().message() == "up_embed.weight: was gathered for 10 choices; 10 tokens make " +
                                             std::to_string(choices) + " each");
}

}  // namespace cuda_row_numbers_test
