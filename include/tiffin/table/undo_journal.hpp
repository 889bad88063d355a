// The undo journal of writable rows: what rows were before they were changed.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/executor/executor.hpp>
#include <tiffin/io/writable_file.hpp>
#include <tiffin/table/id_set.hpp>
#include <tiffin/table/row_file.hpp>
#include <tiffin/table/rows_label.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace detail {

// The rows of the last commit that were changed since, in a file: a label with the number of that commit,
// then records (checksum, id, row), the checksum over the number, the id and the row.
//
// A record whose checksum is wrong is passed over: it is of an earlier commit; or it was not whole when the
// run ended, and then its row was not yet changed. One that was damaged later costs its own row only.
class undo_journal {
public:
    // The journal at `path` of some rows; made if it is not there and `make` says so. It is not emptied.
    // Errors: errc::file where it is not there, is no journal, or is open somewhere else.
    static result<undo_journal> open(const std::filesystem::path& path, const row_file& rows, bool make) {
        const int error = make ? io::detail::make_empty(path) : EEXIST;
        if (error != 0 && error != EEXIST)
            return failure(errc::file, path.string(), "the journal of changes cannot be made: ",
                           io::detail::reason({error, std::generic_category()}));
        // Always: who made it may have ended before this.
        if (make)
            if (status s = io::detail::sync_folder_of(path); !s) return s.failure();
        auto file = io::writable_file::open(path);
        if (!file) return file.failure();
        if (status s = file->lock(); !s) return s.failure();
        undo_journal made;
        made.file_ = *std::move(file);
        made.label_.kind = changes_kind;
        made.label_.rows = rows.rows();
        made.label_.row_bytes = rows.row_bytes();
        made.held_ = id_set(rows.rows());
        if (status s = made.load(); !s) return s.failure();
        return {std::move(made)};
    }
    undo_journal() = default;

    // The rows that are here.
    [[nodiscard]] const id_set& held() const noexcept { return held_; }
    // Finds those that an earlier run left here, of a commit.
    // Errors: errc::file where the journal is not of this commit, or cannot be read.
    status find(std::uint64_t commit) {
        return each(commit, [&](std::int32_t id, const std::byte*) {
            held_.insert(id);
            return status();
        });
    }
    // use(id, row) -> status for each of them.
    // Errors: those of use and of find(). Cost: the journal is read once, through 4 MiB or a record.
    template <class Use>
    status each(std::uint64_t commit, const Use& use) const {
        if (status s = check_commit(commit); !s) return s;
        const auto size = file_.size();
        if (!size) return size.failure();
        const std::size_t record = record_bytes();
        const std::uint64_t records = (*size - sizeof label_) / record;
        const std::uint64_t most = std::min<std::uint64_t>(records, buffered());
        std::vector<std::byte> some(static_cast<std::size_t>(most) * record);
        for (std::uint64_t first = 0, n = 0; first < records; first += n) {
            n = std::min(most, records - first);
            const std::size_t bytes = static_cast<std::size_t>(n) * record;
            if (status s = file_.read(sizeof label_ + first * record, some.data(), bytes, bytes); !s)
                return s;
            for (std::size_t at = 0; at < bytes; at += record) {
                std::uint64_t told = 0, id = 0;
                std::memcpy(&told, &some[at], sizeof told);
                std::memcpy(&id, &some[at + sizeof told], sizeof id);
                if (told != sum_of(&some[at], id, commit) || id >= label_.rows) continue;
                if (status s = use(static_cast<std::int32_t>(id), &some[at + head]); !s) return s;
            }
        }
        return {};
    }

    // Makes it the journal of a commit, if it is of none since it was emptied.
    // Errors: errc::file.
    status begin(std::uint64_t commit) {
        if (end_ != 0) return {};
        label_.number = commit;
        const auto bytes = label_.stored();
        if (status s = file_.write(0, bytes.data(), bytes.size()); !s) return s;
        found_ = rows_label::of(bytes);
        end_ = bytes.size();
        synced_ = false;
        return {};
    }
    // Appends rows as they are that are not yet here, many at a time. Precondition: begin().
    // Errors: errc::file; the journal is then as it was, or has some of them.
    status keep(const row_file& rows, std::span<const std::int32_t> ids, executor_ref execute) {
        fresh_.clear();
        for (const std::int32_t id : ids)
            if (!held_.contains(id)) fresh_.push_back(id);
        const std::size_t record = record_bytes(), row_bytes = rows.row_bytes();
        for (std::size_t begin = 0; begin < fresh_.size(); begin += buffered()) {
            const auto some = std::span(fresh_).subspan(begin, std::min(buffered(), fresh_.size() - begin));
            records_.resize(std::max(records_.size(), some.size() * record));
            // Neighbours are read to the end of their records, and moved apart from the first on: none is
            // overwritten before it has moved.
            const auto behind = [&](std::size_t i, std::size_t n) {
                return &records_[i * record] + n * head;
            };
            const auto apart = [&](std::size_t i, std::size_t n) {
                for (std::size_t j = 0; j < n; ++j) {
                    std::byte* const to = &records_[(i + j) * record];
                    std::memmove(to + head, behind(i, n) + j * row_bytes, row_bytes);
                    seal(to, static_cast<std::uint64_t>(some[i + j]));
                }
            };
            status s = in_pieces(some.size(), execute, [&](std::size_t first, std::size_t end) {
                return rows.read(some, first, end, behind, apart);
            });
            if (s) s = append(some.size() * record);
            if (!s) return s;
            for (const std::int32_t id : some) held_.insert(id);
        }
        return {};
    }
    // Returns when the disk has it all. Errors: errc::file.
    status sync() {
        if (synced_) return {};
        if (status s = file_.sync(); !s) return s;
        synced_ = true;
        return {};
    }
    // Forgets all rows, those of one commit when another is the last.
    void empty() {
        // If the system cannot, records stay, and their checksums tell that they are of an earlier commit.
        static_cast<void>(file_.resize(0).ok());
        end_ = 0;
        held_.clear();
    }

private:
    static constexpr std::size_t head = 2 * sizeof(std::uint64_t);  // of a record

    [[nodiscard]] std::size_t record_bytes() const noexcept {
        return head + static_cast<std::size_t>(label_.row_bytes);
    }
    // Records that go through memory at a time.
    [[nodiscard]] std::size_t buffered() const noexcept {
        return std::max<std::size_t>((std::size_t{4} << 20) / record_bytes(), 1);
    }
    [[nodiscard]] std::uint64_t sum_of(const std::byte* record, std::uint64_t id,
                                       std::uint64_t commit) const noexcept {
        std::array<std::byte, 2 * sizeof id> about{};
        std::memcpy(about.data(), &commit, sizeof commit);
        std::memcpy(&about[sizeof commit], &id, sizeof id);
        return checksum(checksum(0, about.data(), about.size()), record + head,
                        static_cast<std::size_t>(label_.row_bytes));
    }
    void seal(std::byte* record, std::uint64_t id) const noexcept {
        const std::uint64_t check = sum_of(record, id, label_.number);
        std::memcpy(record, &check, sizeof check);
        std::memcpy(record + sizeof check, &id, sizeof id);
    }
    status append(std::size_t bytes) {
        if (status s = file_.write(end_, records_.data(), bytes); !s) {
            // What was written of them does no harm, but takes room.
            static_cast<void>(file_.resize(end_).ok());
            return s;
        }
        end_ += bytes;
        synced_ = false;
        return {};
    }
    // Reads the label that is there. A file that begins in another way is not one to be emptied.
    status load() {
        const auto size = file_.size();
        if (!size) return size.failure();
        std::array<std::byte, sizeof(rows_label)> there{};
        const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(*size, there.size()));
        if (status s = file_.read(0, there.data(), bytes, bytes); !s) return s;
        found_ = rows_label::of(there);
        // A label that was cut or never reached the disk is one nevertheless.
        const auto cut =
            found_.kind.begin() + static_cast<std::ptrdiff_t>(std::min(bytes, found_.kind.size()));
        const bool none = std::all_of(found_.kind.begin(), cut, [](char c) { return c == 0; });
        if (none || std::equal(found_.kind.begin(), cut, changes_kind.begin())) return {};
        return failure(errc::file, file_.path(), "is no journal of changes; it is not overwritten");
    }
    [[nodiscard]] status check_commit(std::uint64_t commit) const {
        if (!found_.whole() || found_.kind != changes_kind)
            return failure(errc::file, file_.path(), "has no whole label; rows were changed after commit ",
                           commit, ", and it cannot be told what they were");
        if (found_.version == label_.version && found_.rows == label_.rows &&
            found_.row_bytes == label_.row_bytes && found_.number == commit)
            return {};
        return failure(errc::file, file_.path(), "is of commit ", found_.number, " of ", found_.rows,
                       " rows of ", found_.row_bytes, " bytes, version ", found_.version,
                       "; rows were changed after commit ", commit, " of ", label_.rows, " rows of ",
                       label_.row_bytes, " bytes, version ", label_.version);
    }

    io::writable_file file_;
    rows_label label_;       // as it is written
    rows_label found_;       // as it was read or written
    std::uint64_t end_ = 0;  // behind the last record of this run; 0: no label yet
    bool synced_ = true;
    id_set held_;
    std::vector<std::int32_t> fresh_;
    std::vector<std::byte> records_;
};

}  // namespace detail
TIFFIN_END
