// A leaf with a router, once a token: its route, and the rank numbers of the experts chosen.
#pragma once

#include <tiffin/backend/fused/place.hpp>
#include <tiffin/backend/fused/routes.hpp>
#include <tiffin/source/tree.hpp>

#include <array>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

TIFFIN_BEGIN

namespace fused_detail {

// State: the choices, then rank numbers a choice.
template <class Machine, std::size_t First, routed_source Leaf>
class routed_step {
    using router_type = std::remove_cvref_t<decltype(std::declval<Leaf>().router)>;
    using tensors = own_tensors_of<Leaf>;
    static constexpr auto specs = specs_of<Leaf>("");

public:
    routed_step(const Leaf& leaf, std::span<const tensor_view> given, const stage_sizes& sizes)
        : route_(leaf.router, given, kinds(), sizes.inputs), outputs_(sizes.outputs) {
        for (std::size_t i = 0; i < specs.size(); ++i)
            if (specs[i].kind == tensor_kind::low_rank_in) in_.emplace_back(given[i], sizes);
        for (std::size_t i = 0; i < specs.size(); ++i)
            if (specs[i].kind == tensor_kind::low_rank_out) pack(given[i]);
    }
    [[nodiscard]] std::size_t choices() const noexcept { return route_.choices(); }
    [[nodiscard]] std::size_t state_numbers() const noexcept { return choices() * (2 + rank()); }
    template <std::size_t N>
    void describe(std::array<slot<Machine>, N>& slots, std::size_t state) noexcept {
        state_ = state;
        for (std::size_t i = 0; i < specs.size(); ++i) {
            slot<Machine>& s = slots[First + i];
            s.state = state;
            s.choices = choices();
            s.rank = rank();
            if (specs[i].kind == tensor_kind::low_rank_out) {
                s.bank = out_.as<float>();
                s.experts = in_[0].experts();
            }
        }
    }
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        std::size_t most = route_.workspace_bytes(tokens, workers);
        for (const auto& in : in_) most = std::max(most, in.workspace_bytes(tokens, choices(), workers));
        return most;
    }
    // `routes`: where to record the choices, or null.
    template <class Slots, class Token>
    void run(const call_arguments& call, const typename Machine::activations& in, const token_states& states,
             std::byte* memory, choice<float>* routes, const Slots&, const Token&) const {
        float* const mine = states.data + state_;
        const auto chosen_of = [mine, stride = states.stride](std::size_t t) {
            return reinterpret_cast<choice<float>*>(mine + t * stride);
        };
        route_.run(call, in, memory, chosen_of);
        for (std::size_t t = 0; routes != nullptr && t < call.tokens; ++t)
            std::copy_n(chosen_of(t), choices(), routes + t * choices());
        const std::size_t skip = 2 * choices();
        for (const auto& bank : in_)
            bank.run(call, in, choices(), memory, chosen_of,
                     [=, stride = states.stride](std::size_t t) { return mine + t * stride + skip; });
    }

private:
    static constexpr auto kind_list = [] {
        std::array<tensor_kind, specs.size()> all{};
        for (std::size_t i = 0; i < specs.size(); ++i) all[i] = specs[i].kind;
        return all;
    }();
    static std::span<const tensor_kind> kinds() noexcept { return kind_list; }
    [[nodiscard]] std::size_t rank() const noexcept { return in_.empty() ? 0 : in_[0].rank(); }

    // B (experts, outputs, rank) as (group of features, expert, r, feature), the last group filled with 0.
    void pack(const tensor_view& b) {
        const std::size_t experts = b.shape[0];
        const std::size_t groups = (outputs_ + bank_group - 1) / bank_group;
        out_ = aligned_buffer(groups * experts * rank() * bank_group * sizeof(float));
        auto* to = out_.as<float>();
        for (std::size_t g = 0; g < groups; ++g)
            for (std::size_t e = 0; e < experts; ++e)
                for (std::size_t r = 0; r < rank(); ++r)
                    for (std::size_t j = 0; j < bank_group; ++j) {
                        const std::size_t feature = g * bank_group + j;
                        *to++ = feature < outputs_
                                    ? load_as_f32(b.data, b.type, (e * outputs_ + feature) * rank() + r)
                                    : 0.0f;
                    }
    }

    router_stage<Machine, router_type> route_;
    std::size_t outputs_;
    std::size_t state_ = 0;
    std::vector<low_rank_stage<Machine>> in_;  // one, or none where the leaf has no bank
    aligned_buffer out_;
};

}  // namespace fused_detail

TIFFIN_END
