// Kernels that evaluate a source's formula, after its products; what the values are written to.
#pragma once

#include <tiffin/cuda/call.hpp>
#include <tiffin/cuda/engine/view.hpp>
#include <tiffin/cuda/kernels.hpp>
#include <tiffin/format/concepts.hpp>
#include <tiffin/view.hpp>

#include <cstddef>

TIFFIN_BEGIN

namespace cuda_detail {

// The loads of a source's tensors: a register is N floats of a thread.
template <codec Format, std::size_t N>
struct device_numbers {
    using reg = pack<N>;
    using storage = typename Format::storage;
    struct bank_row {
        const storage* first;
        std::size_t step;  // between two elements of the rank
    };

    TIFFIN_HD static reg load(const float* from, std::size_t count) {
        return cuda_detail::load<f32, N>(from, count);
    }
    TIFFIN_HD static reg load_vector(const float* from, std::size_t feature, std::size_t count) {
        return cuda_detail::load<f32, N>(from + feature, count);
    }
    TIFFIN_HD static reg load_given(const storage* from, std::size_t count) {
        return cuda_detail::load<Format, N>(from, count);
    }
    TIFFIN_HD static reg load_bank(const storage* from, std::size_t count) {
        return cuda_detail::load<Format, N>(from, count);
    }
    TIFFIN_HD static bank_row bank(const engine_detail::slot& s, std::size_t expert, std::size_t outputs,
                                   std::size_t feature) {
        return {static_cast<const storage*>(s.numbers) + expert * s.rank * outputs + feature, outputs};
    }
    TIFFIN_HD static reg multiply_add(const reg& a, const reg& b, const reg& c) { return c + a * b; }
    template <class Formula, class... Registers>
    TIFFIN_HD static reg apply(const Formula& formula, const Registers&... in) {
        return by_lane<N>(formula, in...);
    }
};

// The products at a place, one per weight.
template <std::size_t N>
struct pack_sums {
    const pack<N>* of;

    template <std::size_t Number>
    TIFFIN_HD const pack<N>& sum() const {
        return of[Number];
    }
};

// The formula of a view at some features of a token.
template <codec Format, std::size_t N, class View>
__device__ pack<N> formula_value(const View& view, std::size_t t, std::size_t feature, std::size_t count,
                                 const pack<N>* products) {
    const typename View::target::token token = View::target::token_at(view, t);
    using place = engine_detail::place<device_numbers<Format, N>, View, pack_sums<N>>;
    return evaluate(view.source, place{view, token, feature, count, {products}});
}

// The value of a source at some features, its products read from planes.
template <codec Format, class View>
struct source_value {
    using source_type = decltype(View::source);
    static constexpr std::size_t projections = count_of<source_type>(tensor_kind::projection);
    // Whether tokens share weights, those of a bank: see value_body.
    static constexpr bool shares_weights = count_of<source_type>(tensor_kind::low_rank_out) > 0;

    View view;
    const typename Format::storage* planes;
    std::size_t plane;

    template <std::size_t N>
    __device__ pack<N> at(std::size_t t, std::size_t feature, std::size_t count) const {
        pack<N> products[projections + 1];
        for (std::size_t i = 0; i != projections; ++i)
            products[i] = load<Format, N>(planes + i * plane + t * view.outputs + feature, count);
        return formula_value<Format, N>(view, t, feature, count, products);
    }
};

// Values that are already in rows.
struct row_value {
    const float* rows;
    std::size_t width;

    template <std::size_t N>
    __device__ pack<N> at(std::size_t t, std::size_t feature, std::size_t count) const {
        return load<f32, N>(rows + t * width + feature, count);
    }
};

// A thread per some features of a token: write(t, feature, value, count). Token by token; or, where tokens share
// weights, the same features of all tokens, a warp per token, so that these weights stay in the cache of a
// multiprocessor.
template <codec Format, class Value, class Write>
struct value_body {
    static constexpr std::size_t numbers = access<Format>;
    static constexpr bool shared = requires { requires Value::shares_weights; };

    Value value;
    token_range tokens;
    std::size_t features;
    Write write;

    [[nodiscard]] std::size_t items() const {
        const std::size_t chunks = (features + numbers - 1) / numbers;
        return tokens.most * (shared ? (chunks + warp_threads - 1) / warp_threads * warp_threads : chunks);
    }
    __device__ void operator()(std::size_t item) const {
        const std::size_t chunks = (features + numbers - 1) / numbers;
        divided at{};  // token, chunk
        if constexpr (shared) {
            const auto [group, t] = divide(item / warp_threads, tokens.most);
            at = {t, group * warp_threads + item % warp_threads};
            if (at.remainder >= chunks) return;
        } else {
            at = divide(item, chunks);
        }
        const std::size_t t = at.quotient, feature = at.remainder * numbers;
        if (!tokens.has(t)) return;
        const std::size_t count = features - feature < numbers ? features - feature : numbers;
        write(t, feature, value.template at<numbers>(t, feature, count), count);
    }
};
template <codec Format, class Value, class Write>
void write_values(launches& out, const Value& value, const token_range& tokens, std::size_t features,
                  const Write& write) {
    const value_body<Format, Value, Write> body{value, tokens, features, write};
    for_elements(out, body.items(), body);
}

// A block of threads per token: the scale of a node's row.
template <codec Format, std::size_t First, class Node, class View>
struct scale_body {
    Node node;
    View view;

    __device__ void operator()(const block& g, std::size_t t) const {
        if (!view.call.tokens.has(t)) return;
        constexpr std::size_t numbers = access<Format>;
        using place = engine_detail::place<device_numbers<Format, numbers>, View, pack_sums<numbers>>;
        const typename View::target::token token = View::target::token_at(view, t);
        float sums = 0;
        for (std::size_t j = g.rank() * numbers; j < view.outputs; j += g.size() * numbers) {
            const place here{view, token, j, view.outputs - j, {nullptr}};
            const auto factors = factors_of_row<First>(node, here);
            for (std::size_t i = 0; i < numbers && j + i < view.outputs; ++i)
                sums += factors.left.lane[i] * factors.right.lane[i];
        }
        sums = g.sum(sums);
        if (g.rank() == 0)
            view.state_of(t)[view.tensor_slots[First].state] =
                static_cast<float>(scale_of_row(node, sums, static_cast<float>(view.outputs)));
    }
};

// The rows of a delay: returns those of an earlier call and stores this call's in their slot.
template <codec Format>
struct exchanged_value {
    const float* sent;
    std::size_t width;
    matrix_view<float> carried;
    bool is_due;
    token_range tokens;

    template <std::size_t N>
    __device__ pack<N> at(std::size_t t, std::size_t feature, std::size_t count) const {
        float* const slot = carried.row(tokens.row(t)) + feature;
        const pack<N> taken = is_due ? load<f32, N>(slot, count) : pack<N>(0.0f);
        store<f32, N>(load<f32, N>(sent + t * width + feature, count), slot, count);
        return taken;
    }
};

// Writes values to rows of one format, `stride` elements apart.
template <codec To>
struct row_write {
    typename To::storage* data;
    std::size_t stride;

    template <std::size_t N>
    __device__ void operator()(std::size_t t, std::size_t feature, const pack<N>& v,
                               std::size_t count) const {
        store<To, N>(v, data + t * stride + feature, count);
    }
};
// Writes complete values to their destination.
template <codec Format>
struct put_values {
    device_rows<Format> to;

    template <std::size_t N>
    __device__ void operator()(std::size_t t, std::size_t feature, const pack<N>& v,
                               std::size_t count) const {
        to.put(t, feature, v, count);
    }
};

}  // namespace cuda_detail

TIFFIN_END
