// The parts of a source: their positions in a composition, their tensor names and the sizes around them.
#pragma once

#include <tiffin/grammar/node_kind.hpp>

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

TIFFIN_BEGIN

inline std::string extended(const std::string& prefix, const part_scope& scope) {
    if (scope.name.empty()) return prefix;
    std::string all = prefix;
    all.append(scope.name).append(".");
    if (scope.number != part_scope::no_number) all.append(std::to_string(scope.number)).append(".");
    return all;
}

namespace detail {

// A tensor's name: "<prefix><owner>.<leaf>" without what is empty.
inline std::string tensor_name(const std::string& prefix, std::string_view owner, std::string_view leaf) {
    std::string name = prefix;
    for (const std::string_view part : {owner, leaf})
        if (!part.empty()) name.append(name.size() > prefix.size() ? "." : "").append(part);
    return name;
}

// The position of a source in a composition. Prefix: a string, or another type that names are built from. Size: an
// integer, or the id of a size that may not be known yet. `role`: the name of a leaf without a name of its own.
template <class Prefix, class Size>
struct standing {
    Prefix prefix{};
    std::string_view role{};
    Size width{};
    Size input{};
    Size d_model{};
    Size vocab{};

    // The width of the row (input or residual) that a tensor of this kind yields unchanged.
    constexpr Size row_of(tensor_kind kind) const noexcept {
        return kind == tensor_kind::residual_row ? d_model : input;
    }
};

// The position of part i of a source of this kind at position `at`. `input`: of this part; set to that of the next one.
// Parts have the widths of the whole; in a chain each reads the row of the one before it, of a width of its own.
// A part with a scope has a vocabulary of its own. `fresh(name, at)` makes a size that is not known yet.
template <class At, class Size, class Fresh>
constexpr At stand(const node_kind& kind, std::size_t i, const At& at, Size& input, const Fresh& fresh) {
    const node_part& part = kind.parts[i];
    At of = at;
    if (part.has_role) of.role = part.role;
    of.prefix = extended(at.prefix, part.scope);
    if (kind.role == node_role::chain) {
        of.input = input;
        if (i + 1 < kind.parts.size()) of.width = kind.keeps_width ? input : fresh(kind.inner_width, at);
        input = of.width;
    } else if (!part.scope.name.empty()) {
        of.vocab = fresh("vocab", at);
    }
    if (kind.role == node_role::residual) of.input = at.d_model;
    return of;
}

// A tensor's name in pieces, which can be compared at compile time.
struct name_path {
    std::array<part_scope, 12> scopes{};
    std::size_t depth = 0;
    std::string_view owner{};
    std::string_view leaf{};

    friend constexpr bool operator==(const name_path&, const name_path&) = default;
};
// (Deeper names are compared when they are bound.)
constexpr name_path extended(name_path prefix, const part_scope& scope) noexcept {
    if (!scope.name.empty() && prefix.depth < prefix.scopes.size()) prefix.scopes[prefix.depth++] = scope;
    return prefix;
}

using naming = standing<name_path, int>;

// Calls visit(name) for every stored tensor of a source of this kind and of its parts, except repeated ones.
template <class Visit>
constexpr void visit_names(const node_kind& kind, const naming& at, const Visit& visit) {
    for (const node_tensor& t : kind.tensors)
        if (is_stored(t.kind))
            visit(name_path{at.prefix.scopes, at.prefix.depth, kind.owner(at.role), t.name});
    int input = 0;
    const auto fresh = [](std::string_view, const naming&) { return 0; };
    for (std::size_t i = 0; i < kind.parts.size(); ++i)
        visit_names(*kind.parts[i].kind, stand(kind, i, at, input, fresh), visit);
}

}  // namespace detail

// Whether no two tensors of these sources have the same name, each source in the role given for it.
template <source_policy... Sources, class... Roles>
constexpr bool names_are_distinct(const Roles&... roles) {
    const auto visit_all = [&](const auto& visit) {
        (detail::visit_names(detail::kind_of<Sources>, {.prefix = {}, .role = roles}, visit), ...);
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
