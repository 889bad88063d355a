// Layers on the device that are called with host memory.
#pragma once

#include <tiffin/cuda/backend.hpp>
#include <tiffin/executor/executor.hpp>
#include <tiffin/format/concepts.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// The backend `cuda` with the interface of the other backends: x, y and all inputs are in host memory, and a call
// returns when y is complete.
// Numerics: x is rounded to Format, y widened from it. Errors: those of host and device calls.
// Cost: each call allocates device memory for its inputs and for y, and copies them: for tests, tools and comparisons,
//   not for inference.
template <codec Format = f32>
struct cuda_from_host {
    cuda<Format> device{};

    template <class Block>
    result<layer<Block, cuda_from_host>> prepare_layer(const Block& block, const weights& given,
                                                       const prepare_options& options) const {
        prepare_options all = options;
        all.tokens = 0;
        auto made = device.prepare_layer(block, given, all);
        if (!made) return made.failure();
        return layer<Block, cuda_from_host>(*std::move(made), device.stream);
    }
};

namespace cuda_detail {

// Device copies of a call's host memory.
class call_copies {
public:
    // Values rounded to Format.
    template <codec Format>
    matrix_view<const typename Format::storage> rows(const matrix_view<const float>& from) {
        using storage = typename Format::storage;
        if (from.data == nullptr || from.rows == 0) return {};
        std::vector<storage> stored(from.rows * from.cols);
        for (std::size_t i = 0; i < stored.size(); ++i)
            Format::encode(from.row(i / from.cols) + i % from.cols, stored[i]);
        return {copy(stored.data(), stored.size()), from.rows, from.cols};
    }
    template <class T>
    T* copy(const T* from, std::size_t count) {
        T* const to = room<T>(count);
        if (to != nullptr) put(from, to, count);
        return to;
    }
    template <class T>
    void put(const T* from, T* to, std::size_t count) {
        if (outcome_) note(checked(cudaMemcpy(to, from, count * sizeof(T), cudaMemcpyHostToDevice), "call"));
    }
    template <class T>
    T* room(std::size_t count) {
        if (!outcome_ || count == 0) return nullptr;
        auto memory = device_memory::make(count * sizeof(T), "call");
        if (!memory) {
            note(memory.failure());
            return nullptr;
        }
        held_.push_back(*std::move(memory));
        return held_.back().template as<T>();
    }
    template <class T>
    void fetch(const T* from, T* to, std::size_t count) {
        if (outcome_ && count > 0)
            note(checked(cudaMemcpy(to, from, count * sizeof(T), cudaMemcpyDeviceToHost), "call"));
    }
    [[nodiscard]] const status& outcome() const noexcept { return outcome_; }
    void note(status s) {
        if (outcome_) static_cast<void>(outcome_ = std::move(s));
    }

private:
    status outcome_;
    std::vector<device_memory> held_;
};

}  // namespace cuda_detail

template <class Block, codec Format>
class layer<Block, cuda_from_host<Format>> {
public:
    layer(layer<Block, cuda<Format>> held, cudaStream_t stream) : held_(std::move(held)), stream_(stream) {}

    [[nodiscard]] std::size_t d_model() const noexcept { return held_.d_model(); }
    [[nodiscard]] std::size_t d_ff() const noexcept { return held_.d_ff(); }
    [[nodiscard]] std::size_t choices() const noexcept { return held_.choices(); }
    [[nodiscard]] const call_needs& needs() const noexcept { return held_.needs(); }
    // Host memory: none. A call allocates its device memory itself.
    [[nodiscard]] std::size_t workspace_bytes(std::size_t, std::size_t) const noexcept { return 0; }

    template <class X, class Y>
    status try_call(const X& x, const token_inputs& inputs, Y&& y, std::span<std::byte> = {},
                    executor_ref = serial_) const {
        auto in = detail::as_rows<const float>(x, d_model(), "x");
        if (!in) return in.failure();
        auto out = detail::as_rows<float>(y, d_model(), "y");
        if (!out) return out.failure();
        if (status s = detail::check_call(needs(), *in, inputs, *out); !s) return s;
        return in->rows == 0 ? status{} : run(*in, inputs, *out);
    }

private:
    status run(const matrix_view<const float>& x, const token_inputs& inputs,
               const matrix_view<float>& y) const;

    static constexpr serial serial_{};
    layer<Block, cuda<Format>> held_;
    cudaStream_t stream_;
};

template <class Block, codec Format>
status layer<Block, cuda_from_host<Format>>::run(const matrix_view<const float>& x,
                                                 const token_inputs& inputs,
                                                 const matrix_view<float>& y) const {
    using storage = typename Format::storage;
    const std::size_t tokens = x.rows, width = d_model();
    cuda_detail::call_copies there;
    device_inputs<Format> given;
    const auto in = there.template rows<Format>(x);
    given.token_ids = {there.copy(inputs.token_ids.data(), inputs.token_ids.size()), inputs.token_ids.size()};
    if (needs().residual) given.residual = there.template rows<Format>(inputs.residual);
    if (needs().given_width != 0) given.per_layer_input = there.template rows<Format>(inputs.per_layer_input);
    const std::size_t choices = inputs.routes.size();
    given.routes = {there.template room<choice<float>>(choices), choices};
    std::vector<gathered_rows> gathered(inputs.gathered.begin(), inputs.gathered.end());
    for (gathered_rows& rows : gathered) {
        rows.data = there.copy(rows.data, rows.bytes());
        rows.index = {there.copy(rows.index.data(), rows.index.size()), rows.index.size()};
    }
    given.gathered = gathered;
    // Carried rows are copied there and back: this call's slot becomes the first of a handle on the device.
    const std::size_t delay = needs().delay;
    const matrix_view<float> slot = delay != 0 ? inputs.carried->slot(tokens) : matrix_view<float>{};
    auto* const carried_rows = there.template room<float>(delay * tokens * width);
    carried_residuals carried(delay, tokens, width, carried_rows);
    if (delay != 0) {
        there.put(slot.data, carried_rows, tokens * width);
        if (inputs.carried->due() != 0)
            for (std::size_t i = 0; i < delay; ++i) carried.advance(i == 0 ? tokens : 0);
        given.carried = &carried;
    }
    auto* const out = there.template room<storage>(tokens * width);
    const std::size_t bytes = held_.workspace_bytes(tokens);
    auto* const memory = there.template room<std::byte>(bytes);
    there.note(cuda_detail::checked(cudaStreamSynchronize(nullptr),
                                    "call"));  // copies end before other streams begin
    if (!there.outcome()) return there.outcome();
    there.note(held_.try_call(in, given, matrix_view<storage>(out, tokens, width), {memory, bytes}, stream_));
    there.note(held_.synchronise(stream_));
    std::vector<storage> stored(tokens * width);
    there.fetch(out, stored.data(), stored.size());
    there.fetch(given.routes.data(), inputs.routes.data(), choices);
    if (delay != 0) there.fetch(carried_rows, slot.data, tokens * width);
    if (!there.outcome()) return there.outcome();
    for (std::size_t i = 0; i < stored.size(); ++i) Format::decode(stored[i], y.row(i / width) + i % width);
    if (delay != 0) inputs.carried->advance(tokens);
    return {};
}

TIFFIN_END
