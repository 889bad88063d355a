// From a text to the plan that the same composition has as a type.
#pragma once

#include <tiffin/plan/composition.hpp>
#include <tiffin/plan/filled_plan.hpp>
#include <tiffin/plan/plan_uses.hpp>
#include <tiffin/plan/policies.hpp>
#include <tiffin/plan/text.hpp>
#include <tiffin/plan/text_arguments.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

TIFFIN_BEGIN

namespace plan_detail {

template <class Numbers>
class composer {
public:
    template <class Policies>
    explicit composer(const Policies& known) {
        known.template add_to<Numbers>(lines_);
    }

    result<composition<Numbers>> compose(std::string_view text) {
        auto parsed = parse_text(text);
        if (!parsed) return parsed.failure();
        auto whole = node(*parsed, 1);
        if (!whole) return whole.failure();
        if (whole->role != policy_role::source)
            return wrong_at(*parsed, "is ", name_of(whole->role), "; a block is a source");
        std::string all = print_text(std::get<text_node>(whole->canonical.value));
        if (all.size() > text_limits::bytes)
            return wrong_at(*parsed, "has ", all.size(), " bytes with all its defaults, more than ",
                            text_limits::bytes);
        return composition<Numbers>(std::move(whole->plan), std::move(all), memory_);
    }

private:
    static std::string_view name_of(policy_role role) noexcept {
        return policy_role_names[static_cast<std::size_t>(role)];
    }

    result<composed_text> argument(const text_argument& given, std::size_t depth) {
        if (const auto* const of = std::get_if<text_node>(&given.value)) return node(*of, depth);
        const auto* const string = std::get_if<std::string>(&given.value);
        if (string == nullptr)
            return failure(errc::option, "composition", "has a number for an argument at byte ",
                           given.position, "; numbers are options: name=number");
        composed_text made;
        made.canonical = given;
        made.string = memory_->strings.emplace_back(*string);
        return made;
    }
    // A word with its arguments. `depth`: in the whole text with aliases expanded; `aliases`: how many led to it.
    result<composed_text> node(text_node given, std::size_t depth, std::size_t aliases = 0) {
        if (std::max(depth, aliases) > text_limits::depth || ++nodes_ > text_limits::nodes)
            return wrong_at(given, "is one policy too many: ", text_limits::depth, " deep, ",
                            text_limits::nodes, " in all, aliases written out");
        const policy_line* line = find(whole_word(given));
        if (line != nullptr && line->word != given.name) {
            std::vector<text_argument> options;
            take_options(given, options);
            given.arguments.insert(given.arguments.end(), options.begin(), options.end());
            return of_line(*line, std::move(given), depth);
        }
        if (line == nullptr) line = find(given.name);
        if (line == nullptr) return wrong_at(given, "is not known; known are ", known_words());
        if (line->body.empty()) return of_line(*line, std::move(given), depth);
        auto written = written_alias(*line, given).write();
        if (!written) return written.failure();
        return node(*std::move(written), depth, aliases + 1);
    }
    // A node without options, as a text, which a policy list may have as a word.
    static std::string whole_word(text_node node) {
        std::vector<text_argument> options;
        take_options(node, options);
        return print_text(node);
    }
    [[nodiscard]] const policy_line* find(std::string_view word) const noexcept {
        const auto at =
            std::find_if(lines_.begin(), lines_.end(), [&](const policy_line& l) { return l.word == word; });
        return at == lines_.end() ? nullptr : &*at;
    }
    [[nodiscard]] std::string known_words() const {
        std::string all;
        for (const policy_line& line : lines_) all.append(all.empty() ? "" : ", ").append(line.word);
        return all;
    }

    result<composed_text> of_line(const policy_line& line, text_node of, std::size_t depth) {
        if (status s = check_options(of); !s) return s.failure();
        const policy_form& first = *line.forms.front();
        const plan_uses uses = uses_of(first.lower(first.make().get()), first);
        std::vector<composed_text> given;
        if (line.word == of.name) {
            if (status s = add_defaults(of, line, uses.count, static_cast<bool>(uses.of(uses.count))); !s)
                return s.failure();
            if (count_arguments(of) > uses.count && !uses.of(uses.count))
                return wrong_at(of, "has ", count_arguments(of), " arguments; it takes ", uses.count);
            for (text_argument& a : of.arguments) {
                if (!a.option.empty()) continue;
                if (auto* const inner = std::get_if<text_node>(&a.value))
                    for (const std::string_view usual : line.usual)
                        add_usual(*inner, std::get<text_node>(listed_text(usual).value));
                auto made = argument(a, depth + 1);
                if (!made) return made;
                given.push_back(*std::move(made));
            }
        }
        // If no form accepts the arguments, the error is that of the form that accepts most of them.
        status refused;
        std::size_t most = 0;
        for (const policy_form* const form : line.forms) {
            const std::shared_ptr<void> object = form->make();
            const plan_uses taken = uses_of(form->lower(object.get()), *form);
            std::size_t fitting = 0;
            status taken_as = check_arguments(line, of, taken, given, fitting);
            if (taken_as) return of_form(*form, taken.count > 0, object, of, given);
            if (refused || fitting > most) refused = std::move(taken_as);
            most = std::max(most, fitting);
        }
        return refused.failure();
    }
    // Checks the arguments against a form; `i`: how many it accepts before the first that it does not.
    [[nodiscard]] static status check_arguments(const policy_line& line, const text_node& of,
                                                const plan_uses& uses,
                                                const std::vector<composed_text>& given, std::size_t& i) {
        for (; i < given.size(); ++i) {
            const argument_use use = uses.of(i);
            if (use && fits(use, given[i])) continue;
            if (use)
                return wrong_argument(given[i], "is ", name_of(given[i].role), "; argument ", i + 1, " of ",
                                      detail::in_quotes(of.name), " is ", name_of(use.role));
            const std::size_t first = given.size() - std::min(line.defaults.count, given.size());
            if (i < first)
                return wrong_argument(given[i], "is argument ", i + 1, "; ", detail::in_quotes(of.name),
                                      " takes ", uses.count);
            std::string written;
            detail::print_to(written, given[i].canonical);
            if (written != line.defaults.texts[i - first])
                return wrong_argument(given[i], "is argument ", i + 1, " of ", detail::in_quotes(of.name),
                                      ", which those before it leave no place for");
        }
        if (given.size() >= uses.count) return {};
        return wrong_at(of, "has ", given.size(), " arguments; it takes ", uses.count);
    }
    template <class... Pieces>
    static status wrong_argument(const composed_text& given, const Pieces&... pieces) {
        if (const auto* const node = std::get_if<text_node>(&given.canonical.value))
            return wrong_at(*node, pieces...);
        return failure(errc::option, "composition", detail::in_quotes(given.string), " at byte ",
                       given.canonical.position, " ", pieces...);
    }
    static bool fits(const argument_use& use, const composed_text& given) noexcept {
        const auto* const node = std::get_if<text_node>(&given.canonical.value);  // null: a string
        if (use.role == policy_role::gate) return node != nullptr && node->name == "gate";
        if (use.role == policy_role::norm && given.role == policy_role::norm)
            return use.weighted == given.plan.kind->has(tensor_kind::vector);
        return use.role == given.role;
    }

    result<composed_text> of_form(const policy_form& form, bool is_filled,
                                  const std::shared_ptr<void>& object, const text_node& of,
                                  const std::vector<composed_text>& given) {
        if (status s = set_options(form, object.get(), of); !s) return s.failure();
        if (form.phi) {
            const composed_text& phi = given[form.phi.position];
            const any_function by_number = phi.form->by_number ? phi.form->by_number() : nullptr;
            if (by_number == nullptr && !std::same_as<Numbers, void>)
                return wrong_at(of, "calls its activation by number, which this one does not allow");
            form.set_phi(object.get(), phi.form->policy(phi.object), by_number);
        }
        memory_->objects.push_back(object);
        composed_text made;
        made.role = form.role;
        made.form = &form;
        made.object = object.get();
        made.plan = form.lower(object.get());
        if (is_filled) {
            auto filled = filled_plan<Numbers>(*memory_, given).fill(made.plan);
            if (!filled) return wrong_at(of, filled.failure().what);
            made.plan = *std::move(filled);
        }
        made.canonical.value = canonical(form, object.get(), of, given);
        return made;
    }
    static status set_options(const policy_form& form, void* object, const text_node& of) {
        for (const text_argument& a : of.arguments) {
            if (a.option.empty()) continue;
            const auto at = std::find_if(form.options.begin(), form.options.end(),
                                         [&](const policy_option& o) { return o.name == a.option; });
            if (at == form.options.end()) {
                std::string all;
                for (const policy_option& o : form.options)
                    all.append(all.empty() ? "" : ", ").append(o.name);
                return wrong_at(of, "has no option ", detail::in_quotes(a.option), "; ",
                                all.empty() ? "it has none" : "it has ", all);
            }
            if (!at->set(object, a)) {
                std::string written;
                detail::print_to(written, a);
                return wrong_at(of, "has ", written, ", which this option cannot be");
            }
        }
        return {};
    }
    // A node with all its arguments and options; those of a word that is a text belong to the last policy in it.
    static text_node canonical(const policy_form& form, const void* object, const text_node& of,
                               const std::vector<composed_text>& given) {
        text_node all{of.name, {}, of.position};
        for (const composed_text& one : given) all.arguments.push_back(one.canonical);
        for (const text_argument& a : of.arguments)
            if (given.empty() && a.option.empty()) all.arguments.push_back(a);
        text_node* innermost = &all;
        for (text_node* inner = &all; given.empty() && inner != nullptr && !inner->arguments.empty();)
            if ((inner = std::get_if<text_node>(&inner->arguments.front().value)) != nullptr)
                innermost = inner;
        for (const policy_option& option : form.options) innermost->arguments.push_back(option.get(object));
        return all;
    }

    std::vector<policy_line> lines_;
    std::shared_ptr<plan_memory> memory_ = std::make_shared<plan_memory>();
    std::size_t nodes_ = 0;
};

}  // namespace plan_detail

// The composition that a text names, from a list of policies: the plan of its type, so bit-identical results.
// Numbers: the arithmetic of a backend, `simd<>::machine`; void: for names and sizes only.
// Errors: errc::option with the cause, the byte position and what was expected; also for what static_assert rejects in
//   types. Option values are checked by prepare().
// Cost: some microseconds per policy.
//
//     auto block = tiffin::compose<tiffin::simd<>::machine>("ffn(gate(silu), dense)", all_policies);
//     auto layer = tiffin::try_prepare(*block, weights, tiffin::simd{});
template <class Numbers = void, policy_list Policies>
result<composition<Numbers>> compose(std::string_view text, const Policies& known) {
    return plan_detail::composer<Numbers>(known).compose(text);
}

TIFFIN_END
