"""Layers that learn: forward, backward, and the gradients as arrays."""
from __future__ import annotations

import ctypes as c
import dataclasses
import weakref
from typing import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ._arrays import address, array, block_of, ids_of, listed, number_of, refuse, rows_in, struct_of, whole
from ._library import CHOICE, BackwardCall, Error, GradientStruct, Needs, TrainingCall, TrainingOptions, DTYPES, check, lib
from ._threads import executor


@dataclasses.dataclass(frozen=True)
class RowGradients:
    """The gradient of a table, of the rows that tokens have read: gradient[ids[i]] = rows[i], and 0 elsewhere.

    Of a pool, a table per expert: rows has an axis of experts in front, and `read` says which of its rows were read."""
    ids: np.ndarray   # (n), ascending, int32
    rows: np.ndarray  # (n, width), or (experts, n, width)
    read: np.ndarray  # (n), or (experts, n): bool
    shape: tuple      # of the table

    def dense(self) -> np.ndarray:
        """The whole gradient, as large as the table."""
        whole_table = np.zeros(self.shape, self.rows.dtype)
        whole_table[..., self.ids, :] = self.rows
        return whole_table


class Training:
    """A block that learns: y = forward(x, ...), then backward(dy), then `gradients`.

        training = tiffin.Training("ffn(gate(silu), token_embedding)", weights, tokens=512, threads=2)
        y = training.forward(x, token_ids=ids)
        dx = training.backward(dy)["x"]
        for name, gradient in training.gradients.items(): ...
        training.clear()

    weights: arrays by name, float32, or float64 with numbers="f64"; they are read where they lie, in every call: write steps
        to them. One that does not lie densely is an Error. A table can be a Rows of float32.
    numbers: "f32", on SIMD; "bf16", the same with factors of products rounded; "f64", in double throughout, slow.
    tokens: the most per call. table_rows: the most different ids until clear(); 0: `tokens`.
    frozen: names of tensors without gradients. recompute: keep nothing from forward to backward, which runs it again.

    One call at a time. Gradients add up until clear(). Raises Error, before anything is written.
    """
    d_model: int
    outputs: int                # features of y
    choices: int                # experts per token of the outermost part that routes
    per_layer_input_width: int  # 0: it is not read
    _call: tuple | None

    def __init__(self, block: str | dict, weights: dict[str, np.ndarray], *, numbers: str = "f32", tokens: int = 512, table_rows: int = 0,
                 frozen: Sequence[str] = (), recompute: bool = False, threads: int = 1) -> None:
        kinds = {"f32": np.float32, "bf16": np.float32, "f64": np.float64}
        number_of("numbers", numbers, kinds)
        self.dtype, self.threads = np.dtype(kinds[numbers]), whole("threads", threads, 1, 2 ** 16 + 1)
        given = {name: self._weight(name, a) for name, a in weights.items()}
        self._files = rows_in(given)
        names = (c.c_char_p * len(frozen))(*(name.encode() for name in frozen))
        options, tensors = block_of(block), listed(given)
        how = struct_of(TrainingOptions, numbers=DTYPES[numbers], tokens=whole("tokens", tokens, 1, 2 ** 31),
                        table_rows=whole("table_rows", table_rows, 0, 2 ** 31), workers=self.threads, recompute=bool(recompute),
                        frozen=names, frozen_count=len(frozen))
        made = c.c_void_p()
        check(lib.tiffin_training_make(options, len(options), tensors, len(tensors), c.byref(how), c.byref(made)))
        self._at, self._keeps, self._call = made, given, None
        weakref.finalize(self, lib.tiffin_training_free, made).atexit = False
        needs = struct_of(Needs)
        check(lib.tiffin_training_needs(made, c.byref(needs)))
        for name in ("d_model", "outputs", "choices", "per_layer_input_width"):
            setattr(self, name, getattr(needs, name))
        self.reads_token_ids, self.reads_residual = bool(needs.reads_token_ids), bool(needs.reads_residual)

    def _weight(self, name, a):
        if hasattr(a, "_rows_at"):
            return "rows", a, ()
        given = array(name, a)
        kinds = {np.dtype(np.float32): "f32", np.dtype(np.int32): "i32", np.dtype(np.int64): "i64"}
        if self.dtype == np.float64:
            kinds[self.dtype] = "f64"
        refuse(given.dtype in kinds, name, f"has dtype {given.dtype}; this layer learns in {self.dtype}", "dtype")
        refuse(given.flags.c_contiguous and given.flags.aligned, name,
               "does not lie densely; a layer that learns reads its weights where they lie", "shape")
        return kinds[given.dtype], given, given.shape

    def _rows(self, name, a, width, tokens) -> np.ndarray:
        given = array(name, a)
        refuse(given.dtype == self.dtype, name, f"has dtype {given.dtype}; it must be {self.dtype}", "dtype")
        refuse(given.ndim == 2 and given.shape[1] == width and (tokens is None or len(given) == tokens), name,
               f"has shape {given.shape}; it must be ({'tokens' if tokens is None else tokens}, {width})", "size")
        return np.require(given, self.dtype, ["C", "A"])

    def forward(self, x: ArrayLike, token_ids: ArrayLike | None = None, residual: ArrayLike | None = None,
                per_layer_input: ArrayLike | None = None, routes: bool = False):
        """y (tokens, outputs); with routes=True a pair of y and the experts chosen, as Layer gives it."""
        for file in self._files:
            file._rows_at()
        x = self._rows("x", x, self.d_model, None)
        tokens = len(x)
        ids = None if token_ids is None else ids_of(token_ids, tokens)
        residual = None if residual is None else self._rows("residual", residual, self.d_model, tokens)
        beside = None if per_layer_input is None else self._rows("per_layer_input", per_layer_input, self.per_layer_input_width, tokens)
        y, chosen = np.empty((tokens, self.outputs), self.dtype), np.zeros((tokens, self.choices), CHOICE)
        check(lib.tiffin_training_forward(self._at, c.byref(struct_of(
            TrainingCall, tokens=tokens, x=address(x), token_ids=address(ids), residual=address(residual), per_layer_input=address(beside),
            y=address(y), routes=address(chosen) if self.choices else None, executor=executor(self.threads)))))
        self._call = x, residual, beside  # backward reads them again
        return (y, chosen) if routes else y

    def backward(self, dy: ArrayLike, inputs: Sequence[str] = ("x",)) -> dict[str, np.ndarray]:
        """Adds the gradients of sum(y dy) for the last forward; returns those of `inputs` among "x", "residual" and
        "per_layer_input", by name."""
        if self._call is None:
            raise Error("backward: has no forward before it, of which it would be the gradient", "empty", "backward")
        tokens = len(self._call[0])
        dy = self._rows("dy", dy, self.outputs, tokens)
        widths = {"x": self.d_model, "residual": self.d_model if self.reads_residual else 0, "per_layer_input": self.per_layer_input_width}
        for name in inputs:
            refuse(widths.get(name), "inputs", f"has {name!r}, which the block does not read", "option")
        to = {name: np.empty((tokens, widths[name]), self.dtype) for name in inputs}
        check(lib.tiffin_training_backward(self._at, c.byref(struct_of(
            BackwardCall, dy=address(dy), dx=address(to.get("x")), d_residual=address(to.get("residual")),
            d_per_layer_input=address(to.get("per_layer_input")), executor=executor(self.threads)))))
        return to

    @property
    def gradients(self) -> dict[str, np.ndarray | RowGradients]:
        """By name: arrays, which are the layer's own memory until it ends, and RowGradients, which are copies."""
        found, g, i = {}, GradientStruct(), 0
        while lib.tiffin_training_gradient(self._at, i, c.byref(g)):
            shape = tuple(g.shape[:g.rank])
            if g.slots == 0:
                found[g.name.decode()] = self._view(g.data, shape, self.dtype)
            else:
                found[g.name.decode()] = self._rows_of(g, shape)
            i += 1
        return found

    def _view(self, data, shape, dtype):
        count = int(np.prod(shape))
        raw = (c.c_uint8 * (count * np.dtype(dtype).itemsize)).from_address(data)
        raw.training = self  # keeps the memory
        return np.frombuffer(raw, dtype, count).reshape(shape)

    def _rows_of(self, g, shape):
        n = lib.tiffin_training_ids(self._at, None, None)
        ids, slots = np.empty(n, np.int32), np.empty(n, np.uint32)
        lib.tiffin_training_ids(self._at, address(ids), address(slots))
        experts = shape[:-2]
        rows = self._view(g.data, (*experts, g.slots, shape[-1]), self.dtype)
        read = self._view(g.read, (*experts, g.slots), np.uint8)
        return RowGradients(ids, rows[..., slots, :], read[..., slots] != 0, shape)

    def clear(self) -> None:
        """Sets all gradients to 0 and forgets the ids; backward needs a new forward."""
        lib.tiffin_training_clear(self._at)
        self._call = None
