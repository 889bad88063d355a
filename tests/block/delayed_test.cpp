// A residual carried over layers: what arrives is what a layer sent that many layers before, to the bit.
#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/eigen/eigen.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>

#include "support/combinators.hpp"
#include "support/doctest.hpp"
#include "support/executors.hpp"
#include "support/policies.hpp"
#include "support/tensor_set.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace block_delayed_test {
using namespace tiffin;
using tiffin_test::random_ids;
using tiffin_test::random_rows;
using tiffin_test::tensor_set;

namespace {

constexpr std::size_t d = 37, f = 19, vocab = 11, layers = 5;

using residual = source_block<tiffin_test::pool_of_three<>>;
template <std::size_t Layers, class Ffn = mlp, class Sent = residual>
using network_layer = parallel<Ffn, delayed<Sent, Layers>>;

template <class Block>
tensor_set tensors_for(std::uint32_t seed) {
    return tensor_set(tiffin_test::tensors_wanted(Block{}), {{d, f, vocab}, {}, {}, ~0u, seed});
}

// A network of five layers, each over the result of the last, with the sums made by hand beside it.
template <std::size_t Layers, class Ffn = mlp, class Sent = residual, class Backend>
void check(const Backend& backend, std::size_t tokens, std::size_t workspace_tokens) {
    CAPTURE(Layers);
    CAPTURE(tokens);
    carried_residuals carried(Layers, tokens, d);
    const std::vector<std::int32_t> ids = random_ids(tokens, vocab, 5);
    for (int pass = 0; pass < 2; ++pass) {  // the second finds nothing of the first
        carried.begin();
        std::vector<float> x = random_rows(tokens, d, 7);
        std::vector<std::vector<float>> sent;
        for (std::size_t n = 0; n < layers; ++n) {
            const tensor_set all =
                tensors_for<network_layer<Layers, Ffn, Sent>>(static_cast<std::uint32_t>(n));
            weights ffn_given, residual_given;
            const weights given = all.given();
            for (const weights::entry& e : given.entries())
                (e.name.starts_with("branch.0.") ? ffn_given : residual_given)
                    .add(e.name.substr(std::string("branch.0.").size()), e.tensor);
            std::vector<float> y(x.size()), by_hand(x.size()), own(x.size());
            auto layer = prepare<network_layer<Layers, Ffn, Sent>>(
                all.given(), backend, {.tokens = workspace_tokens, .workers = 2});
            layer(x, {.token_ids = ids, .carried = &carried}, y, tiffin_test::reversed{2});
            prepare<Ffn>(ffn_given, backend)(x, ids, by_hand);
            prepare<Sent>(residual_given, backend)(x, ids, own);
            sent.push_back(own);
            if (n >= Layers)
                for (std::size_t i = 0; i < by_hand.size(); ++i) by_hand[i] += sent[n - Layers][i];
            std::size_t different = 0;
            for (std::size_t i = 0; i < y.size(); ++i) different += y[i] == by_hand[i] ? 0u : 1u;
            CHECK(different == 0);
            x = y;
        }
    }
}

}  // namespace

TEST_CASE("delayed: what was sent arrives, as many layers later as it says") {
    for (const std::size_t tokens : {1u, 9u}) {
        check<1>(simd{}, tokens, tokens);
        check<2>(simd{}, tokens, 4);  // in pieces
#if !defined(TIFFIN_TEST_SMALL)
        check<4>(simd{}, tokens, tokens);
#endif
        check<7>(simd{}, tokens, tokens);  // nothing arrives within the network
    }
    check<2>(eigen{}, 1, 1);
}

TEST_CASE("delayed: combinators of one's own") {
    using own = tiffin_test::blend<swiglu, stem>;
    using sent = tiffin_test::times_bank<mlp, tiffin_test::tempered_top_2>;
    check<2, own, sent>(simd{}, 9, 4);
    check<1, own, sent>(eigen{}, 3, 3);
}

TEST_CASE("delayed: the reference") {
    const tensor_set all = tensors_for<delayed<mlp, 1>>(3);
    auto layer = prepare<delayed<mlp, 1>>(all.given(), reference{});
    auto plain = prepare<mlp>(all.given(), reference{});
    carried_residuals carried(1, 4, d);
    const std::vector<float> first = random_rows(4, d, 1), second = random_rows(4, d, 2);
    std::vector<float> y(4 * d, 1.0f), wanted(4 * d);
    layer(first, {.carried = &carried}, y);
    CHECK(y == std::vector<float>(4 * d, 0.0f));
    layer(second, {.carried = &carried}, y);
    plain(first, {}, wanted);
    CHECK(y == wanted);
}

TEST_CASE("delayed: a handle that does not fit is refused before anything is written") {
    const tensor_set all = tensors_for<network_layer<2>>(3);
    auto layer = prepare<network_layer<2>>(all.given(), simd{});
    const std::vector<float> x = random_rows(6, d, 7);
    const std::vector<std::int32_t> ids = random_ids(6, vocab, 5);
    std::vector<float> y(6 * d, 9.0f);
    const auto refused = [&](std::size_t tokens, carried_residuals* carried) {
        const std::span<const float> in(x.data(), tokens * d);
        const std::span<float> out(y.data(), tokens * d);
        const status s =
            layer.try_call(in, {.token_ids = std::span(ids).first(tokens), .carried = carried}, out);
        REQUIRE_FALSE(s.ok());
        CHECK(s.failure().code == errc::size);
        CHECK(s.failure().where == "carried");
        for (const float v : y) REQUIRE(v == 9.0f);
        return s.failure().what;
    };
    CHECK(refused(6, nullptr).find("missing") != std::string::npos);
    carried_residuals wrong_delay(3, 6, d), wrong_width(2, 6, d + 1), small(2, 5, d), right(2, 6, d);
    CHECK(refused(6, &wrong_delay).find("carries over 3 layers") != std::string::npos);
    CHECK(refused(6, &wrong_width).find("d_model 38") != std::string::npos);
    CHECK(refused(6, &small).find("room for 5 tokens; the call has 6") != std::string::npos);
    for (int n = 0; n < 2; ++n) {
        std::vector<float> out(6 * d);
        layer(x, {.token_ids = ids, .carried = &right}, out);
    }
    CHECK(refused(4, &right).find("a residual of 6 tokens to a call of 4") != std::string::npos);
}

TEST_CASE("delayed: twice in a block, and in a mixture") {
    using twice = parallel<delayed<mlp, 1>, delayed<mlp, 1>>;
    const auto two = try_prepare<twice>(tensors_for<twice>(1).given(), simd{});
    REQUIRE_FALSE(two.ok());
    CHECK(two.failure().code == errc::option);
    using mixed = moe<delayed<mlp, 1>>;
    const auto experts = try_prepare<mixed>(tensors_for<mixed>(1).given(), simd{});
    REQUIRE_FALSE(experts.ok());
    CHECK(experts.failure().code == errc::option);
}

}  // namespace block_delayed_test
