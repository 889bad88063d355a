// One token of every kind of block, in the reference.
#pragma once

#include <tiffin/backend/binding.hpp>
#include <tiffin/backend/reference/row.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <tuple>
#include <utility>

TIFFIN_BEGIN

namespace reference_detail {

template <ffn_block Block>
auto hidden_of(const Block& block, const binding& bound) {
    return bound_source<hidden_source<Block>>{block.hidden, hidden_part<Block>(bound), bound.d_ff,
                                              bound.d_model};
}
template <ffn_block Block>
auto output_of(const Block& block, const binding& bound) {
    return bound_source<output_source<Block>>{block.output.source, output_part<Block>(bound), bound.d_model,
                                              bound.d_ff};
}

// The choices a part may record, which are then no longer wanted of those inside it.
template <class Scalar>
choice<Scalar>* claim(bool routes, choice<Scalar>*& wanted) {
    return routes ? std::exchange(wanted, nullptr) : nullptr;
}

// How a token goes through a block, one specialisation a kind of block.
template <class Block>
struct token_evaluator;

// One token of a block: y = block(x, token). `scratch` holds block_scratch(block, bound).
template <class Scalar, block_policy Block>
void evaluate_block(const Block& block, const binding& bound, const token_arguments<Scalar>& token,
                    const Scalar* x, Scalar* y, Scalar* scratch) {
    token_evaluator<Block>::run(block, bound, token, x, y, scratch);
}
template <block_policy Block>
std::size_t block_scratch(const Block& block, const binding& bound) {
    return token_evaluator<Block>::scratch(block, bound);
}

template <ffn_block Block>
struct token_evaluator<Block> {
    template <class Scalar>
    static void run(const Block& block, const binding& bound, const token_arguments<Scalar>& token,
                    const Scalar* x, Scalar* y, Scalar* scratch) {
        choice<Scalar>* routes = token.routes;
        const auto hidden = hidden_of(block, bound);
        const auto output = output_of(block, bound);
        Scalar* const rest = scratch + bound.d_ff;
        evaluate_row(hidden, token, x, scratch, rest,
                     claim(bound_choices(block.hidden, hidden.tensors) > 0, routes));
        evaluate_row(output, token, scratch, y, rest,
                     claim(bound_choices(block.output.source, output.tensors) > 0, routes));
        if constexpr (has_norm<Block>) {
            const auto& norm = block.output.norm;
            Scalar squares(0);
            for (std::size_t j = 0; j < bound.d_model; ++j) squares = squares + y[j] * y[j];
            const Scalar scale = norm.scale(squares, Scalar(static_cast<float>(bound.d_model)));
            for (std::size_t j = 0; j < bound.d_model; ++j) {
                Scalar weight(1);
                if constexpr (output_norm<Block>::weighted)
                    weight = number<Scalar>(norm_part<Block>(bound), j);
                y[j] = norm(y[j], scale, weight);
            }
        }
    }

    static std::size_t scratch(const Block& block, const binding& bound) {
        return bound.d_ff +
               std::max(scratch_numbers(hidden_of(block, bound)), scratch_numbers(output_of(block, bound)));
    }
};

// A block whose kind is known only at run time.
template <class Block>
    requires requires {
        typename Block::runtime_block;
    }
struct token_evaluator<Block> {
    template <class Scalar>
    static void run(const Block& block, const binding& bound, const token_arguments<Scalar>& token,
                    const Scalar* x, Scalar* y, Scalar* scratch) {
        block.evaluate(bound, token, x, y, scratch);
    }
    static std::size_t scratch(const Block& block, const binding& bound) { return block.scratch(bound); }
};

template <class Base, class Modulator, class Fusion>
struct token_evaluator<modulated<Base, Modulator, Fusion>> {
    template <class Scalar>
    static void run(const modulated<Base, Modulator, Fusion>& block, const binding& bound,
                    const token_arguments<Scalar>& token, const Scalar* x, Scalar* y, Scalar* scratch) {
        const bound_source<Modulator> modulator{block.modulator, bound.tensors, bound.d_model, bound.d_model};
        token_arguments<Scalar> inner = token;
        Scalar* const row = scratch;
        evaluate_row(modulator, token, x, row, scratch + bound.d_model,
                     claim(bound_choices(block.modulator, modulator.tensors) > 0, inner.routes));
        evaluate_block(block.base, bound.parts[0], inner, x, y, scratch + bound.d_model);
        for (std::size_t j = 0; j < bound.d_model; ++j) y[j] = block.fusion(y[j], row[j]);
    }

    static std::size_t scratch(const modulated<Base, Modulator, Fusion>& block, const binding& bound) {
        const bound_source<Modulator> modulator{block.modulator, bound.tensors, bound.d_model, bound.d_model};
        return bound.d_model +
               std::max(scratch_numbers(modulator), block_scratch(block.base, bound.parts[0]));
    }
};

template <class Router, class Expert, class Shared>
struct token_evaluator<mixture<Router, Expert, Shared>> {
    template <class Scalar>
    static void run(const mixture<Router, Expert, Shared>& block, const binding& bound,
                    const token_arguments<Scalar>& token, const Scalar* x, Scalar* y, Scalar* scratch) {
        constexpr bool has_shared = mixture<Router, Expert, Shared>::has_shared;
        static constexpr auto kinds = kinds_of<route_of<Router>>();
        const std::size_t experts = bound.parts.size() - (has_shared ? 1 : 0);
        const std::size_t k = detail::route_choices(block.router, bound.tensors);
        auto* const chosen = reinterpret_cast<choice<Scalar>*>(scratch);
        Scalar* const row = scratch + 2 * k;
        Scalar* const rest = row + bound.d_model;
        route(block.router, std::span<const tensor_kind>(kinds), std::span(bound.tensors), token, x,
              bound.d_model, rest, chosen);
        if (token.routes != nullptr) std::copy_n(chosen, k, token.routes);
        token_arguments<Scalar> inner = token;
        inner.routes = nullptr;
        if constexpr (has_shared)
            evaluate_block(block.shared, bound.parts[experts], inner, x, y, rest);
        else
            std::fill_n(y, bound.d_model, Scalar(0));
        for (std::size_t e = 0; e < experts; ++e)
            for (std::size_t i = 0; i < k; ++i) {
                if (static_cast<std::size_t>(chosen[i].expert) != e) continue;
                evaluate_block(block.expert, bound.parts[e], inner, x, row, rest);
                for (std::size_t j = 0; j < bound.d_model; ++j) y[j] = y[j] + chosen[i].weight * row[j];
            }
    }

    static std::size_t scratch(const mixture<Router, Expert, Shared>& block, const binding& bound) {
        constexpr bool has_shared = mixture<Router, Expert, Shared>::has_shared;
        const std::size_t experts = bound.parts.size() - (has_shared ? 1 : 0);
        std::size_t most = route_scratch(bound.tensors);
        for (std::size_t e = 0; e < experts; ++e)
            most = std::max(most, block_scratch(block.expert, bound.parts[e]));
        if constexpr (has_shared) most = std::max(most, block_scratch(block.shared, bound.parts[experts]));
        return 2 * detail::route_choices(block.router, bound.tensors) + bound.d_model + most;
    }
};

template <class... Blocks>
struct token_evaluator<parallel<Blocks...>> {
    template <class Scalar>
    static void run(const parallel<Blocks...>& block, const binding& bound,
                    const token_arguments<Scalar>& token, const Scalar* x, Scalar* y, Scalar* scratch) {
        choice<Scalar>* routes = token.routes;
        std::size_t i = 0;
        const auto one = [&](const auto& branch) {
            token_arguments<Scalar> inner = token;
            inner.routes = claim(bound.parts[i].choices > 0, routes);
            Scalar* const to = i == 0 ? y : scratch;
            evaluate_block(branch, bound.parts[i], inner, x, to, scratch + bound.d_model);
            if (i > 0)
                for (std::size_t j = 0; j < bound.d_model; ++j) y[j] = y[j] + to[j];
            ++i;
        };
        std::apply([&](const auto&... branch) { (one(branch), ...); }, block.branches);
    }

    static std::size_t scratch(const parallel<Blocks...>& block, const binding& bound) {
        std::size_t most = 0, i = 0;
        std::apply(
            [&](const auto&... branch) {
                ((most = std::max(most, block_scratch(branch, bound.parts[i])), ++i), ...);
            },
            block.branches);
        return bound.d_model + most;
    }
};

template <class Block>
struct token_evaluator<on_residual<Block>> {
    template <class Scalar>
    static void run(const on_residual<Block>& block, const binding& bound,
                    const token_arguments<Scalar>& token, const Scalar*, Scalar* y, Scalar* scratch) {
        evaluate_block(block.block, bound.parts[0], token, token.residual, y, scratch);
    }

    static std::size_t scratch(const on_residual<Block>& block, const binding& bound) {
        return block_scratch(block.block, bound.parts[0]);
    }
};

template <class Block, std::size_t Layers>
struct token_evaluator<delayed<Block, Layers>> {
    template <class Scalar>
    static void run(const delayed<Block, Layers>& block, const binding& bound,
                    const token_arguments<Scalar>& token, const Scalar* x, Scalar* y, Scalar* scratch) {
        evaluate_block(block.block, bound.parts[0], token, x, y, scratch);
        for (std::size_t j = 0; j < bound.d_model; ++j) {
            const Scalar taken(token.carried_is_due ? token.carried[j] : 0.0f);
            token.carried[j] = static_cast<float>(y[j]);
            y[j] = taken;
        }
    }
    static std::size_t scratch(const delayed<Block, Layers>& block, const binding& bound) {
        return block_scratch(block.block, bound.parts[0]);
    }
};

template <class Source>
struct token_evaluator<source_block<Source>> {
    static bound_source<Source> of(const source_block<Source>& block, const binding& bound) {
        return {block.source, bound.tensors, bound.d_model, bound.d_model};
    }
    template <class Scalar>
    static void run(const source_block<Source>& block, const binding& bound,
                    const token_arguments<Scalar>& token, const Scalar* x, Scalar* y, Scalar* scratch) {
        evaluate_row(of(block, bound), token, x, y, scratch, token.routes);
    }
    static std::size_t scratch(const source_block<Source>& block, const binding& bound) {
        return scratch_numbers(of(block, bound));
    }
};

}  // namespace reference_detail

TIFFIN_END
