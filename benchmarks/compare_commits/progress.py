"""What is being done, for those who wait."""

import sys
import time


class Progress:
    """A line that is written over in a terminal; elsewhere a line of its own every 20 seconds."""

    interval = 20.0

    def __init__(self):
        self.rewrites = sys.stderr.isatty()
        self.last = time.monotonic()

    def show(self, text):
        if self.rewrites:
            print("\r\033[K" + text[:100], end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self.last > self.interval:
            print(text, file=sys.stderr, flush=True)
            self.last = time.monotonic()

    def clear(self):
        if self.rewrites:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
