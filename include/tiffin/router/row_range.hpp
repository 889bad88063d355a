#pragma once

#include <tiffin/grammar/concepts.hpp>
#include <tiffin/grammar/tensor_kinds.hpp>

TIFFIN_BEGIN

// The table rows of a token id: [begin_t, end_t), in order, each with weight 1. Every token has as many choices as the
// longest range; unused ones are row -1, which contributes nothing.
// Shapes: `ranges` (vocab, 2), integers (I32 or I64): begin, end. Ranges may share rows, and may be empty.
// Errors: a range that ends before it begins, begins below 0 or ends beyond the table is errc::option, found by
//   prepare(); a token id outside [0, vocab) is errc::token_id.
// Cost: two integers per token. Source: large lookup layers (L3); docs/layers.md#l3.
struct row_range {
    static constexpr bool chooses_rows = true;
    using tensors = tensor_list<row_ranges<"ranges">>;
};

TIFFIN_END
