// Reads a memory by the last ids from the GGUF files of Qwen's and DeepSeek's models.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/io/described_memory.hpp>
#include <tiffin/io/engram_constants.hpp>
#include <tiffin/io/gguf_tensors.hpp>
#include <tiffin/quoted.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io::detail {

// Qwen keeps the constants in keys, DeepSeek too, or in a file beside the model.
class gguf_memory_reader {
public:
    gguf_memory_reader(const std::vector<gguf_file>& files, std::optional<std::size_t> layer,
                       engram_constants given)
        : from_(files), asked_(layer), constants_(std::move(given)) {}

    result<ngram_memory> read() {
        // Files of the first days name DeepSeek's 'deepseek4'.
        const bool qwen = from_.architecture() == "qwen4exp",
                   deepseek = from_.architecture() == "deepseek41" || from_.architecture() == "deepseek4";
        if (!qwen && !deepseek)
            return failure(errc::option, from_.label(), "general.architecture is ",
                           tiffin::detail::in_quotes(from_.architecture()),
                           "; known with a memory by the last ids are 'qwen4exp' and 'deepseek41'");
        made_.architecture = from_.architecture();
        if (status s = qwen ? read_qwen() : read_deepseek(); !s) return s.failure();
        if (status s = check_memory(made_, table_); !s) return s.failure();
        if (status s = from_.check_rest(); !s) return s.failure();
        return std::move(made_);
    }

private:
    // A number of the sizes above: its key, where it goes, the least it can be.
    using number_key = std::tuple<const char*, std::size_t*, std::uint64_t>;

    // The layers by the key, and which of them this is; `numbers`, and the eps of the norms.
    result<std::size_t> begin(const char* layers_key, std::initializer_list<number_key> numbers) {
        const auto layers = from_.numbers(layers_key);
        if (!layers) return layers.failure();
        for (const std::int64_t layer : *layers) {
            if (layer < 0 || layer > 0x7FFFFFFF)
                return failure(errc::option, from_.key(layers_key), "names layer ", layer);
            made_.layers.push_back(static_cast<std::size_t>(layer));
        }
        const auto chosen = choose_layer(made_.layers, asked_, from_.label());
        if (!chosen) return chosen;
        made_.layer = made_.layers[*chosen];
        for (const auto& [name, to, least] : numbers) {
            const auto value = from_.number(name, least);
            if (!value) return value.failure();
            *to = *value;
        }
        const auto eps = from_.fraction("attention.layer_norm_rms_epsilon");
        if (!eps) return eps.failure();
        made_.eps = made_.convolution_eps = *eps;
        return chosen;
    }
    // The part of this layer, of a list that has `per_layer` numbers for each.
    result<std::vector<std::int64_t>> part(const char* name, std::vector<std::int64_t> given,
                                           std::size_t chosen, std::size_t per_layer) {
        if (given.empty()) {
            auto told = from_.numbers(name);
            if (!told)
                return failure(told.failure().code, told.failure().where, told.failure().what,
                               ", and no file of constants has them");
            given = *std::move(told);
        }
        if (per_layer > given.size() || given.size() != per_layer * made_.layers.size())
            return failure(errc::size, from_.key(name), "are ", given.size(),
                           "; each of the layers with a memory, ", made_.layers.size(), " in all, has ",
                           per_layer);
        const auto at = given.begin() + static_cast<std::ptrdiff_t>(chosen * per_layer);
        return std::vector<std::int64_t>(at, at + static_cast<std::ptrdiff_t>(per_layer));
    }
    status take(const std::string& theirs, const char* ours) {
        const auto found = from_.find(theirs);
        if (!found) return found.failure();
        made_.tensors.add(ours, *found);
        return {};
    }
    status take_table(const std::string& name) {
        auto table = from_.table(name);
        if (!table) return table.failure();
        made_.table.shards.push_back(*std::move(table));
        table_ = name;
        return {};
    }

    status read_qwen() {
        std::size_t n = 0, heads = 0, end = 0;
        const auto chosen = begin("ple.layers", {{"ple.ngram_size", &n, 2},
                                                 {"ple.heads_per_ngram", &heads, 1},
                                                 {"hyper_connection.count", &made_.branches, 1},
                                                 {"ple.eos_token_id", &end, 0}});
        if (!chosen) return chosen.failure();
        if (made_.layers.size() != 1)
            return failure(errc::option, from_.key("ple.layers"), "names ", made_.layers.size(),
                           " layers; one is read");
        made_.dilation = n;
        made_.end = made_.hash.pad = static_cast<std::int32_t>(end);
        const std::size_t all = (n - 1) * heads;
        auto multipliers = part("ple.layer_multipliers", {}, 0, n),
             sizes = part("ple.head_vocab_sizes", {}, 0, all), offsets = part("ple.head_offsets", {}, 0, all);
        for (const auto* const one : {&multipliers, &sizes, &offsets})
            if (!*one) return one->failure();
        made_.hash.multipliers = *std::move(multipliers);
        made_.hash.primes = by_length(*sizes, heads);
        made_.hash.offsets = *std::move(offsets);
        const auto words = from_.find("token_embd.weight");
        if (!words) return words.failure();
        made_.hash.ids = words->shape.rank() == 2 ? words->shape[0] : 0;
        if (end >= made_.hash.ids)
            return failure(errc::option, from_.key("ple.eos_token_id"), "is ", end, "; there are ",
                           made_.hash.ids, " ids");
        const std::string at = "blk." + std::to_string(made_.layer) + ".ple_";
        from_.own(at);
        constexpr std::array<std::pair<const char*, const char*>, 6> names{
            {{"key", "key_proj.weight"},
             {"value", "value_proj.weight"},
             {"norm_key", "key_norm.weight"},
             {"norm_query", "query_norm.weight"},
             {"norm_conv", "conv_norm.weight"},
             {"conv1d", "conv.weight"}}};
        for (const auto& [theirs, ours] : names)
            if (status s = take(at + theirs + ".weight", ours); !s) return s;
        return take_table("per_layer_token_embd.weight");
    }

    // Source: the deepseek41 architecture of llama.cpp and ik_llama.cpp; `pad_id` is a compressed id there.
    status read_deepseek() {
        std::size_t n = 0, heads = 0, width = 0;
        const auto chosen = begin("engram.layer_ids", {{"engram.max_ngram_size", &n, 2},
                                                       {"engram.head_count", &heads, 1},
                                                       {"engram.key_length", &width, 1},
                                                       {"hyper_connection.count", &made_.branches, 1}});
        if (!chosen) return chosen.failure();
        made_.copysign = true;
        const std::size_t all = (n - 1) * heads;
        auto multipliers = part("engram.multipliers", constants_.multipliers, *chosen, n),
             primes = part("engram.primes", constants_.primes, *chosen, all),
             offsets = part("engram.offsets", constants_.offsets, *chosen, all);
        for (const auto* const one : {&multipliers, &primes, &offsets})
            if (!*one) return one->failure();
        made_.hash.multipliers = *std::move(multipliers);
        made_.hash.primes = by_length(*primes, heads);
        made_.hash.offsets = *std::move(offsets);
        if (constants_.token_map.empty()) {
            auto map = from_.numbers("engram.token_map");
            if (!map)
                return failure(map.failure().code, map.failure().where, map.failure().what,
                               ", and no file of constants has it");
            constants_.token_map = *std::move(map);
        }
        if (constants_.pad.empty()) {
            const auto pad = from_.number("engram.pad_id", 0);
            if (!pad) return pad.failure();
            constants_.pad = {static_cast<std::int64_t>(*pad)};
        }
        if (status s = set_map(made_.hash, constants_); !s) return s;
        const std::string at = "blk." + std::to_string(made_.layer) + ".engram_";
        from_.own(at);
        if (status s = take(at + "q.weight", "query_norm.weight"); !s) return s;
        if (status s = take(at + "k.weight", "key_norm.weight"); !s) return s;
        const auto both = from_.find(at + "wkv.weight");
        if (!both) return both.failure();
        if (status s = split_keys_and_value(made_, *both, at + "wkv.weight"); !s) return s;
        return take_table(at + "embd.weight");
    }

    gguf_tensors from_;
    std::optional<std::size_t> asked_;
    engram_constants constants_;
    std::string table_;
    ngram_memory made_;
};

}  // namespace io::detail
TIFFIN_END
