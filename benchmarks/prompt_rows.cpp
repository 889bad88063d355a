// The rows that a prompt reads from a cold n-gram table in a file, beside a plain loop of io_uring over the same rows.
//
//     prompt_rows FOLDER TEXT [GIB] [TOKENS] [ROUNDS] [FILE]           defaults: 4 2048 15 plain
//
// The table is as Qwen's: 16 heads, rows of 160 BF16 values, in one file of GIB. FILE: `plain`, the table alone, filled with
// numbers; `gguf`, the same inside a GGUF file, behind its header; `sparse`, a GGUF file whose table is a hole, for which no disk
// is asked, so that what is left is what the reads cost besides. TEXT is split into words, whose ids are hashed. "wait": addresses, reads and widening, nothing computed meanwhile. Each way reads the whole
// prompt at once, in turns with the plain loop; the file's pages are given up before each (fsync, POSIX_FADV_DONTNEED).
#include <tiffin/io/gguf.hpp>
#include <tiffin/io/reading_ring.hpp>
#include <tiffin/table/direct_file.hpp>
#include <tiffin/table/distinct_ids.hpp>
#include <tiffin/table/mapped_file.hpp>
#include <tiffin/table/ngram_addresses.hpp>
#include <tiffin/table/ngram_rows.hpp>

#include "../examples/support/vocabulary.hpp"
#include "../tests/support/gguf_bytes.hpp"
#include "cold_file.hpp"
#include "small_program.hpp"

#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using tiffin_bench::give_up_pages, tiffin_bench::quartiles_text;

using ids_type = std::vector<std::int32_t>;
using clock_type = std::chrono::steady_clock;

constexpr std::size_t width = 160, heads = 16, block = 4096;

double seconds_since(clock_type::time_point start) {
    return std::chrono::duration<double>(clock_type::now() - start).count();
}

// Qwen's multipliers; sizes that fill the table, no two the same.
tiffin::engram_hash hash_of(std::size_t ids, std::size_t rows) {
    tiffin::engram_hash made;
    made.ids = ids;
    made.multipliers = {23703573157769, 20109073645365, 8052911324071};
    made.primes.resize(2);
    std::int64_t before = 0;
    for (std::size_t h = 0; h < heads; ++h) {
        const auto size = static_cast<std::int64_t>(rows / heads - 2 * (heads - h) - 1) | 1;
        made.primes[h / (heads / 2)].push_back(size);
        made.offsets.push_back(before);
        before += size;
    }
    return made;
}

// Returns where the table lies.
tiffin::table_location write_table(const std::filesystem::path& path, std::size_t rows,
                                   const std::string& kind) {
    const tiffin::table_shape shape{rows, width, tiffin::dtype::bf16};
    const std::size_t bytes = rows * shape.row_bytes();
    std::ofstream file(path, std::ios::binary);
    std::uint64_t before = 0;
    if (kind != "plain") {
        const char* const name = "per_layer_token_embd.weight";
        const std::vector<std::byte> header = tiffin_test::gguf_bytes()
                                                  .text("general.architecture", "qwen4exp")
                                                  .tensor(name, {width, rows}, 30, nullptr, 0)
                                                  .bytes();
        before = header.size();
        file.write(reinterpret_cast<const char*>(header.data()), static_cast<std::streamsize>(before));
    }
    std::vector<std::uint16_t> some(std::size_t{4} << 20);
    std::mt19937 random(1);
    for (std::uint16_t& one : some)
        one = static_cast<std::uint16_t>(0x3E00u + random() % 512);  // 0.125 to 0.5
    for (std::size_t done = 0; kind != "sparse" && done < bytes && file; done += some.size() * 2)
        file.write(reinterpret_cast<const char*>(some.data()), static_cast<std::streamsize>(some.size() * 2));
    if (!file.flush()) throw std::runtime_error("the table cannot be written to " + path.string());
    std::filesystem::resize_file(path, before + bytes);
    if (kind == "plain") return {path, 0, shape};
    const auto read = tiffin::io::gguf_file::open(path).or_throw();
    return {path, read.offset_of(read.tensors().entries()[0].tensor), shape};
}

// The bare reads: 64 at a time, the disk blocks of each row around the cache, nothing copied. Returns the bytes of rows.
class plain_ring {
public:
    explicit plain_ring(const std::filesystem::path& path)
        : file_(::open(path.c_str(), O_RDONLY | O_DIRECT)) {
        if (file_ < 0 || ::io_uring_queue_init(depth, &ring_, 0) != 0)
            throw std::runtime_error(path.string() + " cannot be read around the cache by io_uring");
        memory_ = static_cast<std::byte*>(std::aligned_alloc(block, depth * 2 * block));
        for (unsigned i = 0; i < depth; ++i) free_.push_back(i);
    }
    ~plain_ring() {
        ::io_uring_queue_exit(&ring_);
        ::close(file_);
        std::free(memory_);
    }
    plain_ring(const plain_ring&) = delete;
    plain_ring& operator=(const plain_ring&) = delete;

    void read(const ids_type& rows, const tiffin::table_location& table) {
        const std::size_t bytes = table.shape.row_bytes();
        std::size_t begun = 0, done = 0;
        while (done < rows.size()) {
            while (begun < rows.size() && !free_.empty()) {
                const std::uint64_t at = table.row(rows[begun++]), skip = at % block;
                const unsigned place = free_.back();
                free_.pop_back();
                io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
                ::io_uring_prep_read(entry, file_, memory_ + place * 2 * block,
                                     static_cast<unsigned>((skip + bytes + block - 1) / block * block),
                                     at - skip);
                ::io_uring_sqe_set_data64(entry, place);
            }
            ::io_uring_submit_and_wait(&ring_, 1);
            io_uring_cqe* event = nullptr;
            while (::io_uring_peek_cqe(&ring_, &event) == 0) {
                if (event->res < static_cast<int>(bytes)) throw std::runtime_error("a row cannot be read");
                free_.push_back(static_cast<unsigned>(::io_uring_cqe_get_data64(event)));
                ::io_uring_cqe_seen(&ring_, event);
                ++done;
            }
        }
    }

private:
    static constexpr unsigned depth = 64;
    int file_;
    io_uring ring_{};
    std::byte* memory_ = nullptr;
    std::vector<unsigned> free_;
};

int run(const std::filesystem::path& folder, const std::string& text, std::size_t gib, std::size_t tokens,
        std::size_t rounds, const std::string& kind) {
    if (kind != "plain" && kind != "gguf" && kind != "sparse")
        throw std::runtime_error("FILE is '" + kind + "'; it is plain, gguf or sparse");
    std::ifstream given(text, std::ios::binary);
    const std::string all{std::istreambuf_iterator<char>(given), {}};
    const std::vector<std::int32_t> encoded = vocabulary(all, 32768).encode(all);
    if (encoded.size() < tokens * rounds) throw std::runtime_error(text + " has too few words");
    const std::filesystem::path path = folder / "prompt_rows.table";
    const std::size_t bytes = width * 2, rows = (gib << 30) / bytes;
    const tiffin::table_location table = write_table(path, rows, kind);
    const auto address =
        tiffin::ngram_addresses<tiffin::engram_hash>::of(hash_of(32768 + 256, rows)).or_throw();

    // A prompt's rows by way of `Store`: the time until they are there, widened.
    const auto wait = [&](auto open) {
        return [&, open](const ids_type& ids, ids_type& to) {
            const auto store = open();
            auto memory =
                tiffin::ngram_rows::of(std::vector<tiffin::ngram_table>(heads, {*store})).or_throw();
            std::vector<tiffin::ngram_history> past(1, tiffin::ngram_history(address.order()));
            const std::vector<std::uint32_t> sequence(ids.size(), 0);
            const auto start = clock_type::now();
            address(ids, sequence, past, to).or_throw();
            memory.gather(to).or_throw();
            return seconds_since(start);
        };
    };
    using tiffin::file_cache;
    using ring_file = tiffin::direct_file<tiffin::io::reading_ring>;
    using way = std::function<double(const ids_type&, ids_type&)>;
    const std::map<std::string, way> ways{
        {"direct_file<reading_ring>, around the cache", wait([&] {
             return std::make_shared<ring_file>(ring_file::open(table, file_cache::passed_by).or_throw());
         })},
        {"direct_file<>, around the cache", wait([&] {
             return std::make_shared<tiffin::direct_file<>>(
                 tiffin::direct_file<>::open(table, file_cache::passed_by).or_throw());
         })},
        {"direct_file<>", wait([&] {
             return std::make_shared<tiffin::direct_file<>>(tiffin::direct_file<>::open(table).or_throw());
         })},
        {"mapped_file", wait([&] {
             return std::make_shared<tiffin::mapped_file>(tiffin::mapped_file::open(table).or_throw());
         })}};
    std::printf("%zu GiB (%s), %zu rows of %zu bytes from byte %zu on; %zu tokens, %zu rows each\n", gib,
                kind.c_str(), rows, bytes, static_cast<std::size_t>(table.offset), tokens, heads);
    for (const auto& [name, how] : ways) {
        std::vector<double> ratios, milliseconds, distinct_rows;
        for (std::size_t round = 0; round < rounds; ++round) {
            const auto first = encoded.begin() + static_cast<std::ptrdiff_t>(round * tokens);
            const ids_type ids(first, first + static_cast<std::ptrdiff_t>(tokens));
            ids_type addresses(tokens * heads);
            const auto ours = [&] {
                give_up_pages(path);
                return how(ids, addresses);
            };
            const auto bare = [&] {
                ids_type distinct = addresses;  // each once, in the order of the table's heads
                std::vector<bool> seen(rows);
                std::erase_if(distinct, [&](std::int32_t id) {
                    const bool again = seen[static_cast<std::size_t>(id)];
                    seen[static_cast<std::size_t>(id)] = true;
                    return again;
                });
                distinct_rows.push_back(static_cast<double>(distinct.size()));
                plain_ring ring(path);
                give_up_pages(path);
                const auto start = clock_type::now();
                ring.read(distinct, table);
                return seconds_since(start);
            };
            how(ids, addresses);  // the addresses, for both
            double a = 0, b = 0;
            if (round % 2 == 0) a = ours();
            b = bare();
            if (round % 2 != 0) a = ours();
            ratios.push_back(a / b);
            milliseconds.push_back(1e3 * b);
        }
        std::printf("%-45s wait over bare reads %s; these: %s ms, %.0f different rows\n", name.c_str(),
                    quartiles_text(ratios, 3).c_str(), quartiles_text(milliseconds, 3).c_str(),
                    distinct_rows[0]);
        std::fflush(stdout);
    }
    std::filesystem::remove(path);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    return tiffin_bench::run_program("prompt_rows", argc, argv, [&](const auto& number) {
        if (argc < 3) throw std::runtime_error("takes FOLDER TEXT [GIB] [TOKENS] [ROUNDS] [FILE]");
        return run(argv[1], argv[2], number(3, 4), number(4, 2048), number(5, 15),
                   argc > 6 ? argv[6] : "plain");
    });
}
