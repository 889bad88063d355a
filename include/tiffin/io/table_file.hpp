// Token tables in safetensors files: where they lie, and writing them row by row.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/io/safetensors.hpp>
#include <tiffin/io/safetensors_writer.hpp>
#include <tiffin/table/row_store.hpp>
#include <tiffin/table/table_location.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io {

// The metadata key that names the format of a table of blocks. Safetensors has no blocks: they are kept as
// the bytes of a U8 tensor (rows, bytes of a row).
inline std::string format_key(std::string_view tensor) {
    return std::string(tensor) + ".format";
}

// Where a table lies in a file that was mapped. A pool (experts, vocab, width) is a table of all its experts'
// rows, one expert behind the other: table_location::rows() gives one of them.
// Errors: errc::missing_tensor, errc::shape, errc::dtype, errc::option where the format of bytes is not told.
inline result<table_location> find_table(const safetensors_file& file, std::string_view name) {
    const auto refuse = [&](errc code, std::string what) {
        return failure{code, file.label(), "tensor " + detail::in_quotes(name) + " " + std::move(what)};
    };
    const tensor_view* const tensor = file.tensors().find(name);
    if (tensor == nullptr)
        return refuse(errc::missing_tensor,
                      "is missing; the file has " + std::to_string(file.tensors().entries().size()));
    const std::size_t rank = tensor->shape.rank();
    if (rank != 2 && rank != 3)
        return refuse(errc::shape, "has shape " + to_string(tensor->shape) +
                                       "; a table is (rows, width), a pool (experts, rows, width)");
    table_shape shape{rank == 3 ? tensor->shape[0] * tensor->shape[1] : tensor->shape[0],
                      tensor->shape[rank - 1], tensor->type};
    if (shape.type == dtype::u8) {
        const auto format = file.metadata().find(format_key(name));
        if (format == file.metadata().end())
            return refuse(errc::option, "is bytes, and metadata " + detail::in_quotes(format_key(name)) +
                                            " does not say of which format");
        for (const dtype type : {dtype::q8_0, dtype::q4_0})
            if (format->second == name_of(type)) shape.type = type;
        if (shape.type == dtype::u8)
            return refuse(errc::option,
                          "is bytes of " + detail::in_quotes(format->second) + "; Q8_0 and Q4_0 are known");
        if (shape.width % size_of(shape.type) != 0)
            return refuse(errc::shape, "has rows of " + std::to_string(shape.width) + " bytes; " +
                                           format->second + " has blocks of " +
                                           std::to_string(size_of(shape.type)));
        shape.width = shape.width / size_of(shape.type) * block_of(shape.type);
    }
    if (is_integer(shape.type))
        return refuse(errc::dtype,
                      "is " + std::string(name_of(shape.type)) + "; rows hold F32 or a smaller format of it");
    return table_location{file.label(),
                          static_cast<std::uint64_t>(static_cast<const std::byte*>(tensor->data) -
                                                     file.mapping().bytes().data()),
                          shape};
}

// The same of a file by its path. Errors: those of safetensors_file::map, too. Cost: that of the header.
inline result<table_location> find_table(const std::filesystem::path& path, std::string_view name) {
    const auto file = safetensors_file::map(path);
    if (!file) return file.failure();
    return find_table(*file, name);
}

// Told how many rows of a table are written, of how many.
using table_progress = std::function<void(std::size_t done, std::size_t rows)>;

// Adds all rows of a store to what a writer will write. The store must outlive that; it is read some
// megabytes of rows at a time. Errors of the store become those of write().
inline safetensors_writer& add_table(safetensors_writer& to, const std::string& name, row_store_ref store,
                                     table_progress progress = {}) {
    const table_shape table = store.shape();
    const bool blocks = block_of(table.type) > 1;
    if (blocks) to.set(format_key(name), std::string(name_of(table.type)));
    return to.add(name, blocks ? dtype::u8 : table.type,
                  {table.rows, blocks ? table.row_bytes() : table.width},
                  [=, told = std::move(progress)](const byte_sink& put) -> status {
                      const std::size_t bytes = table.row_bytes();
                      const std::size_t most = std::max<std::size_t>((std::size_t{4} << 20) / bytes, 1);
                      std::vector<std::int32_t> ids;
                      std::vector<std::byte> rows(std::min(most, table.rows) * bytes);
                      for (std::size_t first = 0; first < table.rows; first += ids.size()) {
                          ids.resize(std::min(most, table.rows - first));
                          std::iota(ids.begin(), ids.end(), static_cast<std::int32_t>(first));
                          if (status s = store.read(ids, rows.data()); !s) return s;
                          if (!put(rows.data(), ids.size() * bytes)) return {};
                          if (told) told(first + ids.size(), table.rows);
                      }
                      return {};
                  });
}

}  // namespace io
TIFFIN_END
