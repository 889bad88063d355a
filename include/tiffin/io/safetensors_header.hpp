// The header of a safetensors file: the JSON that names its tensors, read and checked.
#pragma once

#include <tiffin/config.hpp>
#include <tiffin/error.hpp>
#include <tiffin/io/safetensors_entry.hpp>
#include <tiffin/io/safetensors_format.hpp>
#include <tiffin/io/safetensors_header_reader.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io {
namespace detail {

struct safetensors_header {
    std::map<std::string, std::string> metadata;
    std::vector<safetensors_entry> entries;
};

// Reads the whole header of a file with `data_size` bytes of data; the caller sets a failure's `where`.
TIFFIN_ENGINES_INLINE result<safetensors_header> read_header(std::string_view text, std::uint64_t data_size,
                                                             unread_tensors unread);

#if TIFFIN_ENGINES_DEFINITIONS
TIFFIN_ENGINES_INLINE result<safetensors_header> read_header(std::string_view text, std::uint64_t data_size,
                                                             unread_tensors unread) {
    header_reader header(data_size, unread);
    if (const status read = header.read(text); !read) return read.failure();
    return safetensors_header{std::move(header.metadata), std::move(header.entries)};
}
#endif

}  // namespace detail
}  // namespace io
TIFFIN_END
