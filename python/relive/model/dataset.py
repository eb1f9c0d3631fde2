"""Datasets: episodes in an order, and lazy ways to choose among them, join and change them."""

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, SupportsIndex, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from relive.errors import InvalidError, InvalidTypeError, UnknownNameError
from relive.model.episode import Episode
from relive.model.source import Rows, positions, resolve
from relive.model.split import split_keys

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ConcatDataset", "Dataset", "EpisodeList", "Positions"]

Positions: TypeAlias = slice | range | Sequence[int] | npt.NDArray[Any]
"""Which episodes, by position: a slice, a range, or integers in a list or array."""

PIECE_MARK: Final = "#"
"""What is between the uid of an episode and the number of a piece it was cut into."""

_BY_HINT: Final = "`uid`, the name of a static, a function of the episode, or one key per episode"


class Dataset(Sequence[Episode]):
    """Episodes in an order.

    `dataset[i]` is one episode; a slice, or integers in a list or array, give a list of them.
    `select`, `filter`, `map` and `+` give datasets that read nothing before they are asked.
    What they give stays as it was when a dataset that they were made of is refreshed.

    A subclass gives `__len__` and `episode_at`; all the rest follows from them.
    """

    _known: dict[str, int] | None = None

    @abstractmethod
    def episode_at(self, position: int) -> Episode:
        """Give the episode at a position, which is one of this dataset's."""

    def uid_at(self, position: int) -> str:
        """Give the uid of the episode at a position, which is one of this dataset's."""
        return self.episode_at(position).uid

    @overload
    def __getitem__(self, key: SupportsIndex) -> Episode: ...  # type: ignore[overload-overlap]

    @overload
    def __getitem__(self, key: Positions) -> list[Episode]: ...

    def __getitem__(self, key: Any) -> Episode | list[Episode]:
        """Give the episode at a position, or a list for a slice or for positions in an array."""
        found = self._positions(key)
        if isinstance(found, int):
            return self.episode_at(found)
        return [self.episode_at(int(position)) for position in found]

    def __iter__(self) -> Iterator[Episode]:
        """Give every episode in order."""
        for position in range(len(self)):
            yield self.episode_at(position)

    @property
    def uids(self) -> tuple[str, ...]:
        """The uid of every episode, in order."""
        return tuple(self.uid_at(position) for position in range(len(self)))

    def by_uid(self, uid: str) -> Episode:
        """Give the episode with that uid, the first one if there are several."""
        place = self._places().get(uid)
        if place is None:
            pieces = [known for known in self._places() if known.startswith(f"{uid}{PIECE_MARK}")]
            raise UnknownNameError(
                f"no episode has the uid {uid!r}",
                hint=f"it was cut into {' and '.join(pieces)}" if pieces else None,
            )
        return self.episode_at(place)

    def select(self, positions: Positions) -> "Dataset":
        """Give the episodes at `positions`, in that order, as a dataset."""
        found = self._positions(positions)
        if isinstance(found, int):
            raise InvalidTypeError(
                f"positions are a slice, a list or an array, not {positions!r}",
                hint="dataset[i] gives one episode",
            )
        return Selected(self.frozen(), found)

    def filter(self, predicate: Callable[[Episode], object]) -> "Dataset":
        """Give the episodes that `predicate` is true of, as a dataset.

        It is asked once about each episode, when the dataset is first used.
        """
        return Filtered(self.frozen(), _callable("a predicate", predicate))

    def map(self, function: Callable[[Episode], Episode]) -> "Dataset":
        """Give what `function` makes of each episode, each time it is asked for.

        The uids stay those of the episodes that are given to it.
        """
        return Mapped(self.frozen(), _callable("what maps episodes", function))

    def __add__(self, other: "Dataset") -> "ConcatDataset":
        """Give the episodes of this dataset, then those of the other."""
        if not isinstance(other, Dataset):
            return NotImplemented
        return ConcatDataset(self, other)

    def split(
        self,
        ratios: Iterable[float],
        *,
        by: "str | Callable[[Episode], object] | Sequence[object]" = "uid",
        seed: int = 0,
    ) -> "tuple[Dataset, ...]":
        """Divide the dataset into one view per ratio; each episode is in exactly one.

        Episodes with equal keys stay together. `by` is what gives the keys: `"uid"`, by which
        the pieces of one episode have the same, the name of a static, a function of the
        episode, or a sequence of one key per episode. Where a key goes depends on the key, the
        ratios and the seed alone: it does not move when episodes are added.
        """
        parts = split_keys(self._keys(by), ratios, seed=seed)
        return tuple(self.select(part) for part in parts)

    def table(self) -> "pa.Table":
        """Give statics, lengths and times of all episodes, one row each; see `table.table_of`."""
        from relive.episodes.table import table_of  # reads what episodes are made of

        return table_of(self)

    def frozen(self) -> "Dataset":
        """Give this dataset as it is now, for others to be made of."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Pickle all but what can be found again."""
        return {name: value for name, value in self.__dict__.items() if name != "_known"}

    def __repr__(self) -> str:
        """Give the number of episodes, on one line."""
        return f"{type(self).__name__}({_counted(len(self))})"

    def _positions(self, key: Any) -> int | Rows:
        if isinstance(key, str):
            raise InvalidTypeError(
                f"positions are integers, not {key!r}", hint="by_uid(uid) finds an episode"
            )
        if isinstance(key, slice):
            return resolve(key, len(self))
        return positions(key, len(self), "episode")

    def _places(self) -> dict[str, int]:
        """Give the first position of each uid."""
        if self._known is None:
            places: dict[str, int] = {}
            for position, uid in enumerate(self.uids):
                places.setdefault(uid, position)
            self._known = places
        return self._known

    def _keys(self, by: Any) -> Sequence[object]:
        if isinstance(by, str):
            if by == "uid":
                return [uid.partition(PIECE_MARK)[0] for uid in self.uids]
            statics = [episode.statics for episode in self]
            if statics and not any(by in each for each in statics):
                raise UnknownNameError(f"no episode has the static {by!r}", hint=_BY_HINT)
            return [each.get(by) for each in statics]
        if callable(by):
            return [by(episode) for episode in self]
        try:
            keys = list(by)
        except TypeError as error:
            raise InvalidTypeError(f"cannot split episodes by {by!r}", hint=_BY_HINT) from error
        if len(keys) != len(self):
            raise InvalidError(f"{len(keys)} keys for {_counted(len(self))}", hint=_BY_HINT)
        return keys


class EpisodeList(Dataset):
    """A dataset of episodes that are at hand."""

    def __init__(self, episodes: Iterable[Episode]) -> None:
        self._episodes = [_episode(episode) for episode in episodes]

    def __len__(self) -> int:
        """Count the episodes."""
        return len(self._episodes)

    def episode_at(self, position: int) -> Episode:
        """Give one of the episodes."""
        return self._episodes[position]


class ConcatDataset(Dataset):
    """The episodes of several datasets, one dataset after the other."""

    def __init__(self, *datasets: Dataset) -> None:
        self._parts: list[Dataset] = []
        for dataset in datasets:
            if not isinstance(dataset, Dataset):
                raise InvalidTypeError(f"datasets are joined, not {type(dataset).__name__}")
            if isinstance(dataset, ConcatDataset):
                self._parts += dataset.datasets
            else:
                self._parts.append(dataset.frozen())
        self._ends: list[int] | None = None

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """The datasets that are joined."""
        return tuple(self._parts)

    def __len__(self) -> int:
        """Count the episodes of all."""
        ends = self._all_ends()
        return ends[-1] if ends else 0

    def episode_at(self, position: int) -> Episode:
        """Give the episode of the dataset that has the position."""
        part, inner = self._inner(position)
        return part.episode_at(inner)

    def uid_at(self, position: int) -> str:
        """Give the uid, as the dataset that has the position does."""
        part, inner = self._inner(position)
        return part.uid_at(inner)

    def __repr__(self) -> str:
        """Give the datasets that are joined, on one line."""
        return f"{type(self).__name__}({', '.join(map(repr, self._parts))})"

    def _all_ends(self) -> list[int]:
        # A part may have to ask about all of its episodes to know how many it has.
        if self._ends is None:
            self._ends = list(accumulate(map(len, self._parts)))
        return self._ends

    def _inner(self, position: int) -> tuple[Dataset, int]:
        ends = self._all_ends()
        number = bisect_right(ends, position)
        return self._parts[number], position - (ends[number - 1] if number else 0)


class Selected(Dataset):
    """Some episodes of a dataset, in some order."""

    def __init__(self, dataset: Dataset, rows: Rows) -> None:
        self.dataset: Dataset = dataset
        self.rows: Rows = rows
        if isinstance(dataset, Selected):
            self.dataset = dataset.dataset
            self.rows = _composed(dataset.rows, rows)

    def __len__(self) -> int:
        """Count the episodes."""
        return len(self.rows)

    def episode_at(self, position: int) -> Episode:
        """Give the episode at a position among those selected."""
        return self.dataset.episode_at(int(self.rows[position]))

    def uid_at(self, position: int) -> str:
        """Give the uid of the episode at a position among those selected."""
        return self.dataset.uid_at(int(self.rows[position]))

    def __repr__(self) -> str:
        """Give how many are selected, and of what, on one line."""
        return f"{self.dataset!r}.select({_counted(len(self))})"


class Filtered(Dataset):
    """The episodes of a dataset that a predicate is true of.

    Pickling asks the predicate, and keeps the positions in its place.
    """

    def __init__(self, dataset: Dataset, predicate: Callable[[Episode], object]) -> None:
        self._dataset = dataset
        self._predicate = predicate
        self._kept: npt.NDArray[np.int64] | None = None

    @property
    def kept(self) -> npt.NDArray[np.int64]:
        """The positions of the episodes that the predicate is true of."""
        if self._kept is None:
            kept = (place for place, each in enumerate(self._dataset) if self._predicate(each))
            self._kept = np.fromiter(kept, dtype=np.int64)
        return self._kept

    def __len__(self) -> int:
        """Count the episodes that the predicate is true of."""
        return len(self.kept)

    def episode_at(self, position: int) -> Episode:
        """Give the episode at a position among those kept."""
        return self._dataset.episode_at(int(self.kept[position]))

    def uid_at(self, position: int) -> str:
        """Give the uid of the episode at a position among those kept."""
        return self._dataset.uid_at(int(self.kept[position]))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle which episodes were kept."""
        return Selected, (self._dataset, self.kept)

    def __repr__(self) -> str:
        """Give how many are kept, where that is known, and of what, on one line."""
        kept = "not asked yet" if self._kept is None else _counted(len(self._kept))
        return f"{self._dataset!r}.filter({kept})"


class Mapped(Dataset):
    """What a function makes of the episodes of a dataset."""

    def __init__(self, dataset: Dataset, function: Callable[[Episode], Episode]) -> None:
        self._dataset = dataset
        self._function = function

    def __len__(self) -> int:
        """Count the episodes."""
        return len(self._dataset)

    def episode_at(self, position: int) -> Episode:
        """Give what the function makes of an episode."""
        return _episode(self._function(self._dataset.episode_at(position)))

    def uid_at(self, position: int) -> str:
        """Give the uid of the episode that the function is given."""
        return self._dataset.uid_at(position)

    def __repr__(self) -> str:
        """Give what is mapped, on one line."""
        name = getattr(self._function, "__name__", type(self._function).__name__)
        return f"{self._dataset!r}.map({name})"


def _composed(outer: Rows, rows: Rows) -> Rows:
    """Give the members of `outer` at the places `rows`."""
    if isinstance(outer, range) and isinstance(rows, range):
        if not rows:
            return range(0)
        step = outer.step * rows.step
        return range(outer[rows[0]], outer[rows[-1]] + (1 if step > 0 else -1), step)
    return np.asarray(outer, dtype=np.int64)[np.asarray(rows, dtype=np.int64)]


def _episode(found: object) -> Episode:
    if not isinstance(found, Episode):
        raise InvalidTypeError(f"a dataset is made of episodes, not {type(found).__name__}")
    return found


def _callable(what: str, given: Any) -> Any:
    if not callable(given):
        raise InvalidTypeError(f"{what} is a function of an episode, not {given!r}")
    return given


def _counted(count: int) -> str:
    return f"{count} episode{'' if count == 1 else 's'}"
