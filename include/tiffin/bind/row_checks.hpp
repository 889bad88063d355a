// Checks that every row that a row router can choose is in its table, and counts the choices per token.
#pragma once

#include <tiffin/bind/bound.hpp>
#include <tiffin/bind/tensor_checks.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

TIFFIN_BEGIN

namespace detail {

// The tensors of a row router among those of its source, with names; the name is empty if there is none. `rows`: one
// whose first axis is the table rows.
struct row_tensors {
    struct named_view {
        std::string name;
        tensor_view view;
    };
    named_view queries, keys, ranges, rows;

    row_tensors(std::span<const required_tensor> wanted, std::span<const tensor_view> tensors) {
        for (std::size_t i = 0; i < wanted.size(); ++i) switch (wanted[i].kind) {
                case tensor_kind::query: queries = {wanted[i].name, tensors[i]}; break;
                case tensor_kind::half_keys: keys = {wanted[i].name, tensors[i]}; break;
                case tensor_kind::row_ranges: ranges = {wanted[i].name, tensors[i]}; break;
                case tensor_kind::pool:
                case tensor_kind::row_keys:
                case tensor_kind::chosen_rows: rows = {wanted[i].name, tensors[i]}; break;
                default: break;
            }
    }
};

inline status check_keys(std::size_t top_k, const row_tensors& of, const std::string& prefix) {
    const shape& keys = of.keys.view.shape;
    const std::size_t groups = keys[0], n = keys[1];
    if (groups % 2 != 0)
        return failure(errc::shape, of.keys.name, "has shape ", to_string(keys),
                       "; a head has two groups of keys");
    if (of.queries.view.shape[0] != groups * keys[2])
        return failure(errc::shape, of.queries.name, "has shape ", to_string(of.queries.view.shape), "; ",
                       groups, " groups of keys of ", keys[2], " numbers are held against a query of ",
                       groups * keys[2]);
    if (top_k != 0 && top_k <= n) return {};
    return failure(errc::option, prefix + "top_k", "is ", top_k, "; there are ", n, " keys",
                   (top_k == 0 ? ", and it has no default" : ""));
}

// Checks that the table has exactly one row per pair of keys.
inline status check_key_rows(const row_tensors& of) {
    const std::size_t n = of.keys.view.shape[1], rows = of.rows.view.shape[0];
    if (n <= rows && n * n == rows) return {};
    return failure(errc::shape, of.rows.name, "has ", rows, " rows; ", n, " keys and ", n, " name ", n, " * ",
                   n);
}

inline status check_ranges(const tensor_view& ranges, const std::string& name, std::size_t rows) {
    if (ranges.shape.rank() != 2 || ranges.shape[1] != 2)
        return failure(errc::shape, name, "has shape ", to_string(ranges.shape),
                       "; it must be (vocab, 2), where the rows of an id begin and end");
    for (std::size_t id = 0; id < ranges.shape[0]; ++id) {
        const std::int64_t begin = load_integer(ranges, 2 * id), end = load_integer(ranges, 2 * id + 1);
        if (begin < 0 || end < begin || static_cast<std::uint64_t>(end) > rows)
            return failure(errc::option, name, "of id ", id, " are the rows [", begin, ", ", end,
                           "); there are ", rows);
    }
    return {};
}
// From checked ranges: begin and end of one id after the other, and the longest range, at least 1.
inline std::vector<std::int32_t> ranges_of(const tensor_view& checked) {
    std::vector<std::int32_t> made(checked.shape.elements());
    for (std::size_t i = 0; i < made.size(); ++i)
        made[i] = static_cast<std::int32_t>(load_integer(checked, i));
    return made;
}
inline std::size_t longest_range(const tensor_view& checked) {
    std::int64_t most = 1;
    for (std::size_t id = 0; id < checked.shape[0]; ++id)
        most = std::max(most, load_integer(checked, 2 * id + 1) - load_integer(checked, 2 * id));
    return static_cast<std::size_t>(most);
}

// `wanted`: the tensors of a source whose router chooses rows.
inline status check_rows(const plan_node& source, std::span<const required_tensor> wanted,
                         std::span<const tensor_view> tensors, const std::string& prefix) {
    constexpr auto most = static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max());
    row_tensors of(wanted, tensors);
    // A router by itself: as if its table had any number of rows.
    if (of.rows.name.empty()) of.rows.view.shape = shape(most);
    if (of.rows.view.shape[0] > most)
        return failure(errc::shape, of.rows.name, "has ", of.rows.view.shape[0],
                       " rows; a choice is a number of 31 bits");
    if (source.kind->router == router_kind::ranges)
        return check_ranges(of.ranges.view, of.ranges.name, of.rows.view.shape[0]);
    if (status s = check_keys(source.top_k, of, prefix); !s) return s;
    return of.rows.name.empty() ? status{} : check_key_rows(of);
}

// Sets the choices per token of a source whose tensors were checked, and those of its gathered tables in `needs`.
inline void settle_choices(const plan_node& node, std::span<const required_tensor> wanted, bound_node& source,
                           call_needs& needs) {
    const row_tensors of(wanted, source.tensors);
    source.choices = node.kind->router == router_kind::keys ? of.keys.view.shape[0] / 2 * node.top_k
                                                            : longest_range(of.ranges.view);
    for (std::size_t i = 0; i < wanted.size(); ++i)
        for (gathered_table& table : needs.gathered)
            if (has_row_per_choice(wanted[i].kind) && table.number == source.tensors[i].gathered)
                table.choices = source.choices;
}

}  // namespace detail

TIFFIN_END
