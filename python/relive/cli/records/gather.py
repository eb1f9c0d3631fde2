"""`relive records gather`: some records as arrays, as a table or as lines of JSON."""

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from relive.bridge.convert import convert
from relive.cli.arguments import add_fields, add_json, add_store, parse_rows
from relive.cli.cells import plain
from relive.cli.command import Command, Exit
from relive.cli.output import (
    count_text,
    print_json,
    print_json_line,
    print_line,
    shown,
    size_text,
)
from relive.cli.progress import Progress
from relive.cli.records.head import records_at
from relive.cli.records.npz import write_npz
from relive.errors import OutOfRangeError
from relive.model.source import pick_fields
from relive.store.records import RecordStore

_SUFFIXES: Final = (".npz", ".npy", ".parquet")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_store(parser)
    parser.add_argument(
        "rows",
        metavar="ROWS",
        type=parse_rows,
        help="rows and slices of them, as in 3,7,10:20; `:` is all of them",
    )
    add_fields(parser)
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=_file,
        help="a name in .npz, .npy (one field) or .parquet; lines of JSON on stdout without it",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")
    add_json(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Read the records, in the order asked, and write them."""
    with RecordStore.open(arguments.path) as store:
        pick_fields(store.fields, arguments.fields)
        rows = _positions(arguments.rows, len(store))
        if arguments.output is None:
            _print(store, rows, arguments.fields, as_json=arguments.json)
            return Exit.OK
        with Progress("reading", len(rows)) as progress:
            if arguments.output.suffix.lower() == ".npz":
                write_npz(
                    store,
                    rows,
                    arguments.fields,
                    arguments.output,
                    overwrite=arguments.overwrite,
                )
            else:
                convert(
                    store[rows],
                    arguments.output,
                    fields=arguments.fields,
                    overwrite=arguments.overwrite,
                    progress=lambda done, _: progress(done),
                )
    size = arguments.output.stat().st_size
    if arguments.json:
        print_json({"path": str(arguments.output), "records": len(rows), "file_bytes": size})
    else:
        records = count_text(len(rows), "record")
        print_line(f"{shown(str(arguments.output))}: {records}, {size_text(size)}")
    return Exit.OK


def _print(
    store: RecordStore,
    rows: np.ndarray[Any, Any],
    names: Sequence[str] | None,
    *,
    as_json: bool,
) -> None:
    lines = (
        {name: plain(value) for name, value in record.items()}
        for record in records_at(store, rows, names)
    )
    if as_json:
        print_json(list(lines))
        return
    for line in lines:
        print_json_line(line)


def _positions(slices: Sequence[slice], length: int) -> np.ndarray[Any, Any]:
    """Give the rows one by one; what is behind the end is an error, and no shorter list."""
    spans = []
    for part in slices:
        stop = length if part.stop is None else part.stop
        if stop > length or part.start > length:
            last = max(stop - 1, part.start)
            raise OutOfRangeError(f"there is no record {last}: the store has {length}")
        spans.append(range(part.start, stop))
    return np.fromiter(itertools.chain.from_iterable(spans), np.int64)


def _file(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() not in _SUFFIXES:
        raise argparse.ArgumentTypeError(f"`{text}` ends in none of {', '.join(_SUFFIXES)}")
    return path


COMMAND: Final = Command(
    "gather",
    "print records, or write them as .npz, .npy or .parquet",
    "relive records gather arm 3,7,10:20 --fields state,action --output some.npz",
    add_arguments,
    run,
)
