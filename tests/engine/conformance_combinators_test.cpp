// Combinators, a router, a norm and a fusion of one's own (support/combinators.hpp), inside the library's and
// around them. (delayed: block/delayed_test.cpp)
#include <tiffin/analysis/cost.hpp>
#include <tiffin/block/branch.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/norm/rms_one_plus.hpp>

#include "support/combinators.hpp"
#include "support/conformance.hpp"
#include "support/doctest.hpp"
#include "support/policies.hpp"

#include <string>

namespace engine_conformance_combinators_test {
using namespace tiffin;
using namespace tiffin_test;

namespace {

using own_ffn = ffn<gate<silu>, dense, gated_sum, project<damped>>;
using blended = blend<own_ffn, stem>;
using banked = times_bank<swiglu, tempered_top_2>;

const std::string blended_text = "blend(ffn(gate(silu), dense, gated_sum, project(damped)), stem)";

}  // namespace

TEST_CASE("combinators: a blend with a vector of its own") {
    check(compose_with_reference<blended>(blended_text));
}
#if !defined(TIFFIN_TEST_SMALL)
TEST_CASE("combinators: a blend as an up source, of a projection and a table") {
    check(compose<ffn<gate<silu>, blend<dense, token_embedding>>>(
        "ffn(gate(silu), blend(dense, token_embedding))"));
}
#endif
TEST_CASE("combinators: one that has a part that routes") {
    check(compose_with_reference<banked>("times_bank(swiglu, tempered_top_2)"));
}
TEST_CASE("combinators: as experts of a mixture, by a router of one's own") {
    check(compose_with_reference<mixture<tempered_top_2, blended, banked>>(
        "mixture(tempered_top_2, " + blended_text + ", times_bank(swiglu, tempered_top_2))"));
}
#if !defined(TIFFIN_TEST_SMALL)
TEST_CASE("combinators: modulated, by a fusion of one's own") {
    check(compose<modulated<blended, token_modulator<>, gated_sum>>("modulated(" + blended_text +
                                                                    ", token_modulator, gated_sum)"));
}
#endif
#if !defined(TIFFIN_TEST_SMALL)
TEST_CASE("combinators: of blocks with rows of their own") {
    check(compose<blend<moe<mlp>, on_residual<blend<swiglu, moe<stem>>>>>(
        "blend(moe(mlp), on_residual(blend(swiglu, moe(stem))))"));
}
TEST_CASE("combinators: a norm over a product, inside a formula, and over a whole block") {
    check(compose<ffn<gate<silu>, normed<damped, dense, "inner_norm">>>(
        "ffn(gate(silu), normed(damped, dense, 'inner_norm'))"));
    check(
        compose<normed<damped, blended, "outer_norm">>("normed(damped, " + blended_text + ", 'outer_norm')"));
}
TEST_CASE("combinators: one after the other") {
    check(compose<through<"second", blended, swiglu>>("through('second', " + blended_text + ", swiglu)"));
}
#endif

TEST_CASE("combinators: whole branches, with norm and residual") {
    check(compose_with_reference<branch<rms, swiglu>>("branch(rms, swiglu)"));
    check(compose<sum<stem, source_input>>("sum(stem, source_input)"));
#if !defined(TIFFIN_TEST_SMALL)
    check(compose<branch<rms_one_plus, moe<sum<stem, source_input>>>>(
        "branch(rms_one_plus, moe(sum(stem, source_input)))"));
    check(compose<branch<damped, parallel<mort_of_three<mlp>, on_residual<meki>>>>(
        "branch(damped, parallel(mort(mlp, num_layers=3), on_residual(meki)))"));
    check(compose<modulated<pre_normed<rms, mlp>, token_modulator<>, multiply>>(
        "modulated(pre_normed(rms, mlp), token_modulator)"));
#endif
}

TEST_CASE("combinators: their cost follows from their parts") {
    constexpr block_shape shape{.d_model = 64, .d_ff = 96, .vocab = 10, .experts = 4, .rank = 3};
    constexpr double d = 64, f = 96;
    const block_cost a = cost<own_ffn>(shape), b = cost<stem>(shape), both = cost<blended>(shape);
    CHECK(both.parameters == a.parameters + b.parameters + d);
    CHECK(both.matrix_flops_per_token == a.matrix_flops_per_token + b.matrix_flops_per_token);
    CHECK(both.elementwise_flops_per_token ==
          a.elementwise_flops_per_token + b.elementwise_flops_per_token + 4 * d);
    CHECK(a.elementwise_flops_per_token == (silu::flops() + gated_sum::flops()) * f + damped::flops() * d);
    const double routed =
        cost<banked>(shape).matrix_flops_per_token - cost<swiglu>(shape).matrix_flops_per_token;
    CHECK(routed == 2 * 4 * d + 2 * 2 * 3 * (d + d));
    CHECK(cost<mixture<tempered_top_2, blended, banked>>(shape).parameters ==
          4 * both.parameters + cost<banked>(shape).parameters + 4 * d);
}

}  // namespace engine_conformance_combinators_test
