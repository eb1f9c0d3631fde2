"""Bounds of the values in each row group of a shard, from the statistics in its footer."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from relive.publish.read.footer import Path, ShardFooter

_UNITS: Final = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}


@dataclass(frozen=True)
class Bounds:
    """What the statistics of one column say about the values of each row group.

    `low` and `high` are null where they are not known. Values may be NaN in spite of them:
    writers leave NaN out of statistics.
    """

    low: pa.Array
    high: pa.Array
    known: npt.NDArray[np.bool_]
    """Whether both bounds are known."""
    nulls: npt.NDArray[np.bool_]
    """Whether there may be nulls."""
    values: npt.NDArray[np.bool_]
    """Whether there may be values other than null."""

    @property
    def kind(self) -> pa.DataType:
        """The type of the values."""
        return self.low.type

    @property
    def is_floating(self) -> bool:
        """Whether values may be NaN."""
        return bool(pa.types.is_floating(self.kind))


class Groups:
    """The row groups of several shards, one after the other."""

    def __init__(self, footers: Sequence[ShardFooter]) -> None:
        self._footers = footers
        self._bounds: dict[Path, Bounds | None] = {}
        self.count = sum(footer.groups for footer in footers)
        """The number of row groups."""

    def bounds(self, path: Path) -> Bounds | None:
        """Return the bounds of a column, or of a field of a struct; None if they are not known.

        A column that a shard does not have is null in every row of it.
        """
        if path not in self._bounds:
            self._bounds[path] = _joined(
                [(footer, _bounds(footer, path)) for footer in self._footers]
            )
        return self._bounds[path]


def _joined(parts: list[tuple[ShardFooter, Bounds | None]]) -> Bounds | None:
    kinds = {part.kind for _, part in parts if part is not None}
    typed = {kind for kind in kinds if not pa.types.is_null(kind)}
    if not kinds or len(typed) > 1:
        return None
    kind = typed.pop() if typed else pa.null()
    found = [_unknown(footer, kind) if part is None else part for footer, part in parts]
    return Bounds(
        pa.concat_arrays([part.low.cast(kind) for part in found]),
        pa.concat_arrays([part.high.cast(kind) for part in found]),
        np.concatenate([part.known for part in found]),
        np.concatenate([part.nulls for part in found]),
        np.concatenate([part.values for part in found]),
    )


def _unknown(footer: ShardFooter, kind: pa.DataType) -> Bounds:
    none = pa.nulls(footer.groups, kind)
    possible = np.ones(footer.groups, np.bool_)
    return Bounds(none, none, ~possible, possible, possible)


def _bounds(footer: ShardFooter, path: Path) -> Bounds | None:
    if not footer.has(path[0]):
        none = pa.nulls(footer.groups, pa.null())
        absent = np.zeros(footer.groups, np.bool_)
        return Bounds(none, none, absent, ~absent, absent)
    found = footer.leaf(path)
    if found is None:
        return None
    leaf, kind = found
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    lows: list[Any] = []
    highs: list[Any] = []
    nulls, values = np.ones((2, footer.groups), np.bool_)
    for group in range(footer.groups):
        chunk = footer.metadata.row_group(group).column(leaf)
        statistics = chunk.statistics
        low = high = None
        if statistics is not None:
            if statistics.has_null_count:
                nulls[group] = statistics.null_count != 0
                values[group] = statistics.null_count != chunk.num_values
            if statistics.has_min_max:
                is_decimal = pa.types.is_decimal(kind)
                low = statistics.min if is_decimal else statistics.min_raw
                high = statistics.max if is_decimal else statistics.max_raw
        lows.append(low)
        highs.append(high)
    try:
        logical = footer.metadata.schema.column(leaf).logical_type
        low_array, high_array = (_array(side, kind, logical) for side in (lows, highs))
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    if low_array is None or high_array is None:
        return None
    known = _known(low_array) & _known(high_array)
    return Bounds(low_array, high_array, known, nulls, values)


def _array(values: list[Any], kind: pa.DataType, logical: Any) -> pa.Array | None:  # noqa: PLR0911
    """Return bounds as they are stored in Parquet as values of the column's type."""
    t = pa.types
    if t.is_boolean(kind) or t.is_float32(kind) or t.is_float64(kind):
        return pa.array(values, kind)
    if t.is_integer(kind):
        if t.is_unsigned_integer(kind):  # stored as the signed integer with the same bits
            width = 64 if kind.bit_width == 64 else 32  # noqa: PLR2004
            values = [None if value is None else value % (1 << width) for value in values]
        return pa.array(values, kind)
    if t.is_date(kind):
        return pa.array(values, pa.int32()).cast(pa.date32()).cast(kind)
    if t.is_timestamp(kind):
        unit = _UNITS.get(json.loads(logical.to_json()).get("timeUnit", ""))
        if unit is None:
            return None
        return pa.array(values, pa.int64()).cast(pa.timestamp(unit, kind.tz)).cast(kind)
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return pa.array([_text(value) for value in values], kind)
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind):
        return pa.array(values, kind)
    if t.is_decimal(kind) and all(value is None or isinstance(value, Decimal) for value in values):
        return pa.array(values, kind)
    return None


def _text(value: bytes | None) -> str | None:
    # A bound that was shortened may end in the middle of a character.
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _known(array: pa.Array) -> npt.NDArray[np.bool_]:
    known: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_floating(array.type):
        known &= ~np.isnan(array.fill_null(0).to_numpy(zero_copy_only=False))
    return known
