"""`PrioritizedSampler`: rows drawn in proportion to priorities that the learner sets."""

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive import _native
from relive._arguments import INT64_MAX, as_int, type_name
from relive._forks import call_after_fork
from relive.errors import InvalidError, InvalidTypeError
from relive.load.keyed import KeyedRows
from relive.load.sampler import Cursor, Draw, check_loader_state
from relive.model.source import IndexArray, Indices, RowKeys, Rows, Source, as_indices

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
        # Held while the rows of the tree and their keys are changed or used together.
        self._changing = threading.RLock()
        call_after_fork(self)
        self._keyed: KeyedRows | None = None
        if keys is not None:
            self._keyed = KeyedRows(self._core)
            self.take(keys)

    def after_fork(self) -> None:
        """Replace the lock, in a forked process."""
        self._changing = threading.RLock()

    def native(self) -> "_native.Priorities":
        """Return the priorities, which this sampler and all loaders that use it share."""
        return self._core

    def __iter__(self) -> Iterator[tuple[IndexArray, dict[str, npt.NDArray[np.float32]]]]:
        """Continue from the current position."""
        return self

    def __next__(self) -> tuple[IndexArray, dict[str, npt.NDArray[np.float32]]]:
        """Draw the next batch."""
        with self._changing:
            drawn = self._core.draw(self._seed, self._position, self._batch_size)
            if drawn is None:  # only if it was asked for certain rows
                raise StopIteration
            rows, weights = drawn
            if self._keyed is not None:
                rows = self._keyed.keys_of(rows)
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
        with self._changing:
            flat = rows.ravel()
            if self._keyed is not None:
                flat = self._keyed.changed_rows(flat)
            self._core.update(flat, np.broadcast_to(values, rows.shape).ravel())

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
        return available - before

    def take(self, keys: Sequence[RowKeys]) -> int:
        """Choose from the rows that have these keys, and return how many are new."""
        assert self._keyed is not None  # noqa: S101 - the source has keys
        with self._changing:
            return self._keyed.take(keys)

    def tree_rows(self, keys: Sequence[RowKeys]) -> tuple[IndexArray, IndexArray]:
        """Choose from the rows that have these keys; return the keys, and their rows in the tree.

        A row of the tree is never that of another key. It is 0 for a key that is not there.
        """
        assert self._keyed is not None  # noqa: S101 - the source has keys
        with self._changing:
            self._keyed.take(keys)
            every = np.concatenate([each.since(each.start) for each in keys])
            return every, self._keyed.rows_of(every)

    @property
    def alpha(self) -> float:
        """The exponent of priorities."""
        return self._core.alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        with self._changing:
            self._core.alpha = _as_float("alpha", value)

    @property
    def beta(self) -> float:
        """The exponent of importance weights."""
        return self._core.beta

    @beta.setter
    def beta(self, value: float) -> None:
        with self._changing:
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
        first, end = self._core.window
        return end - first if self._keyed is None else len(self._keyed)

    @property
    def has_keys(self) -> bool:
        """Whether rows are drawn by the keys of a source, and not by positions."""
        return self._keyed is not None

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
        with self._changing:
            values = position, self._seed, *self._core.save()
            saved: dict[str, Any] = dict(zip(_STATE, values, strict=True))
            return saved if self._keyed is None else saved | self._keyed.save()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, with its rows and exponents. The batch size may have changed.

        Rows that were added since are included by `refresh`. Of transitions, those that do not
        exist any more are left out, such as steps that a killed recorder had not committed.
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
        position = as_int("position", state["position"])
        numbers: dict[str, Any] = {
            name: as_int(name, state[name]) for name in ("first", "capacity", "ignored")
        }
        priorities = np.asarray(state["priorities"])
        if priorities.dtype != np.float64 or priorities.ndim != 1:
            raise InvalidTypeError(
                "`priorities` of the state must be a float64 array of one dimension, "
                f"got {priorities.dtype} with {priorities.ndim}"
            )
        numbers |= {name: _as_float(name, state[name]) for name in ("alpha", "beta", "largest")}
        numbers["priorities"] = priorities
        keys = self._keys()
        with self._changing:
            if keys is None or self._keyed is None:
                self._restore(**numbers)
            else:
                self._keyed.load(dict(state) | numbers, keys)
            self._position = position

    def _restore(
        self,
        *,
        first: int,
        capacity: int,
        ignored: int,
        alpha: float,
        beta: float,
        largest: float,
        priorities: npt.NDArray[np.float64],
    ) -> None:
        """Restore the tree of rows without keys."""
        if (priorities == 0.0).any():  # only between keys are rows that do not exist
            raise InvalidError("a priority must be finite and greater than 0, got 0")
        available = self._available()
        if first + len(priorities) > available:
            raise InvalidError(
                f"cannot resume: the state was saved with {len(priorities)} rows, "
                f"but the source has {available}",
                hint="pass the source or the number of rows that the sampler had",
            )
        self._core.restore(first, capacity, alpha, beta, largest, ignored, priorities)

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

    def _keys(self) -> tuple[RowKeys, ...] | None:
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
        self.tree_rows: IndexArray | None = None
        """The rows of the tree that the sources have, if the sampler draws by keys; they increase.
        """
        self._keys: IndexArray | None = None  # of these
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

    def rows_of(self, length: int, sources: Sequence[Source]) -> Rows:
        """Return which rows of the sources are used, in their order."""
        if self.sampler.has_keys:
            keys, tree_rows = self.sampler.tree_rows(_keys_of(sources))
            if (tree_rows[1:] > tree_rows[:-1]).all():
                self.tree_rows, self._keys = tree_rows, keys
                return range(length)
            order = np.argsort(tree_rows, kind="stable")
            self.tree_rows, self._keys = tree_rows[order], keys[order]
            return order
        self.window = first, end = self.sampler.native().window
        if end > length:
            raise InvalidError(
                f"the sampler has length={end}, but the source has only {length} rows",
                hint="make a loader with another sampler",
            )
        if first == end:
            raise InvalidError("the sampler has no rows", hint="call its refresh()")
        return range(end - first)

    def options(self) -> dict[str, Any]:
        """Return what the core needs to draw."""
        found = {"priorities": self.sampler.native(), "index": self.index}
        if self.tree_rows is not None:
            return found | {"keys": self.tree_rows}
        return found | {"window": self.window}

    def numbered(self) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
        """Return what replaces the rows in batches of the core by keys, if it has to be done."""
        tree_rows, keys, index = self.tree_rows, self._keys, self.index
        if tree_rows is None or keys is None or index is None:
            return None

        def replace(batch: dict[str, Any]) -> dict[str, Any]:
            batch[index] = keys[np.searchsorted(tree_rows, batch[index])]
            return batch

        return replace

    def positions(self, cursor: Cursor) -> "_native.Sampler":
        """Return a sampler of the core that counts positions from a cursor on."""
        first, end = self.window if self.tree_rows is None else (0, len(self.tree_rows))
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
        sampler, index, tree_rows, keys = self.sampler, self.index, self.tree_rows, self._keys
        window = self.window if tree_rows is None else None
        core = sampler.native()
        position = cursor[0]
        while (drawn := core.draw(sampler.seed, position, sampler.batch_size, window)) is not None:
            rows, weights = drawn
            if tree_rows is None or keys is None:
                places = rows - self.window[0]
            else:
                places = np.minimum(np.searchsorted(tree_rows, rows), len(tree_rows) - 1)
                if (tree_rows[places] != rows).any():
                    return
                rows = keys[places]
            extras: dict[str, npt.NDArray[Any]] = {} if index is None else {index: rows}
            extras["weight"] = weights
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


def _keys_of(sources: Sequence[Source]) -> tuple[RowKeys, ...]:
    """Return the keys of the first source that has some."""
    for source in sources:
        keys = source.row_keys()
        if keys is not None:
            return keys
    raise InvalidError(
        "the sampler was made of transitions, but no source of the loader has transitions",
        hint="pass the source of the sampler to the loader",
    )


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
