// A block's tables in memory, and the same rows as they come with each call.
#pragma once

#include <tiffin/call/gathered_rows.hpp>
#include <tiffin/plan/tensors_needed.hpp>
#include <tiffin/table/joined_columns.hpp>
#include <tiffin/table/prefetched_rows.hpp>
#include <tiffin/table/row_store.hpp>

#include "support/stored_blocks.hpp"
#include "support/tensor_set.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

namespace tiffin_test {

// A block's tensors, its tables in one format: given in memory, and as rows that come with each call.
struct tables_apart {
    tensor_set tensors;
    tiffin::weights in_memory_all, gathered_all;
    bool cut = false;  // blocks of the format would be
    std::deque<std::vector<std::byte>> bytes;
    std::deque<tiffin::in_memory> tables;
    std::deque<tiffin::joined_columns> pools;
    std::deque<tiffin::row_store_ref> stores;
    std::deque<tiffin::prefetched_tables> rows;

    template <class Block>
    tables_apart(const Block& block, const sizes& sizes, tiffin::dtype type)
        : tensors(tensor_set::of(block, {sizes, {}, {}, ~0u, 7})) {
        std::vector<std::string> names;
        for (const tiffin::named_tensor& t : tiffin::tensors_needed(block, sizes.shape()))
            if (tiffin::holds_rows(t.tensor.kind)) names.push_back(t.name);
        const tiffin::weights given = tensors.given();
        for (const tiffin::weights::entry& e : given.entries()) {
            if (std::find(names.begin(), names.end(), e.name) == names.end()) {
                in_memory_all.add(e.name, e.tensor);
                gathered_all.add(e.name, e.tensor);
                continue;
            }
            const std::size_t rank = e.tensor.shape.rank();
            const tiffin::table_shape one{e.tensor.shape[rank - 2], e.tensor.shape[rank - 1], type};
            if (one.width % tiffin::block_of(type) != 0) {
                cut = true;
                gathered_all.add_gathered(e.name, type, e.tensor.shape);
                continue;
            }
            const std::size_t experts = rank == 3 ? e.tensor.shape[0] : 1;
            auto& stored = bytes.emplace_back(stored_blocks(type, static_cast<const float*>(e.tensor.data),
                                                            experts * one.rows * one.width, 5));
            in_memory_all.add(e.name, tiffin::tensor_view{stored.data(), type, e.tensor.shape});
            gathered_all.add_gathered(e.name, type, e.tensor.shape);
            std::vector<tiffin::row_store_ref> parts;
            for (std::size_t i = 0; i < experts; ++i) {
                tables.push_back(*tiffin::in_memory::view(
                    {stored.data() + i * one.rows * one.row_bytes(), type, {one.rows, one.width}}));
                parts.emplace_back(tables.back());
            }
            stores.push_back(
                rank == 3 ? tiffin::row_store_ref(pools.emplace_back(*tiffin::joined_columns::of(parts)))
                          : parts[0]);
        }
    }
    // Of ids; of tables whose rows are chosen, of the chosen rows' numbers.
    std::span<const tiffin::gathered_rows> gather(const std::vector<std::int32_t>& ids) {
        if (rows.empty()) rows.emplace_back(std::vector<tiffin::row_store_ref>(stores.begin(), stores.end()));
        return rows[0].gather(ids).or_throw();
    }
};

}  // namespace tiffin_test
