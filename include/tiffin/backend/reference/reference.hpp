// The executable specification: every formula evaluated as it is written, in double.
#pragma once

#include <tiffin/backend/backend.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

TIFFIN_BEGIN

namespace detail {

// The place (token, feature) of a source in the reference backend.
template <class Scalar>
struct reference_place {
    std::span<const tensor_view> tensors;
    const Scalar* x;
    std::size_t inputs;
    std::int32_t token_id;
    std::size_t feature;

    template <std::size_t Slot, class Tensor>
    [[nodiscard]] Scalar value() const {
        const tensor_view& t = tensors[Slot];
        const auto number = [&](std::size_t i) { return Scalar(load_as_f32(t.data, t.type, i)); };
        if constexpr (Tensor::kind == tensor_kind::projection) {
            Scalar total(0);
            for (std::size_t k = 0; k < inputs; ++k) total = total + x[k] * number(feature * inputs + k);
            return total;
        } else if constexpr (Tensor::kind == tensor_kind::table) {
            return number(static_cast<std::size_t>(token_id) * t.shape[1] + feature);
        } else {
            return t.data ? number(feature) : Scalar(0);
        }
    }
};

}  // namespace detail

// Scalar loops over a wide scalar; slow, and what every other backend is held against.
// Numerics: everything in Scalar, rounded to f32 once, when y is stored.
// Cost: one thread a token; no packing, no copies, any number format read in place.
template <class Scalar = double>
struct reference {
    template <block_policy Block>
    class engine {
    public:
        engine(const Block& block, binding bound) : block_(block), bound_(std::move(bound)) {}

        [[nodiscard]] std::size_t workspace_bytes(std::size_t, std::size_t workers) const noexcept {
            return workers * numbers_per_worker() * sizeof(Scalar);
        }

        void run(const call_arguments& call) const {
            const std::size_t workers = std::min(call.workers, call.x.rows);
            const auto work = [&](std::size_t worker) {
                Scalar* const x = reinterpret_cast<Scalar*>(call.workspace) + worker * numbers_per_worker();
                Scalar* const y = x + bound_.d_model;
                for (std::size_t t = worker; t < call.x.rows; t += workers) {
                    for (std::size_t i = 0; i < bound_.d_model; ++i) x[i] = Scalar(call.x.row(t)[i]);
                    evaluate_token(x, call.token_ids ? call.token_ids[t] : 0, y, y + bound_.d_model);
                    for (std::size_t i = 0; i < bound_.d_model; ++i)
                        call.y.row(t)[i] = static_cast<float>(y[i]);
                }
            };
            call.execute(workers, task_ref(work));
        }

        // One token without rounding: x, y (d_model), hidden (d_ff).
        void evaluate_token(const Scalar* x, std::int32_t token_id, Scalar* y, Scalar* hidden) const {
            fill(block_.hidden, hidden_part<Block>(bound_), x, bound_.d_model, token_id, hidden, bound_.d_ff);
            fill(block_.output.source, output_part<Block>(bound_), hidden, bound_.d_ff, token_id, y,
                 bound_.d_model);
            if constexpr (has_norm<Block>) normalise(y);
        }

    private:
        [[nodiscard]] std::size_t numbers_per_worker() const noexcept {
            return 2 * bound_.d_model + bound_.d_ff;
        }
        template <class Source>
        static void fill(const Source& source, std::span<const tensor_view> tensors, const Scalar* x,
                         std::size_t inputs, std::int32_t token_id, Scalar* out, std::size_t width) {
            for (std::size_t j = 0; j < width; ++j)
                out[j] = evaluate(source, detail::reference_place<Scalar>{tensors, x, inputs, token_id, j});
        }
        void normalise(Scalar* y) const {
            const auto& norm = block_.output.norm;
            Scalar squares(0);
            for (std::size_t j = 0; j < bound_.d_model; ++j) squares = squares + y[j] * y[j];
            const Scalar scale = norm.scale(squares, Scalar(static_cast<float>(bound_.d_model)));
            for (std::size_t j = 0; j < bound_.d_model; ++j) {
                Scalar weight(1);
                if constexpr (output_norm<Block>::weighted) {
                    const tensor_view w = norm_part<Block>(bound_);
                    weight = Scalar(load_as_f32(w.data, w.type, j));
                }
                y[j] = norm(y[j], scale, weight);
            }
        }

        [[no_unique_address]] Block block_;
        binding bound_;
    };
};

TIFFIN_END
