#!/usr/bin/env python3
"""`convert` against numpy in double: layer files of models made here, and GGUF files put together again byte for byte.

    convert_test.py CONVERT

Without numpy: status 77.
"""

import json
import re
import struct
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
from run_layer_files import decode, encode, parse
from run_layer_files import file_of as safetensors_of

PARTS = ("gate", "up", "down")
ARRAY = [0.5, -1.0, 2.0]


def metadata_of(raw):
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8:8 + length]).get("__metadata__", {})


def stored(raw, name):
    """A tensor of a layer file: its format, and its numbers in double."""
    dtype, shape, data = parse(raw)[name]
    form = metadata_of(raw).get(name + ".format")
    if form is None:
        return dtype, decode(data, dtype, shape).astype(np.float64)
    kind, size = {"q8_0": ("Q8_0", 34), "q4_0": ("Q4_0", 18)}[form]
    return kind, numbers(data, kind, (*shape[:-1], shape[-1] // size * 32))


class Test:
    def __init__(self, tool, folder):
        self.tool, self.at, self.failed, self.checks = tool, Path(folder), 0, 0

    def expect(self, what, holds, said=""):
        self.checks += 1
        self.failed += not holds
        if not holds:
            print("FAILED:", what, said)

    def run(self, *arguments):
        done = subprocess.run([self.tool, *map(str, arguments)], capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr.removesuffix("\n")

    def refused(self, sentences, *arguments):
        before = sorted(self.at.rglob("*"))
        status, _, line = self.run(*arguments)
        self.expect(sentences, status == 1 and "\n" not in line and all(s in line for s in sentences), line)
        self.expect(f"{sentences}: no output is left", sorted(self.at.rglob("*")) == before)


def padded(raw):
    """As ggml writes files: the last tensor padded too."""
    return raw + b"\0" * (-len(raw) % 32)


def head(arch, layers, **more):
    return {"general.architecture": arch, f"{arch}.block_count": layers, "some.array": ARRAY, "general.name": "a \u00e4 name",
            **{f"{arch}.{k}": v for k, v in more.items()}}


def dense(rng, layer, d, f, kinds):
    shapes = {"gate": (f, d), "up": (f, d), "down": (d, f)}
    made = {f"blk.{layer}.ffn_{p}.weight": (noise(rng, k, shapes[p]), k, shapes[p]) for p, k in zip(PARTS, kinds)}
    made[f"blk.{layer}.ffn_norm.weight"] = (noise(rng, "F32", (d,)), "F32", (d,))
    return made


def formats(test, rng):
    """What layer files hold is the model's, or as near as the format allows, and what is printed is what is so."""
    d, f = 256, 512
    layers = [("F32",) * 3, ("Q8_0",) * 3, ("Q4_1",) * 3, ("Q4_K", "Q4_K", "Q6_K"), ("F32", "Q4_1", "Q8_0")]
    tensors = {}
    for i, kinds in enumerate(layers):
        tensors.update(dense(rng, i, d, f, kinds))
    model = test.at / "formats.gguf"
    model.write_bytes(file_of(head("gemma2", len(layers)), tensors))
    for i, kinds in enumerate(layers):
        for weights in (None, "as-stored", "f32", "bf16", "f16", "q8_0", "q4_0"):
            out = test.at / "layer.safetensors"
            status, said, wrong = test.run(model, "--layer", i, out, *(["--weights", weights] if weights else []))
            test.expect(f"layer {i} {weights}", status == 0, wrong)
            raw = out.read_bytes()
            told = {k: v for k, v in metadata_of(raw).items() if not k.endswith(".format")}
            test.expect(f"layer {i}: options", told == {"block": "glu", "activation": "gelu_tanh"}, told)
            test.expect(f"layer {i}: tensors", sorted(parse(raw)) == sorted(p + "_proj.weight" for p in PARTS))
            worst = {}
            for p, kind in zip(PARTS, kinds):
                x = numbers(*tensors[f"blk.{i}.ffn_{p}.weight"])
                form, y = stored(raw, p + "_proj.weight")
                mixed = any(k == "F32" for k in kinds)
                wanted = {"f32": "F32", "bf16": "BF16", "f16": "F16", "q8_0": "Q8_0", "q4_0": "Q4_0"}.get(
                    weights, kind if kind in ("F32", "Q8_0", "Q4_0") else "F32" if mixed else "Q8_0")
                test.expect(f"layer {i} {weights} {p}: format", form == wanted, form)
                off, block = np.abs(x - y), np.abs(x).reshape(-1, 32).max(axis=1).repeat(32).reshape(x.shape)
                # Half a step of the format; q8_0 and q4_0 have a scale rounded to f16 beside it, and q4_0 a step on one
                # side that it has not on the other. Numbers of 4 bits and an offset are f32, whose rounding is below all.
                bound = {"F32": 2.0 ** -24 * np.abs(x), "BF16": 2.0 ** -8 * np.abs(x), "F16": 2.0 ** -11 * np.abs(x) + 2.0 ** -25,
                         "Q8_0": block * (1 / 254 + 2.0 ** -11) + 127 * 2.0 ** -25, "Q4_0": block * (1 / 8 + 2.0 ** -11) + 2.0 ** -22}[form]
                test.expect(f"layer {i} {weights} {p}: numbers", (off <= bound).all(), (off - bound).max())
                if form != kind:
                    key = (kind, form)
                    worst[key] = max(worst.get(key, 0), off.max() / np.abs(x).max())
            lines = said.splitlines()
            test.expect(f"layer {i} {weights}: a line for each pair of formats", len(lines) == len(worst), said)
            for (kind, form), error in worst.items():
                line = next((s for s in lines if f"of {kind} written as {form}:" in s), "")
                printed = re.search(r"largest error ([0-9.e+-]+) of a tensor's largest number", line)
                # Three digits are printed; numpy's offsets are added in double, the formats' in f32.
                test.expect(f"layer {i} {weights}: {line}", abs(float(printed[1]) - error) <= 0.006 * error if printed else
                            "exact" in line and error < 1e-7, error)


def back(test, rng):
    """Out and in again: the same bytes; other numbers in their places alone."""
    d, f, experts = 64, 96, 5
    biased = dense(rng, 0, d, f, ("Q8_0", "F32", "Q4_0"))
    for p, n in (("gate", f), ("up", f), ("down", d)):
        biased[f"blk.0.ffn_{p}.bias"] = (noise(rng, "F32", (n,)), "F32", (n,))
    biased.update(dense(rng, 1, d, f, ("F32",) * 3))
    fused = {"blk.0.ffn_up.weight": (noise(rng, "Q8_0", (2 * f, d)), "Q8_0", (2 * f, d)),
             "blk.0.ffn_down.weight": (noise(rng, "F32", (d, f)), "F32", (d, f))}
    shapes = {"gate": (experts, f, d), "up": (experts, f, d), "down": (experts, d, f)}
    mixture = {f"blk.0.ffn_{p}_exps.weight": (noise(rng, "Q8_0", s), "Q8_0", s) for p, s in shapes.items()}
    mixture["blk.0.ffn_gate_inp.weight"] = (noise(rng, "F32", (experts, d)), "F32", (experts, d))
    mixture["blk.0.exp_probs_b.bias"] = (noise(rng, "F32", (experts,)), "F32", (experts,))
    mixture.update({f"blk.0.ffn_{p}_shexp.weight": (noise(rng, "F32", s[1:]), "F32", s[1:]) for p, s in shapes.items()})
    told = {"expert_used_count": 2, "expert_gating_func": 2, "expert_weights_norm": True}
    other = {"token_embd.weight": (noise(rng, "Q4_1", (7, d)), "Q4_1", (7, d)),
             "unread.weight": (noise(rng, "IQ2_XXS", (3, 256)), "IQ2_XXS", (3, 256))}
    for arch, layers, tensors, more in (("llama", 2, biased, {}), ("phi3", 1, fused, {}), ("deepseek2", 1, mixture, told)):
        model, again = test.at / f"{arch}.gguf", test.at / "again.gguf"
        # One tensor that is not read between those that are.
        names = list(tensors)
        ordered = {"token_embd.weight": other["token_embd.weight"], names[0]: tensors[names[0]],
                   "unread.weight": other["unread.weight"], **tensors}
        whole = padded(file_of(head(arch, layers, **more), ordered))
        model.write_bytes(whole)
        folder = test.at / arch
        status, said, wrong = test.run(model, "--all", folder)
        test.expect(f"{arch}: out", (status, said) == (0, ""), wrong + said)
        files = sorted(folder.iterdir())
        test.expect(f"{arch}: files", [p.name for p in files] == [f"layer_{i}.safetensors" for i in range(layers)], files)
        status, said, wrong = test.run(*files, "--into", model, again)
        test.expect(f"{arch}: in again", status == 0 and "replaced" in said, wrong)
        test.expect(f"{arch}: the same bytes", again.read_bytes() == whole)
        # As F32: the numbers stay, all else stays to the byte.
        test.run(model, "--all", folder, "--weights", "f32")
        status, said, wrong = test.run(*files, "--into", model, again)
        test.expect(f"{arch}: F32 in", status == 0, wrong)
        (was, before), (now, after) = read(whole), read(again.read_bytes())
        test.expect(f"{arch}: metadata", was == now)
        test.expect(f"{arch}: tensors", list(before) == list(after))
        for name, (raw, kind, shape) in before.items():
            if name in other or "norm" in name:
                test.expect(f"{arch}: {name}", after[name] == (raw, kind, shape))
                continue
            test.expect(f"{arch}: {name}", after[name][1:] == ("F32", shape), after[name][1:])
            test.expect(f"{arch}: {name}: numbers", (numbers(*after[name]) == numbers(raw, kind, shape)).all())

    # Another layer's numbers, for layer 1 alone.
    model, layer = test.at / "llama.gguf", test.at / "one.safetensors"
    new = {p: rng.normal(size=(d, f) if p == "down" else (f, d)).astype(F32) for p in PARTS}
    options = {"block": "glu", "activation": "silu", "format": "pt"}
    file = lambda tensors, told: layer.write_bytes(safetensors_of({f"{p}_proj.weight": (v, k) for p, (v, k) in tensors.items()}, told))
    good = {"gate": (new["gate"], "F32"), "up": (new["up"], "BF16"), "down": (new["down"], "F16")}
    file(good, options)
    again = test.at / "again.gguf"
    status, said, wrong = test.run(layer, "--into", model, again, "--layer", 1)
    test.expect("layer 1", status == 0 and said == "3 tensors of 1 layer replaced\n", wrong + said)
    before, after = read(model.read_bytes())[1], read(again.read_bytes())[1]
    for name, was in before.items():
        if name.startswith("blk.1.ffn_") and "norm" not in name:
            v, kind = good[name.split("_")[1].split(".")[0]]
            test.expect(name, after[name] == (encode(v, kind), kind, v.shape))
        else:
            test.expect(name, after[name] == was)
    again.unlink()

    into = ["--into", model, again, "--layer", 1]
    file({**good, "up": (new["up"][:, :32], "F32")}, options)
    test.refused(["one.safetensors", "blk.1.ffn_up.weight", "(96, 64)", "(96, 32)"], layer, *into)
    file({p: v for p, v in good.items() if p != "up"}, options)
    test.refused(["one.safetensors", "up_proj.weight is missing", "layer 1"], layer, *into)
    file({**good, "odd": (new["up"], "F32")}, options)
    test.refused(["one.safetensors", "'odd_proj.weight'", "has no such tensor"], layer, *into)
    file(good, {**options, "activation": "gelu"})
    test.refused(["'activation' is 'gelu'", "has 'silu'"], layer, *into)
    file(good, {"block": "glu"})
    test.refused(["'activation' is missing", "has 'silu'"], layer, *into)
    file(good, {**options, "eps": "1.0"})
    test.refused(["'eps' = '1.0'", "no such option"], layer, *into)
    file(good, options)
    test.refused(["gate_proj.bias is missing", "layer 0"], layer, "--into", model, again)
    test.refused(["there is no layer 2"], layer, "--into", model, again, "--layer", 2)
    test.refused(["names a layer twice"], layer, layer, "--into", model, again, "--layer", 1, "--layer", 1)
    test.refused(["given 1 times for 2 layer files"], layer, layer, "--into", model, again, "--layer", 1)
    for output in (model, layer):
        test.refused(["would be written over it"], layer, "--into", model, output, "--layer", 1)
    test.refused(["would be written over it"], model, "--layer", 1, model)
    test.refused(["there is no layer 2"], model, "--layer", 2, again)
    for wrong in ([model], [model, again], [model, "--all", test.at / "none", "--layer", 0], [layer, "--into", model],
                  [model, "--all", test.at / "none", "--into", model], [layer, "--into", model, again, "--weights", "f32"]):
        test.refused(["convert: "], *wrong)
    one = test.at / "m-00001-of-00002.gguf"
    for i in range(2):
        (test.at / f"m-0000{i + 1}-of-00002.gguf").write_bytes(file_of(
            {**head("llama", 2), "split.no": i, "split.count": 2}, dense(rng, i, d, f, ("F32",) * 3)))
    test.refused(["one file of a split model"], layer, "--into", one, again, "--layer", 1)
    test.refused(["would be written over it"], one, "--layer", 1, test.at / "m-00002-of-00002.gguf")
    test.expect("the split model", test.run(one, "--layer", 1, layer)[0] == 0)
    test.refused(["cannot be written"], one, "--layer", 1, test.at / "no" / "folder")
    # Numbers that a format cannot hold.
    large = dense(rng, 0, d, f, ("F32",) * 3)
    raw = np.full((f, d), 1e6, F32)
    large["blk.0.ffn_up.weight"] = (raw.tobytes(), "F32", (f, d))
    model.write_bytes(file_of(head("llama", 1), large))
    test.refused(["layer 0", "up_proj.weight", "1000000", "F16 cannot hold"], model, "--layer", 0, again, "--weights", "f16")
    odd = dense(rng, 0, 48, 40, ("F32",) * 3)
    model.write_bytes(file_of(head("llama", 1), odd))
    test.refused(["Q8_0", "no whole blocks of 32"], model, "--layer", 0, again, "--weights", "q8_0")
    test.expect("rows that are no whole blocks", test.run(model, "--layer", 0, again)[0] == 0)


def checkpoint(test, rng):
    """A checkpoint's layer, whose files stay as they were."""
    d, f = 32, 64
    at = test.at / "checkpoint"
    at.mkdir()
    (at / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 1, "hidden_act": "silu"}))
    w = {p: rng.normal(size=(d, f) if p == "down" else (f, d)).astype(F32) for p in PARTS}
    (at / "model.safetensors").write_bytes(safetensors_of({f"model.layers.0.mlp.{p}_proj.weight": (v, "BF16") for p, v in w.items()}))
    out = test.at / "layer.safetensors"
    status, said, wrong = test.run(at, "--layer", 0, out)
    test.expect("checkpoint", (status, said) == (0, ""), wrong)
    for p, v in w.items():
        test.expect(p, parse(out.read_bytes())[f"{p}_proj.weight"][2] == encode(v, "BF16"))
    test.refused(["would be written over it"], at, "--layer", 0, at / "model.safetensors")
    test.expect("all beside it", test.run(at, "--all", at)[0] == 0 and test.run(at, "--all", at)[0] == 0)
    test.refused([], out, "--into", at, test.at / "none.gguf")
    inner = at / "in" / "shard.safetensors"
    inner.parent.mkdir()
    inner.write_bytes((at / "model.safetensors").read_bytes())
    (at / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(parse(inner.read_bytes()), "in/shard.safetensors")}))
    test.refused(["would be written over it"], at, "--layer", 0, inner)
    (at / "model.safetensors.index.json").unlink()
    out.unlink()
    (at / "model.safetensors").write_bytes(safetensors_of({**{f"model.layers.0.mlp.{p}_proj.weight": (v, "BF16") for p, v in w.items()},
                                                           "model.layers.0.mlp.up_proj.weight_scale": (np.ones(1, F32), "F32")}))
    test.refused(["model.layers.0.mlp.up_proj.weight_scale", "scales"], at, "--layer", 0, out)
    test.expect("no layer file", not out.exists())


def main(tool):
    with tempfile.TemporaryDirectory() as folder:
        test, rng = Test(tool, folder), np.random.default_rng(7)
        formats(test, rng)
        back(test, rng)
        checkpoint(test, rng)
        print(f"{test.checks} checks, {test.failed} failed")
        return 1 if test.failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
