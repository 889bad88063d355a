"""What compare_layers says of the machine that it runs on: memory, caches, other programs; and how long it takes.

    python3 compare_layers_test.py COMPARE_LAYERS [CLASS...]
"""
import os
import pty
import re
import subprocess
import sys
import unittest

COMPARE_LAYERS = sys.argv[1]


def run(*options):
    return subprocess.run([COMPARE_LAYERS, "--tokens", "64", *options], capture_output=True, text=True)


def most_memory(text):
    number, unit = re.search(r"at most ([0-9.]+) ([kMG])B of memory", text).groups()
    return float(number) * {"k": 1e3, "M": 1e6, "G": 1e9}[unit]


class Memory(unittest.TestCase):
    def test_no_more_than_said_where_caches_are_large(self):
        child = subprocess.Popen([COMPARE_LAYERS, "--tokens", "64", "--shape", "512x2048", "--seconds", "0.01",
                                  "--cache-mib", "300"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        text = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        child.stdout.close()
        self.assertEqual(child.returncode, 0)
        self.assertIn("Largest difference from the double reference", text)
        self.assertLessEqual(1024 * usage.ru_maxrss, most_memory(text))
        self.assertLessEqual(most_memory(text), 2.5e9)
        self.assertGreaterEqual(1024 * usage.ru_maxrss, 0.6 * most_memory(text))

    def test_said_where_caches_are_larger_than_memory(self):
        ran = run("--shape", "32x64", "--seconds", "0.001", "--cache-mib", "100", "--memory-mib", "150")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertRegex(ran.stdout, r"The caches hold 104.9 MB: too much")
        self.assertLessEqual(most_memory(ran.stdout), 150 * 2**20)

    def test_refused_in_words(self):
        ran = run("--shape", "2048x8192", "--memory-mib", "1000")
        self.assertEqual(ran.returncode, 1)
        self.assertRegex(ran.stderr, r"2048x8192 needs 1\.[0-9]+ GB of memory; nine tenths of what is free are "
                                     r"943\.7 MB; --shape qwen3-0\.6b needs [0-9.]+ MB")
        ran = run("--memory-mib", "20")
        self.assertEqual(ran.returncode, 1)
        self.assertRegex(ran.stderr, r"llama-3\.2-1b needs 1\.[0-9]+ GB of memory; nine tenths of what is free are "
                                     r"18\.9 MB; there is no smaller")

    def test_a_smaller_shape(self):
        ran = run("--memory-mib", "420", "--seconds", "0.001")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertRegex(ran.stdout, r"llama-3\.2-1b needs 1\.[0-9]+ GB of memory; nine tenths of what is free are "
                                     r"396\.4 MB: qwen3-0\.6b runs in its place\.")
        self.assertIn("d_model 1024, d_ff 3072", ran.stdout)


class Trust(unittest.TestCase):
    def test_a_busy_machine_is_told(self):
        busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(2 * len(os.sched_getaffinity(0)))]
        try:
            ran = run("--shape", "96x256", "--seconds", "2")
        finally:
            for process in busy:
                process.kill()
                process.wait()
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertRegex(ran.stdout, r"The machine was busy: this program's threads waited for a core [0-9]+ % of their time")
        self.assertRegex(ran.stdout, r"(?m)^swiglu .*\)~")
        self.assertRegex(ran.stdout, r"~ cannot be trusted \([0-9]+ of 25 layers\)")


class Progress(unittest.TestCase):
    def test_the_time_left_on_a_terminal(self):
        ours, theirs = pty.openpty()
        child = subprocess.Popen([COMPARE_LAYERS, "--tokens", "64", "--shape", "96x256", "--seconds", "1.5"],
                                 stdout=subprocess.DEVNULL, stderr=theirs)
        os.close(theirs)
        seen = b""
        while True:
            try:
                some = os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
            if not some:
                break
            seen += some
        os.close(ours)
        self.assertEqual(child.wait(), 0)
        text = seen.decode()
        for what in ["swiglu: packing weights", "moe: checking against the reference", "timing prefill", "timing decode"]:
            self.assertRegex(text, r"\] +[0-9]+ %  [0-9]+ s left  " + what)
        shares = [int(share) for share in re.findall(r"\] +([0-9]+) %", text)]
        self.assertGreaterEqual(shares[-1], 90)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
