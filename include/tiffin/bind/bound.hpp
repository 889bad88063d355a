// A block's tensors once they are bound, and what calls of it have to bring.
#pragma once

#include <tiffin/bind/preparation.hpp>
#include <tiffin/dtype.hpp>
#include <tiffin/tensor.hpp>

#include <cstddef>
#include <string>
#include <vector>

TIFFIN_BEGIN

// A source with its tensors: a tree as the sources are one.
struct bound_node {
    std::vector<tensor_view>
        tensors;  // its own, in the order of its list; null data: not given, or not stored
    static constexpr std::size_t not_given = ~std::size_t{0};
    std::vector<std::size_t> given;  // the places of these among the weights' entries
    std::vector<bound_node> parts;   // those of parts(), then the repeated ones
    std::size_t width = 0;           // features of its row
    std::size_t choices = 0;         // experts per token; 0: it routes nothing itself
    std::size_t recorded_first = 0;  // the part whose routes a call records before those of the others
    bool recorded = false;           // whether the routes that a call records are its own
};

// What a call's token ids are held against.
struct table_size {
    std::string name;
    std::size_t vocab;
};

// A table of which calls bring the rows; a pool's row is that of all its experts.
struct gathered_table {
    std::string name;
    std::size_t number;  // from 1 on, as added
    std::size_t width;
    dtype type;
    std::size_t vocab;        // rows of the whole table
    std::size_t choices = 0;  // rows of a token that a router of rows chooses; 0: one, by its id

    [[nodiscard]] std::size_t rows_per_token() const noexcept { return choices > 0 ? choices : 1; }
};

// What a layer's calls are held against.
struct call_needs {
    std::vector<table_size> tables;
    std::vector<gathered_table> gathered;
    std::vector<std::string> in_place;  // tensors that the layer goes on reading where they were given
    std::size_t held_bytes = 0;         // of weights, in memory of the layer's own
    std::size_t d_model = 0;
    std::size_t outputs = 0;      // of a row of y; d_model but for a block with a width of its own
    std::size_t d_ff = 0;         // of the first ffn; d_model where there is none
    std::size_t given_width = 0;  // of per_layer_input; 0: not read
    std::size_t choices = 0;  // experts per token of the part whose routes are recorded; 0: nothing routes
    bool residual = false;
    std::size_t delay = 0;  // layers that a delayed block carries over; 0: there is none
};

// A block, its weights and how to prepare them: what a backend makes an engine of.
struct binding {
    bound_node tree;
    call_needs needs;
    preparation how;
};

TIFFIN_END
