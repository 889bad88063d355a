// The memory of a published model that is addressed by the last token ids: where its table lies, its addresses, its tensors.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/io/gguf.hpp>
#include <tiffin/table/ngram_addresses.hpp>
#include <tiffin/table/qwen_hash.hpp>
#include <tiffin/table/table_location.hpp>
#include <tiffin/tensor.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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

// Reads the keys and tensors of one model from all of its files.
class ngram_memory_reader {
public:
    explicit ngram_memory_reader(const std::vector<gguf_file>& files) : files_(files) {}

    result<ngram_memory> read() {
        const auto architecture = files_[0].find<std::string_view>("general.architecture");
        if (!architecture || *architecture != "qwen4exp")
            return failure(errc::option, files_[0].label(), "general.architecture is ",
                           (architecture ? tiffin::detail::in_quotes(*architecture) : "missing"),
                           "; known with a memory by the last ids is 'qwen4exp'");
        prefix_ = std::string(*architecture) + ".";
        std::vector<std::int64_t> layers;
        std::int64_t n = 0, heads = 0, end = 0, branches = 0;
        if (status s = numbers("ple.layers", layers); !s) return s.failure();
        if (layers.size() != 1 || layers[0] < 0)
            return failure(errc::option, prefix_ + "ple.layers", "names ", layers.size(),
                           " layers; one is read");
        made_.layer = static_cast<std::size_t>(layers[0]);
        for (const auto& [name, to] :
             {std::pair{"ple.ngram_size", &n}, std::pair{"ple.heads_per_ngram", &heads},
              std::pair{"ple.eos_token_id", &end}, std::pair{"hyper_connection.count", &branches}})
            if (status s = number(name, *to); !s) return s.failure();
        made_.branches = static_cast<std::size_t>(branches);
        made_.dilation = static_cast<std::size_t>(n);
        made_.hash.end = static_cast<std::int32_t>(end);
        if (const auto image = files_[0].find<std::uint64_t>(prefix_ + "ple.image_token_id"))
            made_.image = static_cast<std::int32_t>(*image);
        const auto eps = files_[0].find<double>(prefix_ + "attention.layer_norm_rms_epsilon");
        if (!eps) return missing("attention.layer_norm_rms_epsilon");
        made_.eps = static_cast<float>(*eps);
        if (status s = numbers("ple.layer_multipliers", made_.hash.multipliers); !s) return s.failure();
        if (status s = numbers("ple.head_offsets", made_.hash.offsets); !s) return s.failure();
        if (status s = numbers("ple.head_vocab_sizes", made_.hash.sizes); !s) return s.failure();
        if (made_.hash.order() != static_cast<std::size_t>(n) ||
            made_.hash.sizes.size() != static_cast<std::size_t>((n - 1) * heads))
            return failure(errc::size, prefix_ + "ple.layer_multipliers", "are ", made_.hash.order(),
                           ", head_vocab_sizes ", made_.hash.sizes.size(), "; n-grams of up to ", n,
                           " ids with ", heads, " heads each have ", n, " and ", (n - 1) * heads);
        if (status s = take_tensors(); !s) return s.failure();
        if (status s = made_.hash.check(); !s)
            return failure(s.failure().code, prefix_ + "ple", s.failure().message());
        return std::move(made_);
    }

private:
    [[nodiscard]] failure missing(std::string_view name) const {
        return failure(errc::option, prefix_ + std::string(name), "missing in ", files_[0].label());
    }
    status number(std::string_view name, std::int64_t& to) const {
        const auto value = files_[0].find<std::uint64_t>(prefix_ + std::string(name));
        if (!value) return missing(name);
        if (*value == 0 && name != "ple.eos_token_id")
            return failure(errc::option, prefix_ + std::string(name), "is 0");
        if (*value > 0x7FFFFFFF) return failure(errc::option, prefix_ + std::string(name), "is ", *value);
        to = static_cast<std::int64_t>(*value);
        return {};
    }
    status numbers(std::string_view name, std::vector<std::int64_t>& to) const {
        const auto values = files_[0].find<gguf_array>(prefix_ + std::string(name));
        if (!values || values->type == gguf_type::string) return missing(name);
        for (std::size_t i = 0; i < values->size; ++i) to.push_back(values->number<std::int64_t>(i));
        return {};
    }
    // The file that has a tensor, and the tensor.
    result<std::pair<const gguf_file*, tensor_view>> find(const std::string& name) const {
        for (const gguf_file& f : files_) {
            const std::string factor = name.substr(0, name.rfind('.')) + ".scale";
            if (f.tensors().find(factor) != nullptr)
                return failure(errc::unused_tensor, factor,
                               "is the factor of a quantised tensor, and is not read here");
            if (const tensor_view* const t = f.tensors().find(name)) return std::pair(&f, *t);
            for (const unread_tensor& t : f.unread())
                if (t.name == name)
                    return failure(errc::dtype, name, "is of ggml's type ", t.type, ", which is not read");
        }
        return failure(errc::missing_tensor, name, "missing; the memory by the last ids reads it");
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
            const auto found = find(at + theirs + ".weight");
            if (!found) return found.failure();
            made_.tensors.add(std::string(ours) + ".weight", found->second);
        }
        const auto table = find("per_layer_token_embd.weight");
        if (!table) return table.failure();
        const tensor_view& t = table->second;
        if (t.shape.rank() != 2)
            return failure(errc::shape, "per_layer_token_embd.weight", "has shape ", to_string(t.shape),
                           "; it must be (rows, width)");
        made_.table = {table->first->label(), table->first->offset_of(t), {t.shape[0], t.shape[1], t.type}};
        for (std::size_t h = 0; h < made_.hash.sizes.size() && h < made_.hash.offsets.size(); ++h)
            if (made_.hash.rows(h) > static_cast<std::int64_t>(t.shape[0]))
                return failure(errc::shape, "per_layer_token_embd.weight", "has ", t.shape[0], " rows; head ",
                               h, " reads up to row ", made_.hash.rows(h));
        const tensor_view& value = *made_.tensors.find("value_proj.weight");
        if (value.shape.rank() != 2 || value.shape[1] != made_.hash.sizes.size() * t.shape[1])
            return failure(errc::shape, at + "value.weight", "has shape ", to_string(value.shape),
                           "; it reads ", made_.hash.sizes.size(), " rows of ", t.shape[1]);
        const auto words = find("token_embd.weight");
        if (!words) return words.failure();
        made_.hash.ids = words->second.shape.rank() == 2 ? words->second.shape[0] : 0;
        return {};
    }

    const std::vector<gguf_file>& files_;
    std::string prefix_;
    ngram_memory made_;
};

}  // namespace detail

// Reads it from all files of a model. Precondition: there is a file; the files must outlive the result's tensors.
// Errors: errc::option for another architecture or a key that is missing, errc::missing_tensor, dtype, shape, size, with the
//   names of keys and tensors and the numbers.
inline result<ngram_memory> find_ngram_memory(const std::vector<gguf_file>& files) {
    return detail::ngram_memory_reader(files).read();
}

}  // namespace io
TIFFIN_END
