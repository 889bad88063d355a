// Rows read from a file by positional reads, many at a time.
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

// Whether rows are left in the system's cache, or read around it into memory that is bounded by the caller.
enum class file_cache { used, passed_by };

// A table's rows, read from its file. Through the cache: rows are copied until one is not there; all that are
// left are then announced at once, and read. Around it: in whole blocks of the disk, by a policy (threads, or
// a ring of io_uring).
//
// Errors: errc::file where a row cannot be read or the file ends before it, with the place:
//   never a wrong row, whatever happens to the file meanwhile. Works again once the file does.
// Threads: reads from several threads run side by side through the cache, one after the other around it.
// Cost: a system call a row, two from the first on that is not cached. Around the cache, the reader's memory.
template <io::parallel_reader Reader = io::reading_threads>
class direct_file {
public:
    // Errors: errc::file where the file cannot be opened so, or ends before the table.
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

    // The blocks that a row lies in are read, and the row copied from them.
    status read_around(std::span<const std::int32_t> ids, std::byte* to) const {
        constexpr std::size_t block = io::read_places::block;
        const std::size_t bytes = table_.shape.row_bytes();
        const std::lock_guard lock(around_->mutex);
        around_->reads.clear();
        for (const std::int32_t id : ids) {
            const std::uint64_t at = table_.row(id);
            const std::size_t skip = at % block;
            around_->reads.push_back({at - skip, (skip + bytes + block - 1) / block * block, skip + bytes});
        }
        detail::done_marks arrived;  // the reader may be one of the caller's
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
