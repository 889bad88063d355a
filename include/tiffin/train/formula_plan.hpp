// A formula over sources as steps (operations) over terms (tensors, rows of parts, values of earlier steps).
#pragma once

#include <tiffin/grammar/parts_computed_first.hpp>
#include <tiffin/plan/formula.hpp>
#include <tiffin/plan/lower.hpp>
#include <tiffin/train/trained_rows.hpp>
#include <tiffin/train/training_op.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

TIFFIN_BEGIN

namespace train_detail {

inline constexpr std::size_t no_term = ~std::size_t{0};

// An operand or a result of a formula for one token: a row, or one value.
template <class Number>
struct formula_term {
    enum class what : unsigned char { tensor, part, value, scale };

    what is;
    tensor_kind kind;                                  // of a tensor
    const parameter<Number>* tensor;                   // likewise
    std::unique_ptr<const trained_rows<Number>> part;  // of a part that is computed apart, for whole rows
    std::size_t place = 0;                             // index among values, scales, or terms with rows
    std::size_t d_place = 0;  // index among gradients of its form: rows, sums of rows, sums of values

    // Whether its rows are computed before the formula, for all tokens of a call.
    [[nodiscard]] bool has_rows() const noexcept {
        return is == what::part ||
               (is == what::tensor && (kind == tensor_kind::projection || kind == tensor_kind::low_rank_out ||
                                       kind == tensor_kind::pool || kind == tensor_kind::chosen_rows));
    }
    [[nodiscard]] bool is_number() const noexcept {
        return is == what::scale || (is == what::tensor && plan_detail::is_one_number(kind));
    }
    // Whether it is a tensor of this kind.
    [[nodiscard]] bool is_a(tensor_kind one) const noexcept { return is == what::tensor && kind == one; }
    [[nodiscard]] bool is_trained() const noexcept {
        return is == what::tensor && tensor->gradient != nullptr;
    }
    // Whether its gradient is added to existing values.
    [[nodiscard]] bool is_added() const noexcept {
        return is == what::tensor && !has_rows() && !is_a(tensor_kind::table);
    }
};

// out = op(in); a sum without an op. Where an op scales its row, the scale is a function of dot(left, right).
template <class Number, class Wide>
struct formula_step {
    const training_ops<Number, Wide>* ops = nullptr;
    const void* source = nullptr;
    std::vector<std::size_t> in{};  // terms
    std::unique_ptr<bool[]> is_added{};
    std::size_t out = no_term;
    std::size_t scale = no_term, left = no_term, right = no_term;
    bool adds_left = false, adds_right = false;
};

// Steps are in order of dependency; every value is read by one step.
template <class Numbers>
class formula_plan {
    using number = typename Numbers::number;
    using node_role = detail::node_role;
    using preparation = training_preparation<number>;

public:
    using term = formula_term<number>;
    using step = formula_step<number, typename Numbers::wide>;

    std::vector<term> terms;
    std::vector<step> steps;
    std::size_t values = 0, scales = 0, rows = 0;           // without those of the root
    std::size_t d_rows = 0, row_sums = 0, number_sums = 0;  // gradients
    std::size_t root = no_term;

    // make_part(node, bound): the rows of a source that is computed apart. add_leaf(node, bound, terms of its tensors):
    // adds a routed leaf.
    template <class MakePart, class AddLeaf>
    void build(const plan_node& node, const bound_node& bound, preparation& how, const MakePart& make_part,
               const AddLeaf& add_leaf) {
        root = add(node, bound, how, make_part, add_leaf);
        // A root that is a tensor or an input is copied to y.
        if (terms[root].is != term::what::value && !terms[root].has_rows()) {
            step copy;
            copy.in = {root};
            root = finish(std::move(copy));
        }
        for (step& s : steps) mark_added(s);
        for (std::size_t i = 0; i < terms.size(); ++i) place(terms[i], i == root);
    }

private:
    std::size_t add_term(typename term::what is, tensor_kind kind,
                         const parameter<number>* tensor = nullptr) {
        terms.push_back({is, kind, tensor, nullptr});
        return terms.size() - 1;
    }
    // The root's row is y, its gradient is dy.
    void place(term& t, bool is_root) noexcept {
        if (t.is == term::what::scale) t.place = scales++;
        if (t.is_a(tensor_kind::vector)) t.d_place = row_sums++;
        if (t.is_a(tensor_kind::scalar)) t.d_place = number_sums++;
        if (is_root) return;
        if (t.is == term::what::value) t.place = values++;
        if (t.has_rows()) t.place = rows++;
        if (t.has_rows() || t.is_a(tensor_kind::table)) t.d_place = d_rows++;
    }
    std::size_t add_part(std::unique_ptr<const trained_rows<number>> part) {
        const std::size_t at = add_term(term::what::part, tensor_kind::computed);
        terms[at].part = std::move(part);
        return at;
    }
    template <class MakePart, class AddLeaf>
    std::size_t add(const plan_node& node, const bound_node& bound, preparation& how,
                    const MakePart& make_part, const AddLeaf& add_leaf) {
        const detail::node_kind& kind = *node.kind;
        const bool is_norm = kind.role == node_role::row_norm, is_apart = detail::parts_computed_first(kind);
        if (is_apart && !is_norm) return add_part(make_part(node, bound));
        std::vector<std::size_t> own(kind.tensors.size(), no_term), parts;
        for (std::size_t i = 0; i < own.size(); ++i)
            own[i] = add_tensor(kind.tensors[i].kind, how.of(bound, i, kind.tensors[i].kind));
        if (kind.role == node_role::routed) add_leaf(node, bound, own);
        for (std::size_t i = 0; i < node.parts.size(); ++i)
            parts.push_back(is_apart ? add_part(make_part(node.parts[i], bound.parts[i]))
                                     : add(node.parts[i], bound.parts[i], how, make_part, add_leaf));
        if (!kind.sums) return add_op(node, std::move(own), parts);
        std::erase(own, no_term);
        own.insert(own.end(), parts.begin(), parts.end());
        return add_sum(std::move(own));
    }
    // no_term: the operand is zeros, or is not read.
    std::size_t add_tensor(tensor_kind kind, const parameter<number>* tensor) {
        const bool is_absent = kind == tensor_kind::vector && !tensor->is_given();
        if (is_absent || kind == tensor_kind::computed || !plan_detail::has_value(kind)) return no_term;
        return kind == tensor_kind::row_scale ? add_term(term::what::scale, kind)
                                              : add_term(term::what::tensor, kind, tensor);
    }
    // The sum of one row needs no step.
    std::size_t add_sum(std::vector<std::size_t> of) {
        if (of.size() == 1 && !terms[of[0]].is_number()) return of[0];
        step s;
        s.in = std::move(of);
        return finish(std::move(s));
    }
    std::size_t add_op(const plan_node& node, std::vector<std::size_t> own,
                       const std::vector<std::size_t>& parts) {
        const detail::node_kind& kind = *node.kind;
        step s;
        s.ops = &ops<Numbers>(node);
        s.source = node.source;
        if (kind.role == node_role::row_norm || kind.role == node_role::row_dot) {
            s.scale = own[0];
            s.left = parts[0];
            s.right = kind.role == node_role::row_norm ? parts[0] : parts[1];
        }
        for (std::size_t i = 0; i < own.size(); ++i)
            if (kind.tensors[i].kind == tensor_kind::computed) own[i] = parts[0];
        if (s.ops->reads_tensors) {
            s.in = std::move(own);
            s.in.insert(s.in.end(), parts.begin(), parts.end());
        } else if (s.scale != no_term) {
            // The value, its scale, a norm's weight.
            s.in = {parts.back(), s.scale};
            for (std::size_t i = 2; i < own.size(); ++i) s.in.push_back(own[i]);
        } else {
            s.in = parts;
        }
        return finish(std::move(s));
    }
    std::size_t finish(step s) {
        s.out = add_term(term::what::value, tensor_kind::computed);
        steps.push_back(std::move(s));
        return steps.back().out;
    }
    // Where a row has a gradient of its own, the first contribution is written, later ones are added.
    void mark_added(step& s) const {
        std::vector<std::size_t> seen;
        const auto is_added = [&](std::size_t t) {
            if (t == no_term) return false;
            const bool before = std::find(seen.begin(), seen.end(), t) != seen.end();
            seen.push_back(t);
            return before || terms[t].is_added();
        };
        s.is_added = std::make_unique<bool[]>(s.in.size());
        for (std::size_t k = 0; k < s.in.size(); ++k) s.is_added[k] = is_added(s.in[k]);
        s.adds_left = is_added(s.left);
        s.adds_right = is_added(s.right);
    }
};

}  // namespace train_detail

TIFFIN_END
