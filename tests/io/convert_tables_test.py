#!/usr/bin/env python3
"""Converts tables there and back: the joined rows are the layers' rows side by side, and the way back gives the file.

usage: convert_tables_test.py CONVERT_TABLES
"""
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile


def write(path, tensors, metadata):
    """tensors: name -> (dtype, shape, bytes)."""
    header, data = {"__metadata__": metadata}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read(path):
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8:8 + length]), content[8 + length:]
    metadata = header.pop("__metadata__", {})
    return {name: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for name, t in header.items()}, metadata


def main():
    program = sys.argv[1]
    failed = []

    def check(what, holds):
        if not holds:
            failed.append(what)
            print("failed:", what)

    def run(*arguments):
        return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)

    def refused(what, *arguments):
        ran = run(*arguments)
        line = ran.stderr.removesuffix("\n")
        check(f"{what}: {ran.stderr!r}", ran.returncode == 1 and what in line and len(line) < 16500
              and all(" " <= c <= "~" for c in line))
        check(f"{what}: leaves no output", not (folder / "none").exists())

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        random.seed(1)
        # Blocks of Q8_0, 34 bytes to 32 numbers; widths of 2, 1 and 3 blocks; more rows than go in one piece.
        widths, rows = [64, 32, 96], 30011
        layers = [[random.randbytes(w // 32 * 34) for _ in range(rows)] for w in widths]
        other = random.randbytes(40)
        tensors = {f"stem_embeddings.{k}.weight": ("U8", [rows, w // 32 * 34], b"".join(layers[k]))
                   for k, w in enumerate(widths)}
        tensors["norm.weight"] = ("F32", [10], other)
        # A tensor that is not converted keeps its format.
        tensors["head.weight"] = ("U8", [2, 18], random.randbytes(36))
        formats = {f"stem_embeddings.{k}.weight.format": "q8_0" for k in range(3)}
        formats["head.weight.format"] = "q4_0"
        write(folder / "layers", tensors, {"about": "a test", **formats})

        ran = run(folder / "layers", folder / "joined", "--to", "token-major")
        check(f"converts: {ran.stderr}", ran.returncode == 0)
        joined, metadata = read(folder / "joined")
        check("names of joined", set(joined) == {"stem_embeddings.weight", "norm.weight", "head.weight"})
        check("metadata of joined", metadata == {"about": "a test", "stem_embeddings.weight.format": "q8_0",
                                                 "head.weight.format": "q4_0",
                                                 "stem_embeddings.weight.columns": "64,32,96"})
        check("rows of joined", joined["stem_embeddings.weight"] ==
              ("U8", [rows, 204], b"".join(a + b + c for a, b, c in zip(*layers))))
        check("other tensors", all(joined[name] == tensors[name] for name in ("norm.weight", "head.weight")))

        ran = run(folder / "joined", folder / "back", "--to", "per-layer")
        check(f"converts back: {ran.stderr}", ran.returncode == 0)
        check("the way back", read(folder / "back") == read(folder / "layers"))


        # Floats without metadata: layers of equal width, as many as are told.
        table = random.randbytes(7 * 6 * 4)
        write(folder / "plain", {"t": ("F32", [7, 6], table)}, {})
        ran = run(folder / "plain", folder / "three", "--to", "per-layer", "--joined", "t", "--layers", "l{}", "--count", 3)
        check(f"equal widths: {ran.stderr}", ran.returncode == 0)
        parts, _ = read(folder / "three")
        check("equal widths", parts == {f"l{k}": ("F32", [7, 2], b"".join(table[r * 24 + k * 8:r * 24 + k * 8 + 8]
                                                                           for r in range(7))) for k in range(3)})

        none = folder / "none"
        refused("'t.columns' is missing", folder / "plain", none, "--to", "per-layer", "--joined", "t")
        refused("--count 4: rows have 6 numbers", folder / "plain", none, "--to", "per-layer", "--joined", "t", "--count", 4)
        refused("has no tensor 'stem_embeddings.0.weight'", folder / "plain", none, "--to", "token-major")
        refused("has no {}", folder / "plain", none, "--layers", "l")
        refused("there is no such file", folder / "missing", none)
        for told in ["2,x", "2,,4", "", "2,5"]:
            write(folder / "bad", {"t": ("F32", [7, 6], table)}, {"t.columns": told})
            refused("t.columns", folder / "bad", none, "--to", "per-layer", "--joined", "t")
        write(folder / "bad", {"t": ("F32", [7, 6], table)}, {"t.columns": "2,4\nconvert_tables: \x1b[2Jall is well\0"})
        refused("metadata 't.columns' = '2,4\\x0aconvert_tables: \\x1b[2Jall is well\\x00' is not a list",
                folder / "bad", none, "--to", "per-layer", "--joined", "t")
        write(folder / "bad", {"t": ("F32", [7, 6], table)}, {"t.columns": "x" * 1000000})
        refused("xxx... (1000000 bytes)' is not a list of widths", folder / "bad", none, "--to", "per-layer", "--joined", "t")
        refused("has no tensor '\\x0a\\x1b[2J0'",
                folder / "plain", none, "--layers", "\n\x1b[2J{}")
        refused("--nothing\\x0a", folder / "plain", none, "--nothing\n")
        for sizes in [[5, 0], [0, 5]]:
            write(folder / "empty", {"stem_embeddings.0.weight": ("F32", sizes, b"")}, {})
            refused(f"has shape ({sizes[0]}, {sizes[1]})", folder / "empty", none, "--to", "token-major")
        # A table that is missing, by any pattern of names: both it and the next one are told.
        def numbered(pattern, numbers):
            write(folder / "gap", {pattern.replace("{}", n): ("F32", [2, 2], bytes(16)) for n in numbers.split()}, {})

        for numbers, missing, next_one in [("0 1 3 4", 2, 3), ("1 3 5", 0, 1), ("1", 0, 1), ("0 2", 1, 2), ("0 1 12", 2, 12),
                                           ("3 1 0", 2, 3), ("0 1 4294967297", 2, 4294967297)]:
            for pattern in ("stem_embeddings.{}.weight", "layers.{}.table", "t{}", "{}"):
                numbered(pattern, numbers)
                refused(f"has no tensor '{pattern.replace('{}', str(missing))}'; the next one is "
                        f"'{pattern.replace('{}', str(next_one))}'", folder / "gap", none, "--layers", pattern)
        for numbers, said in [("0 1 01", "are both number 1"), ("0 00", "are both number 0"), ("00 1", "zeros before its number"),
                              ("0 01", "zeros before its number"), ("0 99999999999999999999999", "has a number above")]:
            numbered("l{}", numbers)
            refused(said, folder / "gap", none, "--layers", "l{}")
        # What has no number there is another tensor.
        numbered("l{}", "0 1 norm 1a -1 1.5")
        ran = run(folder / "gap", folder / "whole", "--layers", "l{}", "--joined", "all")
        check(f"others beside: {ran.stderr}", ran.returncode == 0
              and set(read(folder / "whole")[0]) == {"all", "lnorm", "l1a", "l-1", "l1.5"})
        # Tables are in the order of their numbers: 10 behind 9.
        write(folder / "many", {f"l{k}": ("F32", [1, 1], struct.pack("<f", k)) for k in range(12)}, {})
        ran = run(folder / "many", folder / "whole", "--layers", "l{}", "--joined", "all")
        check("twelve tables", read(folder / "whole")[0]["all"] == ("F32", [1, 12], struct.pack("<12f", *range(12))))

        write(folder / "short", {"stem_embeddings.0.weight": ("F32", [7, 6], table),
                                 "stem_embeddings.1.weight": ("F32", [6, 7], table)}, {})
        refused("number 1 has 6 rows, the first has 7", folder / "short", none)
    print(f"{len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
