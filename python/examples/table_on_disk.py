#!/usr/bin/env python3
"""A table larger than memory: rows of a file of 8 GiB, gathered by a process that may have 1 GiB, and edited for a while.

    table_on_disk.py [--gib 8] [--limit-gib 1] [--folder /tmp] [--calls 200]

The file is sparse: it takes as much of the disk as rows are written to it. What is gathered is compared with what was written.
"""
import argparse
import json
import os
import resource
import struct
import sys
import tempfile
import time

import numpy as np

import tiffin

WIDTH, GIB = 1024, 1 << 30


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=8, help="size of the table (default: 8)")
    parser.add_argument("--limit-gib", type=float, default=1, help="memory that the process may have (default: 1)")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where the file lies meanwhile (default: that of temporary files)")
    parser.add_argument("--calls", type=int, default=200, help="gathers of 512 rows (default: 200)")
    return parser.parse_args()


def write(path, rows, rng):
    """A safetensors file with numbers in some of its rows, which are returned by id."""
    header = json.dumps({"table": {"dtype": "F16", "shape": [rows, WIDTH], "data_offsets": [0, rows * WIDTH * 2]}}).encode()
    header += b" " * (-len(header) % 8)
    written = {}
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + rows * WIDTH * 2)
        for id in rng.choice(rows, min(rows, 2000), replace=False):
            row = rng.normal(size=WIDTH).astype(np.float16)
            file.seek(8 + len(header) + int(id) * WIDTH * 2)
            file.write(row.tobytes())
            written[int(id)] = row
    return written


def main():
    given = parse()
    rng = np.random.default_rng(1)
    rows = int(given.gib * GIB) // (2 * WIDTH)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        path = os.path.join(folder, "table.safetensors")
        written = write(path, rows, rng)
        # All memory but that of mapped files.
        resource.setrlimit(resource.RLIMIT_DATA, (int(given.limit_gib * GIB),) * 2)
        with tiffin.Rows.open(path, "table", direct=True, cache_bytes=int(given.limit_gib * GIB) // 8) as table:
            print(f"{table}: {os.path.getsize(path) / GIB:.2f} GiB, the limit is {given.limit_gib:g} GiB")
            ids, taken = np.array(list(written)), []
            wanted = np.stack([written[i] for i in ids]).astype(np.float32)
            for _ in range(given.calls):
                # Ids of a text: few come often.
                at = (rng.zipf(1.3, 512) - 1) % len(ids)
                start = time.perf_counter()
                found = table.gather(ids[at])
                taken.append(time.perf_counter() - start)
                if not np.array_equal(found, wanted[at]):
                    sys.exit("table_on_disk.py: a row is not what was written")
            counts = table.counts
            print(f"{given.calls} gathers of 512 rows, {1e6 * np.median(taken) / 512:.2f} us per row; cache: {counts.hits} hits, {counts.misses} misses")
            # A fact is edited: for a while one row is read in another's place.
            first, second = int(ids[0]), int(ids[1])
            with table.edited({first: second}):
                edited = np.array_equal(table.gather([first])[0], wanted[1])
            undone = np.array_equal(table.gather([first])[0], wanted[0])
            print(f"row {first} read as row {second}: {edited}; and as it was again: {undone}")
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 ** 2
            print(f"{peak:.2f} GiB of memory at most")
            if not (edited and undone and peak < given.limit_gib):
                sys.exit("table_on_disk.py: not as told")


if __name__ == "__main__":
    try:
        main()
    except (tiffin.Error, OSError) as wrong:
        sys.exit(f"table_on_disk.py: {wrong}")
