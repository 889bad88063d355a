#!/usr/bin/env python3
"""Pictures of the curves that `reproduce` wrote: claim.<n>.<name>.csv becomes claim.<n>.<name>.png beside it.

    plot_claims.py FOLDER
"""
import csv
import pathlib
import sys


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    try:
        import matplotlib
    except ImportError:
        sys.exit("matplotlib is not installed (python3-matplotlib)")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    files = sorted(pathlib.Path(sys.argv[1]).glob("claim.*.csv"))
    if not files:
        sys.exit(f"{sys.argv[1]} has no claim.<n>.<name>.csv")
    for path in files:
        with path.open() as table:
            rows = list(csv.reader(table))
        head, curves = rows[0], {}
        for name, x, y, spread, *_ in rows[1:]:
            curves.setdefault(name, []).append((float(x), float(y), float(spread)))
        figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
        for name, points in curves.items():
            xs, ys, spreads = zip(*points)
            (line,) = axes.plot(xs, ys, marker="o", markersize=3, label=name)
            axes.fill_between(xs, [y - s for y, s in zip(ys, spreads)], [y + s for y, s in zip(ys, spreads)],
                              color=line.get_color(), alpha=0.2, linewidth=0)
        if head[4] == "logarithmic":
            axes.set_xscale("log", base=4)
        axes.set_xlabel(head[1])
        axes.set_ylabel(head[2])
        axes.legend()
        axes.grid(alpha=0.3)
        figure.savefig(path.with_suffix(".png"), dpi=120)
        pyplot.close(figure)
        print(path.with_suffix(".png"))


main()
