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

// Where a source stands while its tensors are bound.
using bind_place = standing<std::string, size_id>;

// One walk over a composition: each source takes its own tensors, then its parts do.
class binder {
public:
    explicit binder(const weights& given, const number_formats& formats = {})
        : given_(given), formats_(formats), used_(given.entries().size(), false) {}

    // Binds what stands at `at`. Widths are numbers of sizes until settle().
    status bind(const plan_node& node, const bind_place& at, bound_node& to);
    // The place of a whole block.
    [[nodiscard]] bind_place outermost(bool own_width = false);
    [[nodiscard]] dimension_solver& sizes() noexcept { return sizes_; }
    [[nodiscard]] call_needs& needs() noexcept { return needs_; }
    // Puts sizes where their numbers were, once all tensors are bound.
    status settle(bound_node& node);
    // An error where a tensor was given that nothing has taken.
    [[nodiscard]] status check_all_used() const;

private:
    status bind_own(const node_kind& kind, const bind_place& at, std::vector<wanted_tensor>& wanted,
                    bound_node& to);

    status bind_tensor(const wanted_tensor& t, tensor_view& to, std::size_t& place);

    status bind_parts(const plan_node& node, const bind_place& at, bound_node& to);
    // The parts that there are at run time: as many as the source says, else one more than the largest number
    // among the tensors' names.
    std::size_t repetitions(const plan_node& node, const bind_place& at) const;

    status bind_routes(const plan_node& node, const bind_place& at, std::span<const wanted_tensor> wanted,
                       bound_node& to);

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

// What it does; where the library has it, others link it.
#if !defined(TIFFIN_COMPILED)
#    include <tiffin/bind/bind_plan.hpp>
#endif
