// Memories, modulated outputs, and blocks side by side: f32.
#include "layer_subject.hpp"

#include <array>
#include <list>
#include <tuple>

namespace tiffin_bench {
namespace {

constexpr std::size_t backbone_layers = 28;  // which a pool of modulators is told
constexpr std::size_t memory_width = 256;

}  // namespace

void add_memory_layers(const layer_choice& choice) {
    const shape& s = choice.sizes;
    if (choice.wants("retoken")) add_layer<tiffin::retoken_folded<tiffin::swiglu>>("retoken", s);
    if (choice.wants("mort")) {
        tiffin::mort<tiffin::swiglu> mort;
        mort.modulator.num_layers = backbone_layers;
        add_layer("mort", s, mort, {.experts = 4});
    }
    if (choice.wants("swiglu_delayed")) {
        tiffin::parallel<tiffin::swiglu, tiffin::delayed<tiffin::source_block<tiffin::modulator_pool<>>, 2>>
            delayed;
        std::get<1>(delayed.branches).block.num_layers = backbone_layers;
        add_layer("swiglu_delayed", s, delayed, {.experts = 4});
    }

    const shape memory{s.d_model, memory_width};
    const tiffin::block_shape inner{.inner = {s.d_model, s.d_model / 2}};
    if (choice.wants("meki")) add_layer<tiffin::meki>("meki", memory);
    if (choice.wants("meki_training")) add_layer<tiffin::meki_training>("meki_training", memory, {}, inner);
    if (choice.wants("ple")) add_layer<tiffin::ple>("ple", memory);
    if (choice.wants("ple_given")) add_layer<tiffin::ple_given>("ple_given", memory);
    if (choice.wants("deep_embed_1x")) add_layer<tiffin::deep_embed_1x>("deep_embed_1x", s);
    if (choice.wants("deep_embed_4x")) add_layer<tiffin::deep_embed_4x>("deep_embed_4x", s);
    if (choice.wants("deep_embed_v7a"))
        add_layer<tiffin::deep_embed_v7a>("deep_embed_v7a", s, {}, {.experts = 32, .inner = {32, 32}});
    // 4 heads of 16 rows among 128^2; 64 rows per id among as many.
    constexpr std::size_t rows = 128 * 128;
    const tiffin::block_shape keys{.experts = rows, .rank = 128, .heads = 4};
    tiffin::product_key_memory values;
    tiffin::memory_plus gated;
    tiffin::peer neurons;
    values.router.top_k = gated.hidden.up.router.top_k = neurons.router.top_k = 16;
    if (choice.wants("product_keys")) add_layer("product_keys", s, values, keys);
    if (choice.wants("memory_plus")) add_layer("memory_plus", {s.d_model, s.d_model}, gated, keys);
    if (choice.wants("peer")) add_layer("peer", s, neurons, keys);
    if (choice.wants("peer_relu")) {
        using competing_none = tiffin::gated_rows<tiffin::product_keys_relu,
                                                  tiffin::row_activation<tiffin::gelu>, "down_embed.weight">;
        tiffin::routed_embedding<competing_none, tiffin::chosen_rows<"up_embed.weight">> one_each;
        one_each.router.top_k = 1;
        add_layer("peer_relu", s, one_each, keys);
    }
    if (choice.wants("l3"))
        add_layer("l3", s, tiffin::l3{}, {.experts = rows, .inner = {s.d_model, s.d_model}, .choices = 64});
    // Beside a layer, or in place of an embedding: 16 rows of 64 numbers of the last ids.
    if (choice.wants("engram"))
        add_layer<tiffin::engram>("engram", {s.d_model, 1024}, {}, {.inner = {1024, 1024}});
    if (choice.wants("engram_branch"))
        add_layer<tiffin::engram_branch>("engram_branch", {s.d_model, 1024}, {}, {.inner = {1024}});
    tiffin::longcat_embedding mean;
    mean.terms = 17;
    if (choice.wants("longcat")) add_layer("longcat", {s.d_model, 1024}, mean, {.inner = {1024, 1024}});
    tiffin::longcat_sparse_embedding whole_word;
    std::get<1>(whole_word.terms).terms = 17;
    if (choice.wants("longcat_sparse"))
        add_layer("longcat_sparse", {s.d_model, 1024}, whole_word, {.inner = {1024, 1024}});
    if (choice.wants("swiglu_meki")) {
        static std::list<std::array<tiffin::block_shape, 2>> branches;
        branches.push_back({{{.d_model = s.d_model, .d_ff = s.d_ff, .vocab = vocab},
                             {.d_model = s.d_model, .d_ff = memory_width, .vocab = vocab}}});
        add_layer<tiffin::parallel<tiffin::swiglu, tiffin::meki>>("swiglu_meki", s, {},
                                                                  {.parts = branches.back().data()});
    }
}

}  // namespace tiffin_bench
