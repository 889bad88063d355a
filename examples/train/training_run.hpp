// A run: text, tokenizer, model and optimizer, and the checkpoints between which it can be stopped.
#pragma once

#include "byte_pairs.hpp"
#include "language_model.hpp"
#include "run_options.hpp"
#include "text_batches.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

// What is read of a checkpoint before there is a model.
struct checkpoint_head {
    run_options options;
    std::uint64_t step = 0;       // steps done
    std::uint64_t text_hash = 0;  // of the tokens that it learns from
    std::vector<std::int32_t> merges;
};
// Throws std::runtime_error for a file that is none, or is torn, naming it.
checkpoint_head read_head(const std::filesystem::path& path);

// FNV-1a over tokens: whether a run goes on with the text that it began with.
std::uint64_t hash_of(std::span<const std::int32_t> tokens);

class training_run {
public:
    // Begins anew. `ranks`: share batches and tables; all calls are then collective. Throws what is wrong with the
    // options.
    training_run(const run_options& options, const byte_pairs& tokenizer, tiffin::executor_ref execute,
                 training_ranks* ranks = nullptr);

    // Everything that a later run needs to go on as if this one had not stopped, on any number of ranks; a file appears
    // whole or not at all. Of several ranks the first writes it.
    // Throws std::runtime_error, naming the file, where it cannot be written (a full disk); what was there stays.
    void save(const std::filesystem::path& path, std::uint64_t text_hash);
    // Takes over the weights, moments and the step of a checkpoint of the same sizes.
    // Throws std::runtime_error where it is of another shape, naming the tensor.
    void load(const std::filesystem::path& path);

    // One step. Throws std::runtime_error where the loss or a gradient is not finite; nothing has learnt then.
    step_losses step(text_batches& text);
    // Nats per token over the first sequences of a text that is not learnt from.
    [[nodiscard]] double judge(std::span<const std::int32_t> tokens, std::size_t most_tokens);

    [[nodiscard]] std::uint64_t steps_done() const { return done_; }
    [[nodiscard]] language_model& model() { return model_; }
    [[nodiscard]] const run_options& options() const { return options_; }
    [[nodiscard]] std::size_t tokens_per_step() const { return options_.batch * options_.context; }
    [[nodiscard]] double gradient_norm() const { return optimizer_.gradient_norm(); }

private:
    // visit(name, type, shape, data, block) for all that a checkpoint holds. block: the data is of this rank's rows of it;
    // null: it is whole.
    template <class Visit>
    void visit_tensors(const Visit& visit);

    // This rank's part of n sequences.
    [[nodiscard]] tiffin::shard_range part_of(std::size_t n) const {
        return ranks_ != nullptr ? ranks_->part_of(n) : tiffin::shard_range{0, n};
    }

    run_options options_;
    std::vector<std::int32_t> merges_;
    tiffin::executor_ref execute_;
    training_ranks* ranks_;
    language_model model_;
    tiffin::adamw<tiffin::simd<>> optimizer_;
    tiffin::learning_rate rate_;
    std::uint64_t done_ = 0;
    std::vector<std::int32_t> ids_, targets_;
    std::vector<double> losses_;
};
