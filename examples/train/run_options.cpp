#include "run_options.hpp"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <stdexcept>
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
    if (d_model % heads != 0)
        throw std::invalid_argument("--d-model " + std::to_string(d_model) + " is no multiple of --heads " +
                                    std::to_string(heads));
    model_sizes made;
    made.ffn = {d_model, d_ff, tokens, layers, experts, bank, rank, d_mem};
    made.attention = {heads, kv_heads, d_model / heads};
    made.context = context;
    if (norm != "rms" && norm != "layer")
        throw std::invalid_argument("--norm " + norm + "; known are rms and layer");
    made.layer_norm = norm == "layer";
    made.untied_head = untied_head != 0;
    if (products != "f32" && products != "bf16")
        throw std::invalid_argument("--products " + products + "; known are f32 and bf16");
    made.bf16_products = products == "bf16";
    for (const bool here : places(where, layers)) made.kinds.push_back(here ? ffn : elsewhere);
    for (const std::string& kind : made.kinds)
        if (kind != "none") static_cast<void>(ffn_kind_of(kind));
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
    copy.visit([&](const char* name, auto& value, const auto&...) {
        std::ostringstream text;
        text.precision(17);
        text << value;
        texts[name] = text.str();
    });
    return texts;
}

run_options run_options::from_texts(const std::map<std::string, std::string>& texts) {
    run_options made;
    made.visit([&](const char* name, auto& value, const auto&... range) {
        const auto at = texts.find(name);
        if (at == texts.end()) throw std::runtime_error(std::string("does not tell ") + name);
        if constexpr (sizeof...(range) == 0) {
            value = at->second;
        } else {
            const auto read = (range.read(at->second), ...);
            if (!read) throw std::runtime_error(std::string(name) + ": " + (range.wrong(at->second), ...));
            value = *read;
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
