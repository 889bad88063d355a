// A stage: a source of a plan, computed for all tokens of a call. First its per-token steps, then products and
// formula in one pass. Without products, the formula is the epilogue of its last chain's last step; without a chain it
// is evaluated by itself.
#pragma once

#include <tiffin/bind/bound.hpp>
#include <tiffin/bind/preparation.hpp>
#include <tiffin/bind/source_sizes.hpp>
#include <tiffin/call/call_arguments.hpp>
#include <tiffin/cpu/block_formula.hpp>
#include <tiffin/cpu/block_sink.hpp>
#include <tiffin/cpu/formula_tensors.hpp>
#include <tiffin/plan/lower.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

TIFFIN_BEGIN

namespace cpu_detail {

using engine_detail::source_sizes;

// Computes the output rows of a source.
template <class Machine>
class source_rows {
public:
    virtual ~source_rows() = default;
    [[nodiscard]] virtual std::size_t workspace_bytes(std::size_t tokens,
                                                      std::size_t workers) const noexcept = 0;
    virtual void run(const call_arguments& call, const typename Machine::activations& in, std::byte* memory,
                     const output_rows& to) const = 0;
    // The products that alone read its input, which may then be rounded for them; null where something else reads it,
    // too.
    [[nodiscard]] virtual const typename Machine::products* multiplies_input() const noexcept {
        return nullptr;
    }
};
// What a formula needs per token before it is evaluated: precomputed rows, the routes of its leaves.
template <class Machine>
class token_step {
public:
    virtual ~token_step() = default;
    [[nodiscard]] virtual std::size_t workspace_bytes(std::size_t tokens,
                                                      std::size_t workers) const noexcept = 0;
    virtual void run(const formula_call<Machine>& of, std::byte* memory) const = 0;
};

// The constructors for a role. A plan has pointers to them: a file compiles only the roles of its compositions.
template <class Machine>
struct role_functions {
    std::unique_ptr<const source_rows<Machine>> (*rows)(const plan_node&, const bound_node&,
                                                        const source_sizes&, const preparation&) = nullptr;
    // Of a routed leaf; reserves room in the per-token state.
    std::unique_ptr<const token_step<Machine>> (*route)(const plan_node&, const bound_node&,
                                                        const source_sizes&, const preparation&,
                                                        formula_tensors<Machine>&) = nullptr;
};
template <class Machine, detail::node_role Role>
struct functions_of {
    static const role_functions<Machine> value;  // see engine.hpp
};
template <class Machine>
const role_functions<Machine>& functions(const plan_node& node) noexcept {
    return *static_cast<const role_functions<Machine>*>(ops<Machine>(node).role);
}
// Makes the source_rows of a node.
template <class Machine>
std::unique_ptr<const source_rows<Machine>> make_rows(const plan_node& node, const bound_node& bound,
                                                      const source_sizes& sizes, const preparation& how) {
    return functions<Machine>(node).rows(node, bound, sizes, how);
}
template <class Machine>
class chain;

// The last chain that the formula can be the epilogue of, or null. A norm and the dot product of a gate need whole
// rows of their inputs, so that chains within these are excluded.
inline const plan_node* last_chain_of(const plan_node& node) noexcept {
    using detail::node_role;
    if (node.kind->role == node_role::chain) return &node;
    if (detail::parts_computed_first(*node.kind) || node.kind->role == node_role::row_norm) return nullptr;
    const plan_node* last = nullptr;
    for (std::size_t i = node.kind->role == node_role::row_dot ? 2 : 0; i < node.parts.size(); ++i)
        if (const plan_node* const found = last_chain_of(node.parts[i])) last = found;
    return last;
}

template <class Machine>
class stage {
    using arena = detail::arena<64>;

public:
    using activations = typename Machine::activations;
    using products = typename Machine::products;

    stage(const plan_node& node, const bound_node& bound, const source_sizes& sizes, const preparation& how);

    // The products whose sums its formula reads; null where there are none.
    [[nodiscard]] const products* ends_in() const noexcept { return products_ ? &*products_ : nullptr; }
    // The products that alone read its input; null where something else does, too.
    [[nodiscard]] const products* multiplies_input() const noexcept;
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept;
    void run(const call_arguments& call, const activations& in, std::byte* memory,
             const block_sink& to) const;

private:
    // The scale of a row, from the dot product of two formulas' rows, or of one's with itself.
    struct row_factor {
        const ops_for<Machine>* ops;
        const void* source;
        block_formula<Machine> one;  // empty: the precomputed row
        std::optional<block_formula<Machine>> other;
        std::size_t row;
        std::size_t state;
    };
    // Applies the formula to the blocks of a chain's last step.
    class chain_epilogue;

    using node_state = typename formula_tensors<Machine>::node_state;

    void find_weights(const plan_node& node, const bound_node& bound, std::vector<const tensor_view*>& to);
    void keep(const plan_node& node, const bound_node& bound, const source_sizes& sizes, std::uint32_t& sums,
              const preparation& how);
    void precompute(const plan_node& node, const bound_node& bound, const source_sizes& sizes,
                    node_state& state, const preparation& how);
    float* lay_out(arena& areas, std::size_t tokens) const noexcept {
        return areas.template take<float>(tensors_.state_numbers() * tokens);
    }
    void scale_row(const formula_call<Machine>& of, std::size_t t) const noexcept;
    void evaluate_rows(const formula_call<Machine>& of, const block_sink& to) const;

    std::size_t outputs_;
    formula_tensors<Machine> tensors_;
    std::optional<products> products_;
    const plan_node* last_chain_;  // during construction only
    bool reads_input_ = false;
    block_formula<Machine> formula_;
    std::vector<std::unique_ptr<const token_step<Machine>>> steps_;  // in the order of the parts
    std::vector<row_factor> scales_;
    std::unique_ptr<const chain<Machine>> chain_;
};

}  // namespace cpu_detail

TIFFIN_END
