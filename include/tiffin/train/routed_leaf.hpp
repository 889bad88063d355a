// A leaf with a router, forward and backward: its router, its low-rank bank, its pools.
#pragma once

#include <tiffin/train/term_gradients.hpp>
#include <tiffin/train/trained_bank.hpp>
#include <tiffin/train/trained_router.hpp>
#include <tiffin/train/trained_row_router.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

TIFFIN_BEGIN

namespace train_detail {

// The terms of one leaf among those of its formula. A term's rows are (tokens, width).
template <class M>
class routed_leaf {
    using number = typename M::number;
    using call_type = training_call<number>;
    // A term whose rows are a weighted sum over the choices: of the bank, or of the rows of a pool or chosen_rows.
    struct mixed_term {
        std::size_t term;
        const parameter<number>* tensor;
        bool is_bank;
    };

public:
    struct memory {
        routed_tokens<number> chosen{};
        number* ranks = nullptr;
    };

    // terms: of the leaf's tensors, in their order.
    routed_leaf(const plan_node& node, const bound_node& bound, const std::vector<std::size_t>& terms,
                const engine_detail::source_sizes& sizes, training_preparation<number>& how) {
        const parameter<number>*in = nullptr, *out = nullptr;
        std::size_t experts = 0;
        for (std::size_t i = 0; i < terms.size(); ++i) {
            const tensor_kind kind = node.kind->tensors[i].kind;
            const auto* const p = how.of(bound, i, kind);
            if (kind == tensor_kind::low_rank_in) in = p;
            if (kind == tensor_kind::low_rank_out) out = p;
            if (kind != tensor_kind::low_rank_out && kind != tensor_kind::pool &&
                kind != tensor_kind::chosen_rows)
                continue;
            mixed_.push_back({terms[i], p, kind == tensor_kind::low_rank_out});
            experts = bound.tensors[i].shape[0];
        }
        using enum detail::router_kind;
        if (node.kind->router == keys || node.kind->router == ranges)
            router_ = std::make_unique<const trained_row_router<M>>(node, bound, sizes.inputs, how);
        else
            router_ = std::make_unique<const trained_router<M>>(node, bound, experts, sizes.inputs, how);
        if (in != nullptr && out != nullptr)
            bank_.emplace(in, out, bound.choices, sizes.inputs, sizes.outputs, how.products);
    }

    [[nodiscard]] memory lay_out(step_memory& kept, std::size_t tokens) const noexcept {
        const routed_tokens<number> chosen = router_->lay_out(kept, tokens);
        return {chosen, bank_ ? bank_->lay_out(kept, tokens) : nullptr};
    }
    [[nodiscard]] std::size_t scratch_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        step_memory areas;
        areas.take<number>(tokens * router_->choices());
        const std::size_t bank = bank_ ? bank_->scratch_bytes(tokens, workers) : 0;
        return areas.used() + std::max(router_->scratch_bytes(tokens, workers), bank);
    }
    // rows(term): destination of the term's rows; in backward, their gradients.
    template <class Rows>
    void forward(const call_type& call, const number* x, const memory& at, const Rows& rows,
                 const step_memory& scratch) const {
        router_->forward(call, x, at.chosen, scratch);
        for (const mixed_term& m : mixed_)
            if (m.is_bank)
                bank_->forward(call, x, at.chosen, at.ranks, rows(m.term), scratch);
            else {
                call.bring(m.tensor->given.gathered, at.chosen.chosen, router_->choices());
                mix_rows<M>(call, *m.tensor, at.chosen.chosen, router_->choices(), rows(m.term));
            }
    }
    template <class Rows>
    void backward(const call_type& call, const number* x, const memory& at, const Rows& d_rows, number* dx,
                  step_memory scratch) const {
        const std::size_t choices = router_->choices();
        number* const d_weights = scratch.take<number>(call.tokens * choices);
        std::fill_n(d_weights, call.tokens * choices, number(0));
        for (const mixed_term& m : mixed_)
            if (m.is_bank)
                bank_->backward(call, x, at.chosen, at.ranks, d_rows(m.term), d_weights, dx, scratch);
            else
                mix_rows_backward<M>(call, *m.tensor, at.chosen.chosen, choices, d_rows(m.term), d_weights);
        router_->backward(call, x, at.chosen, d_weights, dx, scratch);
    }

private:
    std::unique_ptr<const any_trained_router<number>> router_;
    std::optional<trained_bank<M>> bank_;
    std::vector<mixed_term> mixed_;
};

}  // namespace train_detail

TIFFIN_END
