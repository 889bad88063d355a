#!/usr/bin/env python3
"""tiffin.torch beside torch's own modules: STEM and SwiGLU, forward and a step's forward and backward, in turns.

    benchmarks/torch_layers.py [--d-model 2048] [--d-ff 8192] [--vocab 4096] [--tokens 64,512] [--rounds 15] [--compile]

Prints the median ratio of times of tiffin to torch, with quartiles: below 1, tiffin takes less. Both have the same weights and
threads; several copies of each layer take turns, so that no cache holds their weights. Needs the package and torch 2.4 or later.
"""
import argparse
import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import tiffin.torch
from disturbance import Disturbance

TEXTS = {"stem": "ffn(gate(silu), token_embedding)", "swiglu": "ffn(gate(silu), dense)"}


class ByTorch(nn.Module):
    """The formula as a model's author writes it."""

    def __init__(self, block):
        super().__init__()
        for name, value in block.state_dict().items():
            self.register_parameter(name.split(".")[0], nn.Parameter(value.clone()))

    def forward(self, x, ids):
        up = F.embedding(ids, self.stem_embed) if hasattr(self, "stem_embed") else F.linear(x, self.up_proj)
        return F.linear(F.silu(F.linear(x, self.gate_proj)) * up, self.down_proj)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d-model", type=int, default=2048)
    parser.add_argument("--d-ff", type=int, default=8192)
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--tokens", default="64,512", help="tokens of a call, separated by commas (default: 64,512)")
    parser.add_argument("--rounds", type=int, default=15, help="pairs of timed calls (default: 15)")
    parser.add_argument("--copies", type=int, default=2, help="layers that take turns (default: 2)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of both (default: all)")
    parser.add_argument("--compile", action="store_true", help="compile torch's module with torch.compile")
    return parser.parse_args()


def timed(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main():
    given = parse()
    torch.set_num_threads(given.threads)
    torch.manual_seed(1)
    kind = "torch.compile" if given.compile else "eager torch"
    print(f"torch {torch.__version__}, {given.threads} threads, d_model {given.d_model}, d_ff {given.d_ff}, {given.rounds} rounds, beside {kind}")
    others = Disturbance()
    for name, text in TEXTS.items():
        sizes = dict(d_model=given.d_model, d_ff=given.d_ff, vocab=given.vocab)
        ours = [tiffin.torch.FFN(text, layers=12, seed=i, threads=given.threads, **sizes) for i in range(given.copies)]
        theirs = [ByTorch(block) for block in ours]
        called = [torch.compile(module) for module in theirs] if given.compile else theirs
        layers = [tiffin.Layer(text, {n: p.numpy() for n, p in block.state_dict().items()}, threads=given.threads) for block in ours]
        for tokens in (int(n) for n in given.tokens.split(",")):
            x, ids = torch.randn(tokens, given.d_model), torch.randint(0, given.vocab, (tokens,))
            dy = torch.randn(tokens, given.d_model)
            rows, numbers = x.numpy(), ids.numpy() if name == "stem" else None

            def step(module, *inputs):
                module.zero_grad(set_to_none=True)
                module(*inputs).backward(dy)

            def infer(module):
                with torch.no_grad():
                    module(x, ids)

            pairs = {"layer": (lambda i: layers[i](rows, token_ids=numbers), lambda i: infer(called[i])),
                     "module": (lambda i: infer(ours[i]), lambda i: infer(called[i])),
                     "step": (lambda i: step(ours[i], x, ids), lambda i: step(called[i], x, ids))}
            with torch.no_grad():
                error = (ours[0](x, ids) - theirs[0](x, ids)).abs().max() / theirs[0](x, ids).abs().max()
            for what, (mine, other) in pairs.items():
                for i in range(given.copies):
                    mine(i), other(i)
                ratios, took = [], []
                for n in range(given.rounds):
                    i = n % given.copies
                    a, b = timed(lambda: mine(i)), timed(lambda: other(i))
                    ratios.append(a / b), took.append((a, b))
                low, middle, high = np.percentile(ratios, (25, 50, 75))
                a, b = 1e3 * np.median(took, axis=0)
                print(f"{name:7} {what:7} {tokens:4} tokens  {middle:.2f} ({low:.2f} to {high:.2f})   {a:8.2f} ms, torch {b:8.2f} ms"
                      f"   error {error:.1e}", flush=True)
    print(others.told())


if __name__ == "__main__":
    main()
