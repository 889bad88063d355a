#!/usr/bin/env python3
"""What the format of a per-layer table does to the output of a layer as Gemma 3n has it: rows of 256 for a stream of 2048.

    ple_formats.py RUN_MEMORY LIBGGML

The table is F32 numbers quantised by ggml itself (LIBGGML: a shared library with ggml_quantize_chunk), or here where GGUF has no such
format; `run_memory` reads it, and its output is compared with the same layer over the F32 rows. Rows are normal, or have heavy tails (Student's t, 4 degrees of freedom). The projection of the word embedding, which is added, is the same for all.
"""

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "io"))
from gguf_files import TYPES, file_of  # noqa: E402
from run_layer_files import decode, parse  # noqa: E402
from run_layer_files import file_of as safetensors_of  # noqa: E402

VOCAB, WIDTH, D, TOKENS = 1024, 256, 2048, 512
BITS = {"F32": 32, "F16": 16, "BF16": 16, "Q8_0": 8.5, "Q6_K": 6.5625, "Q5_1": 6, "Q5_K": 5.5, "Q5_0": 5.5, "Q4_1": 5, "Q4_K": 4.5, "Q4_0": 4.5, "IQ4_NL": 4.5,
        "NVFP4": 4.5, "IQ4_XS": 4.25, "MXFP4": 4.25, "Q3_K": 3.4375, "Q2_K": 2.625}
# What GGUF has no format for: bits per value; values that share a scale, 0 for all; bits of the fraction and the largest number of F8, or
# the steps between the least and the largest number of whole ones.
OTHERS = {"F8_E4M3, E8M0 per 32": (8.25, 32, 3, 448), "F8_E4M3, a scale per row": (8.125, WIDTH, 3, 448), "F8_E4M3, one scale": (8, 0, 3, 448),
          "F8_E5M2, one scale": (8, 0, 2, 57344), "8 bits, scale and bias per row": (8.25, WIDTH, None, 255),
          "4 bits, scale and bias per 32": (5, 32, None, 15), "4 bits, scale and bias per row": (4.125, WIDTH, None, 15)}


def in_f8(rows, scales, bits, most):
    """The nearest numbers of an F8 format times the scales."""
    x, least = (rows / scales).astype(np.float64), -6 if bits == 3 else -14
    step = np.ldexp(1.0, np.maximum(np.frexp(np.where(x == 0, 1, x))[1] - 1, least) - bits)
    return np.clip(np.rint(x / step) * step, -most, most) * scales


def rounded(rows, kind):
    """What a format that GGUF has not makes of the rows, as numbers."""
    _, share, bits, most = OTHERS[kind]
    parts = rows.reshape(1 if share == 0 else -1, share or rows.size).astype(np.float64)
    if bits is None:
        low = parts.min(axis=1, keepdims=True)
        scale = (parts.max(axis=1, keepdims=True) - low) / most
        if most == 15:  # scales and biases of 4 bits are F16
            low, scale = low.astype(np.float16).astype(np.float64), scale.astype(np.float16).astype(np.float64)
        made = np.clip(np.rint((parts - low) / scale), 0, most) * scale + low
    else:
        scale = np.abs(parts).max(axis=1, keepdims=True) / most
        made = in_f8(parts, np.exp2(np.ceil(np.log2(scale))) if "E8M0" in kind else scale, bits, most)
    return made.astype(np.float32).reshape(rows.shape)


def quantised(ggml, rows, kind):
    if kind in OTHERS:
        return rounded(rows, kind).tobytes()
    if kind == "F32":
        return rows.tobytes()
    if kind == "F16":
        return rows.astype(np.float16).tobytes()
    if kind == "BF16":
        bits = rows.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()
    made = ctypes.create_string_buffer(rows.nbytes)
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    size = ggml.ggml_quantize_chunk(TYPES[kind], rows.ctypes.data_as(ctypes.c_void_p), made, ctypes.c_int64(0), ctypes.c_int64(len(rows)),
                                    ctypes.c_int64(rows.shape[1]), None)
    return made.raw[:size]


def output(tool, folder, tensors, given):
    arch = "gemma3n"
    metadata = {"general.architecture": arch, arch + ".block_count": 1, arch + ".embedding_length": D, arch + ".embedding_length_per_layer_input": WIDTH,
                arch + ".attention.layer_norm_rms_epsilon": 1e-6}
    (folder / "model.gguf").write_bytes(file_of(metadata, tensors))
    (folder / "in").write_bytes(given)
    subprocess.run([tool, folder / "model.gguf", folder / "in", folder / "out", "--layer", "0"], check=True, stdout=subprocess.DEVNULL)
    kind, shape, raw = parse((folder / "out").read_bytes())["y"]
    return decode(raw, kind, shape).astype(np.float64)


def main(tool, library):
    ggml = ctypes.CDLL(library, mode=os.RTLD_LAZY)
    rng = np.random.default_rng(1)
    normal = lambda *shape: (rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32)
    as_tensor = lambda t: (t.astype(np.float32).tobytes(), "F32", t.shape)
    rest = {k: as_tensor(v) for k, v in {
        "per_layer_model_proj.weight": normal(WIDTH, D), "per_layer_proj_norm.weight": np.ones(WIDTH), "token_embd.weight": normal(VOCAB, D),
        "blk.0.inp_gate.weight": normal(WIDTH, D), "blk.0.proj.weight": normal(D, WIDTH), "blk.0.post_norm.weight": np.ones(D)}.items()}
    given = safetensors_of({"x": (rng.normal(size=(TOKENS, D)).astype(np.float32), "F32"), "token_ids": (rng.integers(0, VOCAB, TOKENS), "I64")})
    spread = {"normal": rng.normal(size=(VOCAB, WIDTH)), "heavy tails": rng.standard_t(4, size=(VOCAB, WIDTH)) / np.sqrt(2)}
    print("| rows | bits per value | " + " | ".join(f"y, {name}" for name in spread) + " |\n|---|---|" + "---|" * len(spread))
    with tempfile.TemporaryDirectory() as at:
        exact = {}
        for kind, bits in sorted({**BITS, **{kind: about[0] for kind, about in OTHERS.items()}}.items(), key=lambda one: -one[1]):
            errors = []
            for name, rows in spread.items():
                rows = np.ascontiguousarray(rows / np.sqrt(WIDTH), np.float32)  # times sqrt(width) in the layer: of the context term's size
                y = output(tool, Path(at), {**rest, "per_layer_token_embd.weight": (quantised(ggml, rows, kind), "F32" if kind in OTHERS else kind, rows.shape)}, given)
                exact.setdefault(name, y)
                errors.append(np.sqrt(((y - exact[name])**2).mean() / (exact[name]**2).mean()))
            if kind != "F32":
                print(f"| {kind} | {bits:g} | " + " | ".join(f"{e:.1e}" for e in errors) + " |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
