// Rows in a mapped file.
#pragma once

#include <tiffin/io/file_mapping.hpp>
#include <tiffin/table/table_location.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

TIFFIN_BEGIN

// A table's rows copied out of a mapping of its file. Rows that are not in the system's cache are asked for
// all at once before the first is touched, so that the disk reads them side by side.
//
// Precondition: nobody shortens the file while rows are being read; the program would be stopped by SIGBUS.
//   That is the one thing that a mapping cannot survive: where it can happen, use direct_file.
// Errors: errc::file where the file was shortened before the read. It works again once the file does.
// Cost: in the cache, a look at the file's size, at most 16 at its rows, and a copy; else a system call a
//   row and one wait for the disk. The pages stay in the cache, which is the system's to bound.
class mapped_file {
public:
    // Errors: errc::file where the file cannot be mapped or ends before the table.
    static result<mapped_file> open(const table_location& table) {
        auto mapping = io::file_mapping::open(table.path);
        if (!mapping) return mapping.failure();
        if (status s = mapping->file().check_size(table.end()); !s) return s.failure();
        // Rows are asked for by ids; what lies around one is not wanted. Advice only.
        if (!mapping->bytes().empty()) advise(mapping->bytes(), MADV_RANDOM);
        return mapped_file(*std::move(mapping), table);
    }

    [[nodiscard]] const table_shape& shape() const noexcept { return table_.shape; }
    status read(std::span<const std::int32_t> ids, std::byte* to) const {
        if (status s = mapping_.file().check_size(table_.end()); !s) return s;
        if (!looks_cached(ids))
            for (const std::int32_t id : ids) advise(row(id), MADV_WILLNEED);
        const std::size_t bytes = table_.shape.row_bytes();
        for (std::size_t i = 0; i < ids.size(); ++i) std::memcpy(to + i * bytes, row(ids[i]).data(), bytes);
        return {};
    }

private:
    mapped_file(io::file_mapping mapping, const table_location& table)
        : mapping_(std::move(mapping)), table_(table) {}

    [[nodiscard]] std::span<const std::byte> row(std::int32_t id) const noexcept {
        return mapping_.bytes().subspan(table_.row(id), table_.shape.row_bytes());
    }
    // The whole pages around some bytes.
    static std::span<const std::byte> pages_of(std::span<const std::byte> bytes) noexcept {
        static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
        const std::size_t before = reinterpret_cast<std::uintptr_t>(bytes.data()) % page;
        return {bytes.data() - before, bytes.size() + before};
    }
    static void advise(std::span<const std::byte> bytes, int advice) noexcept {
        const auto pages = pages_of(bytes);
        static_cast<void>(::madvise(const_cast<std::byte*>(pages.data()), pages.size(), advice));
    }
    // Whether some of the rows are in the cache, by their first bytes. (mincore() tells owners only.) A row
    // that is missed is read when it is touched.
    [[nodiscard]] bool looks_cached(std::span<const std::int32_t> ids) const noexcept {
        const std::size_t looks = std::min<std::size_t>(ids.size(), 16);
        std::byte first{};
        for (std::size_t i = 0; i < looks; ++i)
            if (!mapping_.file().read_cached(table_.row(ids[i * ids.size() / looks]), &first, 1))
                return false;
        return true;
    }

    io::file_mapping mapping_;
    table_location table_;
};

TIFFIN_END
