// The rows that the last ids of a text address, as the per_layer_input of a block.
#pragma once

#include <tiffin/format/given_format.hpp>
#include <tiffin/io/ngram_layer.hpp>
#include <tiffin/table/ngram_history.hpp>
#include <tiffin/view.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <variant>
#include <vector>

// e[t] = [T_0[r_0t], T_1[r_1t], ...] of one text. The table stays where it is: a mapped file may be larger than memory.
class ngram_input {
public:
    explicit ngram_input(tiffin::io::ngram_layer of) : of_(std::move(of)), first_(of_.first_rows()) {
        begin();
    }

    // The rows of a token side by side.
    [[nodiscard]] std::size_t width() const { return (first_.size() - 1) * of_.table.shape[1]; }
    [[nodiscard]] std::size_t vocab() const {
        return std::visit([](const auto& a) { return a.vocab(); }, of_.address);
    }

    // A text begins.
    void begin() {
        past_.assign(1,
                     tiffin::ngram_history(std::visit([](const auto& a) { return a.order(); }, of_.address)));
    }
    // Of the text's next ids, (T, width); valid until the next call. Precondition: ids below vocab().
    tiffin::matrix_view<const float> of_next(std::span<const std::int32_t> ids) {
        const std::size_t tokens = ids.size(), tables = first_.size() - 1, columns = of_.table.shape[1];
        rows_.resize(tables * tokens);
        const std::vector<std::uint32_t> one_text(tokens);
        std::visit([&](const auto& a) { a(ids, one_text, past_, rows_).or_throw(); }, of_.address);
        joined_.resize(tokens * width());
        for (std::size_t t = 0; t < tokens; ++t)
            for (std::size_t i = 0; i < tables; ++i) {
                const std::size_t row = first_[i] + static_cast<std::size_t>(rows_[i * tokens + t]);
                tiffin::read_as_f32(of_.table, row * columns, columns,
                                    joined_.data() + (t * tables + i) * columns);
            }
        return {joined_.data(), tokens, width()};
    }

private:
    tiffin::io::ngram_layer of_;
    std::vector<std::size_t> first_;
    std::vector<tiffin::ngram_history> past_;
    std::vector<std::int32_t> rows_;
    std::vector<float> joined_;
};
