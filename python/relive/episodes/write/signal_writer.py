"""The common part of the writers of one signal: its tape, its lock, its checks."""

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, SupportsIndex

from relive._arguments import as_name, as_text
from relive._native import TapeWriter
from relive.episodes.layout import check_name, signal_name
from relive.episodes.write.statistics import SignalStats
from relive.episodes.write.values import Form, as_stamp
from relive.errors import AlreadyExistsError, InvalidError, InvalidTypeError
from relive.model.clock import INT64_MAX, INT64_MIN
from relive.model.episode import check_json
from relive.store.atomic import already_exists, check_file, storage_error
from relive.store.digest import Digests
from relive.store.lifecycle import WriterLifecycle
from relive.store.locks import FileLock, is_locked
from relive.store.paths import absolute_path
from relive.store.signal.meta import SignalMeta
from relive.store.signal.tape import attrs_note, make_head, tape_path

_LONGEST_CLOCK: Final = 200


class Clocks(NamedTuple):
    """The further clocks of a signal, in the order of its columns."""

    names: tuple[str, ...]
    known: frozenset[str]


class SignalTarget(NamedTuple):
    """Which signal is recorded, and to which files; the first is the one with the values."""

    name: str
    attrs: Mapping[str, Any]
    files: tuple[Path, ...]
    is_alone: bool = False
    """Whether it belongs to no episode; it then locks its tape itself."""
    overwrite: bool = False
    digests: Digests | None = None
    """Gets the digests of the files when they are complete."""

    @classmethod
    def alone(
        cls,
        files: tuple[Path, ...],
        name: str | None,
        attrs: Mapping[str, Any] | None,
        *,
        overwrite: bool,
    ) -> "SignalTarget":
        """Check the arguments of a signal that is recorded by itself."""
        checked = signal_name(files[0].stem) if name is None else check_name(name)
        described = check_attrs(checked, None, None, attrs or {})
        return cls(checked, described, files, is_alone=True, overwrite=overwrite)


class SignalWriter(WriterLifecycle):
    """A signal that is being recorded, in the order of time; its file appears when it is closed.

    Leaving `with` closes it, and so does Ctrl-C. Another exception leaves it unfinished: nothing
    is lost, and `relive recover` makes the file.
    """

    def __init__(self, target: SignalTarget) -> None:
        self._name = target.name
        self._attrs = dict(target.attrs)
        self._files = target.files
        self._path = target.files[0]
        self._is_alone = target.is_alone
        self._overwrite = target.overwrite
        self._digests = target.digests
        self._tape_path = tape_path(self._path)
        self._tape: TapeWriter | None = None
        self._lock: FileLock | None = None
        self._form: Form | None = None
        self._clocks = Clocks((), frozenset())
        self._first_ts: int | None = None
        self._last_ts: int | None = None
        if self._is_alone and self._tape_path.exists():
            raise self._unfinished_error()
        super().__init__(is_part=not self._is_alone)  # last: from here on it is left if dropped

    @property
    def name(self) -> str:
        """The name of the signal."""
        return self._name

    @property
    def path(self) -> Path:
        """The path of its file."""
        return self._path

    @abstractmethod
    def append(
        self,
        data: Any,
        ts_ns: SupportsIndex | None = None,
        clocks: Mapping[str, SupportsIndex] | None = None,
    ) -> None:
        """Append a record, later than all before."""

    def describe(
        self, *, names: Sequence[str] | None = None, unit: str | None = None, **attrs: Any
    ) -> None:
        """Set attributes of the signal; attributes that were set before and are not named stay.

        Args:
            names: The names of the components of a vector, one for each.
            unit: The unit of the values.
            **attrs: Any JSON values.
        """
        checked = check_attrs(self._name, names, unit, attrs)
        self._run_to_the_end(lambda: self._describe(checked))

    def flush(self) -> None:
        """Make every record so far survive the end of this process.

        Waits until the frames of a camera are encoded.
        """
        self._drain()
        if self._tape is not None:
            self._tape.flush()

    def sync(self) -> None:
        """Make every record so far survive a power cut.

        Waits until the frames of a camera are encoded.
        """
        self._drain()
        if self._tape is not None:
            self._tape.sync()

    @property
    @abstractmethod
    def stats(self) -> SignalStats:
        """The state of the recording."""

    def _drain(self) -> None:
        """Wait until everything appended is on the tape."""
        self._check_open()

    def __len__(self) -> int:
        """Return the number of records that were appended."""
        return self.stats.rows

    def __repr__(self) -> str:
        """Return the path and the number of records, on one line."""
        state = f"{len(self)} records" if self._state == "open" else self._state
        return f"{type(self).__name__}({self.path}: {state})"

    def _describe(self, attrs: Mapping[str, Any]) -> None:
        with self._mutex:
            self._check_open()
            if self._form is not None:
                _check_names(self._name, self._form.kind, self._form.shape, attrs)
            if self._tape is not None:
                self._tape.note(attrs_note(attrs))
            self._attrs.update(attrs)

    def _drop_queue(self) -> None:
        """Drop the records that are not on the tape yet."""

    def _meta(self, form: Form, clocks: Clocks) -> SignalMeta:
        """Return the metadata of the signal, whose records have this form and these clocks."""
        _check_names(self._name, form.kind, form.shape, self._attrs)
        return SignalMeta(self._name, form.kind, form.dtype, form.shape, self._attrs, clocks.names)

    def _new_tape(self, meta: SignalMeta, row_bytes: int | None) -> TapeWriter:
        """Create the tape; after an error there is none."""
        # An episode may be moved, and its layout defines the files of its signals.
        files = self._files if self._is_alone else ()
        head = make_head(meta, *files, overwrite=self._overwrite)
        path = os.fspath(self._tape_path)
        try:
            tape = TapeWriter(path, self._name, head, row_bytes, len(meta.clocks))
        except AlreadyExistsError as error:
            raise self._unfinished_error() from error
        if self._is_alone:
            try:
                self._lock = FileLock.take(self._tape_path)
            except BaseException:
                tape.abort()
                raise
            self._kept.append(self._lock)
        return tape

    def _unlink(self, *paths: Path) -> None:
        try:
            for path in paths:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise storage_error(error, self._path, "finish") from error

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _unfinished_error(self) -> AlreadyExistsError:
        if is_locked(self._tape_path):
            return AlreadyExistsError(
                f"cannot record `{self._path}`: another writer is recording it"
            )
        return AlreadyExistsError(
            f"an unfinished recording of `{self._path}` exists: `{self._tape_path}`",
            hint=f"run `relive recover {self._path}` to finish it",
        )

    def _add_note(self, error: BaseException) -> None:
        if self._is_alone:  # else the episode adds the note
            super()._add_note(error)

    def _destination(self) -> str:
        return os.fspath(self._path)


def free_path(path: Any, what: str, *, overwrite: bool) -> Path:
    """Return the absolute path of a file that is to be written; it must not exist yet."""
    target = Path(absolute_path(path, what))
    if target.is_dir():
        raise InvalidError(f"`{target}` is a directory, expected the path of a file")
    if not overwrite and target.exists():
        raise already_exists(target)
    check_file(target)  # a named pipe, for example, must not be replaced
    return target


def check_attrs(
    name: str, names: Sequence[str] | None, unit: str | None, attrs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the attributes of a signal as JSON values."""
    described: dict[str, Any] = dict(attrs)
    if names is not None:
        if isinstance(names, str) or not all(isinstance(each, str) for each in names):
            raise InvalidTypeError(
                f"signal {name!r}: `names` must be a list of strings, got {names!r}"
            )
        described["names"] = list(names)
    if unit is not None:
        described["unit"] = as_text(f"signal {name!r}: `unit`", unit)
    return {key: check_json(f"{key} of signal {name!r}", value) for key, value in described.items()}


def _check_names(name: str, kind: str, shape: tuple[int, ...], attrs: Mapping[str, Any]) -> None:
    """Check that there is one name for each component along the last axis."""
    names = attrs.get("names")
    if isinstance(names, list) and len(names) != (shape[-1] if shape else 1):
        has = f"the values have the shape {shape}" if shape else f"the values are of kind {kind}"
        raise InvalidError(f"signal {name!r}: `names` has {len(names)} items, but {has}")


def first_clocks(name: str, clocks: Any) -> Clocks:
    """Return the clocks of a signal whose first record has these."""
    if clocks is None:
        return Clocks((), frozenset())
    if not isinstance(clocks, Mapping):
        raise _not_clocks(name, clocks)
    for clock in clocks:
        as_name(f"signal {name!r}: the name of a clock", clock, _LONGEST_CLOCK)
    return Clocks(tuple(clocks), frozenset(clocks))


def clock_times(
    name: str, expected: Clocks, clocks: Mapping[str, SupportsIndex] | None
) -> tuple[int, ...] | None:
    """Return the times of a record on the further clocks, in their order; None without any."""
    if not clocks:
        if expected.names:
            raise _other_clocks(name, expected, ())
        return None
    if type(clocks) is not dict and not isinstance(clocks, Mapping):
        raise _not_clocks(name, clocks)
    if clocks.keys() != expected.known:
        raise _other_clocks(name, expected, tuple(clocks))
    times: list[Any] = [clocks[clock] for clock in expected.names]
    for position, time in enumerate(times):
        if type(time) is not int or not INT64_MIN <= time <= INT64_MAX:
            what = f"time of clock {expected.names[position]!r}"
            times[position] = as_stamp(name, time, what)
    return tuple(times)


def _other_clocks(name: str, expected: Clocks, found: tuple[str, ...]) -> InvalidError:
    listed, passed = (", ".join(map(repr, names)) or "none" for names in (expected.names, found))
    return InvalidError(f"signal {name!r}: this record has the clocks {passed}, expected {listed}")


def _not_clocks(name: str, clocks: Any) -> InvalidTypeError:
    return InvalidTypeError(
        f"signal {name!r}: `clocks` must be a dict from clock names to times, got {clocks!r}"
    )
