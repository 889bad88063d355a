// A layer whose block and backend are known only at run time.
#pragma once

#include <tiffin/call/layer.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// Any layer<Block, Backend> behind one type: y = block(x, inputs).
// Shapes, numerics, errors, threads: those of the layer held (see layer). A call without a layer: errc::empty.
// Precondition of all members but calls, construction and assignment: it holds a layer.
// Cost: one virtual call.
class any_layer {
public:
    any_layer() = default;
    // Holds a layer; `keep` owns what must live as long, such as the file that holds its tensors.
    template <class Block, class Backend>
    explicit any_layer(layer<Block, Backend> held, std::shared_ptr<const void> keep = nullptr)
        : held_(std::make_shared<const holder<layer_type<layer<Block, Backend>>>>(std::move(held))),
          keep_(std::move(keep)) {}

    [[nodiscard]] std::size_t d_model() const noexcept { return held_->needs().d_model; }
    // The width of y: d_model, but for a block with a width of its own (linear).
    [[nodiscard]] std::size_t outputs() const noexcept { return held_->needs().outputs; }
    [[nodiscard]] std::size_t d_ff() const noexcept { return held_->needs().d_ff; }
    // Experts per token of the outermost part that routes; 0 without routing.
    [[nodiscard]] std::size_t choices() const noexcept { return held_->needs().choices; }
    // The inputs that calls need.
    [[nodiscard]] const call_needs& needs() const noexcept { return held_->needs(); }
    // The tensors that the layer reads in place, in the memory given to prepare(); all others may be freed.
    [[nodiscard]] const std::vector<std::string>& reads_in_place() const noexcept {
        return held_->needs().in_place;
    }
    // Bytes of weights in the layer's own memory.
    [[nodiscard]] std::size_t held_bytes() const noexcept { return held_->needs().held_bytes; }
    // Whether calls need token ids.
    [[nodiscard]] bool reads_token_ids() const noexcept { return !held_->needs().tables.empty(); }
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        return held_->workspace_bytes(tokens, workers);
    }
    [[nodiscard]] workspace make_workspace(std::size_t tokens, std::size_t workers) const {
        return workspace(workspace_bytes(tokens, workers));
    }

    template <class X, class Y>
    status try_call(const X& x, const token_inputs& inputs, Y&& y, std::span<std::byte> memory,
                    executor_ref execute = serially) const {
        if (!held_) return failure(errc::empty, "layer", "holds nothing: it was moved from, or made empty");
        auto in = detail::as_rows<const float>(x, d_model(), "x");
        if (!in) return in.failure();
        auto out = detail::as_rows<float>(y, outputs(), "y", outputs() == d_model() ? "d_model" : "outputs");
        if (!out) return out.failure();
        return held_->call(*in, inputs, *out, memory, execute);
    }
    template <class X, detail::id_range Ids, class Y>
    status try_call(const X& x, const Ids& ids, Y&& y, std::span<std::byte> memory,
                    executor_ref execute = serially) const {
        return try_call(x, token_inputs{.token_ids = ids}, y, memory, execute);
    }
#if TIFFIN_EXCEPTIONS
    template <class X, class Y>
    void operator()(const X& x, const token_inputs& inputs, Y&& y, std::span<std::byte> memory,
                    executor_ref execute = serially) const {
        try_call(x, inputs, y, memory, execute).or_throw();
    }
    template <class X, detail::id_range Ids, class Y>
    void operator()(const X& x, const Ids& ids, Y&& y, std::span<std::byte> memory,
                    executor_ref execute = serially) const {
        try_call(x, token_inputs{.token_ids = ids}, y, memory, execute).or_throw();
    }
#endif

private:
    struct erased {
        virtual ~erased() = default;
        [[nodiscard]] virtual const call_needs& needs() const noexcept = 0;
        [[nodiscard]] virtual std::size_t workspace_bytes(std::size_t, std::size_t) const noexcept = 0;
        virtual status call(matrix_view<const float>, const token_inputs&, matrix_view<float>,
                            std::span<std::byte>, executor_ref) const = 0;
    };
    // One holder type for all layers that differ only in their engine.
    template <class Layer>
    using layer_type = std::conditional_t<std::derived_from<Layer, detail::layer_of_any_block>,
                                          detail::layer_of_any_block, Layer>;
    template <class Layer>
    struct holder final : erased {
        explicit holder(Layer&& l) : held(std::move(l)) {}
        [[nodiscard]] const call_needs& needs() const noexcept override { return held.needs(); }
        [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens,
                                                  std::size_t workers) const noexcept override {
            return held.workspace_bytes(tokens, workers);
        }
        status call(matrix_view<const float> x, const token_inputs& inputs, matrix_view<float> y,
                    std::span<std::byte> memory, executor_ref execute) const override {
            return held.try_call(x, inputs, y, memory, execute);
        }
        Layer held;
    };

    std::shared_ptr<const erased> held_;
    std::shared_ptr<const void> keep_;
};

TIFFIN_END
