"""An episode whose signals and statics are made from those of another one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from relive._arguments import type_name
from relive.episodes.transforms.wrapped import named
from relive.errors import InvalidTypeError
from relive.model.episode import Episode
from relive.model.signal import Signal, copied

__all__ = ["Entry", "Transform", "TransformedEpisode"]


class Transform(ABC):
    """A function from an episode to an episode; `first | second` is both, one after the other.

    Picklable when the functions it was given are.
    """

    @abstractmethod
    def __call__(self, episode: Episode) -> Episode:
        """Give the episode, transformed; nothing but names is read."""

    def __or__(self, other: Callable[[Episode], Episode]) -> "Transform":
        """Give a transform that is this one, then the other."""
        return Pipeline((*_steps(self), *_steps(other))) if callable(other) else NotImplemented

    def __ror__(self, other: Callable[[Episode], Episode]) -> "Transform":
        """Give a transform that is the other, then this one."""
        return Pipeline((*_steps(other), *_steps(self))) if callable(other) else NotImplemented


@dataclass(frozen=True)
class Pipeline(Transform):
    """Functions from an episode to an episode, one after the other."""

    steps: tuple[Callable[[Episode], Episode], ...]

    def __call__(self, episode: Episode) -> Episode:
        """Give what the last step gives."""
        for step in self.steps:
            episode = step(episode)
            if not isinstance(episode, Episode):
                given = type_name(type(episode))
                raise InvalidTypeError(f"{step!r} gave {given}, and should give an episode")
        return episode


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a signal or static comes from.

    With an `origin` it is that of the episode, or what `function` makes of it; without one it
    is what `function` makes of the episode.
    """

    origin: str | None = None
    function: Callable[[Any], Any] | None = None


class TransformedEpisode(Episode):
    """An episode made of another one, an entry at a time, each when it is first asked for.

    Its uid and what the system noted are those of the other.
    """

    def __init__(self, source: Episode, transform: Transform, entries: Mapping[str, Entry]) -> None:
        self._source = source
        self._transform = transform
        self._entries = entries
        self._made: dict[str, Any] = {}

    @cached_property
    def signals(self) -> Mapping[str, Signal[Any]]:
        """The signals, by name, in the order of their names."""
        return _Part(self, sorted(filter(self.is_signal, self._entries)))

    @cached_property
    def statics(self) -> Mapping[str, Any]:
        """The statics, by name."""
        return _Part(self, [name for name in self._entries if not self.is_signal(name)])

    @property
    def meta(self) -> dict[str, Any]:
        """What the system noted about the episode that this is made of; a copy."""
        return self._source.meta

    @property
    def uid(self) -> str:
        """What identifies the episode that this is made of."""
        return self._source.uid

    def __getitem__(self, name: str) -> Any:
        """Give the signal or the static of that name; no other is made."""
        if name in self._made:
            return copied(self._made[name])
        if name not in self._entries:
            raise self._unknown(name)
        value = self._make(name, self._entries[name])
        self._made[name] = named(value, name) if isinstance(value, Signal) else value
        return copied(self._made[name])

    def __contains__(self, name: object) -> bool:
        """Whether there is a signal or a static of that name; none is made."""
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        """Give the names of all signals and statics; none is made."""
        return iter(self._entries)

    def __len__(self) -> int:
        """Count the signals and statics; none is made."""
        return len(self._entries)

    def is_signal(self, name: str) -> bool:
        """Whether the entry of that name is a signal; a derived one is made to find out."""
        origin = self._entries[name].origin
        if origin is None:
            return isinstance(self[name], Signal)
        if isinstance(self._source, TransformedEpisode):
            return self._source.is_signal(origin)
        return origin in self._source.signals

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the episode and the transform, not what was made."""
        return self._transform, (self._source,)

    def _make(self, name: str, entry: Entry) -> Any:
        before = self._source if entry.origin is None else self._source[entry.origin]
        if entry.function is None:
            return before
        try:
            value = entry.function(before)
        except Exception as error:
            error.add_note(f"while making {name!r} of the episode {self.uid!r}")
            raise
        if entry.origin is not None and isinstance(value, Signal) != isinstance(before, Signal):
            was, given = (
                ("signal", "static") if isinstance(before, Signal) else ("static", "signal")
            )
            raise InvalidTypeError(
                f"{name!r} is a {was}, and its function gave a {given}, {value!r}",
                hint="drop() the one and derive() the other, under another name",
            )
        return value


class _Part(Mapping[str, Any]):
    """Some entries of an episode."""

    def __init__(self, episode: Episode, names: list[str]) -> None:
        self._episode = episode
        self._names = dict.fromkeys(names)

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return self._episode[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"{{{', '.join(map(repr, self._names))}}}"

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def _steps(step: Callable[[Episode], Episode]) -> tuple[Callable[[Episode], Episode], ...]:
    return step.steps if isinstance(step, Pipeline) else (step,)
