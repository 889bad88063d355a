#!/usr/bin/env python3
"""`run_memory` against numpy in double: the n-gram memory of small qwen4exp models made here and the per-layer embeddings of
small Gemma models, from the published formulas.

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


class Gemma:
    """Per-layer embeddings: a token-major table, one projection for the context terms of all layers."""

    def __init__(self, rng, kind, architecture="gemma4", layers=3, width=64, d=40):
        self.layers, self.width, self.d, self.arch = layers, width, d, architecture
        normal = lambda *shape: (rng.normal(size=shape) / np.sqrt(shape[-1])).astype(F32)
        raw = noise(rng, kind, (VOCAB, layers * width))
        self.table = numbers(raw, kind, (VOCAB, layers * width))
        self.w = {"per_layer_model_proj": normal(layers * width, d), "per_layer_proj_norm": 1 + normal(width), "token_embd": normal(VOCAB, d)}
        for i in range(layers):
            self.w.update({f"blk.{i}.inp_gate": normal(width, d), f"blk.{i}.proj": normal(d, width), f"blk.{i}.post_norm": 1 + normal(d)})
        self.metadata = {"general.architecture": architecture, f"{architecture}.block_count": layers, f"{architecture}.embedding_length": d,
                         f"{architecture}.embedding_length_per_layer_input": width, f"{architecture}.attention.layer_norm_rms_epsilon": EPS}
        self.tensors = {k + ".weight": (v.astype(F32).tobytes(), "F32", v.shape) for k, v in self.w.items()}
        self.tensors["per_layer_token_embd.weight"] = (raw, kind, (VOCAB, layers * width))

    def run(self, ids, x, layer):
        w = {k: v.astype(np.float64) for k, v in self.w.items()}
        rms = lambda v: v / np.sqrt((v**2).mean(axis=-1, keepdims=True) + F32(EPS))
        of_layer = slice(layer * self.width, (layer + 1) * self.width)
        embedded = w["token_embd"][ids] * np.sqrt(self.d)
        context = rms(embedded @ w["per_layer_model_proj"][of_layer].T / np.sqrt(self.d)) * w["per_layer_proj_norm"]
        p = (context + np.sqrt(self.width) * self.table[ids][:, of_layer]) / np.sqrt(2)
        g = x.astype(np.float64) @ w[f"blk.{layer}.inp_gate"].T
        gelu = g / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)))
        return rms((gelu * p) @ w[f"blk.{layer}.proj"].T) * w[f"blk.{layer}.post_norm"]


def gemma(runner, rng, path):
    tokens, without = 13, lambda all, name: {k: v for k, v in all.items() if k != name}
    for architecture, kind, width in (("gemma4", "F32", 64), ("gemma3n", "Q8_0", 32), ("gemma4", "Q4_K", 256)):
        model = Gemma(rng, kind, architecture, width=width)
        path.write_bytes(file_of(model.metadata, model.tensors))
        x, ids = rng.normal(size=(tokens, model.d)).astype(F32), rng.integers(0, VOCAB, tokens)
        given = {"x": (x, "F32"), "token_ids": (ids, "I64")}
        for layer in range(model.layers):
            y = model.run(ids, x, layer)
            for flags, bound in ((["--backend", "reference"], 1e-6), ([], 2e-5), (["--batch", "4"], 2e-5)):
                got = runner.run(path, given, "--layer", str(layer), *flags)
                error = 1 if isinstance(got, str) else np.abs(got - y).max() / np.abs(y).max()
                runner.expect(f"{architecture} {kind} layer {layer} {flags}", error < bound, got if isinstance(got, str) else f"error {error:.2e}")
    narrow = Gemma(rng, "Q4_K", "gemma4", 4, 64)
    rows = model.tensors["per_layer_model_proj.weight"]
    for metadata, tensors, layer, sentences in (
            (model.metadata, model.tensors, 3, ["there is no layer 3; the model has 3"]),
            (without(model.metadata, "gemma4.embedding_length_per_layer_input"), model.tensors, 0, ["embedding_length_per_layer_input: missing"]),
            (model.metadata, without(model.tensors, "blk.1.inp_gate.weight"), 1, ["blk.1.inp_gate.weight: missing"]),
            (model.metadata, {**model.tensors, "per_layer_model_proj.weight": (rows[0][:-160], "F32", (767, 40))}, 1,
             ["per_layer_model_proj.weight: has shape (767, 40); 3 layers of 256 have 768 rows"]),
            (narrow.metadata, narrow.tensors, 1, ["64 columns from 64 on; Q4_K keeps 256 together"]),
            ({"general.architecture": "llama"}, model.tensors, 1, ["'llama'", "'gemma3n' and 'gemma4'"])):
        path.write_bytes(file_of(metadata, tensors))
        runner.refused(path, given, "model.gguf", *sentences, flags=("--layer", str(layer)))
    path.write_bytes(file_of(model.metadata, model.tensors))
    runner.refused(path, {**given, "token_ids": (ids + VOCAB, "I64")}, "lies outside [0, 60]", flags=("--layer", "0"))
    runner.refused(path, {**given, "sequence": (ids, "I64")}, "sequence: not read", flags=("--layer", "0"))


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
        y = got["y"].astype(np.float64)
        return (got["rows"], y) if "rows" in got else y

    def expect(self, what, holds, said=""):
        self.failed += not holds
        if not holds:
            print("FAILED:", what, said)

    def refused(self, model, given, *sentences, flags=()):
        got = self.run(model, given, *flags)
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
                ({**given, "x": (x[:, :-1].copy(), "F32")}, ["x: is F32 of shape (31, 95)", "it must be F32 (T, 96)"]),
                ({**given, "sequence": (sequence[:-1].copy(), "I64")}, ["sequence: is I64 of shape (30)"]),
                ({**given, "y": (x, "F32")}, ["y: not read"]),
                (without(given, "token_ids"), ["token_ids: missing"])):
            runner.refused(path, wrong, *sentences)
        gemma(runner, rng, path)
        print(runner.runs, "runs,", runner.failed, "failed")
        return runner.failed != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
