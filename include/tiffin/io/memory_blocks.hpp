// The memory blocks of layer files: meki and ple, in whatever form their tensors have.
#pragma once

#include <tiffin/fusion/any_fusion.hpp>
#include <tiffin/io/layer_options.hpp>
#include <tiffin/io/memory_form.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/runtime/any_block.hpp>
#include <tiffin/tensor.hpp>

#include <array>
#include <string>
#include <string_view>
#include <type_traits>

TIFFIN_BEGIN
namespace io {
namespace detail {

template <class Memory>
using file_memory = ffn<gate<any_activation>, Memory, any_fusion, memory_output>;

// A memory block; every norm in it has the same eps.
template <class Backend, class Memory>
any_block<Backend> memory_block(const any_activation& phi, const any_fusion& fusion, float eps) {
    file_memory<Memory> made;
    made.hidden.gate.phi = phi;
    made.hidden.fusion = fusion;
    made.output.norm.eps = eps;
    set_eps(made.hidden.up, eps);
    return any_block<Backend>(made);
}

template <class Backend>
result<any_block<Backend>> meki_block(layer_options& options, const weights& given, const block_place& at) {
    enum class fusion_kind { add_sigmoid, mul_sigmoid, add_silu, mul_silu } kind = fusion_kind::add_sigmoid;
    static constexpr std::array<std::string_view, 4> names{
        {"add_sigmoid", "mul_sigmoid", "add_silu", "mul_silu"}};
    enum class input_kind { normed, residual } input = input_kind::normed;
    static constexpr std::array<std::string_view, 2> inputs{{"normed", "residual"}};
    float eps = 1e-6f;
    bool folded = false;
    if (status s = options.read(at.keys + "fusion", names, kind); !s) return s.failure();
    if (status s = options.read(at.keys + "gate_input", inputs, input); !s) return s.failure();
    if (status s = options.read(at.keys + "eps", eps); !s) return s.failure();
    if (status s = options.read(at.keys + "folded", folded); !s) return s.failure();
    const bool silu = kind == fusion_kind::add_silu || kind == fusion_kind::mul_silu;
    const any_activation phi{silu ? activation_kind::silu : activation_kind::sigmoid};
    const any_fusion fuse{kind == fusion_kind::add_sigmoid || kind == fusion_kind::add_silu};
    const auto with = [&]<class Memory>(std::type_identity<Memory>) {
        return memory_block<Backend, Memory>(phi, fuse, eps);
    };
    const any_block<Backend> made =
        folded ? with(std::type_identity<memory_injection>{}) : with_memory_form(given, at.tensors, with);
    if (input == input_kind::normed) return made;
    return any_block<Backend>(on_residual<any_block<Backend>>{made});
}

template <class Backend>
result<any_block<Backend>> ple_block(layer_options& options, const weights& given, const block_place& at) {
    float eps = 1e-6f;
    bool folded = false;
    any_activation phi{activation_kind::gelu_tanh};
    if (status s = options.read(at.keys + "eps", eps); !s) return s.failure();
    if (status s = options.read(at.keys + "activation", phi); !s) return s.failure();
    if (status s = options.read(at.keys + "folded", folded); !s) return s.failure();
    const auto has = [&](const char* name) { return given.find(at.tensors + name) != nullptr; };
    if (!folded && has("word_embed.weight")) return memory_block<Backend, ple_memory>(phi, {}, eps);
    if (folded || has("memory.weight")) return memory_block<Backend, memory_injection>(phi, {}, eps);
    return memory_block<Backend, per_layer_input>(phi, {}, eps);
}

}  // namespace detail
}  // namespace io
TIFFIN_END
