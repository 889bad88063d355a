// The sizes of a source, and the choices of a call's tokens, as engines receive them.
#pragma once

#include <tiffin/router/selection.hpp>

#include <cstddef>

TIFFIN_BEGIN

namespace engine_detail {

// The features of a source's output and input, and of the residual.
struct source_sizes {
    std::size_t outputs;
    std::size_t inputs;
    std::size_t d_model;
};

// The choices of each token, `stride` floats apart.
struct chosen_experts {
    float* state;
    std::size_t stride;
    std::size_t choices;

    TIFFIN_HD choice<float>* of(std::size_t t) const {
        return reinterpret_cast<choice<float>*>(state + t * stride);
    }
};

}  // namespace engine_detail

TIFFIN_END
