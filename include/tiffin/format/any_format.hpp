// A number format that is known only at run time.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/format/bf16.hpp>
#include <tiffin/format/f16.hpp>
#include <tiffin/format/f32.hpp>
#include <tiffin/format/q4_0.hpp>
#include <tiffin/format/q4_1.hpp>
#include <tiffin/format/q4_k.hpp>
#include <tiffin/format/q5_0.hpp>
#include <tiffin/format/q5_k.hpp>
#include <tiffin/format/q6_k.hpp>
#include <tiffin/format/q8_0.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

TIFFIN_BEGIN

struct tensor_view;

// One of the formats above, chosen with a backend: simd<any_format, any_format>{{dtype::bf16},
// {dtype::q8_0}}. Numerics: those of the format chosen: sums of products to the bit; in a formula the
// compiler may join another
//   product and sum than it does there, which shows in the last bit.
// Cost: a branch a register of a table's row.
struct any_format {
    using storage = std::byte;

    dtype type = dtype::f32;
    // Each weight or table in the format that it is given in, or the nearest that loses nothing which can be
    // measured (see kept_as, table_kept_as), whatever `type` says.
    bool as_given = false;
};
inline constexpr any_format kept_as_given{dtype::f32, true};

// Calls visit(Format{}) for the format of this type. Precondition: not an integer's.
template <class Visit>
constexpr decltype(auto) with_format(dtype type, const Visit& visit) {
    switch (type) {
        case dtype::bf16: return visit(bf16{});
        case dtype::f16: return visit(f16{});
        case dtype::q8_0: return visit(q8_0{});
        case dtype::q4_0: return visit(q4_0{});
        case dtype::q4_1: return visit(q4_1{});
        default: return visit(f32{});
    }
}

// The same for a format that weights are kept in beside activations in q8_0: besides those above the given ones that
// have kernels, though nothing is rounded to them.
template <class Visit>
constexpr decltype(auto) with_kept_format(dtype type, const Visit& visit) {
    switch (type) {
        case dtype::q5_0: return visit(q5_0{});
        case dtype::q4_k: return visit(q4_k{});
        case dtype::q5_k: return visit(q5_k{});
        case dtype::q6_k: return visit(q6_k{});
        default: return with_format(type, visit);
    }
}

// Whether tensors given as `type` lie in memory as Format stores them.
template <class Format>
constexpr bool is_stored_as([[maybe_unused]] dtype type) noexcept {
    if constexpr (requires { Format::type; })
        return type == Format::type;
    else
        return false;
}

// What prepare() knows of a backend's formats.
struct number_format {
    std::string_view name = "F32";
    std::size_t block = 1;
    float largest = f32::largest;
    dtype type = dtype::f32;
    bool is_given = true;        // whether tensors can be given in it: not in a codec without a dtype
    bool as_given = false;       // each tensor has its own
    std::string_view refused{};  // what was asked for, and numbers are not kept in
};

// The given tensors that a backend goes on reading where they lie, if they are in its own format and aligned.
// All others may be freed once prepare() has returned.
enum class in_place {
    nothing,
    tables,            // of ids: simd
    dense_and_tables,  // eigen
    everything,        // in whatever format, at any alignment: reference
};
struct number_formats {
    number_format weights;
    number_format tables;
    number_format activations;
    bool any_table = false;  // tables are read in whatever format they have
    in_place reads = in_place::tables;
    // Where weights may lie in memory that the host cannot read: copies the numbers of such a tensor to `memory`.
    status (*bring)(tensor_view& given, std::vector<std::byte>& memory, const std::string& name) = nullptr;
};

template <class Format>
constexpr number_format describe(const Format& format) {
    if constexpr (requires { Format::block; }) {
        number_format told{"the format", Format::block, f32::largest, dtype::f32, false};
        if constexpr (requires { Format::largest; }) told.largest = Format::largest;
        if constexpr (requires { Format::type; })
            told = {name_of(Format::type), told.block, told.largest, Format::type};
        return told;
    } else {
        number_format told = with_format(format.type, [](auto one) { return describe(one); });
        if constexpr (requires { format.as_given; }) told.as_given = format.as_given;
        if (told.type != format.type) told.refused = name_of(format.type);
        return told;
    }
}

// The format that a weight given so is kept in by kept_as_given: its own where that has kernels, which Q5_0 and the
// k-quants have beside rounded activations only; else the nearest.
constexpr dtype kept_as(dtype given, bool rounded_activations = true) noexcept {
    const bool kept = with_kept_format(given, [=](auto format) { return decltype(format)::type == given; });
    if (kept && (rounded_activations || given <= dtype::q4_1)) return given;
    return given == dtype::q4_k ? dtype::q4_1 : dtype::q8_0;
}

// The same of a table, which kept_as_given keeps apart from all others: its own where numbers are kept in it, and so
// it is read where it lies; else q8_0 for blocks.
constexpr dtype table_kept_as(dtype given) noexcept {
    const bool kept = with_format(given, [=](auto format) { return decltype(format)::type == given; });
    return kept ? given : block_of(given) > 1 ? dtype::q8_0 : dtype::f32;
}

// The format of a table that is given so.
inline number_format format_of_table(const number_formats& all, dtype given) noexcept {
    if (!all.tables.as_given) return all.tables;
    return with_format(table_kept_as(given), [](auto format) { return describe(format); });
}

// The formats of weights that are kept together, where each is kept as given: those of all if they agree.
inline number_formats formats_of(const number_formats& all, std::span<const dtype> given) noexcept {
    if (!all.weights.as_given || given.empty()) return all;
    const bool rounded = all.activations.type == dtype::q8_0;
    dtype type = kept_as(given[0], rounded);
    for (const dtype other : given)
        if (kept_as(other, rounded) != type)
            type = block_of(type) > 1 && block_of(other) > 1 ? dtype::q8_0 : dtype::f32;
    number_formats told = all;
    told.weights = with_kept_format(type, [](auto format) { return describe(format); });
    return told;
}

TIFFIN_END
