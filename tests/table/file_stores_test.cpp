// Stores in files: every row of every format by every way of reading, and what happens when files go bad.
#include <tiffin/io/parallel_reads.hpp>
#include <tiffin/io/table_file.hpp>
#include <tiffin/table/direct_file.hpp>
#include <tiffin/table/joined_columns.hpp>
#include <tiffin/table/mapped_file.hpp>
#include <tiffin/table/prefetched_rows.hpp>
#include <tiffin/table/row_store.hpp>
#if defined(TIFFIN_TEST_LIBURING)
#    include <tiffin/io/reading_ring.hpp>
#endif

#include "executor/in_child.hpp"
#include "support/doctest.hpp"
#include "support/random.hpp"
#include "support/scratch_folder.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <sys/resource.h>
#include <csignal>

namespace table_file_stores_test {
using namespace tiffin;

namespace {

namespace fs = std::filesystem;
using ids_type = std::vector<std::int32_t>;

constexpr dtype formats[]{dtype::f32, dtype::bf16, dtype::f16, dtype::q8_0, dtype::q4_0};

// A table in memory, every byte of it random.
struct stored_table {
    table_shape shape;
    std::vector<std::byte> bytes;

    stored_table(std::size_t rows, std::size_t width, dtype type, std::uint32_t seed = 1)
        : shape{rows, width, type}, bytes(rows * shape.row_bytes()) {
        tiffin_test::random_numbers random(seed);
        for (std::byte& b : bytes) b = static_cast<std::byte>(random.below(256));
    }
    [[nodiscard]] in_memory store() const {
        return *in_memory::view({bytes.data(), shape.type, {shape.rows, shape.width}});
    }
};

fs::path write(const tiffin_test::scratch_folder& folder, const stored_table& table,
               const std::string& name = "table.safetensors") {
    const in_memory store = table.store();
    io::safetensors_writer writer;
    const std::vector<float> before{1, 2, 3};  // so that the table does not begin at a round place
    writer.add("a.before", tensor_view{before.data(), dtype::f32, {3}});
    io::add_table(writer, "stem_embed.weight", store).write(folder / name).or_throw();
    return folder / name;
}

// What a store reads of some ids; all of them right, or the failure.
status check_rows(row_store_ref store, const stored_table& table, const ids_type& ids) {
    const std::size_t bytes = table.shape.row_bytes();
    std::vector<std::byte> rows(ids.size() * bytes + 1, std::byte{0xA5});
    if (status s = store.read(ids, rows.data()); !s) return s;
    CHECK(rows.back() == std::byte{0xA5});
    for (std::size_t i = 0; i < ids.size(); ++i)
        REQUIRE(std::memcmp(rows.data() + i * bytes,
                            table.bytes.data() + static_cast<std::size_t>(ids[i]) * bytes, bytes) == 0);
    return {};
}

// Calls use(store) with every kind of store of a table.
void with_stores(const table_location& table,
                 const std::function<void(const std::string&, row_store_ref)>& use) {
    const auto mapped = mapped_file::open(table);
    REQUIRE(mapped.ok());
    use("mapped", *mapped);
    const auto cached = direct_file<>::open(table);
    REQUIRE(cached.ok());
    use("through the cache", *cached);
    // Not every file system reads around its cache (those in memory do not).
    if (const auto around = direct_file<>::open(table, file_cache::passed_by); around.ok())
        use("around the cache, threads", *around);
    else
        MESSAGE("not tested: " << around.failure().message());
#if defined(TIFFIN_TEST_LIBURING)
    if (const auto ring = direct_file<io::reading_ring>::open(table, file_cache::passed_by);
        ring.ok() && io::reading_ring().works())
        use("around the cache, io_uring", *ring);
    else
        MESSAGE("not tested: io_uring");
#endif
}

#if defined(TIFFIN_TEST_LIBURING)
#    define READERS io::reading_threads, io::reading_ring
#else
#    define READERS io::reading_threads
#endif

ids_type all_ids(std::size_t rows) {
    ids_type ids(rows);
    std::iota(ids.begin(), ids.end(), 0);
    return ids;
}

}  // namespace

TEST_CASE("file stores: every row of every format") {
    for (const dtype type : formats)
        for (const std::size_t width : {32u, 96u, 4128u}) {
            CAPTURE(std::string(name_of(type)));
            CAPTURE(width);
            const tiffin_test::scratch_folder folder;
            const stored_table table(301, width, type);
            const auto where = io::find_table(write(folder, table), "stem_embed.weight");
            REQUIRE(where.ok());
            CHECK(where->shape == table.shape);
            with_stores(*where, [&](const std::string& name, row_store_ref store) {
                CAPTURE(name);
                CHECK(store.shape() == table.shape);
                CHECK(check_rows(store, table, all_ids(301)).ok());
                CHECK(check_rows(store, table, {300, 0, 7, 7, 300}).ok());
                CHECK(check_rows(store, table, {}).ok());
            });
        }
}

// A reader of somebody's that leaves the last read out, does one for another, or does one twice.
template <int Fault>
struct careless_reader {
    status read(const io::open_file& file, std::span<const io::file_read> reads,
                const io::read_arrived& arrived) const {
        io::read_buffers places;
        places.make_room(reads, 1);
        for (std::size_t i = 0; i + (Fault == 0 ? 1 : 0) < reads.size(); ++i) {
            const io::file_read& r = reads[i];
            if (status s = file.read(r.offset, places[0], r.bytes, r.needed); !s) return s;
            arrived(Fault == 1 && i == 1 ? 0 : i, places[0]);
        }
        if (Fault == 2) arrived(0, places[0]);
        if (Fault == 3) arrived(reads.size(), places[0]);
        return {};
    }
};

TEST_CASE_TEMPLATE("file stores: a reader that leaves reads out", Reader, careless_reader<0>,
                   careless_reader<1>, careless_reader<2>, careless_reader<3>) {
    const tiffin_test::scratch_folder folder;
    const stored_table table(30, 96, dtype::f32);
    const auto where = io::find_table(write(folder, table), "stem_embed.weight");
    const auto around = direct_file<Reader>::open(*where, file_cache::passed_by);
    if (!around.ok()) {
        MESSAGE("not tested: " << around.failure().message());
        return;
    }
    const status done = check_rows(*around, table, {4, 7, 29});
    REQUIRE_FALSE(done.ok());
    CHECK(done.failure().code == errc::file);
    CHECK(done.failure().what.find("3 reads were done") != std::string::npos);
}

TEST_CASE("file stores: a table of one row, and one that ends the file within a block of the disk") {
    const tiffin_test::scratch_folder folder;
    for (const std::size_t width : {1u, 3u, 1024u, 1025u}) {
        const stored_table table(1, width, dtype::f32);
        with_stores(
            *io::find_table(write(folder, table), "stem_embed.weight"),
            [&](const std::string&, row_store_ref store) { CHECK(check_rows(store, table, {0}).ok()); });
    }
}

TEST_CASE("file stores: one layer's columns of a token-major table, one expert's rows of a pool") {
    const tiffin_test::scratch_folder folder;
    for (const dtype type : formats) {
        const stored_table a(40, 64, type, 1), b(40, 96, type, 2), c(40, 32, type, 3);
        const in_memory parts[]{a.store(), b.store(), c.store()};
        const auto joined = joined_columns::of({parts[0], parts[1], parts[2]});
        REQUIRE(joined.ok());
        CHECK(joined->shape() == table_shape{40, 192, type});
        io::safetensors_writer writer;
        io::add_table(writer, "token_major", *joined).write(folder / "joined").or_throw();
        const auto where = io::find_table(folder / "joined", "token_major");
        REQUIRE(where.ok());
        with_stores(*where->columns(64, 96), [&](const std::string& name, row_store_ref store) {
            CAPTURE(name);
            CHECK(check_rows(store, b, all_ids(40)).ok());
        });
        with_stores(*where->columns(160, 32), [&](const std::string&, row_store_ref store) {
            CHECK(check_rows(store, c, all_ids(40)).ok());
        });
        stored_table later = b;  // rows 10 to 39
        later.shape.rows = 30;
        later.bytes.erase(later.bytes.begin(),
                          later.bytes.begin() + static_cast<std::ptrdiff_t>(10 * b.shape.row_bytes()));
        with_stores(*(*where->columns(64, 96)).rows(10, 30), [&](const std::string&, row_store_ref store) {
            CHECK(check_rows(store, later, all_ids(30)).ok());
        });
        CHECK(where->columns(160, 64).failure().code == errc::size);
        CHECK(where->columns(300, 0).failure().code == errc::size);
        CHECK(where->rows(30, 11).failure().code == errc::size);
        if (block_of(type) > 1) CHECK(where->columns(16, 32).failure().code == errc::size);
    }
    const std::vector<float> pool(3 * 5 * 2, 1);
    io::safetensors_writer writer;
    writer.add("modulators.weight", tensor_view{pool.data(), dtype::f32, {3, 5, 2}});
    writer.write(folder / "pool").or_throw();
    CHECK(io::find_table(folder / "pool", "modulators.weight")->shape == table_shape{15, 2, dtype::f32});
}

TEST_CASE("file stores: no columns, no rows") {
    const tiffin_test::scratch_folder folder;
    const stored_table table(40, 64, dtype::f32);
    const auto where = io::find_table(write(folder, table), "stem_embed.weight");
    REQUIRE(where.ok());
    with_stores(*where->columns(63, 0), [&](const std::string& name, row_store_ref store) {
        CAPTURE(name);
        CHECK(store.shape() == table_shape{40, 0, dtype::f32});
        CHECK(store.read(all_ids(40), nullptr).ok());
    });
    with_stores(*where->rows(40, 0), [&](const std::string& name, row_store_ref store) {
        CAPTURE(name);
        CHECK(store.shape() == table_shape{0, 64, dtype::f32});
        CHECK(store.read({}, nullptr).ok());
        CHECK(prefetched_rows(store).gather(ids_type{0}).failure().code == errc::token_id);
    });
}

TEST_CASE("joined_columns: parts that do not fit") {
    const stored_table a(40, 64, dtype::f32), shorter(39, 64, dtype::f32), other(40, 64, dtype::bf16);
    CHECK(joined_columns::of({}).failure().code == errc::size);
    const in_memory first = a.store(), second = shorter.store(), third = other.store();
    CHECK(joined_columns::of({first, second}).failure().message() ==
          "parts: number 1 has 39 rows, the first has 40");
    CHECK(joined_columns::of({first, third}).failure().message() ==
          "parts: number 1 is BF16, the first is F32");
}

TEST_CASE("find_table: what is no table") {
    const tiffin_test::scratch_folder folder;
    const std::vector<std::int32_t> whole(64, 1);
    const std::vector<std::byte> bytes(64 * 36);
    io::safetensors_writer writer;
    writer.add("map", tensor_view{whole.data(), dtype::i32, {8, 8}});
    writer.add("vector", tensor_view{whole.data(), dtype::f32, {64}});
    writer.add("untold", tensor_view{bytes.data(), dtype::u8, {8, 36}});
    writer.add("unknown", tensor_view{bytes.data(), dtype::u8, {8, 36}});
    writer.set("unknown.format", "Q5_1");
    writer.write(folder / "file").or_throw();
    const auto refused = [&](const std::string& name, errc code, const std::string& what) {
        CAPTURE(name);
        const auto found = io::find_table(folder / "file", name);
        REQUIRE(!found.ok());
        CHECK(found.failure().code == code);
        CHECK(found.failure().message().find(what) != std::string::npos);
        CHECK(found.failure().message().find((folder / "file").string()) == 0);
    };
    refused("none", errc::missing_tensor, "tensor 'none' is missing; the file has 4");
    refused("map", errc::dtype, "is I32; rows hold F32 or a smaller format of it");
    refused("vector", errc::shape, "has shape (64); a table is (rows, width)");
    refused("untold", errc::option, "metadata 'untold.format' does not say of which format");
    refused("unknown", errc::option,
            "is bytes of 'Q5_1'; known are q8_0, q4_0, "
            "q4_1, q5_0, q5_1, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, iq4_xs, mxfp4, nvfp4, u4");
    CHECK(io::find_table(folder / "no file", "x").failure().code == errc::file);
}

TEST_CASE("file stores: a file that is cut short, and works again once it is whole") {
    const tiffin_test::scratch_folder folder;
    const stored_table table(200, 1024, dtype::f32);
    const fs::path path = write(folder, table);
    const auto whole = fs::file_size(path);
    const auto where = io::find_table(path, "stem_embed.weight");
    REQUIRE(where.ok());
    std::vector<char> content(whole);
    std::ifstream(path, std::ios::binary).read(content.data(), static_cast<std::streamsize>(whole));
    with_stores(*where, [&](const std::string& name, row_store_ref store) {
        CAPTURE(name);
        prefetched_rows rows(store);
        for (const std::uint64_t left : {whole - 1, whole / 2 + 100, std::uintmax_t{0}}) {
            CAPTURE(left);
            fs::resize_file(path, left);
            const status cut = check_rows(store, table, all_ids(200));
            REQUIRE(!cut.ok());
            CHECK(cut.failure().code == errc::file);
            CHECK(cut.failure().message().find(path.string()) == 0);
            CHECK(cut.failure().message().find(std::to_string(left)) != std::string::npos);
            // Through the two calls the failure reaches the caller of gather().
            REQUIRE(rows.prefetch(ids_type{199}).ok());
            const auto gathered = rows.gather(ids_type{199});
            REQUIRE(!gathered.ok());
            CHECK(gathered.failure().code == errc::file);
            std::ofstream(path, std::ios::binary | std::ios::in)
                .write(content.data(), static_cast<std::streamsize>(whole));
            CHECK(check_rows(store, table, all_ids(200)).ok());
            CHECK(rows.gather(ids_type{199}).ok());
        }
    });
}

TEST_CASE("file stores: a file that ends before its table is not opened; nor is none") {
    const tiffin_test::scratch_folder folder;
    const stored_table table(20, 64, dtype::f32);
    table_location where = *io::find_table(write(folder, table), "stem_embed.weight");
    where.shape.rows = 21;
    CHECK(mapped_file::open(where).failure().code == errc::file);
    table_location beyond = where;  // its end wraps around to a byte of the file
    beyond.offset = 0;
    beyond.shape = {(std::size_t{1} << 60) + 1, 4, dtype::f32};
    beyond.stride = 16;
    CHECK(mapped_file::open(beyond).failure().code == errc::file);
    CHECK(direct_file<>::open(beyond).failure().code == errc::file);
    CHECK(direct_file<>::open(where).failure().message().find("what is read of it ends at byte") !=
          std::string::npos);
    where.path = folder / "none";
    CHECK(mapped_file::open(where).failure().message() == where.path.string() + ": there is no such file");
    CHECK(direct_file<>::open(where).failure().code == errc::file);
    where.path = folder.path();
    CHECK(direct_file<>::open(where).failure().message().find("is a directory") != std::string::npos);
}

TEST_CASE("file stores: another file renamed over the first is not read") {
    const tiffin_test::scratch_folder folder;
    const stored_table table(20, 64, dtype::f32, 1), other(20, 64, dtype::f32, 2);
    const auto where = io::find_table(write(folder, table), "stem_embed.weight");
    with_stores(*where, [&](const std::string&, row_store_ref store) {
        const fs::path second = write(folder, other, "other");
        fs::rename(second, where->path);
        CHECK(check_rows(store, table, all_ids(20)).ok());
        fs::rename(write(folder, table, "again"), where->path);
    });
}

TEST_CASE_TEMPLATE("parallel reads: a read that the system refuses, among many", Reader, READERS) {
    const tiffin_test::scratch_folder folder;
    const stored_table table(500, 64, dtype::f32);
    const auto where = io::find_table(write(folder, table), "stem_embed.weight");
    const auto file = io::open_file::open(where->path);
    REQUIRE(file.ok());
    Reader reader;
    if constexpr (requires { reader.works(); })
        if (!reader.works()) {
            MESSAGE("not tested: io_uring");
            return;
        }
    std::vector<std::byte> got(500 * 256);
    const io::read_arrived copy = [&](std::size_t i, const std::byte* from) {
        std::memcpy(&got[i * 256], from, 256);
    };
    std::vector<io::file_read> all;
    for (std::int32_t i = 0; i < 500; ++i) all.push_back({where->row(i), 256, 256});
    for (const std::size_t bad : {500u, 0u, 250u, 499u}) {  // the first time none
        CAPTURE(bad);
        std::vector<io::file_read> reads = all;
        if (bad < 500) reads[bad].offset = ~std::uint64_t{0} >> 1;  // no file is so large
        std::fill(got.begin(), got.end(), std::byte{0});
        const status s = reader.read(*file, reads, copy);
        if (bad == 500) {
            CHECK(s.ok());
            CHECK(got == table.bytes);
        } else {
            REQUIRE(!s.ok());
            CHECK(s.failure().message().find(where->path.string() +
                                             ": the 256 bytes from 9223372036854775807 on "
                                             "cannot be read") == 0);
        }
    }
    // The last block may reach beyond the end, what is needed may not.
    const std::uint64_t end = where->end();
    const io::file_read beyond{end - 100, 256, 100}, missing{end - 100, 256, 101};
    std::vector<std::byte> last(100);
    const io::read_arrived keep = [&](std::size_t, const std::byte* from) {
        std::memcpy(last.data(), from, 100);
    };
    CHECK(reader.read(*file, {&beyond, 1}, keep).ok());
    CHECK(std::memcmp(last.data(), table.bytes.data() + table.bytes.size() - 100, 100) == 0);
    CHECK(reader.read(*file, {&missing, 1}, keep)
              .failure()
              .message()
              .find("on cannot be read: the file ends at byte " + std::to_string(end)) != std::string::npos);
    CHECK(reader.read(*file, {}, keep).ok());
}

TEST_CASE_TEMPLATE("parallel reads: what takes the rows throws, and nothing goes on", Reader, READERS) {
    const tiffin_test::scratch_folder folder;
    const stored_table table(500, 64, dtype::f32);
    const auto where = io::find_table(write(folder, table), "stem_embed.weight");
    const auto file = io::open_file::open(where->path);
    Reader reader;
    if constexpr (requires { reader.works(); })
        if (!reader.works()) {
            MESSAGE("not tested: io_uring");
            return;
        }
    std::vector<io::file_read> reads;
    for (std::int32_t i = 0; i < 500; ++i) reads.push_back({where->row(i), 256, 256});
    for (const std::size_t at : {0u, 1u, 100u, 499u}) {
        std::atomic<bool> ended = false;
        std::atomic<int> late = 0;
        const status s = reader.read(*file, reads, [&](std::size_t i, const std::byte*) {
            if (ended) ++late;
            if (i == at) throw std::runtime_error("enough");
        });
        ended = true;
        REQUIRE_FALSE(s.ok());
        CHECK(s.failure().what == "threw: enough");
        std::atomic<int> came = 0;
        CHECK(reader.read(*file, reads, [&](std::size_t, const std::byte*) { ++came; }).ok());
        CHECK(came == 500);
        CHECK(late == 0);
    }
}

namespace {

// A table of 500 rows and its file, to be read in pieces.
struct read_table {
    tiffin_test::scratch_folder folder;
    stored_table table{500, 64, dtype::f32};
    table_location where = *io::find_table(write(folder, table), "stem_embed.weight");
    io::open_file file = *io::open_file::open(where.path);

    // Whether a reader brings each of the first `count` rows once, and nothing else.
    template <class Reader>
    [[nodiscard]] bool reads_right(Reader& reader, std::size_t count) const {
        std::vector<io::file_read> reads;
        for (std::size_t i = 0; i < count; ++i)
            reads.push_back({where.row(static_cast<std::int32_t>(i)), 256, 256});
        std::vector<std::atomic<int>> right(count);
        const status s = reader.read(file, reads, [&](std::size_t i, const std::byte* from) {
            if (std::memcmp(from, table.bytes.data() + i * 256, 256) == 0) ++right[i];
        });
        return s.ok() && std::ranges::all_of(right, [](const auto& times) { return times == 1; });
    }
};

template <class Reader>
bool works(const Reader& reader) {
    if constexpr (requires { reader.works(); })
        if (!reader.works()) {
            MESSAGE("not tested: io_uring");
            return false;
        }
    return true;
}

}  // namespace

// Threads that were made for a later call took part in the one before: now and then a call ended too early,
// or never. The thread sanitizer sees it each time.
TEST_CASE_TEMPLATE("parallel reads: more at a time than in calls before", Reader, READERS) {
    const read_table it;
    std::size_t wrong = 0;
    for (int i = 0; i < 100; ++i) {
        Reader reader;
        if (!works(reader)) return;
        for (const std::size_t count : {1u, 2u, 5u, 20u, 3u, 100u, 500u})
            wrong += !it.reads_right(reader, count);
    }
    CHECK(wrong == 0);
}

// In a child of its own, so that a reader which two processes share hangs that and not the tests.
TEST_CASE_TEMPLATE("parallel reads: in a child of fork(), and in its parent after" NOT_UNDER_TSAN, Reader,
                   READERS) {
    const read_table it;
    if (!works(Reader())) return;
    CHECK(tiffin_test::holds_in_child([&] {
        auto reader = std::make_unique<Reader>();
        const bool before = it.reads_right(*reader, 100);
        const bool used = tiffin_test::holds_in_child(
            [&] { return it.reads_right(*reader, 500) && it.reads_right(*reader, 5); });
        const bool ended = tiffin_test::holds_in_child([&] {
            Reader own;  // its threads may get the handles of those that are not there
            const bool with = it.reads_right(own, 100);
            reader.reset();
            return with && it.reads_right(own, 100);
        });
        return before && used && ended && it.reads_right(*reader, 500);
    }));
}

TEST_CASE("reading_threads: as many as can be had" NOT_UNDER_SANITIZERS) {
    const read_table it;
    CHECK(tiffin_test::holds_in_child([&] {
        io::reading_threads reader;
        if (!it.reads_right(reader, 3) || !tiffin_test::limit_memory(std::size_t{100} << 20)) return false;
        return it.reads_right(reader, 500) && it.reads_right(reader, 500) && it.reads_right(reader, 4);
    }));
}

TEST_CASE("file stores: several threads at once") {
    const tiffin_test::scratch_folder folder;
    const stored_table table(300, 512, dtype::f32);
    const auto where = io::find_table(write(folder, table), "stem_embed.weight");
    with_stores(*where, [&](const std::string& name, row_store_ref store) {
        CAPTURE(name);
        std::atomic<int> wrong{0};
        std::vector<std::thread> threads;
        for (std::uint32_t n = 0; n < 4; ++n)
            threads.emplace_back([&, n] {
                tiffin_test::random_numbers random(n + 1);
                std::vector<std::byte> rows(50 * 2048);
                for (int call = 0; call < 20; ++call) {
                    ids_type ids(50);
                    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random.below(300));
                    if (!store.read(ids, rows.data())) ++wrong;
                    for (std::size_t i = 0; i < ids.size(); ++i)
                        if (std::memcmp(rows.data() + i * 2048,
                                        table.bytes.data() + static_cast<std::size_t>(ids[i]) * 2048,
                                        2048) != 0)
                            ++wrong;
                }
            });
        for (std::thread& t : threads) t.join();
        CHECK(wrong == 0);
    });
}

TEST_CASE("add_table: progress, and a disk that is full") {
    const tiffin_test::scratch_folder folder;
    const stored_table table(3000, 1024, dtype::f32);  // 12 MB: more than is written in one piece
    const in_memory store = table.store();
    io::safetensors_writer writer;
    std::vector<std::size_t> told;
    io::add_table(writer, "t", store, [&](std::size_t done, std::size_t rows) {
        CHECK(rows == 3000);
        told.push_back(done);
    });
    REQUIRE(writer.write(folder / "whole").ok());
    CHECK(told.size() > 1);
    CHECK(told.back() == 3000);

    ::rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    ::rlimit tight = before;
    tight.rlim_cur = 5 << 20;
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &tight) == 0);
    const status full = writer.write(folder / "full");
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    std::signal(SIGXFSZ, handler);
    REQUIRE(!full.ok());
    CHECK(full.failure().code == errc::file);
    CHECK(full.failure().message().find("the file cannot be written: File too large") != std::string::npos);
    CHECK(folder.files() == 1);

    // A source that fails, or produces too little or too much, leaves no file either.
    const from_callback bad({10, 4, dtype::f32}, [](std::span<const std::int32_t>, std::byte*) -> status {
        return failure(errc::file, "table.bin", "is gone");
    });
    io::safetensors_writer failing;
    CHECK(io::add_table(failing, "t", bad).write(folder / "bad").failure().message() == "table.bin: is gone");
    for (const std::size_t bytes : {15u, 17u}) {
        io::safetensors_writer wrong;
        wrong.add("t", dtype::f32, {4}, [&](const io::byte_sink& put) -> status {
            const std::vector<std::byte> some(bytes);
            put(some.data(), some.size());
            return {};
        });
        const status s = wrong.write(folder / "bad");
        CHECK(s.failure().code == errc::size);
        CHECK(!wrong.to_bytes("bad").ok());
    }
    CHECK(folder.files() == 1);
}

}  // namespace table_file_stores_test
