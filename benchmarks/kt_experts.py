#!/usr/bin/env python3
"""A mixture of experts by tiffin beside kt-kernel's, in turns.

    benchmarks/kt_experts.py [--experts 64] [--chosen 8] [--d-model 2048] [--d-ff 768] [--tokens 1,4,16,512] [--rounds 21] [--threads N]

SwiGLU experts of noise, the same in both: bf16; 8 bits (q8_0 here, a scale per output there); 4 bits (q4_0; the same). Both take the
experts that tiffin's router chose for tokens of their own in every round. Told are the median milliseconds of tiffin, and the
median ratio of times to it with quartiles: above 1, tiffin takes less; and the error of each, root mean square over that of y,
against the experts in f32. kt-kernel's layer does not choose: the router's time is in tiffin's alone.
Needs the package, numpy, torch and kt-kernel (`pip install --no-deps kt-kernel gguf typer rich pyyaml httpx`).
"""
import argparse
import os
import statistics
import sys
import time

import numpy as np
import torch
from kt_kernel import kt_kernel_ext as kt

import tiffin
from disturbance import Disturbance

# Of tiffin, of kt-kernel; the last has scales of outputs.
KINDS = {"bf16": ("bf16", "AMXBF16_MOE"), "8 bits": ("q8_0", "AMXInt8_MOE"), "4 bits": ("q4_0", "AMXInt4_MOE")}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("experts", 64), ("chosen", 8), ("d-model", 2048), ("d-ff", 768), ("rounds", 21)):
        parser.add_argument("--" + name, type=int, default=default, help=f"default: {default}")
    parser.add_argument("--tokens", default="1,4,16,512", help="of a call (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    given = parser.parse_args()
    given.tokens = [int(t) for t in given.tokens.split(",")]
    return given


class Ours:
    def __init__(self, weights, router, kind, given):
        tensors = {"router.weight": router}
        for e in range(given.experts):
            for part in ("gate", "up", "down"):
                tensors[f"experts.{e}.{part}_proj.weight"] = weights[part][e].float().numpy()
        self.layer = tiffin.Layer(f"mixture(softmax_topk_renorm(top_k={given.chosen}), swiglu)", tensors, format=kind, threads=given.threads)

    def __call__(self, x):
        return self.layer(x, routes=True)


class Theirs:
    def __init__(self, weights, kind, given):
        pool = kt.WorkerPoolConfig()
        pool.subpool_count, pool.subpool_numa_map, pool.subpool_thread_count = 1, [0], [given.threads]
        self.infer = kt.CPUInfer(pool)
        self.on_gpu = torch.zeros(given.experts, dtype=torch.bool)
        config = kt.moe.MOEConfig(given.experts, given.chosen, given.d_model, given.d_ff, self.on_gpu.data_ptr())
        config.layer_idx, config.pool, config.max_len = 0, self.infer.backend_, max(given.tokens)
        self.weights = weights
        if kind == "AMXBF16_MOE":
            for part in ("gate", "up", "down"):
                setattr(config, part + "_projs", [[weights[part][e].data_ptr() for e in range(given.experts)]])
        else:
            for part in ("gate", "up", "down"):
                setattr(config, part + "_proj", weights[part].data_ptr())
        self.layer = getattr(kt.moe, kind)(config)
        self.order = torch.arange(given.experts, dtype=torch.int64)
        self.infer.submit(self.layer.load_weights_task(self.order.data_ptr()))
        self.infer.sync()

    def __call__(self, x, experts, shares):
        y = torch.empty(x.shape, dtype=torch.bfloat16)
        count = torch.tensor([len(x)], dtype=torch.int32)
        self.infer.submit(self.layer.forward_task(count.data_ptr(), experts.shape[1], experts.data_ptr(), shares.data_ptr(), x.data_ptr(),
                                                  y.data_ptr(), False))
        self.infer.sync()
        return y


def exact(weights, x, routes):
    y = np.zeros_like(x)
    for t, row in enumerate(torch.from_numpy(x)):
        for choice in routes[t]:
            gate, up, down = (weights[part][int(choice["expert"])].float() for part in ("gate", "up", "down"))
            y[t] += float(choice["weight"]) * (down @ (torch.nn.functional.silu(gate @ row) * (up @ row))).numpy()
    return y


def main():
    given = parse()
    random, torch_random = np.random.default_rng(1), torch.Generator().manual_seed(1)
    shapes = {"gate": (given.d_ff, given.d_model), "up": (given.d_ff, given.d_model), "down": (given.d_model, given.d_ff)}
    weights = {part: (torch.randn(given.experts, *shape, generator=torch_random) * shape[1] ** -0.5).to(torch.bfloat16) for part, shape in shapes.items()}
    router = random.standard_normal((given.experts, given.d_model)).astype(np.float32)
    print(f"{given.chosen} of {given.experts} experts, d_model {given.d_model}, d_ff {given.d_ff}, {given.threads} threads, {given.rounds} rounds")
    print("| | tokens | tiffin, ms | kt-kernel over it | quartiles | error, tiffin | kt-kernel |\n|---|---|---|---|---|---|---|", flush=True)
    others = Disturbance()
    for what, (own, other) in KINDS.items():
        ours, theirs = Ours(weights, router, own, given), Theirs(weights, other, given)
        for tokens in given.tokens:
            times, ratios = [], []
            for i in range(given.rounds + 1):
                if sys.stderr.isatty():
                    print(f"\r{what}, {tokens} tokens: round {i} of {given.rounds}\033[K", end="", file=sys.stderr)
                x = torch.randn(tokens, given.d_model, generator=torch_random).to(torch.bfloat16)
                rows = x.float().numpy()
                begin = time.perf_counter()
                y, routes = ours(rows)
                middle = time.perf_counter()
                experts, shares = torch.from_numpy(routes["expert"].astype(np.int64)), torch.from_numpy(routes["weight"].copy())
                ready = time.perf_counter()
                z = theirs(x, experts, shares)
                end = time.perf_counter()
                if i == 0:  # both are right
                    some = slice(0, 4)
                    want = exact(weights, rows[some], routes[some])
                    errors = [np.sqrt(((np.asarray(made, np.float32)[some] - want) ** 2).mean() / (want ** 2).mean()) for made in (y, z.float().numpy())]
                    if not max(errors) < 0.3:
                        sys.exit(f"{what}: an error of {errors[0]:.2g} here and {errors[1]:.2g} there")
                    continue
                times.append(middle - begin)
                ratios.append((end - ready) / (middle - begin))
            if sys.stderr.isatty():
                print("\r\033[K", end="", file=sys.stderr)
            low, ratio, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
            print(f"| {what} | {tokens} | {1e3 * statistics.median(times):.2f} | {ratio:.2f} | {low:.2f} to {high:.2f} | {errors[0]:.1e} | {errors[1]:.1e} |", flush=True)
        del ours, theirs
    print("\n" + others.told())


if __name__ == "__main__":
    main()
