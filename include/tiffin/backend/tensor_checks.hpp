// What is wrong with a given tensor: its name, format, shape or contents.
#pragma once

#include <tiffin/block/block_tensors.hpp>
#include <tiffin/concepts.hpp>
#include <tiffin/error.hpp>
#include <tiffin/tensor.hpp>

#include <array>
#include <charconv>
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

// The size of this number (see tensor_spec) by a source's own tensors; 0 where they do not tell.
template <source_policy S>
std::size_t size_told(std::uint8_t number, std::span<const tensor_view> tensors) noexcept {
    static constexpr auto specs = specs_of<S>("");
    for (std::size_t i = 0; i < specs.size(); ++i)
        for (std::size_t a = 0; a < specs[i].rank; ++a)
            if (specs[i].sizes[a] == number && tensors[i].is_given()) return tensors[i].shape[a];
    return 0;
}

}  // namespace detail

// The width of part I of a chain that is not its last: by the part's own tensors, or by those of the next
// one, which reads it.
template <chained_source Chain, std::size_t I>
std::size_t part_width(std::span<const tensor_view> tensors) noexcept {
    const auto own = [&]<std::size_t P>(std::integral_constant<std::size_t, P>) {
        return tensors.subspan(part_offset<Chain, P>(), tensor_count<part_of<Chain, P>>());
    };
    const std::size_t width = detail::size_told<part_of<Chain, I>>(
        tensor_spec::width_size, own(std::integral_constant<std::size_t, I>{}));
    if (width != 0) return width;
    return detail::size_told<part_of<Chain, I + 1>>(tensor_spec::input_size,
                                                    own(std::integral_constant<std::size_t, I + 1>{}));
}

namespace detail {

inline std::string symbolic_shape(const block_tensor& t) {
    std::string text = "(";
    for (std::size_t i = 0; i < t.spec.rank; ++i) text.append(i ? ", " : "").append(t.axis_name(i));
    return text + ")";
}

// A size and the tensor that told it.
struct size_seen {
    std::size_t size = 0;
    std::string told_by;
};

// The sizes known so far.
class extents_seen {
public:
    status unify(const block_tensor& t, const tensor_view& given, const std::string& name) {
        const std::string has = "has shape " + to_string(given.shape);
        if (t.spec.kind == tensor_kind::scalar) {
            if (given.shape.rank() <= 1 && given.shape.elements() == 1) return {};
            return failure{errc::shape, name, has + "; it must be one number, () or (1)"};
        }
        const bool flat_map = t.spec.kind == tensor_kind::route_map && given.shape.rank() == 1;
        if (given.shape.rank() != t.spec.rank && !flat_map)
            return failure{
                errc::shape, name,
                has + "; it must have " + std::to_string(t.spec.rank) + " axes, " + symbolic_shape(t)};
        for (std::size_t i = 0; i < given.shape.rank(); ++i) {
            const std::size_t size = given.shape[i];
            if (size == 0) return failure{errc::shape, name, has + "; no axis may be 0"};
            if (t.extents[i] == extent::free) continue;
            size_seen& s = at(t.extents[i]);
            if (s.size == 0) s = {size, name};
            if (s.size != size)
                return failure{errc::shape, name,
                               has + "; its axis " + std::to_string(i) + " must be " +
                                   std::string(t.axis_name(i)) + " = " + std::to_string(s.size) + ", as in " +
                                   s.told_by};
        }
        return {};
    }
    void expect(extent e, const size_seen& told) {
        if (told.size != 0) at(e) = told;
    }
    [[nodiscard]] std::size_t size(extent e) const {
        for (const auto& [known, seen] : sizes_)
            if (known == e) return seen.size;
        return 0;
    }

private:
    size_seen& at(extent e) {
        for (auto& [known, seen] : sizes_)
            if (known == e) return seen;
        return sizes_.emplace_back(e, size_seen{}).second;
    }
    std::vector<std::pair<extent, size_seen>> sizes_;
};

// Whether the bytes of a tensor can be counted.
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
            return failure{errc::duplicate_tensor, name,
                           "given twice, as tensors " + std::to_string(first) + " and " + std::to_string(i)};
        if (bytes_overflow(tensor))
            return failure{errc::shape, name,
                           "has shape " + to_string(tensor.shape) + ", whose bytes overflow " +
                               std::to_string(8 * sizeof(std::size_t)) + " bits"};
        if (!tensor.is_given() && tensor.shape.elements() != 0)
            return failure{errc::missing_tensor, name,
                           "given with a null pointer and shape " + to_string(tensor.shape)};
    }
    return {};
}

inline status check_dtype(const block_tensor& t, const tensor_view& given, const std::string& name) {
    const bool integers = is_integer(given.type);
    if (integers == (t.spec.kind == tensor_kind::route_map) && given.type != dtype::u8) return {};
    return failure{
        errc::dtype, name,
        "has dtype " + std::string(name_of(given.type)) +
            (integers ? "; a layer's tensors are F32, F16, BF16, Q8_0 or Q4_0" : "; a map is I32 or I64")};
}

// Number i of a tensor of integers.
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

// The tensor of one kind among a source's own.
inline tensor_view of_kind(tensor_kind kind, std::span<const block_tensor> wanted,
                           std::span<const tensor_view> tensors) {
    for (std::size_t i = 0; i < wanted.size(); ++i)
        if (wanted[i].spec.kind == kind) return tensors[i];
    return {};
}

// The experts that a router picks for a token.
template <router_policy Router>
std::size_t route_choices(const Router& router, std::span<const tensor_view> tensors) {
    if constexpr (learned_router<Router>) {
        return router.top_k;
    } else {
        for (const tensor_view& t : tensors)
            if (is_integer(t.type)) return t.shape.rank() == 2 ? t.shape[1] : 1;
        return 0;
    }
}

// Whether every route that the router can take leads to an expert. `blocks` experts are blocks given by
// name, where the source itself has none.
template <router_policy Router>
status check_routes(const Router& router, std::span<const block_tensor> wanted,
                    std::span<const tensor_view> tensors, const std::string& prefix, std::size_t blocks) {
    std::size_t experts = blocks;
    for (std::size_t i = 0; i < wanted.size(); ++i)
        if (wanted[i].spec.rank > 1 && wanted[i].spec.axes[0] == axis::experts &&
            wanted[i].spec.kind != tensor_kind::logits)
            experts = tensors[i].shape[0];
    // A chain's parts are named after it.
    const std::string scope =
        wanted.empty() || wanted[0].spec.scope.empty() ? "" : std::string(wanted[0].spec.scope) + ".";
    const auto name_of_kind = [&](tensor_kind kind) {
        for (const block_tensor& t : wanted)
            if (t.spec.kind == kind) return prefix + full_name(t.spec);
        return prefix;
    };
    if constexpr (learned_router<Router>) {
        const tensor_view weight = of_kind(tensor_kind::logits, wanted, tensors);
        if (weight.shape[0] != experts)
            return failure{
                errc::shape, name_of_kind(tensor_kind::logits),
                "has shape " + to_string(weight.shape) + " for " + std::to_string(experts) + " experts"};
        if (router.top_k == 0 || router.top_k > experts)
            return failure{
                errc::option, prefix + scope + "top_k",
                "is " + std::to_string(router.top_k) + "; there are " + std::to_string(experts) + " experts"};
    } else {
        const tensor_view map = of_kind(tensor_kind::route_map, wanted, tensors);
        for (std::size_t i = 0; i < map.shape.elements(); ++i) {
            const std::int64_t expert = load_integer(map, i);
            if (expert < 0 || static_cast<std::uint64_t>(expert) >= experts)
                return failure{errc::option, name_of_kind(tensor_kind::route_map),
                               "number " + std::to_string(i) + " is " + std::to_string(expert) +
                                   "; there are " + std::to_string(experts) + " experts"};
            for (std::size_t j = i - i % route_choices(router, tensors); j < i; ++j)
                if (load_integer(map, j) == expert)
                    return failure{errc::option, name_of_kind(tensor_kind::route_map),
                                   "numbers " + std::to_string(j) + " and " + std::to_string(i) +
                                       ", of one token, are both " + std::to_string(expert)};
        }
    }
    return {};
}

// One more than the largest n among the names "<prefix><n>.".
inline std::size_t numbered_parts(const weights& given, std::string_view prefix) {
    std::size_t count = 0;
    const auto& places = given.places();
    for (auto at = places.lower_bound(prefix); at != places.end() && at->first.starts_with(prefix); ++at) {
        const std::string& name = at->first;
        std::size_t n = 0;
        const char* const end = name.data() + name.size();
        const auto [rest, bad] = std::from_chars(name.data() + prefix.size(), end, n);
        // As many parts as tensors at most: a hole is a missing tensor, and never a long loop.
        if (bad == std::errc() && rest != end && *rest == '.' && n < given.entries().size() && n + 1 > count)
            count = n + 1;
    }
    return count;
}

}  // namespace detail

TIFFIN_END
