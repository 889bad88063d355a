"""Checks of the numpy reference itself, without a tool: identities that docs/layers.md implies."""

import itertools
import json
import math
import os
import struct
import unittest

import numpy as np

from run_layer_cases import TreeCase
from run_layer_composite import dense, engram, glu, hash_moe, l3, longcat, meki, mlp, moe, mort, one_of_each, parallel
from run_layer_composite import peer, ple, product_keys, retoken, structmoe
from run_layer_files import decode, dequantised, file_of, parse, quantised
from run_layer_reference import MEKI_FUSIONS, ORDERS, STRUCT_FUSIONS, Layer, Refused


def printable(text):
    """`text` in ASCII that a terminal does not obey, at most 2,000 characters of it."""
    plain = "".join(c if " " <= c <= "~" else "\\u{%x}" % ord(c) for c in text[:2000])
    return plain if len(plain) <= 2000 and len(text) <= 2000 else plain[:2000] + " ..."


def tool(arguments):
    """run_layer, played by the reference: (status, stdout, stderr)."""
    files = dict(zip(("layer", "input", "output"), arguments))
    content = {}
    try:
        for which in ("layer", "input"):
            if os.path.exists(files["output"]) and os.path.samefile(files["output"], files[which]):
                raise Refused("is %s as well" % which.upper(), "output")
            with open(files[which], "rb") as file:
                raw = file.read()
            try:
                content[which] = {n: (decode(data, t, shape), t) for n, (t, shape, data) in parse(raw).items()}
            except ValueError as error:
                raise Refused(str(error), which)
            if which == "layer":
                size = struct.unpack("<Q", raw[:8])[0]
                metadata = json.loads(raw[8 : 8 + size]).get("__metadata__", {})
        y, route, _ = Layer(content["layer"], metadata).run(content["input"])
    except Refused as error:
        return 1, b"", ("%s: %s\n" % (files[error.file], printable(str(error)))).encode()
    result = {"y": (y.v, "F32")}
    if route:
        result["route"], result["route_weight"] = (route[0], "I64"), (route[1].v, "F32")
    with open(files["output"], "wb") as file:
        file.write(file_of(result))
    return 0, b"", b""


def case_of(spec, size=(6, 7, 9), **options):
    return TreeCase(spec, size, **options)


def run(tensors, metadata, case):
    y, route, _ = Layer(tensors, metadata).run(case.inputs)
    return y.v, route


def under(prefix, tensors):
    return {n[len(prefix) :]: t for n, t in tensors.items() if n.startswith(prefix)}


class Reference(unittest.TestCase):
    def same(self, a, b, what=""):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12, err_msg=str(what))

    def plain(self, case, prefix, spec):
        """y of the nested block `prefix` of the case."""
        options = {k: v for k, v in spec.items() if k in ("block", "activation")}
        return run(under(prefix, case.tensors), options, case)[0]

    def test_one_expert_is_the_expert(self):
        for i in range(5):
            for order in ORDERS:
                case = case_of(moe(1, 1, dense(5, i), router_order=order))
                weight = case.route[1].v
                expected = self.plain(case, "experts.0.", dense(5, i))
                self.same(weight, 1.0)  # in every order
                self.same(case.outputs["y"].v, expected, case)
            case = case_of(hash_moe(1, 1, dense(5, i)))
            self.same(case.outputs["y"].v, self.plain(case, "experts.0.", dense(5, i)))

    def test_moe_by_token(self):
        """Token by token in plain Python."""
        for order in ORDERS:
            for bias in (False, True):
                case = case_of(moe(5, 3, mlp(5), router_order=order, bias=bias, shared=glu(4)))
                router = case.tensors["router.weight"][0].astype(float)
                extra = case.tensors["router.selection_bias"][0].astype(float) if bias else np.zeros(5)
                experts = [self.plain(case, "experts.%d." % e, mlp(5)) for e in range(5)]
                y = self.plain(case, "shared.", glu(4))
                for t, x in enumerate(case.inputs["x"][0].astype(float)):
                    g = router @ x
                    p = 1 / (1 + np.exp(-g)) if order[0] == "s" and order[1] == "i" else np.exp(g) / np.exp(g).sum()
                    seen = (g if order == "topk_softmax" else p) + extra
                    best = sorted(range(5), key=lambda e: (-seen[e], e))[:3]
                    w = {e: p[e] for e in best}
                    if order != "softmax_topk":  # softmax over the selected = softmax over all, renormalised
                        w = {e: p[e] / sum(w.values()) for e in best}
                    y[t] += sum(w[e] * experts[e][t] for e in best)
                    self.assertEqual(case.route[0][t].tolist(), best)
                    self.same(case.route[1].v[t], [w[e] for e in best])
                self.same(case.outputs["y"].v, y, case)

    def test_ties_go_to_the_lower_index(self):
        for order in ORDERS:
            case = case_of(moe(5, 3, mlp(5), router_order=order), ties="all")
            self.assertTrue((case.route[0] == [0, 1, 2]).all())

    def test_hash_maps(self):
        case = case_of(hash_moe(4, None, mlp(5)))
        table = case.tensors["hash_map"][0]
        y, route = run(dict(case.tensors, hash_map=(table[:, None], "I32")), case.metadata, case)
        self.same(case.outputs["y"].v, y)
        experts = [self.plain(case, "experts.%d." % e, mlp(5)) for e in range(4)]
        for t, i in enumerate(case.inputs["token_ids"][0]):
            self.assertEqual(route[0][t].tolist(), [table[i]])
            self.same(y[t], experts[table[i]][t])

    def test_structmoe_by_full_matrices(self):
        """With A_l B_l formed: one expert is an mlp or a glu of the sum or the product."""
        for fusion in STRUCT_FUSIONS:
            for count, k in ((1, 1), (4, 2)):
                case = case_of(structmoe(5, count, 2, k, fusion=fusion, activation="silu"))
                w = {n: a.astype(float) for n, (a, _) in case.tensors.items()}
                for t, x in enumerate(case.inputs["x"][0].astype(float)):
                    s = np.exp(w["router.weight"] @ x)
                    s /= s.sum()
                    delta = sum(s[i] * (w["lore_b.weight"][i] @ w["lore_a.weight"][i]) @ x for i in np.argsort(-s)[:k])
                    z = w["up_proj.weight"] @ x
                    silu = lambda v: v / (1 + np.exp(-v))
                    h = {"additive": silu(z + delta), "gated": silu(z) * delta, "post_activation": silu(z) + delta}[fusion]
                    self.same(case.outputs["y"].v[t], w["down_proj.weight"] @ h)

    def test_structmoe_down_by_full_matrices(self):
        """Each expert is a matrix (d,f) that is added to the down projection's."""
        for count, k in ((1, 1), (4, 2)):
            case = case_of(structmoe(5, count, 2, k, placement="down", activation="silu", biases=("up", "down")))
            w = {n: a.astype(float) for n, (a, _) in case.tensors.items()}
            for t, x in enumerate(case.inputs["x"][0].astype(float)):
                z = w["up_proj.weight"] @ x + w["up_proj.bias"]
                h = z / (1 + np.exp(-z))
                s = np.exp(w["router.weight"] @ h)
                s /= s.sum()
                best = np.argsort(-s)[:k]
                matrix = w["down_proj.weight"] + sum(s[i] * w["lore_b.weight"][i] @ w["lore_a.weight"][i] for i in best)
                self.same(case.outputs["y"].v[t], matrix @ h + w["down_proj.bias"])
                self.assertEqual(case.route[0][t].tolist(), best.tolist())
                self.same(case.route[1].v[t], s[best])

    def test_options_that_say_the_default(self):
        for spec, key, value in (
            (structmoe(5, 4, 2, 2), "placement", "up"),
            (structmoe(5, 4, 2, 2, placement="down"), "fusion", "additive"),
            (hash_moe(4, 3, mlp(5)), "top_k", "3"),
            (hash_moe(4, None, mlp(5)), "top_k", "1"),
            (ple(4), "folded", "false"),
            (ple(4), "folded", "true"),  # the rows are p in both
            (ple(4, "full"), "folded", "false"),
        ):
            case = case_of(spec)
            self.assertNotIn(key, case.metadata)
            self.same(run(case.tensors, dict(case.metadata, **{key: value}), case)[0], case.outputs["y"].v, spec)

    def test_meki_forms(self):
        for fusion, linear in itertools.product(MEKI_FUSIONS, (False, True)):
            for norm in (False, True):
                case = case_of(meki(4, fusion=fusion, word_norm=norm, eps="0.5", gate_input="residual", linear=linear))
                t = {n: a.astype(float) for n, (a, _) in case.tensors.items()}
                table = t["word_embed.weight"]
                if norm:
                    table = table / np.sqrt((table**2).mean(1, keepdims=True) + 0.5) * t["word_norm.weight"]
                if linear:
                    g = table @ t["word_proj.weight"].T
                else:
                    z = table @ t["word_proj.gate_proj.weight"].T
                    g = (z / (1 + np.exp(-z)) * (table @ t["word_proj.up_proj.weight"].T)) @ t["word_proj.down_proj.weight"].T

                def folded(memory, drop):
                    m = memory / np.sqrt((memory**2).mean(1, keepdims=True) + 0.5) * t["mix_norm.weight"] * t["alpha"]
                    tensors = {n: case.tensors[n] for n in ("gate_proj.weight", "out_proj.weight", "post_norm.weight")}
                    y = run(dict(tensors, **{"memory.weight": (m, "F32")}), dict(case.metadata, folded="true"), case)[0]
                    rest = {n: a for n, a in case.tensors.items() if not n.startswith(drop)} if drop else case.tensors
                    # the folded table is stored as float32
                    np.testing.assert_allclose(y, run(rest, case.metadata, case)[0], rtol=1e-5, atol=1e-6)

                folded(t["memory.weight"] + t["beta"] * g, None)
                folded(t["memory.weight"], ("word_", "beta"))
                folded(t["beta"] * g, "memory")

    def test_ple_with_the_table_given(self):
        case = case_of(ple(4))
        rows = case.tensors["memory.weight"][0]
        tensors = {n: a for n, a in case.tensors.items() if n != "memory.weight"}
        case.inputs["per_layer_input"] = (rows[case.inputs["token_ids"][0]], "F32")
        self.same(case.outputs["y"].v, run(tensors, case.metadata, case)[0])

    def test_full_ple(self):
        """p by the formula, as a folded table and as p that is given."""
        for options in ({}, {"eps": "0.5"}):
            case = case_of(ple(4, "full", **options))
            t = {n: a.astype(float) for n, (a, _) in case.tensors.items()}
            z = t["word_embed.weight"] / math.sqrt(6) @ t["per_layer_model_projection.weight"].T
            z = z / np.sqrt((z**2).mean(1, keepdims=True) + float(options.get("eps", 1e-6)))
            p = (z * t["per_layer_projection_norm.weight"] + 2 * t["memory.weight"]) / math.sqrt(2)
            tensors = {n: case.tensors[n] for n in ("gate_proj.weight", "out_proj.weight", "post_norm.weight")}
            folded = run(dict(tensors, **{"memory.weight": (p, "F32")}), dict(case.metadata, folded="true"), case)[0]
            np.testing.assert_allclose(folded, case.outputs["y"].v, rtol=1e-5, atol=1e-6)
            case.inputs["per_layer_input"] = (p[case.inputs["token_ids"][0]], "F32")
            self.same(run(tensors, case.metadata, case)[0], case.outputs["y"].v)

    def test_blocks_by_hand(self):
        """Number by number, from the bytes."""
        raw = bytes([0x00, 0xB8] + [16 * (i % 13) + i for i in range(16)])  # d = -1/2
        q4 = dequantised(np.frombuffer(raw, np.uint8)[None], "q4_0")[0]
        self.assertEqual(q4.tolist(), [-0.5 * (i - 8) for i in range(16)] + [-0.5 * (i % 13 - 8) for i in range(16)])
        levels = [-128, 127, -1, 0] + list(range(-14, 14))
        raw = bytes([0x00, 0x34] + [n % 256 for n in levels])  # d = 1/4
        q8 = dequantised(np.frombuffer(raw, np.uint8)[None], "q8_0")[0]
        self.assertEqual(q8.tolist(), [0.25 * n for n in levels])

    def test_blocks_are_near_what_they_stand_for(self):
        rng = np.random.default_rng(2)
        a = rng.normal(size=(3, 5, 96)).astype(np.float32)
        for form, size, step in (("q8_0", 34, 1 / 254), ("q4_0", 18, 1 / 8)):
            raw = quantised(a, form)
            self.assertEqual((raw.shape, raw.dtype), ((3, 5, 3 * size), np.uint8))
            error = np.abs(dequantised(raw, form) - a).reshape(3, 5, 3, 32)
            largest = np.abs(a).reshape(3, 5, 3, 32).max(-1, keepdims=True)
            # q8_0: half a step; q4_0: half of one, and a whole one at the end that has no level; and the scale's rounding
            self.assertTrue((error <= largest * (step + 2e-3)).all(), form)
            self.assertGreater((error / largest).max(), 0.8 * step)
            self.assertTrue((dequantised(quantised(dequantised(raw, form), form), form) == dequantised(raw, form)).all())

    def test_retoken(self):
        case = case_of(retoken(glu(5)))
        y = self.plain(case, "base.", glu(5))
        e, s = (case.tensors[n][0].astype(float) for n in ("modulators.weight", "scale"))
        p = 1 + s * e / (np.sqrt((e**2).sum(1, keepdims=True)) + 1e-6)
        self.same(case.outputs["y"].v, y * p[case.inputs["token_ids"][0]])
        tensors = dict(case.tensors, **{"modulators.weight": (p, "F32")})
        del tensors["scale"]
        got = run(tensors, dict(case.metadata, folded="true"), case)[0]
        np.testing.assert_allclose(got, case.outputs["y"].v, rtol=1e-5, atol=1e-6)

    def test_mort(self):
        case = case_of(mort(glu(5), 4, 2, num_layers=3, norm="rms", eps="0.5"))
        t = {n: a.astype(float) for n, (a, _) in case.tensors.items()}
        y = self.plain(case, "base.", glu(5))
        for i, x in enumerate(case.inputs["x"][0].astype(float)):
            g = t["router.weight"] @ x
            best = np.argsort(-g)[:2]
            w = 1 / (1 + np.exp(-g[best]))
            e = (w / w.sum()) @ t["modulators.weight"][best, case.inputs["token_ids"][0][i]]
            y[i] += t["scale"] * e / np.sqrt((e**2).mean() + 0.5) / np.sqrt(6)
        self.same(case.outputs["y"].v, y)

    def best_pairs(self, t, x, k):
        """[(row, weight)] of each head, by all pairs in plain Python."""
        groups, n, c = t["keys.weight"].shape
        q = t["query.weight"] @ x + t.get("query.bias", 0)
        for g in range(0, groups, 2):
            one, two = ([float(q[h * c : (h + 1) * c] @ key) for key in t["keys.weight"][h]] for h in (g, g + 1))
            pairs = [(one[i] + two[j], n * i + j) for i in range(n) for j in range(n)]
            best = sorted(pairs, key=lambda p: (-p[0], p[1]))[:k]
            size = sum(math.exp(s) for s, _ in best)
            yield [(row, math.exp(s) / size) for s, row in best]

    def rows_by_token(self, case, of_row, expected_weights, finish=lambda t, x, o: o):
        t = {n: a.astype(float) for n, (a, _) in case.tensors.items()}
        for i, x in enumerate(case.inputs["x"][0].astype(float)):
            best = [p for head in self.best_pairs(t, x, case.spec["k"]) for p in head]
            self.assertEqual(case.route[0][i].tolist(), [row for row, _ in best])
            self.same(case.route[1].v[i], [expected_weights(t, x, row, w) for row, w in best])
            self.same(case.outputs["y"].v[i], finish(t, x, sum(of_row(t, x, row, w) for row, w in best)), case)

    def test_product_keys_by_token(self):
        for heads, n, c, k in ((1, 2, 1, 2), (2, 5, 3, 3), (3, 4, 5, 1), (2, 3, 4, 3)):
            for biases in ((), ("query", "gate", "down")):
                case = case_of(product_keys(heads, n, c, k, biases=biases))
                rows = lambda t, x, row, w: w * t["values.weight"][row]
                self.rows_by_token(case, rows, lambda t, x, row, w: w)

                def plus(t, x, o):
                    z = t["gate_proj.weight"] @ x + t.get("gate_proj.bias", 0)
                    return t["down_proj.weight"] @ (z / (1 + np.exp(-z)) * o) + t.get("down_proj.bias", 0)

                case = case_of(product_keys(heads, n, c, k, f=7, biases=biases))
                self.rows_by_token(case, rows, lambda t, x, row, w: w, plus)

                gelu = lambda z: z / 2 * (1 + math.erf(z / math.sqrt(2)))
                weight = lambda t, x, row, w: w * gelu(float(t["down_embed.weight"][row] @ x))
                rows = lambda t, x, row, w: weight(t, x, row, w) * t["up_embed.weight"][row]
                self.rows_by_token(case_of(peer(heads, n, c, k, biases=biases)), rows, weight)

    def test_rows_of_equal_keys(self):
        """The lower row, though the sums of all are the same."""
        for spec in (product_keys(2, 3, 5, 3), peer(2, 3, 5, 3), product_keys(2, 3, 5, 3, f=7)):
            for options in ({"ties": "all"}, {}):
                case = case_of(dict(spec, same=(0, 0, 0)), **options)
                self.assertTrue((case.route[0] == [0, 1, 2, 0, 1, 2]).all())
                if spec["block"] == "product_keys":
                    self.same(case.route[1].v, 1 / 3)

    def test_heads_that_agree(self):
        """Two equal heads give twice what one gives, from the same rows."""
        one = case_of(product_keys(1, 3, 5, 2))
        tensors = dict(one.tensors)
        for name in ("query.weight", "keys.weight"):
            tensors[name] = (np.concatenate([tensors[name][0]] * 2), "F32")
        y, route = run(tensors, one.metadata, one)
        self.same(y, 2 * one.outputs["y"].v)
        self.assertEqual(route[0].tolist(), np.tile(one.route[0], 2).tolist())

    def test_l3_by_token(self):
        for biases in ((), ("up_proj", "mix_memory", "mix_input")):
            for options in ({}, {"eps": "0.5"}, {"ranges": ((3, 3), (0, 0))}, {"ranges": ((3, 3), (2, 3))}):
                case = case_of(l3(9, 4, 5, biases=biases, **options))
                t = {n: a.astype(float) for n, (a, d) in case.tensors.items() if n != "ranges"}
                ranges = case.tensors["ranges"][0]
                longest = max(1, max(e - b for b, e in ranges))
                for i, x in enumerate(case.inputs["x"][0].astype(float)):
                    b, e = ranges[case.inputs["token_ids"][0][i]]
                    s = [math.exp(t["keys.weight"][r] @ x) for r in range(b, e)]
                    v = sum((p / sum(s) * t["values.weight"][r] for p, r in zip(s, range(b, e))), np.zeros(4))
                    u = t["up_proj.weight"] @ v + t.get("up_proj.bias", 0)
                    u = u / np.sqrt(np.mean(u**2) + float(options.get("eps", 1e-5))) * t["norm.weight"]
                    y = t["mix_input.weight"] @ x + t["mix_memory.weight"] @ u
                    y = y + t.get("mix_input.bias", 0) + t.get("mix_memory.bias", 0)
                    self.same(case.outputs["y"].v[i], y, case)
                    self.assertEqual(case.route[0][i].tolist(), list(range(b, e)) + [-1] * (longest - e + b))
                    self.same(case.route[1].v[i], [p / sum(s) for p in s] + [0] * (longest - e + b))

    def test_engram_by_token(self):
        for c in (1, 5, 9):
            for biases in ((), ("key",), ("value",), ("key", "value")):
                for options in ({}, {"eps": "0.5"}, {"eps": "0"}):
                    case = case_of(engram(c, biases=biases, **options))
                    t = {n: a.astype(float) for n, (a, _) in case.tensors.items()}
                    eps = float(options.get("eps", 1e-5))
                    unit = lambda v: v / math.sqrt(sum(n * n for n in v) / 6 + eps)
                    for i, x in enumerate(case.inputs["x"][0].astype(float)):
                        e = case.inputs["per_layer_input"][0][i].astype(float)
                        k = unit(t["key_proj.weight"] @ e + t.get("key_proj.bias", 0)) * t["key_norm.weight"]
                        g = float(k @ (unit(x) * t["query_norm.weight"])) / math.sqrt(6)
                        gate = 1 / (1 + math.exp(-math.copysign(math.sqrt(max(abs(g), 1e-6)), g)))
                        y = gate * (t["value_proj.weight"] @ e + t.get("value_proj.bias", 0))
                        self.same(case.outputs["y"].v[i], y, case)

    def test_engram_gates(self):
        """Gates of g and -g add up to 1; without eps the sizes of x and of what is given do not change the gate."""
        case = case_of(engram(5, eps="0"))
        y = case.outputs["y"].v

        def changed(**by):
            tensors, inputs = dict(case.tensors), dict(case.inputs)
            for name, factor in by.items():
                of = inputs if name in inputs else tensors
                name = name if name in inputs else name + ".weight"
                of[name] = (of[name][0] * np.float32(factor), "F32")
            return Layer(tensors, case.metadata).run(inputs)[0].v

        value = case.inputs["per_layer_input"][0] @ case.tensors["value_proj.weight"][0].T.astype(float)
        for name in ("x", "key_proj", "key_norm", "query_norm"):
            self.same(changed(**{name: -1}), value - y)
        self.same(changed(x=-1, key_norm=-1), y)
        self.same(changed(x=8), y)
        self.same(changed(key_proj=0.25), y)
        self.same(changed(per_layer_input=4), 4 * y)
        self.same(changed(key_norm=0), value / 2)
        self.same(changed(query_norm=0), value / 2)
        # below 1e-6 all gates are one of two
        small = changed(key_norm=2.0**-40) / value
        up, down = 1 / (1 + math.exp(-1e-3)), 1 / (1 + math.exp(1e-3))
        self.same(np.where(y / value > 0.5, up, down), small)
        # and of large ones too
        self.same(np.where(y / value > 0.5, 1.0, 0.0), changed(key_norm=2.0**40) / value)

    def test_longcat_by_token(self):
        for c, terms, biases in ((1, 1, ()), (5, 3, ("ngram",)), (9, 13, ())):
            case = case_of(longcat(c, terms, biases=biases))
            t = {n: a.astype(float) for n, (a, _) in case.tensors.items()}
            for i, token in enumerate(case.inputs["token_ids"][0]):
                p = case.inputs["per_layer_input"][0][i].astype(float)
                y = t["word_embed.weight"][token] + t["ngram_proj.weight"] @ p + t.get("ngram_proj.bias", 0)
                self.same(case.outputs["y"].v[i], y / terms)
            twice = run(case.tensors, dict(case.metadata, terms=str(2 * terms)), case)[0]
            self.same(2 * twice, case.outputs["y"].v)

    def test_sums_of_zeros_are_exact(self):
        case = case_of(engram(5), x=lambda rng, n, d: np.zeros((n, d)))
        value = case.inputs["per_layer_input"][0] @ case.tensors["value_proj.weight"][0].T.astype(float)
        self.same(case.outputs["y"].v, value / 2)
        self.assertTrue((case.outputs["y"].e[0] <= 1e-5 * np.abs(value).max()).all())

    def test_parallel(self):
        case = case_of(parallel(glu(5), parallel(mlp(4), dense(3, 2))))
        y = self.plain(case, "branch.0.", glu(5)) + self.plain(case, "branch.1.branch.0.", mlp(4))
        self.same(case.outputs["y"].v, y + self.plain(case, "branch.1.branch.1.", dense(3, 2)))

    def test_the_bounds_say_something(self):
        """A bound near the size of y would pass anything."""
        for _, spec in one_of_each():
            case = case_of(spec, (34, 17, 33))
            for name, value in case.outputs.items():
                ratio = np.median(value.e[0]) / np.max(np.abs(value.v))
                self.assertLess(ratio, 3e-4, "%s of %s" % (name, case))
                self.assertLess(np.median(value.e[1]) / np.max(np.abs(value.v)), 1e-12)
