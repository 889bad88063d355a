#!/usr/bin/env python3
"""Opens the FFN of a layer of a model, runs random x through it, and prints its sizes and how long a call takes.

    python/examples/run_layer.py model.gguf --layer 3 --tokens 64 --threads 2
"""
import argparse
import sys
import time

import numpy as np

import tiffin


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", metavar="MODEL", help="GGUF file, the first of a split model, or a checkpoint's folder")
    parser.add_argument("--layer", type=int, default=0, help="layer of the model, from 0 on (default: 0)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a call (default: 64)")
    parser.add_argument("--threads", type=int, default=1, help="threads that run a call's tasks (default: 1)")
    parser.add_argument("--backend", default="simd", choices=tiffin.BACKENDS, help="default: simd")
    parser.add_argument("--format", default="as_stored", choices=("as_stored", "f32", "f16", "bf16", "q8_0", "q4_0"),
                        help="format that simd keeps dense weights in (default: as_stored)")
    given = parser.parse_args()
    if given.layer < 0 or given.tokens < 1 or given.threads < 1:
        parser.exit(1, "run_layer.py: --layer counts from 0 on, --tokens and --threads from 1 on\n")

    def progress(done, of):
        if sys.stderr.isatty():
            print(f"\rpreparing: {done / of:4.0%}", end="" if done < of else "\r\033[K", file=sys.stderr, flush=True)

    model = tiffin.open_model(given.model)
    layer = model.layer(given.layer, backend=given.backend, format=given.format, progress=progress)
    rng = np.random.default_rng(1)
    rows = lambda width: rng.normal(size=(given.tokens, width)).astype(np.float32)
    x = rows(layer.d_model)
    beside = {"token_ids": np.zeros(given.tokens, np.int32)} if layer.reads_token_ids else {}
    if layer.reads_residual:
        beside["residual"] = rows(layer.d_model)
    if layer.per_layer_input_width:
        beside["per_layer_input"] = rows(layer.per_layer_input_width)
    run = lambda: layer(x, threads=given.threads, **beside)
    y = run()
    taken = []
    while len(taken) < 3 or (sum(taken) < 0.5 and len(taken) < 1000):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    print(f"{model.architecture}, layer {given.layer} of {len(model)}: d_model {layer.d_model}, d_ff {layer.d_ff}"
          + (f", {layer.choices} experts a token" if layer.choices else ""))
    print(f"x {x.shape} -> y {y.shape}, root mean square {np.sqrt((y.astype(np.float64) ** 2).mean()):.4g}")
    print(f"{1e3 * np.median(taken):.3f} ms a call of {given.tokens} tokens, median of {len(taken)}")


if __name__ == "__main__":
    try:
        main()
    except (tiffin.Error, OSError) as wrong:
        print(f"run_layer.py: {wrong}", file=sys.stderr)
        sys.exit(1)
