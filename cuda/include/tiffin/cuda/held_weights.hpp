// The tables and vectors of a tree of sources, on the device.
#pragma once

#include <tiffin/cuda/call.hpp>
#include <tiffin/cuda/uploads.hpp>
#include <tiffin/format/concepts.hpp>
#include <tiffin/tensor.hpp>

#include <cstddef>
#include <vector>

TIFFIN_BEGIN

namespace cuda_detail {

// Sets the rows that a kernel's view reads, per call.
template <codec Format>
class device_tensors {
public:
    void keep_table(std::size_t number, const tensor_view& t, std::size_t vocab, std::size_t width,
                    uploads& up) {
        row_source rows{};
        rows.data = reinterpret_cast<const std::byte*>(up.numbers<Format>(t));
        rows.count = vocab;
        rows.stride = width * sizeof(typename Format::storage);
        tables_.push_back({rows, t.gathered, number, false});
    }
    const void* keep_rows(std::size_t number, const tensor_view& t, uploads& up) {
        if (t.gathered != 0) tables_.push_back({{}, t.gathered, number, true});
        return up.numbers<Format>(t);
    }
    static const float* keep_vector(const tensor_view& t, std::size_t /*width*/, uploads& up) {
        return up.numbers<f32>(t);
    }
    template <class View>
    void give(const device_call<Format>& call, View& view) const {
        view.call = {call.tokens, call.refused, call.per_layer_input, call.residual};
        for (const held_table& table : tables_) {
            auto& rows = view.rows[table.number];
            static_cast<row_source&>(rows) = table.rows;
            rows.first = call.first;
            rows.index = call.token_ids;
            if (table.gathered == 0) continue;
            static_cast<row_source&>(rows) = rows_of_choices(call.gathered[table.gathered - 1], call.first);
            if (!table.by_choice) rows.index += call.first;
        }
    }

private:
    struct held_table {
        row_source rows;
        std::size_t gathered;
        std::size_t number;
        bool by_choice;  // gathered rows that a row router chose, indexed by choice
    };
    std::vector<held_table> tables_;
};

}  // namespace cuda_detail

TIFFIN_END
