"""Tables that learn and lie in files, larger than memory."""
from __future__ import annotations

import contextlib
import ctypes as c
import os
import threading
import weakref
from typing import Callable, Iterator, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ._arrays import address, array, floats, ids_of, refuse, struct_of, text, whole
from ._library import FIRST_ROW, AdamW, StoredShape, check, lib
from .rows import Rows, rows_options


class Moments(NamedTuple):
    """Of rows: AdamW's moments, (n, width) each, and how many steps each row took."""
    first: np.ndarray
    second: np.ndarray
    steps: np.ndarray


class StoredTable:
    """A table (rows, width) of float32 in a file, with the moments and the count of steps of each row. len(table) is its rows.

        with tiffin.StoredTable.create("facts.rows", 10 ** 7, 256, initial=lambda id: rng.normal(size=256)) as table:
            with table.transaction():
                table.step(ids, gradients, lr=1e-3)

    What was changed since the last commit() is not there after a run that ended before the next: open() refuses nothing, `unfinished` is
    True, and roll_back() or keep_changes() comes first. One call at a time: another waits. One object at a time has a file open.
    """

    width: int
    steps: int  # since it was opened, and roll backs
    _at: c.c_void_p | None

    def __init__(self, path: str | os.PathLike) -> None:
        made = c.c_void_p()
        check(lib.tiffin_stored_table_open(text("path", path), c.byref(made)))
        self._hold(made, path)

    @classmethod
    def open(cls, path: str | os.PathLike) -> StoredTable:
        """StoredTable(path)."""
        return cls(path)

    @classmethod
    def create(cls, path: str | os.PathLike, rows: int, width: int,
               initial: ArrayLike | Callable[[int], ArrayLike] | None = None) -> StoredTable:
        """Makes the file and opens it. initial: an array (rows, width), or initial(id) -> (width); None: zeros, which take no room
        until they are written. An Error where there is something at `path`."""
        rows, width = whole("rows", rows, 1, 2 ** 31), whole("width", width, 1, 2 ** 31)
        row_of = _row_of(initial, rows, width)
        wrong: list[BaseException] = []

        def first(_, id, to):
            if wrong:
                return
            try:
                row = floats("initial", row_of(id))
                refuse(row.shape == (width,), "initial", f"has shape {row.shape} for row {id}; it must be ({width},)", "shape")
                c.memmove(to, address(row), 4 * width)
            except BaseException as raised:  # C cannot pass it on
                wrong.append(raised)

        made, table = c.c_void_p(), cls.__new__(cls)
        check(lib.tiffin_stored_table_create(text("path", path), rows, width, FIRST_ROW() if row_of is None else FIRST_ROW(first), None,
                                             c.byref(made)))
        table._hold(made, path)
        if wrong:
            table.close()
            for ending in ("", ".changes"):
                with contextlib.suppress(FileNotFoundError):
                    os.remove(os.fspath(path) + ending)
            raise wrong[0]
        return table

    def _hold(self, made, path):
        self._at = made
        self.path, self._lock, self._read_by = path, threading.Lock(), weakref.WeakSet()
        self._free = weakref.finalize(self, lib.tiffin_stored_table_free, made)
        self._free.atexit = False
        self.width = self._shape().width
        self.steps = 0

    def _open(self):
        refuse(self._at is not None, str(self.path), "is closed", "empty")
        return self._at

    def _shape(self):
        shape = struct_of(StoredShape)
        check(lib.tiffin_stored_table_describe(self._open(), c.byref(shape)))
        return shape

    def __len__(self) -> int:
        return self._shape().rows

    def __repr__(self):
        return (f"<tiffin.StoredTable: {len(self)} rows of {self.width}, commit {self.commits}, {self.path}>" if self._at is not None
                else f"<tiffin.StoredTable: {self.path}, closed>")

    def __reduce__(self):
        raise TypeError("a StoredTable is not pickled: one process at a time writes its file")

    def close(self) -> None:
        """Closes the file; what is not committed is undecided when it is next opened."""
        with self._lock:
            for rows in list(self._read_by):
                rows.close()
            self._at = None
            self._free()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def commits(self) -> int:
        """Commits since the file was made."""
        return self._shape().commits

    @property
    def unfinished(self) -> bool:
        """Whether the last run ended between commits, and it is not decided what becomes of its changes."""
        return bool(self._shape().unfinished)

    def rows(self, *, cache_rows: int = 0, cache_bytes: int = 0) -> Rows:
        """The values as Rows, for a Layer or a Training that reads them; through a cache, which a step renews. It ends with the table."""
        made, rows = c.c_void_p(), Rows.__new__(Rows)
        check(lib.tiffin_stored_table_rows(self._open(), c.byref(rows_options(False, cache_rows, cache_bytes)), c.byref(made)))
        rows._hold(made, self.path, "values", False, cache_rows, cache_bytes)
        rows._pickled, rows._table = None, self
        self._read_by.add(rows)
        return rows

    def gather(self, ids: ArrayLike) -> np.ndarray:
        """The values of rows, float32 (len(ids), width)."""
        ids = ids_of(ids, name="ids")
        to = np.empty((len(ids), self.width), np.float32)
        with self._lock:
            check(lib.tiffin_stored_table_read(self._open(), address(ids), len(ids), address(to), None, None, None))
        return to

    def moments(self, ids: ArrayLike) -> Moments:
        """The moments of rows, and their counts of steps."""
        ids = ids_of(ids, name="ids")
        first, second = (np.empty((len(ids), self.width), np.float32) for _ in range(2))
        steps = np.empty(len(ids), np.int32)
        with self._lock:
            check(lib.tiffin_stored_table_read(self._open(), address(ids), len(ids), None, address(first), address(second), address(steps)))
        return Moments(first, second, steps)

    def step(self, ids: ArrayLike, gradients: ArrayLike, lr: float, betas: tuple[float, float] = (0.9, 0.95), eps: float = 1e-8,
             weight_decay: float = 0.1, clip: float = 0.0) -> None:
        """A step of AdamW on the rows of ids, in any order, with gradients (len(ids), width): those of an id that comes again are added
        up. Each row counts its own steps. clip: the largest norm of all these gradients; 0: they are not clipped. Nothing is
        written where a number is not finite."""
        ids, given = ids_of(ids, name="ids"), floats("gradients", gradients)
        refuse(given.shape == (len(ids), self.width), "gradients", f"have shape {given.shape}; they must be ({len(ids)}, {self.width})", "size")
        if len(ids) > 1 and not (ids[1:] > ids[:-1]).all():
            ids, where = np.unique(ids, return_inverse=True)
            summed = np.zeros((len(ids), self.width), np.float32)
            np.add.at(summed, where, given)
            given = summed
        how = struct_of(AdamW, rate=float(lr), beta1=float(betas[0]), beta2=float(betas[1]), eps=float(eps), decay=float(weight_decay),
                        clip=float(clip))
        with self._lock:
            check(lib.tiffin_stored_table_step(self._open(), address(ids), len(ids), address(given), c.byref(how)))
            self.steps += 1

    def commit(self) -> None:
        """Makes the rows as they are those of the next commit; returns when the disk has them."""
        with self._lock:
            check(lib.tiffin_stored_table_commit(self._open()))

    def roll_back(self) -> None:
        """Makes all rows what they were at the last commit."""
        with self._lock:
            self.steps += 1
            check(lib.tiffin_stored_table_roll_back(self._open()))

    def keep_changes(self) -> None:
        """Makes the rows as a run that ended left them those of the next commit."""
        with self._lock:
            check(lib.tiffin_stored_table_keep_changes(self._open()))

    @contextlib.contextmanager
    def transaction(self) -> Iterator[StoredTable]:
        """commit() at its end; roll_back() where it raises."""
        try:
            yield self
        except BaseException:
            self.roll_back()
            raise
        self.commit()


def _row_of(initial, rows, width):
    if initial is None or callable(initial):
        return initial
    given = array("initial", initial)
    refuse(given.shape == (rows, width), "initial", f"has shape {given.shape}; it must be ({rows}, {width})", "shape")
    return lambda id: given[id]
