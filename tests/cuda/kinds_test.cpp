// Every kind of block and of step at once: what is run where the conformance suites of the device take too
// long.
#include <tiffin/cuda.hpp>
#include <tiffin/layers.hpp>

#include "support/conformance.hpp"
#include "support/doctest.hpp"

// A pool with its norm over branches that are routed, normed, chained and gated by the residual.
TEST_CASE("conformance: modulated branches") {
    using branches = tiffin::parallel<tiffin::structmoe, tiffin::on_residual<tiffin::meki_training>>;
    tiffin_test::check_conformance(tiffin_test::compose<tiffin::mort<branches>>("modulated branches"));
}
TEST_CASE("conformance: experts beside a shared block") {
    tiffin::mixture<tiffin::softmax_topk_renorm, tiffin::retoken<tiffin::stem>, tiffin::ple> block;
    block.router.top_k = 2;
    tiffin_test::check_conformance(tiffin_test::compose("experts beside a shared block", block));
}
