// The parts of a source and where they stand: what their tensors are called after, the sizes around them.
#pragma once

#include <tiffin/grammar/slots.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

TIFFIN_BEGIN

// What the names of a part's tensors begin with: "base.", or "experts.3." where there is a number.
struct part_scope {
    static constexpr std::size_t no_number = ~std::size_t{0};

    std::string_view name{};
    std::size_t number = no_number;

    friend constexpr bool operator==(const part_scope&, const part_scope&) = default;
};

inline std::string extended(const std::string& prefix, const part_scope& scope) {
    if (scope.name.empty()) return prefix;
    std::string all = prefix;
    all.append(scope.name).append(".");
    if (scope.number != part_scope::no_number) all.append(std::to_string(scope.number)).append(".");
    return all;
}

// Where a source stands. Prefix: a string, or what names are put together from elsewhere. Size: a number, or
// what stands for one before it is known. `role` is what a leaf without a name of its own is called.
template <class Prefix, class Size>
struct standing {
    Prefix prefix{};
    std::string_view role{};
    Size width{};
    Size input{};
    Size d_model{};
    Size vocab{};

    // How wide the row is that a tensor of this kind reads as it is.
    constexpr Size row_of(tensor_kind kind) const noexcept {
        return kind == tensor_kind::residual_row ? d_model : input;
    }
};

namespace detail {

// A source may name its parts: `static constexpr part_scope scope(std::size_t part)`.
template <class S>
concept scoping_source = requires {
    S::scope(std::size_t{});
};

template <class S>
constexpr part_scope scope_of_part(std::size_t part) noexcept {
    if constexpr (scoping_source<S>)
        return S::scope(part);
    else
        return {};
}

// It may give them roles of their own: `gate_proj` and `up_proj`. Else they play its own; in a chain, none.
template <class S>
constexpr std::string_view role_of_part(std::size_t part, std::string_view role) noexcept {
    if constexpr (requires { S::roles[0]; })
        return S::roles[part];
    else
        return chained_source<S> ? std::string_view() : role;
}

// What the width between two parts of a chain is called: `static constexpr std::string_view inner_width`.
template <class S>
constexpr std::string_view inner_width_of() noexcept {
    if constexpr (requires { std::string_view{S::inner_width}; })
        return S::inner_width;
    else
        return "width";
}

// A leaf's tensors are called after the leaf's own name, else after the role it plays.
template <class S>
constexpr std::string_view owner_name(std::string_view role) noexcept {
    if constexpr (requires { std::string_view{S::name}; })
        return S::name;
    else
        return role;
}

}  // namespace detail

namespace detail {

// Where part I of an S stands, in an S that stands at `at`. `input`: of the part, left as that of the next.
template <composite_source S, std::size_t I, class At, class Size, class Fresh>
constexpr At stand(const At& at, Size& input, const Fresh& fresh) {
    At of = at;
    constexpr part_scope scope = scope_of_part<S>(I);
    of.role = role_of_part<S>(I, at.role);
    of.prefix = extended(at.prefix, scope);
    if constexpr (chained_source<S>) {
        of.input = input;
        // A chain may say that its inner rows are as wide as what it reads: `static constexpr bool keeps_width`.
        if constexpr (I + 1 < part_count<S>) {
            if constexpr (requires { S::keeps_width; })
                of.width = input;
            else
                of.width = fresh(inner_width_of<S>(), at);
        }
        input = of.width;
    } else if constexpr (!scope.name.empty()) {
        of.vocab = fresh("vocab", at);
    }
    if constexpr (has_role<S, residual_role>) of.input = at.d_model;
    return of;
}

}  // namespace detail

// Calls visit(part, where it stands) for the parts of s, which stands at `at`. Parts have the widths of the
// whole; in a chain each reads the row of the one before it, of a width of its own. A part with a scope
// has a vocabulary of its own. `fresh(name, at)` makes a size that nothing is known of yet.
template <composite_source S, class At, class Fresh, class Visit>
constexpr void for_parts(const S& s, const At& at, const Fresh& fresh, const Visit& visit) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
        [[maybe_unused]] auto input = at.input;
        const auto& parts = s.parts();
        (visit(std::get<I>(parts), detail::stand<S, I>(at, input, fresh)), ...);
    }
    (part_indices<S>{});
}

namespace detail {

// A tensor's name in pieces, which can be compared while a program is compiled.
struct name_path {
    std::array<part_scope, 12> scopes{};
    std::size_t depth = 0;
    std::string_view owner{};
    std::string_view leaf{};

    friend constexpr bool operator==(const name_path&, const name_path&) = default;
};
// (Deeper ones than there is room for are compared when they are bound.)
constexpr name_path extended(name_path prefix, const part_scope& scope) noexcept {
    if (!scope.name.empty() && prefix.depth < prefix.scopes.size()) prefix.scopes[prefix.depth++] = scope;
    return prefix;
}

using naming = standing<name_path, int>;

// Calls visit(name) for every stored tensor of the tree below S, but those of parts that are repeated.
template <source_policy S, class Visit>
constexpr void visit_names(const naming& at, const Visit& visit) {
    check_role<S, own_tensors_of<S>>();
    [&]<class... Tensors>(tensor_list<Tensors...>) {
        ((is_stored(Tensors::kind)
              ? visit(name_path{at.prefix.scopes, at.prefix.depth, owner_name<S>(at.role), Tensors::name})
              : void()),
         ...);
    }(own_tensors_of<S>{});
    if constexpr (composite_source<S>) [&]<std::size_t... I>(std::index_sequence<I...>) {
            int input = 0;
            const auto fresh = [](std::string_view, const naming&) { return 0; };
            (visit_names<part_of<S, I>>(stand<S, I>(at, input, fresh), visit), ...);
        }
    (part_indices<S>{});
}

}  // namespace detail

// Whether no two tensors of these sources have the same name, each source in the role given for it.
template <source_policy... Sources, class... Roles>
constexpr bool names_are_distinct(const Roles&... roles) {
    const auto visit_all = [&](const auto& visit) {
        (detail::visit_names<Sources>({.prefix = {}, .role = roles}, visit), ...);
    };
    bool distinct = true;
    std::size_t n = 0;
    visit_all([&](const detail::name_path& one) {
        std::size_t m = 0;
        visit_all(
            [&](const detail::name_path& other) { distinct = distinct && (n == m++ || !(one == other)); });
        ++n;
    });
    return distinct;
}

TIFFIN_END
