"""Hypothesis strategies for Arrow types, arrays and tables, and other layouts of equal arrays."""

import datetime as dt
import decimal
import random
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

_EPOCH = dt.date(1970, 1, 1)

FLAT: list[Any] = [
    pa.null(),
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
    pa.float16(),
    pa.float32(),
    pa.float64(),
    pa.decimal32(5, 2),
    pa.decimal64(12, 3),
    pa.decimal128(30, 3),
    pa.decimal256(60, 5),
    pa.date32(),
    pa.date64(),
    pa.time32("s"),
    pa.time32("ms"),
    pa.time64("us"),
    pa.time64("ns"),
    pa.timestamp("s"),
    pa.timestamp("ms", "UTC"),
    pa.timestamp("us", "Europe/Berlin"),
    pa.timestamp("ns"),
    pa.duration("s"),
    pa.duration("ns"),
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(),
    pa.large_binary(),
    pa.binary_view(),
    pa.binary(3),
    pa.binary(17),
]
EXTENSIONS: list[Any] = [
    pa.uuid(),
    pa.json_(),
    pa.fixed_shape_tensor(pa.float32(), [2, 2]),
]
DICTIONARIES: list[Any] = [
    pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.uint16(), pa.large_string()),
    pa.dictionary(pa.int16(), pa.int64()),
    pa.dictionary(pa.int32(), pa.binary()),
    pa.dictionary(pa.int32(), pa.string(), ordered=True),
    pa.dictionary(pa.int8(), pa.string_view()),
]


def types(*, nested: bool = True) -> st.SearchStrategy[Any]:
    """Draw a type that Parquet can hold."""
    flat = st.sampled_from(FLAT)
    if not nested:
        return flat
    inside = st.recursive(flat | st.sampled_from(DICTIONARIES[:1]), _nested_type, max_leaves=4)
    return st.one_of(flat, inside, st.sampled_from(DICTIONARIES), st.sampled_from(EXTENSIONS))


def _nested_type(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(lambda kind: pa.list_(pa.field("item", kind, nullable=True), 2)),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda kinds: pa.struct([(f"f{i}", kind) for i, kind in enumerate(kinds)])
        ),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
    )


def value(kind: Any, draw: random.Random, nulls: float = 0.2) -> Any:  # noqa: C901, PLR0911, PLR0912
    """Return a random Python value of an Arrow type; null with a probability."""
    types = pa.types
    if types.is_null(kind) or draw.random() < nulls:
        return None
    if isinstance(kind, pa.BaseExtensionType):
        if kind == pa.uuid():
            return draw.randbytes(16)
        if kind == pa.json_():
            return f'{{"x": {draw.randrange(100)}}}'
        return [draw.random() for _ in range(4)]
    if types.is_dictionary(kind):
        return value(kind.value_type, random.Random(draw.randrange(5)), 0)  # noqa: S311
    if types.is_boolean(kind):
        return draw.random() < 0.5
    if types.is_integer(kind):
        unsigned = types.is_unsigned_integer(kind)
        bits = draw.choice([1, kind.bit_width - (not unsigned)])
        number = draw.getrandbits(bits)
        return number if unsigned else number - draw.choice([0, 1 << bits])
    if types.is_floating(kind):
        return draw.choice([0.0, -0.0, 1.5, float("nan"), float("inf"), draw.gauss(0, 100)])
    if types.is_decimal(kind):
        digits = draw.randrange(10 ** (kind.precision - 1))
        return decimal.Decimal(digits).scaleb(-kind.scale, decimal.Context(prec=80))
    if types.is_date(kind):
        return _EPOCH + dt.timedelta(days=draw.randrange(-50_000, 50_000))
    if types.is_time(kind):
        return dt.time(draw.randrange(24), draw.randrange(60), draw.randrange(60))
    if types.is_timestamp(kind) or types.is_duration(kind):
        return draw.randrange(-(2**31), 2**31)
    if types.is_fixed_size_binary(kind):
        return draw.randbytes(kind.byte_width)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        length = draw.choice([0, 1, 7, 8, 9, 20, draw.randrange(40)])
        return "".join(draw.choice("abcäö€😀 ") for _ in range(length))
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return draw.randbytes(draw.choice([0, 1, 7, 8, 9, 20, draw.randrange(40)]))
    if types.is_struct(kind):
        fields = (kind.field(i) for i in range(kind.num_fields))
        return {field.name: value(field.type, draw, nulls) for field in fields}
    if types.is_map(kind):
        keys = {f"k{draw.randrange(9)}" for _ in range(draw.randrange(4))}
        return [(key, value(kind.item_type, draw, nulls)) for key in sorted(keys)]
    size = kind.list_size if types.is_fixed_size_list(kind) else draw.randrange(4)
    return [value(kind.value_type, draw, nulls) for _ in range(size)]


def array(kind: Any, count: int, draw: random.Random, nulls: float = 0.2) -> Any:
    """Return an array of random values."""
    values = [value(kind, draw, nulls) for _ in range(count)]
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    if not contains_dictionary(kind):
        return pa.array(values, kind)
    if pa.types.is_dictionary(kind):
        encoded = pa.array(values, kind.value_type).dictionary_encode()
        return pa.DictionaryArray.from_arrays(
            encoded.indices.cast(kind.index_type), encoded.dictionary, ordered=kind.ordered
        )
    return pa.array(values, kind)


def contains_dictionary(kind: Any) -> bool:
    """Return whether a type is or has a dictionary."""
    if pa.types.is_dictionary(kind):
        return True
    if isinstance(kind, pa.BaseExtensionType) or not pa.types.is_nested(kind):
        return False
    return any(contains_dictionary(kind.field(i).type) for i in range(kind.num_fields))


@st.composite
def tables(draw: st.DrawFn, max_rows: int = 30) -> Any:
    """Draw a table of random columns."""
    kinds = draw(st.lists(types(), min_size=1, max_size=4))
    rows = draw(st.sampled_from([0, 1, max_rows]) | st.integers(0, max_rows))
    random_values = random.Random(draw(st.integers(0, 1 << 32)))  # noqa: S311
    nulls = draw(st.sampled_from([0.0, 0.2, 1.0]))
    columns = {f"c{i}": array(kind, rows, random_values, nulls) for i, kind in enumerate(kinds)}
    return pa.table(columns)


def other_layout(values: Any, draw: random.Random) -> Any:
    """Return an equal array as a slice of a longer one, with other bytes under its null slots."""
    before, after = draw.randrange(1, 10), draw.randrange(10)
    kind = values.type
    padded = [array(kind, before, draw), values, array(kind, after, draw)]
    if contains_dictionary(kind):
        joined = pa.chunked_array(padded, kind).unify_dictionaries().combine_chunks()
    else:
        joined = pa.concat_arrays(padded)
    return joined.slice(before, len(values))
