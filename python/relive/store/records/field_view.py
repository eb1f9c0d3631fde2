"""One field of a store, as NumPy would have it."""

from collections.abc import Iterator
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from relive.errors import InvalidError, InvalidTypeError, TooLargeError
from relive.model.schema import Field
from relive.model.source import Key, Rows, resolve
from relive.store.records.reader import gather_objects
from relive.store.records.writer import Look

if TYPE_CHECKING:
    from relive.model.ragged import Ragged
    from relive.store.records.store import RecordStore

__all__ = ["FieldView"]

_MAX_ARRAY_BYTES = 1 << 30
_AT_ONCE: Final = 256


class FieldView:
    """The values of one field, read when they are asked for.

    `view[i]` and, where rows lie one behind the other, `view[a:b]` are read-only arrays over
    the file itself if it is mapped and they are stored raw, and else read-only copies: writing
    to them is an error whatever happened to the store before. Rows that an array of integers or
    a mask selects are copies to write to. A missing value is zeros, `""`, `b""`, an empty array,
    or None for JSON. `view[i] = value` and `view[indices] = values` change a store that is open
    for writing. Follows the store.
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
        """What the field holds."""
        return self._store.fields[self._name]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values; `object` where they are bytes, str or JSON."""
        return self.field.array_dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The number of rows and the shape of each; None for a dimension that varies."""
        field = self.field
        return (len(self._store), *(None,) * int(field.ragged), *field.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions, that of the rows included."""
        return len(self.shape)

    def __len__(self) -> int:
        """Count the rows."""
        return len(self._store)

    def __getitem__(self, key: Any) -> Any:
        """Give one value for an integer, and many for a slice, an array of integers or a mask."""
        if isinstance(key, tuple) and key:
            return self._inner(key)
        look = self._look()
        rows = resolve(key, look.length)
        if isinstance(rows, int):
            return self._value(look, rows)
        return self._values(look, rows)

    def __setitem__(self, key: Key, value: Any) -> None:
        """Change one value, or those that a slice, an array of integers or a mask selects.

        One value for all of them is repeated. None takes values away.
        """
        self._store._assign(self._name, key, value)  # noqa: SLF001 - the store's own view

    def __iter__(self) -> Iterator[Any]:
        """Give every value in order; they are read in chunks."""
        length = len(self)
        for start in range(0, length, _AT_ONCE):
            rows = np.arange(start, min(start + _AT_ONCE, length), dtype=np.int64)
            yield from self._gather(rows)

    def __array__(
        self,
        dtype: npt.DTypeLike | None = None,
        copy: bool | None = None,  # noqa: FBT001 - as NumPy calls it
    ) -> npt.NDArray[Any]:
        """Give all values as one array: that of the file itself where it is one, else a copy.

        A copy of more than 1 GiB is a `TooLargeError`. Read-only unless a copy is asked for.
        """
        look = self._look()
        field = look.described.fields[self._name]
        if field.ragged:
            raise InvalidTypeError(
                f"field {self._name!r} has rows of different lengths, which are no array",
                hint=f"store.gather(indices, [{self._name!r}]) gives a Ragged",
            )
        found: Any = self._span(look, range(look.length)) if field.fixed else None
        if found is None or copy:
            if copy is False:
                raise InvalidError(f"field {self._name!r} cannot be an array without a copy")
            if (field.nbytes or 0) * look.length > _MAX_ARRAY_BYTES:
                raise TooLargeError(
                    f"field {self._name!r} has {(field.nbytes or 0) * look.length} bytes",
                    hint="gather some rows at a time",
                )
            if field.fixed:
                found = self._gather(np.arange(look.length, dtype=np.int64))
            else:
                threads = self._store._threads  # noqa: SLF001 - the store's own view
                found = gather_objects(look, self._name, _MAX_ARRAY_BYTES, threads)
            if not copy:
                _freeze(found)
        return np.asarray(found, dtype=dtype)

    def __repr__(self) -> str:
        """Give the name, the field and the number of rows, on one line."""
        return f"FieldView({self._name!r}: {len(self)} rows of {self.field!r})"

    def _look(self) -> Look:
        look = self._store._handle.look()  # noqa: SLF001 - the store's own view
        if self._name not in look.described.columns:
            self._store[self._name]  # raises, and says what there is
        return look

    def _inner(self, key: tuple[Any, ...]) -> Any:
        """Select rows, and then inside of each."""
        first, rest = key[0], key[1:]
        found = self[first]
        if not rest:
            return found
        if not isinstance(found, np.ndarray) or not isinstance(
            first, int | np.integer | slice | EllipsisType
        ):
            raise InvalidTypeError(
                f"{key!r} selects inside of rows that a list chose",
                hint="view[rows] first, and then inside of what that gives",
            )
        if isinstance(first, int | np.integer):
            return found[rest]
        return found[(slice(None), *rest)]

    def _value(self, look: Look, row: int) -> Any:
        field = look.described.fields[self._name]
        if isinstance(field.dtype, np.dtype):
            column = look.described.columns[self._name]
            found = look.snapshot.view(column, row, field.dtype, field.shape)
            if found is not None:
                return found if found.ndim else found[()]
        return _freeze(self._gather(np.array([row], dtype=np.int64)))[0]

    def _values(self, look: Look, rows: Rows) -> "npt.NDArray[Any] | Ragged":
        field = look.described.fields[self._name]
        if isinstance(rows, range):
            found = self._span(look, rows) if field.fixed else None
            if found is not None:
                return found
            rows = np.arange(rows.start, rows.stop, rows.step, dtype=np.int64)
            return _freeze(self._gather(rows))
        return self._gather(rows)

    def _span(self, look: Look, rows: range) -> npt.NDArray[Any] | None:
        field = look.described.fields[self._name]
        if not isinstance(field.dtype, np.dtype):
            return None
        if not rows:
            nothing = np.empty((0, *field.shape), field.dtype)
            nothing.flags.writeable = False
            return nothing
        low, high = min(rows[0], rows[-1]), max(rows[0], rows[-1])
        column = look.described.columns[self._name]
        found = look.snapshot.span(column, low, high + 1, field.dtype, field.shape)
        if found is None:
            return None
        return found if rows.step == 1 else found[:: rows.step]

    def _gather(self, rows: npt.NDArray[np.int64]) -> "npt.NDArray[Any] | Ragged":
        return self._store.gather(rows, [self._name])[self._name]


def _freeze(found: "npt.NDArray[Any] | Ragged") -> "npt.NDArray[Any] | Ragged":
    """Make a copy as read-only as the file that it was made of."""
    array = found if isinstance(found, np.ndarray) else found.values
    array.flags.writeable = False
    return found
