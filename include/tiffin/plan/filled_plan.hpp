// From a plan with placeholders for arguments to the plan that a text names.
#pragma once

#include <tiffin/plan/policies.hpp>
#include <tiffin/plan/text.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

TIFFIN_BEGIN

namespace plan_detail {

// Owns what the nodes of a plan made from a text point to.
struct plan_memory {
    struct node_kind : detail::node_kind {
        std::vector<detail::node_tensor> all_tensors;
        std::vector<detail::node_part> all_parts;
    };
    // The router and the gate of gated_rows, each in the node that holds it.
    struct row_router {
        plan_node router, gate;
    };
    std::deque<node_kind> kinds;
    std::deque<std::string> strings;
    std::deque<row_router> row_routers;
    std::vector<std::shared_ptr<const void>> objects;  // policies and operations
};

// An argument of a text: a string, or the policy that a word names.
struct composed_text {
    policy_role role = policy_role::string;
    text_argument canonical{};  // with all its arguments and options
    std::string_view string{};  // in plan_memory
    plan_node plan{};           // of a source; for other policies, of the source that holds them
    const policy_form* form = nullptr;
    void* object = nullptr;
};

// An operation of a node whose source is a row_router: forwards to that of a node in it.
template <class Numbers, auto Op, auto Node>
struct passed_on;
template <class Numbers, class Ops, class... Arguments, void (*Ops::*Op)(const void*, Arguments...),
          plan_node plan_memory::row_router::*Node>
struct passed_on<Numbers, Op, Node> {
    static void run(const void* source, Arguments... arguments) {
        const plan_node& by = static_cast<const plan_memory::row_router*>(source)->*Node;
        (ops<Numbers>(by).*Op)(by.source, arguments...);
    }
};

// Copies the routing operations of another node.
template <class Numbers>
void take_choices(ops_for<Numbers>& to, const ops_for<Numbers>& from) noexcept {
    const auto take = [&](const auto... op) { ((to.*op = from.*op), ...); };
    std::apply(take, ops_for<Numbers>::of_router());
    std::apply(take, ops_for<Numbers>::of_row_gate());
}
// For a node whose source is a row_router: forwards its operations in `List` to `Node`.
template <class Numbers, auto List, auto Node>
void pass_on(ops_for<Numbers>& to) noexcept {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
        ((to.*std::get<I>(List()) = &passed_on<Numbers, std::get<I>(List()), Node>::run), ...);
    }
    (std::make_index_sequence<std::tuple_size_v<decltype(List())>>{});
}
template <class Numbers>
void take_row_choices(ops_for<Numbers>& to) noexcept {
    using own = ops_for<Numbers>;
    pass_on<Numbers, &own::of_router, &plan_memory::row_router::router>(to);
    pass_on<Numbers, &own::of_row_gate, &plan_memory::row_router::gate>(to);
}

// Replaces the placeholders of a plan by arguments.
template <class Numbers>
class filled_plan {
public:
    using texts = std::vector<composed_text>;

    filled_plan(plan_memory& memory, const texts& arguments) noexcept : memory_(memory), given_(arguments) {}

    result<plan_node> fill(const plan_node& pattern) {
        if (pattern.kind->argument) return named(pattern);
        plan_node node = pattern;
        auto& kind = copy(*pattern.kind);
        node.kind = &kind;
        if (status s = fill_parts(pattern, node, kind); !s) return s.failure();
        if (pattern.kind->policy) take_policy(pattern, node, kind);
        fill_names(kind);
        kind.tensors = kind.all_tensors;
        kind.parts = kind.all_parts;
        if (status s = check(node); !s) return s.failure();
        return node;
    }

private:
    using enum detail::node_role;

    plan_memory::node_kind& copy(const detail::node_kind& of) {
        return memory_.kinds.emplace_back(plan_memory::node_kind{
            of, {of.tensors.begin(), of.tensors.end()}, {of.parts.begin(), of.parts.end()}});
    }
    // A source argument, renamed if the pattern has a name: `named<argument<0>, "$1">`.
    result<plan_node> named(const plan_node& pattern) {
        plan_node node = given_[pattern.kind->argument.position].plan;
        if (!pattern.kind->has_name) return node;
        if (!node.parts.empty() || !node.kind->repeated_name.empty())
            return refused("names a source that has parts; name these one by one");
        auto& kind = copy(*node.kind);
        kind.name = text(pattern.kind->name);
        kind.has_name = true;
        kind.tensors = kind.all_tensors;
        node.kind = &kind;
        return node;
    }
    status fill_parts(const plan_node& pattern, plan_node& node, plan_memory::node_kind& kind) {
        node.parts.clear();
        kind.all_parts.clear();
        for (std::size_t i = 0; i < pattern.parts.size(); ++i) {
            plan_node part = pattern.parts[i];
            const argument_use use = part.kind->argument;
            const std::size_t count = use.is_rest ? given_.size() - use.position : 1;
            for (std::size_t j = 0; j < count; ++j) {
                auto filled = use.is_rest ? given_[use.position + j].plan : fill(part);
                if (!filled) return filled.failure();
                detail::node_part described = pattern.kind->parts[i];
                described.kind = filled->kind;
                if (kind.scope != nullptr) described.scope = kind.scope(node.parts.size());
                described.scope.name = text(described.scope.name);
                kind.all_parts.push_back(described);
                node.parts.push_back(*std::move(filled));
            }
            // A sum of n values.
            if (use.is_rest && kind.role == formula) node.flops = static_cast<double>(node.parts.size()) - 1;
        }
        for (plan_node& part : node.repeated) {
            auto filled = fill(part);
            if (!filled) return filled.failure();
            part = *std::move(filled);
        }
        return {};
    }
    void take_policy(const plan_node& pattern, plan_node& node, plan_memory::node_kind& kind) {
        const plan_node& policy = given_[pattern.kind->policy.position].plan;
        node.source = policy.source;
        const bool is_router = pattern.kind->policy.role == policy_role::router;
        if (is_router) {
            node.top_k = policy.top_k;
            kind.router = policy.kind->router;
        } else if (pattern.kind->policy.role != policy_role::dot_gate) {
            node.flops = policy.flops;
            // The neutral weight of this norm.
            for (const detail::node_tensor& weight : policy.kind->tensors)
                for (detail::node_tensor& t : kind.all_tensors)
                    if (weight.kind == tensor_kind::vector && t.needed == presence::required)
                        t.neutral = weight.neutral;
        }
        const bool is_gated = static_cast<bool>(pattern.kind->row_gate);
        if (is_gated)
            node.source = &memory_.row_routers.emplace_back(
                plan_memory::row_router{policy, given_[pattern.kind->row_gate.position].plan});
        if constexpr (!std::same_as<Numbers, void>) {
            node.ops = policy.ops;
            if (!is_router) return;
            const auto own = std::make_shared<ops_for<Numbers>>(ops<Numbers>(pattern));
            take_choices<Numbers>(*own, ops<Numbers>(policy));
            if (is_gated) take_row_choices<Numbers>(*own);
            memory_.objects.push_back(own);
            node.ops = own.get();
        }
    }
    void fill_names(plan_memory::node_kind& kind) {
        kind.name = text(kind.name);
        for (std::size_t i = 0; i < kind.all_tensors.size(); ++i) {
            detail::node_tensor& t = kind.all_tensors[i];
            if (t.name == router_tensors::name) {
                // The router's tensors, after the row that its holder reads.
                const auto router = given_[kind.policy.position].plan.kind->tensors.subspan(1);
                kind.all_tensors.erase(kind.all_tensors.begin() + static_cast<std::ptrdiff_t>(i));
                kind.all_tensors.insert(kind.all_tensors.begin() + static_cast<std::ptrdiff_t>(i),
                                        router.begin(), router.end());
                i += router.size() - 1;
            } else if (t.name.starts_with('#')) {
                t = given_[static_cast<std::size_t>(t.name[1] - '0')].plan.kind->tensors[0];
            } else {
                t.name = text(t.name);
            }
        }
    }
    // A name, or the string argument that it is a placeholder for.
    [[nodiscard]] std::string_view text(std::string_view name) const noexcept {
        if (name.size() != 2 || name[0] != '$') return name;
        return given_[static_cast<std::size_t>(name[1] - '0')].string;
    }

    // Checks that static_assert makes for types.
    [[nodiscard]] static status check(const plan_node& node) {
        const detail::node_kind& kind = *node.kind;
        if (kind.role == row_dot)
            for (std::size_t i = 0; i < 2; ++i)
                if (detail::multiplies_input(*kind.parts[i].kind))
                    return refused(
                        "has a product as a factor of its gate, whose row is not known before the gate; "
                        "write through(\"\", source_input, ...)");
        const bool chooses_rows =
            kind.router == detail::router_kind::keys || kind.router == detail::router_kind::ranges;
        if (chooses_rows && (kind.role == mixture || kind.has(tensor_kind::low_rank_in)))
            return refused("has a router that chooses rows of a table, and no experts");
        if (kind.row_gate && !chooses_rows)
            return refused("gates the rows that a router of rows chooses, and this one chooses none");
        if (detail::values_held(kind) > most_values)
            return refused(
                "holds more than 32 values at a time; put a sum, or a part that comes first, in another "
                "order");
        return {};
    }
    [[nodiscard]] static failure refused(std::string_view what) {
        return failure(errc::option, "composition", what);
    }

    plan_memory& memory_;
    const texts& given_;
};

}  // namespace plan_detail

TIFFIN_END
