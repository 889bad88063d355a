#!/usr/bin/env python3
"""Rows of a table by number: tiffin.Rows beside torch's embeddings, and engramdb where it is installed, in turns.

    benchmarks/torch_rows.py [--rows 2000000] [--width 128] [--ids 512] [--rounds 200] [--folder /tmp]

Times of gathering random rows as floats, of a table that no processor cache holds and the system's page cache does: f32, 8 bits
(q8_0 here, a scale and an offset per row there), 4 bits (q4_0; the same), and sums of eight rows each. For each the median
microseconds per row, and the median ratio of times to tiffin's with quartiles: above 1, tiffin takes less. Both have one thread.
Needs the package, numpy and torch; engramdb is `pip install --no-deps engramdb-python`.
"""
import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import tiffin
from disturbance import Disturbance

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "io"))
from run_layer_files import file_of, quantised

BAG = 8


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000, help="of the table (default: 2000000)")
    parser.add_argument("--width", type=int, default=128, help="numbers of a row, a multiple of 32 (default: 128)")
    parser.add_argument("--ids", type=int, default=512, help="rows of a call, a multiple of 8 (default: 512)")
    parser.add_argument("--rounds", type=int, default=200, help="calls of each, in turns (default: 200)")
    parser.add_argument("--folder", type=Path, help="where the tables are written (default: the system's for temporary files)")
    given = parser.parse_args()
    if given.width % 32 or given.ids % BAG or min(given.rows, given.width, given.ids, given.rounds) < 1:
        parser.error("--width is a multiple of 32, --ids of 8, and all numbers are positive")
    return given


def in_blocks(table, form):
    return np.concatenate([quantised(table[i:i + 65536], form) for i in range(0, len(table), 65536)])


def torch_bits(table, bits, starts):
    pack = getattr(torch.ops.quantized, "embedding_bag_byte_prepack" if bits == 8 else "embedding_bag_4bit_prepack")
    bag = getattr(torch.ops.quantized, "embedding_bag_byte_rowwise_offsets" if bits == 8 else "embedding_bag_4bit_rowwise_offsets")
    packed = pack(torch.from_numpy(table))
    return lambda ids: bag(packed, torch.from_numpy(ids), starts, False, 0, False, None, None, False).numpy()


def subjects(table, given, folder):
    """{what is read: [(who, its function of ids)]}, tiffin's first."""
    rows = {}
    for name in ("f32", "q8_0", "q4_0"):
        path = folder / f"{name}.safetensors"
        path.write_bytes(file_of({"table": (table, "F32")}) if name == "f32" else
                         file_of({"table": (in_blocks(table, name), "U8")}, {"table.format": name}))
        rows[name] = tiffin.Rows.open(path, "table")
    memory = torch.from_numpy(table)
    each = torch.arange(given.ids)
    first = np.arange(0, given.ids, BAG, dtype=np.int32)
    bags = torch.from_numpy(first).long()
    f32 = [("tiffin", rows["f32"].gather),
           ("torch embedding", lambda ids: torch.nn.functional.embedding(torch.from_numpy(ids), memory).numpy())]
    try:
        import engramdb
        store_at = folder / "engramdb"
        store_at.mkdir()
        table.tofile(store_at / "shard_000.bin")
        store = engramdb.Store(str(store_at), 1, len(table), table.shape[1] * 4)
        f32.append(("engramdb", lambda ids: np.frombuffer(store.fetch(ids.tolist()), np.float32).reshape(len(ids), -1)))
    except ImportError:
        print("engramdb is not installed: left out", file=sys.stderr)
    pooled = [("tiffin", lambda ids: rows["f32"].sum(ids, first)),
              ("torch embedding_bag", lambda ids: torch.nn.functional.embedding_bag(torch.from_numpy(ids), memory, bags, mode="sum").numpy())]
    return {"f32": f32, f"f32, sums of {BAG}": pooled,
            "8 bits": [("tiffin q8_0", rows["q8_0"].gather), ("torch, 8 bits", torch_bits(table, 8, each))],
            f"8 bits, sums of {BAG}": [("tiffin q8_0", lambda ids: rows["q8_0"].sum(ids, first)), ("torch, 8 bits", torch_bits(table, 8, bags))],
            "4 bits": [("tiffin q4_0", rows["q4_0"].gather), ("torch, 4 bits", torch_bits(table, 4, each))],
            f"4 bits, sums of {BAG}": [("tiffin q4_0", lambda ids: rows["q4_0"].sum(ids, first)), ("torch, 4 bits", torch_bits(table, 4, bags))]}


def main():
    given = parse()
    torch.set_num_threads(1)
    random = np.random.default_rng(1)
    table = np.resize(random.standard_normal(1_000_003).astype(np.float32), given.rows * given.width).reshape(given.rows, given.width)
    print(f"{given.rows} rows of {given.width} numbers, {given.ids} random ones per call, {given.rounds} rounds, torch {torch.__version__}")
    others = Disturbance()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        print("| rows | by | microseconds per row | time over tiffin's | quartiles |\n|---|---|---|---|---|", flush=True)
        for what, all_of in subjects(table, given, Path(folder)).items():
            for first in range(0, given.rows, 4096):  # each page of a mapped table is met once before
                for _, read in all_of[:1] + all_of[2:]:
                    read(np.arange(first, first + 4096).clip(max=given.rows - 1))
            times = {who: [] for who, _ in all_of}
            size = np.abs(table[:1000]).max()
            for i in range(given.rounds + 1):
                if sys.stderr.isatty():
                    print(f"\r{what}: round {i} of {given.rounds}\033[K", end="", file=sys.stderr)
                results = []
                for who, read in all_of[i % len(all_of):] + all_of[:i % len(all_of)]:
                    ids = random.integers(0, given.rows, given.ids)  # of its own: what one has read, no other finds in the cache
                    begin = time.perf_counter()
                    made = read(ids)
                    if i > 0:
                        times[who].append(time.perf_counter() - begin)
                    results.append((who, made, ids))
                if i == 0:  # what is timed is right: to the steps of 4 bits, and of sums of 8
                    for who, made, ids in results:
                        exact = table[ids].reshape(len(made), -1, given.width).sum(1)
                        if not np.abs(made - exact).max() <= (0.1 if "bits" in what else 1e-5) * size * (BAG if "sums" in what else 1):
                            sys.exit(f"{what}: {who} is wrong by {np.abs(made - exact).max()}")
            if sys.stderr.isatty():
                print("\r\033[K", end="", file=sys.stderr)
            first = times[all_of[0][0]]
            for who, taken in times.items():
                low, middle, high = statistics.quantiles([b / a for a, b in zip(first, taken)], n=4) if given.rounds > 1 else [taken[0] / first[0]] * 3
                print(f"| {what} | {who} | {1e6 * statistics.median(taken) / given.ids:.3f} | "
                      + ("| |" if taken is first else f"{middle:.2f} | {low:.2f} to {high:.2f} |"), flush=True)
    print("\n" + others.told())


if __name__ == "__main__":
    main()
