// Rows in a file that are read and written, for tables larger than memory that are trained.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/executor/executor.hpp>
#include <tiffin/table/row_file.hpp>
#include <tiffin/table/undo_journal.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// What rows can be rolled back after: the end of the process alone; or that of the machine, too, for which
// each write() waits until the disk has what the rows were.
enum class rows_outlive { the_process, the_machine };

// `rows` rows of `row_bytes` bytes in a file, which go back to the last commit, to the bit, if the run that
// changes them ends at any moment.
//
// The file at PATH is a page of 4096 bytes with a label, and the rows. Before a row is changed for the first
// time since a commit, what it was is appended to the file PATH.changes, and the label then says that rows
// are changing. The moment of a commit is that at which the label says the next number. Once commit() has
// returned the disk has it all, and the end of the machine leaves it if nothing was written since.
//
// Errors, all: errc::file where the system refuses, or where it is not yet decided what becomes of the
//   changes of the last run (unfinished()). After a write() that failed some of its rows may be written, one
//   in part: write() again, or roll_back(). After a commit, a roll back or a sync that failed only
//   roll_back() is left.
// Threads: read() from several at once, all else by itself. One object at a time has a file open; a child of
//   fork() may not use it, but keeps it locked while it lives.
// Cost: memory of a bit a row, of 4 MiB or a row, and of 4 bytes for each row of the largest write(). On the
//   disk 16 + row_bytes for each row changed since the last commit.
//
//     auto rows = writable_rows::open("table.rows").or_throw();
//     if (rows.unfinished()) rows.roll_back().or_throw();  // or keep_changes()
//     rows.write(ids, changed).or_throw();
//     rows.commit().or_throw();
class writable_rows {
public:
    // Writes the first contents of row `id` over zeros: void(std::size_t id, std::span<std::byte> to).
    using first_row = detail::row_file::first_row;

    // Makes the file, which appears when it is complete and on the disk, and opens it. `first` is called for
    // one row after the other; without it all bytes are 0, and take no room until they are written.
    // Errors: errc::shape where there are no bytes, or more rows than ids can tell apart; errc::file where
    //   there is something at `path`, or a journal beside it.
    static result<writable_rows> create(const std::filesystem::path& path, std::size_t rows,
                                        std::size_t row_bytes, const first_row& first = {},
                                        rows_outlive what = rows_outlive::the_process) {
        std::error_code none;
        const std::filesystem::path journal = path.string() + ".changes";
        if (const auto has = std::filesystem::file_size(journal, none); !none && has != 0)
            return failure(errc::file, journal.string(), "has ", has,
                           " bytes, the journal of other rows; it is to be removed before ", path.string(),
                           " is made");
        if (status s = detail::row_file::create(path, rows, row_bytes, first); !s) return s.failure();
        return open(path, what);
    }
    // Opens a file that create() made. Where the last run ended between commits, nothing is written or read
    // before roll_back() or keep_changes().
    // Errors: errc::file where it is no such file, or its size or its journal is not as its label says; where
    //   somebody has it open.
    static result<writable_rows> open(const std::filesystem::path& path,
                                      rows_outlive what = rows_outlive::the_process) {
        writable_rows made;
        auto file = detail::row_file::open(path);
        if (!file) return file.failure();
        made.file_ = *std::move(file);
        made.what_ = what;
        // Where rows are changing a journal is not made: an empty one would say that none has changed.
        const bool changing = made.changing();
        auto journal = detail::undo_journal::open(made.file_.path() + ".changes", made.file_, !changing);
        if (!journal) return journal.failure();
        made.journal_ = *std::move(journal);
        if (changing) {
            made.now_ = state::unfinished;
            if (status s = made.journal_.find(made.commits()); !s) return s.failure();
        } else {
            made.journal_.empty();
        }
        return {std::move(made)};
    }

    [[nodiscard]] std::size_t rows() const noexcept { return file_.rows(); }
    [[nodiscard]] std::size_t row_bytes() const noexcept { return file_.row_bytes(); }
    // Of the file: those of its label and its rows.
    [[nodiscard]] std::uint64_t bytes() const noexcept { return file_.bytes(); }
    // Commits since the file was made.
    [[nodiscard]] std::uint64_t commits() const noexcept { return file_.number() / 2; }
    // Whether the last run ended between commits, and it is not yet decided what becomes of its changes.
    [[nodiscard]] bool unfinished() const noexcept { return now_ == state::unfinished; }
    // The rows that may have been changed since the last commit, by this run or the last; ascending.
    [[nodiscard]] std::vector<std::int32_t> changed() const { return journal_.held().ids(); }

    // Copies row ids[i] to `to` + i * row_bytes. Ids may repeat, in any order.
    // Errors: errc::token_id. Cost: a system call for ids that are neighbours; where one is not cached, all
    //   that are left are announced at once, for the disk to read side by side.
    status read(std::span<const std::int32_t> ids, std::byte* to, executor_ref execute = serially) const {
        if (status s = check(ids); !s) return s;
        const auto at = [&](std::size_t i, std::size_t) { return to + i * row_bytes(); };
        const auto done = [](std::size_t, std::size_t) {};
        return detail::in_pieces(ids.size(), execute, [&](std::size_t first, std::size_t end) {
            return file_.read(ids, first, end, at, done);
        });
    }
    // Makes row ids[i] what lies at `from` + i * row_bytes. Ids ascend, each more than the one before.
    // Errors: errc::token_id; errc::option where ids do not ascend. Cost: a system call for ids that are
    //   neighbours. Rows that were not changed since the last commit are read before, and appended to the
    //   journal 4 MiB at a time.
    status write(std::span<const std::int32_t> ids, const std::byte* from, executor_ref execute = serially) {
        if (status s = check(ids); !s) return s;
        for (std::size_t i = 1; i < ids.size(); ++i)
            if (ids[i] <= ids[i - 1])
                return failure(errc::option, "ids", "ids[", i, "] = ", ids[i], " comes after ", ids[i - 1],
                               "; the ids of rows that are written ascend");
        if (ids.empty()) return {};
        // A row that is overwritten is in the journal, and the label says that there are such rows.
        if (status s = journal_.begin(commits()); !s) return s;
        if (status s = journal_.keep(file_, ids, execute); !s) return s;
        if (status s = begin_changes(); !s) return s;
        return detail::in_pieces(ids.size(), execute, [&](std::size_t first, std::size_t end) {
            return file_.write(ids, first, end, from);
        });
    }
    // Makes the rows as they are those of the next commit. Returns when the disk has them.
    status commit() {
        if (status s = check({}); !s) return s;
        // Also where no row has changed: the next label may be written in part, which must leave that of a
        // change, not an older one.
        if (status s = journal_.begin(commits()); !s) return s;
        if (status s = begin_changes(); !s) return s;
        return next_commit();
    }
    // Makes all rows what they were at the last commit, those that this run changed or the last. If it is
    // itself stopped, it can be called again. Returns when the disk has them.
    status roll_back() {
        if (changing()) {
            const auto put_back = [&](std::int32_t id, const std::byte* row) {
                return file_.write({&id, 1}, 0, 1, row);
            };
            // The label of the commit may be damaged, or that of a next one that failed in its place: as long
            // as rows are put back, the label of a change is to count.
            const std::uint64_t committed = file_.number() - 1;
            if (status s = certain(file_.write_number(committed)); !s) return s;
            if (status s = certain(file_.sync()); !s) return s;
            if (status s = certain(journal_.each(commits(), put_back)); !s) return s;
            if (status s = certain(file_.sync()); !s) return s;
            if (status s = certain(file_.clear_odd()); !s) return s;
            if (status s = certain(file_.sync()); !s) return s;
            file_.set_number(committed);
        }
        forget_changes();
        return {};
    }
    // Makes the rows as the last run left them those of the next commit: of its last write() they may be only
    // some, and one in part. Where nothing is undecided it is commit().
    status keep_changes() { return unfinished() ? next_commit() : commit(); }

private:
    enum class state { ready, unfinished, uncertain };

    [[nodiscard]] bool changing() const noexcept { return file_.number() % 2 != 0; }
    [[nodiscard]] status check(std::span<const std::int32_t> ids) const {
        if (now_ == state::unfinished)
            return failure(errc::file, file_.path(), "has ", journal_.held().size(), " of ", rows(),
                           " rows that a run changed after commit ", commits(),
                           " and did not commit; first roll_back() or keep_changes()");
        if (now_ == state::uncertain)
            return failure(
                errc::file, file_.path(),
                "could not be committed, rolled back or synced; what the disk has is not known, first "
                "roll_back()");
        for (std::size_t i = 0; i < ids.size(); ++i)
            if (ids[i] < 0 || static_cast<std::size_t>(ids[i]) >= rows())
                return failure(errc::token_id, "ids", "ids[", i, "] = ", ids[i], " lies outside the ", rows(),
                               " rows of ", file_.path());
        return {};
    }
    // What must not fail: it is not known afterwards what the disk has.
    status certain(status s) {
        if (!s) now_ = state::uncertain;
        return s;
    }
    status begin_changes() {
        const bool waits = what_ == rows_outlive::the_machine;
        if (waits)
            if (status s = certain(journal_.sync()); !s) return s;
        if (changing()) return {};
        file_.set_number(file_.number() + 1);  // the label may say so even where writing it fails
        if (status s = certain(file_.write_number(file_.number())); !s) return s;
        return waits ? certain(file_.sync()) : status();
    }
    status next_commit() {
        if (status s = certain(file_.sync()); !s) return s;
        if (status s = certain(file_.write_number(file_.number() + 1)); !s) return s;
        if (status s = certain(file_.sync()); !s) return s;
        file_.set_number(file_.number() + 1);
        forget_changes();
        return {};
    }
    void forget_changes() {
        journal_.empty();
        now_ = state::ready;
    }

    detail::row_file file_;
    detail::undo_journal journal_;
    rows_outlive what_ = rows_outlive::the_process;
    state now_ = state::ready;
};

TIFFIN_END
