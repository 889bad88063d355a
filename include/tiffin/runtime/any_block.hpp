// A block whose kind is known only at run time, inside others or by itself.
#pragma once

#include <tiffin/bind/binder.hpp>
#include <tiffin/bind/source_sizes.hpp>
#include <tiffin/plan/lower.hpp>

#include <concepts>
#include <cstddef>
#include <memory>
#include <tuple>

TIFFIN_BEGIN

namespace detail {

// A backend that runs plans: it names the kind of number that formulas are lowered for.
template <class Backend>
concept runs_plans = requires {
    typename Backend::machine;
};

// Where the engines of other backends run.
template <class Backend>
struct target_of {
    using type = typename Backend::target;
    using preparation = typename type::preparation;
    using rows = typename type::any_rows;
    template <class Block>
    using held = typename type::template held_rows<Block>;
};
struct no_target {
    struct rows {};
    struct preparation {};
};
template <runs_plans Backend>
struct target_of<Backend> : no_target {};

}  // namespace detail

// Any block behind one type, for one backend: stands wherever a block can, `mixture<any_router,
// any_block<simd<>>>` for one.
// Numerics, errors: those of the block held. Cost: a virtual call a call of the layer.
// Precondition of all but construction and assignment: it holds a block.
template <class Backend>
class any_block {
    using target = detail::target_of<Backend>;
    static constexpr bool is_planned = detail::runs_plans<Backend>;

public:
    using source_role = runtime_role;
    using tensors = tensor_list<computed>;

    any_block() = default;
    template <class Block>
        requires(!std::same_as<Block, any_block> && block_policy<Block>)
    explicit any_block(const Block& block) : held_(std::make_shared<const holder<Block>>(block)) {}

    constexpr std::tuple<> parts() const noexcept { return {}; }
    static constexpr double flops() noexcept { return 0; }

    status bind(detail::binder& from, const detail::bind_place& at, bound_node& to) const {
        return held_->bind(from, at, to);
    }
    template <class Numbers>
    [[nodiscard]] plan_node lower() const {
        static_assert(is_planned && std::same_as<Numbers, typename Backend::machine>,
                      "tiffin: any_block<Backend> stands in a block of another backend");
        return held_->lower();
    }
    [[nodiscard]] std::unique_ptr<const typename target::rows> make_rows(
        const bound_node& bound, const engine_detail::source_sizes& sizes,
        typename target::preparation& how) const {
        return held_->make_rows(bound, sizes, how);
    }

private:
    struct erased {
        virtual ~erased() = default;
        virtual status bind(detail::binder&, const detail::bind_place&, bound_node&) const = 0;
        [[nodiscard]] virtual plan_node lower() const = 0;
        [[nodiscard]] virtual std::unique_ptr<const typename target::rows> make_rows(
            const bound_node&, const engine_detail::source_sizes&, typename target::preparation&) const = 0;
    };

    template <class Block>
    struct holder final : erased {
        explicit holder(const Block& b) : block(b) {}
        status bind(detail::binder& from, const detail::bind_place& at, bound_node& to) const override {
            return from.bind(tiffin::lower(block), at, to);
        }
        [[nodiscard]] plan_node lower() const override {
            if constexpr (is_planned)
                return tiffin::lower<typename Backend::machine>(block);
            else
                return {};
        }
        [[nodiscard]] std::unique_ptr<const typename target::rows> make_rows(
            [[maybe_unused]] const bound_node& bound,
            [[maybe_unused]] const engine_detail::source_sizes& sizes,
            [[maybe_unused]] typename target::preparation& how) const override {
            if constexpr (is_planned)
                return nullptr;
            else
                return std::make_unique<const typename target::template held<Block>>(block, bound, sizes,
                                                                                     how);
        }
        Block block;
    };

    std::shared_ptr<const erased> held_;
};

TIFFIN_END
