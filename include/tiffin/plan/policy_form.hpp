// A policy that a text can name, as data: how its plan is made, and its options.
#pragma once

#include <tiffin/grammar/arguments.hpp>
#include <tiffin/plan/lower.hpp>
#include <tiffin/plan/policy_option.hpp>
#include <tiffin/plan/text.hpp>
#include <tiffin/router/gated_rows.hpp>
#include <tiffin/router/row_range.hpp>
#include <tiffin/source/dot_gated.hpp>
#include <tiffin/source/fused.hpp>
#include <tiffin/source/gate.hpp>
#include <tiffin/source/none.hpp>
#include <tiffin/source/normed.hpp>
#include <tiffin/source/routed_embedding.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

TIFFIN_BEGIN

namespace plan_detail {

using any_function = void (*)();

// A composition that a policy's word may name. Its object: the source that holds the policy, or is it.
struct policy_form {
    policy_role role;
    std::shared_ptr<void> (*make)();
    plan_node (*lower)(const void* object);  // a plan with placeholders for arguments
    std::span<const policy_option> options;
    // For an activation: the policy, and a function of (const void* policy, const S& z) that returns phi(z).
    const void* (*policy)(const void* object) = nullptr;
    any_function (*by_number)() = nullptr;
    // The placeholder of an activation that is called value by value, held as `phi`.
    argument_use phi{};
    void (*set_phi)(void* object, const void* policy, any_function by_number) = nullptr;
};

struct no_router {
    static constexpr bool chooses_rows = true;
    using tensors = tensor_list<>;
};
// A leaf with one tensor, for a text that names the tensor.
template <tensor_declaration Tensor>
struct source_of_tensor {
    using tensors = tensor_list<Tensor>;
    using source_role = std::conditional_t<(Tensor::kind >= tensor_kind::logits && is_stored(Tensor::kind)),
                                           routed_role, void>;
    using formula_is = sum_of_values<source_of_tensor>;
    no_router router{};

    template <class Place>
    double operator()(const Place&) const {
        return 0;
    }
};

template <class P>
concept row_gate_policy = requires(const P& gate, const double* products, double* weights, std::size_t n) {
    gate(products, weights, n);
};
template <class P>
concept dot_gate_policy = requires(const P& gate, double v) {
    { gate(v, v) } -> std::convertible_to<double>;
};

// The role of a policy and the source that holds it.
template <policy_role Role, class Source>
struct held_policy {
    static constexpr policy_role role = Role;
    using source = Source;
};
template <class P>
constexpr auto hold() noexcept {
    if constexpr (std::same_as<P, tiffin::none>)
        return held_policy<policy_role::none, argument<0>>{};
    else if constexpr (source_policy<P>)
        return held_policy<policy_role::source, P>{};
    else if constexpr (activation_policy<P>)
        return held_policy<policy_role::activation, gate<P, argument<0>>>{};
    else if constexpr (fusion_policy<P>)
        return held_policy<policy_role::fusion, fused<argument<0>, argument<1>, P>>{};
    else if constexpr (norm_policy<P>)
        return held_policy<policy_role::norm, normed<P, argument<0>>>{};
    else if constexpr (router_policy<P>)
        return held_policy<policy_role::router, routed_embedding<P, input_row>>{};
    else if constexpr (row_gate_policy<P>)
        return held_policy<policy_role::row_gate, routed_embedding<gated_rows<row_range, P>, input_row>>{};
    else if constexpr (tensor_declaration<P>)
        return held_policy<policy_role::tensor, source_of_tensor<P>>{};
    else {
        static_assert(dot_gate_policy<P>,
                      "tiffin: policies{}: this is neither a source nor an activation, a fusion, a norm, a "
                      "router, a gate or a tensor");
        return held_policy<policy_role::dot_gate, dot_gated<P, argument<0>, argument<1>, argument<2>>>{};
    }
}
template <class P>
using held = decltype(hold<P>());

// The policy in the source that holds it.
template <class P>
auto& policy_in(typename held<P>::source& object) noexcept {
    constexpr policy_role role = held<P>::role;
    if constexpr (role == policy_role::activation)
        return object.phi;
    else if constexpr (role == policy_role::fusion)
        return object.fusion;
    else if constexpr (role == policy_role::norm)
        return object.norm;
    else if constexpr (role == policy_role::router)
        return object.router;
    else if constexpr (role == policy_role::row_gate)
        return object.router.gate_of_rows;
    else if constexpr (role == policy_role::dot_gate)
        return object.gate;
    else
        return object;  // a source, or nothing that has options
}

// What is the same in every arithmetic: the object and its options.
template <class P>
struct object_of {
    using object = typename held<P>::source;

    static auto& policy_at(void* at) noexcept { return policy_in<P>(*static_cast<object*>(at)); }

    template <std::size_t I>
    static constexpr policy_option option_at() noexcept {
        return {std::get<I>(options_of<P>()).name,
                [](const void* at) {
                    constexpr auto option = std::get<I>(options_of<P>());
                    return written_option(option.name, policy_at(const_cast<void*>(at)).*option.member);
                },
                [](void* at, const text_argument& value) {
                    return read_option(policy_at(at).*std::get<I>(options_of<P>()).member, value);
                }};
    }
    static constexpr auto options = []<std::size_t... I>(std::index_sequence<I...>) {
        return std::array<policy_option, sizeof...(I)>{{option_at<I>()...}};
    }
    (std::make_index_sequence<std::tuple_size_v<decltype(options_of<P>())>>{});

    // The pointer does not know the object's type: all policies share one control block, and the functions of it.
    static std::shared_ptr<void> make() {
        return {static_cast<void*>(new object()), +[](void* made) { delete static_cast<object*>(made); }};
    }
};

// The form of policy P in an arithmetic; Numbers: void if nothing is computed.
template <class Numbers, class P>
struct form_of : object_of<P> {
    using typename object_of<P>::object;
    using object_of<P>::policy_at;

    static constexpr policy_form describe() noexcept {
        policy_form made{held<P>::role, &object_of<P>::make,
                         [](const void* at) { return lower<Numbers>(*static_cast<const object*>(at)); },
                         object_of<P>::options};
        if constexpr (held<P>::role == policy_role::activation) {
            made.policy = [](const void* at) -> const void* { return &static_cast<const object*>(at)->phi; };
            if constexpr (!std::same_as<Numbers, void>) {
                using number = scalar_call_type<Numbers>;
                if constexpr (std::invocable<const P&, const number&>)
                    made.by_number = [] {
                        return reinterpret_cast<any_function>(+[](const void* policy, const number& z) {
                            return number((*static_cast<const P*>(policy))(z));
                        });
                    };
            }
        }
        if constexpr (held<P>::role != policy_role::source && requires(P & p) { p.phi.function; }) {
            made.phi = use_of_phi();
            made.set_phi = [](void* at, const void* policy, any_function by_number) {
                policy_at(at).phi.policy = policy;
                policy_at(at).phi.function = by_number;
            };
        }
        return made;
    }
    static constexpr argument_use use_of_phi() noexcept {
        return detail::use_of<std::remove_cvref_t<decltype(std::declval<P&>().phi)>>();
    }
    static constexpr policy_form form = describe();
};

}  // namespace plan_detail

TIFFIN_END
