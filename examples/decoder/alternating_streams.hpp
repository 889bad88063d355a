// The streams of Gemma 3n (AltUp), of which a layer computes one and guesses the others, and the low-rank path beside its
// attention (Laurel).
// Source: Baykal et al., Alternating Updates for Efficient Transformers, arXiv 2301.13310; llama.cpp's gemma3n.
#pragma once

#include "model_file.hpp"
#include "products.hpp"

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

// What a layer has of it.
struct alternating_layer {
    row_matrix router, predict, correct, laurel_left, laurel_right;
    row_vector router_norm, correct_scale, laurel_norm;

    alternating_layer(model_file& file, std::size_t layer, std::size_t streams) {
        const std::string at = "blk." + std::to_string(layer) + ".";
        const std::size_t d = file.count("embedding_length");
        const auto matrix = [&](const char* name, std::size_t count, std::size_t width) {
            return file.matrix(at + name + ".weight", count, width);
        };
        const auto vector = [&](const char* name) { return file.vector(at + name + ".weight", d); };
        const tiffin::tensor_view* const left = file.file().tensors().find(at + "laurel_l.weight");
        const std::size_t rank = left != nullptr && left->shape.rank() == 2 ? left->shape[0] : 0;
        router = matrix("altup_router", streams, d);
        router_norm = vector("altup_router_norm");
        predict = matrix("altup_predict_coef", streams * streams, streams);
        correct = matrix("altup_correct_coef", streams, streams);
        correct_scale = vector("altup_correct_scale");
        laurel_left = matrix("laurel_l", rank, d);
        laurel_right = matrix("laurel_r", d, rank);
        laurel_norm = vector("laurel_post_norm");
    }

    // (x + rms(R L x) + y) / sqrt(2): x what attention reads, y what it adds to.
    void add_laurel(const row_matrix& x, float eps, row_matrix& y, tiffin::executor_ref execute) const {
        row_matrix inner, low;
        multiply(x, laurel_left, {}, inner, execute);
        multiply(inner, laurel_right, {}, low, execute);
        normalise(low, laurel_norm, eps, low);
        y = (y + x + low) * std::sqrt(0.5f);
    }
};

class alternating_streams {
public:
    explicit alternating_streams(model_file& file)
        : eps_(static_cast<float>(file.positive("attention.layer_norm_rms_epsilon"))),
          count_(file.count("altup.num_inputs", 4)),
          active_(static_cast<std::size_t>(file.find<std::uint64_t>("altup.active_idx").value_or(0))) {
        const std::size_t d = file.count("embedding_length");
        if (count_ < 2 || active_ >= count_)
            file.refuse("altup.num_inputs is " + std::to_string(count_) + " and altup.active_idx " +
                        std::to_string(active_) + "; there are two streams or more, and it is one of them");
        apart_ = file.matrices("altup_proj.weight", count_ - 1, d, d);
        together_ = file.matrices("altup_unembd_proj.weight", count_ - 1, d, d);
    }

    [[nodiscard]] std::size_t count() const { return count_; }

    // Of embeddings: streams that are projections of them, as long as they are.
    void begin(const row_matrix& x, tiffin::executor_ref execute) {
        streams_.assign(count_, x);
        for (std::size_t i = 1; i < count_; ++i) project(x, apart_[i - 1], x, streams_[i], execute);
    }
    // What the streams become by the layer as it guesses; the guess of the active one, which the layer computes.
    const row_matrix& predict(const alternating_layer& l, tiffin::executor_ref execute) {
        const row_matrix shares = routed(l, streams_[active_], execute) * l.predict.transpose();
        in_parts(execute, static_cast<std::size_t>(shares.rows()), 1,
                 [&](Eigen::Index first, Eigen::Index count) {
                     row_matrix now(as_index(count_), streams_[0].cols());
                     for (Eigen::Index t = first; t < first + count; ++t) {
                         for (std::size_t i = 0; i < count_; ++i) now.row(as_index(i)) = streams_[i].row(t);
                         const Eigen::Map<const row_matrix> mix(shares.row(t).data(), as_index(count_),
                                                                as_index(count_));
                         for (std::size_t i = 0; i < count_; ++i)
                             streams_[i].row(t).noalias() += mix.row(as_index(i)) * now;
                     }
                 });
        return streams_[active_];
    }
    // Corrects the guesses by what the layer computed; the active stream then, scaled.
    row_matrix correct(const alternating_layer& l, const row_matrix& computed, tiffin::executor_ref execute) {
        const row_matrix shares = routed(l, computed, execute) * l.correct.transpose();
        const row_matrix missed = computed - streams_[active_];
        in_parts(execute, static_cast<std::size_t>(shares.rows()), 1,
                 [&](Eigen::Index first, Eigen::Index count) {
                     for (Eigen::Index t = first; t < first + count; ++t)
                         for (std::size_t i = 0; i < count_; ++i)
                             streams_[i].row(t) += (shares(t, as_index(i)) + 1) * missed.row(t);
                 });
        return streams_[active_] * l.correct_scale.asDiagonal();
    }
    // Adds to all streams but the first.
    void add_to_others(const row_matrix& y) {
        for (std::size_t i = 1; i < count_; ++i) streams_[i] += y;
    }
    [[nodiscard]] const row_matrix& active() const { return streams_[active_]; }
    // The mean of the first stream and projections of the others that are as long.
    row_matrix merged(tiffin::executor_ref execute) const {
        row_matrix all = streams_[0], one;
        for (std::size_t i = 1; i < count_; ++i) {
            project(streams_[i], together_[i - 1], streams_[0], one, execute);
            all += one;
        }
        return all / static_cast<float>(count_);
    }

private:
    // y = W x, each row as long as that of `like`.
    static void project(const row_matrix& x, const row_matrix& w, const row_matrix& like, row_matrix& y,
                        tiffin::executor_ref execute) {
        multiply(x, w, {}, y, execute);
        for (Eigen::Index t = 0; t < y.rows(); ++t) y.row(t) *= like.row(t).norm() / y.row(t).norm();
    }
    // tanh(R rms(x) / d), (T, streams).
    [[nodiscard]] row_matrix routed(const alternating_layer& l, const row_matrix& x,
                                    tiffin::executor_ref execute) const {
        row_matrix normed(x.rows(), x.cols()), y;
        normalise(x, l.router_norm, eps_, normed);
        multiply(normed, l.router, {}, y, execute);
        return (y.array() / static_cast<float>(x.cols())).tanh().matrix();
    }

    float eps_;
    std::size_t count_, active_;
    std::vector<row_matrix> apart_, together_, streams_;
};
