// A Llama-like model: embeddings, layers of attention and an FFN, and the head. The FFNs are tiffin's.
#pragma once

#include <tiffin/executor/executor.hpp>
#include <tiffin/runtime/any_layer.hpp>

#include "attention.hpp"
#include "model_file.hpp"
#include "ngram_input.hpp"
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
#include <utility>
#include <vector>

// The block between the norm before the FFN and the residual of a layer: the model's own, or what takes its place, such
// as the same beside a table. Calls bring the tokens' ids, the residual where the block reads it, and the rows by the last
// ids where it reads per_layer_input.
struct ffn_in_model {
    ffn_in_model(tiffin::any_layer block_, std::optional<ngram_input> rows_ = {})
        : block(std::move(block_)), rows(std::move(rows_)) {}

    tiffin::any_layer block;
    std::optional<ngram_input> rows;
};
using ffn_of_layer = std::function<ffn_in_model(std::size_t)>;
// Looks at intermediate values: a name, and a row per token of a batch.
using observer = std::function<void(const std::string&, const row_matrix&)>;

class gguf_model {
public:
    static constexpr std::size_t batch = 512;  // tokens that pass the layers together

    // The file must outlive the model.
    // Throws what is wrong with the file, and whatever `ffn` throws.
    gguf_model(model_file& file, const ffn_of_layer& ffn, tiffin::executor_ref execute)
        : options_(attention_options::of(file)),
          context_(file.count("context_length")),
          execute_(execute),
          scaled_embeddings_(file.kind().scaled_embeddings),
          options_of_windows_(options_.windowed > 0 ? options_.of_windows(file) : options_) {
        const std::size_t d = options_.d_model, count = file.count("block_count");
        const tiffin::tensor_view* const given = file.file().tensors().find("token_embd.weight");
        const std::size_t vocabulary = given != nullptr && given->shape.rank() == 2 ? given->shape[0] : 0;
        embeddings_ = *file.tensor("token_embd.weight", {vocabulary, d});
        output_norm_ = file.vector("output_norm.weight", d);
        const bool tied = file.file().tensors().find("output.weight") == nullptr;
        head_ = file.matrix(tied ? "token_embd.weight" : "output.weight", vocabulary, d);
        head_bias_ = file.vector("output.bias", vocabulary, true);
        frequency_factors_ = file.vector("rope_freqs.weight", options_.rotated / 2, true);
        std::size_t bytes = 0;
        for (std::size_t i = 0; i < count; ++i) {
            const std::string at = "blk." + std::to_string(i) + ".";
            layers_.push_back({attention(file, options_, i),
                               file.vector(at + "attn_norm.weight", d),
                               file.vector(at + "ffn_norm.weight", d),
                               ffn(i),
                               {},
                               {},
                               {}});
            if (file.kind().normed_outputs) {
                layers_.back().attention_out_norm = file.vector(at + "post_attention_norm.weight", d);
                layers_.back().ffn_out_norm = file.vector(at + "post_ffw_norm.weight", d);
            }
            const ffn_in_model& own = layers_.back().ffn;
            const tiffin::any_layer& made = own.block;
            if (made.d_model() != d)
                file.refuse("the FFN of layer " + std::to_string(i) + " is " +
                            std::to_string(made.d_model()) + " wide; the model is " + std::to_string(d));
            for (const tiffin::table_size& table : made.needs().tables)
                if (table.vocab != vocabulary)
                    file.refuse(table.name + " of layer " + std::to_string(i) + " has " +
                                std::to_string(table.vocab) + " rows; the model's vocabulary has " +
                                std::to_string(vocabulary));
            const std::size_t wanted = made.needs().given_width, width = own.rows ? own.rows->width() : 0;
            if (wanted != width)
                file.refuse("the FFN of layer " + std::to_string(i) + " reads " + std::to_string(wanted) +
                            " numbers per token beside x; there are " + std::to_string(width) +
                            " of rows by the last ids");
            if (own.rows && own.rows->vocab() < vocabulary)
                file.refuse("the rows by the last ids of layer " + std::to_string(i) + " are of " +
                            std::to_string(own.rows->vocab()) + " ids; the model's vocabulary has " +
                            std::to_string(vocabulary));
            bytes = std::max(bytes, made.workspace_bytes(batch, execute.concurrency()));
        }
        file.check_all_used(count);
        workspace_ = tiffin::workspace(bytes);
    }

    [[nodiscard]] std::size_t context() const {
        return context_;
    }  // as the file says: positions it was trained for
    [[nodiscard]] std::size_t vocabulary() const { return static_cast<std::size_t>(head_.rows()); }

    // Begins a new text of at most `positions` tokens, or a part of one from the token `from` on, for what is thrown.
    void begin(std::size_t positions, std::size_t from = 0) {
        done_ = 0;
        from_ = from;
        for (layer& l : layers_)
            if (l.ffn.rows) l.ffn.rows->begin();
        if (rotation_ && rotation_->cosines.rows() == as_index(positions)) return;
        rotation_.emplace(options_, frequency_factors_, positions);
        rotation_of_windows_.reset();
        if (options_.windowed > 0) rotation_of_windows_.emplace(options_of_windows_, row_vector(), positions);
        const Eigen::Index width = as_index(options_.kv_heads * options_.head);
        for (layer& l : layers_) {
            l.cache.keys.resize(as_index(positions), width);
            l.cache.values.resize(as_index(positions), width);
        }
    }

    // The text goes on by these tokens: their hidden states behind the last layer and its norm.
    // Preconditions: ids below vocabulary(), no more than `positions` in all.
    // Throws std::runtime_error where a value is not finite, naming the layer and the token: no text comes of it.
    row_matrix append(std::span<const std::int32_t> ids, const observer& observe = {}) {
        row_matrix all(as_index(ids.size()), as_index(options_.d_model));
        for (std::size_t first = 0; first < ids.size(); first += batch) {
            const auto some = ids.subspan(first, std::min(batch, ids.size() - first));
            row_matrix x = pass(some, layers_.size(), observe);
            normalise(x, output_norm_, options_.eps, all.middleRows(as_index(first), x.rows()));
            check_finite(all.middleRows(as_index(first), x.rows()), done_ - some.size(),
                         "the norm behind the last layer");
        }
        return all;
    }

    // The same, but only through the first `count` layers: the residual stream behind them. Of a whole text, or of the
    // part of one from the token `from` on.
    // Precondition: count is at most the model's layers.
    row_matrix stream(std::span<const std::int32_t> ids, std::size_t count, std::size_t from = 0) {
        begin(ids.size(), from);
        row_matrix all(as_index(ids.size()), as_index(options_.d_model));
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
        check_finite(to, first, "the head");
    }
    // Tokens of the text until now.
    [[nodiscard]] std::size_t length() const { return done_; }

private:
    struct layer {
        attention attend;
        row_vector attention_norm, ffn_norm;
        ffn_in_model ffn;
        attention_cache cache;
        row_vector attention_out_norm, ffn_out_norm;  // empty: none
    };

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
        const std::size_t d = options_.d_model;
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
        for (std::size_t i = 0; i < count; ++i) {
            const std::string of_layer = " of layer " + std::to_string(i);
            layer& l = layers_[i];
            normalise(x, l.attention_norm, options_.eps, normed);
            const bool all = options_.seen_by(i) == 0;
            l.attend(options_, all ? *rotation_ : *rotation_of_windows_, normed, as_index(done_), l.cache, y,
                     execute_);
            if (l.attention_out_norm.size() > 0) normalise(y, l.attention_out_norm, options_.eps, y);
            x += y;
            check_finite(x, done_, "the attention" + of_layer);
            normalise(x, l.ffn_norm, options_.eps, normed);
            seen(i, "ffn_input", normed);
            tiffin::token_inputs given{.token_ids = ids};
            if (l.ffn.block.needs().residual) given.residual = {x.data(), ids.size(), options_.d_model};
            if (l.ffn.rows) given.per_layer_input = l.ffn.rows->of_next(ids);
            l.ffn.block(normed, given, y, workspace_, execute_);
            seen(i, "ffn_output", y);
            if (l.ffn_out_norm.size() > 0) normalise(y, l.ffn_out_norm, options_.eps, y);
            x += y;
            seen(i, "hidden", x);
            check_finite(x, done_, "the FFN" + of_layer);
        }
        done_ += ids.size();
        return x;
    }

    attention_options options_;
    std::size_t context_, done_ = 0, from_ = 0;
    tiffin::executor_ref execute_;
    bool scaled_embeddings_;
    attention_options options_of_windows_;
    tiffin::tensor_view embeddings_{};
    row_vector output_norm_, head_bias_, frequency_factors_;
    row_matrix head_;
    std::vector<layer> layers_;
    std::optional<rotation> rotation_, rotation_of_windows_;
    tiffin::workspace workspace_;
};
