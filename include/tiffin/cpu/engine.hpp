// Computes the output rows of a plan's source: of a whole layer, an expert, or rows precomputed for a formula.
#pragma once

#include <tiffin/cpu/mixture.hpp>
#include <tiffin/cpu/route.hpp>
#include <tiffin/cpu/run_stage.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

TIFFIN_BEGIN

namespace cpu_detail {

// Rows of a formula or a chain.
template <class Machine>
class rows_of_formula final : public source_rows<Machine> {
public:
    rows_of_formula(const plan_node& node, const bound_node& bound, const source_sizes& sizes,
                    const preparation& how)
        : stage_(node, bound, sizes, how) {}
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens,
                                              std::size_t workers) const noexcept override {
        return stage_.workspace_bytes(tokens, workers);
    }
    void run(const call_arguments& call, const typename Machine::activations& in, std::byte* memory,
             const output_rows& to) const override {
        stage_.run(call, in, memory, row_sink<Machine>(to));
    }
    [[nodiscard]] const typename Machine::products* multiplies_input() const noexcept override {
        return stage_.multiplies_input();
    }

private:
    stage<Machine> stage_;
};

// Rows of `to` that are computed in several steps: in place where `to` can hold partial sums, else in rows of the
// workspace that end() writes to `to`.
template <class Machine>
class pending_rows {
public:
    pending_rows(detail::arena<64>& areas, std::size_t tokens, std::size_t width) noexcept
        : own_(areas.take<float>(tokens * width)), width_(width) {}
    [[nodiscard]] output_rows begin(const call_arguments& call, const output_rows& to) const noexcept {
        return to.is_plain() ? to : output_rows{{own_, call.tokens, width_}};
    }
    void end(const call_arguments& call, const output_rows& to) const {
        if (to.is_plain()) return;
        put_rows<Machine>(call, to, width_, [&](std::size_t t, std::size_t j, std::size_t n) {
            return Machine::load(own_ + t * width_ + j, n);
        });
    }

private:
    float* own_;
    std::size_t width_;
};

// A source that reads the residual instead of x.
template <class Machine>
class rows_on_residual final : public source_rows<Machine> {
public:
    rows_on_residual(const plan_node& node, const bound_node& bound, const source_sizes& sizes,
                     const preparation& how)
        : d_model_(sizes.d_model),
          inner_(make_rows<Machine>(node.parts[0], bound.parts[0],
                                    {sizes.outputs, sizes.d_model, sizes.d_model}, how)) {}
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens,
                                              std::size_t workers) const noexcept override {
        detail::arena<64> areas;
        areas.take<float>(Machine::input_numbers(tokens, d_model_));
        return areas.used() + inner_->workspace_bytes(tokens, workers);
    }
    void run(const call_arguments& call, const typename Machine::activations&, std::byte* memory,
             const output_rows& to) const override {
        detail::arena<64> areas(memory);
        auto* const room = areas.take<float>(Machine::input_numbers(call.tokens, d_model_));
        inner_->run(call, Machine::inputs(call, call.residual, room), areas.rest(), to);
    }

private:
    std::size_t d_model_;
    std::unique_ptr<const source_rows<Machine>> inner_;
};

// Stores the rows of this call for a later one and outputs those of an earlier one.
template <class Machine>
class delayed_rows final : public source_rows<Machine> {
public:
    delayed_rows(const plan_node& node, const bound_node& bound, const source_sizes& sizes,
                 const preparation& how)
        : width_(sizes.outputs), inner_(make_rows<Machine>(node.parts[0], bound.parts[0], sizes, how)) {}
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens,
                                              std::size_t workers) const noexcept override {
        detail::arena<64> areas;
        areas.take<float>(tokens * width_);
        return areas.used() + inner_->workspace_bytes(tokens, workers);
    }
    void run(const call_arguments& call, const typename Machine::activations& in, std::byte* memory,
             const output_rows& to) const override {
        detail::arena<64> areas(memory);
        auto* const sent = areas.take<float>(call.tokens * width_);
        inner_->run(call, in, areas.rest(), {{sent, call.tokens, width_}});
        put_rows<Machine>(call, to, width_, [&](std::size_t t, std::size_t j, std::size_t n) {
            float* const slot = call.carried.row(call.row(t)) + j;
            const typename Machine::reg taken =
                call.carried_is_due ? Machine::load(slot, n) : typename Machine::reg(0.0f);
            Machine::store(Machine::load(sent + t * width_ + j, n), slot, n);
            return taken;
        });
    }

private:
    std::size_t width_;
    std::unique_ptr<const source_rows<Machine>> inner_;
};

// The sum of parts, computed one after the other.
template <class Machine>
class summed_rows final : public source_rows<Machine> {
public:
    summed_rows(const plan_node& node, const bound_node& bound, const source_sizes& sizes,
                const preparation& how)
        : width_(sizes.outputs) {
        for (std::size_t i = 0; i < bound.parts.size(); ++i)
            parts_.push_back(make_rows<Machine>(node.repeated_part(i), bound.parts[i], sizes, how));
    }
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens,
                                              std::size_t workers) const noexcept override {
        detail::arena<64> areas;
        pending_rows<Machine>(areas, tokens, width_);
        std::size_t most = 0;
        for (const auto& p : parts_) most = std::max(most, p->workspace_bytes(tokens, workers));
        return areas.used() + most;
    }
    void run(const call_arguments& call, const typename Machine::activations& in, std::byte* memory,
             const output_rows& to) const override {
        detail::arena<64> areas(memory);
        const pending_rows<Machine> pending(areas, call.tokens, width_);
        output_rows sum = pending.begin(call, to);
        for (const auto& p : parts_) {
            p->run(call, in, areas.rest(), sum);
            sum.add = true;
        }
        pending.end(call, to);
    }

private:
    std::size_t width_;
    std::vector<std::unique_ptr<const source_rows<Machine>>> parts_;
};

template <class Machine, class Rows>
std::unique_ptr<const source_rows<Machine>> make(const plan_node& node, const bound_node& bound,
                                                 const source_sizes& sizes, const preparation& how) {
    return std::make_unique<const Rows>(node, bound, sizes, how);
}
template <class Machine, detail::node_role Role>
constexpr role_functions<Machine> describe_role() noexcept {
    using enum detail::node_role;
    if constexpr (Role == mixture)
        return {&make<Machine, mixture_rows<Machine>>};
    else if constexpr (Role == residual)
        return {&make<Machine, rows_on_residual<Machine>>};
    else if constexpr (Role == delay)
        return {&make<Machine, delayed_rows<Machine>>};
    else if constexpr (Role == repeated)
        return {&make<Machine, summed_rows<Machine>>};
    else if constexpr (Role == routed)
        return {&make<Machine, rows_of_formula<Machine>>, &make_route<Machine>};
    else
        return {&make<Machine, rows_of_formula<Machine>>};
}
template <class Machine, detail::node_role Role>
constinit const role_functions<Machine> functions_of<Machine, Role>::value = describe_role<Machine, Role>();

// A whole layer: y = block(x).
template <class Machine>
class layer_of_plan {
public:
    layer_of_plan(const plan_node& node, const binding& bound);
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept;
    void run(const call_arguments& call) const;

private:
    std::size_t d_model_;
    std::unique_ptr<const source_rows<Machine>> rows_;
};

template <class Machine>
layer_of_plan<Machine>::layer_of_plan(const plan_node& node, const binding& bound)
    : d_model_(bound.needs.d_model),
      rows_(make_rows<Machine>(node, bound.tree, {bound.needs.outputs, d_model_, d_model_}, bound.how)) {}

template <class Machine>
std::size_t layer_of_plan<Machine>::workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
    detail::arena<64> areas;
    areas.take<float>(Machine::input_numbers(tokens, d_model_));
    return areas.used() + rows_->workspace_bytes(tokens, workers);
}

template <class Machine>
void layer_of_plan<Machine>::run(const call_arguments& call) const {
    detail::arena<64> areas(call.workspace);
    auto* const room = areas.take<float>(Machine::input_numbers(call.tokens, d_model_));
    rows_->run(call, Machine::inputs(call, call.x, room), areas.rest(), call.to);
}

// The executable form of a prepared block.
template <class Machine, block_policy Block>
class engine {
public:
    engine(const Block& block, const binding& bound) : block_(block), layer_(lower<Machine>(block_), bound) {}
    engine(const engine&) = delete;
    engine& operator=(const engine&) = delete;
    ~engine() = default;
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        return layer_.workspace_bytes(tokens, workers);
    }
    void run(const call_arguments& call) const { layer_.run(call); }

private:
    Block block_;  // ops read its policies
    layer_of_plan<Machine> layer_;
};

}  // namespace cpu_detail

TIFFIN_END

// An explicit instantiation of all of a machine's engine, in namespace cpu_detail: with `Extern` as `extern`, its
// declaration.
#define TIFFIN_ENGINE_ROLE_(Extern, Machine, role) Extern template struct functions_of<Machine, detail::role>;
#define TIFFIN_ENGINE_OF_(Extern, Machine)                    \
    Extern template class layer_of_plan<Machine>;             \
    TIFFIN_ENGINE_ROLE_(Extern, Machine, node_role::formula)  \
    TIFFIN_ENGINE_ROLE_(Extern, Machine, node_role::chain)    \
    TIFFIN_ENGINE_ROLE_(Extern, Machine, node_role::row_norm) \
    TIFFIN_ENGINE_ROLE_(Extern, Machine, node_role::row_dot)  \
    TIFFIN_ENGINE_ROLE_(Extern, Machine, node_role::routed)   \
    TIFFIN_ENGINE_ROLE_(Extern, Machine, node_role::row)      \
    TIFFIN_ENGINE_ROLE_(Extern, Machine, node_role::mixture)  \
    TIFFIN_ENGINE_ROLE_(Extern, Machine, node_role::residual) \
    TIFFIN_ENGINE_ROLE_(Extern, Machine, node_role::delay)    \
    TIFFIN_ENGINE_ROLE_(Extern, Machine, node_role::repeated)
