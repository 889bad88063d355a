// What a text leaves out and a list of policies adds: aliases, default arguments, usual options.
#pragma once

#include <tiffin/plan/policies.hpp>
#include <tiffin/plan/text.hpp>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

TIFFIN_BEGIN

namespace plan_detail {

// An error at a position of a text, in pieces: "'relu' at byte 9 is an activation".
template <class... Pieces>
failure wrong_at(const text_node& of, const Pieces&... pieces) {
    return failure(errc::option, "composition", detail::in_quotes(of.name), " at byte ", of.position, " ",
                   pieces...);
}

inline const text_argument* option_of(const text_node& node, std::string_view name) noexcept {
    const auto at = std::find_if(node.arguments.begin(), node.arguments.end(),
                                 [&](const text_argument& a) { return a.option == name; });
    return at == node.arguments.end() ? nullptr : &*at;
}
inline std::size_t count_arguments(const text_node& node) noexcept {
    return static_cast<std::size_t>(std::count_if(node.arguments.begin(), node.arguments.end(),
                                                  [](const text_argument& a) { return a.option.empty(); }));
}
// Positional argument i. Precondition: there is one.
inline text_argument& argument_at(text_node& node, std::size_t i) noexcept {
    for (text_argument& a : node.arguments)
        if (a.option.empty() && i-- == 0) return a;
    return node.arguments.back();
}
// Takes the options out of a node and of all its arguments.
inline void take_options(text_node& from, std::vector<text_argument>& to) {
    const auto options = std::stable_partition(from.arguments.begin(), from.arguments.end(),
                                               [](const text_argument& a) { return a.option.empty(); });
    std::move(options, from.arguments.end(), std::back_inserter(to));
    from.arguments.erase(options, from.arguments.end());
    for (text_argument& a : from.arguments)
        if (auto* const node = std::get_if<text_node>(&a.value)) take_options(*node, to);
}

inline status check_options(const text_node& of) {
    for (const text_argument& a : of.arguments)
        if (!a.option.empty() && option_of(of, a.option) != &a)
            return wrong_at(of, "has option ", detail::in_quotes(a.option), " twice");
    return {};
}

// A text of a list, parsed. Precondition: it is valid.
inline text_argument listed_text(std::string_view text) {
    auto parsed = parse_text("of(" + std::string(text) + ")");
    return parsed ? std::move(parsed->arguments.at(0)) : text_argument{};
}

// Adds the default arguments that a node leaves out. `count`: the number of arguments; `is_open`: more are allowed.
inline status add_defaults(text_node& to, const policy_line& line, std::size_t count, bool is_open = false) {
    const std::size_t needed = count - std::min(line.defaults.count, count);
    std::size_t have = count_arguments(to);
    if (have < needed)
        return wrong_at(to, "has ", have, " arguments; it takes ", needed,
                        needed == count && !is_open ? "" : " or more");
    for (; have < count; ++have) {
        text_argument added = listed_text(line.defaults.texts[have - needed]);
        added.position = to.position;
        if (auto* const node = std::get_if<text_node>(&added.value)) node->position = to.position;
        to.arguments.push_back(std::move(added));
    }
    return {};
}

// Adds the options of `usual` to a node and its arguments where they are not given.
inline void add_usual(text_node& to, const text_node& usual) {
    if (to.name != usual.name) return;
    std::size_t i = 0;
    for (const text_argument& a : usual.arguments) {
        if (!a.option.empty()) {
            if (option_of(to, a.option) == nullptr) to.arguments.push_back(a);
        } else if (i < count_arguments(to)) {
            auto* const node = std::get_if<text_node>(&argument_at(to, i++).value);
            if (const auto* const of = std::get_if<text_node>(&a.value); node != nullptr && of != nullptr)
                add_usual(*node, *of);
        }
    }
}

// An alias expanded to its text, with the given arguments and options.
class written_alias {
public:
    written_alias(const policy_line& line, const text_node& given) : line_(line), given_(given) {}

    result<text_node> write() {
        if (status s = check_options(given_); !s) return s.failure();
        auto body = std::get<text_node>(listed_text(line_.body).value);
        std::size_t count = 0;
        count_places(body, count);
        if (count_arguments(given_) > count)
            return wrong_at(given_, "has ", count_arguments(given_), " arguments; it takes at most ", count);
        if (status s = add_defaults(given_, line_, count); !s) return s.failure();
        if (place(body) == argument_use::none)
            fill(body);
        else if (const auto* const whole = std::get_if<text_node>(&argument_at(given_, place(body)).value))
            return *whole;
        for (const text_argument& a : given_.arguments)
            if (!a.option.empty() && std::find(used_.begin(), used_.end(), a.option) == used_.end())
                return wrong_at(given_, "has no option ", detail::in_quotes(a.option),
                                "; write it out: ", line_.body);
        return body;
    }

private:
    // The index of the argument that a name in the body refers to, or none.
    static std::size_t place(const text_node& node) noexcept {
        if (node.name.size() != 2 || node.name[0] != '_' || node.name[1] < '0' || node.name[1] > '9')
            return argument_use::none;
        return static_cast<std::size_t>(node.name[1] - '0');
    }
    static void count_places(const text_node& node, std::size_t& count) noexcept {
        if (place(node) != argument_use::none) count = std::max(count, place(node) + 1);
        for (const text_argument& a : node.arguments)
            if (const auto* const of = std::get_if<text_node>(&a.value)) count_places(*of, count);
    }
    void fill(text_node& node) {
        node.position = given_.position;
        std::vector<text_argument> filled;
        for (text_argument& a : node.arguments) {
            a.position = given_.position;
            auto* const of = std::get_if<text_node>(&a.value);
            if (of == nullptr) {
                filled.push_back(std::move(a));
            } else if (!a.option.empty() && of->name.starts_with('_')) {
                const std::string_view name = std::string_view(of->name).substr(1);
                used_.emplace_back(name);
                if (const text_argument* const option = option_of(given_, name)) {
                    filled.push_back(*option);
                    filled.back().option = a.option;
                }
            } else if (place(*of) != argument_use::none) {
                filled.push_back(argument_at(given_, place(*of)));
            } else {
                fill(*of);
                filled.push_back(std::move(a));
            }
        }
        node.arguments = std::move(filled);
    }

    const policy_line& line_;
    text_node given_;
    std::vector<std::string> used_;
};

}  // namespace plan_detail

TIFFIN_END
