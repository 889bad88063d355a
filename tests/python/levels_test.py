#!/usr/bin/env python3
"""Which library of a wheel with several is loaded: by the marks of made-up processors.

    levels_test.py [LIBRARY]
"""
import os
import tempfile
from pathlib import Path

from checks import done, expect, tiffin
from tiffin import _levels

base = "fpu sse2 ssse3 sse4_1 sse4_2 popcnt avx avx2 fma bmi1 bmi2 f16c movbe abm"
v4 = base + " avx512f avx512bw avx512cd avx512dq avx512vl"
for marks, wanted in (("fpu sse2 avx", None), (base, "x86-64-v3"), (base + " avx512f", "x86-64-v3"), (v4, "x86-64-v4"), (v4 + " avx512_vnni", "x86-64-v4"),
                      (v4 + " avx512_vnni avx512_bf16", "avx512-bf16"), (v4 + " avx512_vnni avx512_bf16 amx_tile amx_bf16", "avx512-bf16"),
                      (v4 + " avx512_vnni avx512_bf16 amx_tile amx_int8 amx_bf16", "amx")):
    flags = _levels.flags_of(f"processor\t: 0\nflags\t\t: {marks}\nbugs\t\t: none\n")
    expect(f"{marks}", _levels.level_of(flags, _levels.LEVELS) == wanted)
expect("of those that are there", _levels.level_of(set((v4 + " avx512_vnni avx512_bf16").split()), {"x86-64-v3", "amx"}) == "x86-64-v3")
expect("no marks", _levels.flags_of("") == set())


def refusal(work):
    try:
        work()
    except ImportError as error:
        return str(error)
    return ""


here = _levels.level_of(_levels.flags_of(Path("/proc/cpuinfo").read_text()), _levels.LEVELS)
os.environ.pop("TIFFIN_LEVEL", None)
with tempfile.TemporaryDirectory() as folder:
    expect("nothing there", _levels.library(folder) is None)
    for level in _levels.LEVELS:
        (Path(folder) / f"libtiffin-{level}.so").touch()
    if here is None:
        expect("too old", "lacks" in refusal(lambda: _levels.library(folder)))
    else:
        expect("the widest", _levels.library(folder).endswith(f"libtiffin-{here}.so"))
        os.environ["TIFFIN_LEVEL"] = "x86-64-v3"
        expect("the level asked for", _levels.library(folder).endswith("libtiffin-x86-64-v3.so"))
    os.environ["TIFFIN_LEVEL"] = "sse2"
    expect("a level that is none", "'sse2'" in refusal(lambda: _levels.library(folder)))
    os.environ.pop("TIFFIN_LEVEL")
    (Path(folder) / "libtiffin.so").touch()
    expect("a library of this machine's own", _levels.library(folder).endswith("/libtiffin.so"))
expect("it is loaded", tiffin.Composition("stem").text != "")
done()
