// A composition as data: its nodes, their roles, tensors and options, in the order of its parts.
#include <tiffin/plan/lower.hpp>

#include <tiffin/block/parallel.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/norm/rms_one_plus.hpp>

#include "support/doctest.hpp"
#include "support/policies.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace plan_lower_test {
using namespace tiffin;
using detail::node_role;
using detail::router_kind;

namespace {

// "role:name[tensors](parts)", as deep as it goes.
std::string text(const plan_node& node) {
    std::string all =
        std::to_string(static_cast<int>(node.kind->role)) + ":" + std::string(node.kind->name) + "[";
    for (const detail::node_tensor& t : node.kind->tensors) all += std::string(t.name) + ",";
    all += "](";
    for (const plan_node& part : node.parts) all += text(part);
    return all + ")";
}

}  // namespace

TEST_CASE("lower: a node per source, in the order of the parts") {
    const stem_hybrid block{};
    const plan_node plan = lower(block);
    CHECK(plan.source == &block);
    CHECK(plan.kind->role == node_role::chain);
    CHECK(plan.kind->inner_width == "d_ff");
    REQUIRE(plan.parts.size() == 2);
    CHECK(plan.parts[0].source == &block.hidden);
    CHECK(plan.parts[0].kind == &detail::kind_of<decltype(block.hidden)>);
    CHECK(plan.kind->parts[0].role == "gate_proj");
    CHECK(plan.kind->parts[1].role == "down_proj");
    const plan_node& sum_of_up = plan.parts[0].parts[1];
    REQUIRE(sum_of_up.parts.size() == 2);
    CHECK(sum_of_up.parts[0].kind->tensors[0].kind == tensor_kind::projection);
    CHECK(sum_of_up.parts[1].kind->tensors[0].kind == tensor_kind::table);
    CHECK(text(plan) == text(lower(stem_hybrid{})));
    CHECK(text(plan) != text(lower(stem{})));
}

TEST_CASE("lower: what a source holds comes along") {
    moe<swiglu> block{};
    block.router.top_k = 3;
    const plan_node plan = lower(block);
    CHECK(plan.kind->role == node_role::mixture);
    CHECK(plan.kind->router == router_kind::learned);
    CHECK(plan.top_k == 3);
    CHECK(plan.choices_among(8) == 3);
    CHECK(plan.repetitions == plan_node::as_given);
    CHECK(plan.kind->repeated_name == "experts");
    CHECK(&plan.repeated_part(0) == &plan.repeated_part(5));
    block.router.top_k = every_expert;
    CHECK(lower(block).choices_among(8) == 8);

    parallel_of<mlp> branches{};
    branches.branches.resize(3);
    const plan_node many = lower(branches);
    CHECK(many.repetitions == 3);
    REQUIRE(many.repeated.size() == 3);
    CHECK(many.repeated_part(2).source == &branches.branches[2]);
    branches.branches.clear();
    CHECK(lower(branches).repeated.empty());
}

TEST_CASE("lower: scopes, widths and neutral weights are the kind's") {
    const plan_node plan = lower(retoken<swiglu>{});
    CHECK(plan.kind->parts[0].scope.name == "base");
    CHECK(plan.kind->parts[0].scope.number == part_scope::no_number);
    const normed<rms_one_plus, token_embedding> norm{};
    for (const detail::node_tensor& t : lower(norm).kind->tensors)
        if (is_stored(t.kind)) CHECK(t.neutral == 0);
    CHECK(lower(hash_moe<mlp>{}).kind->router == router_kind::map);
    CHECK(lower(product_key_memory{}).kind->is_routed());
}

// A plan is read while a program is compiled, too: costs are.
constexpr std::size_t nodes(const plan_node& node) {
    std::size_t n = 1;
    for (const plan_node& part : node.parts) n += nodes(part);
    return n;
}
static_assert(nodes(lower(mlp{})) == 4);

}  // namespace plan_lower_test
