"""run_layer on NaN and infinity: what is refused, and what reaches which tokens."""

import numpy as np

from run_layer_cases import TreeCase, kinds
from run_layer_composite import dense, mlp, one_of_each
from run_layer_files import file_of
from run_layer_harness import RefusalTest, Settings, write
from run_layer_reference import BLOCKS, Layer
from run_layer_refusals import Broken, small

BAD = np.nan, np.inf, -np.inf
ROWS = "product_keys", "peer", "l3"  # blocks of chosen rows
D, V, T = 6, 7, 5
STRANGE = 2  # the token whose input is not finite


def changed(a, place, value):
    """`a` with another value at a flat place, or in a whole row of a matrix (a slice)."""
    a = np.array(a, np.float32)
    if isinstance(place, slice):
        a[place] = value
    else:
        a.reshape(-1)[place] = value
    return a


class NotFinite(RefusalTest):
    twice = False

    def setUp(self):
        before = np.seterr(all="ignore")
        self.addCleanup(lambda: np.seterr(**before))

    def specs(self):
        for spec in [s for _, s in one_of_each()] + [dense(5, i) for i in range(len(BLOCKS))]:
            if kinds(spec) <= set(Settings.blocks) | set(BLOCKS):
                yield spec

    def test_weights_that_decide_routes(self):
        for kind, spec in small():
            if not kinds(spec) <= set(Settings.blocks) | set(BLOCKS):
                continue
            b = Broken(spec)
            for name, (a, _) in b.tensors.items():
                keys = name.endswith("keys.weight") and np.ndim(a) == 3
                if not keys and not name.endswith(("router.weight", "query.weight", "query.bias", "router.selection_bias")):
                    continue
                for bad in BAD:
                    what, layer = "%s: %s with %s" % (kind, name, bad), b.layer(tensors={name: (changed(a, 1, bad), "F32")})
                    if name.endswith("selection_bias") and not np.isnan(bad):
                        continue  # an expert that is always or never chosen, below
                    self.bad(what, layer, file_of(b.inputs), "layer", (name, "1"), ("finite", "number"))

    def test_an_infinite_selection_bias(self):
        for kind, spec in small():
            if kind != "moe" or not kinds(spec) <= set(Settings.blocks) | set(BLOCKS):
                continue
            for bad in BAD[1:]:
                case = TreeCase(spec, (D, V, T))
                case.tensors["router.selection_bias"] = changed(case.tensors["router.selection_bias"][0], 1, bad), "F32"
                case.expect()
                self.assertTrue(((case.route[0] == 1).any(-1) == (bad > 0)).all())
                self.each([case])

    def runs(self, case, backend, tensors=None, inputs=None, flags=()):
        """The rows of y and the route of a run that must succeed."""
        layer = write("layer", file_of(dict(case.tensors, **(tensors or {})), case.metadata))
        given = write("input", file_of(dict(case.inputs, **(inputs or {}))))
        raw = self.output_of("[%s] %s" % (backend, case), layer, given, self.shapes_of(case), "--backend", backend, *flags)
        route = np.frombuffer(raw["route"], "<i8").reshape(case.route[0].shape) if case.route else None
        return np.frombuffer(raw["y"], "<f4").reshape(case.outputs["y"].v.shape), route

    def unchanged(self, backend, what, one, other, tokens):
        """To the bit; but for eigen, whose sums depend on how many tokens an expert gets, and another token's NaN changes that: some
        hundred roundings of 2^-24."""
        if backend == "eigen":
            near = np.allclose(one[tokens], other[tokens], rtol=0, atol=1e-5 * np.abs(other[tokens]).max(initial=0), equal_nan=True)
            self.assertTrue(near, "%s: other tokens have changed" % what)
        else:
            self.assertEqual(one[tokens].tobytes(), other[tokens].tobytes(), "%s: other tokens have changed" % what)

    def test_inputs(self):
        others = [t for t in range(T) if t != STRANGE]
        for spec in self.specs():
            case = TreeCase(spec, (D, V, T))
            for backend in Settings.backends:
                sound, _ = self.runs(case, backend)
                for name in [n for n in case.inputs if n != "token_ids"]:
                    for bad in BAD:
                        what = "[%s] %s, %s of %s" % (backend, case, bad, name)
                        width = case.inputs[name][0].shape[1]
                        given = {name: (changed(case.inputs[name][0], STRANGE * width + width // 2, bad), "F32")}
                        y, _ = self.runs(case, backend, inputs=given)
                        self.unchanged(backend, what, y, sound, others)
                        if np.isnan(bad):
                            # NaN where the formula has it: everywhere, but in what does not read this input
                            expected = Layer(case.tensors, case.metadata).run(dict(case.inputs, **given))[0].v
                            self.assertEqual(np.isnan(y).tolist(), np.isnan(expected).tolist(), what)
                            if name == "x" and spec["block"] in ROWS + ("engram",):
                                self.assertTrue(np.isnan(y[STRANGE]).all(), what)
                        elif name == "x" and spec["block"] in ROWS:
                            self.assertFalse(np.isfinite(y[STRANGE]).any(), what)

    def test_rounded_activations(self):
        if Settings.in_process or "simd" not in Settings.backends:
            return  # formats of simd alone
        case = TreeCase(mlp(64), (64, 5, T))
        x = changed(case.inputs["x"][0], STRANGE * 64 + 33, np.nan)
        for weights in ("f32", "bf16", "f16", "q8_0", "q4_0"):
            sound, y = (self.runs(case, "simd", inputs=i, flags=("--weights", weights))[0] for i in ({}, {"x": (x, "F32")}))
            self.assertTrue(np.isnan(y[STRANGE]).all(), weights)
            self.unchanged("simd", weights, y, sound, [t for t in range(T) if t != STRANGE])

    def test_rows_of_tables(self):
        """A row that is not finite reaches those who read it."""
        for spec in self.specs():
            case = TreeCase(spec, (D, V, T))
            chosen = ("values.weight", "up_embed.weight", "down_embed.weight", "keys.weight")
            of_id = ("stem_embed.weight", "memory.weight", "word_embed.weight", "deep_embed.weight", "modulators.weight")
            for name, (a, dtype) in case.tensors.items():
                if name not in of_id + chosen or np.ndim(a) != 2:
                    continue
                for backend in Settings.backends:
                    sound, route = self.runs(case, backend)
                    if name in chosen:
                        row = int(route[STRANGE, 0])
                        readers = (route == row).any(-1)
                    else:
                        row = int(case.inputs["token_ids"][0][STRANGE])
                        readers = np.array(case.inputs["token_ids"][0]) == row
                    if row < 0:
                        continue  # an id of no rows
                    y, _ = self.runs(case, backend, tensors={name: (changed(a, slice(row, row + 1), np.nan), "F32")})
                    what = "[%s] %s, NaN in row %d of %s" % (backend, case, row, name)
                    self.unchanged(backend, what, y, sound, ~readers)
                    self.assertTrue(np.isnan(y[readers]).all(), what)
