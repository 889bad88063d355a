#!/usr/bin/env python3
"""`run_layer --f32-activations --weights F --tables G` gives, to the bit, what `run_layer` gives on a file of the
rounded numbers, whether the file holds F32 or blocks of q8_0 or q4_0.

    run_layer_formats.py RUN_LAYER

The rounding is done here in numpy, from the definition of the formats (ggml's reference quantisers for q8_0 and
q4_0). Without numpy it prints a line and exits with 77.
"""

import itertools
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
except ImportError:
    print("numpy is not installed")
    sys.exit(77)

from run_layer_files import F32, decode, dequantised, file_of, parse, quantised, rounded

ROUND = {
    "f32": lambda a: a,
    "bf16": lambda a: rounded(a, "BF16").astype(F32),
    "f16": lambda a: rounded(a, "F16").astype(F32),
    "q8_0": lambda a: dequantised(quantised(a, "q8_0"), "q8_0"),
    "q4_0": lambda a: dequantised(quantised(a, "q4_0"), "q4_0"),
}


# The part of a layer file that a tensor is kept as: a dense weight, a table, or f32 in any case.
WEIGHT, TABLE, PLAIN = "weight", "table", "plain"


def row_layers(rng, d, f, vocab):
    """(metadata, tensors, what each is kept as) of layers whose rows are chosen, or given with the call."""
    heads, n, c, u = 2, 5, 32, 64
    ends = np.sort(rng.integers(0, 41, (vocab, 2)), -1)
    ends[:3] = (0, 40), (7, 8), (9, 9)
    choice = {"query.weight": ((2 * heads * c, d), PLAIN), "query.bias": ((2 * heads * c,), PLAIN)}
    choice["keys.weight"] = (2 * heads, n, c), PLAIN
    gate = {"gate_proj.weight": ((f, d), WEIGHT), "gate_proj.bias": ((f,), PLAIN)}
    layers = {
        "product_keys": (dict(choice, **{"values.weight": ((n * n, d), TABLE)}), {"top_k": "3"}),
        "product_keys, Memory+": (
            dict(choice, **gate, **{"values.weight": ((n * n, f), TABLE), "down_proj.weight": ((d, f), WEIGHT)}),
            {"top_k": "3"},
        ),
        "peer": (
            dict(choice, **{p + "_embed.weight": ((n * n, d), TABLE) for p in ("down", "up")}),
            {"top_k": "4"},
        ),
        "l3": (
            {
                "ranges": (ends, "I64"),
                "keys.weight": ((40, d), TABLE),
                "values.weight": ((40, f), TABLE),
                "up_proj.weight": ((u, f), WEIGHT),
                "norm.weight": ((u,), PLAIN),
                "mix_memory.weight": ((d, u), WEIGHT),
                "mix_input.weight": ((d, d), WEIGHT),
                "mix_input.bias": ((d,), PLAIN),
            },
            {},
        ),
        "engram": (
            {
                "key_proj.weight": ((d, f), WEIGHT),
                "value_proj.weight": ((d, f), WEIGHT),
                "value_proj.bias": ((d,), PLAIN),
                "key_norm.weight": ((d,), PLAIN),
                "query_norm.weight": ((d,), PLAIN),
            },
            {},
        ),
        "longcat_embedding": (
            {"word_embed.weight": ((vocab, d), TABLE), "ngram_proj.weight": ((d, f), WEIGHT)},
            {"terms": "3"},
        ),
    }
    for what, (tensors, options) in layers.items():
        made = {k: s if k == "ranges" else rng.normal(size=s).astype(F32) / F32(np.sqrt(s[-1] if len(s) > 1 else 1))
                for k, (s, _) in tensors.items()}
        yield what, dict(options, block=what.split(",")[0]), made, {k: part for k, (_, part) in tensors.items()}


def tensors_of(raw):
    return {k: decode(data, dtype, shape) for k, (dtype, shape, data) in parse(raw).items()}


def main(tool):
    rng = np.random.default_rng(5)
    d, f, vocab, tokens = 64, 96, 37, 29
    plain = {
        "gate_proj.weight": rng.normal(size=(f, d)).astype(F32),
        "up_proj.weight": rng.normal(size=(f, d)).astype(F32),
        "stem_embed.weight": rng.normal(size=(vocab, f)).astype(F32),
        "down_proj.weight": rng.normal(size=(d, f)).astype(F32),
    }
    x, ids = rng.normal(size=(tokens, d)).astype(F32), rng.integers(0, vocab, tokens)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)

        def layer(name, tensors, form=None):
            """A file of F32, or of blocks of `form`."""
            formats = {k + ".format": form for k in tensors} if form else {}
            stored = {k: (quantised(v, form), "U8") if form else (v, "F32") for k, v in tensors.items()}
            (at / name).write_bytes(file_of(stored, {"block": "stem_hybrid", **formats}))
            return at / name

        def run(path, *flags):
            done = subprocess.run([tool, path, at / "in", at / "out", *flags], capture_output=True, text=True)
            return done.stderr if done.returncode else (at / "out").read_bytes()

        def expect(what, holds):
            nonlocal failed
            failed += not holds
            if not holds:
                print("FAILED:", what)

        (at / "in").write_bytes(file_of({"x": (x, "F32"), "token_ids": (ids, "I64")}))
        given = layer("plain", plain)
        for weights, tables in itertools.product(ROUND, ROUND):
            widened = {k: ROUND[tables if k.startswith("stem") else weights](v) for k, v in plain.items()}
            wanted = run(layer("widened", widened))
            for flags in ([], ["--threads", "2"], ["--batch", "1"]):
                got = run(given, "--f32-activations", "--weights", weights, "--tables", tables, *flags)
                expect(f"weights {weights}, tables {tables}, {flags}", got == wanted and isinstance(got, bytes))
        # Files of blocks: as files of the numbers that they stand for, in whatever format those are asked for.
        for form, asked in itertools.product(("q8_0", "q4_0"), ROUND):
            stored = layer("stored", plain, form)
            decoded = {k: ROUND[form](v) for k, v in plain.items()}
            expect(f"{form} twice is {form}", all((ROUND[form](v) == v).all() for v in decoded.values()))
            # Levels of 4 bits are levels of 8 too: they are not rounded again.
            kept = decoded if (form, asked) == ("q4_0", "q8_0") else {k: ROUND[asked](v) for k, v in decoded.items()}
            wanted = run(layer("widened", kept))
            for flags in ([], ["--threads", "2"], ["--batch", "1"]):
                got = run(stored, "--f32-activations", "--weights", asked, "--tables", asked, *flags)
                expect(f"blocks of {form} as {asked}, {flags}", got == wanted and isinstance(got, bytes))
        # Rows that are chosen, or brought with the call: whatever their router reads stays f32.
        inputs = {"x": (x, "F32"), "token_ids": (ids, "I64")}
        for what, metadata, tensors, parts in row_layers(rng, d, f, vocab):
            brought = {"per_layer_input": (rng.normal(size=(tokens, f)).astype(F32), "F32")}
            brought = brought if what in ("engram", "longcat_embedding") else {}
            (at / "in").write_bytes(file_of(dict(inputs, **brought)))

            def rows_layer(name, weights="f32", tables="f32"):
                form = {WEIGHT: weights, TABLE: tables, PLAIN: "f32"}
                kept = {k: (ROUND[form[parts[k]]](v), "F32") for k, v in tensors.items() if k != "ranges"}
                kept.update({k: (v, "I64") for k, v in tensors.items() if k == "ranges"})
                (at / name).write_bytes(file_of(kept, metadata))
                return at / name

            given_rows, different = rows_layer("plain_rows"), set()
            for weights, tables in itertools.product(("f32", "bf16", "q8_0"), ROUND):
                wanted = run(rows_layer("widened", weights, tables))
                different.add(wanted)
                for flags in ([], ["--threads", "2"], ["--batch", "1"]):
                    got = run(given_rows, "--f32-activations", "--weights", weights, "--tables", tables, *flags)
                    same = got == wanted and isinstance(got, bytes)
                    expect(f"{what}: weights {weights}, tables {tables}, {flags}", same)
            count = (3 if WEIGHT in parts.values() else 1) * (5 if TABLE in parts.values() else 1)
            expect(f"{what}: {len(different)} of {count} pairs of formats are different", len(different) == count)
            # Rounded activations meet weights alone: not the router, and not the rows of a table.
            small = "--weights", "q8_0", "--tables", "q8_0"
            got, wanted = (tensors_of(run(given_rows, *small, *flags)) for flags in ([], ["--f32-activations"]))
            off = np.linalg.norm(got["y"] - wanted["y"]) / np.linalg.norm(wanted["y"])
            good = 1e-3 < off < 1.5e-2 if WEIGHT in parts.values() else off == 0
            expect(f"{what}: rounded activations, off by {off}", good)
            same = all((got[k] == wanted[k]).all() for k in wanted if k != "y")
            expect(f"{what}: a route of activations that are not rounded", same)
        (at / "in").write_bytes(file_of(inputs))
        wanted, got = (np.frombuffer(run(given, *flags)[-tokens * d * 4:], F32) for flags in
                       (("--weights", "q8_0", "--f32-activations"), ("--weights", "q8_0")))
        off = np.linalg.norm(got - wanted) / np.linalg.norm(wanted)
        # Two roundings of numbers whose own error is 5e-3 to 7e-3.
        expect(f"rounded activations, off by {off}", 1e-3 < off < 1.5e-2)
        for backend in ("reference", "eigen"):
            wrong = run(given, "--backend", backend, "--weights", "bf16")
            expect(f"{backend} refuses formats", isinstance(wrong, str) and backend in wrong)
        odd = layer("odd", {k: v[:90] if v.shape[0] == f else v[:, :90] for k, v in plain.items()})
        wrong = run(odd, "--tables", "q8_0")
        expect("90 is no multiple of 32", isinstance(wrong, str) and "stem_embed.weight" in wrong and "32" in wrong)
        wrong = run(given, "--weights", "q5_1")
        expect("an unknown format", isinstance(wrong, str) and "--weights" in wrong)
    print("%d failed" % failed)
    return failed != 0


sys.exit(main(sys.argv[1]))
