#include "training_run.hpp"

#include <tiffin/io/safetensors.hpp>
#include <tiffin/io/safetensors_writer.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>

namespace {

constexpr const char* form = "tiffin train 1";

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& what) {
    throw std::runtime_error(path.string() + ": " + what);
}

std::uint64_t number_in(const std::map<std::string, std::string>& texts, const char* key,
                        const std::filesystem::path& path) {
    const auto at = texts.find(key);
    const auto read = at != texts.end() ? seed_numbers.read(at->second) : std::nullopt;
    if (!read) refuse(path, std::string("tells no ") + key);
    return *read;
}

// The most sequences of a batch that a rank has. Throws where a rank would have none.
std::size_t most_sequences(std::size_t batch, const training_ranks* ranks) {
    const std::size_t count = ranks != nullptr ? static_cast<std::size_t>(ranks->count()) : 1;
    if (batch < count)
        throw std::invalid_argument("--batch " + std::to_string(batch) + ": " + std::to_string(count) +
                                    " ranks share the sequences of a step, and one would have none");
    return (batch + count - 1) / count;
}

// Of a tensor of a table: its values, moments, or counts of steps.
std::size_t row_bytes_of(tiffin::dtype type, const tiffin::shape& shape, const table_block& of) {
    return shape.elements() / (of.experts() * of.vocab()) * tiffin::size_of(type);
}
// Calls visit(rank, first byte, bytes) for what all ranks have of a table, in its order, in pieces, while it returns true.
template <class Visit>
void each_block(const training_ranks& ranks, const table_block& of, std::size_t row_bytes,
                const Visit& visit) {
    constexpr std::size_t most = std::size_t{1} << 24;
    const tiffin::shard_grid grid{static_cast<std::size_t>(ranks.count()), 1};
    for (int r = 0; r < ranks.count(); ++r) {
        const std::size_t bytes = grid.rows_at(r, of.experts() * of.vocab()).count * row_bytes;
        for (std::size_t at = 0; at < bytes; at += most)
            if (!visit(r, at, std::min(most, bytes - at))) return;
    }
}

}  // namespace

std::uint64_t hash_of(std::span<const std::int32_t> tokens) {
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (const std::int32_t t : tokens) hash = (hash ^ static_cast<std::uint32_t>(t)) * 0x100000001b3u;
    return hash;
}

checkpoint_head read_head(const std::filesystem::path& path) {
    const auto file = tiffin::io::safetensors_file::map(path).or_throw();
    const auto& texts = file.metadata();
    if (const auto at = texts.find("form"); at == texts.end() || at->second != form)
        refuse(path, std::string("is no checkpoint of this program (form '") + form + "')");
    checkpoint_head head;
    try {
        head.options = run_options::from_texts(texts);
    } catch (const std::runtime_error& e) {
        refuse(path, e.what());
    }
    head.step = number_in(texts, "step", path);
    head.text_hash = number_in(texts, "text", path);
    const tiffin::tensor_view* const merges = file.tensors().find("tokenizer.merges");
    if (merges == nullptr || merges->type != tiffin::dtype::i32) refuse(path, "has no tokenizer.merges");
    head.merges.resize(merges->shape.elements());
    std::memcpy(head.merges.data(), merges->data, head.merges.size() * sizeof(std::int32_t));
    return head;
}

training_run::training_run(const run_options& options, const byte_pairs& tokenizer,
                           tiffin::executor_ref execute, training_ranks* ranks)
    : options_(options),
      merges_(tokenizer.merges()),
      execute_(execute),
      ranks_(ranks),
      model_(options.sizes(tokenizer.size()), most_sequences(options.batch, ranks) * options.context,
             {.switch_balance = options.balance, .mort_balance = options.mort_balance, .z = options.z_loss},
             execute, {}, ranks),
      optimizer_({.decay = options.decay,
                  .clip = options.clip,
                  .resting_rows_decay = options.resting_rows_decay != 0}),
      rate_(options.learning_rate()),
      ids_(tokens_per_step()),
      targets_(tokens_per_step()),
      losses_(tokens_per_step()) {
    model_.initialise(options.seed, static_cast<float>(options.scale));
    model_.add_to(optimizer_);
}

template <class Visit>
void training_run::visit_tensors(const Visit& visit) {
    for (const parameters::tensor& t : model_.numbers().all())
        visit(t.name, t.type, t.shape, const_cast<std::byte*>(t.memory.data()), nullptr);
    optimizer_.visit_state(
        [&](const std::string& name, tiffin::dtype type, const tiffin::shape& shape, void* data) {
            visit("optimizer." + name, type, shape, static_cast<std::byte*>(data), nullptr);
        });
    for (const auto& b : model_.blocks()) {
        const auto part = [&](const std::string& name, tiffin::dtype type, const tiffin::shape& shape,
                              auto& numbers) {
            visit(name, type, shape, reinterpret_cast<std::byte*>(numbers.data()), b.get());
        };
        part(b->name, tiffin::dtype::f32, b->whole, b->values);
        part("optimizer." + b->name + ".first_moment", tiffin::dtype::f32, b->whole, b->learning.first);
        part("optimizer." + b->name + ".second_moment", tiffin::dtype::f32, b->whole, b->learning.second);
        part("optimizer." + b->name + ".row_steps", tiffin::dtype::i32,
             tiffin::shape(b->experts() * b->vocab()), b->learning.steps);
    }
}

void training_run::save(const std::filesystem::path& path, std::uint64_t text_hash) {
    tiffin::io::safetensors_writer file;
    file.set("form", form).set("step", std::to_string(done_)).set("text", std::to_string(text_hash));
    for (const auto& [name, text] : options_.as_texts()) file.set(name, text);
    file.add("tokenizer.merges", {merges_.data(), tiffin::dtype::i32, {merges_.size() / 2, 2}});
    std::vector<std::span<const std::byte>> blocks;
    const training_ranks::reads* read = nullptr;
    visit_tensors([&](const std::string& name, tiffin::dtype type, const tiffin::shape& shape,
                      std::byte* data, const table_block* block) {
        if (block == nullptr) {
            file.add(name, {data, type, shape});
            return;
        }
        const std::size_t row = row_bytes_of(type, shape, *block), piece = blocks.size();
        blocks.emplace_back(data, block->rows.count * row);
        file.add(name, type, shape,
                 [&read, this, block, row, piece](const tiffin::io::byte_sink& sink) -> tiffin::status {
                     each_block(*ranks_, *block, row, [&](int rank, std::size_t first, std::size_t bytes) {
                         std::vector<std::byte> some(bytes);
                         (*read)(rank, piece, first, some);
                         return sink(some.data(), bytes);
                     });
                     return {};
                 });
    });
    const auto write = [&](const training_ranks::reads& from) {
        read = &from;
        file.write(path).or_throw();
    };
    if (ranks_ == nullptr)
        write({});
    else
        ranks_->at_first(blocks, write);
}

void training_run::load(const std::filesystem::path& path) {
    const auto file = tiffin::io::safetensors_file::map(path).or_throw();
    std::size_t found = 1;  // the merges
    visit_tensors([&](const std::string& name, tiffin::dtype type, const tiffin::shape& shape, std::byte*,
                      const table_block*) {
        const tiffin::tensor_view* const t = file.tensors().find(name);
        if (t == nullptr) refuse(path, "has no tensor " + name);
        if (t->type != type || !(t->shape == shape))
            refuse(path, "has " + name + " of shape " + to_string(t->shape) + "; the model's is " +
                             to_string(shape));
        ++found;
    });
    if (found != file.tensors().entries().size())
        refuse(path, "has " + std::to_string(file.tensors().entries().size()) + " tensors; the model has " +
                         std::to_string(found));
    visit_tensors([&](const std::string& name, tiffin::dtype type, const tiffin::shape& shape,
                      std::byte* data, const table_block* block) {
        const auto* const from = static_cast<const std::byte*>(file.tensors().find(name)->data);
        if (block == nullptr) {
            std::memcpy(data, from, shape.elements() * tiffin::size_of(type));
            return;
        }
        const std::size_t row = row_bytes_of(type, shape, *block);
        std::memcpy(data, from + block->rows.first * row, block->rows.count * row);
    });
    done_ = number_in(file.metadata(), "step", path);
    optimizer_.set_steps(done_);
}

step_losses training_run::step(text_batches& text) {
    const std::string at = " in step " + std::to_string(done_ + 1);
    const tiffin::shard_range own = part_of(options_.batch);
    const auto ids = std::span(ids_).first(own.count * options_.context);
    const auto targets = std::span(targets_).first(ids.size());
    text.fill(done_ * options_.batch + own.first, ids, targets);
    model_.clear_gradients();
    const step_losses losses = model_.learn(ids, targets);
    if (!std::isfinite(losses.prediction + losses.router))
        throw std::runtime_error("the loss is not finite" + at + ": " + std::to_string(losses.prediction) +
                                 ", that of routers " + std::to_string(losses.router));
    std::function<double(double)> over_ranks;
    if (ranks_ != nullptr)
        over_ranks = [this](double x) {
            ranks_->add_up({&x, 1});
            return x;
        };
    if (const tiffin::status s = optimizer_.step(rate_.at(done_), execute_, over_ranks); !s)
        throw std::runtime_error(s.failure().message());
    ++done_;
    return losses;
}

double training_run::judge(std::span<const std::int32_t> tokens, std::size_t most_tokens) {
    const std::size_t context = options_.context;
    const std::size_t sequences = std::min(most_tokens, tokens.empty() ? 0 : tokens.size() - 1) / context;
    if (sequences == 0)
        throw std::invalid_argument("the held-out text has " + std::to_string(tokens.size()) +
                                    " tokens, not one sequence of " + std::to_string(context));
    double sum = 0;
    for (std::size_t first = 0; first < sequences; first += options_.batch) {
        const tiffin::shard_range own = part_of(std::min(options_.batch, sequences - first));
        const std::size_t n = own.count * context, at = (first + own.first) * context;
        const auto losses = std::span(losses_).first(n);
        model_.judge(tokens.subspan(at, n), tokens.subspan(at + 1, n), context, losses);
        for (const double loss : losses) sum += loss;
    }
    if (ranks_ != nullptr) ranks_->add_up({&sum, 1});
    return sum / static_cast<double>(sequences * context);
}
