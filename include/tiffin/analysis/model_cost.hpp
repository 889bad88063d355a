// The cost of a whole model: attention, blocks, embedding and head.
#pragma once

#include <tiffin/analysis/cost.hpp>

#include <cstddef>
#include <vector>

TIFFIN_BEGIN

// Attention of a decoder layer: projections of x to `heads` queries and `kv_heads` keys and values of `head_width` numbers
// each, and back from the queries' sums.
struct attention_shape {
    std::size_t heads = 0;
    std::size_t kv_heads = 0;
    std::size_t head_width = 0;
    bool head_norms = false;  // of queries and keys, head_width factors each
};

// `count` layers with equal blocks.
struct equal_layers {
    std::size_t count = 0;
    block_cost block;
};

// A decoder: the embedding, layers of norm, attention, norm and block, a norm, and the head.
struct model_shape {
    std::size_t d_model = 0;
    std::size_t vocab = 0;
    attention_shape attention;
    bool tied = true;       // the head is the token embedding
    std::size_t norms = 2;  // per layer, d_model factors each
    std::vector<equal_layers> layers;
};

// Parameters and FLOPs of a model. Sums that published tables print are functions.
struct model_cost {
    double embedding = 0;         // stored parameters
    double head = 0;              // 0: the embedding is the head
    double attention = 0;         // of all layers
    double norms = 0;             // of all layers, and the last
    double blocks = 0;            // of all layers, without their tables
    double tables = 0;            // of all layers
    double blocks_per_token = 0;  // of all layers, read per token, without table rows
    double rows_per_token = 0;    // of all layers: numbers of table rows read per token

    double head_flops = 0;      // per token
    double layer_flops = 0;     // per token, of all layers, without what attention does per position
    double position_flops = 0;  // per token and position that it attends to
    double cache_numbers = 0;   // keys and values of a position, in all layers
    double d_model = 0;         // numbers of an embedding row

    // Parameters stored.
    [[nodiscard]] double stored() const noexcept {
        return embedding + head + attention + norms + blocks + tables;
    }
    // Parameters without table rows, the embedding and the head whole: "active" in STEM's tables.
    [[nodiscard]] double active() const noexcept {
        return embedding + head + attention + norms + blocks_per_token;
    }
    // Parameters that lie in memory where tables are on a disk: "RAM" in MeKi's tables.
    [[nodiscard]] double without_tables() const noexcept { return stored() - tables; }

    // FLOPs of one token at a context of so many positions, itself among them.
    [[nodiscard]] double decode_flops(double context) const noexcept {
        return head_flops + layer_flops + position_flops * context;
    }
    // FLOPs of a sequence of so many tokens, each of which attends to those before it and to itself.
    [[nodiscard]] double prefill_flops(double tokens) const noexcept {
        return tokens * (head_flops + layer_flops) + position_flops * tokens * (tokens + 1) / 2;
    }
    // FLOPs of a step on such a sequence: the backward pass has twice those of the forward pass.
    [[nodiscard]] double training_flops(double tokens) const noexcept { return 3 * prefill_flops(tokens); }

    // Keys and values of so many positions, in numbers of this width.
    [[nodiscard]] double cache_bytes(double context, double bits = 16) const noexcept {
        return cache_numbers * context * bits / 8;
    }
    // Bytes that one token at this context reads: every weight once, of tables its rows, its row of the embedding, and the
    // keys and values.
    [[nodiscard]] double decode_bytes(double context, double weight_bits = 16, double table_bits = 16,
                                      double cache_bits = 16) const noexcept {
        const double weights = attention + norms + blocks_per_token + (head > 0 ? head : embedding) + d_model;
        return (weights * weight_bits + rows_per_token * table_bits) / 8 + cache_bytes(context, cache_bits);
    }
    // Numbers of table rows that a call with so many different ids fetches from where tables lie. Training sends as many
    // gradients back.
    [[nodiscard]] double fetched_numbers(double distinct_ids) const noexcept {
        return rows_per_token * distinct_ids;
    }
};

// The cost of a model. One multiply-add is 2 FLOPs. Source: docs/layers.md#cost-of-a-model.
//
//     const block_shape sizes{.d_model = 2048, .d_ff = 8192, .vocab = 128256};
//     cost({.d_model = 2048, .vocab = 128256, .attention = {32, 8, 64},
//           .layers = {{11, cost<swiglu>(sizes)}, {5, cost<stem>(sizes)}}}).active()
inline model_cost cost(const model_shape& shape) {
    const auto number = [](std::size_t n) { return static_cast<double>(n); };
    const double d = number(shape.d_model), width = number(shape.attention.head_width);
    const double queries = number(shape.attention.heads) * width;
    const double keys = number(shape.attention.kv_heads) * width;
    model_cost total;
    total.d_model = d;
    total.embedding = number(shape.vocab) * d;
    total.head = shape.tied ? 0 : total.embedding;
    total.head_flops = 2 * total.embedding;
    total.norms = d;
    for (const equal_layers& group : shape.layers) {
        const double count = number(group.count);
        const block_cost& block = group.block;
        const double projections = 2 * d * queries + 2 * d * keys;
        total.attention += count * (projections + (shape.attention.head_norms ? 2 * width : 0));
        total.norms += count * number(shape.norms) * d;
        total.blocks += count * (block.parameters - block.table_parameters);
        total.tables += count * block.table_parameters;
        total.blocks_per_token += count * (block.parameters_per_token - block.row_parameters);
        total.rows_per_token += count * block.row_parameters;
        total.layer_flops +=
            count * (2 * projections + block.matrix_flops_per_token + block.elementwise_flops_per_token);
        total.position_flops += count * 4 * queries;  // products with keys, and sums of values
        total.cache_numbers += count * 2 * keys;
    }
    return total;
}

// What a model scores per FLOP of training, over what a baseline does. Source: STEM, "training ROI".
constexpr double return_on_training(double score, double flops, double baseline_score,
                                    double baseline_flops) {
    return score / flops / (baseline_score / baseline_flops);
}

TIFFIN_END
