// A memory of a published model that is addressed by the last token ids, however its file says it.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/io/engram_constants.hpp>
#include <tiffin/io/memory_table.hpp>
#include <tiffin/table/engram_hash.hpp>
#include <tiffin/table/ngram_history.hpp>
#include <tiffin/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

TIFFIN_BEGIN
namespace io {

// Rows by the last ids, added to the branches of a stream before a layer: Qwen's n-gram PLE, DeepSeek-V4.1's Engram, and
// Engram's adapters. The rows of a token's heads side by side are e; memory_branches computes the rest. At the positions of
// an image or a video the ids are those of the model's placeholder, as its processor writes them, and are hashed as any.
//
//     const auto found = find_ngram_memory("model.gguf").or_throw();
//     auto memory = memory_branches::prepare<signed_root_gate>(
//         found.tensors, found.branches, simd{},
//         {.eps = found.eps, .convolution_eps = found.convolution_eps, .dilation = found.dilation}).or_throw();
//     auto address = ngram_addresses<engram_hash>::of(found.hash, found.end).or_throw();
//     auto rows = memory_rows<mapped_file>::open(found.table).or_throw();   // the table stays in its file
struct ngram_memory {
    std::string architecture;         // of the model
    std::vector<std::size_t> layers;  // that have such a memory
    std::size_t layer = 0;            // of this one: it is added to the stream before this layer
    std::size_t branches = 1;         // of the stream
    bool one_stream = false;          // that all branches read, and to which their outputs are summed
    float eps = 0, convolution_eps = 0;
    std::size_t dilation = 0;  // of the convolution; 0: there is none
    bool copysign = false;     // copysign_root_gate in place of signed_root_gate
    engram_hash hash;
    std::int32_t end = ngram_history::none;  // ids before it are missing
    memory_table table;                      // of all heads: (rows, width of a head)
    weights tensors;                         // as memory_branches names them
    std::shared_ptr<const void> keep;        // what they are views of
};

namespace detail {

// Tensors that no file has in this form: made from those that it has.
using made_tensors = std::deque<std::vector<float>>;

// The layer that was asked for, or the first.
inline result<std::size_t> choose_layer(const std::vector<std::size_t>& layers,
                                        std::optional<std::size_t> asked, const std::string& label) {
    if (layers.empty()) return failure(errc::option, label, "no layer of it has rows by the last ids");
    std::string all;
    for (std::size_t i = 0; i < layers.size(); ++i) {
        if (asked.value_or(layers[i]) == layers[i]) return i;
        all.append(i == 0 ? "" : ", ").append(std::to_string(layers[i]));
    }
    return failure(errc::option, label, "layer ", *asked, " has no rows by the last ids; these have: ", all);
}

// Splits a flat list into the heads of n = 2, ..., N.
inline std::vector<std::vector<std::int64_t>> by_length(const std::vector<std::int64_t>& flat,
                                                        std::size_t heads) {
    std::vector<std::vector<std::int64_t>> made;
    for (std::size_t i = 0; heads > 0 && i + heads <= flat.size(); i += heads) {
        const auto at = flat.begin() + static_cast<std::ptrdiff_t>(i);
        made.emplace_back(at, at + static_cast<std::ptrdiff_t>(heads));
    }
    return made;
}

// Takes the map of ids and the pad of the constants.
inline status set_map(engram_hash& hash, const engram_constants& from) {
    constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
    const auto take = [&](std::int64_t id, const char* what) -> result<std::int32_t> {
        if (id < 0 || id > most) return failure(errc::option, what, "names the compressed id ", id);
        return static_cast<std::int32_t>(id);
    };
    hash.compressed.clear();
    for (const std::int64_t id : from.token_map) {
        const auto one = take(id, "token_map");
        if (!one) return one.failure();
        hash.compressed.push_back(*one);
    }
    if (from.pad.size() != 1)
        return failure(errc::size, "pad_id", "are ", from.pad.size(), " numbers; it is one");
    const auto pad = take(from.pad[0], "pad_id");
    if (!pad) return pad.failure();
    hash.pad = *pad;
    return {};
}

// DeepSeek's joined projection: the keys of all branches, then the value.
inline status split_keys_and_value(ngram_memory& to, const tensor_view& both, const std::string& name) {
    const std::size_t parts = to.branches + 1, rows = both.shape.rank() == 2 ? both.shape[0] : 0;
    const std::size_t width = rows / parts, in_one = both.scales.any() ? both.scales.rows : 1;
    if (rows == 0 || rows % parts != 0 || (in_one != tensor_scales::all && width % in_one != 0))
        return failure(errc::shape, name, "has shape ", to_string(both.shape), "; it has the keys of ",
                       to.branches, " branches and their value, and no block of scales has rows of two");
    to.tensors.add("key_proj.weight", both.rows_from(0, {to.branches * width, both.shape[1]}));
    to.tensors.add("value_proj.weight", both.rows_from(to.branches * width, {width, both.shape[1]}));
    return {};
}

// Checks what no single reader can: the hash, that its heads' rows lie in the table, and that the projections read the
// rows of all heads. `table`: the name of the table in messages.
inline status check_memory(const ngram_memory& m, std::string_view table) {
    if (status s = m.hash.check(); !s) return s;
    const table_shape rows = m.table.shape();
    for (std::size_t h = 0; h < m.hash.tables(); ++h)
        if (m.hash.rows(h) > static_cast<std::int64_t>(rows.rows))
            return failure(errc::shape, std::string(table), "has ", rows.rows, " rows; head ", h,
                           " reads up to row ", m.hash.rows(h));
    const tensor_view* const value = m.tensors.find("value_proj.weight");
    if (value->shape.rank() != 2 || value->shape[1] != m.hash.tables() * rows.width)
        return failure(errc::shape, "value_proj.weight", "has shape ", to_string(value->shape), "; it reads ",
                       m.hash.tables(), " rows of ", rows.width);
    return {};
}

}  // namespace detail
}  // namespace io
TIFFIN_END
