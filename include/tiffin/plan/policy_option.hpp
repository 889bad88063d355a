// An option of a policy, by which a text sets a member of it.
#pragma once

#include <tiffin/grammar/concepts.hpp>
#include <tiffin/grammar/option.hpp>
#include <tiffin/plan/text.hpp>

#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>

TIFFIN_BEGIN

namespace plan_detail {

// An option of a policy, as a text has it. `set` returns false for a value that the member cannot hold.
struct policy_option {
    std::string_view name;
    text_argument (*get)(const void* object);
    bool (*set)(void* object, const text_argument& value);
};

template <class P>
constexpr auto options_of() noexcept {
    if constexpr (requires { P::options(); })
        return P::options();
    else
        return std::tuple<>();
}

// An option's value as text: `all` for every_expert, the shortest number that reads back as the same float.
template <class Value>
text_argument written_option(std::string_view name, const Value& value) {
    text_argument to{std::string(name), std::int64_t{0}, 0};
    if constexpr (std::floating_point<Value>) {
        char text[32];
        double shortest = 0;
        std::from_chars(text, std::to_chars(text, text + sizeof text, value).ptr, shortest);
        to.value = shortest;
    } else if (std::same_as<Value, std::size_t> && static_cast<std::size_t>(value) == every_expert) {
        to.value = text_node{"all", {}, 0};
    } else {
        to.value = static_cast<std::int64_t>(value);
    }
    return to;
}
template <class Value>
bool read_option(Value& to, const text_argument& from) noexcept {
    const auto* const integer = std::get_if<std::int64_t>(&from.value);
    if constexpr (std::floating_point<Value>) {
        const auto* const real = std::get_if<double>(&from.value);
        if (real == nullptr && integer == nullptr) return false;
        const double value = real != nullptr ? *real : static_cast<double>(*integer);
        if (!(std::fabs(value) <= static_cast<double>(std::numeric_limits<Value>::max()))) return false;
        to = static_cast<Value>(value);
        return true;
    } else {
        static_assert(std::same_as<Value, std::size_t> || std::same_as<Value, int>,
                      "tiffin: an option is a float, a double, an int or a size_t");
        const auto* const word = std::get_if<text_node>(&from.value);
        if (std::same_as<Value, std::size_t> && word != nullptr && *word == text_node{"all", {}, 0}) {
            to = static_cast<Value>(every_expert);
            return true;
        }
        if (integer == nullptr || !std::in_range<Value>(*integer)) return false;
        to = static_cast<Value>(*integer);
        return true;
    }
}

}  // namespace plan_detail

TIFFIN_END
