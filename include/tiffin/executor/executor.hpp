// Executors, which run the tasks of a call. Threads belong to the caller.
#pragma once

#include <tiffin/config.hpp>

#include <concepts>
#include <cstddef>
#include <memory>
#include <type_traits>

TIFFIN_BEGIN

// A task of a call by its index: task(i) for i in [0, n), each once, in any order, on any thread.
// Never throws. Valid until the executor returns.
class task_ref {
public:
    template <class Task>
        requires(!std::same_as<Task, task_ref>)
    explicit task_ref(const Task& task) noexcept
        : object_(std::addressof(task)),
          call_([](const void* object, std::size_t i) noexcept { (*static_cast<const Task*>(object))(i); }) {}
    void operator()(std::size_t i) const noexcept { call_(object_, i); }

private:
    const void* object_;
    void (*call_)(const void*, std::size_t) noexcept;
};

// Anything that runs n tasks and returns when all have ended: execute(n, task). It may run them one
// after the other. `concurrency()`, optional, is the number that can run at the same time.
template <class E>
concept executor = requires(E& execute, std::size_t n, const task_ref& task) {
    execute(n, task);
};

// A reference to an executor, so that kernels need not be compiled again for each. The executor
// must outlive it; one made in the argument list of a call does.
class executor_ref {
public:
    template <class E>
        requires(!std::same_as<std::remove_cvref_t<E>, executor_ref>)
    &&executor<E> executor_ref(E&& execute) noexcept
        : object_(const_cast<void*>(static_cast<const void*>(std::addressof(execute)))),
    call_([](void* object, std::size_t n, const task_ref& task) {
        (*static_cast<std::remove_reference_t<E>*>(object))(n, task);
    }) {
        if constexpr (requires { std::size_t(execute.concurrency()); })
            concurrency_ = std::size_t(execute.concurrency());
    }
    // 0 where the executor has no concurrency().
    [[nodiscard]] std::size_t concurrency() const noexcept { return concurrency_; }
    void operator()(std::size_t n, const task_ref& task) const {
        if (n == 1)
            task(0);  // no hand-over to another thread
        else if (n > 1)
            call_(object_, n, task);
    }

private:
    void* object_;
    void (*call_)(void*, std::size_t, const task_ref&);
    std::size_t concurrency_ = 0;
};

// Runs all tasks on the calling thread.
struct serial {
    static constexpr std::size_t concurrency() noexcept { return 1; }
    template <class Task>
    void operator()(std::size_t n, const Task& task) const noexcept {
        for (std::size_t i = 0; i < n; ++i) task(i);
    }
};
// The default executor.
inline constexpr serial serially{};

TIFFIN_END
