// The rows of a source, written to their destination: a whole layer, an expert, rows stored for a formula.
#pragma once

#include <tiffin/cuda/engine/stage.hpp>

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

TIFFIN_BEGIN

namespace engine_detail {

// A formula over sources.
template <class Target, source_policy Source>
class rows {
    static_assert(
        !detail::has_role<Source, runtime_role>,
        "tiffin: prepare(text, cuda{stream}): a device runs types; texts run on simd, eigen, reference");

public:
    rows(const Source& source, const bound_node& bound, const source_sizes& sizes,
         typename Target::preparation& how)
        : stage_(source, bound, sizes, how) {}
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        return stage_.workspace_bytes(tokens, workers);
    }
    void run(const typename Target::call& call, const typename Target::activations& in, std::byte* memory,
             const typename Target::destination& to) const {
        stage_.run(call, in, memory, typename Target::put{to});
    }

private:
    stage<Target, Source> stage_;
};

// Rows of `to` that are summed in several steps: in `to` where it can hold partial sums, else in rows of the workspace
// that are written to it at the end.
template <class Target>
class pending_rows {
public:
    pending_rows(typename Target::arena& areas, std::size_t tokens, std::size_t width) noexcept
        : own_(areas.template take<float>(tokens * width)), width_(width) {}
    [[nodiscard]] typename Target::destination begin(const typename Target::call& call,
                                                     const typename Target::destination& to) const noexcept {
        return Target::takes_parts(to) ? to : Target::rows_in(own_, call, width_, width_);
    }
    void end(const typename Target::call& call, const typename Target::destination& to) const {
        if (!Target::takes_parts(to)) Target::put_rows(call, own_, width_, to);
    }

private:
    float* own_;
    std::size_t width_;
};

// A source that reads the residual instead of x.
template <class Target, source_policy Source>
    requires detail::has_role<Source, residual_role>
class rows<Target, Source> {
public:
    rows(const Source& source, const bound_node& bound, const source_sizes& sizes,
         typename Target::preparation& how)
        : d_model_(sizes.d_model),
          inner_(std::get<0>(source.parts()), bound.parts[0], {sizes.outputs, sizes.d_model, sizes.d_model},
                 how) {}
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        typename Target::arena areas;
        Target::lay_out_inputs(areas, tokens, d_model_);
        return areas.used() + inner_.workspace_bytes(tokens, workers);
    }
    void run(const typename Target::call& call, const typename Target::activations&, std::byte* memory,
             const typename Target::destination& to) const {
        typename Target::arena areas(memory);
        auto* const room = Target::lay_out_inputs(areas, Target::tokens(call), d_model_);
        inner_.run(call, Target::inputs(call, call.residual, room), areas.rest(), to);
    }

private:
    std::size_t d_model_;
    rows<Target, part_of<Source, 0>> inner_;
};

// A delay: stores the rows of this call for a later one, and writes those of an earlier one.
template <class Target, source_policy Source>
    requires detail::has_role<Source, delay_role>
class rows<Target, Source> {
public:
    rows(const Source& source, const bound_node& bound, const source_sizes& sizes,
         typename Target::preparation& how)
        : width_(sizes.outputs), inner_(std::get<0>(source.parts()), bound.parts[0], sizes, how) {}
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        typename Target::arena areas;
        areas.template take<float>(tokens * width_);
        return areas.used() + inner_.workspace_bytes(tokens, workers);
    }
    void run(const typename Target::call& call, const typename Target::activations& in, std::byte* memory,
             const typename Target::destination& to) const {
        typename Target::arena areas(memory);
        auto* const sent = areas.template take<float>(Target::tokens(call) * width_);
        inner_.run(call, in, areas.rest(), Target::rows_in(sent, call, width_, width_));
        Target::exchange_rows(call, sent, width_, to);
    }

private:
    std::size_t width_;
    rows<Target, part_of<Source, 0>> inner_;
};

// The sum of repeated parts, one after the other.
template <class Target, source_policy Source>
    requires detail::has_role<Source, repeated_role>
class rows<Target, Source> {
    using part = std::remove_cvref_t<decltype(std::declval<const Source&>().repeated(0))>;

public:
    rows(const Source& source, const bound_node& bound, const source_sizes& sizes,
         typename Target::preparation& how)
        : width_(sizes.outputs) {
        for (std::size_t i = 0; i < bound.parts.size(); ++i)
            parts_.emplace_back(source.repeated(i), bound.parts[i], sizes, how);
    }
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        typename Target::arena areas;
        pending_rows<Target>(areas, tokens, width_);
        std::size_t most = 0;
        for (const auto& p : parts_) most = std::max(most, p.workspace_bytes(tokens, workers));
        return areas.used() + most;
    }
    void run(const typename Target::call& call, const typename Target::activations& in, std::byte* memory,
             const typename Target::destination& to) const {
        typename Target::arena areas(memory);
        const pending_rows<Target> pending(areas, Target::tokens(call), width_);
        typename Target::destination sum = pending.begin(call, to);
        for (const auto& p : parts_) {
            p.run(call, in, areas.rest(), sum);
            sum.add = true;
        }
        pending.end(call, to);
    }

private:
    std::size_t width_;
    std::vector<rows<Target, part>> parts_;
};

// A mixture of experts: Target's class for it (cuda/mixture.hpp).
template <class Target, source_policy Source>
    requires detail::has_role<Source, mixture_role>
class rows<Target, Source> : public Target::template mixture<Source> {
public:
    using Target::template mixture<Source>::mixture;
};

// A whole layer: the rows of a block, from x to y.
template <class Target, block_policy Block>
class layer_rows {
public:
    layer_rows(const Block& block, const binding& bound, typename Target::preparation& how)
        : d_model_(bound.needs.d_model),
          rows_(block, bound.tree, {bound.needs.outputs, d_model_, d_model_}, how) {}
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        typename Target::arena areas;
        Target::lay_out_inputs(areas, tokens, d_model_);
        return areas.used() + rows_.workspace_bytes(tokens, workers);
    }
    void run(const typename Target::call& call) const {
        typename Target::arena areas(call.workspace);
        auto* const room = Target::lay_out_inputs(areas, Target::tokens(call), d_model_);
        rows_.run(call, Target::inputs(call, call.x, room), areas.rest(), call.to);
    }

private:
    std::size_t d_model_;
    rows<Target, Block> rows_;
};

}  // namespace engine_detail

TIFFIN_END
