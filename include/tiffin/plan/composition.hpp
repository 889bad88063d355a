// A composition that was made from a text: a block like any other.
#pragma once

#include <tiffin/grammar/concepts.hpp>
#include <tiffin/plan/lower.hpp>

#include <concepts>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

TIFFIN_BEGIN

namespace detail {

// A backend that runs plans: it names the arithmetic (kind of number) that formulas are lowered for.
template <class Backend>
concept runs_plans = requires {
    typename Backend::machine;
};

}  // namespace detail

// The result of compose(), for backends whose arithmetic is Numbers, `simd<>::machine`; void: nothing is computed.
// Copies share it.
template <class Numbers>
class composition {
public:
    using source_role = runtime_role;
    using tensors = tensor_list<computed>;

    // `memory`: owns what the plan points to.
    composition(plan_node plan, std::string text, std::shared_ptr<const void> memory)
        : held_(std::make_shared<const held>(held{std::move(memory), std::move(plan), std::move(text)})) {}

    // The text with all arguments and options, aliases expanded; composing it again gives the same plan.
    [[nodiscard]] const std::string& text() const noexcept { return held_->text; }
    [[nodiscard]] const plan_node& plan() const noexcept { return held_->plan; }

    constexpr std::tuple<> parts() const noexcept { return {}; }
    static constexpr double flops() noexcept { return 0; }

private:
    struct held {
        std::shared_ptr<const void> memory;
        plan_node plan;
        std::string text;
    };
    std::shared_ptr<const held> held_;
};

// Its plan, unchanged.
template <class Numbers = void, class Of>
plan_node lower(const composition<Of>& block) {
    static_assert(
        std::same_as<Numbers, void> || std::same_as<Numbers, Of>,
        "tiffin: a composition of a text runs on the backend whose kind of number it was made for: write "
        "compose<simd<>::machine>(text, policies), for a layer that learns "
        "compose<training<simd<>>::machine>");
    return block.plan();
}

TIFFIN_END
