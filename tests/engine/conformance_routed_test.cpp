// Low-rank banks chosen by a router, in every place a source can stand, and mixtures of experts.
#include <tiffin/layers.hpp>
#include <tiffin/source/through.hpp>

#include "support/conformance.hpp"
#include "support/doctest.hpp"

namespace engine_conformance_routed_test {
using namespace tiffin;
using tiffin_test::check;
using tiffin_test::compose;
using tiffin_test::compose_with_reference;

namespace {

template <std::size_t K, class Router = softmax_topk>
struct top : Router {
    constexpr top() noexcept : Router{} { this->top_k = K; }
};

}  // namespace

TEST_CASE("conformance: structmoe") {
    check(compose_with_reference<structmoe>("structmoe"));
}
#if !defined(TIFFIN_TEST_SMALL)
TEST_CASE("conformance: structmoe, gated, all experts") {
    check(compose<ffn<gate<gelu>, routed_low_rank<top<4>>>>(
        "ffn(gate(gelu), routed_low_rank(softmax_topk(top_k=4)))"));
}
TEST_CASE("conformance: structmoe after the activation, in a GLU's up source") {
    using bank = routed_low_rank<top<2, topk_softmax>>;
    check(compose<ffn<gate<silu>, sum<dense, bank>, add>>(
        "ffn(gate(silu), sum(dense, routed_low_rank(topk_softmax(top_k=2))), add)"));
}
#endif
TEST_CASE("conformance: a bank on the output projection and one alone in the gate") {
    using out = project<rms, sum<dense, named<routed_low_rank<top<3>>, "down">>>;
    check(compose<ffn<gate<gelu_tanh, routed_low_rank<hash>>, none, multiply, out>>(
        "ffn(gate(gelu_tanh, routed_low_rank(hash)), none, multiply, project(rms, sum(dense, "
        "named(routed_low_rank(softmax_topk(top_k=3)), 'down'))))"));
}

#if !defined(TIFFIN_TEST_SMALL)
TEST_CASE("conformance: structmoe with its bank on the down projection") {
    check(compose<structmoe_down>("structmoe_down"));
}
#endif
// The bank reads the narrow row, not x; a second one reads what the first has made.
TEST_CASE("conformance: a bank inside a chain, and a chain of two banks") {
    using narrow = through<"low", named<dense, "narrow">, routed_low_rank<top<2>>>;
    check(compose<ffn<gate<gelu, sum<dense, narrow>>>>(
        "ffn(gate(gelu, sum(dense, through('low', named(dense, 'narrow'), "
        "routed_low_rank(softmax_topk(top_k=2))))))"));
    using twice =
        through<"two", named<routed_low_rank<top<2>>, "first">, named<routed_low_rank<top<3>>, "second">>;
    check(compose<ffn<gate<silu>, twice, add>>(
        "ffn(gate(silu), through('two', named(routed_low_rank(softmax_topk(top_k=2)), 'first'), "
        "named(routed_low_rank(softmax_topk(top_k=3)), 'second')), add)"));
}

TEST_CASE("conformance: mixture, softmax_topk") {
    check(compose_with_reference<mixture<top<2>, swiglu>>("moe(swiglu, top_k=2)"));
}
TEST_CASE("conformance: mixture, softmax_topk_renorm, a shared block") {
    check(compose<mixture<top<3, softmax_topk_renorm>, mlp, stem>>(
        "mixture(softmax_topk_renorm(top_k=3), mlp, stem)"));
}
#if !defined(TIFFIN_TEST_SMALL)
TEST_CASE("conformance: mixture, sigmoid, of STEM experts with a norm") {
    using expert = ffn<gate<silu>, token_embedding, multiply, project<rms>>;
    check(compose<mixture<top<2, sigmoid_topk_renorm>, expert>>(
        "mixture(sigmoid_topk_renorm(top_k=2), ffn(gate(silu), token_embedding, multiply, project(rms)))"));
}
#endif
TEST_CASE("conformance: a mixture of mixtures") {
    using inner = mixture<top<2, topk_softmax>, mlp>;
    check(compose<mixture<top<2, sigmoid_topk_renorm>, inner>>(
        "mixture(sigmoid_topk_renorm(top_k=2), mixture(topk_softmax(top_k=2), mlp))"));
}
#if !defined(TIFFIN_TEST_SMALL)
TEST_CASE("conformance: hash mixture") {
    check(compose_with_reference<hash_moe<swiglu>>("hash_moe(swiglu)"));
}
#endif

}  // namespace engine_conformance_routed_test
