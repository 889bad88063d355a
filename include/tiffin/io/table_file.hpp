// Token tables in safetensors files: finding them, and writing them row by row.
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
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io {

// The location of a table in a mapped file. A pool (experts, vocab, width) is one table of all experts' rows, expert by
// expert: table_location::rows() selects one of them.
// Errors: errc::missing_tensor, errc::shape, errc::dtype, errc::option where the format of a U8 tensor is missing or
//   unknown.
inline result<table_location> find_table(const safetensors_file& file, std::string_view name) {
    const auto refuse = [&](errc code, std::string what) {
        return failure(code, file.label(), "tensor ", detail::in_quotes(name), " ", std::move(what));
    };
    for (const unread_safetensor& t : file.unread())
        if (t.name == name) return refuse(errc::dtype, t.reason());
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
    if (shape.rows == 0 || shape.width == 0)
        return refuse(errc::shape, "has shape " + to_string(tensor->shape) + ", and so holds no rows");
    if (shape.type == dtype::u8) {  // a known format would have replaced it
        const auto format = file.metadata().find(format_key(name));
        return refuse(errc::option, format == file.metadata().end()
                                        ? "is bytes, and metadata " + detail::in_quotes(format_key(name)) +
                                              " does not say of which format"
                                        : "is bytes of " + detail::in_quotes(format->second) +
                                              "; known are " + detail::known_formats());
    }
    if (is_integer(shape.type))
        return refuse(errc::dtype,
                      "is " + std::string(name_of(shape.type)) + "; rows hold F32 or a smaller format of it");
    return table_location{file.label(),
                          static_cast<std::uint64_t>(static_cast<const std::byte*>(tensor->data) -
                                                     file.mapping().bytes().data()),
                          shape};
}

// The same for a file by its path. Errors: also those of safetensors_file::map. Cost: that of the header.
inline result<table_location> find_table(const std::filesystem::path& path, std::string_view name) {
    const auto file = safetensors_file::map(path, unread_tensors::listed);  // others may be of any format
    if (!file) return file.failure();
    return find_table(*file, name);
}

// Reports progress: how many of a table's rows have been written.
using table_progress = std::function<void(std::size_t done, std::size_t rows)>;

// Adds all rows of a store to a writer. The store must outlive write(), which reads some megabytes of rows at a time.
// Errors, all returned by write(): those of the store, and errc::shape where its rows or their width are 0, or where it
//   has more rows than there are int32 ids.
inline safetensors_writer& add_table(safetensors_writer& to, const std::string& name, row_store_ref store,
                                     table_progress progress = {}) {
    const table_shape table = store.shape();
    return to.add(name, table.type, {table.rows, table.width},
                  [=, told = std::move(progress)](const byte_sink& put) -> status {
                      constexpr std::size_t last = std::numeric_limits<std::int32_t>::max();
                      if (table.rows == 0 || table.width == 0 || table.rows - 1 > last)
                          return failure(errc::shape, name, "has shape ",
                                         to_string(shape{table.rows, table.width}),
                                         "; a table has numbers in each of 1 to 2^31 rows");
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
