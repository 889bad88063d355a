// A block whose kind is known only at run time, for devices, which run types. (For what runs plans: compose().)
#pragma once

#include <tiffin/bind/binder.hpp>
#include <tiffin/bind/source_sizes.hpp>
#include <tiffin/plan/lower.hpp>

#include <concepts>
#include <memory>
#include <tuple>

TIFFIN_BEGIN

namespace detail {

// Where the engine of a backend runs.
template <class Backend>
struct target_of {
    using type = typename Backend::target;
    using preparation = typename type::preparation;
    using rows = typename type::any_rows;
    template <class Block>
    using held = typename type::template held_rows<Block>;
};

}  // namespace detail

// Any block behind one type, for one backend: stands wherever a block can, `mixture<any_router,
// any_block<cuda_from_host<>>>` for one.
// Numerics, errors: those of the block held. Cost: a virtual call a call of the layer.
// Precondition of all but construction and assignment: it holds a block.
template <class Backend>
class any_block {
    using target = detail::target_of<Backend>;

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
    [[nodiscard]] std::unique_ptr<const typename target::rows> make_rows(
        const bound_node& bound, const engine_detail::source_sizes& sizes,
        typename target::preparation& how) const {
        return held_->make_rows(bound, sizes, how);
    }

private:
    struct erased {
        virtual ~erased() = default;
        virtual status bind(detail::binder&, const detail::bind_place&, bound_node&) const = 0;
        [[nodiscard]] virtual std::unique_ptr<const typename target::rows> make_rows(
            const bound_node&, const engine_detail::source_sizes&, typename target::preparation&) const = 0;
    };

    template <class Block>
    struct holder final : erased {
        explicit holder(const Block& b) : block(b) {}
        status bind(detail::binder& from, const detail::bind_place& at, bound_node& to) const override {
            return from.bind(tiffin::lower(block), at, to);
        }
        [[nodiscard]] std::unique_ptr<const typename target::rows> make_rows(
            const bound_node& bound, const engine_detail::source_sizes& sizes,
            typename target::preparation& how) const override {
            return std::make_unique<const typename target::template held<Block>>(block, bound, sizes, how);
        }
        Block block;
    };

    std::shared_ptr<const erased> held_;
};

TIFFIN_END
