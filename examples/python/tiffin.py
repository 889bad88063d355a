"""tiffin from Python: feed-forward layers of models, of layer files and of numpy arrays, by ctypes and libtiffin.

    import tiffin
    model = tiffin.Model("model.gguf")
    layer = model.layer(0)
    y = layer(x)                                         # x: float32 (tokens, d_model)

    stem = tiffin.Layer.make({"block": "stem"}, {"gate_proj.weight": gate, "stem_embed.weight": table, "down_proj.weight": down})
    y = stem(x, token_ids=ids, threads=4)

The library is the file that the variable TIFFIN_LIBRARY of the environment names, or the installed libtiffin.so.
docs/layer_files.md has the names of blocks, options and tensors.
"""
import concurrent.futures
import ctypes as c
import ctypes.util
import os
import weakref

import numpy as np

BACKENDS = {"simd": 0, "eigen": 1, "reference": 2}
DTYPES = {name: i for i, name in enumerate("as_stored f32 f16 bf16 i32 i64 u8 q8_0 q4_0".split())}
CODES = ("shape missing_tensor unused_tensor duplicate_tensor dtype value size token_id overlap workspace option file "
         "empty device").split()
OTHER_CODES = {100: "argument", 101: "memory"}
VERSION = 0 << 16 | 1 << 8  # major and minor of the header that the structs below are those of

TASK = c.CFUNCTYPE(None, c.c_void_p, c.c_size_t)
RUN = c.CFUNCTYPE(None, c.c_void_p, c.c_size_t, TASK, c.c_void_p)
PROGRESS = c.CFUNCTYPE(None, c.c_void_p, c.c_size_t, c.c_size_t)


def _struct(name, *fields):
    return type(name, (c.Structure,), {"_fields_": fields})


_Executor = _struct("_Executor", ("run", RUN), ("user", c.c_void_p), ("concurrency", c.c_size_t))
_Options = _struct("_Options", ("struct_size", c.c_size_t), ("backend", c.c_int32), ("weights", c.c_int32), ("tables", c.c_int32),
                   ("f32_activations", c.c_int32), ("executor", c.POINTER(_Executor)), ("progress", PROGRESS), ("user", c.c_void_p))
_BlockOption = _struct("_BlockOption", ("key", c.c_char_p), ("value", c.c_char_p))
_Tensor = _struct("_Tensor", ("name", c.c_char_p), ("data", c.c_void_p), ("type", c.c_int32), ("rank", c.c_size_t),
                  ("shape", c.c_size_t * 4))
_Call = _struct("_Call", ("struct_size", c.c_size_t), ("tokens", c.c_size_t), ("x", c.c_void_p), ("x_stride", c.c_size_t),
                ("token_ids", c.c_void_p), ("residual", c.c_void_p), ("residual_stride", c.c_size_t),
                ("per_layer_input", c.c_void_p), ("per_layer_input_stride", c.c_size_t), ("y", c.c_void_p),
                ("y_stride", c.c_size_t), ("routes", c.c_void_p), ("workspace", c.c_void_p), ("workspace_bytes", c.c_size_t),
                ("executor", c.POINTER(_Executor)))
CHOICE = np.dtype([("expert", np.int32), ("weight", np.float32)])


class Error(Exception):
    """What the library refuses: a sentence, `code` such as "unused_tensor", and `where`, the tensor, path or argument."""

    def __init__(self, message, code, where):
        super().__init__(message)
        self.code, self.where = code, where


def _load():
    path = os.environ.get("TIFFIN_LIBRARY") or ctypes.util.find_library("tiffin")
    if not path:
        raise ImportError("libtiffin.so is not installed; name it in TIFFIN_LIBRARY")
    lib = c.CDLL(path)
    pointer, size, text = c.c_void_p, c.c_size_t, c.c_char_p
    for name, result, arguments in (
            ("version", c.c_uint32, ()), ("permit_amx", c.c_int, ()), ("error_code", c.c_int32, (pointer,)), ("error_message", text, (pointer,)),
            ("error_where", text, (pointer,)), ("error_free", None, (pointer,)),
            ("model_open", pointer, (text, pointer)), ("model_layers", size, (pointer,)), ("model_architecture", text, (pointer,)),
            ("model_free", None, (pointer,)), ("model_layer", pointer, (pointer, size, pointer, pointer)),
            ("layer_open", pointer, (text, pointer, pointer)),
            ("layer_make", pointer, (pointer, size, pointer, size, pointer, pointer)), ("layer_free", None, (pointer,)),
            ("layer_d_model", size, (pointer,)), ("layer_d_ff", size, (pointer,)), ("layer_choices", size, (pointer,)),
            ("layer_reads_token_ids", c.c_int, (pointer,)), ("layer_reads_residual", c.c_int, (pointer,)),
            ("layer_per_layer_input_width", size, (pointer,)), ("layer_in_place", text, (pointer, size)),
            ("layer_held_bytes", size, (pointer,)), ("layer_workspace_bytes", size, (pointer, size, size)),
            ("layer_run", pointer, (pointer, pointer))):
        function = getattr(lib, "tiffin_" + name)
        function.restype, function.argtypes = result, arguments
    if lib.tiffin_version() >> 8 != VERSION >> 8:
        raise ImportError(f"{path} is of version {lib.tiffin_version() >> 16}.{lib.tiffin_version() >> 8 & 255}, not 0.1")
    lib.tiffin_permit_amx()
    return lib


_lib = _load()


def _check(error):
    if error:
        number = _lib.tiffin_error_code(error)
        code = CODES[number] if 0 <= number < len(CODES) else OTHER_CODES.get(number, str(number))
        what = Error(_lib.tiffin_error_message(error).decode(), code, os.fsdecode(_lib.tiffin_error_where(error)))
        _lib.tiffin_error_free(error)
        raise what


def _options(backend, weights, tables, f32_activations, progress):
    told = PROGRESS(lambda _, done, of: progress(done, of)) if progress else PROGRESS()
    return _Options(c.sizeof(_Options), BACKENDS[backend], DTYPES[weights], DTYPES[tables], f32_activations, None, told, None)


class _ThreadPool:
    """Runs the tasks of a call on Python's threads; a task itself runs without the interpreter's lock."""

    def __init__(self, threads):
        self._pool = concurrent.futures.ThreadPoolExecutor(threads)
        self.executor = _Executor(RUN(self._run), None, threads)

    def _run(self, _, n, task, arg):
        list(self._pool.map(lambda i: task(arg, i), range(n)))


class Model:
    """A model: a GGUF file, the first of a split one, or a checkpoint's folder. len(model) counts its layers."""

    def __init__(self, path):
        made = c.c_void_p()
        _check(_lib.tiffin_model_open(os.fsencode(path), c.byref(made)))
        self._at = made
        weakref.finalize(self, _lib.tiffin_model_free, made)
        self.architecture = _lib.tiffin_model_architecture(made).decode(errors="replace")

    def __len__(self):
        return _lib.tiffin_model_layers(self._at)

    def layer(self, index, **options):
        """The FFN of layer `index`, without the norms around it and the residual; options as in Layer.open."""
        return Layer._made(lambda how, to: _lib.tiffin_model_layer(self._at, index, how, to), **options)


class Layer:
    """A block with its weights: y = layer(x, ...). Any number of threads may call it at the same time."""

    @classmethod
    def open(cls, path, **options):
        """The block of a layer file.

        Options: backend ("simd", "eigen", "reference"); weights and tables, what simd keeps them in ("as_stored", "f32",
        "f16", "bf16", "q8_0", "q4_0"); f32_activations (False: simd rounds activations beside q8_0, q4_0 and bf16);
        progress(done, bytes), called while the weights are packed.
        """
        return cls._made(lambda how, to: _lib.tiffin_layer_open(os.fsencode(path), how, to), **options)

    @classmethod
    def make(cls, block, tensors, **options):
        """A block of options, such as {"block": "stem"}, and arrays by name: f32, f16, i32 or i64, or
        ("q8_0" or another format, its bytes, shape). Options as in `open`."""
        given = {name: a if isinstance(a, tuple) else np.ascontiguousarray(a) for name, a in tensors.items()}
        kinds = {"float32": "f32", "float16": "f16", "int32": "i32", "int64": "i64"}
        listed = (_Tensor * len(given))()
        for to, (name, a) in zip(listed, given.items()):
            kind, a, shape = a if isinstance(a, tuple) else (kinds.get(str(a.dtype)), a, np.shape(tensors[name]))
            if kind is None or len(shape) > 4:
                raise Error(f"{name}: dtype {a.dtype}, shape {shape}: not a tensor of a layer", "dtype", name)
            data = a.ctypes.data if isinstance(a, np.ndarray) else c.cast(c.c_char_p(a), c.c_void_p)
            to.name, to.data, to.type, to.rank, to.shape[:len(shape)] = name.encode(), data, DTYPES[kind], len(shape), shape
        told = (_BlockOption * len(block))(*((k.encode(), str(v).encode()) for k, v in block.items()))
        made = cls._made(lambda how, to: _lib.tiffin_layer_make(told, len(told), listed, len(listed), how, to), **options)
        made._memory = given  # tables are read where they lie
        return made

    @classmethod
    def _made(cls, make, backend="simd", weights="as_stored", tables="as_stored", f32_activations=False, progress=None):
        made, how = c.c_void_p(), _options(backend, weights, tables, f32_activations, progress)
        _check(make(c.byref(how), c.byref(made)))
        layer = cls.__new__(cls)
        layer._at, layer._pools = made, {}
        weakref.finalize(layer, _lib.tiffin_layer_free, made)
        for name in ("d_model", "d_ff", "choices", "per_layer_input_width", "held_bytes"):
            setattr(layer, name, getattr(_lib, "tiffin_layer_" + name)(made))
        layer.reads_token_ids = bool(_lib.tiffin_layer_reads_token_ids(made))
        layer.reads_residual = bool(_lib.tiffin_layer_reads_residual(made))
        return layer

    def __call__(self, x, token_ids=None, residual=None, per_layer_input=None, threads=1, routes=False):
        """y (tokens, d_model) of x (tokens, d_model); with routes=True a pair of y and the experts chosen, an array
        (tokens, choices) with the fields expert and weight. Where the layer reads them: token_ids (tokens),
        residual (tokens, d_model), per_layer_input (tokens, per_layer_input_width)."""
        x, tokens = self._rows("x", x, self.d_model, None), len(x)
        ids = None if token_ids is None else np.ascontiguousarray(token_ids, np.int32)
        if ids is not None and ids.shape != (tokens,):
            raise Error(f"token_ids: has shape {ids.shape}; x has {tokens} tokens", "size", "token_ids")
        beside = [None if a is None else self._rows(name, a, width, tokens) for name, a, width in
                  (("residual", residual, self.d_model), ("per_layer_input", per_layer_input, self.per_layer_input_width))]
        y, chosen = np.empty_like(x), np.zeros((tokens, self.choices), CHOICE)
        workspace = np.empty(_lib.tiffin_layer_workspace_bytes(self._at, max(1, min(tokens, 512)), threads), np.uint8)
        pool = None if threads == 1 else self._pools.setdefault(threads, _ThreadPool(threads))
        at = lambda a: None if a is None else a.ctypes.data
        call = _Call(c.sizeof(_Call), tokens, at(x), 0, at(ids), at(beside[0]), 0, at(beside[1]), 0, at(y), 0,
                     at(chosen) if routes and self.choices else None, at(workspace), workspace.size,
                     c.pointer(pool.executor) if pool else None)
        _check(_lib.tiffin_layer_run(self._at, c.byref(call)))
        return (y, chosen) if routes else y

    @staticmethod
    def _rows(name, a, width, tokens):
        a = np.ascontiguousarray(a, np.float32)
        if a.ndim != 2 or a.shape[1] != width or (tokens is not None and len(a) != tokens):
            raise Error(f"{name}: has shape {a.shape}; it must be ({tokens or 'tokens'}, {width})", "size", name)
        return a
