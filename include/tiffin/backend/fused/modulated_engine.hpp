// A modulated block on any machine.
#pragma once

#include <tiffin/backend/fused/ffn_engine.hpp>

#include <cstddef>
#include <utility>

TIFFIN_BEGIN

namespace fused_detail {

// A modulated ffn: in its epilogue.
template <class Machine, ffn_block Base, class Modulator, class Fusion>
class modulated_ffn_engine : public ffn_engine<Machine, Base, modulator_stage<Machine, Modulator, Fusion>> {
public:
    modulated_ffn_engine(const modulated<Base, Modulator, Fusion>& block, const binding& bound)
        : ffn_engine<Machine, Base, modulator_stage<Machine, Modulator, Fusion>>(
              block.base, bound.parts[0], {block.modulator, block.fusion, bound}) {}
};

// Any other block modulated: in one more pass.
template <class Machine, block_policy Base, class Modulator, class Fusion>
class modulated_engine {
public:
    modulated_engine(const modulated<Base, Modulator, Fusion>& block, const binding& bound)
        : d_model_(bound.d_model),
          base_(block.base, bound.parts[0]),
          modulator_(block.modulator, block.fusion, bound) {}

    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        arena areas;
        lay_out(areas, tokens, workers);
        return areas.used() + base_.workspace_bytes(tokens, workers);
    }
    void run(const call_arguments& call) const {
        arena areas(call.workspace);
        const memory_of_a_call at = lay_out(areas, call.tokens, call.workers);
        call_arguments inner = call;
        inner.workspace = areas.rest();
        inner.to = {{at.rows, call.tokens, d_model_}};
        const bool outermost = modulator_.choices() > 0;
        if (outermost) inner.routes = nullptr;
        base_.run(inner);
        modulator_.prepare(call, Machine::inputs(call, at.x), at.modulator,
                           outermost ? call.routes : nullptr);
        put_rows<Machine>(call, d_model_, [&](std::size_t t, std::size_t j, std::size_t n) {
            return modulator_.apply(call, at.modulator, Machine::load(at.rows + t * d_model_ + j, n), t, j,
                                    n);
        });
    }

private:
    struct memory_of_a_call {
        float* rows;  // the base's: what is modulated must not be weighted or added yet
        float* x;
        std::byte* modulator;
    };
    memory_of_a_call lay_out(arena& areas, std::size_t tokens, std::size_t workers) const noexcept {
        float* const rows = areas.take<float>(tokens * d_model_);
        float* const x = areas.take<float>(Machine::input_numbers(tokens, d_model_));
        return {rows, x, areas.take<std::byte>(modulator_.workspace_bytes(tokens, workers))};
    }

    std::size_t d_model_;
    engine_of<Machine, Base> base_;
    modulator_stage<Machine, Modulator, Fusion> modulator_;
};

template <class Machine, class Base, class Modulator, class Fusion>
struct engine_choice<Machine, modulated<Base, Modulator, Fusion>> {
    using type = modulated_engine<Machine, Base, Modulator, Fusion>;
};
template <class Machine, ffn_block Base, class Modulator, class Fusion>
struct engine_choice<Machine, modulated<Base, Modulator, Fusion>> {
    using type = modulated_ffn_engine<Machine, Base, Modulator, Fusion>;
};

}  // namespace fused_detail

TIFFIN_END
