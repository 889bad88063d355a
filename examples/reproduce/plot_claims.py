#!/usr/bin/env python3
"""Pictures of the curves that `reproduce` wrote: claim.<n>.<name>.csv becomes claim.<n>.<name>.png beside it. With PAGE,
all tables and pictures there are as one page of Markdown, the pictures in the folder figures beside it.

    plot_claims.py FOLDER [PAGE]
"""
import csv
import pathlib
import sys


def draw(files, folder):
    try:
        import matplotlib
    except ImportError:
        sys.exit("matplotlib is not installed (python3-matplotlib)")
    matplotlib.use("Agg")
    from matplotlib import pyplot

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
        to = folder / path.with_suffix(".png").name
        figure.savefig(to, dpi=90)
        pyplot.close(figure)
        print(to)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__.strip())
    of = pathlib.Path(sys.argv[1])
    files = sorted(of.glob("claim.*.csv"))
    tables = sorted(of.glob("claim.*.md"), key=lambda path: int(path.name.split(".")[1]))
    if not tables:
        sys.exit(f"{of} has no claim.<n>.<name>.md")
    page = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else None
    figures = page.parent / "figures" if page else of
    figures.mkdir(exist_ok=True)
    draw(files, figures)
    if page is None:
        return
    # What is written above the first of them by hand is kept.
    kept = page.read_text().partition("\n## ")[0] if page.exists() else "# The papers' claims, in miniature"
    text = kept.rstrip() + "\n\n"
    for table in tables:
        text += table.read_text()
        if table.with_suffix(".csv") in files:
            text += f"\n![{table.stem}](figures/{table.stem}.png)\n"
        text += "\n"
    page.write_text(text.rstrip() + "\n")
    print(page)


main()
