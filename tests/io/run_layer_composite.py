"""run_layer on all blocks but the dense ones: values and routes."""

import numpy as np

from run_layer_cases import TreeCase, first_column, kinds
from run_layer_harness import RunLayerTest, Settings, composite
from run_layer_reference import ACTIVATIONS, BLOCKS, MEKI_FUSIONS, ORDERS, STRUCT_FUSIONS

DTYPES = ("F32", "F16", "BF16", "mixed")
ID_DTYPES = ("I64", "I32")
DENSE = tuple(BLOCKS)


def dense(f, turn=0, **options):
    return dict({"block": DENSE[turn % 5], "f": f}, **options)


def mlp(f, **options):
    return dense(f, 0, **options)


def glu(f, **options):
    return dense(f, 1, **options)


def moe(experts, k=None, expert=None, **options):
    spec = {"block": "moe", "E": experts, "expert": expert or glu(17)}
    return dict(spec, **({"k": k} if k else {}), **options)


def hash_moe(experts, k=None, expert=None, **options):
    return dict({"block": "hash_moe", "E": experts, "k": k, "expert": expert or glu(17)}, **options)


def structmoe(f, count, rank, k=None, **options):
    spec = {"block": "structmoe", "f": f, "L": count, "r": rank}
    return dict(spec, **({"k": k} if k else {}), **options)


def meki(m, form="training", **options):
    return dict({"block": "meki", "m": m, "form": form}, **options, **({"folded": "true"} if form == "folded" else {}))


def ple(m, memory=True, **options):
    """memory: False (p is given), True (its rows are p) or "full"."""
    return dict({"block": "ple", "m": m, "memory": memory}, **options)


def retoken(base, **options):
    return dict({"block": "retoken", "base": base}, **options)


def mort(base, n, k=None, num_layers=7, **options):
    return dict({"block": "mort", "n": n, "base": base, "num_layers": num_layers}, **({"k": k} if k else {}), **options)


def deep_embed(f, form, **options):
    return dict({"block": "deep_embed", "f": f, "form": form}, **options)


def mole(f, n, form="folded", **options):
    return dict({"block": "mole", "f": f, "n": n, "form": form}, **options)


def product_keys(heads, n, c, k, f=None, **options):
    """f: Memory+."""
    return dict({"block": "product_keys", "H": heads, "n": n, "c": c, "k": k}, **({"f": f} if f else {}), **options)


def peer(heads, n, c, k, **options):
    return dict({"block": "peer", "H": heads, "n": n, "c": c, "k": k}, **options)


def l3(rows, w, u, **options):
    return dict({"block": "l3", "rows": rows, "w": w, "u": u}, **options)


def engram(c, **options):
    return dict({"block": "engram", "c": c}, **options)


def longcat(c, terms=3, **options):
    return dict({"block": "longcat_embedding", "c": c, "terms": terms}, **options)


def parallel(*branches):
    return {"block": "parallel", "branches": branches}


# (d, V, T).  d is even where MeKi's d/2 is wanted.
SIZES = ((34, 17, 17), (2, 3, 5), (16, 31, 33), (64, 130, 31), (130, 33, 3), (18, 1, 64), (66, 64, 1), (4, 7, 130))


def one_of_each():
    """(kind, a description with few defaults)"""
    yield "moe", moe(5, 2, glu(33), router_order="softmax_topk_renorm", bias=True, shared=dense(17, 3))
    yield "hash_moe", hash_moe(5, 2, dense(31, 2), map="I32")
    yield "structmoe", structmoe(33, 6, 3, 2)
    yield "structmoe", structmoe(33, 6, 3, 2, placement="down")
    yield "meki", meki(17, word_norm=True, gate_input="residual")
    yield "meki", meki(17, linear=True)
    yield "ple", ple(17)
    yield "ple", ple(17, False)
    yield "ple", ple(17, "full")
    yield "retoken", retoken(dense(33, 4))
    yield "retoken", retoken(moe(4, 2, mlp(17)))
    yield "mort", mort(glu(17), 5, 3)
    yield "mort", mort(glu(17), 0)  # mixed elsewhere
    yield "deep_embed", deep_embed(33, "1x")
    yield "deep_embed", deep_embed(33, "4x")
    yield "deep_embed", deep_embed(33, "v7a", n=6, w=5, biases=("out",))
    yield "mole", mole(33, 5)
    yield "mole", mole(17, 3, "trained", w=9)
    yield "product_keys", product_keys(2, 5, 7, 3)
    yield "product_keys", product_keys(3, 4, 5, 2, biases=("query",))
    yield "product_keys", product_keys(2, 5, 3, 5, f=33, biases=("query", "gate", "down"))
    yield "peer", peer(2, 5, 7, 3, biases=("query",))
    yield "peer", peer(3, 3, 5, 2, activation="silu")
    yield "l3", l3(19, 9, 17)
    yield "l3", l3(40, 33, 5, ranges="few", map="I32", biases=("up_proj", "mix_memory", "mix_input"))
    yield "engram", engram(17)
    yield "engram", engram(40, eps="1e-6", biases=("key", "value"))
    yield "longcat_embedding", longcat(17)
    yield "longcat_embedding", longcat(5, 7, biases=("ngram",))
    yield "parallel", parallel(peer(2, 3, 3, 2), retoken(l3(9, 5, 7)))
    yield "parallel", parallel(longcat(8), retoken(engram(8)), ple(8, False))
    yield "parallel", parallel(glu(17), meki(9, "static"), ple(8, False))
    yield "parallel", parallel(moe(4, 2, mlp(17)), retoken(dense(9, 2)))


def chosen(kind):
    """Those of `kind` whose composite parts are all chosen."""
    return [s for k, s in one_of_each() if k == kind and kinds(s) <= set(Settings.blocks) | set(BLOCKS)]


class Values(RunLayerTest):
    def run_all(self, kind, specs, backends=None, **options):
        """Every description on a size of its own and in turn with every dtype, if its kinds are all chosen."""
        if kind not in composite():
            self.skipTest("without " + kind)
        for i, spec in enumerate(specs):
            if kinds(spec) <= set(Settings.blocks) | set(BLOCKS):
                given = dict({"size": SIZES[i % len(SIZES)], "dtype": DTYPES[i // 2 % 4], "id_dtype": ID_DTYPES[i % 2]}, **options)
                self.each([TreeCase(spec, **given)], backends)

    # --- mixtures

    def test_moe_orders(self):
        def specs():
            for i, order in enumerate(ORDERS):
                for j, bias in enumerate((False, True)):
                    for experts, k in ((4, 2), (3, 1), (7, 3)):
                        spec = moe(experts, k, dense(17 + i, i + 2 * j), router_order=order, bias=bias)
                        yield dict(spec, shared=dense(9, experts + j)) if (experts + j) % 2 else spec

        self.run_all("moe", specs())

    def test_moe_experts_of_every_kind(self):
        def specs():
            for i, kind in enumerate(DENSE):
                for j, act in enumerate(ACTIVATIONS + (None,)):
                    given = {"activation": act} if act else {}
                    spec = moe(3, 2, dense(19, i, biases=("gate", "up", "down")[j % 3 :] if j < 3 else (), **given))
                    # the shared block's options are its own
                    yield dict(spec, shared=dense(5 + j, i + j)) if j % 2 else spec

        self.run_all("moe", specs())

    def test_experts_of_different_widths(self):
        """Each expert has a d_ff of its own, and biases or none."""
        for kind, spec in (("moe", moe(3, 2, glu(5))), ("hash_moe", hash_moe(3, 2, mlp(5))), ("mole", mole(5, 3, "trained", w=4))):
            if kind in composite():
                case, rng = TreeCase(spec, (6, 7, 9)), np.random.default_rng(3)
                for e, f in ((0, 1), (2, 17)):
                    for name in [n for n in case.tensors if n.startswith("experts.%d." % e)]:
                        shape = [f if size == 5 else size for size in case.tensors[name][0].shape]
                        case.tensors[name] = rng.normal(size=shape), "F32"
                case.tensors["experts.2.up_proj.bias"] = rng.normal(size=17), "F32"
                case.expect()
                self.each([case])

    def test_moe_counts_of_experts(self):
        specs = [moe(1), moe(1, 1, router_order="sigmoid_topk_renorm"), moe(17), moe(33, 2), moe(5, 5)]
        specs += [moe(4, 4, router_order="topk_softmax")]
        specs += [moe(16, 4, glu(5), router_order=order, bias=True) for order in ORDERS]
        self.run_all("moe", specs)
        # selection goes by the default order, and so do the weights, where neither is said
        self.run_all("moe", [moe(6, k, mlp(9)) for k in (None, 2, 3)])

    def test_hash_moe(self):
        counts = ((4, None), (4, 1), (5, 3), (3, 3), (17, 2), (1, None), (1, 1))
        specs = [hash_moe(n, k, dense(17, i), map=kind) for i, (n, k) in enumerate(counts) for kind in ID_DTYPES]
        specs += [hash_moe(3, 2, dense(9, i, activation=act)) for i in range(5) for act in ("gelu", "relu")]
        # a top_k that says what the map says
        specs += [hash_moe(n, k, mlp(9), top_k=k or 1) for n, k in ((3, None), (3, 1), (5, 3), (4, 4))]
        self.run_all("hash_moe", specs)

    def test_structmoe(self):
        def specs():
            for i, fusion in enumerate(STRUCT_FUSIONS + (None,)):
                given = {"fusion": fusion} if fusion else {}
                for j, (count, rank, k) in enumerate(((4, 1, 1), (5, 3, 2), (3, 16, 3), (1, 2, 1), (16, 5, None), (6, 33, 4))):
                    act = (ACTIVATIONS + (None,))[(i + 3 * j) % 7]
                    yield structmoe((33, 17, 64, 1)[(i + j) % 4], count, rank, k, **given, **({"activation": act} if act else {}))

        self.run_all("structmoe", specs())

    def test_structmoe_down(self):
        def specs():
            for i, (count, rank, k) in enumerate(((4, 1, 1), (5, 3, 2), (3, 16, 3), (1, 2, 1), (16, 5, None), (6, 33, 4))):
                for j in range(3):
                    act = (ACTIVATIONS + (None,))[(2 * i + 3 * j) % 7]
                    given = dict({"activation": act} if act else {}, **({"fusion": "additive"} if j == 1 else {}))
                    # widths below and above d, and 34, which is d of the first size
                    yield structmoe((33, 17, 64, 34, 5)[(i + j) % 5], count, rank, k, placement="down", **given)

        self.run_all("structmoe", specs())
        self.run_all("structmoe", [structmoe(34, 4, 3, 2, placement=p) for p in ("up", "down")], size=(34, 17, 17))

    def test_structmoe_biases(self):
        # 2.1: "on every projection"; the projections of structmoe are taken to be included
        self.run_all("structmoe", [structmoe(17, 4, 2, 2, fusion=f, biases=("up", "down")) for f in STRUCT_FUSIONS])
        self.run_all("structmoe", [structmoe(17, 4, 2, 2, placement="down", biases=b) for b in (("up",), ("down",), ("up", "down"))])

    def test_ties(self):
        """Exactly equal router values go to the lower index."""

        def specs(kind):
            for n, k in ((3, 2), (5, 3), (8, 4), (17, 5), (4, 4)):
                if kind == "moe":
                    yield from (moe(n, k, mlp(5), router_order=order) for order in ORDERS)
                elif kind == "structmoe":
                    yield structmoe(9, n, 2, k)
                    yield structmoe(9, n, 2, k, placement="down", activation="relu")
                else:
                    yield mort(mlp(5), n, k)

        for kind in ("moe", "structmoe", "mort"):
            if kind in composite():
                for ties in ("all", "pairs"):
                    self.run_all(kind, specs(kind), size=(4, 5, 9), ties=ties, dtype="F32")

    # --- memories

    def test_meki(self):
        def specs():
            for i, form in enumerate(("training", "static", "dynamic", "folded")):
                for j, fusion in enumerate(MEKI_FUSIONS + (None,)):
                    for gate in ("residual", "normed") if j % 2 else ("residual", None):
                        given = dict({"fusion": fusion} if fusion else {}, **({"gate_input": gate} if gate else {}))
                        if form in ("training", "dynamic"):
                            given["word_norm"] = (i + j) % 2 == 0
                        yield meki((17, 8, 33, 1, 64)[(i + j) % 5], form, scalar=((), (1,))[j % 2], **given)

        self.run_all("meki", specs())

    def test_meki_linear(self):
        def specs():
            for i, form in enumerate(("training", "dynamic")):
                for j, fusion in enumerate(MEKI_FUSIONS + (None,)):
                    for norm in (False, True):
                        given = dict({"fusion": fusion} if fusion else {}, **({"gate_input": "residual"} if j % 2 else {}))
                        width, scalar = (17, 8, 33, 1, 64)[(i + 2 * j + norm) % 5], ((), (1,))[j % 2]
                        yield meki(width, form, linear=True, word_norm=norm, scalar=scalar, **given)

        self.run_all("meki", specs())
        # an odd d has no d / 2, which this form does not ask for
        self.run_all("meki", [meki(9, form, linear=True) for form in ("training", "dynamic")], size=(33, 17, 9))

    def test_meki_eps(self):
        forms = ("training", "dynamic", "static", "folded")
        specs = [meki(9, form, eps=eps, word_norm=True) for form in forms for eps in ("0.5", "1e-5")]
        specs += [meki(9, form, eps=eps, word_norm=True, linear=True) for form in forms[:2] for eps in ("0.5", "1e-5")]
        self.run_all("meki", specs + [meki(9, "static", folded="false")])

    def test_ple(self):
        specs = [ple(m, memory, **options) for m in (17, 1, 64) for memory in (True, False) for options in ({}, {"eps": "0.25"})]
        self.run_all("ple", specs)
        self.run_all("ple", [ple(9, memory, folded="false") for memory in (True, False, "full")])
        self.run_all("ple", [ple(m, folded="true") for m in (9, 64)])

    def test_ple_full(self):
        sizes = (17, 1, 64, 33)
        specs = [ple(m, "full", **options) for m in sizes for options in ({}, {"eps": "0.25"}, {"eps": "1e-5"})]
        self.run_all("ple", specs)
        for size in ((1, 5, 9), (33, 1, 9), (64, 130, 31)):
            self.run_all("ple", [ple(m, "full") for m in sizes], size=size)

    # --- modulated outputs

    def bases(self):
        yield from (dense(17, i, biases=("down",) if i % 2 else ()) for i in range(5))
        yield moe(4, 2, dense(9, 2), router_order="topk_softmax")
        yield moe(3, 1, mlp(9), shared=glu(5))
        yield hash_moe(3, 2)
        yield structmoe(17, 4, 2)
        yield structmoe(17, 4, 2, 2, placement="down")
        yield meki(9)

    def test_retoken(self):
        def specs():
            for i, base in enumerate(self.bases()):
                yield retoken(base)
                yield retoken(base, folded="true")
                if i < 4:
                    yield retoken(base, norm=("rms", "l2")[i % 2], **({"eps": "0.5"} if i // 2 else {}))

        self.run_all("retoken", specs())

    def test_mort(self):
        def specs():
            for i, base in enumerate(self.bases()):
                yield mort(base, 4, num_layers=28)
                options = dict({"norm": ("rms", "l2")[i % 2]}, **({"eps": ("0.5", "1")[i % 2]} if i % 3 else {}))
                yield mort(base, (3, 5, 1, 8)[i % 4], (2, 3, 1, 5)[i % 4], num_layers=(12, 1, 28)[i % 3], **options)
                yield mort(base, 0, num_layers=28, **options)

        self.run_all("mort", specs())

    def test_deep_embed(self):
        def specs():
            for i, form in enumerate(("1x", "4x")):
                yield deep_embed(33, form)
                for j, act in enumerate(ACTIVATIONS):
                    yield deep_embed(17 + j, form, activation=act, biases=(("up", "down"), ("down",), ())[(i + j) % 3])
            # as published: 32x32 matrices; and any other shape
            for j, (n, w) in enumerate(((32, 32), (1, 1), (5, 3), (3, 17), (33, 2))):
                yield deep_embed(31 + j, "v7a", n=n, w=w, biases=(("out",), ("up", "down", "out"), ())[j % 3])
            yield deep_embed(17, "v7a", n=4, activation="silu")
            yield parallel(deep_embed(9, "v7a", n=3), deep_embed(9, "1x"))

        self.run_all("deep_embed", specs())

    def test_mole(self):
        def specs():
            for i, n in enumerate((1, 2, 5, 17)):
                yield mole(17 + i, n)
                yield mole(9 + i, n, "trained", w=(4, 33, 1, 16)[i])
            for j, act in enumerate(ACTIVATIONS):
                yield mole(9, 3, ("folded", "trained")[j % 2], w=8, activation=act, biases=("up", "down"))
            yield retoken(mole(9, 4))

        self.run_all("mole", specs())

    # --- rows that are chosen by keys, rows of a range

    def choices(self):
        """(heads, n, c, k): all n from 2 to 7, with every k; widths odd and even."""
        for n in range(2, 8):
            for k in range(1, n + 1):
                yield (1, 2, 3, 5)[(n + 2 * k) % 4], n, (1, 3, 5, 17, 16, 33, 64, 7)[(n + 3 * k) % 8], k

    def test_product_keys(self):
        def specs():
            for i, given in enumerate(self.choices()):
                yield product_keys(*given, biases=("query",) if i % 2 else ())
            # as published: n of some hundreds, 4 heads, k = 32
            yield product_keys(4, 33, 32, 32)

        self.run_all("product_keys", specs())

    def test_product_keys_plus(self):
        biases = ((), ("query", "gate"), ("gate", "down"), ("query",), ("down",), ("query", "gate", "down"))

        def specs():
            for i, given in enumerate(self.choices()):
                yield product_keys(*given, f=(33, 17, 64, 1, 16)[i % 5], biases=biases[i % 6])
            for i, act in enumerate(ACTIVATIONS):
                yield product_keys(2, 4, 5, 2, f=17 + i, activation=act, biases=biases[i % 6])

        self.run_all("product_keys", specs())
        # f is d
        self.run_all("product_keys", [product_keys(2, 4, 5, 3, f=34)], size=(34, 17, 17))

    def test_peer(self):
        def specs():
            for i, given in enumerate(self.choices()):
                yield peer(*given, biases=("query",) if i % 2 else ())
            for i, act in enumerate(ACTIVATIONS):
                yield peer(3, 5, 3, 2, activation=act, biases=("query",) if i % 2 else ())
            yield peer(8, 33, 16, 16)

        self.run_all("peer", specs())

    def row_blocks(self, *given, **options):
        """(kind, description) of each block that chooses rows by keys."""
        yield "product_keys", product_keys(*given, **options)
        yield "product_keys", product_keys(*given, f=17, **options)
        yield "peer", peer(*given, **options)

    def test_row_ties(self):
        """Sums of small exact numbers, many of them equal: the lower row wins."""
        for i, given in enumerate(((1, 2, 1, 2), (2, 3, 3, 3), (2, 4, 2, 3), (3, 5, 5, 4), (2, 7, 3, 7), (1, 6, 1, 5))):
            for kind, spec in self.row_blocks(*given, biases=("query",) if i % 2 else ()):
                for ties in ("all", "pairs"):
                    self.run_all(kind, [spec], size=(4, 5, 9), ties=ties, dtype="F32")

    def test_row_ties_of_any_numbers(self):
        """A key that stands in several places gives the same score there, to the bit.

        Not with `eigen`: the order of its sums depends on a row's place in the matrix. Exact numbers are above.
        """
        backends = ("reference", "simd")
        if not set(backends) & set(Settings.backends):
            self.skipTest("without reference and simd")
        rng = np.random.default_rng(1)
        given = (1, 2, 3, 2), (2, 3, 5, 3), (3, 4, 7, 3), (2, 5, 33, 4), (1, 7, 17, 6), (4, 6, 64, 5)
        for i, (heads, n, c, k) in enumerate(given):
            for same in ((0,) * n, tuple(j % 2 for j in range(n)), tuple(rng.integers(0, (n + 1) // 2, n).tolist())):
                for kind, spec in self.row_blocks(heads, n, c, k, same=same, biases=("query",) if i % 2 else ()):
                    self.run_all(kind, [spec], backends, dtype="F32", size=SIZES[i])

    def test_row_ties_by_rounding(self):
        """Scores that are lost in the rounding of a sum, so that pairs of other keys are equal: the lower row wins."""
        some = 0.0, -0.0, 1.0, -1.0, 1e-20, -1e-20, 3e-20, 2.0, 2.0**-53, 2.0**-54
        rng = np.random.default_rng(2)

        def change(maker):
            for name, a in maker.values.items():
                if name.endswith(("query.weight", "keys.weight")):
                    a[:] = 0  # a score is the first number of x times that of a key, exactly
                    a[..., 0] = 1 if a.ndim == 2 else rng.choice(some, a.shape[:2])

        for heads, n, c, k in ((1, 2, 1, 1), (2, 3, 2, 2), (2, 7, 1, 3), (3, 12, 3, 12), (1, 33, 1, 5)):
            for kind, spec in self.row_blocks(heads, n, c, k):
                if kind in composite():
                    self.each([TreeCase(spec, (4, 5, 9), change=change, x=first_column(1.0, -1.0, 0.5), near=0)])

    def test_row_chosen_by_several_heads(self):
        for heads, n, k in ((2, 2, 2), (3, 5, 3), (5, 3, 1)):
            for kind, spec in self.row_blocks(heads, n, 5, k, equal_heads=True, biases=("query",)):
                if kind in composite():
                    case = TreeCase(spec, (16, 5, 9))
                    self.assertTrue((case.route[0] == np.tile(case.route[0][:, :k], heads)).all())
                    self.each([case])
        # and by chance: 2 of 4 rows by each of 5 heads
        for kind, spec in self.row_blocks(5, 2, 3, 2):
            if kind in composite():
                case = TreeCase(spec, (16, 5, 9))
                self.assertTrue(all(len(set(row)) < 10 for row in case.route[0].tolist()))
                self.each([case])

    def test_rows_of_far_scores(self):
        """Scores whose exponentials overflow or underflow, in float32 or in double too."""
        for by in (50, 2000):

            def change(maker):
                for name in maker.values:
                    if name.endswith("keys.weight"):
                        maker.values[name] = maker.values[name] * by

            # what decides a choice is far from the rounding of scores of this size
            given = {"change": change, "near": 1e-4 * by, "dtype": "F32"}
            for kind, spec in self.row_blocks(2, 5, 3, 4, biases=("query",)):
                self.run_all(kind, [spec, dict(spec, equal_heads=True)], size=(16, 5, 33), **given)
            self.run_all("l3", [l3(19, 5, 7), l3(40, 3, 9, ranges=((0, 40),))], size=(16, 5, 33), **given)

    def test_l3(self):
        biases = ((), ("up_proj",), ("mix_memory",), ("mix_input",), ("up_proj", "mix_memory", "mix_input"))

        def specs():
            for i, made in enumerate(("mixed", "parts", "few")):
                for j, size in enumerate(((1, 1, 1), (7, 5, 3), (33, 17, 64), (64, 34, 34), (130, 3, 17), (5, 64, 33))):
                    given = {"eps": ("1e-5", "0.5", "1e-3")[j % 3]} if (i + j) % 2 else {}
                    given["map"] = ID_DTYPES[(i + j) % 2]
                    yield l3(*size, ranges=made, biases=biases[(i + 2 * j) % 5], **given)
            yield l3(20, 5, 9, ranges=((0, 20),))  # all rows, for all ids
            yield l3(20, 5, 9, ranges=((3, 4), (19, 20), (0, 1)), biases=biases[4])  # one row each
            yield l3(20, 5, 9, ranges=((5, 9), (5, 9), (7, 12), (12, 12)), map="I32")  # shared; rows that no range has

        self.run_all("l3", specs())
        # one id in the vocabulary
        for made in (((0, 6),), ((2, 3),), ((1, 5),)):
            self.run_all("l3", [l3(6, 5, 9, ranges=made)], size=(18, 1, 9))

    def test_l3_short_ranges(self):
        """Behind a token's rows the route is -1 and its weight 0; where there is no row at all, v is 0."""
        if "l3" not in composite():
            self.skipTest("without l3")
        for biases in ((), ("up_proj",), ("up_proj", "mix_memory", "mix_input")):
            case = TreeCase(l3(9, 5, 7, ranges=((2, 6), (4, 4), (8, 9), (0, 0), (9, 9)), biases=biases), (16, 5, 33))
            ids, route, weight = case.inputs["token_ids"][0], case.route[0], case.route[1].v
            self.assertEqual(set(ids.tolist()), {0, 1, 2, 3, 4})
            for i, row in ((0, [2, 3, 4, 5]), (1, [-1] * 4), (2, [8, -1, -1, -1]), (3, [-1] * 4), (4, [-1] * 4)):
                self.assertEqual({tuple(r) for r in route[ids == i].tolist()}, {tuple(row)})
            self.assertTrue((weight[route < 0] == 0).all())
            for backend in Settings.backends:
                with self.subTest(backend=backend):
                    got = np.frombuffer(self.check(case, backend)["route_weight"], "<f4").reshape(route.shape)
                    self.assertTrue((got[route < 0] == 0).all(), "not 0 behind a range")

    def test_l3_no_rows(self):
        """Every range is empty: the route has one row all the same, -1 with the weight 0."""
        for biases in ((), ("up_proj", "mix_memory")):
            spec = l3(5, 3, 7, ranges=((0, 0), (3, 3), (5, 5)), biases=biases)
            if "l3" in composite():
                case = TreeCase(spec, (16, 5, 9))
                self.assertEqual(case.route[0].tolist(), [[-1]] * 9)
                self.assertEqual(case.route[1].v.tolist(), [[0]] * 9)
            self.run_all("l3", [spec, retoken(spec), parallel(spec, moe(3, 2, mlp(5)))], size=(16, 5, 9))

    def test_rows_nested(self):
        """In other blocks, and others beside them: the route is that of the outermost, or first, that routes."""
        rows = [product_keys(2, 4, 5, 3), product_keys(1, 5, 3, 2, f=17, biases=("gate",))]
        rows += [peer(3, 3, 7, 2), l3(19, 5, 7)]
        for spec in rows:
            kind = spec["block"]
            self.run_all(kind, [retoken(spec), retoken(spec, folded="true"), parallel(spec)])
            self.run_all(kind, [parallel(glu(9), spec, mlp(5)), retoken(parallel(retoken(spec), meki(9)))])
            self.run_all(kind, [parallel(spec, other) for other in rows])
            self.run_all(kind, [parallel(spec, moe(3, 2, mlp(5))), parallel(moe(3, 2, mlp(5)), spec)])
            self.run_all(kind, [mort(spec, 4), mort(spec, 0)])

    # --- rows of the last ids, which the call brings

    def test_engram(self):
        biases = ((), ("key",), ("value",), ("key", "value"))
        for i, c in enumerate((1, 5, 17, 33, 64, 130, 257, 2)):  # above d, below it, and d
            for j, b in enumerate(biases):
                spec = engram(c, biases=b, **({"eps": ("0.5", "1e-3")[i % 2]} if j % 2 else {}))
                self.run_all("engram", [spec], size=SIZES[i], dtype=DTYPES[(i + j) % 4], id_dtype=ID_DTYPES[j % 2])
        self.run_all("engram", [engram(34)], size=(34, 5, 9))
        self.run_all("engram", [engram(c, eps="0") for c in (1, 9)], size=(34, 5, 9))
        self.run_all("engram", [engram(c, biases=b) for c in (1, 5) for b in biases], size=(1, 5, 9))

    def each_gate(self, case, gate, rows=slice(None)):
        """In the rows, the gate is `gate`, and the bounds tell it from others, which are 5 parts in 10^4 away."""
        t = {n: a.astype(np.float64) for n, (a, _) in case.tensors.items()}
        value = case.inputs["per_layer_input"][0] @ t["value_proj.weight"].T + t.get("value_proj.bias", 0)
        y, expected = case.outputs["y"].rows(rows), (gate * value)[rows]
        np.testing.assert_allclose(y.v, expected, rtol=1e-9, atol=1e-9, err_msg=str(case))
        self.assertTrue((y.e[0] <= 1e-5 * np.max(np.abs(y.v))).all(), "the sign of g is not certain: %s" % case)
        self.each([case])

    def test_engram_of_no_key_or_query(self):
        """g is 0 and the gate 1/2, neither what 1e-6 nor what -1e-6 would give."""
        if "engram" not in composite():
            self.skipTest("without engram")

        def nothing(name):
            return lambda maker: maker.values.update({name: np.zeros_like(maker.values[name])})

        def some(rng, n, width):  # rows of zeros among others
            a = rng.normal(size=(n, width))
            a[::3] = 0
            return a

        for size, c in (((34, 5, 17), 17), ((16, 5, 9), 5), ((3, 5, 33), 40), ((1, 5, 4), 1)):
            for biases in ((), ("value",)):
                for name in ("key_proj.weight", "key_norm.weight", "query_norm.weight"):
                    self.each_gate(TreeCase(engram(c, biases=biases), size, change=nothing(name)), 0.5)
                for options in ({"x": some}, {"given": some}, {"x": some, "given": some}):
                    self.each_gate(TreeCase(engram(c, biases=biases), size, **options), 0.5, slice(0, None, 3))
        # nested; where nothing is given, y is half the bias, or 0
        for spec in (engram(5), engram(5, biases=("value",)), retoken(engram(5)), parallel(mlp(5), engram(5))):
            self.run_all("engram", [spec], size=(16, 5, 9), x=lambda rng, n, d: np.zeros((n, d)))
            self.run_all("engram", [spec], size=(16, 5, 9), given=lambda rng, n, d: np.zeros((n, d)))

    def scaled(self, by):
        def change(maker):
            for name, factor in by.items():
                maker.values[name] = maker.values[name] * factor

        return change

    def test_engram_of_small_g(self):
        """Below 1e-6 the gate knows the sign of g alone."""
        if "engram" not in composite():
            self.skipTest("without engram")
        for i, size in enumerate(SIZES):
            for j, (name, by) in enumerate((("key_norm", 1e-8), ("query_norm", 1e-9), ("key_proj", 1e-11))):
                spec = engram((17, 5, 40, 1)[(i + j) % 4], biases=("value",) if (i + j) % 2 else ())
                case = TreeCase(spec, size, change=self.scaled({name + ".weight": by}))
                t = {n: a.astype(np.float64) for n, (a, _) in case.tensors.items()}
                p = case.inputs["per_layer_input"][0].astype(np.float64)
                k, x = p @ t["key_proj.weight"].T, case.inputs["x"][0]
                sign = np.sign((k * x * t["key_norm.weight"] * t["query_norm.weight"]).sum(-1, keepdims=True))
                self.each_gate(case, 1 / (1 + np.exp(-1e-3 * sign)))
            # x alone is small
            small = {"x": lambda rng, n, d: 1e-11 * rng.normal(size=(n, d)), "dtype": "F32"}
            self.run_all("engram", [engram(5)], size=size, **small)
            # on both sides of 1e-6
            change = self.scaled({"key_norm.weight": 1e-3, "query_norm.weight": 1e-3})
            self.run_all("engram", [engram(5)], size=size, change=change, dtype="F32")

    def test_engram_of_large_g(self):
        """Gates near 0 and 1, and those that are 0 in float32."""
        for i, size in enumerate(SIZES):
            for j, by in enumerate((10, 100, 3e3, 1e6)):
                change = self.scaled({"key_norm.weight": by, "query_norm.weight": by})
                spec = engram((5, 40, 17, 1)[(i + j) % 4], biases=("key", "value") if (i + j) % 2 else ())
                self.run_all("engram", [spec], size=size, change=change, dtype="F32")
        # x and what is given, of sizes that the norms take out
        for by in (1e-4, 1e4, 1e8):

            def rows(rng, n, width):
                return by * rng.normal(size=(n, width))

            for given in ({"x": rows}, {"given": rows}, {"x": rows, "given": rows}):
                self.run_all("engram", [engram(17), engram(5, biases=("key", "value"))], size=(34, 5, 17), **given)

    def test_engram_of_keys_across_the_query(self):
        """g is a difference of numbers that are nearly equal: 0, or a rounding error of either sign."""

        def change(maker):
            for name, a in maker.values.items():
                maker.values[name] = np.ones_like(a) if name.endswith("norm.weight") else a
            maker.values["key_proj.weight"][:] = 1.0  # all numbers of a key are the same

        def x(rng, n, d):
            return np.tile(np.array([1.0, -1.0]), (n, d // 2)) * rng.normal(size=(n, 1))

        self.run_all("engram", [engram(c) for c in (1, 5, 17)], size=(16, 5, 9), change=change, x=x, dtype="F32")

    def test_longcat_embedding(self):
        for i, c in enumerate((1, 5, 17, 33, 64, 130, 257, 2)):
            for j, terms in enumerate((1, 2, 3, 13, 1000000)):
                spec = longcat(c, terms, biases=("ngram",) if (i + j) % 2 else ())
                options = {"dtype": DTYPES[(i + j) % 4], "id_dtype": ID_DTYPES[(i + j) % 2]}
                self.run_all("longcat_embedding", [spec], size=SIZES[i], **options)
        self.run_all("longcat_embedding", [longcat(c, 3) for c in (1, 5)], size=(1, 1, 9))
        nothing = {"given": lambda rng, n, d: np.zeros((n, d))}  # the rows by token id, divided
        self.run_all("longcat_embedding", [longcat(5, 7), longcat(5, 1, biases=("ngram",))], size=(16, 5, 9), **nothing)

    def test_given_rows_nested(self):
        """All parts that read per_layer_input read the same."""
        for kind, spec in (("engram", engram(34, biases=("key",))), ("longcat_embedding", longcat(34, 3))):
            specs = [retoken(spec), retoken(spec, folded="true"), parallel(spec), parallel(glu(9), spec, mlp(5))]
            specs += [parallel(spec, spec), parallel(engram(34), longcat(34, 2)), parallel(spec, ple(34, False))]
            specs += [parallel(mole(9, 3, "trained", w=34), spec), retoken(parallel(retoken(spec), meki(9)))]
            specs += [parallel(spec, moe(3, 2, mlp(5))), parallel(l3(9, 5, 7), spec), mort(spec, 4)]
            specs += [mort(spec, 0), parallel(mort(glu(9), 0), spec)]  # d is 34
            specs += [parallel(meki(9, gate_input="residual"), spec)]
            self.run_all(kind, specs, size=(34, 17, 17))
            # a width of its own beside the d of all
            other = dict(spec, c=5)
            for size in SIZES:
                self.run_all(kind, [retoken(other), parallel(other, glu(9), other)], size=size)

    def test_parallel(self):
        specs = [parallel(glu(17)), parallel(mlp(9), mlp(9)), parallel(*(dense(5 + i, i) for i in range(5)))]
        specs += [parallel(glu(17), meki(9, form)) for form in ("training", "folded")]
        specs += [parallel(glu(9), meki(8, "static", gate_input="residual")), parallel(mlp(9), ple(5), ple(7, False))]
        specs += [parallel(parallel(mlp(5), glu(6)), glu(7)), parallel(mlp(5), parallel(glu(3), parallel(glu(6), dense(7, 2))))]
        specs += [parallel(meki(9), moe(4, 2, mlp(5))), parallel(structmoe(9, 4, 2, 2), ple(4)), parallel(hash_moe(3, 2, mlp(9)))]
        specs += [parallel(glu(9), ple(8, "full")), parallel(structmoe(9, 4, 2, 2, placement="down"), meki(5, linear=True))]
        specs += [parallel(retoken(glu(9)), mort(mlp(5), 3)), parallel(parallel(glu(9), moe(3)), retoken(mlp(5), folded="true"))]
        # 12 branches: the prefix branch.1. is not that of branch.10.
        specs += [parallel(*(mlp(3 + i) for i in range(12)))]
        self.run_all("parallel", specs)

    # --- all kinds

    def test_dtypes(self):
        for kind in composite():
            for dtype in DTYPES:
                self.run_all(kind, chosen(kind), size=(34, 17, 9), dtype=dtype)

    def test_no_tokens(self):
        for kind in composite():
            for spec in chosen(kind):
                case = TreeCase(spec, (16, 5, 0))
                files = case.write()
                for backend in Settings.backends:
                    for flags in ((), ("--batch", 3)):
                        with self.subTest(backend=backend, flags=flags):
                            self.check(case, backend, *flags, files=files)

    def test_without_flags(self):
        for kind in composite():
            for spec in chosen(kind):
                with self.subTest(kind=kind):
                    self.check(TreeCase(spec, (34, 17, 9)), "default")

    def test_batches_and_threads(self):
        """Right for every --batch and --threads; on simd also bitwise the same, the routes too."""
        sizes = ((34, 17, 33), (64, 31, 130), (258, 33, 67))
        for kind in composite():
            for spec in chosen(kind):
                for i, size in enumerate(sizes):
                    self.sweep(TreeCase(spec, size, DTYPES[i], ID_DTYPES[i % 2]), thorough=i == 0)
