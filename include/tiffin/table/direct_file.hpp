// Table rows read from a file by positional reads, many at a time.
#pragma once

#include <tiffin/executor/checked_executor.hpp>
#include <tiffin/io/open_file.hpp>
#include <tiffin/io/parallel_reads.hpp>
#include <tiffin/table/table_location.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// Whether reads go through the page cache, or around it (O_DIRECT) into memory that the caller bounds.
enum class file_cache { used, passed_by };

// Reads a table's rows from its file. Through the page cache: rows are copied until one is not cached; all remaining
// ones are then announced to the system at once, and read. Around it: in whole disk blocks, by a Reader policy
// (threads, or an io_uring ring).
//
// Errors: errc::file, with the offset, where a row cannot be read or the file ends before it: never a wrong row,
//   whatever happens to the file meanwhile. Later reads work again once the file can be read.
// Threads: reads of several threads run in parallel through the page cache, one after the other around it.
// Cost: one system call per row, two per row from the first uncached one on. Around the cache, the reader's memory.
template <io::parallel_reader Reader = io::reading_threads>
class direct_file {
public:
    // Errors: errc::file where the file cannot be opened, or ends before the table; errc::option without O_DIRECT.
    static result<direct_file> open(const table_location& table, file_cache cache = file_cache::used) {
        int flags = 0;
        if (cache == file_cache::passed_by) {
#if defined(O_DIRECT)
            flags = O_DIRECT;
#else
            return failure(errc::option, table.path.string(),
                           "cannot be read around the cache on this system");
#endif
        }
        auto file = io::open_file::open(table.path, flags);
        if (!file) return file.failure();
        if (status s = file->check_size(table.end()); !s) return s.failure();
        file->will_read_at_random();
        return direct_file(*std::move(file), table, cache);
    }

    [[nodiscard]] const table_shape& shape() const noexcept {
        return table_.shape;
    }
    status read(std::span<const std::int32_t> ids, std::byte* to) const {
        if (table_.shape.row_bytes() == 0) return {};
        return around_ ? read_around(ids, to) : read_cached(ids, to);
    }

private:
    struct around_cache {
        std::mutex mutex;
        Reader reader;
        std::vector<io::file_read> reads;
    };

    direct_file(io::open_file file, const table_location& table, file_cache cache)
        : file_(std::move(file)),
          table_(table),
          around_(cache == file_cache::passed_by ? std::make_unique<around_cache>() : nullptr) {}

    status read_cached(std::span<const std::int32_t> ids, std::byte* to) const {
        const std::size_t bytes = table_.shape.row_bytes();
        std::size_t copied = 0;
        while (copied < ids.size() && file_.read_cached(table_.row(ids[copied]), to + copied * bytes, bytes))
            ++copied;
        return read_announced(file_, table_, ids.subspan(copied), to + copied * bytes);
    }

    // Reads the disk blocks that contain each row, and copies the row out of them.
    status read_around(std::span<const std::int32_t> ids, std::byte* to) const {
        constexpr std::size_t block = io::read_buffers::block;
        const std::size_t bytes = table_.shape.row_bytes();
        const std::lock_guard lock(around_->mutex);
        around_->reads.clear();
        for (const std::int32_t id : ids) {
            const std::uint64_t at = table_.row(id);
            const std::size_t skip = at % block;
            around_->reads.push_back({at - skip, (skip + bytes + block - 1) / block * block, skip + bytes});
        }
        detail::done_marks arrived;  // checked, as the caller may supply the reader
        const status done =
            around_->reader.read(file_, around_->reads, [&](std::size_t i, const std::byte* blocks) {
                if (i < ids.size()) std::memcpy(to + i * bytes, blocks + table_.row(ids[i]) % block, bytes);
                arrived.add(i);
            });
        if (!done || arrived.each_once(ids.size())) return done;
        return failure(errc::file, file_.path(), "its reader said that ", ids.size(),
                       " reads were done, and has not done each once");
    }

    io::open_file file_;
    table_location table_;
    std::unique_ptr<around_cache> around_;
};

TIFFIN_END
