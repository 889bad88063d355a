// Rows in a file that are written: what is read of them, and what is left of them by a run that ends at any
// moment, by one that the system refuses something, and by a machine that ends.
#include <tiffin/table/writable_rows.hpp>

#include <tiffin/executor/thread_team.hpp>

#include "executor/in_child.hpp"
#include "support/doctest.hpp"
#include "support/executors.hpp"
#include "support/random.hpp"
#include "support/scratch_folder.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

namespace table_writable_rows_test {
using namespace tiffin;
using tiffin_test::random_numbers;
using tiffin_test::scratch_folder;

namespace {

namespace fs = std::filesystem;
using ids_type = std::vector<std::int32_t>;
using bytes_type = std::vector<std::byte>;

// A call of the system that changes a file.
struct call {
    enum kind { write, resize, sync } what;
    ::ino_t file;
    std::uint64_t offset;  // or the size
    bytes_type bytes;
};

// What is to become of the calls below. They are counted, and of one the number is told in which the process
// ends, or which the system refuses. Nothing is ever synced, as no machine ends.
struct {
    std::atomic<long> count{0};
    long ends_in = -1, fails_in = -1;
    int part = 0;          // of what that call would write is written: nothing, some, all
    bool stutter = false;  // every other call is interrupted, and writes do not write all
    bool recording = false;
    std::vector<call> record;
} calls;

constexpr int ended = 77;

::ino_t file_of(int descriptor) {
    struct ::stat told {};
    ::fstat(descriptor, &told);
    return told.st_ino;
}

template <class Do>
long in_call(int descriptor, call::kind what, std::uint64_t offset, const void* from, std::size_t bytes,
             const Do& change) {
    const long number = calls.count++;
    if (calls.recording && (what != call::sync || number != calls.fails_in)) {
        const auto* const first = static_cast<const std::byte*>(from);
        calls.record.push_back({what, file_of(descriptor), offset, {first, first + bytes}});
    }
    if (calls.stutter && number % 2 == 0) {
        errno = EINTR;
        return -1;
    }
    if (calls.stutter) return change(bytes / 2 + 1);
    if (number != calls.ends_in && number != calls.fails_in) return change(bytes);
    if (calls.part == 2 || (calls.part == 1 && what == call::write))
        // The label is at the beginning of what is written with it.
        static_cast<void>(change(calls.part == 2 ? bytes : bytes == 2048 ? 41 : bytes / 2));
    if (number == calls.ends_in) ::_exit(ended);
    errno = EIO;
    return -1;
}

}  // namespace

// In place of the system's library.
extern "C" {
::ssize_t pwrite(int descriptor, const void* from, std::size_t bytes, ::off_t at) {
    return in_call(descriptor, call::write, static_cast<std::uint64_t>(at), from, bytes,
                   [&](std::size_t n) { return ::syscall(SYS_pwrite64, descriptor, from, n, at); });
}
int ftruncate(int descriptor, ::off_t size) noexcept {
    return static_cast<int>(in_call(descriptor, call::resize, static_cast<std::uint64_t>(size), nullptr, 0,
                                    [&](std::size_t) { return ::syscall(SYS_ftruncate, descriptor, size); }));
}
int fsync(int descriptor) {
    return static_cast<int>(in_call(descriptor, call::sync, 0, nullptr, 0, [](std::size_t) { return 0L; }));
}
}

namespace {

void call_normally() {
    calls.ends_in = calls.fails_in = -1;
    calls.part = 0;
    calls.stutter = false;
}

std::byte first_byte(std::size_t id, std::size_t i) {
    return static_cast<std::byte>(id * 131 + i * 7 + 1);
}
void first_row(std::size_t id, std::span<std::byte> to) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = first_byte(id, i);
}

// Rows in memory, which do what those of the file are to do.
struct table {
    std::size_t rows, row_bytes;
    bytes_type bytes;

    table(std::size_t n, std::size_t width, bool zeros = false)
        : rows(n), row_bytes(width), bytes(n * width) {
        if (!zeros)
            for (std::size_t id = 0; id < n; ++id) first_row(id, std::span(bytes).subspan(id * width, width));
    }
    void write(const ids_type& ids, const bytes_type& from) {
        for (std::size_t i = 0; i < ids.size(); ++i)
            std::memcpy(&bytes[static_cast<std::size_t>(ids[i]) * row_bytes], &from[i * row_bytes],
                        row_bytes);
    }
};

ids_type all_ids(std::size_t rows) {
    ids_type ids(rows);
    std::iota(ids.begin(), ids.end(), 0);
    return ids;
}

bytes_type read_all(const writable_rows& rows) {
    bytes_type all(rows.rows() * rows.row_bytes());
    rows.read(all_ids(rows.rows()), all.data()).or_throw();
    return all;
}

bytes_type content_of(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    bytes_type all(fs::file_size(path));
    file.read(reinterpret_cast<char*>(all.data()), static_cast<std::streamsize>(all.size()));
    return all;
}
// In a new file: one that is emptied first is written to the disk by some systems, which takes its time.
void set_content(const fs::path& path, const bytes_type& content) {
    fs::remove(path);
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
}

fs::path journal_of(const fs::path& path) {
    return path.string() + ".changes";
}

struct change {
    ids_type ids;
    bytes_type bytes;
};

// A few rows, ascending, some of them neighbours.
change random_change(random_numbers& random, std::size_t rows, std::size_t row_bytes) {
    std::set<std::int32_t> ids;
    for (std::size_t runs = 1 + random.below(4); runs > 0; --runs) {
        const std::size_t first = random.below(rows);
        for (std::size_t n = 1 + random.below(3), id = first; n > 0 && id < rows; --n, ++id)
            ids.insert(static_cast<std::int32_t>(id));
    }
    change made{{ids.begin(), ids.end()}, bytes_type(ids.size() * row_bytes)};
    const std::size_t seed = random.below(1 << 20);
    for (std::size_t i = 0; i < made.bytes.size(); ++i) made.bytes[i] = first_byte(seed + i / 256, i);
    return made;
}

// A run of a program: the same changes between the same commits, however often it is stopped. After commit 1
// it commits without a change; after commit 2 it first rolls something back.
struct program {
    std::size_t rows = 37, row_bytes = 700;
    std::uint64_t last = 4;
    std::size_t writes = 3;  // between commits, at most

    [[nodiscard]] std::vector<change> changes_after(std::uint64_t commit) const {
        std::vector<change> all;
        if (commit == 1) return all;
        random_numbers random(static_cast<std::uint32_t>(commit) + 1);
        for (std::size_t n = 1 + random.below(writes); n > 0; --n)
            all.push_back(random_change(random, rows, row_bytes));
        return all;
    }
    void advance(table& model, std::uint64_t commit) const {
        for (const change& c : changes_after(commit)) model.write(c.ids, c.bytes);
    }
    [[nodiscard]] table at(std::uint64_t commit) const {
        table model(rows, row_bytes);
        for (std::uint64_t c = 0; c < commit; ++c) advance(model, c);
        return model;
    }
    // From the commit where the rows are. Calls `committed` after each commit, `written` after each write.
    status run(writable_rows& to, const std::function<void()>& committed = {},
               const std::function<void()>& written = {}) const {
        while (to.commits() < last) {
            const std::vector<change> changes = changes_after(to.commits());
            if (to.commits() == 2) {
                if (status s = to.write(changes[0].ids, changes[0].bytes.data()); !s) return s;
                if (status s = to.roll_back(); !s) return s;
            }
            for (const change& c : changes) {
                if (status s = to.write(c.ids, c.bytes.data()); !s) return s;
                if (written) written();
            }
            if (status s = to.commit(); !s) return s;
            if (committed) committed();
        }
        return {};
    }
    writable_rows create(const fs::path& path, rows_outlive what = rows_outlive::the_process) const {
        return *writable_rows::create(path, rows, row_bytes, first_row, what);
    }
};

// Opens what a run left, rolls it back if it is to be, and compares it with what it was at the commit that it
// tells. That commit.
std::uint64_t check_rolled_back(const fs::path& path, const program& p) {
    auto rows = writable_rows::open(path);
    REQUIRE_MESSAGE(rows.ok(), rows.failure().message());
    const table expected = p.at(rows->commits());
    if (rows->unfinished()) {
        // Rows that are other ones than at the commit are among those that are told.
        const bytes_type content = content_of(path);
        std::set<std::int32_t> told;
        for (const std::int32_t id : rows->changed()) told.insert(id);
        for (std::size_t id = 0; id < p.rows; ++id)
            if (std::memcmp(&content[4096 + id * p.row_bytes], &expected.bytes[id * p.row_bytes],
                            p.row_bytes) != 0)
                REQUIRE(told.contains(static_cast<std::int32_t>(id)));
        REQUIRE(rows->roll_back().ok());
    }
    CHECK(!rows->unfinished());
    CHECK(rows->changed().empty());
    REQUIRE(read_all(*rows) == expected.bytes);
    return rows->commits();
}

// Whether work() was stopped in a call, in a child, which may also end by itself.
bool is_stopped(const std::function<bool()>& work) {
    std::cout.flush();
    const ::pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        ::alarm(60);
        ::_exit(work() ? 0 : 1);
    }
    int how = 0;
    while (::waitpid(child, &how, 0) < 0) REQUIRE(errno == EINTR);
    REQUIRE(WIFEXITED(how));
    REQUIRE((WEXITSTATUS(how) == 0 || WEXITSTATUS(how) == ended));
    return WEXITSTATUS(how) == ended;
}

// Puts both files of some rows somewhere else.
void copy_files(const fs::path& from, const fs::path& to) {
    fs::remove(to);
    fs::remove(journal_of(to));
    fs::copy_file(from, to);
    if (fs::exists(journal_of(from))) fs::copy_file(journal_of(from), journal_of(to));
}

// A file whose run ended between commits, before the row of its last write() was changed, of which the
// journal has the record: the last one.
struct unfinished_files {
    scratch_folder folder;
    fs::path path = folder / "rows";
    table before{20, 30};
    static constexpr std::size_t record = 16 + 30, label = 48;

    unfinished_files() {
        REQUIRE(writable_rows::create(path, 20, 30, first_row).ok());
        REQUIRE(is_stopped([&] {
            auto rows = writable_rows::open(path);
            const bytes_type other(90, std::byte{0xEE});
            if (!rows->write(ids_type{4, 5, 11}, other.data())) return false;
            calls.ends_in = calls.count + 1;  // the first is that of the journal
            return rows->write(ids_type{7}, other.data()).ok();
        }));
    }
};

void closed(writable_rows& rows) {
    const writable_rows gone = std::move(rows);
}

const std::string uncertain =
    ": could not be committed, rolled back or synced; what the disk has is not known, first roll_back()";

std::string refusal(const status& s) {
    return s.ok() ? "" : s.failure().message();
}
template <class T>
std::string refusal(const result<T>& r) {
    return r.ok() ? "" : r.failure().message();
}
bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("writable rows: what was written is read, in this run and in the next") {
    for (const std::size_t row_bytes : {1u, 16u, 100u, 5001u})
        for (const std::size_t count : {1u, 64u, 65u, 300u}) {
            CAPTURE(row_bytes);
            CAPTURE(count);
            const scratch_folder folder;
            table model(count, row_bytes);
            random_numbers random(static_cast<std::uint32_t>(row_bytes + count));
            tiffin_test::shuffled shuffled;
            tiffin_test::reversed reversed{3};
            REQUIRE(writable_rows::create(folder / "rows", count, row_bytes, first_row).ok());
            for (std::uint64_t commit = 0; commit < 4; ++commit) {
                auto rows = writable_rows::open(folder / "rows");
                REQUIRE(rows.ok());
                CHECK(rows->rows() == count);
                CHECK(rows->row_bytes() == row_bytes);
                CHECK(rows->bytes() == fs::file_size(folder / "rows"));
                CHECK(rows->commits() == commit);
                CHECK(!rows->unfinished());
                std::set<std::int32_t> changed;
                for (int call = 0; call < 6; ++call) {
                    const change c = random_change(random, count, row_bytes);
                    model.write(c.ids, c.bytes);
                    changed.insert(c.ids.begin(), c.ids.end());
                    REQUIRE((call % 3 == 0   ? rows->write(c.ids, c.bytes.data())
                             : call % 3 == 1 ? rows->write(c.ids, c.bytes.data(), shuffled)
                                             : rows->write(c.ids, c.bytes.data(), reversed))
                                .ok());
                    CHECK(rows->changed() == ids_type(changed.begin(), changed.end()));
                    ids_type some(random.below(40));
                    for (std::int32_t& id : some) id = static_cast<std::int32_t>(random.below(count));
                    bytes_type got(some.size() * row_bytes + 1, std::byte{0xA5});
                    REQUIRE((call % 2 == 0 ? rows->read(some, got.data())
                                           : rows->read(some, got.data(), shuffled))
                                .ok());
                    CHECK(got.back() == std::byte{0xA5});
                    for (std::size_t i = 0; i < some.size(); ++i)
                        REQUIRE(std::memcmp(&got[i * row_bytes],
                                            &model.bytes[static_cast<std::size_t>(some[i]) * row_bytes],
                                            row_bytes) == 0);
                }
                REQUIRE(read_all(*rows) == model.bytes);
                REQUIRE(rows->commit().ok());
                CHECK(rows->commits() == commit + 1);
                CHECK(rows->changed().empty());
                CHECK(fs::file_size(journal_of(folder / "rows")) == 0);
                CHECK(read_all(*rows) == model.bytes);
            }
        }
}

TEST_CASE("writable rows: as many as go through memory several times") {
    const scratch_folder folder;
    const std::size_t count = 9000, row_bytes = 1200;  // 10.8 MB
    table model(count, row_bytes);
    auto rows = writable_rows::create(folder / "rows", count, row_bytes, first_row);
    REQUIRE(rows.ok());
    REQUIRE(read_all(*rows) == model.bytes);
    const bytes_type before = model.bytes;
    const ids_type ids = all_ids(count);
    random_numbers random(1);
    for (std::byte& b : model.bytes) b = static_cast<std::byte>(random.below(256));
    thread_team team(3);
    REQUIRE(rows->write(ids, model.bytes.data(), team).ok());
    CHECK(fs::file_size(journal_of(folder / "rows")) == 48 + count * (16 + row_bytes));
    bytes_type got(model.bytes.size());
    REQUIRE(rows->read(ids, got.data(), team).ok());
    CHECK(got == model.bytes);
    CHECK(rows->changed() == ids);
    SUBCASE("rolled back by the run itself") {
        REQUIRE(rows->roll_back().ok());
        CHECK(rows->commits() == 0);
        CHECK(read_all(*rows) == before);
    }
    SUBCASE("rolled back by the next") {
        closed(*rows);
        rows = writable_rows::open(folder / "rows");
        REQUIRE(rows.ok());
        CHECK(rows->unfinished());
        CHECK(rows->changed() == ids);
        REQUIRE(rows->roll_back().ok());
        CHECK(read_all(*rows) == before);
    }
    SUBCASE("kept by the next") {
        closed(*rows);
        rows = writable_rows::open(folder / "rows");
        REQUIRE(rows.ok());
        REQUIRE(rows->keep_changes().ok());
        CHECK(rows->commits() == 1);
        CHECK(!rows->unfinished());
        CHECK(rows->changed().empty());
        CHECK(read_all(*rows) == model.bytes);
        REQUIRE(rows->keep_changes().ok());  // nothing is undecided
        CHECK(rows->commits() == 2);
    }
}

TEST_CASE("writable rows: a new file appears when it is complete, and takes no other's place") {
    const scratch_folder folder;
    const fs::path path = folder / "rows";
    SUBCASE("zeros take no room") {
        const auto rows = writable_rows::create(path, 1000, 10000);
        REQUIRE(rows.ok());
        CHECK(read_all(*rows) == table(1000, 10000, true).bytes);
        struct ::stat told {};
        REQUIRE(::stat(path.c_str(), &told) == 0);
        CHECK(told.st_size == 4096 + 10'000'000);
        CHECK(told.st_blocks * 512 < 1'000'000);
    }
    SUBCASE("rows are made one after the other, over zeros") {
        std::vector<std::size_t> made;
        const auto rows =
            writable_rows::create(path, 5000, 1000, [&](std::size_t id, std::span<std::byte> to) {
                CHECK(!fs::exists(path));
                CHECK(to.size() == 1000);
                made.push_back(id);
                to[id % 1000] = std::byte{9};
            });
        REQUIRE(rows.ok());
        CHECK(made.size() == 5000);
        CHECK(std::is_sorted(made.begin(), made.end()));
        table expected(5000, 1000, true);
        for (std::size_t id = 0; id < 5000; ++id) expected.bytes[id * 1000 + id % 1000] = std::byte{9};
        CHECK(read_all(*rows) == expected.bytes);
        CHECK(folder.files() == 2);
    }
    SUBCASE("a file is there already") {
        set_content(path, bytes_type(3, std::byte{1}));
        const auto rows = writable_rows::create(path, 10, 10);
        CHECK(refusal(rows) == path.string() + ": the file cannot be made: File exists");
        CHECK(content_of(path).size() == 3);
        CHECK(folder.files() == 1);
        fs::create_symlink(folder / "nowhere", folder / "link");
        CHECK(has(refusal(writable_rows::create(folder / "link", 10, 10)), "File exists"));
    }
    SUBCASE("a file comes meanwhile") {
        const auto rows = writable_rows::create(path, 10, 10, [&](std::size_t, std::span<std::byte>) {
            set_content(path, bytes_type(3, std::byte{1}));
        });
        CHECK(refusal(rows) == path.string() + ": the file cannot get its name: File exists");
        CHECK(content_of(path).size() == 3);
        CHECK(folder.files() == 1);
    }
    SUBCASE("a journal is there, of rows that are not") {
        set_content(journal_of(path), bytes_type(50));
        const auto rows = writable_rows::create(path, 10, 10);
        CHECK(refusal(rows) == journal_of(path).string() +
                                   ": has 50 bytes, the journal of other rows; it is to be removed before " +
                                   path.string() + " is made");
        CHECK(folder.files() == 1);
        set_content(journal_of(path), {});  // that of rows that were committed
        CHECK(writable_rows::create(path, 10, 10).ok());
    }
    SUBCASE("no rows, no bytes, more than there can be") {
        const std::size_t most = std::size_t{1} << 31;
        for (const auto& [rows, row_bytes] : std::vector<std::pair<std::size_t, std::size_t>>{
                 {0, 4}, {4, 0}, {most + 1, 1}, {4, ~std::size_t{0} / 4}, {4, std::size_t{1} << 61}}) {
            const auto made = writable_rows::create(path, rows, row_bytes);
            REQUIRE(!made.ok());
            CHECK(made.failure().code == errc::shape);
            CHECK(has(made.failure().message(), "is to have " + std::to_string(rows) + " rows of " +
                                                    std::to_string(row_bytes) + " bytes"));
        }
        CHECK(folder.files() == 0);
    }
    SUBCASE("the last id there can be") {
        const std::size_t most = std::size_t{1} << 31;
        auto rows = writable_rows::create(path, most, 1);
        REQUIRE(rows.ok());
        const ids_type ids{0x7ffffffe, 0x7fffffff};
        const bytes_type two{std::byte{3}, std::byte{4}};
        REQUIRE(rows->write(ids, two.data()).ok());
        bytes_type got(2);
        REQUIRE(rows->read(ids, got.data()).ok());
        CHECK(got == two);
        CHECK(rows->changed() == ids);
    }
    SUBCASE("the first rows cannot be made") {
        const auto fails = [](std::size_t id, std::span<std::byte>) {
            if (id == 7) throw std::runtime_error("no row");
        };
        CHECK_THROWS_AS(static_cast<void>(writable_rows::create(path, 10, 10, fails)), std::runtime_error);
        CHECK(folder.files() == 0);
    }
    SUBCASE("there is no such folder") {
        const fs::path nowhere = folder / "no folder/rows";
        CHECK(refusal(writable_rows::create(nowhere, 10, 10)) ==
              nowhere.string() + ": the file cannot be made: No such file or directory");
    }
}

TEST_CASE(
    "writable rows: a run that ends in any call of the system, before, in and after it" NOT_UNDER_TSAN) {
    const program p;
    const scratch_folder folder;
    for (const rows_outlive what : {rows_outlive::the_process, rows_outlive::the_machine}) {
        // How many calls there are, and after how many of them a commit has returned.
        std::vector<long> commits{0};
        long calls_in_all = 0;
        {
            const fs::path path = folder / (what == rows_outlive::the_process ? "whole" : "whole too");
            p.create(path);
            const long before = calls.count;
            auto rows = *writable_rows::open(path, what);
            REQUIRE(p.run(rows, [&] { commits.push_back(calls.count - before); }).ok());
            calls_in_all = calls.count - before;
            REQUIRE(read_all(rows) == p.at(4).bytes);
        }
        REQUIRE(calls_in_all > 50);
        std::size_t unfinished = 0;
        for (long number = 0; number < calls_in_all; ++number)
            for (const int part : {0, 1, 2}) {
                CAPTURE(number);
                CAPTURE(part);
                const fs::path path = folder / "rows";
                fs::remove(path);
                fs::remove(journal_of(path));
                p.create(path);
                REQUIRE(is_stopped([&] {
                    calls.ends_in = calls.count + number;
                    calls.part = part;
                    auto rows = writable_rows::open(path, what);
                    return rows.ok() && p.run(*rows).ok();
                }));
                unfinished += writable_rows::open(path)->unfinished();
                // What has returned is committed; what follows at most by one commit more.
                const auto returned = std::count_if(commits.begin() + 1, commits.end(),
                                                    [&](long after) { return after <= number; });
                const std::uint64_t commit = check_rolled_back(path, p);
                CHECK(commit >= static_cast<std::uint64_t>(returned));
                CHECK(commit <= static_cast<std::uint64_t>(returned) + 1);
                // And it goes on from there.
                auto rows = *writable_rows::open(path);
                CHECK(!rows.unfinished());
                REQUIRE(p.run(rows).ok());
                CHECK(read_all(rows) == p.at(4).bytes);
            }
        CHECK(unfinished > 60);
    }
}

TEST_CASE("writable rows: calls that are interrupted, and writes of less than they were to write") {
    const scratch_folder folder;
    const program p;
    calls.stutter = true;
    auto rows = p.create(folder / "rows", rows_outlive::the_machine);
    const status s = p.run(rows);
    call_normally();
    REQUIRE(s.ok());
    CHECK(read_all(rows) == p.at(4).bytes);
    CHECK(check_rolled_back((closed(rows), folder / "rows"), p) == 4);
}

TEST_CASE("writable rows: a new file and its name are on the disk") {
    const scratch_folder folder;
    calls.record.clear();
    calls.recording = true;
    const program p;
    auto rows = p.create(folder / "rows");
    calls.recording = false;
    const std::vector<call> record = std::exchange(calls.record, {});
    std::vector<::ino_t> synced;
    for (const call& c : record)
        if (c.what == call::sync) synced.push_back(c.file);
    struct ::stat file {
    }, around{};
    REQUIRE(::stat((folder / "rows").c_str(), &file) == 0);
    REQUIRE(::stat(folder.path().c_str(), &around) == 0);
    REQUIRE(record.size() > 4);
    // The file, its name, and that of the journal. What comes then is the emptying of the journal.
    CHECK(synced == std::vector<::ino_t>{file.st_ino, around.st_ino, around.st_ino});
    CHECK(record.back().what == call::resize);
    CHECK(record.back().file != file.st_ino);
    const auto last =
        std::find_if(record.rbegin(), record.rend(), [&](const call& c) { return c.file == file.st_ino; });
    CHECK(last->what == call::sync);
}

TEST_CASE("writable rows: a commit that failed, and a roll back of it that is stopped" NOT_UNDER_TSAN) {
    const scratch_folder folder;
    const fs::path path = folder / "rows";
    const bytes_type other(100, std::byte{0xEE});
    table before(20, 100), after = before;
    after.write({7}, other);
    std::set<std::uint64_t> commits;
    for (const long failed : {0, 1, 2}) {  // the rows, the label that is written, and that it is on the disk
        bool stopped = true;
        for (long number = 0; stopped; ++number)
            for (const int part : {0, 1, 2}) {
                CAPTURE(failed);
                CAPTURE(number);
                CAPTURE(part);
                fs::remove(path);
                fs::remove(journal_of(path));
                REQUIRE(writable_rows::create(path, 20, 100, first_row).ok());
                stopped = is_stopped([&] {
                    auto rows = writable_rows::open(path);
                    if (!rows->write(ids_type{7}, other.data())) return false;
                    calls.fails_in = calls.count + failed;
                    calls.part = 2;
                    if (rows->commit()) return false;
                    calls.ends_in = calls.count + number;
                    calls.part = part;
                    return rows->roll_back().ok();
                });
                auto rows = writable_rows::open(path);
                REQUIRE(rows.ok());
                if (rows->unfinished()) REQUIRE(rows->roll_back().ok());
                commits.insert(rows->commits());
                REQUIRE(read_all(*rows) == (rows->commits() == 1 ? after : before).bytes);
            }
    }
    CHECK(commits.size() == 2);
}

TEST_CASE("writable rows: a roll back and a decision to keep that are stopped, too" NOT_UNDER_TSAN) {
    const unfinished_files it;
    const fs::path path = it.folder / "copy";
    bytes_type kept = content_of(it.path);
    kept.erase(kept.begin(), kept.begin() + 4096);
    for (const bool keep : {false, true}) {
        long number = 0;
        for (bool stopped = true; stopped; ++number)
            for (const int part : {0, 1, 2}) {
                CAPTURE(keep);
                CAPTURE(number);
                CAPTURE(part);
                copy_files(it.path, path);
                stopped = is_stopped([&] {
                    auto rows = writable_rows::open(path);
                    calls.ends_in = calls.count + number;
                    calls.part = part;
                    return (keep ? rows->keep_changes() : rows->roll_back()).ok();
                });
                auto rows = writable_rows::open(path);
                REQUIRE(rows.ok());
                CHECK(rows->commits() <= keep);
                if (!stopped) CHECK(rows->commits() == keep);
                CHECK((rows->unfinished() || !keep || rows->commits() == 1));
                if (rows->unfinished()) {
                    CHECK(stopped);
                    CHECK(rows->changed() == ids_type{4, 5, 7, 11});
                    REQUIRE((keep ? rows->keep_changes() : rows->roll_back()).ok());
                }
                CHECK(rows->commits() == keep);
                CHECK(read_all(*rows) == (keep ? kept : it.before.bytes));
            }
        CHECK(number > 4);
    }
}

TEST_CASE("writable rows: a run that makes the file, and ends in any call" NOT_UNDER_TSAN) {
    const program p;
    bool stopped = true;
    std::size_t absent = 0;
    for (long number = 0; stopped; ++number)
        for (const int part : {0, 1, 2}) {
            CAPTURE(number);
            CAPTURE(part);
            const scratch_folder folder;
            stopped = is_stopped([&] {
                calls.ends_in = calls.count + number;
                calls.part = part;
                return writable_rows::create(folder / "rows", p.rows, p.row_bytes, first_row).ok();
            });
            if (!fs::exists(folder / "rows")) {
                CHECK(stopped);
                CHECK(!fs::exists(journal_of(folder / "rows")));
                ++absent;
                p.create(folder / "rows");
            }
            CHECK(check_rolled_back(folder / "rows", p) == 0);
        }
    CHECK(absent > 9);
}

TEST_CASE("writable rows: a run that is killed at random, and the next one, and the next" NOT_UNDER_TSAN) {
    const scratch_folder folder;
    const fs::path path = folder / "rows";
    program p{.rows = 200, .row_bytes = 3000, .last = ~std::uint64_t{0}, .writes = 20};
    table committed(p.rows, p.row_bytes);
    p.create(path);
    random_numbers random(20);
    std::uint64_t commit = 0;
    int unfinished = 0;
    // A run tells each of its writes here, and is killed after a number of them, not after a time: however slow the
    // machine is, some runs end between commits.
    std::array<int, 2> progress{};
    REQUIRE(::pipe(progress.data()) == 0);
    for (int run = 0; run < 120; ++run) {
        std::cout.flush();
        const ::pid_t child = ::fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            ::alarm(60);
            auto rows = writable_rows::open(path);
            const auto told = [&] {
                if (::write(progress[1], "", 1) != 1) ::_exit(2);
            };
            told();
            ::_exit(rows.ok() && p.run(*rows, {}, told).ok() ? 0 : 1);
        }
        char byte = 0;
        for (std::size_t n = 1 + random.below(2 * p.writes); n > 0; --n)
            REQUIRE(::read(progress[0], &byte, 1) == 1);
        ::usleep(static_cast<::useconds_t>(random.below(200)));
        REQUIRE(::kill(child, SIGKILL) == 0);
        int how = 0;
        while (::waitpid(child, &how, 0) < 0) REQUIRE(errno == EINTR);
        REQUIRE(WIFSIGNALED(how));
        auto rows = writable_rows::open(path);
        REQUIRE_MESSAGE(rows.ok(), rows.failure().message());
        REQUIRE(rows->commits() >= commit);
        for (; commit < rows->commits(); ++commit) p.advance(committed, commit);
        unfinished += rows->unfinished();
        if (rows->unfinished()) REQUIRE(rows->roll_back().ok());
        REQUIRE(read_all(*rows) == committed.bytes);
        // What it had told and was not waited for.
        REQUIRE(::fcntl(progress[0], F_SETFL, O_NONBLOCK) == 0);
        while (::read(progress[0], &byte, 1) == 1) {
        }
        REQUIRE(::fcntl(progress[0], F_SETFL, 0) == 0);
    }
    MESSAGE("killed between commits: " << unfinished << " of 120 runs, after " << commit << " commits");
    CHECK(unfinished > 0);
    CHECK(commit > 0);
    for (const int end : progress) ::close(end);
}

TEST_CASE("writable rows: a call that the system refuses") {
    const program p;
    const scratch_folder folder;
    for (const bool again : {false, true})
        for (const int part : {0, 1, 2}) {
            bool refused = true;
            long number = 0;
            std::set<std::string> sentences;
            for (; refused; ++number) {
                CAPTURE(again);
                CAPTURE(number);
                CAPTURE(part);
                const fs::path path = folder / "rows";
                fs::remove(path);
                fs::remove(journal_of(path));
                auto rows = p.create(path, rows_outlive::the_machine);
                calls.fails_in = calls.count + number;
                calls.part = part;
                const status s = p.run(rows);
                refused = calls.count > calls.fails_in;
                call_normally();
                if (!s.ok()) {
                    CHECK(s.failure().code == errc::file);
                    CHECK(s.failure().message().find(path.string()) == 0);
                    CHECK(has(s.failure().message(), "Input/output error"));
                    sentences.insert(
                        s.failure().what.substr(0, s.failure().what.find_first_of("0123456789")));
                    const std::uint64_t commit = rows.commits();
                    if (again) {
                        // Another run finds the rows, whether it is told that they changed or not.
                        closed(rows);
                        CHECK(check_rolled_back(path, p) <= commit + 1);
                        rows = *writable_rows::open(path);
                    } else {
                        REQUIRE(rows.roll_back().ok());
                        CHECK(rows.commits() == commit);
                        REQUIRE(read_all(rows) == p.at(commit).bytes);
                        closed(rows);
                        rows = *writable_rows::open(path);
                        CHECK(!rows.unfinished());
                        CHECK(rows.commits() == commit);
                    }
                    REQUIRE(p.run(rows).ok());
                }
                CHECK(rows.commits() == 4);
                CHECK(read_all(rows) == p.at(4).bytes);
            }
            CHECK(number > 50);
            CHECK(sentences.size() == 2);  // a write, a sync; what cannot be cut does no harm
        }
}

TEST_CASE(
    "writable rows: a write that failed is made again; after a sync that failed there is only one way") {
    const scratch_folder folder;
    const fs::path path = folder / "rows";
    table model(20, 100);
    auto rows = *writable_rows::create(path, 20, 100, first_row, rows_outlive::the_machine);
    const ids_type ids{3, 4, 9};
    const bytes_type other(300, std::byte{0xEE}), third(300, std::byte{0xDD});
    const bytes_type before = model.bytes;
    model.write(ids, other);
    bytes_type got(300);
    REQUIRE(rows.write(ids_type{9}, third.data()).ok());
    // The label is there already. What follows is the journal twice; the neighbours 3 and 4, after the
    // journal and its sync; they again, now that they are in the journal; 9 twice.
    for (const std::pair<long, int>& at :
         std::vector<std::pair<long, int>>{{0, 0}, {0, 1}, {2, 0}, {0, 1}, {1, 0}, {1, 1}}) {
        CAPTURE(at.first);
        CAPTURE(at.second);
        calls.fails_in = calls.count + at.first;
        calls.part = at.second;
        CHECK(!rows.write(ids, other.data()).ok());
        call_normally();
    }
    REQUIRE(rows.write(ids, other.data()).ok());
    CHECK(read_all(rows) == model.bytes);
    CHECK(rows.changed() == ids);
    const std::string sentence = path.string() + uncertain;
    for (const long number : {0, 1, 2}) {  // the rows, the label, both
        CAPTURE(number);
        REQUIRE(rows.write(ids, other.data()).ok());
        calls.fails_in = calls.count + number;
        CHECK(has(refusal(rows.commit()), "Input/output error"));
        call_normally();
        CHECK(refusal(rows.commit()) == sentence);
        CHECK(refusal(rows.keep_changes()) == sentence);
        CHECK(refusal(rows.write(ids, third.data())) == sentence);
        CHECK(refusal(rows.read(ids, got.data())) == sentence);
        REQUIRE(rows.roll_back().ok());
        CHECK(rows.commits() == 0);
        CHECK(read_all(rows) == before);
    }
    // The journal's: rows are not changed before it is there.
    calls.fails_in = calls.count + 2;  // its label, its records
    CHECK(has(refusal(rows.write(ids, other.data())), "rows.changes: the file cannot be synced"));
    call_normally();
    CHECK(refusal(rows.write(ids, third.data())) == sentence);
    REQUIRE(rows.roll_back().ok());
    CHECK(read_all(rows) == before);
    REQUIRE(rows.write(ids, other.data()).ok());
    REQUIRE(rows.commit().ok());
    CHECK(read_all(rows) == model.bytes);
}

namespace {

// Of the rows, and of their journal.
std::array<::ino_t, 2> inodes_of(const fs::path& path) {
    struct ::stat rows {
    }, journal{};
    REQUIRE(::stat(path.c_str(), &rows) == 0);
    REQUIRE(::stat(journal_of(path).c_str(), &journal) == 0);
    return {rows.st_ino, journal.st_ino};
}

// What a disk may have of a file when the machine ends: all that was synced, and any part of what was not.
bytes_type left_by_machine(const bytes_type& before, const std::vector<call>& record, std::size_t end,
                           ::ino_t file, random_numbers& random) {
    std::size_t synced = 0;
    for (std::size_t i = 0; i < end; ++i)
        if (record[i].file == file && record[i].what == call::sync) synced = i;
    bytes_type disk = before;
    const std::size_t chance = random.below(5);  // of a part, in quarters
    const std::size_t part = random.below(2) == 0 ? 512 : 8;
    const auto there = [&](std::size_t i) { return i < synced || random.below(4) < chance; };
    for (std::size_t i = 0; i < end; ++i) {
        const call& c = record[i];
        if (c.file != file || c.what == call::sync) continue;
        if (c.what == call::resize) {
            if (there(i)) disk.resize(c.offset);
            continue;
        }
        for (std::size_t at = 0, n = 0; at < c.bytes.size(); at += n) {
            const std::uint64_t place = c.offset + at;
            n = std::min<std::size_t>(part - place % part, c.bytes.size() - at);
            if (!there(i)) continue;
            disk.resize(std::max<std::size_t>(disk.size(), place + n));
            std::memcpy(&disk[place], &c.bytes[at], n);
        }
    }
    return disk;
}

}  // namespace

TEST_CASE("writable rows: a machine that ends after any call") {
    const program p;
    for (const rows_outlive what : {rows_outlive::the_machine, rows_outlive::the_process}) {
        const scratch_folder folder;
        const fs::path path = folder / "rows", left = folder / "left";
        p.create(path);
        const bytes_type before = content_of(path);
        std::array<::ino_t, 2> files{};
        std::vector<std::size_t> commits{0};
        calls.record.clear();
        {
            auto rows = *writable_rows::open(path, what);
            files = inodes_of(path);
            calls.recording = true;
            REQUIRE(p.run(rows, [&] { commits.push_back(calls.record.size()); }).ok());
            calls.recording = false;
        }
        const std::vector<call> record = std::exchange(calls.record, {});
        REQUIRE(record.size() > 50);
        random_numbers random(3);
        std::size_t unfinished = 0;
        for (std::size_t end = 0; end <= record.size(); ++end) {
            const auto returned = static_cast<std::uint64_t>(
                std::count_if(commits.begin() + 1, commits.end(), [&](std::size_t c) { return c <= end; }));
            // Rows that outlive the process alone outlive the machine when they have just been committed.
            const bool just = std::find(commits.begin(), commits.end(), end) != commits.end();
            if (what == rows_outlive::the_process && !just) continue;
            for (int time = 0; time < 12; ++time) {
                CAPTURE(end);
                CAPTURE(time);
                set_content(left, left_by_machine(before, record, end, files[0], random));
                set_content(journal_of(left), left_by_machine({}, record, end, files[1], random));
                auto rows = writable_rows::open(left);
                REQUIRE_MESSAGE(rows.ok(), rows.failure().message());
                unfinished += rows->unfinished();
                const std::uint64_t commit = rows->commits();
                CHECK(commit >= returned);
                CHECK(commit <= returned + (just ? 0 : 1));
                closed(*rows);
                CHECK(check_rolled_back(left, p) == commit);
            }
        }
        CHECK((what == rows_outlive::the_process) == (unfinished == 0));
    }
}

TEST_CASE("writable rows: a machine that ends while a commit that failed is rolled back") {
    const scratch_folder folder;
    const fs::path path = folder / "rows", left = folder / "left";
    const bytes_type other(200, std::byte{0xEE});
    table before(20, 100), after = before;
    after.write({7, 8}, other);
    random_numbers random(6);
    for (const long failed : {0, 1, 2})
        for (const int part : {0, 1, 2}) {
            fs::remove(path);
            fs::remove(journal_of(path));
            auto rows = *writable_rows::create(path, 20, 100, first_row, rows_outlive::the_machine);
            const std::array<::ino_t, 2> files = inodes_of(path);
            const bytes_type content = content_of(path);
            calls.record.clear();
            calls.recording = true;
            REQUIRE(rows.write(ids_type{7, 8}, other.data()).ok());
            calls.fails_in = calls.count + failed;
            calls.part = part;
            CHECK(!rows.commit().ok());
            call_normally();
            const std::size_t begin = calls.record.size();
            REQUIRE(rows.roll_back().ok());
            calls.recording = false;
            const std::vector<call> record = std::exchange(calls.record, {});
            for (std::size_t end = begin; end <= record.size(); ++end)
                for (int time = 0; time < 30; ++time) {
                    CAPTURE(failed);
                    CAPTURE(end);
                    set_content(left, left_by_machine(content, record, end, files[0], random));
                    set_content(journal_of(left), left_by_machine({}, record, end, files[1], random));
                    auto found = writable_rows::open(left);
                    REQUIRE_MESSAGE(found.ok(), found.failure().message());
                    if (end == record.size()) CHECK(!found->unfinished());
                    if (found->unfinished()) REQUIRE(found->roll_back().ok());
                    // The label that failed may be on the disk as long as no row is put back.
                    REQUIRE(read_all(*found) == (found->commits() == 1 ? after : before).bytes);
                    if (end == record.size()) CHECK(found->commits() == 0);
                }
        }
}

TEST_CASE("writable rows: a machine that ends while it is decided what becomes of changes" NOT_UNDER_TSAN) {
    const unfinished_files it;
    const fs::path path = it.folder / "copy", left = it.folder / "left";
    const bytes_type before = content_of(it.path), journal = content_of(journal_of(it.path));
    const bytes_type kept(before.begin() + 4096, before.end());
    random_numbers random(4);
    for (const bool keep : {false, true}) {
        copy_files(it.path, path);
        const std::array<::ino_t, 2> files = inodes_of(path);
        calls.record.clear();
        auto rows = *writable_rows::open(path);
        calls.recording = true;
        REQUIRE((keep ? rows.keep_changes() : rows.roll_back()).ok());
        calls.recording = false;
        const std::vector<call> record = std::exchange(calls.record, {});
        REQUIRE(record.size() > 3);
        for (std::size_t end = 0; end <= record.size(); ++end)
            for (int time = 0; time < 30; ++time) {
                CAPTURE(keep);
                CAPTURE(end);
                set_content(left, left_by_machine(before, record, end, files[0], random));
                set_content(journal_of(left), left_by_machine(journal, record, end, files[1], random));
                auto found = writable_rows::open(left);
                REQUIRE_MESSAGE(found.ok(), found.failure().message());
                if (end == record.size()) CHECK(!found->unfinished());
                if (found->unfinished()) REQUIRE((keep ? found->keep_changes() : found->roll_back()).ok());
                CHECK(found->commits() == keep);
                REQUIRE(read_all(*found) == (keep ? kept : it.before.bytes));
            }
    }
}

TEST_CASE("writable rows: nothing is written or read before it is decided" NOT_UNDER_TSAN) {
    const unfinished_files it;
    const bytes_type rows_before = content_of(it.path), journal_before = content_of(journal_of(it.path));
    {
        auto rows = writable_rows::open(it.path);
        REQUIRE(rows.ok());
        CHECK(rows->unfinished());
        CHECK(rows->commits() == 0);
        CHECK(rows->changed() == ids_type{4, 5, 7, 11});
        const std::string sentence =
            it.path.string() +
            ": has 4 of 20 rows that a run changed after commit 0 and did not commit; "
            "first roll_back() or keep_changes()";
        bytes_type row(30, std::byte{1});
        const status s = rows->read(ids_type{1}, row.data());
        CHECK(refusal(s) == sentence);
        CHECK(s.failure().code == errc::file);
        CHECK(row == bytes_type(30, std::byte{1}));
        CHECK(refusal(rows->write(ids_type{1}, row.data())) == sentence);
        CHECK(refusal(rows->commit()) == sentence);
        CHECK(rows->unfinished());
    }
    CHECK(content_of(it.path) == rows_before);
    CHECK(content_of(journal_of(it.path)) == journal_before);
    SUBCASE("rolled back") {
        CHECK(writable_rows::open(it.path)->roll_back().ok());
        const auto rows = writable_rows::open(it.path);
        CHECK(!rows->unfinished());
        CHECK(rows->commits() == 0);
        CHECK(read_all(*rows) == it.before.bytes);
    }
    SUBCASE("kept") {
        CHECK(writable_rows::open(it.path)->keep_changes().ok());
        const auto rows = writable_rows::open(it.path);
        CHECK(!rows->unfinished());
        CHECK(rows->commits() == 1);
        table expected = it.before;
        expected.write({4, 5, 11}, bytes_type(90, std::byte{0xEE}));
        CHECK(read_all(*rows) == expected.bytes);
    }
}

TEST_CASE(
    "writable rows: a journal whose last record is cut anywhere, or any byte of one is "
    "another" NOT_UNDER_TSAN) {
    const unfinished_files it;
    const fs::path path = it.folder / "copy";
    const bytes_type journal = content_of(journal_of(it.path));
    REQUIRE(journal.size() == it.label + 4 * it.record);
    for (std::size_t left = journal.size() - it.record; left <= journal.size(); ++left) {
        CAPTURE(left);
        copy_files(it.path, path);
        fs::resize_file(journal_of(path), left);
        auto rows = writable_rows::open(path);
        REQUIRE(rows.ok());
        CHECK(rows->changed() == (left == journal.size() ? ids_type{4, 5, 7, 11} : ids_type{4, 5, 11}));
        REQUIRE(rows->roll_back().ok());
        CHECK(read_all(*rows) == it.before.bytes);  // row 7 was not yet written
    }
    for (std::size_t at = it.label; at < journal.size(); ++at) {
        CAPTURE(at);
        copy_files(it.path, path);
        bytes_type damaged = journal;
        damaged[at] ^= std::byte{1};
        set_content(journal_of(path), damaged);
        auto rows = writable_rows::open(path);
        REQUIRE(rows.ok());
        ids_type expected{4, 5, 11, 7};  // as they were written
        expected.erase(expected.begin() + static_cast<std::ptrdiff_t>((at - it.label) / it.record));
        std::sort(expected.begin(), expected.end());
        CHECK(rows->changed() == expected);
    }
    // Records of another commit behind those of this one, as a file has them that could not be cut.
    copy_files(it.path, path);
    auto rows = writable_rows::open(path);
    REQUIRE(rows->keep_changes().ok());
    const ids_type one{1};
    REQUIRE(rows->write(one, journal.data()).ok());
    closed(*rows);
    bytes_type mixed = content_of(journal_of(path));
    REQUIRE(mixed.size() == it.label + it.record);
    mixed.insert(mixed.end(), journal.begin() + static_cast<std::ptrdiff_t>(mixed.size()), journal.end());
    set_content(journal_of(path), mixed);
    rows = writable_rows::open(path);
    REQUIRE(rows.ok());
    CHECK(rows->changed() == one);
}

TEST_CASE("writable rows: a journal that is not there, not one, or another's" NOT_UNDER_TSAN) {
    const unfinished_files it;
    const fs::path path = it.folder / "copy";
    const bytes_type journal = content_of(journal_of(it.path));
    copy_files(it.path, path);
    const auto refused = [&](const std::string& what) {
        const bytes_type before = content_of(path);
        const auto rows = writable_rows::open(path);
        CHECK(refusal(rows).find(journal_of(path).string() + ": " + what) == 0);
        CHECK(content_of(path) == before);
    };
    SUBCASE("rows were changed") {
        fs::remove(journal_of(path));
        refused("there is no such file");
        CHECK(!fs::exists(journal_of(path)));
        for (const std::size_t left : {0u, 5u, 47u}) {
            set_content(journal_of(path),
                        bytes_type(journal.begin(), journal.begin() + static_cast<std::ptrdiff_t>(left)));
            refused(
                "has no whole label; rows were changed after commit 0, and it cannot be told what they were");
            CHECK(fs::file_size(journal_of(path)) == left);
        }
        for (std::size_t at = 8; at < it.label; ++at) {
            bytes_type damaged = journal;
            damaged[at] ^= std::byte{1};
            set_content(journal_of(path), damaged);
            refused("has no whole label");
        }
        set_content(journal_of(path), bytes_type(100, std::byte{'x'}));
        refused("is no journal of changes; it is not overwritten");
        // Of other rows, and of a later commit, as beside a file that was put back from a copy.
        const auto other = [&](std::size_t rows, std::size_t row_bytes, std::size_t commits) {
            const scratch_folder folder;
            auto made = *writable_rows::create(folder / "rows", rows, row_bytes);
            for (std::size_t c = 0; c < commits; ++c) REQUIRE(made.commit().ok());
            REQUIRE(made.write(ids_type{0}, journal.data()).ok());
            fs::copy_file(journal_of(folder / "rows"), journal_of(path),
                          fs::copy_options::overwrite_existing);
        };
        const std::string asked =
            ", version 1; rows were changed after commit 0 of 20 rows of 30 bytes, version 1";
        other(21, 30, 0);
        refused("is of commit 0 of 21 rows of 30 bytes" + asked);
        other(20, 31, 0);
        refused("is of commit 0 of 20 rows of 31 bytes" + asked);
        other(20, 30, 3);
        refused("is of commit 3 of 20 rows of 30 bytes" + asked);
        set_content(journal_of(path), journal);
        CHECK(writable_rows::open(path).ok());
    }
    SUBCASE("rows were committed: any journal is an old one, and none is made") {
        CHECK(writable_rows::open(path)->roll_back().ok());
        for (const std::size_t left : {0u, 5u, 47u, 48u, 100u}) {
            set_content(journal_of(path),
                        bytes_type(journal.begin(), journal.begin() + static_cast<std::ptrdiff_t>(left)));
            const auto rows = writable_rows::open(path);
            REQUIRE(rows.ok());
            CHECK(!rows->unfinished());
            CHECK(rows->changed().empty());
            CHECK(read_all(*rows) == it.before.bytes);
            CHECK(fs::file_size(journal_of(path)) == 0);
        }
        set_content(journal_of(path), bytes_type(100));  // of a disk that had the size and no bytes
        CHECK(writable_rows::open(path).ok());
        fs::remove(journal_of(path));
        CHECK(writable_rows::open(path).ok());
        CHECK(fs::file_size(journal_of(path)) == 0);
        for (const std::size_t bytes : {1u, 100u}) {
            set_content(journal_of(path), bytes_type(bytes, std::byte{'x'}));
            refused("is no journal of changes; it is not overwritten");
            CHECK(fs::file_size(journal_of(path)) == bytes);
        }
    }
}

TEST_CASE("writable rows: labels that are damaged, of other files, or of another size") {
    const scratch_folder folder;
    const fs::path path = folder / "rows";
    const program p;
    {
        auto rows = p.create(path);
        REQUIRE(rows.commit().ok());
    }
    const bytes_type whole = content_of(path);
    const auto refused = [&](const bytes_type& content, const std::string& what) {
        set_content(path, content);
        const auto rows = writable_rows::open(path);
        CHECK(refusal(rows).find(path.string() + ": " + what) == 0);
        if (!rows.ok()) CHECK(rows.failure().code == errc::file);
        CHECK(content_of(path) == content);
    };
    const auto with = [&](std::size_t at, bytes_type bytes) {
        bytes_type content = whole;
        std::copy(bytes.begin(), bytes.end(), content.begin() + static_cast<std::ptrdiff_t>(at));
        return content;
    };
    SUBCASE("one of the two counts") {
        for (std::size_t at = 0; at < 48; ++at) {
            CAPTURE(at);
            // That of an earlier change, which the label of the commit is to win against.
            set_content(path, with(2048 + at, {whole[2048 + at] ^ std::byte{4}}));
            auto rows = writable_rows::open(path);
            REQUIRE(rows.ok());
            CHECK(!rows->unfinished());
            CHECK(rows->commits() == 1);
            // That of the commit, while rows are changing; a roll back makes it whole again.
            REQUIRE(rows->write(ids_type{3}, whole.data()).ok());
            closed(*rows);
            bytes_type changing = content_of(path);
            changing[at] ^= std::byte{4};
            set_content(path, changing);
            rows = writable_rows::open(path);
            REQUIRE(rows.ok());
            CHECK(rows->unfinished());
            CHECK(rows->commits() == 1);
            REQUIRE(rows->roll_back().ok());
            closed(*rows);
            rows = writable_rows::open(path);
            REQUIRE(rows.ok());
            CHECK(rows->commits() == 1);
            CHECK(read_all(*rows) == table(p.rows, p.row_bytes).bytes);
        }
    }
    SUBCASE("neither") {
        bytes_type both = with(20, {std::byte{1}});
        both[2048 + 20] = std::byte{1};
        refused(both, "has a damaged label, in both of its places");
        // A label in the other's place, as no commit writes it.
        const bytes_type first(whole.begin(), whole.begin() + 48);
        bytes_type moved = with(2048, first);
        std::fill_n(moved.begin(), 48, std::byte{0});
        refused(moved, "has a damaged label, in both of its places");
    }
    SUBCASE("another file") {
        bytes_type other = with(0, bytes_type(8, std::byte{'x'}));
        std::fill_n(other.begin() + 2048, 8, std::byte{'x'});
        refused(other, "is no file of rows that can be written");
        refused(bytes_type(whole.size()), "is no file of rows that can be written");
        for (const std::size_t bytes : {0u, 48u, 4095u})
            refused(bytes_type(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(bytes)),
                    "has " + std::to_string(bytes) + " bytes; a file of rows has 4096 and its rows");
    }
    SUBCASE("another size") {
        const std::string size = std::to_string(4096 + 37 * 700);
        for (const int more : {-1, 1}) {
            bytes_type other = whole;
            other.resize(whole.size() + static_cast<std::size_t>(more));
            refused(other, "has " + std::to_string(other.size()) + " bytes; 37 rows of 700 bytes are " +
                               size + " with their label");
        }
    }
    SUBCASE("a later version") {
        detail::rows_label label;
        label.kind = detail::rows_kind;
        label.version = 2;
        label.rows = p.rows;
        label.row_bytes = p.row_bytes;
        label.number = 4;
        const auto stored = label.stored();
        refused(with(0, {stored.begin(), stored.end()}), "is of version 2; known is 1");
    }
    SUBCASE("no file") {
        fs::remove(path);
        CHECK(refusal(writable_rows::open(path)) == path.string() + ": there is no such file");
        CHECK(has(refusal(writable_rows::open(folder.path())), "is a directory"));
    }
}

TEST_CASE("writable rows: checksums of bytes of which one or two bits are others") {
    for (const std::size_t count : {0u, 1u, 7u, 24u, 29u}) {
        CAPTURE(count);
        bytes_type bytes(count, std::byte{0x5A});
        std::set<std::uint64_t> sums{detail::checksum(1, bytes.data(), count),
                                     detail::checksum(2, bytes.data(), count)};
        const auto flip = [&](std::size_t bit) { bytes[bit / 8] ^= std::byte{1} << bit % 8; };
        std::size_t made = 2;
        for (std::size_t a = 0; a < 8 * count; ++a)
            for (std::size_t b = a; b < 8 * count; ++b, ++made) {
                flip(a);
                if (b != a) flip(b);
                sums.insert(detail::checksum(1, bytes.data(), count));
                flip(a);
                if (b != a) flip(b);
            }
        CHECK(sums.size() == made);
    }
    // Zeros in any number, and nothing.
    std::set<std::uint64_t> sums;
    const bytes_type zeros(64);
    for (std::size_t count = 0; count <= 64; ++count) sums.insert(detail::checksum(0, zeros.data(), count));
    CHECK(sums.size() == 65);
    CHECK(!sums.contains(0));
}

TEST_CASE("writable rows: ids that are outside, or do not ascend") {
    const scratch_folder folder;
    auto rows = *writable_rows::create(folder / "rows", 20, 4, first_row);
    const bytes_type before = read_all(rows);
    bytes_type some(12);
    const auto refused = [&](const ids_type& ids, errc code, const std::string& what, bool reads) {
        CAPTURE(what);
        const status s = reads ? rows.read(ids, some.data()) : rows.write(ids, some.data());
        REQUIRE(!s.ok());
        CHECK(s.failure().code == code);
        CHECK(s.failure().message() == "ids: " + what);
    };
    const std::string outside = " lies outside the 20 rows of " + (folder / "rows").string();
    for (const bool reads : {false, true}) {
        refused({1, 20}, errc::token_id, "ids[1] = 20" + outside, reads);
        refused({-1}, errc::token_id, "ids[0] = -1" + outside, reads);
    }
    refused({1, 5, 4}, errc::option, "ids[2] = 4 comes after 5; the ids of rows that are written ascend",
            false);
    refused({7, 7}, errc::option, "ids[1] = 7 comes after 7; the ids of rows that are written ascend", false);
    CHECK(rows.changed().empty());
    CHECK(rows.read({}, nullptr).ok());
    CHECK(rows.write({}, nullptr).ok());
    CHECK(rows.changed().empty());
    CHECK(fs::file_size(journal_of(folder / "rows")) == 0);
    CHECK(read_all(rows) == before);
}

TEST_CASE("writable rows: one object at a time, here and in another process" NOT_UNDER_TSAN) {
    const scratch_folder folder;
    const fs::path path = folder / "rows";
    auto rows = *writable_rows::create(path, 20, 4, first_row);
    const std::string sentence = ": is open to be written somewhere else; one at a time may";
    CHECK(refusal(writable_rows::open(path)) == path.string() + sentence);
    CHECK(tiffin_test::holds_in_child(
        [&] { return refusal(writable_rows::open(path)) == path.string() + sentence; }));
    // The same file by another name has its journal beside its own name.
    fs::create_symlink(path, folder / "link");
    CHECK(refusal(writable_rows::open(folder / "link")) == path.string() + sentence);
    fs::create_hard_link(path, folder / "other");
    CHECK(has(refusal(writable_rows::open(folder / "other")), sentence));
    fs::remove(folder / "other");
    // Another file by the same name has the same journal.
    fs::rename(path, folder / "moved");
    fs::copy_file(folder / "moved", path);
    CHECK(refusal(writable_rows::open(path)) == journal_of(path).string() + sentence);
    fs::rename(folder / "moved", path);
    writable_rows moved = std::move(rows);
    CHECK(refusal(writable_rows::open(path)) == path.string() + sentence);
    closed(moved);
    auto again = writable_rows::open(folder / "link");
    REQUIRE(again.ok());
    REQUIRE(again->write(ids_type{1}, bytes_type(4).data()).ok());
    CHECK(!fs::exists(journal_of(folder / "link")));
    CHECK(fs::file_size(journal_of(path)) > 0);
}

TEST_CASE("writable rows: a file that is cut while it is open") {
    const scratch_folder folder;
    const fs::path path = folder / "rows";
    auto rows = *writable_rows::create(path, 20, 100, first_row);
    fs::resize_file(path, 4096 + 1050);
    bytes_type got(300);
    CHECK(rows.read(ids_type{2, 9}, got.data()).ok());
    for (const ids_type& ids : {ids_type{10}, ids_type{9, 10, 11}, ids_type{1, 12, 3}}) {
        tiffin_test::thread_per_task threads;
        for (const bool side_by_side : {false, true}) {
            const status s = side_by_side ? rows.read(ids, got.data(), threads) : rows.read(ids, got.data());
            CHECK(has(refusal(s), path.string() + ": the "));
            CHECK(has(refusal(s), "cannot be read: the file ends at byte 5146"));
        }
    }
    CHECK(has(refusal(rows.write(ids_type{12}, got.data())), "cannot be read: the file ends at byte 5146"));
    CHECK(fs::file_size(path) == 4096 + 1050);
}

TEST_CASE("writable rows: a disk that is full") {
    const scratch_folder folder;
    const fs::path path = folder / "rows";
    const std::size_t whole = 4096 + 100 * 200;
    ::rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    // What is written while no file may have more bytes.
    const auto with_limit = [&](std::size_t bytes, const std::function<std::string()>& work) {
        ::rlimit tight = before;
        tight.rlim_cur = bytes;
        REQUIRE(::setrlimit(RLIMIT_FSIZE, &tight) == 0);
        std::string said = work();
        REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
        return said;
    };
    for (const bool zeros : {false, true}) {
        const std::string said = with_limit(whole - 1, [&] {
            return refusal(
                writable_rows::create(path, 100, 200, zeros ? writable_rows::first_row() : first_row));
        });
        CHECK(said == path.string() + ": the file cannot get 24096 bytes: File too large");
        CHECK(folder.files() == 0);
    }
    table model(100, 200);
    auto rows = *writable_rows::create(path, 100, 200, first_row);
    const bytes_type first = model.bytes, other(20000, std::byte{0xEE});
    const ids_type some{10, 11, 50}, all = all_ids(100);
    REQUIRE(rows.write(some, other.data()).ok());
    model.write(some, other);

    const auto go_on = [&] {
        SUBCASE("rolled back") {
            REQUIRE(rows.roll_back().ok());
            CHECK(read_all(rows) == first);
        }
        SUBCASE("rolled back by the next run") {
            closed(rows);
            rows = *writable_rows::open(path);
            CHECK(rows.unfinished());
            REQUIRE(rows.roll_back().ok());
            CHECK(read_all(rows) == first);
        }
        SUBCASE("written again") {}
        REQUIRE(rows.write(all, other.data()).ok());
        REQUIRE(rows.commit().ok());
        CHECK(read_all(rows) == other);
    };
    SUBCASE("the journal: no row is changed that is not in it") {
        const std::string said = with_limit(20000, [&] { return refusal(rows.write(all, other.data())); });
        CHECK(said == journal_of(path).string() +
                          ": the 20952 bytes from 696 on cannot be written: File too "
                          "large; 19304 of them are");
        CHECK(rows.changed() == some);
        CHECK(read_all(rows) == model.bytes);
        CHECK(fs::file_size(journal_of(path)) == 48 + 3 * 216);
        go_on();
    }
    SUBCASE("the rows: those that were written, one of them in part, are in the journal") {
        // Which is shorter than the rows: first those at the end.
        const ids_type last{97, 98, 99};
        const std::string said =
            with_limit(whole - 250, [&] { return refusal(rows.write(last, other.data())); });
        CHECK(said == path.string() +
                          ": the 600 bytes from 23496 on cannot be written: File too large; 350 of "
                          "them are");
        CHECK(rows.changed() == ids_type{10, 11, 50, 97, 98, 99});
        std::copy_n(other.begin(), 350, model.bytes.begin() + 19400);
        CHECK(read_all(rows) == model.bytes);
        go_on();
    }
    SUBCASE("the rows, when they are put back") {
        REQUIRE(rows.write(all, other.data()).ok());
        const std::string said = with_limit(whole - 250, [&] { return refusal(rows.roll_back()); });
        CHECK(said == path.string() +
                          ": the 200 bytes from 23696 on cannot be written: File too large; 150 of "
                          "them are");
        CHECK(refusal(rows.commit()) == path.string() + uncertain);
        REQUIRE(rows.roll_back().ok());
        CHECK(read_all(rows) == first);
    }
    std::signal(SIGXFSZ, handler);
}

TEST_CASE("writable rows: several threads that read, between writes") {
    const scratch_folder folder;
    const std::size_t count = 300, row_bytes = 700;
    table model(count, row_bytes);
    auto rows = *writable_rows::create(folder / "rows", count, row_bytes, first_row);
    random_numbers changes(5);
    for (int round = 0; round < 5; ++round) {
        const change c = random_change(changes, count, row_bytes);
        model.write(c.ids, c.bytes);
        REQUIRE(rows.write(c.ids, c.bytes.data(), tiffin_test::thread_per_task()).ok());
        std::atomic<int> wrong{0};
        std::vector<std::thread> threads;
        for (std::uint32_t n = 0; n < 4; ++n)
            threads.emplace_back([&, n] {
                random_numbers random(n + 1);
                bytes_type got(50 * row_bytes);
                for (int call = 0; call < 20; ++call) {
                    ids_type ids(50);
                    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random.below(count));
                    if (!rows.read(ids, got.data())) ++wrong;
                    for (std::size_t i = 0; i < ids.size(); ++i)
                        wrong += std::memcmp(&got[i * row_bytes],
                                             &model.bytes[static_cast<std::size_t>(ids[i]) * row_bytes],
                                             row_bytes) != 0;
                }
            });
        for (std::thread& t : threads) t.join();
        CHECK(wrong == 0);
        if (round == 2) REQUIRE(rows.commit().ok());
    }
}

}  // namespace table_writable_rows_test
