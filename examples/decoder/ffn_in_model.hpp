// The FFN of a layer of a model: tiffin's block, and the rows by the last ids that it may read.
#pragma once

#include <tiffin/runtime/any_layer.hpp>

#include "model_file.hpp"
#include "ngram_input.hpp"

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <utility>

// The block between the norm before the FFN and the residual of a layer: the model's own, or what takes its place, such
// as the same beside a table. Calls bring the tokens' ids, the residual where the block reads it, and the rows by the last
// ids where it reads per_layer_input.
struct ffn_in_model {
    ffn_in_model(tiffin::any_layer block_, std::optional<ngram_input> rows_ = {})
        : block(std::move(block_)), rows(std::move(rows_)) {}

    // Refuses what does not fit the model.
    void check(const model_file& file, std::size_t layer, std::size_t vocabulary) const {
        const std::string of_layer = " of layer " + std::to_string(layer);
        const auto told = [](std::size_t n) { return std::to_string(n); };
        if (const std::size_t d = file.count("embedding_length"); block.d_model() != d)
            file.refuse("the FFN" + of_layer + " is " + told(block.d_model()) + " wide; the model is " +
                        told(d));
        for (const tiffin::table_size& table : block.needs().tables)
            if (table.vocab != vocabulary)
                file.refuse(table.name + of_layer + " has " + told(table.vocab) +
                            " rows; the model's vocabulary has " + told(vocabulary));
        const std::size_t wanted = block.needs().given_width, width = rows ? rows->width() : 0;
        if (wanted != width)
            file.refuse("the FFN" + of_layer + " reads " + told(wanted) +
                        " numbers per token beside x; there are " + told(width) + " of rows by the last ids");
        if (rows && rows->vocab() < vocabulary)
            file.refuse("the rows by the last ids" + of_layer + " are of " + told(rows->vocab()) +
                        " ids; the model's vocabulary has " + told(vocabulary));
    }

    tiffin::any_layer block;
    std::optional<ngram_input> rows;
};
using ffn_of_layer = std::function<ffn_in_model(std::size_t)>;
