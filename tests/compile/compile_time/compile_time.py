#!/usr/bin/env python3
"""What including tiffin costs a compiler, beside what Eigen and xsimd alone cost.

usage: compile_time.py [--limit NAME=RATIO]... [--rounds N] COMPILER [FLAG...]

Prints the median processor time of each file, and its ratio to a file with <Eigen/Core> and <xsimd/xsimd.hpp>:

    umbrella   #include <tiffin/tiffin.hpp>
    layer      one f32 layer, prepared and called, header-only
    four       that, and three more of other kinds
    compiled   one with <tiffin/compiled.hpp>
    composed   the same of a composition that the library does not name

With a limit (umbrella=1.5), a greater ratio is status 1.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

DEPENDENCIES = "#include <Eigen/Core>\n#include <xsimd/xsimd.hpp>\n"


def layer(block, name="run"):
    return f"""
bool {name}(const tiffin::weights& weights, std::span<const float> x, std::span<float> y, const tiffin::token_inputs& inputs) {{
    auto layer = tiffin::try_prepare<tiffin::{block}>(weights, tiffin::simd{{}});
    return layer.ok() && layer->try_call(x, inputs, y).ok();
}}
"""


NARROW = "#include <tiffin/call/prepare.hpp>\n#include <tiffin/cpu/simd/simd.hpp>\n#include <tiffin/layers.hpp>\n"
COMPILED = "#include <tiffin/compiled.hpp>\n"
COMPOSED = """namespace tiffin {
using composed = ffn<gate<relu>, sum<dense, token_embedding>, add>;
}
""" + layer("composed")
FILES = {
    "umbrella": ("#include <tiffin/tiffin.hpp>\n", []),
    "layer": (NARROW + layer("swiglu"), []),
    "four": (NARROW + layer("swiglu") + "".join(layer(b, f"run_{b}") for b in ["stem", "structmoe", "ple"]), []),
    "compiled": (COMPILED + layer("swiglu"), ["-DTIFFIN_COMPILED"]),
    "composed": (COMPILED + "#include <tiffin/cpu/simd/simd.hpp>\n" + COMPOSED, ["-DTIFFIN_COMPILED"]),
}


def seconds(command):
    """Processor time, which a busy machine disturbs less than the clock on the wall."""
    before = os.times()
    subprocess.run(command, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("compiler")
    options, flags = parser.parse_known_args()
    limits = {name: float(ratio) for name, ratio in (limit.split("=") for limit in options.limit)}
    with tempfile.TemporaryDirectory() as folder:
        commands = []
        for name, (text, own_flags) in {"dependencies": (DEPENDENCIES, []), **FILES}.items():
            source = pathlib.Path(folder) / f"{name}.cpp"
            source.write_text(text)
            commands.append([options.compiler, "-std=c++20", "-O3", "-c", "-o", os.devnull, *own_flags, *flags,
                             str(source)])
            seconds(commands[-1])  # brings the headers into memory
        # In turns, so that a machine that slows down slows all.
        rounds = [[seconds(c) for c in commands] for _ in range(options.rounds)]
    dependencies, *times = (statistics.median(column) for column in zip(*rounds))
    print(f"Eigen and xsimd alone {dependencies:.2f} s")
    over = 0
    for name, time in zip(FILES, times):
        ratio = time / dependencies
        limit = limits.get(name)
        print(f"{name:10} {time:.2f} s, ratio {ratio:.2f}" + (f", limit {limit}" if limit else ""))
        over += limit is not None and ratio > limit
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
