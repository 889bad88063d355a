"""Random layers of every block with their expected outputs, and small sound layers to break, for run_layer_test.py.

A layer is described by a dict, for instance {"block": "moe", "E": 4, "k": 2, "expert": {"block": "glu", "f": 17}}: sizes
and which optional tensors there are by short names, nested blocks under `expert`, `shared`, `base` and `branches`, and
options by the names of docs/layers.md, those left out being left out of the metadata too.
"""

import math

import numpy as np

from run_layer_bounds import Uncertain
from run_layer_files import BLOCK_BYTES, file_of, quantised
from run_layer_harness import write
from run_layer_reference import BLOCKS, Layer

OPTIONS = ("activation", "fusion", "router_order", "eps", "norm", "num_layers", "gate_input", "folded", "placement", "top_k")
OPTIONS += ("terms",)
BIASES_OF = {block: tuple(p + "_proj.bias" for p in spec[0]) for block, spec in BLOCKS.items()}
MIXED = {"mixed": ("F32", "BF16", "F16"), "blocks": ("q8_0", "q4_0", "F32", "q4_0", "q8_0", "BF16")}
NEAR = 1e-4  # selections decided by less are left out; float32 errors are far below


class Case:
    """A layer, an input and the expected output."""

    def expect(self):
        y, self.route, _ = Layer(self.tensors, self.metadata).run(self.inputs)
        self.outputs = {"y": y}
        if self.route:
            self.outputs["route_weight"] = self.route[1]

    def write(self):
        return write("layer", file_of(self.tensors, self.metadata)), write("input", file_of(self.inputs))


def typed(values, dtype, rng, turn):
    """The tensors, shuffled, of the type `dtype`, and the metadata that says the formats of blocks.

    mixed: F32, BF16 and F16 take turns; blocks: q8_0 and q4_0 too; a dict: of the tensors named, the others F32.
    What has no rows of whole blocks is F32 in place of q8_0 and q4_0.
    """
    own = dtype if isinstance(dtype, dict) else {}
    mixed = ("F32",) if own else MIXED.get(dtype, (dtype,))
    names, tensors, metadata = list(values), {}, {}
    rng.shuffle(names)
    for i, name in enumerate(names):
        a, kind = values[name].astype(np.float32), own.get(name, mixed[(i + turn) % len(mixed)])
        if kind in BLOCK_BYTES and a.ndim >= 2 and a.shape[-1] % 32 == 0:
            tensors[name], metadata[name + ".format"] = (quantised(a, kind), "U8"), kind
        else:
            tensors[name] = (a, "F32" if kind in BLOCK_BYTES else kind)
    return tensors, metadata


def some_ids(rng, v, t):
    ids = rng.integers(0, v, size=t)
    if t >= 2:  # both ends of the table, next to each other and far apart
        ids[0], ids[-1] = v - 1, 0
    if t >= 4:
        ids[1], ids[2] = 0, v - 1
    return ids


class DenseCase(Case):
    """dtype: as of `typed`.  scale: multiplies what goes into phi."""

    counter = 0

    def __init__(self, block, act, size, biases=(), dtype="F32", id_dtype="I64", scale=1.0, with_ids=None):
        d, f, v, t = size
        projections, table, _ = BLOCKS[block]
        self.block, self.act, self.size, self.biases = block, act, size, biases
        self.dtype, self.id_dtype, self.scale = dtype, id_dtype, scale
        DenseCase.counter += 1
        rng = np.random.default_rng([DenseCase.counter, d, f, v, t])

        shapes = {"gate": (f, d), "up": (f, d), "down": (d, f)}
        values = {}
        for p in projections:
            values[p + "_proj.weight"] = rng.normal(size=shapes[p]) * (2.0 if p != "down" else 1.0) / math.sqrt(shapes[p][1])
        for name in biases:
            values[name] = rng.normal(size=shapes[name.split("_")[0]][0])
        if table:
            values["stem_embed.weight"] = rng.normal(size=(v, f)) * 2.0
        source = {"mlp": "up_proj", "stem_gate": "stem_embed"}.get(block, "gate_proj")  # phi's argument
        for name in values:
            if name.startswith(source):
                values[name] = values[name] * scale

        self.tensors, self.metadata = typed(values, dtype, rng, DenseCase.counter)
        self.metadata["block"] = block
        if act is not None:
            self.metadata["activation"] = act
        x = rng.normal(size=(t, d)).astype(np.float32)
        ids = some_ids(rng, v, t)
        self.inputs = {"x": (x, "F32")}
        if table if with_ids is None else with_ids:
            self.inputs["token_ids"] = (ids, id_dtype)
        self.expect()

    def __str__(self):
        return "%s, activation %s, d=%d f=%d V=%d T=%d, biases %s, dtype %s, ids %s%s" % (
            (self.block, self.act or "left out (%s)" % BLOCKS[self.block][2])
            + self.size
            + ("+".join(b.split("_")[0] for b in self.biases) or "none", self.dtype)
            + (self.id_dtype if "token_ids" in self.inputs else "absent",)
            + ("" if self.scale == 1.0 else ", phi's argument times %g" % self.scale,)
        )


# ---------------------------------------------------------------------------------------------------
# Layers from descriptions


class Maker:
    """Fills `values`, `integers` and `metadata` from a description."""

    def __init__(self, rng, d, v):
        self.rng, self.d, self.v = rng, d, v
        self.values, self.integers, self.metadata = {}, {}, {}

    def normal(self, name, *shape, scale=1.0):
        self.values[name] = self.rng.normal(size=shape) * scale

    def block(self, spec, prefix="", keys="", say=True):
        """say: write the metadata, too (not for the second and later experts, which share theirs)."""
        if say:
            self.metadata[keys + "block"] = spec["block"]
            for key in OPTIONS:
                if key in spec:
                    self.metadata[keys + key] = str(spec[key])
            for short, key in (("k", "top_k"), ("E", "num_experts")):
                if short in spec and spec["block"] != "hash_moe" or short == "E" and "E" in spec:
                    self.metadata[keys + key] = str(spec[short])
        kind = spec["block"]
        (self.dense if kind in BLOCKS else getattr(self, kind))(spec, prefix, keys)

    def dense(self, spec, prefix, keys):
        d, f, v = self.d, spec["f"], self.v
        projections, table, _ = BLOCKS[spec["block"]]
        for p in projections:
            shape = (d, f) if p == "down" else (f, d)
            self.normal(prefix + p + "_proj.weight", *shape, scale=(1.0 if p == "down" else 2.0) / math.sqrt(shape[1]))
            if p in spec.get("biases", ()):
                self.normal(prefix + p + "_proj.bias", shape[0])
        if table:
            self.normal(prefix + "stem_embed.weight", v, f, scale=2.0)

    def experts(self, spec, prefix, keys):
        for e in range(spec["E"]):
            self.block(spec["expert"], "%sexperts.%d." % (prefix, e), keys + "expert.", say=e == 0)

    def moe(self, spec, prefix, keys):
        self.normal(prefix + "router.weight", spec["E"], self.d, scale=1.5 / math.sqrt(self.d))
        if spec.get("bias"):
            # of the size of the values it is added to, so that it changes selections but not all of them
            scale = 1.0 if spec.get("router_order") == "topk_softmax" else 0.3
            self.normal(prefix + "router.selection_bias", spec["E"], scale=scale)
        self.experts(spec, prefix, keys)
        if "shared" in spec:
            self.block(spec["shared"], prefix + "shared.", keys + "shared.")

    def hash_moe(self, spec, prefix, keys):
        # k distinct experts an id: what an expert named twice means is open
        table = np.argsort(self.rng.random((self.v, spec["E"])), -1)[:, : spec.get("k") or 1]
        self.integers[prefix + "hash_map"] = (table if spec.get("k") else table[:, 0], spec.get("map", "I64"))
        self.experts(spec, prefix, keys)

    def structmoe(self, spec, prefix, keys):
        d, f, n, r = self.d, spec["f"], spec["L"], spec["r"]
        reads, gives = (f, d) if spec.get("placement") == "down" else (d, f)
        self.normal(prefix + "up_proj.weight", f, d, scale=1.5 / math.sqrt(d))
        self.normal(prefix + "down_proj.weight", d, f, scale=1 / math.sqrt(f))
        for p in spec.get("biases", ()):
            self.normal(prefix + p + "_proj.bias", f if p == "up" else d)
        self.normal(prefix + "router.weight", n, reads, scale=1.5 / math.sqrt(reads))
        self.normal(prefix + "lore_a.weight", n, r, reads, scale=2 / math.sqrt(reads))
        self.normal(prefix + "lore_b.weight", n, gives, r, scale=2 / math.sqrt(r))

    def gated_memory(self, m, prefix):
        d = self.d
        self.normal(prefix + "gate_proj.weight", m, d, scale=1.5 / math.sqrt(d))
        self.normal(prefix + "out_proj.weight", d, m, scale=1 / math.sqrt(m))
        self.normal(prefix + "post_norm.weight", d)

    def meki(self, spec, prefix, keys):
        d, m, v, form = self.d, spec["m"], self.v, spec["form"]
        self.gated_memory(m, prefix)
        if form != "dynamic":
            self.normal(prefix + "memory.weight", v, m)
        if form != "folded":
            self.normal(prefix + "mix_norm.weight", m)
            self.values[prefix + "alpha"] = np.full(spec.get("scalar", ()), -0.75 if self.rng.random() < 0.5 else 1.3)
        if form in ("training", "dynamic"):
            w = d // 2
            self.values[prefix + "beta"] = np.full(spec.get("scalar", ()), 0.6)
            self.normal(prefix + "word_embed.weight", v, d)
            if spec.get("linear"):
                self.normal(prefix + "word_proj.weight", m, d, scale=1 / math.sqrt(d))
            else:
                self.normal(prefix + "word_proj.gate_proj.weight", w, d, scale=2 / math.sqrt(d))
                self.normal(prefix + "word_proj.up_proj.weight", w, d, scale=2 / math.sqrt(d))
                self.normal(prefix + "word_proj.down_proj.weight", m, w, scale=2 / math.sqrt(w))
            if spec.get("word_norm"):
                self.normal(prefix + "word_norm.weight", d)

    def ple(self, spec, prefix, keys):
        d, m, v = self.d, spec["m"], self.v
        self.gated_memory(m, prefix)
        if spec["memory"]:
            self.normal(prefix + "memory.weight", v, m)
        if spec["memory"] == "full":
            self.normal(prefix + "word_embed.weight", v, d, scale=3.0)
            self.normal(prefix + "per_layer_model_projection.weight", m, d)
            self.normal(prefix + "per_layer_projection_norm.weight", m)

    def retoken(self, spec, prefix, keys):
        self.block(spec["base"], prefix + "base.", keys + "base.")
        self.normal(prefix + "modulators.weight", self.v, self.d)
        if spec.get("folded") != "true":
            self.normal(prefix + "scale", self.d, scale=2.0)

    def mort(self, spec, prefix, keys):
        n = spec["n"]
        self.block(spec["base"], prefix + "base.", keys + "base.")
        if n:
            self.normal(prefix + "router.weight", n, self.d, scale=1.5 / math.sqrt(self.d))
            self.normal(prefix + "modulators.weight", n, self.v, self.d)
        self.normal(prefix + "scale", self.d, scale=3.0)

    def deep_embed(self, spec, prefix, keys):
        d, f, v, form = self.d, spec["f"], self.v, spec["form"]
        first = "up_proj" if form == "1x" else "gate_proj"
        self.normal(prefix + first + ".weight", f, d, scale=1.5 / math.sqrt(d))
        self.normal(prefix + "down_proj.weight", d, f, scale=1 / math.sqrt(f))
        for p in spec.get("biases", ()):
            self.normal(prefix + (first if p == "up" else p + "_proj") + ".bias", d if p == "down" else f)
        if form != "v7a":
            self.normal(prefix + "deep_embed.weight", v, d if form == "1x" else f)
            return
        n, w = spec["n"], spec.get("w", spec["n"])
        self.normal(prefix + "in_proj.weight", n, d, scale=1 / math.sqrt(d))
        self.normal(prefix + "deep_embed.weight", n, v, w, scale=1 / math.sqrt(n))
        self.normal(prefix + "out_proj.weight", f, w, scale=1 / math.sqrt(w))

    def mole(self, spec, prefix, keys):
        d, f, v, n = self.d, spec["f"], self.v, spec["n"]

        def mlp(to, reads):
            self.normal(to + "up_proj.weight", f, reads, scale=1.5 / math.sqrt(reads))
            self.normal(to + "down_proj.weight", d, f, scale=1 / math.sqrt(f))
            for p in spec.get("biases", ()):
                self.normal(to + p + "_proj.bias", f if p == "up" else d)

        mlp(prefix, d)
        self.normal(prefix + "router.weight", n, d, scale=1.5 / math.sqrt(d))
        if spec["form"] == "folded":
            self.normal(prefix + "lookup.weight", n, v, d)
        else:
            for e in range(n):
                mlp("%sexperts.%d." % (prefix, e), spec["w"])

    def row_choice(self, spec, prefix):
        """H heads, n keys of c numbers.  same: which keys stand in each group; equal_heads: all are as the first."""
        d, heads, n, c = self.d, spec["H"], spec["n"], spec["c"]
        self.normal(prefix + "query.weight", 2 * heads * c, d, scale=1.2 / math.sqrt(d))
        self.normal(prefix + "keys.weight", 2 * heads, n, c, scale=1.2 / math.sqrt(c))
        if "query" in spec.get("biases", ()):
            self.normal(prefix + "query.bias", 2 * heads * c, scale=0.5)
        if "same" in spec:
            self.values[prefix + "keys.weight"] = self.values[prefix + "keys.weight"][:, list(spec["same"])]
        if spec.get("equal_heads"):
            for name in ("query.weight", "query.bias", "keys.weight"):
                if prefix + name in self.values:
                    a = self.values[prefix + name]
                    first = a[: len(a) // heads]
                    self.values[prefix + name] = np.concatenate([first] * heads)

    def product_keys(self, spec, prefix, keys):
        """With f it is Memory+."""
        d, f, rows = self.d, spec.get("f"), spec["n"] ** 2
        self.row_choice(spec, prefix)
        self.normal(prefix + "values.weight", rows, f or d)
        if f:
            self.normal(prefix + "gate_proj.weight", f, d, scale=1.5 / math.sqrt(d))
            self.normal(prefix + "down_proj.weight", d, f, scale=1 / math.sqrt(f))
            for p, size in (("gate", f), ("down", d)):
                if p in spec.get("biases", ()):
                    self.normal(prefix + p + "_proj.bias", size)

    def peer(self, spec, prefix, keys):
        self.row_choice(spec, prefix)
        for p, scale in (("down", 1.5 / math.sqrt(self.d)), ("up", 1.0)):
            self.normal(prefix + p + "_embed.weight", spec["n"] ** 2, self.d, scale=scale)

    def l3(self, spec, prefix, keys):
        """ranges: pairs that take turns, or "mixed", "parts" (each row in one), "few" (1 to 3 rows, or none)."""
        d, v, rows, w, u = self.d, self.v, spec["rows"], spec["w"], spec["u"]
        made = spec.get("ranges", "mixed")
        if made == "parts":
            ends = np.linspace(0, rows, v + 1).astype(int)
            ranges = np.stack([ends[:-1], ends[1:]], 1)
        elif made == "few":
            begin = self.rng.integers(0, rows, v)
            ranges = np.stack([begin, np.minimum(rows, begin + self.rng.integers(0, 4, v))], 1)
            ranges[0] = rows - 1, rows
        elif made == "mixed":
            # shared rows, one row, all rows, no rows (0 to 0 and the end to the end too)
            ranges = np.sort(self.rng.integers(0, rows + 1, (v, 2)), -1)
            one = self.rng.integers(0, rows)
            for i, pair in enumerate(((0, rows), (rows, rows), (one, one + 1), (0, 0))):
                ranges[i::7] = pair
            ranges = self.rng.permutation(ranges)
        else:
            ranges = np.resize(np.array(made), (v, 2))
        self.integers[prefix + "ranges"] = (ranges, spec.get("map", "I64"))
        self.normal(prefix + "keys.weight", rows, d, scale=1.5 / math.sqrt(d))
        self.normal(prefix + "values.weight", rows, w)
        self.normal(prefix + "up_proj.weight", u, w, scale=1 / math.sqrt(w))
        self.normal(prefix + "norm.weight", u)
        self.normal(prefix + "mix_memory.weight", d, u, scale=1 / math.sqrt(u))
        self.normal(prefix + "mix_input.weight", d, d, scale=1 / math.sqrt(d))
        for p, size in (("up_proj", u), ("mix_memory", d), ("mix_input", d)):
            if p in spec.get("biases", ()):
                self.normal(prefix + p + ".bias", size)

    def projection(self, name, spec, short, *shape):
        """A matrix, and its bias where the description has it."""
        self.normal(name + ".weight", *shape, scale=1 / math.sqrt(shape[1]))
        if short in spec.get("biases", ()):
            self.normal(name + ".bias", shape[0])

    def engram(self, spec, prefix, keys):
        for p in ("key", "value"):
            self.projection(prefix + p + "_proj", spec, p, self.d, spec["c"])
        for p in ("key", "query"):
            self.normal(prefix + p + "_norm.weight", self.d)

    def longcat_embedding(self, spec, prefix, keys):
        self.normal(prefix + "word_embed.weight", self.v, self.d)
        self.projection(prefix + "ngram_proj", spec, "ngram", self.d, spec["c"])

    def parallel(self, spec, prefix, keys):
        self.metadata[keys + "branches"] = str(len(spec["branches"]))
        for i, branch in enumerate(spec["branches"]):
            self.block(branch, "%sbranch.%d." % (prefix, i), "%sbranch.%d." % (keys, i))


def parts(spec):
    """The description and all nested ones."""
    yield spec
    for inner in [spec[k] for k in ("expert", "shared", "base") if k in spec] + list(spec.get("branches", ())):
        yield from parts(inner)


def kinds(spec):
    return {s["block"] for s in parts(spec)}


def first_column(*values):
    """rows of x for TreeCase: the first number takes turns in `values`, the others are normal."""

    def x(rng, n, d):
        a = rng.normal(size=(n, d))
        a[:, 0] = np.resize(values, n)
        return a

    return x


class TreeCase(Case):
    """`spec` on size (d, V, T).

    ties: router rows, queries, keys and x of a few small values, rows of the router and keys repeated.  change: of the
    Maker, after it made the tensors.  x(rng, n, d), given(rng, n, m): rows of x, of per_layer_input.  near: as NEAR.
    """

    counter = 0

    def __init__(self, spec, size, dtype="F32", id_dtype="I64", ties=False, change=None, x=None, given=None, near=NEAR):
        d, v, t = size
        self.spec, self.size, self.dtype, self.id_dtype, self.ties = spec, size, dtype, id_dtype, ties
        TreeCase.counter += 1
        self.number = TreeCase.counter
        rng = np.random.default_rng([self.number, d, v, t])
        maker = Maker(rng, d, v)
        maker.block(spec)
        if ties:
            # Multiples of 1/4 below 2: every order of summation gives the same, exact logits.  Rows in pairs 0 = 2, 1 = 3
            # and so on, or all equal, so that neither memory order nor a sort that is not stable gets them right by luck.
            for name, a in maker.values.items():
                if name.endswith("router.weight"):
                    a = rng.integers(-4, 5, size=a.shape) / 4.0
                    n = len(a)
                    index = np.zeros(n, int) if ties == "all" else np.arange(n) // 4 * 2 + np.arange(n) % 2
                    maker.values[name] = a[index]
                if name.endswith("selection_bias"):
                    maker.values[name] = np.zeros_like(a)
                if name.endswith(("query.weight", "query.bias", "keys.weight")):
                    maker.values[name] = rng.integers(-4, 5, size=a.shape) / 4.0
                    if name.endswith("keys.weight") and a.ndim == 3:
                        n = a.shape[1]
                        index = np.zeros(n, int) if ties == "all" else np.arange(n) // 4 * 2 + np.arange(n) % 2
                        maker.values[name] = maker.values[name][:, index]
                if name.endswith("up_proj.weight") and spec.get("placement") == "down":
                    maker.values[name] = rng.integers(-4, 5, size=a.shape) / 4.0  # the bank reads relu of exact sums
        if change:
            change(maker)
        self.tensors, formats = typed(maker.values, dtype, rng, self.number)
        self.tensors.update(maker.integers)
        self.metadata = dict(maker.metadata, **formats)

        def rows(n):  # of x
            if x:
                return x(rng, n, d).astype(np.float32)
            if ties:
                return (rng.integers(-4, 5, size=(n, d)) / 4.0).astype(np.float32)
            return rng.normal(size=(n, d)).astype(np.float32)

        self.inputs = {"x": (rows(t), "F32")}
        self.inputs["token_ids"] = (some_ids(rng, v, t), id_dtype)
        layer = Layer(self.tensors, self.metadata)
        if "token_ids" not in layer.file.needs and self.number % 2:
            del self.inputs["token_ids"]
        if "residual" in layer.file.needs:
            self.inputs["residual"] = (rng.normal(size=(t, d)).astype(np.float32), "F32")
        if "per_layer_input" in layer.file.needs:
            width = layer.file.needs["per_layer_input"]
            p = given(rng, t, width) if given else rng.normal(size=(t, width))
            self.inputs["per_layer_input"] = (p.astype(np.float32), "F32")

        for _ in range(1000):  # other rows for those with a near tie, or with a norm that says nothing
            try:
                y, self.route, gap = layer.run(self.inputs)
                close = gap < near
            except Uncertain as error:
                close = error.rows
            if not close.any():
                break
            self.inputs["x"][0][close] = rows(int(close.sum()))
            for name in ("residual", "per_layer_input"):
                if name in self.inputs:
                    a = self.inputs[name][0]
                    a[close] = rng.normal(size=a[close].shape).astype(np.float32)
        else:
            raise ValueError("near ties cannot be avoided: %s" % self)
        self.outputs = {"y": y}
        if self.route:
            self.outputs["route_weight"] = self.route[1]

    def __str__(self):
        text = "%s, d=%d V=%d T=%d, dtype %s, ids %s" % ((describe(self.spec),) + self.size + (self.dtype, self.id_dtype))
        return text + (", ties (%s)" % self.ties if self.ties else "")


def describe(spec):
    words = []
    for key, value in spec.items():
        if key == "block":
            words.insert(0, value)
        elif key == "branches":
            words.append("branches [%s]" % "; ".join(map(describe, value)))
        else:
            words.append("%s %s" % (key, "(%s)" % describe(value) if isinstance(value, dict) else value))
    return " ".join(words)


# ---------------------------------------------------------------------------------------------------
# Small sound layers, to be broken

D, F, V, T = 3, 5, 7, 4


def ramp(*shape):
    n = math.prod(shape)
    return (np.arange(n, dtype=np.float32).reshape(shape) + 1) / max(n, 1)


def good_layer(block, dtype="F32"):
    projections, table, _ = BLOCKS[block]
    tensors = {p + "_proj.weight": (ramp(*((D, F) if p == "down" else (F, D))), dtype) for p in projections}
    if table:
        tensors["stem_embed.weight"] = (ramp(V, F), dtype)
    return tensors, {"block": block}


def good_input():
    return {"x": (ramp(T, D), "F32"), "token_ids": (np.array([0, 6, 3, 3]), "I64")}
