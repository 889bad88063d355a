// Feed-forward blocks as tiffin prepares them: the half of this backend that knows nothing of ggml.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/executor/executor.hpp>
#include <tiffin/io/side_file.hpp>
#include <tiffin/runtime/any_layer.hpp>
#include <tiffin/tensor.hpp>

#include <cstddef>
#include <string_view>

namespace tiffin_in_ggml {

// A weight (outputs, inputs) where the model holds it, and its bias; null where there is none.
struct projection {
    tiffin::tensor_view weight;
    const float* bias = nullptr;
};

// y = down (phi(gate x) * up x), or down phi(up x) where there is no gate; plus the residual of the call where one is
// added.
struct ffn {
    projection gate, up, down;
    std::string_view activation;  // as a composition names it
    bool residual = false;
};

// Packs the weights, by the threads of `execute`. Errors: those of tiffin::try_prepare().
tiffin::result<tiffin::any_layer> prepare(const ffn& block, tiffin::executor_ref execute);
// The same with what a side file puts around the block of a layer; no residual is added. Calls read token ids.
// Errors: those of side_file::around() and of load_layer(); errc::shape for a table of another vocabulary.
tiffin::result<tiffin::any_layer> prepare_around(const tiffin::io::side_file& side, std::size_t layer,
                                                 const ffn& block, std::size_t vocabulary,
                                                 tiffin::executor_ref execute);

// The instruction set that the layers are compiled for.
const char* instruction_set() noexcept;

}  // namespace tiffin_in_ggml
