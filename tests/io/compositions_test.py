#!/usr/bin/env python3
"""Black-box test of `run_layer --composition`: layers named by a text, against compositions_reference.py.

    compositions_test.py RUN_LAYER [--seed N] [--random N]

Needs Python 3.9 and numpy; without numpy it prints a line and exits with 77.

1. Chosen texts, between them every word that the reference knows, each in a plain and in an odd size.
2. Random texts, nested up to three deep, in odd sizes.  A failure prints the seed and the number of the text.
3. Texts that are refused, with the byte and what was expected.  Where the grammar is hurt, the reference's own parser
   says the same byte.

In 1 and 2 every backend runs, on one thread.  Each number of y is held to the bound of its rounding errors, which the
reference carries along from the first product on (run_layer_bounds.py derives it):
  * reference computes in double and rounds y once: half a unit in the last place of f32, 2^-24 |y|; the bound of the
    errors in double, of the program and of the expected value, some 1e-15 of the terms; 1e-12 |y| for the functions of
    the two mathematics libraries; and 2^-149, the least number of f32.
  * eigen and simd compute in f32: the bound for 2^-24, which is proportional to the number of terms, to their sizes and
    to the slopes of what follows; and 2^-126, below which numbers may be flushed to zero.

That the comparison can fail is part of the test.  In each chosen text of plain size every word that has a sibling with
the same tensors (silu and gelu, l2 and rms, top_k=2 and top_k=1) is put in the other's place.  The reference must then
disagree with what the program gave.

Scores of a router that rounding may exchange make a draw void, and so do rows of nothing but rounding errors that a
norm reads.  The numbers are then drawn again, up to 20 times; the text is a failure if none of them serves.  The last
line counts void draws.

Not tested because open: rows as wide as x or per_layer_input inside a chain, where no tensor tells that width:
through('', source_input, token_embedding).
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True  # the source tree may be read-only

try:
    import numpy as np
except ImportError:
    np = None

BACKENDS = ("reference", "eigen", "simd")

TEXTS = """
dense
named(dense, "skip")
gate(gelu_tanh)
sum(dense, token_embedding)
fused(gate(sigmoid), scaled('k', dense), add)
normed(unweighted(rms), dense)
normed(rms_one_plus, named(dense, 'inner'), 'outer')
project(rms_cast_first, sum(source_input, dense))
normed(l2(eps=0.25), through('', dense, named(dense, 'b')))
source_block(routed_low_rank(softmax_topk(top_k=2)))
mlp
swiglu
stem
stem_gate
stem_hybrid
geglu
reglu
structmoe
moe(mlp)
retoken(swiglu)
ffn(gate(identity))
ffn(gate(relu_squared), dense, add)
ffn(gate(silu, token_embedding), dense, multiply, project(rms))
ffn(gate(relu), per_layer_input, multiply, project(memory_norm, named(dense, 'out_proj')))
ffn(gate(silu), sum(dense, routed_low_rank(sigmoid_topk_renorm(top_k=2))), multiply, project(l2, dense))
ffn(gate(gelu), none, multiply, project(no_norm, sum(dense, routed_low_rank(topk_softmax(top_k=2)))))
ffn(gate(silu, named(dense, "a")), through("low", named(dense, "b"), named(dense, "c")))
ffn(gate(silu, normed(rms, dense)), normed(unweighted(rms_cast_first), named(token_embedding, 'rows')), add)
through('deep', swiglu, gate(gelu, dense), mlp)
through("s", per_layer_input, ffn(gate(silu)))
through('', source_input, named(routed_low_rank(softmax_topk_renorm(top_k=3)), 'bank'))
mixture(softmax_topk(top_k=2), ffn(gate(silu), sum(dense, token_embedding)))
mixture(softmax_topk_renorm(top_k=2), stem, swiglu)
mixture(topk_softmax(top_k=2), retoken(mlp), parallel(dense, token_embedding))
mixture(sigmoid_topk_renorm(top_k=3), dense)
mixture(topk_softmax(top_k=all), moe(swiglu))
modulated(swiglu, token_modulator(rms))
modulated(mlp, token_modulator(unweighted(rms)), add)
modulated(moe(stem), named(dense, 'skip'), add)
modulated(parallel(mlp, swiglu), scaled('much', named(token_embedding, 'modulators')))
parallel(on_residual(stem), branch(rms, mlp), source_input)
branch(rms_one_plus, mixture(softmax_topk(top_k=2), swiglu, stem))
sum(normed(rms_one_plus, pre_normed(rms_cast_first, geglu), "post_norm"), residual_input)
on_residual(modulated(ffn(gate(silu), token_embedding), token_modulator(l2)))
sum(modulated(dense, token_modulator), named(dense, 'x'))
retoken(mixture(softmax_topk_renorm(top_k=2), through('t', token_embedding, dense), per_layer_input))
 gate( silu ,sum(dense( ),named( dense,'two')) )
""".strip("\n").split("\n")

# Each word's sibling with the same tensors, and other numbers.
SIBLINGS = {
    "silu": "gelu", "gelu": "gelu_tanh", "gelu_tanh": "gelu", "relu": "silu", "relu_squared": "relu", "sigmoid": "silu",
    "identity": "relu", "multiply": "add", "add": "multiply", "l2": "unweighted(rms)", "rms": "rms_one_plus",
    "rms_one_plus": "rms", "rms_cast_first": "rms", "memory_norm": "rms", "softmax_topk": "softmax_topk_renorm",
    "softmax_topk_renorm": "softmax_topk", "topk_softmax": "softmax_topk", "sigmoid_topk_renorm": "topk_softmax",
    "mlp": "ffn(gate(silu))", "swiglu": "geglu", "geglu": "swiglu", "reglu": "swiglu",
    "stem": "ffn(gate(gelu), token_embedding)", "stem_gate": "ffn(gate(relu, token_embedding), dense)",
    "stem_hybrid": "ffn(gate(gelu), sum(dense, token_embedding))",
    "structmoe": "ffn(gate(silu, sum(dense, routed_low_rank)))", "on_residual": "source_block", "branch": "pre_normed",
}
OPTIONS = {"top_k=2": "top_k=1", "top_k=3": "top_k=2", "top_k=all": "top_k=1", "eps=0.25": "eps=0.2501"}

# What is refused: the text, what the line says, and whether the grammar is hurt.
REFUSED = [
    ("ffn(gate(sillu))", "'sillu' at byte 9 is not known; known are silu, ", False),
    (" ", "ends at byte 1; expected the name of a policy", True),
    ("ffn(gate(silu)", "ends at byte 14; expected ',' or ')'", True),
    ("ffn(gate(silu)))", "')' at byte 15; expected the end", True),
    ("ffn(gate silu)", "'silu)' at byte 9; expected ',' or ')'", True),
    ("ffn(dense,)", "')' at byte 10; expected a policy, a string, an integer or an option", True),
    ("named(dense, 'a)", "ends at byte 16; expected the end of a string", True),
    ("ffn", "'ffn' at byte 0 has 0 arguments; it takes 1 or more", False),
    ("gate", "'gate' at byte 0 has 0 arguments; it takes 1 or more", False),
    ("sum(dense)", "'sum' at byte 0 has 1 arguments; it takes 2", False),
    ("fused(dense, token_embedding)", "'fused' at byte 0 has 2 arguments; it takes 3", False),
    ("mixture(softmax_topk)", "'mixture' at byte 0 has 1 arguments; it takes", False),
    ("stem(dense)", "'stem' at byte 0 has 1 arguments; it takes at most 0", False),
    ("mixture(softmax_topk(eps=2), dense)", "'softmax_topk' at byte 8 has no option 'eps'; it has top_k", False),
    ("sum(dense, normed(rms(esp=1), dense))", "'rms' at byte 18 has no option 'esp'; it has eps", False),
    ("dense(top_k=2)", "'dense' at byte 0 has no option 'top_k'; it has none", False),
    ("ffn(gate(silu), relu)", "'relu' at byte 16 is an activation; argument 2 of 'ffn' is a source", False),
    ("modulated(dense, unweighted(rms))", "'unweighted' at byte 17 is a norm; argument 2 of 'modulated' is a source",
     False),
    ("through(dense, dense, dense)", "'dense' at byte 8 is a source; argument 1 of 'through' is a string", False),
    ("silu", "'silu' at byte 0 is an activation; a block is a source", False),
    ("gate(silu, 3)", "has a number for an argument at byte 11", False),
    ("mixture(softmax_topk(top_k=1.5), dense)", "'softmax_topk' at byte 8 has top_k=1.5, which this option cannot be",
     False),
    ("named(sum(dense, token_embedding), 'x')", "'named' at byte 0 names a source that has parts", False),
]


class RandomText:
    """A sound text.  Many leaves have names of their own.  Where two have the same, the reference says so."""

    def __init__(self, random):
        self.random, self.names = random, 0

    def any(self, *of):
        return of[self.random.integers(len(of))]

    def name(self):
        self.names += 1
        return self.any("'n%d'", '"n%d"') % self.names

    def block(self, depth):
        """As wide as the model, and reading rows that are."""
        if depth == 0:
            return self.any("mlp", "swiglu", "stem", "stem_gate", "stem_hybrid", "ffn(%s)" % self.gate(0), self.leaf())
        inner = lambda: self.block(depth - 1)
        kind = self.random.integers(11)
        if kind == 0:
            return "ffn(%s)" % self.gate(depth)
        if kind <= 2:
            return "ffn(%s, %s, %s, %s)" % (self.gate(depth), self.source(depth - 1), self.fusion(), self.output(depth))
        if kind == 3:
            return "mixture(%s, %s)" % (self.router(), inner())
        if kind == 4:
            return "mixture(%s, %s, %s)" % (self.router(), inner(), inner())
        if kind == 5:
            sources = self.source(depth - 1), self.source(0)
            modulator = self.any("token_modulator", "token_modulator(%s)" % self.norm(), *sources)
            more = self.any("", ", add", ", multiply")
            return self.any("modulated(%s, %s%s)" % (inner(), modulator, more), "retoken(%s)" % inner())
        if kind == 6:
            return "parallel(%s)" % ", ".join(inner() for _ in range(2 + self.random.integers(2)))
        if kind == 7:
            return "branch(%s, %s)" % (self.norm(), inner())
        if kind == 8:
            return "on_residual(%s)" % inner()
        if kind == 9:
            return "moe(%s)" % inner()
        return self.source(depth)

    def source(self, depth):
        """As wide as its place."""
        kind = self.random.integers(4 if depth == 0 else 11)
        if kind < 4:
            return self.leaf()
        inner = lambda: self.source(depth - 1)
        if kind == 4:
            return "sum(%s)" % ", ".join(inner() for _ in range(2 + self.random.integers(2)))
        if kind == 5:
            return self.gate(depth)
        if kind == 6:
            return "fused(%s, %s, %s)" % (inner(), inner(), self.fusion())
        if kind == 7:
            return "normed(%s, %s, %s)" % (self.norm(), inner(), self.name())
        if kind == 8:
            return "scaled(%s, %s)" % (self.name(), inner())
        if kind == 9:
            first = self.any("source_input", "per_layer_input", inner(), inner())
            steps = ", ".join(inner() for _ in range(1 + self.random.integers(2)))
            return "through(%s, %s, %s)" % (self.any("''", self.name(), self.name()), first, steps)
        return "ffn(%s, %s)" % (self.gate(depth), inner())

    def leaf(self):
        leaf = self.any("dense", "dense", "token_embedding", "routed_low_rank(%s)" % self.router())
        if self.random.integers(30) == 0:
            return self.any("per_layer_input", "source_input")
        return leaf if self.random.integers(4) == 0 else "named(%s, %s)" % (leaf, self.name())

    def gate(self, depth):
        phi = self.any("silu", "gelu", "gelu_tanh", "relu", "sigmoid", "identity", "relu_squared")
        return "gate(%s)" % phi if self.random.integers(2) else "gate(%s, %s)" % (phi, self.source(max(depth - 1, 0)))

    def output(self, depth):
        return "project(%s, %s)" % (self.any("no_norm", self.norm()), self.any("dense", self.source(max(depth - 1, 0))))

    def norm(self):
        name = self.any("rms", "l2", "rms_one_plus", "rms_cast_first", "memory_norm")
        eps = self.any("", "", "", "(eps=0.01)", "(eps=3e-4)")
        return "unweighted(rms%s)" % eps if self.random.integers(5) == 0 else name + eps

    def fusion(self):
        return self.any("multiply", "add")

    def router(self):
        name = self.any("softmax_topk", "softmax_topk_renorm", "topk_softmax", "sigmoid_topk_renorm")
        return name + self.any("", "(top_k=1)", "(top_k=2)", "(top_k=3)")


class Void(Exception):
    """No numbers were found whose routes and norms rounding cannot change."""


class Case:
    """A text with its sizes, tensors and call, and the expected y."""

    def __init__(self, text, sizes, tokens, random):
        from compositions_reference import Close, Composition, Sizes
        from run_layer_bounds import Uncertain

        self.text, self.sizes, self.tokens, self.void = text, sizes, tokens, 0
        self.made = Sizes(**sizes)
        composition = Composition(text)
        needed, optional, self.read = composition.tensors(self.made)
        for _ in range(20):
            self.tensors = {name: numbers(random, shape) for name, shape in needed.items()}
            for name, shape in optional.items():
                if random.integers(2):
                    self.tensors[name] = numbers(random, shape)
            call = {"x": numbers(random, (tokens, self.made.d_model), spread=1),
                    "token_ids": random.integers(0, self.made.vocab, tokens)}
            if "residual" in self.read:
                call["residual"] = numbers(random, (tokens, self.made.d_model), spread=1)
            if "per_layer_input" in self.read:
                call["per_layer_input"] = numbers(random, (tokens, self.made.given), spread=1)
            self.call = call
            try:
                self.y = composition.value(self.made, self.tensors, call)
                return
            except (Close, Uncertain, AssertionError):
                self.void += 1
        raise Void("no numbers serve")

    def __str__(self):
        return "%s\n  %d tokens, %s" % (self.text, self.tokens, ", ".join("%s %s" % s for s in self.sizes.items()))

    def files(self, folder):
        from run_layer_files import file_of

        layer, inputs = os.path.join(folder, "layer.safetensors"), os.path.join(folder, "input.safetensors")
        with open(layer, "wb") as file:
            file.write(file_of({name: (a, "F32") for name, a in self.tensors.items()}))
        with open(inputs, "wb") as file:
            file.write(file_of({name: (a, "I64" if name == "token_ids" else "F32") for name, a in self.call.items()}))
        return layer, inputs


def numbers(random, shape, spread=None):
    """Numbers of f32; products of rows of them have a size of about 1."""
    if spread is None:
        spread = min(1, 2 / np.sqrt(shape[-1])) if len(shape) > 1 else 1
    a = random.standard_normal(shape) * spread
    # Whatever is a factor stays away from 0.
    return np.float32(a if len(shape) > 1 else a + np.copysign(0.25, a))


class Checked:
    def __init__(self, tool, folder):
        self.tool, self.folder = tool, folder
        self.failed = self.runs = self.void = self.swaps = 0

    def fail(self, *what):
        self.failed += 1
        if self.failed <= 20:
            print("FAILED:", *what)

    def run(self, text, layer, inputs, backend):
        output = os.path.join(self.folder, "output.safetensors")
        if os.path.exists(output):
            os.remove(output)
        self.runs += 1
        command = [self.tool, layer, inputs, output, "--backend", backend, "--composition", text, "--threads", "1"]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=60
        )
        return done, output

    def compare(self, case, context=""):
        """Runs `case` on every backend; the reference's y, or None after a failure."""
        from run_layer_bounds import tolerance
        from run_layer_files import parse

        layer, inputs = case.files(self.folder)
        self.void += case.void
        first = None
        for backend in BACKENDS:
            what = "%s[%s] %s\n " % (context, backend, case)
            done, output = self.run(case.text, layer, inputs, backend)
            if done.returncode != 0:
                self.fail(what, "status %d: %s" % (done.returncode, done.stderr.strip()))
                return None
            with open(output, "rb") as file:
                kind, shape, raw = parse(file.read())["y"]
            if kind != "F32" or tuple(shape) != case.y.v.shape:
                self.fail(what, "y is %s %s, expected F32 %s" % (kind, shape, case.y.v.shape))
                return None
            y = np.frombuffer(raw, "<f4").reshape(shape).astype(np.float64)
            if backend == "reference":
                first = y
            bound = tolerance(backend, case.y)
            error = np.abs(y - case.y.v)
            bad = ~(error <= bound)  # a NaN is bad
            if bad.any():
                at = tuple(np.argwhere(bad)[0])
                self.fail(what, "%d of %d numbers of y are wrong; y%s is %.9g, expected %.9g, error %.3g, bound %.3g"
                          % (bad.sum(), bad.size, [int(i) for i in at], y[at], case.y.v[at], error[at], bound[at]))
        return first


def swapped(text):
    """Each text with one word or option of `text` in its sibling's place."""
    for found in re.finditer(r"top_k=\w+|eps=[0-9.]+|\"[^\"]*\"|'[^']*'|\w+", text):
        before, word, after = text[: found.start()], found[0], text[found.end() :]
        sibling = OPTIONS.get(word) or SIBLINGS.get(word)
        if before.endswith("unweighted("):
            sibling = "rms(eps=1e-4)"  # without a weight, norms differ in their eps alone
        elif before.endswith("none, ") or after.startswith("(top_k=all)"):
            continue  # nothing to fuse; over all experts the softmaxes are one
        elif word == "l2" and after.startswith("("):
            continue  # its eps is swapped
        if sibling:
            yield before + sibling + after


def check_texts(checked):
    from compositions_reference import Composition, Misfit
    from run_layer_bounds import tolerance

    random = np.random.default_rng(1)
    for number, text in enumerate(TEXTS):
        plain = dict(d_model=6, d_ff=7, vocab=4, experts=4, rank=2, inner=5)
        odd = odd_sizes(random)
        for sizes in (plain, odd):  # per_layer_input is as wide as its place
            sizes["given"] = sizes["d_ff" if ", per_layer_input, " in text and "ffn" in text[:4] else "d_model"]
        try:
            case, small = Case(text, plain, 7, random), Case(text, odd, 1 + number % 9, random)
        except (Misfit, Void) as error:
            checked.fail("%s: %s" % (text, error))
            continue
        y = checked.compare(case)
        checked.compare(small)
        if y is None:
            continue
        for other in swapped(text):
            checked.swaps += 1
            value = Composition(other).value(case.made, case.tensors, case.call)
            if (np.abs(y - value.v) <= tolerance("reference", value)).all():
                checked.fail("%s\n  %s gives the same y" % (case, other))


def odd_sizes(random):
    """Sizes from 1 on, each 1 now and then; experts as many as the largest top_k of the texts, or more."""
    most = dict(d_model=19, d_ff=23, vocab=7, rank=4, inner=13, given=9)
    sizes = {name: 1 if random.integers(6) == 0 else int(random.integers(1, n + 1)) for name, n in most.items()}
    return dict(sizes, experts=int(random.integers(3, 6)))


def check_random(checked, seed, count):
    from compositions_reference import Misfit

    drawn = made = 0
    deepest = [0, 0, 0, 0]
    while made < count:
        random = np.random.default_rng([seed, drawn])
        context = "seed %d, text %d: " % (seed, drawn)
        drawn += 1
        depth = int(random.integers(1, 4))
        text = RandomText(random).block(depth)
        sizes, tokens = odd_sizes(random), int(random.integers(1, 10))
        try:
            case = Case(text, sizes, tokens, random)
        except Misfit:  # no layer: a name twice, or a row of another width than its place
            continue
        except Void as error:
            made += 1
            checked.fail("%s%s: %s" % (context, text, error))
            continue
        made += 1
        deepest[depth] += 1
        checked.compare(case, context)
    return "%d random texts (%d, %d, %d one to three deep; %d drawn)" % (made, *deepest[1:], drawn)


def check_refused(checked):
    from compositions_reference import Composition, Refused

    random = np.random.default_rng(2)
    layer, inputs = Case("dense", dict(d_model=3), 2, random).files(checked.folder)
    for text, expected, grammar in REFUSED:
        done, output = checked.run(text, layer, inputs, "reference")
        if done.returncode != 1 or "composition: " + expected not in done.stderr or os.path.exists(output):
            checked.fail("%r: status %d, %r; expected %r" % (text, done.returncode, done.stderr[:300], expected))
        if not grammar:
            continue
        try:
            Composition(text)
            checked.fail("%r: the reference takes it" % text)
        except Refused as error:
            if "at byte %d" % error.byte not in expected:
                checked.fail("%r: the reference says %s; expected %r" % (text, error, expected))
    # Two parts that read one tensor.
    done, _ = checked.run("sum(dense, dense)", layer, inputs, "reference")
    if done.returncode != 1 or "weight: is read by two parts of the block" not in done.stderr:
        checked.fail("sum(dense, dense): status %d, %r" % (done.returncode, done.stderr[:300]))


def check_words(checked):
    """That the chosen texts have every word of the reference between them."""
    from compositions_reference import ALIASES, EPS, FUSIONS, WORDS
    from run_layer_bounds import LIPSCHITZ

    words = set(re.findall(r"[a-z]\w*", re.sub(r"\"[^\"]*\"|'[^']*'", "", " ".join(TEXTS))))
    known = {*WORDS, *ALIASES, *EPS, *FUSIONS, *LIPSCHITZ, "relu_squared", "unweighted", "no_norm"}
    known |= {"softmax_topk", "softmax_topk_renorm", "topk_softmax", "sigmoid_topk_renorm"}
    for word in sorted(known - words):
        checked.fail("no text has the word %s" % word)


def main():
    if np is None:
        print("SKIPPED: numpy is not installed")
        return 77
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_layer", metavar="RUN_LAYER")
    parser.add_argument("--seed", type=int, default=20261127, metavar="N")
    parser.add_argument("--random", type=int, default=150, metavar="N", help="how many random texts")
    options = parser.parse_args()
    if not os.path.isfile(options.run_layer):
        parser.error("%s does not exist" % options.run_layer)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="compositions ") as folder:  # the blank is on purpose
        checked = Checked(os.path.abspath(options.run_layer), folder)
        check_words(checked)
        check_refused(checked)
        check_texts(checked)
        random = check_random(checked, options.seed, options.random)
    print("%d texts, %d words swapped, %s, %d refused" % (len(TEXTS), checked.swaps, random, len(REFUSED)))
    print("%d runs, %d draws void, %d failures, %.1f s" % (checked.runs, checked.void, checked.failed,
                                                           time.monotonic() - begin))
    return 0 if checked.failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
