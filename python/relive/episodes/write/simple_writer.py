"""Recording scalars, vectors and text: the tape of a signal, and the file it becomes."""

import contextlib
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np

from relive._native import TapeWriter
from relive.episodes.layout import COLUMNS, check_name, file_stem
from relive.episodes.write.background_columns_writer import LARGE_BYTES, Follower
from relive.episodes.write.signal_writer import (
    SignalWriter,
    check_attrs,
    check_names,
    clock_times,
    first_clocks,
    free_path,
    usual_name,
)
from relive.episodes.write.statistics import SignalStats, rate_hz
from relive.episodes.write.values import Form, as_record, as_stamp
from relive.errors import InvalidError
from relive.model.clock import now_ns
from relive.store.signal.meta import SignalMeta
from relive.store.signal.parquet_writer import ColumnsWriter
from relive.store.signal.tape import new_path, put_in_place, seal_columns

__all__ = ["SimpleSignalWriter"]


class SimpleSignalWriter(SignalWriter):
    """A signal of scalars, vectors or text being recorded, a Parquet file when it is closed.

    The first record says what all are: dtype, shape and further clocks. Records are kept on a
    tape beside the file, `.<file>.tape`, that survives the end of the process. Thread-safe.

    Args:
        path: Where the file will be.
        name: What the signal is called; by default as its file.
        attrs: What `describe` would say.
        overwrite: Whether an existing file is replaced at the end; else it is an
            `AlreadyExistsError`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        attrs: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> None:
        place = free_path(path, "a signal", overwrite=overwrite)
        called = usual_name(place) if name is None else check_name(name)
        said = check_attrs(called, None, None, attrs or {})
        self._begin(place, called, said, alone=True, overwrite=overwrite)

    @classmethod
    def inside(cls, folder: Path, name: str, attrs: Mapping[str, Any]) -> "SimpleSignalWriter":
        """Begin a signal of an episode, whose lock holds for all its signals."""
        writer = cls.__new__(cls)
        place = folder / f"{file_stem(name)}{COLUMNS}"
        writer._begin(place, name, attrs, alone=False, overwrite=False)  # noqa: SLF001 - its own
        return writer

    def _begin(
        self, place: Path, name: str, attrs: Mapping[str, Any], *, alone: bool, overwrite: bool
    ) -> None:
        self._follower: Follower | None = None
        self._form: Form | None = None
        self._rows = 0
        # What a record is that needs no look: an array of this dtype and shape, and no clocks.
        self._quick: Any = None
        self._dtype: np.dtype[Any] | None = None
        self._shape: tuple[int, ...] = ()
        super().__init__(place, name, attrs, alone=alone, overwrite=overwrite)

    def append(
        self,
        data: Any,
        ts_ns: SupportsIndex | None = None,
        clocks: Mapping[str, SupportsIndex] | None = None,
    ) -> None:
        """Append a copy of `data`, later than all before, in microseconds.

        `data` is an int, float, bool or str, or an array or what NumPy makes one of; all have
        the dtype and shape of the first. Without `ts_ns` it is now, by `relive.episodes.now_ns`.
        `clocks` are times on further clocks, the same ones for each record.
        """
        quick = self._quick
        if (
            quick is not None
            and type(data) is np.ndarray
            and data.dtype is self._dtype
            and data.shape == self._shape
            and clocks is None
            and data.flags.c_contiguous
        ):
            if type(ts_ns) is int:
                quick(ts_ns, data)
                return
            if ts_ns is None:
                with self._mutex:  # or another thread might come first with a later time
                    quick(now_ns(), data)
                return
        if self._tape is None:  # a tape is there with its first record, or not at all
            self._run_to_the_end(lambda: self._append(data, ts_ns, clocks))
        else:
            self._append(data, ts_ns, clocks)

    def flush(self) -> None:
        """Make every record so far survive the end of this process."""
        self._check_open()
        if self._tape is not None:
            self._tape.flush()

    def sync(self) -> None:
        """Make every record so far survive a power cut."""
        self._check_open()
        if self._tape is not None:
            self._tape.sync()

    @property
    def stats(self) -> SignalStats:
        """How recording goes."""
        tape = self._tape
        if tape is None or self._state != "open":
            return SignalStats(self._rows, rate_hz(self._rows, self._first_ts, self._last_ts))
        rows = tape.rows
        return SignalStats(
            rows, rate_hz(rows, self._first_ts, tape.last_ts), pending_bytes=tape.pending_bytes
        )

    def _append(
        self, data: Any, ts_ns: SupportsIndex | None, clocks: Mapping[str, SupportsIndex] | None
    ) -> None:
        form, payload = as_record(self._name, data)
        with self._mutex:
            self._check_open()
            stamp = now_ns() if ts_ns is None else as_stamp(self._name, ts_ns)
            if self._tape is None:
                self._append_first(form, payload, stamp, clocks)
                return
            if form != self._form:
                raise InvalidError(
                    f"signal {self._name!r} holds {self._form}, and this record is {form}"
                )
            times = clock_times(self._name, self._clocks, clocks)
            self._tape.append(stamp, payload, times)
            if self._follower is not None:
                self._follower.put(self._tape.rows - 1, payload, stamp, times)

    def _append_first(
        self, form: Form, payload: Any, stamp: int, clocks: Mapping[str, SupportsIndex] | None
    ) -> None:
        known = first_clocks(self._name, clocks)
        times = clock_times(self._name, known, clocks)
        meta = SignalMeta(self._name, form.kind, form.dtype, form.shape, self._attrs, known.names)
        check_names(self._name, form.kind, form.shape, self._attrs)
        tape = self._new_tape(meta, meta.nbytes)
        try:
            tape.append(stamp, payload, times)
        except BaseException:
            tape.abort()
            self._release()
            raise
        self._tape, self._form, self._clocks, self._first_ts = tape, form, known, stamp
        if (meta.nbytes or 0) >= LARGE_BYTES:
            self._follower = Follower(meta, self._target())
            weakref.finalize(self, self._follower.abandon)
            self._follower.put(0, payload, stamp, times)
        elif form.kind == "vector" and not known.names:
            self._dtype, self._shape = np.dtype(form.dtype), form.shape
            self._quick = tape.append

    def _describe(self, said: Mapping[str, Any]) -> None:
        with self._mutex:
            super()._describe(said)
            self._unfollow()  # its file has begun with what was said before

    def _form_is(self) -> tuple[str, tuple[int, ...]] | None:
        return None if self._form is None else (self._form.kind, self._form.shape)

    def _files(self) -> tuple[Path, ...]:
        return (self._path,)

    def _finish(self) -> None:
        target = self._target()
        if self._tape is None:
            meta = SignalMeta(self._name, "scalar", "float64", (), self._attrs)
            with ColumnsWriter(target, meta):
                pass
            self._put_in_place(target)
            return
        self._stop()
        try:
            self._tape.close()
            self._rows = self._sealed(self._tape, target)
            self._put_in_place(target)
            self._unlink(self._tape_path)
        finally:
            self._release()

    def _put_in_place(self, target: Path) -> None:
        if self._overwrite:
            put_in_place(target, self._path)

    def _target(self) -> Path:
        return new_path(self._path) if self._overwrite else self._path

    def _sealed(self, tape: TapeWriter, target: Path) -> int:
        if self._follower is None:
            return seal_columns(self._tape_path, target, rows=tape.rows)
        return self._follower.finish(self._tape_path, tape.rows)

    def _remove(self) -> None:
        if self._tape is None:
            return
        self._stop()
        self._unfollow()
        try:
            with contextlib.suppress(OSError):
                self._tape.abort()
            self._unlink(self._tape_path)
        finally:
            self._release()

    def _keep_unfinished(self) -> None:
        if self._tape is not None:
            self._stop()
            self._unfollow()
            try:
                self._tape.close()
            finally:
                self._release()

    def _stop(self) -> None:
        self._quick = None
        if self._tape is not None:
            self._rows, self._last_ts = self._tape.rows, self._tape.last_ts

    def _unfollow(self) -> None:
        if self._follower is not None:
            self._follower.discard()
            self._follower = None
