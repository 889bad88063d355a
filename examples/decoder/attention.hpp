// Causal self-attention with grouped keys and values, rotary positions, and a cache of what came before.
#pragma once

#include "model_file.hpp"
#include "products.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

// How a layer attends.
struct attention_options {
    std::size_t d_model, heads, kv_heads, head;    // `head`: the width of one
    std::size_t rotated;                           // the first numbers of a head that positions turn
    bool neighbours, normed_heads, normed_values;  // see architecture
    double base, stretch;                          // angles: position / stretch / base^(2i / rotated)
    double lengthened;                             // what turning multiplies, beside
    float scale, eps;
    std::size_t window;   // tokens that a token sees, itself among them; 0: all
    std::size_t keys_of;  // the layer whose keys and values it reads

    static attention_options of(const model_file& file, std::size_t layer) {
        attention_options o{};
        const architecture& kind = file.kind();
        o.d_model = file.count("embedding_length");
        o.heads = file.count_of("attention.head_count", layer);
        o.kv_heads = file.count_of("attention.head_count_kv", layer, o.heads);
        o.neighbours = kind.rotates_neighbours;
        o.normed_heads = kind.normed_heads;
        o.normed_values = kind.normed_values;
        o.eps = static_cast<float>(file.positive("attention.layer_norm_rms_epsilon"));
        o.lengthened = file.positive("rope.scaling.attn_factor", 1.0);
        o.keys_of = file.keys_of(layer);
        // 0: as if the key was not there.
        const auto above_0 = [&](const char* key, double otherwise) {
            return file.find<double>(key).value_or(0.0) == 0 ? otherwise : file.positive(key);
        };
        const auto stretching = file.find<std::string_view>("rope.scaling.type").value_or("linear");
        if (stretching != "none" && stretching != "linear")
            file.refuse("rope.scaling.type is " + tiffin::detail::in_quotes(stretching) +
                        "; known are 'none' and 'linear'");
        const char* const factor =
            file.has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";
        // Layers that see a window have positions of their own, not stretched, and may have heads of their own.
        const bool windowed = file.is_windowed(layer);
        const auto key = [&](const char* name) {
            return std::string(name) + (windowed && file.has(std::string(name) + "_swa") ? "_swa" : "");
        };
        o.window = windowed ? file.count("attention.sliding_window") : 0;
        o.base = windowed ? file.positive("rope.freq_base_swa", 10000.0)
                          : file.positive("rope.freq_base", 10000.0);
        o.stretch = windowed || stretching == "none" ? 1 : above_0(factor, 1.0);
        o.head = file.count(key("attention.key_length"), std::max<std::size_t>(o.d_model / o.heads, 1));
        o.rotated = file.count(key("rope.dimension_count"), o.head);
        // The largest Gemma 3, of 62 layers, has heads narrower than their share of d_model, by which it scales.
        const bool by_share = kind.windowed > 0 && file.layers() == 62;
        const double root = 1 / std::sqrt(static_cast<double>(by_share ? o.d_model / o.heads : o.head));
        o.scale = static_cast<float>(above_0("attention.scale", o.normed_values ? 1 : root));
        const auto told = [](std::size_t n) { return std::to_string(n); };
        if (o.heads % o.kv_heads != 0)
            file.refuse(told(o.heads) + " heads are no multiple of " + told(o.kv_heads) +
                        " heads of keys and values");
        if (o.rotated % 2 != 0 || o.rotated > o.head)
            file.refuse(key("rope.dimension_count") + " is " + told(o.rotated) +
                        "; it must be even, and at most " + told(o.head));
        if (const std::size_t width = file.count(key("attention.value_length"), o.head); width != o.head)
            file.refuse("values of " + told(width) + " numbers beside keys of " + told(o.head) +
                        " are not known");
        return o;
    }
    // Whether layers have the same angles.
    [[nodiscard]] bool turns_as(const attention_options& o) const noexcept {
        return rotated == o.rotated && base == o.base && stretch == o.stretch &&
               (window > 0) == (o.window > 0);
    }
    [[nodiscard]] std::size_t narrow() const noexcept { return kv_heads * head; }
};

// Cosines and sines of all positions, lengthened, (positions, rotated / 2).
struct rotation {
    row_matrix cosines, sines;

    // `factors` divide the frequencies, where there are any.
    rotation(const attention_options& o, const row_vector& factors, std::size_t positions)
        : cosines(as_index(positions), as_index(o.rotated / 2)), sines(cosines.rows(), cosines.cols()) {
        for (Eigen::Index i = 0; i < cosines.cols(); ++i) {
            const double power = -2.0 * static_cast<double>(i) / static_cast<double>(o.rotated);
            const double factor = factors.size() > 0 ? static_cast<double>(factors[i]) : 1.0;
            const double turn = std::pow(o.base, power) / o.stretch / factor;
            for (Eigen::Index t = 0; t < cosines.rows(); ++t) {
                const double angle = static_cast<double>(t) * turn;
                cosines(t, i) = static_cast<float>(std::cos(angle) * o.lengthened);
                sines(t, i) = static_cast<float>(std::sin(angle) * o.lengthened);
            }
        }
    }

    // Turns the heads in the rows of x, which stand at positions `first` on.
    void turn(const attention_options& o, Eigen::Index first, Eigen::Ref<row_matrix> x) const {
        const Eigen::Index pairs = cosines.cols(), head = as_index(o.head);
        const Eigen::Index step = o.neighbours ? 2 : 1, apart = o.neighbours ? 1 : pairs;
        for (Eigen::Index t = 0; t < x.rows(); ++t)
            for (Eigen::Index h = 0; h < x.cols(); h += head)
                for (Eigen::Index i = 0; i < pairs; ++i) {
                    float &a = x(t, h + i * step), &b = x(t, h + i * step + apart);
                    const float c = cosines(first + t, i), s = sines(first + t, i), was = a;
                    a = was * c - b * s;
                    b = was * s + b * c;
                }
    }
};

// Of all layers with these angles.
struct shared_rotation {
    attention_options options;
    row_vector factors;
    std::optional<rotation> now{};
};

// Keys and values of a layer, (positions, kv_heads * head).
struct attention_cache {
    row_matrix keys, values;
};

// y = attention(x), one layer's. Biases are those that the file has.
class attention {
public:
    attention(model_file& file, std::size_t layer)
        : options_(attention_options::of(file, layer)), has_keys_(options_.keys_of == layer) {
        const attention_options& o = options_;
        const std::string at = "blk." + std::to_string(layer) + ".attn_";
        const std::size_t wide = o.heads * o.head, narrow = has_keys_ ? o.narrow() : 0;
        qkv_.resize(as_index(wide + 2 * narrow), as_index(o.d_model));
        qkv_bias_.setZero(qkv_.rows());
        const auto read = [&](const std::string& name, std::size_t first, std::size_t width) {
            qkv_.middleRows(as_index(first), as_index(width)) =
                file.matrix(at + name + ".weight", width, o.d_model);
            const row_vector bias = file.vector(at + name + ".bias", width, true);
            if (bias.size() > 0) qkv_bias_.segment(as_index(first), bias.size()) = bias;
        };
        read("q", 0, wide);
        if (has_keys_) {
            read("k", wide, narrow);
            // Gemma 4 may have no values but its keys.
            const bool no_values = o.normed_values && !file.is_there(at + "v.weight");
            read(no_values ? "k" : "v", wide + narrow, narrow);
        } else {
            for (const char* const unread : {"k.weight", "v.weight", "k_norm.weight"})
                file.pass_over(at + unread);
        }
        out_ = file.matrix(at + "output.weight", o.d_model, wide);
        out_bias_ = file.vector(at + "output.bias", o.d_model, true);
        if (!o.normed_heads) return;
        q_norm_ = file.vector(at + "q_norm.weight", o.head);
        if (has_keys_) k_norm_ = file.vector(at + "k_norm.weight", o.head);
        if (o.normed_values) v_norm_ = row_vector::Ones(as_index(o.head));
    }

    [[nodiscard]] const attention_options& options() const noexcept { return options_; }

    // Rows of x stand at positions `first` on; those before are in the cache, which these are added to where the layer has
    // keys and values of its own.
    void operator()(const rotation& turned, const row_matrix& x, Eigen::Index first, attention_cache& cache,
                    row_matrix& y, tiffin::executor_ref execute) const {
        const attention_options& o = options_;
        row_matrix qkv;  // queries, keys and values side by side
        multiply(x, qkv_, qkv_bias_, qkv, execute);
        const Eigen::Index head = as_index(o.head), wide = as_index(o.heads) * head;
        const Eigen::Index narrow = has_keys_ ? as_index(o.narrow()) : 0;
        const auto norm_heads = [&](Eigen::Index begin, Eigen::Index width, const row_vector& weight) {
            for (Eigen::Index h = begin; h < begin + width && weight.size() > 0; h += head) {
                auto one = qkv.middleCols(h, head);
                normalise(one, weight, o.eps, one);
            }
        };
        norm_heads(0, wide, q_norm_);
        norm_heads(wide, narrow, k_norm_);
        norm_heads(wide + narrow, narrow, v_norm_);
        turned.turn(o, first, qkv.leftCols(wide + narrow));
        if (has_keys_) {
            cache.keys.middleRows(first, x.rows()) = qkv.middleCols(wide, narrow);
            cache.values.middleRows(first, x.rows()) = qkv.rightCols(narrow);
        }

        // A task is a head and some rows, which read the keys up to the last of them.
        constexpr std::size_t together = 64;
        const std::size_t tokens = static_cast<std::size_t>(x.rows());
        const std::size_t groups = (tokens + together - 1) / together, shared = o.heads / o.kv_heads;
        row_matrix mixed(x.rows(), wide);
        const auto task = [&](std::size_t i) {
            const std::size_t from = i / o.heads * together, count = std::min(together, tokens - from);
            const Eigen::Index h = as_index(i % o.heads) * head, of = as_index(i % o.heads / shared) * head;
            const Eigen::Index begin = as_index(from), n = as_index(count), seen = first + begin + n;
            row_matrix weights =
                qkv.block(begin, h, n, head) * cache.keys.block(0, of, seen, head).transpose();
            for (Eigen::Index t = 0; t < n; ++t) {
                const Eigen::Index end = first + begin + t + 1;
                const Eigen::Index window = o.window == 0 ? end : as_index(o.window);
                const Eigen::Index hidden = std::max<Eigen::Index>(end - window, 0);
                weights.row(t).head(hidden).setZero();
                auto row = weights.row(t).segment(hidden, end - hidden);
                row = ((row.array() - row.maxCoeff()) * o.scale).exp().matrix();
                row /= row.sum();
                weights.row(t).tail(seen - end).setZero();
            }
            mixed.block(begin, h, n, head).noalias() = weights * cache.values.block(0, of, seen, head);
        };
        execute(groups * o.heads, tiffin::task_ref(task));
        multiply(mixed, out_, out_bias_, y, execute);
    }

private:
    attention_options options_;
    bool has_keys_;
    row_matrix qkv_, out_;
    row_vector qkv_bias_, out_bias_, q_norm_, k_norm_, v_norm_;
};
