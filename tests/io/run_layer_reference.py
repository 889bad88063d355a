"""Every block of docs/layers.md in numpy and float64, with bounds of the rounding errors.

`Layer(tensors, metadata)` reads a layer as strictly as section 5 asks and raises Refused; it computes y, route
and route_weight of an input.  Written from docs/layers.md alone.
"""

import functools
import math

import numpy as np

from run_layer_bounds import (
    Num,
    activate,
    add,
    dots,
    gamma,
    inner,
    joined,
    l2,
    log_sigmoid,
    multiply,
    project,
    rms,
    router_logits,
    routing_sigmoid,
    signed_root,
    softmax,
    total,
    units,
)
from run_layer_reader import (
    ACTIVATIONS,
    ALL_BLOCKS,
    BLOCKS,
    COMPOSITE,
    INTEGERS,
    LOADERS,
    MEKI_FUSIONS,
    ORDERS,
    STRUCT_FUSIONS,
    Call,
    File,
    Reader,
    Refused,
)

# Each loader returns a function of a Call giving (y, None or (route, route_weight)).


def constant(value):
    """A factor with a root in it, that may be rounded."""
    c = np.full((1, 1), value)
    return Num(c, 4 * units(c) * np.abs(c))


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
        sigmoid = order.startswith("sigmoid")
        # Without a bias the values rank as the logits do, also where they underflow to the same number.
        seen = g.v
        if bias is not None:
            seen = (g.v if order == "topk_softmax" else routing_sigmoid(g.v) if sigmoid else softmax(g).v) + bias
        route = call.select(seen, k)
        # p_i / sum p_j over the chosen, from differences of logarithms: the quotient of underflown numbers is none.
        weight = softmax(g).pick(route) if order == "softmax_topk" else softmax((log_sigmoid(g) if sigmoid else g).pick(route))
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
    if r.keys + "top_k" in r.file.metadata and r.count("top_k") != table.shape[1]:
        raise Refused("option %stop_k is not the %d columns of %s" % (r.keys, table.shape[1], name))
    experts = experts()

    def run(call):
        route = table[call.ids]
        return total(mixture(call, experts, route, None)), (route, Num(np.ones(route.shape)))

    return run


def load_structmoe(r):
    act, k = r.choice("activation", ACTIVATIONS, "gelu"), r.count("top_k", "1")
    fusion, placement = r.choice("fusion", STRUCT_FUSIONS, "additive"), r.choice("placement", ("up", "down"), "up")
    if placement == "down" and fusion != "additive":
        raise Refused("option %sfusion is %s, with %splacement = down" % (r.keys, fusion, r.keys))
    up, down = r.tensor("up_proj.weight", "f", "d"), r.tensor("down_proj.weight", "d", "f")
    up_bias, down_bias = r.optional("up_proj.bias", "f"), r.optional("down_proj.bias", "d")
    reads, gives = ("d", "f") if placement == "up" else ("f", "d")
    router = r.tensor("router.weight", "L", reads)
    a, b = r.tensor("lore_a.weight", "L", "r", reads), r.tensor("lore_b.weight", "L", gives, "r")
    if k > len(router):
        raise Refused("option %stop_k is %d of %d experts" % (r.keys, k, len(router)))

    def bank(call, h):
        """(route, weight) and sum_l s_l (h A_l^T) B_l^T as a term of `project`."""
        s = softmax(router_logits(h, router))
        route = call.select(s.v, k)
        weight = s.pick(route)
        low = [project(h, a[i], slack=2) for i in range(len(a))]
        value, carried, size = 0.0, 0.0, 0.0
        rows = np.arange(len(route))
        for j in range(k):
            chosen = Num(
                np.stack([n.v for n in low])[route[:, j], rows],
                np.stack([n.e for n in low], 1)[:, route[:, j], rows],
            )
            chosen, matrix = multiply(weight.column(j), chosen), b[route[:, j]]
            value = value + np.einsum("tr,tor->to", chosen.v, matrix)
            size = size + np.einsum("tr,tor->to", np.abs(chosen.v), np.abs(matrix))
            carried = carried + np.einsum("utr,tor->uto", chosen.e, np.abs(matrix))
        return (route, weight), (value, carried, size, k * b.shape[2] + k + 2)

    def run(call):
        if placement == "down":
            h = activate(act, project(call.x, up, up_bias, slack=r.slack))
            routed, term = bank(call, h)
            return project(h, down, down_bias, [term], r.slack), routed
        routed, term = bank(call, call.x)
        if fusion == "additive":
            h = activate(act, project(call.x, up, up_bias, [term], r.slack))
        else:
            value, carried, size, n = term
            delta = Num(value, carried + gamma(n, value) * (size + carried))
            h = activate(act, project(call.x, up, up_bias, slack=r.slack))
            h = multiply(h, delta) if fusion == "gated" else add(h, delta)
        return project(h, down, down_bias, slack=r.slack), routed

    return run


def low_rank_output(r):
    """What MeKi and PLE have in common: g = x W_gate^T and y = rms(v W_out^T)."""
    eps = r.number("eps", "1e-6")
    gate = r.tensor("gate_proj.weight", "m", "d")
    out, norm = r.tensor("out_proj.weight", "d", "m"), r.tensor("post_norm.weight", "d")
    gate_bias, out_bias = r.optional("gate_proj.bias", "m"), r.optional("out_proj.bias", "d")
    return (
        eps,
        lambda x: project(x, gate, gate_bias, slack=r.slack),
        lambda v: rms(project(v, out, out_bias, slack=r.slack), eps, norm),
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
        linear = r.optional("word_proj.weight", "m", "d")
        linear_bias = r.optional("word_proj.bias", "m") if linear is not None else None
        if linear is None:
            g = [r.tensor("word_proj.%s_proj.weight" % p, "w", "d") for p in ("gate", "up")]
            g.append(r.tensor("word_proj.down_proj.weight", "m", "w"))
            b = [r.optional("word_proj.%s_proj.bias" % p, size) for p, size in (("gate", "w"), ("up", "w"), ("down", "m"))]
    if gated_by == "residual":
        r.file.needs["residual"] = None

    def run(call):
        e = Num(memory[call.ids]) if static else None
        if dynamic:
            row = Num(word[call.ids])
            if word_norm is not None:
                row = rms(row, eps, word_norm)
            if linear is None:
                row = multiply(activate("silu", project(row, g[0], b[0], slack=2)), project(row, g[1], b[1], slack=2))
            part = project(row, g[2], b[2], slack=2) if linear is None else project(row, linear, linear_bias, slack=2)
            part = multiply(Num(np.full((1, 1), float(beta))), part)
            e = add(e, part) if static else part
        if not folded:
            e = multiply(Num(np.full((1, 1), float(alpha))), rms(e, eps, mix))
        z = gate(Num(call.residual) if gated_by == "residual" else call.x)
        combine, act = fusion.split("_")
        return output((add if combine == "add" else multiply)(e, activate(act, z))), None

    return run


def load_ple(r):
    folded, (eps, gate, output) = r.flag("folded"), low_rank_output(r)
    full = r.has("word_embed.weight")
    if folded and (full or not r.has("memory.weight")):
        raise Refused("option %sfolded is true, which is for %smemory.weight alone" % (r.keys, r.prefix))
    memory = r.tensor("memory.weight", "V", "m") if full else r.optional("memory.weight", "V", "m")
    if full:
        word, context = r.tensor("word_embed.weight", "V", "d"), r.tensor("per_layer_model_projection.weight", "m", "d")
        norm = r.tensor("per_layer_projection_norm.weight", "m")
        context_bias = r.optional("per_layer_model_projection.bias", "m")
    elif memory is None:
        r.given("gate_proj.weight", r.sizes["m"][0])

    def run(call):
        p = Num(call.per_layer_input if memory is None else memory[call.ids])
        if full:
            d, m = context.shape[1], context.shape[0]
            row = project(multiply(constant(d**-0.5), Num(word[call.ids])), context, context_bias, slack=2)
            p = add(rms(row, eps, norm), multiply(constant(math.sqrt(m)), p))
            p = multiply(constant(math.sqrt(0.5)), p)
        return output(multiply(activate("gelu_tanh", gate(call.x)), p)), None

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
    norm, base, layers = norm_of(r), r.nested("base."), r.count("num_layers")
    given = not r.has("router.weight") and not r.has("modulators.weight")
    if given:
        scale = r.tensor("scale", "d")
        r.given("scale", len(scale))
    else:
        k = r.count("top_k", "2")
        router, table = r.tensor("router.weight", "n", "d"), r.tensor("modulators.weight", "n", "V", "d")
        scale = r.tensor("scale", "d")
        if k > len(router):
            raise Refused("option %stop_k is %d of %d tables" % (r.keys, k, len(router)))

    def moved(y, mixed):
        return add(y, multiply(constant(1 / math.sqrt(2 * layers)), multiply(Num(scale), norm(mixed))))

    def run(call):
        if given:
            y, route = base(call)
            return moved(y, Num(call.per_layer_input)), route
        g = router_logits(call.x, router)
        route = call.select(g.v, k)
        weight = softmax(log_sigmoid(g.pick(route)))
        mixed = total([multiply(weight.column(j), Num(table[route[:, j], call.ids])) for j in range(k)])
        return moved(base(call)[0], mixed), (route, weight)

    return run


def load_deep_embed(r):
    act = r.choice("activation", ACTIVATIONS, "relu_squared")
    matrices = r.has("in_proj.weight")
    beside = matrices or r.has("gate_proj.weight")
    first = "gate_proj" if beside else "up_proj"
    up, down = r.tensor(first + ".weight", "f", "d"), r.tensor("down_proj.weight", "d", "f")
    up_bias, down_bias = r.optional(first + ".bias", "f"), r.optional("down_proj.bias", "d")
    if matrices:
        into, out, out_bias = r.tensor("in_proj.weight", "n", "d"), r.tensor("out_proj.weight", "f", "w"), r.optional("out_proj.bias", "f")
        table = r.tensor("deep_embed.weight", "n", "V", "w")
        r.file.needs["residual"] = None
    else:
        table = r.tensor("deep_embed.weight", "V", "f" if beside else "d")

    def run(call):
        h, route = activate(act, project(call.x, up, up_bias, slack=r.slack)), None
        if matrices:
            a = project(Num(call.residual), into)
            rows = table[:, call.ids]  # (n, T, w)
            terms = [multiply(a.column(k), Num(rows[k])) for k in range(len(rows))]
            h = multiply(h, project(total(terms), out, out_bias, slack=2))
            route = np.tile(np.arange(len(rows)), (len(call.ids), 1)), a
        elif beside:
            h = multiply(h, Num(table[call.ids]))
        y = project(h, down, down_bias, slack=r.slack)
        return (y if beside else multiply(y, Num(table[call.ids]))), route

    return run


def load_mole(r):
    act = r.choice("activation", ACTIVATIONS, "gelu")

    def mlp(prefix, reads, hidden):
        up, down = r.tensor(prefix + "up_proj.weight", hidden, reads), r.tensor(prefix + "down_proj.weight", "d", hidden)
        up_bias, down_bias = r.optional(prefix + "up_proj.bias", hidden), r.optional(prefix + "down_proj.bias", "d")
        return lambda x: project(activate(act, project(x, up, up_bias, slack=2)), down, down_bias, slack=2)

    shared, router = mlp("", "d", "f"), r.tensor("router.weight", "n", "d")
    table = r.optional("lookup.weight", "n", "V", "d")
    if table is None:
        experts = [mlp("experts.%d." % e, "w", "f%d" % e) for e in range(len(router))]
        r.given("experts.0.up_proj.weight", r.sizes["w"][0])

    def run(call):
        s = softmax(router_logits(call.x, router))
        rows = [Num(t) for t in table[:, call.ids]] if table is not None else [e(Num(call.per_layer_input)) for e in experts]
        terms = [multiply(s.column(e), row) for e, row in enumerate(rows)]
        return total([shared(call.x)] + terms), (np.tile(np.arange(len(rows)), (len(call.x.v), 1)), s)

    return run


def row_choice(r):
    """(the number of rows, a function of a Call giving (rows, weights)): what product_keys and peer have in common."""
    k = r.count("top_k")
    query, bias = r.tensor("query.weight", "q", "d"), r.optional("query.bias", "q")
    keys = r.tensor("keys.weight", "groups", "n", "c")
    groups, n, c = keys.shape
    if groups % 2:
        raise Refused("tensor %skeys.weight has %d groups, an odd number" % (r.prefix, groups))
    if len(query) != groups * c:
        text = "tensor %squery.weight has %d rows, not %d of %d groups of %d"
        raise Refused(text % (r.prefix, len(query), groups * c, groups, c))
    if k > n:
        raise Refused("option %stop_k is %d of %d keys" % (r.keys, k, n))

    def choose(call):
        q = project(call.x, query, bias, slack=2)
        rows, weights = [], []
        for g in range(0, groups, 2):
            # Equal keys give exactly equal scores, and equal pairs of scores exactly equal sums.
            one, two = (router_logits(q.columns(i * c, (i + 1) * c), keys[i]) for i in (g, g + 1))
            i, j = np.arange(n * n) // n, np.arange(n * n) % n
            sums = add(Num(one.v[:, i], one.e[:, :, i]), Num(two.v[:, j], two.e[:, :, j]))
            rows.append(call.select(sums.v, k))
            weights.append(softmax(sums.pick(rows[-1])))
        return np.concatenate(rows, -1), joined(weights)

    return n * n, choose


def row_table(r, name, count, *dims):
    table = r.tensor(name, "rows of " + name, *dims)
    if len(table) != count:
        raise Refused("tensor %s%s has %d rows, not the %d of all pairs of keys" % (r.prefix, name, len(table), count))
    return table


def weighted_rows(weight, table, rows):
    return total([multiply(weight.column(j), Num(table[rows[:, j]])) for j in range(rows.shape[1])])


def load_product_keys(r):
    count, choose = row_choice(r)
    gated = r.has("gate_proj.weight") or r.has("down_proj.weight")
    values = row_table(r, "values.weight", count, "f" if gated else "d")
    if gated:
        act = r.choice("activation", ACTIVATIONS, "silu")
        gate, down = r.tensor("gate_proj.weight", "f", "d"), r.tensor("down_proj.weight", "d", "f")
        gate_bias, down_bias = r.optional("gate_proj.bias", "f"), r.optional("down_proj.bias", "d")

    def run(call):
        rows, weight = choose(call)
        o = weighted_rows(weight, values, rows)
        if gated:
            h = multiply(activate(act, project(call.x, gate, gate_bias, slack=r.slack)), o)
            o = project(h, down, down_bias, slack=r.slack)
        return o, (rows, weight)

    return run


def load_peer(r):
    act, (count, choose) = r.choice("activation", ACTIVATIONS, "gelu"), row_choice(r)
    down, up = (row_table(r, p + "_embed.weight", count, "d") for p in ("down", "up"))

    def run(call):
        rows, weight = choose(call)
        weight = multiply(weight, activate(act, dots(call.x, down[rows], slack=2)))
        return weighted_rows(weight, up, rows), (rows, weight)

    return run


def load_l3(r):
    eps, ranges = r.number("eps", "1e-5"), r.tensor("ranges", "V", "ends", dtypes=INTEGERS)
    keys, values = r.tensor("keys.weight", "rows", "d"), r.tensor("values.weight", "rows", "w")
    if ranges.shape[1] != 2:
        raise Refused("tensor %sranges has shape %s, not 2 numbers an id" % (r.prefix, ranges.shape))
    for i, (b, e) in enumerate(ranges):
        if not 0 <= b <= e <= len(keys):
            text = "tensor %sranges has %d to %d for the id %d, of %d rows"
            raise Refused(text % (r.prefix, b, e, i, len(keys)))
    up, up_bias = r.tensor("up_proj.weight", "u", "w"), r.optional("up_proj.bias", "u")
    norm = r.tensor("norm.weight", "u")
    of_memory, memory_bias = r.tensor("mix_memory.weight", "d", "u"), r.optional("mix_memory.bias", "d")
    of_input, input_bias = r.tensor("mix_input.weight", "d", "d"), r.optional("mix_input.bias", "d")
    longest = max(1, int(np.max(ranges[:, 1] - ranges[:, 0])))

    def run(call):
        tokens = len(call.ids)
        route, weight = np.full((tokens, longest), -1), Num(np.zeros((tokens, longest)))
        v = Num(np.zeros((tokens, values.shape[1])))
        for t, (b, e) in enumerate(ranges[call.ids]):
            if b == e:
                continue
            s, n = softmax(router_logits(call.x.rows([t]), keys[b:e])), e - b
            route[t, :n] = np.arange(b, e)
            weight.v[t, :n], weight.e[:, t, :n] = s.v[0], s.e[:, 0]
            sum_of = total([multiply(s.column(j), Num(values[b + j])) for j in range(n)])
            v.v[t], v.e[:, t] = sum_of.v[0], sum_of.e[:, 0]
        u = rms(project(v, up, up_bias, slack=2), eps, norm)
        # One matrix that reads [u; x], with two biases.
        more = [(input_bias, 0.0, np.abs(input_bias), 1)] if input_bias is not None else []
        both = np.concatenate([of_memory, of_input], 1)
        return project(joined([u, call.x]), both, memory_bias, more, slack=r.slack + 2), (route, weight)

    return run


def load_engram(r):
    eps = r.number("eps", "1e-5")
    key, value = (r.tensor(p + "_proj.weight", "d", "c") for p in ("key", "value"))
    key_bias, value_bias = (r.optional(p + "_proj.bias", "d") for p in ("key", "value"))
    key_norm, query_norm = (r.tensor(p + "_norm.weight", "d") for p in ("key", "query"))
    r.given("key_proj.weight", key.shape[1])

    def run(call):
        e = Num(call.per_layer_input)
        k = rms(project(e, key, key_bias, slack=2), eps, key_norm)
        g = multiply(constant(1 / math.sqrt(len(key))), inner(k, rms(call.x, eps, query_norm)))
        return multiply(activate("sigmoid", signed_root(g)), project(e, value, value_bias, slack=2)), None

    return run


def load_longcat_embedding(r):
    terms, table = r.count("terms"), r.tensor("word_embed.weight", "V", "d")
    ngram, bias = r.tensor("ngram_proj.weight", "d", "c"), r.optional("ngram_proj.bias", "d")
    r.given("ngram_proj.weight", ngram.shape[1])

    def run(call):
        rows = table[call.ids]
        # the quotient may be a product with 1 / terms
        y = project(Num(call.per_layer_input), ngram, bias, [(rows, 0.0, np.abs(rows), 1)], slack=2)
        return multiply(constant(1 / terms), y), None

    return run


def load_parallel(r):
    branches = [r.nested("branch.%d." % i) for i in range(r.count("branches"))]

    def run(call):
        results = [branch(call) for branch in branches]
        return total([y for y, _ in results], 1), next((route for _, route in results if route), None)

    return run


LOADERS.update({kind: functools.partial(load_dense, kind=kind) for kind in BLOCKS})
LOADERS.update({kind: globals()["load_" + kind] for kind in COMPOSITE})


class Layer:
    def __init__(self, tensors, metadata):
        self.file = File(tensors, metadata)
        top = Reader(self.file)
        kind = top.choice("block", ALL_BLOCKS, "")
        self.block = LOADERS[kind](top)
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
                text = "tensor %s has dtype %s and shape %s" % (name, dtype, np.shape(a))
                raise Refused(text + (", not %d numbers a row" % width if width else ""), "input")
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
