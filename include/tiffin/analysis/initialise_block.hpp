// Initial values of all tensors of a block, each by its paper's initialiser.
#pragma once

#include <tiffin/analysis/initialise.hpp>
#include <tiffin/error.hpp>
#include <tiffin/named_memory.hpp>
#include <tiffin/plan/tensors_needed.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

TIFFIN_BEGIN

struct initial_values {
    std::size_t layers = 0;  // of the model; no default: the standard deviation depends on it
    std::uint64_t seed = 0;
    float scale = 1;            // of a modulator: 1 from scratch, 0 where it is added to a trained model
    bool banks_by_rank = true;  // SmallInit of a bank's B: n is the rank; else d_model, the other reading
    bool down_by_model =
        true;  // DeepNorm of W2: n is d_model; else the features that it reads, the other reading
};

namespace detail {

// The standard deviation of a tensor's initial values, which are normal with mean 0.
inline double initial_sigma(std::string_view owner, const sized_tensor& t, std::size_t d_model,
                            const initial_values& how) {
    const auto small_init = [](std::size_t n) { return std::sqrt(2 / (5 * static_cast<double>(n))); };
    const std::size_t columns = t.shape[t.shape.rank() - 1];
    switch (t.kind) {
        case tensor_kind::table:
        case tensor_kind::pool:
            return std::sqrt(2 / static_cast<double>(t.shape[t.shape.rank() - 2] + columns));
        case tensor_kind::low_rank_out: return small_init(how.banks_by_rank ? columns : d_model);
        case tensor_kind::projection:
            if ((owner == "down_proj" || owner == "out_proj") && t.width == d_model)
                return 2 / (static_cast<double>(how.layers) *
                            std::sqrt(static_cast<double>(how.down_by_model ? d_model : columns)));
            return small_init(columns);
        default: return small_init(columns);
    }
}

inline bool starts_random(tensor_kind kind) noexcept {
    return !is_map(kind) && kind != tensor_kind::selection_bias && kind != tensor_kind::vector &&
           kind != tensor_kind::scalar;
}

// FNV-1a: a seed for each name, the same on every machine.
inline std::uint64_t seed_of(std::string_view name, std::uint64_t seed) {
    std::uint64_t hash = 0xcbf29ce484222325u ^ seed;
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return hash;
}

}  // namespace detail

// Fills every tensor of a block that `to` has memory for, by its name after `prefix`.
//
// | tensor | starting values | source |
// |---|---|---|
// | projections, a bank's A, routers | SmallInit, N(0, 2 / (5 n)), n the features read | StructMoE; of mixtures and MoRT ours |
// | a bank's B | the same, n the rank (banks_by_rank) | StructMoE, its reading is ours |
// | down_proj, out_proj as wide as the model | DeepNorm, sigma = 2 / (layers sqrt(d_model)) (down_by_model) | StructMoE; out_proj ours |
// | tables | xavier normal, N(0, 2 / (V + width)) | STEM's code |
// | memories, word embeddings, modulators | the same | ours: norms make most of them scale-invariant |
// | a modulator's scale | initial_values::scale | ours: not given in the papers |
// | alpha, beta, weights of norms | 1; 0 where the norm adds 1 | MeKi's code |
// | biases, selection biases | 0 | ours |
//
// Maps of experts are the caller's (analysis/balanced_map.hpp). Memory that is null is not filled: see initialise_part().
// Numerics: those of fill_normal; the values depend on the seed and on the tensor's whole name, and on nothing else.
// Errors: errc::option for 0 layers, errc::missing_tensor for a required tensor without memory, errc::shape; found before
//   anything is written. Source: docs/layers.md#initialisers.
inline status initialise(const plan_node& block, const block_shape& sizes, const named_memory<float>& to,
                         const initial_values& how, const std::string& prefix = {}) {
    if (how.layers == 0)
        return failure(errc::option, "layers", "is 0; it has no default: it counts the layers of the model");
    status checked;
    visit_tensors(block, sizes, prefix,
                  [&](const auto& at, std::string_view owner, std::string_view leaf, const sized_tensor& t) {
                      const std::string name = detail::tensor_name(at.prefix, owner, leaf);
                      const auto* const given = to.find(name);
                      if (!checked || is_map(t.kind)) return;
                      // A scalar's shape may be () or (1).
                      const bool flat = t.kind == tensor_kind::scalar && given != nullptr &&
                                        given->shape == shape(std::size_t{1});
                      if (given == nullptr && t.needed == presence::required)
                          checked =
                              failure(errc::missing_tensor, name, "has no memory for its starting values");
                      else if (given != nullptr && !flat && !(given->shape == t.shape))
                          checked = failure(errc::shape, name, "has shape ", to_string(given->shape),
                                            "; the block's is ", to_string(t.shape));
                  });
    if (!checked) return checked;
    visit_tensors(block, sizes, prefix,
                  [&](const auto& at, std::string_view owner, std::string_view leaf, const sized_tensor& t) {
                      const std::string name = detail::tensor_name(at.prefix, owner, leaf);
                      const auto* const given = to.find(name);
                      if (given == nullptr || given->data == nullptr || is_map(t.kind)) return;
                      const std::span<float> values(given->data, t.shape.elements());
                      if (detail::starts_random(t.kind))
                          fill_normal(values, detail::initial_sigma(owner, t, sizes.d_model, how),
                                      detail::seed_of(name, how.seed));
                      else if (t.kind == tensor_kind::selection_bias)
                          std::fill(values.begin(), values.end(), 0.0f);
                      else
                          std::fill(values.begin(), values.end(),
                                    leaf == "scale" ? how.scale : static_cast<float>(t.neutral));
                  });
    return {};
}
// Fills a part of one tensor of a block that is a matrix, a table or a pool: values `first` on of those that initialise()
// gives it, so that a rank starts with its own rows of a table alone.
// Errors: errc::option for 0 layers, errc::missing_tensor where the block has no such tensor that starts with random values,
//   errc::size for values beyond its end; found before anything is written. Numerics: those of initialise().
inline status initialise_part(const plan_node& block, const block_shape& sizes, std::string_view name,
                              std::size_t first, std::span<float> to, const initial_values& how,
                              const std::string& prefix = {}) {
    if (how.layers == 0) return failure(errc::option, "layers", "is 0; it counts the layers of the model");
    status done = failure(errc::missing_tensor, std::string(name),
                          "is no tensor of the block that starts with random values");
    visit_tensors(
        block, sizes, prefix,
        [&](const auto& at, std::string_view owner, std::string_view leaf, const sized_tensor& t) {
            if (detail::tensor_name(at.prefix, owner, leaf) != name || !detail::starts_random(t.kind)) return;
            const std::size_t n = t.shape.elements();
            if (first > n || to.size() > n - first)
                done = failure(errc::size, std::string(name), "has ", n, " values; ", to.size(), " from ",
                               first, " on were asked for");
            else {
                fill_normal(to, detail::initial_sigma(owner, t, sizes.d_model, how),
                            detail::seed_of(name, how.seed), first);
                done = {};
            }
        });
    return done;
}
template <block_policy Block>
status initialise(const Block& block, const block_shape& sizes, const named_memory<float>& to,
                  const initial_values& how, const std::string& prefix = {}) {
    return initialise(lower(block), sizes, to, how, prefix);
}

TIFFIN_END
