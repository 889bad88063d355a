// The per-token step of a routed leaf: its route, and A_e x of the chosen experts.
#pragma once

#include <tiffin/cpu/low_rank.hpp>
#include <tiffin/cpu/router.hpp>
#include <tiffin/cpu/stage.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>

TIFFIN_BEGIN

namespace cpu_detail {

template <class Machine>
class route final : public token_step<Machine> {
public:
    route(const plan_node& node, const bound_node& bound, const source_sizes& sizes, const preparation& how,
          formula_tensors<Machine>& tensors)
        : router_(node, bound, sizes.inputs, how), recorded_(bound.recorded) {
        for (std::size_t i = 0; i < bound.tensors.size(); ++i)
            if (node.kind->tensors[i].kind == tensor_kind::low_rank_in)
                bank_.emplace(bound.tensors[i], sizes.inputs, how);
        auto& state = tensors.state_of(node);
        state.choices = router_.choices();
        state.rank = bank_ ? bank_->rank() : 0;
        state.choices_at = state_ = tensors.take_state(state.choices * (2 + state.rank));
    }
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens,
                                              std::size_t workers) const noexcept override {
        const std::size_t most = router_.workspace_bytes(tokens, workers);
        return bank_ ? std::max(most, bank_->workspace_bytes(tokens, router_.choices(), workers)) : most;
    }
    void run(const formula_call<Machine>& of, std::byte* memory) const override {
        const chosen_experts chosen{of.state + state_, of.state_numbers, router_.choices()};
        router_.run(of.call, of.in, memory, chosen);
        if (recorded_) record(of.call, chosen);
        if (bank_) bank_->run(of.call, of.in, memory, chosen);
    }

private:
    router_stage<Machine> router_;
    std::optional<low_rank_stage<Machine>> bank_;
    std::size_t state_ = 0;
    bool recorded_;
};

template <class Machine>
std::unique_ptr<const token_step<Machine>> make_route(const plan_node& node, const bound_node& bound,
                                                      const source_sizes& sizes, const preparation& how,
                                                      formula_tensors<Machine>& tensors) {
    return std::make_unique<const route<Machine>>(node, bound, sizes, how, tensors);
}

}  // namespace cpu_detail

TIFFIN_END
