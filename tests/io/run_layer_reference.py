"""Every block of the specification's section 2 in numpy and float64, with bounds of the rounding errors.

`load(tensors, metadata)` reads a layer as strictly as section 5 asks and raises Refused; the `Layer` that
it returns computes y, route and route_weight of an input.  Written from the specification alone.
"""

import math

import numpy as np

from run_layer_bounds import (
    Num,
    activate,
    add,
    gamma,
    l2,
    multiply,
    project,
    renormalised,
    rms,
    router_logits,
    routing_sigmoid,
    softmax,
    total,
    units,
)
from run_layer_files import decode, encode

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "sigmoid", "identity")
ORDERS = ("softmax_topk", "softmax_topk_renorm", "topk_softmax", "sigmoid_topk_renorm")
STRUCT_FUSIONS = ("additive", "gated", "post_activation")
MEKI_FUSIONS = ("add_sigmoid", "mul_sigmoid", "add_silu", "mul_silu")

#            projections, token table, default activation
BLOCKS = {
    "mlp": (("up", "down"), False, "gelu"),
    "glu": (("gate", "up", "down"), False, "silu"),
    "stem": (("gate", "down"), True, "silu"),
    "stem_gate": (("up", "down"), True, "silu"),
    "stem_hybrid": (("gate", "up", "down"), True, "silu"),
}
COMPOSITE = ("moe", "hash_moe", "structmoe", "meki", "ple", "retoken", "mort", "parallel")
ALL_BLOCKS = tuple(BLOCKS) + COMPOSITE


class Refused(Exception):
    """Bad input: `file` is layer or input; the text names the tensor or the key."""

    def __init__(self, text, file="layer"):
        super().__init__(text)
        self.file = file


class Call:
    """One input, and what the routers met: `gaps` has, by row, the least distance that decides a selection."""

    def __init__(self, x, ids=None, residual=None, per_layer_input=None):
        self.x, self.ids, self.residual, self.per_layer_input = Num(x), ids, residual, per_layer_input
        self.gaps = []

    def select(self, values, k):
        order = np.argsort(-values, -1, kind="stable")[:, :k]  # ties to the lower index
        ranked = -np.sort(-values, -1)[:, : k + 1]
        if ranked.shape[1] > 1:
            steps = ranked[:, :-1] - ranked[:, 1:]
            self.gaps.append(np.min(np.where(steps == 0, np.inf, steps), -1))  # an exact tie is no near tie
        return order


# ---------------------------------------------------------------------------------------------------
# Layer files

FLOATS, INTEGERS = ("F32", "F16", "BF16"), ("I32", "I64")


class File:
    def __init__(self, tensors, metadata):
        self.tensors, self.metadata = tensors, metadata
        self.used, self.keys, self.shared = set(), set(), {}
        self.vocabularies, self.needs = [], {}


class Reader:
    """A block's view of a file: its prefixes, and the sizes met so far."""

    def __init__(self, file, prefix="", keys=""):
        self.file, self.prefix, self.keys, self.sizes = file, prefix, keys, {}
        self.slack = 2 if prefix else 0

    def has(self, name):
        return self.prefix + name in self.file.tensors

    def tensor(self, name, *dims, dtypes=FLOATS):
        full = self.prefix + name
        if full not in self.file.tensors:
            raise Refused("tensor %s is missing" % full)
        a, dtype = self.file.tensors[full]
        if dtype not in dtypes:
            raise Refused("tensor %s has dtype %s" % (full, dtype))
        self.file.used.add(full)
        shape = np.shape(a)
        if not dims and shape == (1,):
            shape = ()
        if len(shape) != len(dims) or 0 in shape:
            raise Refused("tensor %s has shape %s" % (full, shape))
        for size, dim in zip(shape, dims):
            known = self.file.shared if dim == "d" else self.sizes  # d is common to all blocks of the file
            expected, since = known.setdefault(dim, (size, full))
            if size != expected:
                raise Refused("tensor %s has %s = %d, but %s has %d" % (full, dim, size, since, expected))
            if dim == "V":
                self.file.vocabularies.append(size)
                self.file.needs["token_ids"] = None
        a = np.asarray(a)
        if dtype in FLOATS:
            a = decode(encode(a, dtype), dtype, a.shape).astype(np.float64)
        return a.reshape(shape)

    def optional(self, name, *dims):
        return self.tensor(name, *dims) if self.has(name) else None

    def option(self, key, default=None):
        full = self.keys + key
        if full not in self.file.metadata:
            if default is None:
                raise Refused("option %s is missing" % full)
            return default
        self.file.keys.add(full)
        return self.file.metadata[full]

    def choice(self, key, allowed, default=None):
        value = self.option(key, default)
        if value not in allowed:
            raise Refused("option %s has the unknown value %s" % (self.keys + key, value))
        return value

    def count(self, key, default=None):
        value = self.option(key, default)
        if not value.isascii() or not value.isdigit() or int(value) == 0:
            raise Refused("option %s is %s, not a count" % (self.keys + key, value))
        return int(value)

    def number(self, key, default):
        value = self.option(key, default)
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 <= number < math.inf:
            raise Refused("option %s is %s" % (self.keys + key, value))
        return number

    def flag(self, key):
        return self.choice(key, ("true", "false"), "false") == "true"

    def nested(self, prefix, keys=None, kinds=ALL_BLOCKS):
        inner = Reader(self.file, self.prefix + prefix, self.keys + (prefix if keys is None else keys))
        kind = inner.choice("block", kinds)
        return load_dense(inner, kind) if kind in BLOCKS else LOADERS[kind](inner)


# Each loader returns a function of a Call giving (y, None or (route, route_weight)).


def load_dense(r, kind):
    projections, table, default = BLOCKS[kind]
    act = r.choice("activation", ACTIVATIONS, default)
    shapes = {"gate": ("f", "d"), "up": ("f", "d"), "down": ("d", "f")}
    w = {p: r.tensor(p + "_proj.weight", *shapes[p]) for p in projections}
    b = {p: r.optional(p + "_proj.bias", shapes[p][0]) for p in projections}
    embed = r.tensor("stem_embed.weight", "V", "f") if table else None

    def run(call):
        def of(p, a, extra=()):
            return project(a, w[p], b[p], extra, r.slack)

        x = call.x
        rows = embed[call.ids] if table else None
        if kind == "mlp":
            h = activate(act, of("up", x))
        elif kind == "glu":
            h = multiply(activate(act, of("gate", x)), of("up", x))
        elif kind == "stem":
            h = multiply(activate(act, of("gate", x)), Num(rows))
        elif kind == "stem_gate":
            h = multiply(activate(act, Num(rows)), of("up", x))
        else:
            h = multiply(activate(act, of("gate", x)), of("up", x, [(rows, 0.0, np.abs(rows), 1)]))
        return of("down", h), None

    return run


def experts_of(r):
    count = r.count("num_experts")
    return count, lambda: [r.nested("experts.%d." % e, "expert.", tuple(BLOCKS)) for e in range(count)]


def mixture(call, experts, route, weight):
    """sum_j weight_j f_route_j(x); every expert is run on every row."""
    outputs = [expert(call)[0] for expert in experts]
    terms = []
    for j in range(route.shape[1]):
        v, e = np.zeros_like(outputs[0].v), np.zeros_like(outputs[0].e)
        for i, y in enumerate(outputs):
            mask = route[:, j] == i
            v[mask], e[:, mask] = y.v[mask], y.e[:, mask]
        terms.append(multiply(Num(v, e), weight.column(j)) if weight is not None else Num(v, e))
    return terms


def load_moe(r):
    count, experts = experts_of(r)
    k, order = r.count("top_k", "1"), r.choice("router_order", ORDERS, "softmax_topk")
    router, bias = r.tensor("router.weight", "E", "d"), r.optional("router.selection_bias", "E")
    if len(router) != count:
        raise Refused("tensor %srouter.weight has %d rows, %snum_experts is %d" % (r.prefix, len(router), r.keys, count))
    if k > count:
        raise Refused("option %stop_k is %d of %d experts" % (r.keys, k, count))
    experts = experts()
    shared = r.nested("shared.", kinds=tuple(BLOCKS)) if r.keys + "shared.block" in r.file.metadata else None

    def run(call):
        g = router_logits(call.x, router)
        if order == "topk_softmax":
            seen = g
        else:
            seen = routing_sigmoid(g) if order.startswith("sigmoid") else softmax(g)
        route = call.select(seen.v + (0 if bias is None else bias), k)
        weight = seen.pick(route)
        if order == "topk_softmax":
            weight = softmax(weight)
        elif order.endswith("renorm"):
            weight = renormalised(weight)
        terms = mixture(call, experts, route, weight)
        return total(terms + ([shared(call)[0]] if shared else [])), (route, weight)

    return run


def load_hash_moe(r):
    count, experts = experts_of(r)
    name = r.prefix + "hash_map"
    dims = ("V", "k")[: max(1, np.ndim(r.file.tensors[name][0]))] if r.has("hash_map") else ("V",)
    table = r.tensor("hash_map", *dims, dtypes=INTEGERS)
    if (table < 0).any() or (table >= count).any():
        raise Refused("tensor %s has an expert that is not one of %d" % (name, count))
    table = table.reshape(len(table), -1)
    experts = experts()

    def run(call):
        route = table[call.ids]
        return total(mixture(call, experts, route, None)), (route, Num(np.ones(route.shape)))

    return run


def load_structmoe(r):
    act, k = r.choice("activation", ACTIVATIONS, "gelu"), r.count("top_k", "1")
    fusion = r.choice("fusion", STRUCT_FUSIONS, "additive")
    up, down = r.tensor("up_proj.weight", "f", "d"), r.tensor("down_proj.weight", "d", "f")
    up_bias, down_bias = r.optional("up_proj.bias", "f"), r.optional("down_proj.bias", "d")
    router = r.tensor("router.weight", "L", "d")
    a, b = r.tensor("lore_a.weight", "L", "r", "d"), r.tensor("lore_b.weight", "L", "f", "r")
    if k > len(router):
        raise Refused("option %stop_k is %d of %d experts" % (r.keys, k, len(router)))

    def run(call):
        s = softmax(router_logits(call.x, router))
        route = call.select(s.v, k)
        weight = s.pick(route)
        low = [project(call.x, a[i], slack=2) for i in range(len(a))]
        value, carried, size = 0.0, 0.0, 0.0
        rows = np.arange(len(route))
        for j in range(k):
            chosen = Num(
                np.stack([n.v for n in low])[route[:, j], rows],
                np.stack([n.e for n in low], 1)[:, route[:, j], rows],
            )
            chosen, matrix = multiply(weight.column(j), chosen), b[route[:, j]]
            value = value + np.einsum("tr,tfr->tf", chosen.v, matrix)
            size = size + np.einsum("tr,tfr->tf", np.abs(chosen.v), np.abs(matrix))
            carried = carried + np.einsum("utr,tfr->utf", chosen.e, np.abs(matrix))
        n = k * b.shape[2] + k + 2
        if fusion == "additive":
            h = activate(act, project(call.x, up, up_bias, [(value, carried, size, n)], r.slack))
        else:
            delta = Num(value, carried + gamma(n, value) * (size + carried))
            h = activate(act, project(call.x, up, up_bias, slack=r.slack))
            h = multiply(h, delta) if fusion == "gated" else add(h, delta)
        return project(h, down, down_bias, slack=r.slack), (route, weight)

    return run


def low_rank_output(r):
    """What MeKi and PLE have in common: g = x W_gate^T and y = rms(v W_out^T)."""
    eps = r.number("eps", "1e-6")
    gate = r.tensor("gate_proj.weight", "m", "d")
    out, norm = r.tensor("out_proj.weight", "d", "m"), r.tensor("post_norm.weight", "d")
    return (
        eps,
        lambda x: project(x, gate, slack=r.slack),
        lambda v: rms(project(v, out, slack=r.slack), eps, norm),
    )


def load_meki(r):
    fusion = r.choice("fusion", MEKI_FUSIONS, "add_sigmoid")
    gated_by = r.choice("gate_input", ("normed", "residual"), "normed")
    folded = r.flag("folded")
    eps, gate, output = low_rank_output(r)
    dynamic = r.has("word_embed.weight")
    static = r.has("memory.weight")
    if folded and dynamic:
        raise Refused("option %sfolded is true beside %sword_embed.weight" % (r.keys, r.prefix))
    if not dynamic and not static:
        raise Refused("neither %smemory.weight nor %sword_embed.weight" % (r.prefix, r.prefix))
    memory = r.tensor("memory.weight", "V", "m") if static else None
    mix, alpha = (None, None) if folded else (r.tensor("mix_norm.weight", "m"), r.tensor("alpha"))
    if dynamic:
        word, beta = r.tensor("word_embed.weight", "V", "d"), r.tensor("beta")
        word_norm = r.optional("word_norm.weight", "d")
        g = [r.tensor("word_proj.%s_proj.weight" % p, "w", "d") for p in ("gate", "up")]
        g.append(r.tensor("word_proj.down_proj.weight", "m", "w"))
    if gated_by == "residual":
        r.file.needs["residual"] = None

    def run(call):
        e = Num(memory[call.ids]) if static else None
        if dynamic:
            row = Num(word[call.ids])
            if word_norm is not None:
                row = rms(row, eps, word_norm)
            hidden = multiply(activate("silu", project(row, g[0], slack=2)), project(row, g[1], slack=2))
            part = multiply(Num(np.full((1, 1), float(beta))), project(hidden, g[2], slack=2))
            e = add(e, part) if static else part
        if not folded:
            e = multiply(Num(np.full((1, 1), float(alpha))), rms(e, eps, mix))
        z = gate(Num(call.residual) if gated_by == "residual" else call.x)
        combine, act = fusion.split("_")
        return output((add if combine == "add" else multiply)(e, activate(act, z))), None

    return run


def load_ple(r):
    eps, gate, output = low_rank_output(r)
    memory = r.optional("memory.weight", "V", "m")
    if memory is None:
        r.file.needs["per_layer_input"] = r.sizes["m"][0]

    def run(call):
        p = call.per_layer_input if memory is None else memory[call.ids]
        return output(multiply(activate("gelu_tanh", gate(call.x)), Num(p))), None

    return run


def norm_of(r):
    eps = r.number("eps", "1e-6")
    return (lambda x: l2(x, eps)) if r.choice("norm", ("l2", "rms"), "l2") == "l2" else (lambda x: rms(x, eps))


def load_retoken(r):
    folded, norm, base = r.flag("folded"), norm_of(r), r.nested("base.")
    table = r.tensor("modulators.weight", "V", "d")
    scale = None if folded else r.tensor("scale", "d")

    def run(call):
        y, route = base(call)
        p = Num(table[call.ids])
        if not folded:
            p = add(Num(np.ones((1, 1))), multiply(Num(scale), norm(p)))
        return multiply(y, p), route

    return run


def load_mort(r):
    norm, base, k, layers = norm_of(r), r.nested("base."), r.count("top_k", "2"), r.count("num_layers", "1")
    router, table = r.tensor("router.weight", "n", "d"), r.tensor("modulators.weight", "n", "V", "d")
    scale = r.tensor("scale", "d")
    if k > len(router):
        raise Refused("option %stop_k is %d of %d tables" % (r.keys, k, len(router)))

    def run(call):
        g = router_logits(call.x, router)
        route = call.select(g.v, k)
        weight = renormalised(routing_sigmoid(g.pick(route)))
        mixed = total([multiply(weight.column(j), Num(table[route[:, j], call.ids])) for j in range(k)])
        c = np.full((1, 1), 1 / math.sqrt(2 * layers))
        shift = multiply(Num(c, 4 * units(c) * c), multiply(Num(scale), norm(mixed)))
        return add(base(call)[0], shift), (route, weight)

    return run


def load_parallel(r):
    branches = [r.nested("branch.%d." % i) for i in range(r.count("branches"))]

    def run(call):
        results = [branch(call) for branch in branches]
        return total([y for y, _ in results], 1), next((route for _, route in results if route), None)

    return run


LOADERS = {kind: globals()["load_" + kind] for kind in COMPOSITE}


class Layer:
    def __init__(self, tensors, metadata):
        self.file = File(tensors, metadata)
        kind = metadata.get("block", "")
        if kind not in ALL_BLOCKS:
            raise Refused("option block has the unknown value %s" % kind)
        top = Reader(self.file)
        self.file.keys.add("block")
        self.block = load_dense(top, kind) if kind in BLOCKS else LOADERS[kind](top)
        self.width = self.file.shared["d"][0]
        for name in tensors:
            if name not in self.file.used:
                raise Refused("tensor %s is unused" % name)
        for key in metadata:
            if key not in self.file.keys:
                raise Refused("option %s is unknown" % key)

    def call(self, inputs):
        """The Call for `inputs`, name -> (array, dtype), checked as section 5 asks."""

        def get(name, width=None):
            if name not in inputs:
                raise Refused("tensor %s is missing" % name, "input")
            a, dtype = inputs[name]
            expected = ("F32",) if width else INTEGERS
            rank = 2 if width else 1
            if dtype not in expected or np.ndim(a) != rank or (width and a.shape[1] != width):
                raise Refused("tensor %s has dtype %s and shape %s" % (name, dtype, np.shape(a)), "input")
            if name != "x" and len(a) != len(x):
                raise Refused("tensor %s has %d rows, x %d" % (name, len(a), len(x)), "input")
            return np.asarray(a).astype(np.float64 if width else np.int64)

        x = get("x", self.width)
        needs = self.file.needs
        ids = get("token_ids") if "token_ids" in needs or "token_ids" in inputs else None
        if "token_ids" in needs and len(ids):
            for i in ids:
                if not 0 <= i < min(self.file.vocabularies):
                    raise Refused("tensor token_ids has the id %d" % i, "input")
        residual = get("residual", self.width) if "residual" in needs else None
        given = get("per_layer_input", needs["per_layer_input"]) if "per_layer_input" in needs else None
        return Call(x, ids, residual, given)

    def run(self, inputs):
        """(y, (route, route_weight) or None, least gap of a selection by row)"""
        call = self.call(inputs)
        y, route = self.block(call)
        gap = np.min(call.gaps, 0) if call.gaps else np.full(len(call.x.v), np.inf)
        return y, route, gap
