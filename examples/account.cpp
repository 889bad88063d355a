// What a whole model costs: parameters, FLOPs and bytes per token, key-value cache, of a file or of a composition.
#include <tiffin/all_policies.hpp>
#include <tiffin/analysis/cost_of_weights.hpp>
#include <tiffin/analysis/model_cost.hpp>
#include <tiffin/io/json_file.hpp>
#include <tiffin/io/model.hpp>
#include <tiffin/plan/compose.hpp>

#include <CLI/CLI.hpp>

#include "support/command_line.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using tiffin::block_cost;
using tiffin::errc;
using tiffin::failure;
using tiffin::result;

struct arguments {
    std::string model, replace;
    std::size_t last = 0, context = 4096;
    double weight_bits = 16, table_bits = 16, cache_bits = 16;
    // Of a composition; of a model they are in its file, but what `replace` has beyond them.
    tiffin::model_shape shape;
    tiffin::block_shape sizes;
    std::size_t layers = 1;
    bool untied = false;
};

// The model as its file says it, and the cost of each layer's block.
struct found_model {
    std::string name;
    tiffin::model_shape shape;
    std::vector<block_cost> blocks;
    std::vector<std::string> texts;
};

result<tiffin::composition<void>> composed(const std::string& text) {
    return tiffin::compose(text, tiffin::all_policies);
}

// The cost of a text's block of these sizes. A size that it has and that is 0 is told.
result<block_cost> cost_of_text(const std::string& text, const tiffin::block_shape& sizes) {
    const auto block = composed(text);
    if (!block) return block.failure();
    for (const auto& [name, t] : tensors_needed(block->plan(), sizes))
        for (std::size_t i = 0; i < t.shape.rank(); ++i)
            if (t.shape[i] == 0)
                return failure(errc::option, name, "has the shape ", to_string(t.shape),
                               "; a size that it needs is not given");
    return cost(sizes, block->plan());
}

// The attention, the vocabulary and the head of a GGUF model.
result<tiffin::model_shape> shape_of_gguf(const std::string& path) {
    const auto files = tiffin::io::open_gguf_files(path);
    if (!files) return files.failure();
    const tiffin::io::gguf_file& first = (*files)[0];
    const std::string kind(first.find<std::string_view>("general.architecture").value_or(""));
    const auto number = [&](const char* key) {
        return static_cast<std::size_t>(first.find<std::uint64_t>(kind + "." + key).value_or(0));
    };
    tiffin::model_shape made;
    made.d_model = number("embedding_length");
    made.attention.heads = number("attention.head_count");
    made.attention.kv_heads = number("attention.head_count_kv");
    made.attention.head_width = number("attention.key_length");
    for (const auto& file : *files) {
        if (const auto* const embedding = file.tensors().find("token_embd.weight"))
            made.vocab = embedding->shape[0];
        if (file.tensors().find("output.weight") != nullptr) made.tied = false;
        if (file.tensors().find("blk.0.attn_q_norm.weight") != nullptr) made.attention.head_norms = true;
    }
    return made;
}

// The same of a checkpoint's config.json, or of what it calls text_config.
result<tiffin::model_shape> shape_of_checkpoint(std::filesystem::path path) {
    if (path.filename() != "config.json") path /= "config.json";
    const auto read = tiffin::io::detail::read_json(path, path.string());
    if (!read) return read.failure();
    nlohmann::json config = read->value;
    if (const auto text = config.find("text_config"); text != config.end()) config = nlohmann::json(*text);
    const auto number = [&](const char* key) {
        const auto at = config.find(key);
        return at != config.end() && at->is_number_unsigned() ? at->get<std::size_t>() : std::size_t{0};
    };
    tiffin::model_shape made;
    made.d_model = number("hidden_size");
    made.vocab = number("vocab_size");
    made.attention = {number("num_attention_heads"), number("num_key_value_heads"), number("head_dim")};
    const auto tied = config.find("tie_word_embeddings");
    made.tied = tied != config.end() && tied->is_boolean() && tied->get<bool>();
    const std::string type = config.value("model_type", std::string());
    made.attention.head_norms = type.starts_with("qwen3") || type.starts_with("gemma3");
    return made;
}

result<found_model> read_model(const std::string& path) {
    const auto model = tiffin::io::model::open(path);
    if (!model) return model.failure();
    auto shape = tiffin::io::detail::is_checkpoint(path) ? shape_of_checkpoint(path) : shape_of_gguf(path);
    if (!shape) return shape.failure();
    tiffin::attention_shape& attention = shape->attention;
    if (attention.kv_heads == 0) attention.kv_heads = attention.heads;
    if (attention.head_width == 0 && attention.heads != 0)
        attention.head_width = shape->d_model / attention.heads;
    found_model made{std::string(model->architecture()), *shape, {}, {}};
    for (std::size_t i = 0; i < model->layers(); ++i) {
        const auto layer = model->layer(i);
        if (!layer) return layer.failure();
        const auto text = tiffin::io::composition_of(*layer);
        if (!text) return text.failure();
        const auto block = composed(*text);
        if (!block) return block.failure();
        const auto of_layer = cost_of(block->plan(), layer->tensors);
        if (!of_layer)
            return failure(of_layer.failure().code, model->label(), "layer ", i, ": ",
                           of_layer.failure().message());
        made.blocks.push_back(*of_layer);
        made.texts.push_back(block->text());
    }
    return made;
}

// A number with the unit that leaves three digits or fewer before the point.
std::string scaled(double x, const char* unit) {
    static constexpr std::array<const char*, 5> prefixes{{"", "k", "M", "G", "T"}};
    std::size_t i = 0;
    for (; x >= 999.5 && i + 1 < prefixes.size(); ++i) x /= 1000;
    std::array<char, 48> text;
    std::snprintf(text.data(), text.size(), "%8.*f %s%s", i == 0 ? 0 : 3, x, prefixes[i], unit);
    return text.data();
}

void print(const char* name, const std::string& value) {
    std::printf("  %-44s %s\n", name, value.c_str());
}

void report(const tiffin::model_cost& c, const arguments& args) {
    const auto context = static_cast<double>(args.context);
    std::puts("parameters");
    print("stored", scaled(c.stored(), ""));
    print("  embedding", scaled(c.embedding, ""));
    print("  head", c.head > 0 ? scaled(c.head, "") : "       the embedding");
    print("  attention", scaled(c.attention, ""));
    print("  norms", scaled(c.norms, ""));
    print("  blocks", scaled(c.blocks, ""));
    print("  their tables", scaled(c.tables, ""));
    print("without tables", scaled(c.without_tables(), ""));
    print("active (embedding and head whole)", scaled(c.active(), ""));
    print("of table rows, per token", scaled(c.rows_per_token, ""));
    std::printf("per token, %zu positions\n", args.context);
    print("FLOPs at decode", scaled(c.decode_flops(context), "FLOP"));
    print("FLOPs at prefill, mean", scaled(c.prefill_flops(context) / context, "FLOP"));
    print("FLOPs of training, mean", scaled(c.training_flops(context) / context, "FLOP"));
    print("bytes at decode",
          scaled(c.decode_bytes(context, args.weight_bits, args.table_bits, args.cache_bits), "B"));
    print("bytes of table rows", scaled(c.rows_per_token * args.table_bits / 8, "B"));
    std::puts("memory");
    print("weights without tables", scaled(c.without_tables() * args.weight_bits / 8, "B"));
    print("tables", scaled(c.tables * args.table_bits / 8, "B"));
    print("key-value cache", scaled(c.cache_bytes(context, args.cache_bits), "B"));
}

// What is wrong, or nothing.
std::string run(arguments& args) {
    tiffin::model_shape shape = args.shape;
    std::vector<block_cost> blocks;
    if (std::filesystem::exists(args.model)) {
        const auto found = read_model(args.model);
        if (!found) return found.failure().message();
        shape = found->shape;
        blocks = found->blocks;
        std::printf("%s, %zu layers, d_model %zu, %zu heads over %zu of %zu, vocabulary %zu%s\n",
                    tiffin::detail::printable(found->name).c_str(), blocks.size(), shape.d_model,
                    shape.attention.heads, shape.attention.kv_heads, shape.attention.head_width, shape.vocab,
                    shape.tied ? ", head tied" : "");
        for (std::size_t i = 0, first = 0; i < found->texts.size(); ++i) {
            if (i + 1 < found->texts.size() && found->texts[i + 1] == found->texts[first]) continue;
            std::printf("  layers %zu to %zu: %s\n", first, i, found->texts[first].c_str());
            first = i + 1;
        }
        args.sizes.d_model = shape.d_model;
        args.sizes.vocab = shape.vocab;
    } else {
        shape.d_model = args.sizes.d_model;
        shape.vocab = args.sizes.vocab;
        shape.tied = !args.untied;
        if (shape.attention.kv_heads == 0) shape.attention.kv_heads = shape.attention.heads;
        if (shape.attention.head_width == 0 && shape.attention.heads != 0)
            shape.attention.head_width = shape.d_model / shape.attention.heads;
        const auto of_text = cost_of_text(args.model, args.sizes);
        if (!of_text) return of_text.failure().message() + "; there is no file " + args.model + " either";
        blocks.assign(args.layers, *of_text);
    }
    if (!args.replace.empty()) {
        if (args.last > blocks.size())
            return "--last " + std::to_string(args.last) + ": the model has " +
                   std::to_string(blocks.size()) + " layers";
        const auto other = cost_of_text(args.replace, args.sizes);
        if (!other) return other.failure().message();
        for (std::size_t i = blocks.size() - args.last; i < blocks.size(); ++i) blocks[i] = *other;
        std::printf("  the last %zu: %s\n", args.last, args.replace.c_str());
    }
    for (const block_cost& block : blocks) shape.layers.push_back({1, block});
    report(cost(shape), args);
    return "";
}

}  // namespace

int main(int argc, char** argv) {
    arguments args;
    CLI::App app(
        "What a whole model costs: parameters, FLOPs and bytes per token, memory, of a file, or of a "
        "composition\n"
        "with sizes. With --replace: what it would cost with other blocks in its last layers.\n\n"
        "  account SmolLM2.gguf --replace stem --last 10 --d-ff 1536\n"
        "  account stem --d-model 2048 --d-ff 8192 --vocab 128256 --layers 16 --heads 32 --kv-heads 8");
    const auto size = [&](const char* name, std::size_t& to, const char* text) {
        app.add_option(name, to, text)->check(in_range<std::size_t>(1, std::size_t{1} << 40));
    };
    app.add_option("MODEL", args.model,
                   "GGUF file, checkpoint's folder, or the text of a composition (docs/layers.md)")
        ->required();
    app.add_option("--replace", args.replace, "The text of what stands in the last layers' place");
    size("--last", args.last, "How many layers that are");
    size("--context", args.context, "Positions (default: 4096)");
    size("--layers", args.layers, "Layers, of a composition (default: 1)");
    size("--d-model", args.sizes.d_model, "Features");
    size("--d-ff", args.sizes.d_ff, "Hidden features");
    size("--vocab", args.sizes.vocab, "Token ids");
    size("--experts", args.sizes.experts, "Experts of banks, mixtures and pools");
    size("--rank", args.sizes.rank, "Rank of banks");
    size("--inner", args.sizes.inner[0], "Inner width of a memory");
    size("--choices", args.sizes.choices, "Experts per token, where tensors say how many");
    size("--heads", args.shape.attention.heads, "Heads of attention (default: no attention)");
    size("--kv-heads", args.shape.attention.kv_heads, "Heads of keys and values (default: as many)");
    size("--head-width", args.shape.attention.head_width, "Numbers of a head (default: d_model / heads)");
    app.add_flag("--untied", args.untied, "The head is no embedding");
    const auto bits = [&](const char* name, double& to, const char* text) {
        app.add_option(name, to, text)->check(in_range<double>(0.5, 64));
    };
    bits("--weight-bits", args.weight_bits, "Bits of a weight (default: 16)");
    bits("--table-bits", args.table_bits, "Bits of a number in a table (default: 16)");
    bits("--cache-bits", args.cache_bits, "Bits of a number in the key-value cache (default: 16)");
    return run_command_line(app, "account", argc, argv, [&] { return run(args); });
}
