#pragma once

#include <tiffin/grammar/concepts.hpp>
#include <tiffin/grammar/tensor_kinds.hpp>

TIFFIN_BEGIN

// Experts looked up by token id: those of hash_map[t], each with weight 1.
// Shapes: `hash_map` (vocab) or (vocab, k), integers (I32 or I64).
// Errors: an entry outside the experts is errc::option, found by prepare(); a token id outside the map is
//   errc::token_id, found at the start of a call.
// Cost: k integers per token. Source: docs/layers.md#hash-moe; the hash layers that STEM compares with.
struct hash {
    using tensors = tensor_list<route_map<"hash_map">>;
};

TIFFIN_END
