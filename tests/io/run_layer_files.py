"""Writing and reading safetensors files, sound ones and broken ones, for run_layer_test.py."""

import json
import math
import struct

import numpy as np

# ---------------------------------------------------------------------------------------------------
# safetensors: 8 bytes little-endian header length, JSON header, data

DTYPE_SIZE = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4}


def encode(a, dtype):
    """The bytes of array `a` stored as `dtype`."""
    a = np.asarray(a)
    if dtype == "BF16":
        bits = np.ascontiguousarray(a, dtype="<f4").view("<u4").astype(np.uint64)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to nearest, ties to even
        return bits.astype("<u2").tobytes()
    kind = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4"}[dtype]
    return np.ascontiguousarray(a).astype(kind).tobytes()


def decode(raw, dtype, shape):
    if dtype == "BF16":
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4").reshape(shape)
    kind = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4"}[dtype]
    return np.frombuffer(raw, kind).reshape(shape)


def rounded(a, dtype):
    """What a reader of `a` stored as `dtype` sees, in float64."""
    a = np.asarray(a)
    return decode(encode(a, dtype), dtype, a.shape).astype(np.float64)


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
        begin, end = t["data_offsets"]
        size = DTYPE_SIZE[t["dtype"]] * math.prod(t["shape"])
        if begin != at or end - begin != size or end > len(data):
            raise ValueError("tensor %s: offsets %d..%d, expected %d..%d of %d" % (name, begin, end, at, at + size, len(data)))
        out[name] = (t["dtype"], t["shape"], data[begin:end])
        at = end
    if at != len(data):
        raise ValueError("%d bytes after the last tensor" % (len(data) - at))
    return out
