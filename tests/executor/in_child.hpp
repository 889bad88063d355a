// What is to be seen in a child of fork(), which an alarm ends if it hangs.
#pragma once

#include "support/doctest.hpp"

#include <cerrno>
#include <cstddef>
#include <fstream>
#include <iostream>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tiffin_test {

// The thread sanitizer takes no threads in a child of several; it and the address sanitizer need more address
// space than a limit leaves them, and end the program where memory is short.
#if defined(__has_feature)
#    if __has_feature(thread_sanitizer)
#        define TIFFIN_TEST_THREAD_SANITIZER
#    endif
#    if __has_feature(address_sanitizer)
#        define TIFFIN_TEST_ADDRESS_SANITIZER
#    endif
#endif
#if defined(__SANITIZE_THREAD__) && !defined(TIFFIN_TEST_THREAD_SANITIZER)
#    define TIFFIN_TEST_THREAD_SANITIZER
#endif
#if defined(__SANITIZE_ADDRESS__) && !defined(TIFFIN_TEST_ADDRESS_SANITIZER)
#    define TIFFIN_TEST_ADDRESS_SANITIZER
#endif
#if defined(TIFFIN_TEST_THREAD_SANITIZER)
constexpr bool no_forks = true, no_limits = true;
#elif defined(TIFFIN_TEST_ADDRESS_SANITIZER)
constexpr bool no_forks = false, no_limits = true;
#else
constexpr bool no_forks = false, no_limits = false;
#endif

// For the names of tests: TEST_CASE("..." NOT_UNDER_TSAN).
#define NOT_UNDER_TSAN " (not under the thread sanitizer)" * doctest::skip(tiffin_test::no_forks)
#define NOT_UNDER_SANITIZERS \
    " (not under the address and thread sanitizers)" * doctest::skip(tiffin_test::no_limits)

// Whether work() is true in a child, before half a minute is over.
template <class Work>
bool holds_in_child(const Work& work) {
    std::cout.flush();  // or the child writes it again
    const ::pid_t child = ::fork();
    if (child == 0) {
        ::alarm(30);
        bool holds = false;
        try {
            holds = work();
        } catch (...) {
        }
        ::_exit(holds ? 0 : 1);
    }
    if (child < 0) return false;
    int ended = 0;
    while (::waitpid(child, &ended, 0) < 0)
        if (errno != EINTR) return false;
    return WIFEXITED(ended) && WEXITSTATUS(ended) == 0;
}

// Limits what the process may map to `more` bytes than it has. To be called in a child.
inline bool limit_memory(std::size_t more) {
    double pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    if (pages == 0) return false;
    const auto has = static_cast<::rlim_t>(pages) * static_cast<::rlim_t>(::sysconf(_SC_PAGESIZE));
    const ::rlimit limit{has + more, has + more};
    return ::setrlimit(RLIMIT_AS, &limit) == 0;
}

}  // namespace tiffin_test
