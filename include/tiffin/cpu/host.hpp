// Where the engines of a machine of the host run: registers and products by the machine, threads by the
// caller's executor.
#pragma once

#include <tiffin/call/call_arguments.hpp>
#include <tiffin/cpu/held_weights.hpp>
#include <tiffin/cpu/mixture.hpp>
#include <tiffin/cpu/numbers.hpp>
#include <tiffin/cpu/output.hpp>
#include <tiffin/cpu/product_sums.hpp>
#include <tiffin/cpu/router.hpp>
#include <tiffin/cpu/row_router.hpp>
#include <tiffin/engine/rows.hpp>

#include <algorithm>
#include <cstddef>
#include <type_traits>

TIFFIN_BEGIN

namespace cpu_detail {

// A target (see engine/target.hpp).
template <class Machine>
struct host {
    using call = call_arguments;
    using arena = detail::arena<64>;
    using activations = typename Machine::activations;
    using preparation = const tiffin::preparation;
    using destination = output_rows;
    using tensors = held_tensors<Machine>;
    using put = put_registers<Machine>;
    using buffer = row_buffer<Machine>;
    using bank_in = low_rank_stage<Machine>;
    using bank_out = packed_bank;
    template <class Register>
    using numbers = host_numbers<Machine>;
    template <class View>
    using kept = const View&;
    template <std::size_t Count>
    using products = host_products<Machine, Count>;
    template <router_policy Router>
    using router = router_stage<Machine, Router>;
    template <class Source>
    using mixture = mixture_rows<host, Machine, Source>;

    struct table_rows {
        const typename Machine::table_storage** of_token = nullptr;
        dtype type = dtype::f32;

        static table_rows lay_out(arena& areas, std::size_t tokens) noexcept {
            return {areas.template take<const typename Machine::table_storage*>(tokens)};
        }
    };
    struct call_view {
        const call_arguments* of = nullptr;
    };
    struct token {
        std::size_t number;
        const float* state;
        const float* given;
        const float* residual;
    };
    template <class View>
    static token token_at(const View& view, std::size_t t) noexcept {
        const call_arguments& call = *view.call.of;
        const auto row_of = [&](const matrix_view<const float>& m) {
            return m.data ? m.row(call.row(t)) : nullptr;
        };
        return {t, view.state_of(t), row_of(call.per_layer_input), row_of(call.residual)};
    }
    // Where a register of what a source reads begins.
    static const float* input_at(const activations& in, const token& at, std::size_t feature) noexcept {
        return Machine::input_at(in, at.number, feature);
    }
    template <class View>
    static const auto* row(const View& view, const token& at, std::size_t table) noexcept {
        return view.rows[table].of_token[at.number];
    }
    // The row of choice i of those that a token chose, where they came with the call.
    template <class View>
    static const auto* gathered_row(const View& view, const token& at, const engine_detail::slot& s,
                                    std::size_t i) noexcept {
        return reinterpret_cast<const typename Machine::table_storage*>(
            view.call.of->gathered_row(s.gathered, at.number, s.choices, i));
    }

    static std::size_t tokens(const call_arguments& of) noexcept { return of.tokens; }
    static float* lay_out_inputs(arena& areas, std::size_t tokens, std::size_t width) noexcept {
        return areas.template take<float>(Machine::input_numbers(tokens, width));
    }
    static activations inputs(const call_arguments& of, const matrix_view<const float>& x, float* room) {
        return Machine::inputs(of, x, room);
    }
    static bool takes_parts(const output_rows& to) noexcept { return to.is_plain(); }
    static output_rows rows_in(float* memory, const call_arguments& of, std::size_t width,
                               std::size_t stride) noexcept {
        return {{memory, of.tokens, width, stride}};
    }
    static void put_rows(const call_arguments& of, const float* rows, std::size_t width,
                         const output_rows& to) {
        cpu_detail::put_rows<Machine>(of, to, width, [&](std::size_t t, std::size_t j, std::size_t n) {
            return Machine::load(rows + t * width + j, n);
        });
    }
    static void exchange_rows(const call_arguments& of, const float* rows, std::size_t width,
                              const output_rows& to) {
        cpu_detail::put_rows<Machine>(of, to, width, [&](std::size_t t, std::size_t j, std::size_t n) {
            float* const slot = of.carried.row(of.row(t)) + j;
            const typename Machine::reg taken =
                of.carried_is_due ? Machine::load(slot, n) : typename Machine::reg(0.0f);
            Machine::store(Machine::load(rows + t * width + j, n), slot, n);
            return taken;
        });
    }
    static void record(const call_arguments& of, const engine_detail::chosen_experts& chosen) {
        for (std::size_t t = 0; of.routes != nullptr && t < of.tokens; ++t)
            std::copy_n(chosen.of(t), chosen.choices, of.routes + t * chosen.choices);
    }

    template <class View, class Products>
    using place = engine_detail::place<host_numbers<Machine>, View, Products>;

    // Products, and the formula in the registers of their sums.
    template <class Products, class View, class Store>
    static void multiply(const call_arguments& of, const Products& products, const activations& in,
                         std::byte* memory, const View& view, const Store& store) {
        using read_sums = register_sums<Machine, count_of<decltype(View::source)>(tensor_kind::projection)>;
        const auto finish = [&](std::size_t first, std::size_t count, std::size_t first_feature,
                                std::size_t features, const product_sums& of_group) noexcept {
            auto&& to = writer_of_group(store);
            const weight_sums& sums = of_group.first;
            for (std::size_t t = 0; t < count; ++t) {
                // The rows of a call lie anywhere in their tables: ask for the next token's
                // before they are due.
                if (t + 1 < count) coming(view, store, first + t + 1, first_feature, features);
                const token at = token_at(view, first + t);
                const float* panel = sums.data + t * sums.token_step;
                for (std::size_t j = 0; j < features; j += sums.outputs, panel += sums.panel_step)
                    for (std::size_t i = j; i < std::min(j + sums.outputs, features);
                         i += Machine::lane_count) {
                        const std::size_t left = std::min(Machine::lane_count, features - i);
                        const float* const last = read_sums::has_last ? of_group.last.at(t, i) : nullptr;
                        const place<View, read_sums> here{
                            view,
                            at,
                            first_feature + i,
                            left,
                            {panel + (i - j), of_group.weight_step, of_group.pair_step, last}};
                        to(first + t, first_feature + i, typename Machine::reg(evaluate(view.source, here)),
                           left);
                    }
                if constexpr (requires { to.finish(t, t, t); }) to.finish(first + t, first_feature, features);
            }
        };
        products.packed().run(in, reinterpret_cast<float*>(memory), of.workers, of.execute, finish);
    }
    // The formula of a tree without products, token by token: its norms first.
    template <class View, class Store>
    static void evaluate_rows(const call_arguments& of, const View& view, const Store& store) {
        for_tokens(of, view.outputs, [&](std::size_t t) noexcept {
            scale_row(view, t);
            const token at = token_at(view, t);
            for (std::size_t j = 0; j < view.outputs; j += Machine::lane_count) {
                const std::size_t left = std::min(Machine::lane_count, view.outputs - j);
                const place<View, engine_detail::no_products> here{view, at, j, left, {}};
                store(t, j, typename Machine::reg(evaluate(view.source, here)), left);
            }
        });
    }
    // The norms of all rows.
    template <class View>
    static void scale_rows(const call_arguments& of, const View& view) {
        if constexpr (count_of<decltype(View::source)>(tensor_kind::row_scale) > 0)
            for_tokens(of, view.outputs, [&](std::size_t t) noexcept { scale_row(view, t); });
    }
    // Asks the cache for the numbers that the formula will read of a token's rows at some features.
    template <class View>
    static void ask(const View& view, std::size_t t, std::size_t first, std::size_t count) noexcept {
        for (std::size_t n = 0; n < View::tables; ++n)
            ask_for(view.rows[n].of_token[t], view.rows[n].type, first, count);
        if constexpr (View::chooses_rows)
            for (const engine_detail::slot& s : view.tensor_slots) {
                if (s.expert_step == 0) continue;
                const auto* const chosen = reinterpret_cast<const choice<float>*>(view.state_of(t) + s.state);
                const auto row_of = [&](std::size_t i) {
                    if (s.gathered != 0) return gathered_row(view, token_at(view, t), s, i);
                    const auto* row_0 = static_cast<const typename Machine::table_storage*>(s.numbers);
                    if (row_0 == nullptr) row_0 = view.rows[s.table].of_token[t];
                    return host_numbers<Machine>::row_at(row_0, s.type, s.offset_of(chosen[i]));
                };
                for (std::size_t i = 0; i < s.choices && chosen[i].expert >= 0; ++i)
                    ask_for(row_of(i), s.type, first, count);
            }
    }

private:
    // What a task writes the values of a group with.
    template <class Store>
    static decltype(auto) writer_of_group(const Store& store) noexcept {
        if constexpr (requires { store.of_group(); })
            return store.of_group();
        else
            return (store);
    }
    template <class View, class Store>
    static void coming(const View& view, const Store& store, std::size_t t, std::size_t first,
                       std::size_t count) noexcept {
        ask(view, t, first, count);
        if constexpr (requires { store.coming(t, first, count); }) store.coming(t, first, count);
    }
    template <class View>
    static void scale_row(const View& view, std::size_t t) noexcept {
        visit_nodes(view.source, [&]<std::size_t First>(const auto& node) {
            if constexpr (row_scaled_source<std::remove_cvref_t<decltype(node)>>) {
                const token at = token_at(view, t);
                typename Machine::reg sums(0.0f);
                for (std::size_t j = 0; j < view.outputs; j += Machine::lane_count) {
                    const std::size_t left = std::min(Machine::lane_count, view.outputs - j);
                    const place<View, engine_detail::no_products> here{view, at, j, left, {}};
                    const auto factors = factors_of_row<First>(node, here);
                    sums = Machine::add_product(factors.left, factors.right, left, sums);
                }
                view.state_of(t)[view.tensor_slots[First].state] = static_cast<float>(
                    scale_of_row(node, Machine::sum(sums), static_cast<float>(view.outputs)));
            }
        });
    }
    static void ask_for(const typename Machine::table_storage* row, dtype type, std::size_t first,
                        std::size_t count) noexcept {
        const auto bytes = [&](std::size_t i) {
            return reinterpret_cast<const std::byte*>(host_numbers<Machine>::row_at(row, type, i));
        };
        for (const std::byte *at = bytes(first), *end = bytes(first + count); at < end; at += 64)
            __builtin_prefetch(at);
    }
};

// What a prepared block is computed with.
template <class Machine, block_policy Block>
class engine : public engine_detail::layer_rows<host<Machine>, Block> {
public:
    engine(const Block& block, const binding& bound)
        : engine_detail::layer_rows<host<Machine>, Block>(block, bound, bound.how) {}
};

}  // namespace cpu_detail

TIFFIN_END
