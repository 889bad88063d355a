#!/usr/bin/env python3
"""Makes a table and a picture of what bench_layers or bench_cuda measured: how near each layer is to the machine's limit, and its time
over that of the dense block in the best other library of the same run."""
import argparse
import json
import re
import sys
from collections import defaultdict

NAME = re.compile(r"(layer|peer)/(.+)/(\d+x\d+)/tokens:(\d+)/(?:real|manual)_time$")


def read(path):
    """Context, and {(name, shape): {tokens: (milliseconds, roofline)}}: medians where there are repetitions."""
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    found, medians = defaultdict(dict), defaultdict(dict)
    for one in report["benchmarks"]:
        match = NAME.match(one.get("run_name", one["name"]))
        if not match or "error_occurred" in one:
            continue
        key, tokens = (match[1] + "/" + match[2], match[3]), int(match[4])
        value = (one["real_time"], one["roofline"])
        if one.get("aggregate_name") == "median":
            medians[key][tokens] = value
        elif one.get("run_type") == "iteration":
            found[key][tokens] = value
    for key, row in medians.items():
        found[key].update(row)
    return report["context"], found


def processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return "unknown processor"


def machine_of(context):
    if "device" in context:
        return "%s, %.0f TFLOP/s of bf16 products, %.0f GB/s of copies" % (
            context["device"], float(context["peak_gflops"]) / 1000, float(context["read_gbs"]))
    return "%s, %s threads, %.0f GFLOP/s of f32 multiply-adds, %.0f GB/s of reads" % (
        processor(), context["threads"], float(context["peak_gflops"]), float(context["read_gbs"]))


def table(context, found, best):
    machine = machine_of(context)
    lines = ["# Layers and number formats", "", "Milliseconds / share of the machine's limit / times the dense block in the "
             "best other library.", machine + ", " + context["date"] + ".", ""]
    for shape in sorted({s for _, s in found}):
        rows = {name: row for (name, s), row in found.items() if s == shape}
        tokens = sorted({t for row in rows.values() for t in row})
        lines += ["## d_model x d_ff = " + shape, "", "| | " + " | ".join("T = %d" % t for t in tokens) + " |",
                  "|" + "---|" * (len(tokens) + 1)]
        for name in sorted(rows):
            cells = []
            for t in tokens:
                if t not in rows[name]:
                    cells.append("")
                    continue
                ms, roofline = rows[name][t]
                cells.append("%.3g / %.2f" % (ms, roofline) + (" / %.2f" % (ms / best[shape, t]) if (shape, t) in best else ""))
            lines.append("| " + name + " | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines), machine


def picture(found, best, machine, path):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    shapes = {s for _, s in found if any(k[0] == s for k in best)} or {s for _, s in found}
    shape = max(shapes, key=lambda s: sum(key[1] == s for key in found))
    colours = {"f32": "#2a6f97", "bf16": "#3a9a6b", "f16": "#9bc53d", "q8_0": "#e28413", "q4_0": "#c1292e"}
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6))
    for (name, s), row in sorted(found.items()):
        parts = name.split("/")
        if s != shape or parts[0] != "layer" or parts[2] not in ("simd", "cuda"):
            continue
        tokens = sorted(row)
        style = {"color": colours.get(parts[3], "#777777"), "linestyle": "-" if parts[1] == "stem" else "--",
                 "marker": "o", "markersize": 3, "label": parts[1] + " " + parts[3]}
        left.plot(tokens, [row[t][1] for t in tokens], **style)
        against = [t for t in tokens if (s, t) in best]
        right.plot(against, [row[t][0] / best[s, t] for t in against], **style)
    for axis, title in ((left, "share of the machine's limit"), (right, "time over SwiGLU in the best other library")):
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted({t for row in found.values() for t in row}))
        axis.xaxis.set_major_formatter(lambda value, _: "%d" % value)
        axis.set_xlabel("tokens a call")
        axis.set_title(title, fontsize=10)
        axis.set_ylim(bottom=0)
        axis.axhline(1, color="#bbbbbb", linewidth=1, zorder=0)
        axis.spines[["top", "right"]].set_visible(False)
    left.legend(fontsize=7, ncol=2)
    figure.suptitle("d_model x d_ff = %s; %s" % (shape, machine), fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", help="JSON file of bench_layers or bench_cuda --benchmark_out")
    parser.add_argument("stem", nargs="?", default="bench", help="writes STEM.md and STEM.png (default: %(default)s)")
    args = parser.parse_args()
    try:
        context, found = read(args.report)
    except (OSError, ValueError, KeyError) as error:
        sys.exit("report.py: %s: not a report of bench_layers or bench_cuda: %s" % (args.report, error))
    if not found:
        sys.exit("report.py: %s: holds no layer and no peer" % args.report)
    best = {}
    for (name, shape), row in found.items():
        if name.startswith("peer/"):
            for tokens, (ms, _) in row.items():
                best[shape, tokens] = min(ms, best.get((shape, tokens), ms))
    text, machine = table(context, found, best)
    with open(args.stem + ".md", "w", encoding="utf-8") as file:
        file.write(text)
    print("wrote " + args.stem + ".md")
    try:
        picture(found, best, machine, args.stem + ".png")
        print("wrote " + args.stem + ".png")
    except ImportError:
        print("no picture: matplotlib is not installed; on Debian: apt-get install python3-matplotlib")


if __name__ == "__main__":
    main()
