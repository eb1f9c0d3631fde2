"""Datasets as tables: what is known of every episode without reading its records."""

import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa

from relive.episodes.statics import encode_statics
from relive.model.dataset import Dataset
from relive.model.episode import Episode

__all__ = ["table_of"]

_MOST_THREADS: Final = 8


def table_of(dataset: Dataset) -> pa.Table:
    """Give one row for each episode, in order. No record is read.

    The columns are `position` in the dataset, `uid`, `path`, `created_ts_ns`, `ended` (how the
    recording ended), `first_ts`, `start_ts`, `last_ts` and `duration_ns` as episodes have them,
    null where there are no records, and two structs: `rows`, the number of records of each
    signal, and `statics`. Each is null where an episode has no such signal or static.

    A static has the Arrow type that all of its values fit: truth values, integers of 64 bits,
    floats (also where some are integers), text, bytes, or lists and structs of such, which all
    have the same keys. Where its values fit no such type, they are JSON text.
    """
    count = len(dataset)
    with ThreadPoolExecutor(min(_MOST_THREADS, 2 * (os.cpu_count() or 1))) as pool:
        rows = list(pool.map(lambda position: _row(dataset.episode_at(position)), range(count)))
    columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in _COLUMNS.items()}
    return pa.table(
        {
            "position": pa.array(range(count), pa.int64()),
            **columns,
            "rows": _struct([row["rows"] for row in rows], _counts),
            "statics": _struct([row["statics"] for row in rows], _static),
        }
    )


_COLUMNS: Final = {
    "uid": pa.string(),
    "path": pa.string(),
    "created_ts_ns": pa.int64(),
    "ended": pa.string(),
    "first_ts": pa.int64(),
    "start_ts": pa.int64(),
    "last_ts": pa.int64(),
    "duration_ns": pa.int64(),
}


def _row(episode: Episode) -> dict[str, Any]:
    meta = episode.meta
    signals = episode.signals
    rows = {name: len(signal) for name, signal in signals.items()}
    row: dict[str, Any] = dict.fromkeys(_COLUMNS)
    row |= {"uid": episode.uid, "rows": rows, "statics": episode.statics}
    row["created_ts_ns"] = meta.get("created_ts_ns")
    row["ended"] = (meta.get("outcome") or {}).get("ended")
    path = getattr(episode, "path", None)
    row["path"] = None if path is None else os.fspath(path)
    starts = [signals[name].start_ts for name, length in rows.items() if length]
    if starts:
        last = max(signals[name].last_ts for name, length in rows.items() if length)
        row |= {"first_ts": min(starts), "start_ts": max(starts), "last_ts": last}
        row["duration_ns"] = last - min(starts)
    return row


def _struct(rows: list[Mapping[str, Any]], column: Callable[[list[Any]], pa.Array]) -> pa.Array:
    """Give one struct for each row, with a field for every key of any row."""
    names = sorted({name for row in rows for name in row})
    if not names:  # a struct without fields cannot be stored
        return pa.nulls(len(rows))
    arrays = [column([row.get(name) for row in rows]) for name in names]
    return pa.StructArray.from_arrays(arrays, names)


def _counts(values: list[Any]) -> pa.Array:
    return pa.array(values, pa.int64())


def _static(values: list[Any]) -> pa.Array:
    try:
        array = pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return _texts(values)
    # Arrow takes text for bytes, and gives a struct the keys that others have.
    same = array.to_pylist() == values and not _has_empty_struct(array.type)
    return array if same else _texts(values)


def _texts(values: list[Any]) -> pa.Array:
    return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _text(value: Any) -> str:
    return json.dumps(encode_statics({"": value})[""], ensure_ascii=False)


def _has_empty_struct(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind) and not kind.num_fields:
        return True
    return any(_has_empty_struct(kind.field(place).type) for place in range(kind.num_fields))
