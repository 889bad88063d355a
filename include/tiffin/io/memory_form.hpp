// Which form of a memory a layer file holds, by the tensors that are in it.
#pragma once

#include <tiffin/layers.hpp>
#include <tiffin/tensor.hpp>

#include <string>
#include <tuple>
#include <type_traits>

TIFFIN_BEGIN
namespace io {
namespace detail {

// Gives every norm inside a source the same eps.
template <class Source>
void set_eps(Source& source, float eps) {
    if constexpr (requires { source.norm.eps; }) source.norm.eps = eps;
    if constexpr (requires { source.input; }) set_eps(source.input, eps);
    if constexpr (requires { source.terms; })
        std::apply([&](auto&... term) { (set_eps(term, eps), ...); }, source.terms);
    if constexpr (requires { source.steps; })
        std::apply([&](auto&... step) { (set_eps(step, eps), ...); }, source.steps);
}

// Calls with(std::type_identity<Source>{}) for the memory whose tensors are called after `prefix`: without
// word embeddings the static one, without rows of its own the dynamic one, else both; with a norm before G
// where its weight is there, with one matrix for G where that is there.
template <class With>
auto with_memory_form(const weights& given, const std::string& prefix, const With& with) {
    const auto has = [&](const char* name) { return given.find(prefix + name) != nullptr; };
    if (!has("word_embed.weight")) return with(std::type_identity<static_memory>{});
    const auto with_g = [&]<class G>(std::type_identity<G>) {
        return has("memory.weight") ? with(std::type_identity<trained_memory<G>>{})
                                    : with(std::type_identity<dynamic_memory<G>>{});
    };
    if (has("word_proj.weight"))
        return has("word_norm.weight") ? with_g(std::type_identity<linear_word_memory<normed_word>>{})
                                       : with_g(std::type_identity<linear_word_memory<>>{});
    return has("word_norm.weight") ? with_g(std::type_identity<word_memory<normed_word>>{})
                                   : with_g(std::type_identity<word_memory<>>{});
}

}  // namespace detail
}  // namespace io
TIFFIN_END
