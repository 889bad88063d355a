"""Layers: of compositions and arrays, of layer files, of models."""
from __future__ import annotations

import ctypes as c
import os
import threading
import weakref
from typing import Callable

import numpy as np
from numpy.typing import ArrayLike

from ._arrays import address, block_of, floats, ids_of, number_of, rows_in, struct_of, tensors_of, text, whole
from ._library import BACKENDS, CHOICE, DTYPES, PROGRESS, Call, CostStruct, Error, Options, check, lib
from ._threads import Aside, executor
from .compositions import Cost, cost_from
from .training import Training

_PIECE = 512  # tokens of a workspace: a larger call runs in pieces


class Layer:
    """A block with its weights: y = layer(x, ...). Any number of threads may call it at the same time.

        layer = tiffin.Layer("ffn(gate(silu), token_embedding)",
                             {"gate_proj.weight": gate,     # (d_ff, d_model)
                              "stem_embed.weight": table,   # (vocab, d_ff)
                              "down_proj.weight": down})    # (d_model, d_ff)
        y = layer(x, token_ids=ids)                         # (tokens, d_model), float32

    block: a composition's text (docs/layers.md), or a dict of a layer file's options, {"block": "stem"}.
    weights: arrays by name: float32, float16, int32 or int64, or ("q8_0" or another format, its bytes, shape). Arrays are
        read as numpy indexes them: one that does not lie densely is copied, and `layer.copied` names it. Tables are read
        where they lie, and kept: `layer.in_place` names them. A table can be a Rows, which stays in its file: each call
        reads the rows of its tokens; of a pool it is ("rows", Rows, (experts, vocab, width)).
    backend: "simd"; "eigen"; "reference", in double throughout, slow, to check the others with.
    format, tables: what simd keeps dense weights and tables in: "as_stored", "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1".
    f32_activations: False: simd rounds activations beside q8_0, q4_0, q4_1 and bf16.
    threads: of calls that do not say how many.
    progress: progress(done, bytes) is called while weights are packed, on the calling thread; what it raises is raised.

    Raises Error, naming the tensor or option.
    """
    d_model: int
    d_ff: int
    choices: int                # experts per token of the outermost part that routes; 0: none routes
    per_layer_input_width: int  # 0: it is not read
    held_bytes: int             # of weights in the layer's own memory
    copied: tuple
    _files: tuple
    _pickled: tuple | None
    _given: tuple | None  # the block and its weights

    def __init__(self, block: str | dict, weights: dict, *, backend: str = "simd", format: str = "as_stored", tables: str = "as_stored",
                 f32_activations: bool = False, threads: int = 1, progress: Callable[[int, int], object] | None = None) -> None:
        options, (given, memory, copied) = block_of(block), tensors_of(weights)
        self._make(lambda how, to: lib.tiffin_layer_make(options, len(options), given, len(given), how, to), backend=backend,
                   format=format, tables=tables, f32_activations=f32_activations, threads=threads, progress=progress,
                   keeps=(memory, options, given))
        self.copied, self._pickled, self._files, self._given = copied, None, rows_in(memory), (block, weights)

    def _make(self, make, *, backend="simd", format="as_stored", tables="as_stored", f32_activations=False, threads=1, progress=None,
              keeps=None):
        made = c.c_void_p()
        numbers = {"backend": number_of("backend", backend, BACKENDS), "weights": number_of("format", format, DTYPES),
                   "tables": number_of("tables", tables, DTYPES), "f32_activations": bool(f32_activations)}
        self.threads = whole("threads", threads, 1, 2 ** 16 + 1)

        def work(tell, kept=keeps):
            told = PROGRESS(lambda _, done, of: tell(done, of)) if tell else PROGRESS()
            check(make(c.byref(struct_of(Options, progress=told, **numbers)), c.byref(made)))

        self._at, self._keeps = made, keeps
        self._here = threading.local()  # of each thread that calls: its workspace, as of its last call
        weakref.finalize(self, lib.tiffin_layer_free, made).atexit = False  # NULL is none
        if progress is None:
            work(None)
        else:
            Aside(work).result(lambda run: threading.Thread(target=run, daemon=True).start(), progress)
        for name in ("d_model", "d_ff", "choices", "per_layer_input_width", "held_bytes"):
            setattr(self, name, getattr(lib, "tiffin_layer_" + name)(made))
        self.reads_token_ids = bool(lib.tiffin_layer_reads_token_ids(made))
        self.reads_residual = bool(lib.tiffin_layer_reads_residual(made))
        self.copied = self._files = ()
        self._given = None

    @classmethod
    def _from(cls, make, pickled, **options):
        layer = cls.__new__(cls)
        layer._make(make, **options)
        layer._pickled = pickled
        return layer

    def __reduce__(self):
        if self._pickled is None:
            raise TypeError("a layer of arrays is not pickled: pickle the arrays, or a layer of a file, which is pickled by its path")
        return self._pickled

    def __repr__(self):
        reads = [name for name, holds in (("token_ids", self.reads_token_ids), ("residual", self.reads_residual),
                                          ("per_layer_input", self.per_layer_input_width)) if holds]
        return (f"<tiffin.Layer: d_model {self.d_model}, d_ff {self.d_ff}"
                + (f", {self.choices} experts per token" if self.choices else "")
                + (f", reads {', '.join(reads)}" if reads else "") + f", holds {self.held_bytes} bytes>")

    def cost(self) -> Cost:
        """What it costs per token, with the optional tensors that it was given."""
        found = struct_of(CostStruct)
        check(lib.tiffin_layer_cost(self._at, c.byref(found)))
        return cost_from(found)

    def train(self, **options) -> Training:
        """A Training of the same block, over the arrays that this layer was made of; options as those of Training. The layer keeps
        packed copies of what they were: make another to run what was learnt."""
        return Training(*self._made_of("train"), **options)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the block and the arrays that it was made of as a layer file, for load_layer(). A file that is there is replaced when
        all is written."""
        block, weights = self._made_of("save")
        options, (given, memory, _) = block_of(block), tensors_of(weights)
        check(lib.tiffin_layer_save(text("path", path), options, len(options), given, len(given)))
        del memory

    def _made_of(self, work) -> tuple:
        if self._given is None:
            raise Error(f"{work}: is for layers made of arrays; this one is of a file", "option", work)
        return self._given

    def needs(self) -> dict[str, tuple]:
        """What a call takes beside x: {name: shape}, with "tokens" for the number of rows of x."""
        return {name: shape for name, holds, shape in (
            ("token_ids", self.reads_token_ids, ("tokens",)), ("residual", self.reads_residual, ("tokens", self.d_model)),
            ("per_layer_input", self.per_layer_input_width, ("tokens", self.per_layer_input_width))) if holds}

    @property
    def in_place(self) -> list[str]:
        """The names of the tensors that are read where they were given."""
        names: list[str] = []
        while name := lib.tiffin_layer_in_place(self._at, len(names)):
            names.append(name.decode(errors="replace"))
        return names

    def __call__(self, x: ArrayLike, token_ids: ArrayLike | None = None, residual: ArrayLike | None = None,
                 per_layer_input: ArrayLike | None = None, threads: int | None = None, routes: bool = False):
        """y (tokens, d_model) of x (tokens, d_model); with routes=True a pair of y and the experts chosen, an array
        (tokens, choices) with the fields expert and weight. Where the layer reads them: token_ids (tokens),
        residual (tokens, d_model), per_layer_input (tokens, per_layer_input_width)."""
        for file in self._files:
            file._rows_at()
        x = _rows("x", x, self.d_model, None)
        tokens, threads = len(x), self.threads if threads is None else threads
        call, here = struct_of(Call), self._here
        call.executor = executor(threads)
        size = (tokens if tokens < _PIECE else _PIECE), threads
        if here.__dict__.get("size") != size:
            bytes_wanted = lib.tiffin_layer_workspace_bytes(self._at, max(1, size[0]), int(threads))
            here.workspace = bytearray(bytes_wanted)
            here.at = c.addressof((c.c_char * bytes_wanted).from_buffer(here.workspace)) if bytes_wanted else None
            here.size = size
        call.workspace, call.workspace_bytes = here.at, len(here.workspace)
        y = np.empty_like(x)
        call.tokens, call.x, call.y = tokens, address(x), address(y)
        if token_ids is not None:
            token_ids = ids_of(token_ids, tokens)
            call.token_ids = address(token_ids)
        if residual is not None:
            residual = _rows("residual", residual, self.d_model, tokens)
            call.residual = address(residual)
        if per_layer_input is not None:
            per_layer_input = _rows("per_layer_input", per_layer_input, self.per_layer_input_width, tokens)
            call.per_layer_input = address(per_layer_input)
        chosen = None
        if routes:
            chosen = np.zeros((tokens, self.choices), CHOICE)
            call.routes = address(chosen) if self.choices else None
        error = lib.tiffin_layer_run(self._at, c.byref(call))
        if error:
            check(error)
        return (y, chosen) if routes else y


def load_layer(path: str | os.PathLike, **options) -> Layer:
    """The block of a layer file (docs/layer_files.md). Options as those of Layer. Pickled by its path."""
    at = text("path", path)
    return Layer._from(lambda how, to: lib.tiffin_layer_open(at, how, to), (_load_again, (path, options)), **options)


def _load_again(path, options):
    return load_layer(path, **options)


class Model:
    """A model: a GGUF file, the first of a split one, or a checkpoint's folder. len(model) counts its layers. Pickled by its path."""

    def __init__(self, path: str | os.PathLike) -> None:
        made = c.c_void_p()
        check(lib.tiffin_model_open(text("path", path), c.byref(made)))
        self._at, self.path = made, path
        weakref.finalize(self, lib.tiffin_model_free, made).atexit = False
        self.architecture = lib.tiffin_model_architecture(made).decode(errors="replace")

    def __reduce__(self):
        return Model, (self.path,)

    def __repr__(self):
        return f"<tiffin.Model: {self.architecture}, {len(self)} layers, {self.path}>"

    def __len__(self) -> int:
        return lib.tiffin_model_layers(self._at)

    def layer(self, index: int, **options) -> Layer:
        """The FFN of layer `index`, without the norms around it and the residual; options as those of Layer."""
        index = whole("index", index, 0, 2 ** 63)
        return Layer._from(lambda how, to: lib.tiffin_model_layer(self._at, index, how, to), (_layer_again, (self.path, index, options)),
                           **options)


def _layer_again(path, index, options):
    return Model(path).layer(index, **options)


def open_model(path: str | os.PathLike) -> Model:
    """The model in a GGUF file or in a checkpoint's folder: open_model(path).layer(0)."""
    return Model(path)


def _rows(name, a, width, tokens) -> np.ndarray:
    a = floats(name, a)
    if a.ndim == 2 and a.shape[1] == width and (tokens is None or len(a) == tokens):
        return a
    raise Error(f"{name}: has shape {a.shape}; it must be ({'tokens' if tokens is None else tokens}, {width})", "size", name)
