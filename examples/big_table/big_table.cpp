// Token tables larger than the memory one wants to give them: a stack of STEM layers over a table in a file.
//
//     big_table [TEXT] --gigabytes 8
//
// makes the table, streams the ids of a text through the stack in prefill and in decode, with the rows in
// memory, mapped, read directly, and cached, then the same bytes as pools of MoRT (pools.hpp), and removes the table
// again.
#include <tiffin/executor/thread_team.hpp>
#include <tiffin/io/table_file.hpp>
#include <tiffin/table/cached_rows.hpp>
#include <tiffin/table/direct_file.hpp>
#include <tiffin/table/mapped_file.hpp>
#include <tiffin/table/row_schedule.hpp>
#include <tiffin/tiffin.hpp>

#include <CLI/CLI.hpp>

#include "../support/command_line.hpp"
#include "../support/progress_bar.hpp"
#include "../support/vocabulary.hpp"
#include "measured.hpp"
#include "pools.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <list>
#include <string>
#include <vector>

namespace {

using layer_type = tiffin::layer<tiffin::stem, tiffin::simd<tiffin::f32, tiffin::any_format>>;

// The table of all layers, one layer's rows behind the other's. Rows are made of a few hundred, shifted by
// their number, so that a table of many gigabytes takes no longer than to write it.
class made_rows {
public:
    explicit made_rows(const arguments& args)
        : shape_{args.layers * args.vocab, args.d_ff, args.type}, models_(count * shape_.row_bytes()) {
        const std::vector<float> from = numbers(count * shape_.width, 1);
        for (std::size_t i = 0; i < count; ++i)
            tiffin::encode_row(shape_, from.data() + i * shape_.width,
                               models_.data() + i * shape_.row_bytes());
    }
    [[nodiscard]] tiffin::table_shape shape() const { return shape_; }
    tiffin::status read(std::span<const std::int32_t> ids, std::byte* to) const {
        const std::size_t bytes = shape_.row_bytes();
        for (std::size_t i = 0; i < ids.size(); ++i)
            std::copy_n(models_.data() + static_cast<std::size_t>(ids[i]) * 31 % count * bytes, bytes,
                        to + i * bytes);
        return {};
    }

private:
    static constexpr std::size_t count = 251;
    tiffin::table_shape shape_;
    std::vector<std::byte> models_;
};

// What runs: the layers, x, and the ids of the text.
struct job {
    const arguments& args;
    std::vector<layer_type> layers;
    ids_type ids;
    std::vector<float> x, y;
    tiffin::workspace workspace;
    tiffin::thread_team execute;

    // One pass of the stack for tokens [first, first + count).
    void pass(std::size_t first, std::size_t count, tiffin::row_schedule& rows) {
        const std::size_t d = args.d_model;
        const std::span<const std::int32_t> now = std::span(ids).subspan(first, count);
        rows.begin(now).or_throw();
        for (const layer_type& layer : layers) {
            const tiffin::gathered_rows table = rows.next().or_throw();
            layer(std::span<const float>(x).subspan(0, count * d),
                  {.token_ids = now, .gathered = {&table, 1}}, std::span(y).subspan(0, count * d), workspace,
                  execute);
        }
    }
    line run(const std::string& name, const std::vector<tiffin::row_store_ref>& stores,
             const std::function<void(double)>& progress) {
        constexpr std::size_t batch = 512;
        line result{.name = name};
        tiffin::row_schedule rows(stores);
        auto start = clock_type::now();
        for (std::size_t first = 0; first < ids.size(); first += batch) {
            pass(first, std::min(batch, ids.size() - first), rows);
            progress(0.7 * static_cast<double>(first) / static_cast<double>(ids.size()));
        }
        double took = seconds_since(start);
        result.prefill = static_cast<double>(ids.size()) / took;
        result.waited_prefill = rows.waited().count() / took;
        const std::size_t decoded = std::min(args.decode, ids.size());
        const double before = rows.waited().count();
        start = clock_type::now();
        for (std::size_t t = 0; t < decoded; ++t) pass(t * (ids.size() / decoded), 1, rows);
        took = seconds_since(start);
        result.decode = static_cast<double>(decoded) / took;
        result.waited_decode = (rows.waited().count() - before) / took;
        result.memory = memory_use::now();
        return result;
    }
};

ids_type read_ids(const arguments& args) {
    std::string text;
    std::vector<fs::path> paths;
    if (!args.text.empty()) {
        paths.emplace_back(args.text);
    } else {
        for (const auto& entry : fs::recursive_directory_iterator(TIFFIN_SOURCE_DIR "/include"))
            if (entry.is_regular_file()) paths.push_back(entry.path());
        std::sort(paths.begin(), paths.end());
    }
    for (const fs::path& path : paths) {
        std::ifstream file(path, std::ios::binary);
        if (!file || fs::is_directory(path)) throw std::runtime_error(path.string() + ": cannot be read");
        text.append(std::istreambuf_iterator<char>(file), {});
    }
    if (const auto at = invalid_utf8_at(text))
        throw std::runtime_error(args.text + ": is not UTF-8 at byte " + std::to_string(*at));
    ids_type ids = vocabulary(text, args.vocab).encode(text);
    if (ids.empty()) throw std::runtime_error(args.text + ": holds no text");
    ids.resize(std::min(ids.size(), args.tokens));
    // Frequent words have small ids here: spread them, as a tokenizer's are.
    for (std::int32_t& id : ids)
        id = static_cast<std::int32_t>(static_cast<std::uint64_t>(id) * 2654435761u % args.vocab);
    return ids;
}

void print(const std::vector<line>& lines) {
    std::printf("%-28s %10s %10s %10s %10s %8s %9s %9s\n", "", "prefill", "decode", "waiting", "waiting",
                "hits", "memory", "mapped");
    std::printf("%-28s %10s %10s %10s %10s %8s %9s %9s\n", "rows", "tokens/s", "tokens/s", "prefill",
                "decode", "", "MiB", "MiB");
    for (const line& l : lines) {
        std::printf("%-28s %10.1f %10.1f %8.1f %% %8.1f %%", l.name.c_str(), l.prefill, l.decode,
                    100 * l.waited_prefill, 100 * l.waited_decode);
        if (l.hits >= 0)
            std::printf(" %6.1f %%", 100 * l.hits);
        else
            std::printf(" %8s", "-");
        std::printf(" %9.0f %9.0f\n", l.memory.own / (1 << 20), l.memory.mapped / (1 << 20));
    }
}

void run(arguments& args) {
    using namespace tiffin;
    const table_shape one_layer{args.vocab, args.d_ff, args.type};
    const fs::path path = fs::path(args.folder) / "big_table.safetensors";
    // A link, too, whatever it names.
    if (fs::exists(fs::symlink_status(path)))
        throw std::runtime_error(path.string() + ": is there already, and is not replaced");
    const temporary_file removed_at_the_end(path);
    progress_bar bar;
    {
        const made_rows rows(args);
        io::safetensors_writer writer;
        io::add_table(writer, "stem_embeddings", rows, [&](std::size_t done, std::size_t all) {
            bar.show(0.3 * static_cast<double>(done) / static_cast<double>(all), "writing " + path.string());
        });
        writer.write(path).or_throw();
    }
    const table_location all = io::find_table(path, "stem_embeddings").or_throw();
    std::vector<table_location> tables;
    for (std::size_t layer = 0; layer < args.layers; ++layer)
        tables.push_back(all.rows(layer * args.vocab, args.vocab).or_throw());

    const std::size_t d = args.d_model, f = args.d_ff;
    job j{.args = args,
          .layers = {},
          .ids = read_ids(args),
          .x = {},
          .y = {},
          .workspace = {},
          .execute = thread_team(args.threads)};
    j.x = numbers(512 * d, 1);
    j.y.resize(512 * d);
    {
        const std::vector<float> gate = numbers(f * d, 0.05f), down = numbers(d * f, 0.05f);
        weights given;
        given.add("gate_proj.weight", gate.data(), {f, d}).add("down_proj.weight", down.data(), {d, f});
        given.add_gathered("stem_embed.weight", args.type, {args.vocab, f});
        for (std::size_t layer = 0; layer < args.layers; ++layer)
            j.layers.push_back(prepare<stem>(given, simd<f32, any_format>{{}, {args.type}}, {.tokens = 0}));
    }
    j.workspace = j.layers[0].make_workspace(512, j.execute.concurrency());

    std::vector<line> lines;
    constexpr double runs = 7;
    const auto measure = [&](const std::string& name, const std::vector<row_store_ref>& stores) -> line& {
        lines.push_back(j.run(name, stores, [&](double done) {
            bar.show(0.3 + 0.6 * (static_cast<double>(lines.size()) + done) / runs, name);
        }));
        return lines.back();
    };
    const auto measure_files = [&](const std::string& name, const auto& open, bool warm) {
        drop_cache(path);
        using store = std::remove_cvref_t<decltype(open(tables[0]).or_throw())>;
        std::list<store> stores;
        for (const table_location& table : tables) stores.push_back(open(table).or_throw());
        measure(name + (warm ? ", cold" : ""), {stores.begin(), stores.end()});
        if (warm) measure(name + ", warm", {stores.begin(), stores.end()});
    };
    const double table_bytes = static_cast<double>(all.end() - all.offset);
    const double memory =
        static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
    if (table_bytes < 0.5 * memory) {
        std::vector<std::byte> held(all.shape.rows * all.shape.row_bytes());
        io::open_file::open(path)
            .or_throw()
            .read(all.offset, held.data(), held.size(), held.size())
            .or_throw();
        std::list<in_memory> stores;
        for (std::size_t layer = 0; layer < args.layers; ++layer)
            stores.push_back(
                in_memory::view(
                    {held.data() + layer * args.vocab * one_layer.row_bytes(), args.type, {args.vocab, f}})
                    .or_throw());
        measure("in memory", {stores.begin(), stores.end()});
    }
    measure_files(
        "mapped", [](const auto& table) { return mapped_file::open(table); }, true);
    measure_files(
        "direct", [](const auto& table) { return direct_file<>::open(table); }, true);
    const auto around = [](const auto& table) { return direct_file<>::open(table, file_cache::passed_by); };
    // Not every file system reads around its cache.
    if (const auto can = around(tables[0]); !can) {
        std::fprintf(stderr, "left out: %s\n", can.failure().message().c_str());
    } else {
        measure_files("direct, around the cache", around, false);
        std::list<direct_file<>> stores;
        std::list<cached_rows<direct_file<>>> caches;
        const auto rows =
            static_cast<std::size_t>(args.cache_percent / 100 * static_cast<double>(args.vocab));
        for (const table_location& table : tables) {
            stores.push_back(around(table).or_throw());
            caches.emplace_back(stores.back(), cache_limit{.rows = std::max<std::size_t>(rows, 1)});
        }
        line& l = measure("the same, cached", {caches.begin(), caches.end()});
        cache_counts sum;
        for (const auto& cache : caches) {
            sum.hits += cache.counts().hits;
            sum.misses += cache.counts().misses;
        }
        l.hits = static_cast<double>(sum.hits) / static_cast<double>(sum.hits + sum.misses);
    }
    // The same bytes as pools of MoRT, read around the cache where that can be had.
    std::vector<line> pool_lines;
    double row_bytes = 0;
    if (pool_stack::experts_of(args) >= pool_stack::top_k) {
        std::vector<table_location> pools;
        for (const table_location& table : tables) pools.push_back(pool_stack::pool_of(table, args));
        const file_cache cache = around(tables[0]).ok() ? file_cache::passed_by : file_cache::used;
        pool_stack stack(args, j.ids, j.x, j.execute);
        for (const std::size_t delay : {0u, 1u, 2u}) {
            if (delay >= args.layers) break;
            drop_cache(path);
            pool_lines.push_back(stack.run(pools, cache, delay, row_bytes, [&](double done) {
                bar.show(0.9 + 0.1 * (static_cast<double>(delay) + done) / 3, "pools");
            }));
        }
    }
    bar.show(1, "");
    std::printf("STEM %zux%zu, %zu layers, f32; tables %s, %zu rows a layer, %.2f GiB in %s\n", d, f,
                args.layers, std::string(name_of(args.type)).c_str(), args.vocab, table_bytes / (1 << 30),
                path.c_str());
    const std::size_t distinct = [&] {
        distinct_ids seen;
        seen.assign(j.ids);
        return seen.ids().size();
    }();
    std::printf(
        "%zu tokens of text, %zu different; prefill 512 at a time, decode one by one; %zu threads\n\n",
        j.ids.size(), distinct, j.execute.concurrency());
    print(lines);
    if (pool_lines.empty()) return;
    std::printf(
        "\nMoRT beside an MLP %zux%zu, 2 of %zu tables, routes first: %.0f bytes per token and layer in "
        "decode\n\n",
        d, f, pool_stack::experts_of(args), row_bytes);
    print(pool_lines);
}

// What is wrong with the arguments, or nothing.
std::string complete(arguments& args) {
    const auto given = read_shape(args.shape, model_widths, ffn_widths);
    if (!given)
        return "--shape " + args.shape + ": is not DxF such as 1024x4096, with D " + model_widths.text() +
               " and F " + ffn_widths.text();
    args.d_model = given->first;
    args.d_ff = given->second;
    bool known = false;
    for (const tiffin::dtype type : {tiffin::dtype::f32, tiffin::dtype::bf16, tiffin::dtype::f16,
                                     tiffin::dtype::q8_0, tiffin::dtype::q4_0}) {
        std::string name(tiffin::name_of(type));
        std::transform(name.begin(), name.end(), name.begin(),
                       [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
        if (args.format == name) {
            args.type = type;
            known = true;
        }
    }
    if (!known) return "--tables " + args.format + ": is none of f32, bf16, f16, q8_0, q4_0";
    if (args.d_ff % tiffin::block_of(args.type) != 0)
        return "--shape " + args.shape + ": " + args.format + " needs a width that is a multiple of " +
               std::to_string(tiffin::block_of(args.type));
    const double row = static_cast<double>(tiffin::bytes_of(args.type, args.d_ff) * args.layers);
    args.vocab = static_cast<std::size_t>(args.gigabytes * (1 << 30) / row);
    if (args.vocab < 256 || args.vocab > (std::size_t{1} << 30))
        return "--gigabytes " + std::to_string(args.gigabytes) + ": makes " + std::to_string(args.vocab) +
               " rows a layer of " + std::to_string(row / static_cast<double>(args.layers)) +
               " bytes; 256 to 2^30 can be had";
    return {};
}

}  // namespace

int main(int argc, char** argv) {
    arguments args;
    CLI::App app(
        "Streams the ids of a text through a stack of STEM layers whose tables lie in a file that is made "
        "for\n"
        "it: in memory, mapped, read directly and cached, cold and warm.");
    app.add_option("TEXT", args.text, "UTF-8 text (default: the project's own headers)");
    app.add_option("--gigabytes", args.gigabytes, "Of the tables of all layers")
        ->check(in_range(1e-6, 1e6))
        ->capture_default_str();
    app.add_option("--layers", args.layers, "In the stack")
        ->check(in_range<std::size_t>(1, 1000))
        ->capture_default_str();
    app.add_option("--shape", args.shape, "DxF")->capture_default_str();
    app.add_option("--tables", args.format, "f32, bf16, f16, q8_0 or q4_0")->capture_default_str();
    app.add_option("--tokens", args.tokens, "Of the text, from its beginning")
        ->check(in_range<std::size_t>(1, 1 << 24))
        ->capture_default_str();
    app.add_option("--decode", args.decode, "Of these, token by token")
        ->check(in_range<std::size_t>(1, 1 << 20))
        ->capture_default_str();
    app.add_option("--cache-percent", args.cache_percent, "Rows that the cache may keep")
        ->check(in_range(0.0, 100.0))
        ->capture_default_str();
    app.add_option("--folder", args.folder, "Where the table is made, and removed again")
        ->capture_default_str();
    app.add_option("--threads", args.threads, "Threads (default: all)")->check(in_range(thread_counts));
    return run_command_line(app, "big_table", argc, argv, [&] {
        if (std::string wrong = complete(args); !wrong.empty()) return wrong;
        run(args);
        return std::string();
    });
}
