#!/usr/bin/env python3
"""`run_layer --f32-activations --weights F --tables G` gives, to the bit, what `run_layer` gives on a file of the rounded numbers,
whether the file holds F32 or blocks of q8_0 or q4_0.

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

from run_layer_files import F32, dequantised, file_of, quantised, rounded

ROUND = {
    "f32": lambda a: a,
    "bf16": lambda a: rounded(a, "BF16").astype(F32),
    "f16": lambda a: rounded(a, "F16").astype(F32),
    "q8_0": lambda a: dequantised(quantised(a, "q8_0"), "q8_0"),
    "q4_0": lambda a: dequantised(quantised(a, "q4_0"), "q4_0"),
}


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
