#!/usr/bin/env python3
"""`run_memory`, `run_layer` and `decoder` against the Python packages whose models they open: small random models are saved by the package,
read here, and compared layer by layer with what the package computes in whole runs.

    clients_test.py qwen|gemma|engram_peft|rwkv|product_keys|llama_cpp RUN_MEMORY RUN_LAYER DECODER

Status 77 where a package is missing. Packages: torch, transformers >= 5 (qwen, gemma), engram-peft, rwkv, product-key-memory
and peer-pytorch; llama_cpp: TIFFIN_LLAMA_CPP in
the environment names llama.cpp's source, whose converter writes the models as GGUF.
"""

import json
import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
try:
    import numpy as np
    import torch
    from safetensors.numpy import load_file, save_file
    from safetensors.torch import save_file as save_tensors
except Exception as missing:
    print("skipped:", missing)
    sys.exit(77)

F32 = np.float32


class Checker:
    def __init__(self, folder, memory, layer, decoder):
        self.at, self.memory, self.layer, self.decoder = Path(folder), memory, layer, decoder
        self.failed = self.runs = 0

    def run(self, tool, model, given, *flags):
        save_file({k: np.ascontiguousarray(v) for k, v in given.items()}, self.at / "in")
        (self.at / "out").unlink(missing_ok=True)
        as_layer = tool == self.memory or "layer file" in model.name
        done = subprocess.run([tool, *([model] if as_layer else ["--model", model]), self.at / "in", self.at / "out", *flags],
                              capture_output=True, text=True)
        self.runs += 1
        return load_file(self.at / "out") if done.returncode == 0 else done.stderr.strip()

    def expect(self, what, holds, said=""):
        self.failed += not holds
        if not holds:
            print("FAILED:", what, said)

    def close(self, what, got, want, bound):
        if isinstance(got, str):
            return self.expect(what, False, got)
        want = want.detach().double().numpy() if torch.is_tensor(want) else want
        error = np.abs(got["y"] - want).max() / np.abs(want).max()
        self.expect(what, got["y"].shape == want.shape and error <= bound, f"error {error:.2e}")

    def end(self):
        print(self.runs, "runs,", self.failed, "failed")
        return self.failed != 0


def randomise(module, seed):
    """Every parameter random, also those that start at 0 or 1."""
    make = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in module.named_parameters():
            spread = 0.3 if p.dim() == 1 or "conv" in name or "embed" in name else p.shape[-1] ** -0.5
            p.copy_(torch.randn(p.shape, generator=make) * spread + (p.data.mean() if p.dim() == 1 else 0))


class Spy:
    """The inputs and the output of a module in every call."""

    def __init__(self, module):
        self.calls = []
        module.register_forward_hook(lambda m, a, k, o: self.calls.append((a, k, o)), with_kwargs=True)


# The tokens of several sequences in one call, interleaved, as an engine batches them.
def interleaved(of_sequence):
    order = sorted((t, s) for s, tokens in enumerate(of_sequence) for t in range(len(tokens)))
    return np.array([s for _, s in order]), [(s, t) for t, s in order]


def qwen_config(ple_layers, end, vocab, ngram_embedding=64):
    from transformers.models.qwen4_exp import Qwen4ExpTextConfig
    return Qwen4ExpTextConfig(
        vocab_size=vocab, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16, moe_intermediate_size=32,
        shared_expert_intermediate_size=32, num_experts=4, num_experts_per_tok=2, hc_lowrank=8, ple_layer_ids=ple_layers,
        ple_embed_dim=ngram_embedding, heads_per_ngram=2, ngram_vocab_size_base=101, eos_token_id=end, pad_token_id=end, split_ngram_parts=3,
        make_ngram_vocab_size_divisible_by=3, layer_types=["linear_attention"] * 3 + ["indexed_attention"], indexer_n_heads=2,
        indexer_kv_heads=1, indexer_head_dim=16, indexer_budget=8, indexer_compress_ratio=2)


def qwen(check):
    from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextModel

    end, vocab = 7, 97
    config = qwen_config([2, 3], end, vocab)
    model = Qwen4ExpTextModel(config).eval()
    randomise(model, 1)
    model.save_pretrained(check.at / "qwen", max_shard_size="60KB")
    make = np.random.default_rng(3)
    lengths = (19, 7, 12)
    texts = [make.integers(0, vocab, n) for n in lengths]
    for text in texts:
        text[[1, 5]] = end
    for layer in (1, 2):
        with torch.no_grad():
            # Left-padded, in one batch; then sequence by sequence, token by token, from a cache.
            spy = Spy(model.layers[layer].ple)
            longest = max(lengths)
            ids = torch.tensor(np.stack([np.concatenate([np.full(longest - len(t), end), t]) for t in texts]))
            mask = torch.tensor([[0] * (longest - n) + [1] * n for n in lengths])
            model(input_ids=ids, attention_mask=mask)
            (given, named, out), = spy.calls
            hidden = given[0] if given else named["hidden_states"]
            of, order = interleaved(texts)
            at = lambda x: np.stack([x[s, longest - lengths[s] + t].numpy() for s, t in order])
            tokens = np.array([texts[s][t] for s, t in order])
            for flags, bound in ((["--backend", "reference"], 2e-6), ([], 1e-5), (["--batch", "5"], 1e-5), (["--batch", "1"], 1e-5)):
                got = check.run(check.memory, check.at / "qwen", {"x": at(hidden), "token_ids": tokens, "sequence": of}, "--layer", str(layer), *flags)
                check.close(f"qwen layer {layer}, three sequences {flags}", got, at(out), bound)
            for text in texts:
                spy.calls.clear()
                cache = None
                for t in text:
                    cache = model(input_ids=torch.tensor([[t]]), past_key_values=cache, use_cache=True).past_key_values
                hidden = np.concatenate([(a[0] if a else k["hidden_states"])[0].numpy() for a, k, _ in spy.calls])
                out = np.concatenate([o[0].numpy() for *_, o in spy.calls])
                got = check.run(check.memory, check.at / "qwen", {"x": hidden, "token_ids": text}, "--layer", str(layer), "--batch", "3")
                check.close(f"qwen layer {layer}, {len(text)} tokens from a cache", got, out, 1e-5)
    # As published: F8 rows with one scale for the table.
    folder = check.at / "f8"
    folder.mkdir()
    tensors = {k: v for f in sorted((check.at / "qwen").glob("*.safetensors")) for k, v in __import__("safetensors.torch").torch.load_file(f).items()}
    part = "layers.1.ple.ple_embedding.ngram_embedding."
    scale = torch.tensor(0.0125)
    with torch.no_grad():
        for name in list(tensors):
            if name.startswith(part):
                tensors[name] = (tensors[name] / scale).to(torch.float8_e4m3fn)
        table = torch.cat([tensors[f"{part}shard_{i}.weight"].float() * scale for i in range(3)])
        model.layers[1].ple.ple_embedding.ngram_embedding.weight.copy_(table)
        tensors[part + "weight_scale"] = scale
        save_tensors({"model.language_model." + k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({"model_type": "qwen4_exp", "text_config": config.to_dict()}))
        spy = Spy(model.layers[1].ple)
        model(input_ids=torch.tensor(texts[0][None]))
        (given, named, out), = spy.calls
        hidden = given[0] if given else named["hidden_states"]
        got = check.run(check.memory, folder, {"x": hidden[0].numpy(), "token_ids": texts[0]})
        check.close("qwen, F8 rows with a scale", got, out[0], 1e-5)
    config_file = check.at / "qwen" / "config.json"
    told = json.loads(config_file.read_text())
    for change, sentences in (({"eos_token_id": 97}, ["eos_token_id of config.json is 97; there are 97 ids"]),
                              ({"ngram_size": 4}, ["layer_multipliers: are 3", "of up to 4 ids"]),
                              ({"ple_layer_ids": [0]}, ["names layer 0"]), ({"ple_layer_ids": []}, ["no layer of it has rows"]),
                              ({"model_type": "llama"}, ["'llama'", "'qwen4_exp'"]), ({"hc_count": 3}, ["it is of 3 branches"])):
        config_file.write_text(json.dumps({**told, **change}))
        got = check.run(check.memory, check.at / "qwen", {"x": hidden[0].numpy(), "token_ids": texts[0]})
        check.expect(str(change), isinstance(got, str) and all(s in got for s in sentences), str(got)[:300])
    config_file.write_text(json.dumps(told))
    index = check.at / "qwen" / "model.safetensors.index.json"
    with_table = next(f for n, f in json.loads(index.read_text())["weight_map"].items() if "shard_1" in n)
    whole = (check.at / "qwen" / with_table).read_bytes()
    for left, sentence in ((whole[:-50], with_table), (None, with_table)):
        if left is None:
            (check.at / "qwen" / with_table).unlink()
        else:
            (check.at / "qwen" / with_table).write_bytes(left)
        got = check.run(check.memory, check.at / "qwen", {"x": hidden[0].numpy(), "token_ids": texts[0]})
        check.expect("a shard that is cut off, or missing", isinstance(got, str) and sentence in got, str(got)[:300])


def gemma_sizes():
    return dict(vocab_size=83, vocab_size_per_layer_input=83, hidden_size=48, intermediate_size=64, num_hidden_layers=4, num_attention_heads=2,
                num_key_value_heads=1, head_dim=16, hidden_size_per_layer_input=32, sliding_window=8, num_kv_shared_layers=0,
                pad_token_id=0, bos_token_id=1, eos_token_id=2, max_position_embeddings=64)


def gemma_kinds():
    layers = ["sliding_attention"] * 3 + ["full_attention"]
    return (("gemma3n_text", dict(laurel_rank=4, layer_types=layers, activation_sparsity_pattern=[0.0] * 4)),
            ("gemma4_text", dict(layer_types=layers, global_head_dim=32, num_global_key_value_heads=1)))


def gemma_layer(model, layer, ids):
    """What the layer's per-layer embedding reads and adds in a whole run."""
    gate, norm = Spy(model.layers[layer].per_layer_input_gate), Spy(model.layers[layer].post_per_layer_input_norm)
    with torch.no_grad():
        model(input_ids=ids)
    return gate.calls[0][0][0].reshape(-1, 48).numpy(), norm.calls[0][2].reshape(-1, 48)


def gemma(check):
    from transformers import AutoConfig, AutoModel
    for kind, more in gemma_kinds():
        model = AutoModel.from_config(AutoConfig.for_model(kind, **gemma_sizes(), **more)).eval()
        randomise(model, 5)
        folder = check.at / kind
        model.save_pretrained(folder)
        ids = torch.randint(3, 83, (1, 11), generator=torch.Generator().manual_seed(2))
        for layer in range(4):
            x, y = gemma_layer(model, layer, ids)
            for flags, bound in ((["--backend", "reference"], 2e-6), ([], 1e-5), (["--batch", "3"], 1e-5)):
                got = check.run(check.memory, folder, {"x": x, "token_ids": ids[0].numpy()}, "--layer", str(layer), *flags)
                check.close(f"{kind} layer {layer} {flags}", got, y, bound)
        got = check.run(check.memory, folder, {"x": x, "token_ids": ids[0].numpy()}, "--layer", "4")
        check.expect("a layer that is not there", isinstance(got, str) and "there is no layer 4; the model has 4" in got, str(got)[:300])


def engram_peft(check):
    import typing
    import typing_extensions
    typing.override = typing_extensions.override  # the package is of Python 3.12
    from transformers import LlamaConfig, LlamaModel
    from engram_peft.config import EngramConfig
    from engram_peft.model import EngramModel
    from engram_peft.saving import save_pretrained_engram

    d, vocab = 32, 79
    for compressed in (False, True):
        base = LlamaModel(LlamaConfig(vocab_size=vocab, hidden_size=d, intermediate_size=48, num_hidden_layers=4, num_attention_heads=2)).eval()
        config = EngramConfig(
            target_layers=[1, 3], engram_vocab_size_per_ngram=[200, 260, 300], ngram_sizes=[2, 3, 4], max_ngram_size=4, n_head_per_ngram=2,
            embedding_dim=48, enable_tokenizer_compression=False, hc_mult=3, hidden_size=d, conv_kernel_size=3, compressed_vocab_size=vocab,
            pad_id=2, seed=5)
        model = EngramModel(base, config).eval()
        for layer in model.engram_layers.values():
            randomise(layer, 7)
        folder = check.at / f"adapter{compressed}"
        save_pretrained_engram(model, str(folder))
        ids = torch.randint(0, vocab, (2, 15), generator=torch.Generator().manual_seed(4))
        flags, hashed = [], ids
        if compressed:  # what the package's compressor does to ids, told by a file beside the adapter
            told = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps({**told, "enable_tokenizer_compression": True}))
            map_of = np.random.default_rng(1).integers(0, vocab, vocab)
            map_of[2] = 2
            save_file({"token_map": map_of}, check.at / "constants.safetensors")
            got = check.run(check.memory, folder, {"x": np.zeros((1, d), F32), "token_ids": np.zeros(1, np.int64)})
            check.expect("an adapter whose map is not given", isinstance(got, str) and "token_map: the adapter compresses ids" in got, str(got)[:300])
            flags, hashed = ["--constants", str(check.at / "constants.safetensors")], torch.tensor(map_of)[ids]
        hidden = torch.randn(2, 15, d, generator=torch.Generator().manual_seed(6))
        for number, layer in model.engram_layers.items():
            indices = model.hash_mapping.hash(hashed)[int(number)]
            with torch.no_grad():
                out = layer(hidden_states=hidden, engram_hash_indices=torch.tensor(indices)) - hidden
            of = np.repeat([0, 1], 15)
            given = {"x": hidden.reshape(-1, d).numpy(), "token_ids": ids.reshape(-1).numpy(), "sequence": of}
            for more, bound in ((["--backend", "reference"], 2e-6), ([], 1e-5), (["--batch", "4"], 1e-5)):
                got = check.run(check.memory, folder, given, "--layer", number, *more, *flags)
                check.close(f"engram-peft layer {number}, compressed: {compressed} {more}", got, out.reshape(-1, d), bound)
            if not isinstance(got, str):
                offsets = layer.multi_head_embedding.offsets.numpy()
                check.expect("engram-peft: rows", (got["rows"] == (indices + offsets).reshape(-1, len(offsets)).T).all())
    told = json.loads((folder / "config.json").read_text())
    for change, given_flags, sentences in (
            ({"enable_tokenizer_compression": False}, ["--layer", "2"], ["layer 2 has no rows by the last ids; these have: 1, 3"]),
            ({"ngram_sizes": [2, 4]}, [], ["ngram_sizes of config.json are not 2, 3, ..., N"]),
            ({"n_head_per_ngram": 3}, [], ["offsets: are 6", "with 3 heads each have 9"]),
            ({"compressed_vocab_size": 40}, flags, ["token_map: names the compressed id", "the adapter has 40"])):
        (folder / "config.json").write_text(json.dumps({**told, **change}))
        got = check.run(check.memory, folder, given, *given_flags)
        check.expect(str(change), isinstance(got, str) and all(s in got for s in sentences), str(got)[:300])
    (folder / "config.json").write_text(json.dumps({**told, "enable_tokenizer_compression": False}))
    got = check.run(check.memory, folder, {**given, "token_ids": given["token_ids"] + vocab})
    check.expect("another vocabulary", isinstance(got, str) and "lies outside [0, 78]" in got, str(got)[:300])


def rwkv(check):
    os.environ.update(RWKV_V7_ON="1", RWKV_DE_VERSION="1", RWKV_JIT_ON="0", RWKV_CUDA_ON="0")
    from rwkv.model import RWKV

    d, f, vocab, layers, heads, low = 64, 80, 53, 3, 1, 8
    make = torch.Generator().manual_seed(9)
    normal = lambda *shape: torch.randn(shape, generator=make) * (shape[-1] ** -0.5 if len(shape) == 2 else 0.5)
    z = {"emb.weight": normal(vocab, d), "head.weight": normal(vocab, d), "ln_out.weight": 1 + normal(d), "ln_out.bias": normal(d)}
    for i in range(layers):
        at = f"blocks.{i}."
        for norm in ("ln1", "ln2") + (("ln0",) if i == 0 else ()):
            z[at + norm + ".weight"], z[at + norm + ".bias"] = 1 + normal(d), normal(d)
        for one in ("x_r", "x_w", "x_k", "x_v", "x_a", "x_g", "w0", "a0", "v0", "k_k", "k_a"):
            z[at + "att." + one] = normal(1, 1, d)
        z[at + "att.r_k"] = normal(heads, d // heads)
        for one in "wavg":
            z[at + f"att.{one}1"], z[at + f"att.{one}2"] = normal(d, low), normal(low, d)
        for one in ("receptance", "key", "value", "output"):
            z[at + f"att.{one}.weight"] = normal(d, d)
        z[at + "att.ln_x.weight"], z[at + "att.ln_x.bias"] = 1 + normal(d), normal(d)
        z.update({at + "ffn.x_k": normal(1, 1, d), at + "ffn.key.weight": normal(f, d), at + "ffn.value.weight": normal(d, f),
                  at + "ffn.s_emb.weight": normal(vocab, 1024), at + "ffn.s_emb_x.weight": normal(1024, d), at + "ffn.s0": 1 + normal(1, 1, f),
                  at + "ffn.s1": normal(d, 32), at + "ffn.s2": normal(32, f)})
    save_tensors({k: v.contiguous() for k, v in z.items()}, check.at / "rwkv.safetensors")
    torch.save(z, check.at / "rwkv.pth")
    model = RWKV(str(check.at / "rwkv"), "cpu fp32")
    import rwkv.model as package
    z_of, calls = model.z, []
    ids = [int(i) for i in torch.randint(0, vocab, (12,), generator=make)]
    # The package's channel mixing, with the tables that it folded when it loaded: a sequence, then token by token.
    for i in range(layers):
        at = f"blocks.{i}.ffn."
        of_layer = [z_of[at + one] for one in ("x_k", "key.weight", "value.weight")]
        rest = [z_of[at + one] for one in ("s1", "s2", "s0")]
        before = normal(d)
        for tokens in (ids[:9], ids[9:10], ids[10:11]):
            x, table = normal(len(tokens), d), z_of[at + "s_emb.weight"][tokens]
            k = x + (torch.cat([before[None], x[:-1]]) - x) * of_layer[0]
            with torch.no_grad():
                if len(tokens) > 1:
                    y, before = package.RWKV_x070_CMix_seq(x, before, *of_layer, table, *rest)
                else:
                    y, before = package.RWKV_x070_CMix_one(x[0], before, *of_layer, table[0], *rest)
            calls.append((i, tokens, k, x, y.reshape(-1, d)))
    for i, tokens, k, x, y in calls:
        given = {"x": k.numpy(), "residual": x.numpy(), "token_ids": np.array(tokens)}
        for flags, bound in ((["--backend", "reference"], 2e-6), (["--backend", "simd"], 1e-5), (["--backend", "eigen"], 1e-5)):
            got = check.run(check.layer, check.at / "rwkv.safetensors", given, "--layer", str(i), *flags)
            check.close(f"rwkv layer {i}, {len(x)} tokens {flags}", got, y, bound)
    for name, change, sentence in (("blocks.1.ffn.s_emb_x.weight", None, "blocks.1.ffn.s_emb_x.weight: missing"),
                                   ("blocks.1.ffn.s_emb.weight", normal(vocab, 1000), "blocks.1.ffn.s_emb.weight: has shape (53, 1000)"),
                                   ("emb.weight", None, "has no emb.weight")):
        wrong = {k: v for k, v in z.items() if k != name}
        if change is not None:
            wrong[name] = change
        save_tensors({k: v.contiguous() for k, v in wrong.items()}, check.at / "wrong.safetensors")
        got = check.run(check.layer, check.at / "wrong.safetensors", given, "--layer", "1")
        check.expect(name, isinstance(got, str) and sentence in got, str(got)[:300])


def product_keys(check):
    from PEER_pytorch import PEER
    from product_key_memory import PKM

    d, heads, n, c, top = 24, 3, 6, 8, 4
    x = torch.randn(1, 17, d, generator=torch.Generator().manual_seed(2))
    per_head = lambda w: w.reshape(2, heads, c, *w.shape[1:]).transpose(0, 1).reshape(w.shape)  # theirs has halves first
    for competes in (True, False):
        of_pkm = PKM(d, heads=heads, num_keys=n, topk=top, dim_head=c, non_competitive_gates=not competes).eval()
        of_peer = PEER(d, heads=heads, num_experts=n * n, num_experts_per_head=top, dim_key=c, non_competing_scores=not competes).eval()
        for module in (of_pkm, of_peer):
            randomise(module, 8)
            with torch.no_grad():
                module.keys.mul_(3)
        of_pkm.norm = torch.nn.Identity()  # of the queries: this library's have none
        scores = f"product_keys{'' if competes else '_relu'}(top_k="
        one = top if competes else 1  # PEER without competition takes one row per head
        for name, module, text, tensors in (
                ("PKM", of_pkm, f"routed_embedding({scores}{top}), chosen_rows('values.weight'))",
                 {"query.weight": per_head(of_pkm.to_queries.weight), "values.weight": of_pkm.values.weight}),
                ("PEER", of_peer, f"routed_embedding(gated_rows({scores}{one}), row_activation(gelu), 'down_embed.weight'), chosen_rows('up_embed.weight'))",
                 {"query.weight": per_head(of_peer.to_queries[0].weight), "down_embed.weight": of_peer.weight_down_embed.weight,
                  "up_embed.weight": of_peer.weight_up_embed.weight})):
            keys = module.keys.permute(0, 2, 1, 3).reshape(2 * heads, n, c)
            path = check.at / f"{name} layer file"
            save_tensors({k: v.detach().contiguous() for k, v in {**tensors, "keys.weight": keys}.items()}, path, {"composition": text})
            with torch.no_grad():
                y = module(x)[0]
            for flags, bound in ((["--backend", "reference"], 2e-6), (["--backend", "simd"], 1e-5), (["--backend", "eigen"], 1e-5)):
                got = check.run(check.layer, path, {"x": x[0].numpy(), "token_ids": np.zeros(17, np.int64)}, *flags)
                check.close(f"{name}, competing: {competes} {flags}", got, y, bound)


def no_vocabulary(writer):
    pass


def letters(writer):
    """A vocabulary of 83: three of control, the letters and what follows them, of one character each."""
    tokens = ["<unk>", "<s>", "</s>"] + [chr(ord("A") + i) for i in range(80)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 83)
    writer.add_token_types([2, 3, 3] + [1] * 80)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_space_prefix(False)


def gguf_of(folder, kind, to, vocabulary=no_vocabulary):
    """The checkpoint as llama.cpp's own converter writes it, with a vocabulary made here: these models have none."""
    source = os.environ.get("TIFFIN_LLAMA_CPP", "")
    if not (Path(source) / "conversion").is_dir():
        raise ImportError("TIFFIN_LLAMA_CPP does not name llama.cpp's source")
    sys.path[:0] = [source, source + "/gguf-py"]
    import gguf
    from conversion.base import ModelBase
    import conversion
    config = ModelBase.load_hparams(folder, False)
    of_kind = conversion.get_model_class(config["architectures"][0])
    of_kind.set_vocab = lambda self: vocabulary(self.gguf_writer)
    with torch.inference_mode():
        of_kind(folder, getattr(gguf.LlamaFileType, kind), to).write()


def llama_cpp(check):
    from transformers import AutoConfig, AutoModelForCausalLM
    make = torch.Generator().manual_seed(12)
    end, vocab = 7, 97
    config = qwen_config([3], end, vocab, ngram_embedding=128)
    from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpForCausalLM
    model = Qwen4ExpForCausalLM(config).eval()
    randomise(model, 1)
    model.save_pretrained(check.at / "qwen")
    ids = torch.randint(0, vocab, (1, 21), generator=make)
    ids[0, [2, 9]] = end
    for kind, flags in (("ALL_F32", []), ("MOSTLY_Q8_0", [])):
        path = check.at / f"{kind}.gguf"
        gguf_of(check.at / "qwen", kind, path)
        with torch.no_grad():
            spy = Spy(model.model.layers[2].ple)
            model(input_ids=ids)
        given, named, out = spy.calls[-1]
        hidden = given[0] if given else named["hidden_states"]
        got = check.run(check.memory, path, {"x": hidden[0].numpy(), "token_ids": ids[0].numpy()})
        check.close(f"qwen4exp, converted, {kind}", got, out[0], 1e-5 if kind == "ALL_F32" else 0.05)
    for kind, more in gemma_kinds():
        config = AutoConfig.for_model(kind, **gemma_sizes(), **more)
        model = AutoModelForCausalLM.from_config(config).eval()
        randomise(model, 5)
        model.save_pretrained(check.at / kind)
        words = {"model": {"vocab": {str(i): i for i in range(83)}}, "added_tokens": []}  # the converter counts them
        (check.at / kind / "tokenizer.json").write_text(json.dumps(words))
        gguf_of(check.at / kind, "ALL_F32", check.at / (kind + ".gguf"))
        ids = torch.randint(3, 83, (1, 11), generator=make)
        for layer in range(4):
            x, y = gemma_layer(model.model, layer, ids)
            got = check.run(check.memory, check.at / (kind + ".gguf"), {"x": x, "token_ids": ids[0].numpy()}, "--layer", str(layer))
            check.close(f"{kind} layer {layer}, converted", got, y, 1e-5)
        whole_gemma(check, kind, more)


def whole_gemma(check, kind, more):
    """The decoder on a converted model: token by token and at once, behind shared keys, sparse gates and windows."""
    from transformers import AutoConfig, AutoModelForCausalLM
    kinds = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
    sizes = {**gemma_sizes(), **more, "num_hidden_layers": 6, "layer_types": kinds, "num_kv_shared_layers": 3, "final_logit_softcapping": 20.0}
    if kind == "gemma3n_text":
        sizes["activation_sparsity_pattern"] = [0.75, 0.3, 0.0, 0.0, 0.5, 0.0]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes)).eval()
    randomise(model, 6)
    folder, path = check.at / ("whole " + kind), check.at / ("whole " + kind + ".gguf")
    model.save_pretrained(folder)
    words = {"model": {"vocab": {str(i): i for i in range(83)}}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(words))
    gguf_of(folder, "ALL_F32", path, letters)
    ids = torch.cat([torch.tensor([1]), torch.randint(3, 83, (25,), generator=torch.Generator().manual_seed(3))])
    text = "".join(chr(ord("A") + int(i) - 3) for i in ids[1:])
    with torch.no_grad():
        out = model(input_ids=ids[None], output_hidden_states=True)
        longer = model.generate(ids[None], max_new_tokens=8, do_sample=False, pad_token_id=0)[0, len(ids):].tolist()
    for backend in ("reference", "simd"):
        dump = check.at / "dump"
        done = subprocess.run([check.decoder, path, "--prompt", text, "--tokens", "8", "--backend", backend, "--dump-layers", dump],
                              capture_output=True, text=True)
        check.runs += 1
        what = f"{kind}, whole, {backend}"
        if done.returncode:
            check.expect(what, False, done.stderr)
            continue
        got = load_file(dump)
        check.expect(what + ": token ids", got["token_ids"].tolist() == ids.tolist(), got["token_ids"])
        check.close(what + ": logits", {"y": got["logits"]}, out.logits[0, -1:], 2e-5)
        said = "".join(chr(ord("A") + i - 3) if i > 2 else "" for i in (longer[:longer.index(2)] if 2 in longer else longer))
        check.expect(what + ": generated", done.stdout == text + said + "\n", (done.stdout, said))


CLIENTS = {"qwen": qwen, "gemma": gemma, "engram_peft": engram_peft, "rwkv": rwkv, "product_keys": product_keys, "llama_cpp": llama_cpp}


def main(client, memory, layer, decoder):
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        check = Checker(folder, memory, layer, decoder)
        try:
            CLIENTS[client](check)
        except ImportError as missing:
            print("skipped:", missing)
            return 77
        return check.end()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
