// A block of two sources on the device: two stages, and what modulates the output in its epilogue.
#pragma once

#include <tiffin/backend/binding.hpp>
#include <tiffin/cuda/modulator_stage.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

TIFFIN_BEGIN

namespace cuda_detail {

// A block of threads a token: its values twice, for their sum of squares, then normed.
template <codec Format, norm_policy Norm, class Value, class Write>
struct norm_body {
    Norm norm;
    const float* weight;
    Value value;
    token_range tokens;
    std::size_t features;
    Write write;

    __device__ void operator()(const block& g, std::size_t t) const {
        if (!tokens.has(t)) return;
        constexpr std::size_t numbers = access<Format>;
        const auto count = [&](std::size_t j) { return features - j < numbers ? features - j : numbers; };
        float squares = 0;
        for (std::size_t j = g.rank() * numbers; j < features; j += g.size() * numbers) {
            const pack<numbers> v = value.template at<numbers>(t, j, count(j));
            for (std::size_t i = 0; i < count(j); ++i) squares += v.lane[i] * v.lane[i];
        }
        squares = g.sum(squares);
        const pack<numbers> scale(static_cast<float>(norm.scale(squares, static_cast<float>(features))));
        for (std::size_t j = g.rank() * numbers; j < features; j += g.size() * numbers) {
            pack<numbers> w(1.0f);
            if constexpr (Norm::weighted) w = load<f32, numbers>(weight + j, count(j));
            const pack<numbers> v = value.template at<numbers>(t, j, count(j));
            write(t, j, apply<numbers>(norm, v, scale, w), count(j));
        }
    }
};

// A block of two sources, and what its output is modulated with.
template <codec Format, ffn_block Block, class After = no_modulator>
class ffn_engine {
    using storage = typename Format::storage;
    using hidden_stage = stage<Format, hidden_source<Block>>;
    using output_stage = stage<Format, output_source<Block>>;

public:
    ffn_engine(const Block& block, const binding& bound, uploads& up, After after = {})
        : d_model_(bound.d_model),
          d_ff_(bound.d_ff),
          norm_(block.output.norm),
          hidden_(block.hidden, hidden_part<Block>(bound), {d_ff_, d_model_}, up),
          output_(block.output.source, output_part<Block>(bound), {d_model_, d_ff_}, up),
          after_(std::move(after)),
          norm_weight_(up.numbers<f32>(norm_part<Block>(bound))) {
        // Where the output is a product and nothing else, cuBLASLt writes y.
        if constexpr (std::derived_from<output_source<Block>, dense> && !has_norm<Block> &&
                      std::same_as<After, no_modulator>)
            output_is_product_ = !output_part<Block>(bound)[1].is_given();
    }

    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t /*workers*/) const noexcept {
        device_arena all;
        lay_out(all, tokens);
        return all.used() + std::max(hidden_.workspace_bytes(tokens), output_.workspace_bytes(tokens));
    }

    void run(const device_call<Format>& call) const {
        device_arena all(call.workspace);
        const areas at = lay_out(all, call.tokens.most);
        std::byte* const work = all.rest();
        choice<float>* routes = call.routes;
        const auto record = [&](std::size_t choices) {
            return choices > 0 ? std::exchange(routes, nullptr) : nullptr;
        };
        const activations<Format> in = inputs_of(call, at.x);
        const auto after = after_.prepare(call, in, at.after, record(after_.choices()));
        hidden_.run(call, in, work, record(hidden_.choices()), row_write<Format>{at.hidden, d_ff_});
        const activations<Format> hidden{at.hidden, d_ff_};
        const finish<Format, std::remove_cvref_t<decltype(after)>> write{call.to, after};
        if constexpr (has_norm<Block>)
            run_normed(call, hidden, work, record(output_.choices()), at.rows, write);
        else if (output_is_product_ && !is_few(call.tokens) && writes_plainly(call.to))
            write_product(call, hidden, work);
        else
            output_.run(call, hidden, work, record(output_.choices()), write);
    }

private:
    struct areas {
        storage* x;
        storage* hidden;
        float* rows;  // before the norm, of few tokens
        std::byte* after;
    };
    areas lay_out(device_arena& all, std::size_t tokens) const noexcept {
        auto* const x = all.take<storage>(tokens * d_model_);
        auto* const hidden = all.take<storage>(tokens * d_ff_);
        auto* const rows = all.take<float>(has_norm<Block> ? std::min(tokens, few_tokens) * d_model_ : 0);
        return {x, hidden, rows, all.take<std::byte>(after_.workspace_bytes(tokens))};
    }
    [[nodiscard]] bool writes_plainly(const device_rows<Format>& to) const noexcept {
        return !to.add && to.rows == nullptr && to.stride == d_model_ &&
               (!to.wide || std::same_as<Format, f32>);
    }
    void write_product(const device_call<Format>& call, const activations<Format>& hidden,
                       std::byte* work) const {
        if constexpr (output_stage::projections == 1)
            output_.products().one(call.tokens, hidden, output_.products().weights(0),
                                   static_cast<storage*>(call.to.data), work, *call.out);
    }
    template <class Write>
    void run_normed(const device_call<Format>& call, const activations<Format>& in, std::byte* work,
                    choice<float>* routes, float* rows, const Write& write) const {
        const auto view = output_.prepare(call, in, work, routes);
        const auto norm = [&](const auto& value) {
            for_rows(*call.out, call.tokens.most,
                     norm_body<Format, output_norm<Block>, std::remove_cvref_t<decltype(value)>, Write>{
                         norm_, norm_weight_, value, call.tokens, d_model_, write});
        };
        if (output_stage::projections > 0 && is_few(call.tokens)) {
            output_.run_few(call, in, view, row_write<f32>{rows, d_model_});
            norm(row_value{rows, d_model_});
        } else {
            norm(output_.multiply(call, in, work, view));
        }
    }

    std::size_t d_model_;
    std::size_t d_ff_;
    output_norm<Block> norm_;
    hidden_stage hidden_;
    output_stage output_;
    After after_;
    const float* norm_weight_;
    bool output_is_product_ = false;
};

}  // namespace cuda_detail

TIFFIN_END
