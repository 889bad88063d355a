// A block of two sources on a machine: two stages one after the other, and what modulates the output.
#pragma once

#include <tiffin/backend/binding.hpp>
#include <tiffin/backend/fused/output.hpp>
#include <tiffin/backend/fused/stage.hpp>
#include <tiffin/backend/held_numbers.hpp>
#include <tiffin/format/f32.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <span>
#include <tuple>
#include <utility>

TIFFIN_BEGIN

namespace fused_detail {

// The epilogue of a block that nothing modulates.
struct no_modulator {
    static constexpr std::size_t choices() noexcept { return 0; }
    static constexpr std::size_t workspace_bytes(std::size_t, std::size_t) noexcept { return 0; }
    static constexpr void ask(const call_arguments&, std::byte*, std::size_t, std::size_t,
                              std::size_t) noexcept {}
    template <class Activations>
    static void prepare(const call_arguments&, const Activations&, std::byte*, choice<float>*) noexcept {}
    template <class Reg>
    static const Reg& apply(const call_arguments&, std::byte*, const Reg& v, std::size_t, std::size_t,
                            std::size_t) noexcept {
        return v;
    }
};

// A block of two sources, and what its output is modulated with.
template <class Machine, ffn_block Block, class After = no_modulator>
class ffn_engine {
    using reg = typename Machine::reg;
    using hidden_stage = stage<Machine, hidden_source<Block>>;
    using output_stage = stage<Machine, output_source<Block>>;

public:
    ffn_engine(const Block& block, const binding& bound, After after = {})
        : d_model_(bound.d_model),
          d_ff_(bound.d_ff),
          norm_(block.output.norm),
          hidden_(block.hidden, hidden_part<Block>(bound), {d_ff_, d_model_, bound.formats}),
          output_(block.output.source, output_part<Block>(bound), {d_model_, d_ff_, bound.formats}),
          after_(std::move(after)),
          norm_weight_(norm_part<Block>(bound), d_model_ + Machine::lane_count) {}

    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        return lay_out(nullptr, tokens, workers).used +
               std::max(hidden_.workspace_bytes(tokens, workers), output_.workspace_bytes(tokens, workers));
    }

    void run(const call_arguments& call) const {
        const areas at = lay_out(call.workspace, call.tokens, call.workers);
        choice<float>* routes = call.routes;
        const auto record = [&](std::size_t choices) {
            return choices > 0 ? std::exchange(routes, nullptr) : nullptr;
        };
        const typename Machine::activations in = Machine::inputs(call, at.x);
        after_.prepare(call, in, at.after, record(after_.choices()));
        hidden_.run(call, in, at.work, record(hidden_.choices()),
                    [&](std::size_t t, std::size_t feature, const reg& v, std::size_t n) {
                        Machine::put(v, at.hidden, t, feature, n);
                    });
        output_.run(call, at.hidden.view(), at.work, record(output_.choices()),
                    announced_store{[&](std::size_t t, std::size_t feature, const reg& v, std::size_t n) {
                                        if constexpr (has_norm<Block>)
                                            Machine::store(v, at.rows + t * d_model_ + feature, n);
                                        else
                                            finish(call, at, t, feature, v, n);
                                    },
                                    [&](std::size_t t, std::size_t first, std::size_t count) {
                                        if constexpr (!has_norm<Block>)
                                            after_.ask(call, at.after, t, first, count);
                                    }});
        if constexpr (has_norm<Block>) normalise(call, at);
    }

private:
    struct areas {
        float* x;
        typename Machine::buffer hidden;
        float* rows;  // before the norm
        std::byte* after;
        std::byte* work;
        std::size_t used;
    };
    [[nodiscard]] areas lay_out(std::byte* memory, std::size_t tokens, std::size_t workers) const noexcept {
        arena all(memory);
        float* const x = all.take<float>(Machine::input_numbers(tokens, d_model_));
        float* const hidden = all.take<float>(Machine::buffer::numbers(tokens, d_ff_));
        float* const rows = all.take<float>(has_norm<Block> ? tokens * d_model_ : 0);
        auto* const after = all.take<std::byte>(after_.workspace_bytes(tokens, workers));
        return {x, {hidden, tokens, d_ff_}, rows, after, all.rest(), all.used()};
    }
    void finish(const call_arguments& call, const areas& at, std::size_t t, std::size_t feature, const reg& v,
                std::size_t n) const noexcept {
        put<Machine>(call.to, t, feature, after_.apply(call, at.after, v, t, feature, n), n);
    }
    void normalise(const call_arguments& call, const areas& at) const {
        for_tokens(call, d_model_, [&](std::size_t t) noexcept {
            const float* const row = at.rows + t * d_model_;
            reg squares(0.0f);
            for (std::size_t j = 0; j < d_model_; j += Machine::lane_count) {
                const std::size_t n = std::min(Machine::lane_count, d_model_ - j);
                squares = Machine::add_square(Machine::load(row + j, n), n, squares);
            }
            const reg scale(
                static_cast<float>(norm_.scale(Machine::sum(squares), static_cast<float>(d_model_))));
            for (std::size_t j = 0; j < d_model_; j += Machine::lane_count) {
                const std::size_t n = std::min(Machine::lane_count, d_model_ - j);
                reg weight(1.0f);
                if constexpr (output_norm<Block>::weighted)
                    weight = Machine::load(norm_weight_.data() + j, Machine::lane_count);
                finish(call, at, t, j, Machine::apply(norm_, Machine::load(row + j, n), scale, weight), n);
            }
        });
    }

    std::size_t d_model_;
    std::size_t d_ff_;
    [[no_unique_address]] output_norm<Block> norm_;
    hidden_stage hidden_;
    output_stage output_;
    [[no_unique_address]] After after_;
    held_numbers<f32> norm_weight_;
};

}  // namespace fused_detail

TIFFIN_END
