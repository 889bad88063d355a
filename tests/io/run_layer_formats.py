#!/usr/bin/env python3
"""`run_layer --f32-activations --weights F --tables G` gives, to the bit, what `run_layer` gives on a file of the rounded numbers.

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

from run_layer_files import file_of, rounded

F32 = np.float32


def blocks(a, levels):
    """Numbers in blocks of 32: scale to f16, levels by the format's own rule."""
    x = a.reshape(-1, 32).astype(F32)
    if levels == 8:
        d = (np.abs(x).max(axis=1, keepdims=True) / F32(127)).astype(F32)
    else:
        first = np.abs(x).argmax(axis=1)
        d = (x[np.arange(len(x)), first][:, None] / F32(-8)).astype(F32)
    inverse = np.divide(F32(1), d, out=np.zeros_like(d), where=d != 0)
    scaled = (x * inverse).astype(F32)
    if levels == 8:
        q = np.copysign(np.floor(np.abs(scaled.astype(np.float64)) + 0.5), scaled)
    else:
        q = np.minimum(15, np.trunc((scaled + F32(8.5)).astype(F32))) - 8
    return (d.astype(np.float16).astype(F32) * q.astype(F32)).reshape(a.shape)


ROUND = {
    "f32": lambda a: a,
    "bf16": lambda a: rounded(a, "BF16").astype(F32),
    "f16": lambda a: rounded(a, "F16").astype(F32),
    "q8_0": lambda a: blocks(a, 8),
    "q4_0": lambda a: blocks(a, 4),
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

        def layer(name, tensors):
            (at / name).write_bytes(file_of({k: (v, "F32") for k, v in tensors.items()}, {"block": "stem_hybrid"}))
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
