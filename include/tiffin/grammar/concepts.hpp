// The concepts of the library, one per role.
//
//   a layer is one formula over sources:  y = norm( down( fusion( phi(gate), up ) ) )
//
//   role        what it is                                           directories
//   activation  z -> phi(z)                                          activation/
//   router      token -> experts and their weights                   router/
//   fusion      (g, u) -> h                                          fusion/
//   norm        a row -> a row                                       norm/
//   source      (x, token ids) -> one value per token and feature    source/, modulator/
//   block       a source as wide as the model                        block/
//   format      how numbers are stored                               format/
//   executor    what runs the tasks of a call                        executor/executor.hpp
//   backend     how a block is computed                              reference/, cpu/, cuda/
//
// Policies define formulas, backends how they are run. Policies include nothing of a backend.
#pragma once

#include <tiffin/config.hpp>
#include <tiffin/grammar/tensor_kinds.hpp>
#include <tiffin/tensor.hpp>

#include <concepts>
#include <cstddef>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

TIFFIN_BEGIN

// z -> phi(z), as one template over the scalar: double, float, a SIMD register.
template <class A>
concept activation_policy = std::copyable<A> && requires(const A& phi, double z) {
    { phi(z) } -> std::convertible_to<double>;
    { phi.flops() } -> std::convertible_to<double>;
};

// (g, u) -> h, joins the values of the gate and of the up source, as one template over the scalar.
template <class F>
concept fusion_policy = std::copyable<F> && requires(const F& fuse, double g, double u) {
    { fuse(g, u) } -> std::convertible_to<double>;
    { fuse.flops() } -> std::convertible_to<double>;
};

// A row is normalised in two steps: `scale` of its sum of squares and length, then
// x -> norm(x, scale, weight) element by element. `weighted`: whether a weight (d_model) is read.
template <class N>
concept norm_policy = std::copyable<N> && requires(const N& norm, double v) {
    { N::weighted } -> std::convertible_to<bool>;
    { norm.scale(v, v) } -> std::convertible_to<double>;
    { norm(v, v, v) } -> std::convertible_to<double>;
    { norm.flops() } -> std::convertible_to<double>;
};

// A place (the argument `at` of formulas) whose tensors are all 0: the concepts test formulas on it.
struct archetype_place {
    template <tensor_declaration Tensor>
    TIFFIN_HD double operator[](Tensor) const {
        return 0;
    }
};

// What a backend does for a source beside evaluating its formula is selected by `using source_role = ...`, never by
// the name of a member. A source without a role is a formula over its tensors and parts.
struct chain_role {};     // its parts are computed one after the other, for whole rows (see through.hpp)
struct row_norm_role {};  // it normalises the row of its one part (see normed.hpp)
struct row_dot_role {};   // it is gated by the product of the rows of its first two parts (see dot_gated.hpp)
struct routed_role {};    // a leaf that reads experts that its `router` chose (see routed_low_rank.hpp)

// Its rows are computed by an engine of its own, which writes them to their destination.
struct row_role {};
struct mixture_role : row_role {};   // tokens are grouped by the expert that its `router` chose (mixture.hpp)
struct residual_role : row_role {};  // its part reads the residual instead of x (see on_residual.hpp)
struct delay_role : row_role {};     // the rows of its part are returned calls later (see delayed.hpp)
struct repeated_role : row_role {};  // the sum of as many parts as there are at run time (parallel.hpp)
struct runtime_role : row_role {};   // known only at run time, its plan made of a text (see composition.hpp)

// The formula of a source that does not write it as code, set by `using formula_is = ...`: the sum of its tensors and
// parts; or `formula()`, a policy, of its parts' values. The argument is the source itself, as a class derived from it
// may have another formula.
template <class Source>
struct sum_of_values {};
template <class Source>
struct policy_of_values {};

namespace detail {

template <class S, class Role>
concept has_role = requires {
    requires std::derived_from<typename S::source_role, Role>;
};
template <class S>
concept is_sum_of_values = requires {
    requires std::same_as<typename S::formula_is, sum_of_values<S>>;
};
template <class S>
concept is_policy_of_values = requires {
    requires std::same_as<typename S::formula_is, policy_of_values<S>>;
};

}  // namespace detail

// A source that reads tensors: a list of them and a formula over `at`, the point (token, feature) being computed.
template <class S>
concept leaf_source = std::copyable<S> && requires(const S& s, const archetype_place& at) {
    S::tensors::size;
    { s(at) } -> std::convertible_to<double>;
};

// A source made of sources: its parts and a formula over their values; it may have tensors of its own.
template <class S>
concept composite_source = std::copyable<S> && requires(const S& s) {
    std::tuple_size<std::remove_cvref_t<decltype(s.parts())>>::value;
    { s.flops() } -> std::convertible_to<double>;
};

// Either may reject an option of its own that has no default: `status check() const`, called by prepare().
template <class S>
concept source_policy = leaf_source<S> || composite_source<S>;

// A source whose parts are computed one after the other for a whole row, each reading the row of the one before. The
// tensors of all but the first are named after `scope`.
template <class S>
concept chained_source = composite_source<S> && detail::has_role<S, chain_role>;

// A node that normalises the row of its one part by its `norm`: its list of tensors begins with row_scale.
template <class S>
concept row_normed_source = composite_source<S> && detail::has_role<S, row_norm_role>;

// A node that is gated by the dot product of the rows of its first two parts: `scale(dot, width)`.
template <class S>
concept row_dotted_source = composite_source<S> && detail::has_role<S, row_dot_role>;

// A node that is multiplied by one scalar per token row.
template <class S>
concept row_scaled_source = row_normed_source<S> || row_dotted_source<S>;

// A node whose rows an engine of its own computes: its list of tensors begins with `computed`.
template <class S>
concept row_source = composite_source<S> && detail::has_role<S, row_role>;

// Chooses experts for a token and gives each a weight: from logits (learned_router) or from a map.
template <class R>
concept router_policy = std::copyable<R> && requires {
    R::tensors::size;
};

// A router that computes its choice, as templates over the scalar: score(values, n) turns all logits, in place, into
// the scores that the choice compares; weigh(logits, weights, n) gets the logits of the chosen experts and, in
// `weights`, their scores, and replaces these by the weights.
template <class R>
concept learned_router = router_policy<R> &&
    requires(const R& r, const double* logits, double* values, std::size_t n) {
    { r.top_k } -> std::convertible_to<std::size_t>;
    r.score(values, n);
    r.weigh(logits, values, n);
};

// A router of table rows (`static constexpr bool chooses_rows = true`). It chooses them by keys, in pick() per head
// from the scores of two halves of a query (see product_keys.hpp), or by the token id (row_range.hpp). It may reweight
// them by the products of their row_keys with its input: `gate(products, weights, n)` (gated_rows.hpp).
template <class R>
concept row_router = router_policy<R> && requires {
    requires R::chooses_rows;
};
template <class R>
concept key_router = row_router<R> && requires(const R& r) {
    { r.top_k } -> std::convertible_to<std::size_t>;
};
template <class R>
concept gating_router = row_router<R> &&
    requires(const R& r, const double* products, double* weights, std::size_t n) {
    r.gate(products, weights, n);
};

// A value of top_k: all experts, in index order.
inline constexpr std::size_t every_expert = ~std::size_t{0};

// How many experts a router chooses for a token.
template <learned_router Router>
TIFFIN_HD constexpr std::size_t choices_among(const Router& router, std::size_t experts) noexcept {
    return router.top_k == every_expert ? experts : router.top_k;
}

// A leaf that reads experts chosen for the token.
template <class S>
concept routed_source = leaf_source<S> && detail::has_role<S, routed_role>;

// A source whose `router` chooses: for a leaf, or among the parts of a mixture.
template <class S>
concept routing_source = detail::has_role<S, routed_role> || detail::has_role<S, mixture_role>;

// A source with parts of one type, their number set at run time: repeated(i), named by repeated_scope(i).
template <class S>
concept repeating_source = detail::has_role<S, mixture_role> || detail::has_role<S, repeated_role>;

// What a layer is made of, and what a backend can prepare: a source as wide as the model.
template <class B>
concept block_policy = source_policy<B>;

// A block whose output is not d_model wide if it is the whole layer: `static constexpr bool own_width = true`.
template <class B>
concept own_width_block = block_policy<B> && requires {
    requires B::own_width;
};

TIFFIN_END
