// How much of the processors' time others had while something was measured.
#pragma once

#include <fstream>
#include <string>

#if defined(__unix__)
#    include <sys/resource.h>
#    include <unistd.h>
#endif

namespace tiffin_bench {

// Others are other processes, and other virtual machines where the system tells (stolen time). A figure that was measured
// beside them is theirs as much as the kernel's.
class disturbance {
public:
    disturbance() : before_(now()) {}

    // The share of all processors' time since this was made that was neither idle nor this process's: 0 to 1, to a few per
    // cent in a tenth of a second, as the system counts in hundredths. Negative where it does not tell.
    [[nodiscard]] double share() const {
        const reading after = now();
        const double all = after.all - before_.all,
                     others = after.busy - before_.busy - (after.own - before_.own);
        if (before_.all < 0 || !(all > 0)) return -1;
        return others > 0 ? others / all : 0;
    }

private:
    struct reading {
        double all = -1, busy = 0, own = 0;  // seconds, of all processors
    };
    static reading now() {
        reading made;
#if defined(__unix__)
        std::ifstream stat("/proc/stat");
        std::string cpu;
        // user, nice, system, idle, iowait, irq, softirq, steal; what guests had is in user.
        double times[8] = {};
        if (!(stat >> cpu) || cpu != "cpu") return made;
        for (double& t : times)
            if (!(stat >> t)) return made;
        const auto per_second = static_cast<double>(::sysconf(_SC_CLK_TCK));
        made.all = 0;
        for (const double t : times) made.all += t / per_second;
        made.busy = made.all - (times[3] + times[4]) / per_second;
        rusage used{};
        ::getrusage(RUSAGE_SELF, &used);
        for (const timeval& t : {used.ru_utime, used.ru_stime})
            made.own += static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
#endif
        return made;
    }

    reading before_;
};

}  // namespace tiffin_bench
