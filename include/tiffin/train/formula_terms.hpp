// The terms of a formula in training: their rows before it, and the backward of each after it.
#pragma once

#include <tiffin/aligned_buffer.hpp>
#include <tiffin/train/formula_plan.hpp>
#include <tiffin/train/routed_leaf.hpp>
#include <tiffin/train/term_gradients.hpp>
#include <tiffin/train/training_numbers.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

TIFFIN_BEGIN

namespace train_detail {

// The backward of each kind of term, dz being its gradient:
//   projection    dx += dz W, dW += dz^T x
//   table         the table rows of the tokens' ids += dz
//   vector        += the sum of dz over tokens; a scalar: over features too
//   part          the part's backward
//   low_rank_out  to the bank, x and the router; a pool or chosen_rows: to the chosen rows and the router
//   rows of the call (x, the residual, per_layer_input): += dz
template <class M>
class formula_terms {
    using number = typename M::number;
    using call_type = training_call<number>;

public:
    using plan_type = formula_plan<training_numbers<M>>;
    using term = typename plan_type::term;
    using what = typename term::what;

    formula_terms(const plan_node& node, const bound_node& bound, const engine_detail::source_sizes& sizes,
                  training_preparation<number>& how)
        : width_(sizes.outputs),
          inputs_(sizes.inputs),
          as_number_(static_cast<float>(sizes.outputs)),
          products_(how.products) {
        plan_.build(
            node, bound, how,
            [&](const plan_node& part, const bound_node& at) {
                return make_trained_rows<M>(part, at, sizes, how);
            },
            [&](const plan_node& leaf, const bound_node& at, const std::vector<std::size_t>& terms) {
                routed_.emplace_back(leaf, at, terms, sizes, how);
            });
    }
    [[nodiscard]] const plan_type& plan() const noexcept { return plan_; }

    // Kept from forward to backward. `root`: y, the destination of a term that is the whole formula.
    struct buffers {
        number* rows;        // (terms with rows, tokens, width)
        step_memory routed;  // of the routed leaves, in order
        number* root = nullptr;
    };
    // Gradients: rows of some terms; of vectors and scalars a partial sum per chunk of tokens.
    struct sums {
        number *rows, *row_sums, *number_sums;
        std::size_t chunks;
        const number* root;
    };
    buffers lay_out(step_memory& kept, std::size_t tokens) const {
        number* const rows = kept.take<number>(plan_.rows * row_step(tokens));
        const buffers at{rows, kept};
        for (const auto& leaf : routed_) static_cast<void>(leaf.lay_out(kept, tokens));
        return at;
    }
    sums lay_out_gradients(step_memory& from, std::size_t tokens) const {
        sums to{};
        to.chunks = call_type::chunks_of(tokens);
        to.rows = from.take<number>(plan_.d_rows * row_step(tokens));
        to.row_sums = from.take<number>(plan_.row_sums * to.chunks * width_);
        to.number_sums = from.take<number>(plan_.number_sums * to.chunks);
        return to;
    }
    void clear_sums(const sums& to) const {
        std::fill_n(to.row_sums, plan_.row_sums * to.chunks * width_, number(0));
        std::fill_n(to.number_sums, plan_.number_sums * to.chunks, number(0));
    }
    void keep_parts(step_memory& kept, std::size_t tokens) const {
        for (const term& t : plan_.terms)
            if (t.part) t.part->keep(kept, tokens);
    }
    [[nodiscard]] std::size_t scratch_bytes(std::size_t tokens, std::size_t workers) const {
        std::size_t most = 0;
        for (const auto& leaf : routed_) most = std::max(most, leaf.scratch_bytes(tokens, workers));
        for (const term& t : plan_.terms) {
            if (t.part) most = std::max(most, t.part->scratch_bytes(tokens, workers));
            if (t.is_a(tensor_kind::projection))
                most = std::max(most, products_.bytes_both_ways(tokens, width_, inputs_, workers));
        }
        return most;
    }

    // Computes the rows of all terms that has_rows() holds for.
    void forward(const call_type& call, const number* x, const buffers& at, step_memory& kept,
                 const step_memory& scratch) const {
        each_term(what::tensor, [&](const term& t, std::size_t i) {
            if (t.kind == tensor_kind::projection)
                products_.multiply(call, call.tokens, width_, inputs_, {x, inputs_},
                                   {t.tensor->values(), inputs_}, row_of_term(at, call.tokens, i), false,
                                   scratch.rest());
        });
        step_memory routed = at.routed;
        for (const auto& leaf : routed_)
            leaf.forward(
                call, x, leaf.lay_out(routed, call.tokens),
                [&](std::size_t i) { return row_of_term(at, call.tokens, i); }, scratch);
        each_term(what::part, [&](const term& t, std::size_t i) {
            t.part->forward(call, x, row_of_term(at, call.tokens, i), kept, scratch);
        });
    }
    // The values of term i for token t, unless a step computes them; null: zeros.
    [[nodiscard]] const number* values_of(const call_type& call, const number* x, const buffers& at,
                                          std::size_t i, std::size_t t) const {
        const term& of = plan_.terms[i];
        if (of.has_rows()) return row_of_term(at, call.tokens, i) + t * width_;
        if (of.is_a(tensor_kind::row_width)) return &as_number_;
        return given_row(of.kind, call, *of.tensor, x, t, width_);
    }
    // Destination of their gradient; null: not needed.
    [[nodiscard]] number* gradients_of(const call_type& call, const sums& of, number* dx, std::size_t chunk,
                                       std::size_t i, std::size_t t) const {
        const term& to = plan_.terms[i];
        const auto row = [&](number* rows) { return rows != nullptr ? rows + t * width_ : nullptr; };
        if (to.has_rows()) return d_rows_of_term(of, call.tokens, i) + t * width_;
        switch (to.kind) {
            case tensor_kind::table:
                return to.is_trained() ? d_rows_of_term(of, call.tokens, i) + t * width_ : nullptr;
            case tensor_kind::vector: return to.is_trained() ? sums_of(of, to) + chunk * width_ : nullptr;
            case tensor_kind::scalar: return to.is_trained() ? sums_of(of, to) + chunk : nullptr;
            case tensor_kind::given: return row(call.d_per_layer_input);
            case tensor_kind::residual_row: return row(call.d_residual);
            case tensor_kind::input_row: return row(dx);
            default: return nullptr;
        }
    }
    void backward(const call_type& call, const number* x, const buffers& at, const sums& of, number* dx,
                  step_memory& kept, step_memory scratch) const {
        each_term(what::tensor, [&](const term& t, std::size_t i) {
            const auto rows = [&] { return gradient_of_rows(of, call.tokens, i); };
            if (t.kind == tensor_kind::vector) add_sums(call, *t.tensor, width_, of.chunks, sums_of(of, t));
            if (t.kind == tensor_kind::scalar) add_sums(call, *t.tensor, 1, of.chunks, sums_of(of, t));
            if (t.kind == tensor_kind::table) add_to_ids(call, *t.tensor, rows());
            if (t.kind == tensor_kind::projection)
                multiply_back(products_, call, *t.tensor, {x, inputs_}, {rows(), width_}, dx, scratch);
        });
        step_memory routed = at.routed;
        for (const auto& leaf : routed_)
            leaf.backward(
                call, x, leaf.lay_out(routed, call.tokens),
                [&](std::size_t i) { return gradient_of_rows(of, call.tokens, i); }, dx, scratch);
        each_term(what::part, [&](const term& t, std::size_t i) {
            t.part->backward(call, x, gradient_of_rows(of, call.tokens, i), dx, kept, scratch);
        });
    }

private:
    template <class Visit>
    void each_term(what is, const Visit& visit) const {
        for (std::size_t i = 0; i < plan_.terms.size(); ++i)
            if (plan_.terms[i].is == is) visit(plan_.terms[i], i);
    }
    // Elements between the rows of two terms: these begin at a cache line.
    [[nodiscard]] std::size_t row_step(std::size_t tokens) const noexcept {
        constexpr std::size_t line = std::max<std::size_t>(1, aligned_buffer::line / sizeof(number));
        return (tokens * width_ + line - 1) / line * line;
    }
    [[nodiscard]] number* row_of_term(const buffers& at, std::size_t tokens, std::size_t i) const noexcept {
        return i == plan_.root ? at.root : at.rows + plan_.terms[i].place * row_step(tokens);
    }
    [[nodiscard]] number* d_rows_of_term(const sums& of, std::size_t tokens, std::size_t i) const noexcept {
        return of.rows + plan_.terms[i].d_place * row_step(tokens);
    }
    [[nodiscard]] const number* gradient_of_rows(const sums& of, std::size_t tokens,
                                                 std::size_t i) const noexcept {
        return i == plan_.root ? of.root : d_rows_of_term(of, tokens, i);
    }
    [[nodiscard]] number* sums_of(const sums& of, const term& t) const noexcept {
        return t.kind == tensor_kind::scalar ? of.number_sums + t.d_place * of.chunks
                                             : of.row_sums + t.d_place * of.chunks * width_;
    }

    std::size_t width_;
    std::size_t inputs_;
    number as_number_;  // width_
    product_functions<number> products_;
    plan_type plan_;
    std::vector<routed_leaf<M>> routed_;
};

}  // namespace train_detail

TIFFIN_END
