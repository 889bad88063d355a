"""tiffin from Python: feed-forward layers of models, of layer files and of numpy arrays, by ctypes and libtiffin.

    import tiffin
    model = tiffin.Model("model.gguf")
    layer = model.layer(0)
    y = layer(x)                                         # x: float32 (tokens, d_model)

    stem = tiffin.Layer.make({"block": "stem"}, {"gate_proj.weight": gate, "stem_embed.weight": table, "down_proj.weight": down})
    y = stem(x, token_ids=ids, threads=4)

The library is the file that the variable TIFFIN_LIBRARY of the environment names, or the installed libtiffin.so.
docs/layer_files.md has the names of blocks, options and tensors.

What cannot be read as what it is called is an Error: nothing is cast that would lose a part of a number but the rounding
of floats to float32, and no memory is read that an array does not have. An exception that arises while a call runs on
several threads, such as KeyboardInterrupt, is raised when the call has ended.
"""
import ctypes as c
import ctypes.util
import math
import operator
import os
import queue
import threading
import weakref

import numpy as np

BACKENDS = {"simd": 0, "eigen": 1, "reference": 2}
DTYPES = {name: i for i, name in enumerate(
    "as_stored f32 f16 bf16 i32 i64 u8 q8_0 q4_0 q4_1 q5_0 q5_1 q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs mxfp4 f64 "
    "f8_e4m3 f8_e5m2 f8_e8m0 nvfp4 u4".split())}
# Numbers of a block and its bytes.
BLOCKS = {"f32": (1, 4), "f16": (1, 2), "bf16": (1, 2), "i32": (1, 4), "i64": (1, 8), "u8": (1, 1), "f64": (1, 8),
          "q8_0": (32, 34), "q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24), "q2_k": (256, 84),
          "q3_k": (256, 110), "q4_k": (256, 144), "q5_k": (256, 176), "q6_k": (256, 210), "iq4_nl": (32, 18),
          "iq4_xs": (256, 136), "mxfp4": (32, 17), "nvfp4": (64, 36), "u4": (2, 1),
          "f8_e4m3": (1, 1), "f8_e5m2": (1, 1), "f8_e8m0": (1, 1)}
# The arrays that hold such numbers; blocks are bytes, and bf16, which numpy has not, is uint16.
ARRAYS = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16, "i32": np.int32, "i64": np.int64, "f64": np.float64}
CODES = ("shape missing_tensor unused_tensor duplicate_tensor dtype value size token_id overlap workspace option file "
         "empty device executor").split()
OTHER_CODES = {100: "argument", 101: "memory"}
VERSION = 0 << 16 | 1 << 8  # major and minor of the header that the structs below are those of

TASK = c.CFUNCTYPE(None, c.c_void_p, c.c_size_t)
RUN = c.CFUNCTYPE(None, c.c_void_p, c.c_size_t, TASK, c.c_void_p)
RUN_CHECKED = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_size_t, TASK, c.c_void_p)
PROGRESS = c.CFUNCTYPE(None, c.c_void_p, c.c_size_t, c.c_size_t)


def _struct(name, *fields):
    return type(name, (c.Structure,), {"_fields_": fields})


_Executor = _struct("_Executor", ("run", RUN), ("user", c.c_void_p), ("concurrency", c.c_size_t),
                    ("run_checked", RUN_CHECKED))
_Options = _struct("_Options", ("struct_size", c.c_size_t), ("backend", c.c_int32), ("weights", c.c_int32), ("tables", c.c_int32),
                   ("f32_activations", c.c_int32), ("executor", c.POINTER(_Executor)), ("progress", PROGRESS), ("user", c.c_void_p),
                   ("executor_size", c.c_size_t))
_BlockOption = _struct("_BlockOption", ("key", c.c_char_p), ("value", c.c_char_p))
_Tensor = _struct("_Tensor", ("name", c.c_char_p), ("data", c.c_void_p), ("type", c.c_int32), ("rank", c.c_size_t),
                  ("shape", c.c_size_t * 4))
_Call = _struct("_Call", ("struct_size", c.c_size_t), ("tokens", c.c_size_t), ("x", c.c_void_p), ("x_stride", c.c_size_t),
                ("token_ids", c.c_void_p), ("residual", c.c_void_p), ("residual_stride", c.c_size_t),
                ("per_layer_input", c.c_void_p), ("per_layer_input_stride", c.c_size_t), ("y", c.c_void_p),
                ("y_stride", c.c_size_t), ("routes", c.c_void_p), ("workspace", c.c_void_p), ("workspace_bytes", c.c_size_t),
                ("executor", c.POINTER(_Executor)), ("executor_size", c.c_size_t))
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


def _refuse(holds, where, message, code):
    if not holds:
        raise Error(f"{where}: {message}", code, where)


def _text(name, value):
    """A string for C, which would end it at a zero."""
    text = os.fsencode(value)
    _refuse(b"\0" not in text, name, f"{value!r} has a zero byte in it", "argument")
    return text


def _whole(name, value, least, beyond):
    """A whole number in [least, beyond): C would take another one modulo 2^64."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    _refuse(number is not None and not isinstance(value, (bool, np.bool_)) and least <= number < beyond, name,
            f"is {value!r}; it must be a whole number from {least} to {beyond - 1}", "option")
    return number


def _number_of(name, value, numbers):
    _refuse(value in numbers, name, f"is {value!r}; there are {', '.join(numbers)}", "option")
    return numbers[value]


def _array(name, a):
    """Anything that numpy reads; a mask would be lost."""
    _refuse(not isinstance(a, np.ma.MaskedArray), name, "is a masked array", "dtype")
    try:
        return np.asarray(a)
    except (ValueError, TypeError, OverflowError) as wrong:  # lists of rows that differ in length, say
        raise Error(f"{name}: {wrong}", "dtype", name) from None


def _floats(name, a):
    """Rows as the library reads them: where they lie if they are dense, aligned float32; else a copy."""
    given = _array(name, a)
    if given.dtype == np.float32 and given.flags.c_contiguous and given.flags.aligned:
        return given
    _refuse(given.dtype.kind == "f", name, f"has dtype {given.dtype}; it must be float32, or floats to be rounded to it", "dtype")
    with np.errstate(over="ignore"):
        rows = np.require(given, np.float32, ["C", "A"])
    _refuse(given.dtype.itemsize <= 4 or (np.isfinite(rows) | ~np.isfinite(given)).all(), name,
            "has a number that float32 cannot hold", "value")
    return rows


def _ids(a, tokens):
    given = _array("token_ids", a)
    if given.size == 0 and not isinstance(a, np.ndarray):
        given = given.astype(np.int32)  # numpy takes an empty list for floats
    _refuse(given.dtype.kind in "iu", "token_ids", f"have dtype {given.dtype}; they must be whole numbers", "dtype")
    _refuse(given.shape == (tokens,), "token_ids", f"have shape {given.shape}; x has {tokens} tokens", "size")
    if given.dtype.itemsize >= 4 and given.size and not (-2 ** 31 <= given.min() and given.max() < 2 ** 31):
        i = np.flatnonzero((given < -2 ** 31) | (given >= 2 ** 31))[0]
        raise Error(f"token_ids: token_ids[{i}] = {given[i]}, which no table has", "token_id", "token_ids")
    return np.require(given, np.int32, ["C", "A"])


def _bytes_of(name, kind, data, shape):
    """The numbers of a tensor of `kind` as a dense array, and whether that is a copy as they lay otherwise."""
    block, size = BLOCKS[kind]
    _refuse(not shape or shape[-1] % block == 0, name, f"has shape {shape}; in {kind} the last axis is whole blocks of {block}", "shape")
    if not isinstance(data, np.ndarray):
        try:
            data = memoryview(data)
        except TypeError:
            raise Error(f"{name}: is given as {type(data).__name__}; it must be an array or bytes", "dtype", name) from None
    a, wanted = _array(name, data), ARRAYS.get(kind)
    _refuse(a.dtype == np.uint8 or (wanted is not None and a.dtype == wanted and a.dtype.isnative), name,
            f"is called {kind} and has dtype {a.dtype}; it must be {'' if wanted is None else np.dtype(wanted).name + ', or '}bytes (uint8)", "dtype")
    bytes_wanted = math.prod(shape) // block * size
    _refuse(a.nbytes == bytes_wanted, name, f"has {a.nbytes} bytes; shape {shape} in {kind} is {bytes_wanted}", "shape")
    # Bytes of several axes have the tensor's but for the last; numbers have all; one axis is memory as it is.
    as_shape = a.shape[:len(shape) - 1] == shape[:-1] if a.dtype == np.uint8 and kind != "u8" else a.shape == shape
    _refuse(a.ndim <= 1 or as_shape, name, f"has shape {a.shape} as an array, and is called one of {shape}", "shape")
    return np.ascontiguousarray(a), not a.flags.c_contiguous


def _tensor(name, given):
    """Format, dense memory, shape, and whether it was copied, of a tensor that somebody gives."""
    if not isinstance(given, tuple):
        a = _array(name, given)
        kind = {"float32": "f32", "float16": "f16", "int32": "i32", "int64": "i64"}.get(str(a.dtype))
        _refuse(kind is not None and a.ndim <= 4, name, f"dtype {a.dtype}, shape {a.shape}: not a tensor of a layer", "dtype")
        return kind, np.ascontiguousarray(a), a.shape, not a.flags.c_contiguous
    _refuse(len(given) == 3, name, f"is a tuple of {len(given)}; it must be (format, numbers, shape)", "dtype")
    kind, data, shape = given
    _refuse(kind in BLOCKS, name, f"is called {kind!r}; there are {', '.join(BLOCKS)}", "dtype")
    try:
        shape = tuple(_whole(name, size, 0, 2 ** 63) for size in shape)
    except (Error, TypeError):
        raise Error(f"{name}: has shape {shape!r}; it must be whole numbers", "shape", name) from None
    _refuse(len(shape) <= 4, name, f"has shape {shape}; a tensor has at most 4 axes", "shape")
    dense, copied = _bytes_of(name, kind, data, shape)
    return kind, dense, shape, copied


# What a callback from C raised, on the thread that made the call.
_callback = threading.local()


def _run_tasks(work, threads, _user, n, task, arg):
    """The executor of a call, on the thread that makes it; a task itself runs without the interpreter's lock."""
    try:
        tasks = _Tasks(n, task, arg)
        try:
            for _ in range(min(n, threads) - 1):
                work.put(tasks.run)
            tasks.run()
        finally:
            tasks.close()
        return 0
    except BaseException as wrong:
        _callback.raised = wrong
        return 1


class _Tasks:
    """The tasks of one hand-over: whoever comes takes the next."""

    def __init__(self, n, task, arg):
        self._task, self._arg, self._taken, self._n, self._running = task, arg, 0, n, 0
        self._changed = threading.Condition(threading.Lock())

    def run(self):
        while True:
            with self._changed:
                if self._taken == self._n:
                    return
                i, self._taken, self._running = self._taken, self._taken + 1, self._running + 1
            try:
                self._task(self._arg, i)
            finally:
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()

    def close(self):
        """No task begins any more, and none is running: the call that they are of may go on."""
        with self._changed:
            self._taken = self._n
            while self._running:
                self._changed.wait()


class _ThreadPool:
    """Python's threads for the tasks of calls. All are started here, so that what the system refuses is refused here."""

    def __init__(self, threads):
        self._work = queue.SimpleQueue()
        weakref.finalize(self, self._stop, self._work, threads).atexit = False
        for _ in range(threads):
            threading.Thread(target=self._serve, args=(self._work,), daemon=True).start()
        run = RUN_CHECKED(lambda *given, work=self._work: _run_tasks(work, threads, *given))
        self.executor, self.start = _Executor(RUN(), None, threads, run), self._work.put

    @staticmethod
    def _serve(work):
        while (run := work.get()) is not None:
            run()

    @staticmethod
    def _stop(work, threads):
        for _ in range(threads):
            work.put(None)


class _Aside:
    """`work` on another thread, for which the calling thread waits.

    Handlers of signals run on Python's main thread, between any two of its steps, and what they raise in a callback from C
    is lost. So C is called elsewhere where it calls back, and what is raised meanwhile is raised when it has returned.
    """

    def __init__(self, work):
        self._work, self._begun, self._ended, self._events = work, threading.Lock(), False, queue.SimpleQueue()
        self._result = self._raised = None

    def _run(self):
        if not self._begun.acquire(blocking=False):
            return
        try:
            self._result = self._work(lambda *event: self._events.put(event))
        except BaseException as wrong:
            self._raised = wrong
        self._ended = True
        self._events.put(None)

    def result(self, start, tell=None):
        """What the work returns or raises. start(run): another thread runs that. tell(*event): what the work tells, here."""
        raised, started = None, False
        while not (self._ended and self._events.empty()):
            try:
                if not started:
                    start(self._run)
                    started = True
                event = self._events.get()
                if event is not None and raised is None:
                    tell(*event)
            except BaseException as wrong:
                raised = raised or wrong
                if not started:
                    if self._begun.acquire(blocking=False):
                        break  # now it never begins
                    started = True
        try:
            if raised or self._raised:
                raise raised or self._raised
            return self._result
        finally:
            raised = self._raised = None  # they hold this frame


def _on_main_thread():
    return threading.get_ident() == threading.main_thread().ident


class Model:
    """A model: a GGUF file, the first of a split one, or a checkpoint's folder. len(model) counts its layers."""

    def __init__(self, path):
        made = c.c_void_p()
        _check(_lib.tiffin_model_open(_text("path", path), c.byref(made)))
        self._at = made
        weakref.finalize(self, _lib.tiffin_model_free, made).atexit = False
        self.architecture = _lib.tiffin_model_architecture(made).decode(errors="replace")

    def __len__(self):
        return _lib.tiffin_model_layers(self._at)

    def layer(self, index, **options):
        """The FFN of layer `index`, without the norms around it and the residual; options as in Layer.open."""
        index = _whole("index", index, 0, 2 ** 63)
        return Layer._made(lambda how, to: _lib.tiffin_model_layer(self._at, index, how, to), **options)


class Layer:
    """A block with its weights: y = layer(x, ...). Any number of threads may call it at the same time."""

    @classmethod
    def open(cls, path, **options):
        """The block of a layer file.

        Options: backend ("simd", "eigen", "reference"); weights and tables, what simd keeps them in ("as_stored", "f32",
        "f16", "bf16", "q8_0", "q4_0"); f32_activations (False: simd rounds activations beside q8_0, q4_0 and bf16);
        progress(done, bytes), called while the weights are packed, on the calling thread: what it raises is raised.
        """
        path = _text("path", path)
        return cls._made(lambda how, to: _lib.tiffin_layer_open(path, how, to), **options)

    @classmethod
    def make(cls, block, tensors, **options):
        """A block of options, such as {"block": "stem"}, and arrays by name: f32, f16, i32 or i64, or
        ("q8_0" or another format, its bytes, shape). Options as in `open`.

        Arrays are read as numpy indexes them. One that does not lie densely, such as a transposed view, is copied;
        `layer.copied` names these. Tables of the others are read where they lie, and kept: see tiffin_layer_in_place."""
        given = {name: _tensor(name, a) for name, a in tensors.items()}
        listed = (_Tensor * len(given))()
        for to, (name, (kind, a, shape, _)) in zip(listed, given.items()):
            to.name, to.data, to.type, to.rank = _text(name, name), a.ctypes.data, DTYPES[kind], len(shape)
            to.shape[:len(shape)] = shape
        told = (_BlockOption * len(block))(*((_text(k, k), _text(k, str(v))) for k, v in block.items()))
        made = cls._made(lambda how, to: _lib.tiffin_layer_make(told, len(told), listed, len(listed), how, to),
                         _memory=given, **options)
        made.copied = tuple(name for name, (*_, copied) in given.items() if copied)
        return made

    @classmethod
    def _made(cls, make, backend="simd", weights="as_stored", tables="as_stored", f32_activations=False, progress=None,
              _memory=None):
        made = c.c_void_p()
        numbers = (_number_of("backend", backend, BACKENDS), _number_of("weights", weights, DTYPES),
                   _number_of("tables", tables, DTYPES), bool(f32_activations))

        def work(tell, kept=_memory):
            told = PROGRESS(lambda _, done, of: tell(done, of)) if tell else PROGRESS()
            how = _Options(c.sizeof(_Options), *numbers, None, told, None, 0)
            _check(make(c.byref(how), c.byref(made)))

        layer = cls.__new__(cls)
        layer._at, layer._pools, layer._memory, layer.copied = made, {}, _memory, ()
        weakref.finalize(layer, _lib.tiffin_layer_free, made).atexit = False  # NULL is none
        if progress is None:
            work(None)
        else:
            _Aside(work).result(lambda run: threading.Thread(target=run, daemon=True).start(), progress)
        for name in ("d_model", "d_ff", "choices", "per_layer_input_width", "held_bytes"):
            setattr(layer, name, getattr(_lib, "tiffin_layer_" + name)(made))
        layer.reads_token_ids = bool(_lib.tiffin_layer_reads_token_ids(made))
        layer.reads_residual = bool(_lib.tiffin_layer_reads_residual(made))
        return layer

    @property
    def in_place(self):
        """The names of the tensors that are read where they were given."""
        names = []
        while name := _lib.tiffin_layer_in_place(self._at, len(names)):
            names.append(name.decode(errors="replace"))
        return names

    def __call__(self, x, token_ids=None, residual=None, per_layer_input=None, threads=1, routes=False):
        """y (tokens, d_model) of x (tokens, d_model); with routes=True a pair of y and the experts chosen, an array
        (tokens, choices) with the fields expert and weight. Where the layer reads them: token_ids (tokens),
        residual (tokens, d_model), per_layer_input (tokens, per_layer_input_width)."""
        x = self._rows("x", x, self.d_model, None)
        tokens, threads = len(x), _whole("threads", threads, 1, 2 ** 16 + 1)
        ids = None if token_ids is None else _ids(token_ids, tokens)
        beside = [None if a is None else self._rows(name, a, width, tokens) for name, a, width in
                  (("residual", residual, self.d_model), ("per_layer_input", per_layer_input, self.per_layer_input_width))]
        y, chosen = np.empty_like(x), np.zeros((tokens, self.choices), CHOICE)
        workspace = np.empty(_lib.tiffin_layer_workspace_bytes(self._at, max(1, min(tokens, 512)), threads), np.uint8)
        pool = self._pool(threads)
        at = lambda a: None if a is None else a.ctypes.data
        call = _Call(c.sizeof(_Call), tokens, at(x), 0, at(ids), at(beside[0]), 0, at(beside[1]), 0, at(y), 0,
                     at(chosen) if routes and self.choices else None, at(workspace), workspace.size,
                     c.pointer(pool.executor) if pool else None, 0)

        def work(_tell, kept=(self, x, ids, beside, y, chosen, workspace, pool)):
            error = _lib.tiffin_layer_run(self._at, c.byref(call))
            raised = _callback.__dict__.pop("raised", None)
            if raised:
                _lib.tiffin_error_free(error)
                raise raised
            _check(error)

        if pool and _on_main_thread():
            _Aside(work).result(pool.start)
        else:
            work(None)
        return (y, chosen) if routes else y

    def _pool(self, threads):
        if threads == 1:
            return None
        key = os.getpid(), threads  # threads do not live on in a child of fork()
        return self._pools.get(key) or self._pools.setdefault(key, _ThreadPool(threads))

    @staticmethod
    def _rows(name, a, width, tokens):
        a = _floats(name, a)
        _refuse(a.ndim == 2 and a.shape[1] == width and (tokens is None or len(a) == tokens), name,
                f"has shape {a.shape}; it must be ({'tokens' if tokens is None else tokens}, {width})", "size")
        return a
