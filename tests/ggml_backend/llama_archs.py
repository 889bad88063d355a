#!/usr/bin/env python3
"""llama.cpp's own test of all its architectures, test-llama-archs, with the feed-forward blocks by tiffin.

    tests/ggml_backend/llama_archs.py --llama SOURCE --library libggml-tiffin.so --build FOLDER

Builds that test of a source tree of llama.cpp (CPU alone, in FOLDER, which may be one of an earlier run) and runs it three
times, on the same small models with random weights: as it is; with the library and its device alone (-b tiffin); with the
library and whatever devices the test finds, tensors split over them among others. Nothing is downloaded.

Status 0 if in both runs with the library no test failed and at least --tests passed, if blocks of at least --blocks of
them ran in tiffin, and if all logits are those of the first run: the test itself compares a device with a run that has the
library too. The bound is the test's own for another device, a mean squared error of 1e-4 of the logits' own squares.
"""

import argparse
import os
import re
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
BOUND = 1e-4  # of test-llama-archs
ROW = re.compile(r"^\| *([a-z0-9_.-]+)\| *([^|]+)\| *(Dense|MoE)\|", re.M)


def tell(text):
    print(f"{time.strftime('%T')}  {text}", flush=True)


def run(command, log, **more):
    """Its status and its output, which goes to the file `log`."""
    with open(log, "w") as to:
        status = subprocess.run([str(c) for c in command], stdout=to, stderr=subprocess.STDOUT, **more).returncode
    return status, Path(log).read_text(errors="replace")


def build(args):
    c_and_cxx = lambda setting, value: [f"-DCMAKE_{of}_{setting}={value}" for of in ("C", "CXX")]
    launcher = args.launcher or shutil.which("ccache")
    commands = [["cmake", "-S", args.llama, "-B", args.build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                 *c_and_cxx("FLAGS_RELEASE", "-O1 -DNDEBUG"), *(c_and_cxx("COMPILER_LAUNCHER", launcher) if launcher else []),
                 # Debian 12's g++ makes AMX kernels of it that end in an illegal instruction.
                 *(c_and_cxx("FLAGS", "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16") if os.uname().machine == "x86_64" else []),
                 "-DBUILD_SHARED_LIBS=ON", "-DLLAMA_BUILD_TESTS=ON", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_TOOLS=OFF",
                 "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_OPENSSL=OFF", "-DGGML_CCACHE=OFF"],
                ["cmake", "--build", args.build, "--target", "test-llama-archs", *(["-j", args.jobs] if args.jobs else [])]]
    for what, command in zip(("configure", "build"), commands):
        tell(f"{what} llama.cpp's test")
        status, text = run(command, args.build / f"{what}.log")
        if status:
            sys.exit(f"{text[-3000:]}\n{what}: status {status}")


def records(path):
    """(architecture, logits) of all rows that a run has asked for."""
    content, at = path.read_bytes(), 0
    while at < len(content):
        name, count = struct.unpack_from("<64sq", content, at)
        at += 72
        yield name.split(b"\0")[0].decode(), struct.unpack_from(f"<{count}f", content, at)
        at += 4 * count


def largest_error(stock, ours):
    """Largest error of an architecture, and its name; None where the two did not compute the same rows."""
    sums, off, rows = {}, {}, [0, 0]
    for which, path in enumerate((stock, ours)):
        rows[which] = sum(1 for _ in records(path))
    if rows[0] != rows[1] or rows[0] == 0:
        return None, f"{rows[0]} rows of logits without the library, {rows[1]} with it"
    for (name, a), (other, b) in zip(records(stock), records(ours)):
        if name != other or len(a) != len(b):
            return None, f"a row of {name} against one of {other}"
        off[name] = off.get(name, 0) + sum((p - q) ** 2 for p, q in zip(a, b))
        sums[name] = sums.get(name, 0) + sum(p * p for p in a)
    errors = {name: off[name] / sums[name] if sums[name] else off[name] for name in sums}
    worst = max(errors, key=lambda name: errors[name] if errors[name] == errors[name] else float("inf"))
    return errors[worst], f"{worst}, {rows[0]} rows of {len(errors)} architectures"


def outcome(text):
    """Tests passed, tests failed, and tests in which tiffin computed blocks."""
    found = re.search(r"Summary: all (\d+) test\(s\) passed|Summary: (\d+) test\(s\) executed, (\d+) failed", text)
    if not found:
        return None
    passed, failed = (int(found[1]), 0) if found[1] else (int(found[2]) - int(found[3]), int(found[3]))
    parts = ROW.split(text)
    blocks = 0
    for device, said in zip(parts[2::4], parts[4::4]):
        blocks += bool(re.search(r"tiffin: [1-9]\d* feed-forward blocks computed", said))
    return passed, failed, blocks


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--llama", required=True, type=Path, help="source tree of llama.cpp, of the library's release")
    parse.add_argument("--library", required=True, type=Path, help="libggml-tiffin.so")
    parse.add_argument("--build", required=True, type=Path, help="folder to build llama.cpp in")
    parse.add_argument("--jobs", help="compilers at a time")
    parse.add_argument("--launcher", help="what starts the compiler (ccache, where it is installed)")
    parse.add_argument("--tests", type=int, default=133, help="tests that must pass (%(default)s)")
    parse.add_argument("--blocks", type=int, default=92, help="tests of which tiffin must compute blocks (%(default)s)")
    args = parse.parse_args()
    args.llama, args.library, args.build = args.llama.resolve(), args.library.resolve(), args.build.resolve()
    for path in args.llama / "tests/test-llama-archs.cpp", args.library:
        if not path.exists():
            sys.exit(f"{path}: is not there")
    args.build.mkdir(parents=True, exist_ok=True)
    build(args)
    shim = args.build / "logits_to_file.so"
    subprocess.run(["c++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", shim, HERE / "logits_to_file.cpp"], check=True)

    bad = []
    stock = args.build / "stock.logits"
    for name, device, libraries in (("stock", "CPU", [shim]), ("tiffin", "tiffin", [args.library, shim]),
                                    ("all_devices", None, [args.library, shim])):
        tell(f"run: {name}")
        logits = args.build / f"{name}.logits"
        status, text = run([args.build / "bin/test-llama-archs", "-s", "1", "-v", "4", *(["-b", device] if device else [])],
                           args.build / f"{name}.log",
                           # The test has four threads, which would spin where there are fewer cores.
                           env={**os.environ, "OMP_WAIT_POLICY": "passive", "LOGITS_FILE": str(logits),
                                "LD_PRELOAD": ":".join(map(str, libraries))})
        done = outcome(text)
        if status < 0 or done is None:
            bad.append(f"{name}: status {status}, {text.strip()[-300:]}")
            continue
        passed, failed, blocks = done
        tell(f"  {passed} passed, {failed} failed, blocks of {blocks} ran in tiffin")
        if status or failed:
            bad.append(f"{name}: status {status}, {failed} failed")
        if passed < args.tests:
            bad.append(f"{name}: {passed} passed, fewer than {args.tests}")
        if name == "tiffin":
            if blocks < args.blocks:
                bad.append(f"{name}: blocks of {blocks} tests, fewer than {args.blocks}")
            error, where = largest_error(stock, logits)
            tell(f"  largest error of an architecture's logits against stock: {error} ({where})")
            if error is None or not error <= BOUND:
                bad.append(f"{name}: logits are not those of stock llama.cpp: {error} ({where})")
    for text in bad:
        print(text)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
