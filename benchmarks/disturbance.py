"""How much of the processors' time others had while something was measured, as disturbance.hpp has it for C++."""
import os
import resource

QUIET = 0.05  # others may have had so much of it


class Disturbance:
    """Others are other processes than this and its children that have ended, and other virtual machines where the system
    tells (stolen time)."""

    def __init__(self):
        self.before = self.now()

    @staticmethod
    def now():
        """Seconds of all processors: all, busy, of our own; None where the system does not tell."""
        try:
            with open("/proc/stat", encoding="utf-8") as file:
                times = [int(t) / os.sysconf("SC_CLK_TCK") for t in file.readline().split()[1:9]]
        except (OSError, ValueError):
            return None
        own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(times), sum(times) - times[3] - times[4], sum(r.ru_utime + r.ru_stime for r in own)

    def share(self):
        """From 0 to 1; None where the system does not tell."""
        after = self.now()
        if self.before is None or after is None or after[0] <= self.before[0]:
            return None
        whole, busy, own = (b - a for a, b in zip(self.before, after))
        return max(busy - own, 0) / whole

    def told(self):
        share = self.share()
        if share is None:
            return "How much of the processors' time others had is not known."
        return f"Others had {share:.0%} of the processors' time" + (
            f": more than {QUIET:.0%}, these figures are not to be quoted." if share > QUIET else ".")
