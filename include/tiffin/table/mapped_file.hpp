// Table rows read from a memory-mapped file.
#pragma once

#include <tiffin/io/file_mapping.hpp>
#include <tiffin/table/table_location.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include <sys/resource.h>

TIFFIN_BEGIN

// Copies a table's rows out of a mapping of its file. Where the first row is not in the page cache, or a later one had
// to wait for the disk, all remaining rows are announced to the system at once, for parallel disk reads, and read by
// pread: the mapping would load their pages one by one.
//
// Precondition: the file is not shortened while rows are being read, which would stop the program by SIGBUS. A mapping
//   cannot recover from that: where it can happen, use direct_file.
// Errors: errc::file where the file was shortened before the read. Later reads work once it has its size again.
// Cost: cached, a copy, and three system calls per read; else two system calls per row and one wait for the disk. The
//   pages stay in the page cache, whose size is up to the system.
class mapped_file {
public:
    // Errors: errc::file where the file cannot be mapped or ends before the table.
    static result<mapped_file> open(const table_location& table) {
        auto mapping = io::file_mapping::open(table.path);
        if (!mapping) return mapping.failure();
        if (status s = mapping->file().check_size(table.end()); !s) return s.failure();
        // Rows are read at random ids: readahead around a row is useless. Advice only.
        const auto bytes = mapping->bytes();
        if (!bytes.empty())
            static_cast<void>(::madvise(const_cast<std::byte*>(bytes.data()), bytes.size(), MADV_RANDOM));
        mapping->file().will_read_at_random();
        return mapped_file(*std::move(mapping), table);
    }

    [[nodiscard]] const table_shape& shape() const noexcept { return table_.shape; }
    status read(std::span<const std::int32_t> ids, std::byte* to) const {
        const std::size_t bytes = table_.shape.row_bytes();
        if (status s = mapping_.file().check_size(table_.end()); !s || bytes == 0) return s;
        const std::size_t used = use_cached(
            ids, [&](std::size_t i, const std::byte* row) { std::memcpy(to + i * bytes, row, bytes); });
        return read_announced(mapping_.file(), table_, ids.subspan(used), to + used * bytes);
    }
    status visit(std::span<const std::int32_t> ids, const row_use& use) const {
        if (status s = mapping_.file().check_size(table_.end()); !s) return s;
        const std::size_t used = use_cached(ids, use);
        const from_callback others(shape(), [&](std::span<const std::int32_t> some, std::byte* to) {
            return read_announced(mapping_.file(), table_, some, to);
        });
        return visit_rows(others, ids.subspan(used),
                          [&](std::size_t i, const std::byte* row) { use(used + i, row); });
    }

private:
    mapped_file(io::file_mapping mapping, const table_location& table)
        : mapping_(std::move(mapping)), table_(table) {}

    // Calls use(i, row) for the first ids, where the rows lie, until one had to be waited for; returns how many.
    template <class Use>
    std::size_t use_cached(std::span<const std::int32_t> ids, const Use& use) const {
        const std::size_t bytes = table_.shape.row_bytes();
        // Checks that the first row is cached, as its pages would be waited for; then that none was.
        std::byte first{};
        const bool cached =
            ids.empty() || bytes == 0 || mapping_.file().read_cached(table_.row(ids[0]), &first, 1);
        const long before = faults();
        bool waited = false;
        std::size_t used = 0;
        auto begun = std::chrono::steady_clock::now();
        for (std::size_t piece = 1; cached && used < ids.size() && !waited;
             piece = std::min<std::size_t>(2 * piece, 32)) {
            const std::size_t end = std::min(used + piece, ids.size());
            detail::use_rows(
                used, end, ids.size(), bytes, [&](std::size_t i) { return row(ids[i]); }, use);
            used = end;
            const auto now = std::chrono::steady_clock::now();
            waited = now - begun > least_wait && faults() != before;
            begun = now;
        }
        return used;
    }
    [[nodiscard]] const std::byte* row(std::int32_t id) const noexcept {
        return mapping_.bytes().data() + table_.row(id);
    }
    // No disk answers sooner: after faster pieces no system call is needed to know that no page was waited for.
    static constexpr std::chrono::microseconds least_wait{5};
    // Page faults of this thread that had to wait for the disk.
    static long faults() noexcept {
        struct ::rusage used {};
#if defined(RUSAGE_THREAD)
        ::getrusage(RUSAGE_THREAD, &used);
#else
        ::getrusage(RUSAGE_SELF, &used);
#endif
        return used.ru_majflt;
    }

    io::file_mapping mapping_;
    table_location table_;
};

TIFFIN_END
