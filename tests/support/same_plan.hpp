// Two plans beside each other: that of a type and that of a text.
#pragma once

#include <tiffin/plan/lower.hpp>

#include <algorithm>
#include <cstddef>
#include <string>

namespace tiffin_test {

inline bool same_tensor(const tiffin::detail::node_tensor& a, const tiffin::detail::node_tensor& b) {
    return a.name == b.name && a.kind == b.kind && a.needed == b.needed && a.axes == b.axes &&
           a.rank == b.rank && a.neutral == b.neutral;
}
inline bool same_part(const tiffin::detail::node_part& a, const tiffin::detail::node_part& b) {
    return a.scope == b.scope && a.role == b.role && a.has_role == b.has_role;
}

// Where two plans differ and in what; empty where they do not.
inline std::string difference(const tiffin::plan_node& a, const tiffin::plan_node& b,
                              const std::string& at = "block") {
    const tiffin::detail::node_kind &k = *a.kind, &l = *b.kind;
    if (k.role != l.role) return at + ": role";
    if (k.router != l.router || a.top_k != b.top_k) return at + ": router";
    if (k.has_name != l.has_name || k.name != l.name) return at + ": name";
    if (k.own_width != l.own_width || k.keeps_width != l.keeps_width || k.inner_width != l.inner_width)
        return at + ": widths";
    if (k.sums != l.sums || a.flops != b.flops) return at + ": formula";
    if (k.recorded_first != l.recorded_first || a.delay != b.delay) return at + ": routes or delay";
    if (!std::equal(k.tensors.begin(), k.tensors.end(), l.tensors.begin(), l.tensors.end(), same_tensor))
        return at + ": tensors";
    if (!std::equal(k.parts.begin(), k.parts.end(), l.parts.begin(), l.parts.end(), same_part))
        return at + ": places of its parts";
    if (k.repeated_name != l.repeated_name || a.repetitions != b.repetitions) return at + ": repeated parts";
    if (a.parts.size() != b.parts.size() || a.repeated.size() != b.repeated.size())
        return at + ": number of parts";
    if ((k.check == nullptr) != (l.check == nullptr)) return at + ": check";
    for (std::size_t i = 0; i < a.parts.size(); ++i) {
        if (k.parts[i].kind != a.parts[i].kind) return at + ": kind of part " + std::to_string(i);
        if (const std::string d = difference(a.parts[i], b.parts[i], at + "." + std::to_string(i));
            !d.empty())
            return d;
    }
    for (std::size_t i = 0; i < a.repeated.size(); ++i)
        if (const std::string d = difference(a.repeated[i], b.repeated[i], at + ".repeated"); !d.empty())
            return d;
    return {};
}

}  // namespace tiffin_test
