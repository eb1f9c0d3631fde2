"""An `Episode`: signals on one time axis, and statics, the values that hold for all of it."""

import base64
import binascii
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, SupportsIndex, overload

import numpy as np

from relive._arguments import as_text, type_name
from relive.errors import InvalidError, NoValueError, UnknownNameError
from relive.model.clock import as_time, as_times
from relive.model.signal import Part, Signal, copied

if TYPE_CHECKING:
    from relive.model.resample import Policy

_BYTES: Final = "$bytes"
_BYTES_KEY: Final = re.compile(r"\$+bytes")
_MAX_DEPTH: Final = 100


class Episode(ABC):
    """Signals that were recorded together, and statics: values that hold for the whole episode.

    `episode[name]` is a signal or a static. A subclass defines `signals`, `statics` and `meta`;
    everything else follows from them.

    Example:
        >>> import relive
        >>> with relive.LocalDatasetWriter("kitchen").new_episode() as writer:
        ...     writer.set_static("task", "stack the cups")
        ...     for ts_ns in (0, 10, 20):
        ...         writer.append("reward", ts_ns / 10, ts_ns)
        >>> episode = relive.LocalDataset("kitchen")[0]
        >>> episode["task"], len(episode["reward"]), float(episode.time[15]["reward"])
        ('stack the cups', 3, 1.0)
    """

    @property
    @abstractmethod
    def signals(self) -> Mapping[str, Signal[Any]]:
        """The signals by name, sorted by name."""

    @property
    @abstractmethod
    def statics(self) -> Mapping[str, Any]:
        """The statics by name, as a copy."""

    @property
    @abstractmethod
    def meta(self) -> dict[str, Any]:
        """What the writer stored: `uid`, `created_ts_ns`, `writer` and `outcome`, as a copy."""

    @property
    def uid(self) -> str:
        """The identifier of the episode, which copies keep."""
        return str(self.meta.get("uid", ""))

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of all signals and statics."""
        return (*self.signals, *self.statics)

    def __getitem__(self, name: str) -> Any:
        """Return the signal or static with that name."""
        signals = self.signals
        if name in signals:
            return signals[name]
        statics = self.statics
        if name in statics:
            return statics[name]
        raise self._unknown(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the signal or static with that name, or `default` if there is none."""
        return self[name] if name in self else default  # noqa: SIM401 - this is the method that it suggests

    def values(self) -> tuple[Any, ...]:
        """Return all signals and statics, in the order of `keys`."""
        return tuple(value for _, value in self.items())

    def items(self) -> tuple[tuple[str, Any], ...]:
        """Return `(name, signal or static)` pairs, in the order of `keys`."""
        return (*self.signals.items(), *self.statics.items())

    def __contains__(self, name: object) -> bool:
        """Return whether there is a signal or static with that name."""
        return name in self.signals or name in self.statics

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of all signals and statics."""
        return iter(self.keys)

    def __len__(self) -> int:
        """Return the number of signals and statics."""
        return len(self.keys)

    @property
    def start_ts(self) -> int:
        """The time from which every signal with records has a value."""
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
        """The time from the first record of any signal to the last, in nanoseconds."""
        return self.last_ts - self.first_ts

    @property
    def time(self) -> "EpisodeTime":
        """Select by time; see `EpisodeTime`."""
        return EpisodeTime(self)

    def resample(
        self, ts: Any, policy: "Policy | str | Mapping[str, Policy | str]" = "hold"
    ) -> "EpisodeView":
        """Return the episode with every signal sampled at the times `ts`.

        `policy` applies to all signals, or is a dict by name. Signals that the dict does not
        name use `"hold"`.
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
        """Return an episode with these signals and the statics and meta of this one."""
        return EpisodeView(signals, self.statics, self.meta)

    def __repr__(self) -> str:
        """Return the uid and the number of signals and statics, on one line."""
        return (
            f"{type(self).__name__}({self.uid!r}, {len(self.signals)} signals, "
            f"{len(self.statics)} statics)"
        )

    def _recorded(self) -> list[Signal[Any]]:
        found = [signal for signal in self.signals.values() if len(signal)]
        if not found:
            raise InvalidError(f"{self!r} has no records, so it has no first and no last time")
        return found

    def _unknown(self, name: object) -> UnknownNameError:
        close = get_close_matches(name, self.keys, n=1) if isinstance(name, str) else []
        names = ", ".join(map(repr, self.keys)) or "none"
        return UnknownNameError(
            f"no signal or static value is named {name!r}; the names are: {names}",
            hint=f"did you mean {close[0]!r}?" if close else None,
        )


class EpisodeView(Episode):
    """An episode of signals and statics in memory.

    Example:
        >>> import numpy as np
        >>> from relive.episodes import ArraySignal, EpisodeView
        >>> joint = ArraySignal(np.array([0.0, 0.5, 1.0]), [0, 10, 20])
        >>> episode = EpisodeView({"joint": joint}, {"task": "pick"})
        >>> episode["task"], episode.duration_ns
        ('pick', 20)
        >>> float(episode.time[12]["joint"])
        0.5
    """

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
                raise InvalidError(f"{name!r} is the name of both a signal and a static value")

    @property
    def signals(self) -> Mapping[str, Signal[Any]]:
        """The signals by name."""
        return self._signals

    @property
    def statics(self) -> Mapping[str, Any]:
        """The statics by name, as a copy."""
        statics: Mapping[str, Any] = copied(self._statics)
        return statics

    @property
    def meta(self) -> dict[str, Any]:
        """What the writer stored about the episode that this is a view of, as a copy."""
        return dict(copied(self._meta))


class LazySignals(Mapping[str, Signal[Any]]):
    """Signals derived from others, each when it is first used."""

    def __init__(
        self, signals: Mapping[str, Signal[Any]], make: Callable[[Signal[Any]], Signal[Any]]
    ) -> None:
        self._signals = signals
        self._make = make
        self._made: dict[str, Signal[Any]] = {}

    def __getitem__(self, name: str) -> Signal[Any]:
        """Return the signal with that name; it is derived once."""
        if name not in self._made:
            self._made[name] = self._make(self._signals[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._signals)

    def __len__(self) -> int:
        """Return the number of signals."""
        return len(self._signals)

    def __contains__(self, name: object) -> bool:
        """Return whether there is a signal with that name."""
        return name in self._signals

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the derived signals."""
        return dict, (dict(self),)


class EpisodeTime:
    """Selects from all signals of an episode by time, in nanoseconds.

    - `time[t]` is a dict of all statics and each signal's value at `t`;
    - `time[a:b]` is the episode in `[a, b)`, made of views, and `time[...]` all of it;
    - `time[a:b:step]` and `time[[t1, t2]]` are the episode with samples at those times.

    A time before the first record of a signal raises a `KeyError` that names the signal. If a
    signal has no records, every time raises it; select from the other signals one by one.
    """

    __slots__ = ("_episode",)

    def __init__(self, episode: Episode) -> None:
        self._episode = episode

    @overload
    def __getitem__(self, key: Part) -> EpisodeView: ...  # type: ignore[overload-overlap]

    @overload
    def __getitem__(self, key: SupportsIndex) -> dict[str, Any]: ...

    def __getitem__(self, key: Any) -> dict[str, Any] | EpisodeView:
        """Return what `key` selects from every signal."""
        episode = self._episode
        signals = episode.signals
        if key is Ellipsis:
            key = slice(None)
        if isinstance(key, slice):
            if key.step is None:
                key = slice(_bound(key.start), _bound(key.stop))
                return episode.derived(LazySignals(signals, _Window(key)))
            if key.stop is None and any(map(len, signals.values())):
                # All signals are sampled at the same times.
                key = slice(key.start, episode.last_ts + 1, key.step)
            sampled = {name: s.time[key] for name, s in signals.items()}
            if any(map(len, sampled.values())):
                for name, signal in signals.items():
                    if not len(sampled[name]):  # the others would be longer
                        raise signal.no_value(as_time(key.start))
            return episode.derived(sampled)
        if isinstance(key, (list, tuple, range)) or np.ndim(key):
            times = as_times(key, _too_early).copy()  # the caller may change the array later
            times.flags.writeable = False
            return episode.derived({name: s.time.sample(times) for name, s in signals.items()})
        ts = as_time(key)
        values = dict(episode.statics)
        for name, signal in signals.items():
            values[name] = signal.time[ts][0]
        return values

    def __repr__(self) -> str:
        """Return the repr of the episode, followed by `.time`."""
        return f"{self._episode!r}.time"


class _Window:
    """Selects a time window of a signal; a class, since a lambda cannot be pickled."""

    def __init__(self, key: slice) -> None:
        self._key = key

    def __call__(self, signal: Signal[Any]) -> Signal[Any]:
        return signal.time[self._key]


def _too_early(ts: int) -> NoValueError:
    return NoValueError(f"no signal has a value at the time {ts}")


def _bound(value: Any) -> int | None:
    return None if value is None else as_time(value)


def check_static(name: str, value: Any) -> Any:
    """Return a copy of the static `value` as it will be read from disk.

    A static is any JSON value, or bytes. Tuples become lists and NumPy scalars become numbers.
    Any other value raises an `InvalidError` that says where it is; `name` is what the message
    calls the static.
    """
    return _checked(name, value, 0, binary=True)


def check_json(name: str, value: Any) -> Any:
    """Return a copy of `value`, which must be a JSON value, as it will be read from disk."""
    return _checked(name, value, 0, binary=False)


def encode_statics(statics: Mapping[str, Any]) -> dict[str, Any]:
    """Return statics that `check_static` returned as a JSON object; bytes become base64."""
    return {_escaped(name): _encoded(value) for name, value in statics.items()}


def decode_statics(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the statics that `encode_statics` encoded."""
    return {_unescaped(name): _decoded(value) for name, value in stored.items()}


def _checked(where: str, value: Any, depth: int, *, binary: bool) -> Any:  # noqa: PLR0911 - a case each
    if value is None or isinstance(value, (bool, np.bool_)):
        return value if value is None else bool(value)
    if isinstance(value, (int, np.integer)) and not isinstance(value, np.timedelta64):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return _checked_float(where, float(value))
    if isinstance(value, str):
        return str(as_text(where, value))
    if binary and isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if depth == _MAX_DEPTH:
        raise InvalidError(
            f"{where} is nested more than {_MAX_DEPTH} levels deep, or contains itself"
        )
    if isinstance(value, (list, tuple)):
        return [
            _checked(f"{where}[{position}]", item, depth + 1, binary=binary)
            for position, item in enumerate(value)
        ]
    if isinstance(value, Mapping):
        return {
            _checked_key(where, key): _checked(f"{where}[{key!r}]", item, depth + 1, binary=binary)
            for key, item in value.items()
        }
    raise InvalidError(
        f"{where} is {type_name(type(value))}, which is not JSON-serializable",
        hint="pass value.tolist()" if isinstance(value, np.ndarray) else None,
    )


def _checked_float(where: str, value: float) -> float:
    if not math.isfinite(value):
        raise InvalidError(
            f"{where} is {value}, which is not JSON-serializable",
            hint="use None for a missing number",
        )
    return value


def _checked_key(where: str, key: Any) -> str:
    if not isinstance(key, str):
        raise InvalidError(f"{where} has the key {key!r}, but JSON keys must be strings")
    return str(as_text(f"a key of {where}", key))


def _encoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode()}
    if isinstance(value, list):
        return [_encoded(item) for item in value]
    return encode_statics(value) if isinstance(value, dict) else value


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_BYTES} and isinstance(value[_BYTES], str):
        try:
            return base64.b64decode(value[_BYTES], validate=True)
        except (binascii.Error, ValueError):
            return dict(value)  # another program wrote this key, and its text is not base64
    return decode_statics(value)


def _escaped(key: str) -> str:
    return f"${key}" if _BYTES_KEY.fullmatch(key) else key


def _unescaped(key: str) -> str:
    return key[1:] if key != _BYTES and _BYTES_KEY.fullmatch(key) else key
