#pragma once

#include <tiffin/grammar/concepts.hpp>
#include <tiffin/grammar/tensor_kinds.hpp>

TIFFIN_BEGIN

// The rows that belong to a token's id: [begin_t, end_t), in their order, each with weight 1. A token has as many choices
// as the longest range; behind its own they are the row -1, which is none.
// Shapes: `ranges` (vocab, 2), integers (I32 or I64): begin, end. Ranges may share rows, and may be empty.
// Errors: a range that ends before it begins, begins below 0 or ends beyond the table is errc::option, found by
//   prepare(); a token id outside [0, vocab) is errc::token_id.
// Cost: two integers per token. Source: large lookup layers (L3); docs/layers.md#l3.
struct row_range {
    static constexpr bool chooses_rows = true;
    using tensors = tensor_list<row_ranges<"ranges">>;
};

TIFFIN_END
