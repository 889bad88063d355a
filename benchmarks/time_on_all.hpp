// The time of work that all threads do at once.
#pragma once

#include <omp.h>

#include <chrono>
#include <utility>

namespace tiffin_bench {

// Calls `work(thread, threads)` on all threads at once; the seconds from the first start to the last end, and
// the number of threads there were.
template <class Work>
std::pair<double, int> time_on_all(int threads, const Work& work) {
    using clock = std::chrono::steady_clock;
    clock::time_point start, end;
    int count = 1;
#pragma omp parallel num_threads(threads)
    {
        const int me = omp_get_thread_num();
#pragma omp master
        count = omp_get_num_threads();
#pragma omp barrier
        // One thread must not be at work before the clock starts, hence a barrier on either side.
#pragma omp master
        start = clock::now();
#pragma omp barrier
        work(me, count);
#pragma omp barrier
#pragma omp master
        end = clock::now();
    }
    return {std::chrono::duration<double>(end - start).count(), count};
}

}  // namespace tiffin_bench
