// Layer files: one block in one safetensors file. Needs the JSON library (target tiffin::io).
#pragma once

#include <tiffin/activation/any_activation.hpp>
#include <tiffin/backend/any_layer.hpp>
#include <tiffin/io/layer_options.hpp>
#include <tiffin/io/safetensors.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/prepare.hpp>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

TIFFIN_BEGIN
namespace io {

namespace detail {

// clang-format off
using file_mlp         = ffn<gate<any_activation>, none>;
using file_glu         = ffn<gate<any_activation>, dense>;
using file_stem        = ffn<gate<any_activation>, token_embedding>;
using file_stem_gate   = ffn<gate<any_activation, token_embedding>, dense>;
using file_stem_hybrid = ffn<gate<any_activation>, sum<dense, token_embedding>>;
// clang-format on

// The activation of a block's gate, with an up source beside it or without.
template <class Hidden>
any_activation& activation_of(Hidden& hidden) {
    if constexpr (requires { hidden.gate; })
        return hidden.gate.phi;
    else
        return hidden.phi;
}

template <class Block, class Backend>
result<any_layer> load(std::string_view name, std::shared_ptr<const safetensors_file> file,
                       layer_options& options, activation_kind usual, const Backend& backend) {
    Block block;
    any_activation& phi = activation_of(block.hidden);
    phi.kind = usual;
    if (status s = options.read(phi); !s) return s.failure();
    if (status s = options.check_all_known(name); !s) return s.failure();
    auto made = try_prepare(block, file->tensors(), backend, {.tokens = 0});
    if (!made) return made.failure();
    return any_layer(*std::move(made), std::move(file));
}

}  // namespace detail

// Prepares the block of a layer file that was read already.
// Errors: errc::option for an unknown or missing block or option, and those of prepare(). `where` is
//   the key or tensor.
// Cost: that of prepare(); the layer shares the file's memory.
// Source: SPEC section 5.
template <class Backend>
result<any_layer> load_layer(std::shared_ptr<const safetensors_file> file, const Backend& backend) {
    layer_options options(file->metadata());
    const std::string* const block = options.find("block");
    if (block == nullptr) return failure{errc::option, "block", "missing from __metadata__"};
    const auto load_as = [&]<class Block>(std::type_identity<Block>, activation_kind usual) {
        return detail::load<Block>(*block, file, options, usual, backend);
    };
    using enum activation_kind;
    if (*block == "mlp") return load_as(std::type_identity<detail::file_mlp>{}, gelu);
    if (*block == "glu") return load_as(std::type_identity<detail::file_glu>{}, silu);
    if (*block == "stem") return load_as(std::type_identity<detail::file_stem>{}, silu);
    if (*block == "stem_gate") return load_as(std::type_identity<detail::file_stem_gate>{}, silu);
    if (*block == "stem_hybrid") return load_as(std::type_identity<detail::file_stem_hybrid>{}, silu);
    return failure{errc::option, "block",
                   "is '" + *block + "'; known are mlp, glu, stem, stem_gate, stem_hybrid"};
}

// Reads a layer file and prepares its block: for files whose kind is known only at run time.
// Errors: those of safetensors_file::open and of load_layer, with the file's path before the rest.
//
//     auto layer = tiffin::io::open_layer("layer.safetensors", tiffin::simd{});
template <class Backend>
result<any_layer> open_layer(const std::filesystem::path& path, const Backend& backend) {
    auto file = safetensors_file::open(path);
    if (!file) return file.failure();
    auto shared = std::make_shared<const safetensors_file>(*std::move(file));
    auto loaded = load_layer(shared, backend);
    if (loaded) return loaded;
    const failure& f = loaded.failure();
    return failure{f.code, shared->label(), f.message()};
}

}  // namespace io
TIFFIN_END
