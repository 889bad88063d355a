#!/usr/bin/env python3
"""tiffin.Layer where something is amiss: what does not fit is an error, and never read as something else.

    layers_test.py [LIBRARY]

Without numpy: status 77.
"""
import ctypes
import mmap
import os
import signal
import sys
import tempfile
import threading
import time

from checks import done, expect, np, refused, tiffin

rng = np.random.default_rng(3)


def raises(what, kind, work):
    try:
        work()
    except kind:
        return
    except BaseException as other:
        expect(f"{what}: {type(other).__name__}: {other}", False)
    else:
        expect(f"{what}: raised nothing", False)


def normal(*shape):
    return (rng.normal(size=shape) / 4).astype(np.float32)


def stored(kind, *shape):
    """Random numbers in a format, as ("format", numbers, shape)."""
    if kind == "bf16":
        return kind, (normal(*shape).view(np.uint32) >> 16).astype(np.uint16), shape
    if kind == "f16":
        return kind, normal(*shape).astype(np.float16), shape
    if kind == "f32":
        return kind, normal(*shape), shape
    block, size = tiffin.BLOCKS[kind]
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // block, size), np.uint8)
    scales = {"q8_0": (0,), "q4_0": (0,), "q4_1": (0, 2), "q4_k": (0, 2)}[kind]
    for at in scales:  # finite scales
        blocks[..., at:at + 2] = (0x00, 0x2C)
    return kind, blocks, shape


# Memory in front of a page that cannot be read: whoever reads beyond the end of `data` is killed by it.
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def at_a_wall(data):
    data = np.ascontiguousarray(data)
    page = mmap.PAGESIZE
    room = (data.nbytes + page - 1) // page * page
    begin = libc.mmap(None, room + page, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if begin in (None, ctypes.c_void_p(-1).value) or libc.mprotect(begin + room, page, 0) != 0:
        raise OSError(ctypes.get_errno(), "no page that cannot be read")
    raw = (ctypes.c_uint8 * data.nbytes).from_address(begin + room - data.nbytes)
    copy = np.frombuffer(raw, data.dtype).reshape(data.shape)
    copy[...] = data
    return copy


d, f, vocab, tokens = 64, 96, 50, 12
x, ids = normal(tokens, d), rng.integers(0, vocab, tokens)
gate, table, down = normal(f, d), normal(vocab, f), normal(d, f)


def stem(**options):
    return tiffin.Layer({"block": "stem"}, {"gate_proj.weight": gate, "stem_embed.weight": table, "down_proj.weight": down}, **options)


def glu(gate, up=None, down=None, **options):
    up, down = normal(f, d) if up is None else up, normal(d, f) if down is None else down
    return tiffin.Layer({"block": "glu"}, {"gate_proj.weight": gate, "up_proj.weight": up, "down_proj.weight": down}, **options)


def token_ids():
    layer = stem()
    right = layer(x, token_ids=ids)
    run = lambda ids: layer(x, token_ids=ids)
    for kind in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64, ">i4", ">i8", "<u2"):
        expect(f"ids of {kind}", (run(ids.astype(kind)) == right).all())
    spread = np.zeros((2, tokens, 3), np.int64)
    spread[1, ::-1, 2] = ids
    for what, same in (("list", ids.tolist()), ("tuple", tuple(ids.tolist())), ("memoryview", memoryview(ids)), ("view", spread[1, ::-1, 2]),
                       ("unaligned", np.frombuffer(b"\0" + ids.astype(np.int32).tobytes(), np.uint8)[1:].view(np.int32)),
                       ("at a wall", at_a_wall(ids.astype(np.int32)))):
        expect(f"ids: {what}", (run(same) == right).all())
    for kind in (np.int64, np.uint64):
        for i, beyond in ((0, 2 ** 32), (tokens - 1, 2 ** 40), (3, 2 ** 31), (5, 2 ** 63 - 1 - vocab)):
            wrong = ids.astype(kind)
            wrong[i] += kind(beyond)
            refused(f"{beyond} beyond", "token_id", f"token_ids[{i}] = {int(wrong[i])}", lambda: run(wrong))
            refused(f"{beyond} beyond, a list", "token_id", f"[{i}]", lambda: run(wrong.tolist()))
    below = ids - 2 ** 32
    refused("2^32 below", "token_id", "token_ids[0]", lambda: run(below))
    refused("2^31 as uint32", "token_id", "2147483653", lambda: run((ids * 0 + 5).astype(np.uint32) + np.uint32(2 ** 31)))
    refused("-1", "token_id", "= -1", lambda: run(ids * 0 - 1))
    refused("beyond the table", "token_id", f"= {vocab}", lambda: run(ids * 0 + vocab))
    for what, wrong in (("floats", ids + 0.0), ("NaN", ids * np.nan), ("bools", ids > 3), ("a list of bools", (ids > 3).tolist()),
                        ("objects", ids.astype(object)), ("a huge int", [2 ** 70] * tokens), ("strings", ids.astype(str)),
                        ("complex", ids + 0j), ("dates", ids.astype("M8[s]")), ("None", [None] * tokens),
                        ("masked", np.ma.masked_array(ids, ids > 3)), ("lists of two lengths", [[1], [1, 2]])):
        refused(f"ids: {what}", "dtype", "token_ids", lambda: run(wrong))
    for what, wrong in (("fewer", ids[:-1]), ("more", np.append(ids, 1)), ("none", ids[:0]), ("two axes", ids[None]), ("one number", np.int64(1)),
                        ("a column", ids[:, None])):
        refused(f"ids: {what}", "size", "token_ids", lambda: run(wrong))
    for nothing in ([], ids[:0]):
        expect("no tokens", layer(x[:0], token_ids=nothing).shape == (0, d))


def rows():
    layer, m, inner = glu(gate), 17, rng.normal(size=(tokens, d)).astype(np.float32)
    right = layer(x)
    wide = np.zeros((tokens, 2 * d + 1), np.float32)
    wide[:, 1::2] = x
    read_only = x.copy()
    read_only.flags.writeable = False
    for what, same in (("strided", wide[:, 1::2]), ("Fortran's order", np.asfortranarray(x)), ("upside down", x[::-1].copy()[::-1]),
                       ("big endian", x.astype(">f4")), ("float64", x.astype(np.float64)), ("a list", x.tolist()), ("read-only", read_only),
                       ("memoryview", memoryview(x)), ("matrix", np.matrix(x)), ("at a wall", at_a_wall(x)),
                       ("unaligned", np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape))):
        expect(f"x: {what}", (layer(same) == right).all())
    expect("x: one row for all", (layer(np.broadcast_to(x[3], x.shape)) == right[3]).all())
    for what, wrong in (("ints", np.ones((3, d), np.int64)), ("bools", x > 0), ("complex", x + 0j), ("strings", x.astype(str)), ("objects", x.astype(object)),
                        ("masked", np.ma.masked_array(x, x > 0)), ("None", None)):
        refused(f"x: {what}", "dtype", "x: ", lambda: layer(wrong))
    for what, wrong in (("transposed", x.T), ("one axis", x[0]), ("three axes", x[None]), ("a number", 1.0), ("wider", np.ones((3, d + 1))), ("no width", x[:, :0])):
        refused(f"x: {what}", "size", "x: ", lambda: layer(wrong))
    refused("x: beyond float32", "value", "x: ", lambda: layer(x.astype(np.float64) * 1e300))
    expect("x: infinities stay", not np.isfinite(layer(x + np.float64(np.inf))).all())
    expect("no rows", layer(x[:0]).shape == (0, d))
    memory = {"gate_proj.weight": normal(m, d), "out_proj.weight": normal(d, m), "post_norm.weight": normal(d)}
    meki = tiffin.Layer({"block": "meki", "folded": "true", "gate_input": "residual"}, memory | {"memory.weight": normal(vocab, m)})
    ple, given = tiffin.Layer({"block": "ple"}, memory), normal(tokens, m)
    for name, run, good in (("residual", lambda r: meki(x, token_ids=ids, residual=r), inner), ("per_layer_input", lambda p: ple(x, per_layer_input=p), given)):
        right = run(good)
        expect(f"{name}: views", (run(np.asfortranarray(good)) == right).all() and (run(good.astype(np.float64)[::-1][::-1]) == right).all())
        expect(f"{name}: at a wall", (run(at_a_wall(good)) == right).all())
        for wrong in (good[:-1], good.T, good[:, :-1], good[0], np.vstack([good, good])):
            refused(f"{name} {wrong.shape}", "size", name, lambda: run(wrong))
        for wrong in (good.astype(int), good > 0, good.astype(object), np.ma.masked_array(good, good > 0)):
            refused(f"{name} of {wrong.dtype}", "dtype", name, lambda: run(wrong))


def weights():
    g = normal(f, d)
    others = {"up": normal(f, d), "down": normal(d, f)}
    run = lambda gate: glu(gate, **others)(x)
    right = run(g)
    twice = np.zeros((2 * f, 3 * d), np.float32)
    twice[::2, 1::3] = g
    flipped = np.ascontiguousarray(g.T[::-1, ::-1])
    for what, view in (("transposed", np.ascontiguousarray(g.T).T), ("every second row", twice[::2, 1::3]), ("negative strides", flipped[::-1, ::-1].T)):
        expect(f"{what}: no view", not view.flags.c_contiguous)
        for how in (view, ("f32", view, (f, d)), ("f32", memoryview(view), (f, d))):
            made = glu(how, **others)
            expect(f"gate: {what}", (made(x) == right).all() and made.copied == ("gate_proj.weight",))
    expect("gate: one row for all", (run(np.broadcast_to(g[0], g.shape)) == run(np.tile(g[0], (f, 1)))).all())
    for what, how in (("flat", g.ravel()), ("bytes", g.tobytes()), ("bytearray", bytearray(g.tobytes())), ("memoryview", memoryview(g)),
                      ("bytes of rows", g.view(np.uint8)), ("at a wall", at_a_wall(g))):
        made = glu(("f32", how, (f, d)), **others)
        expect(f"gate: {what}", (made(x) == right).all() and made.copied == ())
    half = g.astype(np.float16)
    expect("gate: f16", (run(half) == run(("f16", half.tobytes(), [f, d]))).all())
    for what, wrong in (("float64", g.astype(np.float64)), ("int32", g.view(np.int32)), ("uint32", g.view(np.uint32)), ("float16", half), ("big endian", g.astype(">f4")),
                        ("objects", g.astype(object)), ("bools", g > 0), ("a list", g.tolist()), ("None", None), ("a number", 5),
                        ("masked", np.ma.masked_array(g, g > 0)), ("a memoryview of doubles", memoryview(g.astype(np.float64)))):
        refused(f"{what} called f32", "dtype", "gate_proj.weight", lambda: run(("f32", wrong, (f, d))))
    for wrong in (g.astype(np.float64), g.astype(">f4"), g > 0, g.astype(object), g.astype(complex), np.ma.masked_array(g, g > 0), None):
        refused("no format of tensors", "dtype", "gate_proj.weight", lambda: run(wrong))
    for kind, wrong in (("q3", g), ("as_stored", g), (None, g), (3, g), ("f16", g), ("bf16", half), ("f16", half.view(np.uint16)), ("i32", g), ("q8_0", g)):
        refused(f"called {kind}", "dtype", "gate_proj.weight", lambda: run((kind, wrong, (f, d))))
    refused("a tuple of two", "dtype", "gate_proj.weight", lambda: run(("f32", g)))
    for shape in ((f, d + 1), (d, f), (f * d,), (f, d, 2), (f + 1, d), (1 << 14, 1 << 14), (2 ** 62, 4), (f,), ()):
        refused(f"called {shape}", "shape", "gate_proj.weight", lambda: run(("f32", g, shape)))
    for shape in ((f, -d), (f + 0.0, d), (True, d), (f, 2 ** 64 + d), (f, None), None, "ab", (1, 1, 1, f, d)):
        refused(f"called {shape}", "shape", "gate_proj.weight", lambda: run(("f32", g, shape)))
    refused("16 bytes for 1 GB", "shape", "has 16 bytes", lambda: run(("f32", b"0" * 16, (1 << 14, 1 << 14))))
    # Bytes of blocks, each in front of a wall.
    for kind in ("q8_0", "q4_0", "q4_1", "bf16", "f16", "f32", "q4_k"):
        wide, (block, size) = 256, tiffin.BLOCKS[kind]
        _, numbers, shape = stored(kind, f, wide)
        raw = np.ascontiguousarray(numbers).view(np.uint8).reshape(f, -1)
        expect(f"{kind}: bytes of a row", raw.shape[1] == wide // block * size)
        by = lambda numbers, shape=shape: tiffin.Layer(
            {"block": "glu"}, {"gate_proj.weight": (kind, numbers, shape), "up_proj.weight": np.ones((f, wide), np.float32),
                               "down_proj.weight": np.ones((wide, f), np.float32)})(np.ones((2, wide), np.float32))
        right = by(raw.tobytes())
        walled = at_a_wall(raw)
        wider = np.zeros((f, raw.shape[1] + 7), np.uint8)
        wider[:, 7:] = raw
        for how in (walled, memoryview(walled), at_a_wall(raw.ravel()), wider[:, 7:], numbers):
            expect(f"{kind} as {type(how).__name__}", (by(how) == right).all())
        for what, wrong in (("a byte short", walled.ravel()[1:]), ("a row", walled[-1]), ("a row short", walled[1:]), ("more", np.vstack([walled, walled])), ("nothing", walled[:0])):
            refused(f"{kind}: {what}", "shape", "gate_proj.weight", lambda: by(wrong))
        refused(f"{kind} transposed", "shape", "gate_proj.weight", lambda: by(np.ascontiguousarray(walled.T)))
        if block > 1:
            refused(f"{kind}: a part of a block", "shape", "gate_proj.weight", lambda: by(walled, (f, wide - block // 2)))
    # A table is read where it lies, whatever becomes of the names for it.
    for held in (at_a_wall(table), np.array(table), table.tobytes()):
        tensors = {"gate_proj.weight": gate, "stem_embed.weight": ("f32", held, table.shape), "down_proj.weight": down}
        made = tiffin.Layer({"block": "stem"}, tensors)
        expect("in place", isinstance(held, bytes) or made.in_place == ["stem_embed.weight"])
        del tensors, held
        [np.full(table.shape, 7.0, np.float32) for _ in range(20)]
        expect("a table that nobody else holds", (made(x, token_ids=ids) == stem()(x, token_ids=ids)).all())


def names_and_numbers():
    refused("a zero in a path", "argument", "zero byte", lambda: tiffin.open_model("none\0.gguf"))
    refused("a zero in a path", "argument", "zero byte", lambda: tiffin.load_layer("none\0"))
    tensors = {"gate_proj.weight": gate, "up_proj.weight": gate, "down_proj.weight": down}
    refused("a zero in a name", "argument", "zero byte",
            lambda: tiffin.Layer({"block": "glu"}, tensors | {"down_proj.weight\0of another": down}))
    refused("a zero in an option", "argument", "zero byte", lambda: tiffin.Layer({"block": "glu\0x"}, tensors))
    for options, says in (({"backend": "sims"}, "backend"), ({"format": "f33"}, "format"), ({"tables": 5}, "tables"), ({"format": "q6_k"}, "Q6_K")):
        refused(f"{options}", "option", says, lambda: glu(gate, **options))
    layer = glu(gate)
    for threads in (0, -1, 1.5, True, 2 ** 64 + 1, 2 ** 32 + 1, "2"):
        refused(f"{threads} threads", "option", "threads", lambda: layer(x, threads=threads))
    expect("numpy's threads", (layer(x, threads=np.int64(2)) == layer(x)).all())


# ---- every table is held where it lies ----
def tables():
    rows, width = 64, 32
    ranges = np.stack([np.arange(rows), np.arange(rows) + 1], 1).astype(np.int32)
    dense = lambda *shape: stored("bf16", *shape)
    blocks = lambda t: (
        ({"block": "stem"}, {"gate_proj.weight": dense(f, d), "stem_embed.weight": t(rows, f), "down_proj.weight": dense(d, f)}, ["stem_embed.weight"]),
        ({"block": "stem_gate"}, {"up_proj.weight": dense(f, d), "stem_embed.weight": t(rows, f), "down_proj.weight": dense(d, f)}, ["stem_embed.weight"]),
        ({"block": "stem_hybrid"}, {"gate_proj.weight": dense(f, d), "up_proj.weight": dense(f, d), "stem_embed.weight": t(rows, f),
                                    "down_proj.weight": dense(d, f)}, ["stem_embed.weight"]),
        ({"block": "deep_embed"}, {"gate_proj.weight": dense(f, d), "deep_embed.weight": t(rows, f), "down_proj.weight": dense(d, f)}, ["deep_embed.weight"]),
        ({"block": "deep_embed"}, {"up_proj.weight": dense(f, d), "deep_embed.weight": t(rows, d), "down_proj.weight": dense(d, f)}, ["deep_embed.weight"]),
        ({"block": "mole"}, {"up_proj.weight": dense(f, d), "down_proj.weight": dense(d, f), "router.weight": normal(4, d), "lookup.weight": t(4, rows, d)},
         ["lookup.weight"]),
        ({"block": "meki", "folded": "true"}, {"gate_proj.weight": dense(width, d), "out_proj.weight": dense(d, width), "post_norm.weight": normal(d),
                                               "memory.weight": t(rows, width)}, ["memory.weight"]),
        ({"block": "product_keys", "top_k": 2}, {"query.weight": dense(32, d), "keys.weight": dense(2, 8, 16), "values.weight": t(64, d)}, ["values.weight"]),
        ({"block": "peer", "top_k": 2}, {"query.weight": dense(32, d), "keys.weight": dense(2, 8, 16), "down_embed.weight": t(64, d),
                                         "up_embed.weight": t(64, d)}, ["down_embed.weight", "up_embed.weight"]),
        ({"block": "product_keys", "top_k": 2}, {"query.weight": dense(32, d), "keys.weight": dense(2, 8, 16), "values.weight": t(64, f),
                                                 "gate_proj.weight": dense(f, d), "down_proj.weight": dense(d, f)}, ["values.weight"]),
        ({"block": "deep_embed"}, {"gate_proj.weight": dense(f, d), "deep_embed.weight": t(3, rows, width), "down_proj.weight": dense(d, f),
                                   "in_proj.weight": normal(3, d), "out_proj.weight": dense(f, width)}, ["deep_embed.weight"]),
        ({"block": "ple"}, {"gate_proj.weight": dense(width, d), "out_proj.weight": dense(d, width), "post_norm.weight": normal(d),
                            "memory.weight": t(rows, width), "word_embed.weight": t(rows, d), "per_layer_model_projection.weight": dense(width, d),
                            "per_layer_projection_norm.weight": normal(width)}, ["memory.weight", "word_embed.weight"]),
        ({"block": "meki"}, {"gate_proj.weight": dense(width, d), "out_proj.weight": dense(d, width), "post_norm.weight": normal(d),
                             "memory.weight": t(rows, width), "mix_norm.weight": normal(width), "alpha": normal(1), "beta": normal(1),
                             "word_embed.weight": t(rows, d), "word_proj.weight": dense(width, d)}, ["memory.weight", "word_embed.weight"]),
        ({"block": "retoken", "base.block": "mlp"}, {"base.up_proj.weight": dense(f, d), "base.down_proj.weight": dense(d, f),
                                                     "modulators.weight": t(rows, d), "scale": normal(d)}, ["modulators.weight"]),
        ({"block": "mort", "num_layers": 3, "base.block": "mlp"}, {"base.up_proj.weight": dense(f, d), "base.down_proj.weight": dense(d, f),
                                                                   "modulators.weight": t(3, rows, d), "scale": normal(d), "router.weight": normal(3, d)},
         ["modulators.weight"]),
        ({"block": "longcat_embedding", "terms": 2}, {"word_embed.weight": t(rows, d), "ngram_proj.weight": dense(d, 32)}, ["word_embed.weight"]),
        ({"block": "l3"}, {"ranges": ranges, "keys.weight": t(rows, d), "values.weight": t(rows, d), "up_proj.weight": dense(d, d), "norm.weight": normal(d),
                           "mix_memory.weight": dense(d, d), "mix_input.weight": dense(d, d)}, ["keys.weight", "values.weight"]),
    )
    for kind in ("f32", "bf16", "f16", "q8_0", "q4_0", "q4_1"):
        held_of_tables(blocks(lambda *shape: stored(kind, *shape)), kind)
    # Each its own, where a layer has several; k-quants too.
    several = iter(("bf16", "q8_0", "f16", "f32", "q4_1", "q4_0") * 9)
    held_of_tables(blocks(lambda *shape: stored(next(several), *shape)), "several")
    branches = {"block": "parallel", "branches": 2, "branch.0.block": "stem", "branch.1.block": "deep_embed"}
    both = {"branch.0.gate_proj.weight": dense(f, d), "branch.0.stem_embed.weight": stored("q8_0", rows, f), "branch.0.down_proj.weight": dense(d, f),
            "branch.1.gate_proj.weight": dense(f, d), "branch.1.deep_embed.weight": stored("f16", rows, f), "branch.1.down_proj.weight": dense(d, f)}
    held_of_tables([(branches, both, ["branch.0.stem_embed.weight", "branch.1.deep_embed.weight"])], "two branches")
    wide = {"gate_proj.weight": dense(256, d), "stem_embed.weight": stored("q4_k", rows, 256), "down_proj.weight": dense(d, 256)}
    held_of_tables([({"block": "stem"}, wide, ["stem_embed.weight"])], "q4_k")


def held_of_tables(blocks, kind):
    for block, tensors, tables in blocks:
        what = f"{block['block']} of {kind}"
        try:
            layer = tiffin.Layer(block, tensors, f32_activations=True)
        except tiffin.Error as error:
            expect(f"{what}: {error}", False)
            continue
        names = sorted(layer.in_place)
        expect(f"{what}: in place {names}", names == tables)
        # What else is held are dense weights and what routes, in f32 at most, of panels of at most 64 rows.
        dense = sum(np.prod((-(-shape[0] // 64) * 64, *shape[1:])) for name, (_, _, shape) in
                    ((n, t if isinstance(t, tuple) else (0, 0, t.shape)) for n, t in tensors.items()) if name not in tables)
        expect(f"{what}: holds {layer.held_bytes} bytes, of {4 * dense}", layer.held_bytes <= 4 * dense)
        # And they are read as what they are: near what `reference` makes of them.
        inputs = {"token_ids": rng.integers(0, 64, 9)} if layer.reads_token_ids else {}
        if layer.reads_residual:
            inputs["residual"] = normal(9, d)
        if layer.per_layer_input_width:
            inputs["per_layer_input"] = normal(9, layer.per_layer_input_width)
        at, want = normal(9, d), tiffin.Layer(block, tensors, backend="reference")
        want = want(at, **inputs).astype(np.float64)
        # Sums of some hundred products in f32.
        bound = 300 * 2.0 ** -24 * np.abs(want).max()
        expect(f"{what}: error {np.abs(layer(at, **inputs) - want).max()}, more than {bound}", np.abs(layer(at, **inputs) - want).max() <= bound)
        # Saved and loaded, it is the same layer.
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "layer.safetensors")
            layer.save(path)
            expect(f"{what}: saved", (tiffin.load_layer(path, f32_activations=True)(at, **inputs) == layer(at, **inputs)).all())


def kept():
    """What a layer was made of is learnt from, and saved."""
    up, down, x = normal(24, 16), normal(16, 24), normal(5, 16)
    layer = tiffin.Layer("mlp", {"up_proj.weight": up, "down_proj.weight": down})
    training = layer.train(tokens=5)
    cost = layer.cost()
    expect(f"its cost {cost}", cost.parameters == 2 * 24 * 16 and cost.matrix_flops == 4 * 24 * 16 and cost.table_parameters == 0)
    stem = {"gate_proj.weight": up, "stem_embed.weight": normal(9, 24), "down_proj.weight": down, "gate_proj.bias": normal(24)}
    cost = tiffin.Layer("stem", stem, backend="eigen").cost()
    expect(f"with a bias: {cost}", cost.parameters == 2 * 24 * 16 + 9 * 24 + 24 and cost.row_parameters == 24)
    # Sums of 24 products in another order, and another exp.
    expect("the same block", np.allclose(training.forward(x), layer(x), rtol=1e-4, atol=1e-4))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "layer.safetensors")
        layer.save(path)
        up *= 2  # who learns writes to the arrays
        expect("the file has what they were", (tiffin.load_layer(path)(x) == layer(x)).all())
        layer.save(path)
        expect("and again, what they are", (tiffin.load_layer(path)(x) == tiffin.Layer("mlp", {"up_proj.weight": up, "down_proj.weight": down})(x)).all())
        of_file = tiffin.load_layer(path)
        refused("of a file", "option", "save", lambda: of_file.save(path))
        refused("of a file", "option", "train", of_file.train)
        refused("no such folder", "file", "none", lambda: layer.save(os.path.join(folder, "none", "x")))
        refused("an empty path", "file", "", lambda: layer.save(""))


# ---- threads, signals, fork ----
def interrupts():
    d, f = 64, 512
    layer = tiffin.Layer({"block": "glu"}, {"gate_proj.weight": normal(f, d), "up_proj.weight": normal(f, d), "down_proj.weight": normal(d, f)})
    rows, taken = 64, 0
    while taken < 0.03:  # long enough for signals to come within
        rows *= 2
        x = normal(rows, d)
        right = layer(x)
        started = time.perf_counter()
        expect("two threads", (layer(x, threads=2) == right).all())
        taken = time.perf_counter() - started
    caught = 0
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is started without
    for n in range(24):
        timer = threading.Timer(taken * n / 20, lambda: os.kill(os.getpid(), signal.SIGINT))
        try:
            timer.start()
            y = layer(x, threads=2)
            expect(f"interrupted call {n}: its rows", (y == right).all())
            while True:  # where the call was quicker than the signal
                time.sleep(0.01)
        except KeyboardInterrupt:
            caught += 1
        timer.join()
        expect(f"call after {n}", (layer(x, threads=2) == right).all())
    expect(f"KeyboardInterrupt came through {caught} times of 24", caught == 24)

    # Any exception of any handler, again and again within one call.
    class Odd(Exception):
        pass

    def handler(*_):
        raise Odd

    before = signal.signal(signal.SIGALRM, handler)
    came = 0
    for _ in range(20):
        try:
            signal.setitimer(signal.ITIMER_REAL, taken / 50, taken / 9)
            y = layer(x, threads=3)
            signal.setitimer(signal.ITIMER_REAL, 0)
            expect("a call among signals", (y == right).all())
        except Odd:
            came += 1
            while True:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    break
                except Odd:
                    pass
    signal.signal(signal.SIGALRM, before)
    expect("handlers' exceptions came through", came > 0)
    expect("after signals", (layer(x, threads=3) == right).all())

    # Callers on other threads lead their calls themselves, beside one of the main thread.
    good = []
    callers = [threading.Thread(target=lambda: good.append(all((layer(x, threads=2) == right).all() for _ in range(3)))) for _ in range(4)]
    [t.start() for t in callers]
    expect("beside others", all((layer(x, threads=2) == right).all() for _ in range(3)))
    [t.join() for t in callers]
    expect("callers on four threads", good == [True] * 4)


def progress():
    class Stop(Exception):
        pass

    told, where = [], []

    def tell(done, of):
        told.append(done)
        where.append(threading.current_thread())
        if len(told) == 2:
            raise Stop

    raises("progress that raises", Stop, lambda: glu(gate, progress=tell))
    expect("progress that raises is not called again", len(told) == 2 and where == [threading.main_thread()] * 2)
    raises("progress that exits", SystemExit, lambda: glu(gate, progress=lambda *_: sys.exit(1)))
    raises("progress that cannot be called", TypeError, lambda: glu(gate, progress=5))
    refused("progress and an error", "shape", "gate_proj", lambda: glu(gate[:-1], progress=lambda *_: None))
    told.clear()
    layer = glu(gate, gate, down, progress=lambda done, of: told.append((done, of)))
    expect("progress", told == sorted(told) and told[-1][0] == told[-1][1] == gate.nbytes * 2 + down.nbytes and layer.held_bytes > 0)


def a_thread_that_does_not_start():
    start = threading.Thread.start

    def refuse(self):
        raise RuntimeError("can't start new thread")

    threading.Thread.start = refuse
    try:
        raises("no thread for progress", RuntimeError, lambda: stem(progress=lambda *_: None))
    finally:
        threading.Thread.start = start


def forked():
    layer = stem()
    right = layer(x, token_ids=ids, threads=2)

    def child(work):
        number = os.fork()
        if number == 0:
            status = 1
            try:
                signal.alarm(20)
                status = 0 if work() else 2
            finally:
                os._exit(status)
        return os.waitpid(number, 0)[1]

    same = lambda: (layer(x, token_ids=ids, threads=2) == right).all()
    expect("a child", child(same) == 0)
    expect("a child's child", child(lambda: same() and child(same) == 0) == 0)
    stop, calls = threading.Event(), []

    def often():
        while not stop.is_set():
            calls.append(same())

    busy = threading.Thread(target=often)
    busy.start()
    expect("children while another thread calls", [child(same) for _ in range(5)] == [0] * 5)
    stop.set(), busy.join()
    expect("the parent's calls", all(calls) and same())


token_ids()
rows()
weights()
names_and_numbers()
tables()
kept()
progress()
a_thread_that_does_not_start()
forked()
interrupts()
done()
