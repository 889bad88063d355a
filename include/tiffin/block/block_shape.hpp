// The tensors of any block at given sizes: what initialising, costing and testing a block go through.
#pragma once

#include <tiffin/block/block_tensors.hpp>
#include <tiffin/block/delayed.hpp>
#include <tiffin/block/mixture.hpp>
#include <tiffin/block/modulated.hpp>
#include <tiffin/block/on_residual.hpp>
#include <tiffin/block/parallel.hpp>
#include <tiffin/block/source_block.hpp>
#include <tiffin/tensor.hpp>

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

TIFFIN_BEGIN

// The sizes of a block. `inner` are the widths inside a chain (through.hpp), `choices` the width of a hash
// map, `parts` the sizes of the blocks it is made of, in the order of blocks(); null: the same sizes.
struct block_shape {
    std::size_t d_model = 0;
    std::size_t d_ff = 0;
    std::size_t vocab = 0;
    std::size_t experts = 1;
    std::size_t rank = 1;
    std::array<std::size_t, 2> inner{{1, 1}};
    std::size_t choices = 1;
    const block_shape* parts = nullptr;

    [[nodiscard]] constexpr const block_shape& part(std::size_t i) const noexcept {
        return parts ? parts[i] : *this;
    }
};

// A tensor of a block at given sizes.
struct sized_tensor {
    block_tensor tensor;
    tiffin::shape shape;
    double share = 1;         // how often it is used for a token: top_k / experts in a mixture
    std::size_t choices = 1;  // experts a token has, where the tensor is an expert's
    std::size_t width = 0;    // features of the source it belongs to
};

namespace detail {

// How many experts the source that owns each tensor picks for a token.
template <class S>
constexpr auto choices_of(const S& source, std::size_t hashed) {
    std::array<std::size_t, tensor_count<S>()> all{};
    visit_nodes<chains::entered>(source, [&]<std::size_t First>(const auto& node) {
        using node_type = std::remove_cvref_t<decltype(node)>;
        if constexpr (routed_source<node_type>) {
            std::size_t k = hashed;
            if constexpr (learned_router<std::remove_cvref_t<decltype(node.router)>>) k = node.router.top_k;
            for (std::size_t i = 0; i < own_tensors_of<node_type>::size; ++i) all[First + i] = k;
        }
    });
    return all;
}

constexpr std::size_t size_at(const block_tensor& t, std::size_t axis_number, const block_shape& sizes,
                              std::size_t inner) noexcept {
    switch (t.spec.axes[axis_number]) {
        case axis::vocab: return sizes.vocab;
        case axis::experts: return sizes.experts;
        case axis::rank: return sizes.rank;
        case axis::choices: return sizes.choices;
        default: break;
    }
    return t.extents[axis_number] == extent::d_model ? sizes.d_model
           : t.extents[axis_number] == extent::d_ff  ? sizes.d_ff
                                                     : sizes.inner[inner];
}

template <class S, class Prefix, class Visit>
constexpr void visit_source_tensors(const S& source, std::string_view role, extent width, extent input,
                                    const block_shape& sizes, const Prefix& prefix, double share,
                                    const Visit& visit) {
    const auto tensors = in_block(specs_of<S>(role), width, input);
    const auto choices = choices_of(source, sizes.choices);
    // The inner widths of a chain, in the order in which they first appear.
    std::array<extent, 3> seen{};
    std::size_t seen_count = 0;
    const auto inner = [&](extent e) {
        for (std::size_t i = 0; i < seen_count; ++i)
            if (seen[i] == e) return i;
        if (seen_count < seen.size()) seen[seen_count++] = e;
        return seen_count - 1;
    };
    for (std::size_t n = 0; n < tensors.size(); ++n) {
        const block_tensor& t = tensors[n];
        sized_tensor sized{
            t, {}, share, choices[n] ? choices[n] : 1, width == extent::d_model ? sizes.d_model : sizes.d_ff};
        for (std::size_t i = 0; i < t.spec.rank; ++i) {
            const bool is_inner = (t.spec.axes[i] == axis::width || t.spec.axes[i] == axis::input) &&
                                  t.extents[i] >= extent::first_inner;
            const std::size_t at = is_inner ? inner(t.extents[i]) : 0;
            if (t.spec.kind == tensor_kind::route_map && i == 1 && sizes.choices == 1) continue;
            sized.shape.push_back(size_at(t, i, sizes, at < 2 ? at : 1));
        }
        if (is_stored(t.spec.kind)) visit(prefix, sized);
    }
}

}  // namespace detail

// Calls visit(prefix, sized_tensor) for every stored tensor of the block. Prefix is a string, or any type
// that takes `+ "text."` and `+ number` where names are of no interest.
template <block_policy Block, class Prefix, class Visit>
constexpr void visit_tensors(const Block& block, const block_shape& sizes, const Prefix& prefix, double share,
                             const Visit& visit) {
    if constexpr (ffn_block<Block>) {
        detail::visit_source_tensors(block.hidden, Block::hidden_role, extent::d_ff, extent::d_model, sizes,
                                     prefix, share, visit);
        detail::visit_source_tensors(block.output.source, Block::output_role, extent::d_model, extent::d_ff,
                                     sizes, prefix, share, visit);
        for (const block_tensor& t :
             in_block(norm_specs<output_norm<Block>>(), extent::d_model, extent::d_ff))
            visit(prefix, sized_tensor{t, {sizes.d_model}, share, 1, sizes.d_model});
    } else {
        block.visit_parts(sizes, prefix, share,
                          [&](const auto& part, const block_shape& of, const auto& name, double part_share) {
                              using part_type = std::remove_cvref_t<decltype(part)>;
                              if constexpr (block_policy<part_type>)
                                  visit_tensors(part, of, name, part_share, visit);
                              else
                                  detail::visit_source_tensors(part, "", extent::d_model, extent::d_model, of,
                                                               name, part_share, visit);
                          });
    }
}

struct named_tensor {
    std::string name;
    sized_tensor tensor;
};

// The tensors of a block by name, with their shapes: what prepare() will ask for.
//
//     for (const auto& [name, t] : tensors_needed(stem{}, {.d_model = 8, .d_ff = 24, .vocab = 5})) ...
template <block_policy Block>
std::vector<named_tensor> tensors_needed(const Block& block, const block_shape& sizes) {
    std::vector<named_tensor> all;
    visit_tensors(block, sizes, std::string(), 1.0, [&](const std::string& prefix, const sized_tensor& t) {
        all.push_back({prefix + full_name(t.tensor.spec), t});
    });
    return all;
}

TIFFIN_END
