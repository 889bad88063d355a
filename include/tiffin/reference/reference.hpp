// The executable specification: every formula evaluated as it is written, in double.
#pragma once

#include <tiffin/call/layer.hpp>
#include <tiffin/plan/policies.hpp>
#include <tiffin/reference/row.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

TIFFIN_BEGIN

namespace reference_detail {

// A whole layer: y = block(x), each token by itself.
template <class Scalar>
class layer_of_plan {
public:
    layer_of_plan(plan_node plan, binding bound);
    [[nodiscard]] std::size_t workspace_bytes(std::size_t workers) const noexcept;
    void run(const call_arguments& call) const;
    // The scratch values that evaluate_token() needs.
    [[nodiscard]] std::size_t scratch() const noexcept { return scratch_; }
    void evaluate_token(token_arguments<Scalar> token, const Scalar* x, Scalar* y, Scalar* scratch) const;

private:
    [[nodiscard]] bound_source source() const noexcept { return {plan_, tree_, needs_.d_model}; }
    [[nodiscard]] std::size_t numbers_per_worker() const noexcept;
    [[nodiscard]] std::size_t carried() const noexcept { return needs_.delay > 0 ? needs_.outputs : 0; }
    void one_token(const call_arguments& call, std::size_t t, Scalar* memory) const;

    plan_node plan_;
    bound_node tree_;
    call_needs needs_;
    std::size_t scratch_;
};

template <class Scalar>
layer_of_plan<Scalar>::layer_of_plan(plan_node plan, binding bound)
    : plan_(std::move(plan)),
      tree_(std::move(bound.tree)),
      needs_(std::move(bound.needs)),
      scratch_(scratch_numbers(source(), needs_.d_model)) {}

template <class Scalar>
std::size_t layer_of_plan<Scalar>::workspace_bytes(std::size_t workers) const noexcept {
    return workers * numbers_per_worker() * sizeof(Scalar);
}

template <class Scalar>
void layer_of_plan<Scalar>::run(const call_arguments& call) const {
    const std::size_t workers = std::min(call.workers, call.tokens);
    const auto work = [&](std::size_t worker) {
        auto* const x = reinterpret_cast<Scalar*>(call.workspace) + worker * numbers_per_worker();
        for (std::size_t t = worker; t < call.tokens; t += workers) one_token(call, t, x);
    };
    call.execute(workers, task_ref(work));
}

template <class Scalar>
void layer_of_plan<Scalar>::evaluate_token(token_arguments<Scalar> token, const Scalar* x, Scalar* y,
                                           Scalar* scratch) const {
    token.d_model = needs_.d_model;
    row_evaluator<Scalar>(token).evaluate(source(), x, y, scratch);
}

template <class Scalar>
std::size_t layer_of_plan<Scalar>::numbers_per_worker() const noexcept {
    return 2 * needs_.d_model + needs_.outputs + needs_.given_width + 2 * needs_.choices + carried() +
           scratch_;
}

template <class Scalar>
void layer_of_plan<Scalar>::one_token(const call_arguments& call, std::size_t t, Scalar* memory) const {
    const std::size_t d = needs_.d_model, choices = needs_.choices;
    Scalar* const x = memory;
    Scalar* const y = x + d;
    Scalar* const residual = y + needs_.outputs;
    Scalar* const given = residual + d;
    Scalar* const routes = given + needs_.given_width;
    token_arguments<Scalar> token{call.token_id(t)};
    const auto widen = [&](const matrix_view<const float>& from, Scalar* to) -> const Scalar* {
        if (from.data == nullptr) return nullptr;
        for (std::size_t i = 0; i < from.cols; ++i) to[i] = Scalar(from.row(call.row(t))[i]);
        return to;
    };
    widen(call.x, x);
    token.residual = widen(call.residual, residual);
    token.per_layer_input = widen(call.per_layer_input, given);
    token.gathered = call.gathered;
    token.number = call.first + call.row(t);
    Scalar* const passed_on = routes + 2 * choices;
    if (call.carried.data != nullptr)
        token.carried = std::copy_n(call.carried.row(call.row(t)), carried(), passed_on) - carried();
    token.carried_is_due = call.carried_is_due;
    if (call.routes != nullptr) token.routes = reinterpret_cast<choice<Scalar>*>(routes);
    evaluate_token(token, x, y, passed_on + carried());
    for (std::size_t i = 0; token.carried != nullptr && i < carried(); ++i)
        call.carried.row(call.row(t))[i] = static_cast<float>(token.carried[i]);
    for (std::size_t i = 0; i < needs_.outputs; ++i) call.to.row(t)[i] = static_cast<float>(y[i]);
    if (call.routes != nullptr)
        for (std::size_t i = 0; i < choices; ++i)
            call.routes[t * choices + i] = {token.routes[i].expert,
                                            static_cast<float>(token.routes[i].weight)};
}

}  // namespace reference_detail

// Computes each token by itself in Scalar: sums k ascending, one accumulator per output. Weights are
// widened exactly from whatever format they were given in; nothing is packed.
//
// Numerics: those of Scalar; y is rounded to f32 once, when it is stored.
// Cost: one thread per token; no packing, no copies, any number format read in place.
template <class Scalar = double>
struct reference {
    using machine = scalar_numbers<Scalar>;
    static constexpr number_formats formats() noexcept { return {{}, {}, {}, true, in_place::everything}; }

    template <block_policy Block>
    class engine {
    public:
        engine(const Block& block, binding bound)
            : block_(block), layer_(lower<machine>(block_), std::move(bound)) {}
        engine(const engine&) = delete;
        engine& operator=(const engine&) = delete;
        ~engine() = default;

        [[nodiscard]] std::size_t workspace_bytes(std::size_t, std::size_t workers) const noexcept {
            return layer_.workspace_bytes(workers);
        }
        void run(const call_arguments& call) const { layer_.run(call); }

        // The scratch values that evaluate_token() needs.
        [[nodiscard]] std::size_t scratch() const noexcept { return layer_.scratch(); }
        // One token without rounding: x (d_model), y (outputs).
        void evaluate_token(const token_arguments<Scalar>& token, const Scalar* x, Scalar* y,
                            Scalar* scratch) const {
            layer_.evaluate_token(token, x, y, scratch);
        }

    private:
        Block block_;  // the plan points into it
        reference_detail::layer_of_plan<Scalar> layer_;
    };
};

// With the compiled library its engine is linked, not instantiated.
#if defined(TIFFIN_COMPILED_ENGINES)
namespace reference_detail {
TIFFIN_COMPILED_OTHER_ENGINE_ template class layer_of_plan<double>;
}  // namespace reference_detail
namespace plan_detail {
TIFFIN_COMPILED_OTHER_ENGINE_ template void add_library_policies<scalar_numbers<double>>(
    std::vector<policy_line>&);
}  // namespace plan_detail
#endif

TIFFIN_END
