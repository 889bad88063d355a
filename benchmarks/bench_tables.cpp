// Rows of tables in files: gathered warm and cold, under a stack of layers, and through a cache.
//
// Names are
//   gather/<way>/<warm|cold>/row_bytes:<B>       512 different rows, warm; 1000, cold
//   ratio/gather/<way>/over/<way>/...            the two in turns; median of the ratios of neighbours
//   ratio/stack/file/over/memory/tokens:<T>      8 STEM layers, tables in a file beside tables in memory
//   stack/cold/tokens:<T>                        the same, nothing of the file in the cache
//   cache/<policy>/rows:10%                      hits over the ids of real text, beside the best possible
// "cold": the file's pages are given up before each run (fsync, then POSIX_FADV_DONTNEED).
#include <benchmark/benchmark.h>

#include <tiffin/executor/openmp.hpp>
#include <tiffin/io/parallel_reads.hpp>
#include <tiffin/io/table_file.hpp>
#include <tiffin/table/cached_rows.hpp>
#include <tiffin/table/direct_file.hpp>
#include <tiffin/table/mapped_file.hpp>
#include <tiffin/table/row_schedule.hpp>
#include <tiffin/tiffin.hpp>
#if defined(TIFFIN_BENCH_LIBURING)
#    include <tiffin/io/reading_ring.hpp>
#endif

#include "../examples/support/number_range.hpp"
#include "../examples/support/output.hpp"
#include "../examples/support/progress_bar.hpp"
#include "../examples/support/signals.hpp"
#include "../examples/support/vocabulary.hpp"
#include "cold_file.hpp"
#include "disturbance.hpp"
#include "machine.hpp"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

namespace fs = std::filesystem;
using ids_type = std::vector<std::int32_t>;
using tiffin_bench::page_floats;
using clock_type = std::chrono::steady_clock;

fs::path folder = fs::temp_directory_path();
fs::path text = "/usr/share/doc";
std::size_t table_megabytes = 1024;
tiffin_bench::page_floats noise(std::size_t{1} << 20);

double seconds_since(clock_type::time_point start) {
    return std::chrono::duration<double>(clock_type::now() - start).count();
}

// Files that this program has made, gone with it.
std::list<temporary_file> files;

// A table of f32 numbers in a file of its own.
tiffin::table_location make_table(const std::string& name, std::size_t rows, std::size_t width) {
    const fs::path path = folder / ("tiffin_bench_" + name + ".safetensors");
    files.emplace_back(path);
    progress_bar bar;
    tiffin::io::safetensors_writer writer;
    writer.add("table", tiffin::dtype::f32, {rows, width},
               [&](const tiffin::io::byte_sink& put) -> tiffin::status {
                   const std::size_t all = rows * width;
                   for (std::size_t done = 0; done < all; done += noise.size()) {
                       const std::size_t n = std::min(noise.size(), all - done);
                       noise.data()[0] = static_cast<float>(done);
                       if (!put(noise.data(), n * sizeof(float))) break;
                       bar.show(static_cast<double>(done) / static_cast<double>(all), path.string());
                   }
                   return {};
               });
    writer.write(path).or_throw();
    return tiffin::io::find_table(path, "table").or_throw();
}

// The table of rows of so many bytes that all benchmarks share.
const tiffin::table_location& table_of(std::size_t row_bytes) {
    static std::map<std::size_t, tiffin::table_location> made;
    const auto found = made.find(row_bytes);
    if (found != made.end()) return found->second;
    return made
        .emplace(row_bytes, make_table("rows_of_" + std::to_string(row_bytes),
                                       (table_megabytes << 20) / row_bytes, row_bytes / sizeof(float)))
        .first->second;
}

ids_type different_ids(std::size_t count, std::size_t rows, std::uint32_t seed) {
    std::mt19937 engine(seed);
    std::set<std::int32_t> seen;
    ids_type ids;
    while (ids.size() < count) {
        const auto id = static_cast<std::int32_t>(engine() % rows);
        if (seen.insert(id).second) ids.push_back(id);
    }
    return ids;
}

// A way of reading: opened without being timed, then called.
using reading = std::function<void(const ids_type&, std::byte*)>;
using way = std::function<reading(const tiffin::table_location&)>;

template <class Store>
way of_store(const std::function<tiffin::result<Store>(const tiffin::table_location&)>& open) {
    return [=](const tiffin::table_location& table) -> reading {
        const auto store = std::make_shared<Store>(open(table).or_throw());
        return [=](const ids_type& ids, std::byte* to) { store->read(ids, to).or_throw(); };
    };
}

// What one would write without a library: reads of a row each, so many at a time.
template <class Reader>
way plain_reads(int flags, const std::function<std::shared_ptr<Reader>()>& make) {
    return [=](const tiffin::table_location& table) -> reading {
        const auto file = std::make_shared<tiffin::io::open_file>(
            tiffin::io::open_file::open(table.path, flags).or_throw());
        const auto reader = make();
        // Around the cache in the blocks of 4 KiB that a row lies in.
        const std::size_t block = flags != 0 ? 4096 : 1;
        return [=, table = table](const ids_type& ids, std::byte*) {
            std::vector<tiffin::io::file_read> reads;
            for (const std::int32_t id : ids) {
                const std::uint64_t at = table.row(id);
                const std::size_t skip = at % block, bytes = table.shape.row_bytes();
                reads.push_back({at - skip, (skip + bytes + block - 1) / block * block, skip + bytes});
            }
            // What is read is left where it is: a plain loop copies nothing.
            reader->read(*file, reads, [](std::size_t, const std::byte*) {}).or_throw();
        };
    };
}

template <class Reader>
way plain_reads(int flags) {
    return plain_reads<Reader>(flags, [] { return std::make_shared<Reader>(); });
}
way threads_reading(int flags, std::size_t count) {
    return plain_reads<tiffin::io::reading_threads>(
        flags, [=] { return std::make_shared<tiffin::io::reading_threads>(count); });
}

bool reads_around_cache() {
    const fs::path path = folder / "tiffin_bench_around";
    files.emplace_back(path);
    write_text(path, "a file");
    return tiffin::io::open_file::open(path, O_DIRECT).ok();
}

std::map<std::string, way> ways() {
    using tiffin::file_cache;
    std::map<std::string, way> all;
    all["mapped_file"] = of_store<tiffin::mapped_file>(tiffin::mapped_file::open);
    all["direct_file"] =
        of_store<tiffin::direct_file<>>([](const auto& table) { return tiffin::direct_file<>::open(table); });
    // Not every file system reads around its cache, and not every process may have io_uring.
    const bool around = reads_around_cache();
    if (around) {
        all["direct_file_around"] = of_store<tiffin::direct_file<>>(
            [](const auto& table) { return tiffin::direct_file<>::open(table, file_cache::passed_by); });
        all["threads_around:32"] = threads_reading(O_DIRECT, 32);
        all["threads_around:64"] = threads_reading(O_DIRECT, 64);
    }
    all["threads:32"] = threads_reading(0, 32);
    all["threads:64"] = threads_reading(0, 64);
#if defined(TIFFIN_BENCH_LIBURING)
    using tiffin::io::reading_ring;
    if (reading_ring().works()) {
        all["ring:64"] = plain_reads<reading_ring>(0);
        if (around) {
            all["direct_file_ring"] = of_store<tiffin::direct_file<reading_ring>>([](const auto& table) {
                return tiffin::direct_file<reading_ring>::open(table, file_cache::passed_by);
            });
            all["ring_around:64"] = plain_reads<reading_ring>(O_DIRECT);
        }
    }
#endif
    // Read-ahead advice for all rows, then reads one by one.
    all["advice"] = [](const tiffin::table_location& table) -> reading {
        const auto file =
            std::make_shared<tiffin::io::open_file>(tiffin::io::open_file::open(table.path).or_throw());
        file->will_read_at_random();
        return [=, table = table](const ids_type& ids, std::byte* to) {
            const std::size_t bytes = table.shape.row_bytes();
            for (const std::int32_t id : ids) file->will_read(table.row(id), bytes);
            for (std::size_t i = 0; i < ids.size(); ++i)
                file->read(table.row(ids[i]), to + i * bytes, bytes, bytes).or_throw();
        };
    };
    // A mapping told that its accesses are random, copied from.
    all["faults"] = [](const tiffin::table_location& table) -> reading {
        const auto mapping =
            std::make_shared<tiffin::io::file_mapping>(tiffin::io::file_mapping::open(table.path).or_throw());
        ::madvise(const_cast<std::byte*>(mapping->bytes().data()), mapping->bytes().size(), MADV_RANDOM);
        return [=, table = table](const ids_type& ids, std::byte* to) {
            const std::size_t bytes = table.shape.row_bytes();
            for (std::size_t i = 0; i < ids.size(); ++i)
                std::memcpy(to + i * bytes, mapping->bytes().data() + table.row(ids[i]), bytes);
        };
    };
    // As many bytes in one piece, and the same rows in memory.
    all["memcpy"] = [](const tiffin::table_location& table) -> reading {
        const auto from = std::make_shared<page_floats>(1000 * table.shape.width);
        std::memset(from->data(), 1, from->size() * sizeof(float));
        return [=, bytes = table.shape.row_bytes()](const ids_type& ids, std::byte* to) {
            std::memcpy(to, from->data(), ids.size() * bytes);
        };
    };
    all["in_memory"] = [](const tiffin::table_location& table) -> reading {
        const std::size_t numbers = table.shape.rows * table.shape.width;
        const auto held = std::make_shared<page_floats>(numbers);
        std::memset(held->data(), 1, numbers * sizeof(float));
        const auto store =
            tiffin::in_memory::view({held->data(), tiffin::dtype::f32, {table.shape.rows, table.shape.width}})
                .or_throw();
        return [=](const ids_type& ids, std::byte* to) {
            static_cast<void>(held);
            store.read(ids, to).or_throw();
        };
    };
    return all;
}

// One run of a way of reading, in seconds. Cold ones open the file anew, as a mapping keeps its pages.
class timed_way {
public:
    timed_way(way how, const tiffin::table_location& table, bool cold)
        : how_(std::move(how)), table_(table), cold_(cold), to_(1000 * table.shape.width) {
        std::memset(to_.data(), 0, to_.size() * sizeof(float));
        if (!cold_) read_ = how_(table_);
    }
    double seconds(std::uint32_t seed) {
        const ids_type ids = different_ids(count(), table_.shape.rows, seed);
        auto* const to = reinterpret_cast<std::byte*>(to_.data());
        if (cold_) {
            read_ = nullptr;
            tiffin_bench::give_up_pages(table_.path);
            read_ = how_(table_);
        } else {
            read_(ids, to);  // the file's pages come into the cache and into the process
            // The rows that are copied from leave the processor's caches, the file's rows stay in memory.
            benchmark::DoNotOptimize(std::accumulate(noise.data(), noise.data() + noise.size(), 0.0f));
        }
        const auto start = clock_type::now();
        read_(ids, to);
        const double took = seconds_since(start);
        if (cold_) read_ = nullptr;
        return took;
    }
    [[nodiscard]] std::size_t count() const {
        return std::min<std::size_t>(cold_ ? 1000 : 512, table_.shape.rows / 2);
    }

private:
    way how_;
    tiffin::table_location table_;
    bool cold_;
    page_floats to_;
    reading read_;
};

void report(benchmark::State& state, std::vector<double> values, const std::string& name) {
    if (values.empty()) return;
    std::sort(values.begin(), values.end());
    state.counters[name] = values[values.size() / 2];
    state.counters["quarter"] = values[values.size() / 4];
    state.counters["three_quarters"] = values[values.size() * 3 / 4];
}

std::uint32_t next_seed = 1;

void add_gather(const std::string& name, const way& how, std::size_t row_bytes, bool cold) {
    benchmark::RegisterBenchmark(
        ("gather/" + name + (cold ? "/cold" : "/warm") + "/row_bytes:" + std::to_string(row_bytes)).c_str(),
        [=](benchmark::State& state) {
            timed_way it(how, table_of(row_bytes), cold);
            std::vector<double> a_row;
            const tiffin_bench::disturbance others;
            for (auto _ : state) {
                const double took = it.seconds(next_seed++);
                state.SetIterationTime(took);
                a_row.push_back(1e6 * took / static_cast<double>(it.count()));
            }
            report(state, a_row, "microseconds_a_row");
            state.counters["others"] = others.share();
        })
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
}

void add_ratio(const std::string& name, const std::string& base, const std::map<std::string, way>& all,
               std::size_t row_bytes, bool cold) {
    if (!all.contains(name) || !all.contains(base)) return;
    benchmark::RegisterBenchmark(
        ("ratio/gather/" + name + "/over/" + base + (cold ? "/cold" : "/warm") +
         "/row_bytes:" + std::to_string(row_bytes))
            .c_str(),
        [=, above = all.at(name), below = all.at(base)](benchmark::State& state) {
            timed_way one(above, table_of(row_bytes), cold), other(below, table_of(row_bytes), cold);
            std::vector<double> ratios;
            const tiffin_bench::disturbance others;
            for (auto _ : state) {
                const std::uint32_t seed = next_seed++;
                const bool first = seed % 2 == 0;
                const double a = (first ? one : other).seconds(seed), b = (first ? other : one).seconds(seed);
                state.SetIterationTime(a + b);
                ratios.push_back(first ? a / b : b / a);
            }
            report(state, ratios, "ratio");
            state.counters["others"] = others.share();
        })
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
}

// Eight STEM layers with tables in memory, and the same with tables in a file.
struct stack {
    static constexpr std::size_t depth = 8, vocab = 4096;
    std::size_t d_model, d_ff;
    page_floats gate, down, tables, x, y;
    std::vector<tiffin::layer<tiffin::stem, tiffin::simd<>>> in_memory, gathered;
    std::list<tiffin::mapped_file> stores;
    tiffin::table_location file;
    tiffin::workspace memory;
    tiffin::openmp execute{omp_get_max_threads()};

    stack(std::size_t d, std::size_t f)
        : d_model(d),
          d_ff(f),
          gate(d * f),
          down(d * f),
          tables(depth * vocab * f),
          x(512 * d),
          y(512 * d),
          file(make_table("stack", depth * vocab, f)) {
        for (page_floats* numbers : {&gate, &down, &tables, &x})
            for (std::size_t i = 0; i < numbers->size(); ++i) numbers->data()[i] = noise.data()[i % 65521];
        for (std::size_t layer = 0; layer < depth; ++layer) {
            tiffin::weights w, apart;
            for (tiffin::weights* both : {&w, &apart})
                both->add("gate_proj.weight", gate.data(), {f, d})
                    .add("down_proj.weight", down.data(), {d, f});
            w.add("stem_embed.weight", tables.data() + layer * vocab * f, {vocab, f});
            apart.add_gathered("stem_embed.weight", tiffin::dtype::f32, {vocab, f});
            in_memory.push_back(tiffin::prepare<tiffin::stem>(w, tiffin::simd{}, {.tokens = 0}));
            gathered.push_back(tiffin::prepare<tiffin::stem>(apart, tiffin::simd{}, {.tokens = 0}));
        }
        memory = in_memory[0].make_workspace(512, execute.concurrency());
        open();
    }
    void open() {
        for (std::size_t layer = 0; layer < depth; ++layer)
            stores.push_back(
                tiffin::mapped_file::open(file.rows(layer * vocab, vocab).or_throw()).or_throw());
    }
    void make_cold() {
        stores.clear();
        tiffin_bench::give_up_pages(file.path);
        open();
    }
    double run_in_memory(const ids_type& ids) {
        const auto start = clock_type::now();
        for (const auto& layer : in_memory)
            layer(tiffin::matrix_view<const float>(x.data(), ids.size(), d_model), ids,
                  tiffin::matrix_view<float>(y.data(), ids.size(), d_model), memory, execute);
        return seconds_since(start);
    }
    double run_gathered(const ids_type& ids, tiffin::row_schedule& rows) {
        const auto start = clock_type::now();
        rows.begin(ids).or_throw();
        for (const auto& layer : gathered) {
            const tiffin::gathered_rows now = rows.next().or_throw();
            layer(tiffin::matrix_view<const float>(x.data(), ids.size(), d_model),
                  {.token_ids = ids, .gathered = {&now, 1}},
                  tiffin::matrix_view<float>(y.data(), ids.size(), d_model), memory, execute);
        }
        return seconds_since(start);
    }
};

stack& the_stack(std::size_t d, std::size_t f) {
    static stack only(d, f);
    return only;
}

void add_stack(std::size_t d, std::size_t f, std::size_t tokens) {
    const std::string sizes =
        std::to_string(d) + "x" + std::to_string(f) + "/tokens:" + std::to_string(tokens);
    benchmark::RegisterBenchmark(
        ("ratio/stack/file/over/memory/" + sizes).c_str(),
        [=](benchmark::State& state) {
            stack& it = the_stack(d, f);
            tiffin::row_schedule rows({it.stores.begin(), it.stores.end()});
            std::vector<double> ratios;
            it.run_in_memory(different_ids(tokens, stack::vocab, next_seed));
            it.run_gathered(different_ids(tokens, stack::vocab, next_seed), rows);
            for (auto _ : state) {
                const ids_type ids = different_ids(tokens, stack::vocab, ++next_seed);
                const double a = next_seed % 2 ? it.run_gathered(ids, rows) : it.run_in_memory(ids);
                const double b = next_seed % 2 ? it.run_in_memory(ids) : it.run_gathered(ids, rows);
                state.SetIterationTime(a + b);
                ratios.push_back(next_seed % 2 ? a / b : b / a);
            }
            report(state, ratios, "ratio");
        })
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(("stack/cold/" + sizes).c_str(),
                                 [=](benchmark::State& state) {
                                     stack& it = the_stack(d, f);
                                     double all = 0, waited = 0, in_memory = 0;
                                     for (auto _ : state) {
                                         it.make_cold();
                                         tiffin::row_schedule rows({it.stores.begin(), it.stores.end()});
                                         const ids_type ids =
                                             different_ids(tokens, stack::vocab, ++next_seed);
                                         const double took = it.run_gathered(ids, rows);
                                         state.SetIterationTime(took);
                                         all += took;
                                         waited += rows.waited().count();
                                         in_memory += it.run_in_memory(ids);
                                     }
                                     state.counters["waiting_share"] = waited / all;
                                     state.counters["over_memory"] = all / in_memory;
                                 })
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
}

// The ids of the text files below a folder, at least a million where there are so many.
const ids_type& text_ids() {
    static const ids_type ids = [] {
        std::string all;
        constexpr std::size_t enough = 24 << 20;
        std::vector<fs::path> paths;
        if (fs::is_regular_file(text)) paths.push_back(text);
        for (auto it = fs::recursive_directory_iterator(text, fs::directory_options::skip_permission_denied);
             it != fs::recursive_directory_iterator(); ++it)
            if (it->is_regular_file()) paths.push_back(it->path());
        std::sort(paths.begin(), paths.end());
        for (const fs::path& path : paths) {
            if (all.size() >= enough) break;
            std::ifstream file(path, std::ios::binary);
            const std::string one((std::istreambuf_iterator<char>(file)), {});
            if (!invalid_utf8_at(one)) all += one;
        }
        return vocabulary(all, 32768).encode(all);
    }();
    return ids;
}

// The share of hits that no cache of so many rows can better: what is needed again last makes room (Belady).
double best_hits(const ids_type& ids, std::size_t rows) {
    constexpr std::size_t never = ~std::size_t{0};
    std::vector<std::size_t> next(ids.size());
    std::map<std::int32_t, std::size_t> seen;
    for (std::size_t i = ids.size(); i-- > 0;) {
        const auto found = seen.find(ids[i]);
        next[i] = found == seen.end() ? never : found->second;
        seen[ids[i]] = i;
    }
    std::map<std::int32_t, std::size_t> kept;            // id, and when it is needed again
    std::set<std::pair<std::size_t, std::int32_t>> due;  // the same, by time
    std::size_t hits = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const auto found = kept.find(ids[i]);
        if (found != kept.end()) {
            ++hits;
            due.erase({found->second, ids[i]});
        } else if (kept.size() == rows) {
            const auto last = std::prev(due.end());
            if (last->first <= next[i]) continue;  // the new row is the one that is needed last
            kept.erase(last->second);
            due.erase(last);
        }
        kept[ids[i]] = next[i];
        due.insert({next[i], ids[i]});
    }
    return static_cast<double>(hits) / static_cast<double>(ids.size());
}

template <class Policy>
void add_cache(const std::string& name) {
    benchmark::RegisterBenchmark(("cache/" + name + "/rows:10%").c_str(), [](benchmark::State& state) {
        const ids_type& ids = text_ids();
        const auto rows = static_cast<std::size_t>(*std::max_element(ids.begin(), ids.end()) + 1);
        const std::vector<float> numbers(rows * 128);
        const auto store =
            tiffin::in_memory::view({numbers.data(), tiffin::dtype::f32, {rows, 128}}).or_throw();
        std::vector<std::byte> to(512 * 512);
        tiffin::cache_counts counts;
        for (auto _ : state) {
            const tiffin::cached_rows<tiffin::in_memory, Policy> cache(store, {.rows = rows / 10});
            tiffin::distinct_ids distinct;
            // Calls of one token, as in decode: nothing is found twice in one.
            for (const std::int32_t& id : ids) cache.read({&id, 1}, to.data()).or_throw();
            counts = cache.counts();
        }
        state.counters["tokens"] = static_cast<double>(ids.size());
        state.counters["rows"] = static_cast<double>(rows);
        state.counters["hit_rate"] = static_cast<double>(counts.hits) / static_cast<double>(ids.size());
        state.counters["best_possible"] = best_hits(ids, rows / 10);
        state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(ids.size()));
    })->Unit(benchmark::kMillisecond);
}

[[noreturn]] void usage_error(std::string_view flag) {
    std::fprintf(stderr,
                 "bench_tables: %.*s is not an option\n"
                 "  --folder=DIR        where table files are made and removed again (default: %s)\n"
                 "  --megabytes=N       of a table of rows (default: 1024)\n"
                 "  --text=FILE|DIR     what the ids of the cache's benchmarks are made from (default: %s)\n"
                 "  --stack=DxF         the layers of a stack (default: 2048x8192)\n"
                 "and those of Google Benchmark, see --help\n",
                 static_cast<int>(flag.size()), flag.data(), folder.c_str(), text.c_str());
    std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
    std::size_t d_model = 2048, d_ff = 8192;
    benchmark::Initialize(&argc, argv);
    watch_signals();
    for (int i = 1; i < argc; ++i) {
        const std::string_view flag = argv[i];
        if (flag.starts_with("--folder=")) {
            folder = flag.substr(9);
        } else if (flag.starts_with("--text=")) {
            text = flag.substr(7);
        } else if (flag.starts_with("--megabytes=")) {
            const auto megabytes = number_range<std::size_t>{1, 1 << 24}.read(flag.substr(12));
            if (!megabytes) usage_error(flag);
            table_megabytes = *megabytes;
        } else if (flag.starts_with("--stack=")) {
            const auto shape = read_shape(flag.substr(8), model_widths, ffn_widths);
            if (!shape) usage_error(flag);
            d_model = shape->first;
            d_ff = shape->second;
        } else {
            usage_error(flag);
        }
    }
    std::minstd_rand engine(1);
    for (std::size_t i = 0; i < noise.size(); ++i)
        noise.data()[i] = (static_cast<float>(engine()) / 2147483648.0f - 0.5f) * 0.05f;
    const auto all = ways();
    for (const std::size_t row_bytes : std::initializer_list<std::size_t>{512, 16384}) {
        for (const auto& [name, how] : all) {
            const bool memory = name == "memcpy" || name == "in_memory";
            add_gather(name, how, row_bytes, false);
            if (!memory) add_gather(name, how, row_bytes, true);
        }
        for (const char* store : {"mapped_file", "direct_file"})
            for (const char* base : {"memcpy", "in_memory"}) add_ratio(store, base, all, row_bytes, false);
        for (const char* store : {"mapped_file", "direct_file", "direct_file_around", "direct_file_ring"})
            for (const char* base : {"faults", "threads:32", "threads:64", "threads_around:32",
                                     "threads_around:64", "ring:64", "ring_around:64", "advice"})
                add_ratio(store, base, all, row_bytes, true);
    }
    for (const std::size_t tokens : std::initializer_list<std::size_t>{1, 512})
        add_stack(d_model, d_ff, tokens);
    add_cache<tiffin::least_frequently_used>("lfu");
    add_cache<tiffin::least_recently_used>("lru");
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    return 0;
}
