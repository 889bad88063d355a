#!/usr/bin/env python3
"""A program that is told to write over a file that it reads refuses, and leaves the file as it was.

usage: overwrite_test.py CONVERT_TABLES FOLD_LAYER RUN_LAYER
"""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile


def file_of(tensors, metadata):
    """tensors: name -> (dtype, shape, bytes)."""
    header, data = {"__metadata__": metadata}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def floats(*shape):
    numbers = [0.5 + i % 7 for i in range(shape[0] * (shape[1] if len(shape) > 1 else 1))]
    return "F32", list(shape), struct.pack(f"<{len(numbers)}f", *numbers)


def main():
    convert_tables, fold_layer, run_layer = (pathlib.Path(p).resolve() for p in sys.argv[1:4])
    failed = 0

    def check(what, holds):
        nonlocal failed
        if not holds:
            failed += 1
            print("failed:", what)

    base = {"base.up_proj.weight": floats(3, 2), "base.down_proj.weight": floats(2, 3)}
    layer = file_of({"modulators.weight": floats(5, 2), "scale": floats(2), **base},
                    {"block": "retoken", "base.block": "mlp"})
    given = file_of({"x": floats(1, 2), "token_ids": ("I32", [1], struct.pack("<i", 3))}, {})
    tables = file_of({"stem_embeddings.0.weight": floats(5, 2), "stem_embeddings.1.weight": floats(5, 4)}, {})

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        contents = {"layer": layer, "input": given, "tables": tables}
        (folder / "other").mkdir()
        for program, read in [(convert_tables, {"INPUT": "tables"}), (fold_layer, {"LAYER": "layer"}),
                              (run_layer, {"LAYER": "layer", "INPUT": "input"})]:
            for what, file in read.items():
                for old in folder.glob("*.*"):
                    old.unlink()
                for other, content in contents.items():
                    (folder / other).write_bytes(content)
                (folder / "soft.link").symlink_to(file)
                os.link(folder / file, folder / "hard.link")
                spellings = [file, folder / file, f"./{file}", f"other/../{file}", "soft.link", "hard.link"]
                for output in spellings:
                    # Through a link or not: what is read may be the other spelling, too.
                    for source in (file, "soft.link"):
                        arguments = [source if each == file else each for each in read.values()]
                        ran = subprocess.run([program, *arguments, output], capture_output=True, text=True, cwd=folder)
                        case = f"{program.name}: {what} {source}, OUTPUT {output}: {ran.stderr!r}"
                        wanted = f"OUTPUT {output} is the same file as {what} {source}, "
                        check(case, ran.returncode == 1 and wanted in ran.stderr and ran.stderr.count("\n") == 1)
                        check(case + " leaves it", (folder / file).read_bytes() == contents[file])
                        check(case + " leaves links", (folder / "soft.link").is_symlink()
                              and os.path.samefile(folder / "hard.link", folder / file))
            # Another file is replaced, a new one written: what is refused is refused for its being read.
            (folder / "copy.new").write_bytes(contents[next(iter(read.values()))])
            for output in ("copy.new", "new.new"):
                ran = subprocess.run([program, *read.values(), output], capture_output=True, text=True, cwd=folder)
                check(f"{program.name} writes {output}: {ran.stderr!r}", ran.returncode == 0 and (folder / output).exists())
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
