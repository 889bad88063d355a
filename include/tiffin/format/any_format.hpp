// A number format that is known only at run time.
#pragma once

#include <tiffin/format/bf16.hpp>
#include <tiffin/format/f16.hpp>
#include <tiffin/format/f32.hpp>
#include <tiffin/format/q4_0.hpp>
#include <tiffin/format/q8_0.hpp>

#include <cstddef>
#include <string_view>

TIFFIN_BEGIN

// One of the formats above, chosen with a backend: simd<any_format, any_format>{{dtype::bf16},
// {dtype::q8_0}}. Numerics: those of the format chosen: sums of products to the bit; in a formula the
// compiler may join another
//   product and sum than it does there, which shows in the last bit.
// Cost: a branch a register of a table's row.
struct any_format {
    using storage = std::byte;

    dtype type = dtype::f32;
};

// Calls visit(Format{}) for the format of this type. Precondition: not an integer's.
template <class Visit>
constexpr decltype(auto) with_format(dtype type, const Visit& visit) {
    switch (type) {
        case dtype::bf16: return visit(bf16{});
        case dtype::f16: return visit(f16{});
        case dtype::q8_0: return visit(q8_0{});
        case dtype::q4_0: return visit(q4_0{});
        default: return visit(f32{});
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
    bool is_given = true;  // whether tensors can be given in it: not in a codec without a dtype
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
};

template <class Format>
constexpr number_format describe(const Format& format) {
    if constexpr (requires { Format::block; }) {
        number_format told{"the format", Format::block, Format::largest, dtype::f32, false};
        if constexpr (requires { Format::type; })
            told = {name_of(Format::type), told.block, told.largest, Format::type};
        return told;
    } else {
        return with_format(format.type, [](auto one) { return describe(one); });
    }
}

TIFFIN_END
