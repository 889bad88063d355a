// Which block of a program's list a text names.
#include "../../examples/support/blocks_on_device.hpp"

#include "support/doctest.hpp"
#include "support/same_plan.hpp"

#include <cstddef>
#include <string>
#include <type_traits>

namespace device_example_blocks_on_device_test {
using namespace tiffin;

namespace {

// Whether the text names a block of this type; `check` is called with it.
template <class Block, class Check>
bool names(const std::string& text, const Check& check) {
    bool same = false;
    const status found = with_block_on_device(text, [&]<class Found>(const Found& block) {
        same = std::is_same_v<Found, Block>;
        if constexpr (std::is_same_v<Found, Block>) check(block);
    });
    return found.ok() && same;
}
template <class Block>
bool names(const std::string& text) {
    return names<Block>(text, [](const Block&) {});
}

}  // namespace

TEST_CASE("every text of the list has the plan of the block beside it") {
    std::size_t count = 0;
    for_each_block_on_device([&](const char* text, auto block, const auto&... set) {
        INFO(text);
        ++count;
        const auto composed = compose<void>(text, all_policies);
        REQUIRE(composed.ok());
        (set(block, text_and_numbers::of(text).or_throw().numbers), ...);
        CHECK(tiffin_test::difference(lower(block), composed->plan()) == "");
    });
    CHECK(count == 27);  // as docs/layer_files.md counts them
}

TEST_CASE("a text names the block, whether it is an alias or written out") {
    CHECK(names<swiglu>("swiglu"));
    CHECK(names<swiglu>("ffn(gate(silu, dense), dense, multiply, project(no_norm, dense))"));
    CHECK(names<stem>("stem"));
    CHECK(names<mlp>("ffn(gate(gelu))"));
    CHECK(names<geglu>("ffn(gate(gelu), dense)"));
    CHECK(names<parallel<swiglu, meki>>("parallel(swiglu, meki)"));
    CHECK(names<l3>("l3"));
}

TEST_CASE("options that a program may set are taken over from the text") {
    CHECK(names<moe<swiglu>>("moe(swiglu, top_k=3)",
                             [](const auto& block) { CHECK(block.router.top_k == 3); }));
    CHECK(
        names<mort<swiglu>>("modulated(swiglu, modulator_pool(l2(eps=0.5), sigmoid_topk_renorm(top_k=4), "
                            "num_layers=9), add)",
                            [](const auto& block) {
                                CHECK(block.modulator.mixed.norm.eps == 0.5f);
                                CHECK(block.modulator.mixed.input.router.top_k == 4);
                                CHECK(block.modulator.num_layers == 9);
                            }));
    CHECK(names<peer>("peer(top_k=5)", [](const auto& block) { CHECK(block.router.top_k == 5); }));
    CHECK(names<memory_plus>("memory_plus(top_k=7)",
                             [](const auto& block) { CHECK(block.hidden.up.router.top_k == 7); }));
    CHECK(names<longcat_embedding>("longcat_embedding(terms=3)",
                                   [](const auto& block) { CHECK(block.terms == 3); }));
}

TEST_CASE("what is not in the list is refused by name, and so is a text that is none") {
    const auto nothing = [](const auto&) { FAIL_CHECK("a block was made"); };
    for (const std::string text :
         {"reglu", "moe(stem, top_k=2)", "engram(eps=0.5)", "parallel(meki, swiglu)"}) {
        CAPTURE(text);
        const status s = with_block_on_device(text, nothing);
        REQUIRE_FALSE(s.ok());
        CHECK(s.failure().code == errc::option);
        CHECK(s.failure().what.find(text + "' is none of the layers") != std::string::npos);
    }
    CHECK_FALSE(with_block_on_device("ffn(gate(silu)", nothing).ok());
}

}  // namespace device_example_blocks_on_device_test
