// Where the engines of a machine of the host run: registers and products by the machine, threads by the
// caller's executor.
#pragma once

#include <tiffin/call/call_arguments.hpp>
#include <tiffin/cpu/formula.hpp>
#include <tiffin/cpu/held_weights.hpp>
#include <tiffin/cpu/mixture.hpp>
#include <tiffin/cpu/numbers.hpp>
#include <tiffin/cpu/output.hpp>
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
struct host : host_formula<Machine> {
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
    using products = std::conditional_t<(Count > 0), host_products<Machine>, no_host_products>;
    template <router_policy Router>
    using router = router_stage<Machine, Router>;
    template <class Source>
    using mixture = mixture_rows<host, Machine, Source>;

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
