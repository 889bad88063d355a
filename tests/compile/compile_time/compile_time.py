#!/usr/bin/env python3
"""What including tiffin costs, beside what including its dependencies costs.

usage: compile_time.py [--limit RATIO] [--rounds N] COMPILER [FLAG...]

Prints the median time of `#include <tiffin/tiffin.hpp>`, that of <Eigen/Dense> and <xsimd/xsimd.hpp>
together, and their ratio. With a limit, a greater ratio is status 1.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

TIFFIN = "#include <tiffin/tiffin.hpp>\n"
DEPENDENCIES = "#include <Eigen/Dense>\n#include <xsimd/xsimd.hpp>\n"


def seconds(command):
    """Processor time, which a busy machine disturbs less than the clock on the wall."""
    before = os.times()
    subprocess.run(command, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=float)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("compiler")
    options, flags = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        commands = []
        for name, text in (("tiffin", TIFFIN), ("dependencies", DEPENDENCIES)):
            source = pathlib.Path(folder) / f"{name}.cpp"
            source.write_text(text)
            commands.append([options.compiler, "-std=c++20", "-O2", "-fsyntax-only", *flags, str(source)])
            seconds(commands[-1])  # brings the headers into memory
        # In turns, so that a machine that slows down slows both.
        rounds = [[seconds(c) for c in commands] for _ in range(options.rounds)]
    tiffin, dependencies = (statistics.median(column) for column in zip(*rounds))
    ratio = tiffin / dependencies
    print(f"tiffin {tiffin:.2f} s, Eigen/Dense and xsimd {dependencies:.2f} s, ratio {ratio:.2f}")
    return 1 if options.limit and ratio > options.limit else 0


if __name__ == "__main__":
    sys.exit(main())
