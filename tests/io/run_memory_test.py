#!/usr/bin/env python3
"""`run_memory` against numpy in double, from the published formulas, on small models made here: the n-gram memory of qwen4exp, the
Engram of DeepSeek-V4.1, an adapter of engram-peft, the per-layer embeddings of Gemma, the n-gram embedding of LongCat.

    run_memory_test.py RUN_MEMORY [CONVERT]

Without numpy: status 77.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
except ImportError:
    print("numpy is not installed")
    sys.exit(77)

from gguf_files import F32, f8, file_of, noise, numbers
from run_layer_files import decode, parse, raw_file
from run_layer_files import file_of as safetensors_of

BRANCHES, D, HEADS, N, TAPS, WIDTH, VOCAB, END = 4, 24, 2, 3, 4, 32, 61, 7
SIZES = [53, 59, 61, 67]
OFFSETS = [0, 53, 112, 173]
MULTIPLIERS = [0x1234567890AB, 0x7FEDCBA98765, 0x314159265358]
EPS = 1e-6


# What other tools store beside a weight, in the place of "weight", and how it is named; a bias is not read here either.
BESIDE = {"scale": "scales", "scales": "scales", "weight_scale": "scales", "weight_scale_inv": "scales", "weight_scale_2": "scales",
          "weight_global_scale": "scales", "input_scale": "activations are rounded", "zero_point": "zero points", "weight_zero_point": "zero points",
          "qzeros": "zero points", "g_idx": "groups", "qweight": "packed", "weight_packed": "packed", "weight.absmax": "scales",
          "weight.quant_state.bitsandbytes__nf4": "how weights were quantised", "bias": "no tensor of this name"}
ONE = (np.ones(1, F32), "F32")

APPLIED = ("scale", "weight_scale", "weight_scale_inv")  # to the rows of a checkpoint's table


def stored(tensors):
    """A safetensors file of (array, dtype), of which the array has the bytes."""
    header, data = {}, b""
    for name, (t, kind) in tensors.items():
        t = np.asarray(t)
        header[name] = {"dtype": kind, "shape": list(t.shape), "data_offsets": [len(data), len(data) + t.nbytes]}
        data += t.tobytes()
    return raw_file(header, data)


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

    def checkpoint(self, folder, shards=3, scale=None, layer=1, root="model.language_model."):
        """As published: norms less 1, the table in shards; with a scale, in F8, and its numbers become this model's."""
        at = f"{root}layers.{layer}.ple."
        rows = at + "ple_embedding."
        names = {"key": "key_proj", "value": "value_proj", "conv1d": "conv1d"}
        tensors = {at + names[k] + ".weight": (self.w[k].astype(F32), "F32") for k in names}
        tensors.update({f"{at}{k}.weight": (self.w[k].reshape(-1).astype(F32) - 1, "F32") for k in ("norm_key", "norm_query", "norm_conv")})
        self.w.update({k: 1 + tensors[f"{at}{k}.weight"][0].astype(np.float64).reshape(BRANCHES, D) for k in ("norm_key", "norm_query", "norm_conv")})
        tensors.update({rows + "layer_multipliers": (np.array(MULTIPLIERS), "I64"), rows + "ngram_heads_vocab_sizes": (np.array(SIZES), "I64"),
                        rows + "ngram_heads_offsets": (np.array(OFFSETS), "I64"), root + "embed_tokens.weight": (np.zeros((VOCAB, D), F32), "F32")})
        table, kind = self.table.astype(F32), "F32"
        if scale:
            table, kind = (np.clip(np.abs(table) * 20, 0, 100)).astype(np.uint8), "F8_E4M3"
            self.table = f8(table) * float(F32(scale))
            tensors[rows + "ngram_embedding.weight_scale"] = (np.array([scale], F32), "F32")
        for i, part in enumerate(np.array_split(table, shards)):
            tensors[rows + (f"ngram_embedding.shard_{i}.weight" if shards > 1 else "ngram_embedding.weight")] = (part, kind)
        config = {"vocab_size": VOCAB, "ngram_size": N, "heads_per_ngram": HEADS, "hc_count": BRANCHES, "ple_layer_ids": [layer + 1], "eos_token_id": END,
                  "rms_norm_eps": EPS, "image_token_id": 3}
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps({"model_type": "qwen4_exp", "text_config": config}))
        return tensors, at

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


def is_prime(n):
    return n > 1 and all(n % k for k in range(2, int(n**0.5) + 1))


class DeepSeek:
    """Engram of DeepSeek-V4.1: two layers with tables of their own; keys and value of one projection; no convolution."""

    N, HEADS, WIDTH, D, LAYERS, LEAST, PAD = 4, 2, 32, 64, (1, 3), 31, 5

    def __init__(self, rng):
        self.wide = self.WIDTH * (self.N - 1) * self.HEADS
        self.map = rng.integers(0, 40, VOCAB)
        bound = max(1, (2**63 - 1) // 40 // 2)  # as its program draws them
        self.multipliers = [[2 * int(m) + 1 for m in np.random.default_rng(10007 * layer).integers(0, bound, self.N)] for layer in self.LAYERS]
        self.primes, taken = [], set()
        for _ in self.LAYERS:
            of_layer = []
            for _ in range(self.N - 1):
                at = self.LEAST - 1
                for _ in range(self.HEADS):
                    at += 1
                    while not is_prime(at) or at in taken:
                        at += 1
                    taken.add(at)
                    of_layer.append(at)
            self.primes.append(of_layer)
        self.offsets = [[sum(p[:i]) for i in range(len(p))] for p in self.primes]
        normal = lambda *shape: (rng.normal(size=shape) / np.sqrt(shape[-1])).astype(F32)
        self.q, self.k = [1 + normal(BRANCHES, self.D) for _ in self.LAYERS], [1 + normal(BRANCHES, self.D) for _ in self.LAYERS]
        self.table, self.wkv = [normal(sum(p), self.WIDTH) for p in self.primes], [normal((BRANCHES + 1) * self.D, self.wide) for _ in self.LAYERS]

    def gguf(self, architecture="deepseek41"):
        a, flat = architecture + ".", lambda lists: [n for one in lists for n in one]
        metadata = {"general.architecture": architecture, a + "block_count": 5, a + "hyper_connection.count": BRANCHES,
                    a + "attention.layer_norm_rms_epsilon": EPS, a + "engram.layer_ids": list(self.LAYERS), a + "engram.head_count": self.HEADS,
                    a + "engram.key_length": self.WIDTH, a + "engram.max_ngram_size": self.N, a + "engram.pad_id": int(self.map[self.PAD]),
                    a + "engram.multipliers": flat(self.multipliers), a + "engram.primes": flat(self.primes), a + "engram.offsets": flat(self.offsets),
                    a + "engram.token_map": [int(i) for i in self.map]}
        tensors = {}
        for n, layer in enumerate(self.LAYERS):
            for name, t in (("q", self.q), ("k", self.k), ("wkv", self.wkv), ("embd", self.table)):
                tensors[f"blk.{layer}.engram_{name}.weight"] = (t[n].tobytes(), "F32", t[n].shape)
        return metadata, tensors

    def checkpoint(self, rng, folder):
        """As published: codes of F8 with E8M0 scales, per 32 values of a row and per block of 32 x 32; its numbers become this model's."""
        tensors = {}
        for n, layer in enumerate(self.LAYERS):
            at = f"layers.{layer}.engram."
            for name, all_of, rows in (("embed", self.table, 1), ("wkv", self.wkv, 32)):
                shape = all_of[n].shape
                codes = rng.integers(0, 256, shape).astype(np.uint8)
                codes[(codes & 0x7F) == 0x7F] = 0  # NaN
                scales = rng.integers(116, 121, (shape[0] // rows, shape[1] // 32)).astype(np.uint8)
                tensors[at + name + ".weight"], tensors[at + name + ".scale"] = (codes, "F8_E4M3"), (scales, "F8_E8M0")
                spread = np.repeat(np.repeat(np.ldexp(1.0, scales.astype(int) - 127), rows, 0), 32, 1)
                all_of[n] = (f8(codes) * spread).astype(F32)
            tensors[at + "q_weight"], tensors[at + "k_weight"] = (self.q[n], "F32"), (self.k[n], "F32")
        self.stored = tensors
        (folder / "model.safetensors").write_bytes(stored(tensors))
        config = {"vocab_size": VOCAB, "hc_mult": BRANCHES, "rms_norm_eps": EPS, "engram_layer_ids": list(self.LAYERS), "engram_n_heads": self.HEADS,
                  "engram_max_ngram_size": self.N, "engram_vocab_size": self.LEAST, "engram_pad_token_id": self.PAD, "engram_compressed_vocab_size": 40}
        return {"model_type": "deepseek_v41", "text_config": config}

    def run(self, ids, x, sequence, n):
        rms = lambda v: v / np.sqrt((v**2).mean(axis=-1, keepdims=True) + F32(EPS))
        rows, y, past = np.zeros((len(self.primes[n]), len(ids)), np.int64), np.zeros_like(x, dtype=np.float64), {}
        for t, (token, s) in enumerate(zip(ids, sequence)):
            before = past.setdefault(s, [])
            before.append(int(self.map[token]))
            window = [before[-1 - k] if k < len(before) else int(self.map[self.PAD]) for k in range(self.N)]
            for h, (prime, offset) in enumerate(zip(self.primes[n], self.offsets[n])):
                mix = 0
                for k in range(2 + h // self.HEADS):
                    mix ^= window[k] * self.multipliers[n][k]
                rows[h, t] = mix % prime + offset
            both = self.wkv[n].astype(np.float64) @ self.table[n][rows[:, t]].reshape(-1).astype(np.float64)
            key, value = both[:-self.D].reshape(BRANCHES, self.D), both[-self.D:]
            g = (rms(x[t].astype(np.float64).reshape(BRANCHES, self.D)) * self.q[n] * self.k[n] * rms(key)).sum(axis=1, keepdims=True) / np.sqrt(self.D)
            y[t] = (value / (1 + np.exp(-np.copysign(np.sqrt(np.maximum(np.abs(g), 1e-6)), g)))).reshape(-1)
        return rows, y


def deepseek(runner, rng, path):
    model, tokens = DeepSeek(rng), 23
    x, ids, sequence = rng.normal(size=(tokens, BRANCHES * model.D)).astype(F32), rng.integers(0, VOCAB, tokens), rng.integers(0, 3, tokens)
    given = {"x": (x, "F32"), "token_ids": (ids, "I64"), "sequence": (sequence, "I64")}
    without = lambda all, *names: {k: v for k, v in all.items() if k not in names}

    def check(what, at, *flags):
        for n, layer in enumerate(model.LAYERS):
            rows, y = model.run(ids, x, sequence, n)
            for more, bound in ((["--backend", "reference"], 2e-6), ([], 2e-5), (["--batch", "5"], 2e-5)):
                got = runner.run(at, given, "--layer", str(layer), *more, *flags)
                if isinstance(got, str):
                    runner.expect(f"{what}: layer {layer} {more}", False, got)
                    continue
                runner.expect(f"{what}: rows of layer {layer} {more}", (got[0] == rows).all())
                error = np.abs(got[1] - y).max() / np.abs(y).max()
                runner.expect(f"{what}: y of layer {layer} {more}", error < bound, f"error {error:.2e}")

    metadata, tensors = model.gguf("deepseek4")  # as files of the first days name it
    path.write_bytes(file_of(metadata, tensors))
    check("deepseek4", path)
    runner.refused(path, given, "layer 2 has no rows by the last ids", flags=("--layer", "2"))
    path.write_bytes(file_of(without(metadata, "deepseek4.engram.primes"), tensors))
    runner.refused(path, given, "deepseek4.engram.primes: missing")
    metadata, tensors = model.gguf()
    path.write_bytes(file_of(metadata, tensors))
    check("deepseek41", path)
    for name, meaning in [("engram_wkv." + end, meaning) for end, meaning in BESIDE.items()] + [
            ("engram_embd.scale", "scales"), ("engram_q.input_scale", "activations"), ("engram_conv.weight", "no tensor of this name")]:
        path.write_bytes(file_of(metadata, {**tensors, "blk.1." + name: (np.ones(1, F32).tobytes(), "F32", (1,))}))
        runner.refused(path, given, "blk.1." + name, "the memory of 'deepseek41'", meaning)
    # Published files lack these keys: a file beside the model has them.
    constants = runner.at / "constants.safetensors"
    flat = lambda lists: np.array([n for one in lists for n in one])
    told = {"multipliers": (np.array(model.multipliers), "I64"), "primes": (flat(model.primes), "I64"), "offsets": (flat(model.offsets), "I64"),
            "token_map": (model.map.astype(np.int32), "I32"), "pad_id": (np.array([model.map[model.PAD]]), "I64")}
    bare = without(metadata, *(f"deepseek41.engram.{k}" for k in ("multipliers", "primes", "offsets", "token_map", "pad_id")))
    path.write_bytes(file_of(bare, tensors))
    constants.write_bytes(safetensors_of(told))
    check("deepseek41 with a file of constants", path, "--constants", str(constants))
    runner.refused(path, given, "deepseek41.engram.multipliers: missing", "no file of constants has them")
    for wrong, sentences in (({"multipliers": (np.arange(3), "I64")}, ["engram.multipliers: are 3; each of the layers with a memory, 2 in all, has 4"]),
                             ({"token_map": (np.array([-1] * VOCAB), "I64")}, ["token_map: names the compressed id -1"]),
                             ({"token_map": (model.map.astype(F32), "F32")}, ["token_map is F32"]), ({"seed": (np.array([1]), "I64")}, ["seed is no constant"]),
                             ({"multipliers": (np.array([2**60] * 8), "I64")}, ["multipliers[0]", "overflows 63 bits"]),
                             ({"primes": (flat(model.primes) * 0, "I64")}, ["primes: of 2 ids have 0 among them"])):
        constants.write_bytes(safetensors_of({**told, **wrong}))
        runner.refused(path, given, *sentences, flags=("--constants", str(constants)))
    path.write_bytes(file_of(metadata, tensors))
    runner.refused(path, given, "layer 2 has no rows by the last ids; these have: 1, 3", flags=("--layer", "2"))
    name = "blk.1.engram_wkv.weight"
    path.write_bytes(file_of(metadata, {**tensors, name: (tensors[name][0][:-4 * model.wide], "F32", ((BRANCHES + 1) * model.D - 1, model.wide))}))
    runner.refused(path, given, name + ": has shape (319, 192)", "the keys of 4 branches and their value")

    folder = runner.at / "deepseek"
    folder.mkdir()
    config = model.checkpoint(rng, folder)
    (folder / "config.json").write_text(json.dumps(config))
    constants.write_bytes(safetensors_of({"token_map": told["token_map"]}))
    check("a DeepSeek checkpoint in F8", folder, "--constants", str(constants))
    if runner.convert:  # what convert writes is what the program of the model draws
        both = runner.at / "both.safetensors"
        done = subprocess.run([runner.convert, folder, "--constants", both, "--token-map", constants], capture_output=True, text=True)
        runner.expect("convert --constants", done.returncode == 0 and done.stdout == "2 layers: 8 multipliers, 12 primes, 61 ids\n", done.stdout + done.stderr)
        if done.returncode == 0:
            got = {name: (decode(raw, kind, shape).tolist(), kind) for name, (kind, shape, raw) in parse(both.read_bytes()).items()}
            runner.expect("its constants", got == {"multipliers": (model.multipliers, "I64"), "primes": (model.primes, "I64"), "offsets": (model.offsets, "I64"),
                                                   "pad_id": ([int(model.map[model.PAD])], "I64"), "token_map": (model.map.tolist(), "I32")}, str(got))
        for wrong, sentence in (([path, "--constants", path], "MODEL"), ([folder, "--token-map", constants, "x"], "--token-map is for --constants"),
                                ([folder, "x", "--constants", both], "--constants takes MODEL alone"), ([folder, "--constants", both], "token_map: has 0 ids")):
            done = subprocess.run([runner.convert, *wrong], capture_output=True, text=True)
            runner.expect(sentence, done.returncode == 1 and sentence in done.stderr, done.stderr)
    for end, meaning in BESIDE.items():
        for stem in ("layers.1.engram.wkv.", "layers.1.engram.embed."):
            if end != "scale":
                (folder / "model.safetensors").write_bytes(stored({**model.stored, stem + end: ONE}))
                # Of several kinds of scales, one is taken, and the other is not.
                named = (stem + "scale", "scales") if end in APPLIED else (stem + end,)
                runner.refused(folder, given, *named, "the memory of 'deepseek_v41'", meaning, flags=("--constants", str(constants)))
    for name in ("layers.1.engram.conv.weight", "layers.1.engram.q_weight_scale", "layers.1.engram.scale"):
        (folder / "model.safetensors").write_bytes(stored({**model.stored, name: ONE}))
        runner.refused(folder, given, name, "no tensor of this name", flags=("--constants", str(constants)))
    (folder / "model.safetensors").write_bytes(stored({**model.stored, "layers.1.ffn.w1.scale": ONE, "layers.3.engram.conv.weight": ONE}))
    runner.expect("beside others", not isinstance(runner.run(folder, given, "--constants", str(constants)), str))
    (folder / "model.safetensors").write_bytes(stored(model.stored))
    whole = (folder / "model.safetensors").read_bytes()
    name = b'"layers.1.engram.embed.scale":{"dtype":"F8_E8M0","shape":['
    at = whole.index(name) + len(name)
    rows = str(sum(model.primes[0])).encode()
    (folder / "model.safetensors").write_bytes(whole[:at] + b"1," + rows + b"]" + whole[whole.index(b"]", at) + 1:])
    runner.refused(folder, given, "layers.1.engram.embed.weight: has scales of shape (1, ", flags=("--constants", str(constants)))
    (folder / "model.safetensors").write_bytes(whole)
    runner.refused(folder, given, "token_map: has 0 ids; there are 61")
    config["text_config"]["engram_vocab_size"] = 41
    (folder / "config.json").write_text(json.dumps(config))
    runner.refused(folder, given, "has", "rows; head", flags=("--constants", str(constants)))


def qwen_checkpoint(runner, rng, given):
    ids, x, sequence = given["token_ids"][0], given["x"][0], given["sequence"][0]
    for shards, scale in ((1, None), (3, None), (12, 0.0125)):  # 12: "shard_10" is not between "shard_1" and "shard_2"
        model, folder = Model(rng, "F32"), runner.at / "qwen"
        tensors, at = model.checkpoint(folder, shards, scale)
        (folder / "model.safetensors").write_bytes(stored(tensors))
        rows, y = model.run(ids.tolist(), x, sequence.tolist())
        for flags, bound in ((["--backend", "reference"], 2e-6), ([], 2e-5)):
            got = runner.run(folder, given, *flags)
            error = 1 if isinstance(got, str) else np.abs(got[1] - y).max() / np.abs(y).max()
            runner.expect(f"qwen checkpoint, {shards} shards {flags}", error < bound and (got[0] == rows).all(), got if isinstance(got, str) else f"error {error:.2e}")
    table = at + "ple_embedding.ngram_embedding"
    file = folder / "model.safetensors"

    def refused(changed, *sentences):
        file.write_bytes(stored({k: v for k, v in {**tensors, **changed}.items() if v is not None}))
        runner.refused(folder, given, *sentences)

    for end, meaning in BESIDE.items():
        for stem in (at + "key_proj.", at + "conv1d.", at + "norm_key.", table + ".shard_1."):
            if not (stem == table + ".shard_1." and end in APPLIED):
                refused({stem + end: ONE}, stem + end, "the memory of 'qwen4_exp'", meaning)
    file.write_bytes(stored({**tensors, "model.language_model.embed_tokens.weight_scale": ONE, "lm_head.input_scale": ONE}))
    runner.expect("beside what is not read", not isinstance(runner.run(folder, given), str))
    for name in (table + ".weight_scale_2", table + ".scale", table + ".weight", table + ".input_scale", at + "norm_value.weight",
                 at + "ple_embedding.vocab_map", at + "scale"):
        refused({name: ONE}, name, "no tensor of this name")
    refused({at + "key_proj.weight": None, at + "key_proj.weight_packed": ONE}, at + "key_proj.weight: missing", at + "key_proj.weight_packed", "packed")
    refused({at + "key_proj.weight": (np.zeros((96, 16)), "F64"), at + "key_proj.g_idx": ONE}, at + "key_proj.weight: is F64", at + "key_proj.g_idx", "groups")
    refused({table + ".weight_scale": (np.ones(1), "F64")}, table + ".weight_scale: is F64")
    refused({at + "odd": (np.ones(1), "F64")}, at + "odd", "no tensor of this name")
    shard = lambda i: f"{table}.shard_{i}.weight"
    for i in (0, 5, 10):
        refused({shard(i): None}, shard(i) + ": missing in ")
    refused({shard(11): None}, shard(11) + ": missing in ", "the 11 shards before it have 225 rows; 240 are addressed")
    refused({shard(i): None for i in range(12)}, table + ".weight: missing in ")
    refused({shard(3): (tensors[shard(3)][0][:, :16].copy(), "F8_E4M3")}, shard(3) + ": has rows of 16 values in F8_E4M3, the first shard of 32")
    # A shard in a file of its own, which is cut off or not there; or there is no such shard, and the index does not name it.
    names = {name: "table.safetensors" if name == shard(11) else "rest.safetensors" for name in tensors}
    parts = {file: {n: tensors[n] for n in names if names[n] == file} for file in set(names.values())}
    file.unlink()
    index = folder / "model.safetensors.index.json"

    def write(weight_map):
        for part, held in parts.items():
            (folder / part).write_bytes(stored(held))
        index.write_text(json.dumps({"weight_map": weight_map}))

    write(names)
    runner.expect("two files", not isinstance(runner.run(folder, given), str))
    whole = (folder / "table.safetensors").read_bytes()
    for left in (whole[:-50], whole[:40], b""):
        (folder / "table.safetensors").write_bytes(left)
        runner.refused(folder, given, "table.safetensors")
    (folder / "table.safetensors").unlink()
    runner.refused(folder, given, "table.safetensors")
    write({n: f for n, f in names.items() if n != shard(11)})
    runner.refused(folder, given, shard(11) + ": missing in ")
    write({n: f for n, f in names.items() if n != shard(4)})
    runner.refused(folder, given, shard(4) + ": is in rest.safetensors, but model.safetensors.index.json does not name it")
    del parts["rest.safetensors"][shard(4)]
    write(names)
    runner.refused(folder, given, shard(4) + ": missing in rest.safetensors, where model.safetensors.index.json has it")
    write({n: f for n, f in names.items() if n != shard(4)})
    runner.refused(folder, given, shard(4) + ": missing in ")


class Adapter:
    """As engram-peft saves it: two branches over one stream, summed, with a convolution; ids as they are, or by a map."""

    N, HEADS, WIDTH, D, BRANCHES, TAPS, PAD, SEED, LAYERS = 3, 2, 12, 32, 2, 3, 2, 5, (1, 3)

    def __init__(self, rng, compressed):
        self.primes, self.compressed = {1: [53, 59, 61, 67], 3: [71, 73, 79, 83]}, compressed
        self.map = rng.integers(0, compressed, VOCAB)
        bound = (2**63 - 1) // compressed // 2
        self.multipliers = {layer: [2 * int(m) + 1 for m in np.random.default_rng(self.SEED + 10007 * layer).integers(0, bound, self.N)] for layer in self.LAYERS}
        normal = lambda *shape: (rng.normal(size=shape) / np.sqrt(shape[-1])).astype(F32)
        self.tensors = {}
        for layer in self.LAYERS:
            at, wide = f"{layer}.", self.WIDTH * (self.N - 1) * self.HEADS
            offsets = np.array([sum(self.primes[layer][:i]) for i in range(len(self.primes[layer]))])
            self.tensors.update({at + "multi_head_embedding.offsets": (offsets, "I64"),
                                 at + "multi_head_embedding.embedding.weight": (normal(sum(self.primes[layer]), self.WIDTH), "F32"),
                                 at + "gating.w_v.weight": (normal(self.D, wide), "F32"),
                                 at + "short_conv.conv.weight": (normal(self.BRANCHES * self.D, 1, self.TAPS), "F32")})
            for b in range(self.BRANCHES):
                self.tensors.update({f"{at}gating.w_k.{b}.weight": (normal(self.D, wide), "F32"), f"{at}gating.norm_h.{b}.weight": (1 + normal(self.D), "F32"),
                                     f"{at}gating.norm_k.{b}.weight": (1 + normal(self.D), "F32"), f"{at}short_conv.norms.{b}.weight": (1 + normal(self.D), "F32")})
        self.config = {"target_layers": list(self.LAYERS), "ngram_sizes": [2, 3], "hc_mult": self.BRANCHES, "n_head_per_ngram": self.HEADS, "pad_id": self.PAD,
                       "compressed_vocab_size": compressed, "seed": self.SEED, "enable_tokenizer_compression": True}

    def run(self, layer, ids, x, mapped):
        w = {k[2:].removesuffix(".weight"): v.astype(np.float64) for k, (v, _) in self.tensors.items() if k.startswith(f"{layer}.")}
        rms = lambda v, eps: v / np.sqrt((v**2).mean(axis=-1, keepdims=True) + F32(eps))
        to = (lambda i: int(self.map[i])) if mapped else int
        rows, y = np.zeros((len(self.primes[layer]), len(ids)), np.int64), np.zeros_like(x, dtype=np.float64)
        for t in range(len(ids)):
            for h, prime in enumerate(self.primes[layer]):
                n, mix = 2 + h // self.HEADS, 0
                for k in range(n):  # the oldest of the longest n-gram first: shorter ones do not reach the token itself
                    at = t - (self.N - 1) + k
                    mix ^= (to(ids[at]) if at >= 0 else to(self.PAD)) * self.multipliers[layer][k]
                rows[h, t] = mix % prime + int(w["multi_head_embedding.offsets"][h])
        e = w["multi_head_embedding.embedding"][rows.T].reshape(len(ids), -1)
        for b in range(self.BRANCHES):
            key = rms(e @ w[f"gating.w_k.{b}"].T, np.finfo(F32).eps) * w[f"gating.norm_k.{b}"]
            g = (key * rms(x.astype(np.float64), np.finfo(F32).eps) * w[f"gating.norm_h.{b}"]).sum(axis=1, keepdims=True) / np.sqrt(self.D)
            z = e @ w["gating.w_v"].T / (1 + np.exp(-np.sign(g) * np.sqrt(np.maximum(np.abs(g), 1e-6))))
            normed, taps = rms(z, 1e-5) * w[f"short_conv.norms.{b}"], w["short_conv.conv"][b * self.D:(b + 1) * self.D, 0]
            conv = np.zeros_like(z)
            for k in range(self.TAPS):
                before = (self.TAPS - 1 - k) * self.N
                conv[before:] += taps[:, k] * normed[:len(ids) - before]
            y += z + conv / (1 + np.exp(-conv))
        return rows, y


def adapter(runner, rng):
    model, folder, tokens = Adapter(rng, 40), runner.at / "adapter", 19
    folder.mkdir()
    x, ids = rng.normal(size=(tokens, model.D)).astype(F32), rng.integers(0, VOCAB, tokens)
    given, constants = {"x": (x, "F32"), "token_ids": (ids, "I64")}, runner.at / "map.safetensors"

    def write(config={}, tensors={}):
        (folder / "config.json").write_text(json.dumps({**model.config, **config}))
        whole = {k: v for k, v in {**model.tensors, **tensors}.items() if v is not None}
        (folder / "engram_adapters.safetensors").write_bytes(stored(whole))

    def check(what, given, mapped, *flags):
        for layer in model.LAYERS:
            rows, y = model.run(layer, given["token_ids"][0], x, mapped)
            for more, bound in ((["--backend", "reference"], 2e-6), ([], 2e-5), (["--batch", "4"], 2e-5)):
                got = runner.run(folder, given, "--layer", str(layer), *more, *flags)
                error = 1 if isinstance(got, str) else np.abs(got[1] - y).max() / np.abs(y).max()
                runner.expect(f"{what}, layer {layer} {more}", error < bound and (got[0] == rows).all(), got if isinstance(got, str) else f"error {error:.2e}")

    constants.write_bytes(safetensors_of({"token_map": (model.map, "I64")}))
    mapped = ("--constants", str(constants))
    write()
    check("an adapter with a map", given, True, *mapped)
    runner.refused(folder, given, "token_map: the adapter compresses ids")
    # Another vocabulary's map, or ids: more compressed ids than the adapter was trained for, or more ids than there are.
    for told, sentences in ((model.map + 7, ["token_map: names the compressed id ", "; the adapter has 40"]),
                            (model.map[:2], ["pad_id of config.json is 2, which is no id of the map"]),
                            (model.map[:50], ["token_ids[", "lies outside [0, 49]"])):
        constants.write_bytes(safetensors_of({"token_map": (told, "I64")}))
        runner.refused(folder, {**given, "token_ids": (np.full(tokens, 50), "I64")}, *sentences, flags=mapped)
    write({"enable_tokenizer_compression": False})
    check("an adapter of plain ids", {**given, "token_ids": (ids % 40, "I64")}, False)
    runner.refused(folder, {**given, "token_ids": (np.full(tokens, 40), "I64")}, "token_ids[0]", "lies outside [0, 39]")
    for end, meaning in BESIDE.items():
        for stem in ("1.gating.w_v.", "1.gating.w_k.0.", "1.short_conv.conv.", "1.multi_head_embedding.embedding."):
            if stem.endswith("embedding.") and end in APPLIED:
                continue  # applied
            write({"enable_tokenizer_compression": False}, {stem + end: ONE})
            runner.refused(folder, given, stem + end, meaning)
    for name in ("1.gating.w_k.2.weight", "1.out_proj.weight", "1.multi_head_embedding.map"):
        write({"enable_tokenizer_compression": False}, {name: ONE})
        runner.refused(folder, given, name, "no tensor of this name")
    write({"enable_tokenizer_compression": False}, {"3.out_proj.weight": ONE, "3.gating.w_v.weight_scale": ONE})
    check_one = runner.run(folder, {**given, "token_ids": (ids % 40, "I64")}, "--layer", "1")
    runner.expect("beside another layer's", not isinstance(check_one, str), check_one)
    runner.refused(folder, given, "3.gating.w_v.weight_scale", "the memory has", "scales", flags=("--layer", "3"))
    write({"enable_tokenizer_compression": False}, {"1.gating.w_v.weight": None})
    runner.refused(folder, given, "1.gating.w_v.weight: missing")


def longcat(runner, rng):
    ratio, longest, split, d, width, end, tokens = 2, 3, 2, 40, 24, 7, 29
    heads = split * (longest - 1)
    normal = lambda *shape: (rng.normal(size=shape) / np.sqrt(shape[-1])).astype(F32)
    sizes = [ratio * VOCAB + 2 * i + 1 for i in range(heads)]
    tensors = {"model.embed_tokens.weight": normal(VOCAB, d)}
    for i, rows in enumerate(sizes):
        tensors[f"model.ngram_embeddings.embedders.{i}.weight"] = normal(rows, width)
        tensors[f"model.ngram_embeddings.post_projs.{i}.weight"] = normal(d, width)
    folder = runner.at / "longcat"
    folder.mkdir()
    config = {"model_type": "longcat_flash_ngram", "vocab_size": VOCAB, "ngram_vocab_size_ratio": ratio, "emb_neighbor_num": longest,
              "emb_split_num": split, "eos_token_id": end}
    write = lambda t, c: ((folder / "model.safetensors").write_bytes(safetensors_of({k: (v, "F32") for k, v in t.items()})),
                          (folder / "config.json").write_text(json.dumps(c)))
    write(tensors, config)
    ids, sequence = rng.integers(0, VOCAB, tokens), rng.integers(0, 2, tokens)
    ids[[3, 11, 12]] = end
    rows, y, past = np.zeros((heads, tokens), np.int64), np.zeros((tokens, d)), {}
    for t, (token, s) in enumerate(zip(ids, sequence)):
        before = past.setdefault(s, [])
        window = [int(token)]
        for k in range(1, longest):
            cut = k > len(before) or end in before[len(before) - k:]
            window.append(0 if cut else int(before[-k]))
        before.append(int(token))
        y[t] = tensors["model.embed_tokens.weight"][token]
        for i, m in enumerate(sizes):
            rows[i, t] = sum(window[k] * VOCAB**k for k in range(2 + i // split)) % m
            y[t] += tensors[f"model.ngram_embeddings.post_projs.{i}.weight"].astype(np.float64) @ tensors[f"model.ngram_embeddings.embedders.{i}.weight"][rows[i, t]]
    y /= 1 + heads
    given = {"token_ids": (ids, "I64"), "sequence": (sequence, "I64")}
    for flags, bound in ((["--backend", "reference"], 1e-6), ([], 2e-5), (["--batch", "4"], 2e-5)):
        got = runner.run(folder, given, *flags)
        if isinstance(got, str):
            runner.expect(f"longcat {flags}", False, got)
            continue
        runner.expect(f"longcat {flags}", (got[0] == rows).all() and np.abs(got[1] - y).max() < bound * np.abs(y).max())
    runner.refused(folder, {**given, "x": (np.zeros((tokens, d), F32), "F32")}, "x: not read; known are token_ids, sequence")
    name = "model.ngram_embeddings.embedders.1.weight"
    write({**tensors, name: tensors[name][:-1]}, config)
    runner.refused(folder, given, name + ": has 124 rows; ratio 2 times 61 ids and 3 are 125")
    write({k: v for k, v in tensors.items() if "post_projs.2" not in k}, config)
    runner.refused(folder, given, "post_projs.2.weight: missing")
    for end, meaning in BESIDE.items():
        for stem in ("model.embed_tokens.", "model.ngram_embeddings.post_projs.1."):
            write({**tensors, stem + end: np.ones(1, F32)}, config)
            runner.refused(folder, given, stem + end, "the memory of 'longcat_flash_ngram'", meaning)
    for extra in ("embedders.4.weight", "post_projs.4.weight", "embedders.1.input_scale", "norm.weight"):
        write({**tensors, "model.ngram_embeddings." + extra: np.ones((2, 2), F32)}, config)
        runner.refused(folder, given, "model.ngram_embeddings." + extra, "no tensor of this name")
    table = "model.ngram_embeddings.embedders.0"
    parts = {f"{table}.shard_{i}.weight": part for i, part in enumerate(np.array_split(tensors[table + ".weight"], 3))}
    rest = {k: v for k, v in tensors.items() if k != table + ".weight"}
    write({**rest, **parts}, config)
    got = runner.run(folder, given)
    runner.expect("longcat, shards", not isinstance(got, str) and np.abs(got[1] - y).max() < 2e-5 * np.abs(y).max(), got)
    write({**rest, **{k: v for k, v in parts.items() if "shard_2" not in k}}, config)
    runner.refused(folder, given, table + ".shard_2.weight: missing in ", "82 rows; 123 are addressed")
    write({**rest, **parts, "model.layers.0.mlp.up_proj.weight_scale": np.ones(1, F32)}, config)
    runner.expect("longcat, beside others", not isinstance(runner.run(folder, given), str))
    write(tensors, {**config, "emb_neighbor_num": 1})
    runner.refused(folder, given, "tables: are 2 for each length of 2 to 1")
    write(tensors, {k: v for k, v in config.items() if k != "emb_split_num"})
    runner.refused(folder, given, "config.json has no emb_split_num")


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

    def checkpoint(self, folder, root="model.language_model."):
        theirs = {"inp_gate": "per_layer_input_gate", "proj": "per_layer_projection", "post_norm": "post_per_layer_input_norm",
                  "per_layer_model_proj": "per_layer_model_projection", "per_layer_proj_norm": "per_layer_projection_norm", "token_embd": "embed_tokens"}
        name = lambda k: root + (f"layers.{k.split('.')[1]}." if "." in k else "") + theirs[k.split(".")[-1]] + ".weight"
        tensors = {name(k): (v.astype(F32), "F32") for k, v in self.w.items()}
        tensors[root + "embed_tokens_per_layer.weight"] = (self.table.astype(F32), "F32")
        folder.mkdir(exist_ok=True)
        config = {"num_hidden_layers": self.layers, "hidden_size_per_layer_input": self.width, "rms_norm_eps": EPS, "hidden_activation": "gelu_pytorch_tanh"}
        (folder / "config.json").write_text(json.dumps({"model_type": self.arch, "text_config": config}))
        return tensors

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
            ({"general.architecture": "llama"}, model.tensors, 1, ["'llama'", "'qwen4exp' and 'deepseek41'"])):
        path.write_bytes(file_of(metadata, tensors))
        runner.refused(path, given, "model.gguf", *sentences, flags=("--layer", str(layer)))
    path.write_bytes(file_of(model.metadata, model.tensors))
    runner.refused(path, {**given, "token_ids": (ids + VOCAB, "I64")}, "lies outside [0, 60]", flags=("--layer", "0"))
    runner.refused(path, {**given, "sequence": (ids, "I64")}, "sequence: not read", flags=("--layer", "0"))
    one = (np.ones(1, F32).tobytes(), "F32", (1,))
    for end, meaning in BESIDE.items():
        for stem in ("blk.1.inp_gate.", "blk.1.post_norm.", "per_layer_model_proj.", "token_embd.", "per_layer_token_embd."):
            path.write_bytes(file_of(model.metadata, {**model.tensors, stem + end: one}))
            runner.refused(path, given, stem + end, "the memory of 'gemma4'", meaning, flags=("--layer", "1"))
    for name in ("per_layer_gate.weight", "per_layer_token_embd_extra"):
        path.write_bytes(file_of(model.metadata, {**model.tensors, name: one}))
        runner.refused(path, given, name, "no tensor of this name", flags=("--layer", "1"))
    path.write_bytes(file_of(model.metadata, {**model.tensors, "blk.0.inp_gate.scale": one, "blk.1.ffn_up.input_scale": one, "output.scale": one}))
    runner.expect("beside others", not isinstance(runner.run(path, given, "--layer", "1"), str))

    model, folder, layer = Gemma(rng, "F32", "gemma3n"), runner.at / "gemma", 1
    tensors = model.checkpoint(folder)
    write = lambda changed: (folder / "model.safetensors").write_bytes(stored({k: v for k, v in {**tensors, **changed}.items() if v is not None}))
    write({})
    y, got = model.run(ids, x, layer), runner.run(folder, given, "--layer", str(layer))
    runner.expect("a checkpoint of gemma3n", not isinstance(got, str) and np.abs(got - y).max() < 2e-5 * np.abs(y).max(), got)
    root = "model.language_model."
    for end, meaning in BESIDE.items():
        for stem in ("layers.1.per_layer_input_gate.", "layers.1.post_per_layer_input_norm.", "per_layer_model_projection.", "embed_tokens.", "embed_tokens_per_layer."):
            if not (stem == "embed_tokens_per_layer." and end in APPLIED):
                write({root + stem + end: ONE})
                runner.refused(folder, given, root + stem + end, "the memory of 'gemma3n'", meaning, flags=("--layer", "1"))
    write({root + "embed_tokens_per_layer.weight_scale": ONE})
    runner.refused(folder, given, "embed_tokens_per_layer.weight", "has shards or scales", flags=("--layer", "1"))
    for name in ("per_layer_gate.weight", "layers.1.per_layer_gate.weight"):
        write({root + name: ONE})
        runner.refused(folder, given, root + name, "no tensor of this name", flags=("--layer", "1"))
    write({root + "layers.0.per_layer_input_gate.weight_scale": ONE, root + "layers.1.mlp.up_proj.weight_scale": ONE, "lm_head.weight_scale": ONE})
    runner.expect("a checkpoint, beside others", not isinstance(runner.run(folder, given, "--layer", "1"), str))
    write({root + "per_layer_model_projection.weight": None, root + "per_layer_model_projection.qweight": ONE})
    runner.refused(folder, given, "per_layer_model_projection.weight: missing", "per_layer_model_projection.qweight", "packed", flags=("--layer", "1"))


class Runner:
    def __init__(self, tool, folder, convert):
        self.tool, self.at, self.convert, self.failed, self.runs, self.ways = tool, Path(folder), convert, 0, 0, ("direct", "cached")

    def run(self, model, given, *flags):
        """What run_memory says: from tables that are mapped, the same bytes as from those that are read in other ways."""
        got = self.run_once(model, given, *flags)
        for how in self.ways if not isinstance(got, str) else ():
            was = (self.at / "out").read_bytes()
            other = self.run_once(model, given, *flags, "--table", how)
            if isinstance(other, str) and "cannot be opened" in other:  # a file system that does not read around its cache
                print("not tested:", other)
                self.ways = ()
                break
            self.expect(f"{flags} --table {how}: the same output", not isinstance(other, str) and (self.at / "out").read_bytes() == was, other)
        return got

    def run_once(self, model, given, *flags):
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


def main(tool, convert=None):
    rng = np.random.default_rng(11)
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(tool, folder, convert)
        path = runner.at / "model.gguf"
        tokens = 31
        x = rng.normal(size=(tokens, BRANCHES * D)).astype(F32)
        ids = rng.integers(0, VOCAB, tokens)
        ids[[0, 4, 5, 17]] = END
        ids[9:13] = 3  # at the positions of an image the placeholder's id is hashed like any other
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
                ({**model.metadata, "qwen4exp.ple.layer_multipliers": MULTIPLIERS[:2]}, model.tensors, ["layer_multipliers: are 2; each of the layers with a memory, 1 in all, has 3"]),
                ({**model.metadata, "qwen4exp.ple.layer_multipliers": [2**62, 1, 1]}, model.tensors, ["multipliers[0]", "overflows 63 bits"]),
                ({**model.metadata, "qwen4exp.ple.head_vocab_sizes": [53, 59, 61, 670]}, model.tensors, [table, "has 245 rows; head 3 reads up to row 843"]),
                ({**model.metadata, "qwen4exp.ple.eos_token_id": VOCAB}, model.tensors, ["eos_token_id: is 61; there are 61 ids"]),
                ({**model.metadata, "qwen4exp.ple.layers": [0, 1]}, model.tensors, ["names 2 layers"]),
                ({**model.metadata, "qwen4exp.hyper_connection.count": 3}, model.tensors, ["key_proj.weight", "it is of 3 branches of 24"]),
                (model.metadata, without(model.tensors, key), [key + ": missing"]),
                (model.metadata, {**model.tensors, model.at + "key.scale": (np.ones(1, F32).tobytes(), "F32", (1,))}, [model.at + "key.scale", "not read"]),
                (model.metadata, {**model.tensors, table: (noise(rng, "F32", (245, 16)), "F32", (245, 16))},
                 ["value_proj.weight", "it reads 4 rows of 16"])):
            path.write_bytes(file_of(metadata, tensors))
            runner.refused(path, given, "model.gguf", *sentences)
        one = (np.ones(1, F32).tobytes(), "F32", (1,))
        for end, meaning in BESIDE.items():
            for stem in (model.at + "key.", model.at + "norm_conv.", "per_layer_token_embd.", "token_embd."):
                path.write_bytes(file_of(model.metadata, {**model.tensors, stem + end: one}))
                runner.refused(path, given, "model.gguf", stem + end, "the memory of 'qwen4exp'", meaning)
        for name, tensor in ((model.at + "norm_value.weight", one), (model.at + "gate.weight", (noise(rng, "IQ2_XXS", (1, 256)), "IQ2_XXS", (1, 256)))):
            path.write_bytes(file_of(model.metadata, {**model.tensors, name: tensor}))
            runner.refused(path, given, name, "no tensor of this name")
        path.write_bytes(file_of(model.metadata, {**model.tensors, "blk.0.ple_key.scale": one, "blk.1.ffn_up.input_scale": one}))
        runner.expect("beside others", not isinstance(runner.run(path, given), str))
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
        deepseek(runner, rng, path)
        qwen_checkpoint(runner, rng, given)
        adapter(runner, rng)
        longcat(runner, rng)
        print(runner.runs, "runs,", runner.failed, "failed")
        return runner.failed != 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
