// A program without exceptions and type information prepares a layer on the device, with rows that come over
// the bus, and calls it.
#include <tiffin/cuda.hpp>
#include <tiffin/layers.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

int main() {
    constexpr std::size_t d_model = 8, d_ff = 12, vocab = 5, tokens = 6;
    const std::vector<float> gate(d_ff * d_model, 0.0f), down(d_model * d_ff, 1.0f),
        table(vocab * d_ff, 1.0f);
    tiffin::weights given;
    given.add("gate_proj.weight", gate.data(), {d_ff, d_model});
    given.add("down_proj.weight", down.data(), {d_model, d_ff});
    given.add_gathered("stem_embed.weight", tiffin::dtype::f32, {vocab, d_ff});
    auto layer = tiffin::try_prepare<tiffin::stem>(given, tiffin::cuda<>{}, {.tokens = tokens});
    auto rows = tiffin::offloaded_rows::make({table.data(), tiffin::dtype::f32, {vocab, d_ff}});
    auto memory = tiffin::cuda_detail::device_memory::make(
        2 * tokens * d_model * sizeof(float) + tokens * sizeof(std::int32_t), "test");
    if (!layer || !rows || !memory) return 1;
    float* const x = memory->as<float>();
    float* const y = x + tokens * d_model;
    const auto* const ids = reinterpret_cast<const std::int32_t*>(y + tokens * d_model);
    // x and the ids 0; y what no layer leaves.
    if (cudaMemset(memory->data(), 0, memory->size()) != cudaSuccess) return 2;
    if (cudaMemset(y, 0xFF, tokens * d_model * sizeof(float)) != cudaSuccess) return 2;
    const auto now = rows->gather({ids, tokens}, nullptr);
    if (!now) return 3;
    const tiffin::status called = layer->try_call(tiffin::matrix_view<const float>(x, tokens, d_model),
                                                  {.token_ids = {ids, tokens}, .gathered = {&*now, 1}},
                                                  tiffin::matrix_view<float>(y, tokens, d_model));
    if (!called || !layer->synchronise() || !rows->check()) return 4;
    // silu(0) times per row of ones, summed: nothing.
    std::vector<float> out(tokens * d_model, 1.0f);
    if (cudaMemcpy(out.data(), y, out.size() * sizeof(float), cudaMemcpyDeviceToHost) != cudaSuccess)
        return 5;
    for (const float v : out)
        if (v != 0.0f) return 6;
    return 0;
}
