// Low-rank banks chosen by a router, in every place a source can stand, and mixtures of experts.
#include <tiffin/layers.hpp>
#include <tiffin/router/any_router.hpp>
#include <tiffin/source/through.hpp>

#include "support/conformance.hpp"
#include "support/doctest.hpp"

using namespace tiffin;
using tiffin_test::check;
using tiffin_test::compose;
using tiffin_test::compose_with_reference;

namespace {

template <std::size_t K, class Router = softmax_topk>
struct top : Router {
    constexpr top() noexcept : Router{} { this->top_k = K; }
};
template <router_order Order, std::size_t K>
struct ordered : any_router {
    constexpr ordered() noexcept : any_router{K, Order} {}
};

}  // namespace

TEST_CASE("conformance: structmoe") {
    check(compose_with_reference<structmoe>("structmoe"));
}
#if !defined(TIFFIN_TEST_SMALL)
TEST_CASE("conformance: structmoe, gated, all experts") {
    check(compose<ffn<gate<gelu>, routed_low_rank<top<4>>>>("structmoe_gated"));
}
TEST_CASE("conformance: structmoe after the activation, in a GLU's up source") {
    using bank = routed_low_rank<top<2, topk_softmax>>;
    check(compose<ffn<gate<silu>, sum<dense, bank>, add>>("structmoe in up"));
}
#endif
TEST_CASE("conformance: a bank on the output projection and one alone in the gate") {
    using out = project<rms, sum<dense, named<routed_low_rank<top<3>>, "down">>>;
    check(compose<ffn<gate<gelu_tanh, routed_low_rank<hash>>, none, multiply, out>>("banks"));
}

#if !defined(TIFFIN_TEST_SMALL)
TEST_CASE("conformance: structmoe with its bank on the down projection") {
    check(compose<structmoe_down>("structmoe_down"));
}
#endif
// The bank reads the narrow row, not x; a second one reads what the first has made.
TEST_CASE("conformance: a bank inside a chain, and a chain of two banks") {
    using narrow = through<"low", named<dense, "narrow">, routed_low_rank<top<2>>>;
    check(compose<ffn<gate<gelu, sum<dense, narrow>>>>("a bank in a chain"));
    using twice =
        through<"two", named<routed_low_rank<top<2>>, "first">, named<routed_low_rank<top<3>>, "second">>;
    check(compose<ffn<gate<silu>, twice, add>>("two banks in a chain"));
}

TEST_CASE("conformance: mixture, softmax_topk") {
    check(compose_with_reference<mixture<ordered<router_order::softmax_topk, 2>, swiglu>>("moe"));
}
TEST_CASE("conformance: mixture, softmax_topk_renorm, a shared block") {
    check(compose<mixture<ordered<router_order::softmax_topk_renorm, 3>, mlp, stem>>("moe, shared"));
}
#if !defined(TIFFIN_TEST_SMALL)
TEST_CASE("conformance: mixture, sigmoid, of STEM experts with a norm") {
    using expert = ffn<gate<silu>, token_embedding, multiply, project<rms>>;
    check(compose<mixture<ordered<router_order::sigmoid_topk_renorm, 2>, expert>>("moe of stem"));
}
#endif
TEST_CASE("conformance: a mixture of mixtures") {
    using inner = mixture<top<2, topk_softmax>, mlp>;
    check(compose<mixture<top<2, sigmoid_topk_renorm>, inner>>("moe of moe"));
}
#if !defined(TIFFIN_TEST_SMALL)
TEST_CASE("conformance: hash mixture") {
    check(compose_with_reference<hash_moe<swiglu>>("hash_moe"));
}
#endif
