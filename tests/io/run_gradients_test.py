#!/usr/bin/env python3
"""run_layer --gradients, black box, on layer files of every block.

    run_gradients_test.py RUN_LAYER

Derivatives along random directions of every tensor and input, by central differences of numpy's second implementation
(run_layer_reference.py, in double), are what the gradients have to give. Calls of few tokens add up to one call. Bad
input: one line that names the file, and neither file. Needs numpy; without it, 77.
"""
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    print("skipped: numpy is missing")
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import run_layer_reader as reader
from run_layer_files import decode, encode, file_of, parse
from run_layer_harness import Settings

TOOL = sys.argv[1]
FOLDER = pathlib.Path(tempfile.mkdtemp())
Settings.folder = FOLDER

from run_layer_cases import TreeCase
from run_layer_composite import engram, glu, l3, longcat, mlp, mort, one_of_each, parallel, peer, ple, product_keys
from run_layer_composite import retoken
from run_layer_reference import Layer

# Arrays of doubles stay what they are: a difference is smaller than f32 could tell.
reader.encode = lambda a, dtype: a if np.asarray(a).dtype == np.float64 else encode(a, dtype)
reader.decode = lambda raw, dtype, shape: raw if isinstance(raw, np.ndarray) else decode(raw, dtype, shape)

faults = []


def check(good, text):
    if not good:
        faults.append(text)
        print("FAILED:", text)


def read(path):
    return {name: decode(raw, dtype, shape) for name, (dtype, shape, raw) in parse(path.read_bytes()).items()}


def run(layer, given, *flags):
    output, gradients = FOLDER / "y.safetensors", FOLDER / "g.safetensors"
    for path in (output, gradients):
        path.unlink(missing_ok=True)
    done = subprocess.run([TOOL, layer, given, output, "--gradients", gradients, *flags], capture_output=True, text=True)
    there = output.exists(), gradients.exists()
    if done.returncode != 0:
        return done, there, None, None
    return done, there, read(output), read(gradients)


def wide(tensors):
    return {k: (np.asarray(a, np.float64) if d == "F32" else a, d) for k, (a, d) in tensors.items()}


class Loss:
    """sum(y dy) as a function of all tensors and inputs."""

    def __init__(self, case, dy):
        self.tensors, self.inputs = wide(case.tensors), wide(case.inputs)
        self.metadata, self.dy = case.metadata, dy

    def __call__(self):
        y = Layer(self.tensors, self.metadata).run(self.inputs)[0]
        return float(np.sum(y.v * self.dy))

    def along(self, a, v):
        """The derivative along v, and whether the loss is smooth there; a is changed in place and back."""
        before, found = a.copy(), []
        for h in (2.0**-16, 2.0**-17):
            a += h * v
            above = self()
            a[...] = before - h * v
            found.append((above - self()) / (2 * h))
            a[...] = before
        return (4 * found[1] - found[0]) / 3, abs(found[0] - found[1]) <= 1e-3 * (abs(found[1]) + 1e-3)


# Rows that no token id names: their gradients are as the tensors are.
OF_ROWS = ("values.weight", "down_embed.weight", "up_embed.weight", "keys.weight", "query.weight", "query.bias")


def dense_of(gradients, name, shape):
    """A gradient as its tensor is, rows of ids put where they belong."""
    if name in gradients:
        return gradients[name].astype(np.float64)
    full, ids = np.zeros(shape), gradients[name + ".ids"]
    full[..., ids, :] = gradients[name + ".rows"]
    return full


def check_case(case):
    rng = np.random.default_rng(case.number)
    tokens, d = case.inputs["x"][0].shape
    dy = rng.normal(size=(tokens, d)).astype(np.float32)
    layer, given = FOLDER / "layer.safetensors", FOLDER / "input.safetensors"
    layer.write_bytes(file_of(case.tensors, case.metadata))
    given.write_bytes(file_of(dict(case.inputs, dy=(dy, "F32"))))
    loss = Loss(case, dy.astype(np.float64))
    runs = {b: run(layer, given, "--backend", b) for b in ("reference", "simd")}
    pieces = run(layer, given, "--batch", "3", "--threads", "2")
    smooth = directions = 0
    for backend, (done, _, output, gradients) in runs.items():
        check(done.returncode == 0, "%s on %s: %s" % (case, backend, done.stderr))
        if done.returncode:
            return
        plain = FOLDER / "plain.safetensors"
        only = FOLDER / "only.safetensors"
        only.write_bytes(file_of(case.inputs))
        subprocess.run([TOOL, layer, only, plain, "--backend", "reference"], check=True)
        wanted = read(plain)
        check(set(wanted) == set(output), "%s: OUTPUT has %s" % (case, sorted(output)))
        check(np.allclose(wanted["y"], output["y"], rtol=1e-4, atol=1e-4), "%s on %s: y" % (case, backend))
        ids = sorted(set(case.inputs["token_ids"][0].tolist())) if "token_ids" in case.inputs else []
        expected = {"dx"} | {"d_" + k for k in ("residual", "per_layer_input") if k in case.inputs}
        for name, (a, dtype) in case.tensors.items():
            if dtype == "F32" and not name.endswith("selection_bias"):
                rows = name + ".ids" in gradients and not name.endswith(OF_ROWS)
                expected |= {name + ".ids", name + ".rows"} if rows else {name}
                if rows:
                    check(gradients[name + ".ids"].tolist() == ids, "%s: the ids of %s" % (case, name))
        check(set(gradients) == expected, "%s: GRADIENTS has %s, not %s" % (case, sorted(gradients), sorted(expected)))
        # Each number is a sum over tokens of sums over features, rounded to f32 at least once.
        longest = tokens * max(a.shape[-1] for a, _ in case.tensors.values() if a.ndim) + d
        rounding = 2.0**-24 * (2 if backend == "reference" else longest)
        for name, (a, dtype) in list(loss.tensors.items()) + list(loss.inputs.items()):
            if dtype != "F32" or name.endswith("selection_bias"):
                continue
            key = {"x": "dx", "residual": "d_residual", "per_layer_input": "d_per_layer_input"}.get(name, name)
            g = dense_of(gradients, key, a.shape)
            check(np.isfinite(g).all(), "%s on %s: %s is not finite" % (case, backend, name))
            v = rng.normal(size=a.shape)
            value, is_smooth = loss.along(a, v)
            directions += 1
            smooth += is_smooth
            slack = 1e-6 * abs(value) + rounding * np.sum(np.abs(g * v)) + 1e-9
            slope = float(np.sum(g * v))
            check(not is_smooth or abs(slope - value) <= slack,
                  "%s on %s: %s along a direction %.9g, by differences %.9g" % (case, backend, name, slope, value))
    check(smooth * 10 >= directions * 9, "%s: %d of %d directions are smooth" % (case, smooth, directions))
    check(pieces[0].returncode == 0, "%s in pieces: %s" % (case, pieces[0].stderr))
    whole = runs["simd"][3]
    for name, a in (pieces[3] or {}).items():
        scale = np.max(np.abs(whole[name])) if whole[name].size else 0
        # The same terms in another grouping.
        check(np.all(np.abs(a.astype(np.float64) - whole[name]) <= 2.0**-24 * longest * scale + 1e-30),
              "%s: %s in calls of 3 tokens" % (case, name))


def check_refused(case, change, flags, *parts):
    layer, given = FOLDER / "layer.safetensors", FOLDER / "input.safetensors"
    tokens, d = case.inputs["x"][0].shape
    tensors, inputs = dict(case.tensors), dict(case.inputs, dy=(np.ones((tokens, d), np.float32), "F32"))
    change(tensors, inputs)
    layer.write_bytes(file_of(tensors, case.metadata))
    given.write_bytes(file_of(inputs))
    done, there, _, _ = run(layer, given, *flags)
    check(done.returncode == 1 and there == (False, False), "refused: %s %s" % (done, there))
    check(done.stderr.count("\n") == 1 and all(p in done.stderr for p in parts), "refused: %r, not %s" % (done.stderr, parts))


for kind, spec in one_of_each():
    check_case(TreeCase(spec, (10, 7, 9), near=0.05))
for spec in ({"block": b, "f": 11} for b in ("mlp", "glu", "stem", "stem_gate", "stem_hybrid")):
    check_case(TreeCase(spec, (7, 5, 6)))

ROWS = [
    product_keys(1, 2, 1, 1),
    product_keys(5, 2, 3, 2, biases=("query",)),  # 20 rows of 4: heads share them
    product_keys(2, 7, 3, 7),
    product_keys(2, 3, 5, 2, equal_heads=True, biases=("query",)),
    product_keys(2, 6, 3, 1, f=13, activation="gelu"),
    product_keys(1, 4, 5, 2, f=10, biases=("gate", "down")),
    peer(5, 2, 3, 2, biases=("query",)),
    peer(1, 7, 3, 4, activation="relu_squared"),
    peer(2, 3, 5, 2, equal_heads=True, activation="sigmoid"),
    l3(6, 5, 9, ranges=((0, 6),)),  # all rows, for each id
    l3(9, 5, 4, ranges=((2, 6), (4, 4), (5, 8), (0, 1)), biases=("up_proj",)),  # rows of two, of one and of no range
    l3(9, 5, 4, ranges=((3, 3), (0, 1)), eps="0.5", biases=("up_proj", "mix_memory", "mix_input")),
    l3(20, 3, 17, map="I32", biases=("mix_input",)),
    l3(5, 3, 4, ranges=((2, 2),), biases=("up_proj",)),  # no rows: zeros, but for what does not need them
    retoken(product_keys(2, 3, 5, 2, biases=("query",))),
    retoken(l3(9, 5, 7)),
    mort(peer(1, 3, 5, 2), 3),
    parallel(product_keys(1, 3, 3, 2, f=9), peer(2, 3, 3, 2), l3(9, 5, 7)),
]
for spec in ROWS:
    check_case(TreeCase(spec, (10, 7, 9), near=0.05))
check_case(TreeCase(l3(6, 5, 9, ranges=((1, 5),)), (10, 1, 9)))
check_case(TreeCase(product_keys(3, 4, 5, 2, biases=("query",)), (5, 1, 1), near=0.05))

GIVEN = [
    engram(5),
    engram(1, biases=("key",)),
    engram(23, biases=("value",)),
    engram(7, eps="0.5", biases=("key", "value")),
    longcat(5, 1),
    longcat(1, 3, biases=("ngram",)),
    longcat(23, 13),
    retoken(engram(5)),
    retoken(longcat(5, biases=("ngram",))),
    mort(engram(7, biases=("key", "value")), 3),
    parallel(engram(5), longcat(5), engram(5, biases=("key",))),
    parallel(engram(10), mort(longcat(10), 0), ple(10, False)),
    parallel(l3(9, 5, 7), retoken(engram(9)), mlp(7)),
]
for spec in GIVEN:
    check_case(TreeCase(spec, (10, 7, 9), near=0.05))
for size in ((1, 5, 6), (2, 1, 1), (23, 3, 7)):
    eps = {"eps": "0.5"} if size[0] == 1 else {}  # a norm of one number is a sign, but for eps
    specs = engram(5, **eps), engram(5, biases=("key", "value"), **eps), longcat(5), longcat(5, biases=("ngram",))
    for spec in specs:
        check_case(TreeCase(spec, size))


def norms_times(key, query):
    def change(maker):
        maker.values["key_norm.weight"] = maker.values["key_norm.weight"] * key
        maker.values["query_norm.weight"] = maker.values["query_norm.weight"] * query

    return change


# |g| below 1e-6, where the gate is flat, and all of it 0; large g.
for key, query in ((1e-3, 3e-4), (0, 0), (30, 30)):
    for biases in ((), ("key", "value")):
        check_case(TreeCase(engram(5, biases=biases), (10, 7, 9), change=norms_times(key, query)))


def every_third_is_zero(rng, n, width):
    return rng.normal(size=(n, width)) * (np.arange(n)[:, None] % 3 > 0)


# Queries or keys of zeros: along them the loss jumps, along all else it is smooth.
for rows in ("x", "given"):
    check_case(TreeCase(parallel(engram(5, biases=("value",)), glu(9)), (10, 7, 9), **{rows: every_third_is_zero}))

stem = TreeCase({"block": "stem", "f": 11}, (6, 5, 4))
check_refused(stem, lambda t, i: i.pop("dy"), [], "input.safetensors", "dy", "missing")
check_refused(stem, lambda t, i: i.update(dy=(np.ones((3, 6), np.float32), "F32")), [], "input.safetensors", "dy")
check_refused(stem, lambda t, i: i.update(token_ids=(np.array([0, 1, 5, 2]), "I64")), [], "input.safetensors", "token_ids")
check_refused(stem, lambda t, i: t.update({"down_proj.weight": (t["down_proj.weight"][0], "BF16")}), [],
              "layer.safetensors", "down_proj.weight", "BF16")
check_refused(stem, lambda t, i: None, ["--backend", "eigen"], "eigen")
check_refused(stem, lambda t, i: None, ["--weights", "bf16"], "f32")
check_refused(stem, lambda t, i: None, ["--f32-activations"], "--f32-activations")
# One file, in another spelling; and with a model in the layer's place, which has no gradients.
layer, given, output = (FOLDER / name for name in ("layer.safetensors", "input.safetensors", "y.safetensors"))
for words, part in (([layer, given, output, "--gradients", FOLDER / "." / "y.safetensors"], "are one file"),
                    ([layer, given, str(FOLDER) + "/./y.safetensors", "--gradients", output], "are one file"),
                    ([layer, given, output, "--gradients", given], "GRADIENTS"),
                    (["--model", layer, "--layer", "0", given, output, "--gradients", FOLDER / "g"], "of a layer file")):
    done = subprocess.run([TOOL, *words], capture_output=True, text=True)
    check(done.returncode == 1 and part in done.stderr and not output.exists(), "refused: %s" % done)
# A gradients file that cannot be put in place leaves no output either.
(FOLDER / "taken").mkdir()
done = subprocess.run([TOOL, layer, given, output, "--gradients", FOLDER / "taken"], capture_output=True, text=True)
check(done.returncode == 1 and not output.exists() and not list((FOLDER / "taken").iterdir()), "a folder: %s" % done)

print("%d faults" % len(faults))
sys.exit(1 if faults else 0)
