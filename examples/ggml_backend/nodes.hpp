// What a node of a ggml graph is to a feed-forward block.
#pragma once

#include <tiffin/io/gguf_value.hpp>

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

// The values of experts, each times the weight that the router gave it: (width, chosen per token, tokens).
inline bool is_weighted(const ggml_tensor* node) {
    if (node->op != GGML_OP_MUL) return false;
    const ggml_tensor *values = node->src[0], *weights = node->src[1];
    return values->op == GGML_OP_MUL_MAT_ID && is_product(values) &&
           part_of(values->src[0], ".weight") == part::down && weights->type == GGML_TYPE_F32 &&
           weights->ne[0] == 1 && weights->ne[1] == values->ne[1] && weights->ne[2] == values->ne[2] &&
           weights->ne[3] == 1;
}
// Those of the i-th choice of every token, of the same `weighted`.
inline bool is_choice(const ggml_tensor* view, const ggml_tensor* weighted, std::int64_t i) {
    return view->op == GGML_OP_VIEW && view->src[0] == weighted && view->view_src == weighted &&
           view->view_offs == static_cast<std::size_t>(i) * weighted->nb[1] &&
           view->ne[0] == weighted->ne[0] && view->ne[1] == weighted->ne[2] && view->ne[2] == 1 &&
           view->nb[1] == weighted->nb[2];
}
// A sum of two choices, or of a sum and one more.
inline bool is_sum_of_choices(const ggml_tensor* node) {
    if (node->op != GGML_OP_ADD || node->src[1]->op != GGML_OP_VIEW) return false;
    const ggml_tensor *weighted = node->src[1]->src[0], *before = node->src[0];
    return is_weighted(weighted) &&
           (before->op == GGML_OP_VIEW ? before->src[0] == weighted
                                       : before->op == GGML_OP_ADD && before->src[1]->op == GGML_OP_VIEW &&
                                             before->src[1]->src[0] == weighted);
}

}  // namespace tiffin_in_ggml
