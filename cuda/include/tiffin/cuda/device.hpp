// The device, the Target of the engines of the CUDA backend: kernels and cuBLASLt on the call's stream.
#pragma once

#include <tiffin/cuda/bank.hpp>
#include <tiffin/cuda/engine/rows.hpp>
#include <tiffin/cuda/few_tokens.hpp>
#include <tiffin/cuda/held_weights.hpp>
#include <tiffin/cuda/mixture.hpp>
#include <tiffin/cuda/product.hpp>
#include <tiffin/cuda/router.hpp>
#include <tiffin/cuda/row_router.hpp>
#include <tiffin/cuda/uploads.hpp>
#include <tiffin/cuda/values.hpp>
#include <tiffin/format/concepts.hpp>
#include <tiffin/source/dense.hpp>

#include <concepts>
#include <cstddef>
#include <type_traits>

TIFFIN_BEGIN

namespace cuda_detail {

template <class Register>
inline constexpr std::size_t lanes_of = 0;
template <std::size_t N>
inline constexpr std::size_t lanes_of<pack<N>> = N;

// The types and operations that the engines (engine/) use as Target.
template <codec Format>
struct device {
    using storage = typename Format::storage;
    using format = Format;
    using call = device_call<Format>;
    using arena = device_arena;
    using activations = cuda_detail::activations<Format>;
    using preparation = uploads;
    using destination = device_rows<Format>;
    using tensors = device_tensors<Format>;
    using put = put_values<Format>;
    using bank_in = device_bank_in<Format>;
    using bank_out = device_bank_out<Format>;
    template <class Register>
    using numbers = device_numbers<Format, lanes_of<Register>>;
    template <class View>
    using kept = View;
    template <std::size_t Count>
    using products = dense_products<Format, Count>;
    template <router_policy Router>
    using router = device_router<Format, Router>;
    template <class Source>
    using mixture = mixture_rows<device, Source>;

    struct table_rows : row_source {
        static table_rows lay_out(arena&, std::size_t) noexcept { return {}; }
    };
    struct call_view {
        token_range tokens{};
        refused_ids refused{};
        matrix_view<const storage> given{};
        matrix_view<const storage> residual{};
    };
    struct token {
        std::size_t row;
        const float* state;
        const storage* given;
        const storage* residual;
        std::size_t number;
    };
    template <class View>
    TIFFIN_HD static token token_at(const View& view, std::size_t t) {
        const std::size_t row = view.call.tokens.row(t);
        return {row, view.state_of(t), view.call.given.row(row), view.call.residual.row(row), t};
    }
    // Pointer to a source's input at a token and feature.
    TIFFIN_HD static const storage* input_at(const activations& in, const token& at, std::size_t feature) {
        return in.data + at.number * in.stride + feature;
    }
    template <class View>
    __device__ static const storage* row(const View& view, const token& at, std::size_t table) {
        return reinterpret_cast<const storage*>(view.rows[table].row(at.row, view.call.refused));
    }
    // The row of a token's choice i, where the chosen rows were gathered by the caller.
    template <class View>
    __device__ static const storage* gathered_row(const View& view, const token& at,
                                                  const engine_detail::slot& s, std::size_t i) {
        return reinterpret_cast<const storage*>(
            view.rows[s.table].row_of_choice(at.row, s.choices, i, view.call.refused));
    }

    // The value of a table row, or of the weighted sum of the chosen rows.
    template <class Numbers, tensor_kind Kind, class View>
    __device__ static typename Numbers::reg value_of_rows(const View& view, const token& at,
                                                          const engine_detail::slot& s, std::size_t feature,
                                                          std::size_t count) {
        if constexpr (Kind == tensor_kind::table) {
            return Numbers::load_given(row(view, at, s.table) + feature, count);
        } else {
            const storage* first = static_cast<const storage*>(s.numbers);
            if constexpr (Kind == tensor_kind::pool) first = row(view, at, s.table);
            const auto* const chosen = reinterpret_cast<const choice<float>*>(at.state + s.state);
            typename Numbers::reg total(0.0f);
            for (std::size_t i = 0; i < s.choices && chosen[i].expert >= 0; ++i) {
                const storage* const one =
                    s.gathered != 0 ? gathered_row(view, at, s, i) : first + s.offset_of(chosen[i]);
                total = Numbers::multiply_add(typename Numbers::reg(chosen[i].weight),
                                              Numbers::load_given(one + feature, count), total);
            }
            return total;
        }
    }

    // Activation rows between two parts of a chain.
    class buffer {
    public:
        buffer(arena& areas, std::size_t tokens, std::size_t width) noexcept
            : to_(areas.template take<storage>(tokens * width)), width_(width) {}
        template <class From, class To>
        buffer(arena& areas, std::size_t tokens, std::size_t width, const From&, const To&) noexcept
            : buffer(areas, tokens, width) {}
        [[nodiscard]] activations rows() const noexcept { return {to_, width_}; }
        [[nodiscard]] row_write<Format> writer() const noexcept { return {to_, width_}; }

    private:
        storage* to_;
        std::size_t width_;
    };

    static std::size_t tokens(const call& of) noexcept { return of.tokens.most; }
    static storage* lay_out_inputs(arena& areas, std::size_t tokens, std::size_t width) noexcept {
        return areas.template take<storage>(tokens * width);
    }
    // Rows of x: in place, or gathered into `room`.
    static activations inputs(const call& of, const matrix_view<const storage>& x, storage* room) {
        if (of.tokens.rows == nullptr) return {x.data, x.stride};
        gather<Format>(*of.out, {x.data, x.stride}, of.tokens.rows, of.tokens, x.cols, room);
        return {room, x.cols};
    }
    static bool takes_parts(const destination& to) noexcept { return to.takes_parts(); }
    static destination rows_in(float* memory, const call&, std::size_t /*width*/,
                               std::size_t stride) noexcept {
        return {memory, stride, true};
    }
    static void put_rows(const call& of, const float* rows, std::size_t width, const destination& to) {
        write_values<Format>(*of.out, row_value{rows, width}, of.tokens, width, put{to});
    }
    static void exchange_rows(const call& of, const float* rows, std::size_t width, const destination& to) {
        write_values<Format>(*of.out,
                             exchanged_value<Format>{rows, width, of.carried, of.carried_is_due, of.tokens},
                             of.tokens, width, put{to});
    }
    static void record(const call& of, const chosen_experts& chosen) {
        if (of.routes != nullptr)
            for_elements(*of.out, of.tokens.most * chosen.choices, record_body{chosen, of.routes});
    }

    // Products by cuBLASLt, or for few tokens in the kernel that evaluates the formula.
    template <class Products, class View, class Store>
    static void multiply(const call& of, const Products& products, const activations& in, std::byte* memory,
                         const View& view, const Store& store) {
        auto* const planes = reinterpret_cast<storage*>(memory);
        if (is_few(of.tokens)) {
            if (of.tokens.most == 1)
                few<1>(of, products, in, view, store);
            else
                few<few_tokens>(of, products, in, view, store);
        } else if (!write_product(of, products, in, memory, view, store)) {
            products.run(of.tokens, in, planes, *of.out);
            write_values<Format>(*of.out,
                                 source_value<Format, View>{view, planes, products.plane(of.tokens.most)},
                                 of.tokens, view.outputs, store);
        }
    }
    // The formula of a tree without products, its scales first.
    template <class View, class Store>
    static void evaluate_rows(const call& of, const View& view, const Store& store) {
        scale_rows(of, view);
        write_values<Format>(*of.out, source_value<Format, View>{view, nullptr, 0}, of.tokens, view.outputs,
                             store);
    }
    // The scales of norms and gates of all rows.
    template <class View>
    static void scale_rows(const call& of, const View& view) {
        visit_nodes(view.source, [&]<std::size_t First>(const auto& node) {
            using node_type = std::remove_cvref_t<decltype(node)>;
            if constexpr (row_scaled_source<node_type>)
                for_rows(*of.out, of.tokens.most, scale_body<Format, First, node_type, View>{node, view});
        });
    }

private:
    template <std::size_t Tokens, class Products, class View, class Store>
    static void few(const call& of, const Products& products, const activations& in, const View& view,
                    const Store& store) {
        few_body<Format, View, Tokens, Store> body{view, in, products.weights(), products.inputs(), store};
        if (of.tokens.most > 0) for_warps(*of.out, view.outputs, body);
    }
    // Where the formula is one product and nothing else, cuBLASLt writes it to the destination.
    template <class Products, class View, class Store>
    static bool write_product(const call& of, const Products& products, const activations& in,
                              std::byte* memory, const View& view, const Store& store) {
        if constexpr (std::derived_from<decltype(View::source), dense> && std::same_as<Store, put>) {
            const destination& to = store.to;
            const bool biased = view.tensor_slots[1].numbers != nullptr;
            const bool plain = !to.add && to.rows == nullptr && to.stride == view.outputs &&
                               (!to.wide || std::same_as<Format, f32>);
            if (biased || !plain) return false;
            products.one(of.tokens, in, products.weights()[0], static_cast<storage*>(to.data), memory,
                         *of.out);
            return true;
        } else {
            return false;
        }
    }
};

}  // namespace cuda_detail

TIFFIN_END
