// A bar on a terminal; in a pipe nothing, or a line now and then.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>

#include <unistd.h>

class progress_bar {
public:
    progress_bar() = default;
    // Where there is no terminal, a line of `program` each `every`.
    progress_bar(std::string program, std::chrono::seconds every)
        : program_(std::move(program)), every_(every) {}
    progress_bar(const progress_bar&) = delete;
    progress_bar& operator=(const progress_bar&) = delete;
    ~progress_bar() { clear(); }

    // Before a line on the standard output; the next show() draws it again.
    void clear() {
        if (shown_) std::fputs("\r\033[K", stderr);
        last_ = -1;
    }

    // `done` is the share of the whole, from 0 to 1; `left` the seconds that the rest takes, below 0 where nobody
    // knows.
    void show(double done, const std::string& what, double left = -1) {
        constexpr std::size_t width = 32;
        const auto tenths = static_cast<int>(done * 1000);
        const std::string rest = left < 0 ? "" : std::to_string(static_cast<int>(left + 0.5)) + " s left  ";
        if (!shown_) {
            const auto now = std::chrono::steady_clock::now();
            if (every_.count() == 0 || now - told_ < every_) return;
            told_ = now;
            std::fprintf(stderr, "%s: %d %%  %s%s\n", program_.c_str(), tenths / 10, rest.c_str(),
                         what.c_str());
            return;
        }
        if (tenths == last_ && what == last_what_) return;
        last_ = tenths;
        last_what_ = what;
        const auto full = std::min(width, static_cast<std::size_t>(done * width));
        std::fprintf(stderr, "\r\033[K[%s%s] %3d %%  %s%s", std::string(full, '=').c_str(),
                     std::string(width - full, ' ').c_str(), tenths / 10, rest.c_str(), what.c_str());
        std::fflush(stderr);
    }

private:
    std::string program_;
    std::chrono::seconds every_{0};
    std::chrono::steady_clock::time_point told_ = std::chrono::steady_clock::now();
    bool shown_ = isatty(STDERR_FILENO) != 0;
    int last_ = -1;
    std::string last_what_;
};
