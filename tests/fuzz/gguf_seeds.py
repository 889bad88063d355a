#!/usr/bin/env python3
"""Writes what gguf_fuzz begins with: one small model of each kind that has a token-indexed memory.

    gguf_seeds.py FOLDER
"""

import struct
import sys
from pathlib import Path

SIZE = {"F32": (0, 1, 4), "BF16": (30, 1, 2), "Q8_0": (8, 32, 34)}  # its number in files, values and bytes of a block
EPS = 1e-6


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def value(v):
    if isinstance(v, str):
        return struct.pack("<I", 8) + text(v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    return struct.pack(f"<IIQ{len(v)}i", 9, 5, len(v), *v)


def seed(architecture, metadata, tensors, alignment=32):
    """`tensors`: name to (format, shape with the outermost axis first); their bytes are 0."""
    metadata = {"general.architecture": architecture, **{f"{architecture}.{key}": v for key, v in metadata.items()}}
    head, data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)), b""
    head += b"".join(text(key) + value(v) for key, v in metadata.items())
    for name, (kind, shape) in tensors.items():
        number, block, size = SIZE[kind]
        data += b"\0" * (-len(data) % alignment)
        head += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape)) + struct.pack("<IQ", number, len(data))
        count = 1
        for n in shape:
            count *= n
        data += bytes(count // block * size)
    return head + b"\0" * (-len(head) % alignment) + data


def main(folder):
    f, ple, engram = "F32", "blk.1.ple_", "blk.1.engram_"
    qwen = {"ple.layers": [1], "ple.ngram_size": 2, "ple.heads_per_ngram": 1, "ple.eos_token_id": 1, "ple.layer_multipliers": [5, 7], "ple.head_vocab_sizes": [3],
            "ple.head_offsets": [0], "hyper_connection.count": 2, "attention.layer_norm_rms_epsilon": EPS}
    of_qwen = {ple + "key.weight": (f, [4, 32]), ple + "value.weight": (f, [2, 32]), ple + "norm_key.weight": (f, [2, 2]), ple + "norm_query.weight": (f, [2, 2]),
               ple + "norm_conv.weight": (f, [2, 2]), ple + "conv1d.weight": (f, [4, 2]), "token_embd.weight": (f, [9, 2])}
    deepseek = {"engram.layer_ids": [1], "engram.max_ngram_size": 2, "engram.head_count": 1, "engram.key_length": 4, "engram.pad_id": 2, "engram.multipliers": [5, 7],
                "engram.primes": [3], "engram.offsets": [0], "engram.token_map": [0, 1, 2, 2], "hyper_connection.count": 1, "attention.layer_norm_rms_epsilon": EPS}
    of_deepseek = {engram + "q.weight": (f, [1, 2]), engram + "k.weight": (f, [1, 2]), engram + "wkv.weight": (f, [4, 4]), engram + "embd.weight": ("BF16", [3, 4])}
    gemma = {"block_count": 2, "embedding_length": 4, "embedding_length_per_layer_input": 2, "attention.layer_norm_rms_epsilon": EPS}
    of_gemma = {"per_layer_model_proj.weight": (f, [4, 4]), "per_layer_proj_norm.weight": (f, [2]), "token_embd.weight": (f, [3, 4]), "blk.1.inp_gate.weight": (f, [2, 4]),
                "blk.1.proj.weight": (f, [4, 2]), "blk.1.post_norm.weight": (f, [4]), "per_layer_token_embd.weight": (f, [3, 4])}
    table = "per_layer_token_embd.weight"
    for name, of in (("qwen", ("qwen4exp", qwen, {**of_qwen, table: (f, [3, 32])})), ("qwen_q8_0", ("qwen4exp", qwen, {**of_qwen, table: ("Q8_0", [3, 32])})),
                     ("deepseek", ("deepseek41", deepseek, of_deepseek)), ("gemma3n", ("gemma3n", gemma, of_gemma)), ("gemma4", ("gemma4", gemma, of_gemma))):
        (Path(folder) / name).write_bytes(seed(*of))


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    main(sys.argv[1])
