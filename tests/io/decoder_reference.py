"""Llama-like models in numpy and double, written from their formulas; for decoder_test.py."""

import re
import unicodedata

import numpy as np


def silu(z):
    return z / (1 + np.exp(-z))


def gelu_tanh(z):
    return 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z ** 3)))


def softmax(z):
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def rms(x, weight, eps):
    return x / np.sqrt((x ** 2).mean(axis=-1, keepdims=True) + eps) * weight


def rotated(x, base, pairs, neighbours, factors, stretch, length):
    """Positions turn `pairs` pairs of each head of x (T, heads, head) as complex numbers, and make them `length` as long."""
    positions = np.arange(len(x))[:, None, None] / stretch
    turn = length * np.exp(1j * positions * base ** (-np.arange(pairs) / pairs) / factors)
    left = np.arange(pairs) * 2 if neighbours else np.arange(pairs)
    right = left + 1 if neighbours else left + pairs
    z = (x[..., left] + 1j * x[..., right]) * turn
    made = x.copy()
    made[..., left], made[..., right] = z.real, z.imag
    return made


class Model:
    """`m`: sizes and options; `w`: tensors in double by their names in GGUF files."""

    def __init__(self, m, w):
        self.m, self.w = m, w

    def ffn(self, at, x):
        w, phi = self.w, gelu_tanh if self.m["arch"].startswith("gemma") else silu
        if at + "ffn_gate_inp.weight" not in w:
            gate, up, down = (w[f"{at}ffn_{p}.weight"] for p in ("gate", "up", "down"))
            return phi(x @ gate.T) * (x @ up.T) @ down.T
        scores = softmax(x @ w[at + "ffn_gate_inp.weight"].T)
        gate, up, down = (w[f"{at}ffn_{p}_exps.weight"] for p in ("gate", "up", "down"))
        y = np.zeros_like(x)
        for t in range(len(x)):
            best = np.argsort(-scores[t], kind="stable")[:self.m["top_k"]]
            for e in best:
                y[t] += scores[t, e] / scores[t, best].sum() * (down[e] @ (phi(gate[e] @ x[t]) * (up[e] @ x[t])))
        return y

    def attention(self, at, x):
        m, w = self.m, self.w
        heads, kv, head, eps = m["heads"], m["kv_heads"], m["head"], m["eps"]

        def projected(name, count):
            y = x @ w[f"{at}attn_{name}.weight"].T + w.get(f"{at}attn_{name}.bias", 0)
            y = y.reshape(len(x), count, head)
            norm = w.get(f"{at}attn_{name}_norm.weight")
            return y if norm is None else rms(y, norm, eps)

        q, k, v = projected("q", heads), projected("k", kv), projected("v", kv)
        # Of Gemma 3's layers, five of six see a window, at positions of their own.
        window = m["window"] if "window" in m and int(at.split(".")[1]) % 6 != 5 else len(x)
        seen_all = window == len(x)
        how = (m["base"] if seen_all else m.get("window_base", 10000.0), m["rotated"] // 2, m["arch"] == "llama", w.get("rope_freqs.weight", 1.0),
               m.get("stretch", 1.0) if seen_all else 1.0, m.get("length", 1.0))
        q, k = rotated(q, *how), rotated(k, *how)
        out = np.empty_like(q)
        future = np.triu(np.full((len(x), len(x)), -np.inf), 1)
        future = future + np.tril(np.full((len(x), len(x)), -np.inf), -window) if window < len(x) else future
        for h in range(heads):
            g = h // (heads // kv)
            out[:, h] = softmax(q[:, h] @ k[:, g].T / np.sqrt(head) + future) @ v[:, g]
        y = out.reshape(len(x), heads * head) @ w[at + "attn_output.weight"].T
        return y + w.get(at + "attn_output.bias", 0)

    def run(self, ids):
        """What --dump-layers writes, but logits of all tokens."""
        m, w, seen = self.m, self.w, {}
        x = w["token_embd.weight"][ids] * (np.sqrt(m["d"]) if m["arch"].startswith("gemma") else 1)
        seen["embeddings"] = x
        for i in range(m["layers"]):
            at = f"blk.{i}."
            normed = lambda y, name: rms(y, w[at + name], m["eps"]) if at + name in w else y
            x = x + normed(self.attention(at, rms(x, w[at + "attn_norm.weight"], m["eps"])), "post_attention_norm.weight")
            seen[f"layer.{i}.ffn_input"] = rms(x, w[at + "ffn_norm.weight"], m["eps"])
            seen[f"layer.{i}.ffn_output"] = self.ffn(at, seen[f"layer.{i}.ffn_input"])
            x = x + normed(seen[f"layer.{i}.ffn_output"], "post_ffw_norm.weight")
            seen[f"layer.{i}.hidden"] = x
        head = w.get("output.weight", w["token_embd.weight"])
        seen["logits"] = rms(x, w["output_norm.weight"], m["eps"]) @ head.T + w.get("output.bias", 0)
        return seen

    def perplexity(self, ids, context, begin=None, chunks=None):
        """Of the second half of each chunk, its first token apart."""
        lost = []
        for c in range(len(ids) // context)[:chunks]:
            chunk = np.array(ids[c * context:(c + 1) * context])
            given = chunk.copy()
            if begin is not None:
                given[0] = begin
            p = np.log(softmax(self.run(given)["logits"]))
            lost += [-p[t, chunk[t + 1]] for t in range(context // 2, context - 1)]
        return np.exp(np.mean(lost))


# Pre-tokenizers by their published expressions. Python's re has no classes of Unicode: those of the characters that
# the text has are written out.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?[{L}]+| ?[{N}]+| ?[^\s{L}{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n{L}{N}]?[{L}]+|[{N}]{{1,DIGITS}}| ?[^\s{L}{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
EXPRESSIONS = {"smollm": ["[{N}]", GPT2], "gpt-2": [GPT2],
               "default": [r"[{P}$+<=>\^~|]+", GPT2, "[{N}]+", "[0-9][0-9][0-9]"],
               "llama-bpe": [LLAMA3.replace("DIGITS", "3")], "qwen2": [LLAMA3.replace("DIGITS", "1")]}


def pieces(text, name):
    classes = {c: "A0!"["LNP".index(c)] + "".join(re.escape(x) for x in sorted(set(text)) if unicodedata.category(x)[0] == c)
               for c in "LNP"}
    parts = [text]
    for expression in EXPRESSIONS[name]:
        compiled = re.compile(expression.format(**classes))
        cut = []
        for part in parts:
            at = 0
            for found in compiled.finditer(part):
                cut += [part[at:found.start()], found.group()]
                at = found.end()
            cut.append(part[at:])
        parts = [p for p in cut if p]
    return parts


def byte_letters():
    printable = [b for b in range(256) if 33 <= b <= 126 or (b >= 161 and b != 173)]
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}


class BytePairs:
    """A vocabulary of bytes, merges and control tokens."""

    def __init__(self, merges, controls, pre):
        self.letters, self.merges, self.pre = byte_letters(), merges, pre
        self.tokens = sorted(self.letters.values()) + ["".join(pair) for pair in merges] + controls
        self.controls = controls
        self.ids = {t: i for i, t in enumerate(self.tokens)}
        self.bytes = {c: b for b, c in self.letters.items()}

    def metadata(self):
        kinds = [3 if t in self.controls else 1 for t in self.tokens]
        return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": self.pre, "tokenizer.ggml.tokens": self.tokens,
                "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.merges": [" ".join(pair) for pair in self.merges]}

    def encode(self, text, markers):
        if markers and self.controls:  # the longest first
            parts = re.split("(" + "|".join(map(re.escape, sorted(self.controls, key=len, reverse=True))) + ")", text)
        else:
            parts = [text]
        return [i for n, part in enumerate(parts)
                for i in ([self.ids[part]] if n % 2 else self.plain(part))]

    def plain(self, text):
        ids = []
        for piece in pieces(text, self.pre):
            word = [self.letters[b] for b in piece.encode()]
            while len(word) > 1:
                pairs = list(zip(word, word[1:]))
                best = min(pairs, key=lambda p: self.merges.index(p) if p in self.merges else len(self.merges))
                if best not in self.merges:
                    break
                at, joined = 0, []
                while at < len(word):
                    both = at + 1 < len(word) and (word[at], word[at + 1]) == best
                    joined.append(word[at] + word[at + 1] if both else word[at])
                    at += 2 if both else 1
                word = joined
            ids += [self.ids[t] for t in word]
        return ids

    def decode(self, i):
        return b"" if self.tokens[i] in self.controls else bytes(self.bytes[c] for c in self.tokens[i])


class Sentences:
    """SentencePiece: characters, some joins with scores, bytes for the rest."""

    def __init__(self, joins):
        characters = sorted(set("".join(joins)))
        self.tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + characters + joins
        self.kinds = [2, 3, 3] + [6] * 256 + [1] * (len(characters) + len(joins))
        self.scores = [0.0] * 259 + [-1000.0 - i for i in range(len(characters))] + [-1.0 - i for i in range(len(joins))]
        self.ids = {t: i for i, t in enumerate(self.tokens)}
        self.joins = set(joins)

    def metadata(self):
        return {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": self.tokens, "tokenizer.ggml.scores": self.scores,
                "tokenizer.ggml.token_type": self.kinds, "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}

    def encode(self, text, markers):
        word = list("\u2581" + text.replace(" ", "\u2581"))
        while True:
            pairs = [(-self.scores[self.ids[a + b]], i) for i, (a, b) in enumerate(zip(word, word[1:])) if a + b in self.joins]
            if not pairs:
                break
            at = min(pairs)[1]
            word[at:at + 2] = [word[at] + word[at + 1]]
        return [1] + [i for t in word for i in ([self.ids[t]] if t in self.ids else
                                                [self.ids[f"<0x{b:02X}>"] for b in t.encode()])]

    def decode(self, i):
        if self.kinds[i] in (2, 3):
            return b"" if self.kinds[i] == 3 else self.tokens[i].encode()
        return bytes([i - 3]) if self.kinds[i] == 6 else self.tokens[i].replace("\u2581", " ").encode()
