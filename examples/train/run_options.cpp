#include "run_options.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <type_traits>
#include <vector>

namespace {

// Whether layer i of n has the block that is asked for.
std::vector<bool> places(const std::string& where, std::size_t n) {
    std::vector<bool> has(n, where == "all" || where == "all-but-0");
    if (where == "all") return has;
    if (where == "all-but-0") {
        if (n > 0) has[0] = false;
        return has;
    }
    const std::size_t step = where == "thirds" ? 3 : where == "halves" ? 2 : 0;
    for (std::size_t i = step; step != 0 && i <= n; i += step) has[i - 1] = true;
    if (step != 0) return has;
    if (where.empty()) throw std::invalid_argument("--where names no layer");
    std::istringstream list(where);
    for (std::string one; std::getline(list, one, ',');) {
        std::size_t i = 0;
        const auto [end, wrong] = std::from_chars(one.data(), one.data() + one.size(), i);
        if (wrong != std::errc() || end != one.data() + one.size() || i >= n)
            throw std::invalid_argument("--where " + where + ": '" + one + "' is no layer below " +
                                        std::to_string(n) + ", nor all, all-but-0, thirds or halves");
        has[i] = true;
    }
    return has;
}

}  // namespace

model_sizes run_options::sizes(std::size_t tokens) const {
    const auto positive = [](const char* name, std::size_t value) {
        if (value == 0) throw std::invalid_argument(std::string("--") + name + " is 0");
    };
    positive("d-model", d_model);
    positive("d-ff", d_ff);
    positive("layers", layers);
    positive("heads", heads);
    positive("context", context);
    positive("batch", batch);
    positive("steps", steps);
    const auto at_most = [](const char* name, double value, double most) {
        if (!(value >= 0 && value <= most))
            throw std::invalid_argument(std::string("--") + name + " is " + std::to_string(value) +
                                        "; it is no number from 0 " +
                                        (most == 1 ? std::string("to 1") : std::string("on")));
    };
    constexpr double any = std::numeric_limits<double>::max();
    at_most("rate", rate, any);
    at_most("last", last, 1);
    at_most("warm-up", warm_up, 1);
    at_most("decay", decay, any);
    at_most("clip", clip, any);
    if (d_model % heads != 0)
        throw std::invalid_argument("--d-model " + std::to_string(d_model) + " is no multiple of --heads " +
                                    std::to_string(heads));
    model_sizes made;
    made.ffn = {d_model, d_ff, tokens, layers, experts, bank, rank, d_mem};
    made.attention = {heads, kv_heads, d_model / heads};
    made.context = context;
    for (const bool here : places(where, layers)) made.kinds.push_back(here ? ffn : elsewhere);
    return made;
}

tiffin::learning_rate run_options::learning_rate() const {
    using tiffin::decay_form;
    const bool linear = schedule == "linear", constant = schedule == "constant";
    if (!linear && !constant && schedule != "cosine")
        throw std::invalid_argument("--schedule " + schedule + "; known are cosine, linear, constant");
    return {.peak = rate,
            .warm_up = static_cast<std::size_t>(warm_up * static_cast<double>(steps)),
            .steps = steps,
            .form = linear     ? decay_form::linear
                    : constant ? decay_form::constant
                               : decay_form::cosine,
            .last = last};
}

std::map<std::string, std::string> run_options::as_texts() const {
    std::map<std::string, std::string> texts;
    run_options copy = *this;
    copy.visit([&](const char* name, auto& value) {
        std::ostringstream text;
        text.precision(17);
        text << value;
        texts[name] = text.str();
    });
    return texts;
}

run_options run_options::from_texts(const std::map<std::string, std::string>& texts) {
    run_options made;
    made.visit([&](const char* name, auto& value) {
        const auto at = texts.find(name);
        if (at == texts.end()) throw std::runtime_error(std::string("does not tell ") + name);
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::string>) {
            value = at->second;
        } else {
            std::istringstream text(at->second);
            if (!(text >> value) || !text.eof())
                throw std::runtime_error("says that " + std::string(name) + " is '" + at->second + "'");
        }
    });
    return made;
}

run_options preset_of(const std::string& name) {
    run_options made;
    if (name == "smoke") {
        made.d_model = 96;
        made.d_ff = 256;
        made.layers = 2;
        made.context = 64;
        made.vocabulary = 512;
        made.steps = 300;
        made.rate = 5e-3;
    } else if (name == "small") {
        made.steps = 1500;
    } else if (name == "hour") {
        made.d_model = 256;
        made.d_ff = 704;
        made.layers = 6;
        made.heads = 8;
        made.kv_heads = 4;
        made.context = 256;
        made.vocabulary = 4096;
        made.steps = 2000;
        made.rate = 2e-3;
    } else {
        throw std::invalid_argument("'" + name + "' is no preset; known are smoke, small, hour");
    }
    return made;
}
