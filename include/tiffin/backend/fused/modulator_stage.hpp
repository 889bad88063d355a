// What modulates the output of a block, on any machine.
#pragma once

#include <tiffin/backend/binding.hpp>
#include <tiffin/backend/fused/output.hpp>
#include <tiffin/backend/fused/stage.hpp>

#include <concepts>
#include <cstddef>

TIFFIN_BEGIN

namespace fused_detail {

// y = fusion(y, modulator). A modulator that multiplies x is computed for whole rows first.
template <class Machine, source_policy Modulator, fusion_policy Fusion>
class modulator_stage {
    using stage_type = stage<Machine, Modulator>;

public:
    modulator_stage(const Modulator& modulator, const Fusion& fusion, const binding& bound)
        : stage_(modulator, bound.tensors, {bound.d_model, bound.d_model, bound.formats}),
          fusion_(fusion),
          d_model_(bound.d_model) {}

    [[nodiscard]] std::size_t choices() const noexcept { return stage_.choices(); }
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        arena areas;
        lay_out(areas, tokens);
        return areas.used() + stage_.workspace_bytes(tokens, workers);
    }
    void prepare(const call_arguments& call, const typename Machine::activations& in, std::byte* memory,
                 choice<float>* routes) const {
        arena areas(memory);
        float* const rows = lay_out(areas, call.tokens);
        if constexpr (stage_type::projections > 0)
            stage_.run(call, in, areas.rest(), routes,
                       [rows, width = d_model_](std::size_t t, std::size_t feature,
                                                const typename Machine::reg& v, std::size_t n) {
                           Machine::store(v, rows + t * width + feature, n);
                       });
        else
            stage_.prepare(call, in, areas.rest(), routes);
    }
    // The modulator's own pass over rows of a block: y = fusion(rows, modulator).
    [[nodiscard]] std::size_t pass_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        arena areas;
        areas.take<float>(Machine::input_numbers(tokens, d_model_));
        return areas.used() + workspace_bytes(tokens, workers);
    }
    void pass(const call_arguments& call, const float* rows, std::byte* memory, choice<float>* routes) const {
        arena areas(memory);
        float* const x = areas.take<float>(Machine::input_numbers(call.tokens, d_model_));
        prepare(call, Machine::inputs(call, x), areas.rest(), routes);
        put_rows<Machine>(call, d_model_, [&](std::size_t t, std::size_t j, std::size_t n) {
            return apply(call, areas.rest(), Machine::load(rows + t * d_model_ + j, n), t, j, n);
        });
    }
    // Asks for what apply() will read at these places.
    void ask(const call_arguments& call, std::byte* memory, std::size_t t, std::size_t first,
             std::size_t count) const noexcept {
        arena areas(memory);
        lay_out(areas, call.tokens);
        if constexpr (stage_type::projections == 0) stage_.ask(call, areas.rest(), t, first, count);
    }
    [[nodiscard]] typename Machine::reg apply(const call_arguments& call, std::byte* memory,
                                              const typename Machine::reg& v, std::size_t t,
                                              std::size_t feature, std::size_t count) const noexcept {
        arena areas(memory);
        const float* const rows = lay_out(areas, call.tokens);
        if constexpr (stage_type::projections > 0)
            return fuse(v, Machine::load(rows + t * d_model_ + feature, count));
        else
            return fuse(v, stage_.value(call, areas.rest(), t, feature, count));
    }

private:
    float* lay_out(arena& areas, std::size_t tokens) const noexcept {
        return areas.take<float>(stage_type::projections > 0 ? tokens * d_model_ : 0);
    }
    [[nodiscard]] typename Machine::reg fuse(const typename Machine::reg& v,
                                             const typename Machine::reg& m) const noexcept {
        if constexpr (std::invocable<const Fusion&, const typename Machine::reg&,
                                     const typename Machine::reg&>)
            return fusion_(v, m);
        else
            return Machine::apply(fusion_, v, m);
    }

    stage_type stage_;
    [[no_unique_address]] Fusion fusion_;
    std::size_t d_model_;
};

}  // namespace fused_detail

TIFFIN_END
