"""Records scalars, vectors and text to a tape, which becomes a Parquet file when it is closed."""

import contextlib
import os
from collections.abc import Mapping
from typing import Any, SupportsIndex

import numpy as np

from relive.episodes.write.background_columns_writer import LARGE_BYTES, BackgroundColumnsWriter
from relive.episodes.write.signal_writer import (
    SignalTarget,
    SignalWriter,
    clock_times,
    first_clocks,
    free_path,
)
from relive.episodes.write.statistics import SignalStats, rate_hz
from relive.episodes.write.values import Form, as_record, as_stamp
from relive.errors import InvalidError
from relive.model.clock import now_ns
from relive.store.atomic import replace_file
from relive.store.signal.meta import SignalMeta
from relive.store.signal.parquet_writer import ColumnsWriter
from relive.store.signal.tape import new_path, seal_columns


class ColumnsSignalWriter(SignalWriter):
    """A signal of scalars, vectors or text that is being recorded, by itself or in an episode."""

    def __init__(self, target: SignalTarget) -> None:
        self._background: BackgroundColumnsWriter | None = None
        self._rows = 0
        # Appends a record that needs no check: an array of this dtype and shape, without clocks.
        self._quick: Any = None
        self._dtype: np.dtype[Any] | None = None
        self._shape: tuple[int, ...] = ()
        super().__init__(target)
        self._target = new_path(self._path) if self._overwrite else self._path

    def append(
        self,
        data: Any,
        ts_ns: SupportsIndex | None = None,
        clocks: Mapping[str, SupportsIndex] | None = None,
    ) -> None:
        """Append a copy of `data`, later than all records before.

        Args:
            data: An int, float, bool or str, an array, or anything that NumPy converts to one;
                all records have the dtype and shape of the first.
            ts_ns: The timestamp; by default the current time, `relive.episodes.now_ns()`.
            clocks: Times on further clocks, by name; every record has the same clocks.
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
                with self._mutex:  # else another thread could append a later time first
                    quick(now_ns(), data)
                return
        if self._tape is None:  # Ctrl-C leaves a tape with its first record, or no tape
            self._run_to_the_end(lambda: self._append(data, ts_ns, clocks))
        else:
            self._append(data, ts_ns, clocks)

    @property
    def stats(self) -> SignalStats:
        """The state of the recording."""
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
                    f"signal {self._name!r}: expected a record of {self._form}, got {form}"
                )
            times = clock_times(self._name, self._clocks, clocks)
            self._tape.append(stamp, payload, times)
            if self._background is not None:
                self._background.put(self._tape.rows - 1, payload, stamp, times)

    def _append_first(
        self, form: Form, payload: Any, stamp: int, clocks: Mapping[str, SupportsIndex] | None
    ) -> None:
        known = first_clocks(self._name, clocks)
        times = clock_times(self._name, known, clocks)
        meta = self._meta(form, known)
        tape = self._new_tape(meta, meta.nbytes)
        try:
            tape.append(stamp, payload, times)
        except BaseException:
            tape.abort()
            self._release()
            raise
        self._tape, self._form, self._clocks, self._first_ts = tape, form, known, stamp
        if (meta.nbytes or 0) >= LARGE_BYTES:
            self._background = BackgroundColumnsWriter(meta, self._target, self._digests)
            self._background.put(0, payload, stamp, times)
        elif form.kind == "vector" and not known.names:
            self._dtype, self._shape = np.dtype(form.dtype), form.shape
            self._quick = tape.append

    def _describe(self, attrs: Mapping[str, Any]) -> None:
        with self._mutex:
            super()._describe(attrs)
            self._stop_background()  # its file was begun with the earlier attributes

    def _finish(self) -> None:
        if self._tape is None:
            meta = SignalMeta(self._name, "scalar", "float64", (), self._attrs)
            with ColumnsWriter(self._target, meta, self._digests):
                pass
            self._rename()
            return
        self._stop()
        try:
            self._tape.close()
            if self._background is None:
                self._rows = seal_columns(
                    self._tape_path, self._target, rows=self._rows, digests=self._digests
                )
            else:
                self._rows = self._background.seal(self._tape_path, self._rows)
            self._rename()
            self._unlink(self._tape_path)
        finally:
            self._release()

    def _rename(self) -> None:
        if self._overwrite:
            replace_file(self._target, self._path)

    def _remove(self) -> None:
        if self._tape is None:
            return
        self._stop()
        self._stop_background()
        try:
            with contextlib.suppress(OSError):
                self._tape.abort()
            self._unlink(self._tape_path)
        finally:
            self._release()

    def _keep_unfinished(self) -> None:
        if self._tape is not None:
            self._stop()
            self._stop_background()
            try:
                self._tape.close()
            finally:
                self._release()

    def _stop(self) -> None:
        self._quick = None
        if self._tape is not None:
            self._rows, self._last_ts = self._tape.rows, self._tape.last_ts

    def _stop_background(self) -> None:
        if self._background is not None:
            self._background.abort()
            self._background = None


class SimpleSignalWriter(ColumnsSignalWriter):
    """A signal of scalars, vectors or text that is being recorded to a Parquet file.

    The first record decides the dtype, shape and further clocks of all. Until the writer is
    closed, records are on a tape beside the file, `.<file>.tape`, which survives the end of the
    process; `relive recover` makes the file from it. Thread-safe.

    Args:
        path: The path of the file.
        name: The name of the signal; by default the name of the file.
        attrs: Attributes of the signal, as for `describe`.
        overwrite: Whether an existing file is replaced when the writer is closed; otherwise it
            is an `AlreadyExistsError`.

    Example:
        >>> from relive.episodes import SimpleSignal, SimpleSignalWriter
        >>> with SimpleSignalWriter("height.parquet", attrs={"unit": "m"}) as writer:
        ...     writer.append(0.5, ts_ns=1_000)
        ...     writer.append(0.75, ts_ns=2_000)
        >>> signal = SimpleSignal("height.parquet")
        >>> signal[1]
        (np.float64(0.75), 2000)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        attrs: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> None:
        file = free_path(path, "a signal", overwrite=overwrite)
        super().__init__(SignalTarget.alone((file,), name, attrs, overwrite=overwrite))
