// SwiGLU with a memory or modulators by token id.
#include <tiffin/layers.hpp>

#include "ffn_kinds.hpp"

#include <array>
#include <string>

namespace {

// A block around `base.`, of the same sizes.
template <class Make>
ffn_kind modulated_kind(const char* name, const Make& make,
                        std::function<file_options(const ffn_sizes&)> options) {
    return kind_of(
        name, make,
        [](const ffn_sizes& s, const auto& use) {
            use(tiffin::block_shape{
                .d_model = s.d_model, .d_ff = s.d_ff, .vocab = s.vocabulary, .experts = s.experts});
        },
        std::move(options));
}

// SwiGLU, and MoRT's residual beside it, which arrives some layers later. No layer file says so.
template <std::size_t Layers>
ffn_kind delayed_kind(const char* name) {
    using pool = tiffin::source_block<tiffin::modulator_pool<>>;
    using block = tiffin::parallel<tiffin::swiglu, tiffin::delayed<pool, Layers>>;
    ffn_kind made = kind_of(
        name,
        [](const ffn_sizes& s) {
            pool late;
            late.num_layers = s.layers;
            return block{{tiffin::swiglu{}, {late}}};
        },
        [](const ffn_sizes& s, const auto& use) {
            use(tiffin::block_shape{
                .d_model = s.d_model, .d_ff = s.d_ff, .vocab = s.vocabulary, .experts = s.experts});
        },
        nullptr);
    made.delay = Layers;
    made.has_mort_balance = true;
    return made;
}

}  // namespace

std::vector<ffn_kind> modulated_kinds() {
    using namespace tiffin;
    const auto made_mort = [](const ffn_sizes& s) {
        mort<swiglu> block;
        block.modulator.num_layers = s.layers;
        return block;
    };
    const auto mort_options = [](const ffn_sizes& s) {
        return file_options{
            {"block", "mort"}, {"base.block", "glu"}, {"num_layers", std::to_string(s.layers)}};
    };
    using with_memory = parallel<swiglu, meki_training>;
    auto meki_kind = kind_of(
        "meki", [](const ffn_sizes&) { return with_memory{}; },
        [](const ffn_sizes& s, const auto& use) {
            const std::array<block_shape, 2> parts{{{.d_model = s.d_model, .d_ff = s.d_ff},
                                                    {.d_model = s.d_model,
                                                     .d_ff = s.d_mem,
                                                     .vocab = s.vocabulary,
                                                     .inner = {{s.d_model, s.d_model / 2}}}}};
            use(block_shape{
                .d_model = s.d_model, .d_ff = s.d_ff, .vocab = s.vocabulary, .parts = parts.data()});
        },
        [](const ffn_sizes&) {
            return file_options{{"block", "parallel"},
                                {"branches", "2"},
                                {"branch.0.block", "glu"},
                                {"branch.1.block", "meki"}};
        });
    meki_kind.reads_embedding = true;
    auto meki_folded_kind = kind_of(
        "meki_folded", [](const ffn_sizes&) { return parallel<swiglu, meki>{}; },
        [](const ffn_sizes& s, const auto& use) {
            const std::array<block_shape, 2> parts{
                {{.d_model = s.d_model, .d_ff = s.d_ff},
                 {.d_model = s.d_model, .d_ff = s.d_mem, .vocab = s.vocabulary}}};
            use(block_shape{.d_model = s.d_model, .parts = parts.data()});
        },
        [](const ffn_sizes&) {
            return file_options{{"block", "parallel"},
                                {"branches", "2"},
                                {"branch.0.block", "glu"},
                                {"branch.1.block", "meki"},
                                {"branch.1.folded", "true"}};
        });
    meki_kind.flops = meki_folded_kind.flops;  // as it runs: its table is folded
    ffn_kind mort_kind = modulated_kind("mort", made_mort, mort_options);
    mort_kind.has_mort_balance = true;
    return {modulated_kind(
                "retoken", [](const ffn_sizes&) { return retoken<swiglu>{}; },
                [](const ffn_sizes&) {
                    return file_options{{"block", "retoken"}, {"base.block", "glu"}};
                }),
            modulated_kind(
                "retoken_folded", [](const ffn_sizes&) { return retoken_folded<swiglu>{}; },
                [](const ffn_sizes&) {
                    return file_options{{"block", "retoken"}, {"base.block", "glu"}, {"folded", "true"}};
                }),
            mort_kind,
            delayed_kind<1>("mort_delay1"),
            delayed_kind<2>("mort_delay2"),
            meki_kind,
            meki_folded_kind};
}
