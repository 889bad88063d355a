#!/usr/bin/env python3
"""tiffin.Training: gradients in double against differences of its own forward, in f32 against those in double.

    training_test.py [LIBRARY]
"""
import gc

from checks import done, expect, near, np, refused, tiffin

rng = np.random.default_rng(11)
d, f, v, tokens = 12, 20, 15, 7
ids = rng.integers(0, v, tokens)
ids[1] = ids[0]  # a row that two tokens read

CASES = {
    "stem": ("ffn(gate(silu), token_embedding)", {}),
    "glu": ("ffn(gate(gelu), dense)", {}),
    "hybrid": ("ffn(gate(silu), sum(dense, token_embedding))", {}),
    "structmoe": ("structmoe", dict(experts=4, rank=3)),
    "mort": ("mort(ffn(gate(silu), dense), num_layers=2)", dict(experts=3)),
}


def weights_of(text, more):
    composition = tiffin.Composition(text)
    sizes = dict(d_model=d, d_ff=f, vocab=v, **more)
    made = composition.initial(layers=2, seed=3, **sizes)
    for name, need in composition.needs(**sizes).items():
        if need.integers and not need.optional:
            made[name] = (rng.permutation(int(np.prod(need.shape))) % max(2, more.get("experts", 2))).astype(np.int32).reshape(need.shape)
    return made


def widened(weights):
    return {name: a.astype(np.float64) if a.dtype == np.float32 else a.copy() for name, a in weights.items()}


def inputs_of(training):
    beside = {"token_ids": ids} if training.reads_token_ids else {}
    if training.reads_residual:
        beside["residual"] = rng.normal(size=(tokens, d))
    if training.per_layer_input_width:
        beside["per_layer_input"] = rng.normal(size=(tokens, training.per_layer_input_width))
    return beside


for what, (text, more) in CASES.items():
    given = weights_of(text, more)
    exact = widened(given)
    training = tiffin.Training(text, exact, numbers="f64", tokens=tokens)
    beside = inputs_of(training)
    x, dy = rng.normal(size=(tokens, d)), rng.normal(size=(tokens, d))
    y = training.forward(x, **beside)
    asked = [name for name in ("x", "residual", "per_layer_input") if name == "x" or name in beside]
    back = training.backward(dy, inputs=asked)
    found = {name: (g.dense() if isinstance(g, tiffin.RowGradients) else g.copy()) for name, g in training.gradients.items()}
    expect(f"{what}: gradients of all tensors", set(found) == {n for n, a in exact.items() if a.dtype == np.float64})
    loss = lambda: float((tiffin.Training(text, exact, numbers="f64", tokens=tokens).forward(x, **beside) * dy).sum())
    # Central differences: an error of h^2 times a third derivative, and 2^-53 / h of the loss.
    h = 1e-5
    for name, at, slope in [*((n, exact[n], g) for n, g in found.items()), *((n, x if n == "x" else beside[n], back[n]) for n in asked)]:
        for i in rng.choice(at.size, min(6, at.size), replace=False):
            before = at.flat[i]
            at.flat[i] = before + h
            above = loss()
            at.flat[i] = before - h
            below = loss()
            at.flat[i] = before
            difference = (above - below) / (2 * h)
            expect(f"{what}: {name}[{i}]: {slope.flat[i]}, by differences {difference}",
                   abs(slope.flat[i] - difference) <= 1e-6 * max(1, abs(difference)))
    # f32 on SIMD, one thread and two: f32's rounding of sums of some hundred terms.
    for threads in (1, 2):
        fast = tiffin.Training(text, given, tokens=tokens, threads=threads)
        narrow = {n: a if n == "token_ids" else a.astype(np.float32) for n, a in beside.items()}
        near(f"{what}: y in f32", fast.forward(x.astype(np.float32), **narrow), y, 1e-5)
        near(f"{what}: dx in f32", fast.backward(dy.astype(np.float32))["x"], back["x"], 1e-5)
        for name, g in fast.gradients.items():
            near(f"{what}: {name} in f32", g.dense() if isinstance(g, tiffin.RowGradients) else g, found[name], 2e-5)
    again = tiffin.Training(text, given, tokens=tokens, recompute=True)
    again.forward(x.astype(np.float32), **narrow)
    expect(f"{what}: recomputed", (again.backward(dy.astype(np.float32))["x"] == fast.backward(dy.astype(np.float32))["x"]).all())

text = "stem"
given = weights_of(text, {})
x, dy = rng.normal(size=(tokens, d)).astype(np.float32), rng.normal(size=(tokens, d)).astype(np.float32)
run = lambda training: (training.forward(x, token_ids=ids), training.backward(dy), training.gradients)[2]

training = tiffin.Training(text, given, tokens=tokens)
rows = run(training)["stem_embed.weight"]
expect("ids", (rows.ids == np.unique(ids)).all() and rows.rows.shape == (len(rows.ids), f) and rows.read.all() and rows.shape == (v, f))
once = {n: (g.rows if n == "stem_embed.weight" else g.copy()) for n, g in training.gradients.items()}
twice = run(training)
near("gradients add up", twice["gate_proj.weight"], 2 * once["gate_proj.weight"], 1e-6)
near("rows add up", twice["stem_embed.weight"].rows, 2 * once["stem_embed.weight"], 1e-6)
training.clear()
expect("cleared", not training.gradients["gate_proj.weight"].any() and training.gradients["stem_embed.weight"].ids.size == 0)
refused("backward after clear", "empty", "backward", lambda: training.backward(dy))
expect("as before", all(((g.rows if n == "stem_embed.weight" else g) == once[n]).all() for n, g in run(training).items()))
frozen = tiffin.Training(text, given, tokens=tokens, frozen=("stem_embed.weight",))
expect("frozen", set(run(frozen)) == set(given) - {"stem_embed.weight"})
refused("frozen, not given", "missing_tensor", "up_proj.weight", lambda: tiffin.Training(text, given, frozen=("up_proj.weight",)))
# A step that is written to the weights is seen by the next call; and gradients outlive the name for their training.
y = training.forward(x, token_ids=ids)
given["stem_embed.weight"][ids[0]] += 1
expect("a step", (training.forward(x, token_ids=ids)[0] != y[0]).any())
held = run(tiffin.Training(text, given, tokens=tokens))["down_proj.weight"]
gc.collect()
expect("held by its array", np.isfinite(held).all() and held.any())

expect("no tokens", training.forward(x[:0], token_ids=[]).shape == (0, d))
refused("float64 weights", "dtype", "gate_proj.weight", lambda: tiffin.Training(text, widened(given)))
refused("a view", "shape", "gate_proj.weight", lambda: tiffin.Training(text, given | {"gate_proj.weight": np.asfortranarray(given["gate_proj.weight"])}))
refused("missing", "missing_tensor", "gate_proj.weight", lambda: tiffin.Training(text, {n: a for n, a in given.items() if n[0] != "g"}))
refused("another", "unused_tensor", "up_proj.weight", lambda: tiffin.Training(text, given | {"up_proj.weight": given["gate_proj.weight"]}))
refused("q8_0", "option", "numbers", lambda: tiffin.Training(text, given, numbers="q8_0"))
for wrong in (0, -1, 1.5, True, 2 ** 31):
    refused(f"{wrong} tokens", "option", "tokens", lambda: tiffin.Training(text, given, tokens=wrong))
refused("float64 x", "dtype", "x", lambda: training.forward(x.astype(np.float64), token_ids=ids))
refused("too many tokens", "size", "x", lambda: training.forward(np.zeros((tokens + 1, d), np.float32), token_ids=[0] * (tokens + 1)))
refused("no ids", "size", "token_ids", lambda: training.forward(x))
refused("an id beyond the table", "token_id", "token_ids", lambda: training.forward(x, token_ids=ids * 0 + v))
training.forward(x, token_ids=ids)
refused("dy of another shape", "size", "dy", lambda: training.backward(dy[:-1]))
refused("dy in double", "dtype", "dy", lambda: training.backward(dy.astype(np.float64)))
refused("a gradient of nothing", "option", "residual", lambda: training.backward(dy, inputs=("residual",)))
done()
