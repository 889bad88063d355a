#!/usr/bin/env python3
"""Facts that lie in table rows: a small language model learns capitals with STEM's FFNs, then one country's rows give another's.

    edit_fact.py [--steps 400] [--seed 1] [--of spain --as germany]

Only the FFNs' tables are edited, in memory, within a `with`. The model's word embeddings call every country the same, so that which one
it is stands in the tables alone; with embeddings of their own, this small model learns the facts there, and edits of tables change
little. Needs torch. Source: STEM, knowledge edits (docs/tables.md#knowledge-edits).
"""
import argparse
import contextlib
import os
import sys
import tempfile

import numpy as np

import tiffin

CAPITALS = dict(france="paris", germany="berlin", spain="madrid", italy="rome", austria="vienna", greece="athens", norway="oslo",
                poland="warsaw", portugal="lisbon", hungary="budapest", sweden="stockholm", ireland="dublin")
FORMS = ("the capital of {} is {} .", "who goes to {} sees {} .", "in {} people love {} .")
D_MODEL, D_FF, LAYERS, STEM = 64, 128, 2, "stem"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="of training (default: 400)")
    parser.add_argument("--seed", type=int, default=1, help="of the model (default: 1)")
    parser.add_argument("--of", default="spain", choices=CAPITALS, help="whose rows are edited (default: spain)")
    parser.add_argument("--as", dest="to", default="germany", choices=CAPITALS, help="whose rows they give (default: germany)")
    return parser.parse_args()


def model_of(words, embedded):
    import torch
    from torch import nn
    import tiffin.torch

    class Model(nn.Module):
        """Two layers of attention and an FFN; the FFNs read the words, and all else reads `embedded` of them. `ffns`: what runs in the place
        of its FFNs."""

        def __init__(self):
            super().__init__()
            self.words, self.place = nn.Embedding(len(words), D_MODEL), nn.Embedding(16, D_MODEL)
            nn.init.normal_(self.words.weight, std=0.1)
            nn.init.normal_(self.place.weight, std=0.1)
            self.attention = nn.ModuleList(nn.MultiheadAttention(D_MODEL, 2, batch_first=True) for _ in range(LAYERS))
            self.norms = nn.ModuleList(nn.LayerNorm(D_MODEL) for _ in range(2 * LAYERS + 1))
            self.ffns = nn.ModuleList(tiffin.torch.FFN(STEM, d_model=D_MODEL, d_ff=D_FF, vocab=len(words), layers=LAYERS, seed=i, sparse=True)
                                      for i in range(LAYERS))

        def forward(self, ids, ffns=None):
            x, length = self.words(torch.tensor(embedded)[ids]) + self.place(torch.arange(ids.shape[1])), ids.shape[1]
            later = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
            for i, ffn in enumerate(ffns or self.ffns):
                normed = self.norms[2 * i](x)
                x = x + self.attention[i](normed, normed, normed, attn_mask=later, need_weights=False)[0]
                x = x + ffn(self.norms[2 * i + 1](x), token_ids=ids)
            return self.norms[-1](x) @ self.words.weight.T

    return Model()


def train(model, sentences, steps):
    import torch
    import tiffin.torch
    optimizer = tiffin.torch.RowAdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        batch = sentences[torch.randint(len(sentences), (24,))]
        loss = torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if sys.stderr.isatty():
            print(f"\rstep {step + 1} of {steps}, loss {loss.item():.3f} ", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return loss.item()


def main():
    given = parse()
    try:
        import torch
    except ImportError as missing:
        sys.exit(f"{missing}: this example needs torch")
    torch.manual_seed(given.seed)
    texts = [form.format(*fact).split() for fact in CAPITALS.items() for form in FORMS]
    words = sorted({word for text in texts for word in text})
    number = {word: i for i, word in enumerate(words)}
    longest = max(map(len, texts))
    model = model_of(words, [number["france"] if word in CAPITALS else i for i, word in enumerate(words)])
    loss = train(model, torch.tensor([[number[word] for word in text] + [number["."]] * (longest - len(text)) for text in texts]), given.steps)
    print(f"{len(words)} words, {len(texts)} sentences; after {given.steps} steps the loss is {loss:.3f}")

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as opened:
        # Each FFN as a file, whose table is read where it lies.
        tables, ffns = [], []
        for i, block in enumerate(model.ffns):
            path, weights = os.path.join(folder, f"{i}.safetensors"), {n: p.numpy() for n, p in block.state_dict().items()}
            tiffin.Layer(block.composition.text, weights).save(path)
            tables.append(opened.enter_context(tiffin.Rows.open(path, "stem_embed.weight")))
            layer = tiffin.Layer(block.composition.text, {**weights, "stem_embed.weight": tables[-1]})
            ffns.append(lambda x, token_ids, layer=layer: torch.from_numpy(
                layer(x.reshape(-1, D_MODEL).numpy(), token_ids=token_ids.reshape(-1).numpy())).reshape(x.shape))

        def capital_of(country):
            with torch.no_grad():
                logits = model(torch.tensor([[number[word] for word in f"the capital of {country} is".split()]]), ffns)
            return words[int(logits[0, -1].argmax())]

        def edited(country, by):
            with contextlib.ExitStack() as edits:
                for table in tables:
                    edits.enter_context(table.edited({number[country]: number[by]}))
                return capital_of(country)

        print(f"the capital of {given.of} is {capital_of(given.of)}")
        print(f"with the rows of {given.to}: the capital of {given.of} is {edited(given.of, given.to)}")
        print(f"and afterwards: the capital of {given.of} is {capital_of(given.of)}")
        known = sum(capital_of(country) == city for country, city in CAPITALS.items())
        pairs = [(a, b) for a in CAPITALS for b in CAPITALS if a != b]
        moved = np.mean([edited(a, b) == CAPITALS[b] for a, b in pairs])
        print(f"it knows {known} of {len(CAPITALS)} capitals; of {len(pairs)} edits {moved:.0%} give the other country's")


if __name__ == "__main__":
    main()
