"""`FieldView`: one field of a store, indexed like a NumPy array."""

from collections.abc import Iterator
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from relive.errors import InvalidError, InvalidTypeError, TooLargeError
from relive.model.schema import Field
from relive.model.source import Key, Rows, pick_fields, resolve
from relive.store.records.snapshot import StoreSnapshot

if TYPE_CHECKING:
    from relive.model.ragged import Ragged
    from relive.store.records.store import RecordStore

_MAX_ARRAY_BYTES = 1 << 30
_GROUP: Final = 256


class FieldView:
    """The values of one field of a store, read when they are indexed.

    `view[i]` and `view[a:b]` are read-only: without a copy if the file is mapped, the values are
    stored raw and the records are consecutive. Records selected by an array of integers or a
    mask are copied and writable. A missing value is zeros, `""`, `b""`, an empty array, or None
    for JSON. `view[i] = value` and `view[indices] = values` change a store that is open for
    writing. The view shows changes of its store.

    Example:
        >>> import relive
        >>> store = relive.RecordStore.create("arm", {"score": relive.Field("int64")})
        >>> positions = store.extend({"score": [3, 4, 5]})
        >>> view = store["score"]
        >>> view[1:] = 7
        >>> view[:].tolist()
        [3, 7, 7]
        >>> store.close()
    """

    __slots__ = ("_name", "_store")

    def __init__(self, store: "RecordStore", name: str) -> None:
        self._store = store
        self._name = name

    @property
    def name(self) -> str:
        """The name of the field."""
        return self._name

    @property
    def field(self) -> Field:
        """The dtype, shape and codec of the field."""
        return self._store.fields[self._name]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values; `object` for bytes, str and JSON."""
        return self.field.array_dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The number of records and the shape of a value; None for a dimension that varies."""
        field = self.field
        return (len(self._store), *(None,) * int(field.ragged), *field.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions, including that of the records."""
        return len(self.shape)

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._store)

    def __getitem__(self, key: Any) -> Any:
        """Return one value for an integer, many for a slice, an array of integers or a mask."""
        if isinstance(key, tuple) and key:
            return self._inner(key)
        snapshot = self._snapshot()
        rows = resolve(key, snapshot.length)
        if isinstance(rows, int):
            return self._value(snapshot, rows)
        return self._values(snapshot, rows)

    def __setitem__(self, key: Key, value: Any) -> None:
        """Change one value, or those that a slice, an array of integers or a mask selects.

        One value is repeated for all of them. None removes values.
        """
        self._store._assign(self._name, key, value)  # noqa: SLF001 - the store's own view

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over all values, read in groups."""
        length = len(self)
        for start in range(0, length, _GROUP):
            rows = np.arange(start, min(start + _GROUP, length), dtype=np.int64)
            yield from self._gather(rows)

    def __array__(
        self,
        dtype: npt.DTypeLike | None = None,
        copy: bool | None = None,  # noqa: FBT001 - as NumPy calls it
    ) -> npt.NDArray[Any]:
        """Return all values as one array, without a copy if the file allows it.

        A copy of more than 1 GiB is a `TooLargeError`. Read-only unless `copy` is True.
        """
        snapshot = self._snapshot()
        field = snapshot.fields.by_name[self._name]
        if field.ragged:
            raise InvalidTypeError(
                f"field {self._name!r} is ragged, so it cannot be read as one array",
                hint=f"store.gather(indices, [{self._name!r}]) returns a Ragged",
            )
        found: Any = self._span(snapshot, range(snapshot.length)) if field.fixed else None
        if found is None or copy:
            if copy is False:
                raise InvalidError(
                    f"field {self._name!r} cannot be read without a copy",
                    hint="pass copy=None to copy it",
                )
            if (field.nbytes or 0) * snapshot.length > _MAX_ARRAY_BYTES:
                raise TooLargeError(
                    f"cannot read all of field {self._name!r}: its "
                    f"{(field.nbytes or 0) * snapshot.length} bytes exceed the limit of "
                    f"{_MAX_ARRAY_BYTES} bytes",
                    hint="read fewer records at a time with gather()",
                )
            if field.fixed:
                found = self._gather(np.arange(snapshot.length, dtype=np.int64))
            else:
                workers = self._store._workers  # noqa: SLF001 - the store's own view
                found = snapshot.gather_objects(self._name, _MAX_ARRAY_BYTES, workers)
            if not copy:
                _freeze(found)
        return np.asarray(found, dtype=dtype)

    def __repr__(self) -> str:
        """Return the name, the field and the number of records, on one line."""
        return f"FieldView({self._name!r}: {len(self)} values of {self.field!r})"

    def _snapshot(self) -> StoreSnapshot:
        snapshot = self._store._snapshot()  # noqa: SLF001 - the store's own view
        if self._name not in snapshot.fields.by_name:
            pick_fields(snapshot.fields.by_name, [self._name])  # raises
        return snapshot

    def _inner(self, key: tuple[Any, ...]) -> Any:
        """Select records, and then inside of each value."""
        first, rest = key[0], key[1:]
        found = self[first]
        if not rest:
            return found
        if not isinstance(found, np.ndarray) or not isinstance(
            first, int | np.integer | slice | EllipsisType
        ):
            raise InvalidTypeError(
                f"cannot index with {key!r}: the first index must be an integer or a slice",
                hint="index twice: view[indices][:, inner]",
            )
        if isinstance(first, int | np.integer):
            return found[rest]
        return found[(slice(None), *rest)]

    def _value(self, snapshot: StoreSnapshot, row: int) -> Any:
        field = snapshot.fields.by_name[self._name]
        if isinstance(field.dtype, np.dtype):
            column = snapshot.fields.columns[self._name]
            found = snapshot.native.view(column, row, field.dtype, field.shape)
            if found is not None:
                return found if found.ndim else found[()]
        return _freeze(self._gather(np.array([row], dtype=np.int64)))[0]

    def _values(self, snapshot: StoreSnapshot, rows: Rows) -> "npt.NDArray[Any] | Ragged":
        field = snapshot.fields.by_name[self._name]
        if isinstance(rows, range):
            found = self._span(snapshot, rows) if field.fixed else None
            if found is not None:
                return found
            rows = np.arange(rows.start, rows.stop, rows.step, dtype=np.int64)
            return _freeze(self._gather(rows))
        return self._gather(rows)

    def _span(self, snapshot: StoreSnapshot, rows: range) -> npt.NDArray[Any] | None:
        field = snapshot.fields.by_name[self._name]
        if not isinstance(field.dtype, np.dtype):
            return None
        if not rows:
            nothing = np.empty((0, *field.shape), field.dtype)
            nothing.flags.writeable = False
            return nothing
        low, high = min(rows[0], rows[-1]), max(rows[0], rows[-1])
        column = snapshot.fields.columns[self._name]
        found = snapshot.native.span(column, low, high + 1, field.dtype, field.shape)
        if found is None:
            return None
        return found if rows.step == 1 else found[:: rows.step]

    def _gather(self, rows: npt.NDArray[np.int64]) -> "npt.NDArray[Any] | Ragged":
        return self._store.gather(rows, [self._name])[self._name]


def _freeze(found: "npt.NDArray[Any] | Ragged") -> "npt.NDArray[Any] | Ragged":
    """Make a copy read-only, as an array without a copy is."""
    array = found if isinstance(found, np.ndarray) else found.values
    array.flags.writeable = False
    return found
