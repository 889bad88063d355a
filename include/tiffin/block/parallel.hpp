#pragma once

#include <tiffin/grammar/parts.hpp>

#include <cstddef>
#include <tuple>
#include <vector>

TIFFIN_BEGIN

// Blocks in parallel over the same input: y = Block_0(x, t) + Block_1(x, t) + ..., added in this order.
// Shapes: x, y (T, d_model), the same in all; the tensors of branch i are named `branch.<i>.<name>`.
// Errors: branches of different d_model are errc::shape. Cost: the sum of the branches'.
// Source: MeKi beside the FFN, docs/layers.md#parallel.
template <class... Blocks>
struct parallel {
    static_assert(sizeof...(Blocks) > 0 && (block_policy<Blocks> && ...),
                  "tiffin: parallel<...>: an argument is not a block, or there is none");

    using formula_is = sum_of_values<parallel>;

    std::tuple<Blocks...> branches;

    static constexpr part_scope scope(std::size_t part) noexcept { return {"branch", part}; }
    TIFFIN_HD constexpr const std::tuple<Blocks...>& parts() const noexcept { return branches; }
    static constexpr double flops() noexcept { return sizeof...(Blocks) - 1.0; }

    template <class... Values>
    TIFFIN_HD auto operator()(const Values&... values) const {
        return (... + values);
    }
};

// The same with a number of branches set at run time, all of one type.
template <class Block>
struct parallel_of {
    static_assert(block_policy<Block>, "tiffin: parallel_of<Block>: the argument is not a block");
    using source_role = repeated_role;
    using tensors = tensor_list<computed>;

    std::vector<Block> branches;

    static constexpr part_scope repeated_scope(std::size_t part) noexcept { return {"branch", part}; }
    [[nodiscard]] const Block& repeated(std::size_t part) const noexcept { return branches[part]; }
    [[nodiscard]] std::size_t repetitions() const noexcept { return branches.size(); }
    constexpr std::tuple<> parts() const noexcept { return {}; }
    static constexpr double flops() noexcept { return 0; }
};

TIFFIN_END
