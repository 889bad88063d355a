#!/usr/bin/env python3
"""`run_memory` against numpy in double: the n-gram memory of small qwen4exp models made here, from the published formulas.

    run_memory_test.py RUN_MEMORY

Without numpy: status 77.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
except ImportError:
    print("numpy is not installed")
    sys.exit(77)

from gguf_files import F32, file_of, noise, numbers
from run_layer_files import decode, parse
from run_layer_files import file_of as safetensors_of

BRANCHES, D, HEADS, N, TAPS, WIDTH, VOCAB, END = 4, 24, 2, 3, 4, 32, 61, 7
SIZES = [53, 59, 61, 67]
OFFSETS = [0, 53, 112, 173]
MULTIPLIERS = [0x1234567890AB, 0x7FEDCBA98765, 0x314159265358]
EPS = 1e-6


class Model:
    def __init__(self, rng, kind, layer=1):
        self.kind, self.at = kind, f"blk.{layer}.ple_"
        c, wide = WIDTH * len(SIZES), BRANCHES * D
        normal = lambda *shape: (rng.normal(size=shape) / np.sqrt(shape[-1])).astype(F32)
        self.w = {"key": normal(wide, c), "value": normal(D, c), "norm_key": 1 + normal(BRANCHES, D), "norm_query": 1 + normal(BRANCHES, D),
                  "norm_conv": 1 + normal(BRANCHES, D), "conv1d": normal(wide, TAPS)}
        self.rows = OFFSETS[-1] + SIZES[-1] + 5
        raw = noise(rng, kind, (self.rows, WIDTH))
        self.table = numbers(raw, kind, (self.rows, WIDTH))
        self.metadata = {
            "general.architecture": "qwen4exp", "qwen4exp.block_count": 2, "qwen4exp.ple.layers": [layer], "qwen4exp.ple.ngram_size": N,
            "qwen4exp.ple.heads_per_ngram": HEADS, "qwen4exp.ple.conv_kernel": TAPS, "qwen4exp.ple.eos_token_id": END,
            "qwen4exp.ple.image_token_id": 3, "qwen4exp.ple.layer_multipliers": MULTIPLIERS, "qwen4exp.ple.head_offsets": OFFSETS,
            "qwen4exp.ple.head_vocab_sizes": SIZES, "qwen4exp.hyper_connection.count": BRANCHES,
            "qwen4exp.attention.layer_norm_rms_epsilon": EPS}
        self.tensors = {self.at + k + ".weight": (v.astype(F32).tobytes(), "F32", v.shape) for k, v in self.w.items()}
        self.tensors["token_embd.weight"] = (np.zeros((VOCAB, D), F32).tobytes(), "F32", (VOCAB, D))
        self.tensors["per_layer_token_embd.weight"] = (raw, kind, (self.rows, WIDTH))

    def run(self, ids, x, sequence):
        """Token by token, in the order of each sequence: rows (heads, T), y."""
        w = {k: v.astype(np.float64) for k, v in self.w.items()}
        rms = lambda v: v / np.sqrt((v**2).mean(axis=-1, keepdims=True) + F32(EPS))
        rows, y = np.zeros((len(SIZES), len(ids)), np.int64), np.zeros_like(x, dtype=np.float64)
        past = {}
        for t, (token, s) in enumerate(zip(ids, sequence)):
            before, normed = past.setdefault(s, ([], []))
            context, cut = [token], False
            for k in range(1, N):
                cut = cut or k > len(before) or before[-k] == END
                context.append(END if cut else before[-k])
            before.append(token)
            for n in range(2, N + 1):
                mix = 0
                for k in range(n):
                    mix ^= context[k] * MULTIPLIERS[k]
                for h in range((n - 2) * HEADS, (n - 1) * HEADS):
                    rows[h, t] = mix % SIZES[h] + OFFSETS[h]
            e = self.table[rows[:, t]].reshape(-1)
            key, value = rms((w["key"] @ e).reshape(BRANCHES, D)) * w["norm_key"], w["value"] @ e
            query = rms(x[t].astype(np.float64).reshape(BRANCHES, D)) * w["norm_query"]
            g = (key * query).sum(axis=1, keepdims=True) / np.sqrt(D)
            gate = 1 / (1 + np.exp(-np.sign(g) * np.sqrt(np.maximum(np.abs(g), 1e-6))))
            z = gate * value
            normed.append((rms(z) * w["norm_conv"]).reshape(-1))
            conv = sum(w["conv1d"][:, k] * normed[-1 - (TAPS - 1 - k) * N] for k in range(TAPS) if (TAPS - 1 - k) * N < len(normed))
            y[t] = z.reshape(-1) + conv / (1 + np.exp(-conv))
        return rows, y


class Runner:
    def __init__(self, tool, folder):
        self.tool, self.at, self.failed, self.runs = tool, Path(folder), 0, 0

    def run(self, model, given, *flags):
        (self.at / "in").write_bytes(safetensors_of(given))
        (self.at / "out").unlink(missing_ok=True)
        done = subprocess.run([self.tool, model, self.at / "in", self.at / "out", *flags], capture_output=True, text=True)
        self.runs += 1
        if done.returncode:
            self.expect("no output after a failure", not (self.at / "out").exists() and done.returncode == 1, done.stderr)
            return done.stderr.strip()
        self.expect("what is left out is said", "Left out" in done.stdout, done.stdout)
        got = {name: decode(raw, kind, shape) for name, (kind, shape, raw) in parse((self.at / "out").read_bytes()).items()}
        return got["rows"], got["y"].astype(np.float64)

    def expect(self, what, holds, said=""):
        self.failed += not holds
        if not holds:
            print("FAILED:", what, said)

    def refused(self, model, given, *sentences):
        got = self.run(model, given)
        self.expect(str(sentences), isinstance(got, str) and got.startswith("run_memory: ") and "\n" not in got and all(s in got for s in sentences), got)


def main(tool):
    rng = np.random.default_rng(11)
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(tool, folder)
        path = runner.at / "model.gguf"
        tokens = 31
        x = rng.normal(size=(tokens, BRANCHES * D)).astype(F32)
        ids = rng.integers(0, VOCAB, tokens)
        ids[[0, 4, 5, 17]] = END
        sequence = rng.integers(0, 3, tokens)
        given = {"x": (x, "F32"), "token_ids": (ids, "I64"), "sequence": (sequence, "I64")}
        for kind in ("F32", "Q8_0", "Q4_0"):
            model = Model(rng, kind)
            path.write_bytes(file_of(model.metadata, model.tensors))
            for of, what in ((sequence, given), (np.zeros(tokens, int), {k: v for k, v in given.items() if k != "sequence"})):
                rows, y = model.run(ids.tolist(), x, of.tolist())
                for flags, bound in ((["--backend", "reference"], 2e-6), ([], 2e-5), (["--batch", "1"], 2e-5), (["--batch", "7"], 2e-5)):
                    got = runner.run(path, what, *flags)
                    if isinstance(got, str):
                        runner.expect(f"{kind} {flags}", False, got)
                        continue
                    runner.expect(f"{kind} {flags}: rows", (got[0] == rows).all())
                    error = np.abs(got[1] - y).max() / np.abs(y).max()
                    runner.expect(f"{kind} {flags}: y", error < bound, f"error {error:.2e}")
        table, key = "per_layer_token_embd.weight", model.at + "key.weight"
        without = lambda all, name: {k: v for k, v in all.items() if k != name}
        for metadata, tensors, sentences in (
                ({**model.metadata, "general.architecture": "llama"}, model.tensors, ["general.architecture is 'llama'", "'qwen4exp'"]),
                (without(model.metadata, "qwen4exp.ple.layer_multipliers"), model.tensors, ["qwen4exp.ple.layer_multipliers: missing"]),
                ({**model.metadata, "qwen4exp.ple.layer_multipliers": MULTIPLIERS[:2]}, model.tensors, ["are 2, head_vocab_sizes 4", "have 3 and 4"]),
                ({**model.metadata, "qwen4exp.ple.layer_multipliers": [2**62, 1, 1]}, model.tensors, ["multipliers[0]", "overflows 63 bits"]),
                ({**model.metadata, "qwen4exp.ple.head_vocab_sizes": [53, 59, 61, 670]}, model.tensors, [table, "has 245 rows; head 3 reads up to row 843"]),
                ({**model.metadata, "qwen4exp.ple.eos_token_id": VOCAB}, model.tensors, ["end: is 61; there are 61 ids"]),
                ({**model.metadata, "qwen4exp.ple.layers": [0, 1]}, model.tensors, ["names 2 layers"]),
                ({**model.metadata, "qwen4exp.hyper_connection.count": 3}, model.tensors, ["key_proj.weight", "it is of 3 branches of 24"]),
                (model.metadata, without(model.tensors, key), [key + ": missing"]),
                (model.metadata, {**model.tensors, model.at + "key.scale": (np.ones(1, F32).tobytes(), "F32", (1,))}, [model.at + "key.scale", "not read"]),
                (model.metadata, {**model.tensors, table: (noise(rng, "F32", (245, 16)), "F32", (245, 16))},
                 [model.at + "value.weight", "it reads 4 rows of 16"])):
            path.write_bytes(file_of(metadata, tensors))
            runner.refused(path, given, "model.gguf", *sentences)
        whole = file_of(model.metadata, model.tensors)
        path.write_bytes(whole[:-100])
        runner.refused(path, given, "model.gguf", "per_layer_token_embd.weight")
        path.write_bytes(whole)
        for wrong, sentences in (
                ({**given, "token_ids": (ids + VOCAB - 7, "I64")}, ["token_ids[", "lies outside [0, 60]"]),
                ({**given, "x": (x[:, :-1].copy(), "F32")}, ["x: is F32 of shape (31, 95)", "4 branches"]),
                ({**given, "sequence": (sequence[:-1].copy(), "I64")}, ["sequence: is I64 of shape (30)"]),
                ({**given, "y": (x, "F32")}, ["y: not read"]),
                (without(given, "token_ids"), ["token_ids: missing"])):
            runner.refused(path, wrong, *sentences)
        print(runner.runs, "runs,", runner.failed, "failed")
        return runner.failed != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
