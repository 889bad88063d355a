// A Llama-like model: embeddings, layers of attention and an FFN, and the head. The FFNs are tiffin's.
#pragma once

#include <tiffin/executor/executor.hpp>

#include "alternating_streams.hpp"
#include "attention.hpp"
#include "ffn_in_model.hpp"
#include "model_file.hpp"
#include "per_layer_rows.hpp"
#include "products.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

// Looks at intermediate values: a name, and a row per token of a batch.
using observer = std::function<void(const std::string&, const row_matrix&)>;

class gguf_model {
public:
    static constexpr std::size_t batch = 512;  // tokens that pass the layers together

    // The file must outlive the model. `rows`: of models with per-layer embeddings.
    // Throws what is wrong with the file, and whatever `ffn` and `rows` throw.
    gguf_model(model_file& file, const ffn_of_layer& ffn, tiffin::executor_ref execute,
               const rows_of_layer& rows = {})
        : d_model_(file.count("embedding_length")),
          context_(file.count("context_length")),
          eps_(static_cast<float>(file.positive("attention.layer_norm_rms_epsilon"))),
          execute_(execute),
          scaled_embeddings_(file.kind().scaled_embeddings),
          cap_(
              static_cast<float>(file.find<double>("final_logit_softcapping").value_or(file.kind().capped))) {
        const std::size_t d = d_model_;
        const tiffin::tensor_view* const given = file.file().tensors().find("token_embd.weight");
        const std::size_t vocabulary = given != nullptr && given->shape.rank() == 2 ? given->shape[0] : 0;
        embeddings_ = *file.tensor("token_embd.weight", {vocabulary, d});
        output_norm_ = file.vector("output_norm.weight", d);
        const bool tied = file.file().tensors().find("output.weight") == nullptr;
        head_ = file.matrix(tied ? "token_embd.weight" : "output.weight", vocabulary, d);
        head_bias_ = file.vector("output.bias", vocabulary, true);
        const bool has_rows = file.kind().per_layer_rows &&
                              file.find<std::uint64_t>("embedding_length_per_layer_input").value_or(0) > 0;
        if (has_rows && !rows) file.refuse("has per-layer embeddings, which this program does not compute");
        if (file.kind().alternating) streams_.emplace(file);
        for (const char* const name : {"token_embd", "model_proj", "proj_norm"})
            if (has_rows) file.pass_over(std::string("per_layer_") + name + ".weight");
        std::size_t bytes = 0;
        for (std::size_t i = 0; i < file.layers(); ++i) {
            const std::string at = "blk." + std::to_string(i) + ".";
            layers_.push_back({attention(file, i), file.vector(at + "attn_norm.weight", d),
                               file.vector(at + "ffn_norm.weight", d), ffn(i)});
            layer& l = layers_.back();
            if (file.kind().normed_outputs) {
                l.attention_out_norm = file.vector(at + "post_attention_norm.weight", d);
                l.ffn_out_norm = file.vector(at + "post_ffw_norm.weight", d);
            }
            if (streams_) l.alternating.emplace(file, i, streams_->count());
            l.ffn.check(file, i, vocabulary);
            bytes = std::max(bytes, l.ffn.block.workspace_bytes(batch, execute.concurrency()));
            if (!file.kind().per_layer_rows) continue;
            if (const row_vector scale = file.vector(at + "layer_output_scale.weight", 1, true);
                scale.size() > 0)
                l.scale = scale[0];
            if (!has_rows) continue;
            l.per_layer.emplace(rows(i));
            for (const char* const name : {"inp_gate", "proj", "post_norm"})
                file.pass_over(at + name + ".weight");
            bytes = std::max(bytes, l.per_layer->block().workspace_bytes(batch, execute.concurrency()));
        }
        read_rotations(file);
        file.check_all_used();
        workspace_ = tiffin::workspace(bytes);
    }

    // As the file says: positions it was trained for.
    [[nodiscard]] std::size_t context() const { return context_; }
    [[nodiscard]] std::size_t vocabulary() const { return static_cast<std::size_t>(head_.rows()); }

    // Begins a new text of at most `positions` tokens, or a part of one from the token `from` on, for what is thrown.
    void begin(std::size_t positions, std::size_t from = 0) {
        done_ = 0;
        from_ = from;
        for (layer& l : layers_)
            if (l.ffn.rows) l.ffn.rows->begin();
        if (positions_ == positions) return;
        positions_ = positions;
        for (shared_rotation& t : rotations_) t.now.emplace(t.options, t.factors, positions);
        for (std::size_t i = 0; i < layers_.size(); ++i) {
            const attention_options& o = layers_[i].attend.options();
            if (o.keys_of != i) continue;
            layers_[i].cache.keys.resize(as_index(positions), as_index(o.narrow()));
            layers_[i].cache.values.resize(as_index(positions), as_index(o.narrow()));
        }
    }

    // The text goes on by these tokens: their hidden states behind the last layer and its norm.
    // Preconditions: ids below vocabulary(), no more than `positions` in all.
    // Throws std::runtime_error where a value is not finite, naming the layer and the token: no text comes of it.
    row_matrix append(std::span<const std::int32_t> ids, const observer& observe = {}) {
        row_matrix all(as_index(ids.size()), as_index(d_model_));
        for (std::size_t first = 0; first < ids.size(); first += batch) {
            const auto some = ids.subspan(first, std::min(batch, ids.size() - first));
            row_matrix x = pass(some, layers_.size(), observe);
            normalise(x, output_norm_, eps_, all.middleRows(as_index(first), x.rows()));
            check_finite(all.middleRows(as_index(first), x.rows()), done_ - some.size(),
                         "the norm behind the last layer");
        }
        return all;
    }

    // The same, but only through the first `count` layers: the residual stream behind them. Of a whole text, or of the
    // part of one from the token `from` on.
    // Precondition: count is at most the model's layers, and the model has one stream.
    row_matrix stream(std::span<const std::int32_t> ids, std::size_t count, std::size_t from = 0) {
        begin(ids.size(), from);
        row_matrix all(as_index(ids.size()), as_index(d_model_));
        for (std::size_t first = 0; first < ids.size(); first += batch) {
            const auto some = ids.subspan(first, std::min(batch, ids.size() - first));
            all.middleRows(as_index(first), as_index(some.size())) = pass(some, count, {});
        }
        return all;
    }

    // Logits of hidden states, (T, vocabulary); those of tokens from the position `first` on, for what is thrown.
    template <class Hidden>
    void logits(const Hidden& hidden, row_matrix& to, std::size_t first) const {
        multiply(hidden, head_, head_bias_, to, execute_);
        if (cap_ > 0) to = (to.array() / cap_).tanh().matrix() * cap_;
        check_finite(to, first, "the head");
    }
    // Tokens of the text until now.
    [[nodiscard]] std::size_t length() const { return done_; }

private:
    struct layer {
        attention attend;
        row_vector attention_norm, ffn_norm;
        ffn_in_model ffn;
        attention_cache cache{};
        row_vector attention_out_norm{}, ffn_out_norm{};  // empty: none
        std::optional<alternating_layer> alternating{};
        std::optional<per_layer_rows> per_layer{};
        float scale = 1;           // of the stream behind it
        std::size_t rotation = 0;  // of rotations_
    };
    // Factors of frequencies are those of layers that see all.
    void read_rotations(model_file& file) {
        for (layer& l : layers_) {
            const attention_options& o = l.attend.options();
            while (l.rotation < rotations_.size() && !o.turns_as(rotations_[l.rotation].options))
                ++l.rotation;
            if (l.rotation < rotations_.size()) continue;
            const bool all = o.window == 0;
            rotations_.push_back(
                {o, all ? file.vector("rope_freqs.weight", o.rotated / 2, true) : row_vector()});
        }
    }

    template <class Rows>
    void check_finite(const Rows& rows, std::size_t first, const std::string& what) const {
        if (rows.allFinite()) return;
        Eigen::Index t = 0;
        while (rows.row(t).allFinite()) ++t;
        throw std::runtime_error(what + " gives a value that is not finite at token " +
                                 std::to_string(from_ + first + static_cast<std::size_t>(t)) +
                                 " of the text, from 0 on");
    }

    [[nodiscard]] row_matrix embedded(std::span<const std::int32_t> ids) const {
        const std::size_t d = d_model_;
        row_matrix x(as_index(ids.size()), as_index(d));
        for (std::size_t t = 0; t < ids.size(); ++t)
            tiffin::read_as_f32(embeddings_, static_cast<std::size_t>(ids[t]) * d, d,
                                x.row(as_index(t)).data());
        if (scaled_embeddings_) x *= std::sqrt(static_cast<float>(d));
        return x;
    }

    row_matrix pass(std::span<const std::int32_t> ids, std::size_t count, const observer& observe) {
        const auto seen = [&](std::size_t i, const char* what, const row_matrix& values) {
            if (observe) observe("layer." + std::to_string(i) + "." + what, values);
        };
        row_matrix x = embedded(ids), normed(x.rows(), x.cols()), y;
        if (observe) observe("embeddings", x);
        check_finite(x, done_, "the table of embeddings");
        if (streams_) streams_->begin(x, execute_);
        for (std::size_t i = 0; i < count; ++i) {
            const std::string of_layer = " of layer " + std::to_string(i);
            layer& l = layers_[i];
            if (l.alternating) x = streams_->predict(*l.alternating, execute_);
            normalise(x, l.attention_norm, eps_, normed);
            l.attend(*rotations_[l.rotation].now, normed, as_index(done_),
                     layers_[l.attend.options().keys_of].cache, y, execute_);
            if (l.attention_out_norm.size() > 0) normalise(y, l.attention_out_norm, eps_, y);
            x += y;
            if (l.alternating) l.alternating->add_laurel(normed, eps_, x, execute_);
            check_finite(x, done_, "the attention" + of_layer);
            normalise(x, l.ffn_norm, eps_, normed);
            seen(i, "ffn_input", normed);
            tiffin::token_inputs given{.token_ids = ids};
            if (l.ffn.block.needs().residual) given.residual = {x.data(), ids.size(), d_model_};
            if (l.ffn.rows) given.per_layer_input = l.ffn.rows->of_next(ids);
            l.ffn.block(normed, given, y, workspace_, execute_);
            seen(i, "ffn_output", y);
            if (l.ffn_out_norm.size() > 0) normalise(y, l.ffn_out_norm, eps_, y);
            x += y;
            check_finite(x, done_, "the FFN" + of_layer);
            if (l.alternating) x = streams_->correct(*l.alternating, x, execute_);
            if (l.per_layer) {
                (*l.per_layer)(x, ids, y, workspace_, execute_);
                seen(i, "per_layer_output", y);
                streams_ ? streams_->add_to_others(y) : static_cast<void>(x += y);
            }
            if (l.scale != 1) x *= l.scale;
            if (streams_) x = streams_->active();
            seen(i, "hidden", x);
            check_finite(x, done_, "what follows the FFN" + of_layer);
        }
        if (streams_) x = streams_->merged(execute_);
        done_ += ids.size();
        return x;
    }

    std::size_t d_model_, context_, done_ = 0, from_ = 0, positions_ = 0;
    float eps_;
    tiffin::executor_ref execute_;
    bool scaled_embeddings_;
    float cap_;  // of logits; 0: none
    tiffin::tensor_view embeddings_{};
    row_vector output_norm_, head_bias_;
    row_matrix head_;
    std::vector<layer> layers_;
    std::vector<shared_rotation> rotations_;
    std::optional<alternating_streams> streams_;
    tiffin::workspace workspace_;
};
