"""run_layer on mlp, glu, stem, stem_gate and stem_hybrid, on broken containers, and its command line."""

import json
import os
import struct

import numpy as np

from run_layer_cases import BIASES_OF, DenseCase, D, F, T, V, good_input, good_layer, ramp
from run_layer_files import file_of, header_of, raw_file
from run_layer_harness import RefusalTest, RunLayerTest, Settings, dense, fresh_output, write
from run_layer_reference import ACTIVATIONS, BLOCKS


def bias_subsets(block):
    names = BIASES_OF[block]
    return [tuple(n for i, n in enumerate(names) if mask >> i & 1) for mask in range(2 ** len(names))]


# d, f, V, T: each takes each of 1, 3, 17, 31, 33, 64, 130 at least once
SIZES = (
    (1, 1, 1, 1),
    (3, 1, 17, 33),
    (1, 17, 3, 31),
    (17, 3, 31, 64),
    (31, 33, 1, 3),
    (33, 31, 64, 17),
    (64, 64, 33, 130),
    (130, 17, 130, 1),
    (17, 130, 31, 3),
    (64, 130, 3, 31),
    (3, 64, 17, 1),
    (130, 130, 130, 17),
)
DTYPES = ("F32", "F16", "BF16", "mixed")


class Values(RunLayerTest):
    def test_activations(self):
        for block in dense():
            self.each(DenseCase(block, act, (33, 31, 17, 17)) for act in ACTIVATIONS + (None,))

    def test_activations_on_large_arguments(self):
        # exp overflows float32 beyond 88; the arguments here reach about a thousand, of both signs
        for b, block in enumerate(dense()):
            self.each(DenseCase(block, act, (17, 33, 31, 3 + b), scale=150.0) for act in ACTIVATIONS)

    def test_activations_on_small_arguments(self):
        for b, block in enumerate(dense()):
            self.each(DenseCase(block, act, (17, 31, 3 + b, 3), scale=1e-4) for act in ACTIVATIONS)

    def test_sizes(self):
        for b, block in enumerate(dense()):
            subsets = bias_subsets(block)
            self.each(
                DenseCase(
                    block,
                    ACTIVATIONS[(b + i) % len(ACTIVATIONS)],
                    size,
                    subsets[(3 * i + b) % len(subsets)],
                    DTYPES[(i + 2 * b + i // 4) % len(DTYPES)],
                    ("I64", "I32")[(i + b) % 2],
                )
                for i, size in enumerate(SIZES)
            )

    def test_biases(self):
        for b, block in enumerate(dense()):
            self.each(DenseCase(block, None, (31, 17 + b, 33, 3), subset) for subset in bias_subsets(block))

    def test_dtypes(self):
        for block in dense():
            for i, dtype in enumerate(DTYPES):
                biases = BIASES_OF[block] if i % 2 else ()
                self.each([DenseCase(block, "silu", (64, 33, 130, 31), biases, dtype, ("I32", "I64")[i // 2])])

    def test_id_dtypes(self):
        for block in dense():
            if BLOCKS[block][1]:
                self.each(DenseCase(block, None, (3, 17, 130, 33), id_dtype=k) for k in ("I32", "I64"))

    def test_token_ids_are_optional_without_a_table(self):
        for block in sorted(set(dense()) & {"mlp", "glu"}):
            self.each(DenseCase(block, None, (3, 17, 130, 3), id_dtype=k, with_ids=True) for k in ("I32", "I64"))
            self.each([DenseCase(block, None, (3, 17, 130, 3), with_ids=False)])

    def test_no_tokens(self):
        for block in dense():
            case = DenseCase(block, None, (17, 31, 3, 0), BIASES_OF[block])
            files = case.write()
            for backend in Settings.backends:
                for flags in ((), ("--batch", 3), ("--threads", Settings.threads)):
                    with self.subTest(backend=backend, flags=flags):
                        self.assertEqual(self.check(case, backend, *flags, files=files), {"y": b""})

    def test_without_flags(self):
        for block in dense():
            with self.subTest(block=block):
                self.check(DenseCase(block, None, (33, 64, 17, 31), BIASES_OF[block]), "default")

    def test_an_older_output_is_replaced(self):
        self.needs("stem")
        case = DenseCase("stem", None, (3, 17, 31, 3))
        layer, inputs = case.write()
        output = fresh_output()
        with open(output, "wb") as file:
            file.write(b"older and longer " * 1000)
        self.check(case, "default", files=(layer, inputs), output=output)

    def test_file_layouts(self):
        """Unpadded headers, unaligned tensors, escapes and white space in the JSON, metadata in the last place."""
        for block in dense():
            for shift in range(4):
                case = DenseCase(block, "silu", (3, 17, 31, 3), BIASES_OF[block], "mixed" if shift else "F32")
                header, data = header_of(case.tensors)
                header["__metadata__"] = case.metadata
                text = json.dumps(header, indent=shift or None).replace('"silu"', '"si\\u006Cu"').replace("_proj", "\\u005fproj")
                while len(text) % 4 != shift:
                    text += " "
                layer = write("layer", raw_file(text, data, pad=False))
                text = json.dumps(header_of(case.inputs)[0])
                text += " " * ((shift - len(text)) % 4)
                inputs = write("input", raw_file(text, header_of(case.inputs)[1], pad=False))
                for backend in Settings.backends:
                    with self.subTest(backend=backend, shift=shift):
                        self.check(case, backend, files=(layer, inputs))

    def test_tensor_order_in_input(self):
        self.needs("stem_hybrid")
        case = DenseCase("stem_hybrid", None, (3, 17, 31, 5), id_dtype="I32")
        case.inputs = dict(reversed(list(case.inputs.items())))
        self.each([case])

    def test_batches_and_threads(self):
        """Right for every --batch and --threads; on simd also bitwise the same."""
        sizes = ((33, 31, 17, 33), (130, 64, 31, 130), (3, 17, 130, 64), (257, 520, 33, 130))
        for b, block in enumerate(dense()):
            for i, size in enumerate(sizes):
                case = DenseCase(
                    block, ACTIVATIONS[(b + i) % 4], size, bias_subsets(block)[i], DTYPES[(b + i) % 4], ("I64", "I32")[i % 2]
                )
                self.sweep(case, thorough=i <= 1)

    def test_batches_of_every_kind_on_simd(self):
        if "simd" not in Settings.backends:
            self.skipTest("without simd")
        for block in dense():
            case = DenseCase(block, None, (31, 33, 17, 31), BIASES_OF[block])
            files, first = case.write(), None
            for batch in (1, 2, 4, 5, 7, 8, 9, 16, 30, 31, 32, 1000):
                flags = ("--batch", batch)
                with self.subTest(block=block, batch=batch):
                    raw = self.check(case, "simd", *flags, files=files)
                    first = first or (flags, raw)
                    if raw != first[1]:
                        self.fail(self.difference(case, "simd", first, (flags, raw)))


# ---------------------------------------------------------------------------------------------------
# Bad input


class BadInput(RefusalTest):
    def bad_layer(self, what, layer, names=(), any_of=()):
        self.bad(what, layer, file_of(good_input()), "layer", names, any_of)

    def bad_inputs(self, what, block, changes, names=(), any_of=(), remove=()):
        inputs = dict(good_input(), **changes)
        for name in remove:
            del inputs[name]
        self.bad("%s: %s" % (block, what), file_of(*good_layer(block)), file_of(inputs), "input", names, any_of)

    def changed(self, block, changes=None, remove=(), metadata=None):
        tensors, meta = good_layer(block)
        tensors.update(changes or {})
        for name in remove:
            del tensors[name]
        return file_of(tensors, dict(meta, **(metadata or {})))

    def test_the_unchanged_files_are_good(self):
        # else the tests below would prove nothing
        for block in dense():
            for backend in Settings.backends:
                with self.subTest(block=block, backend=backend):
                    layer, inputs = write("layer", file_of(*good_layer(block))), write("input", file_of(good_input()))
                    self.output_of("unchanged " + block, layer, inputs, {"y": ("F32", (T, D))}, "--backend", backend)

    # --- metadata

    def test_metadata(self):
        self.needs("glu")
        tensors, _ = good_layer("glu")
        self.bad_layer("no __metadata__", file_of(tensors), any_of=("block", "__metadata__"))
        self.bad_layer("empty __metadata__", file_of(tensors, {}), any_of=("block",))
        self.bad_layer("no block key", file_of(tensors, {"activation": "silu"}), ("block",))
        self.bad_layer("unknown block", file_of(tensors, {"block": "frobnicate"}), ("block", "frobnicate"))
        self.bad_layer("empty block", file_of(tensors, {"block": ""}), ("block",))
        self.bad_layer("block is a number", file_of(tensors, {"block": 3}))
        for block in dense():
            self.bad_layer(block + ": unknown option", self.changed(block, metadata={"activaton": "silu"}), ("activaton",))
            self.bad_layer(block + ": unknown option", self.changed(block, metadata={"wobble": "1"}), ("wobble",))
            self.bad_layer(block + ": unknown activation", self.changed(block, metadata={"activation": "swoosh"}), ("activation", "swoosh"))
        self.bad_layer("empty activation", self.changed("glu", metadata={"activation": ""}), ("activation",))
        self.bad_layer("longer activation", self.changed("glu", metadata={"activation": "silu2"}), ("activation", "silu2"))

    # --- tensors

    def test_missing_tensor(self):
        for block in dense():
            for name in good_layer(block)[0]:
                self.bad_layer("%s without %s" % (block, name), self.changed(block, remove=[name]), (name,))

    def test_unused_tensor(self):
        for block in dense():
            projections, table, _ = BLOCKS[block]
            extra = {"surplus.weight": ramp(F, D), "stem_embed.bias": ramp(F), "gate_proj": ramp(F, D), "router.weight": ramp(2, D)}
            for p, shape in (("gate", (F, D)), ("up", (F, D)), ("down", (D, F))):
                if p not in projections:
                    extra[p + "_proj.weight"] = ramp(*shape)
                    extra[p + "_proj.bias"] = ramp(shape[0])
            if not table:
                extra["stem_embed.weight"] = ramp(V, F)
            for name, a in extra.items():
                self.bad_layer("%s with unused %s" % (block, name), self.changed(block, {name: (a, "F32")}), (name,))

    def test_misshapen_tensor(self):
        for block in dense():
            weights = list(good_layer(block)[0])
            for name, (a, dtype) in good_layer(block)[0].items():
                for what, b in (("transposed", a.T), ("one row more", ramp(len(a) + 1, a.shape[1])), ("one column less", a[:, :-1])):
                    if name == "stem_embed.weight" and what == "one row more":
                        continue  # a larger vocabulary
                    self.bad_layer("%s: %s %s" % (block, name, what), self.changed(block, {name: (b, dtype)}), any_of=weights)
                for what, b in (("of rank 1", a.reshape(-1)), ("of rank 3", a[:, :, None]), ("of rank 0", ramp())):
                    self.bad_layer("%s: %s %s" % (block, name, what), self.changed(block, {name: (b, dtype)}), (name,))
            # shapes that agree, but with a zero
            for what, d, f in (("f = 0", D, 0), ("d = 0", 0, F)):
                zero = {n: ramp(d, f) if n.startswith("down") else ramp(V, f) if n.startswith("stem") else ramp(f, d) for n in weights}
                inputs = dict(good_input(), x=(ramp(T, d), "F32"))
                layer = self.changed(block, {n: (a, "F32") for n, a in zero.items()})
                self.bad("%s: %s" % (block, what), layer, file_of(inputs), "layer", any_of=weights)
            if BLOCKS[block][1]:
                layer = self.changed(block, {"stem_embed.weight": (ramp(0, F), "F32")})
                self.bad_layer(block + ": V = 0", layer, ("stem_embed.weight",))

    def test_misshapen_bias(self):
        for block in dense():
            for name in BIASES_OF[block]:
                n = D if name.startswith("down") else F
                for a in (ramp(n + 1), ramp(n - 1), ramp(1), ramp(1, n), ramp(n, 1), ramp(), ramp(0)):
                    layer = self.changed(block, {name: (a, "F32")})
                    self.bad_layer("%s: %s of shape %s" % (block, name, a.shape), layer, (name,))

    def test_types_that_are_not_weights(self):
        for block in dense():
            for i, (name, (a, _)) in enumerate(good_layer(block)[0].items()):
                dtype = ("I32", "I64", "F64")[i % 3]
                self.bad_layer("%s: %s as %s" % (block, name, dtype), self.changed(block, {name: (a, dtype)}), (name,))
            name = BIASES_OF[block][0]
            self.bad_layer("%s: %s as I32" % (block, name), self.changed(block, {name: (ramp(F), "I32")}), (name,))

    # --- the container

    def containers(self, tensors, metadata):
        """(what, bytes, names of which the line must have one) of broken files; the last tensors are broken."""
        header, data = header_of(tensors, metadata)
        names = [n for n in header if n != "__metadata__"]
        name, other = names[-1], names[-2]
        good = raw_file(header, data)
        n = struct.unpack("<Q", good[:8])[0]

        for size in (0, 1, 7, 8, 9, 8 + n // 2, 8 + n - 1):
            yield "cut to %d bytes" % size, good[:size], ()
        for cut in (1, 8, len(data)):
            yield "%d bytes of data missing" % cut, good[:-cut], ()
        for length in (0, 1, n - 8, n + len(data) + 1, 2**31, 2**32 + n, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1):
            yield "header length %d" % length, raw_file(header, data, length=length), ()
        for text in ("", "{", "[]", "null", "7", '"x"', json.dumps(header)[:-1], json.dumps(header) + "}", "[" * 100000):
            yield "header %.20s (%d characters)" % (text, len(text)), raw_file(text, data), ()

        def with_entry(**changes):
            return raw_file(dict(header, **{name: dict(header[name], **changes)}), data)

        def without(key):
            return raw_file(dict(header, **{name: {k: v for k, v in header[name].items() if k != key}}), data)

        begin, end = header[name]["data_offsets"]
        rows = header[name]["shape"][0]
        for key in ("dtype", "shape", "data_offsets"):
            yield "%s without %s" % (name, key), without(key), (name,)
        for dtype in ("F24", "", "f32", "F322"):
            yield "%s of dtype %r" % (name, dtype), with_entry(dtype=dtype), (name,)
        for offsets in (
            [begin, end + 4],  # outside, and too long for the shape
            [begin + 4, end + 4],  # outside
            [begin + 2**40, end + 2**40],
            [2**63, 2**63 + end - begin],
            [2**64 - (end - begin), 0],  # the sum wraps
            [begin, begin],
            [begin, end - 1],
            [end, begin],
            [-(end - begin), 0],
            [begin],
            [begin, end, end],
        ):
            yield "%s with offsets %s" % (name, offsets), with_entry(data_offsets=offsets), (name,)
        overlapping = [header[other]["data_offsets"][0], header[other]["data_offsets"][0] + end - begin]
        if overlapping[1] <= end:
            yield "%s over %s" % (name, other), with_entry(data_offsets=overlapping), (name, other)
        yield "%s partly over %s" % (name, other), with_entry(data_offsets=[begin - 4, end - 4]), (name, other)
        for shape in ([rows + 1] + header[name]["shape"][1:], [-1], [2**32, 2**32], [2**61, 4], [2**62, 4, 4], [1.5], "3", None):
            yield "%s of shape %s" % (name, shape), with_entry(shape=shape), (name,)
        empty = {"dtype": "F32", "shape": [2**32, 2**32], "data_offsets": [end, end]}  # 2^64 elements wrap to 0
        yield "%s of 2^64 elements" % name, raw_file(dict(header, **{name: empty}), data), (name,)
        for value in (7, [], "F32", None):
            yield "%s is %r" % (name, value), raw_file(dict(header, **{name: value}), data), (name,)

        # the same name twice, each with its own data
        text = json.dumps(header)[:-1]
        size = end - begin
        second = dict(header[name], data_offsets=[len(data), len(data) + size])
        text += ", %s: %s}" % (json.dumps(name), json.dumps(second))
        yield "%s twice" % name, raw_file(text, data + data[begin:end]), (name,)

    def test_broken_layer_file(self):
        for block in sorted(set(dense()) & {"mlp", "stem_hybrid"}):
            for what, raw, names in self.containers(*good_layer(block)):
                self.bad_layer("%s: LAYER: %s" % (block, what), raw, any_of=names)

    def test_broken_input_file(self):
        self.needs("stem")
        layer = file_of(*good_layer("stem"))
        for what, raw, names in self.containers(good_input(), None):
            self.bad("stem: INPUT: " + what, layer, raw, "input", any_of=names)

    # --- INPUT

    def test_x(self):
        for block in dense():
            self.bad_inputs("x of width 29", block, {"x": (ramp(T, 29), "F32")}, ("x", "29"))
        for block in sorted(set(dense()) & {"glu", "stem"}):
            self.bad_inputs("x of width 1", block, {"x": (ramp(T, 1), "F32")}, ("x",))
            self.bad_inputs("x of width 0", block, {"x": (ramp(T, 0), "F32")}, ("x",))
            self.bad_inputs("x (0,29)", block, {"x": (ramp(0, 29), "F32"), "token_ids": (np.zeros(0), "I64")}, ("x", "29"))
            self.bad_inputs("x missing", block, {}, ("x",), remove=["x"])
            for dtype in ("F16", "BF16", "F64", "I32"):
                self.bad_inputs("x as " + dtype, block, {"x": (ramp(T, D), dtype)}, ("x",))
            for shape in ((T * D,), (T, D, 1), (1, T, D), ()):
                self.bad_inputs("x of shape %s" % (shape,), block, {"x": (ramp(*shape), "F32")}, ("x",))

    def test_token_ids(self):
        for block in dense():
            for dtype in ("I32", "I64"):
                what = "23 token_ids as %s for 4 rows" % dtype
                self.bad_inputs(what, block, {"token_ids": (np.zeros(23), dtype)}, ("token_ids", "23"))
            self.bad_inputs("one of token_ids too few", block, {"token_ids": (np.zeros(T - 1), "I64")}, ("token_ids",))
            self.bad_inputs("no element in token_ids", block, {"token_ids": (np.zeros(0), "I64")}, ("token_ids",))
            if BLOCKS[block][1]:
                self.bad_inputs("token_ids missing", block, {}, ("token_ids",), remove=["token_ids"])
                for shape in ((T, 1), (1, T), (2, 2)):
                    ids = {"token_ids": (np.zeros(shape), "I64")}
                    self.bad_inputs("token_ids of shape %s" % (shape,), block, ids, ("token_ids",))
                for dtype in ("F32", "F64", "F16"):
                    self.bad_inputs("token_ids as " + dtype, block, {"token_ids": (np.zeros(T), dtype)}, ("token_ids",))

    def test_ids_out_of_range(self):
        ids = [(V, "I32"), (V, "I64"), (-1, "I32"), (-1, "I64"), (2**40, "I64"), (2**32 + 1, "I64"), (-(2**63), "I64")]
        ids += [(2**31 - 1, "I32"), (-(2**31), "I32"), (2**63 - 1, "I64")]
        for b, block in enumerate(k for k in dense() if BLOCKS[k][1]):
            layer = write("layer", file_of(*good_layer(block)))
            for i, (value, dtype) in enumerate(ids):
                place = (0, T - 1, 1)[i % 3]
                a = np.array([0, 6, 3, 3], np.int64)
                a[place] = value
                inputs = write("input", file_of(dict(good_input(), token_ids=(a, dtype))))
                for backend in Settings.backends:
                    for batch in ((), ("--batch", "1")):
                        flags = ("--backend", backend) + batch
                        what = "[%s] %s: id %d as %s in place %d %s" % (backend, block, value, dtype, place, " ".join(batch))
                        self.bad(what, layer, inputs, "input", ("token_ids", str(value)), flags=flags)

    def test_paths(self):
        self.needs("stem")
        layer, inputs = write("layer", file_of(*good_layer("stem"))), write("input", file_of(good_input()))
        nothing = os.path.join(Settings.folder, "nothing.safetensors")
        folder = os.path.join(Settings.folder, "folder.safetensors")
        os.mkdir(folder)
        self.bad("LAYER missing", nothing, inputs, "layer")
        self.bad("INPUT missing", layer, nothing, "input")
        self.bad("LAYER is a directory", folder, inputs, "layer")
        self.bad("INPUT is a directory", layer, folder, "input")
        self.bad("LAYER below a file", os.path.join(layer, "x"), inputs, "layer")
        self.bad("no directory for OUTPUT", layer, inputs, "output", output=os.path.join(Settings.folder, "none", "y.safetensors"))
        self.bad("OUTPUT is a directory", layer, inputs, "output", output=folder)
        self.assertEqual(os.listdir(folder), [])


class CommandLine(RunLayerTest):
    def setUp(self):
        self.needs("stem")

    def refused(self, *flags, named=None):
        output = fresh_output()
        layer, inputs = write("layer", file_of(*good_layer("stem"))), write("input", file_of(good_input()))
        with self.subTest(flags=flags):
            result = self.run_tool(layer, inputs, output, *flags)
            what = " ".join(flags)
            if result.returncode <= 0:
                self.fail("%s: a non-zero status expected: %s" % (what, self.describe(result)))
            lines = result.stderr.decode(errors="replace").splitlines()
            if not any((named or flags[0]) in line for line in lines):
                self.fail("%s: stderr must name %s: %s" % (what, named or flags[0], self.describe(result)))
            self.assertFalse(os.path.exists(output), "%s: OUTPUT was written" % what)

    def test_flags(self):
        self.refused("--nosuch")
        self.refused("--nosuch", "1")
        self.refused("--batches", "1")
        for flag in ("--backend", "--weights", "--tables", "--threads", "--batch"):
            self.refused(flag)  # without a value
            self.refused(flag, "nosuch")
            self.refused(flag, "")
        for flag in ("--threads", "--batch"):
            for value in ("x", "-1", "3x", "1.5", " ", "99999999999999999999", "0x"):
                self.refused(flag, value)
        self.refused("--batch", "0")
        self.refused("--backend", "Simd")
        self.refused("--weights", "f3")
        self.refused("--tables", "q8")

    def test_arguments(self):
        layer, inputs = write("layer", file_of(*good_layer("stem"))), write("input", file_of(good_input()))
        output = fresh_output()
        for arguments in ((), (layer,), (layer, inputs), (layer, inputs, output, output)):
            with self.subTest(count=len(arguments)):
                result = self.run_tool(*arguments)
                if result.returncode <= 0 or not result.stderr.strip():
                    self.fail("a non-zero status and a line on stderr expected: %s" % self.describe(result))
                self.assertFalse(os.path.exists(output))
