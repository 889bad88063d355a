// The cost of given tensors is that of the sizes that they have.
#include <tiffin/analysis/cost_of_weights.hpp>

#include <tiffin/layers.hpp>

#include "support/doctest.hpp"

#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace analysis_cost_of_weights_test {
using namespace tiffin;

namespace {

constexpr block_shape sizes{
    .d_model = 12, .d_ff = 20, .vocab = 9, .experts = 4, .rank = 3, .inner = {7, 5}, .heads = 2};

// Tensors of zeros, which are also ids.
class zeros {
public:
    template <class Block>
    zeros(const Block& block, const block_shape& of, bool optional) {
        for (const auto& [name, t] : tensors_needed(block, of)) {
            if (t.needed == presence::optional && !optional) continue;
            tensors.add(name, {memory_.data(), is_map(t.kind) ? dtype::i32 : dtype::f32, t.shape});
        }
    }
    weights tensors;

private:
    std::vector<float> memory_ = std::vector<float>(4096);
};

template <class Block>
void compare(const char* name, const Block& block, const block_shape& of = sizes) {
    for (const bool optional : {false, true}) {
        CAPTURE(name);
        CAPTURE(optional);
        const zeros given(block, of, optional);
        const auto found = cost_of(block, given.tensors);
        if (!found) FAIL_CHECK(found.failure().message());
        if (!found) continue;
        const block_cost wanted = cost(of, block, optional);
        CHECK(found->parameters == wanted.parameters);
        CHECK(found->parameters_per_token == doctest::Approx(wanted.parameters_per_token).epsilon(1e-14));
        CHECK(found->table_parameters == wanted.table_parameters);
        CHECK(found->row_parameters == doctest::Approx(wanted.row_parameters).epsilon(1e-14));
        CHECK(found->matrix_flops_per_token == doctest::Approx(wanted.matrix_flops_per_token).epsilon(1e-14));
        CHECK(found->elementwise_flops_per_token ==
              doctest::Approx(wanted.elementwise_flops_per_token).epsilon(1e-14));
    }
}

}  // namespace

TEST_CASE("cost_of: the library's layers") {
    compare("swiglu", swiglu{});
    compare("mlp", mlp{});
    compare("stem", stem{});
    compare("stem_hybrid", stem_hybrid{});
    compare("structmoe", structmoe{});
    compare("structmoe_down", structmoe_down{});
    compare("deep_embed_v7a", deep_embed_v7a{});
    compare("mole", mole{});
    compare("meki", meki{});
    compare("retoken", retoken<swiglu>{});
    compare("moe", moe<swiglu>{{2}, {}, {}});
    compare("mixture", mixture<softmax_topk, swiglu, stem>{{2}, {}, {}});
    compare("nested", moe<moe<stem>>{{2}, {{3}, {}, {}}, {}});
}

// Parts with sizes of their own, which no block_shape in a row says as briefly.
TEST_CASE("cost_of: branches of different sizes") {
    const std::array<block_shape, 2> parts{{sizes, {.d_model = 12, .d_ff = 8, .vocab = 9}}};
    block_shape both = sizes;
    both.parts = parts.data();
    compare("parallel", parallel<swiglu, stem>{}, both);
}

TEST_CASE("cost_of: what does not bind is told") {
    const zeros given(stem{}, sizes, false);
    const auto found = cost_of(swiglu{}, given.tensors);
    REQUIRE(!found);
    CHECK(found.failure().code == errc::missing_tensor);
}

// The tensors need no memory: rows that lie elsewhere count too.
TEST_CASE("cost_of: a gathered table") {
    weights given;
    const std::vector<float> dense(240);
    given.add("gate_proj.weight", {dense.data(), dtype::f32, {20, 12}});
    given.add("down_proj.weight", {dense.data(), dtype::f32, {12, 20}});
    given.add_gathered("stem_embed.weight", dtype::f32, {1000, 20});
    CHECK(cost_of(stem{}, given).or_throw().table_parameters == 20000);
}

}  // namespace analysis_cost_of_weights_test
