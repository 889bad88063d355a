#!/usr/bin/env python3
"""tiffin.torch against torch's own formulas: forward, gradcheck in double, opcheck, torch.compile, sparse steps.

    torch_test.py [LIBRARY]

Without torch 2.4 or later: status 77.
"""
import gc
import os
import sys
import tempfile

from checks import done, expect, near, np, tiffin

try:
    import torch
except (ImportError, OSError) as missing:
    print(f"torch is not installed: {missing}")
    sys.exit(77)
if tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 4):
    print(f"torch is {torch.__version__}; 2.4 or later is wanted")
    sys.exit(77)
import tiffin.torch
from torch.nn import functional as F

torch.manual_seed(3)
d, f, v, tokens = 16, 24, 30, 10
ids = torch.randint(0, v, (2, tokens // 2))
ids[0, 1] = ids[0, 0]


def block_of(text, **options):
    return tiffin.torch.FFN(text, d_model=d, d_ff=f, vocab=v, layers=3, seed=2, threads=2, **options)


def by_torch(block, x, ids):
    w = dict(block.named_parameters())
    up = F.embedding(ids, w["stem_embed.weight"]) if "stem_embed.weight" in w else x @ w["up_proj.weight"].T
    return (F.silu(x @ w["gate_proj.weight"].T) * up) @ w["down_proj.weight"].T


for text in ("stem", "ffn(gate(silu), dense)"):
    block = block_of(text)
    expect(f"{text}: names", set(block.state_dict()) == {n for n, t in block.composition.needs(**block.sizes).items() if not t.optional})
    x = torch.randn(2, tokens // 2, d, requires_grad=True)
    weights = torch.randn(2, tokens // 2, d)
    found, wanted = [], []
    for run, to in ((lambda: block(x, token_ids=ids), found), (lambda: by_torch(block, x, ids), wanted)):
        y = run()
        (y * weights).sum().backward()
        to += [y.detach(), x.grad, *(p.grad for p in block.parameters())]
        x.grad = None
        block.zero_grad()
    for i, (a, b) in enumerate(zip(found, wanted)):
        near(f"{text}: {i}", a, b, 1e-5)
    # Two forwards before the first's backward; and a weight written in between is an error of torch's, as ever.
    x2 = torch.randn(4, d, requires_grad=True)
    ids2 = ids.reshape(-1)[:4]
    y1, y2 = block(x, token_ids=ids), block(x2, token_ids=ids2)
    (y1 * weights).sum().backward()
    near(f"{text}: dx after another forward", x.grad, wanted[1], 1e-5)
    y2.sum().backward()
    expect(f"{text}: of the second", x2.grad is not None and bool(x2.grad.any()))
    y = block(x2, token_ids=ids2)
    with torch.no_grad():
        next(block.parameters()).mul_(2)
    try:
        y.sum().backward()
        expect(f"{text}: a weight that was written in between", False)
    except RuntimeError as wrong:
        expect(f"{text}: {wrong}", "modified by an inplace operation" in str(wrong))
    near(f"{text}: the weights as they are now", block(x, token_ids=ids).detach(), by_torch(block, x, ids).detach(), 1e-5)
    # As a layer, by the same names.
    layer = tiffin.Layer(block.composition.text, {n: p.numpy() for n, p in block.state_dict().items()})
    near(f"{text}: tiffin.Layer", layer(x.detach().reshape(-1, d).numpy(), **({"token_ids": ids.reshape(-1).numpy()} if layer.reads_token_ids else {})),
         block(x, token_ids=ids).detach().reshape(-1, d), 1e-5)

    exact = block_of(text, dtype=torch.float64)
    small = torch.randn(3, d, dtype=torch.float64, requires_grad=True)
    names = [n for n, _ in exact.named_parameters()]

    def run(small, *parameters):
        return torch.func.functional_call(exact, dict(zip(names, parameters)), (small,), {"token_ids": ids.reshape(-1)[:3]})

    expect(f"{text}: gradcheck", torch.autograd.gradcheck(run, (small, *exact.parameters()), fast_mode=True))
    arguments = (small, ids.reshape(-1)[:3], None, None, exact.weights(), exact.composition.text, " ".join(exact._names), "", 1)
    checks = torch.library.opcheck(torch.ops.tiffin.ffn.default, arguments, raise_exception=False)
    expect(f"{text}: opcheck {checks}", all(how == "SUCCESS" for how in checks.values()))

    try:
        compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
        x.grad = None
        block.zero_grad()
        (compiled(x, token_ids=ids) * weights).sum().backward()
        made = [x.grad.clone(), *(p.grad.clone() for p in block.parameters())]
        x.grad = None
        block.zero_grad()
        (block(x, token_ids=ids) * weights).sum().backward()
        for i, (a, b) in enumerate(zip(made, [x.grad, *(p.grad for p in block.parameters())])):
            expect(f"{text}: compiled, gradient {i}", torch.equal(a, b))
    except Exception as wrong:
        expect(f"{text}: torch.compile: {type(wrong).__name__}: {wrong}", False)

# Sparse gradients are the dense ones; and steps of rows are what AdamW does to a table of those rows alone.
dense, sparse = block_of("stem"), block_of("stem", sparse=True)
x = torch.randn(2, tokens // 2, d)
for block in (dense, sparse):
    block(x, token_ids=ids).square().sum().backward()
table = dict(sparse.named_parameters())["stem_embed.weight"]
expect("sparse", table.grad.is_sparse and torch.equal(table.grad.to_dense(), dict(dense.named_parameters())["stem_embed.weight"].grad))
expect("its ids", torch.equal(table.grad.coalesce().indices()[0], ids.unique()))
for sparse_steps, reference in ((dict(weight_decay=0.1), torch.optim.AdamW), (dict(count_rows=False), torch.optim.SparseAdam)):
    start, picked = torch.randn(v, f), torch.tensor([3, 7, 20])
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone() if reference is torch.optim.SparseAdam else start[picked].clone())
    mine = tiffin.torch.RowAdamW([ours], lr=0.01, **sparse_steps)
    other = reference([theirs], lr=0.01, **({"weight_decay": 0.1} if reference is torch.optim.AdamW else {}))
    for _ in range(4):
        g = torch.randn(3, f)
        ours.grad = torch.sparse_coo_tensor(picked[None], g, (v, f), check_invariants=True)
        theirs.grad = ours.grad.clone() if reference is torch.optim.SparseAdam else g
        mine.step(), other.step()
    rows = ours[picked] if reference is torch.optim.AdamW else ours
    near(f"steps beside {reference.__name__}", rows.detach(), theirs.detach(), 1e-6)
    untouched = torch.ones(v, dtype=bool)
    untouched[picked] = False
    expect("other rows are as they were", torch.equal(ours[untouched], start[untouched]))
# Partial row-wise Adam, written out for one row.
p = torch.nn.Parameter(torch.ones(2, 3, dtype=torch.float64))
step = tiffin.torch.RowAdamW([p], lr=0.1, rowwise=True)
m, second, w = np.zeros(3), 0.0, np.ones(3)
for t in range(1, 4):
    g = np.array([0.5, -1, 2]) * t
    p.grad = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.from_numpy(g)[None], (2, 3), check_invariants=True)
    step.step()
    m, second = 0.9 * m + 0.1 * g, 0.999 * second + 0.001 * (g * g).mean()
    w = w - 0.1 * m / (1 - 0.9 ** t) / ((second / (1 - 0.999 ** t)) ** 0.5 + 1e-8)
near("row-wise", p[1].detach(), w, 1e-12)
for wrong in (float("nan"), -1.0, float("inf")):
    try:
        tiffin.torch.RowAdamW([p], lr=wrong)
        expect(f"lr {wrong}", False)
    except ValueError as error:
        expect(f"lr {wrong}: {error}", "lr" in str(error))

# It learns: a table that is trained alone to map ids to rows.
block = block_of("stem", sparse=True)
optimizer = tiffin.torch.RowAdamW(block.parameters(), lr=0.02)
goal = torch.randn(v, d)
x, losses = torch.randn(v, d), []
for _ in range(60):
    optimizer.zero_grad()
    loss = (block(x, token_ids=torch.arange(v)) - goal).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
expect(f"it learns: {losses[0]:.3f} to {losses[-1]:.3f}", losses[-1] < 0.5 * losses[0])

# Gradients that nobody wants are not computed, and do not change the others.
block, other = block_of("stem"), block_of("stem")
block.gate_proj.weight.requires_grad_(False)
for b in (block, other):
    b(x, token_ids=torch.arange(v)).square().sum().backward()
for name, p in block.named_parameters():
    expect(f"beside a frozen tensor: {name}", p.grad is None if name == "gate_proj.weight" else torch.equal(p.grad, other.get_parameter(name).grad))
held = list(tiffin.torch._trainings._held.values())[-2]
expect(f"learnt: {sorted(held.training.gradients)}", set(held.training.gradients) == {"stem_embed.weight", "down_proj.weight"})

# Calls without gradients between two steps leave nothing behind.
y = block(x, token_ids=torch.arange(v)).detach()
with torch.no_grad():
    for i in range(2 * v):
        block(x[:2], token_ids=torch.tensor([i % v, 0]))
block.zero_grad()
block(x[:2], token_ids=torch.tensor([3, 4])).square().sum().backward()
expect("only the last call's ids", block.get_parameter("stem_embed.weight").grad.any(1).nonzero()[:, 0].tolist() == [3, 4])

# A table in a file learns as one in memory.
with tempfile.TemporaryDirectory() as folder:
    inside = block_of("stem", sparse=True)
    start = inside.get_parameter("stem_embed.weight").detach().clone()
    table = tiffin.StoredTable.create(os.path.join(folder, "table.rows"), v, f, initial=start.numpy())
    outside = block_of("stem", stored={"stem_embed.weight": table})
    expect("no parameter", set(outside.state_dict()) == {"gate_proj.weight", "down_proj.weight"})
    expect("the same starting values", all(torch.equal(p, inside.get_parameter(n)) for n, p in outside.named_parameters()))
    how = dict(lr=0.02, weight_decay=0.05)
    optimizers = tiffin.torch.RowAdamW(inside.parameters(), **how), tiffin.torch.RowAdamW(outside.parameters(), stored=[outside], **how)
    for i in range(10):
        some, losses = torch.randint(0, v, (8,)), []
        for b, optimizer in zip((inside, outside), optimizers):
            optimizer.zero_grad()
            for part in (some[:5], some[5:]):  # two calls before a step
                loss = (b(x[:len(part)], token_ids=part) - goal[:len(part)]).square().mean()
                loss.backward()
            optimizer.step()
            losses.append(loss.item())
        near(f"step {i}: the loss", losses[1], losses[0], 1e-5)
    near("the table", table.gather(np.arange(v)), inside.get_parameter("stem_embed.weight").detach(), 1e-5)
    expect("it learnt", np.abs(table.gather(np.arange(v)) - start.numpy()).max() > 0.01)
    y = outside(x, token_ids=torch.arange(v))
    table.roll_back()
    try:
        y.sum().backward()
        expect("a table that was written in between", False)
    except RuntimeError as wrong:
        expect(f"{wrong}", "modified" in str(wrong))
    expect("rolled back", np.array_equal(table.gather(np.arange(v)), start.numpy()))
    for what, work in (("of another width", lambda: tiffin.torch.FFN("stem", d_model=d, d_ff=f + 1, vocab=v, stored={"stem_embed.weight": table})),
                       ("of no such name", lambda: block_of("stem", stored={"embed": table})),
                       ("of a dense weight", lambda: block_of("stem", stored={"down_proj.weight": table})),
                       ("in double", lambda: block_of("stem", stored={"stem_embed.weight": table}, dtype=torch.float64)),
                       ("row-wise", lambda: tiffin.torch.RowAdamW(outside.parameters(), stored=[outside], rowwise=True))):
        try:
            work()
            expect(f"a stored table {what}", False)
        except ValueError as wrong:
            expect(f"{what}: {wrong}", "stored" in str(wrong))
    table.close()

# A module that is gone leaves nothing behind.
del block, other, inside, outside, optimizer, optimizers, held, b, y, p
gc.collect()
before = len(tiffin.torch._trainings._held)
block = block_of("stem")
block(x, token_ids=torch.arange(v)).sum().backward()
expect("kept while it lives", len(tiffin.torch._trainings._held) == before + 1)
del block
gc.collect()
expect("gone with it", len(tiffin.torch._trainings._held) == before)

# In a model: nothing changes where tables of 0 are added; what is new learns alone; and the side file has it.
try:
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError:
    print("transformers is not installed: tiffin.torch.replace is not tested")
    done()
from safetensors import safe_open


def losses_of(model):
    """Of twelve steps on the same ids."""
    optimizer, losses = tiffin.torch.RowAdamW([p for p in model.parameters() if p.requires_grad], lr=0.05), []
    for _ in range(12):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


config = LlamaConfig(vocab_size=v, hidden_size=d, intermediate_size=f, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2)
for text, new in (("ffn(gate(silu), sum(dense, token_embedding))", {"stem_embed.weight"}),
                  ("retoken(ffn(gate(silu), dense))", {"modulators.weight", "scale"}),
                  ("mort(ffn(gate(silu), dense), num_layers=3)", {"modulators.weight", "router.weight", "scale"})):
    sizes = dict(experts=3) if text.startswith("mort") else {}
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        before = model(input_ids=ids).logits
    blocks = tiffin.torch.replace(model, text, layers=[0, -1], sparse=True, threads=2, **sizes)
    with torch.no_grad():
        near(f"{text}: logits", model(input_ids=ids).logits, before, 1e-5)
    learns = {n for n, p in model.named_parameters() if p.requires_grad}
    expect(f"{text}: {sorted(learns)} learn", learns == {f"model.layers.{i}.mlp.{n}" for i in (0, 2) for n in new})
    losses = losses_of(model)
    expect(f"{text}: the loss {losses[0]:.3f} becomes {losses[-1]:.3f}", losses[-1] < losses[0])
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "side.safetensors")
        tiffin.torch.save_side_file(model, path)
        with safe_open(path, "pt") as file:
            told, kept = file.metadata(), set(file.keys())
            expect(f"{text}: the side file's text", told["blk.2.composition"] == blocks[1].composition.text and "blk.1.composition" not in told)
            expect(f"{text}: its tensors {sorted(kept)}", {f"blk.{i}.{n}" for i in (0, 2) for n in new} <= kept)
            own = "blk.0.weights" if text.startswith("ffn") else "blk.0.base.weights"
            expect(f"{text}: the model's own {told}", set(told[own].split()) == {"gate_proj", "up_proj", "down_proj"} and len(kept) == 2 * len(new))
            table = next(n for n in new if n.endswith(("embed.weight", "modulators.weight")))
            expect(f"{text}: its numbers", torch.equal(file.get_tensor(f"blk.2.{table}"), dict(blocks[1].named_parameters())[table]))
    try:
        model(inputs_embeds=torch.randn(1, 4, d))
        expect(f"{text}: without ids", False)
    except RuntimeError as error:
        expect(f"{text}: {error}", "input_ids" in str(error))
# MeKi beside the FFNs, with a width of its own.
model = LlamaForCausalLM(config).eval()
with torch.no_grad():
    before = model(input_ids=ids).logits
blocks = tiffin.torch.replace(model, "meki", layers=[1, 2], beside=True, sparse=True, d_ff=7)
with torch.no_grad():
    near("meki: logits", model(input_ids=ids).logits, before, 1e-6)
learns = {n for n, p in model.named_parameters() if p.requires_grad}
expect(f"meki: {sorted(learns)} learn", learns == {f"model.layers.{i}.mlp.{n}" for i in (1, 2) for n in (
    "gate_proj.weight", "memory.weight", "post_norm.weight", "out_proj.weight")} and blocks[0].memory.weight.shape == (v, 7))
losses = losses_of(model)
expect(f"meki: the loss {losses[0]:.3f} becomes {losses[-1]:.3f}", losses[-1] < losses[0])
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "side.safetensors")
    tiffin.torch.save_side_file(model, path)
    with safe_open(path, "pt") as file:
        told, kept = file.metadata(), set(file.keys())
        expect(f"meki: {told}", told["blk.1.composition"].startswith("parallel(ffn(gate(silu), dense), ffn(gate(sigmoid")
               and set(told["blk.1.branch.0.weights"].split()) == {"gate_proj", "up_proj", "down_proj"})
        expect(f"meki: {sorted(kept)}", kept == {f"blk.{i}.branch.1.{n}.weight" for i in (1, 2) for n in ("gate_proj", "memory", "post_norm", "out_proj")})
        # The same sum by tiffin's own parallel.
        tensors = {n.removeprefix("blk.1."): file.get_tensor(n).numpy() for n in kept if n.startswith("blk.1.")}
        tensors.update({f"branch.0.{n}": p.detach().numpy() for n, p in blocks[0].beside.named_parameters()})
        x = torch.randn(3, d)
        blocks[0]._inputs.token_ids = torch.tensor([4, 5, 4])
        near("meki: as one layer", tiffin.Layer(told["blk.1.composition"], tensors)(x.numpy(), token_ids=[4, 5, 4]), blocks[0](x).detach(), 1e-5)

# An Engram: rows of the last two and three ids, of a table of each layer.
address = tiffin.NgramAddresses.engram(multipliers=[3, 5, 7], primes=[[31, 37], [41]], vocab=v)
model = LlamaForCausalLM(config).eval()
with torch.no_grad():
    before = model(input_ids=ids).logits
blocks = tiffin.torch.replace(model, "engram", layers=[1, 2], beside=True, sparse=True, ngrams=address, ngram_width=6)
start = blocks[0].ngram_embed.weight.detach().clone()
with torch.no_grad():
    near("engram: logits", model(input_ids=ids).logits, before, 1e-5)
losses = losses_of(model)
expect(f"engram: the loss {losses[0]:.3f} becomes {losses[-1]:.3f}", losses[-1] < losses[0])
touched = (blocks[0].ngram_embed.weight.detach() != start).any(1).nonzero()[:, 0].numpy()
rows = np.concatenate([address(row, address.histories()) + np.array([[0], [31], [68]]) for row in ids[:, :-1].numpy()], 1)  # the last has no loss
expect("engram: the rows of each sequence's n-grams", set(touched) == set(rows.reshape(-1)) and blocks[0].ngram_embed.weight.shape == (109, 6))
with tempfile.TemporaryDirectory() as folder:  # the side file has the table and how it is addressed
    path = os.path.join(folder, "side.safetensors")
    tiffin.torch.save_side_file(model, path)
    with safe_open(path, "pt") as file:
        told = file.metadata()
        expect("engram: the side file's addresses", told["blk.1.ngrams.block"] == "engram_addresses" and told["blk.1.ngrams.may_wrap"] == "false"
               and file.get_tensor("blk.1.ngrams.multipliers").tolist() == [3, 5, 7] and file.get_tensor("blk.1.ngrams.primes.2").tolist() == [31, 37]
               and torch.equal(file.get_tensor("blk.1.ngrams.weight"), blocks[0].ngram_embed.weight))
for what, says, work in (("with a cache", "use_cache", lambda: model.generate(ids[:1], max_new_tokens=2, use_cache=True, do_sample=False, pad_token_id=0)),
                         ("no width", "ngram_width", lambda: tiffin.torch.replace(model, "engram", layers=[0], ngrams=address))):
    try:
        work()
        expect(f"engram, {what}", False)
    except (RuntimeError, ValueError) as wrong:
        expect(f"engram, {what}: {wrong}", says in str(wrong))
for what, work, kind in (("a layer beyond", lambda: tiffin.torch.replace(LlamaForCausalLM(config), "stem", layers=[3]), IndexError),
                         ("no such word", lambda: tiffin.torch.replace(LlamaForCausalLM(config), "bagel", layers=[0]), tiffin.Error),
                         ("nothing replaced", lambda: tiffin.torch.save_side_file(LlamaForCausalLM(config), "x"), ValueError)):
    try:
        work()
        expect(what, False)
    except kind:
        expect(what, True)
done()
