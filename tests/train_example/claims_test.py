"""reproduce as a program, with models that learn nothing: every claim is answered, what was trained is kept, a run that
is stopped goes on, and runs with other options or another text are not taken for its own.

    claims_test.py REPRODUCE PLOT_CLAIMS
"""
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

REPRODUCE, PLOT = sys.argv[1:3]


def command(out, *more, scale="minute", steps=6):
    return [REPRODUCE, "--scale", scale, "--steps", str(steps), "--threads", "1", "--out", str(out), *more]


def reproduce(out, *more, **how):
    return subprocess.run(command(out, *more, **how), capture_output=True, text=True, timeout=300)


def answers(out):
    """The tables without what each run tells of itself."""
    return {p.name: re.sub(r"\nCommit .*", "", p.read_text()) for p in sorted(out.glob("claim.*.md"))}


class Claims(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.out = pathlib.Path(self.folder.name)
        self.addCleanup(self.folder.cleanup)

    def test_all_are_answered_and_what_was_trained_is_kept(self):
        done = reproduce(self.out, "--seeds", "2", "--commit", "abc123")
        self.assertEqual(done.returncode, 0, done.stderr)
        first = answers(self.out)
        self.assertEqual(sorted(int(name.split(".")[1]) for name in first), list(range(1, 17)))
        for name, page in first.items():
            self.assertNotRegex(page, r"\bnan\b|\binf\b", name)
            rows = [line for line in page.splitlines() if line.startswith("| ")]
            self.assertGreater(len(rows), 2, name)
            self.assertEqual(len({line.count("|") for line in rows}), 1, name)
        self.assertIn("Commit abc123, `reproduce --scale minute", (self.out / "claim.1.fold.md").read_text())
        # Claim 1 holds for any weights: the last column is the largest difference.
        folded = re.findall(r"^\| (?:ReToken|MeKi) \|.*\| (\S+) \|$", first["claim.1.fold.md"], re.MULTILINE)
        self.assertEqual(len(folded), 2)
        for difference in folded:
            self.assertLess(float(difference), 1e-6)
        trained = done.stdout.count("  held-out loss")
        self.assertGreater(trained, 40)
        again = reproduce(self.out, "--seeds", "2")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertNotIn("  held-out loss", again.stdout)
        self.assertEqual(answers(self.out), first)
        others = reproduce(self.out, "--seeds", "2", "--claim", "2", steps=5)
        self.assertEqual(others.returncode, 1)
        self.assertIn("was trained with steps 6, not 5", others.stdout)
        self.assertIn("claims not answered: 2", others.stderr)
        text = self.out / "other"
        text.mkdir()
        for d in range(120):
            (text / f"{d}.txt").write_text(
                "\n\n".join(f"line {i} of text {d}, {i * d} words long" for i in range(60)))
        others = reproduce(self.out, "--seeds", "2", "--claim", "2", "--text", str(text))
        self.assertEqual(others.returncode, 1)
        self.assertIn("learns from another text", others.stdout)

        drawn = subprocess.run([sys.executable, PLOT, str(self.out)], capture_output=True, text=True, timeout=300)
        if "matplotlib" in drawn.stderr:
            print("skipped: the pictures, without matplotlib", file=sys.stderr)
        else:
            self.assertEqual(drawn.returncode, 0, drawn.stderr)
            self.assertGreater(len(list(self.out.glob("*.png"))), 5)

    def test_a_run_that_is_stopped_goes_on(self):
        whole, stopped = self.out / "whole", self.out / "stopped"
        asked = ["--seeds", "1", "--claim", "3"]
        self.assertEqual(reproduce(whole, *asked).returncode, 0)
        program = subprocess.Popen(command(stopped, *asked), stdout=subprocess.PIPE, text=True)
        while not list(stopped.glob("runs/*/checkpoint.safetensors")) and program.poll() is None:
            time.sleep(0.01)
        program.send_signal(signal.SIGINT)
        said = program.communicate(timeout=300)[0]
        self.assertEqual(program.returncode, 0)
        self.assertIn("stopped; the same command goes on from here", said)
        self.assertFalse(list(stopped.glob("claim.*")))
        self.assertEqual(reproduce(stopped, *asked).returncode, 0)
        self.assertEqual(answers(stopped), answers(whole))

    def test_what_is_wrong_is_told(self):
        short = self.out / "short.txt"
        short.write_text("a few words " * 40)
        for words, scale, part in (
                (["--claim", "99"], "minute", "--claim: '99' is no whole number from 1 to 16"), ([], "day", "--scale day; known are"),
                (["--text", str(self.out / "no")], "minute", "neither a file nor a folder"),
                (["--text", str(short)], "minute", "held out")):
            done = reproduce(self.out, *words, scale=scale)
            self.assertEqual(done.returncode, 1, words)
            self.assertIn(part, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
