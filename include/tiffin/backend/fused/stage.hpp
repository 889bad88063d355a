// A source evaluated for all tokens of a call: what is needed once a token first, then products and
// formula in one pass.
#pragma once

#include <tiffin/backend/fused/steps.hpp>
#include <tiffin/backend/held_numbers.hpp>
#include <tiffin/format/f32.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

TIFFIN_BEGIN

namespace fused_detail {

// Where values go that is told which token comes next, so that it can ask for what it will read:
// coming(token, first feature, features).
template <class Store, class Coming>
struct announced_store {
    Store store;
    Coming coming;

    template <class... Arguments>
    void operator()(const Arguments&... arguments) const {
        store(arguments...);
    }
};
template <class Store, class Coming>
announced_store(Store, Coming) -> announced_store<Store, Coming>;

// A table or a pool that a stage keeps, and where its rows are noted for a call.
template <class Machine>
struct held_table {
    typename Machine::table_numbers numbers;
    std::size_t gathered;
    std::size_t row;
};

// Machine says how: registers, loads and stores, the layout of activations, and `products`, which
// multiplies with packed weights and hands over sums. See backend/simd/machine.hpp.
template <class Machine, source_policy Source>
class stage {
public:
    using reg = typename Machine::reg;
    using activations = typename Machine::activations;
    using row_pointer = const typename Machine::table_storage*;
    static constexpr std::size_t projections = count_of<Source>(tensor_kind::projection);
    static constexpr std::size_t tables = count_of<Source>(tensor_kind::table);
    static constexpr std::size_t pools = count_of<Source>(tensor_kind::pool);

    stage(const Source& source, std::span<const tensor_view> tensors, const stage_sizes& sizes)
        : source_(source),
          products_(sizes.outputs, sizes.inputs, sizes.formats),
          outputs_(sizes.outputs),
          table_type_(sizes.formats.tables.type),
          steps_(make_steps<Machine, Source>(source, tensors, sizes)) {
        static constexpr auto specs = specs_of<Source>("");
        for (std::size_t i = 0; i < specs.size(); ++i)
            if (!specs[i].nested) keep(specs[i].kind, i, tensors[i]);
        for_steps([&](auto& step) {
            step.describe(slots_, state_numbers_);
            state_numbers_ += (step.state_numbers() + 15) / 16 * 16;
        });
    }

    // The experts a token gets of the first router in the source; 0 where it has none.
    [[nodiscard]] std::size_t choices() const noexcept {
        std::size_t all = 0;
        for_steps([&](const auto& step) {
            if (all == 0) all = step.choices();
        });
        return all;
    }

    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        const memory at = lay_out(nullptr, tokens);
        std::size_t most = products_.scratch_numbers(tokens, workers) * sizeof(float);
        for_steps([&](const auto& step) { most = std::max(most, step.workspace_bytes(tokens, workers)); });
        return at.used + (most + 63) / 64 * 64;
    }

    // Computes what is needed once a token. `routes`: where to record the first router's choices, or null.
    void prepare(const call_arguments& call, const activations& in, std::byte* memory_begin,
                 choice<float>* routes) const {
        const memory at = lay_out(memory_begin, call.tokens);
        for (const held_table<Machine>& table : tables_)
            for (std::size_t t = 0; t < call.tokens; ++t)
                at.rows[table.row * call.tokens + t] =
                    table.gathered != 0
                        ? reinterpret_cast<row_pointer>(call.gathered_row(table.gathered, t))
                        : table.numbers.at(static_cast<std::size_t>(call.token_id(t)) * outputs_);
        const auto evaluator = [&](std::size_t t) { return token(call, at, t); };
        for_steps([&](const auto& step) {
            step.run(call, in, {at.state, state_numbers_}, at.work,
                     step.choices() > 0 ? std::exchange(routes, nullptr) : nullptr, slots_, evaluator);
        });
    }

    // Calls store(token, feature, register, count) for every token and register of outputs.
    template <class Store>
    void run(const call_arguments& call, const activations& in, std::byte* memory_begin,
             choice<float>* routes, const Store& store) const {
        prepare(call, in, memory_begin, routes);
        const memory at = lay_out(memory_begin, call.tokens);
        products_.run(
            in, reinterpret_cast<float*>(at.work), call.workers, call.execute,
            [&](std::size_t first, std::size_t count, std::size_t first_feature, std::size_t features,
                const auto& products) {
                for (std::size_t t = 0; t < count; ++t) {
                    // The rows of a call lie anywhere in their tables: ask for the next token's
                    // before they are due.
                    if (t + 1 < count) {
                        ask_for_rows(at, call, first + t + 1, first_feature, features);
                        if constexpr (requires { store.coming(t, first_feature, features); })
                            store.coming(first + t + 1, first_feature, features);
                    }
                    const token_state<Machine> token_at = token(call, at, first + t);
                    for (std::size_t i = 0; i < features; i += Machine::lane_count) {
                        const std::size_t left = std::min(Machine::lane_count, features - i);
                        const place<Machine, Source> here{
                            slots_.data(),   token_at,          projections ? products.at(t, i) : nullptr,
                            products.step(), first_feature + i, left};
                        store(first + t, first_feature + i, reg(evaluate(source_, here)), left);
                    }
                }
            });
    }

    // The value at one place of a source without projections, after prepare().
    [[nodiscard]] reg value(const call_arguments& call, std::byte* memory_begin, std::size_t t,
                            std::size_t feature, std::size_t count) const noexcept {
        static_assert(projections == 0);
        const token_state<Machine> token_at = token(call, lay_out(memory_begin, call.tokens), t);
        return evaluate(source_, place<Machine, Source>{slots_.data(), token_at, nullptr, 0, feature, count});
    }

    // Asks the cache for what value() will read at these places, after prepare().
    void ask(const call_arguments& call, std::byte* memory_begin, std::size_t t, std::size_t first,
             std::size_t count) const noexcept {
        ask_for_rows(lay_out(memory_begin, call.tokens), call, t, first, count);
    }

private:
    struct memory {
        row_pointer* rows;
        float* state;
        std::byte* work;
        std::size_t used;
    };
    memory lay_out(std::byte* begin, std::size_t tokens) const noexcept {
        arena areas(begin);
        auto* const rows = areas.take<row_pointer>((tables + pools) * tokens);
        auto* const state = areas.take<float>(state_numbers_ * tokens);
        return {rows, state, areas.rest(), areas.used()};
    }
    token_state<Machine> token(const call_arguments& call, const memory& at, std::size_t t) const noexcept {
        return {at.rows + t, call.tokens, at.state + t * state_numbers_,
                call.per_layer_input.data ? call.per_layer_input.row(call.row(t)) : nullptr};
    }
    template <class Visit>
    void for_steps(const Visit& visit) {
        std::apply([&](auto&... step) { (visit(step), ...); }, steps_);
    }
    template <class Visit>
    void for_steps(const Visit& visit) const {
        std::apply([&](const auto&... step) { (visit(step), ...); }, steps_);
    }
    void keep(tensor_kind kind, std::size_t i, const tensor_view& t) {
        // By pointer: g++ 12 takes this function for the same of a source of more tensors, and would then
        // warn of an array that is not there.
        slot<Machine>& s = *(slots_.data() + i);
        if (kind == tensor_kind::projection) {
            products_.pack(packed_++, t);
        } else if (kind == tensor_kind::table || kind == tensor_kind::pool) {
            s.type = table_type_;
            s.table = ordinal_of<Source>(i) + (kind == tensor_kind::pool ? tables : 0);
            if (kind == tensor_kind::pool) s.expert_step = (t.gathered != 0 ? 1 : t.shape[1]) * outputs_;
            tables_.push_back({typename Machine::table_numbers(t, table_type_), t.gathered, s.table});
        } else if (kind == tensor_kind::vector) {
            vectors_.emplace_back(
                t, (outputs_ + Machine::lane_count - 1) / Machine::lane_count * Machine::lane_count);
            s.numbers = vectors_.back().data();
        } else if (kind == tensor_kind::scalar) {
            s.number = load_as_f32(t.data, t.type, 0);
        } else if (kind == tensor_kind::row_width) {
            s.number = static_cast<float>(outputs_);
        }
    }
    // `count` numbers of a token's rows from `first` on, in tables and in pools.
    void ask_for_rows(const memory& at, const call_arguments& call, std::size_t t, std::size_t first,
                      std::size_t count) const noexcept {
        for (std::size_t n = 0; n < tables; ++n) ask_for(at.rows[n * call.tokens + t], first, count);
        for (const slot<Machine>& s : slots_) {
            if (s.expert_step == 0) continue;
            const auto* const chosen =
                reinterpret_cast<const choice<float>*>(at.state + t * state_numbers_ + s.state);
            for (std::size_t i = 0; i < s.choices; ++i)
                ask_for(
                    Machine::table_numbers::at(at.rows[s.table * call.tokens + t], s.type,
                                               static_cast<std::size_t>(chosen[i].expert) * s.expert_step),
                    first, count);
        }
    }
    void ask_for(row_pointer row, std::size_t first, std::size_t count) const noexcept {
        const auto bytes = [&](std::size_t i) {
            return reinterpret_cast<const std::byte*>(Machine::table_numbers::at(row, table_type_, i));
        };
        for (const std::byte *at = bytes(first), *end = bytes(first + count); at < end; at += 64)
            __builtin_prefetch(at);
    }

    [[no_unique_address]] Source source_;
    typename Machine::template products<projections> products_;
    std::size_t outputs_;
    dtype table_type_;
    std::size_t packed_ = 0;
    std::size_t state_numbers_ = 0;
    std::vector<held_table<Machine>> tables_;
    std::vector<held_numbers<f32>> vectors_;
    std::array<slot<Machine>, tensor_count<Source>() + 1> slots_{};
    decltype(make_steps<Machine, Source>(std::declval<const Source&>(), std::span<const tensor_view>{},
                                         std::declval<const stage_sizes&>())) steps_;
};

}  // namespace fused_detail

TIFFIN_END
