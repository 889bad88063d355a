"""Arguments as the library reads them: numbers, texts, arrays. What does not fit is an Error, never read as something else."""
import ctypes as c
import math
import operator
import os

import numpy as np

from ._library import BlockOption, DTYPES, ROWS, Error, Tensor

# Numbers of a block and its bytes.
BLOCKS = {"f32": (1, 4), "f16": (1, 2), "bf16": (1, 2), "i32": (1, 4), "i64": (1, 8), "u8": (1, 1), "f64": (1, 8),
          "q8_0": (32, 34), "q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24), "q2_k": (256, 84),
          "q3_k": (256, 110), "q4_k": (256, 144), "q5_k": (256, 176), "q6_k": (256, 210), "iq4_nl": (32, 18),
          "iq4_xs": (256, 136), "mxfp4": (32, 17), "nvfp4": (64, 36), "u4": (2, 1),
          "f8_e4m3": (1, 1), "f8_e5m2": (1, 1), "f8_e8m0": (1, 1)}
# The arrays that hold such numbers; blocks are bytes, and bf16, which numpy has not, is uint16.
ARRAYS = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16, "i32": np.int32, "i64": np.int64, "f64": np.float64}


def refuse(holds, where, message, code):
    if not holds:
        raise Error(f"{where}: {message}", code, where)


def text(name, value):
    """A string for C, which would end it at a zero."""
    encoded = os.fsencode(value)
    refuse(b"\0" not in encoded, name, f"{value!r} has a zero byte in it", "argument")
    return encoded


def whole(name, value, least, beyond):
    """A whole number in [least, beyond): C would take another one modulo 2^64."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    refuse(number is not None and not isinstance(value, (bool, np.bool_)) and least <= number < beyond, name,
           f"is {value!r}; it must be a whole number from {least} to {beyond - 1}", "option")
    return number


def number_of(name, value, numbers):
    refuse(value in numbers, name, f"is {value!r}; there are {', '.join(numbers)}", "option")
    return numbers[value]


def array(name, a) -> np.ndarray:
    """Anything that numpy reads; a mask would be lost."""
    refuse(not isinstance(a, np.ma.MaskedArray), name, "is a masked array", "dtype")
    try:
        if hasattr(a, "__dlpack__") and not hasattr(a, "__array__"):
            return np.from_dlpack(a)
        return np.asarray(a)
    except (ValueError, TypeError, OverflowError, RuntimeError, BufferError) as wrong:  # lists of rows that differ in length, say
        raise Error(f"{name}: {wrong}", "dtype", name) from None


def floats(name, a) -> np.ndarray:
    """Rows as the library reads them: where they lie if they are dense, aligned float32; else a copy."""
    given = a if type(a) is np.ndarray else array(name, a)
    if given.dtype == np.float32 and given.flags.c_contiguous and given.flags.aligned:
        return given
    refuse(given.dtype.kind == "f", name, f"has dtype {given.dtype}; it must be float32, or floats to be rounded to it", "dtype")
    with np.errstate(over="ignore"):
        rows = np.require(given, np.float32, ["C", "A"])
    refuse(given.dtype.itemsize <= 4 or (np.isfinite(rows) | ~np.isfinite(given)).all(), name,
           "has a number that float32 cannot hold", "value")
    return rows


def ids_of(a, tokens=None, name="token_ids") -> np.ndarray:
    """Ids as int32, `tokens` of them; None: any number."""
    if type(a) is np.ndarray and a.dtype == np.int32 and a.ndim == 1 and tokens in (None, len(a)):
        flags = a.flags
        if flags.c_contiguous and flags.aligned:  # the usual case, without the texts of what could be wrong
            return a
    given = a if type(a) is np.ndarray else array(name, a)
    if given.size == 0 and not isinstance(a, np.ndarray):
        given = given.astype(np.int32)  # numpy takes an empty list for floats
    refuse(given.dtype.kind in "iu", name, f"have dtype {given.dtype}; they must be whole numbers", "dtype")
    if tokens is None:
        refuse(given.ndim == 1, name, f"have shape {given.shape}; they must have one axis", "size")
    else:
        refuse(given.shape == (tokens,), name, f"have shape {given.shape}; x has {tokens} tokens", "size")
    if given.dtype == np.int32 and given.flags.c_contiguous and given.flags.aligned:
        return given
    narrow = np.ascontiguousarray(given, np.int32)
    beyond = narrow != given
    if beyond.any():
        i = beyond.argmax()
        raise Error(f"{name}: {name}[{i}] = {given[i]}, which no table has", "token_id", name)
    return narrow


def bytes_of(name, kind, data, shape):
    """The numbers of a tensor of `kind` as a dense array, and whether that is a copy as they lay otherwise."""
    block, size = BLOCKS[kind]
    refuse(not shape or shape[-1] % block == 0, name, f"has shape {shape}; in {kind} the last axis is whole blocks of {block}", "shape")
    if not isinstance(data, np.ndarray):
        try:
            data = memoryview(data)
        except TypeError:
            raise Error(f"{name}: is given as {type(data).__name__}; it must be an array or bytes", "dtype", name) from None
    a, wanted = array(name, data), ARRAYS.get(kind)
    refuse(a.dtype == np.uint8 or (wanted is not None and a.dtype == wanted and a.dtype.isnative), name,
           f"is called {kind} and has dtype {a.dtype}; it must be {'' if wanted is None else np.dtype(wanted).name + ', or '}bytes (uint8)", "dtype")
    bytes_wanted = math.prod(shape) // block * size
    refuse(a.nbytes == bytes_wanted, name, f"has {a.nbytes} bytes; shape {shape} in {kind} is {bytes_wanted}", "shape")
    # Bytes of several axes have the tensor's but for the last; numbers have all; one axis is memory as it is.
    as_shape = a.shape[:len(shape) - 1] == shape[:-1] if a.dtype == np.uint8 and kind != "u8" else a.shape == shape
    refuse(a.ndim <= 1 or as_shape, name, f"has shape {a.shape} as an array, and is called one of {shape}", "shape")
    return np.ascontiguousarray(a), not a.flags.c_contiguous


def tensor(name, given):
    """Format, dense memory, shape, and whether it was copied, of a tensor that somebody gives; ("rows", Rows, shape) of rows in a file."""
    if hasattr(given, "_rows_at"):
        return "rows", given, (), False
    if not isinstance(given, tuple):
        a = array(name, given)
        kind = {"float32": "f32", "float16": "f16", "int32": "i32", "int64": "i64"}.get(str(a.dtype))
        refuse(kind is not None and a.ndim <= 4, name, f"dtype {a.dtype}, shape {a.shape}: not a tensor of a layer", "dtype")
        return kind, np.ascontiguousarray(a), a.shape, not a.flags.c_contiguous
    refuse(len(given) == 3, name, f"is a tuple of {len(given)}; it must be (format, numbers, shape)", "dtype")
    kind, data, shape = given
    in_file = kind == "rows" and hasattr(data, "_rows_at")
    refuse(in_file or kind in BLOCKS, name, f"is called {kind!r}; there are {', '.join(BLOCKS)}", "dtype")
    try:
        shape = tuple(whole(name, size, 0, 2 ** 63) for size in shape)
    except (Error, TypeError):
        raise Error(f"{name}: has shape {shape!r}; it must be whole numbers", "shape", name) from None
    refuse(len(shape) <= 4, name, f"has shape {shape}; a tensor has at most 4 axes", "shape")
    if in_file:
        return kind, data, shape, False
    dense, copied = bytes_of(name, kind, data, shape)
    return kind, dense, shape, copied


def tensors_of(given):
    """Arrays by name as the library takes them: the list for C, what keeps the memory, and the names that were copied."""
    made = {name: tensor(name, a) for name, a in given.items()}
    return listed(made), made, tuple(name for name, (*_, copied) in made.items() if copied)


def rows_in(made):
    """The Rows among the tensors of tensors_of(): whoever reads them asks first whether they are open."""
    return tuple(a for kind, a, *_ in made.values() if kind == "rows")


def listed(made):
    """The list for C of {name: (format, dense array, shape, ...)}."""
    array_of = (Tensor * len(made))()
    for to, (name, (kind, a, shape, *_)) in zip(array_of, made.items()):
        at, number = (a._rows_at(), ROWS) if kind == "rows" else (a.ctypes.data, DTYPES[kind])
        to.name, to.data, to.type, to.rank = text(name, name), at, number, len(shape)
        to.shape[:len(shape)] = shape
    return array_of


def block_of(block):
    """The options of a block for C: of a composition's text, or of a kind and its options, {"block": "stem"}."""
    if isinstance(block, str):
        block = {"composition": block}
    refuse(isinstance(block, dict), "block", f"is {block!r}; it must be a composition's text, or a dict of options", "option")
    return (BlockOption * len(block))(*((text(k, k), text(k, str(v))) for k, v in block.items()))


def address(a):
    return None if a is None else a.__array_interface__["data"][0]  # less than half the time of a.ctypes.data


def struct_of(kind, **values):
    """A struct of C that begins with its size."""
    made = kind(**values)
    made.struct_size = c.sizeof(kind)
    return made
