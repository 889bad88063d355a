// Tensors as given by the caller: a pointer, a number format, a shape and a name.
#pragma once

#include <tiffin/dtype.hpp>
#include <tiffin/format/scales.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// The sizes of a tensor, outermost first; up to four axes, none for a scalar.
class shape {
public:
    static constexpr std::size_t max_rank = 4;
    constexpr shape() = default;
    constexpr shape(std::size_t a) noexcept : sizes_{{a}}, rank_(1) {}
    constexpr shape(std::size_t a, std::size_t b) noexcept : sizes_{{a, b}}, rank_(2) {}
    constexpr shape(std::size_t a, std::size_t b, std::size_t c) noexcept : sizes_{{a, b, c}}, rank_(3) {}
    constexpr shape(std::size_t a, std::size_t b, std::size_t c, std::size_t d) noexcept
        : sizes_{{a, b, c, d}}, rank_(4) {}
    template <class... More>
    constexpr shape(std::size_t, std::size_t, std::size_t, std::size_t, std::size_t, More...) noexcept {
        static_assert(sizeof...(More) == ~std::size_t{0},
                      "tiffin: shape{...}: a tensor has at most four axes");
    }
    [[nodiscard]] constexpr std::size_t rank() const noexcept { return rank_; }
    constexpr std::size_t operator[](std::size_t axis) const noexcept { return sizes_[axis]; }
    // The size of the last axis; 1 for a scalar.
    [[nodiscard]] constexpr std::size_t last() const noexcept { return rank_ == 0 ? 1 : sizes_[rank_ - 1]; }
    // Precondition: rank() < max_rank.
    constexpr void push_back(std::size_t size) noexcept { sizes_[rank_++] = size; }
    [[nodiscard]] constexpr std::size_t elements() const noexcept {
        std::size_t n = 1;
        for (std::size_t i = 0; i < rank_; ++i) n *= sizes_[i];
        return n;
    }
    friend constexpr bool operator==(const shape&, const shape&) = default;

private:
    std::array<std::size_t, max_rank> sizes_{};
    std::size_t rank_ = 0;
};

inline std::string to_string(const shape& s) {
    std::string text = "(";
    for (std::size_t i = 0; i < s.rank(); ++i) text += (i ? ", " : "") + std::to_string(s[i]);
    return text + ")";
}

// A tensor in the caller's memory: row-major, dense, at any alignment.
struct tensor_view {
    const void* data = nullptr;
    dtype type = dtype::f32;
    tiffin::shape shape;
    // Not 0 for a table without memory: its rows are given with each call, in token_inputs::gathered[gathered - 1].
    std::size_t gathered = 0;
    tensor_scales scales{};

    [[nodiscard]] constexpr bool is_given() const noexcept { return data != nullptr || gathered != 0; }
    // Row i of the last axis, all other axes taken as one. Precondition: data is not null.
    [[nodiscard]] stored_row row(std::size_t i) const noexcept {
        const std::size_t width = shape.last();
        const auto* const codes = static_cast<const std::byte*>(data) + i * bytes_of_row(type, scales, width);
        if (!scales.any()) return {codes};
        if (scales.in_rows()) return {codes, codes + bytes_of(type, width)};
        return {codes,
                static_cast<const std::byte*>(scales.data) + i / scales.rows * scales.bytes_per_row(width)};
    }
    // Rows from `first` on, as a tensor of the given sizes. Precondition: no scale covers rows before `first` and others.
    [[nodiscard]] tensor_view rows_from(std::size_t first, const tiffin::shape& sizes) const noexcept {
        tensor_view part = *this;
        const stored_row begin = row(first);
        part.data = begin.codes;
        part.shape = sizes;
        if (scales.data != nullptr) part.scales.data = begin.scales;
        return part;
    }
};

// Reads values [first, first + count) of a tensor, row-major, with their scales. Precondition: not an integer type
// without scales, and data is not null.
inline void read_as_f32(const tensor_view& t, std::size_t first, std::size_t count, float* to) noexcept {
    if (!t.scales.any()) return read_as_f32(t.data, t.type, first, count, to);
    const std::size_t width = t.shape.last();
    while (count > 0) {
        const std::size_t inside = first % width, taken = std::min(count, width - inside);
        read_as_f32(t.row(first / width), t.type, t.scales, inside, taken, to);
        first += taken;
        count -= taken;
        to += taken;
    }
}
// Reads value i. Cost: decodes its block.
inline float load_as_f32(const tensor_view& t, std::size_t i) noexcept {
    float number;
    read_as_f32(t, i, 1, &number);
    return number;
}

// The tensors of a layer by name, in the order they were added. Views only: the memory is the
// caller's, and a prepared layer may keep reading it (see prepare.hpp).
class weights {
public:
    struct entry {
        std::string name;
        tensor_view tensor;
    };

    weights& add(std::string name, tensor_view tensor) {
        places_.emplace(name, entries_.size());
        entries_.push_back({std::move(name), tensor});
        return *this;
    }
    weights& add(std::string name, const float* data, tiffin::shape sizes) {
        return add(std::move(name), tensor_view{data, dtype::f32, sizes});
    }
    // A table or pool whose rows are given with each call: those of its tokens, or of their choices (see token_inputs).
    // Calls list such tables in the order in which they were added. Their scales follow the codes of each row.
    weights& add_gathered(std::string name, dtype type, tiffin::shape sizes,
                          const tensor_scales& scales = {}) {
        return add(std::move(name), tensor_view{nullptr, type, sizes, ++gathered_, scales});
    }
    // The first tensor of this name, or null. Cost: log2(tensors) comparisons.
    [[nodiscard]] const tensor_view* find(std::string_view name) const noexcept {
        const auto it = places_.find(name);
        return it == places_.end() ? nullptr : &entries_[it->second].tensor;
    }
    [[nodiscard]] const std::vector<entry>& entries() const noexcept { return entries_; }
    // Indices into entries() by name; of tensors of one name, that of the first.
    [[nodiscard]] const std::map<std::string, std::size_t, std::less<>>& places() const noexcept {
        return places_;
    }

private:
    std::vector<entry> entries_;
    std::map<std::string, std::size_t, std::less<>> places_;
    std::size_t gathered_ = 0;
};

TIFFIN_END
