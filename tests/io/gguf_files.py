"""Writing GGUF files and reading them, in numpy alone, from the specification; for run_model_test.py."""

import struct

import numpy as np

F32 = np.float32
TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ2_XXS": 16, "IQ4_NL": 20, "IQ4_XS": 23, "BF16": 30, "MXFP4": 39, "NVFP4": 40, "NEW": 99}
BLOCKS = {"F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q4_0": (32, 18), "Q4_1": (32, 20), "Q8_0": (32, 34),
          "Q4_K": (256, 144), "Q6_K": (256, 210), "IQ2_XXS": (256, 66), "NVFP4": (64, 36)}
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def text(s):
    raw = s.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(v):
    if isinstance(v, bool):
        return struct.pack("<I?", 7, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, list) and v and isinstance(v[0], str):
        return struct.pack("<IIQ", 9, 8, len(v)) + b"".join(text(s) for s in v)
    if isinstance(v, list) and v and isinstance(v[0], bool):
        return struct.pack(f"<IIQ{len(v)}?", 9, 7, len(v), *v)
    if isinstance(v, list) and v and isinstance(v[0], int) and max(v) >= 2**31:
        return struct.pack(f"<IIQ{len(v)}Q", 9, 10, len(v), *v)
    if isinstance(v, list) and v and isinstance(v[0], int):
        return struct.pack(f"<IIQ{len(v)}i", 9, 5, len(v), *v)
    if isinstance(v, list):
        return struct.pack("<IIQ", 9, 6, len(v)) + struct.pack(f"<{len(v)}f", *v)
    return struct.pack("<I", 8) + text(v)


def file_of(metadata, tensors, alignment=32):
    """`tensors`: name to (bytes, type, shape with the outermost axis first)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(text(k) + value(v) for k, v in metadata.items())
    data = b""
    for name, (raw, kind, shape) in tensors.items():
        data += b"\0" * (-len(data) % alignment)
        head += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += struct.pack("<IQ", TYPES[kind], len(data))
        data += raw
    return head + b"\0" * (-len(head) % alignment) + data


def noise(rng, kind, shape):
    """Bytes of random blocks with sound scales."""
    block, size = BLOCKS[kind]
    if kind == "F32":
        return rng.normal(size=shape).astype(F32).tobytes()
    raw = rng.integers(0, 256, (int(np.prod(shape)) // block, size), dtype=np.uint8)
    scales = np.abs(rng.normal(size=(len(raw), 2)) * 0.01 + 0.02).astype(np.float16).view(np.uint8)
    if kind == "Q6_K":
        raw[:, 208:210] = scales[:, :2] // 1
        raw[:, 192:208] = rng.integers(1, 5, (len(raw), 16), dtype=np.uint8)
    elif kind in ("Q4_K", "Q4_1"):
        raw[:, 0:4] = scales
        if kind == "Q4_K":
            raw[:, 4:16] &= 0x07
    elif kind == "NVFP4":
        raw[:, 0:4] = rng.integers(8, 24, (len(raw), 4), dtype=np.uint8)
    else:
        raw[:, 0:2] = scales[:, :2]
    return raw.tobytes()


def halves(raw, at):
    return np.ascontiguousarray(raw[:, at:at + 2]).view("<f2").astype(np.float64)


def f8(codes, bits=3, bias=7):
    """What F8_E4M3 stands for, in double; NaN not."""
    e, m = (codes & 0x7F) >> bits, codes & ((1 << bits) - 1)
    x = np.ldexp(np.where(e == 0, m, m + (1 << bits)).astype(np.float64), np.maximum(e, 1).astype(int) - bias - bits)
    return np.where(codes & 0x80, -x, x)


def numbers(raw, kind, shape):
    """What the bytes stand for, in double."""
    block, size = BLOCKS[kind]
    if kind == "F32":
        return np.frombuffer(raw, "<f4").astype(np.float64).reshape(shape)
    b = np.frombuffer(raw, np.uint8).reshape(-1, size)
    if kind in ("Q8_0", "Q4_0", "Q4_1"):
        if kind == "Q8_0":
            x = halves(b, 0) * b[:, 2:].view(np.int8)
        else:
            pairs = b[:, 2 if kind == "Q4_0" else 4:]
            q = np.concatenate([pairs & 15, pairs >> 4], axis=1).astype(np.float64)
            x = halves(b, 0) * (q - 8) if kind == "Q4_0" else halves(b, 0) * q + halves(b, 2)
    elif kind == "Q4_K":
        packed = b[:, 4:16].astype(int)
        s = np.concatenate([packed[:, 0:4] & 63, (packed[:, 8:12] & 15) | (packed[:, 0:4] >> 6 << 4)], axis=1)
        m = np.concatenate([packed[:, 4:8] & 63, (packed[:, 8:12] >> 4) | (packed[:, 4:8] >> 6 << 4)], axis=1)
        pairs = b[:, 16:].reshape(-1, 4, 32)
        q = np.stack([pairs & 15, pairs >> 4], axis=2).reshape(-1, 8, 32)
        x = (halves(b, 0) * s)[:, :, None] * q - (halves(b, 2) * m)[:, :, None]
    elif kind == "NVFP4":
        pairs = b[:, 4:].reshape(-1, 4, 8)
        q = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])[np.concatenate([pairs & 7, pairs >> 4 & 7], axis=2)]
        sign = np.where(np.concatenate([pairs & 8, pairs >> 4 & 8], axis=2) != 0, -1, 1)
        x = f8(b[:, :4] & 0x7F)[:, :, None] * q * sign
    elif kind == "Q6_K":
        low, high = b[:, :128].reshape(-1, 2, 64).astype(int), b[:, 128:192].reshape(-1, 2, 32).astype(int)
        four = np.concatenate([low & 15, low >> 4], axis=2)
        two = np.concatenate([high >> shift & 3 for shift in (0, 2, 4, 6)], axis=2)
        q = (four | two << 4).reshape(-1, 16, 16) - 32
        x = halves(b, 208)[:, :, None] * b[:, 192:208].view(np.int8).astype(np.float64)[:, :, None] * q
    return x.reshape(shape)


def read(raw):
    """Metadata, and tensors as name to (bytes, type, shape)."""
    at = 0

    def take(form):
        nonlocal at
        got = struct.unpack_from("<" + form, raw, at)
        at += struct.calcsize("<" + form)
        return got[0]

    def take_text():
        nonlocal at
        n = take("Q")
        at += n
        return raw[at - n:at].decode()

    def take_value(kind):
        if kind == 8:
            return take_text()
        if kind == 9:
            inner, n = take("I"), take("Q")
            return [take_value(inner) for _ in range(n)]
        return take(NUMBERS[kind])

    assert raw[:4] == b"GGUF"
    at = 4
    take("I")
    tensor_count, pair_count = take("Q"), take("Q")
    metadata = {}
    for _ in range(pair_count):
        key = take_text()
        metadata[key] = take_value(take("I"))
    infos = []
    for _ in range(tensor_count):
        name = take_text()
        shape = tuple(reversed([take("Q") for _ in range(take("I"))]))
        infos.append((name, shape, take("I"), take("Q")))
    alignment = metadata.get("general.alignment", 32)
    begin = at + -at % alignment
    kinds = {v: k for k, v in TYPES.items()}
    tensors = {}
    for name, shape, kind, offset in infos:
        block, size = BLOCKS[kinds[kind]]
        n = int(np.prod(shape)) // block * size
        tensors[name] = (raw[begin + offset:begin + offset + n], kinds[kind], shape)
    return metadata, tensors
