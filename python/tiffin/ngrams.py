"""Row numbers of n-gram tables, by the last token ids of each sequence."""
from __future__ import annotations

import ctypes as c
import os
import weakref
from typing import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ._arrays import address, array, ids_of, refuse, struct_of, text, whole
from ._library import EngramHash, LongcatHash, NgramsShape, check, lib
from .rows import Rows, rows_options


class NgramAddresses:
    """Hashes the last ids of a sequence to a row in each of several tables (docs/tables.md#rows-by-the-last-ids).

        address = tiffin.NgramAddresses.engram(multipliers=[3, 5, 7], primes=[[101, 103], [107, 109]], vocab=1000)
        past = address.histories(sequences=2, undoable=8)
        rows = address(ids, past, sequences=[0, 0, 1])      # int32 (tables, len(ids)); past has these ids now

    order: the ids that are read, the token's own among them. rows_of: the rows of each table. one_table: all are parts of one table, in
    which rows are counted from its beginning. Any number of threads may use one, each with its own histories.
    """
    one_table: bool
    order: int
    tables: int
    vocab: int
    rows_of: tuple
    _at: c.c_void_p
    _told: tuple | None = None  # what described() gives

    def __init__(self) -> None:
        raise TypeError("NgramAddresses is made by engram(), longcat() or open()")

    @classmethod
    def _of(cls, make, one_table):
        made, self = c.c_void_p(), cls.__new__(cls)
        make(c.byref(made))
        self._at, self.one_table = made, one_table
        weakref.finalize(self, lib.tiffin_ngrams_free, made).atexit = False
        shape = struct_of(NgramsShape)
        check(lib.tiffin_ngrams_describe(made, c.byref(shape)))
        self.order, self.tables, self.vocab = shape.order, shape.tables, shape.vocab
        self.rows_of = tuple(lib.tiffin_ngrams_rows(made, i) for i in range(self.tables))
        return self

    @classmethod
    def engram(cls, *, multipliers: Sequence[int], primes: Sequence[Sequence[int]], vocab: int = 0, compressed: ArrayLike | None = None,
               pad: int = 0, offsets: Sequence[int] | None = None, unsigned_remainder: bool = False, may_wrap: bool = False,
               oldest_first: bool = False, end: int | None = None) -> NgramAddresses:
        """Engram's: row = (xor over k < n of c[id k before] multipliers[k]) mod prime, for each of primes[n - 2], n = 2, ..., N.

        compressed: what each id counts as; None: as itself, `vocab` of them. pad: what counts where there is no id. offsets: of all
        heads, where they lie in one table. end: the end-of-sequence id, before which ids are missing."""
        factors = _integers("multipliers", multipliers)
        refuse(len(factors) > 1 and len(primes) == len(factors) - 1, "primes", f"are of {len(primes)} lengths for {len(factors)} multipliers", "size")
        heads = np.array([len(of_n) for of_n in primes], np.uint64)
        flat = _integers("primes", [p for of_n in primes for p in of_n])
        before = None if offsets is None else _integers("offsets", offsets)
        refuse(before is None or len(before) == len(flat), "offsets", f"are {0 if before is None else len(before)} for {len(flat)} primes", "size")
        counts = None if compressed is None else ids_of(compressed, name="compressed")
        hash = struct_of(EngramHash, order=len(factors), multipliers=address(factors), heads=address(heads), primes=address(flat),
                         offsets=address(before), vocab=whole("vocab", vocab, 0, 2 ** 31) if counts is None else len(counts),
                         compressed=address(counts), pad=whole("pad", pad, 0, 2 ** 31), unsigned_remainder=bool(unsigned_remainder),
                         may_wrap=bool(may_wrap), oldest_first=bool(oldest_first))
        self = cls._of(lambda to: check(lib.tiffin_ngrams_engram(c.byref(hash), _end(end), to)), before is not None)
        if before is None:
            told = {"block": "engram_addresses", "pad": str(hash.pad), "unsigned_remainder": unsigned_remainder, "may_wrap": may_wrap,
                    "oldest_first": oldest_first}
            ends = np.cumsum(heads.astype(np.int64))[:-1]
            self._told = _layer(told, end), {"compressed": np.arange(vocab, dtype=np.int64) if counts is None else counts.astype(np.int64),
                                             "multipliers": factors, **{f"primes.{n + 2}": p for n, p in enumerate(np.split(flat, ends))}}
        return self

    @classmethod
    def longcat(cls, *, vocab: int, ratio: int, longest: int, per_length: int, end: int | None = None) -> NgramAddresses:
        """LongCat's: `per_length` tables for each of n = 2, ..., longest, table i of ratio vocab + 2 i + 1 rows."""
        sizes = {name: whole(name, value, 0, 2 ** 31) for name, value in (
            ("vocab", vocab), ("ratio", ratio), ("longest", longest), ("per_length", per_length))}
        hash = struct_of(LongcatHash, **sizes)
        self = cls._of(lambda to: check(lib.tiffin_ngrams_longcat(c.byref(hash), _end(end), to)), False)
        self._told = _layer({"block": "longcat_addresses", **{name: str(value) for name, value in sizes.items()}}, end), {}
        return self

    @classmethod
    def open(cls, path: str | os.PathLike, layer: int | None = None, *, constants: str | os.PathLike | None = None, direct: bool = False,
             cache_rows: int = 0, cache_bytes: int = 0) -> tuple[NgramAddresses, Rows]:
        """Those of a published model or adapter (docs/models.md#token-indexed-memories), and the rows of their table.

        layer: None: the first that has some. constants: a file of the hash's constants, where the model has none."""
        which, given = -1 if layer is None else whole("layer", layer, 0, 2 ** 63), text("path", path)
        beside = None if constants is None else text("constants", constants)
        how, rows, held = rows_options(direct, cache_rows, cache_bytes), Rows.__new__(Rows), c.c_void_p()
        self = cls._of(lambda to: check(lib.tiffin_ngrams_open(given, which, beside, c.byref(how), to, c.byref(held))), True)
        rows._hold(held, path, "its n-gram table", direct, cache_rows, cache_bytes)
        rows._pickled = None
        return self, rows

    def __repr__(self):
        return f"<tiffin.NgramAddresses: {self.tables} tables by the last {self.order} of {self.vocab} ids>"

    def described(self) -> tuple[dict[str, str], dict[str, np.ndarray]]:
        """Metadata and tensors that say the same in a layer file (docs/layer_files.md#engram_addresses). Of engram() without offsets, and
        of longcat()."""
        refuse(self._told is not None, "ngrams", "are of a published file, or have offsets: no layer file says these", "option")
        options, tensors = self._told
        return dict(options), dict(tensors)

    def histories(self, sequences: int = 1, undoable: int = 0) -> Histories:
        """Those of sequences that begin; the last `undoable` tokens of each can be undone."""
        return Histories(self, sequences, undoable)

    def __call__(self, ids: ArrayLike, histories: Histories, sequences: ArrayLike | None = None) -> np.ndarray:
        """int32 (tables, len(ids)): the rows of each token, which is appended to its sequence, sequences[i]; None: all to the first."""
        ids = ids_of(ids, name="ids")
        of = None if sequences is None else ids_of(sequences, len(ids), "sequences")
        refuse(of is None or (of >= 0).all(), "sequences", "have a number below 0", "size")
        refuse(isinstance(histories, Histories), "histories", f"are {histories!r}; make them by histories()", "option")
        rows = np.empty((self.tables, len(ids)), np.int32)
        check(lib.tiffin_ngrams_address(self._at, address(ids), address(of), len(ids), histories._at, address(rows)))
        return rows


class Histories:
    """The last ids of sequences, as NgramAddresses.histories() makes them. One call at a time."""

    def __init__(self, addresses: NgramAddresses, sequences: int, undoable: int) -> None:
        made, self.sequences = c.c_void_p(), whole("sequences", sequences, 0, 2 ** 31)
        check(lib.tiffin_histories_make(addresses._at, self.sequences, whole("undoable", undoable, 0, 2 ** 31), c.byref(made)))
        self._at = made
        weakref.finalize(self, lib.tiffin_histories_free, made).atexit = False

    def undo(self, sequence: int, tokens: int) -> None:
        """Removes the last tokens of a sequence, such as those of a speculation that was rejected."""
        check(lib.tiffin_histories_undo(self._at, whole("sequence", sequence, 0, 2 ** 63), whole("tokens", tokens, 0, 2 ** 63)))

    def reset(self, sequence: int) -> None:
        """Begins a sequence anew."""
        check(lib.tiffin_histories_reset(self._at, whole("sequence", sequence, 0, 2 ** 63)))

    def copy(self, source: int, to: int) -> None:
        """Makes sequence `to` what `source` is, as a beam that splits does."""
        check(lib.tiffin_histories_copy(self._at, whole("source", source, 0, 2 ** 63), whole("to", to, 0, 2 ** 63)))


def _layer(options, end):
    """Options as the metadata of a layer file has them."""
    told = {name: str(value).lower() for name, value in options.items()}
    return told if end is None else {**told, "end_of_sequence": str(end)}


def _end(end):
    return -1 if end is None else whole("end", end, 0, 2 ** 31)


def _integers(name, given):
    a = array(name, given)
    refuse(a.ndim == 1 and a.size > 0 and a.dtype.kind in "iu" and a.dtype != np.uint64, name,
           f"are {a.dtype} of shape {a.shape}; they must be whole numbers of 63 bits", "option")
    return np.ascontiguousarray(a, np.int64)
