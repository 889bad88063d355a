// The tables of a layer in a file: written once, their rows gathered for each call.
#pragma once

#include <tiffin/io/table_file.hpp>
#include <tiffin/table/joined_columns.hpp>
#include <tiffin/table/mapped_file.hpp>
#include <tiffin/table/prefetched_rows.hpp>
#include <tiffin/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../support/signals.hpp"

#include <unistd.h>

class tables_in_file {
public:
    // `tables` says which of the tensors are tables or pools. The file is gone with the object.
    tables_in_file(const tiffin::weights& given, const std::vector<bool>& tables, const std::string& name)
        : file_(std::filesystem::temp_directory_path() /
                ("tiffin_" + name + "_" + std::to_string(::getpid()) + ".safetensors")) {
        tiffin::io::safetensors_writer writer;
        const auto& entries = given.entries();
        for (std::size_t i = 0; i < entries.size(); ++i)
            if (tables[i]) writer.add(entries[i].name, entries[i].tensor);
        writer.write(file_.path()).or_throw();
        std::vector<tiffin::row_store_ref> stores;
        for (std::size_t i = 0; i < entries.size(); ++i) {
            const auto& [tensor_name, tensor] = entries[i];
            if (!tables[i]) {
                weights_.add(tensor_name, tensor);
                continue;
            }
            weights_.add_gathered(tensor_name, tensor.type, tensor.shape);
            const tiffin::table_location table = tiffin::io::find_table(file_.path(), tensor_name).or_throw();
            const std::size_t experts = tensor.shape.rank() == 3 ? tensor.shape[0] : 1;
            const std::size_t rows = table.shape.rows / experts;
            std::vector<tiffin::row_store_ref> parts;
            for (std::size_t e = 0; e < experts; ++e)
                parts.emplace_back(files_.emplace_back(
                    tiffin::mapped_file::open(table.rows(e * rows, rows).or_throw()).or_throw()));
            stores.push_back(experts > 1 ? pools_.emplace_back(tiffin::joined_columns::of(parts).or_throw())
                                         : parts[0]);
        }
        rows_ = std::make_unique<tiffin::prefetched_tables>(stores);
    }

    // The tensors, tables as such that come with each call.
    [[nodiscard]] const tiffin::weights& weights() const { return weights_; }
    // The rows of a call, valid until the next.
    std::span<const tiffin::gathered_rows> gather(std::span<const std::int32_t> ids) {
        rows_->prefetch(ids).or_throw();  // all tables side by side
        return rows_->gather(ids).or_throw();
    }

private:
    temporary_file file_;
    tiffin::weights weights_;
    std::list<tiffin::mapped_file> files_;
    std::list<tiffin::joined_columns> pools_;
    std::unique_ptr<tiffin::prefetched_tables> rows_;
};
