// Checks of the arguments of a call.
#pragma once

#include <tiffin/bind/binder.hpp>
#include <tiffin/bind/bound.hpp>
#include <tiffin/call/call_arguments.hpp>
#include <tiffin/error.hpp>
#include <tiffin/view.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

TIFFIN_BEGIN

namespace detail {

// Checks a matrix that must be given: one row per token, of its own width.
template <class T>
status check_matrix(const matrix_view<T>& given, const char* name, std::size_t rows, std::size_t width) {
    if (given.data == nullptr && rows > 0)
        return failure(errc::size, name, "missing; the block reads it with shape (", rows, ", ", width, ")");
    if (given.rows != rows || (given.cols != width && rows > 0))
        return failure(errc::size, name, "has shape (", given.rows, ", ", given.cols, "); it must be (", rows,
                       ", ", width, ")");
    if (given.stride < width && given.rows > 1)
        return failure(errc::size, name, "has a row stride of ", given.stride, ", less than its width ",
                       width);
    return {};
}
inline status check_input(const matrix_view<const float>& given, const char* name, std::size_t width,
                          const matrix_view<const float>& x, const matrix_view<float>& y) {
    if (status s = check_matrix(given, name, x.rows, width); !s) return s;
    if (matrices_overlap(given, y)) return failure(errc::overlap, "y", "overlaps ", name);
    return {};
}
// The residual may be y itself: it is copied before y is written.
inline status check_residual(const matrix_view<const float>& given, std::size_t width,
                             const matrix_view<const float>& x, const matrix_view<float>& y) {
    if (is_same_matrix(given, y)) return check_matrix(given, "residual", x.rows, width);
    return check_input(given, "residual", width, x, y);
}

// Token ids: one per token, or none if the block reads none.
inline status check_ids_given(const call_needs& needs, std::size_t ids, std::size_t tokens) {
    if (ids == tokens || (ids == 0 && needs.tables.empty())) return {};
    return failure(errc::size, "token_ids", "has ", ids, " ids for the ", tokens, " tokens of x");
}

// `table`: a table_size, or a gathered_table.
template <class Table>
status check_ids_in(const Table& table, std::span<const std::int32_t> ids) {
    for (std::size_t i = 0; i < ids.size(); ++i)
        if (ids[i] < 0 || static_cast<std::size_t>(ids[i]) >= table.vocab)
            return failure(errc::token_id, table.name, "token_ids[", i, "] = ", ids[i], " lies outside its ",
                           table.vocab, " rows");
    return {};
}

// Room for the choices of all tokens, or none.
inline status check_routes_given(const call_needs& needs, std::size_t routes, std::size_t tokens) {
    if (routes == 0 || routes == tokens * needs.choices) return {};
    return failure(errc::size, "routes", "has room for ", routes, " choices; ", tokens, " tokens make ",
                   needs.choices, " each");
}

inline status check_carried(const call_needs& needs, const carried_residuals* carried, std::size_t tokens) {
    if (needs.delay == 0) return {};
    if (carried == nullptr)
        return failure(errc::size, "carried", "missing; a delayed block needs carried_residuals(",
                       needs.delay, ", tokens, d_model)");
    return carried->check(needs.delay, tokens, needs.d_model);
}

// Checks that a gathered table is among those of the call, for these tokens, in its format.
inline status check_gathered_form(const gathered_table& table, std::span<const gathered_rows> all,
                                  std::size_t tokens) {
    if (table.number > all.size())
        return failure(errc::size, table.name, "is to come with the call as table ", table.number,
                       " of `gathered`, which has ", all.size());
    const gathered_rows& rows = all[table.number - 1];
    if (rows.type != table.type || rows.width != table.width)
        return failure(errc::dtype, table.name, "was gathered as rows of ", rows.width, " ",
                       name_of(rows.type), "; the layer reads ", table.width, " ", name_of(table.type));
    if (!rows.scales.stored_as(table.scales))
        return failure(errc::dtype, table.name, "was gathered with ", rows.scales.text(),
                       "; the layer reads rows with ", table.scales.text());
    if (rows.index.size() == tokens * table.rows_per_token()) return {};
    if (table.choices == 0)
        return failure(errc::size, table.name, "was gathered for ", rows.index.size(),
                       " tokens; the call has ", tokens);
    return failure(errc::size, table.name, "was gathered for ", rows.index.size(), " choices; ", tokens,
                   " tokens make ", table.choices, " each");
}

// Checks the memory of gathered rows: alignment, and overlap with y.
template <class Y>
status check_gathered_memory(const gathered_table& table, const gathered_rows& rows,
                             const matrix_view<Y>& y) {
    const std::size_t number =
        with_given_format(rows.type, [](auto format) { return alignof(typename decltype(format)::storage); });
    if (reinterpret_cast<std::uintptr_t>(rows.data) % number != 0 || rows.stride % number != 0)
        return failure(errc::size, table.name, "has gathered rows that do not lie at multiples of ", number,
                       " bytes");
    if (ranges_overlap(rows.data, rows.bytes(), y.data, bytes_of_rows(y)) ||
        ranges_overlap(rows.index.data(), rows.index.size_bytes(), y.data, bytes_of_rows(y)))
        return failure(errc::overlap, "y", "overlaps the gathered rows of ", table.name);
    return {};
}
// Checks the row index of each token.
inline status check_gathered_index(const gathered_table& table, const gathered_rows& rows) {
    for (std::size_t t = 0; t < rows.index.size(); ++t)
        if (rows.index[t] < 0 || static_cast<std::size_t>(rows.index[t]) >= rows.count)
            return failure(errc::token_id, table.name, "index[", t, "] = ", rows.index[t],
                           " lies outside its ", rows.count, " gathered rows");
    return {};
}

// Checks that y is x itself or does not overlap it, and overlaps no other input and not the recorded routes.
template <class X, class Y, class Inputs>
status check_overlap(const matrix_view<X>& x, const Inputs& inputs, const matrix_view<Y>& y) {
    const auto lies_in_y = [&](const void* data, std::size_t bytes) {
        return ranges_overlap(data, bytes, y.data, bytes_of_rows(y));
    };
    if (!is_same_matrix(x, y) && matrices_overlap(x, y))
        return failure(errc::overlap, "y", "overlaps x and is not x itself");
    if (lies_in_y(inputs.token_ids.data(), inputs.token_ids.size_bytes()))
        return failure(errc::overlap, "y", "overlaps token_ids");
    if (lies_in_y(inputs.routes.data(), inputs.routes.size_bytes()))
        return failure(errc::overlap, "y", "overlaps routes");
    return {};
}

// All checks of a call except that of its workspace.
inline status check_call(const call_needs& needs, const matrix_view<const float>& x,
                         const token_inputs& inputs, const matrix_view<float>& y) {
    const auto& ids = inputs.token_ids;
    if (y.rows != x.rows)
        return failure(errc::size, "y", "has ", y.rows, " rows for the ", x.rows, " tokens of x");
    if (status s = check_ids_given(needs, ids.size(), x.rows); !s) return s;
    if (status s = check_routes_given(needs, inputs.routes.size(), x.rows); !s) return s;
    if (needs.residual)
        if (status s = check_residual(inputs.residual, needs.d_model, x, y); !s) return s;
    if (needs.given_width != 0)
        if (status s = check_input(inputs.per_layer_input, "per_layer_input", needs.given_width, x, y); !s)
            return s;
    if (status s = check_carried(needs, inputs.carried, x.rows); !s) return s;
    for (const table_size& table : needs.tables)
        if (status s = check_ids_in(table, ids); !s) return s;
    for (const gathered_table& table : needs.gathered) {
        if (status s = check_gathered_form(table, inputs.gathered, x.rows); !s) return s;
        const gathered_rows& rows = inputs.gathered[table.number - 1];
        if (status s = check_gathered_index(table, rows); !s) return s;
        if (status s = check_gathered_memory(table, rows, y); !s) return s;
    }
    return check_overlap(x, inputs, y);
}

}  // namespace detail

TIFFIN_END
