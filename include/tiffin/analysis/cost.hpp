// The cost of a composition, derived from its tensors and formulas.
#pragma once

#include <tiffin/plan/tensors_needed.hpp>

#include <cstddef>
#include <string_view>

TIFFIN_BEGIN

// Optional tensors (biases) count only where `with_optional` is set. Per token means at decode: one token per call,
// every dense weight read once, of experts only the chosen ones.
struct block_cost {
    double parameters = 0;                   // stored: tables with all their rows, all experts
    double parameters_per_token = 0;         // read per token: one row of each table
    double table_parameters = 0;             // the part of `parameters` that is in tables
    double row_parameters = 0;               // the part of `parameters_per_token` that is table rows
    double matrix_flops_per_token = 0;       // a multiply-add counts as 2
    double elementwise_flops_per_token = 0;  // activations, fusions, sums, norms, mixing of experts

    // Bytes read per token with dense weights and tables of these widths in bits.
    [[nodiscard]] constexpr double bytes_per_token(double weight_bits = 32, double table_bits = 32) const {
        return ((parameters_per_token - row_parameters) * weight_bits + row_parameters * table_bits) / 8;
    }
    // Parameters that a sequence with this many different ids uses in one layer.
    [[nodiscard]] constexpr double sequence_parameters(double distinct_ids) const {
        return parameters_per_token - row_parameters + row_parameters * distinct_ids;
    }
};

namespace detail {

// A prefix of tensor names for walks that do not use the names.
struct no_prefix {};
constexpr no_prefix extended(no_prefix, const part_scope&) noexcept {
    return {};
}

constexpr void add_tensor(const sized_tensor& t, bool with_optional, block_cost& total) {
    if (t.needed == presence::optional && !with_optional) return;
    const auto elements = static_cast<double>(t.shape.elements());
    const bool rows = holds_rows(t.kind);
    const bool bank = t.kind == tensor_kind::low_rank_in || t.kind == tensor_kind::low_rank_out;
    double used = elements * t.share;
    for (std::size_t i = 0; i < t.shape.rank(); ++i)
        if (t.axes[i] == axis::vocab) used /= static_cast<double>(t.shape[i]);
    // Of a source's own experts, or rows, only the chosen are read.
    if (bank || (rows && t.kind != tensor_kind::table))
        used *= static_cast<double>(t.choices) / static_cast<double>(t.shape[0]);
    total.parameters += elements;
    total.parameters_per_token += used;
    total.table_parameters += rows ? elements : 0;
    total.row_parameters += rows ? used : 0;
    if (is_weight(t.kind) || t.kind == tensor_kind::row_keys || bank)
        total.matrix_flops_per_token += 2 * used;
    if (t.kind == tensor_kind::pool || t.kind == tensor_kind::chosen_rows)
        total.elementwise_flops_per_token += 2 * used;
}

// FLOPs that a block spends per token outside its matrix products: each formula at every feature of its row;
// in a mixture, the chosen experts' rows times their weights, added up.
constexpr double elementwise_cost(const plan_node& block, const block_shape& sizes) {
    double total = 0;
    sized_walk<no_prefix> walk;
    walk.visit_sources(block, walk.whole(block, sizes, {}), [&](const plan_node& source, const auto& at) {
        double flops = source.flops;
        if (source.kind->role == node_role::mixture)
            flops += 2 * static_cast<double>(choices_of(source, *at.sizes));
        total += flops * static_cast<double>(at.width) * at.share;
    });
    return total;
}

}  // namespace detail

// The cost of a block of given sizes, chains (through.hpp) with their inner widths included.
// Source: docs/layers.md#cost.
//
//     cost<stem>({.d_model = 2048, .d_ff = 8192, .vocab = 128256}).matrix_flops_per_token
constexpr block_cost cost(const block_shape& shape, const plan_node& block, bool with_optional = false) {
    block_cost total;
    visit_tensors(block, shape, detail::no_prefix{},
                  [&](const auto&, std::string_view, std::string_view, const sized_tensor& t) {
                      detail::add_tensor(t, with_optional, total);
                  });
    total.elementwise_flops_per_token += detail::elementwise_cost(block, shape);
    return total;
}
template <block_policy Block>
constexpr block_cost cost(const block_shape& shape, const Block& block = {}, bool with_optional = false) {
    return cost(shape, lower(block), with_optional);
}

// Matrix FLOPs per token of an attention layer with equal heads over a context of `context` tokens:
// four projections (d_model, d_model), and 2 d_model multiply-adds per position of the context.
constexpr double attention_flops_per_token(std::size_t d_model, std::size_t context) {
    const auto d = static_cast<double>(d_model);
    return 2 * 4 * d * d + 2 * 2 * d * static_cast<double>(context);
}

// The share of a whole decoder layer's FLOPs that block B saves against block Dense. For STEM
// against SwiGLU this is f / (4d + 2L + 3f). Source: STEM, docs/layers.md#cost.
template <block_policy B, block_policy Dense>
constexpr double decoder_layer_saving(const block_shape& shape, std::size_t context) {
    const double dense = cost<Dense>(shape).matrix_flops_per_token;
    const double sparse = cost<B>(shape).matrix_flops_per_token;
    return (dense - sparse) / (attention_flops_per_token(shape.d_model, context) + dense);
}

TIFFIN_END
