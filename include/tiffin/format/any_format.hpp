// A number format that is known only at run time.
#pragma once

#include <tiffin/dtype.hpp>
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

TIFFIN_BEGIN

// One of the formats that simd keeps weights in, chosen at run time: simd<any_format, any_format>{{dtype::bf16},
// {dtype::q8_0}}. Numerics: those of the format chosen, to the bit.
// Cost: that of the format chosen; code that uses any_format compiles the kernels of all formats.
struct any_format {
    using storage = std::byte;

    dtype type = dtype::f32;
    // Keeps each weight or table in its given format, or in the nearest one without measurable loss (see kept_as,
    // table_kept_as); `type` is then ignored.
    bool as_given = false;
};
inline constexpr any_format kept_as_given{dtype::f32, true};

// Calls visit(Format{}) for the format of this type. Precondition: not an integer type.
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

// The same for a format of packed weights beside q8_0 activations: also formats with kernels but without encode().
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

// Whether values can be rounded to this format; the others are only read.
constexpr bool has_encode(dtype type) noexcept {
    return with_format(type, [=](auto format) { return decltype(format)::type == type; });
}

// The format in which kept_as_given keeps a weight of format `given`: its own where that has kernels (Q5_0 and the
// k-quants: beside rounded activations only), else the nearest.
constexpr dtype kept_as(dtype given, bool rounded_activations = true) noexcept {
    const bool kept = with_kept_format(given, [=](auto format) { return decltype(format)::type == given; });
    if (kept && (rounded_activations || has_encode(given))) return given;
    if (is_f8(given)) return dtype::bf16;
    return given == dtype::q4_k ? dtype::q4_1 : dtype::q8_0;
}

// The same for a table: its own format, in which it is read in place; f32 for F64.
constexpr dtype table_kept_as(dtype given) noexcept {
    return given == dtype::f64 ? dtype::f32 : given;
}

TIFFIN_END
