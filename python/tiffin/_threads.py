"""The library's threads, and calls that call back."""
import ctypes as c
import queue
import threading

from ._arrays import whole
from ._library import check, lib

_teams: dict = {}
_making = threading.Lock()


def executor(threads):
    """The executor of a call for C: None for one thread, else a team of threads, which all calls of as many share.

    Calls of several threads at once run on their callers alone, and so do those in a child of fork().
    """
    if type(threads) is not int or not 1 <= threads <= 2 ** 16:
        threads = whole("threads", threads, 1, 2 ** 16 + 1)
    if threads == 1:
        return None
    if threads not in _teams:
        with _making:
            if threads not in _teams:
                made = c.c_void_p()
                check(lib.tiffin_threads_make(threads, c.byref(made)))
                _teams[threads] = lib.tiffin_threads_executor(made)
    return _teams[threads]


class Aside:
    """`work` on another thread, for which the calling thread waits.

    Handlers of signals run on Python's main thread, between any two of its steps, and what they raise in a callback from C
    is lost. So C is called elsewhere where it calls back, and what is raised meanwhile is raised when it has returned.
    """

    def __init__(self, work):
        self._work, self._begun, self._ended, self._events = work, threading.Lock(), False, queue.SimpleQueue()
        self._result = self._raised = None

    def _run(self):
        if not self._begun.acquire(blocking=False):
            return
        try:
            self._result = self._work(lambda *event: self._events.put(event))
        except BaseException as wrong:
            self._raised = wrong
        self._ended = True
        self._events.put(None)

    def result(self, start, tell=None):
        """What the work returns or raises. start(run): another thread runs that. tell(*event): what the work tells, here."""
        raised, started = None, False
        while not (self._ended and self._events.empty()):
            try:
                if not started:
                    start(self._run)
                    started = True
                event = self._events.get()
                if event is not None and raised is None:
                    tell(*event)
            except BaseException as wrong:
                raised = raised or wrong
                if not started:
                    if self._begun.acquire(blocking=False):
                        break  # now it never begins
                    started = True
        try:
            if raised or self._raised:
                raise raised or self._raised
            return self._result
        finally:
            raised = self._raised = None  # they hold this frame
