// A source evaluated for all tokens of a call: what is needed once a token, products, then the formula.
#pragma once

#include <tiffin/cuda/product.hpp>
#include <tiffin/cuda/steps.hpp>
#include <tiffin/cuda/values.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <utility>

TIFFIN_BEGIN

namespace cuda_detail {

template <codec Format, source_policy Source>
class stage {
public:
    using storage = typename Format::storage;
    static constexpr std::size_t projections = count_of<Source>(tensor_kind::projection);

    stage(const Source& source, std::span<const tensor_view> tensors, const stage_sizes& sizes, uploads& up)
        : view_{source, {}, {}, sizes.outputs},
          products_(sizes.outputs, sizes.inputs, up.products_by()),
          steps_(make_steps<Format, Source>(source, tensors, sizes, up)) {
        static constexpr auto specs = specs_of<Source>("");
        for (std::size_t i = 0; i < specs.size(); ++i)
            if (!specs[i].nested) keep(specs[i].kind, i, tensors[i], up);
        for_steps([&](auto& step) {
            step.describe(view_.slots, view_.state_numbers);
            view_.state_numbers += (step.state_numbers() + 15) / 16 * 16;
        });
    }
    // The experts a token gets of the first router in the source; 0 where it has none.
    [[nodiscard]] std::size_t choices() const noexcept {
        std::size_t all = 0;
        for_steps([&](const auto& step) {
            if (all == 0) all = step.choices();
        });
        return all;
    }
    [[nodiscard]] const dense_products<Format, projections>& products() const noexcept { return products_; }
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens) const noexcept {
        std::size_t most = products_.bytes(tokens);
        for_steps([&](const auto& step) { most = std::max(most, step.bytes(tokens)); });
        return state_bytes(tokens) + (most + 255) / 256 * 256;
    }

    // Computes what is needed once a token. `routes`: where to record the first router's choices, or null.
    // What it returns is the source as kernels see it.
    stage_view<Format, Source> prepare(const device_call<Format>& call, const activations<Format>& in,
                                       std::byte* memory, choice<float>* routes) const {
        const stage_view<Format, Source> view = view_of(call, memory);
        std::byte* const work = memory + state_bytes(call.tokens.most);
        for_steps([&](const auto& step) {
            step.run(call, in, view, work, step.choices() > 0 ? std::exchange(routes, nullptr) : nullptr);
        });
        return view;
    }
    // The products of all tokens. Precondition: not is_few(), or there are no projections.
    source_value<Format, Source> multiply(const device_call<Format>& call, const activations<Format>& in,
                                          std::byte* memory, const stage_view<Format, Source>& view) const {
        auto* const planes = reinterpret_cast<storage*>(memory + state_bytes(call.tokens.most));
        products_.run(call.tokens, in, planes, *call.out);
        return {view, planes, products_.plane(call.tokens.most)};
    }
    // write(t, feature, value, count) for every token and feature.
    template <class Write>
    void run(const device_call<Format>& call, const activations<Format>& in, std::byte* memory,
             choice<float>* routes, const Write& write) const {
        const stage_view<Format, Source> view = prepare(call, in, memory, routes);
        if (projections > 0 && is_few(call.tokens))
            run_few(call, in, view, write);
        else
            write_values<Format>(*call.out, multiply(call, in, memory, view), call.tokens, view_.outputs,
                                 write);
    }
    // The same for few tokens, after prepare().
    template <class Write>
    void run_few(const device_call<Format>& call, const activations<Format>& in,
                 const stage_view<Format, Source>& view, const Write& write) const {
        if constexpr (projections > 0) {
            if (call.tokens.most == 1)
                few<1>(call, in, view, write);
            else
                few<few_tokens>(call, in, view, write);
        }
    }

private:
    template <std::size_t Tokens, class Write>
    void few(const device_call<Format>& call, const activations<Format>& in,
             const stage_view<Format, Source>& view, const Write& write) const {
        few_body<Format, Source, Tokens, Write> body{view, in, {}, products_.inputs(), write};
        for (std::size_t i = 0; i != projections; ++i) body.weights[i] = products_.weights(i);
        if (call.tokens.most > 0) for_warps(*call.out, view_.outputs, body);
    }
    [[nodiscard]] std::size_t state_bytes(std::size_t tokens) const noexcept {
        return (tokens * view_.state_numbers * sizeof(float) + 255) / 256 * 256;
    }
    [[nodiscard]] stage_view<Format, Source> view_of(const device_call<Format>& call,
                                                     std::byte* memory) const noexcept {
        stage_view<Format, Source> view = view_;
        view.tokens = call.tokens;
        view.refused = call.refused;
        view.state = reinterpret_cast<float*>(memory);
        view.given = call.per_layer_input;
        for (std::size_t i = 0; i != stage_view<Format, Source>::sources; ++i) {
            row_source& rows = view.rows[i];
            rows.first = call.first;
            if (gathered_[i] == 0) {
                rows.index = call.token_ids;
                continue;
            }
            const gathered_rows& from = call.gathered[gathered_[i] - 1];
            rows = {from.data, from.index.data() + call.first, from.count, from.stride, call.first, true};
        }
        return view;
    }
    void keep(tensor_kind kind, std::size_t i, const tensor_view& t, uploads& up) {
        slot& s = view_.slots[i];
        if (kind == tensor_kind::projection) {
            products_.keep(packed_++, up.numbers<Format>(t));
        } else if (kind == tensor_kind::table || kind == tensor_kind::pool) {
            const bool pool = kind == tensor_kind::pool;
            s.table = ordinal_of<Source>(i) + (pool ? count_of<Source>(tensor_kind::table) : 0);
            const std::size_t vocab = t.shape[pool ? 1 : 0];
            if (pool) s.expert_step = (t.gathered != 0 ? 1 : vocab) * view_.outputs;
            gathered_[s.table] = t.gathered;
            row_source& rows = view_.rows[s.table];
            rows.data = reinterpret_cast<const std::byte*>(up.numbers<Format>(t));
            rows.count = vocab;
            rows.stride = view_.outputs * sizeof(storage);
        } else if (kind == tensor_kind::vector) {
            s.numbers = up.numbers<f32>(t);
        } else if (kind == tensor_kind::scalar) {
            s.number = up.scalar(t);
        } else if (kind == tensor_kind::row_width) {
            s.number = static_cast<float>(view_.outputs);
        }
    }
    template <class Visit>
    void for_steps(const Visit& visit) {
        std::apply([&](auto&... step) { (visit(step), ...); }, steps_);
    }
    template <class Visit>
    void for_steps(const Visit& visit) const {
        std::apply([&](const auto&... step) { (visit(step), ...); }, steps_);
    }

    stage_view<Format, Source> view_;
    dense_products<Format, projections> products_;
    std::size_t packed_ = 0;
    std::size_t gathered_[stage_view<Format, Source>::sources + 1] = {};
    decltype(make_steps<Format, Source>(std::declval<const Source&>(), std::span<const tensor_view>{},
                                        std::declval<const stage_sizes&>(), std::declval<uploads&>())) steps_;
};

}  // namespace cuda_detail

TIFFIN_END
