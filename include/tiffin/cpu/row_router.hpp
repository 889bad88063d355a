// The rows of each token by a router of rows: what a query's halves or an id chose, weighed by the rows' own keys.
#pragma once

#include <tiffin/bind/row_checks.hpp>
#include <tiffin/cpu/output.hpp>
#include <tiffin/cpu/router.hpp>
#include <tiffin/router/row_choice.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

TIFFIN_BEGIN

namespace cpu_detail {

template <class Machine, row_router Router>
class router_stage<Machine, Router> {
    using exact = typename Machine::products;
    using arena = detail::arena<64>;

public:
    using activations = typename Machine::activations;

    router_stage(const Router& router, const bound_node& bound, std::span<const tensor_kind> kinds,
                 std::size_t inputs, const preparation& how)
        : router_(router), choices_(bound.choices), inputs_(inputs) {
        for (std::size_t i = 0; i < kinds.size(); ++i) {
            const tensor_view& t = bound.tensors[i];
            switch (kinds[i]) {
                case tensor_kind::query: keep(t, t.shape[0], inputs, query_, how); break;
                case tensor_kind::query_bias:
                    bias_ = stored_numbers(t, t.shape.elements());  // a copy
                    how.hold(bias_.own_bytes());
                    break;
                case tensor_kind::half_keys: keep_keys(t, how); break;
                case tensor_kind::row_ranges:
                    ranges_ = detail::ranges_of(t);
                    how.hold(ranges_.size() * sizeof ranges_[0]);
                    break;
                case tensor_kind::row_keys:
                    row_keys_ = stored_numbers(t, format_of_table(how.formats, t.type));
                    format_ = format_of_table(how.formats, t.type).rows;
                    gathered_ = t.gathered;
                    how.hold(row_keys_.own_bytes());
                    if (t.gathered == 0) how.done(t);
                    break;
                default: break;
            }
        }
    }

    [[nodiscard]] std::size_t choices() const noexcept { return choices_; }
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        arena areas;
        lay_out(areas, tokens, workers);
        return areas.used();
    }

    void run(const call_arguments& call, const activations& in, std::byte* memory,
             const engine_detail::chosen_experts& to) const {
        arena areas(memory);
        const areas_of_a_call at = lay_out(areas, call.tokens, call.workers);
        if constexpr (key_router<Router>) score(call, in, at);
        const std::size_t workers = std::min(call.workers, call.tokens);
        const auto work = [&](std::size_t worker) noexcept {
            double* const scratch = at.scratch + worker * scratch_numbers();
            for (std::size_t t = call.tokens * worker / workers; t < call.tokens * (worker + 1) / workers;
                 ++t) {
                take_rows(call, at, t, scratch, to.of(t));
                if constexpr (gating_router<Router>) gate(call, in, t, scratch, to.of(t));
            }
        };
        call.execute(workers, task_ref(work));
    }

private:
    struct areas_of_a_call {
        float* queries;  // (tokens, groups half)
        float* scores;   // (tokens, groups, keys)
        float* part;     // of the queries, as a product reads it
        float* sums;
        double* scratch;  // of each worker
    };
    areas_of_a_call lay_out(arena& areas, std::size_t tokens, std::size_t workers) const noexcept {
        areas_of_a_call at{};
        if constexpr (key_router<Router>) {
            at.queries = areas.template take<float>(tokens * groups() * half_);
            at.scores = areas.template take<float>(tokens * groups() * keys_);
            at.part = areas.template take<float>(Machine::input_numbers(tokens, half_));
            at.sums = areas.template take<float>(std::max(query_[0].scratch_numbers(tokens, workers),
                                                          keys_of_[0].scratch_numbers(tokens, workers)));
        }
        at.scratch = areas.template take<double>(std::min(tokens, workers) * scratch_numbers());
        return at;
    }
    [[nodiscard]] std::size_t scratch_numbers() const noexcept {
        std::size_t most = gating_router<Router> ? 3 * choices_ : 0;
        if constexpr (key_router<Router>) most = std::max(most, 7 * router_.top_k);
        return (most + 7) / 8 * 8;
    }
    [[nodiscard]] std::size_t groups() const noexcept { return keys_of_.size(); }

    static void keep(const tensor_view& t, std::size_t outputs, std::size_t inputs, std::vector<exact>& to,
                     const preparation& how) {
        to.push_back(Machine::exact_products(outputs, inputs));
        to.back().pack(0, t, how);
    }
    void keep_keys(const tensor_view& t, const preparation& how) {
        keys_ = t.shape[1];
        half_ = t.shape[2];
        for (std::size_t g = 0; g < t.shape[0]; ++g) {
            tensor_view one = t;
            one.data = static_cast<const std::byte*>(t.data) + bytes_of(t.type, g * keys_ * half_);
            one.shape = {keys_, half_};
            keep(one, keys_, half_, keys_of_, how);
        }
    }
    // Rows of sums to rows of `to`, `stride` apart.
    static void multiply(const call_arguments& call, const exact& weight, const activations& in, float* sums,
                         float* to, std::size_t stride) {
        weight.run(in, sums, call.workers, call.execute,
                   [&](std::size_t t, std::size_t count, std::size_t first, std::size_t features,
                       const auto& products) {
                       for (std::size_t i = 0; i < count; ++i)
                           for (std::size_t j = 0; j < features; ++j)
                               to[(t + i) * stride + first + j] = *products.first.at(i, j);
                   });
    }
    // The scores of all keys.
    void score(const call_arguments& call, const activations& in, const areas_of_a_call& at) const {
        const std::size_t width = groups() * half_;
        multiply(call, query_[0], in, at.sums, at.queries, width);
        if (bias_.floats() != nullptr)
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
    void take_rows(const call_arguments& call, const areas_of_a_call& at, std::size_t t, double* scratch,
                   choice<float>* chosen) const noexcept {
        if constexpr (key_router<Router>) {
            choose_rows(router_, at.scores + t * groups() * keys_, groups() / 2, keys_,
                        reinterpret_cast<ranked<double>*>(scratch + router_.top_k), scratch, chosen);
        } else {
            const std::int32_t* const range = &ranges_[2 * static_cast<std::size_t>(call.token_id(t))];
            take_range(range[0], range[1], choices_, chosen);
        }
    }
    // The weights of a token's rows by the products of their keys with what is read.
    void gate(const call_arguments& call, const activations& in, std::size_t t, double* scratch,
              choice<float>* chosen) const noexcept {
        auto* const products = reinterpret_cast<float*>(scratch + 2 * choices_);
        const std::size_t n = rows_chosen(chosen, choices_);
        const auto row_of = [&](std::size_t i) {
            return gathered_ != 0 ? call.gathered_row(gathered_, t, choices_, i)
                                  : row_keys_.data() +
                                        format_.bytes(static_cast<std::size_t>(chosen[i].expert) * inputs_);
        };
        for (std::size_t i = 0; i < n; ++i) {
            if (i + 1 < n) __builtin_prefetch(row_of(i + 1));
            const std::byte* const row = row_of(i);
            alignas(64) float some[finished_at_once];
            typename Machine::reg sums(0.0f);
            for (std::size_t k = 0; k < inputs_; k += finished_at_once) {
                const std::size_t end = std::min(k + finished_at_once, inputs_);
                const float* numbers = reinterpret_cast<const float*>(row) + k;
                if (format_.decode != nullptr) format_.decode(row, k, end - k, some), numbers = some;
                for (std::size_t j = k; j < end; j += Machine::lane_count) {
                    const std::size_t left = std::min(Machine::lane_count, end - j);
                    sums = Machine::multiply_add(Machine::load_row(numbers + (j - k), left),
                                                 Machine::load(Machine::input_at(in, t, j), left), sums);
                }
            }
            products[i] = Machine::sum(sums);
        }
        gate_rows(router_, products, n, scratch, chosen);
    }

    [[no_unique_address]] Router router_;
    std::size_t choices_;
    std::size_t inputs_;
    std::size_t keys_ = 0;
    std::size_t half_ = 0;
    row_format format_{};         // of the rows' keys
    std::vector<exact> query_;    // one, or none
    std::vector<exact> keys_of_;  // of each group
    stored_numbers bias_;
    std::vector<std::int32_t> ranges_;
    stored_numbers row_keys_;
    std::size_t gathered_ = 0;  // the rows' keys: 0, or which of the call's tables they are
};

}  // namespace cpu_detail

TIFFIN_END
