"""`relive records gather`: prints records as JSON, or writes them as arrays or a table."""

import argparse
import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from relive.bridge.convert import convert
from relive.cli.arguments import (
    add_fields,
    add_overwrite,
    add_store,
    expand_slices,
    parse_rows,
    print_written,
)
from relive.cli.command import Exit
from relive.cli.output import print_json
from relive.cli.progress import Progress
from relive.cli.records.head import records_at
from relive.errors import InvalidError, UnsupportedError
from relive.model.ragged import Ragged
from relive.model.source import pick_fields
from relive.store.atomic import whole_file
from relive.store.records import RecordStore

SUMMARY: Final = "print records, or write them as .npz, .npy or .parquet"
EXAMPLE: Final = "relive records gather arm 3,7,10:20 --fields state,action --output some.npz"

_SUFFIXES: Final = (".npz", ".npy", ".parquet")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_store(parser)
    parser.add_argument(
        "rows",
        metavar="ROWS",
        type=parse_rows,
        help="rows and slices of rows, as in 3,7,10:20; `:` is all of them",
    )
    add_fields(parser)
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=_file,
        help="write a .npz, .npy (one field) or .parquet file (default: print JSON lines)",
    )
    add_overwrite(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Read the records in the order given, and print or write them."""
    output, fields = arguments.output, arguments.fields
    with RecordStore.open(arguments.path) as store:
        pick_fields(store.fields, fields)
        rows = expand_slices(arguments.rows, len(store), "record")
        if output is None:
            _print(records_at(store, rows, fields), as_json=arguments.json)
            return Exit.OK
        with Progress("reading", len(rows)) as progress:
            if output.suffix.lower() == ".npz":
                _write_npz(store, rows, fields, output, overwrite=arguments.overwrite)
            else:
                convert(
                    store[rows],
                    output,
                    fields=fields,
                    overwrite=arguments.overwrite,
                    progress=progress,
                )
    return print_written(arguments, len(rows), "record")


def _print(records: Iterator[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(list(records))
        return
    for record in records:
        print_json(record, indent=None)


def _file(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() not in _SUFFIXES:
        raise argparse.ArgumentTypeError(f"`{text}` must end in {', '.join(_SUFFIXES)}")
    return path


def _write_npz(
    store: RecordStore,
    rows: Sequence[int],
    names: Sequence[str] | None,
    target: Path,
    *,
    overwrite: bool,
) -> None:
    """Write records as a `.npz` archive with an array for each field.

    A ragged field `x` is its values `x`, the end of each row `x.offsets` and, where several
    dimensions vary, `x.shapes`. Bytes are a ragged field; text and JSON are text. `x.missing`
    tells which values are missing, if some are.
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
                        f"two arrays in the archive would have the name `{part}`",
                        hint="use --fields to leave out one of the two fields",
                    )
                written.add(part)
                with archive.open(f"{part}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)


def _arrays(
    store: RecordStore, rows: Sequence[int], name: str
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
            f"field {name!r} has text that ends in a NUL character, which a .npz archive "
            "cannot store",
            hint="write a .parquet file",
        )
    return np.array(values, dtype=str)
