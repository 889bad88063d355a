// Detects that fork() has copied an object into a child process, where its threads do not exist.
#pragma once

#include <tiffin/config.hpp>

#include <memory>
#include <new>
#include <type_traits>

#if defined(__unix__) || defined(__APPLE__)
#    define TIFFIN_HAS_FORK 1
#    include <sys/types.h>
#    include <unistd.h>
#else
#    define TIFFIN_HAS_FORK 0
#endif
#if defined(__linux__)
#    include <sys/mman.h>
#endif

TIFFIN_BEGIN
namespace detail {

// Distinguishes the process that set the mark from its fork() children, by a page that the system zeroes in them;
// where it cannot (before Linux 4.14, elsewhere, without memory), by the process id.
// Cost: a page, and a read of it per check; with the process id, a system call per check.
class fork_mark {
public:
    fork_mark() noexcept {
#if TIFFIN_HAS_FORK && defined(MADV_WIPEONFORK)
        // Both round the length up to a page.
        void* const page = ::mmap(nullptr, 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page != MAP_FAILED && ::madvise(page, 1, MADV_WIPEONFORK) == 0)
            page_ = static_cast<volatile unsigned char*>(page);
        else if (page != MAP_FAILED)
            ::munmap(page, 1);
#endif
        set();
    }
    fork_mark(const fork_mark&) = delete;
    fork_mark& operator=(const fork_mark&) = delete;
    ~fork_mark() {
#if TIFFIN_HAS_FORK && defined(MADV_WIPEONFORK)
        if (page_ != nullptr) ::munmap(const_cast<unsigned char*>(page_), 1);
#endif
    }

    // Marks this process.
    void set() noexcept {
        if (page_ != nullptr) *page_ = 1;
#if TIFFIN_HAS_FORK
        process_ = ::getpid();
#endif
    }
    [[nodiscard]] bool here() const noexcept {
        if (page_ != nullptr) return *page_ != 0;
#if TIFFIN_HAS_FORK
        return process_ == ::getpid();
#else
        return true;
#endif
    }

private:
    volatile unsigned char* page_ = nullptr;
#if TIFFIN_HAS_FORK
    ::pid_t process_ = 0;
#endif
};

// Constructs a new object over one whose threads are in another process, without destroying that one: its destructor
// would wait for them, or act on a thread of this process that has the same handle.
template <class T>
void renew(T& object) noexcept {
    static_assert(std::is_nothrow_default_constructible_v<T>);
    ::new (static_cast<void*>(std::addressof(object))) T();
}

}  // namespace detail
TIFFIN_END
