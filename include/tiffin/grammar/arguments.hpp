// Placeholders in a composition for the arguments of a text: gate<activation_argument<0>, argument<1>> is the pattern
// of "gate(silu, dense)". Argument K is the K-th of the text, from 0. "$K" is a string argument, the name of a tensor.
#pragma once

#include <tiffin/config.hpp>
#include <tiffin/fixed_string.hpp>
#include <tiffin/grammar/tensor_kinds.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

TIFFIN_BEGIN

// The role of a policy that a text names.
enum class policy_role : std::uint8_t {
    source,
    gate,  // a source that is a gate
    activation,
    fusion,
    norm,
    router,
    row_gate,  // of gated_rows
    dot_gate,  // of dot_gated
    tensor,    // pool, chosen_rows: the tensor that a source declares
    none,      // no source: the word `none`
    string
};
// With their article, for error messages.
inline constexpr std::array<std::string_view, 11> policy_role_names{
    {"a source", "a gate", "an activation", "a fusion", "a norm", "a router", "a gate of rows",
     "a gate of a dot product", "a tensor", "none", "a string"}};

// The position of an argument in a text, and what it must be.
struct argument_use {
    static constexpr std::size_t none = ~std::size_t{0};

    std::size_t position = none;
    policy_role role = policy_role::source;
    bool weighted = false;  // of a norm: whether it has a weight
    bool is_rest = false;   // also of all arguments after it

    [[nodiscard]] constexpr explicit operator bool() const noexcept { return position != none; }
};

namespace detail {

template <std::size_t K>
struct source_argument {
    using tensors = tensor_list<>;

    template <class Place>
    constexpr double operator()(const Place&) const noexcept {
        return 0;
    }
};

// "$0", the name for argument 0.
template <char Sign, std::size_t K>
struct argument_text {
    static_assert(K < 10, "tiffin: a policy has at most ten arguments");
    static constexpr char characters[3] = {Sign, static_cast<char>('0' + K), '\0'};
};

}  // namespace detail

// A source.
template <std::size_t K>
struct argument : detail::source_argument<K> {
    static constexpr argument_use use{K, policy_role::source};
};
// One source or more: the last part of a sum or a chain.
template <std::size_t K>
struct arguments : detail::source_argument<K> {
    static constexpr argument_use use{K, policy_role::source, false, true};
};
template <std::size_t K>
struct gate_argument : detail::source_argument<K> {
    static constexpr argument_use use{K, policy_role::gate};
};

// An activation. The policy that holds it calls it value by value, which calls the activation that the text names.
template <std::size_t K>
struct activation_argument {
    static constexpr argument_use use{K, policy_role::activation};
    const void* policy = nullptr;
    void (*function)() = nullptr;  // S (*)(const void* policy, const S&), S the type that routers choose in

    template <class S>
    S operator()(const S& z) const {
        return reinterpret_cast<S (*)(const void*, const S&)>(function)(policy, z);
    }
    static constexpr double flops() noexcept { return 0; }
};

template <std::size_t K>
struct fusion_argument {
    static constexpr argument_use use{K, policy_role::fusion};

    template <class S>
    constexpr S operator()(const S& g, const S&) const {
        return g;
    }
    static constexpr double flops() noexcept { return 0; }
};

// A norm with a weight or without: the source that holds it has one tensor more or less.
template <std::size_t K, bool Weighted>
struct norm_argument {
    static constexpr argument_use use{K, policy_role::norm, Weighted};
    static constexpr bool weighted = Weighted;

    template <class S>
    constexpr S scale(const S& sum, const S&) const {
        return sum;
    }
    template <class S>
    constexpr S operator()(const S& x, const S&, const S&) const {
        return x;
    }
    static constexpr double flops() noexcept { return 0; }
};

// Placeholder for the tensors of a router.
struct router_tensors : detail::declared_tensor<"$router", tensor_kind::logits, presence::required> {};

template <std::size_t K>
struct router_argument {
    static constexpr argument_use use{K, policy_role::router};
    using tensors = tensor_list<router_tensors>;
};
// A router of table rows.
template <std::size_t K>
struct row_router_argument : router_argument<K> {
    static constexpr bool chooses_rows = true;
};

template <std::size_t K>
struct row_gate_argument {
    static constexpr argument_use use{K, policy_role::row_gate};

    template <class S>
    constexpr void operator()(const S*, S*, std::size_t) const noexcept {}
};

template <std::size_t K>
struct dot_gate_argument {
    static constexpr argument_use use{K, policy_role::dot_gate};

    template <class S>
    constexpr S operator()(const S& dot, const S&) const {
        return dot;
    }
};

// The tensor that a source declares.
template <std::size_t K>
struct tensor_argument : detail::declared_tensor<detail::argument_text<'#', K>::characters, tensor_kind::pool,
                                                 presence::required> {};

namespace detail {

// The argument that P is a placeholder for, if it is one.
template <class P>
constexpr argument_use use_of() noexcept {
    if constexpr (requires { P::use.position; })
        return P::use;
    else
        return {};
}
template <class P>
inline constexpr bool is_argument = static_cast<bool>(use_of<P>());

}  // namespace detail

TIFFIN_END
