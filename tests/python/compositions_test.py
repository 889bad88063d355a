#!/usr/bin/env python3
"""tiffin.Composition: needs, starting values and costs, against formulas written here.

    compositions_test.py [LIBRARY]
"""
import pickle

from checks import done, expect, np, refused, tiffin

d, f, v = 24, 40, 50
sizes = dict(d_model=d, d_ff=f, vocab=v)

stem = tiffin.Composition("ffn(gate(silu), token_embedding)")
needs = stem.needs(**sizes)
expect("names", list(needs) == ["gate_proj.weight", "gate_proj.bias", "stem_embed.weight", "down_proj.weight", "down_proj.bias"]
       or set(n for n, t in needs.items() if not t.optional) == {"gate_proj.weight", "stem_embed.weight", "down_proj.weight"})
expect("shapes", needs["gate_proj.weight"].shape == (f, d) and needs["stem_embed.weight"].shape == (v, f)
       and needs["down_proj.weight"].shape == (d, f))
expect("rows", [n for n, t in needs.items() if t.rows] == ["stem_embed.weight"])
cost = stem.cost(**sizes)
expect("parameters", cost.parameters == 2 * d * f + v * f and cost.table_parameters == v * f)
expect("per token", cost.parameters_per_token == 2 * d * f + f and cost.row_parameters == f and cost.matrix_flops == 4 * d * f)
expect("bytes", cost.bytes_per_token(16, 8) == 2 * (2 * d * f) + f)
expect("text again", tiffin.Composition(stem.text).text == stem.text)
expect("pickled", pickle.loads(pickle.dumps(stem)).text == stem.text)

weights = stem.initial(layers=12, seed=5, **sizes)
expect("required tensors alone", set(weights) == {n for n, t in needs.items() if not t.optional})
expect("types", all(a.dtype == np.float32 and a.shape == needs[n].shape for n, a in weights.items()))
# SmallInit, DeepNorm and xavier: standard deviations, within 5 standard errors of a sample of their size.
for name, sigma in (("gate_proj.weight", (2 / (5 * d)) ** 0.5), ("down_proj.weight", 2 / (12 * d ** 0.5)),
                    ("stem_embed.weight", (2 / (v + f)) ** 0.5)):
    a = weights[name].astype(np.float64)
    expect(f"{name}: {a.std()} beside {sigma}", abs(a.std() / sigma - 1) < 5 / (2 * a.size) ** 0.5)
again, other = stem.initial(layers=12, seed=5, **sizes), stem.initial(layers=12, seed=6, **sizes)
expect("the same seed", all((again[n] == weights[n]).all() for n in weights))
expect("another seed", all((other[n] != weights[n]).any() for n in weights))
biased = stem.initial(layers=12, optional=[n for n, t in needs.items() if t.optional], **sizes)
expect("optional tensors", set(biased) == set(needs) and all((biased[n] == 0).all() for n, t in needs.items() if t.optional))
expect("a layer of them", tiffin.Layer(stem.text, weights)(np.zeros((3, d), np.float32), token_ids=[1, 2, 3]).shape == (3, d))

alias = tiffin.Composition("stem")
expect("an alias", alias.text == stem.text)

refused("no text", "option", "", lambda: tiffin.Composition(""))
refused("an unknown word", "option", "bagel", lambda: tiffin.Composition("ffn(gate(bagel), dense)"))
refused("a zero byte", "argument", "zero byte", lambda: tiffin.Composition("stem\0"))
refused("a size that is none", "option", "d_fff", lambda: stem.needs(d_fff=3, **sizes))
for wrong in (0, -1, 1.5, True, 2 ** 40, "8"):
    refused(f"d_model {wrong}", "option", "d_model", lambda: stem.needs(d_model=wrong, d_ff=f, vocab=v))
refused("no vocab", "option", "stem_embed.weight", lambda: stem.needs(d_model=d, d_ff=f))
refused("no vocab", "option", "stem_embed.weight", lambda: stem.cost(d_model=d, d_ff=f))
refused("no layers", "option", "layers", lambda: stem.initial(layers=0, **sizes))
refused("optional that is none", "missing_tensor", "nothing", lambda: stem.initial(layers=1, optional=["nothing"], **sizes))
refused("three inner sizes", "option", "inner", lambda: stem.needs(inner=(1, 2, 3), **sizes))
done()
