#!/usr/bin/env python3
"""run_layer --gradients against PyTorch's autograd, for the named layers, written here as a model would have them.

    run_gradients_torch_test.py RUN_LAYER

Both are in double; what is compared was rounded to f32 once. Needs torch (Debian: python3-torch); without it, 77.
"""
import math
import pathlib
import subprocess
import sys
import tempfile

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    print("skipped: torch is missing (Debian: python3-torch)")
    sys.exit(77)

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from run_layer_files import decode, file_of, parse

D, DFF, V, T, E, R, M = 12, 18, 9, 40, 5, 3, 6
FOLDER = pathlib.Path(tempfile.mkdtemp())


def rms(x, w=None, eps=1e-6):
    z = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return z if w is None else z * w


def l2(x, eps=1e-6):
    return x / (x.norm(dim=-1, keepdim=True) + eps)


def glu(w, x, t, act=F.silu, p=""):
    return F.linear(act(F.linear(x, w[p + "gate_proj.weight"])) * F.linear(x, w[p + "up_proj.weight"]), w[p + "down_proj.weight"])


def mlp(w, x, t, p=""):
    return F.linear(F.gelu(F.linear(x, w[p + "up_proj.weight"], w[p + "up_proj.bias"])), w[p + "down_proj.weight"])


def stem(w, x, t):
    return F.linear(F.silu(F.linear(x, w["gate_proj.weight"])) * w["stem_embed.weight"][t], w["down_proj.weight"])


def stem_gate(w, x, t):
    return F.linear(F.silu(w["stem_embed.weight"][t]) * F.linear(x, w["up_proj.weight"]), w["down_proj.weight"])


def stem_hybrid(w, x, t):
    up = F.linear(x, w["up_proj.weight"]) + w["stem_embed.weight"][t]
    return F.linear(F.silu(F.linear(x, w["gate_proj.weight"])) * up, w["down_proj.weight"])


def moe(w, x, t):
    s = F.softmax(F.linear(x, w["router.weight"]), -1)
    weight, chosen = s.topk(2, -1)
    out = torch.stack([glu(w, x, t, p="experts.%d." % e) for e in range(E)], 1)
    return (out.gather(1, chosen[..., None].expand(-1, -1, D)) * weight[..., None]).sum(1)


def structmoe(w, x, t):
    s = F.softmax(F.linear(x, w["router.weight"]), -1)
    weight, chosen = s.topk(2, -1)
    z = torch.einsum("td,tkrd->tkr", x, w["lore_a.weight"][chosen])
    delta = torch.einsum("tk,tkr,tkfr->tf", weight, z, w["lore_b.weight"][chosen])
    return F.linear(F.gelu(F.linear(x, w["up_proj.weight"]) + delta), w["down_proj.weight"])


def meki(w, x, t):
    e = w["word_embed.weight"][t]
    g = glu({k[10:]: v for k, v in w.items() if k.startswith("word_proj.")}, e, t)
    e = w["alpha"] * rms(w["memory.weight"][t] + w["beta"] * g, w["mix_norm.weight"])
    return rms(F.linear(e + torch.sigmoid(F.linear(x, w["gate_proj.weight"])), w["out_proj.weight"]), w["post_norm.weight"])


def ple(w, x, t):
    v = F.gelu(F.linear(x, w["gate_proj.weight"]), approximate="tanh") * w["memory.weight"][t]
    return rms(F.linear(v, w["out_proj.weight"]), w["post_norm.weight"])


def retoken(w, x, t):
    return mlp(w, x, t, "base.") * (1 + w["scale"] * l2(w["modulators.weight"][t]))


def mort(w, x, t):
    logit, chosen = F.linear(x, w["router.weight"]).topk(2, -1)
    weight = torch.sigmoid(logit) / torch.sigmoid(logit).sum(-1, keepdim=True)
    rows = w["modulators.weight"][chosen, t[:, None]]
    return glu(w, x, t, p="base.") + w["scale"] * l2((rows * weight[..., None]).sum(1)) / math.sqrt(2 * 28)


H, N, C, K = 3, 5, 3, 4  # heads, keys of C numbers, rows per head


def best_rows(w, x):
    """(T, H K) rows and their weights, from all pairs of keys."""
    q = F.linear(x, w["query.weight"], w["query.bias"]).view(-1, H, 2, C)
    s = torch.einsum("thgc,hgnc->thgn", q, w["keys.weight"].view(H, 2, N, C))
    s, row = (s[:, :, 0, :, None] + s[:, :, 1, None, :]).flatten(2).topk(K, -1)
    return row.flatten(1), F.softmax(s, -1).flatten(1)


def product_keys(w, x, t):
    row, weight = best_rows(w, x)
    return torch.einsum("tk,tkd->td", weight, w["values.weight"][row])


def memory_plus(w, x, t):
    o = F.silu(F.linear(x, w["gate_proj.weight"], w["gate_proj.bias"])) * product_keys(w, x, t)
    return F.linear(o, w["down_proj.weight"], w["down_proj.bias"])


def peer(w, x, t):
    row, weight = best_rows(w, x)
    weight = weight * F.gelu(torch.einsum("td,tkd->tk", x, w["down_embed.weight"][row]))
    return torch.einsum("tk,tkd->td", weight, w["up_embed.weight"][row])


RANGES = np.array([[0, 4], [2, 7], [5, 5], [0, 11], [10, 11], [3, 6], [11, 11], [4, 9], [0, 1]])


def l3(w, x, t):
    begin, end = torch.tensor(RANGES)[t].unbind(-1)
    at = torch.arange(w["keys.weight"].shape[0])
    inside = (at >= begin[:, None]) & (at < end[:, None])
    e = torch.exp(F.linear(x, w["keys.weight"])) * inside
    v = e / e.sum(-1, keepdim=True).clamp(min=1e-300) @ w["values.weight"]
    u = rms(F.linear(v, w["up_proj.weight"], w["up_proj.bias"]), w["norm.weight"], 1e-5)
    mix = torch.cat([w["mix_memory.weight"], w["mix_input.weight"]], 1)
    return F.linear(torch.cat([u, x], -1), mix, w["mix_input.bias"])


def deep_embed_1x(w, x, t):
    h = F.relu(F.linear(x, w["up_proj.weight"], w["up_proj.bias"])) ** 2
    return F.linear(h, w["down_proj.weight"]) * w["deep_embed.weight"][t]


def deep_embed_4x(w, x, t):
    h = F.relu(F.linear(x, w["gate_proj.weight"])) ** 2 * w["deep_embed.weight"][t]
    return F.linear(h, w["down_proj.weight"], w["down_proj.bias"])


def deep_embed_v7a(w, x, t):
    a = F.linear(w["residual"], w["in_proj.weight"])
    mixed = torch.einsum("tn,ntw->tw", a, w["deep_embed.weight"][:, t])
    h = F.relu(F.linear(x, w["gate_proj.weight"])) ** 2 * F.linear(mixed, w["out_proj.weight"], w["out_proj.bias"])
    return F.linear(h, w["down_proj.weight"])


def mole(w, x, t):
    s = F.softmax(F.linear(x, w["router.weight"]), -1)
    return mlp(w, x, t) + torch.einsum("te,etd->td", s, w["lookup.weight"][:, t])


def mole_as_trained(w, x, t):
    s = F.softmax(F.linear(x, w["router.weight"]), -1)
    rows = torch.stack([mlp(w, w["per_layer_input"], t, "experts.%d." % e) for e in range(E)], 1)
    return mlp(w, x, t) + (s[..., None] * rows).sum(1)


F32_EPS = float(np.float32(1e-5))


def engram(w, x, t):
    e = w["per_layer_input"]
    key = rms(F.linear(e, w["key_proj.weight"], w.get("key_proj.bias")), w["key_norm.weight"], F32_EPS)
    g = (key * rms(x, w["query_norm.weight"], F32_EPS)).sum(-1, keepdim=True) / math.sqrt(D)
    gate = torch.sigmoid(g.abs().clamp_min(1e-6).sqrt() * g.sign())
    return gate * F.linear(e, w["value_proj.weight"], w.get("value_proj.bias"))


def longcat(w, x, t):
    ngrams = F.linear(w["per_layer_input"], w["ngram_proj.weight"], w["ngram_proj.bias"])
    return (w["word_embed.weight"][t] + ngrams) / 7


def dense(p="", up=True, gate=True):
    shapes = {p + "down_proj.weight": (D, DFF)}
    if gate:
        shapes[p + "gate_proj.weight"] = (DFF, D)
    if up:
        shapes[p + "up_proj.weight"] = (DFF, D)
    return shapes


TABLE = {"stem_embed.weight": (V, DFF)}
ROUTER = {"router.weight": (E, D)}
OUT = {"gate_proj.weight": (M, D), "out_proj.weight": (D, M), "post_norm.weight": (D,), "memory.weight": (V, M)}
KEYS = {"query.weight": (2 * H * C, D), "query.bias": (2 * H * C,), "keys.weight": (2 * H, N, C)}
GIVEN = {"per_layer_input": (T, C)}
ENGRAM = dict(GIVEN, **{p + "_proj.weight": (D, C) for p in ("key", "value")})
ENGRAM.update({p + "_norm.weight": (D,) for p in ("key", "query")})
INPUTS = ("residual", "per_layer_input")  # of the call, all others are of the layer


def biased_mlp(p, reads):
    return {p + "up_proj.weight": (DFF, reads), p + "up_proj.bias": (DFF,), p + "down_proj.weight": (D, DFF)}


# the function, metadata, shapes
LAYERS = [
    (glu, {"block": "glu"}, dense()),
    (lambda w, x, t: glu(w, x, t, F.gelu), {"block": "glu", "activation": "gelu"}, dense()),
    (lambda w, x, t: glu(w, x, t, F.relu), {"block": "glu", "activation": "relu"}, dense()),
    (mlp, {"block": "mlp"}, dict(dense(gate=False), **{"up_proj.bias": (DFF,)})),
    (stem, {"block": "stem"}, dict(dense(up=False), **TABLE)),
    (stem_gate, {"block": "stem_gate"}, dict(dense(gate=False), **TABLE)),
    (stem_hybrid, {"block": "stem_hybrid"}, dict(dense(), **TABLE)),
    (moe, {"block": "moe", "top_k": "2", "num_experts": str(E), "expert.block": "glu"},
     dict(ROUTER, **{k: v for e in range(E) for k, v in dense("experts.%d." % e).items()})),
    (structmoe, {"block": "structmoe", "top_k": "2"},
     dict(dense(gate=False), **ROUTER, **{"lore_a.weight": (E, R, D), "lore_b.weight": (E, DFF, R)})),
    (meki, {"block": "meki"},
     dict(OUT, **{"alpha": (), "beta": (), "mix_norm.weight": (M,), "word_embed.weight": (V, D),
                  "word_proj.gate_proj.weight": (D // 2, D), "word_proj.up_proj.weight": (D // 2, D),
                  "word_proj.down_proj.weight": (M, D // 2)})),
    (ple, {"block": "ple"}, OUT),
    (retoken, {"block": "retoken", "base.block": "mlp"},
     dict(dense("base.", gate=False), **{"base.up_proj.bias": (DFF,), "modulators.weight": (V, D), "scale": (D,)})),
    (mort, {"block": "mort", "num_layers": "28", "base.block": "glu"},
     dict(dense("base."), **ROUTER, **{"modulators.weight": (E, V, D), "scale": (D,)})),
    (product_keys, {"block": "product_keys", "top_k": str(K)}, dict(KEYS, **{"values.weight": (N * N, D)})),
    (memory_plus, {"block": "product_keys", "top_k": str(K)},
     dict(KEYS, **dense(up=False),
          **{"values.weight": (N * N, DFF), "gate_proj.bias": (DFF,), "down_proj.bias": (D,)})),
    (peer, {"block": "peer", "top_k": str(K)},
     dict(KEYS, **{"down_embed.weight": (N * N, D), "up_embed.weight": (N * N, D)})),
    (l3, {"block": "l3"},
     {"keys.weight": (11, D), "values.weight": (11, M), "up_proj.weight": (DFF, M), "up_proj.bias": (DFF,),
      "norm.weight": (DFF,), "mix_memory.weight": (D, DFF), "mix_input.weight": (D, D), "mix_input.bias": (D,)}),
    (deep_embed_1x, {"block": "deep_embed"}, dict(biased_mlp("", D), **{"deep_embed.weight": (V, D)})),
    (deep_embed_4x, {"block": "deep_embed"},
     dict(dense(up=False), **{"down_proj.bias": (D,), "deep_embed.weight": (V, DFF)})),
    (deep_embed_v7a, {"block": "deep_embed"},
     dict(dense(up=False), **{"residual": (T, D), "in_proj.weight": (R, D), "deep_embed.weight": (R, V, M),
                              "out_proj.weight": (DFF, M), "out_proj.bias": (DFF,)})),
    (mole, {"block": "mole"}, dict(biased_mlp("", D), **ROUTER, **{"lookup.weight": (E, V, D)})),
    (mole_as_trained, {"block": "mole"},
     dict(biased_mlp("", D), **ROUTER, **GIVEN,
          **{k: s for e in range(E) for k, s in biased_mlp("experts.%d." % e, C).items()})),
    (engram, {"block": "engram"}, ENGRAM),
    (engram, {"block": "engram"}, dict(ENGRAM, **{"key_proj.bias": (D,), "value_proj.bias": (D,)})),
    (longcat, {"block": "longcat_embedding", "terms": "7"},
     dict(GIVEN, **{"word_embed.weight": (V, D), "ngram_proj.weight": (D, C), "ngram_proj.bias": (D,)})),
]

faults = 0
for number, (formula, options, shapes) in enumerate(LAYERS):
    rng = np.random.default_rng(number)
    w = {k: rng.normal(size=s).astype(np.float32) / math.sqrt(s[-1] if len(s) > 1 else 1) for k, s in shapes.items()}
    x, dy = (rng.normal(size=(T, D)).astype(np.float32) for _ in range(2))
    ids = rng.integers(0, V, T)
    if options["block"] == "engram":  # keys and queries of zeros, and |g| below 1e-6, where the gate is flat
        x[1::5], w["per_layer_input"][2::5] = 0, 0
        x[3::10] *= 1e-11
    paths = [FOLDER / name for name in ("layer", "input", "output", "gradients")]
    tensors = {k: (np.asarray(v, np.float32), "F32") for k, v in w.items() if k not in INPUTS}
    inputs = {"x": (x, "F32"), "dy": (dy, "F32"), "token_ids": (ids, "I64")}
    inputs.update({k: (w[k].astype(np.float32), "F32") for k in INPUTS if k in w})
    if options["block"] == "l3":
        tensors["ranges"] = (RANGES, "I64")
    paths[0].write_bytes(file_of(tensors, options))
    paths[1].write_bytes(file_of(inputs))
    subprocess.run([sys.argv[1], *paths[:3], "--gradients", paths[3], "--backend", "reference"], check=True)
    ours = {k: decode(raw, dtype, shape) for k, (dtype, shape, raw) in parse(paths[3].read_bytes()).items()}

    theirs = {k: torch.tensor(np.asarray(v), dtype=torch.float64, requires_grad=True) for k, v in w.items()}
    tx = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    (formula(theirs, tx, torch.tensor(ids)) * torch.tensor(dy)).sum().backward()
    theirs["dx"] = tx
    for name, tensor in theirs.items():
        unread = tensor.grad is None  # zeros
        wanted = np.zeros(tensor.shape) if unread else tensor.grad.numpy()
        name = "d_" + name if name in INPUTS else name
        if name + ".ids" in ours:
            got = np.zeros(wanted.shape)
            got[..., ours[name + ".ids"], :] = ours[name + ".rows"]
        else:
            got = ours[name].astype(np.float64)
        scale = np.max(np.abs(wanted))
        # Rounded to f32 once; the sums of both are in double.
        good = got.shape == wanted.shape and np.all(np.abs(got - wanted) <= 2.0**-24 * np.abs(wanted) + 1e-12 * scale)
        if not good or (scale == 0 and not unread):
            faults += 1
            print("FAILED: %s: %s" % (options["block"], name), got.shape, wanted.shape, np.max(np.abs(got - wanted)) if got.shape == wanted.shape else "")
print("%d layers, %d faults" % (len(LAYERS), faults))
sys.exit(1 if faults else 0)
