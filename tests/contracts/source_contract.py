"""The sources that promise the `Source` contract, and the rows that each of them must hold.

A factory makes a source of n rows in which row i is what `columns` says about i. To put a
source under contract, add one line to `SOURCES`.
"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relive.model import Batch, Field, Ragged, Source, Subset
from relive.model.select import Indices, as_indices
from relive.model.source import check_out, pick_fields

Make: TypeAlias = Callable[[int], Source]
"""Makes a source of n rows."""


def tokens(row: int) -> npt.NDArray[np.int32]:
    """Give the tokens of a row: as many as its number modulo four."""
    return np.arange(row, row + row % 4, dtype=np.int32)


def columns(rows: npt.ArrayLike) -> dict[str, npt.NDArray[Any] | Ragged]:
    """Give the fields that the rows of these numbers must have."""
    ids = np.asarray(rows, dtype=np.int64)
    listed = [tokens(int(row)) for row in ids.ravel()]
    return {
        "id": ids.copy(),
        "vec": (ids[..., None] + np.array([0.0, 0.25, 0.5])).astype(np.float32),
        "tokens": Ragged.from_list(listed, dtype=np.int32),
    }


class ListSource(Source):
    """The contract in its plainest form: columns in memory, one Python loop per gather."""

    def __init__(self, rows: npt.ArrayLike) -> None:
        self._columns = columns(rows)
        self._length = len(np.asarray(rows))

    @property
    def fields(self) -> Mapping[str, Field]:
        return {
            "id": Field(np.int64),
            "vec": Field(np.float32, (3,)),
            "tokens": Field(np.int32, ragged=True),
        }

    def __len__(self) -> int:
        return self._length

    def gather(
        self,
        indices: Indices,
        fields: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Batch:
        picked = pick_fields(self.fields, fields)
        rows = as_indices(indices, len(self))
        given = check_out(out, picked, rows.shape)
        batch: Batch = {}
        for name, field in picked.items():
            column = self._columns[name]
            if isinstance(column, Ragged):
                batch[name] = column.take(rows)
                continue
            array = given.get(name)
            if array is None:
                array = np.empty(rows.shape + field.shape, dtype=field.dtype)
            for place in np.ndindex(rows.shape):
                array[place] = column[rows[place]]
            batch[name] = array
        return batch


def list_source(n: int) -> Source:
    return ListSource(np.arange(n))


def range_subset(n: int) -> Source:
    """Rows n - 1, n - 2, … of a longer source that holds them backwards, at every other place."""
    numbers = np.full(2 * n + 3, -1)
    numbers[1 : 2 * n + 1 : 2] = np.arange(n)[::-1]
    return Subset(ListSource(numbers), range(2 * n - 1, 0, -2))


def array_subset(n: int) -> Source:
    order = np.random.default_rng(n).permutation(n)
    return Subset(ListSource(order), np.argsort(order))


SOURCES: dict[str, Make] = {
    "list": list_source,
    "range-subset": range_subset,
    "array-subset": array_subset,
}

if find_spec("relive._native") and find_spec("relive.store.memory"):
    from relive.store.memory import ArraySource

    SOURCES["array"] = lambda n: ArraySource(columns(np.arange(n)))


def assert_rows(source: Source, batch: Batch, rows: npt.ArrayLike) -> None:
    """Compare all of a batch, to the byte, with what the rows of these numbers must hold."""
    expected = columns(rows)
    assert list(batch) == list(source.fields)
    for name, values in batch.items():
        wanted = expected[name]
        assert type(values) is type(wanted), name
        assert values.dtype == wanted.dtype, name
        if isinstance(values, np.ndarray):
            np.testing.assert_array_equal(values, wanted, strict=True)
        else:
            assert values == wanted


def array(batch: Batch, name: str) -> npt.NDArray[Any]:
    """Give a field of a batch that must be an array."""
    values = batch[name]
    assert isinstance(values, np.ndarray)
    return values


def ids(source: Source) -> list[int]:
    """Give the number of every row, in order."""
    listed: list[int] = array(source.gather(np.arange(len(source)), ["id"]), "id").tolist()
    return listed


def pickled(source: Source) -> Source:
    """Send a source through pickle."""
    copy: Source = pickle.loads(pickle.dumps(source))  # noqa: S301 - made one line before
    return copy


def ids_in_another_process(source: Source, rows: list[int]) -> list[int]:
    """Read ids where the source was inherited or unpickled."""
    batch = source.gather(rows)
    assert_rows(source, batch, rows)
    ids: list[int] = array(batch, "id").tolist()
    return ids
