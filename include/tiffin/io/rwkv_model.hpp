// The channel mixing of an RWKV-7 checkpoint in safetensors.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/io/described_layer.hpp>
#include <tiffin/io/model_source.hpp>
#include <tiffin/io/safetensors.hpp>
#include <tiffin/io/used_tensors.hpp>
#include <tiffin/tensor.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io::detail {

// RWKV's files have no configuration: one file, and names. A layer is `mlp` of relu squared, or, with `ffn.s_emb.weight`,
// DeepEmbed with a matrix per token (deep_embed_v7a): its table is the sum of what is stored and of the normed word
// embedding's projection, as RWKV folds it when it loads; so it is in memory, in f32, for 2 V n w d FLOPs.
// Source: rwkv 0.8.32, model.py, RWKV_x070 with RWKV_DE_VERSION 1. The shift of tokens is the caller's.
class rwkv_model final : public model_source {
public:
    static bool is_one(const safetensors_file& file) {
        return file.tensors().find("emb.weight") != nullptr &&
               file.tensors().find("blocks.0.ffn.key.weight") != nullptr;
    }
    static result<std::shared_ptr<const model_source>> open(const std::filesystem::path& path) {
        auto file = safetensors_file::map(path, unread_tensors::listed);
        if (!file) return file.failure();
        if (!is_one(*file))
            return failure(errc::option, file->label(),
                           "is a safetensors file without a config.json, and has no emb.weight and "
                           "blocks.0.ffn.key.weight, as RWKV's have");
        auto made = std::make_shared<rwkv_model>(*std::move(file));
        while (made->find_of(made->layers_, "ffn.key.weight") != nullptr) ++made->layers_;
        return std::shared_ptr<const model_source>(std::move(made));
    }
    explicit rwkv_model(safetensors_file file) : file_(std::move(file)) {}

    [[nodiscard]] std::string_view architecture() const noexcept override { return "rwkv7"; }
    [[nodiscard]] std::size_t layers() const noexcept override { return layers_; }
    [[nodiscard]] const std::string& label() const noexcept override { return file_.label(); }

    [[nodiscard]] result<described_layer> layer(std::size_t index) const override {
        described_layer made;
        const bool deep = find_of(index, "ffn.s_emb.weight") != nullptr;
        made.options = deep ? options{{"block", "deep_embed"}}
                            : options{{"block", "mlp"}, {"activation", "relu_squared"}};
        for (const auto& [theirs, ours] :
             {std::pair{"ffn.key.weight", deep ? "gate_proj.weight" : "up_proj.weight"},
              std::pair{"ffn.value.weight", "down_proj.weight"}}) {
            const auto found = matrix(index, theirs);
            if (!found) return found.failure();
            made.tensors.add(ours, *found);
        }
        if (status s = check_all_used(index, deep); !s) return s.failure();
        if (!deep) return {std::move(made)};
        const auto owned = std::make_shared<made_tensors>();
        for (const auto& [theirs, ours] :
             {std::pair{"ffn.s1", "in_proj.weight"}, std::pair{"ffn.s2", "out_proj.weight"}}) {
            const auto found = matrix(index, theirs);
            if (!found) return found.failure();
            made.tensors.add(ours, transposed(*found, *owned));
        }
        const auto bias = find(index, "ffn.s0");
        if (!bias) return bias.failure();
        tensor_view s0 = *bias;
        s0.shape = shape(s0.shape.elements());  // stored as (1, 1, f)
        made.tensors.add("out_proj.bias", s0);
        if (status s = fold(index, made, *owned); !s) return s.failure();
        made.keep = owned;
        return {std::move(made)};
    }

private:
    using options = std::map<std::string, std::string>;
    using made_tensors = std::deque<std::vector<float>>;

    [[nodiscard]] static std::string name_of_part(std::size_t layer, std::string_view part) {
        return "blocks." + std::to_string(layer) + "." + std::string(part);
    }
    [[nodiscard]] const tensor_view* find_of(std::size_t layer, std::string_view part) const {
        return file_.tensors().find(name_of_part(layer, part));
    }
    [[nodiscard]] result<tensor_view> find_named(const std::string& name) const {
        const tensor_view* const t = file_.tensors().find(name);
        for (const unread_safetensor& unread : file_.unread())
            if (unread.name == name) return failure(errc::dtype, name, unread.reason());
        if (t == nullptr) return failure(errc::missing_tensor, name, "missing");
        if (is_integer(t->type)) return failure(errc::dtype, name, "is ", name_of(t->type));
        return *t;
    }
    [[nodiscard]] result<tensor_view> find(std::size_t layer, std::string_view part) const {
        return find_named(name_of_part(layer, part));
    }
    [[nodiscard]] result<tensor_view> matrix(std::size_t layer, std::string_view part) const {
        auto found = find(layer, part);
        if (found && found->shape.rank() != 2)
            return failure(errc::shape, name_of_part(layer, part), "has shape ", to_string(found->shape),
                           "; it is a matrix");
        return found;
    }
    // All tensors of the layer are used, but for the shift, which is the caller's. Other versions of RWKV have more: a
    // receptance, other shifts.
    [[nodiscard]] status check_all_used(std::size_t layer, bool deep) const {
        used_tensors used("the channel mixing of 'rwkv7'");
        used.own(name_of_part(layer, "ffn."));
        for (const char* const part : {"ffn.x_k", "ffn.key.weight", "ffn.value.weight"})
            used.add(name_of_part(layer, part));
        if (deep) {
            for (const char* const part :
                 {"ffn.s_emb.weight", "ffn.s_emb_x.weight", "ffn.s0", "ffn.s1", "ffn.s2"})
                used.add(name_of_part(layer, part));
            for (const char* const name : {"emb.weight", "blocks.0.ln0.weight", "blocks.0.ln0.bias"})
                used.add(name);
        }
        for (const weights::entry& e : file_.tensors().entries())
            if (status s = used.check(e.name); !s) return s;
        for (const unread_safetensor& t : file_.unread())
            if (status s = used.check(t.name); !s) return s;
        return {};
    }
    static tensor_view transposed(const tensor_view& t, made_tensors& owned) {
        const std::size_t rows = t.shape[0], columns = t.shape[1];
        std::vector<float>& to = owned.emplace_back(t.shape.elements());
        std::vector<float> row(columns);
        for (std::size_t r = 0; r < rows; ++r) {
            read_as_f32(t, r * columns, columns, row.data());
            for (std::size_t c = 0; c < columns; ++c) to[c * rows + r] = row[c];
        }
        return {to.data(), dtype::f32, {columns, rows}};
    }
    // M[t] = s_emb[t] + LN(emb[t]) s_emb_x^T, row k of the matrix at (k, t).
    status fold(std::size_t layer, described_layer& to, made_tensors& owned) const {
        const auto table = matrix(layer, "ffn.s_emb.weight"),
                   projection = matrix(layer, "ffn.s_emb_x.weight");
        const auto words = find_named("emb.weight"), scale = find_named("blocks.0.ln0.weight"),
                   shift = find_named("blocks.0.ln0.bias");
        for (const auto* const one : {&table, &projection, &words, &scale, &shift})
            if (!*one) return one->failure();
        const std::size_t n = to.tensors.find("in_proj.weight")->shape[0],
                          w = to.tensors.find("out_proj.weight")->shape[1];
        const std::size_t vocab = table->shape[0], d = projection->shape[1];
        if (table->shape[1] != n * w || projection->shape[0] != n * w || words->shape != shape(vocab, d) ||
            scale->shape.elements() != d || shift->shape.elements() != d)
            return failure(errc::shape, name_of_part(layer, "ffn.s_emb.weight"), "has shape ",
                           to_string(table->shape), ", s_emb_x ", to_string(projection->shape), ", emb ",
                           to_string(words->shape), "; s1 and s2 have ", n, " and ", w, " values for each");
        std::vector<float> weights_of_norm(d), bias_of_norm(d), word(d), row(n * w);
        made_tensors of_fold;
        const auto* const by = static_cast<const float*>(transposed(*projection, of_fold).data);  // (d, n w)
        read_as_f32(*scale, 0, d, weights_of_norm.data());
        read_as_f32(*shift, 0, d, bias_of_norm.data());
        std::vector<float>& made = owned.emplace_back(n * vocab * w);
        for (std::size_t t = 0; t < vocab; ++t) {
            read_as_f32(*words, t * d, d, word.data());
            double mean = 0, spread = 0;
            for (const float v : word) mean += static_cast<double>(v);
            mean /= static_cast<double>(d);
            for (const float v : word)
                spread += (static_cast<double>(v) - mean) * (static_cast<double>(v) - mean);
            const double by_spread = 1 / std::sqrt(spread / static_cast<double>(d) + 1e-5);
            for (std::size_t i = 0; i < d; ++i)
                word[i] = static_cast<float>((static_cast<double>(word[i]) - mean) * by_spread) *
                              weights_of_norm[i] +
                          bias_of_norm[i];
            read_as_f32(*table, t * n * w, n * w, row.data());
            for (std::size_t i = 0; i < d; ++i)
                for (std::size_t j = 0; j < n * w; ++j) row[j] += word[i] * by[i * n * w + j];
            for (std::size_t k = 0; k < n; ++k)
                std::copy_n(row.data() + k * w, w, made.data() + (k * vocab + t) * w);
        }
        to.tensors.add("deep_embed.weight", {made.data(), dtype::f32, {n, vocab, w}});
        return {};
    }

    safetensors_file file_;
    std::size_t layers_ = 0;
};

}  // namespace io::detail
TIFFIN_END
