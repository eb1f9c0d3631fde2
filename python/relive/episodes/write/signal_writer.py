"""What all writers of one signal have in common."""

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, SupportsIndex

from relive._native import TapeWriter
from relive.episodes.layout import signal_name
from relive.episodes.write.statistics import SignalStats
from relive.episodes.write.values import as_stamp
from relive.errors import AlreadyExistsError, InvalidError, InvalidTypeError
from relive.model.clock import INT64_MAX, INT64_MIN
from relive.model.episode import check_json
from relive.store.atomic import storage_error
from relive.store.lifecycle import WriterLifecycle
from relive.store.locks import FileLock, is_locked
from relive.store.paths import absolute_path
from relive.store.signal.meta import SignalMeta
from relive.store.signal.tape import attrs_note, make_head, tape_path

__all__ = [
    "Clocks",
    "SignalWriter",
    "check_attrs",
    "check_names",
    "clock_times",
    "first_clocks",
    "free_path",
    "usual_name",
]

_LONGEST_CLOCK: Final = 200


class Clocks(NamedTuple):
    """The further clocks of a signal, in the order of its columns."""

    names: tuple[str, ...]
    known: frozenset[str]


class SignalWriter(WriterLifecycle):
    """A signal being recorded: appended to in the order of time, a file when it is closed.

    `with` closes it at the end. A block that raises leaves it unfinished: nothing is lost, and
    `relive recover` makes the file; Ctrl-C closes it. One that is `alone` belongs to no episode,
    and holds its tape locked; the lock of an episode holds for all its signals.
    """

    def __init__(
        self, path: Path, name: str, attrs: Mapping[str, Any], *, alone: bool, overwrite: bool
    ) -> None:
        self._path = path
        self._name = name
        self._attrs = dict(attrs)
        self._is_alone = alone
        self._overwrite = overwrite
        self._tape_path = tape_path(path)
        self._tape: TapeWriter | None = None
        self._lock: FileLock | None = None
        self._clocks = Clocks((), frozenset())
        self._first_ts: int | None = None
        self._last_ts: int | None = None
        if alone and self._tape_path.exists():
            raise self._unfinished_error()
        super().__init__()  # the end of the interpreter leaves what is a whole one

    @property
    def name(self) -> str:
        """What the signal is called."""
        return self._name

    @property
    def path(self) -> str:
        """Where its file will be."""
        return os.fspath(self._path)

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
        """Say what the values are; what was said before about other things stays."""
        said = check_attrs(self._name, names, unit, attrs)
        self._run_to_the_end(lambda: self._describe(said))

    @abstractmethod
    def flush(self) -> None:
        """Make every record so far survive the end of this process."""

    @abstractmethod
    def sync(self) -> None:
        """Make every record so far survive a power cut."""

    def discard(self) -> None:
        """Write no more, also not what waits; what is on the disk stays for others to remove."""
        self.leave()

    @property
    @abstractmethod
    def stats(self) -> SignalStats:
        """How recording goes."""

    def __len__(self) -> int:
        """Count the records that were taken."""
        return self.stats.rows

    def __repr__(self) -> str:
        """Give the place and the number of records, on one line."""
        state = f"{len(self)} records" if self._state == "open" else self._state
        return f"{type(self).__name__}({self.path}: {state})"

    def _describe(self, said: Mapping[str, Any]) -> None:
        with self._mutex:
            self._check_open()
            if (form := self._form_is()) is not None:
                check_names(self._name, *form, said)
            if self._tape is not None:
                self._tape.note(attrs_note(said))
            self._attrs.update(said)

    @abstractmethod
    def _form_is(self) -> tuple[str, tuple[int, ...]] | None:
        """Give the kind and shape of the values; None before the first."""

    @abstractmethod
    def _files(self) -> tuple[Path, ...]:
        """Give the files that the tape becomes."""

    def _new_tape(self, meta: SignalMeta, row_bytes: int | None) -> TapeWriter:
        """Begin a tape; after an error there is none."""
        # An episode may be moved, and knows what its tapes become.
        files = self._files() if self._is_alone else ()
        head = make_head(meta, *files, overwrite=self._overwrite)
        place = os.fspath(self._tape_path)
        try:
            tape = TapeWriter(place, self._name, head, row_bytes, len(meta.clocks))
        except AlreadyExistsError as error:
            raise self._unfinished_error() from error
        if self._is_alone:
            try:
                self._lock = FileLock.take(self._tape_path)
            except BaseException:
                tape.abort()
                raise
        return tape

    def _unlink(self, *places: Path) -> None:
        try:
            for place in places:
                place.unlink(missing_ok=True)
        except OSError as error:
            raise storage_error(error, self._path, "finished") from error

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _unfinished_error(self) -> AlreadyExistsError:
        """Make the error for a place where an unfinished signal is."""
        if is_locked(self._tape_path):
            return AlreadyExistsError(f"`{self._path}` is being recorded by another writer")
        return AlreadyExistsError(
            f"`{self._tape_path}` is what a writer left that was to become `{self._path}`",
            hint=f"`relive recover {self._path}` finishes it",
        )

    def _add_note(self, error: BaseException) -> None:
        if self._is_alone:  # else it is the episode that is unfinished
            super()._add_note(error)

    def _destination(self) -> str:
        return self.path


def free_path(path: Any, what: str, *, overwrite: bool) -> Path:
    """Give the place of a file that is to be written, where nothing is unless `overwrite`."""
    place = Path(absolute_path(path, what))
    if place.is_dir():
        raise InvalidError(f"`{place}` is a folder, and a file was meant")
    if not overwrite and place.exists():
        raise AlreadyExistsError(f"`{place}` exists", hint="pass overwrite=True to replace it")
    return place


def usual_name(place: Path) -> str:
    """Give the name of a signal that nobody named, from that of its file."""
    return signal_name(place.stem)


def check_attrs(
    name: str, names: Sequence[str] | None, unit: str | None, attrs: Mapping[str, Any]
) -> dict[str, Any]:
    """Give what is said about a signal as JSON holds it."""
    said: dict[str, Any] = dict(attrs)
    if names is not None:
        if isinstance(names, str) or not all(isinstance(each, str) for each in names):
            raise InvalidTypeError(f"signal {name!r}: names are a list of strings, not {names!r}")
        said["names"] = list(names)
    if unit is not None:
        if not isinstance(unit, str):
            raise InvalidTypeError(f"signal {name!r}: a unit is a string, not {unit!r}")
        said["unit"] = unit
    return {key: check_json(f"{key} of signal {name!r}", value) for key, value in said.items()}


def check_names(name: str, kind: str, shape: tuple[int, ...], attrs: Mapping[str, Any]) -> None:
    """Refuse names of components that the values do not have: one for each of the last axis."""
    names = attrs.get("names")
    if isinstance(names, list) and len(names) != (shape[-1] if shape else 1):
        has = f"its values have the shape {shape}" if shape else f"its values are {kind}"
        raise InvalidError(f"signal {name!r} has {len(names)} names, and {has}")


def first_clocks(name: str, clocks: Mapping[str, SupportsIndex] | None) -> Clocks:
    """Give the clocks that the first record of a signal has."""
    if clocks is None:
        return Clocks((), frozenset())
    if not isinstance(clocks, Mapping):
        raise InvalidTypeError(f"signal {name!r}: clocks map names to times, unlike {clocks!r}")
    for clock in clocks:
        if not isinstance(clock, str):
            raise InvalidTypeError(f"signal {name!r}: a clock has a name, not {clock!r}")
        if not _can_name_a_clock(clock):
            raise InvalidError(f"signal {name!r}: a clock cannot be called {clock!r}")
    return Clocks(tuple(clocks), frozenset(clocks))


def _can_name_a_clock(text: str) -> bool:
    try:
        return 0 < len(text.encode()) <= _LONGEST_CLOCK and "\0" not in text
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def clock_times(
    name: str, expected: Clocks, clocks: Mapping[str, SupportsIndex] | None
) -> tuple[int, ...] | None:
    """Give the times on further clocks in their order; None where the signal has none."""
    if not clocks:
        if expected.names:
            raise _other_clocks(name, expected, ())
        return None
    if type(clocks) is not dict and not isinstance(clocks, Mapping):
        raise InvalidTypeError(f"signal {name!r}: clocks map names to times, unlike {clocks!r}")
    if clocks.keys() != expected.known:
        raise _other_clocks(name, expected, tuple(clocks))
    times: list[Any] = [clocks[clock] for clock in expected.names]
    for place, time in enumerate(times):
        if type(time) is not int or not INT64_MIN <= time <= INT64_MAX:
            times[place] = as_stamp(name, time, f"time of clock {expected.names[place]!r}")
    return tuple(times)


def _other_clocks(name: str, expected: Clocks, found: tuple[str, ...]) -> InvalidError:
    listed, given = (", ".join(map(repr, names)) or "none" for names in (expected.names, found))
    return InvalidError(
        f"signal {name!r}: its records have the further clocks {listed}, and this one {given}"
    )
