#!/usr/bin/env python3
"""run_sequence, black box: rows by the last ids, the short convolution and delayed blocks.

    run_sequence_test.py RUN_SEQUENCE

A second implementation in Python's whole numbers and numpy's doubles, written from docs/layer_files.md alone. Many
sequences in one file, calls of any number of tokens, ids that end a sequence, odd sizes, and bad input: one line that names
the file, and no OUTPUT. Needs numpy; without it, 77.
"""
import math
import pathlib
import re
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    print("skipped: numpy is missing")
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from run_layer_files import decode, file_of, parse

TOOL = sys.argv[1]
FOLDER = pathlib.Path(tempfile.mkdtemp())
RANDOM = np.random.default_rng(5)
faults = []


def check(good, text):
    if not good:
        faults.append(text)
        print("FAILED:", text)


def tool(layer, metadata, given, *flags):
    """(the finished process, the tensors of OUTPUT or None, the names of the two files)"""
    paths = [FOLDER / name for name in ("layer.safetensors", "input.safetensors", "output.safetensors")]
    paths[0].write_bytes(layer if isinstance(layer, bytes) else file_of(layer, metadata))
    paths[1].write_bytes(given if isinstance(given, bytes) else file_of(given))
    paths[2].unlink(missing_ok=True)
    done = subprocess.run([TOOL, *paths, *map(str, flags)], capture_output=True, text=True, timeout=60)
    output = None
    if paths[2].exists():
        output = {name: decode(raw, dtype, shape) for name, (dtype, shape, raw) in parse(paths[2].read_bytes()).items()}
    return done, output, paths


def good(what, layer, metadata, given, *flags):
    done, output, _ = tool(layer, metadata, given, *flags)
    check(done.returncode == 0 and output is not None, "%s: %d %s" % (what, done.returncode, done.stderr))
    return output or {}


def bad(what, layer, metadata, given, which, *words, flags=()):
    done, output, paths = tool(layer, metadata, given, *flags)
    check(done.returncode == 1 and output is None, "%s: status %d, OUTPUT %s" % (what, done.returncode, output is not None))
    check(re.fullmatch(r"[ -~]+\n", done.stderr) is not None, "%s: one line of ASCII, not %r" % (what, done.stderr))
    for word in ((str(paths["layer input".split().index(which)]),) if which else ()) + words:
        check(word in done.stderr, "%s: %r lacks %r" % (what, done.stderr, word))


# ---- the formulas


def window(ids, sequence, t, n, end, end_counts):
    """The n ids up to place t of its sequence, the last first; None where there is none."""
    seen = [i for i, s in zip(ids[:t], sequence[:t]) if s == sequence[t]]
    out, cut = [ids[t]], False
    for k in range(1, n):
        one = None if cut or k > len(seen) else seen[-k]
        if one is not None and one == end:
            cut = True
            one = one if end_counts else None
        out.append(one)
    return out


def engram_rows(ids, sequence, compressed, multipliers, primes, pad, end, unsigned):
    rows = []
    for n, of_n in enumerate(primes, 2):
        for prime in of_n:
            row = []
            for t in range(len(ids)):
                mix = 0
                for one, m in zip(window(ids, sequence, t, n, end, True), multipliers):
                    mix ^= (pad if one is None else compressed[one]) * m % 2**64
                if not unsigned and mix >= 2**63:
                    mix -= 2**64
                row.append(mix % prime)  # from 0 up, in Python
            rows.append(row)
    return rows


def longcat_rows(ids, sequence, vocab, ratio, longest, per_length, end):
    rows = []
    for i in range((longest - 1) * per_length):
        m, n = ratio * vocab + 2 * i + 1, 2 + i // per_length
        windows = [window(ids, sequence, t, n, end, False) for t in range(len(ids))]
        rows.append([sum((one or 0) * vocab**k for k, one in enumerate(w)) % m for w in windows])
    return rows


def convolved(v, sequence, weight, norm, dilation, eps):
    """(y, a bound of the error of f32)"""
    taps = weight.shape[1]
    u = v / np.sqrt(np.mean(v * v, -1, keepdims=True) + eps) * norm
    y, size = np.array(v), np.abs(v)
    for t in range(len(v)):
        own = [s for s in range(t + 1) if sequence[s] == sequence[t]]
        total, terms = np.zeros(v.shape[1]), np.zeros(v.shape[1])
        for j in range(taps):
            back = (taps - 1 - j) * dilation
            if back < len(own):
                total = total + weight[:, j] * u[own[-1 - back]]
                terms = terms + np.abs(weight[:, j] * u[own[-1 - back]])
        y[t] = v[t] + total / (1 + np.exp(-total))
        size[t] += (taps + 8) * terms  # |silu'| <= 1.1; u is off by 4 roundings, the sum by one a tap, silu by a few
    return y, 2.0**-23 * size + 1e-37


# ---- good input


def some_sequences(tokens, count):
    return RANDOM.integers(0, count, tokens).tolist() if count > 1 else [0] * tokens


def with_sequence(given, sequence, always=False):
    if any(sequence) or always:
        given["sequence"] = (np.array(sequence), RANDOM.choice(["I32", "I64"]))
    return given


def engram_case(vocab, heads, tokens, count, end, wraps, unsigned):
    n = len(heads) + 1
    most = 2**63 - 1 if wraps else (2**63 - 1) // 40
    multipliers = [int(RANDOM.integers(1, most)) * (-1 if wraps and k == 1 else 1) for k in range(n)]
    compressed = [int(i) for i in RANDOM.integers(0, 40, vocab)]
    primes = [[int(p) for p in RANDOM.integers(1, 2000, h)] for h in heads]
    layer = {"compressed": (np.array(compressed), "I32"), "multipliers": (np.array(multipliers), "I64")}
    layer.update({"primes.%d" % (i + 2): (np.array(p), "I64") for i, p in enumerate(primes)})
    metadata = {"block": "engram_addresses", "pad": "39"}
    if end is not None:
        metadata["end_of_sequence"] = str(end)
    if wraps:
        metadata["may_wrap"] = "true"
    if unsigned:
        metadata["unsigned_remainder"] = "true"
    ids, sequence = RANDOM.integers(0, vocab, tokens).tolist(), some_sequences(tokens, count)
    if end is not None and tokens > 4:
        ids[0] = ids[3] = ids[4] = end
    expected = engram_rows(ids, sequence, compressed, multipliers, primes, 39, end, unsigned)
    given = with_sequence({"token_ids": (np.array(ids), "I64")}, sequence, tokens % 2)
    return layer, metadata, given, expected, [p for of_n in primes for p in of_n]


def longcat_case(vocab, ratio, longest, per_length, tokens, count, end):
    metadata = {"block": "longcat_addresses", "vocab": str(vocab), "ratio": str(ratio)}
    metadata.update(longest=str(longest), per_length=str(per_length), format="pt")
    if end is not None:
        metadata["end_of_sequence"] = str(end)
    ids, sequence = RANDOM.integers(0, vocab, tokens).tolist(), some_sequences(tokens, count)
    if end is not None and tokens > 4:
        ids[0] = ids[3] = ids[4] = end
    expected = longcat_rows(ids, sequence, vocab, ratio, longest, per_length, end)
    given = with_sequence({"token_ids": (np.array(ids), "I32")}, sequence)
    return {}, metadata, given, expected, [ratio * vocab + 2 * i + 1 for i in range((longest - 1) * per_length)]


def test_addresses():
    cases = []
    for wraps in (False, True):
        for unsigned in (False, True):
            cases.append(engram_case(23, [2, 3], 57, 3, 7, wraps, unsigned))
    cases.append(engram_case(5, [1], 9, 1, 0, False, False))
    cases.append(engram_case(11, [1, 1, 2, 4], 31, 1, None, True, False))
    cases.append(engram_case(3, [1] * 15, 40, 2, 2, True, False))
    cases.append(engram_case(3, [2], 0, 1, None, False, False))
    cases.append(longcat_case(83, 3, 4, 2, 61, 3, 7))
    cases.append(longcat_case(83, 3, 4, 2, 61, 1, None))
    cases.append(longcat_case(1000003, 100, 5, 4, 33, 2, 0))
    cases.append(longcat_case(2, 1, 2, 1, 1, 1, 1))
    for layer, metadata, given, expected, sizes in cases:
        what = "%s of %d tokens" % (metadata["block"], len(given["token_ids"][0]))
        for flags in ((), ("--batch", 1), ("--batch", 7)):
            got = good(what, layer, metadata, given, *flags)
            check(sorted(got) == ["rows", "sizes"], "%s: OUTPUT has %s" % (what, sorted(got)))
            check(got.get("rows", np.zeros(0)).tolist() == expected, "%s %s: rows" % (what, flags))
            check(got.get("sizes", np.zeros(0)).tolist() == sizes, "%s: sizes" % what)


def test_published_ends():
    """What LongCat's published code does at an id that ends a sequence, and Engram's map before its pad."""
    metadata = {"block": "longcat_addresses", "vocab": "10", "ratio": "1", "longest": "3", "per_length": "1"}
    metadata["end_of_sequence"] = "7"
    got = good("longcat", {}, metadata, {"token_ids": (np.array([3, 7, 5, 4]), "I64")})
    # The end sees 3; 5 sees nothing; 4 sees 5 alone. M = 11 and 13, V = 10, V^2 mod 13 = 9.
    check(got["rows"].tolist() == [[3, 37 % 11, 5, 54 % 11], [3, 37 % 13, 5, 54 % 13]], "longcat: %s" % got)
    layer = {"compressed": (np.array([5, 6, 1]), "I64"), "multipliers": (np.array([1, 8]), "I64"), "primes.2": (np.array([64]), "I64")}
    metadata = {"block": "engram_addresses", "pad": "2", "end_of_sequence": "1"}
    got = good("engram", layer, metadata, {"token_ids": (np.array([0, 1, 2]), "I64")})
    check(got["rows"].tolist() == [[5 ^ 2 * 8, 6 ^ 5 * 8, 1 ^ 6 * 8]], "engram: %s" % got)


def conv_case(width, taps, dilation, tokens, count, eps=None, published=False):
    shape = (width, 1, taps) if published else (width, taps)
    weight, norm = RANDOM.normal(size=shape).astype("f4"), RANDOM.normal(size=width).astype("f4")
    v = (RANDOM.normal(size=(tokens, width)) * RANDOM.choice([1e-3, 1, 30], (tokens, 1))).astype("f4")
    sequence = some_sequences(tokens, count)
    metadata = {"block": "short_convolution", "dilation": str(dilation)}
    if eps is not None:
        metadata["eps"] = repr(eps)
    layer = {"conv.weight": (weight, "F32"), "conv_norm.weight": (norm, "F32")}
    given = with_sequence({"v": (v, "F32")}, sequence)
    as_double = weight.reshape(width, taps).astype(float), norm.astype(float)
    eps = float(np.float32(1e-5 if eps is None else eps))
    return layer, metadata, given, convolved(v.astype(float), sequence, *as_double, dilation, eps)


def test_convolution():
    for case in (
        conv_case(37, 4, 3, 41, 3),
        conv_case(300, 4, 2, 29, 1, published=True),
        conv_case(1, 1, 1, 5, 1, eps=0.25),
        conv_case(5, 7, 5, 50, 4, eps=1e-6),
        conv_case(3, 4, 10**15, 6, 2),
        conv_case(4, 2, 1, 0, 1),
    ):
        layer, metadata, given, (expected, bound) = case
        what, first = "convolution of %s, %s" % (given["v"][0].shape, metadata), None
        for flags in ((), ("--batch", 1), ("--batch", 6)):
            got = good(what, layer, metadata, given, *flags)
            check(list(got) == ["y"] and got["y"].shape == expected.shape, "%s: OUTPUT" % what)
            check((np.abs(got["y"] - expected) <= bound).all(), "%s %s: y" % (what, flags))
            first = got["y"] if first is None else first
            check(got["y"].tobytes() == first.tobytes(), "%s %s: not the same bits" % (what, flags))


def gelu(z):
    return z / 2 * (1 + np.vectorize(math.erf, otypes=[float])(z / math.sqrt(2)))


def test_delays():
    d, f, tokens = 11, 7, 9
    for delay, layers in ((1, 1), (1, 4), (2, 5), (3, 3), (3, 7)):
        layer, expected = {}, []
        x = RANDOM.normal(size=(layers, tokens, d)).astype("f4")
        for i in range(layers):
            shapes = {"up_proj.weight": (f + i, d), "down_proj.weight": (d, f + i), "up_proj.bias": (f + i,)}
            own = {name: RANDOM.normal(size=shape).astype("f4") for name, shape in shapes.items()}
            layer.update({"layers.%d.%s" % (i, name): (a, "F32") for name, a in own.items()})
            w1, w2, b = (own[n].astype(float) for n in ("up_proj.weight", "down_proj.weight", "up_proj.bias"))
            expected.append(gelu(x[i] @ w1.T + b) @ w2.T)
        expected = np.array([np.zeros((tokens, d))] * delay + expected)[:layers]
        metadata = {"block": "delayed", "delay": str(delay), "layers": str(layers)}
        for flags in ((), ("--backend", "reference"), ("--batch", 1), ("--batch", 4)):
            what = "delay %d of %d layers %s" % (delay, layers, flags)
            got = good(what, layer, metadata, {"x": (x, "F32")}, *flags)
            check(list(got) == ["y"] and got["y"].shape == expected.shape, "%s: OUTPUT" % what)
            # Sums of d and of f products of normal numbers, in f32.
            check((np.abs(got["y"] - expected) <= 2.0**-23 * (d + 2 * f) * 30).all(), "%s: y" % what)
            check((got["y"][:delay] == 0).all(), "%s: the first layers get nothing" % what)


# ---- bad input


def changed(of, **changes):
    made = {k: v for k, v in of.items() if changes.get(k.replace(".", "_"), 0) is not None}
    made.update({k: v for k, v in changes.items() if v is not None and k.replace(".", "_") == k})
    return made


def without(of, name):
    return {k: v for k, v in of.items() if k != name}


def test_bad_addresses():
    layer, metadata, given, _, _ = engram_case(23, [2, 3], 12, 2, 7, False, False)
    for name in layer:
        bad("engram without " + name, without(layer, name), metadata, given, "layer", name)
        bad("engram, F32 " + name, {**layer, name: (np.ones(3), "F32")}, metadata, given, "layer", name, "F32")
        bad("engram, two axes " + name, {**layer, name: (np.ones((2, 2)), "I64")}, metadata, given, "layer", name, "(2, 2)")
        bad("engram, empty " + name, {**layer, name: (np.ones(0), "I64")}, metadata, given, "layer", name, "(0)")
    ids = (np.array([0, 3]), "I64")
    bad("unused", {**layer, "primes.4": ids}, metadata, given, "layer", "primes.4")
    bad("prime 0", {**layer, "primes.3": ids}, metadata, given, "layer", "primes.3[0] = 0")
    bad("negative", {**layer, "compressed": (np.array([1, -5]), "I32")}, metadata, given, "layer", "compressed[1] = -5")
    bad("overflow", {**layer, "multipliers": (np.array([1, 2, 2**62]), "I64")}, metadata, given, "layer", "multipliers[2]")
    bad("one multiplier", {**layer, "multipliers": (np.array([1]), "I64")}, metadata, given, "layer", "1 multipliers")
    for key in ("pad", "end_of_sequence"):
        for value in ("-1", "", "x", "1.5", "2147483648", "+1", " 1"):
            bad("%s = %s" % (key, value), layer, {**metadata, key: value}, given, "layer", key)
    bad("truth", layer, {**metadata, "may_wrap": "yes"}, given, "layer", "may_wrap", "yes")
    bad("unknown option", layer, {**metadata, "dilation": "2"}, given, "layer", "dilation")
    for changes, words in (
        ({"token_ids": (np.array([0, 23]), "I64"), "sequence": ids}, ("token_ids[1] = 23", "22")),
        ({"token_ids": (np.array([-1, 2]), "I32"), "sequence": ids}, ("token_ids[0] = -1",)),
        ({"token_ids": (np.array([0.0, 2]), "F32")}, ("token_ids", "F32")),
        ({"sequence": (np.arange(12) + 1, "I64")}, ("sequence[11] = 12",)),
        ({"sequence": (np.arange(12) - 1, "I64")}, ("sequence[0] = -1",)),
        ({"sequence": (np.arange(11), "I64")}, ("sequence", "11", "12")),
        ({"x": (np.ones((12, 2)), "F32")}, ("x",)),
    ):
        bad("input %s" % (words,), layer, metadata, {**given, **changes}, "input", *words)
    bad("no ids", layer, metadata, without(given, "token_ids"), "input", "token_ids")

    _, metadata, given, _, _ = longcat_case(83, 3, 4, 2, 12, 1, 7)
    for key in ("vocab", "ratio", "longest", "per_length"):
        bad("longcat without " + key, {}, without(metadata, key), given, "layer", key)
        bad("longcat, %s = 0" % key, {}, {**metadata, key: "0"}, given, "layer", key)
    bad("longcat, n = 1", {}, {**metadata, "longest": "1"}, given, "layer", "1")
    bad("longcat, too long", {}, {**metadata, "longest": "17"}, given, "layer", "16")
    bad("longcat, wide", {}, {**metadata, "per_length": str(2**64 // 3 + 1)}, given, "layer", "256")
    bad("longcat, too many rows", {}, {**metadata, "ratio": str(2**62)}, given, "layer", "2^31")
    bad("longcat, a tensor", {"compressed": ids}, metadata, given, "layer", "compressed")


def test_bad_convolution():
    layer, metadata, given, _ = conv_case(5, 4, 3, 7, 2)
    for name in layer:
        bad("without " + name, without(layer, name), metadata, given, "layer", name)
        bad("of I64: " + name, {**layer, name: (np.ones(layer[name][0].shape), "I64")}, metadata, given, "layer", name)
    bad("4 features", {**layer, "conv_norm.weight": (np.ones(4), "F32")}, metadata, given, "layer", "conv_norm.weight", "(4)")
    bad("flat", {**layer, "conv.weight": (np.ones(20), "F32")}, metadata, given, "layer", "conv.weight", "(20)")
    bad("unused", {**layer, "conv.bias": (np.ones(5), "F32")}, metadata, given, "layer", "conv.bias")
    for value in ("0", "-1", "x", "99999999999999999999"):
        bad("dilation " + value, layer, {**metadata, "dilation": value}, given, "layer", "dilation")
    bad("no dilation", layer, without(metadata, "dilation"), given, "layer", "dilation")
    bad("eps", layer, {**metadata, "eps": "nan"}, given, "layer", "eps")
    bad("width", layer, metadata, {"v": (np.ones((7, 4)), "F32")}, "input", "v", "(7, 4)")
    bad("f16", layer, metadata, {"v": (np.ones((7, 5)), "F16")}, "input", "v", "F16")
    bad("no v", layer, metadata, {}, "input", "v")
    bad("ids", layer, metadata, {**given, "token_ids": (np.arange(7), "I64")}, "input", "token_ids")


def test_bad_delays():
    tensors = {"up_proj.weight": (np.ones((3, 2)), "F32"), "down_proj.weight": (np.ones((2, 3)), "F32")}
    layer = {"layers.%d.%s" % (i, n): t for i in range(3) for n, t in tensors.items()}
    metadata, given = {"block": "delayed", "delay": "2", "layers": "3"}, {"x": (np.ones((3, 4, 2)), "F32")}
    good("delays", layer, metadata, given)
    for name in layer:
        bad("without " + name, without(layer, name), metadata, given, "layer", name)
    bad("unused", {**layer, "layers.3.up_proj.weight": tensors["up_proj.weight"]}, metadata, given, "layer", "layers.3.up_proj.weight")
    other = {"layers.1.up_proj.weight": (np.ones((3, 4)), "F32"), "layers.1.down_proj.weight": (np.ones((4, 3)), "F32")}
    bad("widths", {**layer, **other}, metadata, given, "layer", "layers.1.", "4", "2")
    for key, value in (("delay", "0"), ("delay", "4"), ("layers", "0"), ("layers", "-3"), ("layers", "9" * 18)):
        bad("%s %s" % (key, value), layer, {**metadata, key: value}, given, "layer", key if len(value) < 9 else "layers.3")
    for shape in ((2, 4, 2), (3, 4, 3), (3, 4), (3, 4, 2, 1)):
        bad("x %s" % (shape,), layer, metadata, {"x": (np.ones(shape), "F32")}, "input", "x", str(shape))
    check(good("no token", layer, metadata, {"x": (np.ones((3, 0, 2)), "F32")})["y"].shape == (3, 0, 2), "no token")


def test_bad_files():
    layer, metadata, given, _ = conv_case(5, 4, 3, 7, 2)
    bad("no block", layer, {}, given, "layer", "block")
    bad("unknown block", layer, {"block": "glu"}, given, "layer", "glu", "engram_addresses", "delayed")
    bad("no layer", b"nonsense", {}, given, "layer")
    bad("no input", layer, metadata, b"", "input")
    for flags in (("--batch", "0"), ("--batch", "-1"), ("--backend", "eigen"), ("--threads", "2")):
        bad(" ".join(flags), layer, metadata, given, None, flags[0], flags=flags)
    _, _, paths = tool(layer, metadata, given)
    for read in paths[:2]:
        before = read.read_bytes()
        done = subprocess.run([TOOL, paths[0], paths[1], read], capture_output=True, text=True)
        check(done.returncode == 1 and read.read_bytes() == before, "%s was written over" % read)


for name, test in list(globals().items()):
    if name.startswith("test_"):
        test()
print("%d faults" % len(faults))
sys.exit(1 if faults else 0)
