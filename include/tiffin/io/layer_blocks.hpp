// The blocks of layer files for what runs types and no plans: training, devices. (All others: layer_text.hpp.)
#pragma once

#include <tiffin/call/prepare.hpp>
#include <tiffin/io/block_texts.hpp>
#include <tiffin/io/described_layer.hpp>
#include <tiffin/io/layer_options.hpp>
#include <tiffin/io/memory_blocks.hpp>
#include <tiffin/io/relative_blocks.hpp>
#include <tiffin/io/row_blocks.hpp>
#include <tiffin/io/structmoe_block.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/norm/any_norm.hpp>
#include <tiffin/router/any_router.hpp>
#include <tiffin/runtime/any_block.hpp>
#include <tiffin/tensor.hpp>

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io {
namespace detail {

// clang-format off
using file_glu         = ffn<gate<any_activation>, dense>;
using file_stem        = ffn<gate<any_activation>, token_embedding>;
using file_stem_gate   = ffn<gate<any_activation, token_embedding>, dense>;
using file_stem_hybrid = ffn<gate<any_activation>, sum<dense, token_embedding>>;
// clang-format on

// Builds the block whose tensors and options are called after a prefix.
template <class Backend>
class block_builder {
public:
    using block = any_block<Backend>;

    block_builder(layer_options& options, const weights& given) : options_(options), given_(given) {}

    // Blocks inside one another: far more than a layer has, few enough for any stack.
    static constexpr std::size_t deepest = 32;

    // `tensors` and `keys` are the prefixes of the tensors' names and of the options' keys.
    result<block> build(const std::string& tensors, const std::string& keys) {
        const std::string* const kind = options_.find(keys + "block");
        if (kind == nullptr) return failure(errc::option, keys + "block", "missing from __metadata__");
        if (depth_ == deepest)
            return failure(errc::option, keys + "block", "lies deeper than ", deepest,
                           " blocks inside one another");
        ++depth_;
        auto made = build_kind(*kind, {tensors, keys});
        --depth_;
        return made;
    }

private:
    using place = block_place;

    result<block> build_kind(const std::string& kind, const place& at) {
        struct known {
            std::string_view name;
            result<block> (block_builder::*build)(const place&);
        };
        using phi = activation_kind;
        static constexpr std::array<known, 20> all{
            {{"mlp", &block_builder::dense_block<file_mlp, phi::gelu>},
             {"glu", &block_builder::dense_block<file_glu, phi::silu>},
             {"stem", &block_builder::dense_block<file_stem, phi::silu>},
             {"stem_gate", &block_builder::dense_block<file_stem_gate, phi::silu>},
             {"stem_hybrid", &block_builder::dense_block<file_stem_hybrid, phi::silu>},
             {"moe", &block_builder::moe},
             {"hash_moe", &block_builder::hash_moe},
             {"structmoe", &block_builder::of_file<structmoe_block<Backend>>},
             {"meki", &block_builder::of_file<meki_block<Backend>>},
             {"ple", &block_builder::of_file<ple_block<Backend>>},
             {"retoken", &block_builder::retoken},
             {"mort", &block_builder::mort},
             {"deep_embed", &block_builder::of_file<deep_embed_block<Backend>>},
             {"mole", &block_builder::of_file<mole_block<Backend>>},
             {"product_keys", &block_builder::of_file<product_keys_block<Backend>>},
             {"peer", &block_builder::of_file<peer_block<Backend>>},
             {"l3", &block_builder::of_file<l3_block<Backend>>},
             {"engram", &block_builder::of_file<engram_block<Backend>>},
             {"longcat_embedding", &block_builder::of_file<longcat_block<Backend>>},
             {"parallel", &block_builder::parallel}}};
        std::string names;
        for (const known& k : all) {
            if (k.name == kind) return (this->*k.build)(at);
            names.append(names.empty() ? "" : ", ").append(k.name);
        }
        return failure(errc::option, at.keys + "block", "is ", tiffin::detail::in_quotes(kind),
                       "; known are ", names);
    }

    // Blocks that a header of their own makes.
    template <auto Make>
    result<block> of_file(const place& at) {
        return Make(options_, given_, at);
    }
    template <class Block, activation_kind Usual>
    result<block> dense_block(const place& at) {
        Block made;
        any_activation& phi = activation_of(made.hidden);
        phi.kind = Usual;
        if (status s = options_.read(at.keys + "activation", phi); !s) return s.failure();
        return block(made);
    }
    // The activation of a block's gate, with an up source beside it or without.
    template <class Hidden>
    static any_activation& activation_of(Hidden& hidden) {
        if constexpr (requires { hidden.gate; })
            return hidden.gate.phi;
        else
            return hidden.phi;
    }

    // A mixture's experts, all of one kind.
    result<block> experts(const place& at) {
        auto prefix = experts_prefix({options_, given_, at});
        if (!prefix) return prefix.failure();
        return build(*prefix + "0.", at.keys + "expert.");
    }
    template <class Router>
    result<block> mixture_of(const place& at, const Router& router) {
        auto expert = experts(at);
        if (!expert) return expert;
        if (!options_.has(at.keys + "shared.block"))
            return block(mixture<Router, block>{router, *expert, {}});
        auto shared = build(at.tensors + "shared.", at.keys + "shared.");
        if (!shared) return shared;
        return block(mixture<Router, block, block>{router, *expert, *shared});
    }
    result<block> moe(const place& at) {
        any_router router;
        if (status s = options_.read(at.keys + "router_order", router_orders, router.order); !s)
            return s.failure();
        if (status s = options_.read(at.keys + "top_k", router.top_k); !s) return s.failure();
        return mixture_of(at, router);
    }
    result<block> hash_moe(const place& at) {
        if (status s = check_map({options_, given_, at}); !s) return s.failure();
        return mixture_of(at, hash{});
    }

    status read(const place& at, any_norm& norm) {
        if (status s = options_.read(at.keys + "norm", norm_names, norm.kind); !s) return s;
        return options_.read(at.keys + "eps", norm.eps);
    }
    result<block> retoken(const place& at) {
        bool folded = false;
        token_modulator<any_norm> modulator;
        if (status s = options_.read(at.keys + "folded", folded); !s) return s.failure();
        if (status s = read(at, modulator.row.norm); !s) return s.failure();
        auto base = build(at.tensors + "base.", at.keys + "base.");
        if (!base) return base;
        if (folded) return block(modulated<block, folded_modulator, multiply>{*base, {}, {}});
        return block(modulated<block, token_modulator<any_norm>, multiply>{*base, modulator, {}});
    }
    // Rows mixed elsewhere come with the call where the file has neither a pool nor a router.
    result<block> mort(const place& at) {
        const auto with = [&](auto modulator) -> result<block> {
            if (status s = read(at, modulator.mixed.norm); !s) return s.failure();
            if (!options_.has(at.keys + "num_layers"))
                return failure(
                    errc::option, at.keys + "num_layers",
                    "missing from __metadata__; it counts the layers of the backbone and has no default");
            if (status s = options_.read(at.keys + "num_layers", modulator.num_layers); !s)
                return s.failure();
            auto base = build(at.tensors + "base.", at.keys + "base.");
            if (!base) return base;
            return block(modulated<block, decltype(modulator), add>{*base, modulator, {}});
        };
        modulator_pool<any_norm> pool;
        const auto has = [&](const char* name) { return given_.find(at.tensors + name) != nullptr; };
        if (!has("modulators.weight") && !has("router.weight")) return with(given_modulator<any_norm>{});
        if (status s = options_.read(at.keys + "top_k", pool.mixed.input.router.top_k); !s)
            return s.failure();
        return with(pool);
    }
    result<block> parallel(const place& at) {
        std::size_t count = 0;
        if (!options_.has(at.keys + "branches"))
            return failure(errc::option, at.keys + "branches", "missing from __metadata__");
        if (status s = options_.read(at.keys + "branches", count); !s) return s.failure();
        std::vector<block> branches;
        for (std::size_t i = 0; i < count; ++i) {
            const std::string name = "branch." + std::to_string(i) + ".";
            auto branch = build(at.tensors + name, at.keys + name);
            if (!branch) return branch;
            branches.push_back(*branch);
        }
        return block(tiffin::parallel_of<block>{std::move(branches)});
    }

    layer_options& options_;
    const weights& given_;
    std::size_t depth_ = 0;
};

}  // namespace detail

// Prepares the block described for a device; the layer keeps what its tensors lie in.
// Errors: errc::option for an unknown or missing block or option, and those of prepare(). `where` is the key or tensor.
// Cost: that of prepare().
template <class Backend>
    requires(!tiffin::detail::runs_plans<Backend>)
result<any_layer> load_layer(const described_layer& from, const Backend& backend,
                             const prepare_options& how = {.tokens = 0}) {
    layer_options options(from.options);
    const std::string* const name = options.find("block");
    auto block = detail::block_builder<Backend>(options, from.tensors).build("", "");
    if (!block) return block.failure();
    if (status s = options.check_all_known(*name); !s) return s.failure();
    auto made = try_prepare(*block, from.tensors, backend, how);
    if (!made) return made.failure();
    return any_layer(*std::move(made), from.keep);
}

}  // namespace io
TIFFIN_END
