// A router of a plan: chooses experts or table rows for each token.
#pragma once

#include <tiffin/bind/bound.hpp>
#include <tiffin/bind/preparation.hpp>
#include <tiffin/bind/row_checks.hpp>
#include <tiffin/bind/source_sizes.hpp>
#include <tiffin/bind/tensor_checks.hpp>
#include <tiffin/call/call_arguments.hpp>
#include <tiffin/cpu/kept_rows.hpp>
#include <tiffin/cpu/output.hpp>
#include <tiffin/cpu/product_sums.hpp>
#include <tiffin/plan/lower.hpp>
#include <tiffin/router/row_choice.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

TIFFIN_BEGIN

namespace cpu_detail {

using engine_detail::chosen_experts;

// Copies the routes to the call's route buffer, if it has one.
inline void record(const call_arguments& of, const chosen_experts& chosen) noexcept {
    for (std::size_t t = 0; of.routes != nullptr && t < of.tokens; ++t)
        std::copy_n(chosen.of(t), chosen.choices, of.routes + t * chosen.choices);
}

template <class Machine>
class router_stage {
    using products = typename Machine::products;
    using arena = detail::arena<64>;

public:
    using activations = typename Machine::activations;

    router_stage(const plan_node& node, const bound_node& bound, std::size_t inputs, const preparation& how)
        : kind_(node.kind->router),
          ops_(&ops<Machine>(node)),
          source_(node.source),
          top_k_(node.top_k),
          choices_(bound.choices),
          inputs_(inputs) {
        for (std::size_t i = 0; i < bound.tensors.size(); ++i)
            keep(node.kind->tensors[i].kind, bound.tensors[i], how);
    }

    [[nodiscard]] std::size_t choices() const noexcept { return choices_; }
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        arena areas;
        lay_out(areas, tokens, workers);
        return areas.used();
    }
    void run(const call_arguments& call, const activations& in, std::byte* memory,
             const chosen_experts& to) const {
        arena areas(memory);
        const call_areas at = lay_out(areas, call.tokens, call.workers);
        if (kind_ == detail::router_kind::learned) {
            multiply(call, weight_[0], in, at.sums, at.scores, experts_);
            return for_tokens_with_scratch(call, at, [&](std::size_t t, double* scratch) noexcept {
                ops_->choose(source_, at.scores + t * experts_, experts_, bias_.floats(), scratch, to.of(t));
            });
        }
        if (kind_ == detail::router_kind::map) {
            for (std::size_t t = 0; t < call.tokens; ++t)
                for (std::size_t i = 0; i < choices_; ++i)
                    to.of(t)[i] = {map_[static_cast<std::size_t>(call.token_id(t)) * choices_ + i], 1.0f};
            return;
        }
        if (kind_ == detail::router_kind::keys) score(call, in, at);
        for_tokens_with_scratch(call, at, [&](std::size_t t, double* scratch) noexcept {
            take_rows(call, at, t, scratch, to.of(t));
            if (ops_->gate_rows != nullptr) gate(call, in, t, scratch, to.of(t));
        });
    }

private:
    struct call_areas {
        float* queries;  // (tokens, groups half)
        float* scores;   // (tokens, experts), (tokens, groups, keys)
        float* part;     // one group's queries, in the products' layout
        float* sums;
        double* scratch;  // of each worker
    };
    call_areas lay_out(arena& areas, std::size_t tokens, std::size_t workers) const noexcept {
        call_areas at{};
        std::size_t sums = 0;
        for (const products& p : weight_) sums = std::max(sums, p.scratch_numbers(tokens, workers));
        for (const products& p : keys_of_) sums = std::max(sums, p.scratch_numbers(tokens, workers));
        if (kind_ == detail::router_kind::keys) {
            at.queries = areas.template take<float>(tokens * groups() * half_);
            at.part = areas.template take<float>(Machine::input_numbers(tokens, half_));
        }
        at.scores = areas.template take<float>(tokens * (experts_ + groups() * keys_));
        at.sums = areas.template take<float>(sums);
        at.scratch = areas.template take<double>(std::min(tokens, workers) * scratch_numbers());
        return at;
    }
    // work(token, scratch), the tokens split among the workers.
    template <class Work>
    void for_tokens_with_scratch(const call_arguments& call, const call_areas& at, const Work& work) const {
        const std::size_t workers = std::min(call.workers, call.tokens);
        const auto share = [&](std::size_t worker) noexcept {
            double* const scratch = at.scratch + worker * scratch_numbers();
            const std::size_t end = call.tokens * (worker + 1) / workers;
            for (std::size_t t = call.tokens * worker / workers; t < end; ++t) work(t, scratch);
        };
        call.execute(workers, task_ref(share));
    }
    [[nodiscard]] std::size_t scratch_numbers() const noexcept {
        std::size_t most = ops_->gate_rows != nullptr ? 3 * choices_ : 0;
        if (kind_ == detail::router_kind::learned) most = 2 * experts_;
        if (kind_ == detail::router_kind::keys) most = std::max(most, 7 * top_k_);
        return (most + 7) / 8 * 8;
    }
    [[nodiscard]] std::size_t groups() const noexcept { return keys_of_.size(); }

    void keep(tensor_kind kind, const tensor_view& t, const preparation& how) {
        switch (kind) {
            case tensor_kind::logits: experts_ = t.shape[0]; return keep_weight(t, inputs_, weight_, how);
            case tensor_kind::query: return keep_weight(t, inputs_, weight_, how);
            case tensor_kind::half_keys: return keep_keys(t, how);
            case tensor_kind::selection_bias:
            case tensor_kind::query_bias:
                bias_ = stored_numbers(t, t.shape.elements());  // a copy
                return how.hold(bias_.own_bytes());
            case tensor_kind::route_map:
                map_.resize(t.shape.elements());
                for (std::size_t n = 0; n < map_.size(); ++n)
                    map_[n] = static_cast<std::int32_t>(detail::load_integer(t, n));
                return how.hold(map_.size() * sizeof map_[0]);
            case tensor_kind::row_ranges:
                map_ = detail::ranges_of(t);
                return how.hold(map_.size() * sizeof map_[0]);
            case tensor_kind::row_keys: {
                const number_format format = format_of_table(how.formats, t.type);
                row_keys_ = stored_numbers(t, format);
                keys_of_rows_ = kept_rows(t, format, row_keys_);
                gathered_ = t.gathered;
                how.hold(row_keys_.own_bytes());
                if (t.gathered == 0) how.done(t);
                return;
            }
            default: return;
        }
    }
    static void keep_weight(const tensor_view& t, std::size_t inputs, std::vector<products>& to,
                            const preparation& how) {
        to.push_back(Machine::exact_products(t.shape[0], inputs));
        to.back().pack(0, t, how);
    }
    void keep_keys(const tensor_view& t, const preparation& how) {
        keys_ = t.shape[1];
        half_ = t.shape[2];
        for (std::size_t g = 0; g < t.shape[0]; ++g) {
            keep_weight(t.rows_from(g * keys_, {keys_, half_}), half_, keys_of_, how);
        }
    }
    // Multiplies and copies the sums to rows of `to`, `stride` floats apart.
    static void multiply(const call_arguments& call, const products& weight, const activations& in,
                         float* sums, float* to, std::size_t stride) {
        weight.run(in, sums, call.workers, call.execute,
                   [&](std::size_t t, std::size_t count, std::size_t first, std::size_t features,
                       const product_sums& all) noexcept {
                       for (std::size_t i = 0; i < count; ++i)
                           for (std::size_t j = 0; j < features; ++j)
                               to[(t + i) * stride + first + j] = *all.first.at(i, j);
                   });
    }
    // The scores of all keys.
    void score(const call_arguments& call, const activations& in, const call_areas& at) const {
        const std::size_t width = groups() * half_;
        multiply(call, weight_[0], in, at.sums, at.queries, width);
        if (bias_.data() != nullptr)
            for (std::size_t t = 0; t < call.tokens; ++t)
                for (std::size_t j = 0; j < width; ++j) at.queries[t * width + j] += bias_.floats()[j];
        call_arguments all = call;
        all.rows = nullptr;
        for (std::size_t g = 0; g < groups(); ++g) {
            const matrix_view<const float> part(at.queries + g * half_, call.tokens, half_, width);
            multiply(call, keys_of_[g], Machine::inputs(all, part, at.part), at.sums, at.scores + g * keys_,
                     groups() * keys_);
        }
    }
    void take_rows(const call_arguments& call, const call_areas& at, std::size_t t, double* scratch,
                   choice<float>* chosen) const noexcept {
        if (kind_ == detail::router_kind::keys) {
            ops_->choose_rows(source_, at.scores + t * groups() * keys_, groups() / 2, keys_, scratch,
                              chosen);
        } else {
            const std::int32_t* const range = &map_[2 * static_cast<std::size_t>(call.token_id(t))];
            take_range(range[0], range[1], choices_, chosen);
        }
    }
    // Weights a token's chosen rows by the dot products of their keys with the input.
    void gate(const call_arguments& call, const activations& in, std::size_t t, double* scratch,
              choice<float>* chosen) const noexcept {
        auto* const products_of = reinterpret_cast<float*>(scratch + 2 * choices_);
        const std::size_t n = rows_chosen(chosen, choices_);
        const auto row_of = [&](std::size_t i) {
            return gathered_ != 0 ? call.gathered_row(gathered_, t, choices_, i)
                                  : keys_of_rows_.row(static_cast<std::size_t>(chosen[i].expert));
        };
        for (std::size_t i = 0; i < n; ++i) {
            if (i + 1 < n) __builtin_prefetch(row_of(i + 1).codes);
            products_of[i] = dot(row_of(i), in, t);
        }
        ops_->gate_rows(source_, products_of, n, scratch, chosen);
    }
    [[nodiscard]] float dot(const stored_row& row, const activations& in, std::size_t t) const noexcept {
        alignas(64) float some[finished_at_once];
        typename Machine::reg sums(0.0f);
        for (std::size_t k = 0; k < inputs_; k += finished_at_once) {
            const std::size_t end = std::min(k + finished_at_once, inputs_);
            const float* numbers = kept_rows::values(row) + k;
            if (!keys_of_rows_.are_f32()) keys_of_rows_.read(row, k, end - k, some), numbers = some;
            for (std::size_t j = k; j < end; j += Machine::lane_count) {
                const std::size_t left = std::min(Machine::lane_count, end - j);
                sums = Machine::multiply_add(Machine::load_row(numbers + (j - k), left),
                                             Machine::load(Machine::input_at(in, t, j), left), sums);
            }
        }
        return Machine::sum(sums);
    }

    detail::router_kind kind_;
    const ops_for<Machine>* ops_;
    const void* source_;
    std::size_t top_k_;
    std::size_t choices_;
    std::size_t inputs_;
    std::size_t experts_ = 0;  // of a learned router
    std::size_t keys_ = 0;
    std::size_t half_ = 0;
    std::vector<products> weight_;   // of logits or of a query: at most one
    std::vector<products> keys_of_;  // of each group
    stored_numbers bias_;
    std::vector<std::int32_t> map_;  // of experts, or of ranges of table rows
    stored_numbers row_keys_;
    kept_rows keys_of_rows_{};
    std::size_t gathered_ = 0;  // 0, or the number of the gathered table of row keys, from 1 on
};

}  // namespace cpu_detail

TIFFIN_END
