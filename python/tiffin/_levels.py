"""The instruction sets that a wheel has libraries for, and the one of this machine."""
import os
from pathlib import Path

_V4 = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_BF16 = (*_V4, "avx512_vnni", "avx512_bf16")
# What a processor must have, the widest first; the names and flags of the compiler are in cmake/python.cmake.
LEVELS = {
    "amx": (*_BF16, "amx_tile", "amx_int8", "amx_bf16"),
    "avx512-bf16": _BF16,
    "x86-64-v4": _V4,
    "x86-64-v3": ("avx2", "fma", "bmi2", "f16c", "movbe"),
}


def flags_of(cpuinfo):
    """The marks of the processor in the text of /proc/cpuinfo."""
    for line in cpuinfo.splitlines():
        if line.startswith("flags"):
            return set(line.partition(":")[2].split())
    return set()


def level_of(flags, there):
    """The widest level of those in `there` that a processor with these marks runs; None: none."""
    return next((level for level, wanted in LEVELS.items() if level in there and flags.issuperset(wanted)), None)


def library(folder):
    """The library in the package's folder for this machine, or None. TIFFIN_LEVEL names a level to take instead of the widest."""
    own = Path(folder) / "libtiffin.so"
    if own.exists():
        return str(own)
    there = {level: path for level in LEVELS if (path := Path(folder) / f"libtiffin-{level}.so").exists()}
    if not there:
        return None
    asked = os.environ.get("TIFFIN_LEVEL")
    if asked and asked not in there:
        raise ImportError(f"TIFFIN_LEVEL is {asked!r}; this package has {', '.join(there)}")
    try:
        flags = flags_of(Path("/proc/cpuinfo").read_text())
    except OSError as wrong:
        raise ImportError(f"the processor's marks are not to be read: {wrong}; name a level in TIFFIN_LEVEL") from None
    level = level_of(flags, {asked} if asked else there)
    if level is None:
        raise ImportError(f"this package runs on {', '.join(there)}; this processor lacks "
                          + ", ".join(sorted(set(LEVELS[asked or list(there)[-1]]) - flags)))
    return str(there[level])
