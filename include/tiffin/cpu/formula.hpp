// How a formula is evaluated on the host: in the registers of its products' sums, or of rows.
#pragma once

#include <tiffin/call/call_arguments.hpp>
#include <tiffin/cpu/numbers.hpp>
#include <tiffin/cpu/output.hpp>
#include <tiffin/cpu/product_sums.hpp>
#include <tiffin/cpu/row_block.hpp>
#include <tiffin/engine/view.hpp>
#include <tiffin/grammar/tree.hpp>

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>

TIFFIN_BEGIN

namespace cpu_detail {

// The part of a target (see engine/target.hpp) that reads a view.
template <class Machine>
struct host_formula {
    struct table_rows {
        const std::byte** of_token = nullptr;

        static table_rows lay_out(detail::arena<64>& areas, std::size_t tokens) noexcept {
            return {areas.take<const std::byte*>(tokens)};
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
        const float* const* rows = nullptr;  // of tables, from feature `first` on
        std::size_t first = 0;
    };
    template <class View>
    static token token_at(const View& view, std::size_t t) noexcept {
        const call_arguments& call = *view.call.of;
        const auto row_of = [&](const matrix_view<const float>& m) {
            return m.data ? m.row(call.row(t)) : nullptr;
        };
        return {t, view.state_of(t), row_of(call.per_layer_input), row_of(call.residual)};
    }
    // The same at some features, no more than finished_at_once of them.
    template <class View>
    static token token_at(const View& view, std::size_t t, row_block<Machine, View>& rows, std::size_t first,
                          std::size_t features) noexcept {
        rows.read(view, t, first, features);
        token made = token_at(view, t);
        made.rows = rows.begins();
        made.first = first;
        return made;
    }
    // What stands above the last step of a chain, for a group of features.
    template <class Outer>
    class above_group;
    // Where a register of what a source reads begins.
    static const float* input_at(const typename Machine::activations& in, const token& at,
                                 std::size_t feature) noexcept {
        return Machine::input_at(in, at.number, feature);
    }
    // The value of a row of a table, or of the sum of those chosen: decoded before (see row_block.hpp).
    template <class Numbers, tensor_kind, class View>
    static auto row_value(const View&, const token& at, const engine_detail::slot& s, std::size_t feature,
                          std::size_t count) noexcept {
        return Numbers::load_row(at.rows[s.table] + (feature - at.first), count);
    }

    template <class View, class Products>
    using place = engine_detail::place<host_numbers<Machine>, View, Products>;

    // Products, and the formula in the registers of their sums.
    template <class Products, class View, class Store>
    static void multiply(const call_arguments& of, const Products& products,
                         const typename Machine::activations& in, std::byte* memory, const View& view,
                         const Store& store) {
        using read_sums = register_sums<Machine, count_of<decltype(View::source)>(tensor_kind::projection)>;
        const auto finish = [&](std::size_t first, std::size_t count, std::size_t first_feature,
                                std::size_t features, const product_sums& of_group) noexcept {
            auto&& to = writer_of_group(store);
            row_block<Machine, View> rows;
            const weight_sums& sums = of_group.first;
            for (std::size_t t = 0; t < count; ++t) {
                // The rows of a call lie anywhere in their tables: ask for the next token's
                // before they are due.
                if (t + 1 < count) coming(view, store, first + t + 1, first_feature, features);
                const token at = token_at(view, first + t, rows, first_feature, features);
                begin(to, first + t, first_feature, features);
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
                finish_group(to, first + t, first_feature, features);
            }
        };
        products.packed().run(in, reinterpret_cast<float*>(memory), of.workers, of.execute, finish);
    }
    // The formula of a tree without products, token by token: its norms first.
    template <class View, class Store>
    static void evaluate_rows(const call_arguments& of, const View& view, const Store& store) {
        for_tokens(of, view.outputs, [&](std::size_t t) noexcept {
            auto&& to = writer_of_group(store);
            scale_row(view, t);
            for_registers(
                view, t, [&](std::size_t first, std::size_t count) { begin(to, t, first, count); },
                [&](const auto& here) {
                    to(t, here.feature, typename Machine::reg(evaluate(view.source, here)), here.count);
                },
                [&](std::size_t first, std::size_t count) { finish_group(to, t, first, count); });
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
        row_block<Machine, View>::ask(view, t, first, count);
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
    template <class Writer>
    static void begin(Writer& to, std::size_t t, std::size_t first, std::size_t features) noexcept {
        if constexpr (requires { to.begin(t, first, features); }) to.begin(t, first, features);
    }
    template <class Writer>
    static void finish_group(Writer& to, std::size_t t, std::size_t first, std::size_t features) noexcept {
        if constexpr (requires { to.finish(t, first, features); }) to.finish(t, first, features);
    }
    template <class View, class Store>
    static void coming(const View& view, const Store& store, std::size_t t, std::size_t first,
                       std::size_t count) noexcept {
        ask(view, t, first, count);
        if constexpr (requires { store.coming(t, first, count); }) store.coming(t, first, count);
    }
    // Calls visit(place) for the registers of a token, and begin and end(first, features) around some of them.
    template <class View, class Begin, class Visit, class End>
    static void for_registers(const View& view, std::size_t t, const Begin& begin, const Visit& visit,
                              const End& end) noexcept {
        row_block<Machine, View> rows;
        for (std::size_t first = 0; first < view.outputs; first += finished_at_once) {
            const std::size_t features = std::min(finished_at_once, view.outputs - first);
            const token at = token_at(view, t, rows, first, features);
            begin(first, features);
            for (std::size_t j = 0; j < features; j += Machine::lane_count)
                visit(place<View, engine_detail::no_products>{
                    view, at, first + j, std::min(Machine::lane_count, features - j), {}});
            end(first, features);
        }
    }
    template <class View>
    static void scale_row(const View& view, std::size_t t) noexcept {
        visit_nodes(view.source, [&]<std::size_t First>(const auto& node) {
            if constexpr (row_scaled_source<std::remove_cvref_t<decltype(node)>>) {
                typename Machine::reg sums(0.0f);
                const auto nothing = [](std::size_t, std::size_t) {};
                for_registers(
                    view, t, nothing,
                    [&](const auto& here) {
                        const auto factors = factors_of_row<First>(node, here);
                        sums = Machine::add_product(factors.left, factors.right, here.count, sums);
                    },
                    nothing);
                view.state_of(t)[view.tensor_slots[First].state] = static_cast<float>(
                    scale_of_row(node, Machine::sum(sums), static_cast<float>(view.outputs)));
            }
        });
    }
};

template <class Machine>
template <class Outer>
class host_formula<Machine>::above_group {
    using view_type = std::remove_cvref_t<decltype(Outer::view)>;
    using reg = typename Machine::reg;

public:
    explicit above_group(const Outer& of) noexcept : of_(of), to_(writer_of_group(of.store)) {}
    void begin(std::size_t t, std::size_t first, std::size_t features) noexcept {
        at_ = token_at(of_.view, t, rows_, first, features);
        host_formula::begin(to_, t, first, features);
    }
    void operator()(std::size_t t, std::size_t feature, const reg& v, std::size_t count) noexcept {
        const place<view_type, engine_detail::last_step<Outer::chain, reg>> here{
            of_.view, at_, feature, count, {v}};
        to_(t, feature, reg(evaluate(of_.view.source, here)), count);
    }
    void finish(std::size_t t, std::size_t first, std::size_t features) noexcept {
        finish_group(to_, t, first, features);
    }

private:
    const Outer& of_;
    decltype(writer_of_group(std::declval<const Outer&>().store)) to_;
    row_block<Machine, view_type> rows_;
    token at_{};
};

}  // namespace cpu_detail

TIFFIN_END
