#!/usr/bin/env python3
"""Compares two commits of this repository on this machine: whether they compute the same, and as fast.

    compare_commits.py BASE [HEAD]              both of the following
    compare_commits.py BASE [HEAD] --bits       run_layer of both, on the same files, to the bit
    compare_commits.py BASE [HEAD] --times      the layers of both, call by call in turns in one process
    compare_commits.py BASE --self-test         the noise of --times, and whether it finds what is slower

For changes that must change nothing, such as a rewrite of an engine.  BASE and HEAD are git revisions;
without HEAD it is the working tree as it is, with what is not committed and what is not added.  Each is
checked out and built under build/compare (commit_trees.py), where it stays: the first comparison builds for
some minutes, the next ones build what has changed.  The index, the branch and the files of the working tree
are not touched.

--bits takes 2 to 5 minutes.  It runs all cases of tests/io/run_layer_test.py (of HEAD's tree) on the backends
reference, eigen and simd, and every case that simd takes in all pairs of formats that run_layer knows; beside
weights of bf16, q8_0 and q4_0 with rounded activations and without.  It compares every tensor of OUTPUT by
its bytes, and the exit status of what is refused.  Of each difference it tells the case, the elements that
differ, and their largest distance in units in the last place; build/compare/bits.txt has all of them.
Refusals in other words are listed, but are no difference.  It needs numpy, as the tests do.

--times takes 8 to 15 minutes.  It compiles one list of layers (layers_*.cpp) against the headers of each
commit into a shared library, loads both into one program, and calls the one and the other in turns, with the
same weights, inputs and threads.  A line is a layer and a number of tokens:

    layer     tokens threads  pairs    base us    head us head/base
    swiglu         1       2    242     1208.8     1222.3     1.004 +-0.005 [0.975, 1.032]

These are the pairs of neighbouring calls, the median time of each commit, the median of the pairs' ratios
with half of its 95 % interval, and the quartiles of the ratios.  Layers are 1024 wide with 2816 hidden
features, where their name tells nothing else; 'trained' is a step of training, forward and back.  Weights rotate among three sets (layer_library.hpp).  A case above --limit is measured again, up to
twice and longer each time, and judged by all its pairs together.  Pairs during which a thread waited for a
core that another program had are left out; where these are the most, the case is timed on one thread, by
the time that the thread has had of a core in place of the clock's.  The medians of a commit beside itself lie
between 0.97 and 1.02 on a shared machine of two cores; --self-test tells those of yours.

Exit status: 0 the same and as fast; 1 a difference, or a median above the limit; 2 it could not be compared.
"""

import argparse
import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time

import commit_trees
import compare_bits

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from disturbance import Disturbance

SYSTEM_PYTHON = "/usr/bin/python3"  # where the packages of a distribution put numpy
SLOWER = 1.05  # what CMakeLists.txt makes the slower library


def parse():
    about, text = __doc__.split("\n", 1)
    parser = argparse.ArgumentParser(
        description=about, epilog=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", metavar="BASE", help="git revision")
    parser.add_argument("head", metavar="HEAD", nargs="?",
                        help="git revision (default: the working tree as it is)")
    parser.add_argument("--bits", action="store_true", help="compare what run_layer computes")
    parser.add_argument("--times", action="store_true", help="compare the times of the layers")
    parser.add_argument("--self-test", action="store_true",
                        help="compare the times of BASE with those of BASE itself")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N",
                        help="compilers at a time (default: %(default)s, the cores)")
    of_bits = parser.add_argument_group("--bits")
    of_bits.add_argument("-k", metavar="TEXT", help="only the tests whose name contains TEXT")
    of_bits.add_argument("--most", type=int, default=20, metavar="N",
                         help="lines to print of each list (default: %(default)s)")
    of_times = parser.add_argument_group("--times")
    of_times.add_argument("--seconds", type=float, default=0.6, metavar="S",
                          help="for each layer and number of tokens (default: %(default)s)")
    of_times.add_argument("--limit", type=float, default=1.02, metavar="R",
                          help="the largest head / base that passes (default: %(default)s)")
    of_times.add_argument("--layers", metavar="NAME;...",
                          help="only these, by their names in the table: 'swiglu;stem bf16'")
    of_times.add_argument("--tokens", metavar="N,...",
                          help="only these numbers of tokens (default: 1,4,16,64,512)")
    of_times.add_argument("--threads", type=int, metavar="N",
                          help="threads of a call (default: as many as cores)")
    of_times.add_argument("--march", metavar="SET", default="native",
                          help="the instruction set, as the compiler's -march wants it: x86-64-v3 for AVX2 "
                               "(default: %(default)s)")
    options = parser.parse_args()
    if options.self_test and (options.head or options.bits or options.times):
        parser.error("--self-test: takes BASE alone, and neither --bits nor --times")
    if not (options.bits or options.times or options.self_test):
        options.bits = options.times = True
    return options


def flags_of(options):
    """Those that time_layers takes."""
    names = ("seconds", "limit", "layers", "tokens", "threads")
    given = {name: getattr(options, name) for name in names}
    return ["--%s=%s" % (name, value) for name, value in given.items() if value is not None]


def bits(base, head, options):
    start = time.monotonic()
    tools = [tree.run_layer() for tree in (base, head)]
    outcome = compare_bits.compare(*tools, head.path / "tests" / "io", options.k)
    if outcome is None:
        raise commit_trees.Failed("-k %s: no test has it in its name" % options.k)
    file = base.path.parent / "bits.txt"
    compare_bits.report(outcome, (base.name, head.name), options.most, file)
    print("bits: %.0f s" % (time.monotonic() - start), flush=True)
    return 1 if outcome.different else 0


def time_layers(program, libraries, flags):
    """The exit status of the program, and all that it has printed, shown as it comes."""
    lines = []
    with subprocess.Popen([program, *libraries, *flags], stdout=subprocess.PIPE, text=True) as run:
        for line in run.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if run.returncode not in (0, 1):
        raise commit_trees.Failed("nothing timed: %s ended with status %d" % (program, run.returncode))
    return run.returncode, lines


def second_copy(library):
    """The same library under another name: one file is loaded once only."""
    copy = library.with_name("copy_of_" + library.name)
    shutil.copy(library, copy)
    return copy


def times(base, head, options):
    start = time.monotonic()
    folders = [tree.layers(options.march) for tree in (base, head)]
    libraries = [folder / "libcompared_layers.so" for folder in folders]
    if libraries[0] == libraries[1]:
        libraries[1] = second_copy(libraries[0])
    others = Disturbance()
    status, _ = time_layers(folders[1] / "time_layers", libraries, flags_of(options))
    print("times: %.0f s. %s" % (time.monotonic() - start, others.told()), flush=True)
    return status


def self_test(base, options):
    """The noise of a commit beside itself; and a library that is slower is found, on both sides."""
    folder = base.layers(options.march)
    program, library = folder / "time_layers", folder / "libcompared_layers.so"
    status, _ = time_layers(program, [library, second_copy(library)], flags_of(options))
    slower, few = folder / "libcompared_layers_slower.so", ["--layers=swiglu;meki_training", "--tokens=1,16"]
    for libraries, expected in (([library, slower], SLOWER), ([slower, library], 1 / SLOWER)):
        print("\nCalls of %s take 1.05 times as long as they need:" % ("head" if expected > 1 else "base"))
        _, lines = time_layers(program, libraries, few)
        found = re.match(r"medians of head / base from ([\d.]+) to ([\d.]+)", lines[-1])
        if not all(abs(float(ratio) - expected) < 0.03 for ratio in found.groups()):
            print("self-test: not found: medians near %.3f expected" % expected)
            status = 1
    print("self-test: %s" % ("failed" if status else "passed"))
    return status


def with_numpy():
    """Starts anew in an interpreter that has numpy, where this one has none."""
    if importlib.util.find_spec("numpy") is not None:
        return
    if os.path.realpath(sys.executable) != os.path.realpath(SYSTEM_PYTHON) and os.path.exists(SYSTEM_PYTHON):
        os.execv(SYSTEM_PYTHON, [SYSTEM_PYTHON, *sys.argv])
    raise commit_trees.Failed("--bits: numpy is not installed; on Debian: apt-get install python3-numpy")


def main():
    options = parse()
    try:
        if options.bits:
            with_numpy()
        root = commit_trees.repository()
        (root / "build" / "compare").mkdir(parents=True, exist_ok=True)
        with open(root / "build" / "compare" / "lock", "w", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print("waiting: another comparison is under way", file=sys.stderr)
                fcntl.flock(lock, fcntl.LOCK_EX)
            base = commit_trees.of_commit(root, options.base, options.jobs)
            if options.self_test:
                return self_test(base, options)
            if options.head:
                head = commit_trees.of_commit(root, options.head, options.jobs)
            else:
                head = commit_trees.of_working_tree(root, options.jobs)
            statuses = [bits(base, head, options)] if options.bits else []
            if options.times:
                statuses.append(times(base, head, options))
            return max(statuses)
    except commit_trees.Failed as error:
        print("compare_commits.py: %s" % error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
