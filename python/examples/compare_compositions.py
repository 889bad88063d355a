#!/usr/bin/env python3
"""Ten feed-forward layers of one size side by side: what they store, read and compute per token, and how long a call takes.

    compare_compositions.py [--d-model 512] [--d-ff 2048] [--vocab 8192] [--tokens 16] [--plot layers.png] [COMPOSITION ...]

Give compositions of your own (docs/layers.md) after the options. --plot needs matplotlib.
"""
import argparse
import sys
import time

import numpy as np

import tiffin

COMPOSITIONS = {
    "MLP": "mlp",
    "SwiGLU": "swiglu",
    "STEM": "stem",
    "STEM in the gate": "stem_gate",
    "SwiGLU + table": "ffn(gate(silu), sum(dense, token_embedding))",
    "StructMoE": "structmoe",
    "ReToken": "retoken(swiglu)",
    "MoRT": "mort(swiglu, num_layers=12)",
    "SwiGLU beside STEM": "parallel(swiglu, stem)",
    "STEM, squared ReLU": "ffn(gate(relu_squared), token_embedding)",
}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("compositions", nargs="*", metavar="COMPOSITION", help="texts (default: ten of this file)")
    for name, size, what in (("d-model", 512, "features of x"), ("d-ff", 2048, "hidden features"), ("vocab", 8192, "rows of tables"),
                             ("experts", 8, "of banks and pools"), ("rank", 32, "of banks"), ("tokens", 16, "of a call"), ("threads", 2, "of a call")):
        parser.add_argument(f"--{name}", type=int, default=size, help=f"{what} (default: {size})")
    parser.add_argument("--format", default="f32", help="what weights and tables are kept in, f32, bf16, q8_0, ... (default: f32)")
    parser.add_argument("--seconds", type=float, default=0.3, help="of timing per layer (default: 0.3)")
    parser.add_argument("--plot", metavar="FILE", help="draw time, bytes and FLOPs to a PNG or SVG file")
    return parser.parse_args()


def measured(text, given):
    sizes = dict(d_model=given.d_model, d_ff=given.d_ff, vocab=given.vocab, experts=given.experts, rank=given.rank)
    composition = tiffin.Composition(text)
    weights = composition.initial(layers=12, **sizes)
    for name, need in composition.needs(**sizes).items():
        if need.integers and not need.optional:
            weights[name] = (np.arange(np.prod(need.shape)) % given.experts).astype(np.int32).reshape(need.shape)
    layer = tiffin.Layer(composition.text, weights, format=given.format, threads=given.threads)
    rng = np.random.default_rng(1)
    rows = lambda width: rng.normal(size=(given.tokens, width)).astype(np.float32)
    beside = {}
    for name, shape in layer.needs().items():
        beside[name] = rng.integers(0, given.vocab, given.tokens) if name == "token_ids" else rows(shape[1])
    x, taken, begun = rows(given.d_model), [], time.perf_counter()
    while len(taken) < 3 or time.perf_counter() - begun < given.seconds:
        start = time.perf_counter()
        layer(x, **beside)
        taken.append(time.perf_counter() - start)
    return composition.cost(**sizes), 1e3 * float(np.median(taken))


def draw(path, rows, given):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    names = [name for name, *_ in rows]
    figure, axes = pyplot.subplots(1, 3, figsize=(11, 0.4 * len(rows) + 1.5), sharey=True)
    for axis, title, values in zip(axes, (f"ms per call of {given.tokens} tokens", "MB read per token", "MFLOPs per token"),
                                   ([ms for *_, ms in rows], [cost.bytes_per_token() / 1e6 for _, cost, _ in rows],
                                    [(cost.matrix_flops + cost.elementwise_flops) / 1e6 for _, cost, _ in rows])):
        axis.barh(names, values, color="#4477aa")
        axis.bar_label(axis.containers[0], fmt="%.3g", padding=2, fontsize=8)
        axis.set_title(title, fontsize=10)
        axis.margins(x=0.18)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    print(f"drawn to {path}")


def main():
    given = parse()
    asked = {text: text for text in given.compositions} or COMPOSITIONS
    if given.plot:
        try:
            import matplotlib.pyplot  # noqa: F401
        except ImportError as error:
            sys.exit(f"compare_compositions.py: --plot needs matplotlib: pip install matplotlib ({error})")
    width = max(len(name) for name in asked)
    print(f"d_model {given.d_model}, d_ff {given.d_ff}, vocab {given.vocab}, {given.format}, {given.threads} threads")
    print(f"{'':{width}}  {'stored':>10}  {'in tables':>10}  {'read/token':>10}  {'FLOPs/token':>11}  {'ms/call':>8}")
    rows = []
    for name, text in asked.items():
        cost, ms = measured(text, given)
        rows.append((name, cost, ms))
        print(f"{name:{width}}  {cost.parameters:10.3g}  {cost.table_parameters:10.3g}  {cost.parameters_per_token:10.3g}  "
              f"{cost.matrix_flops + cost.elementwise_flops:11.3g}  {ms:8.3f}", flush=True)
    if given.plot:
        draw(given.plot, rows, given)


if __name__ == "__main__":
    try:
        main()
    except (tiffin.Error, OSError) as wrong:
        sys.exit(f"compare_compositions.py: {wrong}")
