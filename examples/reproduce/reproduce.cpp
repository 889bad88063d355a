// The claims of the papers in miniature: trains what each needs, once, and writes tables and curves.
//
//     reproduce                       all claims, an hour each at most on two cores; stop and go on at any time
//     reproduce --claim 2 --out tried
#include <tiffin/executor/thread_team.hpp>

#include <CLI/CLI.hpp>

#include "../support/command_line.hpp"
#include "../support/output.hpp"
#include "../support/progress_bar.hpp"
#include "../train/corpus.hpp"
#include "claims.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <set>
#include <stdexcept>
#include <thread>

namespace {

namespace fs = std::filesystem;

struct arguments {
    std::vector<int> claims;
    fs::path out = "claims";
    std::string scale = "hour";
    std::vector<fs::path> text;
    std::size_t steps = 0;  // 0: those of the scale
    std::size_t seeds = 3, threads = std::max(1u, std::thread::hardware_concurrency());
    std::string commit, command;
};

// hour, quarter: each claim in that part of an hour at most on two cores. minute: to see that the program works; its
// answers mean little.
run_options base_of(const std::string& scale) {
    run_options o = preset_of(scale == "hour" ? "small" : "smoke");
    if (scale == "minute") {
        o.d_model = 48;
        o.d_ff = 96;
        o.heads = 2;
        o.kv_heads = 1;
        o.layers = 3;
        o.context = 32;
        o.steps = 24;
        o.vocabulary = 640;
        o.experts = 4;
        o.bank = 4;
        o.rank = 4;
        o.d_mem = 16;
        return o;
    }
    if (scale != "hour" && scale != "quarter")
        throw std::invalid_argument("--scale " + scale + "; known are minute, quarter and hour");
    o.layers = 6;
    if (scale == "hour")
        o.steps = 1000;
    else
        o.vocabulary = 1024;
    return o;
}

std::string joined(const std::vector<std::string>& cells, const char* between) {
    std::string line;
    for (const std::string& cell : cells) line += (line.empty() ? "" : between) + cell;
    return line;
}

// claim.<n>.<name>.md: question, table, remarks; .csv: its curves.
void write_answer(const claim& of, const claim_table& table, const arguments& args, double seconds) {
    const std::string name = "claim." + std::to_string(of.number) + "." + of.name;
    std::string page = "## " + std::to_string(of.number) + ". " + of.question + "\n\n" + of.source + ".\n\n";
    page += "| " + joined(table.columns, " | ") + " |\n|" + std::string(4 * table.columns.size() - 1, '-') +
            "|\n";
    for (std::size_t i = 1, at = page.rfind("|---"); i < table.columns.size(); ++i) page[at + 4 * i] = '|';
    for (const auto& row : table.rows) page += "| " + joined(row, " | ") + " |\n";
    for (const std::string& remark : table.remarks) page += "\n" + remark + "\n";
    char time[64];
    std::snprintf(time, sizeof time, "%.0f minutes in the last run", seconds / 60);
    page += "\nCommit " + args.commit + ", `" + args.command + "`; " + time + ".\n";
    std::fputs(("\n" + page).c_str(), stdout);
    std::fflush(stdout);
    write_text(args.out / (name + ".md"), page);
    std::string csv = "curve,\"" + table.x_axis + "\",\"" + table.y_axis + "\",deviation," +
                      (table.x_is_logarithmic ? "logarithmic" : "linear") + "\n";
    for (const auto& curve : table.curves)
        for (const auto& p : curve.points)
            csv += "\"" + curve.name + "\"," + text_of(p.x, 3) + "," + text_of(p.y, 6) + "," +
                   text_of(p.spread, 6) + ",\n";
    if (!table.curves.empty()) write_text(args.out / (name + ".csv"), csv);
}

lab_text read_text(const arguments& args, const run_options& base) {
    std::vector<fs::path> from = args.text;
    // Of this project only where the answers mean little anyway: its text changes with every commit.
    if (from.empty() && args.scale != "minute") from = usual_places();
    if (from.empty())
        for (const char* part : {"docs", "include", "README.md"})
            from.push_back(fs::path(TIFFIN_SOURCE_DIR) / part);
    progress_bar bar;
    corpus read = read_corpus(from, [&](std::size_t done, std::size_t of) {
        bar.show(static_cast<double>(done) / static_cast<double>(of), "reading");
    });
    bar.clear();
    const std::size_t bytes = read.counts.bytes;
    split_corpus parts = split(std::move(read.documents), 0.05);
    // What is looked at of the held-out text is its beginning: of no one folder.
    std::sort(parts.held_out.begin(), parts.held_out.end(),
              [](const document& a, const document& b) { return fnv1a(a.text) < fnv1a(b.text); });
    std::vector<std::string_view> views;
    for (const document& d : parts.learnt) views.push_back(d.text);
    lab_text made{byte_pairs::learn(views, base.vocabulary), {}, {}};
    const auto encode = [&](const std::vector<document>& some, std::vector<std::int32_t>& to) {
        for (const document& d : some) {
            const auto ids = made.tokenizer.encode(d.text);
            to.insert(to.end(), ids.begin(), ids.end());
            to.push_back(made.tokenizer.end());
        }
    };
    encode(parts.learnt, made.learnt);
    encode(parts.held_out, made.held_out);
    std::printf("text: %zu documents, %.1f MB, %zu tokens to learn from, %zu held out\n",
                parts.learnt.size() + parts.held_out.size(), static_cast<double>(bytes) / 1e6,
                made.learnt.size(), made.held_out.size());
    if (const std::size_t batch = base.batch * base.context; made.held_out.size() <= batch)
        throw std::invalid_argument("the held-out text has " + std::to_string(made.held_out.size()) +
                                    " tokens; a batch and the token behind it take " +
                                    std::to_string(batch + 1) + ": give more text");
    return made;
}

void reproduce(const arguments& args) {
    for (const int number : args.claims)
        if (std::none_of(claims().begin(), claims().end(),
                         [&](const claim& c) { return c.number == number; }))
            throw std::invalid_argument("--claim " + std::to_string(number) + ": there are 1 to " +
                                        std::to_string(claims().back().number));
    run_options base = base_of(args.scale);
    if (args.steps != 0) base.steps = args.steps;
    fs::create_directories(args.out);
    tiffin::thread_team team(args.threads);
    lab in(args.out, base, args.seeds, args.scale == "minute" ? 2048 : 65536, read_text(args, base), team);
    stop_when_asked();
    std::string unanswered;
    for (const claim& one : claims()) {
        if (!args.claims.empty() &&
            std::find(args.claims.begin(), args.claims.end(), one.number) == args.claims.end())
            continue;
        std::printf("\n%d. %s\n", one.number, one.question);
        const auto begin = std::chrono::steady_clock::now();
        try {
            const claim_table table = one.answer(in);
            write_answer(one, table, args,
                         std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
        } catch (const stopped&) {
            std::puts("stopped; the same command goes on from here");
            return;
        } catch (const std::runtime_error& e) {  // a run that diverges ends its claims, not the others
            std::printf("%d. %s: not answered: %s\n", one.number, one.name, e.what());
            unanswered += (unanswered.empty() ? "" : ", ") + std::to_string(one.number);
        }
    }
    if (!unanswered.empty()) throw std::runtime_error("claims not answered: " + unanswered);
}

}  // namespace

int main(int argc, char** argv) {
    arguments args;
    std::string list;
    for (const claim& one : claims()) list += "\n  " + std::to_string(one.number) + "  " + one.question;
    CLI::App app("Puts the papers' claims to small models, trained here. Claims:" + list);
    app.add_option("--claim", args.claims, "numbers of claims; default: all")
        ->check(in_range<int>(1, static_cast<int>(claims().size())));
    app.add_option("--out", args.out, "folder of tables, curves and runs; what is there is not trained again")
        ->capture_default_str();
    app.add_option("--scale", args.scale,
                   "hour, quarter: of each claim at most on two cores; minute: to see that the program works")
        ->capture_default_str();
    app.add_option("--steps", args.steps,
                   "steps of a run; default: those of the scale, 1000 of an hour, 300 of a quarter")
        ->check(in_range<std::size_t>(1, 1'000'000'000));
    app.add_option("--text", args.text, "files and folders; default: what documents this machine has");
    app.add_option("--seeds", args.seeds, "runs of each variant")
        ->capture_default_str()
        ->check(in_range<std::size_t>(1, 1000));
    app.add_option("--threads", args.threads, "threads")
        ->capture_default_str()
        ->check(in_range(thread_counts));
    app.add_option("--commit", args.commit, "told in the tables")->default_str("unknown");
    for (int i = 0; i < argc; ++i)
        args.command += (i != 0 ? " " : "") + std::string(i != 0 ? argv[i] : "reproduce");
    return run_command_line(app, "reproduce", argc, argv, [&]() -> std::string {
        if (args.commit.empty()) args.commit = "unknown";
        reproduce(args);
        return {};
    });
}
