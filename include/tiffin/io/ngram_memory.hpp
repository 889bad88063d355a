// The memory of a published model that is addressed by the last token ids: where its table lies, its addresses, its tensors.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/io/gguf_tensors.hpp>
#include <tiffin/quoted.hpp>
#include <tiffin/table/ngram_history.hpp>
#include <tiffin/table/qwen_hash.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io {

// Qwen's n-gram PLE. The rows of a token's heads side by side are e; memory_branches computes the rest.
//
//     const auto found = find_ngram_memory(files).or_throw();
//     auto memory = memory_branches::prepare<signed_root_gate>(found.tensors, found.branches, simd{},
//                                                              {.eps = found.eps, .dilation = found.dilation});
//     auto rows = mapped_file::open(found.table);   // or direct_file, cached: the table stays in the file
struct ngram_memory {
    std::size_t layer = 0;     // before which it is added to the stream
    std::size_t branches = 0;  // of the stream
    std::size_t dilation = 0;  // of the convolution
    float eps = 0;
    qwen_hash hash;
    std::int32_t image = ngram_history::none;  // the id at an image's positions, where the file tells it
    table_location table;                      // (rows, width of a head)
    weights tensors;                           // as memory_branches names them; views of the files
};

namespace detail {

class ngram_memory_reader {
public:
    explicit ngram_memory_reader(const std::vector<gguf_file>& files) : from_(files) {}

    result<ngram_memory> read() {
        if (from_.architecture() != "qwen4exp")
            return failure(errc::option, from_.label(), "general.architecture is ",
                           tiffin::detail::in_quotes(from_.architecture()),
                           "; known with a memory by the last ids is 'qwen4exp'");
        std::size_t n = 0, heads = 0;
        if (status s = read_keys(n, heads); !s) return s.failure();
        const auto words = from_.find("token_embd.weight");
        if (!words) return words.failure();
        made_.hash.ids = words->tensor.shape.rank() == 2 ? words->tensor.shape[0] : 0;
        if (status s = made_.hash.check(); !s)
            return failure(s.failure().code, from_.key("ple"), s.failure().message());
        if (made_.hash.order() != n || made_.hash.sizes.size() != (n - 1) * heads)
            return failure(errc::size, from_.key("ple.layer_multipliers"), "are ", made_.hash.order(),
                           ", head_vocab_sizes ", made_.hash.sizes.size(), "; n-grams of up to ", n,
                           " ids with ", heads, " heads each have ", n, " and ", (n - 1) * heads);
        if (status s = take_tensors(); !s) return s.failure();
        return std::move(made_);
    }

private:
    status read_keys(std::size_t& n, std::size_t& heads) {
        const auto layers = from_.numbers("ple.layers");
        if (!layers) return layers.failure();
        if (layers->size() != 1 || (*layers)[0] < 0)
            return failure(errc::option, from_.key("ple.layers"), "names ", layers->size(),
                           " layers; one is read");
        made_.layer = static_cast<std::size_t>((*layers)[0]);
        std::size_t end = 0;
        for (const auto& [name, to, least] : {std::tuple{"ple.ngram_size", &n, 2u},
                                              {"ple.heads_per_ngram", &heads, 1u},
                                              {"hyper_connection.count", &made_.branches, 1u},
                                              {"ple.eos_token_id", &end, 0u}}) {
            const auto value = from_.number(name, least);
            if (!value) return value.failure();
            *to = *value;
        }
        if (const auto image = from_.number("ple.image_token_id", 0))
            made_.image = static_cast<std::int32_t>(*image);
        made_.dilation = n;
        made_.hash.end = static_cast<std::int32_t>(end);
        const auto eps = from_.fraction("attention.layer_norm_rms_epsilon");
        if (!eps) return eps.failure();
        made_.eps = *eps;
        for (const auto& [name, to] : {std::pair{"ple.layer_multipliers", &made_.hash.multipliers},
                                       std::pair{"ple.head_offsets", &made_.hash.offsets},
                                       std::pair{"ple.head_vocab_sizes", &made_.hash.sizes}}) {
            auto values = from_.numbers(name);
            if (!values) return values.failure();
            *to = *std::move(values);
        }
        return {};
    }
    status take_tensors() {
        const std::string at = "blk." + std::to_string(made_.layer) + ".ple_";
        constexpr std::array<std::pair<const char*, const char*>, 6> names{{{"key", "key_proj"},
                                                                            {"value", "value_proj"},
                                                                            {"norm_key", "key_norm"},
                                                                            {"norm_query", "query_norm"},
                                                                            {"norm_conv", "conv_norm"},
                                                                            {"conv1d", "conv"}}};
        for (const auto& [theirs, ours] : names) {
            const auto found = from_.find(at + theirs + ".weight");
            if (!found) return found.failure();
            made_.tensors.add(std::string(ours) + ".weight", found->tensor);
        }
        auto table = from_.table("per_layer_token_embd.weight");
        if (!table) return table.failure();
        made_.table = *std::move(table);
        const table_shape& rows = made_.table.shape;
        for (std::size_t h = 0; h < made_.hash.tables(); ++h)
            if (made_.hash.rows(h) > static_cast<std::int64_t>(rows.rows))
                return failure(errc::shape, "per_layer_token_embd.weight", "has ", rows.rows, " rows; head ",
                               h, " reads up to row ", made_.hash.rows(h));
        const tensor_view& value = *made_.tensors.find("value_proj.weight");
        if (value.shape.rank() != 2 || value.shape[1] != made_.hash.sizes.size() * rows.width)
            return failure(errc::shape, at + "value.weight", "has shape ", to_string(value.shape),
                           "; it reads ", made_.hash.sizes.size(), " rows of ", rows.width);
        return {};
    }

    gguf_tensors from_;
    ngram_memory made_;
};

}  // namespace detail

// Reads it from all files of a model (open_gguf_files). Precondition: there is a file; the files must outlive the tensors.
// Errors: errc::option for another architecture or a key that is missing, errc::missing_tensor, unused_tensor, dtype, shape,
//   size, with the names of keys and tensors and the numbers.
inline result<ngram_memory> find_ngram_memory(const std::vector<gguf_file>& files) {
    return detail::ngram_memory_reader(files).read();
}

}  // namespace io
TIFFIN_END
