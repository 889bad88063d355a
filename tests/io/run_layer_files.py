"""Writing and reading safetensors files, sound ones and broken ones, for run_layer_test.py."""

import json
import math
import struct

import numpy as np

# ---------------------------------------------------------------------------------------------------
# safetensors: 8 bytes little-endian header length, JSON header, data

DTYPE_SIZE = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1}
KINDS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1"}


def encode(a, dtype):
    """The bytes of array `a` stored as `dtype`."""
    a = np.asarray(a)
    if dtype == "BF16":
        bits = np.ascontiguousarray(a, dtype="<f4").view("<u4").astype(np.uint64)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to nearest, ties to even
        return bits.astype("<u2").tobytes()
    kind = KINDS[dtype]
    return np.ascontiguousarray(a).astype(kind).tobytes()


def decode(raw, dtype, shape):
    if dtype == "BF16":
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4").reshape(shape)
    kind = KINDS[dtype]
    return np.frombuffer(raw, kind).reshape(shape)


def rounded(a, dtype):
    """What a reader of `a` stored as `dtype` sees, in float64."""
    a = np.asarray(a)
    return decode(encode(a, dtype), dtype, a.shape).astype(np.float64)


# ---------------------------------------------------------------------------------------------------
# Blocks of 32 numbers as in ggml: a scale d in f16, then the levels

BLOCK_BYTES = {"q8_0": 34, "q4_0": 18}
F32 = np.float32


def quantised(a, form):
    """The rows of `a` in blocks, uint8 (..., bytes per row), by the rules of ggml's reference quantisers."""
    a = np.asarray(a, F32)
    x = a.reshape(-1, 32)
    if form == "q8_0":
        d = (np.abs(x).max(axis=1, keepdims=True) / F32(127)).astype(F32)
    else:
        first = np.abs(x).argmax(axis=1)
        d = (x[np.arange(len(x)), first][:, None] / F32(-8)).astype(F32)
    inverse = np.divide(F32(1), d, out=np.zeros_like(d), where=d != 0)
    scaled = (x * inverse).astype(F32)
    if form == "q8_0":
        levels = np.copysign(np.floor(np.abs(scaled.astype(np.float64)) + 0.5), scaled).astype(np.int8).view(np.uint8)
    else:
        q = np.minimum(15, np.trunc((scaled + F32(8.5)).astype(F32))).astype(np.uint8)
        levels = q[:, :16] | q[:, 16:] << 4
    raw = np.concatenate([d.astype("<f2").view(np.uint8), levels], 1)
    return raw.reshape(a.shape[:-1] + (a.shape[-1] // 32 * BLOCK_BYTES[form],))


def dequantised(raw, form):
    """The numbers of rows of blocks, float32 (..., numbers per row)."""
    blocks = np.ascontiguousarray(raw, np.uint8).reshape(-1, BLOCK_BYTES[form])
    d, levels = blocks[:, :2].copy().view("<f2").astype(F32), blocks[:, 2:]
    if form == "q8_0":
        q = levels.copy().view(np.int8).astype(F32)
    else:
        q = np.concatenate([levels & 15, levels >> 4], 1).astype(F32) - F32(8)
    return (d * q).reshape(raw.shape[:-1] + (raw.shape[-1] // BLOCK_BYTES[form] * 32,))


# ---------------------------------------------------------------------------------------------------
# Files


def header_of(tensors, metadata=None):
    """(header dict, data) of `tensors`, a dict of name -> (array, dtype), in that order."""
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, (a, dtype) in tensors.items():
        raw = encode(a, dtype)
        header[name] = {"dtype": dtype, "shape": list(np.shape(a)), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return header, data


def raw_file(header, data, length=None, pad=True):
    """A file's bytes; `header` is a dict or literal text, `length` overrides the header length."""
    text = (header if isinstance(header, str) else json.dumps(header, separators=(",", ":"))).encode()
    if pad:
        text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def file_of(tensors, metadata=None):
    return raw_file(*header_of(tensors, metadata))


def parse(raw):
    """name -> (dtype, shape, bytes); raises ValueError on anything that is not sound safetensors."""
    if len(raw) < 8:
        raise ValueError("only %d bytes" % len(raw))
    (n,) = struct.unpack("<Q", raw[:8])
    if n > len(raw) - 8:
        raise ValueError("header length %d in a file of %d bytes" % (n, len(raw)))
    header, data = json.loads(raw[8 : 8 + n].decode()), raw[8 + n :]
    header.pop("__metadata__", None)
    out, at = {}, 0
    for name, t in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        if t["dtype"] not in DTYPE_SIZE:
            raise ValueError("tensor %s has dtype %s" % (name, t["dtype"]))
        begin, end = t["data_offsets"]
        size = DTYPE_SIZE[t["dtype"]] * math.prod(t["shape"])
        if begin != at or end - begin != size or end > len(data):
            raise ValueError("tensor %s: offsets %d..%d, expected %d..%d of %d" % (name, begin, end, at, at + size, len(data)))
        out[name] = (t["dtype"], t["shape"], data[begin:end])
        at = end
    if at != len(data):
        raise ValueError("%d bytes after the last tensor" % (len(data) - at))
    return out
