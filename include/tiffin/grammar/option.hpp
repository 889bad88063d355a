// The options of a policy that a text or a file can set: each a name and a member of its class.
#pragma once

#include <tiffin/config.hpp>

#include <string_view>

TIFFIN_BEGIN

// A member: a float, an int, or a size_t, where every_expert is written `all`. A policy lists its options as
//
//     static constexpr auto options() noexcept { return std::tuple(option{"eps", &rms::eps}); }
//
// The defaults are those of the class.
template <class Policy, class Value>
struct option {
    // A named type: nvcc prints `Value Policy::*member` with parentheses, of which g++ warns.
    using pointer = Value Policy::*;
    std::string_view name;
    pointer member;
};
template <class Policy, class Value>
option(std::string_view, Value Policy::*) -> option<Policy, Value>;

TIFFIN_END
