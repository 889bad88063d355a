// Finds a block's tensors among those given.
#pragma once

#include <tiffin/bind/bound.hpp>
#include <tiffin/bind/format_checks.hpp>
#include <tiffin/bind/sizes.hpp>
#include <tiffin/grammar/parts.hpp>
#include <tiffin/plan/lower.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

TIFFIN_BEGIN

namespace detail {

// The position of a source while its tensors are bound.
using bind_position = standing<std::string, size_id>;

// One walk over a composition: each source takes its own tensors, then its parts do.
class binder {
public:
    explicit binder(const weights& given, const number_formats& formats = {})
        : given_(given), formats_(formats), used_(given.entries().size(), false) {}

    // Binds the source at position `at`. Widths are size ids until settle().
    status bind(const plan_node& node, const bind_position& at, bound_node& to);
    // The position of a whole block.
    [[nodiscard]] bind_position outermost(bool own_width = false);
    [[nodiscard]] dimension_solver& sizes() noexcept { return sizes_; }
    [[nodiscard]] call_needs& needs() noexcept { return needs_; }
    // Replaces size ids by sizes, once all tensors are bound.
    status settle(bound_node& node);
    // An error if a given tensor is used by no source.
    [[nodiscard]] status check_all_used() const;

private:
    status bind_own(const node_kind& kind, const bind_position& at, std::vector<required_tensor>& wanted,
                    bound_node& to);

    status bind_tensor(const required_tensor& t, tensor_view& to, std::size_t& place);

    status bind_parts(const plan_node& node, const bind_position& at, bound_node& to);
    // The number of repeated parts: set by the source, or one more than the largest index in the tensors' names.
    std::size_t repetitions(const plan_node& node, const bind_position& at) const;

    status bind_routes(const plan_node& node, const bind_position& at,
                       std::span<const required_tensor> wanted, bound_node& to);

    status settle_widths(bound_node& node);

    const weights& given_;
    number_formats formats_;
    std::vector<bool> used_;
    dimension_solver sizes_;
    std::vector<std::pair<size_id, std::string>> given_widths_;
    call_needs needs_;
};

}  // namespace detail

TIFFIN_END

// Definitions; a program that links tiffin::compiled takes them from there.
#if !defined(TIFFIN_COMPILED)
#    include <tiffin/bind/bind_plan.hpp>
#endif
