"""An `Episode`: signals on one time axis, and what holds for all of it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np

from relive.errors import InvalidError, NoValueError, UnknownNameError
from relive.model.clock import as_time, as_times
from relive.model.signal import Part, Signal, copied

if TYPE_CHECKING:
    from relive.model.resample import Policy

__all__ = ["Episode", "EpisodeTime", "EpisodeView"]


class Episode(ABC):
    """Signals that were recorded together, and statics: values that hold for all of it.

    `episode[name]` is a signal or a static. A subclass gives `signals`, `statics` and `meta`;
    all the rest follows from them.
    """

    @property
    @abstractmethod
    def signals(self) -> Mapping[str, Signal[Any]]:
        """The signals, by name, in the order of their names."""

    @property
    @abstractmethod
    def statics(self) -> Mapping[str, Any]:
        """The statics, by name; what is changed in them changes no other answer."""

    @property
    @abstractmethod
    def meta(self) -> dict[str, Any]:
        """What the system noted: `uid`, `created_ts_ns`, `writer`, `outcome`; a copy."""

    @property
    def uid(self) -> str:
        """What identifies the episode, wherever it is."""
        return str(self.meta.get("uid", ""))

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of all signals and statics."""
        return (*self.signals, *self.statics)

    def __getitem__(self, name: str) -> Any:
        """Give the signal or the static of that name."""
        signals = self.signals
        if name in signals:
            return signals[name]
        statics = self.statics
        if name in statics:
            return statics[name]
        raise self._unknown(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Give the signal or the static of that name, or `default` where there is none."""
        return self[name] if name in self else default  # noqa: SIM401 - this is what it is

    def values(self) -> tuple[Any, ...]:
        """Give all signals and statics, in the order of `keys`."""
        return tuple(value for _, value in self.items())

    def items(self) -> tuple[tuple[str, Any], ...]:
        """Give the name and the signal or static of each, in the order of `keys`."""
        return (*self.signals.items(), *self.statics.items())

    def __contains__(self, name: object) -> bool:
        """Whether there is a signal or a static of that name."""
        return name in self.signals or name in self.statics

    def __iter__(self) -> Iterator[str]:
        """Give the names of all signals and statics."""
        return iter(self.keys)

    def __len__(self) -> int:
        """Count the signals and statics."""
        return len(self.keys)

    @property
    def start_ts(self) -> int:
        """The time from which on every signal that has records has a value."""
        return max(signal.start_ts for signal in self._recorded())

    @property
    def first_ts(self) -> int:
        """The time of the first record of any signal."""
        return min(signal.start_ts for signal in self._recorded())

    @property
    def last_ts(self) -> int:
        """The time of the last record of any signal."""
        return max(signal.last_ts for signal in self._recorded())

    @property
    def duration_ns(self) -> int:
        """The nanoseconds from the first record of any signal to the last."""
        return self.last_ts - self.first_ts

    @property
    def time(self) -> "EpisodeTime":
        """Select by time; see `EpisodeTime`."""
        return EpisodeTime(self)

    def resample(
        self, ts: Any, policy: "Policy | str | Mapping[str, Policy | str]" = "hold"
    ) -> "EpisodeView":
        """Give the episode with every signal at the times `ts`.

        `policy` holds for all signals, or is a dict by name; signals it does not name hold.
        """
        times = as_times(ts)
        chosen = policy if isinstance(policy, Mapping) else dict.fromkeys(self.signals, policy)
        for name in chosen:
            if name not in self.signals:
                raise self._unknown(name)
        return self.derived(
            {
                name: signal.resample(times, chosen.get(name, "hold"))
                for name, signal in self.signals.items()
            }
        )

    def derived(self, signals: Mapping[str, Signal[Any]]) -> "EpisodeView":
        """Give an episode with other signals, and everything else from this one."""
        return EpisodeView(signals, self.statics, self.meta)

    def __repr__(self) -> str:
        """Give the uid and what is in it, on one line."""
        return (
            f"{type(self).__name__}({self.uid!r}, {len(self.signals)} signals, "
            f"{len(self.statics)} statics)"
        )

    def _recorded(self) -> list[Signal[Any]]:
        found = [signal for signal in self.signals.values() if len(signal)]
        if not found:
            raise InvalidError(f"{self!r} has no signal with records, so no first and no last time")
        return found

    def _unknown(self, name: object) -> UnknownNameError:
        close = get_close_matches(name, self.keys, n=1) if isinstance(name, str) else []
        there = ", ".join(map(repr, self.keys)) or "none"
        return UnknownNameError(
            f"no signal or static {name!r}; there is {there}",
            hint=f"did you mean {close[0]!r}?" if close else None,
        )


class EpisodeView(Episode):
    """An episode made of signals and statics that are at hand."""

    def __init__(
        self,
        signals: Mapping[str, Signal[Any]],
        statics: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        self._signals = signals
        self._statics = {} if statics is None else statics
        self._meta = dict(meta or {})
        for name in self._statics:
            if name in signals:
                raise InvalidError(f"{name!r} is both a signal and a static")

    @property
    def signals(self) -> Mapping[str, Signal[Any]]:
        """The signals, by name."""
        return self._signals

    @property
    def statics(self) -> Mapping[str, Any]:
        """The statics, by name; a copy."""
        statics: Mapping[str, Any] = copied(self._statics)
        return statics

    @property
    def meta(self) -> dict[str, Any]:
        """What the system noted about the episode that this is a view of; a copy."""
        return dict(copied(self._meta))


class LazySignals(Mapping[str, Signal[Any]]):
    """Signals made from others when they are first asked for."""

    def __init__(
        self, signals: Mapping[str, Signal[Any]], make: Callable[[Signal[Any]], Signal[Any]]
    ) -> None:
        self._signals = signals
        self._make = make
        self._made: dict[str, Signal[Any]] = {}

    def __getitem__(self, name: str) -> Signal[Any]:
        """Give the signal of that name, made once."""
        if name not in self._made:
            self._made[name] = self._make(self._signals[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        """Give the names."""
        return iter(self._signals)

    def __len__(self) -> int:
        """Count the signals."""
        return len(self._signals)

    def __contains__(self, name: object) -> bool:
        """Whether there is a signal of that name."""
        return name in self._signals

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the signals as they were made."""
        return dict, (dict(self),)


class EpisodeTime:
    """Selects from all signals of an episode by time, in nanoseconds.

    - `time[t]` is a dict of all statics and each signal's value at `t`;
    - `time[a:b]` is the episode in `[a, b)`, made of views, and `time[...]` all of it;
    - `time[a:b:step]` and `time[[t1, t2]]` are the episode with samples at those times.

    A time before the first record of a signal is a `KeyError` that names the signal. Every time
    is, for a signal without records: an episode that has one has values only by signal.
    """

    __slots__ = ("_episode",)

    def __init__(self, episode: Episode) -> None:
        self._episode = episode

    @overload
    def __getitem__(self, key: Part) -> EpisodeView: ...  # type: ignore[overload-overlap]

    @overload
    def __getitem__(self, key: SupportsIndex) -> dict[str, Any]: ...

    def __getitem__(self, key: Any) -> dict[str, Any] | EpisodeView:
        """Give what `key` selects from every signal."""
        episode = self._episode
        signals = episode.signals
        if key is Ellipsis:
            key = slice(None)
        if isinstance(key, slice):
            if key.step is None:
                key = slice(_bound(key.start), _bound(key.stop))
                return episode.derived(LazySignals(signals, _Window(key)))
            if key.stop is None and any(map(len, signals.values())):
                # Every signal is sampled at the same times.
                key = slice(key.start, episode.last_ts + 1, key.step)
            return episode.derived({name: s.time[key] for name, s in signals.items()})
        if isinstance(key, (list, tuple, range)) or np.ndim(key):
            times = as_times(key, _too_early).copy()  # the caller's own array may change
            times.flags.writeable = False
            return episode.derived({name: s.time.sample(times) for name, s in signals.items()})
        ts = as_time(key)
        values = dict(episode.statics)
        for name, signal in signals.items():
            values[name] = signal.time[ts][0]
        return values

    def __repr__(self) -> str:
        """Give the episode that is selected from."""
        return f"{self._episode!r}.time"


class _Window:
    """The window that each signal of an episode is cut to."""

    def __init__(self, key: slice) -> None:
        self._key = key

    def __call__(self, signal: Signal[Any]) -> Signal[Any]:
        return signal.time[self._key]


def _too_early(ts: int) -> NoValueError:
    return NoValueError(f"no signal has a value at {ts}")


def _bound(value: Any) -> int | None:
    return None if value is None else as_time(value)
