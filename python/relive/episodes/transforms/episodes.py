"""Transforms of episodes: rename, select, drop, derive, change, group and resample signals."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from relive._arguments import as_int, type_name
from relive.episodes.layout import check_name
from relive.episodes.transforms.combine import join
from relive.episodes.transforms.wrapped import named
from relive.errors import InvalidError, InvalidTypeError
from relive.model.clock import grid
from relive.model.episode import Episode
from relive.model.resample import Policy, policy_of
from relive.model.signal import Signal, copied


class Transform(ABC):
    """A function from an episode to an episode; `first | second` applies both in that order.

    Picklable if the functions it is made of are.

    Example:
        >>> from relive.episodes import ArraySignal, EpisodeView, transforms
        >>> episode = EpisodeView({"arm": ArraySignal([1.0, 2.0], [0, 10])}, {"task": "pick"})
        >>> transform = transforms.drop("task") | transforms.rename({"arm": "joints"})
        >>> list(transform(episode))
        ['joints']
    """

    @abstractmethod
    def __call__(self, episode: Episode) -> Episode:
        """Return the transformed episode; only names are read."""

    def __or__(self, other: Callable[[Episode], Episode]) -> "Transform":
        """Return a transform that applies this one, then the other."""
        return Pipeline((*_steps(self), *_steps(other))) if callable(other) else NotImplemented

    def __ror__(self, other: Callable[[Episode], Episode]) -> "Transform":
        """Return a transform that applies the other, then this one."""
        return Pipeline((*_steps(other), *_steps(self))) if callable(other) else NotImplemented


@dataclass(frozen=True)
class Pipeline(Transform):
    """Functions from an episode to an episode, applied in order."""

    steps: tuple[Callable[[Episode], Episode], ...]

    def __call__(self, episode: Episode) -> Episode:
        """Return the result of the last step."""
        for step in self.steps:
            episode = step(episode)
            if not isinstance(episode, Episode):
                given = type_name(type(episode))
                raise InvalidTypeError(f"{step!r} must return an episode, got {given}")
        return episode


def rename(names: Mapping[str, str]) -> Transform:
    """Rename signals and statics, `{"old": "new"}`; the others keep their names.

    Example:
        >>> from relive.episodes import ArraySignal, EpisodeView, transforms
        >>> episode = EpisodeView({"arm": ArraySignal([1.0, 2.0], [0, 10])}, {"task": "pick"})
        >>> sorted(transforms.rename({"arm": "joints"})(episode))
        ['joints', 'task']
    """
    for new in names.values():
        check_name(new)
    return _EntryTransform(partial(_rename, dict(names)))


def select(*names: str) -> Transform:
    """Keep only the signals and statics of these names.

    Example:
        >>> from relive.episodes import ArraySignal, EpisodeView, transforms
        >>> episode = EpisodeView({"arm": ArraySignal([1.0, 2.0], [0, 10])}, {"task": "pick"})
        >>> list(transforms.select("arm")(episode))
        ['arm']
    """
    return _EntryTransform(partial(_select, _checked(names)))


def drop(*names: str) -> Transform:
    """Drop the signals and statics of these names.

    Example:
        >>> from relive.episodes import ArraySignal, EpisodeView, transforms
        >>> episode = EpisodeView({"arm": ArraySignal([1.0, 2.0], [0, 10])}, {"task": "pick"})
        >>> list(transforms.drop("task")(episode))
        ['arm']
    """
    return _EntryTransform(partial(_drop, _checked(names)))


def derive(
    functions: Mapping[str, Callable[[Episode], Any]] | None = None,
    /,
    **more: Callable[[Episode], Any],
) -> Transform:
    """Add signals and statics: what `function(episode)` returns, by name.

    If it returns a signal the entry is a signal, otherwise a static. Each function gets the
    original episode, and is called when its name, all signals or all statics are read. A name
    that exists already raises `InvalidError`.

    Example:
        >>> from relive.episodes import ArraySignal, EpisodeView, transforms
        >>> episode = EpisodeView({"arm": ArraySignal([1.0, 2.0], [0, 10])}, {"task": "pick"})
        >>> transforms.derive(moves=lambda episode: len(episode["arm"]))(episode)["moves"]
        2
    """
    return _EntryTransform(partial(_derive, _functions(functions, more)))


def change(
    functions: Mapping[str, Callable[[Any], Any]] | None = None,
    /,
    **more: Callable[[Any], Any],
) -> Transform:
    """Replace a signal by `function(signal)`, a static by `function(value)`.

    Example:
        >>> from relive.episodes import ArraySignal, EpisodeView, transforms
        >>> episode = EpisodeView({"arm": ArraySignal([1.0, 2.0], [0, 10])}, {"task": "pick"})
        >>> transforms.change(task=str.upper)(episode)["task"]
        'PICK'
    """
    return _EntryTransform(partial(_change, _functions(functions, more)))


def group(
    name: str, parts: Sequence[str], *, at: str | None = None, keep: bool = False
) -> Transform:
    """Replace several signals by one: their `join`, at the times of the signal `at`.

    With `keep=True` the episode keeps the parts as well.

    Example:
        >>> from relive.episodes import ArraySignal, EpisodeView, transforms
        >>> episode = EpisodeView({"x": ArraySignal([1.0], [0]), "y": ArraySignal([2.0], [0])})
        >>> transforms.group("position", ["x", "y"])(episode)["position"].values().tolist()
        [[1.0, 2.0]]
    """
    if isinstance(parts, str):
        raise InvalidTypeError(
            f"`parts` must be a list of names, got {parts!r}", hint=f"use [{parts!r}]"
        )
    return _EntryTransform(partial(_group, check_name(name), _checked(tuple(parts)), at, keep))


def resample_every(
    step_ns: int, policy: Policy | str | Mapping[str, Policy | str] = "hold"
) -> Transform:
    """Sample all signals at the same times: every `step_ns` from `start_ts` to `last_ts`.

    The policy is that of `Episode.resample`; in a dict by name, the other signals hold.

    Example:
        >>> from relive.episodes import ArraySignal, EpisodeView, transforms
        >>> episode = EpisodeView({"arm": ArraySignal([1.0, 2.0], [0, 10])}, {"task": "pick"})
        >>> transforms.resample_every(5, "linear")(episode)["arm"].values().tolist()
        [1.0, 1.5, 2.0]
    """
    step = as_int("step_ns", step_ns, at_least=1, at_most=None)
    if isinstance(policy, Mapping):
        return _ResampleEvery(step, {name: policy_of(each) for name, each in policy.items()})
    return _ResampleEvery(step, policy_of(policy))


@dataclass(frozen=True, slots=True)
class Entry:
    """How a signal or static is made.

    With an `origin` it is the entry of that name, or what `function` returns for it; without
    one it is what `function` returns for the episode.
    """

    origin: str | None = None
    function: Callable[[Any], Any] | None = None


class TransformedEpisode(Episode):
    """An episode whose entries are made from those of another one when they are first read.

    Its `uid` and `meta` are those of the other.
    """

    def __init__(self, source: Episode, transform: Transform, entries: Mapping[str, Entry]) -> None:
        self._source = source
        self._transform = transform
        self._entries = entries
        self._made: dict[str, Any] = {}

    @cached_property
    def signals(self) -> Mapping[str, Signal[Any]]:
        """The signals by name, sorted by name."""
        return _Entries(self, sorted(filter(self.is_signal, self._entries)))

    @cached_property
    def statics(self) -> Mapping[str, Any]:
        """The statics by name."""
        return _Entries(self, [name for name in self._entries if not self.is_signal(name)])

    @property
    def meta(self) -> dict[str, Any]:
        """A copy of the `meta` of the original episode."""
        return self._source.meta

    @property
    def uid(self) -> str:
        """The `uid` of the original episode."""
        return self._source.uid

    def __getitem__(self, name: str) -> Any:
        """Return the signal or the static of that name; no other is made."""
        if name in self._made:
            return copied(self._made[name])
        if name not in self._entries:
            raise self._unknown(name)
        value = self._make(name, self._entries[name])
        self._made[name] = named(value, name) if isinstance(value, Signal) else value
        return copied(self._made[name])

    def __contains__(self, name: object) -> bool:
        """Check whether there is a signal or a static of that name; none is made."""
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of all signals and statics; none is made."""
        return iter(self._entries)

    def __len__(self) -> int:
        """Count the signals and statics; none is made."""
        return len(self._entries)

    def is_signal(self, name: str) -> bool:
        """Check whether the entry of that name is a signal, which makes a derived one."""
        origin = self._entries[name].origin
        if origin is None:
            return isinstance(self[name], Signal)
        if isinstance(self._source, TransformedEpisode):
            return self._source.is_signal(origin)
        return origin in self._source.signals

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the episode and the transform."""
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
            kind = "signal" if isinstance(before, Signal) else "static value"
            raise InvalidTypeError(
                f"the function passed to change() for the {kind} {name!r} must return a {kind}, "
                f"got {value!r}",
                hint=f"use derive() with another name, then remove {name!r} with drop()",
            )
        return value


class _Entries(Mapping[str, Any]):
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


@dataclass(frozen=True)
class _EntryTransform(Transform):
    """A transform that chooses the entries of an episode by their names alone."""

    entries: Callable[[Episode], dict[str, Entry]]

    def __call__(self, episode: Episode) -> Episode:
        return TransformedEpisode(episode, self, self.entries(episode))


def _rename(names: dict[str, str], episode: Episode) -> dict[str, Entry]:
    _check_there(episode, names)
    entries: dict[str, Entry] = {}
    for old in episode:
        new = names.get(old, old)
        if new in entries:
            raise _taken(new)
        entries[new] = Entry(old)
    return entries


def _select(names: tuple[str, ...], episode: Episode) -> dict[str, Entry]:
    _check_there(episode, names)
    return _kept(names)


def _drop(names: tuple[str, ...], episode: Episode) -> dict[str, Entry]:
    _check_there(episode, names)
    return _kept(name for name in episode if name not in names)


def _derive(functions: dict[str, Callable[[Episode], Any]], episode: Episode) -> dict[str, Entry]:
    entries = _kept(episode)
    for name, function in functions.items():
        if name in entries:
            raise _taken(name, hint=f"replace it with change({{{name!r}: …}})")
        entries[name] = Entry(function=function)
    return entries


def _change(functions: dict[str, Callable[[Any], Any]], episode: Episode) -> dict[str, Entry]:
    _check_there(episode, functions)
    changed = {name: Entry(name, function) for name, function in functions.items()}
    return _kept(episode) | changed


def _group(
    name: str,
    parts: tuple[str, ...],
    at: str | None,
    keep: bool,  # noqa: FBT001 - called with the arguments of group()
    episode: Episode,
) -> dict[str, Entry]:
    _check_there(episode, parts if at is None else (*parts, at))
    gone = () if keep else parts
    entries = _kept(name for name in episode if name not in gone)
    if name in entries:
        raise _taken(name)
    return entries | {name: Entry(function=partial(_join, parts, at))}


def _join(parts: tuple[str, ...], at: str | None, episode: Episode) -> Signal[Any]:
    for name in parts if at is None else (*parts, at):
        if not isinstance(episode[name], Signal):
            raise InvalidTypeError(f"cannot group {name!r}: it is a static value, not a signal")
    times = None if at is None else episode[at]
    return join({name: episode[name] for name in parts}, at=times)


@dataclass(frozen=True)
class _ResampleEvery(Transform):
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
            raise InvalidTypeError(
                f"names must be strings, got {name!r}", hint="pass the names of a list with *names"
            )
    return names


def _functions(
    given: Mapping[str, Callable[[Any], Any]] | None, more: Mapping[str, Callable[[Any], Any]]
) -> dict[str, Callable[[Any], Any]]:
    functions = {**(given or {}), **more}
    for name, function in functions.items():
        check_name(name)
        if not callable(function):
            raise InvalidTypeError(f"the argument {name!r} must be a function, got {function!r}")
    return functions


def _check_there(episode: Episode, names: Iterable[str]) -> None:
    for name in names:
        if name not in episode:
            episode[name]  # raises an error that lists the names


def _taken(name: str, hint: str | None = None) -> InvalidError:
    return InvalidError(f"the episode already has a signal or static value {name!r}", hint=hint)
