// What a modulator takes for its norm and its router where nobody says: as layer files have them.
#include <tiffin/modulator/modulator_pool.hpp>
#include <tiffin/modulator/token_modulator.hpp>
#include <tiffin/norm/rms.hpp>
#include <tiffin/norm/unweighted.hpp>
#include <tiffin/router/hash.hpp>
#include <tiffin/router/softmax.hpp>

#include "support/doctest.hpp"

#include <cstddef>

namespace modulator_modulator_norm_test {
using namespace tiffin;

namespace {

struct own_norm : l2 {
    constexpr own_norm() : l2{0.5f} {}
};
struct own_router : sigmoid_topk_renorm {
    constexpr own_router() { top_k = 3; }
};

}  // namespace

TEST_CASE("modulators: eps 1e-6, and a norm of one's own as it is") {
    CHECK(token_modulator<>{}.row.norm.eps == 1e-6f);
    CHECK(token_modulator<unweighted<rms>>{}.row.norm.eps == 1e-6f);
    CHECK(modulator_pool<unweighted<rms>>{}.mixed.norm.eps == 1e-6f);
    CHECK(token_modulator<own_norm>{}.row.norm.eps == 0.5f);
    CHECK(modulator_pool<own_norm>{}.mixed.norm.eps == 0.5f);
    CHECK(rms{}.eps == 1e-5f);  // elsewhere it stays STEM's
}

TEST_CASE("modulators: two of MoRT's experts per token, another router as it is") {
    CHECK(modulator_pool<>{}.mixed.input.router.top_k == 2);
    CHECK(modulator_pool<l2, own_router>{}.mixed.input.router.top_k == 3);
    CHECK(modulator_pool<l2, softmax_topk>{}.mixed.input.router.top_k == 1);
    CHECK_FALSE(modulator_pool<l2, hash>{}.check().ok());
    CHECK(modulator_pool<>{.num_layers = 28}.check().ok());
    CHECK(modulator_pool<>{}.check().failure().where == "num_layers");
}

}  // namespace modulator_modulator_norm_test
