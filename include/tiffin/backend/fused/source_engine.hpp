// A source that is all of a block, on any machine.
#pragma once

#include <tiffin/backend/binding.hpp>
#include <tiffin/backend/fused/output.hpp>
#include <tiffin/backend/fused/stage.hpp>

#include <cstddef>

TIFFIN_BEGIN

namespace fused_detail {

template <class Machine, class Source>
class source_engine {
    using reg = typename Machine::reg;

public:
    source_engine(const source_block<Source>& block, const binding& bound)
        : d_model_(bound.d_model),
          stage_(block.source, bound.tensors, {bound.d_model, bound.d_model, bound.formats}) {}
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        arena areas;
        areas.take<float>(Machine::input_numbers(tokens, d_model_));
        return areas.used() + stage_.workspace_bytes(tokens, workers);
    }
    void run(const call_arguments& call) const {
        arena areas(call.workspace);
        float* const x = areas.take<float>(Machine::input_numbers(call.tokens, d_model_));
        stage_.run(call, Machine::inputs(call, x), areas.rest(), call.routes,
                   [&](std::size_t t, std::size_t feature, const reg& v, std::size_t n) {
                       put<Machine>(call.to, t, feature, v, n);
                   });
    }

private:
    std::size_t d_model_;
    stage<Machine, Source> stage_;
};

}  // namespace fused_detail

TIFFIN_END
