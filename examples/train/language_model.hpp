// A small Llama-like model that learns: embedding, layers of attention and an FFN, a head.
//   h = E[ids];  per layer: h += attention(norm(h)), h += ffn(norm(h));  logits = norm(h) U^T
// norm is rms, or LayerNorm with an offset; U is E, or a matrix of its own.
// Every product and every norm is a composition of tiffin, and so has its gradient from there; attention is Eigen's.
#pragma once

#include <tiffin/block/linear.hpp>
#include <tiffin/call/carried_residuals.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/learn/adamw.hpp>
#include <tiffin/learn/cross_entropy.hpp>
#include <tiffin/learn/router_loss.hpp>
#include <tiffin/source/bias.hpp>
#include <tiffin/source/centred.hpp>
#include <tiffin/source/source_input.hpp>
#include <tiffin/source/through.hpp>

#include "ffn_kinds.hpp"
#include "parameters.hpp"
#include "self_attention.hpp"
#include "training_ranks.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using rms_norm = tiffin::normed<tiffin::rms, tiffin::source_input>;
using layer_norm = tiffin::sum<tiffin::normed<tiffin::rms, tiffin::centred>, tiffin::bias<"norm.bias">>;

// The norm of the input, then a product.
template <class Norm, tiffin::fixed_string Name>
struct product_of : tiffin::through<"", Norm, tiffin::named<tiffin::dense, Name>> {
    static constexpr bool keeps_width = true;  // of the normed row
    static constexpr bool own_width = true;
};

struct model_sizes {
    ffn_sizes ffn;
    attention_sizes attention;
    std::size_t context = 128;       // tokens per sequence
    double rope_base = 10000;        // of the rotation by position
    std::vector<std::string> kinds;  // of each layer's FFN; "none": no FFN
    bool layer_norm = false;         // in place of rms
    bool untied_head = false;
    bool bf16_products = false;  // factors of products of weights rounded to bf16, forward and back
};

// What a step brings beside the gradients.
struct step_losses {
    double prediction = 0;  // nats per token, their mean
    double router = 0;      // balance and z-losses, their mean over the layers that have them
};

class language_model {
public:
    // `rows`: tokens of a batch at most. `router`: of its balance losses, a layer takes the one that its kind has.
    // Weights are zero until initialise() or until they are read.
    // `trains`: whether a tensor of numbers() learns; empty: all do. `ranks`: has the rows of tables, and the rest of
    // each batch; all calls are then collective. Throws what is wrong with the sizes.
    language_model(const model_sizes& sizes, std::size_t rows, const tiffin::router_loss_weights& router,
                   tiffin::executor_ref execute, std::function<bool(std::string_view name)> trains = {},
                   training_ranks* ranks = nullptr);

    // `scale`: of modulators.
    void initialise(std::uint64_t seed, float scale = 1);
    // Adds all that learns. The model must stay where it is.
    void add_to(tiffin::adamw<tiffin::simd<>>& optimizer);
    [[nodiscard]] parameters& numbers() { return numbers_; }
    [[nodiscard]] const parameters& numbers() const { return numbers_; }
    // Of the tables whose rows lie at ranks; they are not among numbers().
    [[nodiscard]] const std::vector<std::unique_ptr<table_block>>& blocks() const { return blocks_; }
    // Numbers that learn, of all ranks.
    [[nodiscard]] std::size_t count() const;
    [[nodiscard]] const model_sizes& sizes() const { return sizes_; }
    // FLOPs of the matrix products of a token, forward, as trained or as it runs with its tables folded; attention over
    // half the context.
    [[nodiscard]] double flops(bool folded = false) const;

    // What the last forward left of layer i: the residual stream before it, the input of its FFN, the routes of its
    // router, `choices` per token (none: empty).
    struct layer_rows {
        const row_matrix *residual, *ffn_input;
        std::span<const tiffin::choice<float>> routes;
        std::size_t choices, experts;
    };
    [[nodiscard]] layer_rows rows_of(std::size_t i) const;
    // The residual stream behind the last layer.
    [[nodiscard]] const row_matrix& last_rows() const { return h_; }
    // From now on the FFNs of `layers` read these ids in place of the text's: a knowledge edit. Empty: the text's again.
    void edit(std::vector<std::int32_t> ids, std::vector<bool> layers);

    // The residual stream before the first layer in place of embeddings, (T, d_model): these layers are the last ones of
    // a larger model.
    using stream = std::optional<Eigen::Ref<const row_matrix>>;
    // Forward and back over whole sequences of sizes().context tokens, once between two clear_gradients().
    // A prediction that is NaN is returned as it is. Losses are those of all ranks' tokens.
    step_losses learn(std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                      const stream& before = {});
    // The loss of each token, forward alone; sequences of any one length up to the context.
    // Gradients are to be cleared before the next step.
    void judge(std::span<const std::int32_t> ids, std::span<const std::int32_t> targets, std::size_t length,
               std::span<double> losses, const stream& before = {});
    // The logits behind the last of some tokens, up to the context. Likewise.
    std::span<const float> next(std::span<const std::int32_t> ids);
    void clear_gradients();

private:
    struct layer {
        layer(tiffin::trainable_layer<float> in, tiffin::trainable_layer<float> out)
            : qkv(std::move(in)), output(std::move(out)) {}
        tiffin::trainable_layer<float> qkv, output;
        std::optional<tiffin::trainable_layer<float>> norm, ffn;
        bool kind_reads_embedding = false;
        std::optional<tiffin::router_loss> router_loss;
        row_matrix h, qkv_rows, mixed, middle, normed;  // as backward reads them
        row_matrix logits, d_logits;                    // of a router
        std::vector<tiffin::choice<float>> routes;
        std::vector<std::pair<std::string, table_block*>> tables;  // at ranks, as the FFN calls them
        std::vector<tiffin::gathered_rows> gathered;               // their rows, for this call
        std::function<tiffin::status(const tiffin::chosen_experts<float>&)> on_chosen;
    };

    void add_tensors();
    void add_norm(const std::string& part);
    void share_gradients();
    // Layers remember the ids of all calls since their gradients were cleared, those of forward alone too.
    void make_room(std::size_t tokens);
    void add_layer(const std::string& kind, const std::string& prefix);
    [[nodiscard]] tiffin::tensor_view embedding() const;
    [[nodiscard]] bool learns(std::string_view name) const { return !trains_ || trains_(name); }
    // How a part is prepared whose tensors are called `part`name in numbers().
    [[nodiscard]] tiffin::training_options<float> options_of(const std::string& part,
                                                             std::size_t tokens) const;
    void forward(std::span<const std::int32_t> ids, std::size_t length, const stream& before = {});
    void backward(std::span<const std::int32_t> ids, std::size_t length);
    void predict(std::span<const std::int32_t> targets, std::span<double> losses, float scale);
    double balance(std::size_t rows);
    void add_embedding_gradients(const layer& l);
    [[nodiscard]] tiffin::training_inputs<float> inputs_of(std::size_t i, std::span<const std::int32_t> ids);
    // The first rows of a matrix with room for more.
    template <class Matrix>
    static tiffin::matrix_view<float> view(Matrix& m, std::size_t rows) {
        return {m.data(), rows, static_cast<std::size_t>(m.cols())};
    }

    model_sizes sizes_;
    std::size_t rows_;
    tiffin::executor_ref execute_;
    std::function<bool(std::string_view)> trains_;
    bool learns_embedding_, learns_below_;  // that; anything that the first block's gradient goes through
    tiffin::router_loss_weights router_;
    parameters numbers_;
    tiffin::aligned_buffer embedding_gradient_;
    training_ranks* ranks_;
    std::vector<std::unique_ptr<table_block>> blocks_;
    std::vector<std::unique_ptr<layer>> layers_;
    std::optional<tiffin::trainable_layer<float>> head_;
    self_attention attention_;
    tiffin::carried_rows<float> carried_, d_carried_;
    row_matrix h_, d_h_, d_rows_, d_mixed_, d_qkv_, y_, logits_;
    std::vector<double> losses_;
    std::size_t seen_ = 0;  // tokens since then
    std::vector<std::int32_t> edited_;
    std::vector<bool> edited_layers_;
    static constexpr std::size_t head_rows = 512;  // whose logits are held at once
};
