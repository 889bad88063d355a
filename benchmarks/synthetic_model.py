#!/usr/bin/env python3
"""A GGUF of a Llama-like model of any width with random weights, F32, to quantize and to measure.

    benchmarks/synthetic_model.py --d-model 1024 --d-ff 4096 TOKENIZER.gguf OUT.gguf
    benchmarks/synthetic_model.py --d-model 1024 --d-ff 512 --experts 32 --chosen 8 TOKENIZER.gguf OUT.gguf

The tokenizer is that of TOKENIZER.gguf. Its text is noise: speed and memory can be measured on it, perplexity cannot.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "io"))
from gguf_files import file_of, read


def main():
    parse = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parse.add_argument("tokenizer", type=Path, metavar="TOKENIZER.gguf")
    parse.add_argument("to", type=Path, metavar="OUT.gguf")
    parse.add_argument("--d-model", type=int, default=1024)
    parse.add_argument("--d-ff", type=int, default=4096)
    parse.add_argument("--layers", type=int, default=8)
    parse.add_argument("--head", type=int, default=64, help="numbers per attention head")
    parse.add_argument("--experts", type=int, default=0, help="per layer, each of --d-ff; 0: no mixture")
    parse.add_argument("--chosen", type=int, default=2, help="experts per token")
    args = parse.parse_args()
    d, f, heads = args.d_model, args.d_ff, args.d_model // args.head
    if d % args.head:
        sys.exit(f"--d-model {d} is no multiple of --head {args.head}")

    kept = {k: v for k, v in read(args.tokenizer.read_bytes())[0].items() if k.startswith("tokenizer.")}
    vocabulary = len(kept["tokenizer.ggml.tokens"])
    metadata = {"general.architecture": "llama", "general.name": f"noise {d}x{f}", **kept}
    for key, v in (("block_count", args.layers), ("embedding_length", d), ("feed_forward_length", f),
                   ("context_length", 2048), ("attention.head_count", heads), ("attention.head_count_kv", heads),
                   ("rope.dimension_count", args.head), ("rope.freq_base", 10000.0),
                   ("attention.layer_norm_rms_epsilon", 1e-5), ("vocab_size", vocabulary)):
        metadata[f"llama.{key}"] = v
    if args.experts:
        if not 1 <= args.chosen <= args.experts:
            sys.exit(f"--chosen {args.chosen} is none of 1 to --experts {args.experts}")
        metadata.update({"llama.expert_count": args.experts, "llama.expert_used_count": args.chosen})

    rng, tensors = np.random.default_rng(1), {}

    def add(name, *shape):
        numbers = np.ones(shape, np.float32)
        if len(shape) > 1:
            numbers = rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-1]))
        tensors[name] = (numbers.tobytes(), "F32", shape)

    add("token_embd.weight", vocabulary, d)
    add("output_norm.weight", d)
    for i in range(args.layers):
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{i}.{name}.weight", d)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{i}.{name}.weight", d, d)
        if args.experts:
            add(f"blk.{i}.ffn_gate_inp.weight", args.experts, d)
        for name, shape in (("ffn_gate", (f, d)), ("ffn_up", (f, d)), ("ffn_down", (d, f))):
            add(f"blk.{i}.{name}{'_exps' if args.experts else ''}.weight", *([args.experts] if args.experts else []), *shape)
    args.to.write_bytes(file_of(metadata, tensors))


if __name__ == "__main__":
    main()
