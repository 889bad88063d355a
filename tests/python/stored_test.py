#!/usr/bin/env python3
"""tiffin.StoredTable against AdamW in double precision, over commits, roll backs and runs that end.

    stored_test.py [LIBRARY]
"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import done, expect, near, np, refused, tiffin

rng = np.random.default_rng(3)


class Exact:
    """AdamW per row, in double."""

    def __init__(self, values):
        self.w, self.steps = values.astype(np.float64), np.zeros(len(values), int)
        self.m, self.v = np.zeros_like(self.w), np.zeros_like(self.w)

    def step(self, ids, g, lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, clip=0.0):
        g = g.astype(np.float64)
        if clip and np.sqrt((g ** 2).sum()) > clip:
            g = g * clip / np.sqrt((g ** 2).sum())
        for id, row in zip(ids, g):
            self.steps[id] += 1
            self.m[id] = betas[0] * self.m[id] + (1 - betas[0]) * row
            self.v[id] = betas[1] * self.v[id] + (1 - betas[1]) * row ** 2
            first, second = self.m[id] / (1 - betas[0] ** self.steps[id]), self.v[id] / (1 - betas[1] ** self.steps[id])
            self.w[id] -= lr * (weight_decay * self.w[id] + first / (np.sqrt(second) + eps))


with tempfile.TemporaryDirectory() as folder:
    path, n, width = Path(folder) / "table.rows", 300, 19
    start = rng.normal(size=(n, width)).astype(np.float32)
    with tiffin.StoredTable.create(path, n, width, initial=start) as table:
        expect(f"{table!r}", (len(table), table.width, table.commits, table.unfinished) == (n, width, 0, False))
        expect("its starting values", (table.gather(np.arange(n)) == start).all())
        exact = Exact(start)
        for i in range(30):
            how = [{}, dict(betas=(0.8, 0.99), eps=1e-6), dict(weight_decay=0.0), dict(clip=0.5)][i % 4]
            ids = np.sort(rng.choice(n, 40, replace=False))
            g = rng.normal(size=(40, width)).astype(np.float32)
            table.step(ids, g, lr=1e-2, **how)
            exact.step(ids, g, lr=1e-2, **how)
        # 30 steps, each with a rounding of 2^-24 of the largest number.
        near("values", table.gather(np.arange(n)), exact.w, 1e-5)
        moments = table.moments(np.arange(n))
        near("first moments", moments.first, exact.m, 1e-5)
        near("second moments", moments.second, exact.v, 1e-5)
        expect("counts of steps", (moments.steps == exact.steps).all())
        table.commit()
        expect("a commit", table.commits == 1)

        g = rng.normal(size=(5, width)).astype(np.float32)
        table.step([9, 4, 9, 4, 1], g, lr=1e-2)  # in any order, twice
        exact.step([1, 4, 9], np.stack([g[4], g[1] + g[3], g[0] + g[2]]), lr=1e-2)
        near("ids that come again", table.gather([1, 4, 9]), exact.w[[1, 4, 9]], 1e-5)
        kept = table.gather(np.arange(n))
        table.commit()
        try:
            with table.transaction():
                table.step([0], g[:1], lr=1.0)
                raise KeyError
        except KeyError:
            expect("rolled back", (table.gather(np.arange(n)) == kept).all() and table.commits == 2)

        good = np.ones((1, width), np.float32)
        for what, code, says, work in (
                ("a NaN in the rate", "option", "rate", lambda: table.step([0], good, lr=float("nan"))),
                ("a beta of 1", "option", "beta1", lambda: table.step([0], good, lr=1.0, betas=(1.0, 0.9))),
                ("a negative decay", "option", "decay", lambda: table.step([0], good, lr=1.0, weight_decay=-1)),
                ("an infinite gradient", "value", "gradients", lambda: table.step([0], good * np.inf, lr=1.0)),
                ("an id beyond", "token_id", "ids", lambda: table.step([n], good, lr=1.0)),
                ("an id beyond", "token_id", "ids", lambda: table.gather([n])),
                ("another width", "size", "gradients", lambda: table.step([0], good[:, 1:], lr=1.0)),
                ("integers", "dtype", "gradients", lambda: table.step([0], good.astype(int), lr=1.0)),
                ("opened twice", "file", "table.rows", lambda: tiffin.StoredTable.open(path)),
                ("made twice", "file", "table.rows", lambda: tiffin.StoredTable.create(path, 3, 3))):
            refused(what, code, says, work)
        expect("nothing was written", (table.gather(np.arange(n)) == kept).all())
        # Its values as Rows, also cached: as they are at the time.
        stem, sizes = tiffin.Composition("stem"), dict(d_model=8, d_ff=width, vocab=n)
        weights, x, ids = stem.initial(layers=1, **sizes), rng.normal(size=(9, 8)).astype(np.float32), rng.integers(0, n, 9)
        rows = [table.rows(), table.rows(cache_rows=n)]
        layers = [tiffin.Layer("stem", {**weights, "stem_embed.weight": r}) for r in rows]
        training = tiffin.Training("stem", {**weights, "stem_embed.weight": rows[0]}, tokens=16)
        for i in range(3):
            values = table.gather(np.arange(n))
            expect("rows", all((r.gather(np.arange(n)) == values).all() and len(r) == n for r in rows))
            there = tiffin.Layer("stem", {**weights, "stem_embed.weight": values})(x, token_ids=ids)
            expect("layers", all((layer(x, token_ids=ids) == there).all() for layer in layers))
            # Sums of 19 products in another order.
            expect("training", np.allclose(training.forward(x, token_ids=ids), there, rtol=1e-4, atol=1e-5))
            training.backward(np.ones((9, 8), np.float32))
            g = training.gradients["stem_embed.weight"]
            table.step(g.ids, g.rows, lr=0.1)
            training.clear()
            expect("it changed", not (table.gather(ids) == values[ids]).any())
        table.roll_back()
        expect("rolled back under a cache", (rows[1].gather(np.arange(n)) == kept).all())
    refused("closed", "empty", "closed", lambda: table.gather([0]))
    for work in (lambda: rows[1].gather([0]), lambda: layers[1](x, token_ids=ids), lambda: table.rows()):
        refused("closed with its table", "empty", "closed", work)

    # A run that ends between commits.
    code = ("import os, sys, numpy as np, tiffin\n"
            "t = tiffin.StoredTable.open(sys.argv[1])\n"
            "t.step([5], np.ones((1, t.width), np.float32), lr=1.0)\n"
            "os._exit(0)\n")
    beside = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for decide in ("roll_back", "keep_changes"):
        subprocess.run([sys.executable, "-c", code, str(path)], env=beside, check=True)
        with tiffin.StoredTable.open(path) as table:
            expect("unfinished", table.unfinished)
            refused("undecided", "file", "roll_back", lambda: table.gather([0]))
            getattr(table, decide)()
            expect(decide, not table.unfinished and (table.gather(np.arange(n)) == kept).all() == (decide == "roll_back"))

    made = tiffin.StoredTable.create(Path(folder) / "zeros", 10 ** 6, 64)
    expect("zeros", not made.gather([0, 999999]).any() and os.stat(made.path).st_blocks * 512 < 10 ** 6)
    made.close()
    called = tiffin.StoredTable.create(Path(folder) / "called", 4, 2, initial=lambda id: [id, -float(id)])
    expect("by a function", (called.gather([3]) == [[3, -3]]).all())
    called.close()
    for what, initial in (("a width", lambda id: [1.0]), ("what raises", lambda id: {}[id])):
        try:
            tiffin.StoredTable.create(Path(folder) / "wrong", 4, 2, initial=initial)
            expect(f"{what}: not refused", False)
        except (tiffin.Error, KeyError):
            expect(f"{what}: no file is left", not (Path(folder) / "wrong").exists())
    refused("an array of another shape", "shape", "initial", lambda: tiffin.StoredTable.create(Path(folder) / "w", 4, 2, initial=start))
    refused("no such file", "file", "none", lambda: tiffin.StoredTable.open(Path(folder) / "none"))
done()
