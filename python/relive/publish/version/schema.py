"""Arrow schemas as JSON: the same tree for the same schema, whatever version of pyarrow writes it.

Every type that Parquet can hold has one form (docs/format/manifest.md §4).
"""

import base64
import binascii
import ctypes
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import pyarrow as pa

from relive.errors import ManifestCorruptedError, SchemaError
from relive.publish.version.canonical import child
from relive.publish.version.document import (
    as_count,
    as_flag,
    as_list,
    as_object,
    as_string,
    malformed,
    shown,
)

_PLAIN: Final[dict[str, pa.DataType]] = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "binary_view": pa.binary_view(),
    "date32": pa.date32(),
    "date64": pa.date64(),
}
_PLAIN_NAMES: Final = {kind: name for name, kind in _PLAIN.items()}
_UNITS: Final[dict[str, tuple[str, ...]]] = {
    "timestamp": ("s", "ms", "us", "ns"),
    "duration": ("s", "ms", "us", "ns"),
    "time32": ("s", "ms"),
    "time64": ("us", "ns"),
}
_LISTS: Final[dict[str, Callable[[pa.Field], pa.DataType]]] = {
    "list": pa.list_,
    "large_list": pa.large_list,
    "list_view": pa.list_view,
    "large_list_view": pa.large_list_view,
}
_DECIMALS: Final[dict[str, Callable[[int, int], pa.DataType]]] = {
    "decimal32": pa.decimal32,
    "decimal64": pa.decimal64,
    "decimal128": pa.decimal128,
    "decimal256": pa.decimal256,
}
_INDEXES: Final = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_EXTENSION_NAME: Final = b"ARROW:extension:name"
_EXTENSION_METADATA: Final = b"ARROW:extension:metadata"
_MAX_INT32: Final = (1 << 31) - 1


def schema_to_json(schema: pa.Schema) -> dict[str, Any]:
    """Return the tree of a schema; a `SchemaError` names a column that Parquet cannot hold."""
    fields = [_field_to_json(schema.field(number), "") for number in range(len(schema))]
    return {"fields": fields, **_metadata_to_json(schema.metadata, "the schema")}


def schema_from_json(value: object, where: str) -> pa.Schema:
    """Return the schema of a tree; a `ManifestCorruptedError` names the path of what is wrong.

    Extension types that are registered in this process are used, of others the storage.
    """
    tree = as_object(value, where, ("fields",), ("metadata",))
    return pa.schema(_fields(tree["fields"], child(where, "fields")), _metadata(tree, where))


def _field_to_json(field: pa.Field, where: str) -> dict[str, Any]:
    where = child(where, field.name)
    metadata = dict(field.metadata or {})
    kind = field.type
    if isinstance(kind, pa.BaseExtensionType):
        metadata |= _extension_metadata(kind)
        kind = kind.storage_type
    return {
        "name": field.name,
        "type": _type_to_json(kind, where),
        "nullable": field.nullable,
        **_metadata_to_json(metadata, f"column `{where}`"),
    }


def _type_to_json(kind: pa.DataType, where: str) -> Any:
    if (name := _PLAIN_NAMES.get(kind)) is not None:
        return name
    for is_kind, describe in _DESCRIBERS:
        if is_kind(kind):
            return describe(kind, where)
    raise SchemaError(f"column `{where}` has the type `{kind}`, which Parquet cannot hold")


def _describe_timestamp(kind: pa.DataType, _: str) -> Any:
    zone = {} if kind.tz is None else {"timezone": kind.tz}
    return {"kind": "timestamp", "unit": kind.unit, **zone}


def _describe_decimal(kind: pa.DataType, _: str) -> Any:
    name = f"decimal{kind.bit_width}"
    return {"kind": name, "precision": kind.precision, "scale": kind.scale}


def _describe_struct(kind: pa.DataType, where: str) -> Any:
    fields = [_field_to_json(kind.field(n), where) for n in range(kind.num_fields)]
    return {"kind": "struct", "fields": fields}


def _describe_map(kind: pa.DataType, where: str) -> Any:
    key, item = _field_to_json(kind.key_field, where), _field_to_json(kind.item_field, where)
    return {"kind": "map", "key": key, "item": item, "is_sorted": kind.keys_sorted}


def _describe_dictionary(kind: pa.DataType, where: str) -> Any:
    if isinstance(kind.value_type, pa.BaseExtensionType):
        raise SchemaError(f"column `{where}` is a dictionary of an extension type")
    return {
        "kind": "dictionary",
        "index": _PLAIN_NAMES[kind.index_type],
        "value": _type_to_json(kind.value_type, where),
        "is_ordered": kind.ordered,
    }


def _describe_fixed_size_list(kind: pa.DataType, where: str) -> Any:
    item = _field_to_json(kind.value_field, where)
    return {"kind": "fixed_size_list", "item": item, "size": kind.list_size}


def _describe_list(name: str) -> Callable[[pa.DataType, str], Any]:
    return lambda kind, at: {"kind": name, "item": _field_to_json(kind.value_field, at)}


_Describer: TypeAlias = tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, str], Any]]
_DESCRIBERS: Final[tuple[_Describer, ...]] = (
    (pa.types.is_timestamp, _describe_timestamp),
    (pa.types.is_time, lambda kind, _: {"kind": f"time{kind.bit_width}", "unit": kind.unit}),
    (pa.types.is_duration, lambda kind, _: {"kind": "duration", "unit": kind.unit}),
    (pa.types.is_decimal, _describe_decimal),
    (
        pa.types.is_fixed_size_binary,
        lambda kind, _: {"kind": "fixed_size_binary", "bytes": kind.byte_width},
    ),
    (pa.types.is_struct, _describe_struct),
    (pa.types.is_map, _describe_map),
    (pa.types.is_dictionary, _describe_dictionary),
    (pa.types.is_fixed_size_list, _describe_fixed_size_list),
    (pa.types.is_list, _describe_list("list")),
    (pa.types.is_large_list, _describe_list("large_list")),
    (pa.types.is_list_view, _describe_list("list_view")),
    (pa.types.is_large_list_view, _describe_list("large_list_view")),
)


def _metadata_to_json(metadata: Mapping[bytes, bytes] | None, what: str) -> dict[str, Any]:
    if not metadata:
        return {}
    tree: dict[str, Any] = {}
    for key, value in metadata.items():
        try:
            name = key.decode()
        except UnicodeDecodeError:
            raise SchemaError(f"{what} has a metadata key that is not UTF-8: {key!r}") from None
        try:
            tree[name] = value.decode()
        except UnicodeDecodeError:
            tree[name] = {"base64": base64.b64encode(value).decode()}
    return {"metadata": tree}


def _fields(value: Any, where: str) -> list[pa.Field]:
    return [_field(each, f"{where}[{n}]") for n, each in enumerate(as_list(value, where))]


def _field(value: Any, where: str) -> pa.Field:
    tree = as_object(value, where, ("name", "type", "nullable"), ("metadata",))
    name = as_string(tree["name"], child(where, "name"))
    kind = _type(tree["type"], child(where, "type"))
    is_nullable = as_flag(tree["nullable"], child(where, "nullable"))
    if kind == pa.null() and not is_nullable:
        raise malformed(child(where, "nullable"), "must be true: the type is null")
    metadata = _metadata(tree, where)
    field = pa.field(name, kind, nullable=is_nullable, metadata=metadata)
    if metadata and _EXTENSION_NAME in metadata:
        try:  # IPC makes a registered type out of the metadata
            return pa.ipc.read_schema(pa.schema([field]).serialize()).field(0)
        except Exception:  # noqa: BLE001 - code of others; the storage is always right
            return field
    return field


def _metadata(tree: dict[str, Any], where: str) -> dict[bytes, bytes] | None:
    if "metadata" not in tree:
        return None
    where = child(where, "metadata")
    made = {}
    for key, value in as_object(tree["metadata"], where).items():
        at = child(where, key)
        if isinstance(value, dict):
            text = as_string(as_object(value, at, ("base64",), ())["base64"], at)
            made[key.encode()] = from_base64(text, at)
        else:
            made[key.encode()] = as_string(value, at).encode()
    return made


def from_base64(text: str, where: str) -> bytes:
    """Return the bytes of a string of canonical base64 at a path of a document."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise malformed(where, f"must be base64, got {shown(text)}") from None
    if base64.b64encode(data).decode() != text:
        raise malformed(where, f"must be canonical base64, got {shown(text)}")
    return data


def _type(value: Any, where: str) -> pa.DataType:
    if isinstance(value, str):
        if value not in _PLAIN:
            raise malformed(where, f"must be the name of a type, got {shown(value)}")
        return _PLAIN[value]
    tree = as_object(value, where, ("kind",))
    name = as_string(tree["kind"], child(where, "kind"))
    make = _MAKERS.get(name)
    if make is None:
        raise malformed(child(where, "kind"), f"must be the kind of a type, got {shown(name)}")
    try:
        return make(tree, where)
    except ManifestCorruptedError:
        raise
    except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
        message = str(error).partition("\n")[0]
        raise malformed(where, f"is not a type: {message}") from None


def _with_unit(tree: dict[str, Any], where: str) -> pa.DataType:
    name = tree["kind"]
    optional = ("timezone",) if name == "timestamp" else ()
    as_object(tree, where, ("kind", "unit"), optional)
    if tree["unit"] not in _UNITS[name]:
        units = ", ".join(_UNITS[name])
        got = shown(tree["unit"])
        raise malformed(child(where, "unit"), f"must be one of {units}, got {got}")
    if "timezone" in tree:
        return pa.timestamp(tree["unit"], as_string(tree["timezone"], child(where, "timezone")))
    return getattr(pa, name)(tree["unit"])


def _decimal(tree: dict[str, Any], where: str) -> pa.DataType:
    as_object(tree, where, ("kind", "precision", "scale"), ())
    precision = as_count(tree["precision"], child(where, "precision"), at_least=1, at_most=76)
    scale = as_count(tree["scale"], child(where, "scale"), at_least=-128, at_most=127)
    return _DECIMALS[tree["kind"]](precision, scale)


def _list(tree: dict[str, Any], where: str) -> pa.DataType:
    as_object(tree, where, ("kind", "item"), ())
    return _LISTS[tree["kind"]](_field(tree["item"], child(where, "item")))


def _fixed_size_list(tree: dict[str, Any], where: str) -> pa.DataType:
    as_object(tree, where, ("kind", "item", "size"), ())
    size = as_count(tree["size"], child(where, "size"), at_most=_MAX_INT32)
    return pa.list_(_field(tree["item"], child(where, "item")), size)


def _fixed_size_binary(tree: dict[str, Any], where: str) -> pa.DataType:
    as_object(tree, where, ("kind", "bytes"), ())
    return pa.binary(as_count(tree["bytes"], child(where, "bytes"), at_most=_MAX_INT32))


def _struct(tree: dict[str, Any], where: str) -> pa.DataType:
    as_object(tree, where, ("kind", "fields"), ())
    return pa.struct(_fields(tree["fields"], child(where, "fields")))


def _map(tree: dict[str, Any], where: str) -> pa.DataType:
    as_object(tree, where, ("kind", "key", "item", "is_sorted"), ())
    key = _field(tree["key"], child(where, "key"))
    item = _field(tree["item"], child(where, "item"))
    if key.nullable:
        raise malformed(child(where, "key.nullable"), "must be false")
    return pa.map_(key, item, as_flag(tree["is_sorted"], child(where, "is_sorted")))


def _dictionary(tree: dict[str, Any], where: str) -> pa.DataType:
    as_object(tree, where, ("kind", "index", "value", "is_ordered"), ())
    if tree["index"] not in _INDEXES:
        got = shown(tree["index"])
        raise malformed(child(where, "index"), f"must be an integer type, got {got}")
    value = _type(tree["value"], child(where, "value"))
    is_ordered = as_flag(tree["is_ordered"], child(where, "is_ordered"))
    return pa.dictionary(_PLAIN[tree["index"]], value, is_ordered)


_MAKERS: Final[dict[str, Callable[[dict[str, Any], str], pa.DataType]]] = {
    **dict.fromkeys(_UNITS, _with_unit),
    **dict.fromkeys(_DECIMALS, _decimal),
    **dict.fromkeys(_LISTS, _list),
    "fixed_size_list": _fixed_size_list,
    "fixed_size_binary": _fixed_size_binary,
    "struct": _struct,
    "map": _map,
    "dictionary": _dictionary,
}


class _CSchema(ctypes.Structure):
    """The start of `ArrowSchema` of the Arrow C data interface."""

    _fields_ = (
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_void_p),
    )


def _extension_metadata(kind: pa.BaseExtensionType) -> dict[bytes, bytes]:
    """Return the name and the parameters of an extension type, as Arrow stores them.

    Types that are implemented in C++ have no method for it, but every type can be exported.
    """
    capsule = kind.__arrow_c_schema__()
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    address = _CSchema.from_address(pointer_of(capsule, b"arrow_schema")).metadata
    numbers = ctypes.sizeof(ctypes.c_int32)
    found, place = [], address + numbers
    for _ in range(2 * ctypes.c_int32.from_address(address).value):
        size = ctypes.c_int32.from_address(place).value
        found.append(ctypes.string_at(place + numbers, size))
        place += numbers + size
    metadata = dict(zip(found[::2], found[1::2], strict=True))
    return {key: metadata.get(key, b"") for key in (_EXTENSION_NAME, _EXTENSION_METADATA)}
