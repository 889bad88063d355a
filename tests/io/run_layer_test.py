#!/usr/bin/env python3
"""Black-box test of `run_layer` for the blocks mlp, glu, stem, stem_gate and stem_hybrid.

    run_layer_test.py RUN_LAYER [--backend B ...] [--threads N] [--keep DIR] [-k TEXT] [-v]

The expected values are computed here, in numpy and float64, straight from the formulas of the
specification ("What the layers compute", sections 1, 2.1, 2.2 and 5); the tolerance is derived in
`evaluate` below.  Needs Python 3.9 and numpy; without numpy it prints a line and exits with 77.
--backend: the backends to test (default: reference eigen simd); --threads: the second thread count
beside 1 (default 2); --keep: leave all files in DIR; -k: only the tests whose name contains TEXT.

What the specification leaves open, and what this test takes it to mean
  * Default activation: gelu for mlp, silu for glu (2.1 names none) and for the three STEM blocks
    (2.2: phi = silu).  Every activation of section 1 is valid for every block.
  * Optional biases: `gate_proj.bias (f)`, `up_proj.bias (f)`, `down_proj.bias (d)`, in any subset, also
    in the STEM blocks where the block has that projection.  `stem_embed.bias` is an unused tensor.
  * `token_ids` is optional where no table reads it (mlp, glu); if present it must have length T, and
    its (non-negative) values do not matter.  Tensors may differ in dtype within one file.
  * T = 0 is valid, and x must still have d columns.  A dimension of zero in LAYER is an error.
  * token_ids and x must have exactly the ranks that section 5 gives (1 and 2), x only F32, token_ids
    only I32 or I64.  F64 or integer weights are errors.
  * An id out of range is an error in INPUT: the line has `token_ids` and the id in decimal.
  * Where shapes contradict each other, the line may name any one of the tensors that disagree.
  * Structural errors (truncation, header length, broken JSON) need only the path; everything that
    concerns one tensor needs the path and the tensor's name, everything that concerns an option the
    path and the key (and the value, for a bad value of `block` or `activation`).
  * The path is printed as it was given.  No other file may be left beside OUTPUT after a failure.
  * OUTPUT that exists is replaced on success, unchanged after a failure; with an OUTPUT that cannot be
    written the status is 1 and the line names OUTPUT.
  * OUTPUT holds exactly one tensor, `y`.  What a successful run prints is not looked at.
  * The command line: wrong flags and values give a non-zero status (1 or not) and some line on stderr
    that names the flag; usage lines around it are allowed.
  * A safetensors file need not be padded or aligned, tensors may lie in any order, and JSON
    escapes and white space in the header are valid.
  * `--backend reference` computes in double throughout and rounds y once; the other backends compute
    in float32 or better (no TF32, no bfloat16 products).  Outputs of different --batch and --threads
    are required to be bitwise equal on `simd` only.
Not tested because open: options that exist but do not belong to the block (`top_k` on glu), other
metadata such as `format`, further tensors in INPUT, holes or trailing bytes in the data section, NaN
and infinity, `--threads 0`, `--flag=value`, flags before the paths, repeated flags, missing token_ids
at T = 0.  --weights and --tables are tested only for refusing unknown names.
"""

import argparse
import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest

try:
    import numpy as np
except ImportError:
    np = None


# ---------------------------------------------------------------------------------------------------
# safetensors: 8 bytes little-endian header length, JSON header, data

DTYPE_SIZE = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4}


def encode(a, dtype):
    """The bytes of array `a` stored as `dtype`."""
    a = np.asarray(a)
    if dtype == "BF16":
        bits = np.ascontiguousarray(a, dtype="<f4").view("<u4").astype(np.uint64)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to nearest, ties to even
        return bits.astype("<u2").tobytes()
    kind = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4"}[dtype]
    return np.ascontiguousarray(a).astype(kind).tobytes()


def decode(raw, dtype, shape):
    if dtype == "BF16":
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4").reshape(shape)
    kind = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4"}[dtype]
    return np.frombuffer(raw, kind).reshape(shape)


def rounded(a, dtype):
    """What a reader of `a` stored as `dtype` sees, in float64."""
    a = np.asarray(a)
    return decode(encode(a, dtype), dtype, a.shape).astype(np.float64)


def header_of(tensors, metadata=None):
    """(header dict, data) of `tensors`, a dict of name -> (array, dtype), in that order."""
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, (a, dtype) in tensors.items():
        raw = encode(a, dtype)
        header[name] = {"dtype": dtype, "shape": list(np.shape(a)), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return header, data


def raw_file(header, data, length=None, pad=True):
    """A file's bytes; `header` is a dict or literal text, `length` overrides the header length."""
    text = (header if isinstance(header, str) else json.dumps(header, separators=(",", ":"))).encode()
    if pad:
        text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def file_of(tensors, metadata=None):
    return raw_file(*header_of(tensors, metadata))


def parse(raw):
    """name -> (dtype, shape, bytes); raises ValueError on anything that is not sound safetensors."""
    if len(raw) < 8:
        raise ValueError("only %d bytes" % len(raw))
    (n,) = struct.unpack("<Q", raw[:8])
    if n > len(raw) - 8:
        raise ValueError("header length %d in a file of %d bytes" % (n, len(raw)))
    header, data = json.loads(raw[8 : 8 + n].decode()), raw[8 + n :]
    header.pop("__metadata__", None)
    out, at = {}, 0
    for name, t in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = t["data_offsets"]
        size = DTYPE_SIZE[t["dtype"]] * math.prod(t["shape"])
        if begin != at or end - begin != size or end > len(data):
            raise ValueError("tensor %s: offsets %d..%d, expected %d..%d of %d" % (name, begin, end, at, at + size, len(data)))
        out[name] = (t["dtype"], t["shape"], data[begin:end])
        at = end
    if at != len(data):
        raise ValueError("%d bytes after the last tensor" % (len(data) - at))
    return out


# ---------------------------------------------------------------------------------------------------
# The reference

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "sigmoid", "identity")

#            projections, token table, default activation
BLOCKS = {
    "mlp": (("up", "down"), False, "gelu"),
    "glu": (("gate", "up", "down"), False, "silu"),
    "stem": (("gate", "down"), True, "silu"),
    "stem_gate": (("up", "down"), True, "silu"),
    "stem_hybrid": (("gate", "up", "down"), True, "silu"),
}

# Upper bounds of |phi'|.
LIPSCHITZ = {"silu": 1.1, "gelu": 1.13, "gelu_tanh": 1.13, "relu": 1.0, "sigmoid": 0.25, "identity": 1.0}

U32, U64 = 2.0**-24, 2.0**-53


def sigmoid(z):
    e = np.exp(-np.abs(z))
    return np.where(z >= 0, 1.0 / (1.0 + e), e / (1.0 + e))


def phi(name, z):
    if name == "silu":
        return z * sigmoid(z)
    if name == "gelu":
        return z / 2 * (1 + np.vectorize(math.erf, otypes=[np.float64])(z / math.sqrt(2)))
    if name == "gelu_tanh":
        return z / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    if name == "relu":
        return np.maximum(z, 0.0)
    if name == "sigmoid":
        return sigmoid(z)
    if name == "identity":
        return z
    raise ValueError(name)


def evaluate(block, act, w, x, ids):
    """(y, {u: bound on the error of y computed with unit roundoff u}); `w` holds float64 arrays.

    Derivation of the bound.  Notation: u unit roundoff, v~ the computed value of v, E(v) >= |v~ - v|.

    1. Dot product.  s = sum_k a_k b_k (+ further terms c) in any order of summation, fused or not: each of the
       K products and the c terms passes through at most n = K + (number of further terms) roundings, so
           |s~ - s| <= gamma_n (sum|a_k||b_k| + |c|),   gamma_n = n u / (1 - n u).
       A first projection has K = d, exact inputs (x and the weights are stored values that float32
       holds exactly), and as further terms its bias and, in stem_hybrid, U[t].
       Underflow of single terms adds at most n * 2^-126 (flushed to zero).
    2. Activation.  phi~(z~) differs from phi(z) by at most
           E(phi) = L E(z) + c u A,   L the Lipschitz constant,
       where A bounds the size of the intermediate values: silu, gelu and gelu_tanh are z s with s in [0, 1], s
       being computed as (1 + erf)/2, (1 + tanh)/2 or 1/(1 + exp(-z)) to an *absolute* error of a few u
       (erf, tanh: 2 ulp -> 2u; the sum: 2u; halved; the rounded argument a: a erf'(a) u < u/2; the
       product with z: u; together below 4u), hence A = |z~| and c = 4, for sigmoid A = 1.  relu and
       identity round nothing: c = 0.  c is doubled to 8, the only slack in the bound.
    3. Product.  h = p m:  E(h) = (|p| + E(p)) E(m) + E(p) |m| + u (|p| + E(p)) (|m| + E(m)).  A table's
       row is exact: E = 0.
    4. Down projection: y = sum_j h_j W_j + b.  The error of h is carried over, the sum adds its own:
           E(y) = sum_j E(h_j) |W_j| + gamma_n (sum_j (|h_j| + E(h_j)) |W_j| + |b|),   n = f (+ 1 for the bias).

    The same formulas with u = 2^-53 bound the double computations, this one included.
    """
    units = (U32, U64)

    def gamma(n, u):
        return n * u / (1 - n * u)

    def project(name, a, errors, extra=None):
        """a W^T + b + extra, and its error bounds, for inputs with the given error bounds."""
        weight, bias = w[name + "_proj.weight"], w.get(name + "_proj.bias")
        terms = [t for t in (bias, extra) if t is not None]
        z, size, n = a @ weight.T, np.abs(a) @ np.abs(weight).T, weight.shape[1] + len(terms)
        for t in terms:
            z, size = z + t, size + np.abs(t)
        bounds = {}
        for u in units:
            carried = errors[u] @ np.abs(weight).T
            bounds[u] = carried + gamma(n, u) * (size + carried) + n * 2.0**-126
        return z, bounds

    def activate(z, errors):
        bounds = {}
        for u in units:
            scale = {"relu": 0.0, "identity": 0.0, "sigmoid": 1.0}.get(act, np.abs(z) + errors[u])
            bounds[u] = LIPSCHITZ[act] * errors[u] + 8 * u * scale
        return phi(act, z), bounds

    def multiply(p, ep, m, em):
        bounds = {}
        for u in units:
            big = np.abs(p) + ep[u]
            bounds[u] = big * em[u] + ep[u] * np.abs(m) + u * big * (np.abs(m) + em[u])
        return p * m, bounds

    exact_x = {u: np.zeros_like(x) for u in units}
    rows = w["stem_embed.weight"][ids] if BLOCKS[block][1] else None
    exact_rows = {u: np.zeros(rows.shape) for u in units} if rows is not None else None

    if block == "mlp":
        h, eh = activate(*project("up", x, exact_x))
    elif block == "glu":
        h, eh = multiply(*activate(*project("gate", x, exact_x)), *project("up", x, exact_x))
    elif block == "stem":
        h, eh = multiply(*activate(*project("gate", x, exact_x)), rows, exact_rows)
    elif block == "stem_gate":
        h, eh = multiply(*activate(rows, exact_rows), *project("up", x, exact_x))
    elif block == "stem_hybrid":
        h, eh = multiply(*activate(*project("gate", x, exact_x)), *project("up", x, exact_x, rows))
    else:
        raise ValueError(block)
    return project("down", h, eh)


def tolerance(backend, y, errors):
    if backend == "reference":  # the tool's error, this file's error, and one rounding to float32
        return 2 * errors[U64] + U32 * np.abs(y) + 1e-12 * np.abs(y) + 2.0**-149
    return errors[U32] + 2 * errors[U64]


# ---------------------------------------------------------------------------------------------------
# Test cases

BIASES_OF = {block: tuple(p + "_proj.bias" for p in spec[0]) for block, spec in BLOCKS.items()}


def bias_subsets(block):
    names = BIASES_OF[block]
    return [tuple(n for i, n in enumerate(names) if mask >> i & 1) for mask in range(2 ** len(names))]


class Case:
    """A layer, an input and the expected output.

    dtype: F32, F16, BF16 or mixed (the tensors take turns).  scale: multiplies what goes into phi.
    """

    counter = 0

    def __init__(self, block, act, size, biases=(), dtype="F32", id_dtype="I64", scale=1.0, with_ids=None):
        d, f, v, t = size
        projections, table, default = BLOCKS[block]
        self.block, self.act, self.size, self.biases = block, act, size, biases
        self.dtype, self.id_dtype, self.scale = dtype, id_dtype, scale
        Case.counter += 1
        rng = np.random.default_rng([Case.counter, d, f, v, t])

        shapes = {"gate": (f, d), "up": (f, d), "down": (d, f)}
        values = {}
        for p in projections:
            values[p + "_proj.weight"] = rng.normal(size=shapes[p]) * (2.0 if p != "down" else 1.0) / math.sqrt(shapes[p][1])
        for name in biases:
            values[name] = rng.normal(size=shapes[name.split("_")[0]][0])
        if table:
            values["stem_embed.weight"] = rng.normal(size=(v, f)) * 2.0
        source = {"mlp": "up_proj", "stem_gate": "stem_embed"}.get(block, "gate_proj")  # phi's argument
        for name in values:
            if name.startswith(source):
                values[name] = values[name] * scale

        order = ("F32", "BF16", "F16")
        names = [n for n in values]
        rng.shuffle(names)
        dtypes = {n: order[(i + Case.counter) % 3] if dtype == "mixed" else dtype for i, n in enumerate(names)}
        self.tensors = {n: (values[n].astype(np.float32), dtypes[n]) for n in names}
        self.metadata = {"block": block}
        if act is not None:
            self.metadata["activation"] = act

        x = rng.normal(size=(t, d)).astype(np.float32)
        ids = rng.integers(0, v, size=t)
        if t >= 2:  # both ends of the table, next to each other and far apart
            ids[0], ids[-1] = v - 1, 0
        if t >= 4:
            ids[1], ids[2] = 0, v - 1
        self.inputs = {"x": (x, "F32")}
        if table if with_ids is None else with_ids:
            self.inputs["token_ids"] = (ids, id_dtype)

        exact = {n: rounded(a, k) for n, (a, k) in self.tensors.items()}
        self.y, self.errors = evaluate(block, act or default, exact, x.astype(np.float64), ids)

    def __str__(self):
        return "%s, activation %s, d=%d f=%d V=%d T=%d, biases %s, dtype %s, ids %s%s" % (
            (self.block, self.act or "left out (%s)" % BLOCKS[self.block][2])
            + self.size
            + ("+".join(b.split("_")[0] for b in self.biases) or "none", self.dtype)
            + (self.id_dtype if "token_ids" in self.inputs else "absent",)
            + ("" if self.scale == 1.0 else ", phi's argument times %g" % self.scale,)
        )

    def write(self):
        return write("layer", file_of(self.tensors, self.metadata)), write("input", file_of(self.inputs))


class Settings:
    tool = None
    backends = ("reference", "eigen", "simd")
    threads = 2
    folder = None
    keep = False
    written = 0
    runs = 0


def write(stem, content):
    Settings.written += 1
    path = os.path.join(Settings.folder, "%s%d.safetensors" % (stem, Settings.written))
    with open(path, "wb") as file:
        file.write(content)
    return path


def fresh_output():
    Settings.written += 1
    folder = os.path.join(Settings.folder, "out%d" % Settings.written)
    os.mkdir(folder)
    return os.path.join(folder, "result.safetensors")


class RunLayerTest(unittest.TestCase):
    def run_tool(self, *arguments):
        command = [Settings.tool] + [str(a) for a in arguments]
        Settings.runs += 1
        try:
            return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        except subprocess.TimeoutExpired:
            self.fail("no end after 60 s: %s" % " ".join(command))

    def describe(self, result):
        ending = "status %d" % result.returncode if result.returncode >= 0 else "killed by signal %d" % -result.returncode
        return "%s\n  command: %s\n  stdout: %r\n  stderr: %r" % (
            ending,
            " ".join(result.args),
            result.stdout.decode(errors="replace"),
            result.stderr.decode(errors="replace"),
        )

    def output_of(self, what, layer, inputs, shape, *flags, output=None):
        """The raw bytes of `y` after a run that must succeed."""
        output = output or fresh_output()
        result = self.run_tool(layer, inputs, output, *flags)
        if result.returncode != 0:
            self.fail("%s: failed: %s" % (what, self.describe(result)))
        if not os.path.exists(output):
            self.fail("%s: status 0 without an OUTPUT: %s" % (what, self.describe(result)))
        with open(output, "rb") as file:
            raw = file.read()
        try:
            tensors = parse(raw)
        except Exception as error:
            self.fail("%s: OUTPUT is not sound: %s" % (what, error))
        self.assertEqual(sorted(tensors), ["y"], "%s: tensors in OUTPUT" % what)
        dtype, found, data = tensors["y"]
        self.assertEqual((dtype, found), ("F32", list(shape)), "%s: dtype and shape of y" % what)
        if not Settings.keep:
            shutil.rmtree(os.path.dirname(output))
        return data

    def check(self, case, backend, *flags, files=None):
        """Runs the case, compares with the reference, and returns the raw bytes of y."""
        what = "[%s] %s%s" % (backend, case, ", " + " ".join(str(f) for f in flags) if flags else "")
        layer, inputs = files or case.write()
        arguments = (("--backend", backend) if backend != "default" else ()) + flags
        raw = self.output_of(what, layer, inputs, case.y.shape, *arguments)
        self.compare(what, case, raw, backend)
        return raw

    def compare(self, what, case, raw, backend):
        got = np.frombuffer(raw, "<f4").reshape(case.y.shape).astype(np.float64)
        error, bound = np.abs(got - case.y), tolerance(backend, case.y, case.errors)
        bad = ~(error <= bound)  # NaN counts as bad
        if not bad.any():
            return
        ratio = np.where(np.isnan(error), np.inf, error) / bound
        first, worst = np.argwhere(bad)[0], np.unravel_index(np.argmax(ratio), ratio.shape)
        lines = ["%s: %d of %d elements of y are wrong (rows %s)" % (what, bad.sum(), bad.size, spans(bad.any(axis=1)))]
        for label, at in (("first", tuple(first)), ("worst", tuple(worst))):
            lines.append(
                "  %s: y[%d,%d] = %.9g, expected %.9g, error %.3g, bound %.3g, error/bound %.3g"
                % ((label,) + tuple(at) + (got[at], case.y[at], error[at], bound[at], ratio[at]))
            )
        if "token_ids" in case.inputs:
            lines.append("  token id of the first: %d" % case.inputs["token_ids"][0][first[0]])
        self.fail("\n".join(lines))

    def each(self, cases):
        """Every case on every backend."""
        for case in cases:
            files = case.write()
            for backend in Settings.backends:
                with self.subTest(backend=backend):
                    self.check(case, backend, files=files)


def spans(flags):
    rows = np.flatnonzero(flags)
    text = ", ".join(str(r) for r in rows[:8])
    return text + (", ..." if len(rows) > 8 else "")


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
        for block in BLOCKS:
            self.each(Case(block, act, (33, 31, 17, 17)) for act in ACTIVATIONS + (None,))

    def test_activations_on_large_arguments(self):
        # exp overflows float32 beyond 88; the arguments here reach about a thousand, of both signs
        for b, block in enumerate(BLOCKS):
            self.each(Case(block, act, (17, 33, 31, 3 + b), scale=150.0) for act in ACTIVATIONS)

    def test_activations_on_small_arguments(self):
        for b, block in enumerate(BLOCKS):
            self.each(Case(block, act, (17, 31, 3 + b, 3), scale=1e-4) for act in ACTIVATIONS)

    def test_sizes(self):
        for b, block in enumerate(BLOCKS):
            subsets = bias_subsets(block)
            self.each(
                Case(
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
        for b, block in enumerate(BLOCKS):
            self.each(Case(block, None, (31, 17 + b, 33, 3), subset) for subset in bias_subsets(block))

    def test_dtypes(self):
        for block in BLOCKS:
            for i, dtype in enumerate(DTYPES):
                biases = BIASES_OF[block] if i % 2 else ()
                self.each([Case(block, "silu", (64, 33, 130, 31), biases, dtype, ("I32", "I64")[i // 2])])

    def test_id_dtypes(self):
        for block in BLOCKS:
            if BLOCKS[block][1]:
                self.each(Case(block, None, (3, 17, 130, 33), id_dtype=k) for k in ("I32", "I64"))

    def test_token_ids_are_optional_without_a_table(self):
        for block in ("mlp", "glu"):
            self.each(Case(block, None, (3, 17, 130, 3), id_dtype=k, with_ids=True) for k in ("I32", "I64"))
            self.each([Case(block, None, (3, 17, 130, 3), with_ids=False)])

    def test_no_tokens(self):
        for block in BLOCKS:
            case = Case(block, None, (17, 31, 3, 0), BIASES_OF[block])
            files = case.write()
            for backend in Settings.backends:
                for flags in ((), ("--batch", 3), ("--threads", Settings.threads)):
                    with self.subTest(backend=backend, flags=flags):
                        self.assertEqual(self.check(case, backend, *flags, files=files), b"")

    def test_without_flags(self):
        for block in BLOCKS:
            with self.subTest(block=block):
                self.check(Case(block, None, (33, 64, 17, 31), BIASES_OF[block]), "default")

    def test_an_older_output_is_replaced(self):
        case = Case("stem", None, (3, 17, 31, 3))
        layer, inputs = case.write()
        output = fresh_output()
        with open(output, "wb") as file:
            file.write(b"older and longer " * 1000)
        raw = self.output_of(str(case), layer, inputs, case.y.shape, output=output)
        self.compare(str(case), case, raw, "default")

    def test_file_layouts(self):
        """Unpadded headers, unaligned tensors, escapes and white space in the JSON, metadata in the last place."""
        for block in BLOCKS:
            for shift in range(4):
                case = Case(block, "silu", (3, 17, 31, 3), BIASES_OF[block], "mixed" if shift else "F32")
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
        case = Case("stem_hybrid", None, (3, 17, 31, 5), id_dtype="I32")
        case.inputs = dict(reversed(list(case.inputs.items())))
        self.each([case])

    def test_batches_and_threads(self):
        """Right for every --batch and --threads; on simd also bitwise the same."""
        sizes = ((33, 31, 17, 33), (130, 64, 31, 130), (3, 17, 130, 64), (257, 520, 33, 130))
        for b, block in enumerate(BLOCKS):
            for i, size in enumerate(sizes):
                case = Case(block, ACTIVATIONS[(b + i) % 4], size, bias_subsets(block)[i], DTYPES[(b + i) % 4], ("I64", "I32")[i % 2])
                files = case.write()
                for backend in Settings.backends:
                    first = None
                    for threads in (1, Settings.threads):
                        for batch in (1, 3, None):
                            if backend != "simd" and (i > 1 or (threads == 1) != (batch == 3)):
                                continue
                            flags = ("--threads", threads) + (("--batch", batch) if batch else ())
                            with self.subTest(backend=backend, flags=flags):
                                raw = self.check(case, backend, *flags, files=files)
                                if backend != "simd":
                                    continue
                                if first is None:
                                    first = (flags, raw)
                                elif raw != first[1]:
                                    self.fail(self.difference(case, backend, first, (flags, raw)))

    def test_batches_of_every_kind_on_simd(self):
        if "simd" not in Settings.backends:
            self.skipTest("without simd")
        for block in BLOCKS:
            case = Case(block, None, (31, 33, 17, 31), BIASES_OF[block])
            files, first = case.write(), None
            for batch in (1, 2, 4, 5, 7, 8, 9, 16, 30, 31, 32, 1000):
                flags = ("--batch", batch)
                with self.subTest(block=block, batch=batch):
                    raw = self.check(case, "simd", *flags, files=files)
                    first = first or (flags, raw)
                    if raw != first[1]:
                        self.fail(self.difference(case, "simd", first, (flags, raw)))

    def difference(self, case, backend, one, other):
        a, b = (np.frombuffer(r[1], "<u4").reshape(case.y.shape) for r in (one, other))
        at = tuple(np.argwhere(a != b)[0])
        return "[%s] %s: not bitwise equal: %d of %d elements differ (rows %s), first y[%d,%d] = %.9g with %s but %.9g with %s" % (
            (backend, case, (a != b).sum(), a.size, spans((a != b).any(axis=1)))
            + tuple(int(i) for i in at)
            + (a.view("<f4")[at], " ".join(map(str, one[0])), b.view("<f4")[at], " ".join(map(str, other[0])))
        )


# ---------------------------------------------------------------------------------------------------
# Bad input

D, F, V, T = 3, 5, 7, 4


def ramp(*shape):
    n = math.prod(shape)
    return (np.arange(n, dtype=np.float32).reshape(shape) + 1) / max(n, 1)


def good_layer(block, dtype="F32"):
    projections, table, _ = BLOCKS[block]
    tensors = {p + "_proj.weight": (ramp(*((D, F) if p == "down" else (F, D))), dtype) for p in projections}
    if table:
        tensors["stem_embed.weight"] = (ramp(V, F), dtype)
    return tensors, {"block": block}


def good_input():
    return {"x": (ramp(T, D), "F32"), "token_ids": (np.array([0, 6, 3, 3]), "I64")}


class BadInput(RunLayerTest):
    def bad(self, what, layer, inputs, offender, names=(), any_of=(), flags=None, output=None):
        """layer, inputs: bytes to write or a path.  offender: layer, input or output, whose path the line must have.

        names: words that the line must have; any_of: words of which it must have one.
        Once without an older OUTPUT on the first backend, once with one on the last.
        """
        layer = write("layer", layer) if isinstance(layer, bytes) else layer
        inputs = write("input", inputs) if isinstance(inputs, bytes) else inputs
        runs = ((False, Settings.backends[0]), (True, Settings.backends[-1]))
        if flags is not None or output is not None:
            runs = ((False, None), (True, None)) if output is None else ((False, None),)
        for older, backend in runs:
            with self.subTest(what=what):
                target = output or fresh_output()
                folder = os.path.dirname(target)
                if older:
                    with open(target, "wb") as file:
                        file.write(b"older content")
                before = sorted(os.listdir(folder)) if os.path.isdir(folder) else None
                chosen = (("--backend", backend) if backend else ()) + (flags or ())
                result = self.run_tool(layer, inputs, target, *chosen)
                self.judge(what, result, {"layer": layer, "input": inputs, "output": target}, offender, names, any_of)
                after = sorted(os.listdir(folder)) if os.path.isdir(folder) else None
                if before != after:
                    self.fail("%s: OUTPUT's folder held %s, now %s: %s" % (what, before, after, self.describe(result)))
                if older:
                    with open(target, "rb") as file:
                        self.assertEqual(file.read(), b"older content", "%s: OUTPUT was changed" % what)

    def judge(self, what, result, paths, offender, names, any_of):
        def complain(text):
            self.fail("%s: %s: %s" % (what, text, self.describe(result)))

        if result.returncode != 1:
            complain("status 1 expected")
        if result.stdout:
            complain("stdout must be empty")
        text = result.stderr.decode(errors="replace")
        lines = text.splitlines()
        if len(lines) != 1 or not lines[0].strip():
            complain("exactly one non-empty line on stderr expected")
        if paths[offender] not in text:
            complain("the line must have %s's path %s" % (offender.upper(), paths[offender]))
        for path in paths.values():
            text = text.replace(path, " <path> ")
        for name in names:
            if not has_word(text, name):
                complain("the line must have %r beside the path" % name)
        if any_of and not any(has_word(text, name) for name in any_of):
            complain("the line must have one of %s beside the path" % ", ".join(any_of))

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
        for block in BLOCKS:
            for backend in Settings.backends:
                with self.subTest(block=block, backend=backend):
                    layer, inputs = write("layer", file_of(*good_layer(block))), write("input", file_of(good_input()))
                    self.output_of("unchanged " + block, layer, inputs, (T, D), "--backend", backend)

    # --- metadata

    def test_metadata(self):
        tensors, _ = good_layer("glu")
        self.bad_layer("no __metadata__", file_of(tensors), any_of=("block", "__metadata__"))
        self.bad_layer("empty __metadata__", file_of(tensors, {}), any_of=("block",))
        self.bad_layer("no block key", file_of(tensors, {"activation": "silu"}), ("block",))
        self.bad_layer("unknown block", file_of(tensors, {"block": "frobnicate"}), ("block", "frobnicate"))
        self.bad_layer("empty block", file_of(tensors, {"block": ""}), ("block",))
        self.bad_layer("block is a number", file_of(tensors, {"block": 3}))
        for block in BLOCKS:
            self.bad_layer(block + ": unknown option", self.changed(block, metadata={"activaton": "silu"}), ("activaton",))
            self.bad_layer(block + ": unknown option", self.changed(block, metadata={"wobble": "1"}), ("wobble",))
            self.bad_layer(block + ": unknown activation", self.changed(block, metadata={"activation": "swoosh"}), ("activation", "swoosh"))
        self.bad_layer("empty activation", self.changed("glu", metadata={"activation": ""}), ("activation",))
        self.bad_layer("longer activation", self.changed("glu", metadata={"activation": "silu2"}), ("activation", "silu2"))

    # --- tensors

    def test_missing_tensor(self):
        for block in BLOCKS:
            for name in good_layer(block)[0]:
                self.bad_layer("%s without %s" % (block, name), self.changed(block, remove=[name]), (name,))

    def test_unused_tensor(self):
        for block, (projections, table, _) in BLOCKS.items():
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
        for block in BLOCKS:
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
        for block in BLOCKS:
            for name in BIASES_OF[block]:
                n = D if name.startswith("down") else F
                for a in (ramp(n + 1), ramp(n - 1), ramp(1), ramp(1, n), ramp(n, 1), ramp(), ramp(0)):
                    layer = self.changed(block, {name: (a, "F32")})
                    self.bad_layer("%s: %s of shape %s" % (block, name, a.shape), layer, (name,))

    def test_types_that_are_not_weights(self):
        for block in BLOCKS:
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
        for block in ("mlp", "stem_hybrid"):
            for what, raw, names in self.containers(*good_layer(block)):
                self.bad_layer("%s: LAYER: %s" % (block, what), raw, any_of=names)

    def test_broken_input_file(self):
        layer = file_of(*good_layer("stem"))
        for what, raw, names in self.containers(good_input(), None):
            self.bad("stem: INPUT: " + what, layer, raw, "input", any_of=names)

    # --- INPUT

    def test_x(self):
        for block in BLOCKS:
            self.bad_inputs("x of width 29", block, {"x": (ramp(T, 29), "F32")}, ("x", "29"))
        for block in ("glu", "stem"):
            self.bad_inputs("x of width 1", block, {"x": (ramp(T, 1), "F32")}, ("x",))
            self.bad_inputs("x of width 0", block, {"x": (ramp(T, 0), "F32")}, ("x",))
            self.bad_inputs("x (0,29)", block, {"x": (ramp(0, 29), "F32"), "token_ids": (np.zeros(0), "I64")}, ("x", "29"))
            self.bad_inputs("x missing", block, {}, ("x",), remove=["x"])
            for dtype in ("F16", "BF16", "F64", "I32"):
                self.bad_inputs("x as " + dtype, block, {"x": (ramp(T, D), dtype)}, ("x",))
            for shape in ((T * D,), (T, D, 1), (1, T, D), ()):
                self.bad_inputs("x of shape %s" % (shape,), block, {"x": (ramp(*shape), "F32")}, ("x",))

    def test_token_ids(self):
        for block in BLOCKS:
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
        for b, block in enumerate(k for k in BLOCKS if BLOCKS[k][1]):
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


def has_word(text, word):
    """`word` in `text`, and not as a part of a longer word or number (but 29 is in 4x29)."""
    pattern = r"(?<![\d-])%s(?!\d)" if re.fullmatch(r"-?\d+", word) else r"(?<![\w-])%s(?!\w)"
    return re.search(pattern % re.escape(word), text) is not None


class CommandLine(RunLayerTest):
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


# ---------------------------------------------------------------------------------------------------


class Result(unittest.TextTestResult):
    """Shows the first few failures of each test method only: a common fault fails hundreds."""

    shown = 5

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.count = {}

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.count[test.id()] = self.count.get(test.id(), 0) + 1
            if self.count[test.id()] > self.shown:
                return
        super().addSubTest(test, subtest, error)

    def printErrors(self):
        super().printErrors()
        for name, n in self.count.items():
            if n > self.shown:
                self.stream.writeln("%s: %d failures, the first %d shown" % (name, n, self.shown))


def main():
    if np is None:
        print("SKIPPED: numpy is not installed")
        return 77
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_layer", metavar="RUN_LAYER")
    parser.add_argument("--backend", nargs="+", action="extend", metavar="B")
    parser.add_argument("--threads", type=int, default=2, metavar="N")
    parser.add_argument("--keep", metavar="DIR")
    parser.add_argument("-k", metavar="TEXT")
    parser.add_argument("-v", action="store_true")
    options = parser.parse_args()
    Settings.tool = os.path.abspath(options.run_layer)
    if not os.path.isfile(Settings.tool):
        parser.error("%s does not exist" % options.run_layer)
    Settings.backends = tuple(options.backend or Settings.backends)
    Settings.threads = options.threads

    loader = unittest.TestLoader()
    if options.k:
        loader.testNamePatterns = ["*%s*" % options.k]
    suite = loader.loadTestsFromModule(sys.modules["__main__"])
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="run layer ") as folder:  # the blank is on purpose
        if options.keep:
            os.makedirs(options.keep, exist_ok=True)
            folder, Settings.keep = os.path.abspath(options.keep), True
        Settings.folder = folder
        runner = unittest.TextTestRunner(verbosity=2 if options.v else 1, resultclass=Result)
        result = runner.run(suite)
    print("%d runs of %s in %.1f s" % (Settings.runs, options.run_layer, time.monotonic() - begin))
    return 0 if result.wasSuccessful() and result.testsRun else 1


if __name__ == "__main__":
    sys.exit(main())
