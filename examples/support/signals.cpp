#include "signals.hpp"

#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace {

namespace fs = std::filesystem;

// What a handler may read: names that live as long as they stand here.
std::array<std::atomic<const char*>, 64> temporary_names{};
static_assert(std::atomic<const char*>::is_always_lock_free);

// Everything below is called in signal handlers: it calls what POSIX allows there, and allocates nothing.

// "/proc/self/fd/" and a number.
void put_name_of(int descriptor, char* to) {
    constexpr char folder[] = "/proc/self/fd/";
    std::memcpy(to, folder, sizeof folder - 1);
    to += sizeof folder - 1;
    int digits = 1;
    for (int rest = descriptor; rest >= 10; rest /= 10) ++digits;
    to[digits] = '\0';
    for (; digits > 0; descriptor /= 10) to[--digits] = static_cast<char>('0' + descriptor % 10);
}

// Removes the files tiffin.part<n> that this process is writing. Those that have no name yet go by themselves.
void remove_unfinished() {
    constexpr int most_descriptors = 1024;
    constexpr char unfinished[] = "/tiffin.part";
    char link[32], name[4096];
    for (int descriptor = 3; descriptor < most_descriptors; ++descriptor) {
        const int flags = ::fcntl(descriptor, F_GETFL);
        if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY) continue;
        put_name_of(descriptor, link);
        const ::ssize_t length = ::readlink(link, name, sizeof name - 1);
        if (length <= 0) continue;
        name[length] = '\0';
        const char* const last = std::strrchr(name, '/');
        // A deleted file reads as "... (deleted)": there is none of that name.
        if (last != nullptr && std::strncmp(last, unfinished, sizeof unfinished - 1) == 0) ::unlink(name);
    }
}
void remove_temporary() {
    for (const auto& name : temporary_names)
        if (const char* const path = name.load()) ::unlink(path);
}

void end(int signal) {
    remove_unfinished();
    remove_temporary();
    // The default again (SA_RESETHAND), so that whoever waits for the program sees what ended it.
    ::raise(signal);
}

// A page of a mapping that is not there, as its file is shorter now.
void end_cut(int) {
    remove_unfinished();
    remove_temporary();
    constexpr char words[] = "a file was cut, or its disk failed, while it was being read\n";
    static_cast<void>(!::write(STDERR_FILENO, words, sizeof words - 1));
    ::_exit(1);
}

void handle(int signal, void (*by)(int)) {
    struct ::sigaction now {};
    ::sigaction(signal, nullptr, &now);
    if (now.sa_handler == SIG_IGN) return;  // nohup, and what a shell puts into the background
    struct ::sigaction then {};
    then.sa_handler = by;
    then.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
    ::sigaction(signal, &then, nullptr);
}

}  // namespace

void watch_signals() {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGXCPU}) handle(signal, end);
    handle(SIGBUS, end_cut);
    std::signal(SIGXFSZ, SIG_IGN);
    std::signal(SIGPIPE, SIG_IGN);
}

temporary_file::temporary_file(fs::path path) : path_(std::move(path)), place_(0) {
    for (auto& name : temporary_names) {
        const char* none = nullptr;
        if (name.compare_exchange_strong(none, path_.c_str())) return;
        ++place_;
    }
    throw std::runtime_error(path_.string() + ": too many temporary files");
}
temporary_file::~temporary_file() {
    std::error_code ignored;
    fs::remove(path_, ignored);
    temporary_names[static_cast<std::size_t>(place_)].store(nullptr);
}
