"""Schemas survive the trip through JSON, whatever Parquet can hold."""

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relive.errors import ManifestCorruptedError, SchemaError
from relive.publish.version.canonical import decode, encode
from relive.publish.version.schema import _PLAIN, schema_from_json, schema_to_json

UNITS = st.sampled_from(["s", "ms", "us", "ns"])
INTEGER_TYPES = st.sampled_from([pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint32()])
LEAVES = st.one_of(
    st.sampled_from(list(_PLAIN.values())),
    st.builds(pa.timestamp, UNITS, st.sampled_from([None, "UTC", "Europe/Paris", "+01:00"])),
    st.builds(pa.duration, UNITS),
    st.sampled_from([pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]),
    st.builds(pa.decimal32, st.integers(1, 9), st.integers(-3, 9)),
    st.builds(pa.decimal64, st.integers(1, 18), st.integers(0, 9)),
    st.builds(pa.decimal128, st.integers(1, 38), st.integers(-3, 9)),
    st.builds(pa.decimal256, st.integers(1, 76), st.integers(0, 9)),
    st.builds(pa.binary, st.integers(0, 40)),
    st.sampled_from([pa.uuid(), pa.json_(), pa.bool8(), pa.fixed_shape_tensor(pa.int8(), [2, 3])]),
    st.builds(pa.dictionary, INTEGER_TYPES, st.sampled_from([pa.string(), pa.int64()])),
)
METADATA = st.none() | st.dictionaries(st.text(max_size=3), st.binary(max_size=4), max_size=2)


def fields(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.Field]:
    return st.builds(
        lambda name, kind, nullable, metadata: pa.field(
            name, kind, nullable=nullable or kind == pa.null(), metadata=metadata
        ),
        st.text(max_size=4),
        kinds,
        st.booleans(),
        METADATA,
    )


def nested(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    items = fields(kinds)
    return st.one_of(
        st.builds(pa.list_, items),
        st.builds(pa.large_list, items),
        st.builds(pa.list_view, items),
        st.builds(pa.list_, items, st.integers(0, 5)),
        st.builds(pa.struct, st.lists(items, max_size=3)),
        st.builds(lambda item, ordered: pa.map_(pa.string(), item, ordered), items, st.booleans()),
    )


KINDS = st.recursive(LEAVES, nested, max_leaves=6)
SCHEMAS = st.builds(pa.schema, st.lists(fields(KINDS), max_size=5), METADATA)


@given(SCHEMAS)
def test_schemas_survive(schema: pa.Schema) -> None:
    data = encode(schema_to_json(schema))
    found = schema_from_json(decode(data, "it"), "schema")
    assert found.equals(schema, check_metadata=True), (found, schema)
    assert encode(schema_to_json(found)) == data


@pytest.mark.parametrize(
    "kind",
    [
        pa.run_end_encoded(pa.int32(), pa.int8()),
        pa.month_day_nano_interval(),
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.dictionary(pa.int8(), pa.uuid()),
    ],
)
def test_types_that_parquet_cannot_hold_are_refused_with_their_column(kind: pa.DataType) -> None:
    schema = pa.schema([pa.field("outer", pa.struct([pa.field("inner", kind)]))])
    with pytest.raises(SchemaError, match=r"`outer\.inner`"):
        schema_to_json(schema)


class Celsius(pa.ExtensionType):  # type: ignore[misc]
    """A type that is registered in one process and unknown in another."""

    def __init__(self) -> None:
        super().__init__(pa.float64(), "relive.tests.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return b"\xff"

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> "Celsius":
        assert serialized == b"\xff"
        return cls()


def test_extension_types_have_one_form_whether_registered_or_not() -> None:
    unregistered = schema_to_json(pa.schema([("t", Celsius())]))
    storage = schema_from_json(unregistered, "schema")
    assert storage.field("t").type == pa.float64()
    assert schema_to_json(storage) == unregistered
    pa.register_extension_type(Celsius())
    try:
        registered = schema_from_json(unregistered, "schema")
        assert registered.field("t").type == Celsius()
        assert schema_to_json(registered) == unregistered
    finally:
        pa.unregister_extension_type("relive.tests.celsius")


def test_schemas_of_parquet_files_survive() -> None:
    schema = pa.schema(
        [
            pa.field("a", pa.list_(pa.struct([("b", pa.float16()), ("c", pa.large_string())]))),
            pa.field("d", pa.dictionary(pa.int32(), pa.string())),
            pa.field("e", pa.map_(pa.string(), pa.timestamp("us", "UTC"))),
            pa.field("f", pa.uuid(), nullable=False),
        ],
        {"pandas": "{}"},
    )
    file = io.BytesIO()
    pq.write_table(schema.empty_table(), file)
    found = pq.read_schema(io.BytesIO(file.getvalue()))
    again = schema_from_json(schema_to_json(found), "schema")
    assert again.equals(found)
    assert again.metadata == found.metadata
    # A Parquet file names the entries of a map "key_value", which no schema in Python can.
    assert again.remove(2).equals(found.remove(2), check_metadata=True)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"name": "a", "type": "int9", "nullable": True}, "`schema.fields[0].type` must be the"),
        ({"name": "a", "type": "null", "nullable": False}, "`schema.fields[0].nullable` must be"),
        ({"name": "a", "type": "int8"}, "`schema.fields[0].nullable` is missing"),
        ({"name": 1, "type": "int8", "nullable": True}, "`schema.fields[0].name` must be a string"),
        ({"name": "a", "type": "int8", "nullable": 1}, "`schema.fields[0].nullable` must be true"),
        ({"name": "a", "type": "int8", "nullable": True, "x": 1}, "`schema.fields[0].x` is not"),
        ({"name": "a", "type": {"kind": "x"}, "nullable": True}, "type.kind` must be the kind"),
        ({"name": "a", "type": {"kind": "timestamp", "unit": "h"}, "nullable": True}, "type.unit`"),
        (
            {"name": "a", "type": {"kind": "decimal128", "precision": 39, "scale": 0}}
            | {"nullable": True},
            "`schema.fields[0].type` is not a type",
        ),
        (
            {"name": "a", "type": {"kind": "fixed_size_binary", "bytes": -1}, "nullable": True},
            "`schema.fields[0].type.bytes` must be 0",
        ),
        (
            {"name": "a", "type": "int8", "nullable": True, "metadata": {"k": {"base64": "?"}}},
            "`schema.fields[0].metadata.k` must be base64",
        ),
        (
            {"name": "a", "type": "int8", "nullable": True, "metadata": {"k": {"base64": "AB=="}}},
            "`schema.fields[0].metadata.k` must be canonical base64",
        ),
    ],
)
def test_malformed_schemas_name_the_path(field: Any, message: str) -> None:
    with pytest.raises(ManifestCorruptedError) as caught:
        schema_from_json({"fields": [field]}, "schema")
    assert message in caught.value.message
