// The kinds of tensor that a source may read, and how a formula refers to them.
#pragma once

#include <tiffin/config.hpp>
#include <tiffin/fixed_string.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

TIFFIN_BEGIN

// How a backend reads a tensor, and so what `at[tensor]` means in a formula.
enum class tensor_kind : std::uint8_t {
    projection,
    table,
    vector,
    scalar,
    // Read by a routed source (see router/): `choices` are the experts chosen for the token.
    logits,
    selection_bias,
    route_map,
    low_rank_in,
    low_rank_out,
    pool,
    // Read by a router of table rows, and the rows (see router/product_keys.hpp, row_range.hpp, gated_rows.hpp).
    query,
    query_bias,
    half_keys,
    row_ranges,
    row_keys,
    chosen_rows,
    // Not stored: computed once per token, or given with a call.
    row_scale,
    computed,
    given,
    row_width,
    input_row,
    residual_row,
};

// Whether tensors of this kind have memory of their own among a layer's weights.
constexpr bool is_stored(tensor_kind kind) noexcept {
    return kind < tensor_kind::row_scale;
}

// Whether it has a row per choice of a row router, not one per token and expert.
constexpr bool has_row_per_choice(tensor_kind kind) noexcept {
    return kind == tensor_kind::row_keys || kind == tensor_kind::chosen_rows;
}
// Whether it is a table of which a token reads some rows; whether it holds the integers that select them.
constexpr bool holds_rows(tensor_kind kind) noexcept {
    return kind == tensor_kind::table || kind == tensor_kind::pool || has_row_per_choice(kind);
}
// Table rows that a formula reads; keys of rows are read by their router.
constexpr bool is_row_value(tensor_kind kind) noexcept {
    return holds_rows(kind) && kind != tensor_kind::row_keys;
}
constexpr bool is_map(tensor_kind kind) noexcept {
    return kind == tensor_kind::route_map || kind == tensor_kind::row_ranges;
}

// Whether the whole tensor is multiplied with the source's input, or with a query made from it.
constexpr bool is_weight(tensor_kind kind) noexcept {
    using enum tensor_kind;
    return kind == projection || kind == logits || kind == low_rank_in || kind == query || kind == half_keys;
}

// Whether it yields a row unchanged: the source's input or the residual.
constexpr bool reads_row(tensor_kind kind) noexcept {
    return kind == tensor_kind::input_row || kind == tensor_kind::residual_row;
}

// The size of one axis. `width` and `input` are the features that a source yields and reads (see parts.hpp).
// `experts` and `rank` are one size in all tensors of one source, `vocab` in all sources of one scope.
// `choices` are free for each tensor. Of product keys: `queries` values per token in `groups` of `half`, and
// `keys` per group; `experts` are then the table rows. `bounds` are two.
enum class axis : std::uint8_t {
    width,
    input,
    vocab,
    experts,
    rank,
    choices,
    queries,
    groups,
    keys,
    half,
    bounds
};

enum class presence : std::uint8_t { required, optional };

namespace detail {

template <fixed_string Name, tensor_kind Kind, presence Needed, axis... Axes>
struct declared_tensor {
    static constexpr std::string_view name = text_of<Name>;
    static constexpr tensor_kind kind = Kind;
    static constexpr presence needed = Needed;
    static constexpr std::array<axis, sizeof...(Axes)> axes{{Axes...}};
};

}  // namespace detail

// A dense weight W (width, input): `at[w]` is sum_k x[k] W[feature][k], x being the source's input.
// Cost: 2 input FLOPs per element.
template <fixed_string Name>
struct projection
    : detail::declared_tensor<Name, tensor_kind::projection, presence::required, axis::width, axis::input> {};

// A token-indexed table U (vocab, width): `at[u]` is U[token id][feature]. Cost: one row per token.
template <fixed_string Name>
struct table
    : detail::declared_tensor<Name, tensor_kind::table, presence::required, axis::vocab, axis::width> {};

// One value per feature, v (width): `at[v]` is v[feature]; 0 where it is optional and not given.
template <fixed_string Name, presence Needed = presence::required>
struct vector : detail::declared_tensor<Name, tensor_kind::vector, Needed, axis::width> {};

// One value, of shape () or (1): `at[a]` is that value everywhere.
template <fixed_string Name>
struct scalar : detail::declared_tensor<Name, tensor_kind::scalar, presence::required> {};

// The weight of a router (experts, input), and the bias added to the scores that its choice compares.
template <fixed_string Name>
struct logits
    : detail::declared_tensor<Name, tensor_kind::logits, presence::required, axis::experts, axis::input> {};
template <fixed_string Name>
struct selection_bias
    : detail::declared_tensor<Name, tensor_kind::selection_bias, presence::optional, axis::experts> {};

// The experts per token id, integers (vocab) or (vocab, choices).
template <fixed_string Name>
struct route_map
    : detail::declared_tensor<Name, tensor_kind::route_map, presence::required, axis::vocab, axis::choices> {
};

// The two halves of a bank of low-rank matrices, A (experts, rank, input) and B (experts, width, rank).
// `at[b]` is sum over choices (e, w) of w sum_r (A_e x)[r] B_e[feature][r]. Cost: 2 choices rank
// (input + width) FLOPs per token.
template <fixed_string Name>
struct low_rank_in : detail::declared_tensor<Name, tensor_kind::low_rank_in, presence::required,
                                             axis::experts, axis::rank, axis::input> {};
template <fixed_string Name>
struct low_rank_out : detail::declared_tensor<Name, tensor_kind::low_rank_out, presence::required,
                                              axis::experts, axis::width, axis::rank> {};

// One table per expert, E (experts, vocab, width): `at[e]` is sum over choices (i, w) of
// w E_i[token id][feature]. Cost: `choices` rows per token.
template <fixed_string Name>
struct pool : detail::declared_tensor<Name, tensor_kind::pool, presence::required, axis::experts, axis::vocab,
                                      axis::width> {};

// The query projection of a token, W (queries, input) and a bias, and the keys (groups, keys, half) that the parts of
// the query are multiplied with: two groups per head.
template <fixed_string Name>
struct query
    : detail::declared_tensor<Name, tensor_kind::query, presence::required, axis::queries, axis::input> {};
template <fixed_string Name>
struct query_bias
    : detail::declared_tensor<Name, tensor_kind::query_bias, presence::optional, axis::queries> {};
template <fixed_string Name>
struct half_keys : detail::declared_tensor<Name, tensor_kind::half_keys, presence::required, axis::groups,
                                           axis::keys, axis::half> {};

// The rows [begin, end) per token id, integers (vocab, 2).
template <fixed_string Name>
struct row_ranges
    : detail::declared_tensor<Name, tensor_kind::row_ranges, presence::required, axis::vocab, axis::bounds> {
};

// Table rows that a row router chooses among: keys K (experts, input), whose dot products with the source's input
// weight the chosen rows, and values V (experts, width): `at[v]` is the sum over choices (i, w) of w V[i][feature].
// Cost: `choices` rows per token.
template <fixed_string Name>
struct row_keys
    : detail::declared_tensor<Name, tensor_kind::row_keys, presence::required, axis::experts, axis::input> {};
template <fixed_string Name>
struct chosen_rows : detail::declared_tensor<Name, tensor_kind::chosen_rows, presence::required,
                                             axis::experts, axis::width> {};

// Computed once per token: the scale of a row, and the row of a part.
struct row_scale : detail::declared_tensor<"", tensor_kind::row_scale, presence::optional> {};
struct computed : detail::declared_tensor<"", tensor_kind::computed, presence::optional, axis::width> {};

// The number of features of the row, the same everywhere: `at[row_width{}]` is width.
struct row_width : detail::declared_tensor<"", tensor_kind::row_width, presence::optional> {};

// A row (T, width) that the caller gives with each call (see token_inputs).
struct given : detail::declared_tensor<"", tensor_kind::given, presence::optional, axis::width> {};

// The row (T, width) of the source's input, and that of the residual stream (see source_input.hpp, residual_input.hpp).
struct input_row : detail::declared_tensor<"", tensor_kind::input_row, presence::optional, axis::width> {};
struct residual_row
    : detail::declared_tensor<"", tensor_kind::residual_row, presence::optional, axis::width> {};

template <class T>
concept tensor_declaration = requires {
    { T::name } -> std::convertible_to<std::string_view>;
    { T::kind } -> std::convertible_to<tensor_kind>;
    { T::needed } -> std::convertible_to<presence>;
    T::axes.size();
};

// The tensors of one source, in an order of its choice.
template <tensor_declaration... Tensors>
struct tensor_list {
    static constexpr std::size_t size = sizeof...(Tensors);

    template <class T>
    static constexpr bool contains = (std::same_as<T, Tensors> || ...);

    // The index of T. Precondition: contains<T>.
    template <class T>
    static constexpr std::size_t index_of() noexcept {
        std::size_t i = 0;
        static_cast<void>(((std::same_as<T, Tensors> || (++i, false)) || ...));
        return i;
    }
};

namespace detail {

template <class... Lists>
struct joined;
template <class... A>
struct joined<tensor_list<A...>> {
    using type = tensor_list<A...>;
};
template <class... A, class... B, class... Rest>
struct joined<tensor_list<A...>, tensor_list<B...>, Rest...> : joined<tensor_list<A..., B...>, Rest...> {};

}  // namespace detail

// The tensors of several lists, in their order.
template <class... Lists>
using joined_tensors = typename detail::joined<Lists...>::type;

TIFFIN_END
