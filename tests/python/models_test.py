#!/usr/bin/env python3
"""tiffin.open_model, load_layer and Layer against numpy in double: what has files, routes and inputs beside x.

    models_test.py [LIBRARY]

Without numpy: status 77.
"""
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from checks import done, expect, np, refused, tiffin

here = Path(__file__).resolve().parent
sys.path[:0] = [str(here.parent / "io")]
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(tiffin.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])  # of the example
from gguf_files import file_of as gguf_of
from gguf_files import noise, numbers
from run_layer_files import file_of as safetensors_of

rng = np.random.default_rng(7)


def close(what, got, want, bound):
    error = np.abs(got - want).max() / np.abs(want).max()
    expect(f"{what}: error {error:.1e}, more than {bound:.1e}", error <= bound)


# The reference rounds y once, 2^-24; the others sum in f32, a hundred units in the last place of the largest.
BOUNDS = {"reference": 2.0 ** -24, "eigen": 100 * 2.0 ** -24, "simd": 100 * 2.0 ** -24}
d, f, vocab, tokens = 27, 45, 19, 14
x = rng.normal(size=(tokens, d)).astype(np.float32)
ids = rng.integers(0, vocab, tokens)
normal = lambda *shape: (rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32)
double = lambda a: np.asarray(a, np.float64)
sigmoid = lambda z: 1 / (1 + np.exp(-z))
silu = lambda z: z * sigmoid(z)
gelu_tanh = lambda z: 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z ** 3)))


def rms(v, weight):
    return v / np.sqrt((v ** 2).mean(axis=-1, keepdims=True) + float(np.float32(1e-6))) * weight


def glu(w, rows):
    w = {k: double(v) for k, v in w.items()}
    return (silu(rows @ w["gate_proj.weight"].T) * (rows @ w["up_proj.weight"].T)) @ w["down_proj.weight"].T


def glu_weights(d=d, f=f):
    return {"gate_proj.weight": normal(f, d), "up_proj.weight": normal(f, d), "down_proj.weight": normal(d, f)}


def stem_files(folder):
    tensors = {"gate_proj.weight": normal(f, d), "stem_embed.weight": normal(vocab, f), "down_proj.weight": normal(d, f)}
    path = folder / "stem \u00e9.safetensors"
    path.write_bytes(safetensors_of({k: (v, "F32") for k, v in tensors.items()}, {"block": "stem"}))
    w = {k: double(v) for k, v in tensors.items()}
    want = (silu(x @ w["gate_proj.weight"].T) * w["stem_embed.weight"][ids]) @ w["down_proj.weight"].T
    for backend, bound in BOUNDS.items():
        for how, layer in (("opened", tiffin.load_layer(path, backend=backend)),
                           ("made", tiffin.Layer({"block": "stem"}, tensors, backend=backend))):
            expect("what stem reads", layer.reads_token_ids and not layer.reads_residual and layer.d_ff == f)
            expect("what stem holds", (layer.held_bytes > 0) == (backend == "simd"))
            close(f"stem {how} {backend}", layer(x, token_ids=ids), want, bound)
            refused(f"stem {how} {backend}", "token_id", "= 19", lambda: layer(x, token_ids=ids * 0 + vocab))
            refused(f"stem {how} {backend}", "size", "token_ids", lambda: layer(x))
    # Tables and weights as they are stored are kept so: the layer of widened numbers is the same. bf16 by the file.
    stored = {"gate_proj.weight": "F16", "stem_embed.weight": "BF16", "down_proj.weight": "F16"}
    path.write_bytes(safetensors_of({k: (tensors[k], v) for k, v in stored.items()}, {"block": "stem"}))
    as_stored = tiffin.load_layer(path, f32_activations=True)(x, token_ids=ids)
    expect("as stored: bits", (tiffin.load_layer(path, format="f16", tables="bf16", f32_activations=True)(x, token_ids=ids)
                               == as_stored).all())
    close("as stored", as_stored, double(tiffin.load_layer(path, backend="reference")(x, token_ids=ids)), BOUNDS["simd"])
    (folder / "odd.safetensors").write_bytes(safetensors_of({"odd": (x, "F32")}, {"block": "stem"}))
    refused("odd file", "missing_tensor", "odd.safetensors", lambda: tiffin.load_layer(folder / "odd.safetensors"))


def mixture():
    experts = [glu_weights() for _ in range(3)]
    router = normal(3, d)
    tensors = {f"experts.{e}.{k}": v for e, w in enumerate(experts) for k, v in w.items()} | {"router.weight": router}
    logits = double(x) @ double(router).T
    share = np.exp(logits - logits.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    best = np.argsort(-share, axis=1)[:, :2]
    each = np.stack([glu(w, double(x)) for w in experts], axis=1)
    weight = np.take_along_axis(share, best, axis=1)
    want = (np.take_along_axis(each, best[:, :, None], axis=1) * weight[:, :, None]).sum(axis=1)
    for backend, bound in BOUNDS.items():
        layer = tiffin.Layer({"block": "moe", "num_experts": 3, "top_k": 2, "expert.block": "glu"}, tensors, backend=backend)
        y, chosen = layer(x, routes=True)
        expect("choices", layer.choices == 2 and chosen.shape == (tokens, 2))
        close(f"mixture {backend}", y, want, bound)
        expect(f"routes {backend}", (chosen["expert"] == best).all() and np.abs(chosen["weight"] - weight).max() < 1e-6)


def inputs_beside_x():
    m, residual = 17, rng.normal(size=(tokens, d)).astype(np.float32)
    tensors = {"gate_proj.weight": normal(m, d), "out_proj.weight": normal(d, m), "post_norm.weight": normal(d),
               "memory.weight": normal(vocab, m)}
    w = {k: double(v) for k, v in tensors.items()}
    out = lambda v: rms(v @ w["out_proj.weight"].T, w["post_norm.weight"])
    given = rng.normal(size=(tokens, m)).astype(np.float32)
    meki = out(sigmoid(double(residual) @ w["gate_proj.weight"].T) + w["memory.weight"][ids])
    ple = out(gelu_tanh(double(x) @ w["gate_proj.weight"].T) * double(given))
    for backend, bound in BOUNDS.items():
        layer = tiffin.Layer({"block": "meki", "folded": "true", "gate_input": "residual"}, tensors, backend=backend)
        expect("meki reads the residual", layer.reads_residual and layer.reads_token_ids)
        close(f"residual {backend}", layer(x, token_ids=ids, residual=residual), meki, bound)
        refused("no residual", "size", "residual", lambda: layer(x, token_ids=ids))
        layer = tiffin.Layer({"block": "ple"}, {k: v for k, v in tensors.items() if k != "memory.weight"}, backend=backend)
        expect("width", layer.per_layer_input_width == m and not layer.reads_token_ids)
        close(f"per_layer_input {backend}", layer(x, per_layer_input=given), ple, bound)
        refused("no per_layer_input", "size", "per_layer_input", lambda: layer(x))


def models(folder):
    d, f = 64, 96
    x = rng.normal(size=(tokens, d)).astype(np.float32)
    names = {"gate": "gate_proj.weight", "up": "up_proj.weight", "down": "down_proj.weight"}
    for kind in ("F32", "Q8_0"):
        shapes = {"gate": (f, d), "up": (f, d), "down": (d, f)}
        tensors = {f"blk.1.ffn_{p}.weight": (noise(rng, kind, s), kind, s) for p, s in shapes.items()}
        path = folder / "model.gguf"
        path.write_bytes(gguf_of({"general.architecture": "llama", "llama.block_count": 2}, tensors))
        want = glu({names[p]: numbers(*tensors[f"blk.1.ffn_{p}.weight"]) for p in shapes}, double(x))
        model = tiffin.open_model(path)
        expect("model", len(model) == 2 and model.architecture == "llama")
        told = []
        layer = model.layer(1, f32_activations=True, progress=lambda done, of: told.append((done, of)))
        expect("progress", told and told[-1][0] == told[-1][1] == sum(len(t[0]) for t in tensors.values()))
        refused("layer 2", "option", "there is no layer 2", lambda: model.layer(2))
        refused("layer 0", "missing_tensor", "blk.0", lambda: model.layer(0))
        del model  # its layers keep what they read
        close(f"model {kind}", layer(x), want, BOUNDS["simd"])
        close(f"model {kind}, reference", tiffin.open_model(path).layer(1, backend="reference")(x), want, BOUNDS["reference"])
        # Threads of Python's as the executor, and as callers of one layer: the same bits.
        y = layer(x)
        expect("threads", (layer(x, threads=2) == y).all())
        same = []
        callers = [threading.Thread(target=lambda: same.append(all((layer(x) == y).all() for _ in range(20)))) for _ in range(2)]
        [t.start() for t in callers], [t.join() for t in callers]
        expect("two callers", same == [True, True])
        if kind == "Q8_0":
            again = {names[p]: ("q8_0", tensors[f"blk.1.ffn_{p}.weight"][0], s) for p, s in shapes.items()}
            expect("q8_0 by bytes", (tiffin.Layer({"block": "glu"}, again, f32_activations=True)(x) == y).all())
        ran = subprocess.run([sys.executable, here.parents[1] / "python" / "examples" / "run_layer.py", path, "--layer", "1", "--threads", "2"],
                             capture_output=True, text=True)
        expect("run_layer.py: " + ran.stderr, ran.returncode == 0 and "d_model 64, d_ff 96" in ran.stdout and "(64, 64)" in ran.stdout)
    ran = subprocess.run([sys.executable, here.parents[1] / "python" / "examples" / "run_layer.py", folder / "none.gguf"],
                         capture_output=True, text=True)
    expect("run_layer.py refuses", ran.returncode == 1 and ran.stderr.count("\n") == 1 and "none.gguf" in ran.stderr)


with tempfile.TemporaryDirectory() as name:
    stem_files(Path(name))
    models(Path(name))
mixture()
inputs_beside_x()
refused("dtype", "dtype", "up_proj", lambda: tiffin.Layer({"block": "mlp"}, {"up_proj.weight": np.zeros((3, 2), np.float64)}))
refused("shape of x", "size", "(3, 2)", lambda: tiffin.Layer({"block": "glu"}, glu_weights())(np.zeros((3, 2), np.float32)))
done()
