// A memory of Engram's kind over several branches of the residual stream that share one value.
#pragma once

#include <tiffin/block/linear.hpp>
#include <tiffin/call/prepare.hpp>
#include <tiffin/call/short_convolution.hpp>
#include <tiffin/norm/rms.hpp>
#include <tiffin/runtime/any_layer.hpp>
#include <tiffin/source/engram_memory.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// Hyper-connections widen the residual stream to B branches of d values. The rows e of a memory are projected to one value
// and to a key per branch, whose agreement with the branch gates the value:
//
//     v = e W_v^T,   g_b = Gate(<rms(e W_k,b^T), rms(h_b)>),   z_b = g_b v,   y_b = z_b, or convolution_b(z_b)
//
// Shapes: h, y (T, B d), branch by branch; e (T, c); `value_proj.weight` (d, c), `key_proj.weight` (B d, c),
//   `key_norm.weight`, `query_norm.weight` (B, d) or (B d); with a convolution `conv.weight` (B d, K) or (B d, 1, K) and
//   `conv_norm.weight` (B, d) or (B d): see short_convolution. y may be h. The caller adds y to its stream.
// Numerics: those of the backend's `dot_gated`, `linear` and short_convolution, branch by branch.
// Errors: those of prepare(), and errc::shape where a tensor is not of so many branches. Of a call: errc::size, overlap,
//   workspace, found before y is written or a history has changed.
// Threads: one call at a time, as it keeps the value. Cost: 2 (B + 1) d c FLOPs per token, the value once; allocates where a
//   call has more tokens than every one before.
// Source: DeepSeek-V4.1's Engram (copysign_root_gate, no convolution); Qwen's n-gram PLE (signed_root_gate, dilation 3);
//   docs/layers.md#engram.
//
//     auto memory = memory_branches::prepare<signed_root_gate>(weights, 4, simd{}, {.dilation = 3}).or_throw();
//     std::vector<row_history> past = memory.make_histories(sequences);
//     memory(h, e, y, sequence_of_token, past).or_throw();
class memory_branches {
public:
    struct options {
        float eps = rms{}.eps;  // of the norms of keys and queries
        float convolution_eps = rms{}.eps;
        float least = 1e-6f;       // of the gate
        std::size_t dilation = 0;  // of the convolution; 0: there is none
        std::size_t tokens = 512;  // computed in one piece
        std::size_t workers = 1;   // tasks at a time
    };

    template <class Gate, class Backend>
    static result<memory_branches> prepare(const weights& given, std::size_t branches, const Backend& backend,
                                           const options& how) {
        memory_branches made;
        const tensor_view* const value = given.find("value_proj.weight");
        if (value == nullptr)
            return failure(errc::missing_tensor, "value_proj.weight", "missing; it has shape (d, c)");
        if (branches == 0 || value->shape.rank() != 2 || value->shape.elements() == 0)
            return failure(errc::shape, "value_proj.weight", "has shape ", to_string(value->shape),
                           ", and there are ", branches, " branches; it is (d, c) of one branch or more");
        made.width_ = value->shape[0];
        made.inputs_ = value->shape[1];
        const auto keep = [&](auto layer) -> status {
            if (!layer) return layer.failure();
            made.layers_.emplace_back(*std::move(layer));
            return {};
        };
        weights of_value;
        of_value.add("value_proj.weight", *value);
        if (status s = keep(try_prepare(linear<"value_proj">{}, of_value, backend, {.tokens = 0})); !s)
            return s.failure();
        gated_branch<Gate> branch;
        branch.gate.least = how.least;
        branch.left.norm.eps = branch.right.norm.eps = how.eps;
        for (std::size_t b = 0; b < branches; ++b) {
            weights of_branch;
            for (const weights::entry& e : given.entries()) {
                if (e.name == "value_proj.weight") continue;
                const bool of_convolution = e.name == "conv.weight" || e.name == "conv_norm.weight";
                if (of_convolution && how.dilation == 0)
                    return failure(errc::unused_tensor, e.name, "is of a convolution, whose dilation is 0");
                auto part = part_of(e.tensor, e.name, b, branches, made.width_);
                if (!part) return part.failure();
                of_branch.add(e.name, *part);
            }
            if (how.dilation > 0) {
                auto convolution = short_convolution::prepare(of_branch, how.dilation, how.convolution_eps);
                if (!convolution) return convolution.failure();
                made.convolutions_.push_back(*std::move(convolution));
            }
            weights of_gate;
            for (const weights::entry& e : of_branch.entries())
                if (!e.name.starts_with("conv")) of_gate.add(e.name, e.tensor);
            if (status s = keep(try_prepare(branch, of_gate, backend, {.tokens = 0})); !s) return s.failure();
            if (made.layers_.back().needs().given_width != made.inputs_)
                return failure(errc::shape, "key_proj.weight", "reads rows of ",
                               made.layers_.back().needs().given_width, "; value_proj.weight reads ",
                               made.inputs_);
        }
        std::size_t bytes = 0;
        for (const any_layer& layer : made.layers_)
            bytes = std::max(bytes, layer.workspace_bytes(how.tokens, how.workers));
        made.memory_ = workspace(bytes);
        return {std::move(made)};
    }

    [[nodiscard]] std::size_t branches() const noexcept { return layers_.size() - 1; }
    [[nodiscard]] std::size_t width() const noexcept { return width_; }  // of a branch
    [[nodiscard]] std::size_t given_width() const noexcept { return inputs_; }
    // The past of `sequences` sequences, branch by branch: that of sequence s and branch b is number b sequences + s. None
    // without a convolution.
    [[nodiscard]] std::vector<row_history> make_histories(std::size_t sequences,
                                                          std::size_t undoable = 0) const {
        std::vector<row_history> all;
        for (const short_convolution& c : convolutions_)
            for (std::size_t s = 0; s < sequences; ++s) all.push_back(c.make_history(undoable));
        return all;
    }

    // Token t is of sequence sequence_of[t]; without a convolution both last arguments stay empty.
    status operator()(const matrix_view<const float>& h, const matrix_view<const float>& e,
                      const matrix_view<float>& y, std::span<const std::uint32_t> sequence_of = {},
                      std::span<row_history> histories = {}, executor_ref execute = serially) {
        const std::size_t all = branches() * width_;
        if (h.cols != all || y.cols != all || y.rows != h.rows || e.cols != inputs_ || e.rows != h.rows)
            return failure(errc::size, "h", "is (", h.rows, ", ", h.cols, "), y (", y.rows, ", ", y.cols,
                           "), e (", e.rows, ", ", e.cols, "); they are (T, ", all, "), the same, and (T, ",
                           inputs_, ")");
        const std::size_t sequences = histories.size() / branches();
        if (histories.size() % branches() != 0)
            return failure(errc::size, "histories", "are ", histories.size(), " for ", branches(),
                           " branches");
        for (std::size_t b = 0; b < convolutions_.size(); ++b) {
            const matrix_view<float> z = part(y, b);
            if (status s =
                    convolutions_[b].check(z, sequence_of, histories.subspan(b * sequences, sequences), z);
                !s)
                return s;
        }
        if (value_.size() < h.rows * width_) value_.resize(h.rows * width_);
        const matrix_view<float> v(value_.data(), h.rows, width_);
        if (status s = layers_[0].try_call(e, token_inputs{}, v, std::span<std::byte>(memory_), execute); !s)
            return s;
        for (std::size_t b = 0; b < branches(); ++b) {
            const token_inputs in{.residual = v, .per_layer_input = e};
            const matrix_view<float> z = part(y, b);
            if (status s = layers_[b + 1].try_call(part(h, b), in, z, std::span<std::byte>(memory_), execute);
                !s)
                return s;
            if (convolutions_.empty()) continue;
            if (status s =
                    convolutions_[b](z, sequence_of, histories.subspan(b * sequences, sequences), z, execute);
                !s)
                return s;
        }
        return {};
    }

private:
    template <class T>
    [[nodiscard]] matrix_view<T> part(const matrix_view<T>& of, std::size_t b) const noexcept {
        return {of.data + b * width_, of.rows, width_, of.stride};
    }
    // The rows of branch b of a tensor (B d, ...), or (B, d).
    static result<tensor_view> part_of(const tensor_view& t, const std::string& name, std::size_t b,
                                       std::size_t branches, std::size_t width) {
        const std::size_t all = branches * width;
        const bool vector = t.shape == shape(all) || t.shape == shape(branches, width);
        const std::size_t rank = t.shape.rank();
        if (!vector && (rank < 2 || rank > 3 || t.shape[0] != all))
            return failure(errc::shape, name, "has shape ", to_string(t.shape), "; it is of ", branches,
                           " branches of ", width);
        tensor_view rows = t;
        if (vector) {
            rows.shape = {branches, width};
            return rows.rows_from(b, {width});
        }
        if (t.scales.any() && t.scales.rows != tensor_scales::all && width % t.scales.rows != 0)
            return failure(errc::shape, name, "has ", t.scales.text(), "; a branch of ", width,
                           " rows must not cut them");
        return rank == 2 ? t.rows_from(b * width, {width, t.shape[1]})
                         : t.rows_from(b * width * t.shape[1], {width, t.shape[1], t.shape[2]});
    }

    std::size_t width_ = 0, inputs_ = 0;
    std::vector<any_layer> layers_;  // of the value, then of the branches
    std::vector<short_convolution> convolutions_;
    std::vector<float> value_;
    workspace memory_;
};

TIFFIN_END
