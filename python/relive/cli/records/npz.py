"""Records as a `.npz` archive: an array for each field, and beside it what an array cannot say."""

import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relive.errors import InvalidError, UnsupportedError
from relive.model.ragged import Ragged
from relive.model.source import pick_fields
from relive.store.atomic import whole_file
from relive.store.records import RecordStore


def write_npz(
    store: RecordStore,
    rows: np.ndarray[Any, Any],
    names: Sequence[str] | None,
    target: Path,
    *,
    overwrite: bool,
) -> None:
    """Write the records at `rows`, whole or not at all.

    A ragged field `x` is its values `x`, where each row ends, `x.offsets`, and where several
    dimensions vary `x.shapes`; bytes are a ragged field, text and JSON are text. `x.missing`
    says which values are missing, where some are.
    """
    written = set[str]()
    with (
        whole_file(target, overwrite=overwrite) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
    ):
        for name in pick_fields(store.fields, names):
            for part, array in _arrays(store, rows, name):
                if part in written:
                    raise InvalidError(
                        f"two arrays would be called `{part}`", hint="--fields leaves one out"
                    )
                written.add(part)
                with archive.open(f"{part}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)


def _arrays(
    store: RecordStore, rows: np.ndarray[Any, Any], name: str
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    values: Any = store.gather(rows, [name])[name]
    dtype = store.fields[name].dtype
    if dtype == "bytes":
        values = Ragged.from_list([np.frombuffer(value, np.uint8) for value in values], dtype="u1")
    elif dtype == "str":
        values = _text(name, list(values))
    elif dtype == "json":
        values = _text(name, [json.dumps(value, ensure_ascii=False) for value in values])
    if isinstance(values, Ragged):
        yield name, values.values
        yield f"{name}.offsets", values.offsets
        if values.shapes is not None:
            yield f"{name}.shapes", values.shapes
    else:
        yield name, values
    missing = store.missing(name, rows)
    if missing.any():
        yield f"{name}.missing", missing


def _text(name: str, values: list[str]) -> np.ndarray[Any, Any]:
    if any(value.endswith("\0") for value in values):
        raise UnsupportedError(
            f"field {name!r} has text that ends in NUL, which an array of text does not keep",
            hint="a .parquet file does",
        )
    return np.array(values, dtype=str)
