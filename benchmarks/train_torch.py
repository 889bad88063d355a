#!/usr/bin/env python3
"""A step of training, forward and back, of SwiGLU: tiffin's beside PyTorch's, in turns.

    benchmarks/train_torch.py build/bench/benchmarks/bench_train [--shape 2048x8192] [--rounds 9] [--threads 2]

512 tokens in f32. Gradients are added up, as when batches are accumulated. Each round times both, the first of the two in
turns; printed are the median times, and the median of the rounds' ratios with its quartiles. Needs PyTorch (Debian:
python3-torch).
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

try:
    import torch
    from torch.nn import functional
except ImportError:
    sys.exit("PyTorch is not installed (python3-torch)")

TOKENS = 512


def torch_step(d, f):
    def tensor(*shape):
        return (torch.rand(*shape) * 2 - 1).requires_grad_()

    x, gate, up, down = tensor(TOKENS, d), tensor(f, d), tensor(f, d), tensor(d, f)
    dy = torch.rand(TOKENS, d)

    def step():
        y = functional.linear(functional.silu(functional.linear(x, gate)) * functional.linear(x, up), down)
        y.backward(dy)

    return step


def milliseconds_of_torch(step, seconds):
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        begin = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def milliseconds_of_tiffin(args):
    done = subprocess.run([args.bench, f"--shapes={args.shape}", f"--threads={args.threads}", "--benchmark_format=json",
                           f"--benchmark_filter=^step/swiglu/{args.shape}", f"--benchmark_min_time={args.seconds}"],
                          capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": str(args.threads)})
    if done.returncode != 0:
        sys.exit(f"{args.bench}: {done.stderr}")
    (run,) = json.loads(done.stdout[done.stdout.index("{"):])["benchmarks"]
    return run["real_time"] * {"ns": 1e-6, "us": 1e-3, "ms": 1, "s": 1e3}[run["time_unit"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", help="the program bench_train")
    parser.add_argument("--shape", default="2048x8192", help="d_model x d_ff")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=3, help="of each in a round")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    step = torch_step(*map(int, args.shape.split("x")))
    step()
    ours, theirs = [], []
    for i in range(args.rounds):
        for tiffin in (i % 2 == 0, i % 2 != 0):
            if tiffin:
                ours.append(milliseconds_of_tiffin(args))
            else:
                theirs.append(milliseconds_of_torch(step, args.seconds))
        print(f"round {i + 1} of {args.rounds}: {ours[-1]:.0f} ms, PyTorch {theirs[-1]:.0f} ms", file=sys.stderr)
    low, median, high = statistics.quantiles([a / b for a, b in zip(ours, theirs)], n=4)
    print(f"{args.shape}, {TOKENS} tokens, {args.threads} threads, PyTorch {torch.__version__}: {statistics.median(ours):.1f} ms, "
          f"PyTorch {statistics.median(theirs):.1f} ms; ratio {median:.3f} ({low:.3f} to {high:.3f})")


main()
