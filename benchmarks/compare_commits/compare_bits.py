"""--bits: run_layer of two commits on the same files, byte by byte.

The cases are those of tests/io/run_layer_test.py: its test classes run as they are, of HEAD's tree, but where
they start the tool, both tools are started in turn with the same arguments.  The tests get HEAD's answer, so
that they go on as they would; what they find wrong with it is told, but is no difference.
"""

import importlib
import itertools
import multiprocessing
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest
import zlib

from progress import Progress

FORMATS = ("f32", "bf16", "f16", "q8_0", "q4_0")
ROUNDED_BESIDE = ("bf16", "q8_0", "q4_0")  # weights beside which simd rounds activations by itself
SECONDS = 60  # that a run may take
PROCESSES = 2


def combinations():
    """Weights, tables and further flags of simd beside f32 alone: those with an f32 first."""
    for weights, tables in itertools.product(FORMATS, FORMATS):
        if (weights, tables) != ("f32", "f32"):
            yield weights, tables, ()
    for weights, tables in itertools.product(ROUNDED_BESIDE, FORMATS):
        yield weights, tables, ("--f32-activations",)


class Outcome:
    """What was compared, and what was not the same."""

    def __init__(self):
        self.outputs = self.refusals = 0  # identical ones
        self.different = []  # (backend and formats, case, what differs)
        self.messages = []  # (case, base's, head's)
        self.failed = []  # names of tests whose own checks HEAD fails

    def add(self, other):
        self.outputs += other.outputs
        self.refusals += other.refusals
        self.different += other.different
        self.messages += other.messages
        self.failed += other.failed

    def runs(self):
        return self.outputs + self.refusals + len(self.different)


def content_of(path):
    """The bytes of a file; None where there is none."""
    if path is None or not os.path.isfile(path):
        return None
    with open(path, "rb") as file:
        return file.read()


def restore(path, content):
    if content is not None:
        with open(path, "wb") as file:
            file.write(content)
    elif path is not None and os.path.isfile(path):
        os.remove(path)


def steps_between(one, other):
    """The largest distance of two arrays of f32 in units in the last place, as text."""
    import numpy as np

    a, b = (np.frombuffer(raw, "<f4") for raw in (one, other))
    if (np.isfinite(a) != np.isfinite(b)).any():
        return "some of them finite in one commit only"
    a, b = (v.view("<i4").astype(np.int64)[np.isfinite(v)] for v in (a, b))
    a, b = (np.where(v < 0, -(v & 0x7FFFFFFF), v) for v in (a, b))
    return "at most %d units in the last place" % np.abs(a - b).max() if a.size else "none of them finite"


def difference(base, head, parse):
    """What differs between two files of run_layer's; empty where every tensor is the same."""
    if base is None or head is None:
        return "" if base == head else "OUTPUT was written by %s only" % ("head" if base is None else "base")
    if base == head:
        return ""
    import numpy as np

    try:
        one, two = parse(base), parse(head)
    except ValueError as error:
        return "OUTPUT of a commit is not sound: %s" % error
    texts = []
    for name in sorted(one.keys() | two.keys()):
        a, b = one.get(name), two.get(name)
        if a is None or b is None or a[:2] != b[:2]:
            forms = ["missing" if t is None else "%s %s" % t[:2] for t in (a, b)]
            texts.append("%s is %s, now %s" % (name, *forms))
        elif a[2] != b[2]:
            kind = "<i8" if a[0] == "I64" else "<u4"
            numbers = [np.frombuffer(t[2], kind) for t in (a, b)]
            count = "%s: %d of %d elements" % (name, (numbers[0] != numbers[1]).sum(), numbers[0].size)
            texts.append(count + (", " + steps_between(a[2], b[2]) if a[0] == "F32" else ""))
    return "; ".join(texts)


class TwoTools:
    """Stands where the tests start the tool."""

    def __init__(self, base, head, parse, count):
        self.base, self.head, self.parse, self.count = str(base), str(head), parse, count
        self.begin()

    def begin(self):
        self.outcome, self.what, self.seen = Outcome(), "", set()

    def run(self, test, arguments):
        """Compares a run, and in all formats what simd has taken; gives head's result."""
        case = test.id() + (": " + self.what if self.what else "")
        flags = arguments[3:]
        backend = value_of("--backend", flags) or "simd"
        result = self.compare(backend, case, arguments)
        files = tuple(arguments[:2])
        if backend == "simd" and result.returncode == 0 and files not in self.seen:
            self.seen.add(files)
            self.compare_formats(case, files, without(("--weights", "--tables"), flags))
        return result

    def compare_formats(self, case, files, flags):
        """What is refused beside f32 is not tried beside the other formats."""
        output = os.path.join(os.path.dirname(files[0]), "formats.safetensors")
        refused = set()
        for weights, tables, more in combinations():
            if ("weights", weights) in refused or ("tables", tables) in refused:
                continue
            chosen = ["--weights", weights, "--tables", tables, *more]
            result = self.compare("simd " + " ".join(chosen), case, [*files, output, *flags, *chosen])
            restore(output, None)
            if result.returncode != 0:
                if tables == "f32":
                    refused.add(("weights", weights))
                if weights == "f32":
                    refused.add(("tables", tables))

    def compare(self, how, case, arguments):
        """Runs both tools on the same arguments; gives head's result, and leaves head's OUTPUT."""
        output = arguments[2] if len(arguments) > 2 else None
        before = content_of(output)
        base = start(self.base, arguments)
        written = content_of(output)
        restore(output, before)
        head = start(self.head, arguments)
        if base.returncode != head.returncode:
            said = (base.stderr + head.stderr).decode(errors="replace").strip()
            text = "exit status %d, now %d: %s" % (base.returncode, head.returncode, said)
        elif base.returncode < 0:
            text = "neither was refused nor has ended: status %d of both" % base.returncode
        else:
            text = difference(written, content_of(output), self.parse)
        if text:
            self.outcome.different.append((how, case, text))
        elif head.returncode == 0:
            self.outcome.outputs += 1
        else:
            self.outcome.refusals += 1
            said = [(r.stdout + r.stderr).decode(errors="replace").strip() for r in (base, head)]
            if said[0] != said[1]:
                self.outcome.messages.append((case, *said))
        with self.count.get_lock():
            self.count[0] += 1
            self.count[1] += bool(text)
        return head


def value_of(flag, flags):
    at = flags.index(flag) + 1 if flag in flags else len(flags)
    return flags[at] if at < len(flags) else None


def without(dropped, flags):
    """The flags but those of `dropped` and their values."""
    places = [i for i, flag in enumerate(flags) if flag in dropped]
    return [flag for i, flag in enumerate(flags) if i not in places and i - 1 not in places]


def start(tool, arguments):
    command = [tool, *arguments]
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, -1, b"", b"no end after %d s" % SECONDS)


# ---------------------------------------------------------------------------------------------------
# The tests


def import_tests(folder):
    """The harness, the cases, and all modules with tests of the tool."""
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder))
    names = []
    for path in sorted(pathlib.Path(folder).glob("run_layer_*.py")):
        text = path.read_text(encoding="utf-8")
        if re.search(r"^class \w+\((RunLayerTest|RefusalTest)\)", text, re.MULTILINE):
            names.append(path.stem)
    of_all = ["run_layer_harness", "run_layer_cases", "run_layer_files"]
    return [importlib.import_module(n) for n in of_all], [importlib.import_module(n) for n in names]


def tests_of(modules, refusals, text):
    """The names of all tests; those with the longest runs, which are not of refusals, first."""
    loader = unittest.TestLoader()
    if text:
        loader.testNamePatterns = ["*%s*" % text]
    waiting, tests = [loader.loadTestsFromModule(module) for module in modules], []
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, unittest.TestSuite):
            waiting[:0] = list(one)
        else:
            tests.append(one)
    return [test.id() for test in sorted(tests, key=lambda test: isinstance(test, refusals))]


def put_between(harness, tools):
    """Lets the tests start both tools, and `tools` know what they test."""

    def run_tool(test, *arguments):
        harness.Settings.runs += 1  # by which some tests choose among backends
        return tools.run(test, [str(a) for a in arguments])

    def telling(method):
        def told(test, what, *arguments, **keywords):
            tools.what = what
            try:
                return method(test, what, *arguments, **keywords)
            finally:
                tools.what = ""

        return told

    harness.RunLayerTest.run_tool = run_tool
    harness.RunLayerTest.output_of = telling(harness.RunLayerTest.output_of)
    harness.RefusalTest.bad = telling(harness.RefusalTest.bad)


def run_test(name):
    """All runs of one test, in a process of the pool."""
    harness, cases, tools = run_test.harness, run_test.cases, run_test.tools
    tools.begin()
    # What a case holds follows from its number: the same whatever ran before it.
    cases.DenseCase.counter = cases.TreeCase.counter = 1000 * (zlib.crc32(name.encode()) % 1000000)
    harness.Settings.runs = harness.Settings.written = 0
    result = unittest.TestResult()
    with tempfile.TemporaryDirectory(prefix="compare commits ") as folder:
        harness.Settings.folder = folder
        unittest.defaultTestLoader.loadTestsFromName(name).run(result)
    for test, trace in result.failures + result.errors:
        said = [line for line in trace.splitlines() if re.match(r"\w*(Error|Exception): ", line)]
        tools.outcome.failed.append("%s: %s" % (test.id(), "; ".join(said)))
    return tools.outcome


def compare(base, head, tests, text):
    """The outcome of all tests, or of those whose name contains `text`; None where there are none."""
    (harness, cases, files), modules = import_tests(tests)
    count = multiprocessing.Array("q", 2)  # runs compared, different ones
    tools = TwoTools(base, head, files.parse, count)
    put_between(harness, tools)
    harness.Settings.tool = str(head)
    run_test.harness, run_test.cases, run_test.tools = harness, cases, tools  # for the processes forked below
    names = tests_of(modules, harness.RefusalTest, text)
    whole, progress = Outcome(), Progress()
    with multiprocessing.get_context("fork").Pool(PROCESSES) as pool:
        due = [pool.apply_async(run_test, (name,)) for name in names]
        done = 0
        while done < len(due):
            time.sleep(0.2)
            done = sum(one.ready() for one in due)
            progress.show("bits: %d of %d tests, %d runs compared, %d different" % (done, len(due), *count))
        progress.clear()
        for one in due:
            whole.add(one.get())
    return whole if names else None


def report(outcome, names, most, file):
    """Prints the outcome; all of it goes to `file`."""

    def listed(title, lines):
        if not lines:
            return
        full.append(title)
        full.extend("  " + line for line in lines)
        print(title)
        for line in lines[:most]:
            print("  %.1000s" % line)
        if len(lines) > most:
            print("  ... and %d more, in %s" % (len(lines) - most, file))

    full = ["run_layer of %s and %s" % names]
    by_kind, by_test, different = {}, {}, []
    for how, case, text in outcome.different:
        test = case.split(":")[0]
        by_kind[how], by_test[test] = by_kind.get(how, 0) + 1, by_test.get(test, 0) + 1
        different.append((by_test[test], "[%s] %s: %s" % (how, case, text)))
    different.sort(key=lambda numbered: numbered[0])  # the first of each test, the second of each, and so on
    listed("Different, by backend and format:", ["%6d  %s" % (n, how) for how, n in sorted(by_kind.items())])
    listed("Different:", [line for _, line in different])
    listed(
        "Refused by both, in other words (no difference):",
        list(dict.fromkeys("%s: %r, now %r" % message for message in outcome.messages)),
    )
    listed("Tests that fail for %s by themselves (no difference):" % names[1], outcome.failed)
    last = "bits: %d runs of %s and %s compared: %d outputs and %d refusals identical, %d different" % (
        outcome.runs(), *names, outcome.outputs, outcome.refusals, len(outcome.different))
    print(last)
    file.write_text("\n".join(full + [last, ""]), encoding="utf-8")
