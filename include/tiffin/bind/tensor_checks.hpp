// Checks of a given tensor: its name, format, shape and contents.
#pragma once

#include <tiffin/bind/sizes.hpp>
#include <tiffin/error.hpp>
#include <tiffin/plan/lower.hpp>
#include <tiffin/tensor.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

TIFFIN_BEGIN

namespace detail {

// Whether the size of a tensor in bytes overflows.
inline bool bytes_overflow(const tensor_view& t) noexcept {
    std::size_t bytes = size_of(t.type);
    for (std::size_t i = 0; i < t.shape.rank(); ++i)
        if (__builtin_mul_overflow(bytes, t.shape[i], &bytes)) return true;
    return false;
}

inline status check_given(const weights& given) {
    const auto& entries = given.entries();
    for (std::size_t i = 0; i < entries.size(); ++i) {
        const auto& [name, tensor] = entries[i];
        if (const std::size_t first = given.places().find(name)->second; first != i)
            return failure(errc::duplicate_tensor, name, "given twice, as tensors ", first, " and ", i);
        if (bytes_overflow(tensor))
            return failure(errc::shape, name, "has shape ", to_string(tensor.shape),
                           ", whose bytes overflow ", 8 * sizeof(std::size_t), " bits");
        if (!tensor.is_given() && tensor.shape.elements() != 0)
            return failure(errc::missing_tensor, name, "given with a null pointer and shape ",
                           to_string(tensor.shape));
    }
    return {};
}

inline status check_dtype(const required_tensor& t, const tensor_view& given) {
    const bool codes = given.type == dtype::u8 || given.type == dtype::u4;
    const bool integers = is_integer(given.type) && !given.scales.any();
    if (integers == is_map(t.kind) && (!codes || given.scales.any())) return {};
    if (codes)
        return failure(errc::dtype, t.name, "has dtype ", name_of(given.type),
                       ", which are codes; their scales are to be given with them");
    return failure(errc::dtype, t.name, "has dtype ", name_of(given.type),
                   (integers ? "; a layer's tensors are F32, F16, BF16, or blocks such as Q8_0 and Q4_0"
                             : "; a map is I32 or I64"));
}

// Element i of an integer tensor.
inline std::int64_t load_integer(const tensor_view& t, std::size_t i) noexcept {
    const auto* const bytes = static_cast<const unsigned char*>(t.data) + i * size_of(t.type);
    if (t.type == dtype::i64) {
        std::int64_t wide;
        std::memcpy(&wide, bytes, sizeof wide);
        return wide;
    }
    std::int32_t narrow;
    std::memcpy(&narrow, bytes, sizeof narrow);
    return narrow;
}

// The experts that a source's router chooses per token. `wanted`: the tensors of the source.
inline std::size_t route_choices(const plan_node& source, std::span<const required_tensor> wanted,
                                 std::span<const tensor_view> tensors) {
    const bool learned = source.kind->router == router_kind::learned;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        if (learned && wanted[i].kind == tensor_kind::logits)
            return source.choices_among(tensors[i].shape[0]);
        if (!learned && wanted[i].kind == tensor_kind::route_map)
            return tensors[i].shape.rank() == 2 ? tensors[i].shape[1] : 1;
    }
    return 0;
}

// Checks that each entry of a map is an expert, and that those of one token differ.
inline status check_map(const tensor_view& map, const std::string& name, std::size_t choices,
                        std::size_t experts) {
    for (std::size_t i = 0; i < map.shape.elements(); ++i) {
        const std::int64_t expert = load_integer(map, i);
        if (expert < 0 || static_cast<std::uint64_t>(expert) >= experts)
            return failure(errc::option, name, "number ", i, " is ", expert, "; there are ", experts,
                           " experts");
        for (std::size_t j = i - i % choices; j < i; ++j)
            if (load_integer(map, j) == expert)
                return failure(errc::option, name, "numbers ", j, " and ", i, ", of one token, are both ",
                               expert);
    }
    return {};
}

// Checks that a source's router can only choose experts that exist. `wanted`: the tensors of the source.
// `blocks`: the number of experts that are blocks given by name, if the source itself has none.
inline status check_routes(const plan_node& source, std::span<const required_tensor> wanted,
                           std::span<const tensor_view> tensors, const std::string& prefix,
                           std::size_t blocks) {
    std::size_t experts = blocks, weight = 0, map = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        const tensor_kind kind = wanted[i].kind;
        if (kind == tensor_kind::logits) weight = i;
        if (kind == tensor_kind::route_map) map = i;
        if (kind == tensor_kind::pool || kind == tensor_kind::low_rank_in ||
            kind == tensor_kind::low_rank_out)
            experts = tensors[i].shape[0];
    }
    if (source.kind->router != router_kind::learned)
        return check_map(tensors[map], wanted[map].name, route_choices(source, wanted, tensors), experts);
    if (experts == 0) experts = tensors[weight].shape[0];  // a router by itself
    if (tensors[weight].shape[0] != experts)
        return failure(errc::shape, wanted[weight].name, "has shape ", to_string(tensors[weight].shape),
                       " for ", experts, " experts");
    const std::size_t picks = source.choices_among(experts);
    if (picks != 0 && picks <= experts) return {};
    return failure(errc::option, prefix + "top_k", "is ", picks, "; there are ", experts, " experts");
}

// One more than the largest n among the names "<prefix><n>.".
inline std::size_t numbered_parts(const weights& given, std::string_view prefix) {
    std::size_t count = 0;
    const auto& places = given.places();
    for (auto at = places.lower_bound(prefix); at != places.end() && at->first.starts_with(prefix); ++at) {
        const std::string& name = at->first;
        // At most as many parts as tensors: a gap in the numbering is a missing tensor, and never a long loop.
        std::size_t n = 0, i = prefix.size();
        for (; i < name.size() && name[i] >= '0' && name[i] <= '9' && n < given.entries().size(); ++i)
            n = 10 * n + static_cast<std::size_t>(name[i] - '0');
        if (i > prefix.size() && i < name.size() && name[i] == '.' && n < given.entries().size())
            count = std::max(count, n + 1);
    }
    return count;
}

}  // namespace detail

TIFFIN_END
