"""What the tests of run_layer have in common: settings, running the tool, comparing, judging a refusal."""

import os
import re
import shutil
import subprocess
import unittest

import numpy as np

from run_layer_bounds import tolerance
from run_layer_files import parse
from run_layer_reference import ALL_BLOCKS, BLOCKS, COMPOSITE


LONGEST = 8192  # bytes of the line on stderr, whatever names the files hold


class Settings:
    tool = None
    backends = ("reference", "eigen", "simd")
    threads = 2
    blocks = ALL_BLOCKS
    folder = None
    keep = False
    written = 0
    runs = 0
    in_process = None  # run_layer_self_check.py puts a tool of its own here


def dense():
    """The chosen ones of the blocks without parts."""
    return [b for b in BLOCKS if b in Settings.blocks]


def composite():
    return [b for b in COMPOSITE if b in Settings.blocks]


def write(stem, content):
    Settings.written += 1
    path = os.path.join(Settings.folder, "%s%d.safetensors" % (stem, Settings.written))
    with open(path, "wb") as file:
        file.write(content)
    return path


def fresh_output():
    Settings.written += 1
    folder = os.path.join(Settings.folder, "out%d" % Settings.written)
    os.mkdir(folder)
    return os.path.join(folder, "result.safetensors")


class RunLayerTest(unittest.TestCase):
    def needs(self, *blocks):
        for block in blocks:
            if block not in Settings.blocks:
                self.skipTest("without " + block)

    def run_tool(self, *arguments):
        command = [Settings.tool] + [str(a) for a in arguments]
        Settings.runs += 1
        if Settings.in_process:
            return subprocess.CompletedProcess(command, *Settings.in_process(command[1:]))
        try:
            return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        except subprocess.TimeoutExpired:
            self.fail("no end after 60 s: %s" % " ".join(command))

    def describe(self, result):
        ending = "status %d" % result.returncode if result.returncode >= 0 else "killed by signal %d" % -result.returncode
        return "%s\n  command: %s\n  stdout: %r\n  stderr: %r" % (
            ending,
            " ".join(result.args),
            result.stdout.decode(errors="replace"),
            result.stderr.decode(errors="replace"),
        )

    def output_of(self, what, layer, inputs, shapes, *flags, output=None):
        """The raw bytes of each tensor after a run that must succeed; shapes: name -> (dtype, shape)."""
        output = output or fresh_output()
        result = self.run_tool(layer, inputs, output, *flags)
        if result.returncode != 0:
            self.fail("%s: failed: %s" % (what, self.describe(result)))
        if not os.path.exists(output):
            self.fail("%s: status 0 without an OUTPUT: %s" % (what, self.describe(result)))
        with open(output, "rb") as file:
            raw = file.read()
        try:
            tensors = parse(raw)
        except Exception as error:
            self.fail("%s: OUTPUT is not sound: %s" % (what, error))
        found = {name: (dtype, tuple(shape)) for name, (dtype, shape, _) in tensors.items()}
        self.assertEqual(found, shapes, "%s: tensors in OUTPUT, their dtypes and shapes" % what)
        if not Settings.keep:
            shutil.rmtree(os.path.dirname(output))
        return {name: data for name, (_, _, data) in tensors.items()}

    def shapes_of(self, case):
        shapes = {name: ("F32", value.v.shape) for name, value in case.outputs.items()}
        if case.route:
            shapes["route"] = ("I64", case.route[0].shape)
        return shapes

    def check(self, case, backend, *flags, files=None, output=None):
        """Runs the case, compares with the reference, and returns the raw bytes of each output."""
        what = "[%s] %s%s" % (backend, case, ", " + " ".join(str(f) for f in flags) if flags else "")
        layer, inputs = files or case.write()
        arguments = (("--backend", backend) if backend != "default" else ()) + flags
        raw = self.output_of(what, layer, inputs, self.shapes_of(case), *arguments, output=output)
        if case.route:
            self.compare_route(what, case, raw["route"])
        for name in case.outputs:
            self.compare(what, case, name, raw[name], backend)
        return raw

    def compare_route(self, what, case, raw):
        expected = case.route[0]
        got = np.frombuffer(raw, "<i8").reshape(expected.shape)
        rows = (got != expected).any(axis=1)
        if rows.any():
            at = np.flatnonzero(rows)[0]
            text = "%s: %d rows of route are wrong (rows %s)\n  first: route[%d] = %s, expected %s"
            self.fail(text % (what, rows.sum(), spans(rows), at, got[at].tolist(), expected[at].tolist()))

    def compare(self, what, case, name, raw, backend):
        value = case.outputs[name]
        expected, bound = value.v, tolerance(backend, value)
        got = np.frombuffer(raw, "<f4").reshape(expected.shape).astype(np.float64)
        error = np.abs(got - expected)
        bad = ~(error <= bound)  # NaN counts as bad
        if not bad.any():
            return
        ratio = np.where(np.isnan(error), np.inf, error) / np.maximum(bound, 1e-300)
        first, worst = np.argwhere(bad)[0], np.unravel_index(np.argmax(ratio), ratio.shape)
        lines = ["%s: %d of %d elements of %s are wrong (rows %s)" % (what, bad.sum(), bad.size, name, spans(bad.any(axis=1)))]
        for label, at in (("first", tuple(first)), ("worst", tuple(worst))):
            lines.append(
                "  %s: %s[%d,%d] = %.9g, expected %.9g, error %.3g, bound %.3g, error/bound %.3g"
                % ((label, name) + tuple(at) + (got[at], expected[at], error[at], bound[at], ratio[at]))
            )
        if "token_ids" in case.inputs:
            lines.append("  token id of the first: %d" % case.inputs["token_ids"][0][first[0]])
        self.fail("\n".join(lines))

    def each(self, cases, backends=None):
        """Every case on every backend, or on those of the chosen ones that are in `backends`."""
        for case in cases:
            files = case.write()
            for backend in [b for b in Settings.backends if backends is None or b in backends]:
                with self.subTest(backend=backend):
                    self.check(case, backend, files=files)

    def difference(self, case, backend, one, other):
        name = next(n for n in one[1] if one[1][n] != other[1][n])
        kind = "<i8" if name == "route" else "<u4"
        shape = case.route[0].shape if name == "route" else case.outputs[name].v.shape
        a, b = (np.frombuffer(r[1][name], kind).reshape(shape) for r in (one, other))
        at = tuple(np.argwhere(a != b)[0])
        shown = [v[at] if name == "route" else v.view("<f4")[at] for v in (a, b)]
        return "[%s] %s: not bitwise equal: %d of %d elements differ (rows %s), first %s[%d,%d] = %.9g with %s but %.9g with %s" % (
            (backend, case, (a != b).sum(), a.size, spans((a != b).any(axis=1)), name)
            + tuple(int(i) for i in at)
            + (shown[0], " ".join(map(str, one[0])), shown[1], " ".join(map(str, other[0])))
        )

    def sweep(self, case, thorough=True):
        """Every --batch and --threads; bitwise the same on simd, which is given more of them if `thorough`."""
        files = case.write()
        for backend in Settings.backends:
            first = None
            for threads in (1, Settings.threads):
                for batch in (1, 3, None):
                    if backend != "simd" and (not thorough or (threads == 1) != (batch == 3)):
                        continue
                    flags = ("--threads", threads) + (("--batch", batch) if batch else ())
                    with self.subTest(backend=backend, flags=flags):
                        raw = self.check(case, backend, *flags, files=files)
                        if backend != "simd":
                            continue
                        first = first or (flags, raw)
                        if raw != first[1]:
                            self.fail(self.difference(case, backend, first, (flags, raw)))


def spans(flags):
    rows = np.flatnonzero(flags)
    text = ", ".join(str(r) for r in rows[:8])
    return text + (", ..." if len(rows) > 8 else "")


def has_word(text, word):
    """`word` in `text`, and not as a part of a longer word or number (but 29 is in 4x29)."""
    pattern = r"(?<![\d-])%s(?!\d)" if re.fullmatch(r"-?\d+", word) else r"(?<![\w-])%s(?!\w)"
    return re.search(pattern % re.escape(word), text) is not None


class RefusalTest(RunLayerTest):
    twice = True  # else one of the two runs that `bad` describes, in turn

    def bad(self, what, layer, inputs, offender, names=(), any_of=(), flags=None, output=None):
        """layer, inputs: bytes to write or a path.  offender: layer, input or output, whose path the line must have.

        names: words that the line must have; any_of: words of which it must have one.
        Once without an older OUTPUT on the first backend, once with one on the last.
        """
        layer = write("layer", layer) if isinstance(layer, bytes) else layer
        inputs = write("input", inputs) if isinstance(inputs, bytes) else inputs
        runs = ((False, Settings.backends[0]), (True, Settings.backends[-1]))
        if flags is not None or output is not None:
            runs = ((False, None), (True, None)) if output is None else ((False, None),)
        if not self.twice:
            runs = runs[Settings.runs % 2 :][:1]
        for older, backend in runs:
            with self.subTest(what=what):
                target = output or fresh_output()
                folder = os.path.dirname(target)
                if older:
                    with open(target, "wb") as file:
                        file.write(b"older content")
                before = sorted(os.listdir(folder)) if os.path.isdir(folder) else None
                chosen = (("--backend", backend) if backend else ()) + (flags or ())
                result = self.run_tool(layer, inputs, target, *chosen)
                self.judge(what, result, {"layer": layer, "input": inputs, "output": target}, offender, names, any_of)
                after = sorted(os.listdir(folder)) if os.path.isdir(folder) else None
                if before != after:
                    self.fail("%s: OUTPUT's folder held %s, now %s: %s" % (what, before, after, self.describe(result)))
                if older:
                    with open(target, "rb") as file:
                        self.assertEqual(file.read(), b"older content", "%s: OUTPUT was changed" % what)

    def judge(self, what, result, paths, offender, names, any_of):
        def complain(text):
            self.fail("%s: %s: %.4000s" % (what, text, self.describe(result)))

        if result.returncode != 1:
            complain("status 1 expected")
        if result.stdout:
            complain("stdout must be empty")
        text = result.stderr.decode(errors="replace")
        lines = text.splitlines()
        if len(lines) != 1 or not lines[0].strip():
            complain("exactly one non-empty line on stderr expected")
        if re.fullmatch(rb"[ -~]+\n?", result.stderr) is None:
            complain("printable ASCII expected")
        if len(result.stderr) > LONGEST:
            complain("a line of at most %d bytes expected, not of %d" % (LONGEST, len(result.stderr)))
        if paths[offender] not in text:
            complain("the line must have %s's path %s" % (offender.upper(), paths[offender]))
        for path in paths.values():
            text = text.replace(path, " <path> ")
        for name in names:
            if not has_word(text, name):
                complain("the line must have %r beside the path" % name)
        if any_of and not any(has_word(text, name) for name in any_of):
            complain("the line must have one of %s beside the path" % ", ".join(any_of))


class Result(unittest.TextTestResult):
    """Shows the first few failures of each test method only: a common fault fails hundreds."""

    shown = 5

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.count = {}

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.count[test.id()] = self.count.get(test.id(), 0) + 1
            if self.count[test.id()] > self.shown:
                return
        super().addSubTest(test, subtest, error)

    def printErrors(self):
        super().printErrors()
        for name, n in self.count.items():
            if n > self.shown:
                self.stream.writeln("%s: %d failures, the first %d shown" % (name, n, self.shown))
