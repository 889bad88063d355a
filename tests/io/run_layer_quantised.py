"""run_layer on layer files whose tensors are blocks of q8_0 and q4_0: dtype U8, the format in the metadata."""

import numpy as np

from run_layer_cases import BIASES_OF, DenseCase, TreeCase, ramp, typed
from run_layer_composite import dense as described
from run_layer_composite import engram, glu, hash_moe, l3, longcat, meki, mlp, moe, mort, parallel, peer, ple
from run_layer_composite import product_keys, retoken, structmoe
from run_layer_files import BLOCK_BYTES, dequantised, file_of, quantised
from run_layer_harness import RefusalTest, RunLayerTest, Settings, composite, dense, write
from run_layer_reference import BLOCKS

FORMS = tuple(BLOCK_BYTES)
WIDENED = ("--weights", "f32", "--tables", "f32")  # simd keeps what it is given in what it is told


def flags_of(backend):
    return WIDENED if backend == "simd" else ()


def blocks_at_random(rng, rows, numbers, form):
    """Blocks of all bytes there are, but for the scales: finite, of both signs, some 0 and some subnormal."""
    raw = np.resize(np.arange(256, dtype=np.uint8), (rows * numbers // 32, BLOCK_BYTES[form]))
    raw = rng.permutation(raw.reshape(-1)).reshape(raw.shape)
    scale = rng.normal(size=(len(raw), 1)) / (64 if form == "q8_0" else 4)
    scale[::5] = 0
    scale[1::7] = 3e-7
    raw[:, :2] = scale.astype("<f2").view(np.uint8)
    return raw.reshape(rows, -1)


class QuantisedValues(RunLayerTest):
    def each(self, cases):
        for case in cases:
            files = case.write()
            for backend in Settings.backends:
                with self.subTest(backend=backend):
                    self.check(case, backend, *flags_of(backend), files=files)

    def test_dense(self):
        sizes = ((32, 32, 1, 1), (64, 96, 17, 9), (96, 32, 33, 31), (160, 64, 3, 64))
        for b, block in enumerate(dense()):
            for i, size in enumerate(sizes):
                for dtype in FORMS + ("blocks",):
                    biases = BIASES_OF[block] if i % 2 else ()
                    case = DenseCase(block, None, size, biases, dtype, ("I64", "I32")[(i + b) % 2])
                    self.assertIn("U8", [t for _, t in case.tensors.values()])
                    self.each([case])

    def specs(self):
        for order in ("softmax_topk", "sigmoid_topk_renorm"):
            yield moe(5, 2, glu(32), router_order=order, bias=True, shared=described(64, 3))
        yield moe(3, 2, mlp(17))  # rows of 17 numbers are no blocks
        yield moe(4, 2, described(32, 2))
        yield hash_moe(5, 2, described(32, 4))
        for placement in ("up", "down"):
            yield structmoe(64, 4, 32, 2, placement=placement)
            yield structmoe(96, 4, 3, 2, placement=placement, biases=("up", "down"))
        for form in ("training", "static", "dynamic", "folded"):
            yield meki(32, form)
        yield meki(64, word_norm=True, gate_input="residual")
        yield meki(32, linear=True)
        yield from (ple(32), ple(64, False), ple(32, "full"), ple(32, folded="true"))
        yield retoken(glu(32))
        yield retoken(moe(4, 2, mlp(64)), folded="true")
        yield mort(glu(64), 5, 3)
        yield product_keys(2, 5, 32, 3, biases=("query",))
        yield product_keys(2, 4, 17, 2, f=96)  # keys of 17 numbers are no blocks
        yield peer(2, 4, 64, 3)
        yield l3(40, 64, 32, biases=("mix_memory",))
        yield engram(96, biases=("key",))
        yield longcat(32)
        yield parallel(glu(32), meki(32, "static"), ple(32, False))

    def chosen(self):
        return [s for s in self.specs() if s["block"] in composite()]

    def test_composite(self):
        sizes = ((64, 17, 9), (64, 31, 33), (128, 5, 3), (64, 64, 1))
        for i, spec in enumerate(self.chosen()):
            for j, dtype in enumerate(FORMS + ("blocks", "blocks")):
                case = TreeCase(spec, sizes[(i + j) % 4], dtype, ("I64", "I32")[i % 2])
                self.assertIn("U8", [t for _, t in case.tensors.values()])
                self.each([case])

    def test_each_tensor_alone(self):
        """Whatever tensor has rows of whole blocks, and the others as they were."""
        specs = [(s["block"], s) for s in self.chosen()]
        specs += [(b, described(32, i)) for i, b in enumerate(BLOCKS) if b in dense()]
        for number, (kind, spec) in enumerate(specs):
            size = (64, 7, 5)
            blocks = (n for n, (_, t) in TreeCase(spec, size, "q8_0").tensors.items() if t == "U8")
            for i, name in enumerate(sorted(blocks)):
                case = TreeCase(spec, size, {name: FORMS[(i + number) % 2]})
                self.assertEqual([n for n, (_, t) in case.tensors.items() if t == "U8"], [name])
                with self.subTest(kind=kind, name=name):
                    self.each([case])

    def test_any_bytes(self):
        """Not what a quantiser writes: levels of -128, scales below zero and of 0, rows of nothing."""
        rng = np.random.default_rng(11)
        for block in dense():
            for form in FORMS:
                case = DenseCase(block, None, (64, 96, 17, 9))
                for name, (a, _) in list(case.tensors.items()):
                    raw = blocks_at_random(rng, *a.shape, form)
                    case.tensors[name], case.metadata[name + ".format"] = (raw, "U8"), form
                case.expect()
                self.each([case])

    def test_as_the_numbers_they_stand_for(self):
        """The same layer in F32: bitwise on the backends that widen, whatever route the numbers took."""
        for spec in self.chosen() + [described(32, i) for i, b in enumerate(BLOCKS) if b in dense()]:
            case = TreeCase(spec, (64, 7, 5), "blocks")
            plain, metadata = {}, {k: v for k, v in case.metadata.items() if not k.endswith(".format")}
            for name, (a, dtype) in case.tensors.items():
                form = case.metadata.get(name + ".format")
                plain[name] = (dequantised(a, form), "F32") if form else (a, dtype)
            layer, inputs = case.write()
            other = write("layer", file_of(plain, metadata))
            for backend in Settings.backends:
                with self.subTest(backend=backend, case=str(case)):
                    flags = ("--backend", backend) + flags_of(backend)
                    one, two = (self.output_of(str(case), f, inputs, self.shapes_of(case), *flags) for f in (layer, other))
                    self.assertTrue(one == two, "[%s] %s: not what the decoded numbers give" % (backend, case))

    def test_without_flags(self):
        """What a backend keeps blocks in when it is not told is open; rounded activations are within 3 %."""
        for block in dense():
            for form in FORMS:
                case = DenseCase(block, None, (128, 256, 33, 31), dtype=form)
                layer, inputs = case.write()
                for backend in Settings.backends:
                    with self.subTest(block=block, form=form, backend=backend):
                        raw = self.output_of(str(case), layer, inputs, self.shapes_of(case), "--backend", backend)
                        expected = case.outputs["y"].v
                        got = np.frombuffer(raw["y"], "<f4").reshape(expected.shape)
                        off = np.linalg.norm(got - expected) / np.linalg.norm(expected)
                        self.assertLess(off, 3e-2, "[%s] %s" % (backend, case))


# ---------------------------------------------------------------------------------------------------
# Bad input


class QuantisedRefusals(RefusalTest):
    twice = False
    D, F, T = 32, 64, 4

    def glu(self, form):
        """(tensors, metadata) of a sound layer of blocks with a bias."""
        rng = np.random.default_rng(3)
        shapes = {"gate_proj": (self.F, self.D), "up_proj": (self.F, self.D), "down_proj": (self.D, self.F)}
        tensors, metadata = typed({n + ".weight": rng.normal(size=s) for n, s in shapes.items()}, form, rng, 0)
        tensors["up_proj.bias"] = (ramp(self.F), "F32")
        return tensors, dict(metadata, block="glu")

    def inputs(self):
        return {"x": (ramp(self.T, self.D), "F32"), "token_ids": (np.zeros(self.T), "I64")}

    def refuse(self, what, layer, names=(), any_of=()):
        self.bad(what, file_of(*layer), file_of(self.inputs()), "layer", names, any_of)

    def changed(self, form, tensors=None, metadata=None, remove=()):
        t, m = self.glu(form)
        t.update(tensors or {})
        m.update(metadata or {})
        for name in remove:
            del (t if name in t else m)[name]
        return t, m

    def setUp(self):
        self.needs("glu")

    def test_the_unchanged_files_are_good(self):
        for form in FORMS:
            layer, inputs = write("layer", file_of(*self.glu(form))), write("input", file_of(self.inputs()))
            for backend in Settings.backends:
                self.output_of("unchanged", layer, inputs, {"y": ("F32", (self.T, self.D))}, "--backend", backend)

    def test_shapes(self):
        for form, size in BLOCK_BYTES.items():
            tensors, _ = self.glu(form)
            weights = [n for n in tensors if n.endswith(".weight")]
            for name in weights:
                raw = tensors[name][0]
                rows = len(raw)
                wrong = {
                    "a byte less a row": raw[:, :-1],
                    "a byte more a row": np.concatenate([raw, raw[:, :1]], 1),
                    "a byte a row": raw[:, :1],
                    "half a block a row": raw[:, : size // 2],  # all rows together are whole blocks
                    "in one row too long": raw.reshape(1, -1)[:, :-1],
                    "of rank 1": raw.reshape(-1),
                    "of rank 3": raw[None],
                    "of rank 3, a block a row": raw.reshape(rows, -1, size),
                    "of rank 0": raw[0, 0],
                    "of no rows": raw[:0],
                    "of no bytes": raw[:, :0],
                }
                for what, a in wrong.items():
                    self.refuse("%s: %s %s" % (form, name, what), self.changed(form, {name: (a, "U8")}), (name,))
                others = {
                    "with a block more": np.concatenate([raw, raw[:, :size]], 1),
                    "with a row more": np.concatenate([raw, raw[:1]]),
                    "transposed": np.ascontiguousarray(raw.reshape(rows, -1, size).transpose(1, 0, 2)).reshape(raw.shape[1] // size, -1),
                }
                for what, a in others.items():
                    self.refuse("%s: %s %s" % (form, name, what), self.changed(form, {name: (a, "U8")}), any_of=weights)
            for shape in ((1, self.F // 32 * size), (self.F // 32, size)):
                bias = {"up_proj.bias": (np.zeros(shape, np.uint8), "U8")}
                layer = self.changed(form, bias, {"up_proj.bias.format": form})
                self.refuse("%s: a bias of shape %s" % (form, shape), layer, ("up_proj.bias",))

    def test_formats(self):
        for form in FORMS:
            tensors, _ = self.glu(form)
            for name in [n for n in tensors if n.endswith(".weight")]:
                key = name + ".format"
                self.refuse("%s: %s without a format" % (form, name), self.changed(form, remove=[key]), (name,))
                for value in ("q9_9", "Q8_0", "q8_0 ", "q8", "f32", "F32", "U8", ""):
                    self.refuse("%s = %r" % (key, value), self.changed(form, metadata={key: value}), (key,))
                other = FORMS[1 - FORMS.index(form)]
                # 34 and 18 bytes: no whole blocks, or another width
                self.refuse("%s as %s" % (name, other), self.changed(form, metadata={key: other}), any_of=list(tensors))

    def test_formats_of_what_has_none(self):
        for form in FORMS:
            tensors, _ = self.glu(form)
            for name in ("surplus.weight", "gate_proj.bias", "stem_embed.weight", "gate_proj", "experts.0.up_proj.weight"):
                key = name + ".format"
                self.refuse("%s without a tensor" % key, self.changed(form, metadata={key: form}), (key,))
            self.refuse("a bias of F32 with a format", self.changed(form, metadata={"up_proj.bias.format": form}), ("up_proj.bias",))
            for name in [n for n in tensors if n.endswith(".weight")]:
                shape = (self.D, self.F) if name.startswith("down") else (self.F, self.D)
                for dtype in ("F32", "F16", "BF16"):
                    layer = self.changed(form, {name: (ramp(*shape), dtype)})
                    self.refuse("%s of %s with a format" % (name, dtype), layer, (name,))
                    # and without the key it is sound
                    layer[1].pop(name + ".format")
                    files = write("layer", file_of(*layer)), write("input", file_of(self.inputs()))
                    self.output_of(name + " of " + dtype, *files, {"y": ("F32", (self.T, self.D))})

    def test_unused(self):
        for form, size in BLOCK_BYTES.items():
            extra = {"surplus.weight": (np.zeros((2, size), np.uint8), "U8")}
            named = self.changed(form, extra, {"surplus.weight.format": form})
            self.refuse("%s: unused blocks" % form, named, ("surplus.weight",))
            self.refuse("%s: unused bytes" % form, self.changed(form, extra), ("surplus.weight",))

    def test_inputs(self):
        for form in FORMS:
            layer = file_of(*self.glu(form))
            raw = quantised(ramp(self.T, self.D), form)
            for a in (raw, np.zeros((self.T, self.D), np.uint8)):
                self.bad("x as U8", layer, file_of(dict(self.inputs(), x=(a, "U8"))), "input", ("x",))

    def nested(self, spec, form):
        case = TreeCase(spec, (32, 7, 4), form)
        return dict(case.tensors), dict(case.metadata), file_of(case.inputs)

    def test_banks_and_pools(self):
        for kind, spec, name in (
            ("mort", mort(mlp(32), 3), "modulators.weight"),
            ("structmoe", structmoe(32, 3, 32), "lore_a.weight"),
            ("structmoe", structmoe(32, 3, 32, placement="down"), "lore_b.weight"),
            ("product_keys", product_keys(2, 3, 32, 2), "keys.weight"),
        ):
            if kind not in composite():
                continue
            for form in FORMS:
                tensors, metadata, inputs = self.nested(spec, form)
                raw = tensors[name][0]

                def refuse(what, a, names=(), any_of=()):
                    layer = file_of(dict(tensors, **{name: (a, "U8")}), metadata)
                    self.bad("%s: %s %s" % (kind, name, what), layer, inputs, "layer", names, any_of)

                refuse("of rank 2", raw.reshape(-1, raw.shape[-1]), (name,))
                refuse("of rank 4", raw[None], (name,))
                refuse("a byte less", raw[..., :-1], (name,))
                refuse("a block more", np.concatenate([raw, raw[..., : BLOCK_BYTES[form]]], -1), any_of=tuple(tensors))
                without = {k: v for k, v in metadata.items() if k != name + ".format"}
                self.bad("%s: %s without a format" % (kind, name), file_of(tensors, without), inputs, "layer", (name,))

    def test_experts_say_theirs(self):
        """The key has the tensor's whole name, not the prefix that experts share."""
        self.needs("moe")
        for form in FORMS:
            tensors, metadata, inputs = self.nested(moe(3, 2, mlp(32)), form)
            key = "experts.1.up_proj.weight.format"
            without = {k: v for k, v in metadata.items() if k != key}
            self.bad("one expert without a format", file_of(tensors, without), inputs, "layer", ("experts.1.up_proj.weight",))
            shared = {k: v for k, v in metadata.items() if not k.startswith("experts.")}
            shared["expert.up_proj.weight.format"] = form
            names = tuple(n for n in tensors if n.startswith("experts.")) + ("expert.up_proj.weight.format",)
            self.bad("one format for all experts", file_of(tensors, shared), inputs, "layer", (), names)

    def test_maps(self):
        self.needs("hash_moe")
        for form, size in BLOCK_BYTES.items():
            tensors, metadata, inputs = self.nested(hash_moe(3, 2, mlp(32)), form)
            for a in (np.zeros((7, size), np.uint8), np.zeros((7, 2), np.uint8)):
                for more in ({}, {"hash_map.format": form}):
                    layer = file_of(dict(tensors, hash_map=(a, "U8")), dict(metadata, **more))
                    self.bad("hash_map as U8", layer, inputs, "layer", ("hash_map",))
            layer = file_of(tensors, dict(metadata, **{"hash_map.format": form}))
            self.bad("hash_map with a format", layer, inputs, "layer", ("hash_map",))
