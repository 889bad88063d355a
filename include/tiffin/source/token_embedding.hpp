#pragma once

#include <tiffin/grammar/tree.hpp>

#include <string_view>

TIFFIN_BEGIN

// A table row looked up by token id: z = U[t]. No norm, scale or bias.
// Shapes: t (T), `stem_embed.weight` (vocab, width), z (T, width).
// Numerics: exact in the table's format. Errors: an id outside [0, vocab) is errc::token_id, found
//   before any output is written.
// Cost: no FLOPs; width values read per token, and only the table rows of the call's own tokens.
// Source: STEM Eq. 4.
struct token_embedding {
    using rows = table<"weight">;
    using tensors = tensor_list<rows>;
    using formula_is = sum_of_values<token_embedding>;
    static constexpr std::string_view name = "stem_embed";

    template <class Place>
    TIFFIN_HD auto operator()(const Place& at) const {
        return at[rows{}];
    }
};

TIFFIN_END
