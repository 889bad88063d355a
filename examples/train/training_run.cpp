#include "training_run.hpp"

#include <tiffin/io/safetensors.hpp>
#include <tiffin/io/safetensors_writer.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
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
                           tiffin::executor_ref execute)
    : options_(options),
      merges_(tokenizer.merges()),
      execute_(execute),
      model_(options.sizes(tokenizer.size()), options.batch * options.context,
             {.switch_balance = options.balance, .mort_balance = options.mort_balance, .z = options.z_loss},
             execute),
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
        visit(t.name, t.type, t.shape, const_cast<std::byte*>(t.memory.data()));
    optimizer_.visit_state(
        [&](const std::string& name, tiffin::dtype type, const tiffin::shape& shape, void* data) {
            visit("optimizer." + name, type, shape, static_cast<std::byte*>(data));
        });
}

void training_run::save(const std::filesystem::path& path, std::uint64_t text_hash) {
    tiffin::io::safetensors_writer file;
    file.set("form", form).set("step", std::to_string(done_)).set("text", std::to_string(text_hash));
    for (const auto& [name, text] : options_.as_texts()) file.set(name, text);
    file.add("tokenizer.merges", {merges_.data(), tiffin::dtype::i32, {merges_.size() / 2, 2}});
    visit_tensors(
        [&](const std::string& name, tiffin::dtype type, const tiffin::shape& shape, std::byte* data) {
            file.add(name, {data, type, shape});
        });
    file.write(path).or_throw();
}

void training_run::load(const std::filesystem::path& path) {
    const auto file = tiffin::io::safetensors_file::map(path).or_throw();
    std::size_t found = 1;  // the merges
    visit_tensors([&](const std::string& name, tiffin::dtype type, const tiffin::shape& shape, std::byte*) {
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
    visit_tensors(
        [&](const std::string& name, tiffin::dtype type, const tiffin::shape& shape, std::byte* data) {
            std::memcpy(data, file.tensors().find(name)->data, shape.elements() * tiffin::size_of(type));
        });
    done_ = number_in(file.metadata(), "step", path);
    optimizer_.set_steps(done_);
}

step_losses training_run::step(text_batches& text) {
    const std::string at = " in step " + std::to_string(done_ + 1);
    text.fill(done_ * options_.batch, ids_, targets_);
    model_.clear_gradients();
    const step_losses losses = model_.learn(ids_, targets_);
    if (!std::isfinite(losses.prediction + losses.router))
        throw std::runtime_error("the loss is not finite" + at + ": " + std::to_string(losses.prediction) +
                                 ", that of routers " + std::to_string(losses.router));
    if (const tiffin::status s = optimizer_.step(rate_.at(done_), execute_); !s)
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
        const std::size_t n = std::min(options_.batch, sequences - first) * context;
        const auto losses = std::span(losses_).first(n);
        model_.judge(tokens.subspan(first * context, n), tokens.subspan(first * context + 1, n), context,
                     losses);
        for (const double loss : losses) sum += loss;
    }
    return sum / static_cast<double>(sequences * context);
}
