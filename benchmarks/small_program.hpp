// Programs of a few numbers by position, and the text of what they measured.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

namespace tiffin_bench {

// Runs work(number), where number(i, usual) is the i-th argument, or `usual` without it; 0 where it is no number. The status of
// the program: 1 behind an exception, whose sentence is printed.
template <class Work>
int run_program(const char* name, int argc, char** argv, const Work& work) {
    try {
        return work([&](int i, std::size_t usual) {
            return i < argc ? static_cast<std::size_t>(std::strtoul(argv[i], nullptr, 10)) : usual;
        });
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s: %s\n", name, e.what());
        return 1;
    }
}

// "median (lower to upper quartile)".
inline std::string quartiles_text(std::vector<double> values, int digits) {
    std::sort(values.begin(), values.end());
    const std::size_t n = values.size();
    char text[80];
    std::snprintf(text, sizeof text, "%.*f (%.*f to %.*f)", digits, values[n / 2], digits, values[n / 4],
                  digits, values[n * 3 / 4]);
    return text;
}

}  // namespace tiffin_bench
