"""`relive records info`: what a record store holds, and how it lies on the disk."""

import argparse
import fcntl
from pathlib import Path
from typing import Any, Final

from relive.cli.arguments import add_json, add_store
from relive.cli.command import Command, Exit
from relive.cli.output import print_json, print_line, print_pairs, print_table, shown, size_text
from relive.model.schema import Field
from relive.store.records import RecordStore


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_store(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Print what there is to know without reading a record."""
    with RecordStore.open(arguments.path) as store:
        found = _look(store, arguments.path)
    if arguments.json:
        print_json(found)
        return Exit.OK
    values, share = found["utilization"], found["utilization_bytes"]
    print_pairs(
        [
            ("path", shown(found["path"])),
            ("records", found["records"]),
            ("generation", found["generation"]),
            ("size", size_text(found["file_bytes"])),
            ("in chunks", size_text(found["stored_bytes"])),
            (
                "in use",
                f"{100 * values:.1f} % of the values, {100 * share:.1f} % of the bytes in chunks",
            ),
            ("written by", _writer_text(found["writer"])),
            ("rebalance", _rebalance_text(found)),
        ]
    )
    print_line("")
    print_table(
        ["field", "dtype", "shape", "codec", "level"],
        [
            [shown(name), shown(each["dtype"]), _shape_text(each), each["codec"], each["level"]]
            for name, each in found["fields"].items()
        ],
    )
    return Exit.OK


def directory_bytes(folder: Path) -> int:
    """Count the bytes of all files of a store; those that go away meanwhile are none."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def writer_of(folder: Path) -> int | str | None:
    """Give the number of the process that writes to a store, if there is one."""
    try:
        with (folder / "LOCK").open("rb") as file:
            try:
                # A lock that others may share is let go of at once, when the file is closed.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                text = file.read(20).decode("ascii", "replace").strip()
                return int(text) if text.isdecimal() else "unknown"
    except OSError:
        pass  # without the file nobody has it, and one that may not be read says nothing
    return None


def _look(store: RecordStore, path: str) -> dict[str, Any]:
    folder = Path(store.path)
    unfinished = (folder / "rebalance.json").exists()
    stored = directory_bytes(folder / "chunk")
    share = store.utilization_bytes
    return {
        "path": path,
        "records": len(store),
        "generation": store.generation,
        "file_bytes": directory_bytes(folder),
        "stored_bytes": stored,
        # A copy that is not finished lies among the chunks, and nothing in it is in use.
        "live_bytes": None if unfinished else round(share * stored),
        "utilization": store.utilization,
        "utilization_bytes": share,
        "writer": writer_of(folder),
        "unfinished_rebalance": unfinished,
        "fields": {name: _described(field) for name, field in store.fields.items()},
    }


def _described(field: Field) -> dict[str, Any]:
    return {
        "dtype": str(field.dtype),
        "shape": list(field.shape),
        "ragged": int(field.ragged),
        "codec": field.codec,
        "level": field.level,
    }


def _shape_text(field: dict[str, Any]) -> str:
    sizes = ["any"] * field["ragged"] + [str(size) for size in field["shape"]]
    return " x ".join(sizes) or "-"


def _writer_text(writer: int | str | None) -> str:
    return "nobody" if writer is None else f"process {writer}"


def _rebalance_text(found: dict[str, Any]) -> str:
    if not found["unfinished_rebalance"]:
        return "none begun"
    if found["writer"] is not None:
        return "begun, not finished"
    return "interrupted; `relive records rebalance` finishes it"


COMMAND: Final = Command(
    "info",
    "print what a record store holds, and how much of it is in use",
    "relive records info arm",
    add_arguments,
    run,
)
