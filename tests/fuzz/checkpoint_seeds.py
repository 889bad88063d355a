#!/usr/bin/env python3
"""Writes what checkpoint_fuzz begins with, small models of each kind: a configuration, an index of shards or nothing, each before a zero
byte, and safetensors files: the model or its first shard, the second shard, constants.

    checkpoint_seeds.py FOLDER
"""

import json
import struct
import sys
from pathlib import Path

MARK = b"=next file="
SIZE = {"F32": 4, "I64": 8, "F8_E4M3": 1, "F8_E8M0": 1}


def seed(config, tensors, second=None, constants=None):
    """With `second`, tensors of a second shard, there is an index."""
    files = {"model.safetensors": tensors, "second.safetensors": second or {}}
    index = {"weight_map": {name: file for file, of_file in files.items() for name in of_file}}
    parts = [file_of(tensors), *([file_of(second)] if second else [b""] if constants else []), *([file_of(constants)] if constants else [])]
    return json.dumps(config).encode() + b"\0" + (json.dumps(index).encode() if second else b"") + b"\0" + MARK.join(parts)


def file_of(tensors):
    header, data = {}, b""
    for name, (kind, shape, *values) in tensors.items():
        count = 1
        for n in shape:
            count *= n
        raw = struct.pack(f"<{count}q", *values[0]) if values else bytes(SIZE[kind] * count)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def main(folder):
    ple, engram, f = "model.layers.0.ple.", "layers.0.engram.", "F32"
    qwen = {ple + "ple_embedding.layer_multipliers": ("I64", [2], [5, 7]), ple + "ple_embedding.ngram_heads_vocab_sizes": ("I64", [1], [3]),
            ple + "ple_embedding.ngram_heads_offsets": ("I64", [1], [0]), ple + "ple_embedding.ngram_embedding.shard_0.weight": ("F8_E4M3", [2, 4]),
            ple + "ple_embedding.ngram_embedding.shard_1.weight": ("F8_E4M3", [2, 4]), ple + "ple_embedding.ngram_embedding.weight_scale": (f, []),
            ple + "key_proj.weight": (f, [4, 4]), ple + "value_proj.weight": (f, [2, 4]), ple + "norm_key.weight": (f, [4]),
            ple + "norm_query.weight": (f, [4]), ple + "norm_conv.weight": (f, [4]), ple + "conv1d.weight": (f, [4, 1, 2])}
    deepseek = {engram + "embed.weight": ("F8_E4M3", [8, 32]), engram + "embed.scale": ("F8_E8M0", [8, 1]), engram + "wkv.weight": ("F8_E4M3", [64, 32]),
                engram + "wkv.scale": ("F8_E8M0", [2, 1]), engram + "q_weight": (f, [1, 32]), engram + "k_weight": (f, [1, 32])}
    adapter = {"0.multi_head_embedding.embedding.weight": (f, [5, 4]), "0.multi_head_embedding.offsets": ("I64", [1], [0]),
               "0.gating.w_v.weight": (f, [2, 4]), "0.gating.w_k.0.weight": (f, [2, 4]), "0.gating.norm_h.0.weight": (f, [2]),
               "0.gating.norm_k.0.weight": (f, [2]), "0.short_conv.norms.0.weight": (f, [2]), "0.short_conv.conv.weight": (f, [2, 1, 2])}
    gemma = {"model.embed_tokens.weight": (f, [3, 4]), "model.embed_tokens_per_layer.weight": (f, [3, 4]), "model.per_layer_model_projection.weight": (f, [4, 4]),
             "model.per_layer_projection_norm.weight": (f, [2]), "model.layers.1.per_layer_input_gate.weight": (f, [2, 4]),
             "model.layers.1.per_layer_projection.weight": (f, [4, 2]), "model.layers.1.post_per_layer_input_norm.weight": (f, [4])}
    longcat = {"model.embed_tokens.weight": (f, [3, 4]), "model.ngram_embeddings.embedders.0.weight": (f, [4, 2]), "model.ngram_embeddings.post_projs.0.weight": (f, [4, 2])}
    rwkv = {"emb.weight": (f, [3, 2]), "blocks.0.ln0.weight": (f, [2]), "blocks.0.ln0.bias": (f, [2]), "blocks.0.ffn.key.weight": (f, [4, 2]),
            "blocks.0.ffn.value.weight": (f, [2, 4]), "blocks.0.ffn.s_emb.weight": (f, [3, 4]), "blocks.0.ffn.s_emb_x.weight": (f, [4, 2]),
            "blocks.0.ffn.s0": (f, [1, 1, 4]), "blocks.0.ffn.s1": (f, [2, 2]), "blocks.0.ffn.s2": (f, [2, 4])}
    qwen_config = {"model_type": "qwen4_exp_text", "vocab_size": 9, "hc_count": 2, "ngram_size": 2, "heads_per_ngram": 1, "ple_layer_ids": [1], "eos_token_id": 1}
    in_second = {name: tensor for name, tensor in qwen.items() if "shard_1" in name or "scale" in name or "conv" in name}
    in_first = {name: tensor for name, tensor in qwen.items() if name not in in_second}
    for name, config, tensors, *more in (
            ("qwen", qwen_config, qwen), ("qwen_shards", qwen_config, in_first, in_second),
            ("deepseek", {"model_type": "deepseek_v41", "vocab_size": 9, "hc_mult": 1, "engram_max_ngram_size": 2, "engram_n_heads": 1, "engram_vocab_size": 7,
                          "engram_layer_ids": [0], "engram_pad_token_id": 0, "engram_compressed_vocab_size": 9}, deepseek, None,
             {"token_map": ("I64", [9], range(9))}),
            ("constants", {"model_type": "deepseek_v41", "vocab_size": 9, "hc_mult": 1, "engram_max_ngram_size": 2, "engram_n_heads": 1, "engram_layer_ids": [0]}, deepseek, None,
             {"token_map": ("I64", [9], range(9)), "multipliers": ("I64", [2], [5, 7]), "primes": ("I64", [1], [7]), "offsets": ("I64", [1], [1]),
              "pad_id": ("I64", [1], [2])}),
            ("adapter", {"target_layers": [0], "ngram_sizes": [2], "hc_mult": 1, "n_head_per_ngram": 1, "compressed_vocab_size": 9, "pad_id": 1,
                         "enable_tokenizer_compression": False}, adapter),
            ("gemma", {"text_config": {"model_type": "gemma3n_text", "num_hidden_layers": 2, "hidden_size_per_layer_input": 2}}, gemma),
            ("longcat", {"model_type": "longcat_flash_ngram", "vocab_size": 3, "ngram_vocab_size_ratio": 1, "emb_neighbor_num": 2, "emb_split_num": 1, "eos_token_id": 1}, longcat),
            ("rwkv", {}, rwkv)):
        (Path(folder) / name).write_bytes(seed(config, tensors, *more))


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    main(sys.argv[1])
