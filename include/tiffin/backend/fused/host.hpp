// Where the engines of a machine of the host run.
#pragma once

#include <tiffin/backend/engine/combined.hpp>
#include <tiffin/backend/engine/modulated.hpp>
#include <tiffin/backend/fused/ffn_engine.hpp>
#include <tiffin/backend/fused/mixture_engine.hpp>
#include <tiffin/backend/fused/modulator_stage.hpp>
#include <tiffin/backend/fused/source_engine.hpp>

#include <cstddef>
#include <tuple>

TIFFIN_BEGIN

namespace fused_detail {

// A target (see backend/engine/engine_of.hpp).
template <class Machine>
struct host {
    using machine = Machine;
    using call = call_arguments;
    using areas = arena;
    using preparation = std::tuple<>;

    template <class Block, class After = no_modulator>
    using ffn = ffn_engine<Machine, Block, After>;
    template <class Source>
    using whole = source_engine<Machine, Source>;
    template <class Modulator, class Fusion>
    using modulator = modulator_stage<Machine, Modulator, Fusion>;
    template <class Router, class Expert, class Shared>
    using mixture = mixture_engine<host, Router, Expert, Shared>;

    static std::size_t tokens(const call_arguments& call) noexcept { return call.tokens; }
    static bool takes_parts(const output_rows& to) noexcept { return !to.add && to.weights == nullptr; }
    static output_rows rows_in(float* memory, std::size_t tokens, std::size_t d_model) noexcept {
        return {{memory, tokens, d_model}};
    }
    static void put_rows(const call_arguments& call, const float* rows, std::size_t d_model) {
        fused_detail::put_rows<Machine>(call, d_model, [&](std::size_t t, std::size_t j, std::size_t n) {
            return Machine::load(rows + t * d_model + j, n);
        });
    }
    static void exchange_rows(const call_arguments& call, const float* rows, std::size_t d_model) {
        fused_detail::put_rows<Machine>(call, d_model, [&](std::size_t t, std::size_t j, std::size_t n) {
            float* const slot = call.carried.row(call.row(t)) + j;
            const typename Machine::reg taken =
                call.carried_is_due ? Machine::load(slot, n) : typename Machine::reg(0.0f);
            Machine::store(Machine::load(rows + t * d_model + j, n), slot, n);
            return taken;
        });
    }
};

}  // namespace fused_detail

TIFFIN_END
