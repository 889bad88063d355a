"""Compositions by text: what tensors they need, their starting values, and what they cost."""
from __future__ import annotations

import ctypes as c
import dataclasses
import weakref
from typing import Sequence

import numpy as np

from ._arrays import listed, refuse, struct_of, text, whole
from ._library import EACH, CostStruct, Sizes, check, lib


@dataclasses.dataclass(frozen=True)
class Needed:
    """A tensor of a composition: its shape; whether it may be left out, is a table of rows, or a map of integers."""
    shape: tuple
    optional: bool
    rows: bool
    integers: bool


@dataclasses.dataclass(frozen=True)
class Cost:
    """Per token at decode, optional tensors left out; one multiply-add is 2 FLOPs."""
    parameters: float            # stored
    table_parameters: float      # the part of them that is in tables
    parameters_per_token: float  # read
    row_parameters: float        # the part of them that is table rows
    matrix_flops: float
    elementwise_flops: float

    def bytes_per_token(self, weight_bits: float = 32, table_bits: float = 32) -> float:
        """Bytes read per token with dense weights and tables of these widths."""
        return ((self.parameters_per_token - self.row_parameters) * weight_bits + self.row_parameters * table_bits) / 8


class Composition:
    """A composition by its text (docs/layers.md).

        stem = tiffin.Composition("ffn(gate(silu), token_embedding)")
        stem.needs(d_model=64, d_ff=256, vocab=1000)     # {"gate_proj.weight": Needed((256, 64), ...), ...}
        stem.cost(d_model=64, d_ff=256, vocab=1000).matrix_flops
        weights = stem.initial(d_model=64, d_ff=256, vocab=1000, layers=12)

    Sizes: d_model, d_ff, vocab, experts, rank, inner (a number, or two), choices, outputs, heads: those that it has.
    Raises Error with the position in the text and what was expected there.
    """

    def __init__(self, composition: str) -> None:
        made = c.c_void_p()
        check(lib.tiffin_composition_open(text("composition", composition), c.byref(made)))
        self._at = made
        weakref.finalize(self, lib.tiffin_composition_free, made).atexit = False
        # With all arguments and options, aliases expanded.
        self.text = lib.tiffin_composition_text(made).decode()
        # Whether calls need the residual stream.
        self.reads_residual = bool(lib.tiffin_composition_reads_residual(made))

    def __reduce__(self):
        return Composition, (self.text,)

    def __repr__(self):
        return f"<tiffin.Composition: {self.text}>"

    def needs(self, **sizes) -> dict[str, Needed]:
        """The tensors by name, in the order of the text."""
        found = {}

        @EACH
        def each(_, told):
            t = told.contents
            found[t.name.decode()] = Needed(tuple(t.shape[:t.rank]), bool(t.is_optional), bool(t.has_rows), bool(t.has_integers))

        check(lib.tiffin_composition_tensors(self._at, c.byref(_sizes(sizes)), each, None))
        return found

    def cost(self, **sizes) -> Cost:
        """What it costs per token."""
        found = struct_of(CostStruct)
        check(lib.tiffin_composition_cost(self._at, c.byref(_sizes(sizes)), c.byref(found)))
        return cost_from(found)

    def initial(self, *, layers: int, seed: int = 0, scale: float = 1.0, optional: Sequence[str] = (), **sizes) -> dict[str, np.ndarray]:
        """Starting values as its paper has them (docs/layers.md#initialisers): float32 arrays by name.

        layers: of the model, which DeepNorm needs. scale: of modulators: 1 from scratch, 0 beside a trained model. optional:
        names of optional tensors that are wanted too. Maps of experts, which are integers, are left out: they are the caller's.
        The values depend on the seed and the tensors' names alone, and are the same on every machine.
        """
        wanted = {name: need for name, need in self.needs(**sizes).items()
                  if not need.integers and (not need.optional or name in optional)}
        for name in optional:
            refuse(name in wanted, name, "is no optional tensor of this composition", "missing_tensor")
        made = {name: np.empty(need.shape, np.float32) for name, need in wanted.items()}
        given = listed({name: ("f32", a, a.shape) for name, a in made.items()})
        check(lib.tiffin_composition_initialise(self._at, c.byref(_sizes(sizes)), whole("layers", layers, 0, 2 ** 31), float(scale),
                                                whole("seed", seed, 0, 2 ** 64), given, len(given)))
        return made


def cost_from(found):
    return Cost(**{field.name: getattr(found, field.name) for field in dataclasses.fields(Cost)})


def _sizes(given):
    made = struct_of(Sizes)
    for name, value in given.items():
        refuse(name in ("d_model", "d_ff", "vocab", "experts", "rank", "inner", "choices", "outputs", "heads"), name, "is no size", "option")
        if name == "inner":
            inner = tuple(value) if isinstance(value, (tuple, list)) else (value,)
            refuse(len(inner) <= 2, name, f"is {value!r}; it is one number or two", "option")
            made.inner[:len(inner)] = [whole(name, one, 1, 2 ** 31 + 1) for one in inner]
        else:
            setattr(made, name, whole(name, value, 1, 2 ** 31 + 1))
    return made
