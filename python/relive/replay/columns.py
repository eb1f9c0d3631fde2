"""The array columns of a run: nested values become leaves, and each leaf is stored in chunks."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from relive._arguments import as_text, type_name
from relive.errors import CorruptError, InvalidError, InvalidTypeError, TooLargeError
from relive.replay.storage.values import as_array

Keys: TypeAlias = tuple[str | int, ...]
"""Where a leaf is in a nested value: keys of dicts, and positions in tuples."""
StackAxis: TypeAlias = Literal["first", "last"] | None
RowsOf: TypeAlias = Literal["steps", "ends"]
"""Whether row k of a column belongs to step k, or to the k-th end of an episode."""

_CHUNK_BYTES: Final = 2 << 20
_MAX_CHUNK_ROWS: Final = 4096
_MAX_ITEM_BYTES: Final = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}
"""Bytes of a number, at most, by the kind of its dtype."""
_MAX_STORED_CHUNK_BYTES: Final = (1 << 32) - (1 << 20)
"""HDF5 counts the bytes of a chunk in 32 bits."""
_MAX_TAIL_BYTES: Final = 900 << 20
"""SQLite refuses values of over 10^9 bytes. It has the rows of a chunk that is not full."""
_MAX_DIMENSIONS: Final = 30
"""The file has one more, that of the rows."""
_MAX_DIMENSION: Final = (1 << 32) - 1
_MAX_NAME_BYTES: Final = 60_000
"""The header of a group has each of its names in a message of less than 64 KiB."""
_MAX_DEPTH: Final = 100
_ROUNDED: Final = "fc"
_CAST_FIELDS: Final = frozenset({"observations", "final.observations", "actions"})
"""The fields that `Record` casts to the dtype of their space on request."""
ENCODED: Final = str.maketrans({"%": "%25", ".": "%2E", "/": "%2F"})
"""How characters of a key are written in the name of a leaf."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of a nested value: `observations.image`, for example."""

    name: str
    keys: Keys
    array: npt.NDArray[Any]


@dataclass(frozen=True)
class ColumnSpec:
    """How the leaf of a field is stored in the file of a run."""

    field: str
    keys: Keys
    dtype: str
    shape: tuple[int, ...]
    chunk_rows: int
    codec: str = "zstd"
    level: int | None = None
    shuffle: bool = False
    stack: StackAxis = None
    rows_of: RowsOf = "steps"
    planes_of: int | None = None
    """The number of the column whose planes the stacks of this column have as well."""

    @property
    def name(self) -> str:
        """The name of the column: the field and the keys, joined by dots."""
        return leaf_name(self.field, self.keys)

    @property
    def path(self) -> str:
        """The path of its dataset."""
        return self.name.replace(".", "/")

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the datasets that belong to this column alone."""
        if self.stack is None:
            return (self.path,)
        numbers = f"stacks/{self.name}"
        return (numbers,) if self.planes_of is not None else (f"planes/{self.name}", numbers)

    def check_storable(self) -> None:
        """Raise a `TooLargeError` if the file of a run cannot have this column."""
        name, shape = self.name, self.shape
        size = len(name.encode())
        if size > _MAX_NAME_BYTES:
            raise TooLargeError(
                f"the name `{name[:40]}…` of an array has {size} bytes, but at most "
                f"{_MAX_NAME_BYTES} can be stored",
                hint="pass shorter keys",
            )
        if len(shape) > _MAX_DIMENSIONS or max(shape, default=0) > _MAX_DIMENSION:
            raise TooLargeError(
                f"`{name}` must have at most {_MAX_DIMENSIONS} dimensions, each of less than "
                f"2**32, got the shape {shape}"
            )
        planes = 1 if self.stack is None else shape[0 if self.stack == "first" else -1]
        row_bytes = max(1, np.dtype(self.dtype).itemsize * math.prod(shape) // planes)
        rows = self.chunk_rows
        if row_bytes * rows > _MAX_STORED_CHUNK_BYTES or row_bytes * (rows - 1) > _MAX_TAIL_BYTES:
            raise TooLargeError(
                f"`{name}` has {row_bytes} bytes in one step, which is too many for chunks of "
                f"{rows} rows",
                hint=f"pass chunk_rows={max(1, _MAX_TAIL_BYTES // row_bytes)} or less, or leave "
                "it out",
            )

    def described(self) -> dict[str, Any]:
        """Return the description of this column for the core."""
        shape = list(self.shape)
        return {**asdict(self), "name": self.name, "path": self.path, "shape": shape}

    def to_json(self) -> str:
        """Return the description that the database has."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str, run_id: str) -> Self:
        """Parse the description that the database has."""
        try:
            described = json.loads(text)
            described["shape"] = tuple(int(size) for size in described["shape"])
            described["keys"] = tuple(described["keys"])
            return cls(**described)
        except (TypeError, ValueError, KeyError) as error:
            raise CorruptError(f"run {run_id!r} has a damaged column: {error}") from error

    def check(self, array: npt.NDArray[Any]) -> None:
        """Raise an `InvalidError` if an array has another shape or dtype."""
        if array.shape != self.shape or array.dtype.str != self.dtype:
            hint = "use another run_id for another environment"
            if array.shape == self.shape:
                hint = conversion_hint(self.field, array.dtype.str, self.dtype)
            raise InvalidError(
                f"`{self.name}` must have the dtype {self.dtype!r} and the shape {self.shape}, as "
                f"before, got {array.dtype.str!r} and {array.shape}",
                hint=hint,
            )


def conversion_hint(field: str, found: str, wanted: str) -> str:
    """Return the hint for an array of a field that has another dtype than those before."""
    given, like = np.dtype(found), np.dtype(wanted)
    is_rounding = given.kind == like.kind and like.kind in _ROUNDED
    if is_rounding or np.can_cast(given, like, "safe"):
        hint = f"convert it: np.asarray(value, {like.name!r})"
    else:  # NumPy would cut off what the dtype cannot have
        hint = (
            f"convert it if {like.name!r} has its value; otherwise use another run_id, with "
            f"{given.name!r} from the first step on"
        )
    if field in _CAST_FIELDS:
        hint += "; cast=True of Record casts to the dtype of the space"
    return hint


def chunk_rows(row_bytes: int) -> int:
    """Return the rows of a chunk of about 2 MiB: a power of two, at most 4096."""
    rows = max(1, _CHUNK_BYTES // max(1, row_bytes))
    return min(_MAX_CHUNK_ROWS, 1 << (rows.bit_length() - 1))


def flatten(field: str, value: Any) -> list[Leaf]:
    """Return the leaves of a value, which may be nested dicts and tuples of arrays.

    Dicts and tuples without any leaf are left out.
    """
    leaves: list[Leaf] = []
    _flatten(field, field, (), value, leaves)
    return leaves


def unflatten(leaves: Iterable[tuple[Keys, Any]]) -> Any:
    """Return the nested value that has these leaves."""
    known = list(leaves)
    if len(known) == 1 and not known[0][0]:
        return known[0][1]
    below: dict[str | int, list[tuple[Keys, Any]]] = {}
    for keys, value in known:
        below.setdefault(keys[0], []).append((keys[1:], value))
    values = {key: unflatten(inner) for key, inner in below.items()}
    if all(isinstance(key, int) for key in values):
        return tuple(value for _, value in sorted(values.items()))
    return values


def row_of(value: Any, place: int) -> Any:
    """Return one row of an array, or of all arrays of a nested value."""
    if isinstance(value, Mapping):
        return {key: row_of(inner, place) for key, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(row_of(inner, place) for inner in value)
    return value[place]


def leaf_name(field: str, keys: Keys) -> str:
    """Return the name of a leaf; `.`, `/` and `%` in a key are percent-encoded."""
    if not keys:
        return field
    return ".".join((field, *(str(key).translate(ENCODED) for key in keys)))


def decoded_key(name: str) -> str:
    """Return the key that is written as `name` in the name of a leaf."""
    for written, character in (("%2F", "/"), ("%2E", "."), ("%25", "%")):
        name = name.replace(written, character)
    return name


def as_leaf(name: str, value: Any) -> npt.NDArray[Any]:
    """Return an array of numbers, little-endian and C-contiguous; it may be the value itself."""
    array = as_array(name, value)
    dtype = array.dtype
    if dtype.itemsize > _MAX_ITEM_BYTES.get(dtype.kind, 0):
        raise InvalidTypeError(
            f"`{name}` must be numbers, got {type_name(type(value))} of dtype {dtype}",
            hint="convert it, or leave it out",
        )
    if array.nbytes > _MAX_STORED_CHUNK_BYTES:  # before anything is copied
        raise TooLargeError(
            f"`{name}` has {array.nbytes} bytes in one step, but at most "
            f"{_MAX_STORED_CHUNK_BYTES} can be stored",
            hint="pass it in several parts, as a dict of arrays",
        )
    if dtype.byteorder == ">":
        array = array.astype(dtype.newbyteorder("<"))
    # `ascontiguousarray` would make an array of one dimension of a number.
    return array if array.flags.c_contiguous else array.copy(order="C")


def _flatten(field: str, name: str, keys: Keys, value: Any, leaves: list[Leaf]) -> None:
    items: Iterable[tuple[str | int, Any]]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or not key or "\0" in key:
                raise InvalidTypeError(
                    f"the keys of `{name}` must be strings that are not empty, got {key!r}"
                )
            as_text(f"a key of `{name}`", key)
        items = value.items()
    elif isinstance(value, tuple):
        items = enumerate(value)
    else:
        leaves.append(Leaf(name, keys, as_leaf(name, value)))
        return
    if len(keys) == _MAX_DEPTH:
        raise TooLargeError(
            f"`{field}` is nested more than {_MAX_DEPTH} deep",
            hint="pass arrays that are nested less",
        )
    for key, item in items:
        inner = (*keys, key)
        _flatten(field, leaf_name(field, inner), inner, item, leaves)


def names_of(leaves: Sequence[Leaf]) -> tuple[str, ...]:
    """Return the names of leaves."""
    return tuple(leaf.name for leaf in leaves)
