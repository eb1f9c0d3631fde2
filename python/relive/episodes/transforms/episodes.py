"""Transforms of episodes: other names, fewer signals, signals and statics made of those there."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relive.episodes.layout import check_name
from relive.episodes.transforms.combine import join
from relive.episodes.transforms.transformed import Entry, Transform, TransformedEpisode
from relive.errors import InvalidError, InvalidTypeError
from relive.model.clock import as_time, grid
from relive.model.episode import Episode
from relive.model.resample import Policy, policy_of
from relive.model.signal import Signal

__all__ = ["change", "derive", "drop", "group", "rename", "resample_every", "select"]


def rename(names: Mapping[str, str]) -> Transform:
    """Give signals and statics other names, `{"old": "new"}`; the rest stays."""
    for new in names.values():
        check_name(new)
    return _Rename(dict(names))


def select(*names: str) -> Transform:
    """Keep the signals and statics of these names, and no others."""
    return _Select(_checked(names))


def drop(*names: str) -> Transform:
    """Leave the signals and statics of these names out."""
    return _Drop(_checked(names))


def derive(
    functions: Mapping[str, Callable[[Episode], Any]] | None = None,
    /,
    **more: Callable[[Episode], Any],
) -> Transform:
    """Add signals and statics: what `function(episode)` gives under each name.

    A signal becomes a signal, anything else a static. Each function sees the episode as it
    came, and is called when its name is asked for, or a list of all signals or of all statics.
    A name that is taken is an `InvalidError`.
    """
    return _Derive(_functions(functions, more))


def change(
    functions: Mapping[str, Callable[[Any], Any]] | None = None,
    /,
    **more: Callable[[Any], Any],
) -> Transform:
    """Put `function(signal)` in the place of a signal, `function(value)` in that of a static."""
    return _Change(_functions(functions, more))


def group(
    name: str, parts: Sequence[str], *, at: str | None = None, keep: bool = False
) -> Transform:
    """Put one signal in the place of several: their `join`, at the times of the signal `at`.

    With `keep=True` the parts stay as well.
    """
    if isinstance(parts, str):
        raise InvalidTypeError(f"parts are a list of names, not {parts!r}", hint=f"[{parts!r}]")
    return _Group(check_name(name), _Join(_checked(tuple(parts)), at), keep)


def resample_every(
    step_ns: int, policy: Policy | str | Mapping[str, Policy | str] = "hold"
) -> Transform:
    """Give all signals at the same times: every `step_ns` from `start_ts` to `last_ts`.

    The policy is that of `Episode.resample`; as a dict, by name, where the others hold.
    """
    step = as_time(step_ns)
    if step <= 0:
        raise InvalidError(f"a step is positive, not {step}")
    if isinstance(policy, Mapping):
        return _Every(step, {name: policy_of(each) for name, each in policy.items()})
    return _Every(step, policy_of(policy))


@dataclass(frozen=True)
class _Rename(Transform):
    names: dict[str, str]

    def __call__(self, episode: Episode) -> Episode:
        _check_there(episode, self.names)
        entries: dict[str, Entry] = {}
        for old in episode:
            new = self.names.get(old, old)
            if new in entries:
                raise _taken(new)
            entries[new] = Entry(old)
        return TransformedEpisode(episode, self, entries)


@dataclass(frozen=True)
class _Select(Transform):
    names: tuple[str, ...]

    def __call__(self, episode: Episode) -> Episode:
        _check_there(episode, self.names)
        return TransformedEpisode(episode, self, _kept(self.names))


@dataclass(frozen=True)
class _Drop(Transform):
    names: tuple[str, ...]

    def __call__(self, episode: Episode) -> Episode:
        _check_there(episode, self.names)
        stay = [name for name in episode if name not in self.names]
        return TransformedEpisode(episode, self, _kept(stay))


@dataclass(frozen=True)
class _Derive(Transform):
    functions: dict[str, Callable[[Episode], Any]]

    def __call__(self, episode: Episode) -> Episode:
        entries = _kept(episode)
        for name, function in self.functions.items():
            if name in entries:
                raise _taken(name, hint=f"change({{{name!r}: …}}) puts something in its place")
            entries[name] = Entry(function=function)
        return TransformedEpisode(episode, self, entries)


@dataclass(frozen=True)
class _Change(Transform):
    functions: dict[str, Callable[[Any], Any]]

    def __call__(self, episode: Episode) -> Episode:
        _check_there(episode, self.functions)
        changed = {name: Entry(name, function) for name, function in self.functions.items()}
        return TransformedEpisode(episode, self, _kept(episode) | changed)


@dataclass(frozen=True)
class _Join:
    parts: tuple[str, ...]
    at: str | None

    def __call__(self, episode: Episode) -> Signal[Any]:
        for name in self.needed:
            if not isinstance(episode[name], Signal):
                raise InvalidTypeError(f"{name!r} is a static, and only signals are grouped")
        at = None if self.at is None else episode[self.at]
        return join({name: episode[name] for name in self.parts}, at=at)

    @property
    def needed(self) -> tuple[str, ...]:
        return self.parts if self.at is None else (*self.parts, self.at)


@dataclass(frozen=True)
class _Group(Transform):
    name: str
    join: _Join
    keep: bool

    def __call__(self, episode: Episode) -> Episode:
        _check_there(episode, self.join.needed)
        gone = () if self.keep else self.join.parts
        entries = _kept(name for name in episode if name not in gone)
        if self.name in entries:
            raise _taken(self.name)
        return TransformedEpisode(episode, self, entries | {self.name: Entry(function=self.join)})


@dataclass(frozen=True)
class _Every(Transform):
    step_ns: int
    policy: Policy | Mapping[str, Policy | str]

    def __call__(self, episode: Episode) -> Episode:
        times = grid(episode.start_ts, episode.last_ts + 1, self.step_ns)
        return episode.resample(times, self.policy)


def _kept(names: Iterable[str]) -> dict[str, Entry]:
    return {name: Entry(name) for name in names}


def _checked(names: tuple[Any, ...]) -> tuple[str, ...]:
    for name in names:
        if not isinstance(name, str):
            raise InvalidTypeError(f"names are strings, not {name!r}", hint="put * before a list")
    return names


def _functions(
    given: Mapping[str, Callable[[Any], Any]] | None, more: Mapping[str, Callable[[Any], Any]]
) -> dict[str, Callable[[Any], Any]]:
    functions = {**(given or {}), **more}
    for name, function in functions.items():
        check_name(name)
        if not callable(function):
            raise InvalidTypeError(f"{name!r} is made by a function, not by {function!r}")
    return functions


def _check_there(episode: Episode, names: Iterable[str]) -> None:
    for name in names:
        if name not in episode:
            episode[name]  # raises, and says what there is


def _taken(name: str, hint: str | None = None) -> InvalidError:
    return InvalidError(f"{name!r} is taken by a signal or static of the episode", hint=hint)
