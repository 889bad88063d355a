#!/usr/bin/env python3
"""Draws the table that compare_layers --json writes: what each layer stores, reads and takes."""
import argparse
import json
import sys


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", help="JSON file of compare_layers --json")
    parser.add_argument("picture", nargs="?", default="compare_layers.png",
                        help="file to draw to, .png, .svg or .pdf (default: %(default)s)")
    args = parser.parse_args()
    try:
        import matplotlib
    except ImportError:
        sys.exit("plot.py: matplotlib is not installed; on Debian: apt-get install python3-matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    try:
        with open(args.table, encoding="utf-8") as file:
            table = json.load(file)
        layers = table["layers"]
        names = [layer["name"] for layer in layers]
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit("plot.py: %s: not a table of compare_layers: %s" % (args.table, error))

    panels = [
        ("prefill, times SwiGLU", "prefill_ratio", 1, "{:.2f}"),
        ("decode, times SwiGLU", "decode_ratio", 1, "{:.2f}"),
        ("bytes read a token, MB", "bytes_per_token", 1e-6, "{:.0f}"),
        ("FLOPs a token, M", "flops_per_token", 1e-6, "{:.0f}"),
    ]
    colours = ["#777777" if layer["name"] in ("swiglu", "mlp") else "#2a6f97" for layer in layers]
    figure, axes = plt.subplots(1, len(panels), figsize=(13, 0.5 * len(layers) + 1.6), sharey=True)
    for axis, (title, key, factor, form) in zip(axes, panels):
        values = [layer[key] * factor for layer in layers]
        bars = axis.barh(names, values, color=colours)
        axis.bar_label(bars, labels=[form.format(value) for value in values], padding=3)
        axis.set_title(title, fontsize=10)
        axis.set_xlim(0, 1.25 * max(values))
        axis.spines[["top", "right"]].set_visible(False)
        if key.endswith("ratio"):
            axis.axvline(1, color="#bbbbbb", linewidth=1, zorder=0)
    axes[0].invert_yaxis()
    figure.suptitle("{shape}: d_model {d_model}, d_ff {d_ff}, f32, {tokens} tokens of text, {threads} threads"
                    .format(**table), fontsize=11)
    figure.tight_layout()
    figure.savefig(args.picture, dpi=130)


if __name__ == "__main__":
    main()
