"""Datasets: sequences of episodes that can be selected, filtered, mapped and joined lazily."""

import json
import os
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, SupportsIndex, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from relive._arguments import type_name, utf8_name
from relive.errors import InvalidError, InvalidTypeError, TooLargeError, UnknownNameError
from relive.model.clock import INT64_MAX, INT64_MIN
from relive.model.episode import Episode, encode_statics
from relive.model.select import compose
from relive.model.source import Rows, positions, resolve
from relive.model.split import split_keys

if TYPE_CHECKING:
    import pyarrow as pa

Positions: TypeAlias = slice | range | Sequence[int] | npt.NDArray[Any]
"""Several positions of episodes: a slice, a range, or integers in a list or array."""

SEGMENT_MARK: Final = "#"
"""Separates the uid of an episode from the number of a segment that a cut made of it."""

_BY_HINT: Final = 'by= takes "uid", the name of a static, a function, or one key per episode'
_MAX_THREADS: Final = 8
_TABLE_COLUMNS: Final = {
    "uid": "string",
    "path": "string",
    "created_ts_ns": "int64",
    "ended": "string",
    "first_ts": "int64",
    "start_ts": "int64",
    "last_ts": "int64",
    "duration_ns": "int64",
}


class Dataset(Sequence[Episode]):
    """Episodes in an order.

    `dataset[i]` is one episode; a slice, or integers in a list or array, return a list of
    episodes. `select`, `filter`, `map` and `+` return datasets that read nothing until they are
    used. Their results do not change when the dataset they were made from is refreshed.

    A subclass defines `__len__` and `episode_at`; everything else follows from them.

    Example:
        >>> from relive.episodes import EpisodeList, EpisodeView
        >>> dataset = EpisodeList(
        ...     EpisodeView({}, {"task": task}, {"uid": f"e{number}"})
        ...     for number, task in enumerate(["pick", "place", "pick"])
        ... )
        >>> dataset[-1]["task"]
        'pick'
        >>> dataset.filter(lambda episode: episode["task"] == "pick").uids
        ('e0', 'e2')
        >>> train, test = dataset.split((0.8, 0.2))
        >>> len(train) + len(test)
        3
    """

    _uid_positions: dict[str, int] | None = None

    @abstractmethod
    def episode_at(self, position: int) -> Episode:
        """Return the episode at `position`, which is at least 0 and below the length."""

    def uid_at(self, position: int) -> str:
        """Return the uid of the episode at `position`."""
        return self.episode_at(position).uid

    def row_at(self, position: int) -> dict[str, Any]:
        """Return the row of the episode at `position` in `table`, without its position."""
        return table_row(self.episode_at(position))

    @overload
    def __getitem__(self, key: SupportsIndex) -> Episode: ...  # type: ignore[overload-overlap]

    @overload
    def __getitem__(self, key: Positions) -> list[Episode]: ...

    def __getitem__(self, key: Any) -> Episode | list[Episode]:
        """Return the episode at a position, or a list of episodes for several positions."""
        found = self._positions(key)
        if isinstance(found, int):
            return self.episode_at(found)
        return [self.episode_at(int(position)) for position in found]

    def __iter__(self) -> Iterator[Episode]:
        """Iterate over the episodes in order."""
        for position in range(len(self)):
            yield self.episode_at(position)

    @property
    def uids(self) -> tuple[str, ...]:
        """The uid of every episode, in order."""
        return tuple(self.uid_at(position) for position in range(len(self)))

    def by_uid(self, uid: str) -> Episode:
        """Return the episode with that uid, the first one if there are several."""
        if self._uid_positions is None:
            self._uid_positions = {}
            for position, known in enumerate(self.uids):
                self._uid_positions.setdefault(known, position)
        if uid in self._uid_positions:
            return self.episode_at(self._uid_positions[uid])
        segments = [known for known in self._uid_positions if known.startswith(uid + SEGMENT_MARK)]
        raise UnknownNameError(
            f"no episode has the uid {uid!r}",
            hint=f"the episode was cut into {' and '.join(map(repr, segments))}"
            if segments
            else None,
        )

    def select(self, positions: Positions) -> "Dataset":
        """Return a dataset of the episodes at `positions`, in that order."""
        found = self._positions(positions)
        if isinstance(found, int):
            raise InvalidTypeError(
                f"`positions` must be a slice, a list or an array, got {positions!r}",
                hint="dataset[i] returns one episode",
            )
        return Selected(self.snapshot(), found)

    def filter(self, predicate: Callable[[Episode], object]) -> "Dataset":
        """Return a dataset of the episodes for which `predicate(episode)` is true.

        It is called once for each episode, when the result is first used.
        """
        return Filtered(self.snapshot(), _check_callable("predicate", predicate))

    def map(self, function: Callable[[Episode], Episode]) -> "Dataset":
        """Return a dataset of what `function(episode)` returns.

        It is called each time an episode is used. The uids stay those of its arguments.
        """
        return Mapped(self.snapshot(), _check_callable("function", function))

    def __add__(self, other: "Dataset") -> "ConcatDataset":
        """Return a dataset of the episodes of this dataset, then those of the other."""
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
        """Divide the dataset into one view per ratio; each episode is in exactly one of them.

        Episodes with equal keys stay together. `by` defines the keys: `"uid"` (the segments of
        one episode have the same key), the name of a static, a function of the episode, or a
        sequence with one key per episode. The view of a key depends only on the key, the ratios
        and the seed, so episodes do not move when others are added.
        """
        views = split_keys(self._keys(by), ratios, seed=seed)
        return tuple(self.select(positions) for positions in views)

    def table(self) -> "pa.Table":
        """Return one row for each episode, in order. No records are read.

        The columns are `position` in the dataset, `uid`, `path`, `created_ts_ns`, `ended` (how the
        recording ended), `first_ts`, `start_ts`, `last_ts` and `duration_ns` as episodes define
        them, null for episodes without records, and two structs: `rows`, the number of records
        of each signal, and `statics`. Fields of the structs are null for episodes that do not
        have the signal or static.

        A static has the Arrow type that fits all of its values: booleans, 64-bit integers,
        floats (also if some are integers), text, bytes, or lists and structs of these with the
        same keys. If there is no such type, its values are JSON text. An episode whose duration
        exceeds 64 bits is a `TooLargeError`.
        """
        import pyarrow as pa

        count = len(self)
        with ThreadPoolExecutor(min(_MAX_THREADS, 2 * (os.cpu_count() or 1))) as pool:
            rows = list(pool.map(self.row_at, range(count)))
        columns = {
            name: pa.array([row[name] for row in rows], pa.type_for_alias(kind))
            for name, kind in _TABLE_COLUMNS.items()
        }
        return pa.table(
            {
                "position": pa.array(range(count), pa.int64()),
                **columns,
                "rows": _struct([row["rows"] for row in rows], lambda v: pa.array(v, pa.int64())),
                "statics": _struct([row["statics"] for row in rows], _static_column),
            }
        )

    def snapshot(self) -> "Dataset":
        """Return a dataset of the current episodes, which a later `refresh` does not change."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Pickle everything except what can be computed again."""
        return {name: value for name, value in self.__dict__.items() if name != "_uid_positions"}

    def __repr__(self) -> str:
        """Return the number of episodes, on one line."""
        return f"{type(self).__name__}({_counted(len(self))})"

    def _positions(self, key: Any) -> int | Rows:
        if isinstance(key, str):
            raise InvalidTypeError(
                f"the position of an episode must be an integer, got {key!r}",
                hint="by_uid(uid) finds an episode by its uid",
            )
        if isinstance(key, slice):
            return resolve(key, len(self))
        return positions(key, len(self), "episode")

    def _keys(self, by: Any) -> Sequence[object]:
        if isinstance(by, str):
            if by == "uid":
                return [uid.partition(SEGMENT_MARK)[0] for uid in self.uids]
            statics = [episode.statics for episode in self]
            if statics and not any(by in each for each in statics):
                raise UnknownNameError(f"no episode has a static value named {by!r}", hint=_BY_HINT)
            return [each.get(by) for each in statics]
        if callable(by):
            return [by(episode) for episode in self]
        try:
            keys = list(by)
        except TypeError as error:
            raise InvalidTypeError(
                f"`by` must be a string, a function or a list of keys, got {by!r}", hint=_BY_HINT
            ) from error
        if len(keys) != len(self):
            raise InvalidError(
                f"`by` must have one key for each of {_counted(len(self))}, got {len(keys)}",
                hint=_BY_HINT,
            )
        return keys


class EpisodeList(Dataset):
    """A dataset of the episodes in a list.

    Example:
        >>> from relive.episodes import EpisodeList, EpisodeView
        >>> EpisodeList([EpisodeView({}, {"task": "pick"})])
        EpisodeList(1 episode)
    """

    def __init__(self, episodes: Iterable[Episode]) -> None:
        self._episodes = [_check_episode(episode) for episode in episodes]

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self._episodes)

    def episode_at(self, position: int) -> Episode:
        """Return the episode at `position`."""
        return self._episodes[position]


class ConcatDataset(Dataset):
    """The episodes of several datasets, one dataset after the other.

    Example:
        >>> from relive.episodes import ConcatDataset, EpisodeList, EpisodeView
        >>> one = EpisodeList([EpisodeView({}, {"task": "pick"})])
        >>> both = ConcatDataset(one, one)
        >>> len(both)
        2
    """

    def __init__(self, *datasets: Dataset) -> None:
        self._datasets: list[Dataset] = []
        for dataset in datasets:
            if not isinstance(dataset, Dataset):
                raise InvalidTypeError(
                    f"`datasets` must be Dataset objects, got {type_name(type(dataset))}"
                )
            if isinstance(dataset, ConcatDataset):
                self._datasets += dataset.datasets
            else:
                self._datasets.append(dataset.snapshot())

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """The datasets that are joined."""
        return tuple(self._datasets)

    def __len__(self) -> int:
        """Return the number of episodes of all datasets."""
        return self._stops[-1] if self._stops else 0

    def episode_at(self, position: int) -> Episode:
        """Return the episode at `position`, counted over all datasets."""
        dataset, inner = self._locate(position)
        return dataset.episode_at(inner)

    def uid_at(self, position: int) -> str:
        """Return the uid of the episode at `position`, counted over all datasets."""
        dataset, inner = self._locate(position)
        return dataset.uid_at(inner)

    def row_at(self, position: int) -> dict[str, Any]:
        """Return the row of the episode at `position`, counted over all datasets."""
        dataset, inner = self._locate(position)
        return dataset.row_at(inner)

    def __repr__(self) -> str:
        """Return the datasets that are joined, on one line."""
        return f"{type(self).__name__}({', '.join(map(repr, self._datasets))})"

    @cached_property
    def _stops(self) -> list[int]:
        # Computed late: the length of a filtered dataset calls its predicate for every episode.
        return list(accumulate(map(len, self._datasets)))

    def _locate(self, position: int) -> tuple[Dataset, int]:
        number = bisect_right(self._stops, position)
        return self._datasets[number], position - (self._stops[number - 1] if number else 0)


class Selected(Dataset):
    """Some episodes of a dataset, in some order."""

    def __init__(self, dataset: Dataset, rows: Rows) -> None:
        self._dataset, self._rows = dataset, rows
        if isinstance(dataset, Selected):
            self._dataset, self._rows = dataset._dataset, compose(dataset.rows, rows)  # noqa: SLF001

    @property
    def rows(self) -> Rows:
        """The position in the dataset of each selected episode."""
        return self._rows

    def __len__(self) -> int:
        """Return the number of selected episodes."""
        return len(self.rows)

    def episode_at(self, position: int) -> Episode:
        """Return the episode at `position` among the selected ones."""
        return self._dataset.episode_at(int(self.rows[position]))

    def uid_at(self, position: int) -> str:
        """Return the uid of the episode at `position` among the selected ones."""
        return self._dataset.uid_at(int(self.rows[position]))

    def row_at(self, position: int) -> dict[str, Any]:
        """Return the row of the episode at `position` among the selected ones."""
        return self._dataset.row_at(int(self.rows[position]))

    def __repr__(self) -> str:
        """Return the dataset and how many episodes are selected, on one line."""
        return f"{self._dataset!r}.select({_counted(len(self))})"


class Filtered(Selected):
    """The episodes of a dataset for which a predicate is true.

    Pickling calls the predicate and stores the positions instead of it.
    """

    def __init__(self, dataset: Dataset, predicate: Callable[[Episode], object]) -> None:
        self._dataset = dataset
        self._predicate = predicate

    @cached_property
    def rows(self) -> Rows:
        """The position in the dataset of each episode for which the predicate is true."""
        kept = (row for row, episode in enumerate(self._dataset) if self._predicate(episode))
        return np.fromiter(kept, dtype=np.int64)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the dataset and the positions."""
        return Selected, (self._dataset, self.rows)

    def __repr__(self) -> str:
        """Return the dataset and how many episodes are kept, if that is known, on one line."""
        kept = _counted(len(self)) if "rows" in self.__dict__ else "not evaluated"
        return f"{self._dataset!r}.filter({kept})"


class Mapped(Dataset):
    """What a function returns for the episodes of a dataset."""

    def __init__(self, dataset: Dataset, function: Callable[[Episode], Episode]) -> None:
        self._dataset = dataset
        self._function = function

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self._dataset)

    def episode_at(self, position: int) -> Episode:
        """Return what the function returns for the episode at `position`."""
        return _check_episode(self._function(self._dataset.episode_at(position)))

    def uid_at(self, position: int) -> str:
        """Return the uid of the episode that the function gets."""
        return self._dataset.uid_at(position)

    def __repr__(self) -> str:
        """Return the dataset and the name of the function, on one line."""
        name = getattr(self._function, "__name__", type(self._function).__name__)
        return f"{self._dataset!r}.map({name})"


def _check_episode(episode: object) -> Episode:
    if not isinstance(episode, Episode):
        raise InvalidTypeError(f"a dataset must contain episodes, got {type_name(type(episode))}")
    return episode


def _check_callable(name: str, value: Any) -> Any:
    if not callable(value):
        raise InvalidTypeError(f"`{name}` must be a function that takes an episode, got {value!r}")
    return value


def _counted(count: int) -> str:
    return f"{count} episode{'' if count == 1 else 's'}"


def table_row(episode: Episode) -> dict[str, Any]:
    """Return the row of an episode in `Dataset.table`, without its position."""
    meta = episode.meta
    signals = episode.signals
    rows = {name: len(signal) for name, signal in signals.items()}
    path = getattr(episode, "path", None)
    row: dict[str, Any] = dict.fromkeys(_TABLE_COLUMNS) | {
        "uid": episode.uid,
        "path": None if path is None else utf8_name(os.fspath(path)),
        "created_ts_ns": meta.get("created_ts_ns"),
        "ended": (meta.get("outcome") or {}).get("ended"),
        "rows": rows,
        "statics": episode.statics,
    }
    starts = [signals[name].start_ts for name, length in rows.items() if length]
    if starts:
        last = max(signals[name].last_ts for name, length in rows.items() if length)
        row |= {"first_ts": min(starts), "start_ts": max(starts), "last_ts": last}
        row["duration_ns"] = last - min(starts)
    for name, kind in _TABLE_COLUMNS.items():
        if kind == "int64" and not INT64_MIN <= (row[name] or 0) <= INT64_MAX:
            raise TooLargeError(
                f"`{name}` of episode {episode.uid!r} is {row[name]}, which exceeds 64 bits",
                hint='leave it out with LocalDataset(..., errors="skip"), `select` or an edit',
            )
    return row


def _struct(rows: list[Mapping[str, Any]], column: "Callable[[list[Any]], pa.Array]") -> "pa.Array":
    """Return one struct for each row, with a field for every key of any row."""
    import pyarrow as pa

    names = sorted({name for row in rows for name in row})
    if not names:  # Parquet cannot store a struct without fields
        return pa.nulls(len(rows))
    arrays = [column([row.get(name) for row in rows]) for name in names]
    return pa.StructArray.from_arrays(arrays, names)


def _static_column(values: list[Any]) -> "pa.Array":
    import pyarrow as pa

    try:
        array = pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        array = None
    # Arrow converts text to bytes and adds missing keys to structs, so values are compared.
    if array is not None and array.to_pylist() == values and not _has_empty_struct(array.type):
        return array
    texts = [
        None if value is None else json.dumps(encode_statics({"": value})[""], ensure_ascii=False)
        for value in values
    ]
    return pa.array(texts, pa.string())


def _has_empty_struct(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    if pa.types.is_struct(kind) and not kind.num_fields:
        return True
    return any(_has_empty_struct(kind.field(number).type) for number in range(kind.num_fields))
