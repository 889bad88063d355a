// prepare_training(): a trainable layer from a composition and its weights.
#pragma once

#include <tiffin/bind/bind_weights.hpp>
#include <tiffin/call/fitting_tokens.hpp>
#include <tiffin/executor/executor.hpp>
#include <tiffin/executor/hardware_threads.hpp>
#include <tiffin/train/trainable_layer.hpp>
#include <tiffin/train/training_rows.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <utility>

TIFFIN_BEGIN

// How a backend trains. A specialisation has `type`, the machine (see exact_machine.hpp), and `product`, its matrix
// products.
template <class Backend>
struct training_machine;

template <class Backend>
concept trains = requires {
    typename training_machine<Backend>::type;
};
template <trains Backend>
using training_number = typename training_machine<Backend>::type::number;

// The number type of training on a backend: compose<training<simd<>>::machine>(text, policies). Every policy of the
// list must have a derivative, also one that the text does not name.
template <trains Backend>
struct training {
    using machine = training_numbers<typename training_machine<Backend>::type>;
};

namespace train_detail {

// Bounds the options, so that slots and byte counts do not overflow.
template <class Number>
status check_counts(const training_options<Number>& options) {
    constexpr std::size_t most = std::numeric_limits<std::int32_t>::max();
    for (const auto& [name, count] :
         {std::pair{"tokens", options.tokens}, std::pair{"table_rows", options.table_rows}})
        if (count > most) return failure(errc::option, name, "are ", count, "; at most ", most);
    return {};
}

inline status take_memory(aligned_buffer& to, std::size_t bytes, const std::string& tensor,
                          const char* what) {
    to = aligned_buffer(bytes, std::nothrow);
    if (to.size() == bytes) return {};
    return failure(errc::workspace, tensor, "has no memory for the ", bytes, " bytes of ", what);
}

template <class Number>
status give_gradients(const training_options<Number>& options, owned_parameters<Number>& all) {
    for (const auto& e : options.into.entries()) {
        const auto at = std::find_if(all.begin(), all.end(), [&](const auto& p) { return p.name == e.name; });
        if (at == all.end() || is_integer(at->given.type) || at->kind == tensor_kind::selection_bias)
            return failure(errc::unused_tensor, e.name, "is given memory for a gradient, and has none");
        if (has_rows_of_ids(at->kind))
            return failure(errc::option, e.name, "has a gradient of rows of ids, which the layer holds");
        if (!(at->given.shape == e.shape))
            return failure(errc::shape, e.name, "has shape ", to_string(at->given.shape), "; its gradient ",
                           to_string(e.shape));
        at->gradient = e.data;
    }
    const std::size_t rows = options.table_rows != 0 ? options.table_rows : options.tokens;
    for (auto& p : all) {
        if (is_integer(p.given.type) || p.kind == tensor_kind::selection_bias) continue;
        if (options.trains && !options.trains(p.name)) {
            p.gradient = nullptr;
            continue;
        }
        if (p.gradient != nullptr) continue;
        if (has_rows_of_ids(p.kind)) p.slot_count = rows;
        auto& memory = all.memory.emplace_back();
        if (status s = take_memory(memory, p.gradient_numbers() * sizeof(Number), p.name, "its gradient"); !s)
            return s;
        p.read.resize(p.experts() * p.slot_count);
        p.gradient = memory.template as<Number>();
        std::fill_n(p.gradient, p.gradient_numbers(), Number(0));
    }
    return {};
}

// The number of experts of the router whose routes are recorded.
inline std::size_t recorded_experts(const bound_node& node) {
    if (node.recorded) {
        for (const tensor_view& t : node.tensors)
            if (t.data != nullptr && t.shape.rank() > 1 && !is_integer(t.type)) return t.shape[0];
        return node.parts.size();
    }
    for (const bound_node& part : node.parts)
        if (const std::size_t n = recorded_experts(part); n != 0) return n;
    return 0;
}

// Makes the layer of a plan. `held`: the block that the plan points into.
template <trains Backend>
result<trainable_layer<training_number<Backend>>> prepare_plan(
    const plan_node& plan, std::shared_ptr<const void> held, const weights& given,
    const training_options<training_number<Backend>>& options) {
    using machine = typename training_machine<Backend>::type;
    using product = typename training_machine<Backend>::product;
    using number = typename machine::number;
    using parameter_type = parameter<number>;
    if (const status s = check_counts(options); !s) return s.failure();
    preparation how;
    how.formats = {{}, {}, {}, true, in_place::everything};
    auto bound = detail::bind_plan(plan, given, how);
    if (!bound) return bound.failure();
    for (const gathered_table& table : bound->needs.gathered) {
        if (table.choices > 0)
            return failure(errc::option, table.name,
                           "is to come with each call; rows that a router chooses learn in memory");
        if (table.type != parameter_type::own_type() || table.scales.any())
            return failure(errc::dtype, table.name, "is gathered as ", name_of(table.type),
                           (table.scales.any() ? " with scales" : ""),
                           "; a layer learns from gathered rows of ", name_of(parameter_type::own_type()));
    }
    auto all = std::make_unique<owned_parameters<number>>();
    for (const weights::entry& e : given.entries()) {
        const bool is_read = e.tensor.type == dtype::f32 || e.tensor.type == parameter_type::own_type();
        if (e.tensor.scales.any() || (!is_integer(e.tensor.type) && !is_read))
            return failure(errc::dtype, e.name, "has dtype ", name_of(e.tensor.type),
                           (e.tensor.scales.any() ? " with scales" : ""), "; a layer learns in ",
                           name_of(parameter_type::own_type()));
        parameter_type& p = all->emplace_back();
        p.name = e.name;
        p.given = e.tensor;
        if (!p.is_copied()) continue;
        if (const status s = take_memory(p.widened, p.given.shape.elements() * sizeof(number), p.name,
                                         "its widened numbers");
            !s)
            return s.failure();
    }
    training_preparation<number> parts{*all,
                                       all->absent,
                                       {&product::bytes, &product::run},
                                       bound->needs.residual ? bound->needs.d_model : 0,
                                       bound->needs.given_width};
    const call_needs& needs = bound->needs;
    auto rows =
        make_trained_rows<machine>(plan, bound->tree, {needs.outputs, needs.d_model, needs.d_model}, parts);
    if (const status s = give_gradients(options, *all); !s) return s.failure();
    std::size_t workers = options.workers != 0 ? options.workers : detail::hardware_threads();
    workers = std::clamp(workers, std::size_t{1}, detail::most_workers);
    const std::size_t experts = recorded_experts(bound->tree);
    trainable_layer<number> made(bound->needs, std::move(held), std::move(all), std::move(rows), options,
                                 experts, workers);
    if (const status s = made.reserve(options); !s) return s.failure();
    return made;
}

}  // namespace train_detail

// Makes a trainable layer from a block and its weights, on a backend that trains: reference<> (double), simd<> (f32).
//
// Shapes: the tensors of tensors_needed(block, sizes) by name.
// Lifetime: the tensors must outlive the layer, which reads them in every call.
// Numerics: simd<> trains tensors in F32; reference<> reads F32 and F64.
// Errors: those of prepare(); errc::dtype for a tensor in another format; errc::unused_tensor, shape, option for
//   gradient memory that does not fit; errc::workspace where memory for the tokens or rows cannot be allocated.
// Cost: gradients, activations and a workspace are allocated here; see trainable_layer::kept_bytes.
template <class Block, trains Backend>
result<trainable_layer<training_number<Backend>>> try_prepare_training(
    const Block& block, const weights& given, const Backend& = {},
    const training_options<training_number<Backend>>& options = {}) {
    static_assert(block_policy<Block>,
                  "tiffin: prepare_training<Block>(weights, backend): Block is not a block");
    const auto held = std::make_shared<const Block>(block);  // the plan points into it
    return train_detail::prepare_plan<Backend>(lower<typename training<Backend>::machine>(*held), held, given,
                                               options);
}

template <class Block, trains Backend>
result<trainable_layer<training_number<Backend>>> try_prepare_training(
    const weights& given, const Backend& backend = {},
    const training_options<training_number<Backend>>& options = {}) {
    return try_prepare_training(Block{}, given, backend, options);
}

#if TIFFIN_EXCEPTIONS
template <class Block, trains Backend>
trainable_layer<training_number<Backend>> prepare_training(
    const Block& block, const weights& given, const Backend& backend = {},
    const training_options<training_number<Backend>>& options = {}) {
    return try_prepare_training(block, given, backend, options).or_throw();
}
template <class Block, trains Backend>
trainable_layer<training_number<Backend>> prepare_training(
    const weights& given, const Backend& backend = {},
    const training_options<training_number<Backend>>& options = {}) {
    return try_prepare_training(Block{}, given, backend, options).or_throw();
}
#endif

TIFFIN_END
