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

    # Of Gemma 3's layers, five of six see a window, at positions of their own; of the later ones', four of five.
    def windowed(self, i):
        of = 6 if self.m["arch"] == "gemma3" else 5
        return "window" in self.m and self.m.get("pattern", [j % of < of - 1 for j in range(self.m["layers"])])[i]

    def head_of(self, i):
        return self.m["head"] if self.windowed(i) else self.m.get("full_head", self.m["head"])

    def kv_heads_of(self, i):
        return self.m["kv_heads"] if self.windowed(i) else self.m.get("full_kv_heads", self.m["kv_heads"])

    def keys_of(self, i):
        own = self.m["layers"] - self.m.get("shared", 0)
        return i if i < own else max(j for j in range(own) if self.windowed(j) == self.windowed(i))

    def ffn(self, at, x):
        w, phi = self.w, gelu_tanh if self.m["arch"].startswith("gemma") else silu
        if at + "ffn_gate_inp.weight" not in w:
            gate, up, down = (w[f"{at}ffn_{p}.weight"] for p in ("gate", "up", "down"))
            z, least = x @ gate.T, self.m["sparsity"][int(at.split(".")[1])] if "sparsity" in self.m else -np.inf
            if least > -np.inf:
                z = np.maximum(z - z.mean(axis=-1, keepdims=True) - least * z.std(axis=-1, keepdims=True), 0)
            return phi(z) * (x @ up.T) @ down.T
        scores = softmax(x @ w[at + "ffn_gate_inp.weight"].T)
        gate, up, down = (w[f"{at}ffn_{p}_exps.weight"] for p in ("gate", "up", "down"))
        y = np.zeros_like(x)
        for t in range(len(x)):
            best = np.argsort(-scores[t], kind="stable")[:self.m["top_k"]]
            for e in best:
                y[t] += scores[t, e] / scores[t, best].sum() * (down[e] @ (phi(gate[e] @ x[t]) * (up[e] @ x[t])))
        return y

    def attention(self, at, x):
        m, w, i = self.m, self.w, int(at.split(".")[1])
        heads, kv, head, eps = m["heads"], self.kv_heads_of(i), self.head_of(i), m["eps"]

        def projected(name, count):
            y = x @ w[f"{at}attn_{name}.weight"].T + w.get(f"{at}attn_{name}.bias", 0)
            y = y.reshape(len(x), count, head)
            norm = w.get(f"{at}attn_{name}_norm.weight")
            return y if norm is None else rms(y, norm, eps)

        seen_all = not self.windowed(i)
        window = len(x) if seen_all else m["window"]
        pairs = m["rotated"] // 2 if seen_all else m.get("window_rotated", m["rotated"]) // 2
        how = (m["base"] if seen_all else m.get("window_base", 10000.0), pairs, m["arch"] == "llama",
               w.get("rope_freqs.weight", 1.0) if seen_all else 1.0, m.get("stretch", 1.0) if seen_all else 1.0, m.get("length", 1.0))
        later = m["arch"] in ("gemma3n", "gemma4")
        q = rotated(projected("q", heads), *how)
        if self.keys_of(i) == i:
            k = projected("k", kv)
            v = projected("v", kv) if f"{at}attn_v.weight" in w else (x @ w[at + "attn_k.weight"].T).reshape(k.shape)
            self.kept[i] = rotated(k, *how), rms(v, 1, eps) if later else v
        k, v = self.kept[self.keys_of(i)]
        out = np.empty_like(q)
        future = np.triu(np.full((len(x), len(x)), -np.inf), 1)
        future = future + np.tril(np.full((len(x), len(x)), -np.inf), -window) if window < len(x) else future
        for h in range(heads):
            g = h // (heads // kv)
            out[:, h] = softmax(q[:, h] @ k[:, g].T / (1 if later else np.sqrt(head)) + future) @ v[:, g]
        y = out.reshape(len(x), heads * head) @ w[at + "attn_output.weight"].T
        return y + w.get(at + "attn_output.bias", 0)

    def run(self, ids):
        """What --dump-layers writes, but logits of all tokens."""
        m, w, seen = self.m, self.w, {}
        self.kept = {}
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
        return self.finished(seen, x)

    def finished(self, seen, x):
        m, w = self.m, self.w
        head = w.get("output.weight", w["token_embd.weight"])
        z = rms(x, w["output_norm.weight"], m["eps"]) @ head.T + w.get("output.bias", 0)
        seen["logits"] = m["cap"] * np.tanh(z / m["cap"]) if "cap" in m else z
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


class LaterGemma(Model):
    """Gemma 3n, with the streams of AltUp and the low-rank path of Laurel, and Gemma 4; both with per-layer embeddings."""

    def row(self, i, ids, x, embedded):
        """What layer i adds to x by the rows of its tokens; `embedded`: the first layer's input."""
        w, m, at, n = self.w, self.m, f"blk.{i}.", self.m["row"]
        part = slice(i * n, (i + 1) * n)
        context = rms(embedded @ w["per_layer_model_proj.weight"][part].T / np.sqrt(m["d"]), w["per_layer_proj_norm.weight"], m["eps"])
        p = (context + np.sqrt(n) * w["per_layer_token_embd.weight"][ids, part]) / np.sqrt(2)
        y = (gelu_tanh(x @ w[at + "inp_gate.weight"].T) * p) @ w[at + "proj.weight"].T
        return rms(y, w[at + "post_norm.weight"], m["eps"])

    def run(self, ids):
        m, w, eps, ids = self.m, self.w, self.m["eps"], np.array(ids)
        several, active = m["arch"] == "gemma3n", m.get("active", 0)
        self.kept = {}
        embedded = x = w["token_embd.weight"][ids] * np.sqrt(m["d"])
        seen = {"embeddings": x}

        def as_long(y, like):
            return y * np.linalg.norm(like, axis=-1, keepdims=True) / np.linalg.norm(y, axis=-1, keepdims=True)

        if several:
            streams = np.stack([x] + [as_long(x @ p.T, x) for p in w["altup_proj.weight"]])
        for i in range(m["layers"]):
            at = f"blk.{i}."
            norm = lambda y, name: rms(y, w[f"{at}{name}.weight"], eps)
            modes = lambda y: np.tanh(norm(y, "altup_router_norm") / m["d"] @ w[at + "altup_router.weight"].T)
            if several:
                n = len(streams)
                mix = (modes(streams[active]) @ w[at + "altup_predict_coef.weight"].T).reshape(len(ids), n, n)
                guessed = streams + np.einsum("tji,itd->jtd", mix, streams)
                x = guessed[active]
            normed = norm(x, "attn_norm")
            x = x + norm(self.attention(at, normed), "post_attention_norm")
            if several:
                low = normed @ w[at + "laurel_l.weight"].T @ w[at + "laurel_r.weight"].T
                x = (x + normed + norm(low, "laurel_post_norm")) / np.sqrt(2)
            seen[f"layer.{i}.ffn_input"] = norm(x, "ffn_norm")
            seen[f"layer.{i}.ffn_output"] = self.ffn(at, seen[f"layer.{i}.ffn_input"])
            x = x + norm(seen[f"layer.{i}.ffn_output"], "post_ffw_norm")
            if several:
                shares = modes(x) @ w[at + "altup_correct_coef.weight"].T + 1
                streams = guessed + shares.T[:, :, None] * (x - guessed[active])
                x = streams[active] * w[at + "altup_correct_scale.weight"]
            if m["row"]:
                y = seen[f"layer.{i}.per_layer_output"] = self.row(i, ids, x, embedded)
                if several:
                    streams[1:] += y
                else:
                    x = x + y
            x = streams[active] if several else x * w.get(at + "layer_output_scale.weight", 1)
            seen[f"layer.{i}.hidden"] = x
        if several:
            x = (streams[0] + sum(as_long(s @ p.T, streams[0]) for s, p in zip(streams[1:], w["altup_unembd_proj.weight"]))) / len(streams)
        return self.finished(seen, x)


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

    def by_bytes(self, word):
        return [i for t in word for i in ([self.ids[t]] if t in self.ids else [self.ids[f"<0x{b:02X}>"] for b in t.encode()])]

    def encode(self, text, markers):
        word = list("\u2581" + text.replace(" ", "\u2581"))
        while True:
            pairs = [(-self.scores[self.ids[a + b]], i) for i, (a, b) in enumerate(zip(word, word[1:])) if a + b in self.joins]
            if not pairs:
                break
            at = min(pairs)[1]
            word[at:at + 2] = [word[at] + word[at + 1]]
        return [1] + self.by_bytes(word)

    def decode(self, i):
        if self.kinds[i] in (2, 3):
            return b"" if self.kinds[i] == 3 else self.tokens[i].encode()
        return bytes([i - 3]) if self.kinds[i] == 6 else self.tokens[i].replace("\u2581", " ").encode()


class MergedSentences(Sentences):
    """Gemma 4's: the same characters, joined by merges line by line; ends of lines may be tokens of several."""

    def __init__(self, merges):
        super().__init__(["".join(pair) for pair in merges] + ["\n\n"])
        self.merges = merges

    def metadata(self):
        return {**super().metadata(), "tokenizer.ggml.model": "gemma4", "tokenizer.ggml.merges": [" ".join(pair) for pair in self.merges]}

    def encode(self, text, markers):
        ids = [1]
        for line in re.findall("[^\n]+|\n+", text.replace(" ", "\u2581")):
            word = [line] if line in self.ids and line[0] == "\n" else list(line)
            while True:
                ranks = [(self.merges.index(pair), i) for i, pair in enumerate(zip(word, word[1:])) if pair in self.merges]
                if not ranks:
                    break
                at = min(ranks)[1]
                word[at:at + 2] = [word[at] + word[at + 1]]
            ids += self.by_bytes(word)
        return ids
