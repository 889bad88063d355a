// Reads a memory by the last ids from the checkpoints of Qwen's and DeepSeek's models.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/io/checkpoint_parts.hpp>
#include <tiffin/io/described_memory.hpp>
#include <tiffin/io/engram_constants.hpp>
#include <tiffin/quoted.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io::detail {

// Qwen keeps the constants in tensors. DeepSeek draws them from its configuration, but for the map of ids, which follows
// from a tokenizer and must be given.
class checkpoint_memory_reader {
public:
    checkpoint_memory_reader(checkpoint_parts& from, std::optional<std::size_t> layer, engram_constants given)
        : from_(from), asked_(layer), constants_(std::move(given)) {}

    result<ngram_memory> read() {
        const std::string& type = from_.type();
        const bool qwen = type.starts_with("qwen4_exp"), deepseek = type.starts_with("deepseek_v4");
        if (!qwen && !deepseek)
            return failure(errc::option, from_.label(), "model_type of config.json is ",
                           tiffin::detail::in_quotes(type),
                           "; known with a memory by the last ids are 'qwen4_exp' and 'deepseek_v41'");
        made_.architecture = type;
        if (status s = qwen ? read_qwen() : read_deepseek(); !s) return s.failure();
        if (status s = check_memory(made_, table_); !s) return s.failure();
        if (status s = from_.check_rest(); !s) return s.failure();
        made_.keep = std::move(owned_);
        return std::move(made_);
    }

private:
    status set_numbers(std::initializer_list<std::pair<const char*, std::size_t*>> numbers) {
        for (const auto& [key, to] : numbers) {
            const auto value = from_.number_or(key, *to);
            if (!value) return value.failure();
            *to = *value;
        }
        const auto eps = from_.fraction("rms_norm_eps", 1e-6f);
        if (!eps) return eps.failure();
        made_.eps = made_.convolution_eps = *eps;
        return {};
    }
    status take(const std::string& theirs, const char* ours) {
        const auto found = from_.find(theirs);
        if (!found) return found.failure();
        made_.tensors.add(ours, *found);
        return {};
    }
    // A norm's weight that is stored as what is added to 1.
    status take_one_plus(const std::string& theirs, const char* ours) {
        const auto found = from_.find(theirs);
        if (!found) return found.failure();
        if (is_integer(found->type)) return failure(errc::dtype, theirs, "is ", name_of(found->type));
        std::vector<float>& sum = owned_->emplace_back(found->shape.elements());
        read_as_f32(*found, 0, sum.size(), sum.data());
        for (float& w : sum) w += 1;
        made_.tensors.add(ours, {sum.data(), dtype::f32, found->shape});
        return {};
    }

    // Source: qwen4_exp of Transformers.
    status read_qwen() {
        std::size_t n = 3, heads = 8;
        made_.branches = 4;
        if (status s =
                set_numbers({{"ngram_size", &n}, {"heads_per_ngram", &heads}, {"hc_count", &made_.branches}});
            !s)
            return s;
        const auto layers = from_.numbers("ple_layer_ids");  // from 1 on
        if (!layers) return layers.failure();
        for (const std::size_t layer : *layers) {
            if (layer == 0) return from_.wrong("ple_layer_ids", "names layer 0; they are counted from 1 on");
            made_.layers.push_back(layer - 1);
        }
        std::sort(made_.layers.begin(), made_.layers.end());
        const auto chosen = choose_layer(made_.layers, asked_, from_.label());
        if (!chosen) return chosen.failure();
        made_.layer = made_.layers[*chosen];
        made_.dilation = n;
        const auto end = from_.number("eos_token_id", 0), vocab = from_.number("vocab_size");
        if (!end) return end.failure();
        if (!vocab) return vocab.failure();
        if (*end >= *vocab)
            return from_.wrong("eos_token_id", "is " + std::to_string(*end) + "; there are " +
                                                   std::to_string(*vocab) + " ids");
        made_.end = made_.hash.pad = static_cast<std::int32_t>(*end);
        made_.hash.ids = *vocab;

        const std::string part = "layers." + std::to_string(made_.layer) + ".ple.";
        const std::string at = from_.root_of(part) + part, rows = at + "ple_embedding.";
        from_.own(at);
        auto multipliers = from_.integers(rows + "layer_multipliers"),
             sizes = from_.integers(rows + "ngram_heads_vocab_sizes"),
             offsets = from_.integers(rows + "ngram_heads_offsets");
        for (const auto* const one : {&multipliers, &sizes, &offsets})
            if (!*one) return one->failure();
        if (n < 2 || multipliers->size() != n || sizes->size() != (n - 1) * heads)
            return failure(errc::size, rows + "layer_multipliers", "are ", multipliers->size(),
                           ", ngram_heads_vocab_sizes ", sizes->size(), "; n-grams of up to ", n,
                           " ids with ", heads, " heads each have ", n, " and ", n < 2 ? 0 : (n - 1) * heads);
        made_.hash.multipliers = *std::move(multipliers);
        made_.hash.primes = by_length(*sizes, heads);
        made_.hash.offsets = *std::move(offsets);
        for (const auto& [theirs, ours] :
             {std::pair{"key_proj.weight", "key_proj.weight"},
              std::pair{"value_proj.weight", "value_proj.weight"}, std::pair{"conv1d.weight", "conv.weight"}})
            if (status s = take(at + theirs, ours); !s) return s;
        for (const auto& [theirs, ours] : {std::pair{"norm_key.weight", "key_norm.weight"},
                                           std::pair{"norm_query.weight", "query_norm.weight"},
                                           std::pair{"norm_conv.weight", "conv_norm.weight"}})
            if (status s = take_one_plus(at + theirs, ours); !s) return s;
        return take_table(rows + "ngram_embedding");
    }

    // Source: DeepSeek-V4.1-Flash's checkpoint and its engram.py.
    status read_deepseek() {
        std::size_t n = 3, heads = 8, vocab = 0, least = 0;
        made_.branches = 4;
        made_.copysign = true;
        if (status s = set_numbers({{"engram_max_ngram_size", &n},
                                    {"engram_n_heads", &heads},
                                    {"hc_mult", &made_.branches},
                                    {"vocab_size", &vocab},
                                    {"engram_vocab_size", &least}});
            !s)
            return s;
        auto layers = from_.numbers("engram_layer_ids");
        if (!layers) return layers.failure();
        made_.layers = *std::move(layers);
        const auto chosen = choose_layer(made_.layers, asked_, from_.label());
        if (!chosen) return chosen.failure();
        made_.layer = made_.layers[*chosen];
        if (n < 2) return from_.wrong("engram_max_ngram_size", "is 1");
        if (constants_.token_map.size() != vocab)
            return failure(
                errc::size, "token_map", "has ", constants_.token_map.size(), " ids; there are ", vocab,
                ". It follows from the tokenizer and lies in no checkpoint: a file of constants has it");
        if (status s = draw(*chosen, n, heads, least); !s) return s;
        if (status s = set_map(made_.hash, constants_); !s) return s;

        const std::string part = "layers." + std::to_string(made_.layer) + ".engram.";
        const std::string at = from_.root_of(part) + part;
        from_.own(at);
        if (status s = take(at + "q_weight", "query_norm.weight"); !s) return s;
        if (status s = take(at + "k_weight", "key_norm.weight"); !s) return s;
        const auto both = from_.find(at + "wkv.weight");
        if (!both) return both.failure();
        if (status s = split_keys_and_value(made_, *both, at + "wkv.weight"); !s) return s;
        return take_table(at + "embed");
    }
    // The constants of one layer, drawn where they are not given.
    status draw(std::size_t chosen, std::size_t n, std::size_t heads, std::size_t least) {
        const std::size_t all = (n - 1) * heads, layers = made_.layers.size();
        if (n > 16 || all > 256)  // as many as ngram_addresses takes
            return from_.wrong("engram_max_ngram_size",
                               "is " + std::to_string(n) + ", of " + std::to_string(heads) + " heads each");
        if (constants_.pad.empty()) {
            const auto pad = from_.number("engram_pad_token_id", 0);
            if (!pad) return pad.failure();
            if (*pad >= constants_.token_map.size())
                return from_.wrong("engram_pad_token_id", "is " + std::to_string(*pad) + ", which is no id");
            constants_.pad = {constants_.token_map[*pad]};
        }
        if (constants_.multipliers.empty()) {
            const auto compressed = from_.number("engram_compressed_vocab_size");
            if (!compressed) return compressed.failure();
            if (*compressed > most_compressed)
                return from_.wrong("engram_compressed_vocab_size", "is " + std::to_string(*compressed));
            for (const std::size_t layer : made_.layers)
                for (const std::int64_t one : draw_multipliers(0, layer, *compressed, n))
                    constants_.multipliers.push_back(one);
        }
        if (constants_.primes.empty()) {
            if (least < 2 || all * layers > 1024)
                return from_.wrong("engram_vocab_size", "is " + std::to_string(least) + " for " +
                                                            std::to_string(all * layers) + " primes");
            constants_.primes = draw_primes(static_cast<std::int64_t>(least), layers, n - 1, heads);
        }
        if (constants_.multipliers.size() != layers * n || constants_.primes.size() != layers * all)
            return failure(errc::size, "multipliers", "are ", constants_.multipliers.size(), ", primes ",
                           constants_.primes.size(), "; ", layers, " layers have ", n, " and ", all, " each");
        const auto of_layer = [&](const std::vector<std::int64_t>& from, std::size_t count) {
            const auto at = from.begin() + static_cast<std::ptrdiff_t>(chosen * count);
            return std::vector<std::int64_t>(at, at + static_cast<std::ptrdiff_t>(count));
        };
        made_.hash.multipliers = of_layer(constants_.multipliers, n);
        const std::vector<std::int64_t> primes = of_layer(constants_.primes, all);
        made_.hash.primes = by_length(primes, heads);
        std::int64_t before = 0;  // the heads' rows lie one after the other
        for (const std::int64_t prime : primes) {
            made_.hash.offsets.push_back(before);
            if (prime < 1 || __builtin_add_overflow(before, prime, &before))
                return failure(errc::option, "primes", "of layer ", made_.layer, " have ", prime,
                               " among them");
        }
        return {};
    }

    status take_table(const std::string& name) {
        if (status s = made_.hash.check(); !s) return s;
        std::int64_t rows = 0;
        for (std::size_t h = 0; h < made_.hash.tables(); ++h) rows = std::max(rows, made_.hash.rows(h));
        auto table = from_.table(name, rows);
        if (!table) return table.failure();
        made_.table = *std::move(table);
        table_ = name;
        return {};
    }

    checkpoint_parts& from_;
    std::optional<std::size_t> asked_;
    engram_constants constants_;
    std::string table_;
    ngram_memory made_;
    std::shared_ptr<made_tensors> owned_ = std::make_shared<made_tensors>();
};

}  // namespace io::detail
TIFFIN_END
