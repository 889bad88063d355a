// What a composition costs, derived from its tensors and formulas.
#pragma once

#include <tiffin/block/block_shape.hpp>

#include <cstddef>
#include <tuple>
#include <type_traits>

TIFFIN_BEGIN

// Optional tensors (biases) count only where `with_optional` is set. Per token means at decode: one
// token a call, every dense weight read once, of experts those that are chosen.
struct block_cost {
    double parameters = 0;                   // stored: tables with all their rows, all experts
    double parameters_per_token = 0;         // read for a token: of a table one row
    double table_parameters = 0;             // the part of `parameters` that lies in tables
    double row_parameters = 0;               // the part of `parameters_per_token` that is table rows
    double matrix_flops_per_token = 0;       // a multiply-add counts as 2
    double elementwise_flops_per_token = 0;  // activations, fusions, sums, norms, mixing of experts

    // Bytes read for a token with dense weights and tables of these widths in bits.
    [[nodiscard]] constexpr double bytes_per_token(double weight_bits = 32, double table_bits = 32) const {
        return ((parameters_per_token - row_parameters) * weight_bits + row_parameters * table_bits) / 8;
    }
    // Parameters that a sequence with this many different ids uses in one layer.
    [[nodiscard]] constexpr double sequence_parameters(double distinct_ids) const {
        return parameters_per_token - row_parameters + row_parameters * distinct_ids;
    }
};

namespace detail {

// A prefix of tensor names where the names are of no interest.
struct no_prefix {
    constexpr no_prefix operator+(const char*) const noexcept { return {}; }
};

constexpr void add_tensor(const sized_tensor& t, bool with_optional, block_cost& total) {
    const tensor_spec& spec = t.tensor.spec;
    if (spec.needed == presence::optional && !with_optional) return;
    const auto elements = static_cast<double>(t.shape.elements());
    const bool rows = spec.kind == tensor_kind::table || spec.kind == tensor_kind::pool;
    double used = elements * t.share;
    for (std::size_t i = 0; i < spec.rank && i < t.shape.rank(); ++i)
        if (spec.axes[i] == axis::vocab) used /= static_cast<double>(t.shape[i]);
    // Of a source's own experts only the chosen are read.
    if (spec.kind == tensor_kind::pool || spec.kind == tensor_kind::low_rank_in ||
        spec.kind == tensor_kind::low_rank_out)
        used *= static_cast<double>(t.choices) / static_cast<double>(t.shape[0]);
    total.parameters += elements;
    total.parameters_per_token += used;
    total.table_parameters += rows ? elements : 0;
    total.row_parameters += rows ? used : 0;
    if (spec.kind == tensor_kind::projection || spec.kind == tensor_kind::logits ||
        spec.kind == tensor_kind::low_rank_in || spec.kind == tensor_kind::low_rank_out)
        total.matrix_flops_per_token += 2 * used;
    if (spec.kind == tensor_kind::pool) total.elementwise_flops_per_token += 2 * used;
}

// FLOPs that a source spends on one row outside its matrix products, the rows of its chains included.
// `inner`: how many inner widths of the block's sizes are taken.
template <source_policy S>
constexpr double row_cost(const S& source, std::size_t width, const block_shape& sizes, std::size_t& inner) {
    double total = elementwise_flops(source) * static_cast<double>(width);
    visit_nodes<chains::left_out>(source, [&]<std::size_t First>(const auto& node) {
        using node_type = std::remove_cvref_t<decltype(node)>;
        if constexpr (chained_source<node_type>) {
            [&]<std::size_t... I>(std::index_sequence<I...>) {
                const auto one = [&](const auto& part, bool last) {
                    const std::size_t own = last ? width : sizes.inner[inner < 2 ? inner : 1];
                    inner += last ? 0 : 1;
                    total += row_cost(part, own, sizes, inner);
                };
                (one(std::get<I>(node.parts()), I + 1 == sizeof...(I)), ...);
            }
            (part_indices<node_type>{});
        }
    });
    return total;
}

template <block_policy Block>
constexpr double elementwise_cost(const Block& block, const block_shape& sizes, double share) {
    const auto d_model = static_cast<double>(sizes.d_model);
    double total = 0;
    if constexpr (ffn_block<Block>) {
        std::size_t inner = 0, output_inner = 0;
        total = row_cost(block.hidden, sizes.d_ff, sizes, inner) +
                row_cost(block.output.source, sizes.d_model, sizes, output_inner) +
                block.output.norm.flops() * d_model;
    } else {
        std::size_t parts = 0;
        block.visit_parts(sizes, no_prefix{}, share,
                          [&](const auto& part, const block_shape& of, const no_prefix&, double part_share) {
                              using part_type = std::remove_cvref_t<decltype(part)>;
                              if constexpr (block_policy<part_type>) {
                                  total += elementwise_cost(part, of, part_share) / share;
                                  if (parts++ > 0)
                                      total += d_model * part_share / share;  // added to the ones before
                              } else {
                                  std::size_t inner = 0;
                                  total += row_cost(part, sizes.d_model, sizes, inner);
                              }
                          });
        if constexpr (requires { block.fusion.flops(); }) total += block.fusion.flops() * d_model;
    }
    return total * share;
}

}  // namespace detail

// The cost of a block of given sizes, chains (through.hpp) with their inner widths included.
// Source: SPEC section 4.
//
//     cost<stem>({.d_model = 2048, .d_ff = 8192, .vocab = 128256}).matrix_flops_per_token
template <block_policy Block>
constexpr block_cost cost(const block_shape& shape, const Block& block = {}, bool with_optional = false) {
    block_cost total;
    visit_tensors(block, shape, detail::no_prefix{}, 1.0,
                  [&](const detail::no_prefix&, const sized_tensor& t) {
                      detail::add_tensor(t, with_optional, total);
                  });
    total.elementwise_flops_per_token += detail::elementwise_cost(block, shape, 1.0);
    return total;
}

// Matrix FLOPs a token of an attention layer with equal heads over a context of `context` tokens:
// four projections (d_model, d_model), and 2 d_model multiply-adds a position of the context.
constexpr double attention_flops_per_token(std::size_t d_model, std::size_t context) {
    const auto d = static_cast<double>(d_model);
    return 2 * 4 * d * d + 2 * 2 * d * static_cast<double>(context);
}

// The share of a whole decoder layer's FLOPs that block B saves against block Dense. For STEM
// against SwiGLU this is f / (4d + 2L + 3f). Source: STEM, SPEC section 4.
template <block_policy B, block_policy Dense>
constexpr double decoder_layer_saving(const block_shape& shape, std::size_t context) {
    const double dense = cost<Dense>(shape).matrix_flops_per_token;
    const double sparse = cost<B>(shape).matrix_flops_per_token;
    return (dense - sparse) / (attention_flops_per_token(shape.d_model, context) + dense);
}

TIFFIN_END
