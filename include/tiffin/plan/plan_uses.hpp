// The arguments of a text that a plan has placeholders for, and what each must be.
#pragma once

#include <tiffin/grammar/arguments.hpp>
#include <tiffin/plan/lower.hpp>
#include <tiffin/plan/policy_form.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

TIFFIN_BEGIN

namespace plan_detail {

struct plan_uses {
    std::array<argument_use, 10> at{};
    std::size_t count = 0;

    void add(argument_use use) noexcept {
        if (!use) return;
        at[use.position] = use;
        count = std::max(count, use.position + 1);
    }
    void add_name(std::string_view name) noexcept {
        if (name.size() == 2 && (name[0] == '$' || name[0] == '#'))
            add({static_cast<std::size_t>(name[1] - '0'),
                 name[0] == '$' ? policy_role::string : policy_role::tensor});
    }
    [[nodiscard]] argument_use of(std::size_t i) const noexcept {
        if (i < count) return at[i];
        return count > 0 && at[count - 1].is_rest ? at[count - 1] : argument_use{};
    }
    void add_all(const plan_node& node, bool sources) noexcept {
        const detail::node_kind& kind = *node.kind;
        if (sources) add(kind.argument);
        add(kind.policy);
        add(kind.row_gate);
        add_name(kind.name);
        for (const detail::node_tensor& t : kind.tensors) add_name(t.name);
        for (const detail::node_part& part : kind.parts) add_name(part.scope.name);
        for (const plan_node& part : node.parts) add_all(part, sources);
        for (const plan_node& part : node.repeated) add_all(part, sources);
    }
};

// The arguments that a form takes. Placeholders in a source that only holds a policy do not count.
inline plan_uses uses_of(const plan_node& pattern, const policy_form& form) noexcept {
    plan_uses uses;
    uses.add_all(pattern, form.role == policy_role::source);
    uses.add(form.phi);
    return uses;
}

}  // namespace plan_detail

TIFFIN_END
