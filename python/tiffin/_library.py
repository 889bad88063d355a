"""libtiffin by ctypes: which of them is loaded, its structs and functions, and its errors."""
import ctypes as c
import ctypes.util
import os
from pathlib import Path

import numpy as np

from . import _levels

BACKENDS = {"simd": 0, "eigen": 1, "reference": 2}
DTYPES = {name: i for i, name in enumerate(
    "as_stored f32 f16 bf16 i32 i64 u8 q8_0 q4_0 q4_1 q5_0 q5_1 q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs mxfp4 f64 "
    "f8_e4m3 f8_e5m2 f8_e8m0 nvfp4 u4".split())}
ROWS = -1  # the type of a tensor whose rows are read from a file
CODES = ("shape missing_tensor unused_tensor duplicate_tensor dtype value size token_id overlap workspace option file "
         "empty device executor").split()
OTHER_CODES = {100: "argument", 101: "memory"}
VERSION = 0 << 16 | 1 << 8  # major and minor of the headers that the structs below are those of

PROGRESS = c.CFUNCTYPE(None, c.c_void_p, c.c_size_t, c.c_size_t)
CHOICE = np.dtype([("expert", np.int32), ("weight", np.float32)])


def _struct(name, *fields):
    return type(name, (c.Structure,), {"_fields_": fields})


_pointer, _size, _text, _int = c.c_void_p, c.c_size_t, c.c_char_p, c.c_int32

# tiffin/tiffin.h
Options = _struct("Options", ("struct_size", _size), ("backend", _int), ("weights", _int), ("tables", _int), ("f32_activations", _int),
                  ("executor", _pointer), ("progress", PROGRESS), ("user", _pointer), ("executor_size", _size))
BlockOption = _struct("BlockOption", ("key", _text), ("value", _text))
Tensor = _struct("Tensor", ("name", _text), ("data", _pointer), ("type", _int), ("rank", _size), ("shape", _size * 4))
Call = _struct("Call", ("struct_size", _size), ("tokens", _size), ("x", _pointer), ("x_stride", _size), ("token_ids", _pointer),
               ("residual", _pointer), ("residual_stride", _size), ("per_layer_input", _pointer), ("per_layer_input_stride", _size),
               ("y", _pointer), ("y_stride", _size), ("routes", _pointer), ("workspace", _pointer), ("workspace_bytes", _size),
               ("executor", _pointer), ("executor_size", _size))
# tiffin/tiffin_training.h
Sizes = _struct("Sizes", ("struct_size", _size), ("d_model", _size), ("d_ff", _size), ("vocab", _size), ("experts", _size), ("rank", _size),
                ("inner", _size * 2), ("choices", _size), ("outputs", _size), ("heads", _size))
NeededTensor = _struct("NeededTensor", ("name", _text), ("rank", _size), ("shape", _size * 4), ("is_optional", _int), ("has_rows", _int),
                       ("has_integers", _int))
EACH = c.CFUNCTYPE(None, _pointer, c.POINTER(NeededTensor))
CostStruct = _struct("CostStruct", ("struct_size", _size), *((name, c.c_double) for name in (
    "parameters", "table_parameters", "parameters_per_token", "row_parameters", "matrix_flops", "elementwise_flops")))
TrainingOptions = _struct("TrainingOptions", ("struct_size", _size), ("numbers", _int), ("tokens", _size), ("table_rows", _size),
                          ("workers", _size), ("recompute", _int), ("frozen", c.POINTER(_text)), ("frozen_count", _size))
Needs = _struct("Needs", ("struct_size", _size), ("d_model", _size), ("outputs", _size), ("choices", _size),
                ("per_layer_input_width", _size), ("reads_token_ids", _int), ("reads_residual", _int))
TrainingCall = _struct("TrainingCall", ("struct_size", _size), ("tokens", _size), ("x", _pointer), ("token_ids", _pointer),
                       ("residual", _pointer), ("per_layer_input", _pointer), ("y", _pointer), ("routes", _pointer),
                       ("executor", _pointer), ("executor_size", _size))
BackwardCall = _struct("BackwardCall", ("struct_size", _size), ("dy", _pointer), ("dx", _pointer), ("d_residual", _pointer),
                       ("d_per_layer_input", _pointer), ("executor", _pointer), ("executor_size", _size))
GradientStruct = _struct("GradientStruct", ("name", _text), ("rank", _size), ("shape", _size * 4), ("data", _pointer), ("slots", _size),
                         ("read", _pointer))

# tiffin/tiffin_rows.h
RowsOptions = _struct("RowsOptions", ("struct_size", _size), ("direct", _int), ("cache_rows", _size), ("cache_bytes", _size))
RowsShape = _struct("RowsShape", ("struct_size", _size), ("rows", _size), ("width", _size), ("type", _int), ("row_bytes", _size))
RowsCounts = _struct("RowsCounts", ("struct_size", _size), ("hits", c.c_uint64), ("misses", c.c_uint64), ("bytes_read", c.c_uint64))
EngramHash = _struct("EngramHash", ("struct_size", _size), ("order", _size), ("multipliers", _pointer), ("heads", _pointer),
                     ("primes", _pointer), ("offsets", _pointer), ("vocab", _size), ("compressed", _pointer), ("pad", _int),
                     ("unsigned_remainder", _int), ("may_wrap", _int), ("oldest_first", _int))
LongcatHash = _struct("LongcatHash", ("struct_size", _size), ("vocab", _size), ("ratio", _size), ("longest", _size), ("per_length", _size))
NgramsShape = _struct("NgramsShape", ("struct_size", _size), ("order", _size), ("tables", _size), ("vocab", _size))
StoredShape = _struct("StoredShape", ("struct_size", _size), ("rows", _size), ("width", _size), ("commits", c.c_uint64), ("unfinished", _int))
AdamW = _struct("AdamW", ("struct_size", _size), *((name, c.c_double) for name in ("rate", "beta1", "beta2", "eps", "decay", "clip")))
FIRST_ROW = c.CFUNCTYPE(None, _pointer, _size, c.POINTER(c.c_float))


class Error(Exception):
    """What the library refuses: a sentence, `code` such as "unused_tensor", and `where`, the tensor, path or argument."""

    def __init__(self, message, code, where):
        super().__init__(message)
        self.code, self.where = code, where

    def __reduce__(self):
        return Error, (self.args[0], self.code, self.where)


def _path():
    """The library that TIFFIN_LIBRARY names, else the package's own, else the installed one."""
    return os.environ.get("TIFFIN_LIBRARY") or _levels.library(Path(__file__).parent) or ctypes.util.find_library("tiffin")


def _load():
    path = _path()
    if not path:
        raise ImportError("libtiffin.so is not installed; name it in TIFFIN_LIBRARY")
    library = c.CDLL(path)
    p, n, t, i = _pointer, _size, _text, c.c_int
    for name, result, arguments in (
            ("version", c.c_uint32, ()), ("permit_amx", i, ()), ("error_code", _int, (p,)), ("error_message", t, (p,)),
            ("error_where", t, (p,)), ("error_free", None, (p,)), ("threads_make", p, (n, p)), ("threads_executor", p, (p,)),
            ("threads_free", None, (p,)), ("model_open", p, (t, p)), ("model_layers", n, (p,)), ("model_architecture", t, (p,)),
            ("model_free", None, (p,)), ("model_layer", p, (p, n, p, p)), ("layer_open", p, (t, p, p)),
            ("layer_make", p, (p, n, p, n, p, p)), ("layer_save", p, (t, p, n, p, n)), ("layer_free", None, (p,)), ("layer_d_model", n, (p,)), ("layer_d_ff", n, (p,)),
            ("layer_choices", n, (p,)), ("layer_reads_token_ids", i, (p,)), ("layer_reads_residual", i, (p,)),
            ("layer_per_layer_input_width", n, (p,)), ("layer_in_place", t, (p, n)), ("layer_held_bytes", n, (p,)),
            ("layer_workspace_bytes", n, (p, n, n)), ("layer_run", p, (p, p)),
            ("composition_open", p, (t, p)), ("composition_text", t, (p,)), ("composition_reads_residual", c.c_int, (p,)), ("composition_tensors", p, (p, p, EACH, p)),
            ("composition_cost", p, (p, p, p)), ("composition_initialise", p, (p, p, n, c.c_float, c.c_uint64, p, n)),
            ("composition_free", None, (p,)), ("layer_cost", p, (p, p)),
            ("training_make", p, (p, n, p, n, p, p)), ("training_free", None, (p,)), ("training_needs", p, (p, p)),
            ("training_forward", p, (p, p)), ("training_backward", p, (p, p)), ("training_gradient", i, (p, n, p)),
            ("training_ids", n, (p, p, p)), ("training_clear", None, (p,)),
            ("rows_open", p, (t, t, p, p)), ("rows_free", None, (p,)), ("rows_describe", p, (p, p)), ("rows_gather", p, (p, p, n, p)), ("rows_sum", p, (p, p, n, p, n, p, p)),
            ("rows_read", p, (p, p, n, p)), ("rows_count", p, (p, p)), ("rows_replace", p, (p, _int, _int)),
            ("rows_add_mean", p, (p, p, n, p)), ("rows_undo", i, (p,)),
            ("ngrams_engram", p, (p, _int, p)), ("ngrams_longcat", p, (p, _int, p)), ("ngrams_open", p, (t, c.c_int64, t, p, p, p)),
            ("ngrams_free", None, (p,)), ("ngrams_describe", p, (p, p)), ("ngrams_rows", c.c_int64, (p, n)),
            ("ngrams_address", p, (p, p, p, n, p, p)), ("histories_make", p, (p, n, n, p)), ("histories_free", None, (p,)),
            ("histories_undo", p, (p, n, n)), ("histories_reset", p, (p, n)), ("histories_copy", p, (p, n, n)),
            ("stored_table_create", p, (t, n, n, FIRST_ROW, p, p)), ("stored_table_open", p, (t, p)), ("stored_table_free", None, (p,)),
            ("stored_table_describe", p, (p, p)), ("stored_table_rows", p, (p, p, p)), ("stored_table_read", p, (p, p, n, p, p, p, p)),
            ("stored_table_step", p, (p, p, n, p, p)), ("stored_table_commit", p, (p,)), ("stored_table_roll_back", p, (p,)),
            ("stored_table_keep_changes", p, (p,))):
        function = getattr(library, "tiffin_" + name)
        function.restype, function.argtypes = result, arguments
    version = library.tiffin_version()
    if version >> 8 != VERSION >> 8:
        raise ImportError(f"{path} is of version {version >> 16}.{version >> 8 & 255}, not 0.1")
    library.tiffin_permit_amx()
    return library


lib = _load()


def check(error):
    """Raises the error that a function of the library returned, and frees it."""
    if error:
        number = lib.tiffin_error_code(error)
        code = CODES[number] if 0 <= number < len(CODES) else OTHER_CODES.get(number, str(number))
        what = Error(lib.tiffin_error_message(error).decode(), code, os.fsdecode(lib.tiffin_error_where(error)))
        lib.tiffin_error_free(error)
        raise what
