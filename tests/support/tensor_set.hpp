// Random tensors for a block: any sizes, number formats and alignments.
#pragma once

#include <tiffin/plan/tensors_needed.hpp>
#include <tiffin/tensor.hpp>

#include "support/random.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tiffin_test {

struct sizes {
    std::size_t d_model = 1;
    std::size_t d_ff = 1;
    std::size_t vocab = 1;
    std::size_t experts = 4;
    std::size_t rank = 3;

    [[nodiscard]] tiffin::block_shape shape() const noexcept {
        return {.d_model = d_model,
                .d_ff = d_ff,
                .vocab = vocab,
                .experts = experts,
                .rank = rank,
                .inner = {d_model + 2, 5},
                .choices = 2,
                .heads = 2};
    }
};

// The tensors that a block asks for at given sizes.
using wanted_tensors = std::function<std::vector<tiffin::named_tensor>(const sizes&)>;

template <class Block>
wanted_tensors tensors_wanted(const Block& block) {
    return [=](const sizes& s) { return tiffin::tensors_needed(block, s.shape()); };
}

struct storage_form {
    tiffin::dtype type = tiffin::dtype::f32;
    std::size_t offset = 0;  // bytes beyond a border of 64
};

// The 16 bits of a number, rounded towards zero. Which rounding is of no matter to a test: what was
// stored is what every backend, the reference too, reads back.
inline std::uint16_t to_bf16(float v) noexcept {
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(v) >> 16);
}
// Precondition: |v| < 65504.
inline std::uint16_t to_f16(float v) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(v);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    const std::uint32_t exponent = (bits >> 23) & 0xFFu;
    if (exponent < 113)  // below 2^-14: subnormal, in units of 2^-24
        return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(std::fabs(v) * 0x1p24f));
    return static_cast<std::uint16_t>(sign | ((exponent - 112) << 10) | ((bits >> 13) & 0x3FFu));
}

// Memory with a chosen distance to a border of 64 bytes.
class placed_bytes {
public:
    placed_bytes(std::size_t size, std::size_t offset) : bytes_(size + offset + 64) {
        const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data());
        begin_ = (64 - address % 64) % 64 + offset;
    }
    [[nodiscard]] std::byte* data() noexcept { return bytes_.data() + begin_; }

private:
    std::vector<std::byte> bytes_;  // its memory stays where it is when the object is moved
    std::size_t begin_;
};

class tensor_set {
public:
    struct options {
        tiffin_test::sizes sizes;
        storage_form dense;
        storage_form tables;
        unsigned biases = ~0u;  // bit n of 32: whether the n-th optional tensor is given
        std::uint32_t seed = 1;
    };

    tensor_set(const wanted_tensors& wanted, const options& o) : random_(o.seed) {
        std::size_t optional = 0;
        for (const tiffin::named_tensor& t : wanted(o.sizes)) {
            const tiffin::sized_tensor& spec = t.tensor;
            if (spec.needed == tiffin::presence::optional && (o.biases >> optional++ % 32 & 1u) == 0)
                continue;
            using enum tiffin::tensor_kind;
            const tiffin::shape& shape = t.tensor.shape;
            const bool rows = tiffin::holds_rows(spec.kind);
            if (spec.kind == route_map) {
                add_map(t.name, shape, o.sizes.experts);
                continue;
            }
            if (spec.kind == row_ranges) {
                add_ranges(t.name, shape, o.sizes.experts);
                continue;
            }
            const bool product = spec.kind == projection || spec.kind == logits || spec.kind == low_rank_in ||
                                 spec.kind == low_rank_out || spec.kind == query || spec.kind == half_keys ||
                                 spec.kind == row_keys;
            // Products of a variance near 1, whatever the width: activations then see their bends.
            const float scale =
                product ? std::sqrt(3.0f / static_cast<float>(shape[shape.rank() - 1])) : 1.0f;
            add(t.name, shape, rows ? o.tables : o.dense, scale);
        }
    }
    template <class Block>
    static tensor_set of(const Block& block, const options& o) {
        return tensor_set(tensors_wanted(block), o);
    }

    [[nodiscard]] tiffin::weights given() const {
        tiffin::weights all;
        for (const held& h : tensors_) all.add(h.name, h.view);
        return all;
    }
    // Of the tensors of numbers; a map of experts is none.
    [[nodiscard]] std::vector<std::string> names() const {
        std::vector<std::string> all;
        for (const held& h : tensors_)
            if (h.view.type != tiffin::dtype::i32) all.push_back(h.name);
        return all;
    }
    [[nodiscard]] const tiffin::tensor_view& view(std::string_view name) const { return find(name).view; }
    [[nodiscard]] float get(std::string_view name, std::size_t i) const {
        const held& h = find(name);
        return tiffin::load_as_f32(h.view.data, h.view.type, i);
    }
    void set(std::string_view name, std::size_t i, float value) {
        held& h = const_cast<held&>(find(name));
        store(h.bytes.data(), h.view.type, i, value);
    }
    void fill(std::string_view name, float value) {
        for (std::size_t i = 0; i < view(name).shape.elements(); ++i) set(name, i, value);
    }

private:
    struct held {
        std::string name;
        placed_bytes bytes;
        tiffin::tensor_view view;
    };

    void add(std::string name, const tiffin::shape& shape, const storage_form& form, float scale) {
        const std::size_t n = shape.elements();
        held& h = tensors_.emplace_back(
            held{std::move(name), placed_bytes(n * tiffin::size_of(form.type), form.offset), {}});
        h.view = {h.bytes.data(), form.type, shape};
        for (std::size_t i = 0; i < n; ++i) store(h.bytes.data(), form.type, i, random_.signed_unit(scale));
    }
    // Experts of each id, all of one id different.
    void add_map(std::string name, const tiffin::shape& shape, std::size_t experts) {
        const std::size_t n = shape.elements(), choices = shape.rank() == 2 ? shape[1] : 1;
        held& h = tensors_.emplace_back(held{std::move(name), placed_bytes(n * sizeof(std::int32_t), 0), {}});
        h.view = {h.bytes.data(), tiffin::dtype::i32, shape};
        for (std::size_t id = 0; id < n / choices; ++id) {
            const std::size_t first = random_.below(experts);
            for (std::size_t i = 0; i < choices; ++i) {
                const auto expert = static_cast<std::int32_t>((first + i) % experts);
                std::memcpy(h.bytes.data() + (id * choices + i) * sizeof expert, &expert, sizeof expert);
            }
        }
    }
    // Rows of each id, as many as there are or none; the first id has the first row, the last one all of them.
    void add_ranges(std::string name, const tiffin::shape& shape, std::size_t rows) {
        held& h = tensors_.emplace_back(
            held{std::move(name), placed_bytes(shape.elements() * sizeof(std::int32_t), 0), {}});
        h.view = {h.bytes.data(), tiffin::dtype::i32, shape};
        for (std::size_t id = 0; id < shape[0]; ++id) {
            std::size_t begin = random_.below(rows + 1), end = random_.below(rows + 1);
            if (id == 0) begin = 0, end = 1;
            if (id + 1 == shape[0]) begin = 0, end = rows;
            const std::int32_t range[] = {static_cast<std::int32_t>(std::min(begin, end)),
                                          static_cast<std::int32_t>(std::max(begin, end))};
            std::memcpy(h.bytes.data() + id * sizeof range, range, sizeof range);
        }
    }
    [[nodiscard]] const held& find(std::string_view name) const {
        for (const held& h : tensors_)
            if (h.name == name) return h;
        throw std::logic_error("no tensor " + std::string(name));
    }
    static void store(std::byte* to, tiffin::dtype type, std::size_t i, float value) {
        if (type == tiffin::dtype::f32) {
            std::memcpy(to + i * sizeof value, &value, sizeof value);
        } else {
            const std::uint16_t bits = type == tiffin::dtype::bf16 ? to_bf16(value) : to_f16(value);
            std::memcpy(to + i * sizeof bits, &bits, sizeof bits);
        }
    }

    random_numbers random_;
    std::deque<held> tensors_;
};

// Random ids; the first and the last row are among the first two.
inline std::vector<std::int32_t> random_ids(std::size_t tokens, std::size_t vocab, std::uint32_t seed) {
    random_numbers random(seed);
    std::vector<std::int32_t> ids(tokens);
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random.below(vocab));
    if (tokens > 0) ids[0] = static_cast<std::int32_t>(vocab - 1);
    if (tokens > 1) ids[1] = 0;
    return ids;
}

inline std::vector<float> random_rows(std::size_t tokens, std::size_t width, std::uint32_t seed) {
    std::vector<float> rows(tokens * width);
    random_numbers(seed).fill(rows, 1.5f);
    return rows;
}

}  // namespace tiffin_test
