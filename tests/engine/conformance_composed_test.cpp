// Compositions that between them use every word of the grammar, in places where no named layer does.
#include <tiffin/activation/gelu.hpp>
#include <tiffin/activation/gelu_tanh.hpp>
#include <tiffin/activation/identity.hpp>
#include <tiffin/activation/relu.hpp>
#include <tiffin/activation/sigmoid.hpp>
#include <tiffin/activation/silu.hpp>
#include <tiffin/block/ffn.hpp>
#include <tiffin/fusion/add.hpp>
#include <tiffin/norm/l2.hpp>
#include <tiffin/norm/rms.hpp>
#include <tiffin/norm/rms_cast_first.hpp>
#include <tiffin/norm/rms_one_plus.hpp>
#include <tiffin/source/dense.hpp>
#include <tiffin/source/named.hpp>
#include <tiffin/source/sum.hpp>
#include <tiffin/source/token_embedding.hpp>

#include "support/conformance.hpp"
#include "support/doctest.hpp"

namespace engine_conformance_composed_test {
using namespace tiffin;
using tiffin_test::check;
using tiffin_test::compose;
using tiffin_test::compose_with_reference;

// MeKi's and PLE's shapes, and the norms. An eps that matters shows that the block's own state is used.
TEST_CASE("conformance: sigmoid, add, rms") {
    ffn<gate<sigmoid>, token_embedding, add, project<rms>> block;
    block.output.norm.eps = 0.25f;
    check(compose_with_reference("ffn(gate(sigmoid), token_embedding, add, project(rms(eps=0.25)))", block));
}
#if !defined(TIFFIN_TEST_SMALL)
TEST_CASE("conformance: gelu_tanh, multiply, rms_one_plus") {
    ffn<gate<gelu_tanh>, token_embedding, multiply, project<rms_one_plus>> block;
    block.output.norm.eps = 0.125f;
    check(
        compose("ffn(gate(gelu_tanh), token_embedding, multiply, project(rms_one_plus(eps=0.125)))", block));
}
#endif
TEST_CASE("conformance: sum of three, l2") {
    ffn<gate<silu>, sum<dense, token_embedding, named<token_embedding, "extra_embed">>, multiply, project<l2>>
        block;
    block.output.norm.eps = 0.5f;
    check(
        compose("ffn(gate(silu), sum(dense, token_embedding, named(token_embedding, 'extra_embed')), "
                "multiply, project(l2(eps=0.5)))",
                block));
}

#if !defined(TIFFIN_TEST_SMALL)
TEST_CASE("conformance: a table in the output") {
    using out = project<no_norm, sum<dense, named<token_embedding, "out_embed">>>;
    check(compose<ffn<gate<identity>, dense, multiply, out>>(
        "ffn(gate(identity), dense, multiply, project(no_norm, sum(dense, named(token_embedding, "
        "'out_embed'))))"));
}
#endif
TEST_CASE("conformance: no projection in the hidden source") {
    using block = ffn<gate<relu, token_embedding>, named<token_embedding, "up_embed">, add>;
    check(compose_with_reference<block>(
        "ffn(gate(relu, token_embedding), named(token_embedding, 'up_embed'), add)"));
}
TEST_CASE("conformance: no projection in the output") {
    using out = project<rms, named<token_embedding, "out_embed">>;
    check(compose<ffn<gate<silu>, none, multiply, out>>(
        "ffn(gate(silu), none, multiply, project(rms, named(token_embedding, 'out_embed')))"));
}
TEST_CASE("conformance: three projections, two in the output, rms_cast_first") {
    using out = project<rms_cast_first, sum<dense, named<dense, "extra_down">>>;
    using block = ffn<gate<gelu_tanh>, sum<dense, named<dense, "extra">>, multiply, out>;
    check(
        compose<block>("ffn(gate(gelu_tanh), sum(dense, named(dense, 'extra')), multiply, "
                       "project(rms_cast_first, sum(dense, named(dense, 'extra_down'))))"));
}
#if !defined(TIFFIN_TEST_SMALL)
TEST_CASE("conformance: five projections, multiplied two by two") {
    using block = ffn<gate<gelu, sum<dense, named<dense, "gate_extra">, named<dense, "gate_more">>>,
                      sum<dense, named<dense, "up_extra">>, add>;
    check(
        compose<block>("ffn(gate(gelu, sum(dense, named(dense, 'gate_extra'), named(dense, 'gate_more'))), "
                       "sum(dense, named(dense, 'up_extra')), add)"));
}
#endif

}  // namespace engine_conformance_composed_test
