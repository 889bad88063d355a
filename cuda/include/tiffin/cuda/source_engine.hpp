// A source that is all of a block, on the device.
#pragma once

#include <tiffin/backend/binding.hpp>
#include <tiffin/cuda/modulator_stage.hpp>

#include <cstddef>

TIFFIN_BEGIN

namespace cuda_detail {

template <codec Format, class Source>
class source_engine {
    using storage = typename Format::storage;

public:
    source_engine(const source_block<Source>& block, const binding& bound, uploads& up)
        : d_model_(bound.d_model), stage_(block.source, bound.tensors, {bound.d_model, bound.d_model}, up) {}
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t /*workers*/) const noexcept {
        device_arena areas;
        areas.take<storage>(tokens * d_model_);
        return areas.used() + stage_.workspace_bytes(tokens);
    }
    void run(const device_call<Format>& call) const {
        device_arena areas(call.workspace);
        auto* const x = areas.take<storage>(call.tokens.most * d_model_);
        stage_.run(call, inputs_of(call, x), areas.rest(), call.routes,
                   finish<Format, no_modulator::view>{call.to, {}});
    }

private:
    std::size_t d_model_;
    stage<Format, Source> stage_;
};

}  // namespace cuda_detail

TIFFIN_END
