// The C interface: layers that learn (tiffin/tiffin_training.h).
#include <tiffin/tiffin_training.h>

#include <tiffin/io/training_layer.hpp>
#include <tiffin/train/reference.hpp>
#include <tiffin/train/simd.hpp>

#include "c_common.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

struct tiffin_training {
    template <class Number>
    struct of {
        tiffin::trainable_layer<Number> layer;
        std::vector<tiffin::tensor_gradient<Number>> gradients;
    };
    std::variant<of<float>, of<double>> held;
    std::vector<tiffin::c_detail::rows_tensor> in_files{};
    tiffin::c_detail::rows_of_call rows{}, next_rows{};  // of the last forward, which backward reads again
    std::size_t tokens = 0;                              // of the last forward

    [[nodiscard]] const tiffin::call_needs& needs() const {
        return std::visit(
            [](const auto& h) -> const auto& { return h.layer.needs(); }, held);
    }
};

namespace {

using namespace tiffin::c_detail;
using tiffin::errc;
using tiffin::failure;
using tiffin::result;
using tiffin::trainable_layer;

template <class Backend>
tiffin_error* make(const tiffin::io::described_layer& given, const std::vector<rows_tensor>& in_files,
                   const tiffin_training_options& options, const Backend& backend,
                   tiffin_training** training) {
    using number = tiffin::training_number<Backend>;
    tiffin::training_options<number> how;
    if (options.tokens != 0) how.tokens = options.tokens;
    how.table_rows = options.table_rows;
    how.workers = options.workers;
    how.keeps = options.recompute != 0 ? tiffin::activations::recomputed : tiffin::activations::kept;
    std::vector<std::string> frozen;
    for (std::size_t i = 0; i < options.frozen_count; ++i) {
        if (options.frozen == nullptr || options.frozen[i] == nullptr) return error_of(is_null("frozen"));
        frozen.emplace_back(options.frozen[i]);
        if (given.tensors.find(frozen.back()) == nullptr)
            return error_of(
                because(failure(errc::missing_tensor, frozen.back(), "is frozen, and not given")));
    }
    if (!frozen.empty())
        how.trains = [&](std::string_view name) {
            return std::find(frozen.begin(), frozen.end(), name) == frozen.end();
        };
    auto made = tiffin::io::load_training_layer(given, backend, how);
    if (!made) return error_of(because(made.failure()));
    if (const tiffin::status s = check_read_by_ids(made->needs()); !s) return error_of(because(s.failure()));
    auto gradients = made->gradients();
    *training =
        new tiffin_training{tiffin_training::of<number>{*std::move(made), std::move(gradients)}, in_files};
    return nullptr;
}

// Dense rows of a call; empty where there are none.
template <class Number, class Pointer>
tiffin::matrix_view<Number> rows(Pointer* data, std::size_t tokens, std::size_t width) {
    if (data == nullptr) return {};
    return {static_cast<Number*>(data), tokens, width};
}

template <class Number>
tiffin::status forward(tiffin_training::of<Number>& to, const taken_struct<tiffin_training_call>& known,
                       std::span<const tiffin::gathered_rows> gathered) {
    const tiffin_training_call& c = known.given;
    const tiffin::call_needs& needs = to.layer.needs();
    tiffin::training_inputs<Number> in;
    if (c.token_ids != nullptr) in.token_ids = {c.token_ids, c.tokens};
    in.residual = rows<const Number>(c.residual, c.tokens, needs.d_model);
    in.per_layer_input = rows<const Number>(c.per_layer_input, c.tokens, needs.given_width);
    if (c.routes != nullptr)
        in.routes = {reinterpret_cast<tiffin::choice<float>*>(c.routes), c.tokens * needs.choices};
    in.gathered = gathered;
    const callers_executor execute(known);
    return to.layer.try_forward(
        tiffin::matrix_view<const Number>(static_cast<const Number*>(c.x), c.tokens, needs.d_model), in,
        tiffin::matrix_view<Number>(static_cast<Number*>(c.y), c.tokens, needs.outputs), execute);
}

template <class Number>
tiffin::status backward(tiffin_training::of<Number>& to, const taken_struct<tiffin_backward_call>& known,
                        std::size_t tokens) {
    const tiffin_backward_call& c = known.given;
    const tiffin::call_needs& needs = to.layer.needs();
    tiffin::input_gradients<Number> out;
    out.x = rows<Number>(c.dx, tokens, needs.d_model);
    out.residual = rows<Number>(c.d_residual, tokens, needs.d_model);
    out.per_layer_input = rows<Number>(c.d_per_layer_input, tokens, needs.given_width);
    const callers_executor execute(known);
    return to.layer.try_backward(
        tiffin::matrix_view<const Number>(static_cast<const Number*>(c.dy), tokens, needs.outputs), out,
        execute);
}

}  // namespace

tiffin_error* tiffin_training_make(const tiffin_block_option* block, size_t block_count,
                                   const tiffin_tensor* tensors, size_t tensor_count,
                                   const tiffin_training_options* options, tiffin_training** training) {
    return guarded([&]() -> tiffin_error* {
        if (training == nullptr) return error_of(is_null("training"));
        tiffin_training_options known{};
        known.struct_size = sizeof known;
        if (options != nullptr) {
            if (const auto wrong = unknown_size(options, "options")) return error_of(*wrong);
            known = *options;
        }
        tiffin::io::described_layer given;
        std::vector<rows_tensor> in_files;
        if (tiffin_error* const wrong = describe(block, block_count, tensors, tensor_count, given, in_files))
            return wrong;
        switch (known.numbers) {
            case TIFFIN_DTYPE_AS_STORED:
            case TIFFIN_DTYPE_F32: return make(given, in_files, known, tiffin::simd<>{}, training);
            case TIFFIN_DTYPE_BF16:
                return make(given, in_files, known, tiffin::simd<tiffin::bf16>{}, training);
            case TIFFIN_DTYPE_F64: return make(given, in_files, known, tiffin::reference<>{}, training);
            default:
                return error_of(because(failure(errc::option, "numbers", "is ", known.numbers,
                                                "; a layer learns in F32, BF16 or F64")));
        }
    });
}
void tiffin_training_free(tiffin_training* training) {
    delete training;
}

tiffin_error* tiffin_training_needs(const tiffin_training* training, tiffin_needs* needs) {
    return guarded([&]() -> tiffin_error* {
        if (training == nullptr) return error_of(is_null("training"));
        if (const auto wrong = unknown_size(needs, "needs")) return error_of(*wrong);
        const tiffin::call_needs& held = training->needs();
        *needs = {sizeof(tiffin_needs), held.d_model,
                  held.outputs,         held.choices,
                  held.given_width,     held.tables.empty() && held.gathered.empty() ? 0 : 1,
                  held.residual ? 1 : 0};
        return nullptr;
    });
}

tiffin_error* tiffin_training_forward(tiffin_training* training, const tiffin_training_call* call) {
    return guarded([&]() -> tiffin_error* {
        if (training == nullptr || call == nullptr)
            return error_of(is_null(training == nullptr ? "training" : "call"));
        const auto known = take(*call, "call");
        if (!known) return error_of({TIFFIN_ERRC_ARGUMENT, known.failure()});
        if (call->tokens > 0 && (call->x == nullptr || call->y == nullptr))
            return error_of(is_null(call->x == nullptr ? "x" : "y"));
        const std::size_t ids = call->token_ids != nullptr ? call->tokens : 0;
        tiffin::c_detail::rows_of_call& rows = training->next_rows;
        tiffin::status done = rows.read(training->in_files, {call->token_ids, ids});
        if (done)
            done = std::visit([&](auto& held) { return forward(held, *known, rows.gathered()); },
                              training->held);
        if (done) std::swap(rows, training->rows);
        if (!done) return error_of(because(done.failure()));
        training->tokens = call->tokens;
        return nullptr;
    });
}
tiffin_error* tiffin_training_backward(tiffin_training* training, const tiffin_backward_call* call) {
    return guarded([&]() -> tiffin_error* {
        if (training == nullptr || call == nullptr)
            return error_of(is_null(training == nullptr ? "training" : "call"));
        const auto known = take(*call, "call");
        if (!known) return error_of({TIFFIN_ERRC_ARGUMENT, known.failure()});
        if (training->tokens > 0 && call->dy == nullptr) return error_of(is_null("dy"));
        const tiffin::status done =
            std::visit([&](auto& held) { return backward(held, *known, training->tokens); }, training->held);
        return done ? nullptr : error_of(because(done.failure()));
    });
}

int tiffin_training_gradient(const tiffin_training* training, size_t i, tiffin_gradient* gradient) {
    if (training == nullptr || gradient == nullptr) return 0;
    return std::visit(
        [&](const auto& held) {
            if (i >= held.gradients.size()) return 0;
            const auto& g = held.gradients[i];
            *gradient = {g.name.data(), g.shape.rank(), {}, g.data, 0, nullptr};
            for (std::size_t axis = 0; axis < g.shape.rank(); ++axis) gradient->shape[axis] = g.shape[axis];
            if (g.rows != nullptr) {
                gradient->data = g.rows->gradient;
                gradient->slots = g.rows->slot_count;
                gradient->read = g.rows->read.data();
            }
            return 1;
        },
        training->held);
}
size_t tiffin_training_ids(const tiffin_training* training, int32_t* ids, uint32_t* slots) {
    if (training == nullptr) return 0;
    return std::visit(
        [&](const auto& held) {
            const auto& touched = held.layer.ids();
            for (std::size_t i = 0; i < touched.size(); ++i) {
                if (ids != nullptr) ids[i] = touched.id(i);
                if (slots != nullptr) slots[i] = static_cast<std::uint32_t>(touched.slot(i));
            }
            return touched.size();
        },
        training->held);
}
void tiffin_training_clear(tiffin_training* training) {
    if (training != nullptr) std::visit([](auto& held) { held.layer.clear_gradients(); }, training->held);
}
