#!/usr/bin/env python3
"""python/examples in a small form, and what they refuse.

    examples_test.py [LIBRARY]
"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import done, expect, tiffin

examples = Path(__file__).resolve().parents[2] / "python" / "examples"
modules = [str(Path(tiffin.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]


def run(name, *arguments, path=""):
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(folder for folder in [path, *modules] if folder))
    return subprocess.run([sys.executable, examples / name, *arguments], capture_output=True, text=True, env=environment)


def refused(name, says, *arguments, path=""):
    ran = run(name, *arguments, path=path)
    expect(f"{name} {arguments}: {ran.stderr}", ran.returncode != 0 and says in ran.stderr and "Traceback" not in ran.stderr)


small = ("--d-model", "48", "--d-ff", "64", "--vocab", "100", "--rank", "4", "--seconds", "0")
ran = run("compare_compositions.py", *small)
expect("compare_compositions.py: " + ran.stderr, ran.returncode == 0 and ran.stdout.count("\n") == 12)
stem = next(line.split() for line in ran.stdout.splitlines() if line.startswith("STEM  "))
expect(f"its STEM: {stem}", float(stem[1]) == float(f"{2 * 48 * 64 + 100 * 64:.3g}") and float(stem[3]) == float(f"{2 * 48 * 64 + 64:.3g}"))
ran = run("compare_compositions.py", *small, "--format", "bf16", "ffn(gate(gelu), dense)")
expect("one of one's own: " + ran.stderr, ran.returncode == 0 and ran.stdout.count("\n") == 3 and "ffn(gate(gelu), dense)" in ran.stdout)
refused("compare_compositions.py", "bagel", *small, "bagel")
# As where matplotlib is not installed, or not for the numpy that is: a module of its name that cannot be loaded comes first.
with tempfile.TemporaryDirectory() as folder:
    (Path(folder) / "matplotlib.py").write_text("raise ImportError('not for this numpy')\n")
    refused("compare_compositions.py", "matplotlib", *small, "--plot", "x.png", path=folder)
try:
    import matplotlib.pyplot  # noqa: F401
except ImportError:
    print("matplotlib is not installed, or not for this numpy: a plot is not tested")
else:
    with tempfile.TemporaryDirectory() as folder:
        plot = Path(folder) / "layers.png"
        ran = run("compare_compositions.py", *small, "--plot", plot)
        expect("a plot: " + ran.stderr, ran.returncode == 0 and plot.read_bytes()[1:4] == b"PNG")

ran = run("table_on_disk.py", "--gib", "2", "--limit-gib", "0.5", "--calls", "20")
expect("table_on_disk.py: " + ran.stdout + ran.stderr, ran.returncode == 0 and "2.00 GiB" in ran.stdout)
refused("edit_fact.py", "invalid choice", "--of", "atlantis")
try:
    import torch  # noqa: F401
except ImportError:
    refused("edit_fact.py", "torch")
    print("torch is not installed: what trains is not tested")
    done()
ran = run("edit_fact.py", "--steps", "200", "--of", "italy", "--as", "norway")
expect("edit_fact.py: " + ran.stdout + ran.stderr, ran.returncode == 0 and "with the rows of norway: the capital of italy is oslo" in ran.stdout
       and "afterwards: the capital of italy is rome" in ran.stdout)
try:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
except ImportError:
    print("transformers is not installed: train_beside_model.py is not tested")
    done()
with tempfile.TemporaryDirectory() as folder:
    # A model that knows nothing, and a text of which every word tells the next.
    words = [f"w{i}" for i in range(40)]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["[UNK]", *words])}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=41, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2)
    LlamaForCausalLM(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(folder)
    text, side = Path(folder) / "text", Path(folder) / "side.safetensors"
    text.write_text(" ".join(words[i * 7 % 40] for i in range(2000)))
    ran = run("train_beside_model.py", text, "--model", folder, "--minutes", "0.05", "--layers", "2", "--tokens", "32", "--lr", "0.02", "--save", side)
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in ran.stdout.splitlines() if "loss " in line]
    expect("train_beside_model.py: " + ran.stdout + ran.stderr, ran.returncode == 0 and len(losses) == 2 and losses[1] < losses[0] - 0.5 and side.exists())
    for says, *arguments in (("no_such", "no_such"), ("--layers 4: the model has 3", text, "--layers", "4"), ("--tokens", text, "--tokens", "5000")):
        refused("train_beside_model.py", says, *map(str, arguments), "--model", folder)
done()
