#pragma once

#include <tiffin/block/ffn.hpp>

#include <cstddef>
#include <tuple>

TIFFIN_BEGIN

// Blocks side by side over the same input: y = Block_0(x, t) + Block_1(x, t) + ..., added in this order.
// Shapes: x, y (T, d_model), the same in all; the tensors of branch i are called `branch.<i>.<name>`.
// Errors: branches of different d_model are errc::shape. Cost: the sum of the branches'.
// Source: MeKi beside the FFN, SPEC 2.5.
template <class... Blocks>
struct parallel {
    static_assert(sizeof...(Blocks) > 0 && (block_policy<Blocks> && ...),
                  "tiffin: parallel<...>: an argument is not a block, or there is none");

    std::tuple<Blocks...> branches;

    constexpr const std::tuple<Blocks...>& blocks() const noexcept { return branches; }

    template <class Shape, class Prefix, class Visit>
    constexpr void visit_parts(const Shape& sizes, const Prefix& prefix, double share,
                               const Visit& visit) const {
        std::size_t i = 0;
        std::apply(
            [&](const auto&... branch) {
                ((visit(branch, sizes.part(i), detail::numbered(prefix, "branch.", i), share), ++i), ...);
            },
            branches);
    }
};

TIFFIN_END
