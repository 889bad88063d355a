#!/usr/bin/env python3
"""python/examples in a small form, and what they refuse.

    examples_test.py [LIBRARY]
"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import done, expect, tiffin

examples = Path(__file__).resolve().parents[2] / "python" / "examples"
environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(Path(tiffin.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]))


def run(name, *arguments):
    return subprocess.run([sys.executable, examples / name, *arguments], capture_output=True, text=True, env=environment)


def refused(name, says, *arguments):
    ran = run(name, *arguments)
    expect(f"{name} {arguments}: {ran.stderr}", ran.returncode != 0 and says in ran.stderr and "Traceback" not in ran.stderr)


small = ("--d-model", "48", "--d-ff", "64", "--vocab", "100", "--rank", "4", "--seconds", "0")
ran = run("compare_compositions.py", *small)
expect("compare_compositions.py: " + ran.stderr, ran.returncode == 0 and ran.stdout.count("\n") == 12)
stem = next(line.split() for line in ran.stdout.splitlines() if line.startswith("STEM  "))
expect(f"its STEM: {stem}", float(stem[1]) == float(f"{2 * 48 * 64 + 100 * 64:.3g}") and float(stem[3]) == float(f"{2 * 48 * 64 + 64:.3g}"))
ran = run("compare_compositions.py", *small, "--format", "bf16", "ffn(gate(gelu), dense)")
expect("one of one's own: " + ran.stderr, ran.returncode == 0 and ran.stdout.count("\n") == 3 and "ffn(gate(gelu), dense)" in ran.stdout)
refused("compare_compositions.py", "bagel", *small, "bagel")
try:
    import matplotlib  # noqa: F401
except ImportError:
    refused("compare_compositions.py", "matplotlib", *small, "--plot", "x.png")
else:
    with tempfile.TemporaryDirectory() as folder:
        plot = Path(folder) / "layers.png"
        ran = run("compare_compositions.py", *small, "--plot", plot)
        expect("a plot: " + ran.stderr, ran.returncode == 0 and plot.read_bytes()[1:4] == b"PNG")

ran = run("table_on_disk.py", "--gib", "2", "--limit-gib", "0.5", "--calls", "20")
expect("table_on_disk.py: " + ran.stdout + ran.stderr, ran.returncode == 0 and "2.00 GiB" in ran.stdout)
done()
