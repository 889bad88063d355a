// What a composition costs, derived from its tensors and formulas.
#pragma once

#include <tiffin/block/block_tensors.hpp>

#include <cstddef>
#include <type_traits>

TIFFIN_BEGIN

// The sizes a cost depends on.
struct block_shape {
    std::size_t d_model = 0;
    std::size_t d_ff = 0;
    std::size_t vocab = 0;
};

// Optional tensors (biases) count only where `with_optional` is set. Per token means at decode: one
// token a call, every dense weight read once.
struct block_cost {
    double parameters = 0;                   // stored: tables with all their rows
    double parameters_per_token = 0;         // read for a token: of a table one row
    double table_parameters = 0;             // the part of `parameters` that lies in tables
    double row_parameters = 0;               // the part of `parameters_per_token` that is table rows
    double matrix_flops_per_token = 0;       // a multiply-add counts as 2
    double elementwise_flops_per_token = 0;  // activations, fusions, sums, norms

    // Bytes read for a token with dense weights and tables of these widths in bits.
    [[nodiscard]] constexpr double bytes_per_token(double weight_bits = 32, double table_bits = 32) const {
        return ((parameters_per_token - row_parameters) * weight_bits + row_parameters * table_bits) / 8;
    }
    // Parameters that a sequence with this many different ids uses in one layer.
    [[nodiscard]] constexpr double sequence_parameters(double distinct_ids) const {
        return parameters_per_token - row_parameters + row_parameters * distinct_ids;
    }
};

// The cost of a block of given sizes. Source: SPEC section 4.
//
//     cost<stem>({.d_model = 2048, .d_ff = 8192, .vocab = 128256}).matrix_flops_per_token
template <block_policy Block>
constexpr block_cost cost(const block_shape& shape, const Block& block = {}, bool with_optional = false) {
    const auto size = [&](extent e) {
        return static_cast<double>(e == extent::d_model ? shape.d_model
                                   : e == extent::d_ff  ? shape.d_ff
                                                        : shape.vocab);
    };
    block_cost total;
    for (const block_tensor& t : tensors_of<Block>()) {
        if (t.spec.needed == presence::optional && !with_optional) continue;
        double elements = 1, row = t.spec.kind == tensor_kind::table ? 1 : 0;
        for (std::size_t i = 0; i < t.spec.rank; ++i) {
            elements *= size(t.extents[i]);
            if (t.extents[i] != extent::vocab) row *= size(t.extents[i]);
        }
        total.parameters += elements;
        total.parameters_per_token += t.spec.kind == tensor_kind::table ? row : elements;
        total.table_parameters += t.spec.kind == tensor_kind::table ? elements : 0;
        total.row_parameters += row;
        if (t.spec.kind == tensor_kind::projection) total.matrix_flops_per_token += 2 * elements;
    }
    total.elementwise_flops_per_token =
        elementwise_flops(block.hidden) * size(extent::d_ff) +
        (elementwise_flops(block.output.source) + block.output.norm.flops()) * size(extent::d_model);
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
