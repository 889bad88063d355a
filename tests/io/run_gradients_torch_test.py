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
]

faults = 0
for number, (formula, options, shapes) in enumerate(LAYERS):
    rng = np.random.default_rng(number)
    w = {k: rng.normal(size=s).astype(np.float32) / math.sqrt(s[-1] if len(s) > 1 else 1) for k, s in shapes.items()}
    x, dy = (rng.normal(size=(T, D)).astype(np.float32) for _ in range(2))
    ids = rng.integers(0, V, T)
    paths = [FOLDER / name for name in ("layer", "input", "output", "gradients")]
    paths[0].write_bytes(file_of({k: (np.asarray(v, np.float32), "F32") for k, v in w.items()}, options))
    paths[1].write_bytes(file_of({"x": (x, "F32"), "dy": (dy, "F32"), "token_ids": (ids, "I64")}))
    subprocess.run([sys.argv[1], *paths[:3], "--gradients", paths[3], "--backend", "reference"], check=True)
    ours = {k: decode(raw, dtype, shape) for k, (dtype, shape, raw) in parse(paths[3].read_bytes()).items()}

    theirs = {k: torch.tensor(np.asarray(v), dtype=torch.float64, requires_grad=True) for k, v in w.items()}
    tx = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    (formula(theirs, tx, torch.tensor(ids)) * torch.tensor(dy)).sum().backward()
    theirs["dx"] = tx
    for name, tensor in theirs.items():
        wanted = tensor.grad.numpy()
        if name + ".ids" in ours:
            got = np.zeros(wanted.shape)
            got[..., ours[name + ".ids"], :] = ours[name + ".rows"]
        else:
            got = ours[name].astype(np.float64)
        scale = np.max(np.abs(wanted))
        # Rounded to f32 once; the sums of both are in double.
        good = got.shape == wanted.shape and np.all(np.abs(got - wanted) <= 2.0**-24 * np.abs(wanted) + 1e-12 * scale)
        if not good or scale == 0:
            faults += 1
            print("FAILED: %s: %s" % (options["block"], name), got.shape, wanted.shape, np.max(np.abs(got - wanted)) if got.shape == wanted.shape else "")
print("%d layers, %d faults" % (len(LAYERS), faults))
sys.exit(1 if faults else 0)
