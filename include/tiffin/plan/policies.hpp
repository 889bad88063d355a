// The policies that texts may name, as a value: no registry, and one line per policy.
#pragma once

#include <tiffin/plan/policy_form.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <string_view>
#include <tuple>
#include <vector>

TIFFIN_BEGIN

// A few texts: default arguments and the like.
struct policy_texts {
    std::array<std::string_view, 4> texts{};
    std::size_t count = 0;

    template <std::convertible_to<std::string_view>... Texts>
    constexpr policy_texts(const Texts&... given) noexcept : texts{{given...}}, count(sizeof...(Texts)) {}

    [[nodiscard]] constexpr const std::string_view* begin() const noexcept { return texts.data(); }
    [[nodiscard]] constexpr const std::string_view* end() const noexcept { return texts.data() + count; }
};

namespace plan_detail {

// A line of a list, for one arithmetic.
struct policy_line {
    std::string_view word;
    policy_texts defaults;
    policy_texts usual;
    std::string_view body;                  // of an alias
    std::vector<const policy_form*> forms;  // of all others
};

// The lines of all_policies.hpp, which defines it: a function, so that tiffin::compiled can contain it.
template <class Numbers>
void add_library_policies(std::vector<policy_line>& lines);

}  // namespace plan_detail

// A word of a text, and the compositions that it may name: the first of them that accepts the given arguments.
// An argument that one of them leaves out must be the default. `defaults` are those of the last arguments; `usual`:
// options of arguments whose defaults are different here.
// A word may be a text, "unweighted(rms)": it names this composition, with the options of all its parts.
//
//     policy<gate<activation_argument<0>, argument<1>>>("gate", {"dense"})
template <class... Forms>
struct policy {
    std::string_view word;
    policy_texts defaults;
    policy_texts usual;

    constexpr explicit policy(std::string_view name, const policy_texts& defaults_of = {},
                              const policy_texts& usual_of = {}) noexcept
        : word(name), defaults(defaults_of), usual(usual_of) {}

    template <class Numbers>
    void add_to(std::vector<plan_detail::policy_line>& lines) const {
        lines.push_back({word, defaults, usual, {}, {&plan_detail::form_of<Numbers, Forms>::form...}});
    }
};

// A word that expands to another text, in which `_0` is its first argument and `_eps` its option `eps`. An option that
// is not given has its default in that text.
//
//     policy_alias("moe", "mixture(softmax_topk(top_k=_top_k), _0)")
struct policy_alias {
    std::string_view word;
    std::string_view body;
    policy_texts defaults;

    constexpr policy_alias(std::string_view name, std::string_view text,
                           const policy_texts& defaults_of = {}) noexcept
        : word(name), body(text), defaults(defaults_of) {}

    template <class Numbers>
    void add_to(std::vector<plan_detail::policy_line>& lines) const {
        lines.push_back({word, defaults, {}, body, {}});
    }
};

// A list of policies.
template <class L>
concept policy_list = requires(const L& list, std::vector<plan_detail::policy_line>& lines) {
    list.template add_to<void>(lines);
};

// A list of policies, of aliases and of other lists. Of two lines with the same word the first is used.
//
//     constexpr tiffin::policies mine{tiffin::policy<my_activation>("my_activation"), tiffin::all_policies};
template <class... Lines>
struct policies {
    std::tuple<Lines...> lines;

    constexpr explicit policies(const Lines&... all) noexcept : lines(all...) {}

    template <class Numbers>
    void add_to(std::vector<plan_detail::policy_line>& to) const {
        std::apply([&](const auto&... line) { (line.template add_to<Numbers>(to), ...); }, lines);
    }
};

TIFFIN_END
