// The OpenMP executor; not part of the umbrella.
#pragma once

#if !defined(_OPENMP)
#    error "tiffin/executor/openmp.hpp needs OpenMP: compile with -fopenmp or link OpenMP::OpenMP_CXX"
#endif

#include <tiffin/config.hpp>

#include <cstddef>

#include <omp.h>

TIFFIN_BEGIN

// Runs tasks on an OpenMP team of `threads`, or of omp_get_max_threads().
// Precondition: not in a child of fork() whose parent has used OpenMP: its teams hang there.
struct openmp {
    int threads = 0;

    [[nodiscard]] std::size_t concurrency() const noexcept {
        return static_cast<std::size_t>(threads > 0 ? threads : omp_get_max_threads());
    }
    template <class Task>
    void operator()(std::size_t n, const Task& task) const noexcept {
        const auto last = static_cast<std::ptrdiff_t>(n);
        const auto team = static_cast<int>(concurrency());
#pragma omp parallel for schedule(static, 1) num_threads(team)
        for (std::ptrdiff_t i = 0; i < last; ++i) task(static_cast<std::size_t>(i));
    }
};

TIFFIN_END
