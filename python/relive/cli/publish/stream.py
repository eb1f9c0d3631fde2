"""`relive stream`: the rows of a published table on stdout."""

import argparse
import csv
import json
import sys
from typing import TYPE_CHECKING, Any, Final, Literal

from relive.cli.arguments import positive
from relive.cli.command import Exit
from relive.cli.output import plain
from relive.cli.publish.arguments import (
    add_columns,
    add_dataset,
    add_table,
    find_table,
    open_dataset,
)
from relive.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

SUMMARY: Final = "print the rows of a published table as JSON lines, CSV or an Arrow stream"
EXAMPLE: Final = "relive stream lab/kitchen --columns step,reward --filter reward>0 --limit 100"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_dataset(parser)
    add_table(parser, split=True)
    add_columns(parser)
    parser.add_argument(
        "--filter", metavar="SQL", help="only rows for which this condition holds, as in 'step > 5'"
    )
    parser.add_argument("--limit", metavar="N", type=positive, help="at most this many rows")
    parser.add_argument(
        "--shard",
        metavar="RANK/RANKS",
        type=_shard,
        help="only the rows of one of several processes, as in 0/8; 'auto' takes RANK and "
        "WORLD_SIZE, else LOCAL_RANK and LOCAL_WORLD_SIZE, from the environment",
    )
    parser.add_argument(
        "--tail",
        choices=("keep", "drop", "pad", "error"),
        default="keep",
        help="what to do with the last step of --shard if it is not full: print it (the default), "
        "leave it out, fill it with rows from the start, or fail",
    )
    parser.add_argument(
        "--batch-size",
        metavar="N",
        type=positive,
        default=8192,
        help="how many rows to read and print at a time (default: 8192)",
    )
    parser.add_argument(
        "--format",
        choices=("jsonl", "csv", "arrow"),
        default="jsonl",
        help="JSON lines (the default), CSV, or the stream format of Arrow",
    )


def run(arguments: argparse.Namespace) -> Exit:
    """Print rows while they arrive; nothing is downloaded first."""
    if arguments.json and arguments.format != "jsonl":
        arguments.parser.error("--json is the same as --format jsonl: pass one of them")
    if arguments.format == "arrow" and sys.stdout.isatty():
        raise InvalidError(
            "an Arrow stream is binary, and stdout is a terminal",
            hint="write it to a file or a program: relive stream … --format arrow > rows.arrows",
        )
    table = find_table(open_dataset(arguments), arguments.table, arguments.split)
    shown = table.select(arguments.columns) if arguments.columns else table
    batches = table.batches(
        batch_size=arguments.batch_size,
        columns=arguments.columns,
        filter=arguments.filter,
        limit=arguments.limit,
        shard=arguments.shard,
        tail=arguments.tail,
    )
    _WRITERS[arguments.format](shown.schema(), batches)
    return Exit.OK


def _shard(text: str) -> "tuple[int, int] | Literal['auto']":
    """Return rank and world size of `0/8`."""
    if text == "auto":
        return "auto"
    rank, slash, world_size = text.partition("/")
    if not (slash and rank.isdecimal() and world_size.isdecimal()) or int(rank) >= int(world_size):
        raise argparse.ArgumentTypeError(
            f"expected a rank and the number of ranks, as in 0/8, or 'auto', got {text!r}"
        )
    return int(rank), int(world_size)


def _write_jsonl(_: "pa.Schema", batches: "Iterable[pa.RecordBatch]") -> None:
    for batch in batches:
        lines = [json.dumps(plain(row, finite=True), allow_nan=False) for row in batch.to_pylist()]
        sys.stdout.write("".join(f"{line}\n" for line in lines))


def _write_csv(schema: "pa.Schema", batches: "Iterable[pa.RecordBatch]") -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(schema.names)
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns]
        writer.writerows([_cell(value) for value in row] for row in zip(*columns, strict=True))


def _write_arrow(schema: "pa.Schema", batches: "Iterable[pa.RecordBatch]") -> None:
    import pyarrow as pa

    sys.stdout.flush()
    with pa.ipc.new_stream(sys.stdout.buffer, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    sys.stdout.buffer.flush()


def _cell(value: Any) -> Any:
    """Return a value for CSV: lists and structs as JSON, null as nothing."""
    if value is None:
        return ""
    value = plain(value)
    return json.dumps(value) if isinstance(value, list | dict) else value


_WRITERS: Final = {"jsonl": _write_jsonl, "csv": _write_csv, "arrow": _write_arrow}
