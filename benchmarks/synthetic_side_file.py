#!/usr/bin/env python3
"""A side file with random tables in bf16 around every third block of a Llama-like GGUF, to measure.

    benchmarks/synthetic_side_file.py retoken|stem MODEL.gguf OUT.safetensors

retoken: modulators (vocabulary, d_model) on the block's output; stem: a table (vocabulary, d_ff) in the place of up_proj. A model
beside it says noise: its speed can be measured, its perplexity cannot.
"""
import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "io"))
from gguf_files import read
from run_layer_files import file_of


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("kind", choices=("retoken", "stem"))
    parse.add_argument("model", type=Path, metavar="MODEL.gguf")
    parse.add_argument("to", type=Path, metavar="OUT.safetensors")
    args = parse.parse_args()
    told = read(args.model.read_bytes())[0]
    layers, d, f = (int(told[f"llama.{key}"]) for key in ("block_count", "embedding_length", "feed_forward_length"))
    vocabulary = len(told["tokenizer.ggml.tokens"])
    rng, tensors, metadata = np.random.default_rng(1), {}, {}
    for at in (f"blk.{i}." for i in range(2, layers, 3)):
        table = rng.standard_normal((vocabulary, d if args.kind == "retoken" else f), np.float32)
        if args.kind == "retoken":
            metadata |= {at + "block": "retoken", at + "base.block": "model"}
            tensors |= {at + "modulators.weight": (table, "BF16"), at + "scale": (np.ones(d, np.float32), "F32")}
        else:
            metadata |= {at + "block": "stem", at + "weights": "gate_proj down_proj"}
            tensors[at + "stem_embed.weight"] = (table, "BF16")
    args.to.write_bytes(file_of(tensors, metadata))


if __name__ == "__main__":
    main()
