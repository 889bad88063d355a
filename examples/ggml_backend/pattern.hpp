// Which nodes of a ggml graph are a feed-forward block.
#pragma once

#include "layers.hpp"

#include <tiffin/io/gguf_value.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <system_error>

#include "ggml-impl.h"
#include "ggml.h"

namespace tiffin_in_ggml {

// What a weight is by its name in a model: blk.7.ffn_gate.weight and so on. Those of experts are (inputs, outputs,
// experts) as ggml counts axes.
enum class part { none, gate, up, down };

inline part part_of(const ggml_tensor* t, std::string_view ending) {
    const std::string_view name = t->name;
    if (!name.starts_with("blk.") || !name.ends_with(ending)) return part::none;
    const std::string_view front = name.substr(0, name.size() - ending.size());
    for (const std::string_view experts : {"", "_exps", "_shexp"}) {
        if (!front.ends_with(experts)) continue;
        const std::string_view of = front.substr(0, front.size() - experts.size());
        if (of.ends_with(".ffn_gate")) return part::gate;
        if (of.ends_with(".ffn_up")) return part::up;
        if (of.ends_with(".ffn_down")) return part::down;
    }
    return part::none;
}

// The number in blk.7.ffn_down.weight; none for the weights of experts, shared ones too.
inline std::optional<std::size_t> layer_of(const ggml_tensor* weight) {
    std::size_t layer = 0;
    const std::string_view name = weight->name;
    if (!name.starts_with("blk.") || !name.ends_with(".ffn_down.weight")) return std::nullopt;
    const auto [end, code] = std::from_chars(name.data() + 4, name.data() + name.size(), layer);
    return code == std::errc{} && end != name.data() + name.size() ? std::optional(layer) : std::nullopt;
}

// The rows of the tokens' embeddings: whose ids come with the graph.
inline bool is_embedding(const ggml_tensor* node) {
    return node->op == GGML_OP_GET_ROWS && std::string_view(node->src[0]->name) == "token_embd.weight" &&
           node->src[1]->type == GGML_TYPE_I32;
}
// What chose the rows of x among those of the graph's tokens, a few nodes above it: indices, or null where all came.
inline const ggml_tensor* chosen_rows(const ggml_tensor* x, int above = 6) {
    if (x == nullptr || above == 0) return nullptr;
    if (x->op == GGML_OP_GET_ROWS && !is_embedding(x))
        return x->src[1]->type == GGML_TYPE_I32 ? x->src[1] : nullptr;
    if (x->op == GGML_OP_MUL_MAT)
        return nullptr;  // of attention: its rows are those of the residual beside it
    for (const ggml_tensor* from : {x->src[0], x->src[1]})
        if (const ggml_tensor* const found = chosen_rows(from, above - 1)) return found;
    return nullptr;
}

// The activation of a node, as a composition names it.
inline std::optional<std::string_view> activation_of(const ggml_tensor* node) {
    if (node->op == GGML_OP_GLU) switch (ggml_get_glu_op(node)) {
            case GGML_GLU_OP_SWIGLU: return "silu";
            case GGML_GLU_OP_GEGLU: return "gelu_tanh";
            case GGML_GLU_OP_GEGLU_ERF: return "gelu";
            case GGML_GLU_OP_REGLU: return "relu";
            default: return std::nullopt;
        }
    if (node->op == GGML_OP_UNARY) switch (ggml_get_unary_op(node)) {
            case GGML_UNARY_OP_SILU: return "silu";
            case GGML_UNARY_OP_GELU: return "gelu_tanh";
            case GGML_UNARY_OP_GELU_ERF: return "gelu";
            case GGML_UNARY_OP_RELU: return "relu";
            default: return std::nullopt;
        }
    return std::nullopt;
}

// The number format of a weight; none for one that tiffin does not read.
inline std::optional<tiffin::dtype> format_of(const ggml_tensor* weight) {
    const auto type = tiffin::io::gguf_dtype(static_cast<std::uint32_t>(weight->type));
    return type && !tiffin::is_integer(*type) ? type : std::nullopt;
}

// Rows of f32 without gaps within a row.
inline bool is_rows_of_f32(const ggml_tensor* t) {
    return t->type == GGML_TYPE_F32 && t->nb[0] == sizeof(float) && ggml_is_contiguous_rows(t);
}

// Computes nothing.
inline bool is_view(const ggml_tensor* node) {
    return node->op == GGML_OP_NONE || node->op == GGML_OP_RESHAPE || node->op == GGML_OP_VIEW ||
           node->op == GGML_OP_PERMUTE || node->op == GGML_OP_TRANSPOSE;
}

// A product of a feed-forward block: with one weight, or with those of the experts chosen.
inline bool is_product(const ggml_tensor* node) {
    if (node->op != GGML_OP_MUL_MAT && node->op != GGML_OP_MUL_MAT_ID) return false;
    const ggml_tensor *weight = node->src[0], *x = node->src[1];
    return part_of(weight, ".weight") != part::none && weight->view_src == nullptr && format_of(weight) &&
           ggml_is_contiguous(weight) && weight->ne[3] == 1 &&
           (node->op == GGML_OP_MUL_MAT_ID || weight->ne[2] == 1) && is_rows_of_f32(x) && x->ne[3] == 1 &&
           (node->op == GGML_OP_MUL_MAT_ID || x->ne[2] == 1);
}
inline bool is_bias(const ggml_tensor* t) {
    return part_of(t, ".bias") != part::none && t->type == GGML_TYPE_F32 && ggml_is_vector(t);
}
// With the bias added, where there is one.
inline bool is_projection(const ggml_tensor* node) {
    return is_product(node) || (node->op == GGML_OP_ADD && is_product(node->src[0]) &&
                                node->src[0]->op == GGML_OP_MUL_MAT && is_bias(node->src[1]));
}
// The residual added to a down projection.
inline bool is_residual_sum(const ggml_tensor* node) {
    if (node->op != GGML_OP_ADD || !is_projection(node->src[0]) || is_projection(node)) return false;
    const ggml_tensor* const down = node->src[0]->op == GGML_OP_ADD ? node->src[0]->src[0] : node->src[0];
    return down->op == GGML_OP_MUL_MAT && part_of(down->src[0], ".weight") == part::down &&
           ggml_are_same_shape(node, node->src[1]) && is_rows_of_f32(node->src[1]);
}
inline bool is_hidden(const ggml_tensor* node) {
    return activation_of(node) && node->src[0] != nullptr && is_projection(node->src[0]) &&
           (node->op != GGML_OP_GLU || (node->src[1] != nullptr && is_projection(node->src[1])));
}

// The nodes of one block within a graph, from node `first` on, `count` of them.
struct ffn_nodes {
    int first = 0, count = 0;
    const ggml_tensor* x = nullptr;
    const ggml_tensor* residual = nullptr;  // what is added to the block's result, or null
    const ggml_tensor* experts = nullptr;   // (chosen per token, tokens) of i32, or null
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
            return read_branch(node, i) || read_block(node, i) ? std::optional(found_) : std::nullopt;
        }
        return std::nullopt;
    }

private:
    static constexpr int most = 8;  // three products with biases, a GLU, the residual

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
        std::array<int, most> places{};
        std::array<ggml_op, most> ops{};
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
