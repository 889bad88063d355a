// The layers that programs run on a device: a device runs types, so that a text names one of those compiled here.
#pragma once

#include <tiffin/all_policies.hpp>
#include <tiffin/error.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/quoted.hpp>

#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

// A composition's text with all aliases and defaults written out, its options' numbers apart.
struct text_and_numbers {
    std::string text;
    std::vector<float> numbers;  // in the order of the text

    static tiffin::result<text_and_numbers> of(const std::string& composition) {
        const auto composed = tiffin::compose<void>(composition, tiffin::all_policies);
        if (!composed) return composed.failure();
        text_and_numbers made;
        std::string_view rest = composed->text();
        for (std::size_t at = rest.find('='); at != rest.npos; at = rest.find('=')) {
            made.text += rest.substr(0, at + 1);
            rest.remove_prefix(at + 1);
            float number = 0;
            const auto end = std::from_chars(rest.data(), rest.data() + rest.size(), number);
            if (end.ec == std::errc{}) made.numbers.push_back(number);
            rest.remove_prefix(static_cast<std::size_t>(end.ptr - rest.data()));
        }
        made.text += rest;
        return made;
    }
};

// Calls is(text, block) for each of them; is(text, block, set) where set(block, numbers) takes over the options of a text
// that has others.
template <class Is>
void for_each_block_on_device(const Is& is) {
    using namespace tiffin;
    const auto count = [](float number) { return static_cast<std::size_t>(number); };
    const auto top_k = [&](auto& block, const auto& n) { block.router.top_k = count(n[0]); };
    const auto pool = [&](auto& block, const auto& n) {
        block.modulator.mixed.norm.eps = n[0];
        block.modulator.mixed.input.router.top_k = count(n[1]);
        block.modulator.num_layers = count(n[2]);
    };
    // clang-format off
    is("ffn(gate(silu), dense)", swiglu{});
    is("ffn(gate(gelu))", mlp{});
    is("ffn(gate(gelu), dense)", geglu{});
    is("ffn(gate(silu), token_embedding)", stem{});
    is("ffn(gate(silu, token_embedding), dense)", stem_gate{});
    is("ffn(gate(silu), sum(dense, token_embedding))", stem_hybrid{});
    is("structmoe", structmoe{});
    is("meki", meki{});
    is("parallel(swiglu, meki)", parallel<swiglu, meki>{});
    is("ple", ple{});
    is("ple_given", ple_given{});
    is("modulated(swiglu, folded_modulator)", retoken_folded<swiglu>{});
    is("retoken(swiglu)", retoken<swiglu>{});
    is("modulated(swiglu, modulator_pool(num_layers=28), add)", mort<swiglu>{}, pool);
    is("mixture(softmax_topk(top_k=2), swiglu)", moe<swiglu>{}, top_k);
    is("hash_moe(swiglu)", hash_moe<swiglu>{});
    is("fused(ffn(gate(relu_squared)), deep_embed, multiply)", deep_embed_1x{});
    is("ffn(gate(relu_squared), deep_embed)", deep_embed_4x{});
    is("ffn(gate(relu_squared), on_residual(deep_embed_matrix))", deep_embed_v7a{});
    is("sum(mlp, lookup_experts)", mole{});
    is("mole_training", mole_training{});
    is("product_key_memory(top_k=16)", product_key_memory{}, top_k);
    is("ffn(gate(silu), product_key_memory(top_k=16))", memory_plus{},
       [&](auto& block, const auto& n) { block.hidden.up.router.top_k = count(n[0]); });
    is("peer(top_k=16)", peer{}, top_k);
    is("sum(named(dense, 'mix_input'), l3_memory)", l3{});
    is("engram", engram{});
    is("longcat_embedding(terms=7)", longcat_embedding{},
       [&](auto& block, const auto& n) { block.terms = count(n[0]); });
    // clang-format on
}

// Calls use(block) with the block that a text names.
// Errors: those of compose(); errc::option where the text is none of these.
template <class Use>
tiffin::status with_block_on_device(const std::string& composition, const Use& use) {
    using namespace tiffin;
    const auto given = text_and_numbers::of(composition);
    if (!given) return given.failure();
    bool found = false;
    for_each_block_on_device([&](const char* text, auto block, const auto&... set) {
        if (found) return;
        const auto one = text_and_numbers::of(text);
        if (!one || one->text != given->text) return;
        if (sizeof...(set) == 0 && one->numbers != given->numbers) return;
        (set(block, given->numbers), ...);
        found = true;
        use(block);
    });
    if (found) return {};
    return failure(
        errc::option, "composition", detail::in_quotes(composition),
        " is none of the layers that this program has for a device; examples/support/blocks_on_device.hpp "
        "lists them");
}
