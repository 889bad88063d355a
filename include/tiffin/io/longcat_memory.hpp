// The word embedding of a LongCat checkpoint with its n-gram tables.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/io/checkpoint_parts.hpp>
#include <tiffin/io/described_memory.hpp>
#include <tiffin/io/memory_table.hpp>
#include <tiffin/quoted.hpp>
#include <tiffin/table/longcat_hash.hpp>
#include <tiffin/table/ngram_history.hpp>
#include <tiffin/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io {

// LongCat-Flash-Lite's embedding: a composition for compose(), `longcat_embedding`, whose `per_layer_input` is the rows of
// all tables side by side.
struct longcat_memory {
    longcat_hash hash;
    std::int32_t end = ngram_history::none;  // ids before it, and it, are missing
    std::string composition;
    std::vector<memory_table> tables;  // in the hash's order
    weights tensors;
    std::shared_ptr<const void> keep;  // what they are views of
};

namespace detail {

inline result<longcat_memory> find_longcat_memory(checkpoint_parts& from) {
    if (!from.type().starts_with("longcat"))
        return failure(errc::option, from.label(), "model_type of config.json is ",
                       tiffin::detail::in_quotes(from.type()), "; known is 'longcat_flash_ngram'");
    longcat_memory made;
    for (const auto& [key, to] :
         {std::pair{"vocab_size", &made.hash.ids}, std::pair{"ngram_vocab_size_ratio", &made.hash.ratio},
          std::pair{"emb_neighbor_num", &made.hash.longest},
          std::pair{"emb_split_num", &made.hash.per_length}}) {
        const auto value = from.number(key);
        if (!value) return value.failure();
        *to = *value;
    }
    if (status s = made.hash.check(); !s) return s.failure();
    const auto end = from.number("eos_token_id", 0);
    if (!end) return end.failure();
    made.end = static_cast<std::int32_t>(*end);

    const std::string root = from.root_of("ngram_embeddings."), at = root + "ngram_embeddings.";
    from.own(at);
    const std::string own = at + "word_embeddings.weight";
    const auto words = from.find(from.has(own) ? own : root + "embed_tokens.weight");
    if (!words) return words.failure();
    if (words->shape.rank() != 2)
        return failure(errc::shape, root + "embed_tokens.weight", "has shape ", to_string(words->shape));
    const std::size_t d = words->shape[1];
    std::size_t columns = 0;
    std::vector<tensor_view> projections;
    for (std::size_t i = 0; i < made.hash.tables(); ++i) {
        const std::string name = at + "embedders." + std::to_string(i),
                          number = at + "post_projs." + std::to_string(i);
        auto table = from.table(name, made.hash.rows(i));
        if (!table) return table.failure();
        const table_shape rows = table->shape();
        if (static_cast<std::int64_t>(rows.rows) != made.hash.rows(i))
            return failure(errc::shape, name + ".weight", "has ", rows.rows, " rows; ratio ", made.hash.ratio,
                           " times ", made.hash.ids, " ids and ", 2 * i + 1, " are ", made.hash.rows(i));
        made.tables.push_back(*std::move(table));
        auto one = from.find(number + ".weight");
        if (!one) return one.failure();
        if (one->shape != shape(d, rows.width) || is_integer(one->type))
            return failure(errc::shape, number + ".weight", "is ", name_of(one->type), " of shape ",
                           to_string(one->shape), "; it must be (", d, ", ", rows.width, ")");
        projections.push_back(*one);
        columns += rows.width;
    }
    if (status s = from.check_rest(); !s) return s.failure();
    // The projections side by side.
    const auto owned = std::make_shared<made_tensors>();
    std::vector<float>& all = owned->emplace_back(d * columns);
    std::size_t column = 0;
    for (const tensor_view& one : projections) {
        const std::size_t width = one.shape[1];
        for (std::size_t r = 0; r < d; ++r)
            read_as_f32(one, r * width, width, all.data() + r * columns + column);
        column += width;
    }
    made.tensors.add("word_embed.weight", *words);
    made.tensors.add("ngram_proj.weight", {all.data(), dtype::f32, shape(d, columns)});
    made.composition = "longcat_embedding(terms=" + std::to_string(made.hash.tables() + 1) + ")";
    made.keep = owned;
    return {std::move(made)};
}

}  // namespace detail

// Finds it in a checkpoint: its folder or its config.json. What is found keeps the files open.
// Errors: errc::option for another model or a key that is missing; errc::missing_tensor, dtype, shape, with names and numbers;
//   those of opening the files. Cost: that of the headers; the projections are copied.
// Source: LongCat-Flash-Lite, modeling_longcat_ngram.py.
inline result<longcat_memory> find_longcat_memory(const std::filesystem::path& path) {
    auto parts = detail::checkpoint_parts::open(path);
    if (!parts) return parts.failure();
    struct kept {
        std::shared_ptr<const void> files, made;
    };
    auto found = detail::find_longcat_memory(**parts);
    if (found) found->keep = std::make_shared<kept>(kept{*parts, std::move(found->keep)});
    return found;
}

}  // namespace io
TIFFIN_END
