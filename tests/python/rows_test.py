#!/usr/bin/env python3
"""tiffin.Rows against the arrays that were written: gathered, cached, prefetched, edited, by several threads.

    rows_test.py [LIBRARY]
"""
import json
import pickle
import resource
import struct
import tempfile
import threading
from pathlib import Path

from checks import done, expect, np, refused, tiffin

rng = np.random.default_rng(5)


def write(path, tensors):
    """A safetensors file of float32, float16 or int32 arrays."""
    names, header, at = {"float32": "F32", "float16": "F16", "int32": "I32"}, {}, 0
    for name, a in tensors.items():
        header[name] = {"dtype": names[str(a.dtype)], "shape": a.shape, "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(a.tobytes() for a in tensors.values()))


with tempfile.TemporaryDirectory() as folder:
    path, n, width = Path(folder) / "tables.safetensors", 5000, 37
    table, half, pool = rng.normal(size=(n, width)).astype(np.float32), rng.normal(size=(20, 8)).astype(np.float16), rng.normal(size=(3, 5, 4)).astype(np.float32)
    write(path, {"table": table, "half": half, "chosen": table[:16, :8].copy(), "pool": pool, "ids": np.arange(6, dtype=np.int32).reshape(2, 3), "vector": table[0]})
    for options in ({}, {"direct": True}, {"cache_rows": 50}, {"cache_bytes": 40000}, {"direct": True, "cache_rows": 700}):
        with tiffin.Rows.open(path, "table", **options) as rows:
            expect(f"{options}: shape", (len(rows), rows.width, rows.format, rows.row_bytes) == (n, width, "f32", 4 * width))
            for _ in range(3):
                ids = rng.integers(0, n, 3000)
                expect(f"{options}: rows", (rows.gather(ids) == table[ids]).all())
                expect(f"{options}: as stored", (rows.read(ids[:9]).view(np.float32) == table[ids[:9]]).all())
            first, weights = np.array([0, 0, 5, 40, 2990]), rng.normal(size=3000)
            exact = [(table[ids[a:b]] * np.float32(weights[a:b, None]).astype(np.float64)).sum(0) for a, b in zip(first, [*first[1:], 3000])]
            expect(f"{options}: sums", np.abs(rows.sum(ids, first, weights) - exact).max() < 1e-3)
            expect(f"{options}: sums without weights", np.abs(rows.sum(ids, first)[3] - table[ids[40:2990]].sum(0, np.float64)).max() < 1e-3)
            for wrong in ([1], [0, 3, 2], [0, 3001], [-1]):
                refused(f"groups {wrong}", "size", "first", lambda: rows.sum(ids, wrong))
            refused("two weights", "size", "weights", lambda: rows.sum(ids, first, [1.0, 2.0]))
            expect(f"{options}: none", rows.gather([]).shape == (0, width) and rows.sum([], []).shape == (0, width) and not rows.sum([], [0, 0]).any())
            counts, cached = rows.counts, "cache_rows" in options or "cache_bytes" in options
            expect(f"{options}: {counts}", (counts.misses > 0 and counts.bytes_read == counts.misses * 4 * width) == cached)
            for wrong in ([n], [-1], [0, n], [2 ** 40]):
                refused(f"ids {wrong}", "token_id", "ids", lambda: rows.gather(wrong))
                refused(f"prefetched ids {wrong}", "token_id", "ids", lambda: rows.prefetch(wrong))
            refused("floats", "dtype", "ids", lambda: rows.gather([1.5]))
            refused("two axes", "size", "ids", lambda: rows.gather([[1]]))
        for work in (lambda: rows.gather([0]), lambda: len(rows), lambda: rows.counts, lambda: rows.replace(0, 1), lambda: rows.prefetch([1])):
            refused("closed", "empty", "closed", work)
        rows.close()  # again

    with tiffin.Rows.open(path, "table", cache_rows=n) as rows:
        ahead = rng.permutation(n)[:2000]
        rows.prefetch(ahead)
        rows.wait()
        before = rows.counts
        expect("prefetched", (rows.gather(ahead) == table[ahead]).all() and before.misses == 2000)
        expect(f"only hits: {rows.counts}", rows.counts.misses == before.misses and rows.counts.hits == before.hits + 2000)
        with rows.edited({3: 7, 4: 8}):
            expect("edited", (rows.gather([3, 4, 5]) == table[[7, 8, 5]]).all())
            with rows.edited({3: 9}):
                expect("edited twice", (rows.gather([3]) == table[9]).all())
            expect("the inner edit undone", (rows.gather([3]) == table[7]).all())
        expect("undone", (rows.gather([3, 4]) == table[[3, 4]]).all() and not rows.undo())
        mean = rows.add_mean([1, 2, 6])
        wanted = table[[1, 2, 6]].astype(np.float64).mean(0).astype(np.float32)
        expect("a mean", mean == n and len(rows) == n + 1 and (rows.gather([mean])[0] == wanted).all())
        refused("a mean of none", "option", "ids", lambda: rows.add_mean([]))
        refused("beyond", "token_id", "ids", lambda: rows.replace(0, n + 1))
        try:
            with rows.edited({0: 1, 2: n + 5}):
                expect("an edit that fails", False)
        except tiffin.Error:
            expect("its first replacement is undone", (rows.gather([0]) == table[0]).all())
        again = pickle.loads(pickle.dumps(rows))
        expect("pickled", (again.gather([5]) == table[5]).all() and len(again) == n)

        good = []
        def often(seed):
            own = np.random.default_rng(seed)
            good.append(all((rows.gather(ids) == table[ids]).all() for ids in (own.integers(0, n, 500) for _ in range(20))))
        callers = [threading.Thread(target=often, args=(i,)) for i in range(4)]
        [t.start() for t in callers], [t.join() for t in callers]
        expect("four threads", good == [True] * 4)

    expect("f16", (tiffin.Rows.open(path, "half").gather([3, 3]) == half[3].astype(np.float32)).all())
    expect("a pool", (tiffin.Rows.open(path, "pool").gather([7]) == pool[1, 2]).all())
    refused("no such tensor", "missing_tensor", "none", lambda: tiffin.Rows.open(path, "none"))
    refused("integers", "dtype", "ids", lambda: tiffin.Rows.open(path, "ids"))
    refused("a vector", "shape", "vector", lambda: tiffin.Rows.open(path, "vector"))
    refused("no such file", "file", "none", lambda: tiffin.Rows.open(Path(folder) / "none", "table"))
    refused("no GGUF file", "file", "x.gguf", lambda: tiffin.Rows.open(Path(folder) / "x.gguf", "table"))
    refused("a zero byte", "argument", "zero byte", lambda: tiffin.Rows.open(path, "table\0"))
    for wrong in (-1, 1.5, True, "many"):
        refused(f"cache_rows {wrong}", "option", "cache_rows", lambda: tiffin.Rows.open(path, "table", cache_rows=wrong))

    # Layers that read their tables from files: the same bits as from memory.
    stem, sizes = tiffin.Composition("stem"), dict(d_model=24, d_ff=37, vocab=n)
    weights = {**stem.initial(layers=1, **sizes), "stem_embed.weight": table}
    x, ids = rng.normal(size=(70, 24)).astype(np.float32), rng.integers(0, n, 70)
    ids[:40] = ids[0]
    for options in ({}, {"backend": "eigen"}, {"backend": "reference"}, {"format": "f16"}):
        wanted = tiffin.Layer("stem", weights, **options)(x, token_ids=ids, threads=2)
        for how in ({}, {"direct": True}, {"cache_rows": 30}):
            rows = tiffin.Rows.open(path, "table", **how)
            layer = tiffin.Layer("stem", {**weights, "stem_embed.weight": rows}, **options)
            expect(f"{options}, {how}", (layer(x, token_ids=ids, threads=2) == wanted).all())
            expect("holds none of it", layer.held_bytes < table.nbytes and layer.needs() == {"token_ids": ("tokens",)})
    with rows.edited({int(ids[0]): int(ids[-1])}):
        swapped = np.where(ids == ids[0], ids[-1], ids)
        expect("edits are read", (layer(x, token_ids=ids) == layer(x, token_ids=swapped)).all())
    mean = rows.add_mean([1, 2])
    refused("a row that was added later", "token_id", "stem_embed", lambda: layer(x[:1], token_ids=[mean]))
    refused("no ids", "size", "token_ids", lambda: layer(x))
    refused("an id beyond", "token_id", "stem_embed", lambda: layer(x, token_ids=np.full(70, n)))
    good = []
    def call(seed):
        own = np.random.default_rng(seed)
        for _ in range(20):
            some = own.integers(0, n, 1 + seed * 20)
            good.append((layer(x[:len(some)], token_ids=some) == plain(x[:len(some)], token_ids=some)).all())
    plain = tiffin.Layer("stem", weights, **options)
    callers = [threading.Thread(target=call, args=(i,)) for i in range(3)]
    [t.start() for t in callers], [t.join() for t in callers]
    expect("three threads", len(good) == 60 and all(good))
    rows.close()
    refused("its rows are closed", "empty", "closed", lambda: layer(x, token_ids=ids))

    # A pool: a row of each expert.
    mort, sizes = tiffin.Composition("mort(stem, num_layers=2)"), dict(d_model=4, d_ff=37, vocab=5, experts=3)
    weights = {**mort.initial(layers=1, **sizes), "modulators.weight": pool}
    x4, ids5 = rng.normal(size=(9, 4)).astype(np.float32), rng.integers(0, 5, 9)
    rows = tiffin.Rows.open(path, "pool")
    layer = tiffin.Layer("mort(stem, num_layers=2)", {**weights, "modulators.weight": ("rows", rows, (3, 5, 4))})
    expect("a pool in a file", (layer(x4, token_ids=ids5) == tiffin.Layer("mort(stem, num_layers=2)", weights)(x4, token_ids=ids5)).all())
    for shape in ((3, 5), (5, 3, 4, 1), (3, 5, 5), (3, 4, 4), (0, 5, 4), (15, 4)):
        refused(f"a pool as {shape}", "shape", "modulators", lambda: tiffin.Layer("mort(stem, num_layers=2)", {**weights, "modulators.weight": ("rows", rows, shape)}))

    # Rows that the layer chooses, and not the tokens.
    refused("chosen rows", "option", "values.weight", lambda: tiffin.Layer({"block": "product_keys", "top_k": 2}, {
        "query.weight": rng.normal(size=(8, 8)).astype(np.float32), "keys.weight": rng.normal(size=(2, 4, 4)).astype(np.float32),
        "values.weight": tiffin.Rows.open(path, "chosen")}))

    # Layers that learn from files.
    weights = {**stem.initial(layers=1, d_model=24, d_ff=37, vocab=n), "stem_embed.weight": table}
    rows, dy = tiffin.Rows.open(path, "table"), rng.normal(size=(70, 24)).astype(np.float32)
    here, there = tiffin.Training("stem", weights, tokens=80), tiffin.Training("stem", {**weights, "stem_embed.weight": rows}, tokens=80)
    expect("forward", (here.forward(x, token_ids=ids) == there.forward(x, token_ids=ids)).all())
    refused("an id beyond", "token_id", "stem_embed", lambda: there.forward(x, token_ids=np.full(70, n)))
    expect("backward, after a forward that was refused", (here.backward(dy)["x"] == there.backward(dy)["x"]).all())
    for name, g in here.gradients.items():
        same = there.gradients[name]
        expect(name, (same.rows == g.rows).all() and (same.ids == g.ids).all() if name == "stem_embed.weight" else (same == g).all())
    refused("half", "dtype", "stem_embed", lambda: tiffin.Training(
        "stem", {**tiffin.Composition("stem").initial(layers=1, d_model=24, d_ff=8, vocab=20), "stem_embed.weight": tiffin.Rows.open(path, "half")}))

    # A million gathered rows, ten thousand calls, and handles opened and left: no memory is lost.
    mlp = tiffin.Composition("mlp").initial(d_model=16, d_ff=32, layers=1)
    layer, x = tiffin.Layer("mlp", mlp), np.ones((2, 16), np.float32)
    rows, ids = tiffin.Rows.open(path, "table", cache_rows=500), rng.integers(0, n, 10000)
    rows.gather(ids), layer(x, threads=2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(100):
        rows.gather(ids)
    for i in range(10000):
        layer(x, threads=1 + i % 2)
    for _ in range(300):
        tiffin.Rows.open(path, "table", cache_rows=100), tiffin.Layer("mlp", mlp), tiffin.Training("mlp", mlp, tokens=2)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    expect(f"memory grew by {grown} KiB", grown < 4096)
done()
