// Which parts of a source are computed before it, and how many values its formula holds: for types and for texts.
#pragma once

#include <tiffin/grammar/node_kind.hpp>
#include <tiffin/grammar/tensor_kinds.hpp>

#include <algorithm>
#include <cstddef>

TIFFIN_BEGIN
namespace detail {

constexpr bool multiplies_input(const node_kind& kind) noexcept;

// Whether the parts of a source are computed before it, for whole rows: those of a chain, of a source with rows of its
// own, and of a norm over a product, whose whole row is needed first.
constexpr bool parts_computed_first(const node_kind& kind) noexcept {
    switch (kind.role) {
        case node_role::formula:
        case node_role::row_dot:
        case node_role::routed: return false;
        case node_role::row_norm: return multiplies_input(*kind.parts[0].kind);
        default: return true;
    }
}
// Whether the formula of a source multiplies its input.
constexpr bool multiplies_input(const node_kind& kind) noexcept {
    return kind.has(tensor_kind::projection) ||
           (!parts_computed_first(kind) &&
            std::any_of(kind.parts.begin(), kind.parts.end(),
                        [](const node_part& part) { return multiplies_input(*part.kind); }));
}
// The most values of parts that the formula of a source holds until the op that reads them has all its operands.
constexpr std::size_t values_held(const node_kind& kind) noexcept {
    std::size_t most = 1, before = kind.tensors.size();
    if (parts_computed_first(kind)) return most;
    for (const node_part& part : kind.parts) {
        // A sum is accumulated term by term.
        most =
            std::max(most, (kind.sums ? std::min<std::size_t>(before, 1) : before) + values_held(*part.kind));
        ++before;
    }
    return most;
}

}  // namespace detail
TIFFIN_END
