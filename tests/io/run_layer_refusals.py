"""run_layer on bad layers and inputs of the blocks that are not dense."""

import numpy as np

from run_layer_cases import TreeCase, kinds, ramp
from run_layer_composite import engram, glu, hash_moe, l3, longcat, meki, mlp, moe, mort, parallel, peer, ple
from run_layer_composite import product_keys, retoken, structmoe
from run_layer_files import file_of
from run_layer_harness import RefusalTest, Settings, composite, write
from run_layer_reference import BLOCKS

D, V, T = 4, 7, 4
OPTIONAL = ("router.selection_bias", "word_norm.weight", ".bias")
MAPS = ("hash_map", "ranges")  # tensors of integers
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
    yield "product_keys", product_keys(2, 3, 5, 2, biases=("query",))
    yield "product_keys plus", product_keys(2, 3, 5, 2, f=6, activation="gelu", biases=("gate", "down"))
    yield "peer", peer(2, 3, 5, 2)
    yield "l3", l3(9, 5, 6, biases=("up_proj", "mix_memory", "mix_input"))
    yield "engram", engram(6)
    yield "engram", engram(5, biases=("key", "value"))
    yield "longcat_embedding", longcat(6, 3)
    yield "longcat_embedding", longcat(5, 2, biases=("ngram",))
    yield "parallel", parallel(glu(5), meki(3, "static"))
    yield "parallel", parallel(parallel(mlp(5), glu(6)), glu(3))
    yield "parallel", parallel(engram(6), retoken(longcat(6)))


class Broken:
    """A sound case, to be changed."""

    def __init__(self, spec):
        case = TreeCase(spec, (D, V, T))
        self.case, self.spec = case, spec
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
                if kind == "product_keys plus" and name in ("gate_proj.weight", "down_proj.weight"):
                    # half of a form, or what is left is of no use in the other
                    others = ("gate_proj.weight", "down_proj.weight", "values.weight", "activation", "gate_proj.bias")
                if name == "branch.1.memory.weight":
                    others += ("branch.1.word_embed.weight",)
                self.refuse("%s without %s" % (kind, name), b, any_of=others, remove=[name])

    def test_biases(self):
        """The weights that the page gives a bias have one; beside any other tensor it is unused."""
        dense = ("_proj.weight", "query.weight", "mix_memory.weight", "mix_input.weight", "per_layer_model_projection.weight")
        for kind, b in self.small():
            for name, (a, _) in list(b.tensors.items()):
                bias = name.replace(".weight", "") + ".bias"
                if bias in b.tensors or not np.ndim(a):
                    continue
                tensors = {bias: (ramp(np.shape(a)[0]), "F32")}
                if not name.endswith(dense):
                    self.refuse("%s with %s" % (kind, bias), b, (bias,), tensors=tensors)
                    continue
                case = TreeCase(b.spec, (D, V, T))
                before = case.outputs["y"].v
                case.tensors.update(tensors)
                case.expect()
                if not name.startswith("experts."):  # one of those may have been chosen by nobody
                    self.assertTrue((case.outputs["y"].v != before).any(), bias)
                self.each([case])

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
            if kind.startswith(("product_keys", "peer", "l3")):
                names = ("keys.bias", "values.bias", "router.weight", "norm.bias", "up_embed.bias", "selection_bias")
                names += ("values.bias",) if kind == "peer" else ("down_embed.weight",)
                names += ("query.weight", "query.bias") if kind == "l3" else ("norm.weight", "mix_input.weight")
                names += ("gate_proj.bias", "down_proj.bias") if kind != "product_keys plus" else ()
                extra.update({name: ramp(9, D) if name.endswith("weight") else ramp(D) for name in names})
                if kind != "l3":
                    self.refuse("%s with ranges" % kind, b, ("ranges",), tensors={"ranges": (np.zeros((V, 2)), "I64")})
            if kind in ("engram", "longcat_embedding"):
                names = ("conv.weight", "query_proj.weight", "value_norm.weight", "gate_proj.weight", "memory.weight")
                if kind == "engram":
                    names += ("key_norm.bias", "query_norm.bias", "word_embed.weight", "ngram_proj.weight")
                else:
                    names += ("word_embed.bias", "key_proj.weight", "key_norm.weight", "norm.weight")
                extra.update({name: ramp(D, 6) if name.endswith("proj.weight") else ramp(D) for name in names})
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
                names = tuple(b.tensors) + ("num_experts", "per_layer_input")
                if a.ndim:
                    wrong = np.concatenate([a, a[..., :1]], -1)  # the last dimension is d, or known from elsewhere
                    if name == "hash_map":
                        wrong = a[:, :, None]
                    if kind == "longcat_embedding" and name == "ngram_proj.weight":
                        # sound by itself, and not what the call brings
                        layer, words = b.layer(tensors={name: (wrong, dtype)}), ("per_layer_input", str(wrong.shape[1]))
                        self.bad("%s: %s wider" % (kind, name), layer, file_of(b.inputs), "input", words)
                    else:
                        what = "%s: %s of shape %s" % (kind, name, wrong.shape)
                        self.refuse(what, b, any_of=names, tensors={name: (wrong, dtype)})
                    empty = a[:0]
                    self.refuse("%s: %s empty" % (kind, name), b, any_of=names, tensors={name: (empty, dtype)})
                rank = np.stack([a, a]) if a.ndim != 1 or name not in MAPS else a[:, None, None]
                self.refuse("%s: %s of rank %d" % (kind, name, rank.ndim), b, (name,), tensors={name: (rank, dtype)})
                if name in MAPS:
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
            if kind in ("product_keys", "peer"):
                values["top_k"] = counts + ("4", "9")  # three keys, nine rows
            if kind == "peer" or "activation" in b.metadata:
                values["activation"] = ("swoosh", "")
            if kind in ("l3", "engram"):
                values["eps"] = numbers
            if kind == "longcat_embedding":
                values["terms"] = counts[:-1]
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
            if kind.startswith(("product_keys", "peer")):
                self.refuse("%s without top_k" % kind, b, ("top_k",), remove=["top_k"])
            if kind == "longcat_embedding":
                self.refuse("%s without terms" % kind, b, ("terms",), remove=["terms"])
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

    # --- rows that are chosen by keys, rows of a range

    def test_row_options_of_other_blocks(self):
        for kind, b in self.small("product_keys", "peer", "l3"):
            keys = {"product_keys": ("activation", "eps"), "product_keys plus": ("eps",), "peer": ("eps",)}
            values = {"activation": "silu", "eps": "1e-5", "router_order": "softmax_topk", "folded": "false"}
            for key in keys.get(kind, ("activation", "top_k")) + ("router_order", "num_experts", "folded", "heads"):
                value = values.get(key, "2")
                self.refuse("%s: option %s" % (kind, key), b, (key,), metadata={key: value})

    def test_row_counts(self):
        """2 heads, so 4 groups, of 3 keys of 5 numbers each; 9 rows; d is 4."""
        for kind, b in self.small("product_keys", "peer"):
            for k in ("4", "9", "1000"):
                self.refuse("%s: top_k %s of 3" % (kind, k), b, ("top_k", k, "3"), metadata={"top_k": k})
            for groups in (1, 3):
                # the query is that of so many groups, so that nothing else is wrong
                tensors = {"keys.weight": (ramp(groups, 3, 5), "F32"), "query.weight": (ramp(groups * 5, D), "F32")}
                if "query.bias" in b.tensors:
                    tensors["query.bias"] = (ramp(groups * 5), "F32")
                self.refuse("%s: %d groups of keys" % (kind, groups), b, ("keys.weight", str(groups)), tensors=tensors)
            for rows in (19, 21, 10, 40, 5, 4):
                tensors = {"query.weight": (ramp(rows, D), "F32")}
                if "query.bias" in b.tensors:
                    tensors["query.bias"] = (ramp(rows), "F32")
                what = "%s: query of %d numbers for 4 groups of 5" % (kind, rows)
                self.refuse(what, b, (str(rows),), ("query.weight", "keys.weight"), tensors=tensors)
            for name in ("values.weight", "down_embed.weight", "up_embed.weight"):
                if name in b.tensors:
                    width = b.tensors[name][0].shape[1]
                    for rows in (8, 10, 3, 6, 18, 1):
                        what = "%s: %s of %d rows for 3 x 3 keys" % (kind, name, rows)
                        self.refuse(what, b, (name, str(rows)), tensors={name: (ramp(rows, width), "F32")})
            # of one key more, all else as it was
            a = ramp(4, 4, 5)
            names = ("keys.weight",) + tuple(n for n in b.tensors if n.startswith(("values", "up_embed", "down_embed")))
            self.refuse("%s: 4 keys for 9 rows" % kind, b, any_of=names, tensors={"keys.weight": (a, "F32")})
        if {"product_keys", "peer", "retoken", "parallel"} <= set(composite()):
            b = Broken(parallel(glu(5), retoken(product_keys(2, 3, 5, 2)), peer(1, 3, 5, 2)))
            for prefix, k in (("branch.1.base.", "7"), ("branch.2.", "5")):
                self.refuse("nested: top_k", b, (prefix + "top_k", k, "3"), metadata={prefix + "top_k": k})
                self.refuse("nested: no top_k", b, (prefix + "top_k",), remove=[prefix + "top_k"])
                odd = {prefix + "keys.weight": (ramp(3, 3, 5), "F32"), prefix + "query.weight": (ramp(15, D), "F32")}
                self.refuse("nested: 3 groups", b, (prefix + "keys.weight", "3"), tensors=odd)

    def test_a_form_that_is_not_whole(self):
        for kind, b in self.small("product_keys"):
            both = {"gate_proj.weight": (ramp(D, D), "F32"), "down_proj.weight": (ramp(D, D), "F32")}
            if kind == "product_keys":
                for name in both:  # f is d: one is missing, or there is one too many
                    self.refuse("plain with " + name, b, any_of=tuple(both), tensors={name: both[name]})
            else:
                wide = {"values.weight": (ramp(9, D), "F32")}
                self.refuse("Memory+ with values of width d", b, any_of=tuple(b.tensors), tensors=wide)
                names = ("values.weight", "activation", "gate_proj.bias", "down_proj.bias")
                self.refuse("Memory+ without its matrices", b, any_of=names, remove=list(both))

    def test_ranges(self):
        for kind, b in self.small("l3"):
            a, rows = np.array(b.tensors["ranges"][0]), len(b.tensors["keys.weight"][0])
            wrong = [(0, rows + 1), (rows, rows + 1), (rows + 1, rows + 1), (5, 4), (rows, 0)]
            wrong += [(-1, 3), (-2, -1), (0, -1), (0, 2**31 - 1), (2**31 - 1, 2**31 - 1), (-(2**31), 0), (0, -(2**31))]
            for place in (0, V - 1):
                for i, pair in enumerate(wrong):
                    for dtype in ("I64", "I32"):
                        ranges = a.copy()
                        ranges[place] = pair
                        what = "ranges[%d] = %s of %d rows, as %s" % (place, pair, rows, dtype)
                        names = ("ranges",) + tuple(str(n) for n in pair if n)
                        self.refuse(what, b, names, tensors={"ranges": (ranges, dtype)})
            low, high = -(2**63), 2**63 - 1
            for pair in ((0, 2**32 + 1), (2**32, 2**32 + 3), (low, 3), (3, high), (high, low), (low, high)):
                ranges = a.copy()
                ranges[3] = pair
                self.refuse("ranges[3] = %s" % (pair,), b, ("ranges",), tensors={"ranges": (ranges, "I64")})
            for shape in ((V, 3), (V, 1), (V,), (2,), (V, 2, 1), (2, V), (1, V, 2), (), (V, 0), (0, 2)):
                for dtype in ("I64", "I32"):
                    ranges = np.zeros(shape, int)
                    self.refuse("ranges of shape %s" % (shape,), b, ("ranges",), tensors={"ranges": (ranges, dtype)})
            for dtype in ("F32", "F16", "BF16", "F64", "U8"):
                self.refuse("ranges as " + dtype, b, ("ranges",), tensors={"ranges": (a, dtype)})
            short = Broken(l3(9, 5, 6))
            short.tensors["ranges"] = (short.tensors["ranges"][0][:6], "I64")  # the input has the id 6
            self.refuse_input("ranges too short", short, {}, ("token_ids", "6"))
            # of rows there is one less than the ranges say
            less = {name: (b.tensors[name][0][:-1], "F32") for name in ("keys.weight", "values.weight")}
            self.refuse("a row less", b, ("ranges", str(rows), str(rows - 1)), tensors=less)
            for name in less:
                self.refuse("%s: a row less" % name, b, any_of=tuple(less), tensors={name: less[name]})
        if {"l3", "retoken"} <= set(composite()):
            b = Broken(retoken(l3(9, 5, 6)))
            ranges = np.array(b.tensors["base.ranges"][0])
            ranges[2] = 7, 23
            self.refuse("nested: ranges", b, ("base.ranges", "23"), tensors={"base.ranges": (ranges, "I64")})

    # --- rows of the last ids, which the call brings

    def test_options_of_other_blocks_on_given_rows(self):
        for kind, b in self.small("engram", "longcat_embedding"):
            values = {"activation": "silu", "top_k": "1", "folded": "false", "norm": "rms", "gate_input": "residual"}
            values.update({"terms": "2"} if kind == "engram" else {"eps": "1e-5"})
            for key, value in values.items():
                self.refuse("%s: option %s" % (kind, key), b, (key,), metadata={key: value})

    def test_shapes_of_given_rows(self):
        """d is 4; of each tensor a row more and a row less, and a column less, the others as they were."""
        for kind, b in self.small("engram", "longcat_embedding"):
            for name, (a, dtype) in b.tensors.items():
                changes = {"a row more": np.concatenate([a, a[:1]]), "a row less": a[:-1]}
                if a.ndim == 2 and name != "ngram_proj.weight":
                    changes["a column less"] = a[:, :-1]
                for what, wrong in changes.items():
                    if name != "word_embed.weight" or wrong.shape[1] != D:  # another V is as good
                        given, names = {name: (wrong, dtype)}, tuple(b.tensors) + ("per_layer_input",)
                        self.refuse("%s: %s with %s" % (kind, name, what), b, any_of=names, tensors=given)
                flat = (a.size,) if a.ndim == 2 else (1, a.size)
                for shape in ((1,) + a.shape, a.shape + (1,), a.shape[::-1] + (1,), flat):
                    given = {name: (np.reshape(a, shape), dtype)}
                    self.refuse("%s: %s of shape %s" % (kind, name, shape), b, (name,), tensors=given)
        for kind, b in self.small("longcat_embedding"):
            short = Broken(b.case.spec)
            short.tensors["word_embed.weight"] = (short.tensors["word_embed.weight"][0][:6], "F32")
            self.refuse_input("word_embed too short", short, {}, ("token_ids", "6"))

    def test_given_rows_of_two_widths(self):
        """Parts that read per_layer_input read the same one, so their widths agree."""
        specs = [(engram(6), longcat(5)), (engram(6), engram(7)), (longcat(5), longcat(6))]
        specs += [(engram(6), retoken(longcat(7))), (parallel(glu(5), engram(6)), longcat(5))]
        specs += [(engram(6), ple(5, False)), (mort(mlp(5), 0), longcat(6)), (longcat(3), retoken(mort(glu(5), 0)))]
        for pair in specs:
            if kinds(parallel(*pair)) <= set(Settings.blocks) | set(BLOCKS):
                # each branch is sound by itself
                tensors, metadata = {}, {"block": "parallel", "branches": "2"}
                for i, spec in enumerate(pair):
                    case = TreeCase(spec, (D, V, T))
                    tensors.update({"branch.%d.%s" % (i, name): a for name, a in case.tensors.items()})
                    metadata.update({"branch.%d.%s" % (i, key): value for key, value in case.metadata.items()})
                    inputs = dict(case.inputs, token_ids=(np.array([0, 6, 3, 3]), "I64"))
                names = tuple(tensors) + ("per_layer_input",)
                self.bad("two widths", file_of(tensors, metadata), file_of(inputs), "layer", any_of=names)

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
            if kind in ("moe", "structmoe", "structmoe down", "ple given", "product_keys", "product_keys plus", "peer"):
                continue
            if kind == "engram":
                continue
            if kind == "parallel" and not any(n.endswith(("memory.weight", "word_embed.weight")) for n in b.tensors):
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
        for spec in (engram(3), longcat(3)):
            if {"parallel", "retoken", spec["block"]} <= set(composite()):
                for outer in (retoken(spec), parallel(glu(5), spec), parallel(glu(5), retoken(spec))):
                    b = Broken(outer)
                    self.refuse_input("per_layer_input missing", b, {}, ("per_layer_input",), ["per_layer_input"])
                    wide = {"per_layer_input": (ramp(T, D), "F32")}
                    self.refuse_input("per_layer_input of width d", b, wide, ("per_layer_input", str(D)))
        if {"parallel", "retoken", "longcat_embedding"} <= set(composite()):
            b = Broken(parallel(glu(5), retoken(longcat(3))))
            for value in ("0", "x"):
                key = "branch.1.base.terms"
                self.refuse("nested: terms = " + value, b, (key, value), metadata={key: value})
            self.refuse("nested: no terms", b, (key,), remove=[key])
