// Reads an Engram adapter that the Python package engram-peft saved.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/io/checkpoint_parts.hpp>
#include <tiffin/io/described_memory.hpp>
#include <tiffin/io/engram_constants.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io::detail {

inline constexpr const char* engram_adapter_file = "engram_adapters.safetensors";

// The file has the heads' offsets, and so their primes; multipliers are drawn from the seed in config.json. Where the
// adapter compresses ids, the map must be given. All branches read one stream, and their outputs are summed.
// Source: engram-peft 1.2, layer.py, hashing.py.
class engram_adapter_reader {
public:
    engram_adapter_reader(checkpoint_parts& from, std::optional<std::size_t> layer, engram_constants given)
        : from_(from), asked_(layer), constants_(std::move(given)) {}

    result<ngram_memory> read() {
        made_.architecture = "engram-peft";
        made_.one_stream = true;
        made_.eps = std::numeric_limits<float>::epsilon();  // torch's, where none is given
        made_.convolution_eps = 1e-5f;
        if (status s = read_config(); !s) return s.failure();
        if (status s = read_hash(); !s) return s.failure();
        for (const auto& [theirs, ours] :
             {std::pair{"gating.w_k.", "key_proj.weight"}, std::pair{"gating.norm_h.", "query_norm.weight"},
              std::pair{"gating.norm_k.", "key_norm.weight"},
              std::pair{"short_conv.norms.", "conv_norm.weight"}})
            if (status s = join(theirs, ours); !s) return s.failure();
        for (const auto& [theirs, ours] : {std::pair{"gating.w_v.weight", "value_proj.weight"},
                                           std::pair{"short_conv.conv.weight", "conv.weight"}}) {
            const auto found = from_.find(at_ + theirs);
            if (!found) return found.failure();
            made_.tensors.add(ours, *found);
        }
        if (status s = check_memory(made_, at_ + "multi_head_embedding.embedding.weight"); !s)
            return s.failure();
        if (status s = from_.check_rest(); !s) return s.failure();
        made_.keep = std::move(owned_);
        return std::move(made_);
    }

private:
    status read_config() {
        auto layers = from_.numbers("target_layers");
        if (!layers) return layers.failure();
        made_.layers = *std::move(layers);
        const auto chosen = choose_layer(made_.layers, asked_, from_.label());
        if (!chosen) return chosen.failure();
        made_.layer = made_.layers[*chosen];
        at_ = std::to_string(made_.layer) + ".";
        from_.own(at_);
        const auto sizes = from_.numbers("ngram_sizes");
        if (!sizes) return sizes.failure();
        for (std::size_t i = 0; i < sizes->size(); ++i)
            if ((*sizes)[i] != i + 2)
                return from_.wrong("ngram_sizes", "are not 2, 3, ..., N: there is no composition of others");
        longest_ = sizes->size() + 1;
        if (sizes->empty()) return from_.wrong("ngram_sizes", "is empty");
        const auto branches = from_.number_or("hc_mult", 4), heads = from_.number_or("n_head_per_ngram", 8),
                   dilation = from_.number_or("conv_dilation", longest_);
        for (const auto* const one : {&branches, &heads, &dilation})
            if (!*one) return one->failure();
        made_.branches = *branches;
        made_.dilation = *dilation;
        heads_ = *heads;
        return {};
    }
    status read_hash() {
        const std::string rows = at_ + "multi_head_embedding.";
        auto table = from_.table(rows + "embedding");
        if (!table) return table.failure();
        made_.table = *std::move(table);
        auto offsets = from_.integers(rows + "offsets");
        if (!offsets) return offsets.failure();
        if (offsets->size() != (longest_ - 1) * heads_)
            return failure(errc::size, rows + "offsets", "are ", offsets->size(), "; n-grams of up to ",
                           longest_, " ids with ", heads_, " heads each have ", (longest_ - 1) * heads_);
        std::vector<std::int64_t> primes;
        for (std::size_t i = 0; i < offsets->size(); ++i)
            if (const std::int64_t end = i + 1 < offsets->size()
                                             ? (*offsets)[i + 1]
                                             : static_cast<std::int64_t>(made_.table.shape().rows);
                __builtin_sub_overflow(end, (*offsets)[i], &primes.emplace_back()))
                return failure(errc::option, rows + "offsets", "has ", (*offsets)[i], " among them");
        made_.hash.primes = by_length(primes, heads_);
        made_.hash.offsets = *std::move(offsets);
        made_.hash.oldest_first = true;
        const auto compressed = from_.number("compressed_vocab_size"), pad = from_.number("pad_id", 0),
                   seed = from_.number_or("seed", 0, 0);
        for (const auto* const one : {&compressed, &pad, &seed})
            if (!*one) return one->failure();
        if (*compressed > most_compressed)
            return from_.wrong("compressed_vocab_size", "is " + std::to_string(*compressed));
        made_.hash.multipliers = constants_.multipliers.empty()
                                     ? draw_multipliers(*seed, made_.layer, *compressed, longest_)
                                     : constants_.multipliers;
        if (from_.is("engine", "qwen_ple"))
            return from_.wrong("engine", "is 'qwen_ple', whose table lies elsewhere; 'deepseek' is read");
        if (from_.is("enable_tokenizer_compression", false)) {
            made_.hash.ids = *compressed;
            made_.hash.pad = static_cast<std::int32_t>(*pad);
            return {};
        }
        if (constants_.token_map.empty())
            return failure(
                errc::option, "token_map",
                "the adapter compresses ids, by a map that follows from its tokenizer: a file of constants "
                "has it");
        if (constants_.pad.empty()) {
            if (*pad >= constants_.token_map.size())
                return from_.wrong("pad_id", "is " + std::to_string(*pad) + ", which is no id of the map");
            constants_.pad = {constants_.token_map[*pad]};
        }
        if (status s = set_map(made_.hash, constants_); !s) return s;
        const std::int64_t largest =
            *std::max_element(constants_.token_map.begin(), constants_.token_map.end());
        if (largest < static_cast<std::int64_t>(*compressed)) return {};
        return failure(errc::option, "token_map", "names the compressed id ", largest, "; the adapter has ",
                       *compressed);
    }
    // Of tensors of one branch each, (d) or (d, c): those of all branches in one.
    status join(const std::string& theirs, const char* ours) {
        std::vector<float>& all = owned_->emplace_back();
        shape one;
        for (std::size_t b = 0; b < made_.branches; ++b) {
            const std::string name = at_ + theirs + std::to_string(b) + ".weight";
            const auto found = from_.find(name);
            if (!found) return found.failure();
            if (b == 0) one = found->shape;
            if (found->shape != one || is_integer(found->type) || one.rank() == 0 || one.rank() > 2)
                return failure(errc::shape, name, "is ", name_of(found->type), " of shape ",
                               to_string(found->shape));
            const std::size_t before = all.size(), count = one.elements();
            all.resize(before + count);
            read_as_f32(*found, 0, count, all.data() + before);
        }
        made_.tensors.add(
            ours, {all.data(), dtype::f32,
                   one.rank() == 1 ? shape(made_.branches, one[0]) : shape(made_.branches * one[0], one[1])});
        return {};
    }
    checkpoint_parts& from_;
    std::optional<std::size_t> asked_;
    engram_constants constants_;
    std::string at_;
    std::size_t longest_ = 0, heads_ = 0;
    ngram_memory made_;
    std::shared_ptr<made_tensors> owned_ = std::make_shared<made_tensors>();
};

}  // namespace io::detail
TIFFIN_END
