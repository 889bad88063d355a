// Every kind of block and of step at once: what is run where the conformance suites of the device take too
// long.
#include <tiffin/cuda.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/source/through.hpp>

#include "cuda/whole_numbers.hpp"
#include "support/conformance.hpp"
#include "support/doctest.hpp"
#include "support/policies.hpp"
#include "support/tensor_set.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace cuda_kinds_test {

// A pool with its norm over branches that are routed, normed, chained and gated by the residual.
TEST_CASE("conformance: modulated branches") {
    using branches = tiffin::parallel<tiffin::structmoe, tiffin::on_residual<tiffin::meki_training>>;
    tiffin_test::check_conformance(
        tiffin_test::compose<tiffin_test::mort_of_three<branches>>("modulated branches"));
}
// A router inside a chain, which reads the chain's row; roots of a row's width.
TEST_CASE("conformance: a bank in a chain beside a memory with its context") {
    using bank = tiffin::through<"low", tiffin::named<tiffin::dense, "narrow">, tiffin::routed_low_rank<>>;
    using banked = tiffin::ffn<tiffin::gate<tiffin::gelu, tiffin::sum<tiffin::dense, bank>>>;
    tiffin_test::check_conformance(
        tiffin_test::compose<tiffin::parallel<banked, tiffin::ple_full>>("banked"));
}
TEST_CASE("conformance: experts beside a shared block") {
    tiffin::mixture<tiffin::softmax_topk_renorm, tiffin::retoken<tiffin::stem>, tiffin::ple> block;
    block.router.top_k = 2;
    tiffin_test::check_conformance(tiffin_test::compose("experts beside a shared block", block));
}
TEST_CASE("conformance: rows chosen by keys, and by ranges") {
    tiffin::parallel<tiffin::peer, tiffin::l3> block;
    std::get<0>(block.branches).router.top_k = 2;
    tiffin_test::check_conformance(tiffin_test::compose("peer beside l3", block));
}
// Routers take several tokens a warp from 1024 tokens on.
TEST_CASE("tokens are routed alike in large calls and in small ones") {
    using namespace tiffin_cuda_test;
    using choice = tiffin::choice<float>;
    tiffin::structmoe block;
#if defined(TIFFIN_TEST_SMALL)
    const std::size_t piece = 103;
#else
    const std::size_t piece = 7;
#endif
    const std::size_t tokens = 1030, width = 20;
    tiffin_test::tensor_set tensors(tiffin_test::tensors_wanted(block),
                                    {{width, 12, 1, 11, 3}, {}, {}, 0u, 7});
    std::vector<float> numbers(tokens * width);
    tiffin_test::random_numbers random(3);
    random.fill(numbers, 1.0f);
    auto layer = tiffin::prepare(block, tensors.given(), tiffin::cuda<>{}, {.tokens = tokens});
    REQUIRE(layer.choices() > 0);
    const there<float> x(numbers), y(numbers.size());
    const there<choice> at_once(tokens * layer.choices()), in_pieces(tokens * layer.choices());
    layer(x.rows(width), {.routes = at_once.span()}, y.rows(width));
    for (std::size_t first = 0; first < tokens; first += piece) {
        const std::size_t count = std::min(piece, tokens - first);
        layer(x.rows(width).rows_from(first, count),
              {.routes = in_pieces.span().subspan(first * layer.choices(), count * layer.choices())},
              y.rows(width).rows_from(first, count));
    }
    REQUIRE(layer.synchronise().ok());
    const std::vector<choice> all = at_once.here(), each = in_pieces.here();
    std::size_t different = 0;
    for (std::size_t i = 0; i < all.size(); ++i)
        if (all[i].expert != each[i].expert || all[i].weight != each[i].weight) ++different;
    CHECK(different == 0);
}

}  // namespace cuda_kinds_test
