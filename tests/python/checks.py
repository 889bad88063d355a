"""What the tests of the package share: which package and library they test, and what is expected of them.

With a library as first argument: this clone's package over it. Without: the installed package. Without numpy: status 77.
"""
import os
import sys
from pathlib import Path

try:
    import numpy as np
except ImportError:
    print("numpy is not installed")
    sys.exit(77)

if len(sys.argv) > 1:
    sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "python")]
    os.environ["TIFFIN_LIBRARY"] = sys.argv[1]
import tiffin

failed = checked = 0


def expect(what, holds):
    global failed, checked
    checked += 1
    failed += not holds
    if not holds:
        print("FAILED:", what, flush=True)


def near(what, found, wanted, bound):
    """Within `bound` of the largest number of `wanted`."""
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    expect(f"{what}: shape {found.shape}, not {wanted.shape}", found.shape == wanted.shape)
    if found.shape == wanted.shape and found.size:
        error = np.abs(found - wanted).max() / max(np.abs(wanted).max(), 1e-300)
        expect(f"{what}: error {error:.3g} of the largest, more than {bound:.3g}", error <= bound)


def refused(what, code, says, work):
    try:
        work()
    except tiffin.Error as error:
        expect(f"{what}: {error.code}: {error}", error.code == code and says in str(error))
    except Exception as other:
        expect(f"{what}: {type(other).__name__}: {other}", False)
    else:
        expect(f"{what}: not refused", False)


def done():
    print(f"{checked} checks, {failed} failed")
    sys.exit(1 if failed or not checked else 0)
