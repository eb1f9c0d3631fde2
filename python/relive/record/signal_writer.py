"""What all writers of one signal have in common."""

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, SupportsIndex

from relive.errors import AlreadyExistsError, InvalidError, InvalidTypeError
from relive.model.times import INT64_MAX, INT64_MIN
from relive.record.life import Life
from relive.record.names import signal_name
from relive.record.statics import check_json
from relive.record.statistics import SignalStats
from relive.record.values import as_stamp
from relive.store.places import absolute_path

__all__ = [
    "Clocks",
    "SignalWriter",
    "check_attrs",
    "clock_times",
    "first_clocks",
    "free_path",
    "unfinished_error",
    "usual_name",
]

_LONGEST_CLOCK: Final = 200


class Clocks(NamedTuple):
    """The further clocks of a signal, in the order of its columns."""

    names: tuple[str, ...]
    known: frozenset[str]


class SignalWriter(Life):
    """A signal being recorded: appended to in the order of time, a file when it is closed.

    `with` closes it at the end. A block that raises leaves it unfinished: nothing is lost, and
    `relive recover` makes the file; Ctrl-C closes it.
    """

    def __init__(self, path: Path, name: str, attrs: Mapping[str, Any]) -> None:
        super().__init__()
        self._path = path
        self._name = name
        self._attrs = dict(attrs)

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

    @abstractmethod
    def describe(
        self, *, names: Sequence[str] | None = None, unit: str | None = None, **attrs: Any
    ) -> None:
        """Say what the values are; what was said before about other things stays."""

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

    def _where(self) -> str:
        return self.path


def free_path(path: Any, what: str, *, overwrite: bool) -> Path:
    """Give the place of a file that is to be written, where nothing is unless `overwrite`."""
    place = Path(absolute_path(path, what))
    if place.is_dir():
        raise InvalidError(f"`{place}` is a folder, and a file was meant")
    if not overwrite and place.exists():
        raise AlreadyExistsError(f"`{place}` exists", hint="pass overwrite=True to replace it")
    return place


def unfinished_error(tape: Path, place: Path) -> AlreadyExistsError:
    """Make the error for a place where an unfinished signal is."""
    return AlreadyExistsError(
        f"`{tape}` is what a writer left that was to become `{place}`",
        hint=f"`relive recover {place}` finishes it",
    )


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


def first_clocks(name: str, clocks: Mapping[str, SupportsIndex] | None) -> Clocks:
    """Give the clocks that the first record of a signal has."""
    if clocks is None:
        return Clocks((), frozenset())
    if not isinstance(clocks, Mapping):
        raise InvalidTypeError(f"signal {name!r}: clocks map names to times, unlike {clocks!r}")
    for clock in clocks:
        if not isinstance(clock, str):
            raise InvalidTypeError(f"signal {name!r}: a clock has a name, not {clock!r}")
        if not clock or "\0" in clock or len(clock.encode(errors="replace")) > _LONGEST_CLOCK:
            raise InvalidError(f"signal {name!r}: a clock cannot be called {clock!r}")
    return Clocks(tuple(clocks), frozenset(clocks))


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
