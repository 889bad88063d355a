// Reads through a ring that fails at every place where one can: never a wrong row, and nothing left behind.
#include <tiffin/io/basic_reading_ring.hpp>
#if defined(TIFFIN_TEST_LIBURING)
#    include <tiffin/io/reading_ring.hpp>
#endif

#include "support/doctest.hpp"
#include "support/random.hpp"
#include "support/scratch_folder.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <unistd.h>

namespace io_basic_reading_ring_test {
using namespace tiffin;

namespace {

// What goes wrong: the first-th and the next count - 1 of calls of a kind.
struct fault {
    unsigned first = 0, count = 0;
    int with = 0;  // what is said instead
    bool done_all_the_same = false;
    unsigned calls = 0;

    bool now() {
        const unsigned call = calls++;
        return call >= first && call - first < count;
    }
};
constexpr unsigned for_ever = std::numeric_limits<unsigned>::max();

// Of the ring under test, which the reader makes itself.
struct {
    fault open, submit, wait, ended;
    std::size_t outstanding = 0;  // queued or in flight
    std::size_t left = 0;         // in flight when their ring was closed
} script;

// Any ring, with the faults of the script.
template <class Ring>
class failing : public Ring {
public:
    int open(unsigned entries) { return script.open.now() ? script.open.with : Ring::open(entries); }
    void close() {
        script.left += script.outstanding - Ring::queued();
        script.outstanding = 0;
        Ring::close();
    }
    bool queue(int file, const io::file_read& read, std::byte* to, unsigned place) {
        if (!Ring::queue(file, read, to, place)) return false;
        ++script.outstanding;
        places_[place] = {to, read.bytes};
        return true;
    }
    int submit_and_wait() {
        return or_fault(script.submit, [&] { return Ring::submit_and_wait(); });
    }
    int wait() {
        return or_fault(script.wait, [&] { return Ring::wait(); });
    }
    bool take(io::ended_read& ended) {
        if (!Ring::take(ended)) return false;
        --script.outstanding;
        if (script.ended.now()) {
            ended.got = script.ended.with;
            const auto [to, bytes] = places_.at(ended.place);
            for (std::size_t i = ended.got < 0 ? 0 : static_cast<std::size_t>(ended.got); i < bytes; ++i)
                to[i] = std::byte{0xEE};
        }
        return true;
    }

private:
    template <class Call>
    static int or_fault(fault& f, const Call& call) {
        if (!f.now()) return call();
        if (f.done_all_the_same) static_cast<void>(call());
        return f.with;
    }
    std::map<unsigned, std::pair<std::byte*, std::size_t>> places_;
};

// A ring without a system: takes a part of what is queued or all, ends reads in any order, some unasked.
class pretended_ring {
public:
    int open(unsigned entries) {
        entries_ = entries;
        return 0;
    }
    void close() {
        queued_.clear();
        in_flight_.clear();
        ended_.clear();
    }
    bool queue(int file, const io::file_read& read, std::byte* to, unsigned place) {
        if (queued_.size() == entries_) return false;
        queued_.push_back({file, read, to, place});
        return true;
    }
    int submit_and_wait() {
        const std::size_t all = queued_.size();
        std::size_t n = all == 0 || random_.below(3) != 0 ? all : 1 + random_.below(all);
        for (std::size_t i = 0; i < n; ++i) {
            in_flight_.push_back(queued_.front());
            queued_.pop_front();
        }
        if (n == all) wait();
        return static_cast<int>(n);
    }
    int wait() {
        REQUIRE(in_flight_.size() + ended_.size() > 0);  // it would wait for ever
        if (ended_.empty())
            for (std::size_t n = 1 + random_.below(8); n > 0 && !in_flight_.empty(); --n) end_one();
        return 0;
    }
    [[nodiscard]] unsigned queued() const { return static_cast<unsigned>(queued_.size()); }
    bool take(io::ended_read& ended) {
        if (ended_.empty() && !in_flight_.empty() && random_.below(4) == 0) end_one();
        if (ended_.empty()) return false;
        ended = ended_.front();
        ended_.pop_front();
        return true;
    }

private:
    struct entry {
        int file;
        io::file_read read;
        std::byte* to;
        unsigned place;
    };
    void end_one() {
        const auto at = in_flight_.begin() + static_cast<std::ptrdiff_t>(random_.below(in_flight_.size()));
        const ::ssize_t got =
            ::pread(at->file, at->to, at->read.bytes, static_cast<::off_t>(at->read.offset));
        ended_.push_back({at->place, got < 0 ? -errno : static_cast<int>(got)});
        in_flight_.erase(at);
    }

    unsigned entries_ = 0;
    std::deque<entry> queued_, in_flight_;
    std::deque<io::ended_read> ended_;
    tiffin_test::random_numbers random_{11};
};

// A file of rows that have their number in every byte, and calls that read some of them.
class read_rows {
public:
    static constexpr std::size_t rows = 200, bytes = 192;

    read_rows() {
        std::ofstream out(folder_ / "rows", std::ios::binary);
        for (std::size_t i = 0; i < rows; ++i) out << std::string(bytes, static_cast<char>(i));
        out.close();
        file_ = *io::open_file::open(folder_ / "rows");
        script = {};
    }
    // One call for `count` rows; where it says that all is well, each came right and once. However it ends, nothing
    // is outstanding.
    template <class Reader>
    status operator()(Reader& reader, std::size_t count, std::size_t bad = rows,
                      const std::function<void(std::size_t)>& also = {}) {
        std::vector<io::file_read> reads;
        std::vector<int> ids, right(count);
        for (std::size_t i = 0; i < count; ++i) {
            ids.push_back(static_cast<int>(random_.below(rows)));
            reads.push_back({static_cast<std::uint64_t>(ids[i]) * bytes, bytes, bytes});
        }
        if (bad < count) reads[bad].offset = rows * bytes;
        const struct at_the_end {
            ~at_the_end() {
                CHECK(script.outstanding == 0);
                CHECK(script.left == 0);
            }
        } check;
        status s = reader.read(file_, reads, [&](std::size_t i, const std::byte* from) {
            right[i] += std::all_of(from, from + bytes,
                                    [&](std::byte b) { return b == static_cast<std::byte>(ids[i]); })
                            ? 1
                            : 1000;
            if (also) also(i);
        });
        const auto came = std::count(right.begin(), right.end(), 1);
        CHECK(came + std::count(right.begin(), right.end(), 0) == static_cast<std::ptrdiff_t>(count));
        if (s) CHECK(came == static_cast<std::ptrdiff_t>(count));
        return s;
    }

private:
    tiffin_test::scratch_folder folder_;
    io::open_file file_;
    tiffin_test::random_numbers random_{5};
};

template <class Ring>
using reader_of = io::basic_reading_ring<failing<Ring>>;

template <class Ring>
bool works() {
    if (io::basic_reading_ring<Ring>().works()) return true;
    MESSAGE("not tested: io_uring");
    return false;
}

#if defined(TIFFIN_TEST_LIBURING)
#    define RINGS pretended_ring, io::uring
#else
#    define RINGS pretended_ring
#endif

constexpr std::size_t counts[]{5, 100, 150, 1};

}  // namespace

TEST_CASE_TEMPLATE("reading ring: submitting fails, at every place", Ring, RINGS) {
    if (!works<Ring>()) return;
    for (const int error : {EAGAIN, EBUSY, EINTR, ENOMEM, 0})  // 0: says that it took nothing
        for (const bool done : {false, true})
            for (const unsigned times : {1u, 3u})
                for (unsigned first = 0; first < 40; ++first) {
                    CAPTURE(error);
                    CAPTURE(done);
                    CAPTURE(times);
                    CAPTURE(first);
                    read_rows read;
                    reader_of<Ring> reader;
                    script.submit = {first, times, -error, done};
                    unsigned failed = 0;
                    for (const std::size_t count : counts)
                        if (const status s = read(reader, count); !s) {
                            ++failed;
                            CHECK(s.failure().message().find("rows: io_uring does not take reads: ") !=
                                  std::string::npos);
                        }
                    // What passes is tried again; where memory is short, a call fails unless a read ended meanwhile.
                    CHECK(failed <= (error == ENOMEM ? times : 0));
                    if (error == ENOMEM && !done && first == 0) CHECK(failed == times);
                    script.submit = {};
                    CHECK(read(reader, 150).ok());
                }
}

TEST_CASE_TEMPLATE("reading ring: it fails for good, and works again", Ring, RINGS) {
    if (!works<Ring>()) return;
    for (const int error : {EAGAIN, EBUSY, EINTR, ENOMEM, EPERM, 0})
        for (const unsigned first : {0u, 3u})
            for (const bool also_waiting : {false, true}) {
                CAPTURE(error);
                CAPTURE(first);
                CAPTURE(also_waiting);
                read_rows read;
                reader_of<Ring> reader;
                script.submit = {first, for_ever, -error};
                if (also_waiting) script.wait = {0, for_ever, -error};
                bool failed = false;
                for (int i = 0; i < 5 && !failed; ++i) failed = !read(reader, 100).ok();
                CHECK(failed);
                script.submit = {};
                for (const std::size_t count : counts) CHECK(read(reader, count).ok());
            }
}

TEST_CASE_TEMPLATE("reading ring: reads that end short or with an error are read otherwise", Ring, RINGS) {
    if (!works<Ring>()) return;
    for (const int got : {-EAGAIN, -EINTR, -ECANCELED, -EBUSY, -ENOMEM, -EINVAL, -EIO, 0, 1, 100, 191})
        for (const unsigned times : {1u, 7u, for_ever})
            for (unsigned first = 0; first < 105; first += times == 1 ? 1 : 13) {
                CAPTURE(got);
                CAPTURE(times);
                CAPTURE(first);
                read_rows read;
                reader_of<Ring> reader;
                script.ended = {first, times, got};
                CHECK(read(reader, 5).ok());
                CHECK(read(reader, 100).ok());
            }
}

TEST_CASE_TEMPLATE("reading ring: a read that cannot be done, at every place, and waiting fails too", Ring,
                   RINGS) {
    if (!works<Ring>()) return;
    for (const int error : {0, EINTR, EAGAIN, ENOMEM})
        for (std::size_t bad = 0; bad < 100; bad += 3) {
            CAPTURE(error);
            CAPTURE(bad);
            read_rows read;
            reader_of<Ring> reader;
            if (error != 0) script.wait = {0, 3, -error};
            const status s = read(reader, 100, bad);
            REQUIRE_FALSE(s.ok());
            CHECK(s.failure().message().find("the file ends at byte 38400") != std::string::npos);
            CHECK(read(reader, 150).ok());
        }
}

TEST_CASE_TEMPLATE("reading ring: the caller leaves early", Ring, RINGS) {
    if (!works<Ring>()) return;
    for (std::size_t at = 0; at < 100; at += 3) {
        CAPTURE(at);
        read_rows read;
        reader_of<Ring> reader;
        const status s = read(reader, 100, read_rows::rows, [&](std::size_t i) {
            if (i == at) throw std::runtime_error("enough");
        });
        REQUIRE_FALSE(s.ok());
        CHECK(s.failure().what == "threw: enough");
        CHECK(read(reader, 150).ok());
    }
}

TEST_CASE_TEMPLATE("reading ring: none can be had, at first or instead of one that failed", Ring, RINGS) {
    if (!works<Ring>()) return;
    read_rows read;
    script.open = {0, 2, -ENOMEM};
    reader_of<Ring> reader;
    CHECK_FALSE(reader.works());
    const status s = read(reader, 5);
    REQUIRE_FALSE(s.ok());
    CHECK(s.failure().message().find("rows: io_uring cannot be had: Cannot allocate memory") !=
          std::string::npos);
    CHECK(read(reader, 5).ok());
    CHECK(reader.works());
    script.open = {0, 1, -EMFILE};
    script.submit = {0, 1, -ENOMEM};
    CHECK_FALSE(read(reader, 5).ok());
    CHECK_FALSE(reader.works());
    CHECK(read(reader, 150).ok());
}

}  // namespace io_basic_reading_ring_test
