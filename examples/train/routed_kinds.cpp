// Blocks with experts.
#include <tiffin/layers.hpp>

#include "ffn_kinds.hpp"

#include <array>
#include <string>

namespace {

// Experts of half the width, two of them per token: the FLOPs of the dense block.
template <class Mixture>
ffn_kind mixture_kind(const char* name, const Mixture& block, std::size_t chosen, const char* in_file) {
    return kind_of(
        name, [block](const ffn_sizes&) { return block; },
        [chosen](const ffn_sizes& s, const auto& use) {
            const std::array<tiffin::block_shape, 1> expert{
                {{.d_model = s.d_model, .d_ff = s.d_ff / chosen, .vocab = s.vocabulary}}};
            use(tiffin::block_shape{.d_model = s.d_model,
                                    .d_ff = s.d_ff,
                                    .vocab = s.vocabulary,
                                    .experts = s.experts,
                                    .parts = expert.data()});
        },
        [chosen, in_file](const ffn_sizes& s) {
            return file_options{{"block", in_file},
                                {"num_experts", std::to_string(s.experts)},
                                {"top_k", std::to_string(chosen)},
                                {"expert.block", "glu"}};
        });
}

}  // namespace

std::vector<ffn_kind> routed_kinds() {
    using namespace tiffin;
    const auto structmoe_kind = kind_of(
        "structmoe", [](const ffn_sizes&) { return structmoe{}; },
        [](const ffn_sizes& s, const auto& use) {
            use(block_shape{.d_model = s.d_model, .d_ff = s.d_ff, .experts = s.bank, .rank = s.rank});
        },
        [](const ffn_sizes&) {
            return file_options{{"block", "structmoe"}};
        });
    return {mixture_kind("moe", moe<swiglu>{{.top_k = 2}, {}, {}}, 2, "moe"),
            mixture_kind("hash_moe", hash_moe<swiglu>{}, 1, "hash_moe"), structmoe_kind};
}
