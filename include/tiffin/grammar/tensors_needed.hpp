// The tensors of any block at given sizes: what initialising, costing and testing a block go through.
#pragma once

#include <tiffin/grammar/parts.hpp>
#include <tiffin/tensor.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

TIFFIN_BEGIN

// The sizes of a block. `inner` are the widths inside a chain (through.hpp), `choices` the width of a hash
// map, `parts` the sizes of the parts that have a scope ("base.", "branch.0.", "experts.", "shared."), in
// their order; null: the same sizes.
struct block_shape {
    std::size_t d_model = 0;
    std::size_t d_ff = 0;
    std::size_t vocab = 0;
    std::size_t experts = 1;
    std::size_t rank = 1;
    std::array<std::size_t, 2> inner{{1, 1}};
    std::size_t choices = 1;
    const block_shape* parts = nullptr;
    std::size_t outputs = 0;  // of a block with a width of its own
    std::size_t heads =
        1;  // of product keys, whose rows are `experts`, a square, and half a query's numbers `rank`

    [[nodiscard]] constexpr const block_shape& part(std::size_t i) const noexcept {
        return parts ? parts[i] : *this;
    }
};

// A tensor of a block at given sizes.
struct sized_tensor {
    tensor_kind kind = tensor_kind::projection;
    presence needed = presence::required;
    tiffin::shape shape;
    std::array<axis, 3> axes{};
    double share = 1;         // how often it is used for a token: top_k / experts in a mixture
    std::size_t choices = 1;  // experts that a token has, where the tensor is an expert's
    std::size_t width = 0;    // features of the source it belongs to
    std::size_t input = 0;    // features that this source reads
    double neutral = 0;       // of vectors and scalars: a bias of 0, a factor of 1, what changes nothing
};

namespace detail {

// Where a source of a block of given sizes stands.
template <class Prefix>
struct sized_place : standing<Prefix, std::size_t> {
    const block_shape* sizes = nullptr;
    double share = 1;
};

// The experts that the router of a source picks for a token; 0 where it has none.
template <class S>
constexpr std::size_t choices_of(const S& source, const block_shape& sizes) {
    if constexpr (routing_source<S>) {
        if constexpr (learned_router<router_of<S>>)
            return choices_among(source.router, sizes.experts);
        else if constexpr (key_router<router_of<S>>)
            return sizes.heads * source.router.top_k;
        else
            return sizes.choices;
    } else {
        return 0;
    }
}

template <class Prefix>
class sized_walk {
public:
    using place = sized_place<Prefix>;

    // Calls visit(source, place) for every source of the tree below s. Inner widths are taken from `inner` in
    // the order in which they come.
    template <source_policy S, class Visit>
    constexpr void visit_sources(const S& s, const place& at, const Visit& visit) {
        visit(s, at);
        if constexpr (composite_source<S>) {
            constexpr std::size_t repeated = repeating_source<S> ? 1 : 0;
            std::size_t scoped = repeated;
            for_parts(
                s, at, [&](std::string_view name, const place& where) { return size(name, where); },
                [&](const auto& part, place of) {
                    if constexpr (scoping_source<S> && !chained_source<S>) {
                        if (!S::scope(scoped - repeated).name.empty())
                            of = with_sizes(of, at.sizes->part(scoped));
                        ++scoped;
                    }
                    visit_sources(part, of, visit);
                });
            if constexpr (repeated != 0) {
                std::size_t count = at.sizes->experts;
                if constexpr (requires { s.repetitions(); }) count = s.repetitions();
                const std::size_t before = inner_;  // all parts have the same widths inside
                for (std::size_t e = 0; e < count; ++e) {
                    inner_ = before;
                    place of = with_sizes(at, at.sizes->part(0));
                    of.prefix = extended(at.prefix, S::repeated_scope(e));
                    if constexpr (routing_source<S>)
                        of.share *=
                            static_cast<double>(choices_of(s, *at.sizes)) / static_cast<double>(count);
                    visit_sources(s.repeated(e), of, visit);
                }
            }
        }
    }
    template <class Block>
    static constexpr place whole(const Block&, const block_shape& sizes, const Prefix& prefix) {
        place at{};
        at.prefix = prefix;
        at.width = at.input = at.d_model = sizes.d_model;
        if (own_width_block<Block>) at.width = sizes.outputs;
        return with_sizes(at, sizes);
    }

private:
    static constexpr place with_sizes(place at, const block_shape& sizes) {
        at.sizes = &sizes;
        at.vocab = sizes.vocab;
        return at;
    }
    constexpr std::size_t size(std::string_view name, const place& at) {
        if (name == "d_ff") return at.sizes->d_ff;
        if (name == "vocab") return at.sizes->vocab;
        return at.sizes->inner[std::min<std::size_t>(inner_++, 1)];
    }

    std::size_t inner_ = 0;
};

// What leaves the values around a tensor as they are, where it is a number per feature or one for all.
template <class Tensor, class S>
constexpr double neutral_of() {
    if (Tensor::needed == presence::optional) return 0;
    // A norm may say that its weight is another: `static constexpr double neutral_weight`.
    if constexpr (requires { std::remove_cvref_t<decltype(S::norm)>::neutral_weight; })
        return std::remove_cvref_t<decltype(S::norm)>::neutral_weight;
    return 1;
}

constexpr std::size_t root_of(std::size_t square) noexcept {
    std::size_t root = 0;
    while ((root + 1) * (root + 1) <= square) ++root;
    return root;
}

constexpr std::size_t size_of_axis(axis a, const auto& at) noexcept {
    const block_shape& sizes = *at.sizes;
    switch (a) {
        case axis::width: return at.width;
        case axis::input: return at.input;
        case axis::vocab: return at.vocab;
        case axis::experts: return sizes.experts;
        case axis::rank:
        case axis::half: return sizes.rank;
        case axis::choices: return sizes.choices;
        case axis::queries: return 2 * sizes.heads * sizes.rank;
        case axis::groups: return 2 * sizes.heads;
        case axis::keys: return root_of(sizes.experts);
        case axis::bounds: return 2;
    }
    return 0;
}

inline std::string tensor_name(const std::string& prefix, std::string_view owner, std::string_view leaf) {
    std::string name = prefix;
    for (const std::string_view part : {owner, leaf})
        if (!part.empty()) name.append(name.size() > prefix.size() ? "." : "").append(part);
    return name;
}

}  // namespace detail

// Calls visit(place, owner, leaf, sized_tensor) for every stored tensor of the block: it is called
// "<place.prefix><owner>.<leaf>" without what is empty. Prefix: a string, or any type with extended().
template <block_policy Block, class Prefix, class Visit>
constexpr void visit_tensors(const Block& block, const block_shape& sizes, const Prefix& prefix,
                             const Visit& visit) {
    detail::sized_walk<Prefix> walk;
    walk.visit_sources(block, walk.whole(block, sizes, prefix), [&](const auto& source, const auto& at) {
        using source_type = std::remove_cvref_t<decltype(source)>;
        [&]<class... Tensors>(tensor_list<Tensors...>) {
            [[maybe_unused]] const auto one = [&]<class Tensor>(std::type_identity<Tensor>) {
                const std::size_t choices = detail::choices_of(source, *at.sizes);
                sized_tensor sized{Tensor::kind, Tensor::needed,        {},       {},
                                   at.share,     choices ? choices : 1, at.width, at.input};
                if (Tensor::kind == tensor_kind::vector || Tensor::kind == tensor_kind::scalar)
                    sized.neutral = detail::neutral_of<Tensor, source_type>();
                for (std::size_t i = 0; i != Tensor::axes.size(); ++i) {
                    sized.axes[i] = Tensor::axes[i];
                    if (Tensor::axes[i] == axis::choices && at.sizes->choices == 1) continue;
                    sized.shape.push_back(detail::size_of_axis(Tensor::axes[i], at));
                }
                if (is_stored(Tensor::kind))
                    visit(at, detail::owner_name<source_type>(at.role), Tensor::name, sized);
            };
            (one(std::type_identity<Tensors>{}), ...);
        }(own_tensors_of<source_type>{});
    });
}

struct named_tensor {
    std::string name;
    sized_tensor tensor;
};

// The tensors of a block by name, with their shapes: what prepare() will ask for.
//
//     for (const auto& [name, t] : tensors_needed(stem{}, {.d_model = 8, .d_ff = 24, .vocab = 5})) ...
template <block_policy Block>
std::vector<named_tensor> tensors_needed(const Block& block, const block_shape& sizes) {
    std::vector<named_tensor> all;
    visit_tensors(block, sizes, std::string(),
                  [&](const auto& at, std::string_view owner, std::string_view leaf, const sized_tensor& t) {
                      all.push_back({detail::tensor_name(at.prefix, owner, leaf), t});
                  });
    return all;
}

TIFFIN_END
