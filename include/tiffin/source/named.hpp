#pragma once

#include <tiffin/fixed_string.hpp>
#include <tiffin/grammar/tree.hpp>

#include <string_view>

TIFFIN_BEGIN

// A source whose tensors are named after Name instead of its own name or role:
// `named<token_embedding, "memory">` reads `memory.weight`. Needed where two sources of one block
// would read a tensor of the same name.
template <class Source, fixed_string Name>
struct named : Source {
    static_assert(leaf_source<Source>,
                  "tiffin: named<Source, Name>: the first argument is not a source with tensors of its own; "
                  "name the parts of a sum or of a gate one by one");
    static constexpr std::string_view name = text_of<Name>;
    using formula_is = std::conditional_t<detail::is_sum_of_values<Source>, sum_of_values<named>, void>;

    // Not defaulted: g++ 12 zeroes the byte of an empty aggregate with a base or with members,
    // even where a tuple has put another element's first byte in its place. (For the same reason policies
    // have no [[no_unique_address]] members.)
    constexpr named() noexcept {}
    constexpr named(const Source& source) noexcept : Source(source) {}
};

TIFFIN_END
