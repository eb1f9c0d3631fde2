"""Takes rows out of several Arrow tables at once; their columns are not joined before."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from relive import _native
from relive._arguments import worker_count
from relive.errors import TooLargeError
from relive.model.source import IndexArray
from relive.publish.read.stream.blocks import as_batch

_VALUES: Final = "values"
_VALID: Final = "valid"
_MAX_INT32: Final = np.iinfo(np.int32).max

# Types that other types are in, and how they are made of other ones.
_NESTED: Final[list[tuple[Callable[..., bool], Callable[..., pa.DataType]]]] = [
    (
        pa.types.is_struct,
        lambda kind, inner: pa.struct([inner(kind.field(at)) for at in range(kind.num_fields)]),
    ),
    (
        pa.types.is_map,
        lambda kind, inner: pa.map_(
            inner(kind.key_field), inner(kind.item_field), kind.keys_sorted
        ),
    ),
    (
        pa.types.is_fixed_size_list,
        lambda kind, inner: pa.list_(inner(kind.value_field), kind.list_size),
    ),
    (pa.types.is_list, lambda kind, inner: pa.list_(inner(kind.value_field))),
    (pa.types.is_large_list, lambda kind, inner: pa.large_list(inner(kind.value_field))),
    (pa.types.is_list_view, lambda kind, inner: pa.list_view(inner(kind.value_field))),
    (pa.types.is_large_list_view, lambda kind, inner: pa.large_list_view(inner(kind.value_field))),
]

_NativeColumn = tuple[str, npt.NDArray[Any], IndexArray | None]


class RowGather:
    """The rows of tables of one schema, one table after the other. Thread-safe.

    The core copies columns of numbers, booleans, times, decimals, texts and bytes, and lists of
    numbers, out of the memory of the tables. Columns of other types are joined first.

    Args:
        tables: At least one table.

    Example:
        >>> import numpy as np, pyarrow as pa
        >>> from relive.publish.read.stream.row_gather import RowGather
        >>> rows = RowGather(
        ...     [pa.table({"x": [1, 2], "y": ["a", None]}), pa.table({"x": [3], "y": ["c"]})]
        ... )
        >>> rows.take(np.array([2, 0, 1])).to_pydict()
        {'x': [3, 1, 2], 'y': ['c', 'a', None]}
    """

    def __init__(self, tables: Sequence[pa.Table]) -> None:
        self._schema = tables[0].schema
        taken = _taken_schema(self._schema)
        if taken is not self._schema:
            tables = [table.cast(taken) for table in tables]
        self._workers = worker_count(None)
        self._columns: list[_Column | None] = []
        native: list[list[_NativeColumn]] = [[] for _ in tables]
        joined = []
        for number, field in enumerate(taken):
            column = _column_of(str(number), field.type, [table.column(number) for table in tables])
            self._columns.append(column)
            if column is None:
                joined.append(field.name)
                continue
            for place, part in enumerate(column.parts):
                native[place] += part
            column.parts = []
        self._joined = _joined(tables, joined) if joined else None
        self._table = (
            _native.Table.concat([_native.Table(columns) for columns in native])
            if len(joined) < len(self._schema)
            else None
        )

    def take(self, rows: IndexArray) -> pa.RecordBatch:
        """Return rows by their numbers, in the requested order."""
        found: dict[str, Any] = {}
        if self._table is not None:
            found = self._table.gather(rows, None, None, self._workers)
        others: list[pa.Array] = []
        if self._joined is not None:
            others = self._joined.take(pa.array(rows)).columns
        arrays = [
            others.pop(0) if column is None else column.array(found, len(rows))
            for column in self._columns
        ]
        arrays = [
            array if array.type == field.type else array.cast(field.type)
            for array, field in zip(arrays, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class _Column:
    """A column that the core gathers, and how its values become an Arrow array again."""

    def __init__(self, name: str, kind: pa.DataType) -> None:
        self.values, self.valid = name + _VALUES, name + _VALID
        self.kind = kind
        self.storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        self.parts: list[list[_NativeColumn]] = []
        """The arrays of each table."""

    def array(self, found: dict[str, Any], rows: int) -> pa.Array:
        """Return gathered values."""
        valid = found.get(self.valid)
        mask = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
        made = self.made(found[self.values], rows, mask)
        if self.kind is not self.storage:
            return pa.ExtensionArray.from_storage(self.kind, made)
        return made

    def made(self, values: Any, rows: int, mask: pa.Buffer | None) -> pa.Array:
        """Return values of the storage type."""
        return pa.Array.from_buffers(self.storage, rows, [mask, pa.py_buffer(values)])

    def add(self, array: pa.Array, *, has_nulls: bool) -> bool:
        """Add the values of a table; return whether the core can gather them."""
        values = self.values_of(array)
        if values is None:
            return False
        part: list[_NativeColumn] = [(self.values, *values)]
        if has_nulls:
            part.append((self.valid, array.is_valid().to_numpy(zero_copy_only=False), None))
        self.parts.append(part)
        return True

    def values_of(self, array: pa.Array) -> tuple[npt.NDArray[Any], IndexArray | None] | None:
        """Return the values of an array, without copying them; None if that is not possible."""
        return _fixed(array, self.storage.bit_width // 8), None


class _Booleans(_Column):
    """Booleans: a bit each in Arrow, a byte each while they are gathered."""

    def values_of(self, array: pa.Array) -> tuple[npt.NDArray[Any], IndexArray | None] | None:
        bits = np.frombuffer(array.buffers()[1] or b"", np.uint8)
        last = array.offset + len(array)
        values = np.unpackbits(bits[: -(-last // 8)], count=last, bitorder="little")
        return values[array.offset :], None

    def made(self, values: Any, rows: int, mask: pa.Buffer | None) -> pa.Array:
        packed = pa.py_buffer(np.packbits(values, bitorder="little"))
        return pa.Array.from_buffers(self.storage, rows, [mask, packed])


class _FixedLists(_Column):
    """Lists of equally many numbers."""

    def values_of(self, array: pa.Array) -> tuple[npt.NDArray[Any], IndexArray | None] | None:
        # The values of a sliced array are those of the whole one.
        size, child = self.storage.list_size, array.values
        if child.null_count:
            return None
        child = child.slice(array.offset * size, len(array) * size)
        width = self.storage.value_type.bit_width // 8
        return _fixed(child, width).reshape(len(array), size * width), None

    def made(self, values: Any, rows: int, mask: pa.Buffer | None) -> pa.Array:
        items = rows * self.storage.list_size
        child = pa.Array.from_buffers(
            self.storage.value_type, items, [None, pa.py_buffer(values.reshape(-1))]
        )
        return pa.Array.from_buffers(self.storage, rows, [mask], children=[child])


class _Texts(_Column):
    """Texts and bytes of any length."""

    def __init__(self, name: str, kind: pa.DataType) -> None:
        super().__init__(name, kind)
        self._is_large = _is_large(self.storage)

    def values_of(self, array: pa.Array) -> tuple[npt.NDArray[Any], IndexArray | None] | None:
        _, offsets, data = array.buffers()
        return np.frombuffer(data or b"", np.uint8), self.offsets_of(array, offsets)

    def made(self, values: Any, rows: int, mask: pa.Buffer | None) -> pa.Array:
        data, offsets = values
        return pa.Array.from_buffers(
            self.storage, rows, [mask, self.buffer_of(offsets), pa.py_buffer(data)]
        )

    def offsets_of(self, array: pa.Array, offsets: pa.Buffer | None) -> IndexArray:
        """Return the offsets of the rows of an array."""
        if not len(array):
            return np.zeros(1, np.int64)
        every = np.frombuffer(offsets or b"", np.int64 if self._is_large else np.int32)
        return every[array.offset : array.offset + len(array) + 1].astype(np.int64)

    def buffer_of(self, offsets: IndexArray) -> pa.Buffer:
        """Return offsets as Arrow has them."""
        if self._is_large:
            return pa.py_buffer(offsets)
        if offsets[-1] > _MAX_INT32:
            raise TooLargeError(
                f"{len(offsets) - 1} rows do not fit in one record batch: a column of text, bytes "
                "or lists has more than 2 GiB",
                hint="use a smaller batch_size",
            )
        return pa.py_buffer(offsets.astype(np.int32))


class _Lists(_Texts):
    """Lists of numbers, of any length."""

    def values_of(self, array: pa.Array) -> tuple[npt.NDArray[Any], IndexArray | None] | None:
        child = array.values
        if child.null_count:
            return None
        width = self.storage.value_type.bit_width // 8
        return _fixed(child, width), self.offsets_of(array, array.buffers()[1])

    def made(self, values: Any, rows: int, mask: pa.Buffer | None) -> pa.Array:
        data, offsets = values
        child = pa.Array.from_buffers(
            self.storage.value_type, int(offsets[-1]), [None, pa.py_buffer(data.reshape(-1))]
        )
        return pa.Array.from_buffers(
            self.storage, rows, [mask, self.buffer_of(offsets)], children=[child]
        )


def _taken_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema without views of texts and bytes, which Arrow cannot take rows of."""
    kinds = [_without_views(field.type) for field in schema]
    if kinds == schema.types:
        return schema
    return pa.schema([field.with_type(kind) for field, kind in zip(schema, kinds, strict=True)])


def _without_views(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if isinstance(kind, pa.BaseExtensionType):
        return kind
    for test, make in _NESTED:
        if test(kind):
            return make(kind, lambda inner: inner.with_type(_without_views(inner.type)))
    return kind


def _column_of(name: str, kind: pa.DataType, columns: Sequence[pa.ChunkedArray]) -> _Column | None:
    """Return a column of several tables; None if the core cannot gather it."""
    made = _kind_of(name, kind)
    if made is None:
        return None
    has_nulls = any(column.null_count for column in columns)
    for column in columns:
        array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        if isinstance(array, pa.ChunkedArray):  # too large for one array
            return None
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        if not made.add(array, has_nulls=has_nulls):
            return None
    return made


def _kind_of(name: str, kind: pa.DataType) -> _Column | None:
    types = pa.types
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    if types.is_boolean(storage):
        return _Booleans(name, kind)
    if _is_fixed(storage):
        return _Column(name, kind)
    if types.is_fixed_size_list(storage) and storage.list_size and _is_fixed(storage.value_type):
        return _FixedLists(name, kind)
    if any(
        test(storage)
        for test in (types.is_string, types.is_binary, types.is_large_string, types.is_large_binary)
    ):
        return _Texts(name, kind)
    is_list = types.is_list(storage) or types.is_large_list(storage)
    if is_list and _is_fixed(storage.value_type):
        return _Lists(name, kind)
    return None


def _is_fixed(kind: pa.DataType) -> bool:
    """Return whether values are whole bytes, equally many each."""
    types = pa.types
    if types.is_fixed_size_binary(kind):
        return bool(kind.byte_width)
    return types.is_decimal(kind) or (types.is_primitive(kind) and not types.is_boolean(kind))


def _is_large(kind: pa.DataType) -> bool:
    types = pa.types
    return any(
        test(kind) for test in (types.is_large_string, types.is_large_binary, types.is_large_list)
    )


def _fixed(array: pa.Array, width: int) -> npt.NDArray[np.uint8]:
    """Return the values of an array as rows of bytes."""
    data = array.buffers()[1]
    start, stop = array.offset * width, (array.offset + len(array)) * width
    return np.frombuffer(data or b"", np.uint8)[start:stop].reshape(len(array), width)


def _joined(tables: Sequence[pa.Table], names: Sequence[str]) -> pa.RecordBatch:
    """Return columns of all tables in one record batch."""
    table = pa.concat_tables([table.select(names) for table in tables])
    try:
        return as_batch(table.unify_dictionaries())
    except (ValueError, pa.ArrowCapacityError) as error:  # a column has more than 2 GiB
        raise TooLargeError(
            f"{table.num_rows} rows of a window do not fit in one record batch",
            hint="use a smaller window=",
        ) from error
