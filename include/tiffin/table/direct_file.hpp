// Rows read from a file by positional reads, many at a time.
#pragma once

#include <tiffin/aligned_buffer.hpp>
#include <tiffin/io/open_file.hpp>
#include <tiffin/io/parallel_reads.hpp>
#include <tiffin/table/table_location.hpp>

#include <algorithm>
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

// A table's rows, read from its file. Through the cache: what it has is copied, the rest is announced at
// once, then read. Around it: in whole blocks of the disk, by a policy (threads, or a ring of io_uring).
//
// Errors: errc::file where a row cannot be read or the file ends before it, with the place: never a wrong
// row,
//   whatever happens to the file meanwhile. Works again once the file does.
// Threads: reads from several threads run side by side through the cache, one after the other around it.
// Cost: a system call a row that is cached, three where it is not. Around the cache, `rows_at_once` rows of
//   memory beside the caller's.
template <io::parallel_reader Reader = io::reading_threads>
class direct_file {
public:
    // Errors: errc::file where the file cannot be opened (so) or ends before the table.
    static result<direct_file> open(const table_location& table, file_cache cache = file_cache::used) {
        int flags = 0;
        if (cache == file_cache::passed_by) {
#if defined(O_DIRECT)
            flags = O_DIRECT;
#else
            return failure{errc::option, table.path.string(),
                           "cannot be read around the cache on this system"};
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
        return around_ ? read_around(ids, to) : read_cached(ids, to);
    }

private:
    // What a disk wants reads to begin, end and go to at multiples of: 512 or 4096 bytes.
    static constexpr std::size_t block = 4096;
    static constexpr std::size_t rows_at_once = 256;

    struct around_cache {
        std::mutex mutex;
        Reader reader;
        aligned_buffer memory;
        std::vector<io::file_read> reads;
    };

    direct_file(io::open_file file, const table_location& table, file_cache cache)
        : file_(std::move(file)),
          table_(table),
          around_(cache == file_cache::passed_by ? std::make_unique<around_cache>() : nullptr) {}

    status read_cached(std::span<const std::int32_t> ids, std::byte* to) const {
        const std::size_t bytes = table_.shape.row_bytes();
        std::vector<std::size_t> missing;
        for (std::size_t i = 0; i < ids.size(); ++i)
            if (!file_.read_cached(table_.row(ids[i]), to + i * bytes, bytes)) missing.push_back(i);
        for (const std::size_t i : missing) file_.will_read(table_.row(ids[i]), bytes);
        for (const std::size_t i : missing)
            if (status s = file_.read(table_.row(ids[i]), to + i * bytes, bytes, bytes); !s) return s;
        return {};
    }

    // The blocks that a row lies in are read to memory of its own, and the row copied from there.
    status read_around(std::span<const std::int32_t> ids, std::byte* to) const {
        around_cache& a = *around_;
        const std::lock_guard lock(a.mutex);
        const std::size_t bytes = table_.shape.row_bytes();
        const std::size_t room = (bytes + 2 * block - 2) / block * block;
        const std::size_t most = std::min(ids.size(), rows_at_once);
        if (a.memory.size() < most * room + block) a.memory = aligned_buffer(most * room + block);
        const auto address = reinterpret_cast<std::uintptr_t>(a.memory.data());
        std::byte* const memory = a.memory.data() + (block - address % block) % block;
        for (std::size_t first = 0; first < ids.size(); first += most) {
            const std::size_t count = std::min(most, ids.size() - first);
            a.reads.clear();
            for (std::size_t i = 0; i < count; ++i) {
                const std::uint64_t at = table_.row(ids[first + i]);
                const std::size_t skip = at % block;
                a.reads.push_back(
                    {at - skip, memory + i * room, (skip + bytes + block - 1) / block * block, skip + bytes});
            }
            if (status s = a.reader.read(file_, a.reads); !s) return s;
            for (std::size_t i = 0; i < count; ++i)
                std::memcpy(to + (first + i) * bytes, a.reads[i].to + table_.row(ids[first + i]) % block,
                            bytes);
        }
        return {};
    }

    io::open_file file_;
    table_location table_;
    std::unique_ptr<around_cache> around_;
};

TIFFIN_END
