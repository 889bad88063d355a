"""Layers named by a text, as run_layer --composition takes them: a parser of the grammar, and the mathematics.

    node := name [ "(" [ arg {"," arg} ] ")" ]
    arg  := node | string | integer | name "=" (number | node)

Written from docs/layers.md and docs/layer_files.md alone.  run_layer_reference.py, which knows kinds of blocks and no
words, has no part in it.  Numbers are those of run_layer_bounds.py: a float64, and a bound of the rounding errors of a
computation in f32 and of one in double.

One walk over the tree does all.  It asks for each tensor by name and shape.  Composition.tensors() notes what is asked
for; Composition.value() gives what there is.  So a shape is said once, where it is used.

Names and sizes:
  * A leaf's tensors begin with its own name, or else with its role.  Roles are given by ffn and fused.  They go through
    all words but chains (through, pre_normed, branch), and are empty at the top and in a chain: there, `dense` has
    `weight`.
  * A scope (experts.E., shared., base., branch.I., that of a chain) goes before all names.
  * Each ffn has a d_ff of its own, each chain inner widths, each router experts, each bank a rank.  A part with a scope
    has a vocabulary of its own, but for the parts of a chain.
  * source_input, residual_input and per_layer_input have the width that they have, and with them what holds them.
"""

import re

import numpy as np

from run_layer_bounds import (Num, U32, activate, add, divide, l2, log_sigmoid, multiply, project, rms, router_logits,
                              routing_sigmoid, softmax, total)

# ---------------------------------------------------------------------------------------------------
# Texts


class Refused(Exception):
    """A text that is none of the grammar, `byte` being where."""

    def __init__(self, byte, what):
        super().__init__("byte %d: %s" % (byte, what))
        self.byte = byte


class Misfit(Exception):
    """A text that is sound, but no layer: a name that stands twice, a row of another width than its place, a size that
    no tensor tells."""


class Close(Exception):
    """Two scores of a router that rounding may exchange."""


class Node:
    def __init__(self, name, args=(), options=None):
        self.name, self.args, self.options = name, list(args), dict(options or {})


class Quoted(str):
    """A string of the text."""


NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


class Parser:
    def __init__(self, text):
        self.text, self.at = text, 0

    def whole(self):
        node = self.node()
        self.blank()
        if self.at != len(self.text):
            raise Refused(self.at, "expected the end")
        return node

    def blank(self):
        while self.at < len(self.text) and self.text[self.at] in " \t\r\n":
            self.at += 1

    def take(self, what):
        """Whether `what`, a character, comes next; then it is behind us."""
        self.blank()
        there = self.text.startswith(what, self.at)
        self.at += there and len(what)
        return there

    def match(self, pattern):
        self.blank()
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found and found[0]

    def node(self):
        name = self.match(NAME)
        if not name:
            raise Refused(self.at, "expected a name")
        return self.arguments_of(Node(name))

    def arguments_of(self, node):
        if not self.take("(") or self.take(")"):
            return node
        while True:
            self.argument(node)
            if self.take(")"):
                return node
            if not self.take(","):
                raise Refused(self.at, "expected ',' or ')'")

    def argument(self, node):
        self.blank()
        quote = self.text[self.at : self.at + 1]
        if quote in ("'", '"'):
            end = self.text.find(quote, self.at + 1)
            if end < 0:
                raise Refused(len(self.text), "expected the end of a string")
            node.args.append(Quoted(self.text[self.at + 1 : end]))
            self.at = end + 1
            return
        number = self.match(NUMBER)
        if number:
            node.args.append(int(number))
            return
        name = self.match(NAME)
        if not name:
            raise Refused(self.at, "expected an argument")
        if not self.take("="):
            node.args.append(self.arguments_of(Node(name)))
            return
        number = self.match(NUMBER)
        node.options[name] = float(number) if number else self.node()


def parse(text):
    return Parser(text).whole()


ALIASES = {
    "mlp": "ffn(gate(gelu))",
    "swiglu": "ffn(gate(silu), dense)",
    "geglu": "ffn(gate(gelu), dense)",
    "reglu": "ffn(gate(relu), dense)",
    "stem": "ffn(gate(silu), token_embedding)",
    "stem_gate": "ffn(gate(silu, token_embedding), dense)",
    "stem_hybrid": "ffn(gate(silu), sum(dense, token_embedding))",
    "structmoe": "ffn(gate(gelu, sum(dense, routed_low_rank)))",
    "moe": "mixture(softmax_topk, BLOCK)",
    "retoken": "modulated(BLOCK, token_modulator)",
}


def written_out(node):
    """`node` without aliases, in all its parts."""
    args = [written_out(a) if isinstance(a, Node) else a for a in node.args]
    if node.name not in ALIASES:
        return Node(node.name, args, node.options)

    def put(n):
        if not isinstance(n, Node):
            return n
        return args[0] if n.name == "BLOCK" else Node(n.name, [put(a) for a in n.args], n.options)

    return put(parse(ALIASES[node.name]))


# ---------------------------------------------------------------------------------------------------
# Sizes and places


class Sizes:
    """Sizes of a layer; `given` is the width of per_layer_input.  If `vary`, those that a text has several of (d_ff,
    inner, experts, rank) change from one to the next in the order of the walk, and vocabularies with the part."""

    def __init__(self, d_model, d_ff=5, vocab=3, experts=3, rank=2, inner=4, given=3, vary=True):
        self.d_model, self.vocab, self.given, self.vary = d_model, vocab, given, vary
        self.first = {  # the first one, the least, the most
            "d_ff": (d_ff, 1, 23),
            "inner": (inner, 1, 13),
            "experts": (experts, experts, experts + 2),
            "rank": (rank, 1, 5),
        }
        self.begin()

    def begin(self):
        self.count = dict.fromkeys(self.first, 0)

    def next(self, name):
        first, least, most = self.first[name]
        self.count[name] += self.vary
        return least + (first - least + 5 * max(self.count[name] - 1, 0)) % (most - least + 1)


class Place:
    """Where a source stands: prefix of its names, role, width of what it reads (`input`) and of its own row."""

    def __init__(self, walk, prefix, role, input, width, vocab):
        self.walk, self.prefix, self.role, self.input, self.width, self.vocab = walk, prefix, role, input, width, vocab

    def but(self, scope="", **changed):
        """This place with another scope or what else is named."""
        fields = {k: getattr(self, k) for k in ("walk", "prefix", "role", "input", "width", "vocab")}
        fields.update(changed, prefix=self.prefix + scope)
        return Place(**fields)

    def part(self, scope, number):
        """That of a part whose vocabulary is its own."""
        return self.but(scope, vocab=self.vocab + self.walk.sizes.vary * (1 + number % 3))

    def owned(self, name, shape, optional=False):
        self.walk.asked += 1
        return self.walk.tensor(self.prefix + name, shape, optional)

    def of_leaf(self, name, tensor, shape, optional=False):
        """A tensor of a leaf with the owner `name`, or else with its role's."""
        owner = self.role if name is None else name
        return self.owned(owner + "." + tensor if owner else tensor, shape, optional)


class Walk:
    """One evaluation: sizes, where tensors come from, and what a call brings."""

    def __init__(self, sizes, tensor, call):
        self.sizes, self.tensor, self.call, self.read, self.asked = sizes, tensor, call, set(), 0
        sizes.begin()

    def given(self, name):
        self.read.add(name)
        return Num(self.call[name])


# ---------------------------------------------------------------------------------------------------
# Words.  Each has a function (node, place, x) -> its rows; x are the rows that it reads.

WORDS = {}
SLACK = 4  # further roundings of a product's terms: a weight or a bias may go into them


def word(function):
    WORDS[function.__name__.rstrip("_")] = function
    return function


def value(node, at, x):
    if not isinstance(node, Node) or node.name not in WORDS:
        raise ValueError("no source: %s" % getattr(node, "name", node))
    return WORDS[node.name](node, at, x)


def arg(node, i, otherwise):
    return node.args[i] if i < len(node.args) else parse(otherwise)


def forced(node, input, walk):
    """The width that a source has wherever it stands, or None where its tensors follow from its place."""
    parts = [a for a in node.args if isinstance(a, Node)]
    if node.name == "source_input":
        return input
    if node.name == "residual_input" or node.name == "branch":
        return walk.sizes.d_model
    if node.name == "per_layer_input":
        return walk.sizes.given
    if node.name == "on_residual":
        return forced(parts[0], walk.sizes.d_model, walk)
    if node.name in ("through", "pre_normed"):
        return forced(parts[-1], None, walk)
    if node.name == "ffn":
        return forced(parts[3], None, walk) if len(parts) > 3 else None
    if node.name == "token_modulator":
        return None
    return next((w for w in (forced(p, input, walk) for p in parts) if w is not None), None)


def reads(node):
    """Whether a tensor of the source has an axis as wide as what it reads, and so tells that width."""
    if node.name in ("dense", "routed_low_rank", "mixture"):
        return True
    if node.name in ("token_embedding", "token_modulator", "on_residual"):
        return False
    if node.name.endswith("_input"):
        return False
    parts = [a for a in node.args if isinstance(a, Node)]
    if node.name in ("gate", "project") and len(parts) == 1:
        return True  # of dense
    if node.name == "through":
        return reads(parts[0])
    if node.name == "ffn":
        parts = parts[:2]
    return any(reads(p) for p in parts)


# Leaves


@word
def dense(node, at, x, name=None):
    w = at.of_leaf(name, "weight", (at.width, at.input))
    b = at.of_leaf(name, "bias", (at.width,), optional=True)
    z = project(x, w, slack=SLACK)
    return z if b is None else add(z, Num(b))


@word
def token_embedding(node, at, x, name="stem_embed"):
    table = at.of_leaf(name, "weight", (at.vocab, at.width))
    return Num(table[at.walk.call["token_ids"]])


@word
def routed_low_rank(node, at, x, name=None):
    inside = at if name is None else at.but(name + ".")
    chosen = choice(arg(node, 0, "softmax_topk"), inside, x)
    experts, rank = chosen.v.shape[1], at.walk.sizes.next("rank")
    a = inside.owned("lore_a.weight", (experts, rank, at.input))
    b = inside.owned("lore_b.weight", (experts, at.width, rank))
    rows = [project(project(x, a[e], slack=SLACK), b[e], slack=SLACK) for e in range(experts)]
    return total([multiply(chosen.column(e), row) for e, row in enumerate(rows)], SLACK)


@word
def token_modulator(node, at, x):
    row = Num(at.owned("modulators.weight", (at.vocab, at.width))[at.walk.call["token_ids"]])
    row = norm(arg(node, 0, "l2"), row, at, "norm", {"rms": 1e-6})
    return add(Num(np.ones((1, at.width))), multiply(Num(at.owned("scale", (at.width,))), row))


@word
def source_input(node, at, x):
    if at.width != at.input:
        raise Misfit("source_input: a row of %d where %d are wanted" % (at.input, at.width))
    return x


@word
def per_layer_input(node, at, x):
    if at.width != at.walk.sizes.given:
        raise Misfit("per_layer_input: a row of %d where %d are wanted" % (at.walk.sizes.given, at.width))
    return at.walk.given("per_layer_input")


@word
def residual_input(node, at, x):
    if at.width != at.walk.sizes.d_model:
        raise Misfit("residual_input: a row of %d where %d are wanted" % (at.walk.sizes.d_model, at.width))
    return at.walk.given("residual")


@word
def named(node, at, x):
    leaf, name = node.args
    return WORDS[leaf.name](leaf, at, x, name=str(name))


# Formulas


@word
def gate(node, at, x):
    return activate(node.args[0].name, value(arg(node, 1, "dense"), at, x))


@word
def sum_(node, at, x):
    result = value(node.args[0], at, x)
    for part in node.args[1:]:
        result = add(result, value(part, at, x))
    return result


FUSIONS = {"multiply": multiply, "add": add}


@word
def fused(node, at, x):
    g, u, fusion = node.args
    return FUSIONS[fusion.name](value(g, at.but(role="gate_proj"), x), value(u, at.but(role="up_proj"), x))


@word
def scaled(node, at, x):
    name, source = node.args
    number = at.owned(str(name), ())
    return multiply(Num(np.reshape(number, (1, 1))), value(source, at, x))


# Norms

EPS = {"rms": 1e-5, "rms_cast_first": 1e-6, "rms_one_plus": 1e-6, "memory_norm": 1e-6, "l2": 1e-6}


def norm(node, x, at, name, other_eps=()):
    """The norm `node` of the rows x, its weight being called `name`; other_eps: defaults that differ here."""
    kind, weighted = node, node.name != "unweighted"
    if not weighted:
        kind = node.args[0]
    if kind.name == "no_norm":
        return x
    # An eps is an f32, in double computations too.
    eps = float(np.float32(kind.options.get("eps", dict(EPS, **dict(other_eps))[kind.name])))
    if kind.name == "l2":
        return l2(x, eps)
    row = rms(x, eps)
    if not weighted:
        if kind.name == "rms_one_plus":
            raise ValueError("unweighted(rms_one_plus) is no norm")
        return row
    w = Num(at.owned(name + ".weight", (at.width,)))
    return multiply(row, add(Num(np.ones(at.width)), w) if kind.name == "rms_one_plus" else w)


@word
def normed(node, at, x):
    return norm(node.args[0], value(node.args[1], at, x), at, node.args[2] if len(node.args) > 2 else "norm")


@word
def project_(node, at, x):
    return norm(node.args[0], value(arg(node, 1, "dense"), at, x), at, "post_norm")


# Chains


def chain(scopes, parts, at, x, told=False):
    """Each part reads the row of the one before it; all but the last are as wide as they like.  `told`: no tensor need
    tell a width that is that of a row."""
    place = at.but(role="")
    for i, (scope, part) in enumerate(zip(scopes, parts)):
        if i + 1 == len(parts):
            width = at.width
        else:
            width = forced(part, place.input, at.walk)
            if width and not told and not reads(parts[i + 1]):
                raise Misfit("nothing reads the row of part %d of a chain, nor tells its width" % i)
            width = width or at.walk.sizes.next("inner")
        place = Place(at.walk, at.prefix + scope, "", place.input, width, at.vocab)
        x = value(part, place, x)
        place.input = width
    return x


@word
def through(node, at, x):
    scope, parts = node.args[0], node.args[1:]
    after = scope + "." if scope else ""
    return chain([""] + [after] * (len(parts) - 1), parts, at, x)


@word
def ffn(node, at, x):
    hidden, up = node.args[0], arg(node, 1, "none")
    if up.name == "none":
        role = "up_proj"
        width = forced(hidden, at.input, at.walk)
    else:
        role = ""
        hidden = Node("fused", [hidden, up, arg(node, 2, "multiply")])
        width = forced(hidden, at.input, at.walk)
    width = width or at.walk.sizes.next("d_ff")
    h = value(hidden, at.but(role=role, width=width), x)
    return value(arg(node, 3, "project(no_norm)"), at.but(role="down_proj", input=width), h)


@word
def pre_normed(node, at, x):
    before = Node("normed", [node.args[0], Node("source_input"), Quoted("pre_norm")])
    return chain(["", ""], [before, node.args[1]], at, x, told=True)


@word
def branch(node, at, x):
    return add(pre_normed(node, at, x), residual_input(node, at, x))


# Blocks of blocks


@word
def parallel(node, at, x):
    result = None
    for i, part in enumerate(node.args):
        row = value(part, at.part("branch.%d." % i, i), x)
        result = row if result is None else add(result, row)
    return result


@word
def modulated(node, at, x):
    block, modulator = node.args[:2]
    base = value(block, at.part("base.", 0), x)
    return FUSIONS[arg(node, 2, "multiply").name](base, value(modulator, at, x))


@word
def on_residual(node, at, x):
    return value(node.args[0], at.but(input=at.walk.sizes.d_model), at.walk.given("residual"))


@word
def source_block(node, at, x):
    return value(node.args[0], at, x)


@word
def mixture(node, at, x):
    weights = choice(node.args[0], at, x)
    terms = [value(node.args[2], at.part("shared.", 2), x)] if len(node.args) > 2 else []
    for e in range(weights.v.shape[1]):
        asked = at.walk.asked
        terms.append(multiply(weights.column(e), value(node.args[1], at.part("experts.%d." % e, e), x)))
        if at.walk.asked == asked:
            raise Misfit("experts without tensors, which nobody can count")
    return total(terms, SLACK)


# Routers


def choice(router, at, x):
    """(T, experts): the weights of the chosen experts, 0 for the others."""
    experts = at.walk.sizes.next("experts")
    g = router_logits(x, at.owned("router.weight", (experts, at.input)))
    bias = at.owned("router.selection_bias", (experts,), optional=True)
    k = router.options.get("top_k", 1)
    k = experts if isinstance(k, Node) else int(k)  # top_k=all
    if k > experts:
        raise Misfit("%d of %d experts" % (k, experts))
    if router.name in ("softmax_topk", "softmax_topk_renorm"):
        scores = softmax(g)
    elif router.name == "topk_softmax":
        scores = g
    elif router.name == "sigmoid_topk_renorm":
        scores = Num(routing_sigmoid(g.v), g.e / 4 + 8 * U32)
    else:
        raise ValueError("no router: %s" % router.name)
    # Without a bias the logits are compared, which have the order of the scores and more digits.
    ranked, error = (g.v, g.e[0]) if bias is None else (scores.v + bias, scores.e[0] + 2.0**-50)
    order = np.argsort(-ranked, axis=1, kind="stable")
    if k < experts:
        row, last, next_ = np.arange(len(order)), order[:, k - 1], order[:, k]
        margin = ranked[row, last] - ranked[row, next_]
        if (margin < 2 * (error[row, last] + error[row, next_])).any():
            raise Close()
    chosen = np.sort(order[:, :k], axis=1)
    if router.name == "topk_softmax":
        weights = softmax(g.pick(chosen))
    elif router.name == "sigmoid_topk_renorm":
        weights = softmax(log_sigmoid(g.pick(chosen)))
    else:
        weights = softmax(g).pick(chosen)
        if router.name == "softmax_topk_renorm":
            weights = divide(weights, total([weights.column(j) for j in range(k)]))
    all_ = Num(np.zeros_like(g.v))
    np.put_along_axis(all_.v, chosen, weights.v, 1)
    for e, of in zip(all_.e, weights.e):
        np.put_along_axis(e, chosen, of, 1)
    return all_


# ---------------------------------------------------------------------------------------------------


class Composition:
    def __init__(self, text):
        self.text = text
        self.root = written_out(parse(text))

    def _walk(self, sizes, tensor, call):
        walk = Walk(sizes, tensor, call)
        at = Place(walk, "", "", sizes.d_model, sizes.d_model, sizes.vocab)
        return value(self.root, at, Num(call["x"])), walk

    def tensors(self, sizes):
        """(name -> shape of all that is needed, the same of what is optional, the inputs beside x and token_ids)."""
        needed, optional = {}, {}

        def note(name, shape, is_optional):
            if name in needed or name in optional:
                raise Misfit("%s stands twice" % name)
            (optional if is_optional else needed)[name] = shape
            return None if is_optional else np.zeros(shape)

        none = {"x": np.zeros((1, sizes.d_model)), "residual": np.zeros((1, sizes.d_model)),
                "per_layer_input": np.zeros((1, sizes.given)), "token_ids": np.zeros(1, np.int64)}
        _, walk = self._walk(sizes, note, none)
        if not needed:
            raise Misfit("no tensors, which tell sizes")
        return needed, optional, walk.read

    def value(self, sizes, tensors, call):
        """y, a Num, of the call's x, token_ids, residual and per_layer_input (a dict)."""

        def take(name, shape, is_optional):
            if name not in tensors and is_optional:
                return None
            found = np.asarray(tensors[name], np.float64)
            if found.shape != tuple(shape):
                raise ValueError("%s has shape %s, not %s" % (name, found.shape, shape))
            return found

        return self._walk(sizes, take, call)[0]
