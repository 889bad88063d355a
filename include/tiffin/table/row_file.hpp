// The file of writable rows: a header page with a label (sizes, version, checksum), and the rows.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/executor/checked_executor.hpp>
#include <tiffin/io/writable_file.hpp>
#include <tiffin/table/rows_label.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace detail {

// `rows` rows of `row_bytes` bytes after a header page of 4096 bytes. The page has two slots for a label; the intact
// label of the larger number counts. The number is 2 * commits, and 1 more while rows are changing. Even numbers are
// written to the first slot, odd ones to the second, so that a partly written label leaves the one before intact.
class row_file {
public:
    static constexpr std::uint64_t page = 4096, place = page / 2;
    // Fills the initial contents of a row.
    using first_row = std::function<void(std::size_t id, std::span<std::byte> to)>;

    // Creates the file, with number 0. Its name appears only when it is complete.
    // Errors: errc::shape, errc::file.
    static status create(const std::filesystem::path& path, std::size_t rows, std::size_t row_bytes,
                         const first_row& first) {
        const std::uint64_t all = file_bytes(rows, row_bytes);
        if (all == 0)
            return failure(errc::shape, path.string(), "is to have ", rows, " rows of ", row_bytes,
                           " bytes; there are bytes in each of 1 to 2^31 rows, and less than 2^63 in all");
        auto made = io::detail::new_file::begin(path);
        if (!made) return made.failure();
        const io::writable_file& file = made->file();
        rows_label label;
        label.kind = rows_kind;
        label.rows = rows;
        label.row_bytes = row_bytes;
        // Writes the whole page, so that its disk space is allocated even if the disk is full later.
        status s = write_label(file, label);
        if (s) s = clear(file, place);
        if (s) s = file.resize(all);
        std::vector<std::byte> some;
        const std::size_t most = std::max<std::size_t>((std::size_t{4} << 20) / row_bytes, 1);
        for (std::size_t begin = 0; s && first && begin < rows; begin += most) {
            some.assign(std::min(most, rows - begin) * row_bytes, std::byte{0});
            for (std::size_t i = 0; i * row_bytes < some.size(); ++i)
                first(begin + i, std::span(some).subspan(i * row_bytes, row_bytes));
            s = file.write(page + std::uint64_t{begin} * row_bytes, some.data(), some.size());
        }
        return made->named(s ? made->finish() : s);
    }
    // Opens and locks the file.
    // Errors: errc::file where it is no such file, or its size differs from that of its label.
    static result<row_file> open(const std::filesystem::path& path) {
        // Symbolic links are resolved, as the journal lies beside the file itself.
        std::error_code error;
        const std::filesystem::path whole = std::filesystem::canonical(path, error);
        auto file = io::writable_file::open(error ? path : whole);
        if (!file) return file.failure();
        if (status s = file->lock(); !s) return s.failure();
        file->will_read_at_random();
        row_file made;
        made.file_ = *std::move(file);
        if (status s = made.load(); !s) return s.failure();
        return {std::move(made)};
    }
    row_file() = default;

    [[nodiscard]] const std::string& path() const noexcept { return file_.path(); }
    [[nodiscard]] std::size_t rows() const noexcept { return static_cast<std::size_t>(label_.rows); }
    [[nodiscard]] std::size_t row_bytes() const noexcept {
        return static_cast<std::size_t>(label_.row_bytes);
    }
    [[nodiscard]] std::uint64_t bytes() const noexcept { return file_bytes(rows(), row_bytes()); }
    [[nodiscard]] std::uint64_t number() const noexcept { return label_.number; }
    [[nodiscard]] status sync() const { return file_.sync(); }

    // Writes the label with another number; number() changes only by set_number().
    // Errors: errc::file.
    [[nodiscard]] status write_number(std::uint64_t number) const {
        rows_label label = label_;
        label.number = number;
        return write_label(file_, label);
    }
    void set_number(std::uint64_t number) noexcept { label_.number = number; }
    // Clears the slot of the odd number.
    // Errors: errc::file.
    [[nodiscard]] status clear_odd() const { return clear(file_, place); }

    // Reads table rows ids[i], i in [first, end). A run of n consecutive ids from the i-th on is read at once to at(i,
    // n); then done(i, n) is called.
    // Errors: errc::file.
    template <class At, class Done>
    status read(std::span<const std::int32_t> ids, std::size_t first, std::size_t end, const At& at,
                const Done& done) const {
        bool cached = true;
        for (std::size_t i = first, next = 0; i < end; i = next) {
            next = run_end(ids, i, end);
            const std::size_t size = (next - i) * row_bytes();
            std::byte* const to = at(i, next - i);
            if (cached && !(cached = file_.read_cached(offset(ids[i]), to, size))) announce(ids, i, end);
            if (!cached)
                if (status s = file_.read(offset(ids[i]), to, size, size); !s) return s;
            done(i, next - i);
        }
        return {};
    }
    // Writes rows ids[i] from `from` + i * row_bytes. Errors: errc::file.
    [[nodiscard]] status write(std::span<const std::int32_t> ids, std::size_t first, std::size_t end,
                               const std::byte* from) const {
        for (std::size_t i = first, next = 0; i < end; i = next) {
            next = run_end(ids, i, end);
            if (status s = file_.write(offset(ids[i]), from + i * row_bytes(), (next - i) * row_bytes()); !s)
                return s;
        }
        return {};
    }

private:
    static status write_label(const io::writable_file& file, const rows_label& label) {
        std::array<std::byte, place> half{};
        const auto stored = label.stored();
        std::copy(stored.begin(), stored.end(), half.begin());
        return file.write(label.number % 2 * place, half.data(), half.size());
    }
    static status clear(const io::writable_file& file, std::uint64_t at) {
        const std::array<std::byte, place> none{};
        return file.write(at, none.data(), none.size());
    }
    // The size of the file; 0 where there can be no such file.
    static std::uint64_t file_bytes(std::uint64_t rows, std::uint64_t row_bytes) noexcept {
        std::uint64_t all = 0;
        const bool none = rows == 0 || row_bytes == 0 || rows > std::uint64_t{1} << 31 ||
                          __builtin_mul_overflow(rows, row_bytes, &all) ||
                          __builtin_add_overflow(all, page, &all) || all >> 63 != 0;
        return none ? 0 : all;
    }
    [[nodiscard]] std::uint64_t offset(std::int32_t id) const noexcept {
        return page + static_cast<std::uint64_t>(id) * label_.row_bytes;
    }
    // The end of the run of consecutive ids from ids[i] on.
    static std::size_t run_end(std::span<const std::int32_t> ids, std::size_t i, std::size_t end) noexcept {
        do ++i;
        while (i < end && ids[i] - 1 == ids[i - 1]);
        return i;
    }
    // Announces the reads to the system, so that the disk serves them in parallel.
    void announce(std::span<const std::int32_t> ids, std::size_t first, std::size_t end) const noexcept {
        for (std::size_t i = first, next = 0; i < end; i = next) {
            next = run_end(ids, i, end);
            file_.will_read(offset(ids[i]), (next - i) * row_bytes());
        }
    }
    status load() {
        const auto size = file_.size();
        if (!size) return size.failure();
        if (*size < page)
            return failure(errc::file, path(), "has ", *size, " bytes; a file of rows has ", page,
                           " and its rows");
        bool known = false, found = false;
        for (const std::uint64_t n : {0u, 1u}) {
            std::array<std::byte, sizeof(rows_label)> stored{};
            if (status s = file_.read(n * place, stored.data(), stored.size(), stored.size()); !s) return s;
            const rows_label label = rows_label::of(stored);
            if (label.kind != rows_kind) continue;
            known = true;
            if (!label.whole() || label.number % 2 != n || (found && label.number < label_.number)) continue;
            label_ = label;
            found = true;
        }
        if (!known) return failure(errc::file, path(), "is no file of rows that can be written");
        if (!found) return failure(errc::file, path(), "has a damaged label, in both of its places");
        if (label_.version != rows_label().version)
            return failure(errc::file, path(), "is of version ", label_.version, "; known is ",
                           rows_label().version);
        if (*size != bytes())
            return failure(errc::file, path(), "has ", *size, " bytes; ", rows(), " rows of ", row_bytes(),
                           " bytes are ", bytes(), " with their label");
        return {};
    }

    io::writable_file file_;
    rows_label label_;
};

// Runs work(first, end) -> status on pieces of [0, count) in parallel; returns the failure of the first that failed.
template <class Work>
status in_pieces(std::size_t count, executor_ref execute, const Work& work) {
    // Several pieces per thread: some rows wait for the disk and others do not.
    const std::size_t threads = execute.concurrency() == 0 ? 8 : execute.concurrency();
    const std::size_t pieces = threads == 1 ? 1 : std::min(count, 4 * threads);
    if (pieces <= 1) return work(0, count);
    std::vector<status> done(pieces);
    const auto task = [&](std::size_t p) { done[p] = work(count * p / pieces, count * (p + 1) / pieces); };
    if (status s = run_each_once(execute, pieces, task_ref(task)); !s) return s;
    for (const status& s : done)
        if (!s) return s;
    return {};
}

}  // namespace detail
TIFFIN_END
