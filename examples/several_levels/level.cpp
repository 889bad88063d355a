// One level: compiled several times, with the flags of an instruction set and LEVEL, the function's name.
#include "levels.hpp"

#include <tiffin/tiffin.hpp>

#include <span>
#include <utility>

namespace {

using backend = tiffin::simd<tiffin::bf16, tiffin::bf16>;  // kept in half the memory

class prepared final : public stem_layer {
public:
    explicit prepared(tiffin::layer<tiffin::stem, backend> layer)
        : layer_(std::move(layer)), workspace_(layer_.make_workspace(64, 1)) {}
    bool run(const float* x, const std::int32_t* token_ids, std::size_t tokens, float* y) const override {
        const std::size_t d = layer_.d_model();
        return layer_
            .try_call(tiffin::matrix_view<const float>(x, tokens, d), std::span(token_ids, tokens),
                      tiffin::matrix_view<float>(y, tokens, d), workspace_)
            .ok();
    }

private:
    tiffin::layer<tiffin::stem, backend> layer_;
    mutable tiffin::workspace workspace_;
};

}  // namespace

std::unique_ptr<stem_layer> LEVEL(const stem_weights& given) {
    tiffin::weights weights;
    weights.add("gate_proj.weight", given.gate, {given.d_ff, given.d_model})
        .add("stem_embed.weight", given.table, {given.vocab, given.d_ff})
        .add("down_proj.weight", given.down, {given.d_model, given.d_ff});
    auto made = tiffin::try_prepare<tiffin::stem>(weights, backend{}, {.tokens = 0});
    if (!made) return nullptr;
    return std::make_unique<prepared>(*std::move(made));
}
