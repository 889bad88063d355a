"""run_layer on names that no one would print, deep nesting, and an OUTPUT that is an input or has a long name."""

import json
import os

import numpy as np

from run_layer_cases import TreeCase, good_input, good_layer, ramp
from run_layer_composite import glu, mlp, parallel, retoken
from run_layer_files import file_of, header_of, raw_file
from run_layer_harness import RefusalTest, RunLayerTest, Settings, composite, fresh_output, write

# what a terminal would obey, what ends a line, what is not ASCII, and what fills the screen
ODD = (
    "surplus\nweight",
    "surplus\r\nweight",
    "surplus\x1b[2Jweight",
    "surplus\x07\x08\x00weight",
    "surplus\x7fweight",
    "surplus\u00e9\u2028\U0001f36bweight",
    "surplus\u009b31mweight",
    "surplus" + 100000 * "x",
    "surplus" + 100000 * "\n",
    "surplus" + 100000 * "\u00e9",
)


class Names(RefusalTest):
    twice = False

    def setUp(self):
        self.needs("glu")

    def odd(self, what, layer, inputs=None, offender="layer"):
        """The line must have a part of the name that is plain, so that a reader can find it."""
        inputs = file_of(good_input()) if inputs is None else inputs
        layer = write("layer", layer)
        inputs = write("input", inputs)
        for backend in Settings.backends:
            target = fresh_output()
            with self.subTest(what=what, backend=backend):
                result = self.run_tool(layer, inputs, target, "--backend", backend)
                self.judge(what, result, {"layer": layer, "input": inputs, "output": target}, offender, (), ())
                self.assertIn(b"surplus", result.stderr, what)
                self.assertFalse(os.path.exists(target))

    def test_the_unchanged_file_is_good(self):
        layer, inputs = write("layer", file_of(*good_layer("glu"))), write("input", file_of(good_input()))
        for backend in Settings.backends:
            self.output_of("glu", layer, inputs, {"y": ("F32", (4, 3))}, "--backend", backend)

    def test_tensors(self):
        tensors, metadata = good_layer("glu")
        for name in ODD:
            self.odd("unused tensor %.20r" % name, file_of(dict(tensors, **{name: (ramp(2), "F32")}), metadata))

    def test_broken_entries(self):
        """Names that the reading of the container meets first."""
        tensors, metadata = good_layer("glu")
        for name in ODD:
            header, data = header_of(dict(tensors, **{name: (ramp(2), "F32")}), metadata)
            header[name]["dtype"] = "F24"
            self.odd("LAYER: dtype of %.20r" % name, raw_file(header, data))
            header, data = header_of(dict(good_input(), **{name: (ramp(2), "F32")}))
            header[name]["dtype"] = "F24"
            self.odd("INPUT: dtype of %.20r" % name, file_of(tensors, metadata), raw_file(header, data), "input")

    def test_values_in_the_header(self):
        tensors, metadata = good_layer("glu")
        for name in ODD:
            header, data = header_of(tensors, metadata)
            header["up_proj.weight"]["dtype"] = name
            layer, inputs = write("layer", raw_file(header, data)), write("input", file_of(good_input()))
            self.bad("dtype %.20r" % name, layer, inputs, "layer", ("up_proj.weight",))

    def test_options(self):
        tensors, metadata = good_layer("glu")
        for name in ODD:
            self.odd("option %.20r" % name, file_of(tensors, dict(metadata, **{name: "1"})))
            for key in ("block", "activation", "up_proj.weight.format"):
                inputs = file_of(good_input())
                what = "%s = %.20r" % (key, name)
                self.bad(what, file_of(tensors, dict(metadata, **{key: name})), inputs, "layer", (key,))

    def test_names_of_nested_blocks(self):
        if {"parallel"} <= set(composite()):
            case = TreeCase(parallel(glu(5), mlp(4)), (3, 7, 4))
            for name in ODD:
                full = "branch.1." + name
                self.odd("unused %.30r" % full, file_of(dict(case.tensors, **{full: (ramp(2), "F32")}), case.metadata))


class Nesting(RefusalTest):
    twice = False

    def nested(self, depth, kind="retoken"):
        spec = mlp(5)
        for _ in range(depth):
            spec = retoken(spec) if kind == "retoken" else parallel(spec)
        return spec

    def test_twenty(self):
        for kind in ("retoken", "parallel"):
            if kind in composite():
                for depth in (2, 20):
                    case = TreeCase(self.nested(depth, kind), (4, 7, 5))
                    files = case.write()
                    for backend in Settings.backends:
                        with self.subTest(kind=kind, depth=depth, backend=backend):
                            self.check(case, backend, files=files)

    def test_three_thousand(self):
        """The metadata alone says so: 22 MB of keys, as each repeats the prefix of the one above it."""
        self.needs("retoken")
        inputs = write("input", file_of(good_input()))
        for depth in (500, 3000):
            metadata = {"base." * i + "block": "retoken" for i in range(depth)}
            metadata["base." * depth + "block"] = "mlp"
            layer = write("layer", file_of({}, metadata))
            self.bad("%d nested blocks" % depth, layer, inputs, "layer")
            os.remove(layer)

    def test_five_hundred_whole(self):
        """Every tensor is there: whether it is refused is open, how is not."""
        self.needs("retoken")
        depth = 500
        metadata = {"base." * i + "block": "retoken" for i in range(depth)}
        metadata["base." * depth + "block"] = "mlp"
        tensors = {}
        for i in range(depth):
            tensors["base." * i + "modulators.weight"] = (ramp(7, 3), "F32")
            tensors["base." * i + "scale"] = (np.zeros(3, np.float32), "F32")
        up, down = ramp(5, 3), ramp(3, 5)
        tensors["base." * depth + "up_proj.weight"], tensors["base." * depth + "down_proj.weight"] = (up, "F32"), (down, "F32")
        layer, inputs, target = write("layer", file_of(tensors, metadata)), write("input", file_of(good_input())), fresh_output()
        result = self.run_tool(layer, inputs, target)
        if result.returncode == 0:
            self.output_of("500 nested blocks", layer, inputs, {"y": ("F32", (4, 3))})
        else:
            self.judge("500 nested blocks", result, {"layer": layer, "input": inputs, "output": target}, "layer", (), ())
            self.assertFalse(os.path.exists(target))


class Outputs(RefusalTest):
    def setUp(self):
        self.needs("glu")

    def files(self):
        """LAYER and INPUT in a folder of their own."""
        folder = os.path.dirname(fresh_output())
        paths = [os.path.join(folder, name) for name in ("layer.safetensors", "input.safetensors")]
        for path, content in zip(paths, (file_of(*good_layer("glu")), file_of(good_input()))):
            with open(path, "wb") as file:
                file.write(content)
        return folder, paths

    def test_an_output_that_is_an_input(self):
        for backend in Settings.backends:
            for i, offender in enumerate(("layer", "input")):
                for between in ("", ".", os.path.join("..", "%s")):
                    folder, paths = self.files()
                    if "%s" in between:
                        between %= os.path.basename(folder)
                    target = os.path.join(folder, between, os.path.basename(paths[i]))
                    what = "[%s] OUTPUT is %s, as %r" % (backend, offender.upper(), target)
                    with self.subTest(what=what):
                        contents = [open(path, "rb").read() for path in paths]
                        result = self.run_tool(*paths, target, "--backend", backend)
                        # the line may name the one file by either of its names
                        named = target if target.encode() in result.stderr else paths[i]
                        self.judge(what, result, {"layer": paths[0], "input": paths[1], "output": named}, "output", (), ())
                        self.assertEqual([open(path, "rb").read() for path in paths], contents, what)
                        self.assertEqual(sorted(os.listdir(folder)), ["input.safetensors", "layer.safetensors"], what)

    def test_the_files_are_good_otherwise(self):
        folder, paths = self.files()
        target = os.path.join(folder, "other.safetensors")
        result = self.run_tool(*paths, target)
        self.assertEqual(result.returncode, 0, self.describe(result))
        self.assertEqual(sorted(os.listdir(folder)), ["input.safetensors", "layer.safetensors", "other.safetensors"])


class LongNames(RunLayerTest):
    def test_an_output_of_250_characters(self):
        """255 is what file systems take; what is written first must not have a longer name."""
        self.needs("glu")
        layer, inputs = write("layer", file_of(*good_layer("glu"))), write("input", file_of(good_input()))
        for backend in Settings.backends:
            for length in (200, 240, 250, 255):
                for older in (False, True):
                    folder = os.path.dirname(fresh_output())
                    target = os.path.join(folder, "y" * (length - len(".safetensors")) + ".safetensors")
                    if older:
                        with open(target, "wb") as file:
                            file.write(b"older content")
                    with self.subTest(backend=backend, length=length, older=older):
                        result = self.run_tool(layer, inputs, target, "--backend", backend)
                        self.assertEqual(result.returncode, 0, self.describe(result))
                        self.assertEqual(os.listdir(folder), [os.path.basename(target)])
                        with open(target, "rb") as file:
                            content = file.read()
                        self.assertIn("y", json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]))
