"""run_layer on bad layers and inputs of moe, hash_moe, structmoe, meki, ple, retoken, mort and parallel."""

import numpy as np

from run_layer_cases import TreeCase, kinds, ramp
from run_layer_composite import glu, hash_moe, meki, mlp, moe, mort, parallel, ple, retoken, structmoe
from run_layer_files import file_of
from run_layer_harness import RefusalTest, Settings, composite, write
from run_layer_reference import BLOCKS

D, V, T = 4, 7, 4
OPTIONAL = ("router.selection_bias", "word_norm.weight")
FULL_PLE = ("memory.weight", "word_embed.weight", "per_layer_model_projection.weight", "per_layer_projection_norm.weight")


def small():
    """(kind and form, description) of small layers, each with all its forms."""
    yield "moe", moe(3, 2, mlp(5), bias=True, shared=glu(6))
    yield "hash_moe", hash_moe(3, 2, mlp(5))
    yield "hash_moe says k", hash_moe(3, 2, mlp(5), top_k=2)
    yield "structmoe", structmoe(5, 3, 2, 2)
    yield "structmoe down", structmoe(5, 3, 2, 2, placement="down")
    for form in ("training", "static", "dynamic", "folded"):
        yield "meki " + form, meki(5, form, gate_input="residual", word_norm=True)
    yield "meki linear", meki(5, linear=True, word_norm=True)
    yield "meki linear dynamic", meki(5, "dynamic", linear=True)
    yield "ple", ple(5)
    yield "ple given", ple(5, False)
    yield "ple full", ple(5, "full")
    yield "ple folded", ple(5, folded="true")
    yield "retoken", retoken(glu(5))
    yield "retoken", retoken(glu(5), folded="true")
    yield "mort", mort(mlp(5), 3)
    yield "parallel", parallel(glu(5), meki(3, "static"))
    yield "parallel", parallel(parallel(mlp(5), glu(6)), glu(3))


class Broken:
    """A sound case, to be changed."""

    def __init__(self, spec):
        case = TreeCase(spec, (D, V, T))
        self.case = case
        self.tensors, self.metadata, self.inputs = dict(case.tensors), dict(case.metadata), dict(case.inputs)
        self.inputs["token_ids"] = (np.array([0, 6, 3, 3]), "I64")

    def layer(self, tensors=None, metadata=None, remove=()):
        t, m = dict(self.tensors, **(tensors or {})), dict(self.metadata, **(metadata or {}))
        for name in remove:
            if name not in t and name not in m:
                raise KeyError(name)
            t.pop(name, None)
            m.pop(name, None)
        return file_of(t, m)


class Refusals(RefusalTest):
    twice = False

    def small(self, *wanted):
        """Each small layer of the wanted and chosen kinds."""
        for kind, spec in small():
            block = spec["block"]
            if block in composite() and (not wanted or block in wanted):
                if kinds(spec) <= set(Settings.blocks) | set(BLOCKS):
                    yield kind, Broken(spec)

    def refuse(self, what, broken, names=(), any_of=(), **changes):
        self.bad(what, broken.layer(**changes), file_of(broken.inputs), "layer", names, any_of)

    def refuse_input(self, what, broken, changes, names=(), remove=()):
        inputs = dict(broken.inputs, **changes)
        for name in remove:
            del inputs[name]
        self.bad(what, broken.layer(), file_of(inputs), "input", names)

    def test_the_unchanged_files_are_good(self):
        # else the tests below would prove nothing
        for kind, b in self.small():
            files = write("layer", b.layer()), write("input", file_of(b.inputs))
            for backend in Settings.backends:
                with self.subTest(kind=kind, backend=backend):
                    shapes = self.shapes_of(b.case)
                    self.output_of("unchanged " + kind, *files, shapes, "--backend", backend)

    # --- tensors

    def test_missing_tensor(self):
        for kind, b in self.small():
            for name in b.tensors:
                if name.endswith(OPTIONAL):
                    continue
                others = (name,)
                if kind in ("meki training", "meki linear", "ple") and name == "memory.weight":
                    continue  # another form
                if kind == "ple folded" and name == "memory.weight":
                    others += ("folded",)
                if kind == "ple full" and name in FULL_PLE:
                    others = FULL_PLE  # incomplete, or what is left is of no use
                if name == "word_proj.weight":
                    others += tuple("word_proj.%s_proj.weight" % p for p in ("gate", "up", "down"))
                if kind in ("meki training", "meki linear") and name == "word_embed.weight":
                    # static-only, or incomplete
                    others = tuple(n for n in b.tensors if n.startswith("word_")) + ("beta",)
                if kind.startswith("meki") and name in ("word_embed.weight", "memory.weight"):
                    others += ("word_embed.weight", "memory.weight", "beta")
                    others += tuple(n for n in b.tensors if n.startswith("word_"))
                if name == "branch.1.memory.weight":
                    others += ("branch.1.word_embed.weight",)
                self.refuse("%s without %s" % (kind, name), b, any_of=others, remove=[name])

    def test_unused_tensor(self):
        for kind, b in self.small():
            extra = {"surplus.weight": ramp(5, D), "experts.3.up_proj.weight": ramp(5, D), "branch.2.up_proj.weight": ramp(5, D)}
            if kind != "moe":
                extra["shared.up_proj.weight"] = ramp(5, D)
            if kind not in ("retoken", "mort"):
                extra["base.up_proj.weight"] = ramp(5, D)
            if kind in ("meki static", "meki folded"):
                extra["beta"], extra["word_norm.weight"] = ramp(), ramp(D)
            if kind == "meki folded":
                extra["alpha"], extra["mix_norm.weight"] = ramp(), ramp(5)
            if kind in ("ple given", "ple folded", "ple"):
                extra["per_layer_projection_norm.weight"] = ramp(5)
            if kind.startswith("ple"):
                extra["word_norm.weight"], extra["mix_norm.weight"], extra["alpha"] = ramp(D), ramp(5), ramp()
            if kind.startswith("structmoe"):
                extra["gate_proj.weight"] = ramp(5, D)
            if kind.startswith("hash_moe"):
                extra["router.weight"] = ramp(3, D)
            if kind.startswith(("moe", "hash_moe")):
                extra["experts.01.up_proj.weight"], extra["experts.0.gate_proj.weight"] = ramp(5, D), ramp(5, D)
            for name, a in extra.items():
                self.refuse("%s with unused %s" % (kind, name), b, (name,), tensors={name: (a, "F32")})
            if kind.startswith("meki linear"):
                # G is one matrix or three, not both
                three = {"gate": (2, D), "up": (2, D), "down": (5, 2)}
                given = {"word_proj.%s_proj.weight" % p: (ramp(*shape), "F32") for p, shape in three.items()}
                for some in (given, {n: given[n] for n in list(given)[:1]}):
                    names = tuple(given) + ("word_proj.weight",)
                    self.refuse("%s with %d more of word_proj" % (kind, len(some)), b, any_of=names, tensors=some)

    def test_misshapen_tensor(self):
        for kind, b in self.small():
            for i, (name, (a, dtype)) in enumerate(b.tensors.items()):
                a = np.asarray(a)
                names = tuple(b.tensors) + ("num_experts",)
                if a.ndim:
                    wrong = np.concatenate([a, a[..., :1]], -1)  # the last dimension is d, or known from elsewhere
                    if name == "hash_map":
                        wrong = a[:, :, None]
                    self.refuse("%s: %s of shape %s" % (kind, name, wrong.shape), b, any_of=names, tensors={name: (wrong, dtype)})
                    empty = a[:0]
                    self.refuse("%s: %s empty" % (kind, name), b, any_of=names, tensors={name: (empty, dtype)})
                rank = np.stack([a, a]) if a.ndim != 1 or name != "hash_map" else a[:, None, None]
                self.refuse("%s: %s of rank %d" % (kind, name, rank.ndim), b, (name,), tensors={name: (rank, dtype)})
                if name == "hash_map":
                    continue
                other = ("I32", "I64", "F64")[i % 3]
                self.refuse("%s: %s as %s" % (kind, name, other), b, (name,), tensors={name: (a, other)})

    def test_sizes_that_disagree(self):
        for kind, b in self.small("retoken", "mort", "parallel", "meki"):
            for name, axis in (("scale", 0), ("base.up_proj.weight", 1), ("branch.1.gate_proj.weight", 1), ("word_embed.weight", 0)):
                if name in b.tensors and not (kind.endswith("dynamic") and name == "word_embed.weight"):
                    a, dtype = b.tensors[name]
                    shorter = np.delete(a, 0, axis)
                    self.refuse("%s: %s %s" % (kind, name, shorter.shape), b, any_of=tuple(b.tensors), tensors={name: (shorter, dtype)})
        if "parallel" in composite():
            # each branch is sound by itself
            b = Broken(parallel(glu(5), mlp(5)))
            wide = {"branch.1.up_proj.weight": (ramp(5, D + 2), "F32"), "branch.1.down_proj.weight": (ramp(D + 2, 5), "F32")}
            self.refuse("parallel: branches of width 4 and 6", b, any_of=tuple(b.tensors), tensors=wide)

    # --- options

    def test_unknown_options(self):
        for kind, b in self.small():
            for key in ("wobble", "topk", "expert.wobble", "shared.wobble", "base.wobble", "branch.0.wobble", "branch.7.block"):
                self.refuse("%s: option %s" % (kind, key), b, (key,), metadata={key: "1"})
            if kind.startswith(("moe", "hash_moe")):
                # all experts share expert.
                self.refuse("%s: one expert's option" % kind, b, ("experts.0.activation",), metadata={"experts.0.activation": "relu"})

    def test_bad_values(self):
        counts = ("0", "-1", "1.5", "x", "", "2x", "99999999999999999999")
        numbers = ("x", "", "1e", "1,5")
        for kind, b in self.small():
            kind = kind.split()[0]
            values = {}
            if kind in ("moe", "structmoe", "mort"):
                values["top_k"] = counts + ("4",)  # three experts
            if kind in ("moe", "hash_moe"):
                values["num_experts"] = ("0", "-1", "1.5", "x", "")
                values["expert.block"] = ("frobnicate", "")
                values["expert.activation"] = ("swoosh", "")
            if kind == "moe":
                values["router_order"] = ("topk", "softmax", "softmax_topk2", "")
                values["shared.block"] = ("frobnicate",)
            if kind == "hash_moe":
                values["top_k"] = counts + ("1", "3")  # two columns
            if kind == "structmoe":
                values["placement"] = ("sideways", "Down", "")
                values["fusion"] = ("add_sigmoid", "multiply", "")
                values["activation"] = ("swoosh",)
            if kind == "meki":
                values["fusion"] = ("additive", "sigmoid", "")
                values["gate_input"] = ("hidden", "")
            if kind in ("meki", "ple", "retoken"):
                values["folded"] = ("yes", "True", "2", "")
            if kind in ("meki", "ple", "retoken", "mort"):
                values["eps"] = numbers
            if kind in ("retoken", "mort"):
                values["norm"] = ("l1", "")
                values["base.block"] = ("frobnicate", "")
            if kind == "mort":
                values["num_layers"] = counts[:-1]
            if kind == "parallel":
                values["branches"] = counts[:-1]
                values["branch.0.block"] = ("frobnicate", "")
            for key, texts in values.items():
                for text in texts:
                    # every value is refused by key; a name that is unknown is repeated, too
                    names = (key, text) if text.isalpha() and key.endswith(("block", "activation")) else (key,)
                    self.refuse("%s: %s = %r" % (kind, key, text), b, names, metadata={key: text})

    def test_missing_options(self):
        for kind, b in self.small():
            for key in ("num_experts", "expert.block", "base.block", "branches", "branch.0.block", "branch.1.block", "num_layers"):
                if key in b.metadata:
                    self.refuse("%s without %s" % (kind, key), b, (key,), remove=[key])
            if kind == "moe":
                # the tensors of the shared block have no use then, or lack their kind
                names = ("shared.block",) + tuple(n for n in b.tensors if n.startswith("shared."))
                self.refuse("moe without shared.block", b, any_of=names, remove=["shared.block"])
        if {"mort", "parallel"} <= set(composite()):
            b = Broken(parallel(mlp(5), mort(glu(5), 3)))
            self.refuse("branch.1 without num_layers", b, ("branch.1.num_layers",), remove=["branch.1.num_layers"])

    def test_placement(self):
        for kind, b in self.small("structmoe"):
            other = "up" if kind == "structmoe down" else "down"
            # d is 4, f 5
            self.refuse("%s placed %s" % (kind, other), b, any_of=tuple(b.tensors), metadata={"placement": other})
            if kind == "structmoe down":
                self.refuse("a bank of down placed nowhere", b, any_of=tuple(b.tensors), remove=["placement"])
                for fusion in ("gated", "post_activation"):
                    self.refuse("%s, %s" % (kind, fusion), b, any_of=("fusion", "placement"), metadata={"fusion": fusion})
        if {"structmoe", "retoken"} <= set(composite()):
            b = Broken(retoken(structmoe(5, 3, 2, 2, placement="down")))
            names = ("base.fusion", "base.placement")
            self.refuse("a base placed down, gated", b, any_of=names, metadata={"base.fusion": "gated"})

    def test_top_k_of_a_map_without_columns(self):
        for kind, b in self.small("hash_moe"):
            a, dtype = b.tensors["hash_map"]
            if kind == "hash_moe":
                self.refuse("top_k 2 of a map (V)", b, ("top_k",), tensors={"hash_map": (a[:, 0], dtype)}, metadata={"top_k": "2"})
        if {"hash_moe", "retoken"} <= set(composite()):
            b = Broken(retoken(hash_moe(3, 2, mlp(5), top_k=2)))
            self.refuse("the base's top_k", b, ("base.top_k",), metadata={"base.top_k": "3"})

    def test_counts_that_disagree(self):
        for kind, b in self.small("moe", "hash_moe"):
            names = ["num_experts"] + [n for n in b.tensors if n.startswith(("router", "experts.2.", "hash_map"))]
            # beyond what there is: experts.3 is missing
            beyond = tuple(names) + ("experts.3.up_proj.weight", "experts.3.down_proj.weight")
            for count in ("2", "4", "1000000000000"):
                self.refuse("%s: num_experts %s of 3" % (kind, count), b, any_of=beyond, metadata={"num_experts": count})
        for kind, b in self.small("parallel"):
            names = ("branch.2.block", "branches")
            self.refuse("parallel: 3 branches of 2", b, any_of=names, metadata={"branches": "3"})
            names = tuple(n for n in (*b.tensors, *b.metadata) if n.startswith("branch.1.")) + ("branches",)
            self.refuse("parallel: 1 branch of 2", b, any_of=names, metadata={"branches": "1"})

    def test_folded(self):
        for kind, b in self.small("meki", "ple", "retoken", "mort"):
            if kind == "ple given":
                self.refuse("ple: folded without memory.weight", b, any_of=("folded", "memory.weight"), metadata={"folded": "true"})
            if kind == "ple full":
                self.refuse("ple: folded with word_embed.weight", b, any_of=("folded",) + FULL_PLE[1:], metadata={"folded": "true"})
            if kind in ("meki training", "meki linear"):
                names = ("folded",) + tuple(n for n in b.tensors if n.startswith(("word_", "alpha", "beta", "mix_")))
                self.refuse("meki: folded beside word_embed.weight", b, any_of=names, metadata={"folded": "true"})
            if kind == "meki static":
                self.refuse("meki: folded with alpha", b, any_of=("folded", "alpha", "mix_norm.weight"), metadata={"folded": "true"})
            if kind in ("meki dynamic", "meki linear dynamic"):
                names = ("folded", "memory.weight") + tuple(n for n in b.tensors if n.startswith(("word_", "alpha", "beta", "mix_")))
                self.refuse("meki: folded without memory.weight", b, any_of=names, metadata={"folded": "true"})
            if kind == "meki folded":
                names = ("folded", "alpha", "mix_norm.weight")
                self.refuse("meki: a folded layer that does not say so", b, any_of=names, remove=["folded"])
            if kind == "retoken" and "scale" in b.tensors:
                self.refuse("retoken: folded with scale", b, any_of=("folded", "scale"), metadata={"folded": "true"})
            if kind == "retoken" and "scale" not in b.tensors:
                self.refuse("retoken: not folded without scale", b, ("scale",), remove=["folded"])
            if kind == "mort":
                # 2.6: "There is no fold"
                self.refuse("mort: folded", b, ("folded",), metadata={"folded": "true"})

    # --- hash maps and inputs

    def test_hash_map(self):
        for kind, b in self.small("hash_moe"):
            a, _ = b.tensors["hash_map"]
            for value in (3, -1, 2**31 - 1, -(2**31)):
                for dtype in ("I32", "I64"):
                    wrong = a.copy()
                    wrong[V - 1, 1] = value  # the last entry, which no other check would meet first
                    self.refuse("hash_map with %d as %s" % (value, dtype), b, ("hash_map",), tensors={"hash_map": (wrong, dtype)})
            for value in (2**32 + 1, -(2**63), 2**63 - 1):
                wrong = a.copy()
                wrong[1, 0] = value
                self.refuse("hash_map with %d" % value, b, ("hash_map",), tensors={"hash_map": (wrong, "I64")})
            for dtype in ("F32", "F16", "F64"):
                self.refuse("hash_map as " + dtype, b, ("hash_map",), tensors={"hash_map": (a, dtype)})
            self.refuse("hash_map ()", b, ("hash_map",), tensors={"hash_map": (np.array(1), "I64")})
            short = Broken(hash_moe(3, 2, mlp(5)))
            short.tensors["hash_map"] = (a[:6], "I64")  # the input has the id 6
            self.refuse_input("a hash map too short", short, {}, ("token_ids", "6"))

    def test_ids_out_of_range(self):
        for kind, b in self.small():
            if kind in ("moe", "structmoe", "structmoe down", "ple given"):
                continue
            if kind == "parallel" and not any(n.endswith("memory.weight") for n in b.tensors):
                continue  # no table
            for value, dtype in ((V, "I64"), (-1, "I32"), (2**32 + 1, "I64")):
                ids = np.array([0, 6, 3, value])
                self.refuse_input("%s: id %d" % (kind, value), b, {"token_ids": (ids, dtype)}, ("token_ids", str(value)))
            self.refuse_input("%s: token_ids missing" % kind, b, {}, ("token_ids",), ["token_ids"])

    def test_x(self):
        for kind, b in self.small():
            self.refuse_input("%s: x of width 29" % kind, b, {"x": (ramp(T, 29), "F32")}, ("x", "29"))
            self.refuse_input("%s: x missing" % kind, b, {}, ("x",), ["x"])
            self.refuse_input("%s: x as F16" % kind, b, {"x": (ramp(T, D), "F16")}, ("x",))

    def test_further_inputs(self):
        for kind, b in self.small():
            name = next((n for n in ("residual", "per_layer_input") if n in b.inputs), None)
            if name is None:
                continue
            self.refuse_input("%s: %s missing" % (kind, name), b, {}, (name,), [name])
            width = b.inputs[name][0].shape[1]
            for shape in ((T, width + 1), (T, width - 1), (T - 1, width), (T + 1, width), (0, width), (T * width,), (T, width, 1), (T, 0)):
                self.refuse_input("%s: %s of shape %s" % (kind, name, shape), b, {name: (ramp(*shape), "F32")}, (name,))
            for dtype in ("F16", "BF16", "F64", "I32"):
                self.refuse_input("%s: %s as %s" % (kind, name, dtype), b, {name: (ramp(T, width), dtype)}, (name,))

    def test_a_nested_block_that_asks_for_an_input(self):
        if {"parallel", "meki"} <= set(composite()):
            b = Broken(parallel(glu(5), meki(3, gate_input="residual")))
            self.refuse_input("residual for branch 1 missing", b, {}, ("residual",), ["residual"])
        if {"parallel", "ple"} <= set(composite()):
            b = Broken(parallel(glu(5), ple(3, False)))
            self.refuse_input("per_layer_input for branch 1 missing", b, {}, ("per_layer_input",), ["per_layer_input"])
