#!/usr/bin/env python3
"""run_layer reads of tables of gigabytes no more than the rows that it is asked for, and the same numbers.

The files are sparse: all rows but a few are zeros that take no room on the disk. Each is run beside a small one that has
just these few rows.

usage: mapped_tables_test.py RUN_LAYER
"""
import json
import os
import pathlib
import random
import resource
import struct
import sys
import tempfile

SIZE = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4}
GIB = 1 << 30
MIB = 1 << 20
# What the program takes by itself, and what the system reads around each row.
MOST_RESIDENT = 128 * MIB
MOST_DATA = 512 * MIB


def floats(count, seed):
    random.seed(seed)
    return struct.pack(f"<{count}f", *(random.uniform(-1, 1) for _ in range(count)))


def short_floats(count, dtype, seed):
    """Numbers that both bf16 and f16 hold: multiples of 1/8 up to 2."""
    random.seed(seed)
    numbers = [random.randrange(-16, 17) / 8 for _ in range(count)]
    if dtype == "F16":
        return struct.pack(f"<{count}e", *numbers)
    whole = struct.pack(f"<{count}f", *numbers)
    return b"".join(whole[4 * i + 2:4 * i + 4] for i in range(count))


def write(path, tensors, metadata, shift=0):
    """tensors: name -> (dtype, shape, [(offset, bytes)...]); what is not given is a hole. `shift`: where data begin, mod 8."""
    header, at, pieces = {"__metadata__": metadata}, 0, []
    for name, (dtype, shape, parts) in tensors.items():
        size = SIZE[dtype]
        for axis in shape:
            size *= axis
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        pieces += [(at + offset, content) for offset, content in parts]
        at += size
    text = json.dumps(header).encode()
    text += b" " * ((shift - len(text)) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for offset, content in pieces:
            file.seek(8 + len(text) + offset)
            file.write(content)
        file.truncate(8 + len(text) + at)


def tensor(path, name):
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    told = json.loads(content[8:8 + length])[name]
    return content[8 + length:][slice(*told["data_offsets"])]


def measured(*command, data=MOST_DATA):
    """The status, what was said, and the most that was resident."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(write_end, 2)
        resource.setrlimit(resource.RLIMIT_DATA, (data, data))
        os.execv(command[0], list(map(str, command)))
    os.close(write_end)
    with os.fdopen(read_end, "rb") as said:
        words = said.read()
    _, status, used = os.wait4(child, 0)
    return os.waitstatus_to_exitcode(status), words, used.ru_maxrss * 1024


def main():
    program = str(pathlib.Path(sys.argv[1]).resolve())
    failed = 0

    def check(what, holds):
        nonlocal failed
        if not holds:
            failed += 1
            print("failed:", what)

    d, f = 64, 1024
    dense = {"gate_proj.weight": ("F32", [f, d], [(0, floats(f * d, 1))]),
             "down_proj.weight": ("F32", [d, f], [(0, floats(f * d, 2))])}
    x = floats(5 * d, 3)

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)

        def compare(case, large, small, metadata, ids, few_ids, shift, flags=()):
            """The large file with `ids` against the small one with `few_ids`."""
            for file, tensors, tokens in (("large", large, ids), ("small", small, few_ids)):
                write(folder / file, tensors, metadata, shift if file == "large" else 0)
                given = {"x": ("F32", [5, d], [(0, x)])}
                if tokens:
                    given["token_ids"] = ("I64", [5], [(0, struct.pack("<5q", *tokens))])
                write(folder / f"{file}.in", given, {})
                ran, said, resident = measured(program, folder / file, folder / f"{file}.in", folder / f"{file}.out", *flags)
                check(f"{case}, {file}: status {ran}, {said}", ran == 0)
                if ran != 0:
                    return
                if file == "large":
                    size = (folder / file).stat().st_size
                    check(f"{case}: the file has {size} bytes", size > 2 * GIB)
                    check(f"{case}: {resident >> 20} MiB are resident", resident < MOST_RESIDENT)
            check(f"{case}: y", tensor(folder / "large.out", "y") == tensor(folder / "small.out", "y"))
            check(f"{case}: y is not trivial", any(tensor(folder / "small.out", "y")))

        # A row per token id, in each format, wherever the file puts it.
        for dtype, backend, shifts in (("F32", "simd", range(8)), ("BF16", "simd", (0, 1, 3)), ("F16", "simd", (5,)),
                                       ("F32", "eigen", (0, 3)), ("F32", "reference", (1,)), ("BF16", "reference", (0,))):
            rows = 5 * GIB // 2 // (f * SIZE[dtype])
            ids = [0, rows - 1, rows // 2, 17, 17]
            content = [floats(f, 10 + i) if dtype == "F32" else short_floats(f, dtype, 10 + i) for i in range(4)]
            large = {"stem_embed.weight": (dtype, [rows, f], [(i * f * SIZE[dtype], c) for i, c in zip(ids, content)]), **dense}
            small = {"stem_embed.weight": (dtype, [4, f], [(i * f * SIZE[dtype], c) for i, c in enumerate(content)]), **dense}
            for shift in shifts:
                compare(f"stem, {dtype}, {backend}, {shift} bytes behind a multiple of 8", large, small, {"block": "stem"}, ids,
                        [0, 1, 2, 3, 3], shift, ("--backend", backend))

        # A pool of tables, its rows chosen by id and route.
        experts, rows = 4, 5 * GIB // 2 // (4 * d * 4)
        ids = [0, rows - 1, rows // 2, 17, 17]
        base = {f"base.{k}": v for k, v in {"up_proj.weight": ("F32", [f, d], [(0, floats(f * d, 4))]),
                                            "down_proj.weight": ("F32", [d, f], [(0, floats(f * d, 5))])}.items()}
        pool = {"router.weight": ("F32", [experts, d], [(0, floats(experts * d, 6))]), "scale": ("F32", [d], [(0, floats(d, 7))]),
                **base}
        content = [[floats(d, 100 + 10 * e + i) for i in range(4)] for e in range(experts)]
        large = {"modulators.weight": ("F32", [experts, rows, d], [((e * rows + i) * d * 4, c)
                                                                   for e in range(experts) for i, c in zip(ids, content[e])]), **pool}
        small = {"modulators.weight": ("F32", [experts, 4, d], [((e * 4 + i) * d * 4, c)
                                                                for e in range(experts) for i, c in enumerate(content[e])]), **pool}
        mort = {"block": "mort", "base.block": "mlp", "top_k": "2", "num_layers": "4"}
        for shift in (0, 3):
            compare(f"mort, {shift}", large, small, mort, ids, [0, 1, 2, 3, 3], shift)

        # Rows that keys choose. Of the large file's keys all but a few are zeros, which a token does not choose.
        c, near, far = 4, 8, 400
        values = [floats(d, 200 + i) for i in range(near * near)]

        def product_keys(step):
            n, numbers = near * step, []
            random.seed(300)
            for k in range(2 * n):
                numbers += [random.uniform(-1, 1) for _ in range(c)] if k % step == step - 1 else [0.0] * c
            rows = [n * (a * step + step - 1) + b * step + step - 1 for a in range(near) for b in range(near)]
            return {"query.weight": ("F32", [2 * c, d], [(0, floats(2 * c * d, 8))]),
                    "keys.weight": ("F32", [2, n, c], [(0, struct.pack(f"<{2 * n * c}f", *numbers))]),
                    "values.weight": ("F32", [n * n, d], [(row * d * 4, v) for row, v in zip(rows, values)])}

        for shift in (0, 2):
            compare(f"product_keys, {shift}", product_keys(far), product_keys(1), {"block": "product_keys", "top_k": "1"},
                    None, None, shift)
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
