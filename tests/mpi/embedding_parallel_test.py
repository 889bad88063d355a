"""train --embedding-parallel: 2 to 4 ranks have the losses of one machine, a checkpoint goes on at any number of ranks, and
what is wrong is told.

    embedding_parallel_test.py TRAIN MPIEXEC...        (the words before the number of ranks)
"""
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unittest

TRAIN, MPIEXEC = sys.argv[1], sys.argv[2:]
SMALL = ["--preset", "smoke", "--d-model", "16", "--d-ff", "24", "--layers", "2", "--heads", "2", "--kv-heads", "1", "--context",
         "16", "--batch", "5", "--vocabulary", "300", "--steps", "12", "--threads", "1", "--judge-every", "6",
         "--held-out-tokens", "208", "--held-out", "0.2"]


def numbers_of(path):
    """Of a checkpoint: every tensor of floats by its name."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + size])
    return {name: struct.unpack(f"<{(t['data_offsets'][1] - t['data_offsets'][0]) // 4}f",
                                data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]])
            for name, t in head.items() if name != "__metadata__" and t["dtype"] == "F32"}


class Ranks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.at = pathlib.Path(cls.folder.name)
        (cls.at / "text").mkdir()
        words = random.Random(1)
        for i in range(40):
            (cls.at / "text" / f"{i}.txt").write_text(
                " ".join(words.choice("the layer reads a row of its table and adds it to what it has".split()) for _ in range(120)))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def words(self, out, *more):
        return [TRAIN, *SMALL, "--text", self.at / "text", "--out", self.at / out, *more]

    def run_words(self, words, ok=True):
        done = subprocess.run([str(w) for w in words], capture_output=True, text=True, errors="replace", timeout=120)
        self.assertEqual(done.returncode == 0, ok, done.stderr + done.stdout)
        return done

    def one(self, out, *more, **options):
        return self.run_words(self.words(out, *more), **options)

    def ranks(self, n, out, *more, **options):
        return self.run_words([*MPIEXEC, n, *self.words(out, "--embedding-parallel", *more)], **options)

    def log(self, out):
        rows = [line.split(",") for line in (self.at / out / "log.csv").read_text().splitlines()]
        return [[float(row[i] or 0) for i in (0, 2, 3, 4, 6)] for row in rows[1:]]

    def checkpoint(self, out):
        return self.at / out / "checkpoint.safetensors"

    def same(self, one, other):
        """To rounding: sums over tokens in another order differ by some 2^-24 of their terms, which Adam divides by their size."""
        self.assertEqual(len(self.log(one)), len(self.log(other)))
        for a, b in zip(self.log(one), self.log(other)):
            if 0 in (a[-1], b[-1]):  # it was not judged: a stop is
                a[-1] = b[-1] = 0
            for x, y in zip(a, b):
                self.assertLess(abs(x - y), 1e-4 * abs(x) + 1e-6, f"{a} {b}")
        a, b = numbers_of(self.checkpoint(one)), numbers_of(self.checkpoint(other))
        self.assertEqual(a.keys(), b.keys())
        for name in a:
            size = max(map(abs, a[name]))
            # A gradient that is rounding alone moves its weight by a step's rate in either direction; few are.
            far = sum(abs(x - y) > 1e-2 * size + 1e-9 for x, y in zip(a[name], b[name]))
            self.assertLessEqual(far, len(a[name]) // 50, name)

    def test_losses_are_those_of_one_machine(self):
        for i, ffn in enumerate(("stem", "mort", "moe(stem, top_k=2)", "retoken(ffn(gate(silu), sum(dense, token_embedding)))")):
            self.one(f"one{i}", "--ffn", ffn)
            tables = sum(4 * len(v) for n, v in numbers_of(self.checkpoint(f"one{i}")).items() if ".ffn." in n and len(v) >= 300 * 16)
            self.assertGreater(tables, 0)
            for n in (2, 3, 4) if i == 1 else (i % 3 + 2,):
                told = self.ranks(n, f"ranks{i}.{n}", "--ffn", ffn).stdout
                self.assertIn(f"ranks: {n}; of ", told)
                self.same(f"one{i}", f"ranks{i}.{n}")
                for name in ("layer.0.safetensors", "model.safetensors"):
                    self.assertEqual((self.at / f"one{i}" / name).stat().st_size, (self.at / f"ranks{i}.{n}" / name).stat().st_size)

    def test_layer_norm_and_a_head_of_its_own(self):
        words = ("--ffn", "stem", "--norm", "layer", "--untied-head", "1")
        self.one("own_head", *words)
        self.ranks(2, "own_head2", *words)
        self.same("own_head", "own_head2")

    def test_a_checkpoint_goes_on_at_any_number_of_ranks(self):
        mort = ("--ffn", "mort")
        self.ranks(2, "whole", *mort)
        self.ranks(2, "again", *mort, "--stop", "5")
        self.ranks(2, "again", "--resume")
        self.assertEqual(self.checkpoint("whole").read_bytes(), self.checkpoint("again").read_bytes())
        self.ranks(3, "moved", *mort, "--stop", "4")
        self.one("moved", "--resume", "--stop", "8")
        self.ranks(4, "moved", "--resume")
        self.same("whole", "moved")

    def test_what_is_wrong_is_told(self):
        told = self.ranks(2, "wrong", "--batch", "1", ok=False).stderr
        self.assertIn("--batch 1: 2 ranks share the sequences of a step", told)
        told = self.ranks(1, "wrong", "--resting-rows-decay", "1", ok=False).stderr
        self.assertIn("--resting-rows-decay 1 with --embedding-parallel", told)
        differ = [*MPIEXEC, 1, *self.words("wrong", "--embedding-parallel"), ":", *MPIEXEC[1:], 1,
                  *self.words("wrong", "--embedding-parallel", "--ffn", "stem")]
        self.assertIn("rank 1 has --ffn stem, rank 0 has --ffn swiglu", self.run_words(differ, ok=False).stderr)
        (self.at / "file").write_text("")
        told = self.ranks(2, "file/below", "--ffn", "stem", ok=False).stderr
        self.assertIn("rank 0: ", told)
        self.assertFalse((self.at / "wrong").exists())


unittest.main(argv=sys.argv[:1])
