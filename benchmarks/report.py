#!/usr/bin/env python3
"""Makes tables and a picture of what bench_layers or bench_cuda measured: how near each layer is to the machine's limit, times of one
over another, measured in turns, and how time grows with the tokens of a call."""
import argparse
import json
import pathlib
import re
import subprocess
import sys
from collections import defaultdict

TIMED = re.compile(r"((?:layer|peer)/.+)/(\d+x\d+)/tokens:(\d+)/(?:real|manual)_time$")
RATIO = re.compile(r"ratio/(.+)/over/(.+)/tokens:(\d+)/(?:real|manual)_time$")
CURVE = re.compile(r"curve/(.+)/real_time$")
OVERHEAD = re.compile(r"overhead/([^/]+)/(.+)/real_time$")

from disturbance import QUIET

WIDE = 0.1  # the quartiles of a ratio may be so far apart, over the median


class Report:
    """Medians where there are repetitions, of
        times:  {(name, shape): {tokens: (milliseconds, roofline)}}
        noisy:  the same keys, and those below, of what was measured beside others
        wide:   of what was measured in turns, those whose quartiles are far apart
        ratios: {(above, below): {tokens: (median, lower quartile, upper quartile)}}, names with their shapes
        curves: {name: {counter: value}}
        overheads: {(executor, name): (median, lower quartile, upper quartile)}, microseconds"""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
        self.context = report["context"]
        self.noisy, self.wide, self.most_others = set(), set(), None
        self.times, self.ratios, self.curves, self.overheads = defaultdict(dict), defaultdict(dict), {}, {}
        runs = {}
        for one in report["benchmarks"]:
            kind = one.get("aggregate_name", "iteration")
            if "error_occurred" not in one and kind in ("iteration", "median"):
                name = one.get("run_name", one["name"])
                if kind == "median" or runs.get(name, {}).get("aggregate_name") != "median":
                    runs[name] = one
        for name, one in runs.items():
            if match := TIMED.match(name):
                key = (match[1], match[2], int(match[3]))
                self.times[key[:2]][key[2]] = (one["real_time"], one["roofline"])
            elif match := RATIO.match(name):
                key = (match[1], match[2], int(match[3]))
                self.ratios[key[:2]][key[2]] = (one["ratio"], one["quarter"], one["three_quarters"])
                if one["three_quarters"] - one["quarter"] > WIDE * one["ratio"]:
                    self.wide.add(key)
            elif match := CURVE.match(name):
                key = match[1]
                self.curves[key] = one
            elif match := OVERHEAD.match(name):
                key = (match[1], match[2])
                self.overheads[key] = (one["microseconds"], one["quarter"], one["three_quarters"])
            else:
                continue
            others = one.get("others", -1)
            if others >= 0:
                self.most_others = max(others, self.most_others or 0)
            if others > QUIET:
                self.noisy.add(key)

    def mark(self, *key):
        key = key if len(key) > 1 else key[0]
        return "*" * (key in self.noisy) + "~" * (key in self.wide)

    def over_fastest_peer(self, name, shape):
        """{tokens: ratio} over the fastest of the other libraries that it was held against in turns."""
        found = {}
        for (above, below), row in self.ratios.items():
            if above == name + "/" + shape and below.startswith("peer/"):
                for tokens, (median, _, _) in row.items():
                    found[tokens] = max(median, found.get(tokens, 0))
        return found


def processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return "unknown processor"


def commit():
    try:
        return subprocess.run(["git", "describe", "--always", "--dirty"], cwd=pathlib.Path(__file__).parent, check=True,
                              capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def machine_of(context):
    if "device" in context:
        return "%s, %.0f TFLOP/s of bf16 products, %.0f GB/s of copies" % (
            context["device"], float(context["peak_gflops"]) / 1000, float(context["read_gbs"]))
    peaks = ["%.0f of %s" % (float(context["peak_gflops_" + kind]), text) for kind, text in (
        ("f32", "f32 multiply-adds"), ("bf16_dot", "bf16 products"), ("int8_dot", "8-bit products"))]
    built = "".join(", " + context[key] for key in ("instructions", "compiler") if key in context)
    return "%s, %s threads%s, commit %s, GFLOP/s: %s; %.0f GB/s of reads" % (
        processor(), context["threads"], built, commit(), ", ".join(peaks), float(context["read_gbs"]))


def lines_of(rows, cell):
    """A table of {name: {tokens: value}}; cell(name, tokens, value)."""
    tokens = sorted({t for row in rows.values() for t in row})
    lines = ["| | " + " | ".join("T = %d" % t for t in tokens) + " |", "|" + "---|" * (len(tokens) + 1)]
    for name in sorted(rows):
        lines.append("| " + name + " | " + " | ".join(cell(name, t, rows[name][t]) if t in rows[name] else "" for t in tokens) + " |")
    return lines + [""]


def tables(report):
    lines = ["# Layers and number formats", "", machine_of(report.context) + ", " + report.context["date"] + ".", ""]
    if report.most_others is not None:
        lines += ["Others had at most %.0f %% of the processors' time during a measurement." % (100 * report.most_others) + (
            " %d figures with a * were measured beside more than %.0f %%, and are not to be quoted." % (len(report.noisy), 100 * QUIET)
            if report.noisy else ""), ""]
    if report.wide:
        lines += ["%d of %d ratios with a ~ have quartiles more than %.0f %% of the median apart: the machine was not steady." % (
            len(report.wide), sum(map(len, report.ratios.values())), 100 * WIDE), ""]
    for shape in sorted({s for _, s in report.times}):
        lines += ["## d_model x d_ff = " + shape, "", "Milliseconds / share of the machine's limit.", ""]
        lines += lines_of({name: row for (name, s), row in report.times.items() if s == shape},
                          lambda name, t, v, s=shape: "%.3g / %.2f" % v + report.mark(name, s, t))
    if report.ratios:
        lines += ["## Times over others, in turns", "", "Medians, and quartiles, of the ratios of neighbouring calls.", ""]
        lines += lines_of({above + " over " + below: row for (above, below), row in report.ratios.items()},
                          lambda name, t, v: "%.2f (%.2f to %.2f)" % v + report.mark(*name.split(" over "), t))
    if report.curves:
        lines += ["## Time over tokens, 1 to 32", "", "The worst step is the smallest median of t(T + 1) / t(T): below 1, a token more takes less time.", "",
                  "| | worst step | quartiles | from T | milliseconds of T = 1, 2, 4, 8, 16, 32 |", "|---|---|---|---|---|"]
        for name, one in sorted(report.curves.items()):
            times = ", ".join("%.3g" % one["ms_%02d" % t] for t in (1, 2, 4, 8, 16, 32))
            lines.append("| %s | %.2f%s | %.2f to %.2f | %.0f | %s |" % (
                name, one["step"], report.mark(name), one["quarter"], one["three_quarters"], one["step_from"], times))
        lines.append("")
    if report.overheads:
        lines += ["## Hand-over", "", "Microseconds of a call of one token beyond its tasks: medians, and quartiles.", "",
                  "| executor | layer | microseconds |", "|---|---|---|"]
        lines += ["| %s | %s | %.2f (%.2f to %.2f)%s |" % (*key, *value, report.mark(*key))
                  for key, value in sorted(report.overheads.items())]
        lines.append("")
    return "\n".join(lines)


def picture(report, path):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    layers = {(n, s): row for (n, s), row in report.times.items() if n.startswith("layer/") and n.split("/")[2] in ("simd", "cuda")}
    if not layers:
        return False
    shape = max({s for _, s in layers}, key=lambda s: (any(report.over_fastest_peer(n, s) for n, of in layers if of == s),
                                                       sum(of == s for _, of in layers)))
    colours = {"f32": "#2a6f97", "bf16": "#3a9a6b", "f16": "#9bc53d", "q8_0": "#e28413", "q4_0": "#c1292e", "q4_1": "#8f2d56"}
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6))
    for (name, s), row in sorted(layers.items()):
        parts = name.split("/")
        if s != shape or parts[3] not in colours or parts[1] not in ("swiglu", "stem"):
            continue
        style = {"color": colours[parts[3]], "linestyle": "-" if parts[1] == "stem" else "--",
                 "marker": "o", "markersize": 3, "label": parts[1] + " " + parts[3]}
        tokens = sorted(row)
        left.plot(tokens, [row[t][1] for t in tokens], **style)
        against = sorted(report.over_fastest_peer(name, s).items())
        right.plot([t for t, _ in against], [ratio for _, ratio in against], **style)
    for axis, title in ((left, "share of the machine's limit"),
                        (right, "time over SwiGLU of the fastest other library in this format, in turns")):
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted({t for row in layers.values() for t in row}))
        axis.xaxis.set_major_formatter(lambda value, _: "%d" % value)
        axis.set_xlabel("tokens a call")
        axis.set_title(title, fontsize=10)
        axis.set_ylim(bottom=0)
        axis.axhline(1, color="#bbbbbb", linewidth=1, zorder=0)
        axis.spines[["top", "right"]].set_visible(False)
    left.legend(fontsize=7, ncol=2)
    figure.suptitle("d_model x d_ff = %s; %s" % (shape, machine_of(report.context)), fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", help="JSON file of bench_layers or bench_cuda --benchmark_out")
    parser.add_argument("stem", nargs="?", default="bench", help="writes STEM.md and STEM.png (default: %(default)s)")
    args = parser.parse_args()
    try:
        report = Report(args.report)
        text = tables(report)
    except (OSError, ValueError, KeyError) as error:
        sys.exit("report.py: %s: not a report of bench_layers or bench_cuda: %s" % (args.report, error))
    if not (report.times or report.ratios or report.curves or report.overheads):
        sys.exit("report.py: %s: holds no layer, no peer, no ratio, no curve and no hand-over" % args.report)
    with open(args.stem + ".md", "w", encoding="utf-8") as file:
        file.write(text)
    print("wrote " + args.stem + ".md")
    try:
        if picture(report, args.stem + ".png"):
            print("wrote " + args.stem + ".png")
    except ImportError:
        print("no picture: matplotlib is not installed; on Debian: apt-get install python3-matplotlib")


if __name__ == "__main__":
    main()
