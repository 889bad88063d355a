// The step of a routed leaf: its choices, and what its bank makes of x.
#pragma once

#include <tiffin/cuda/rank_stage.hpp>
#include <tiffin/cuda/routing.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

TIFFIN_BEGIN

namespace cuda_detail {

struct stage_sizes {
    std::size_t outputs;
    std::size_t inputs;
};

// State: the choices, then rank numbers a choice.
template <codec Format, std::size_t First, routed_source Leaf>
class routed_step {
    using router_type = std::remove_cvref_t<decltype(std::declval<Leaf>().router)>;
    static constexpr auto specs = specs_of<Leaf>("");
    static constexpr auto kinds = [] {
        std::array<tensor_kind, specs.size()> all{};
        for (std::size_t i = 0; i < specs.size(); ++i) all[i] = specs[i].kind;
        return all;
    }();

public:
    routed_step(const Leaf& leaf, std::span<const tensor_view> given, const stage_sizes& sizes, uploads& up)
        : route_(leaf.router, given, kinds, sizes.inputs, up) {
        for (std::size_t i = 0; i < specs.size(); ++i) {
            if (specs[i].kind == tensor_kind::low_rank_in) in_.emplace_back(given[i], up);
            if (specs[i].kind == tensor_kind::low_rank_out) out_ = up.bank<Format>(given[i]);
        }
    }
    [[nodiscard]] std::size_t choices() const noexcept { return route_.choices(); }
    [[nodiscard]] std::size_t state_numbers() const noexcept { return choices() * (2 + rank()); }
    template <std::size_t N>
    void describe(slot (&slots)[N], std::size_t state) noexcept {
        state_ = state;
        for (std::size_t i = 0; i < specs.size(); ++i) {
            slot& s = slots[First + i];
            s.state = state;
            s.choices = choices();
            s.rank = rank();
            if (specs[i].kind == tensor_kind::low_rank_out) s.numbers = out_;
        }
    }
    [[nodiscard]] std::size_t bytes(std::size_t tokens) const noexcept {
        std::size_t most = route_.bytes(tokens);
        for (const auto& in : in_) most = std::max(most, in.bytes(tokens, choices()));
        return most;
    }
    template <class View>
    void run(const device_call<Format>& call, const activations<Format>& in, const View& view,
             std::byte* memory, choice<float>* routes) const {
        float* const mine = view.state + state_;
        route_.run(call, in, memory, mine, view.state_numbers);
        if (routes != nullptr)
            for_elements(*call.out, call.tokens.most * choices(),
                         record_body{chosen(view.state, view.state_numbers), routes});
        for (const auto& bank : in_)
            bank.run(call, in, chosen(view.state, view.state_numbers), memory, mine + 2 * choices());
    }

private:
    [[nodiscard]] chosen_experts chosen(const float* state, std::size_t stride) const noexcept {
        return {state + state_, stride, choices()};
    }
    [[nodiscard]] std::size_t rank() const noexcept { return in_.empty() ? 0 : in_[0].rank(); }

    route_stage<Format, router_type> route_;
    std::size_t state_ = 0;
    std::vector<rank_stage<Format>> in_;  // one, or none where the leaf has no bank
    const typename Format::storage* out_ = nullptr;
};

}  // namespace cuda_detail

TIFFIN_END
