// The fused CPU kernel over xsimd registers.
#pragma once

#include <tiffin/backend/backend.hpp>
#include <tiffin/backend/simd/stage.hpp>

#include <cstddef>
#include <cstring>
#include <utility>

TIFFIN_BEGIN

// Weights packed once into panels, two fused passes: the hidden values, then the output.
//
// Numerics: f32 sums, one accumulator an output, k ascending, fused multiply-add where the machine
//   has it. A token's output is the same to the bit whatever its batch, the number of threads and
//   the pieces a call runs in; it differs between instruction sets.
// Cost: reads each packed weight once a call of up to a few hundred tokens, and the rows of the call's
//   own tokens; two hand-overs to the executor, three with a norm or more than one token.
// Weights, Tables: the number formats that packed weights and tables are kept in.
template <format_policy Weights = f32, format_policy Tables = f32, class Arch = xsimd::default_arch>
struct simd {
    template <block_policy Block>
    class engine {
        static constexpr std::size_t lane_count = simd_detail::width<Arch>;
        using reg = simd_detail::lanes<Arch>;
        using hidden_stage = simd_detail::stage<Arch, Weights, Tables, hidden_source<Block>>;
        using output_stage = simd_detail::stage<Arch, Weights, Tables, output_source<Block>>;
        using row_pointer = const typename Tables::storage*;

    public:
        engine(const Block& block, const binding& bound)
            : d_model_(bound.d_model),
              d_ff_(bound.d_ff),
              norm_(block.output.norm),
              hidden_(block.hidden, hidden_part<Block>(bound), d_ff_, d_model_),
              output_(block.output.source, output_part<Block>(bound), d_model_, d_ff_),
              norm_weight_(norm_part<Block>(bound), d_model_ + lane_count) {}

        [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
            return layout(tokens, workers).total;
        }

        void run(const call_arguments& call) const {
            const std::size_t tokens = call.x.rows;
            const areas at = layout(tokens, call.workers);
            auto** const rows = reinterpret_cast<row_pointer*>(call.workspace);
            auto* const packed_x = reinterpret_cast<float*>(call.workspace + at.x);
            auto* const hidden = reinterpret_cast<float*>(call.workspace + at.hidden);
            auto* const scratch = reinterpret_cast<float*>(call.workspace + at.scratch);
            auto** const output_rows = rows + hidden_stage::tables * tokens;
            hidden_.find_rows(call.token_ids, tokens, rows);
            output_.find_rows(call.token_ids, tokens, output_rows);
            if (tokens > 1) pack_rows(call, packed_x);
            hidden_.run({tokens > 1 ? packed_x : call.x.data, tokens}, rows, scratch, call.workers,
                        call.execute,
                        [&](std::size_t token, std::size_t feature, const reg& value, std::size_t) {
                            const std::size_t inside = feature % simd_detail::depth_block;
                            value.store_aligned(hidden + (feature - inside) * tokens +
                                                token * simd_detail::depth_block + inside);
                        });
            output_.run({hidden, tokens}, output_rows, scratch, call.workers, call.execute,
                        [&](std::size_t token, std::size_t feature, const reg& value, std::size_t count) {
                            simd_detail::store<Arch>(value, call.y.row(token) + feature, count);
                        });
            if constexpr (has_norm<Block>) normalise_rows(call);
        }

    private:
        struct areas {
            std::size_t x, hidden, scratch, total;
        };
        [[nodiscard]] areas layout(std::size_t tokens, std::size_t workers) const noexcept {
            const auto lines = [](std::size_t bytes) { return (bytes + 63) / 64 * 64; };
            areas at{};
            at.x = lines((hidden_stage::tables + output_stage::tables) * tokens * sizeof(row_pointer));
            at.hidden = at.x;
            if (tokens > 1) at.hidden += simd_detail::blocked_size(tokens, d_model_) * sizeof(float);
            at.scratch = at.hidden + simd_detail::blocked_size(tokens, d_ff_) * sizeof(float);
            const std::size_t most = std::max(hidden_.workers(workers) * hidden_.scratch_numbers(tokens),
                                              output_.workers(workers) * output_.scratch_numbers(tokens));
            at.total = at.scratch + lines(most * sizeof(float));
            return at;
        }

        // Splits the tokens among tasks where there is enough to do to pay for the hand-over.
        template <class Work>
        static void for_tokens(const call_arguments& call, const Work& work) {
            const std::size_t tokens = call.x.rows;
            const std::size_t worth = tokens * call.x.cols / 32768;
            const std::size_t tasks = std::clamp<std::size_t>(worth, 1, std::min(call.workers, tokens));
            const auto share = [&](std::size_t i) noexcept {
                for (std::size_t t = tokens * i / tasks; t < tokens * (i + 1) / tasks; ++t) work(t);
            };
            call.execute(tasks, task_ref(share));
        }
        void pack_rows(const call_arguments& call, float* to) const {
            for_tokens(call, [&](std::size_t t) noexcept {
                for (std::size_t k0 = 0; k0 < d_model_; k0 += simd_detail::depth_block)
                    std::memcpy(to + k0 * call.x.rows + t * simd_detail::depth_block, call.x.row(t) + k0,
                                std::min(simd_detail::depth_block, d_model_ - k0) * sizeof(float));
            });
        }
        void normalise_rows(const call_arguments& call) const {
            for_tokens(call, [&](std::size_t t) noexcept {
                float* const y = call.y.row(t);
                reg squares(0.0f);
                for (std::size_t j = 0; j < d_model_; j += lane_count) {
                    const reg v = simd_detail::load<f32, Arch>(y + j, d_model_ - j);
                    squares = simd_detail::multiply_add<Arch>(v, v, squares);
                }
                alignas(64) float parts[lane_count];
                squares.store_aligned(parts);
                float total = 0;
                for (float part : parts) total += part;
                const reg scale(norm_.scale(total, static_cast<float>(d_model_)));
                for (std::size_t j = 0; j < d_model_; j += lane_count) {
                    reg weight(1.0f);
                    if constexpr (output_norm<Block>::weighted)
                        weight = reg::load_unaligned(norm_weight_.data() + j);
                    const reg v = simd_detail::load<f32, Arch>(y + j, d_model_ - j);
                    simd_detail::store<Arch>(simd_detail::apply<Arch>(norm_, v, scale, weight), y + j,
                                             d_model_ - j);
                }
            });
        }

        std::size_t d_model_;
        std::size_t d_ff_;
        [[no_unique_address]] output_norm<Block> norm_;
        hidden_stage hidden_;
        output_stage output_;
        held_numbers<f32> norm_weight_;
    };
};

TIFFIN_END
