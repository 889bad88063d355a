// A bar on a terminal, nothing in a pipe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>

#include <unistd.h>

class progress_bar {
public:
    progress_bar() : shown_(isatty(STDERR_FILENO) != 0) {}
    progress_bar(const progress_bar&) = delete;
    progress_bar& operator=(const progress_bar&) = delete;
    ~progress_bar() { clear(); }

    // Before a line on the standard output; the next show() draws it again.
    void clear() {
        if (shown_) std::fputs("\r\033[K", stderr);
        last_ = -1;
    }

    // `done` is the share of the whole, from 0 to 1.
    void show(double done, const std::string& what) {
        constexpr std::size_t width = 32;
        const auto tenths = static_cast<int>(done * 1000);
        if (!shown_ || (tenths == last_ && what == last_what_)) return;
        last_ = tenths;
        last_what_ = what;
        const auto full = std::min(width, static_cast<std::size_t>(done * width));
        std::fprintf(stderr, "\r\033[K[%s%s] %3d %%  %s", std::string(full, '=').c_str(),
                     std::string(width - full, ' ').c_str(), tenths / 10, what.c_str());
        std::fflush(stderr);
    }

private:
    bool shown_;
    int last_ = -1;
    std::string last_what_;
};
