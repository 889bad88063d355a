// Which nodes of a ggml graph are a feed-forward block.
#pragma once

#include "nodes.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "ggml-impl.h"
#include "ggml.h"

namespace tiffin_in_ggml {

// The nodes of one block within a graph, from node `first` on, `count` of them.
struct ffn_nodes {
    int first = 0, count = 0;
    const ggml_tensor* x = nullptr;
    const ggml_tensor* residual = nullptr;  // what is added to the block's result, or null
    const ggml_tensor* experts = nullptr;   // (chosen per token, tokens) of i32, or null
    const ggml_tensor* routing = nullptr;   // the weights (1, chosen, tokens) of a sum of experts, or null
    ggml_tensor* y = nullptr;
    std::array<const ggml_tensor*, 3> weights{};  // gate (null where there is none), up, down
    std::array<const ggml_tensor*, 3> biases{};
    std::string_view activation;
};

// Reads the block that begins at a node of a graph. Its nodes follow one another, and nothing outside reads what
// lies between x and y; else the nodes are no block.
class ffn_reader {
public:
    ffn_reader(const ggml_cgraph* graph, int first) : graph_(graph), first_(first) {}

    std::optional<ffn_nodes> read() {
        for (int i = first_; i < std::min(first_ + most, graph_->n_nodes); ++i) {
            ggml_tensor* const node = graph_->nodes[i];
            if (!is_projection(node) && !is_hidden(node)) return std::nullopt;
            if (!ends_here(node, i)) continue;
            return read_branch(node, i) || read_mixture(node, i) || read_block(node, i)
                       ? std::optional(found_)
                       : std::nullopt;
        }
        return std::nullopt;
    }

private:
    static constexpr int most = 8;  // three products with biases, a GLU, the residual
    static constexpr int most_chosen = 32;

    static const ggml_tensor* product_of(const ggml_tensor* projection) {
        return projection->op == GGML_OP_ADD ? projection->src[0] : projection;
    }
    // The down projection, and its bias if that is the next node.
    bool ends_here(const ggml_tensor* node, int i) const {
        if (!is_projection(node) || part_of(product_of(node)->src[0], ".weight") != part::down) return false;
        const ggml_tensor* const next = i + 1 < graph_->n_nodes ? graph_->nodes[i + 1] : nullptr;
        return next == nullptr || !is_projection(next) || next->op != GGML_OP_ADD || next->src[0] != node;
    }
    bool take(const ggml_tensor* projection, std::size_t place) {
        const ggml_tensor* const product = product_of(projection);
        found_.weights[place] = product->src[0];
        found_.biases[place] = projection == product ? nullptr : projection->src[1];
        const ggml_tensor* const ids = product->op == GGML_OP_MUL_MAT_ID ? product->src[2] : nullptr;
        if (taken_++ == 0) found_.experts = ids;
        return found_.experts == ids;
    }
    // The block that ends at node `last`, with the residual behind it.
    bool read_branch(ggml_tensor* down, int last) {
        if (last + 1 == graph_->n_nodes) return false;
        ggml_tensor* const sum = graph_->nodes[last + 1];
        if (!is_residual_sum(sum) || sum->src[0] != down) return false;
        begin(last + 2);
        found_.residual = sum->src[1];
        return read_back(down, sum);
    }
    // With the weighted sum of the experts behind it: a product, a view of each choice, the sums.
    bool read_mixture(ggml_tensor* down, int last) {
        if (last + 1 == graph_->n_nodes || !is_weighted(graph_->nodes[last + 1])) return false;
        const ggml_tensor* const weighted = graph_->nodes[last + 1];
        const std::int64_t chosen = weighted->ne[1];
        if (weighted->src[0] != down || chosen < 2 || chosen > most_chosen) return false;
        std::array<const ggml_tensor*, most_chosen> choices{};
        int i = last + 2;
        std::int64_t seen = 0, added = 1;
        for (ggml_tensor* sum = nullptr; added < chosen; ++i) {
            if (i == graph_->n_nodes) return false;
            ggml_tensor* const node = graph_->nodes[i];
            if (seen < chosen && is_choice(node, weighted, seen)) {
                choices[static_cast<std::size_t>(seen++)] = node;
            } else {
                const bool continues = node->op == GGML_OP_ADD && added < seen &&
                                       node->src[0] == (sum == nullptr ? choices[0] : sum) &&
                                       node->src[1] == choices[static_cast<std::size_t>(added)];
                if (!continues) return false;
                sum = node;
                ++added;
            }
        }
        begin(i);
        found_.routing = weighted->src[1];
        return read_back(down, graph_->nodes[i - 1]);
    }
    bool read_block(ggml_tensor* down, int last) {
        begin(last + 1);
        return read_back(down, down);
    }
    void begin(int end) {
        found_ = {};
        found_.first = first_;
        found_.count = end - first_;
        taken_ = 0;
    }
    bool read_back(ggml_tensor* down, ggml_tensor* y) {
        found_.y = y;
        const ggml_tensor* const hidden = product_of(down)->src[1];
        if (!take(down, 2) || !is_hidden(hidden) || !is_rows_of_f32(y)) return false;
        found_.activation = *activation_of(hidden);
        if (hidden->op == GGML_OP_GLU) {
            if (!take(hidden->src[0], 0) || !take(hidden->src[1], 1)) return false;
            if (product_of(hidden->src[0])->src[1] != product_of(hidden->src[1])->src[1]) return false;
        } else if (!take(hidden->src[0], 1)) {
            return false;
        }
        found_.x = product_of(hidden->src[hidden->op == GGML_OP_GLU ? 1 : 0])->src[1];
        return is_complete() && shapes_fit() && nothing_else_reads();
    }
    // Whether its nodes are those from the first on, and no more: what came before may be gone.
    bool is_complete() const {
        int nodes = 1 + (found_.residual != nullptr);  // 1: the hidden values
        if (found_.routing != nullptr) nodes += 2 * static_cast<int>(found_.routing->ne[1]);
        for (std::size_t i = 0; i < 3; ++i)
            nodes += (found_.weights[i] != nullptr) + (found_.biases[i] != nullptr);
        return nodes == found_.count;
    }
    bool shapes_fit() const {
        const ggml_tensor *up = found_.weights[1], *down = found_.weights[2], *gate = found_.weights[0];
        const bool experts = found_.experts != nullptr;
        if (experts && (found_.experts->type != GGML_TYPE_I32 || found_.biases[2] != nullptr ||
                        found_.residual != nullptr))
            return false;
        return up->ne[0] == down->ne[1] && up->ne[1] == down->ne[0] && up->ne[2] == down->ne[2] &&
               (gate == nullptr || ggml_are_same_shape(gate, up));
    }
    bool nothing_else_reads() const {
        std::array<int, most + 2 * most_chosen> places{};
        std::array<ggml_op, most + 2 * most_chosen> ops{};
        for (int i = 0; i < found_.count; ++i) {
            places[static_cast<std::size_t>(i)] = first_ + i;
            ops[static_cast<std::size_t>(i)] = graph_->nodes[first_ + i]->op;
        }
        const int last = first_ + found_.count - 1;
        return ggml_can_fuse_subgraph_ext(graph_, places.data(), found_.count, ops.data(), &last, 1);
    }

    const ggml_cgraph* graph_;
    int first_;
    int taken_ = 0;
    ffn_nodes found_;
};

}  // namespace tiffin_in_ggml
