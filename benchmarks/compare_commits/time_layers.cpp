// Times the layers of two libraries of layers against each other, call by call in turns.
#include <tiffin/executor/thread_team.hpp>

#include "../../examples/support/number_range.hpp"
#include "layer_library.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace {

using namespace tiffin_compare;

struct arguments {
    std::array<std::string, 2> libraries;
    double seconds = 0.6;
    double limit = 1.02;
    std::size_t threads = std::max(1u, std::thread::hardware_concurrency());
    std::vector<std::size_t> tokens{1, 4, 16, 64, 512};
    std::vector<std::string> layers;  // none: all
};

// A case is measured in rounds, each with layers made anew, base's first and head's first in turn: which
// memory a layer gets changes its time by some hundredths.
constexpr std::size_t rounds = 4;
constexpr std::size_t fewest_pairs = 8;  // a round
// A case above the limit is measured again with so many times the rounds, and then once more.
constexpr std::array<std::size_t, 2> again{2, 4};

[[noreturn]] void give_up(const std::string& what) {
    std::fprintf(stderr, "time_layers: %s\n", what.c_str());
    std::exit(2);
}

// For the whole of the program.
const layer_library& load(const std::string& path) {
    void* const opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (opened == nullptr) give_up(dlerror());
    void* const found = dlsym(opened, "tiffin_layer_library");
    if (found == nullptr) give_up(path + ": no library of layers");
    return *reinterpret_cast<layer_library_function>(found)();
}

// What both libraries are given.
struct inputs {
    std::vector<float> x = random_rows(widest_d_model, 1);
    std::vector<float> per_layer_input = random_rows(memory_width, 2);
    std::vector<std::int32_t> token_ids;

    inputs() {
        std::minstd_rand random(3);
        for (std::size_t i = 0; i < most_tokens; ++i)
            token_ids.push_back(static_cast<std::int32_t>(random() % vocab));
    }

private:
    static std::vector<float> random_rows(std::size_t width, unsigned seed) {
        std::minstd_rand random(seed);
        std::uniform_real_distribution<float> numbers(-1, 1);
        std::vector<float> rows(most_tokens * width);
        for (float& number : rows) number = numbers(random);
        return rows;
    }
};

// A layer of both commits.
class layer_pair {
public:
    // `first`: whose sets are made first, as where they come to lie may favour one.
    layer_pair(const std::array<const layer_library*, 2>& libraries, std::size_t layer, std::size_t first)
        : d_model(libraries[0]->d_model(layer)), libraries_(libraries) {
        for (std::size_t i = 0; i < 2; ++i) made_[i] = libraries_[i]->begin(layer);
        if (made_[0] == nullptr || made_[1] == nullptr) std::exit(2);
        for (std::size_t set = 0; set < sets; ++set)
            for (const std::size_t i : {first, 1 - first})
                if (!libraries_[i]->make_set(made_[i], set)) std::exit(2);
    }
    layer_pair(const layer_pair&) = delete;
    layer_pair& operator=(const layer_pair&) = delete;
    ~layer_pair() {
        for (std::size_t i = 0; i < 2; ++i) libraries_[i]->end(made_[i]);
    }

    const std::size_t d_model;

    // How many microseconds a call of one of the two takes.
    double microseconds(std::size_t which, std::size_t set, const layer_call& call) const {
        const double start = now(call);
        if (!libraries_[which]->run(made_[which], set, &call)) std::exit(2);
        return now(call) - start;
    }

private:
    // Of a call on one thread the time is what the thread has of a core: other programs' turns do not count.
    static double now(const layer_call& call) {
        timespec time{};
        clock_gettime(call.execute->threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
        return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
    }

    std::array<const layer_library*, 2> libraries_;
    std::array<void*, 2> made_{};
};

// How long the program's threads have waited for a core that another program had, in nanoseconds.
class waiting_time {
public:
    waiting_time() {
        std::error_code none;
        for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", none))
            if (const int file = open((thread.path() / "schedstat").c_str(), O_RDONLY); file >= 0)
                files_.push_back(file);
    }
    waiting_time(const waiting_time&) = delete;
    waiting_time& operator=(const waiting_time&) = delete;
    ~waiting_time() {
        for (const int file : files_) close(file);
    }
    // 0 where the system does not tell.
    [[nodiscard]] double now() const {
        double all = 0;
        for (const int file : files_) {
            std::array<char, 128> text{};
            if (pread(file, text.data(), text.size() - 1, 0) <= 0) continue;
            char* rest = nullptr;
            std::strtoull(text.data(), &rest, 10);  // the time on a core
            all += static_cast<double>(std::strtoull(rest, nullptr, 10));
        }
        return all;
    }

private:
    std::vector<int> files_;
};

struct call_pair {
    std::array<double, 2> microseconds;

    [[nodiscard]] double ratio() const { return microseconds[1] / microseconds[0]; }
};

// The pairs of calls of one layer with one number of tokens.
struct timed_case {
    std::size_t tokens;
    const executor* execute;
    std::vector<call_pair> quiet;
    std::size_t disturbed = 0;  // pairs in which a thread has waited for a core
    bool same_y = true;

    timed_case(std::size_t count, const executor& threads) : tokens(count), execute(&threads) {}

    void begin_anew(const executor& threads) {
        execute = &threads;
        quiet.clear();
        disturbed = 0;
    }
    [[nodiscard]] bool is_quiet() const { return quiet.size() >= fewest_pairs && quiet.size() >= disturbed; }

    void measure(const layer_pair& layer, const inputs& in, const waiting_time& waiting, double seconds) {
        using clock = std::chrono::steady_clock;
        std::array<std::vector<float>, 2> y;
        std::array<layer_call, 2> calls;
        for (std::size_t i = 0; i < 2; ++i) {
            y[i].resize(tokens * layer.d_model);
            calls[i] = {in.x.data(), in.per_layer_input.data(), in.token_ids.data(), tokens, y[i].data(),
                        execute};
        }
        for (std::size_t set = 0; set < sets; ++set) {
            for (std::size_t i = 0; i < 2; ++i) layer.microseconds(i, set, calls[i]);
            same_y = same_y && std::memcmp(y[0].data(), y[1].data(), y[0].size() * sizeof(float)) == 0;
        }
        double quiet_time = 0;
        std::size_t quiet_pairs = 0, pairs = 0;
        const clock::time_point start = clock::now();
        const auto took = [&] { return std::chrono::duration<double>(clock::now() - start).count(); };
        // On a machine that is never quiet, twice as long as on one that always is.
        while ((quiet_time < seconds || quiet_pairs < fewest_pairs) &&
               (took() < 2 * seconds || pairs < fewest_pairs)) {
            // Who goes first changes, as the second finds x in the cache.
            call_pair pair{};
            const double waited = waiting.now();
            for (const std::size_t i : {pairs % 2, 1 - pairs % 2})
                pair.microseconds[i] = layer.microseconds(i, pairs % sets, calls[i]);
            const double both = pair.microseconds[0] + pair.microseconds[1];
            if (execute->threads == 1 || waiting.now() - waited < 10 * both) {  // a hundredth of it
                quiet.push_back(pair);
                quiet_time += 1e-6 * both;
                ++quiet_pairs;
            } else {
                ++disturbed;
            }
            ++pairs;
        }
    }
};

double quantile(std::vector<double> numbers, double part) {
    const double last = static_cast<double>(numbers.size() - 1);
    const std::ptrdiff_t at = std::lround(std::clamp(part, 0.0, 1.0) * last);
    std::nth_element(numbers.begin(), numbers.begin() + at, numbers.end());
    return numbers[static_cast<std::size_t>(at)];
}

// What is said of a case, by its quiet pairs.
struct summary {
    std::array<double, 2> microseconds{};
    double ratio, lower_quartile, upper_quartile;
    double uncertainty;  // half of the interval that holds the median of ever more pairs with 95 %

    explicit summary(const timed_case& one) {
        std::vector<double> numbers(one.quiet.size());
        for (std::size_t i = 0; i < 2; ++i) {
            std::ranges::transform(one.quiet, numbers.begin(),
                                   [&](const call_pair& p) { return p.microseconds[i]; });
            microseconds[i] = quantile(numbers, 0.5);
        }
        std::ranges::transform(one.quiet, numbers.begin(), &call_pair::ratio);
        ratio = quantile(numbers, 0.5);
        lower_quartile = quantile(numbers, 0.25);
        upper_quartile = quantile(numbers, 0.75);
        // Of n pairs about n / 2 +- sqrt(n) / 2 lie below the median.
        const double part = 0.98 / std::sqrt(static_cast<double>(numbers.size()));
        uncertainty = (quantile(numbers, 0.5 + part) - quantile(numbers, 0.5 - part)) / 2;
    }
};

// Where someone is watching: what is being measured.
void show_progress(const std::string& text) {
    if (isatty(STDERR_FILENO) != 0) std::fprintf(stderr, "\r\033[K%s", text.c_str());
}

std::vector<timed_case> time_layer(const std::array<const layer_library*, 2>& libraries, std::size_t layer,
                                   const arguments& args, const inputs& in, const executor& team,
                                   const executor& alone) {
    const waiting_time waiting;
    std::vector<timed_case> cases;
    for (const std::size_t tokens : args.tokens) cases.emplace_back(tokens, team);
    const auto measure = [&](std::size_t count, const std::vector<timed_case*>& due) {
        for (std::size_t round = 0; round < count && !due.empty(); ++round) {
            show_progress(libraries[0]->name(layer) + std::string(", round ") + std::to_string(round + 1) +
                          " of " + std::to_string(count));
            const layer_pair pair(libraries, layer, round % 2);
            for (timed_case* const one : due)
                one->measure(pair, in, waiting, args.seconds / static_cast<double>(rounds));
        }
    };
    const auto those = [&](const auto& is_due) {
        std::vector<timed_case*> due;
        for (timed_case& one : cases)
            if (is_due(one)) due.push_back(&one);
        return due;
    };
    // Where other programs have the cores, cases are measured on one thread instead.
    const auto settle = [&] {
        const std::vector<timed_case*> noisy = those([](const timed_case& one) { return !one.is_quiet(); });
        for (timed_case* const one : noisy) one->begin_anew(alone);
        measure(rounds, noisy);
    };
    measure(rounds, those([](const timed_case&) { return true; }));
    settle();
    for (const std::size_t times : again) {
        const auto above = [&](const timed_case& one) { return summary(one).ratio > args.limit; };
        measure(times * rounds, those(above));
        settle();
    }
    show_progress("");
    return cases;
}

[[noreturn]] void usage_error(const std::string& what) {
    give_up(what +
            "\nusage: time_layers BASE_LIBRARY HEAD_LIBRARY [--seconds=S] [--limit=R] [--threads=N]\n"
            "                   [--tokens=N,N,...] [--layers=NAME;NAME;...]");
}

template <class T>
T number_in(const number_range<T>& range, const std::string& flag, const std::string& value) {
    const auto number = range.read(value);
    if (!number) usage_error(flag + ": " + range.wrong(value));
    return *number;
}

std::vector<std::string> split(const std::string& text, char at) {
    std::vector<std::string> parts(1);
    for (const char c : text) {
        if (c == at)
            parts.emplace_back();
        else
            parts.back() += c;
    }
    return parts;
}

arguments parse(int argc, char** argv) {
    arguments args;
    std::size_t libraries = 0;
    for (int i = 1; i < argc; ++i) {
        const std::string text = argv[i];
        const std::size_t equals = text.find('=');
        const std::string flag = text.substr(0, equals);
        const std::string value = equals == std::string::npos ? "" : text.substr(equals + 1);
        if (flag == "--seconds") {
            args.seconds = number_in<double>({1e-6, 3600}, flag, value);
        } else if (flag == "--limit") {
            args.limit = number_in<double>({1e-6, 1e6}, flag, value);
        } else if (flag == "--threads") {
            args.threads = number_in(thread_counts, flag, value);
        } else if (flag == "--tokens") {
            args.tokens.clear();
            for (const std::string& number : split(value, ','))
                args.tokens.push_back(number_in<std::size_t>({1, most_tokens}, flag, number));
        } else if (flag == "--layers") {
            args.layers = split(value, ';');
        } else if (text.starts_with("--") || libraries == 2) {
            usage_error("cannot understand " + text);
        } else {
            args.libraries[libraries++] = text;
        }
    }
    if (libraries != 2) usage_error("two libraries are needed");
    return args;
}

// The numbers of the layers asked for.
std::vector<std::size_t> chosen(const layer_library& library, const std::vector<std::string>& names) {
    std::vector<std::size_t> numbers;
    std::string all;
    for (std::size_t i = 0; i < library.layers(); ++i) {
        const std::string name = library.name(i);
        all += (i ? "; " : "") + name;
        if (names.empty() || std::ranges::find(names, name) != names.end()) numbers.push_back(i);
    }
    if (!names.empty() && numbers.size() != names.size()) usage_error("--layers: there are " + all);
    return numbers;
}

}  // namespace

int main(int argc, char** argv) {
    const arguments args = parse(argc, argv);
    const std::array<const layer_library*, 2> libraries{&load(args.libraries[0]), &load(args.libraries[1])};
    if (libraries[0] == libraries[1]) give_up(args.libraries[1] + ": the same library twice; copy it");
    const std::vector<std::size_t> layers = chosen(*libraries[0], args.layers);
    tiffin::thread_team team(args.threads);
    const executor together{
        &team, args.threads,
        [](void* threads, std::size_t n, void (*task)(const void*, std::size_t), const void* object) {
            const auto run = [&](std::size_t i) { task(object, i); };
            (*static_cast<tiffin::thread_team*>(threads))(n, tiffin::task_ref(run));
        }};
    const executor alone{
        nullptr, 1, [](void*, std::size_t n, void (*task)(const void*, std::size_t), const void* object) {
            for (std::size_t i = 0; i < n; ++i) task(object, i);
        }};
    const inputs in;
    std::printf("base %s, head %s; medians, [quartiles] of head / base\n", libraries[0]->commit,
                libraries[1]->commit);
    std::printf("%-30s %6s %7s %6s %10s %10s %9s\n", "layer", "tokens", "threads", "pairs", "base us",
                "head us", "head/base");
    std::string worst_case;
    double worst = 0, best = 1e9;
    std::size_t cases = 0, above = 0, on_one_thread = 0, different = 0;
    for (const std::size_t layer : layers) {
        const std::string name = libraries[0]->name(layer);
        for (const timed_case& one : time_layer(libraries, layer, args, in, together, alone)) {
            const summary s(one);
            std::printf("%-30s %6zu %7zu %6zu %10.1f %10.1f %9.3f +-%.3f [%.3f, %.3f]%s%s\n", name.c_str(),
                        one.tokens, one.execute->threads, one.quiet.size(), s.microseconds[0],
                        s.microseconds[1], s.ratio, s.uncertainty, s.lower_quartile, s.upper_quartile,
                        s.ratio > args.limit ? "  above the limit" : "", one.same_y ? "" : "  y differs");
            std::fflush(stdout);
            ++cases;
            above += s.ratio > args.limit;
            on_one_thread += one.execute->threads < args.threads;
            different += !one.same_y;
            best = std::min(best, s.ratio);
            if (s.ratio > worst) {
                worst = s.ratio;
                worst_case = name + " at " + std::to_string(one.tokens) + " tokens";
            }
        }
    }
    if (different > 0)
        std::printf("y differs in %zu cases: a matter of --bits, and no failure here\n", different);
    if (on_one_thread > 0)
        std::printf("%zu of %zu cases were timed on one thread, as other programs had the cores\n",
                    on_one_thread, cases);
    std::printf("medians of head / base from %.3f to %.3f; worst: %s; %zu above the limit of %.3f\n", best,
                worst, worst_case.c_str(), above, args.limit);
    return above > 0 ? 1 : 0;
}
