// The per-layer embedding of a layer: tiffin's block, whose rows stay in the model's file.
#pragma once

#include <tiffin/io/layer_file.hpp>
#include <tiffin/io/per_layer_memory.hpp>
#include <tiffin/runtime/any_layer.hpp>
#include <tiffin/table/mapped_file.hpp>
#include <tiffin/table/prefetched_rows.hpp>

#include "../support/row_matrix.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

class per_layer_rows {
public:
    per_layer_rows(tiffin::any_layer block, const tiffin::table_location& table)
        : block_(std::move(block)),
          table_(std::make_unique<tiffin::mapped_file>(tiffin::mapped_file::open(table).or_throw())),
          rows_(std::make_unique<tiffin::prefetched_rows>(*table_)) {}

    [[nodiscard]] const tiffin::any_layer& block() const { return block_; }
    // y = what the layer adds to x, rows of the tokens `ids`.
    void operator()(const row_matrix& x, std::span<const std::int32_t> ids, row_matrix& y,
                    tiffin::workspace& memory, tiffin::executor_ref execute) const {
        const auto rows = rows_->gather(ids).or_throw();
        y.resize(x.rows(), x.cols());
        block_(x, {.token_ids = ids, .gathered = {&rows, 1}}, y, memory, execute);
    }

private:
    tiffin::any_layer block_;
    std::unique_ptr<tiffin::mapped_file> table_;
    std::unique_ptr<tiffin::prefetched_rows> rows_;
};
using rows_of_layer = std::function<per_layer_rows(std::size_t)>;

// Opens those of a model's layers on a backend that keeps tables as they are given.
template <class Backend>
rows_of_layer open_per_layer_rows(const std::filesystem::path& model, const Backend& backend,
                                  const tiffin::prepare_options& how) {
    // The files are opened once, for all layers.
    const auto files = std::make_shared<const std::vector<tiffin::io::gguf_file>>(
        tiffin::io::open_gguf_files(model).or_throw());
    return [files, backend, how](std::size_t layer) {
        const auto found = tiffin::io::find_per_layer_memory(*files, layer).or_throw();
        const tiffin::io::described_layer block{{{"composition", found.composition}}, found.tensors, files};
        return per_layer_rows(tiffin::io::load_layer(block, backend, how).or_throw(), found.table);
    };
}
