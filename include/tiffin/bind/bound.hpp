// A block's bound tensors, and what its calls must provide.
#pragma once

#include <tiffin/bind/preparation.hpp>
#include <tiffin/dtype.hpp>
#include <tiffin/tensor.hpp>

#include <cstddef>
#include <string>
#include <vector>

TIFFIN_BEGIN

// A source with its tensors, in a tree like that of the sources.
struct bound_node {
    std::vector<tensor_view>
        tensors;  // its own, in the order of its list; null data: not given, or not stored
    static constexpr std::size_t not_given = ~std::size_t{0};
    std::vector<std::size_t> given;  // indices of these among the weights' entries
    std::vector<bound_node> parts;   // those of parts(), then the repeated ones
    std::size_t width = 0;           // features of its row
    std::size_t choices = 0;         // experts per token; 0: it does not route itself
    std::size_t recorded_first = 0;  // the part whose routes a call records before those of the others
    bool recorded = false;           // whether a call records the routes of this node
};

// A table that bounds the token ids of a call.
struct table_size {
    std::string name;
    std::size_t vocab;
};

// A table whose rows are given with each call; a row of a pool holds those of all its experts.
struct gathered_table {
    std::string name;
    std::size_t number;  // in the order of addition, from 1
    std::size_t width;
    dtype type;
    std::size_t vocab;        // rows of the whole table
    std::size_t choices = 0;  // rows per token chosen by a row router; 0: one, by token id
    tensor_scales scales{};   // in the rows

    [[nodiscard]] std::size_t rows_per_token() const noexcept { return choices > 0 ? choices : 1; }
};

// The requirements that calls of a layer are checked against.
struct call_needs {
    std::vector<table_size> tables;
    std::vector<gathered_table> gathered;
    std::vector<std::string> in_place;  // tensors that the layer keeps reading in the caller's memory
    std::size_t held_bytes = 0;         // of weights, in the layer's own memory
    std::size_t d_model = 0;
    std::size_t outputs = 0;      // width of y; d_model except for a block with a width of its own
    std::size_t d_ff = 0;         // of the first ffn; d_model where there is none
    std::size_t given_width = 0;  // of per_layer_input; 0: not read
    std::size_t choices = 0;  // experts per token of the part whose routes are recorded; 0: nothing routes
    bool residual = false;
    std::size_t delay = 0;  // layers that a delayed block carries over; 0: there is none
};

// A block's bound tensors, its needs and how to prepare them: what a backend makes an engine from.
struct binding {
    bound_node tree;
    call_needs needs;
    preparation how;
};

TIFFIN_END
