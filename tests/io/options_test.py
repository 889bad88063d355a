#!/usr/bin/env python3
"""Every option of every program, as --help lists them: a number outside of its range, or no number, and an empty text are
refused in one line that names the option, the value and the range; the ends of the range are taken.

    options_test.py PROGRAM...
"""

import re
import subprocess
import sys

# "  --tokens UINT:from 1 to 16777216=64 ..."; the name alone stands on its line where it is long.
LINE = re.compile(r"^  (?P<name>--[a-z0-9-]+)(?: (?P<kind>UINT|INT|FLOAT|TEXT)\b(?P<more>[^\n]*))?", re.M)
RANGE = re.compile(r"^:from (?P<least>\S+) to (?P<most>[^\s=]+)")
NO_NUMBERS = ["", " 5", "5 ", "5x", "x", "0x10", "nan", "-nan", "inf", "-inf", "infinity", "1e400", "-1e400", "1,2", "++5"]
NO_WHOLE_NUMBERS = ["1e3", "1.5", "010", "-0", "18446744073709551616", "-18446744073709551615", "9" * 40, "0b1", "1'000"]
FLAGS = {"--resume", "--embedding-parallel", "--f32-activations", "--untied"}  # what else has no kind in --help is taken for a text


class Checked:
    def __init__(self):
        self.failed = self.runs = 0

    def run(self, program, option, value):
        """--help behind it, so that nothing but the command line is looked at."""
        self.runs += 1
        return subprocess.run([program, option, value, "--help"], capture_output=True, text=True, errors="replace", timeout=60)

    def expect(self, what, holds, done):
        self.failed += not holds
        if not holds:
            print("FAILED:", what, done.returncode, done.stdout[:200], done.stderr[:400])

    def refused(self, program, option, value, *parts):
        done = self.run(program, option, value)
        first = done.stderr.split("\n")[0]
        self.expect(f"{program} {option} {value!r}", done.returncode not in (0, -6, -11) and done.stderr and
                    all(p in first for p in (option, *parts)), done)

    def taken(self, program, option, value):
        done = self.run(program, option, value)
        self.expect(f"{program} {option} {value!r}", done.returncode == 0 and not done.stderr, done)


def beyond(text, whole, upwards):
    if whole:
        return str(int(text) + (1 if upwards else -1))
    value = float(text)
    return repr(value + abs(value) * 0.01 + 1e-9 if upwards else value - abs(value) * 0.01 - 1e-9)


def check(checked, program):
    told = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=60).stdout
    numbers = 0
    for option in LINE.finditer(told):
        name, kind, more = option["name"], option["kind"], option["more"] or ""
        if name in FLAGS:
            continue
        if kind in (None, "TEXT"):
            checked.refused(program, name, "")
            continue
        numbers += 1
        whole, found = kind != "FLOAT", RANGE.match(more)
        if not found:
            checked.failed += 1
            print(f"FAILED: {program} {name}: --help tells no range: {more}")
            continue
        least, most = found["least"], found["most"]
        said = f"from {least} to {most}"
        for value in NO_NUMBERS + (NO_WHOLE_NUMBERS if whole else []):
            checked.refused(program, name, value, f"'{value}'", "whole number" if whole else "number", said)
        for value in (beyond(least, whole, False), beyond(most, whole, True)):
            checked.refused(program, name, value, f"'{value}'", said)
        if float(least) >= 0:
            checked.refused(program, name, "-1", "'-1'", said)
        for value in (least, most):
            checked.taken(program, name, value)
    return numbers


def main(*programs):
    checked = Checked()
    for program in programs:
        print(f"{program}: {check(checked, program)} options that are numbers")
    print(f"{checked.runs} runs, {checked.failed} failed")
    return 1 if checked.failed or not checked.runs else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
