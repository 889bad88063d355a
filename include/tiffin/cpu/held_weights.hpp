// What a tree of sources keeps of its weights on the host.
#pragma once

#include <tiffin/bind/preparation.hpp>
#include <tiffin/bind/stored_numbers.hpp>
#include <tiffin/call/call_arguments.hpp>
#include <tiffin/format/number_format.hpp>
#include <tiffin/tensor.hpp>

#include <cstddef>
#include <span>
#include <vector>

TIFFIN_BEGIN

namespace cpu_detail {

// The tables and vectors of a tree.
template <class Machine>
class held_tensors {
public:
    row_format keep_table(std::size_t number, const tensor_view& t, std::size_t /*vocab*/, std::size_t width,
                          const preparation& how) {
        const number_format format = format_of_table(how.formats, t.type);
        tables_.push_back({stored_numbers(t, format), t.gathered, number, width, format.rows});
        how.hold(tables_.back().numbers.own_bytes());
        if (t.gathered == 0) how.done(t);
        return format.rows;
    }
    // Row 0 of a table whose rows are chosen, and what its numbers are kept as.
    const void* keep_rows(std::size_t /*number*/, const tensor_view& t, row_format& numbers,
                          const preparation& how) {
        const number_format format = format_of_table(how.formats, t.type);
        numbers = format.rows;
        rows_.emplace_back(t, format);
        how.hold(rows_.back().own_bytes());
        if (t.gathered == 0) how.done(t);
        return rows_.back().data();
    }
    const float* keep_vector(const tensor_view& t, std::size_t width, const preparation& how) {
        constexpr std::size_t lanes = Machine::lane_count;
        vectors_.emplace_back(t, (width + lanes - 1) / lanes * lanes);
        how.hold(vectors_.back().own_bytes());
        return vectors_.back().floats();
    }
    // What a call gives to a view: where each token's rows lie, and what comes beside x.
    template <class View>
    void give(const call_arguments& call, View& view) const {
        view.call = {&call};
        for (const held_table& table : tables_) {
            for (std::size_t t = 0; t < call.tokens; ++t)
                view.rows[table.number].of_token[t] =
                    table.gathered != 0
                        ? call.gathered_row(table.gathered, t)
                        : table.numbers.data() +
                              table.format.bytes(static_cast<std::size_t>(call.token_id(t)) * table.width);
        }
    }

private:
    struct held_table {
        stored_numbers numbers;
        std::size_t gathered;
        std::size_t number;
        std::size_t width;
        row_format format;
    };
    std::vector<held_table> tables_;
    std::vector<stored_numbers> rows_;
    std::vector<stored_numbers> vectors_;
};

// Products of the weights of one tree, given in these formats.
template <class Machine>
class host_products {
public:
    host_products(std::size_t outputs, std::size_t inputs, std::span<const dtype> given,
                  const preparation& how)
        : packed_(outputs, inputs, given.size(), formats_of(how.formats, given)) {}
    void keep(std::size_t which, const tensor_view& weight, const preparation& how) {
        packed_.pack(which, weight, how);
        how.done(weight);
    }
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        return packed_.scratch_numbers(tokens, workers) * sizeof(float);
    }
    [[nodiscard]] const auto& packed() const noexcept { return packed_; }

private:
    typename Machine::products packed_;
};
// Of a tree without any.
struct no_host_products {
    no_host_products(std::size_t, std::size_t, std::span<const dtype>, const preparation&) noexcept {}
    static constexpr std::size_t workspace_bytes(std::size_t, std::size_t) noexcept { return 0; }
};

}  // namespace cpu_detail

TIFFIN_END
