"""`PrioritizedSampler`: rows drawn in proportion to priorities that the learner sets."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive import _native
from relive._arguments import INT64_MAX, as_int, type_name
from relive.errors import InvalidError, InvalidTypeError
from relive.load.sampler import Cursor, Draw, check_loader_state
from relive.model.source import IndexArray, Indices, RowKeys, Source, as_indices

_STATE: Final = (
    "position",
    "seed",
    "first",
    "capacity",
    "alpha",
    "beta",
    "largest",
    "ignored",
    "priorities",
)
_MAX_BATCH: Final = (1 << 32) - 1


class PrioritizedSampler:
    """An endless iterator over batches of rows, drawn in proportion to `priority ** alpha`.

    Each batch is a pair: row numbers as an int64 array, and `{"weight": importance weights}`. As
    in "Prioritized Experience Replay" (Schaul et al., 2015), the sum of all `priority ** alpha`
    is divided into `batch_size` equal parts, and one row is drawn from each. The weight of a row
    with probability `P` among `N` rows is `(N * P) ** -beta`, divided by the largest weight that
    any row has now: weights are at most 1, and do not depend on the other rows of the batch.

    Batches depend only on the seed, the position and the priorities. Thread-safe: a loader draws
    on its threads while the learner calls `update`. It cannot be used in a forked child.

    Args:
        source_or_length: The source to choose rows from, or their number. The rows of a source
            that has grown are included by `refresh`.
        batch_size: Samples per batch.
        alpha: The exponent of priorities; with 0 all rows are equally probable.
        beta: The exponent of importance weights; with 0 all weights are 1. It can be changed
            while the sampler is used, as can `alpha`, which takes time for every row.
        seed: Samplers with equal seeds and priorities draw the same batches. Processes that
            train together need different ones.

    Example:
        >>> import relive
        >>> sampler = relive.PrioritizedSampler(3, batch_size=4, alpha=1.0, beta=1.0)
        >>> sampler.update([0, 1, 2], [6.0, 1.0, 1.0])
        >>> rows, extras = next(sampler)
        >>> rows.tolist(), extras["weight"].tolist()
        ([0, 0, 0, 1], [0.1666666716337204, 0.1666666716337204, 0.1666666716337204, 1.0])
    """

    def __init__(
        self,
        source_or_length: Source | int,
        batch_size: int,
        *,
        alpha: float = 0.6,
        beta: float = 0.4,
        seed: int = 0,
    ) -> None:
        self._rows = source_or_length
        if not isinstance(source_or_length, Source):
            self._rows = as_int(
                "source_or_length",
                source_or_length,
                hint="pass a relive.Source, or a number of rows",
            )
        self._batch_size = as_int("batch_size", batch_size, at_least=1, at_most=_MAX_BATCH)
        self._seed = as_int("seed", seed)
        self._position = 0
        keys = self._keys()
        length = self._available() if keys is None else 0
        self._core = _native.Priorities(
            length, alpha=_as_float("alpha", alpha), beta=_as_float("beta", beta)
        )
        self._settled = 0
        self._count = length
        if keys is not None:
            self.take(keys)

    def native(self) -> "_native.Priorities":
        """Return the priorities, which this sampler and all loaders that use it share."""
        return self._core

    def __iter__(self) -> Iterator[tuple[IndexArray, dict[str, npt.NDArray[np.float32]]]]:
        """Continue from the current position."""
        return self

    def __next__(self) -> tuple[IndexArray, dict[str, npt.NDArray[np.float32]]]:
        """Draw the next batch."""
        drawn = self._core.draw(self._seed, self._position, self._batch_size)
        if drawn is None:  # only if it was asked for certain rows
            raise StopIteration
        rows, weights = drawn
        self._position += len(rows)
        return rows, {"weight": weights}

    def update(self, index: Indices, priority: npt.ArrayLike) -> None:
        """Set the priorities of rows, for instance to the absolute errors of a batch.

        The next batch that is drawn depends on all of them. If a row is listed twice, its last
        priority counts. Rows that have left the source are ignored, and counted in `ignored`. An
        error changes nothing.

        Args:
            index: Row numbers, of any shape: in batches of a loader, `batch["index"]`.
            priority: Numbers that are finite and greater than 0, one for each row, or one for
                all.
        """
        rows = as_indices(index, INT64_MAX, check=False)
        try:
            values = np.asarray(priority, dtype=np.float64)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidTypeError(
                f"`priority` must be an array of numbers: {error}",
                hint="pass a NumPy array; of a tensor, priority.detach().cpu().numpy()",
            ) from error
        if values.ndim and values.shape != rows.shape:
            raise InvalidError(
                f"`priority` has the shape {values.shape}, but `index` has the shape {rows.shape}"
            )
        self._core.update(rows.ravel(), np.broadcast_to(values, rows.shape).ravel())

    def refresh(self, length: int | None = None) -> int:
        """Include the rows that the source has now, and return how many are new.

        New rows get the largest priority so far, and at least 1. A loader that uses this sampler
        draws from them after the batches that it has prefetched.

        Args:
            length: The number of rows now, of a sampler that was made of a length.
        """
        before = self._core.window[1]
        if isinstance(self._rows, Source):
            if length is not None:
                raise InvalidError("`length` cannot be passed: the sampler has a source")
            keys = self._keys()
            if keys is not None:
                return self.take(keys)
        elif length is not None:
            length = as_int("length", length)
            if length < before:
                raise _shrank(length, before)
            self._rows = length
        available = self._available()
        if available < before:
            raise _shrank(available, before)
        self._core.extend(available)
        self._count = available
        return available - before

    def take(self, keys: RowKeys) -> int:
        """Choose from the rows that have these keys, and return how many are new."""
        # Before what was settled, rows can only have left.
        new = self._core.insert(keys.since(self._settled))
        first = keys.first
        self._core.evict(self._core.window[1] if first is None else first)
        self._settled, self._count = keys.settled, len(keys)
        return new

    @property
    def alpha(self) -> float:
        """The exponent of priorities."""
        return self._core.alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        self._core.alpha = _as_float("alpha", value)

    @property
    def beta(self) -> float:
        """The exponent of importance weights."""
        return self._core.beta

    @beta.setter
    def beta(self, value: float) -> None:
        self._core.beta = _as_float("beta", value)

    @property
    def batch_size(self) -> int:
        """Samples per batch."""
        return self._batch_size

    @property
    def seed(self) -> int:
        """The seed of the draws."""
        return self._seed

    @property
    def length(self) -> int:
        """The number of rows to choose from."""
        return self._count

    @property
    def has_keys(self) -> bool:
        """Whether rows are drawn by the keys of a source, and not by positions."""
        return self._keys() is not None

    @property
    def has_source(self) -> bool:
        """Whether the sampler was made of a source, which may grow."""
        return isinstance(self._rows, Source)

    @property
    def position(self) -> int:
        """How many samples this iterator has drawn; a loader counts its own."""
        return self._position

    @property
    def ignored(self) -> int:
        """How many updates were ignored because their row had left the source."""
        return self._core.ignored

    def state_dict(self) -> dict[str, Any]:
        """Return the position, the exponents, and the priority of each row as an array.

        The state of a loader contains that of its sampler.
        """
        return self.state_at(self._position)

    def state_at(self, position: int) -> dict[str, Any]:
        """Return the state at another position."""
        saved = self._core.save()
        return dict(zip(_STATE, (position, self._seed, *saved), strict=True))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, with its rows and exponents. The batch size may have changed.

        Rows that were added since are included by `refresh`.
        """
        if not isinstance(state, Mapping):
            raise InvalidTypeError(f"`state` must be a dict, got {type_name(type(state))}")
        if missing := [name for name in _STATE if name not in state]:
            raise InvalidError(f"`state` does not have the keys {', '.join(map(repr, missing))}")
        if state["seed"] != self._seed:
            raise InvalidError(
                f"the state was saved with seed={state['seed']!r}, "
                f"but this sampler has seed={self._seed!r}",
                hint="make the sampler with the same seed to continue",
            )
        numbers = {
            name: as_int(name, state[name]) for name in ("position", "first", "capacity", "ignored")
        }
        priorities = np.asarray(state["priorities"])
        if priorities.dtype != np.float64 or priorities.ndim != 1:
            raise InvalidTypeError(
                "`priorities` of the state must be a float64 array of one dimension, "
                f"got {priorities.dtype} with {priorities.ndim}"
            )
        keys = self._keys()
        if keys is None:
            available = self._available()
        else:
            available = int(keys.since(keys.settled).max(initial=keys.settled - 1)) + 1
        if numbers["first"] + len(priorities) > available:
            raise InvalidError(
                f"cannot resume: the state was saved with {len(priorities)} rows, "
                f"but the source has {available}",
                hint="pass the source or the number of rows that the sampler had",
            )
        self._core.restore(
            numbers["first"],
            numbers["capacity"],
            _as_float("alpha", state["alpha"]),
            _as_float("beta", state["beta"]),
            _as_float("largest", state["largest"]),
            numbers["ignored"],
            priorities,
        )
        self._position = numbers["position"]
        self._settled = 0
        self._count = int(np.count_nonzero(priorities))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the arguments and the state."""
        made = partial(PrioritizedSampler, self._rows, self._batch_size, seed=self._seed)
        return made, (), self.state_dict()

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Restore the state."""
        self.load_state_dict(state)

    def __repr__(self) -> str:
        """Return the arguments and the position, on one line."""
        return (
            f"PrioritizedSampler({self.length}, {self._batch_size}, alpha={self.alpha:g}, "
            f"beta={self.beta:g}, seed={self._seed}, position={self._position})"
        )

    def _keys(self) -> RowKeys | None:
        """Return the keys of the rows that the source has now, if it has keys."""
        return self._rows.snapshot().row_keys() if isinstance(self._rows, Source) else None

    def _available(self) -> int:
        """Return how many rows the source has now."""
        return len(self._rows.snapshot()) if isinstance(self._rows, Source) else self._rows


class PrioritizedOrder:
    """The batches that a loader draws from a prioritized sampler, at positions of its own."""

    def __init__(
        self,
        sampler: PrioritizedSampler,
        names: Iterable[str],
        length: int,
        sources: Sequence[Source],
    ) -> None:
        names = frozenset(names)
        if "weight" in names:
            raise InvalidError(
                "the sampler adds a `weight` to batches, but a source has a field of that name",
                hint="name the source: DataLoader({'step': source})",
            )
        if not sampler.has_source and sampler.length != length:
            raise InvalidError(
                f"the sampler has length={sampler.length}, but the source has {length} rows"
            )
        self.sampler = sampler
        self.index = None if "index" in names else "index"
        """The name of the row numbers in batches; None if a source has a field of that name."""
        self.window = sampler.native().window
        """The rows that are drawn from: the first, and the one after the last."""
        self.keys: IndexArray | None = None
        """The keys of the rows of the sources, if the sampler draws by keys."""
        self.returned: Cursor = self.start
        self.rows_of(length, sources)

    @property
    def start(self) -> Cursor:
        """The position of the sampler."""
        return self.sampler.position, 0, 0

    @property
    def restarts(self) -> bool:
        """Whether each iteration over the loader begins the order again."""
        return False

    @property
    def ends_with_its_rows(self) -> bool:
        """Whether a stream ends when there are other rows, so that another one continues."""
        return True

    def rows_of(self, length: int, sources: Sequence[Source]) -> int:
        """Return how many of the rows of the sources are used."""
        if self.sampler.has_keys:
            self.keys = self._take(sources)
            return length
        self.window = first, end = self.sampler.native().window
        if end > length:
            raise InvalidError(
                f"the sampler has length={end}, but the source has only {length} rows",
                hint="make a loader with another sampler",
            )
        if first == end:
            raise InvalidError("the sampler has no rows", hint="call its refresh()")
        return end - first

    def _take(self, sources: Sequence[Source]) -> IndexArray:
        """Draw from the rows of the sources, and return their keys."""
        for source in sources:
            keys = source.row_keys()
            if keys is not None:
                self.sampler.take(keys)
                return keys.since(0)
        raise InvalidError(
            "the sampler draws from transitions, but the loader has none of them",
            hint="pass the source of the sampler to the loader",
        )

    def options(self) -> dict[str, Any]:
        """Return what the core needs to draw."""
        found = {"priorities": self.sampler.native(), "index": self.index}
        if self.keys is not None:
            return found | {"keys": self.keys}
        return found | {"window": self.window}

    def positions(self, cursor: Cursor) -> "_native.Sampler":
        """Return a sampler of the core that counts positions from a cursor on."""
        first, end = self.window if self.keys is None else (0, len(self.keys))
        counter = _native.Sampler(
            end - first,
            self.sampler.batch_size,
            "random",
            seed=self.sampler.seed,
            window=None,
            stride=None,
            rank=0,
            world_size=1,
            tail="wrap",
            epochs=None,
        )
        counter.cursor = cursor
        return counter

    def draws(self, cursor: Cursor, length: int) -> Iterator[Draw]:  # noqa: ARG002 - as of others
        """Draw batches from a cursor on, until there are other rows."""
        sampler, index, keys = self.sampler, self.index, self.keys
        window = self.window if keys is None else None
        core = sampler.native()
        position = cursor[0]
        while (drawn := core.draw(sampler.seed, position, sampler.batch_size, window)) is not None:
            rows, weights = drawn
            extras: dict[str, npt.NDArray[Any]] = {} if index is None else {index: rows}
            extras["weight"] = weights
            if keys is None:
                places = rows - self.window[0]
            else:
                places = np.minimum(np.searchsorted(keys, rows), len(keys) - 1)
                if (keys[places] != rows).any():
                    return
            first, position = position, position + len(rows)
            yield Draw(first, (position, 0, 0), places, extras=extras)

    def state(self, cursor: Cursor) -> dict[str, Any]:
        """Return the state at a cursor, with the priorities of now."""
        return {"sampler": self.sampler.state_at(cursor[0]), "position": cursor[0]}

    def load(self, state: Mapping[str, Any]) -> Cursor:
        """Continue from a state, and return its cursor."""
        check_loader_state(state)
        self.sampler.load_state_dict(state["sampler"])
        return self.start

    def restart(self) -> Cursor:
        """Return the position of the sampler."""
        return self.start


def _as_float(name: str, value: object) -> float:
    """Return `value` as a float, or raise an error that names the argument."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number) or isinstance(value, str | bytes | bool):
        raise InvalidTypeError(f"`{name}` must be a number, got {value!r}")
    return number


def _shrank(rows: int, before: int) -> InvalidError:
    return InvalidError(
        f"the source has {rows} rows, fewer than the {before} of the sampler",
        hint="make another sampler",
    )
