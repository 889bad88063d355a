#!/usr/bin/env python3
"""`train_tables` beside a small model made here: its perplexities are those that `decoder` counts without and with the side
file that it writes, tables lower that of the text they learn from, and what is wrong is told in a line that names it.

    train_tables_test.py TRAIN_TABLES DECODER

Without numpy: status 77.
"""
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy as np
except ImportError:
    print("numpy is not installed")
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "io"))
from decoder_reference import BytePairs
from decoder_test import CONTROLS, MERGES, Made
from run_layer_files import parse

TRAIN_TABLES, DECODER = sys.argv[1:3]
CONTEXT = 16
SMALL = {"--layers": 1, "--context": CONTEXT, "--batch": 4, "--tokens": 4000, "--epochs": 4, "--judged": 1600, "--held-out": 0.2,
         "--rate": 0.03, "--threads": 1, "--d-mem": 8, "--experts": 3}


def run(*words):
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, errors="replace", timeout=300)


class Tables(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.at = pathlib.Path(cls.folder.name)
        words = BytePairs(MERGES, CONTROLS, "smollm")
        cls.made = Made(np.random.default_rng(3), "llama", words, begin=words.ids["<|begin|>"])
        cls.model = cls.made.file(cls.at / "model.gguf")
        draw = random.Random(1)
        for folder, vocabulary in (("text", "the layer reads a row of its table and adds it to what it has"),
                                   ("prose", "once upon a time there was an old king who had three sons")):
            (cls.at / folder).mkdir()
            for i in range(30):
                (cls.at / folder / f"{i}.txt").write_text(" ".join(draw.choice(vocabulary.split()) for _ in range(80)))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def learn(self, changed, model=None):
        options = {"--text": self.at / "text", "--prose": self.at / "prose", "--out": self.at / "side",
                   "--write-texts": self.at / "texts", **SMALL, **changed}
        return run(TRAIN_TABLES, model or self.model, *(word for pair in options.items() for word in pair))

    def counted(self, text, *more):
        done = run(DECODER, self.model, "--perplexity", self.at / "texts" / text, "--context", CONTEXT, "--weights", "f32",
                   "--chunks", 100, *more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return float(done.stdout.split()[1])

    def check(self, kind, *tensors):
        done = self.learn({"--kind": kind})
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [line.split("|") for line in done.stdout.splitlines() if line.startswith(("| held_out", "| prose"))]
        self.assertEqual([r[1].strip() for r in rows], ["held_out", "prose"])
        for _, name, tokens, before, after, _ in rows:
            self.assertEqual(int(tokens), 1600)
            # Printed with three decimals; the decoder's activations are rounded elsewhere. A step's effect is far larger.
            self.assertLess(abs(float(before) / self.counted(name.strip() + ".txt") - 1), 2e-4)
            self.assertLess(abs(float(after) / self.counted(name.strip() + ".txt", "--side-file", self.at / "side") - 1), 2e-4)
        self.assertLess(float(rows[0][4]), 0.9 * float(rows[0][3]), done.stdout)
        stored = parse((self.at / "side").read_bytes())
        self.assertEqual(sorted(stored), sorted("blk.1." + t for t in tensors))

    def test_retoken(self):
        self.check("retoken", "modulators.weight", "scale")

    def test_mort(self):
        self.check("mort", "modulators.weight", "scale", "router.weight")

    def test_meki(self):
        self.check("meki", *("branch.1." + t for t in ("gate_proj.weight", "memory.weight", "out_proj.weight", "post_norm.weight")))

    def test_stem_hybrid(self):
        self.check("stem_hybrid", "stem_embed.weight")

    def test_what_is_wrong(self):
        def refused(done, *parts):
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            for part in parts:
                self.assertIn(part, done.stderr)

        refused(self.learn({"--layers": 3}), "--layers 3", "has 2")
        refused(self.learn({"--context": 4096}), "--context 4096", "1024")
        refused(self.learn({"--kind": "tables"}), "--kind", "tables")
        refused(self.learn({"--out": self.model}), "same file")
        refused(self.learn({"--batch": 4000}), "sequences", "4000")
        refused(self.learn({"--text": self.at / "none"}), "none", "neither a file nor a folder")
        short = self.at / "short"
        short.mkdir()
        for i in range(9):
            (short / f"{i}.txt").write_text(f"{i} the table and the row " * 9)
        refused(self.learn({"--text": short, "--context": 1000}), "held_out", "1001")
        lengthened = {**self.made.metadata, "llama.rope.scaling.attn_factor": 0.5}
        refused(self.learn({}, self.made.file(self.at / "other.gguf", lengthened)), "stretched")
        scaled = {**self.made.metadata, "llama.attention.scale": 0.1}
        refused(self.learn({}, self.made.file(self.at / "other.gguf", scaled)), "attention.scale")
        biased = {**self.made.stored, "blk.1.attn_q.bias": (b"\0" * 128, "F32", (32,))}
        refused(self.learn({}, self.made.file(self.at / "other.gguf", tensors=biased)), "blk.1.attn_q.bias")
        other = Made(np.random.default_rng(3), "qwen2", self.made.words)
        refused(self.learn({}, other.file(self.at / "other.gguf")), "qwen2", "llama")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
