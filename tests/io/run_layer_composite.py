"""run_layer on moe, hash_moe, structmoe, meki, ple, retoken, mort and parallel: values and routes."""

from run_layer_cases import TreeCase, kinds
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
    yield "parallel", parallel(glu(17), meki(9, "static"), ple(8, False))
    yield "parallel", parallel(moe(4, 2, mlp(17)), retoken(dense(9, 2)))


def chosen(kind):
    """Those of `kind` whose composite parts are all chosen."""
    return [s for k, s in one_of_each() if k == kind and kinds(s) <= set(Settings.blocks) | set(BLOCKS)]


class Values(RunLayerTest):
    def run_all(self, kind, specs, **options):
        """Every description on a size of its own and in turn with every dtype, if its kinds are all chosen."""
        if kind not in composite():
            self.skipTest("without " + kind)
        for i, spec in enumerate(specs):
            if kinds(spec) <= set(Settings.blocks) | set(BLOCKS):
                given = dict({"size": SIZES[i % len(SIZES)], "dtype": DTYPES[i // 2 % 4], "id_dtype": ID_DTYPES[i % 2]}, **options)
                self.each([TreeCase(spec, **given)])

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
