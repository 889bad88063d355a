"""Rows of tables that lie in files, larger than memory."""
from __future__ import annotations

import contextlib
import ctypes as c
import os
import threading
import weakref
from typing import Iterator, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ._arrays import address, floats, ids_of, refuse, struct_of, text, whole
from ._library import DTYPES, RowsCounts, RowsOptions, RowsShape, check, lib

_NAMES = {number: name for name, number in DTYPES.items()}


class Counts(NamedTuple):
    """What a cache found, what it did not, and the bytes that it read from the file since it was opened."""
    hits: int
    misses: int
    bytes_read: int


def rows_options(direct, cache_rows, cache_bytes):
    return struct_of(RowsOptions, direct=bool(direct), cache_rows=whole("cache_rows", cache_rows, 0, 2 ** 63),
                     cache_bytes=whole("cache_bytes", cache_bytes, 0, 2 ** 63))


class Rows:
    """The rows of a table in a safetensors or GGUF file. len(rows) counts them, those that were added too.

        with tiffin.Rows.open("table.safetensors", "table", cache_rows=100000) as rows:
            rows.gather([3, 5, 3])      # float32 (3, rows.width)

    direct: read several rows at a time by system calls, instead of mapping the file. cache_rows, cache_bytes: how much memory the
    rows that are read often may take; 0 and 0: no cache. A pool (experts, rows, width) is one table, expert by expert.
    Any number of threads may read at the same time. Raises Error for a file, tensor or id that is not there. Pickled by its path,
    without its edits.
    """

    width: int
    format: str
    row_bytes: int
    _at: c.c_void_p | None
    _prefetch: threading.Thread | None
    _pickled: tuple | None
    _table: object  # a table whose values they are

    def __init__(self, path: str | os.PathLike, tensor: str, *, direct: bool = False, cache_rows: int = 0, cache_bytes: int = 0) -> None:
        made = c.c_void_p()
        how = rows_options(direct, cache_rows, cache_bytes)
        check(lib.tiffin_rows_open(text("path", path), text("tensor", tensor), c.byref(how), c.byref(made)))
        self._hold(made, path, tensor, direct, cache_rows, cache_bytes)

    def _hold(self, made, path, tensor, direct, cache_rows, cache_bytes):
        self._at = made
        self._lock = threading.Lock()
        self._prefetch = None
        self._pickled = path, tensor, dict(direct=direct, cache_rows=cache_rows, cache_bytes=cache_bytes)
        self._free = weakref.finalize(self, lib.tiffin_rows_free, made)
        self._free.atexit = False
        self.path, self.tensor = path, tensor
        shape = self._shape()
        self.width, self.format, self.row_bytes = shape.width, _NAMES[shape.type], shape.row_bytes

    @classmethod
    def open(cls, path: str | os.PathLike, tensor: str, **options) -> Rows:
        """Rows(path, tensor, **options)."""
        return cls(path, tensor, **options)

    def _open(self):
        refuse(self._at is not None, str(self.path), "is closed", "empty")
        return self._at

    def _rows_at(self):
        return self._open().value

    def _shape(self):
        shape = struct_of(RowsShape)
        check(lib.tiffin_rows_describe(self._open(), c.byref(shape)))
        return shape

    def __len__(self) -> int:
        return self._shape().rows

    def __repr__(self):
        return (f"<tiffin.Rows: {len(self)} rows of {self.width} in {self.format}, {self.path}, {self.tensor}>" if self._at is not None
                else f"<tiffin.Rows: {self.path}, closed>")

    def __reduce__(self):
        if self._pickled is None:
            raise TypeError("only rows of a named tensor are pickled")
        path, tensor, options = self._pickled
        return _open_again, (path, tensor, options)

    def close(self) -> None:
        """Closes the file. No other call may be running."""
        self.wait()
        self._at = None
        self._free()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def gather(self, ids: ArrayLike) -> np.ndarray:
        """The rows of ids, float32 (len(ids), width), exactly as their format defines them."""
        ids = ids_of(ids, name="ids")
        to = np.empty((len(ids), self.width), np.float32)
        check(lib.tiffin_rows_gather(self._open(), address(ids), len(ids), address(to)))
        return to

    def sum(self, ids: ArrayLike, first: ArrayLike, weights: ArrayLike | None = None) -> np.ndarray:
        """Sums of groups of rows, float32 (len(first), width), as an embedding bag's: of rows ids[first[g]:first[g + 1]], the last
        group to the end; each row times its weight, if there are weights. An empty group's sum is 0."""
        ids = ids_of(ids, name="ids")
        begins = ids_of(first, name="first")
        if begins.size and begins.min() < 0:
            refuse(False, "first", f"reaches down to {begins.min()}", "size")
        begins = begins.astype(np.uintp)
        if weights is not None:
            weights = floats("weights", weights)
            refuse(weights.shape == ids.shape, "weights", f"have shape {weights.shape} for {len(ids)} ids", "size")
        to = np.empty((len(begins), self.width), np.float32)
        check(lib.tiffin_rows_sum(self._open(), address(ids), len(ids), address(begins), len(begins), address(weights), address(to)))
        return to

    def read(self, ids: ArrayLike) -> np.ndarray:
        """The rows of ids as they are stored, uint8 (len(ids), row_bytes)."""
        ids = ids_of(ids, name="ids")
        to = np.empty((len(ids), self.row_bytes), np.uint8)
        check(lib.tiffin_rows_read(self._open(), address(ids), len(ids), address(to)))
        return to

    def prefetch(self, ids: ArrayLike) -> None:
        """Reads the rows of ids into the cache on another thread, one prefetch at a time; wait() or close() wait for it. An id that
        is not there is an Error here."""
        ids = np.unique(ids_of(ids, name="ids"))
        rows = len(self)
        refuse(ids.size == 0 or (ids[0] >= 0 and ids[-1] < rows), "ids", f"reach from {ids[:1]} to {ids[-1:]}; the table has {rows} rows", "token_id")
        self.wait()
        with self._lock:
            started = threading.Thread(target=self._read_ahead, args=(ids,), daemon=True)
            started.start()
            self._prefetch = started

    def _read_ahead(self, ids):
        to = np.empty((min(len(ids), 1024), self.row_bytes), np.uint8)
        for first in range(0, len(ids), 1024):
            part = ids[first:first + 1024]
            error = lib.tiffin_rows_read(self._at, address(part), len(part), address(to))
            if error:  # who gathers these rows is told
                lib.tiffin_error_free(error)
                return

    def wait(self) -> None:
        """Returns when the last prefetch has ended."""
        with self._lock:
            if self._prefetch is not None:
                self._prefetch.join()
                self._prefetch = None

    @property
    def counts(self) -> Counts:
        """Of the cache: hits, misses and bytes read."""
        counts = struct_of(RowsCounts)
        check(lib.tiffin_rows_count(self._open(), c.byref(counts)))
        return Counts(counts.hits, counts.misses, counts.bytes_read)

    def replace(self, id: int, by: int) -> None:
        """Reads of row `id` give row `by` from now on, as it is stored: the file stays as it is."""
        id, by = ids_of([id, by], name="ids").tolist()
        check(lib.tiffin_rows_replace(self._open(), id, by))

    def undo(self) -> bool:
        """Reverts the last replacement; returns whether there was one."""
        return bool(lib.tiffin_rows_undo(self._open()))

    def add_mean(self, ids: ArrayLike) -> int:
        """Adds the mean of rows, rounded to the table's format, as a row behind all others; returns its id."""
        ids, made = ids_of(ids, name="ids"), c.c_int32()
        check(lib.tiffin_rows_add_mean(self._open(), address(ids), len(ids), c.byref(made)))
        return made.value

    @contextlib.contextmanager
    def edited(self, replacements: dict[int, int]) -> Iterator[Rows]:
        """Within it, rows are replaced: {id: by}. The replacements of an edit within it are undone before its own."""
        done = 0
        try:
            for id, by in replacements.items():
                self.replace(id, by)
                done += 1
            yield self
        finally:
            for _ in range(done):
                self.undo()


def _open_again(path, tensor, options):
    return Rows(path, tensor, **options)
