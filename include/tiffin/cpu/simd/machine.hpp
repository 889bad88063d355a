// The machine of the simd backend: its registers, activations and products.
#pragma once

#include <tiffin/call/call_arguments.hpp>
#include <tiffin/cpu/block_sink.hpp>
#include <tiffin/cpu/output.hpp>
#include <tiffin/cpu/simd/products.hpp>
#include <tiffin/cpu/stage.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>

TIFFIN_BEGIN

namespace simd_detail {

template <class Chosen>
struct machine {
    using Arch = xsimd_arch<Chosen>;
    using reg = lanes<Arch>;
    using activations = simd_detail::activations;
    using products = panel_products;
    using number = float;
    using wide = double;
    static constexpr std::size_t lane_count = width<Arch>;
    template <detail::node_role Role>
    static constexpr const void* role = &cpu_detail::functions_of<machine, Role>::value;

    // For routers: a route must not depend on how weights are stored and activations rounded.
    static products exact_products(std::size_t outputs, std::size_t inputs) {
        return {outputs, inputs, 1, kernels<Arch, f32, f32>()};
    }

    // Activations being written: numbers(tokens, width) floats in depth blocks on a cache line, or rounded ones, whose
    // data is null.
    struct buffer {
        float* data;
        std::size_t tokens;
        std::size_t features;
        rounding how{};
        std::byte* rounded = nullptr;

        static constexpr std::size_t numbers(std::size_t tokens, std::size_t features) noexcept {
            return blocked_size(tokens, features);
        }
        [[nodiscard]] activations view() const noexcept { return {data, tokens, rounded}; }
    };
    // How the outputs of one product (null: whole rows) are rounded for the next one as they are written; not at all
    // where a write could end within a block that is rounded together.
    static rounding rounding_between(const products* from, const products& to) noexcept {
        const rounding& how = to.rounding_of_inputs();
        const std::size_t part = from != nullptr ? from->outputs_at_once() : depth_block;
        return part % how.block == 0 && depth_block % part == 0 ? how : rounding{};
    }
    // Whether both round their inputs, to the same rows.
    static bool rounds_alike(const products& a, const products& b) noexcept {
        const rounding &one = a.rounding_of_inputs(), &other = b.rounding_of_inputs();
        return one.round != nullptr && one.round == other.round && one.spare_rows == other.spare_rows;
    }
    static void round_token(const activations& from, std::size_t token, const buffer& to) noexcept {
        for (std::size_t k0 = 0; k0 < to.features; k0 += depth_block)
            to.how(from.row(k0, token), to.tokens, token, k0, std::min(depth_block, to.features - k0),
                   to.rounded);
    }
    static const float* input_at(const activations& in, std::size_t token, std::size_t feature) noexcept {
        return in.row(feature / depth_block * depth_block, token) + feature % depth_block;
    }
    static reg load(const float* from, std::size_t count) noexcept {
        return simd_detail::load<f32, Arch>(from, count);
    }
    static reg load_aligned(const float* from) noexcept { return reg::load_aligned(from); }
    // Loads from a table row at any alignment.
    static reg load_row(const float* from, std::size_t count) noexcept { return load(from, count); }
    static void store(const reg& from, float* to, std::size_t count) noexcept {
        simd_detail::store<Arch>(from, to, count);
    }
    static reg multiply_add(const reg& a, const reg& b, const reg& c) noexcept {
        return simd_detail::multiply_add<Arch>(a, b, c);
    }
    template <class Formula, class... Registers>
    static reg apply(const Formula& formula, const Registers&... in) {
        return simd_detail::apply<Arch>(formula, in...);
    }
    // sums + a b in the first `count` lanes.
    static reg add_product(reg a, const reg& b, std::size_t count, const reg& sums) noexcept {
        if (count >= lane_count) return multiply_add(a, b, sums);
        // The lanes after them are arbitrary, and 0 times NaN or infinity is not 0.
        alignas(64) float part[lane_count] = {}, other[lane_count] = {};
        simd_detail::store<Arch>(a, part, count);
        simd_detail::store<Arch>(b, other, count);
        return multiply_add(reg::load_aligned(part), reg::load_aligned(other), sums);
    }
    // The lanes added from the first to the last.
    static float sum(const reg& v) noexcept {
        alignas(64) float parts[lane_count];
        v.store_aligned(parts);
        float total = 0;
        for (const float part : parts) total += part;
        return total;
    }

    // The destination of a token's features from `feature` on; null where they are rounded first.
    static float* place(const buffer& to, std::size_t token, std::size_t feature,
                        std::size_t& step) noexcept {
        if (to.rounded != nullptr) return nullptr;
        step = depth_block;
        const std::size_t inside = feature % depth_block;
        return to.data + (feature - inside) * to.tokens + token * depth_block + inside;
    }
    static void put_rounded(const cpu_detail::value_block& v, const buffer& to) noexcept {
        for (std::size_t t = 0; t < v.tokens; ++t)
            to.how.features(v.data + t * v.step, to.tokens, v.token + t, v.feature, v.features, to.rounded);
    }
    static void copy_token(const activations& from, std::size_t token, const buffer& to,
                           std::size_t i) noexcept {
        for (std::size_t k0 = 0; k0 < to.features; k0 += depth_block)
            if (to.rounded != nullptr)
                std::memcpy(to.how.row(to.rounded, to.tokens, i, k0),
                            to.how.row(from.rounded, from.tokens, token, k0), to.how.row_bytes);
            else
                std::memcpy(to.data + k0 * to.tokens + i * depth_block, from.row(k0, token),
                            std::min(depth_block, to.features - k0) * sizeof(float));
    }

    // The token rows of x, or of another input, that a call reads, in depth blocks. A single row has that layout
    // already.
    static constexpr std::size_t input_numbers(std::size_t tokens, std::size_t features) noexcept {
        return tokens > 1 ? blocked_size(tokens, features) : 0;
    }
    static activations inputs(const call_arguments& call, const matrix_view<const float>& x, float* memory) {
        if (call.tokens == 1) return {x.row(call.row(0)), 1};
        const std::size_t features = x.cols;
        cpu_detail::for_tokens(call, features, [&](std::size_t t) noexcept {
            for (std::size_t k0 = 0; k0 < features; k0 += depth_block)
                std::memcpy(memory + k0 * call.tokens + t * depth_block, x.row(call.row(t)) + k0,
                            std::min(depth_block, features - k0) * sizeof(float));
        });
        return {memory, call.tokens};
    }
};

}  // namespace simd_detail

TIFFIN_END
