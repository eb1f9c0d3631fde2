"""`relive records info`: what a record store holds, and how it is stored."""

import argparse
from pathlib import Path
from typing import Any, Final

from relive.cli.arguments import add_store
from relive.cli.command import Exit
from relive.cli.output import print_json, print_line, print_pairs, print_table, size_text
from relive.cli.source import field_facts
from relive.store.locks import is_locked
from relive.store.records import RecordStore

SUMMARY: Final = "print what a record store holds, and how much of it is in use"
EXAMPLE: Final = "relive records info arm"

add_arguments = add_store


def run(arguments: argparse.Namespace) -> Exit:
    """Print what is known without reading a record."""
    with RecordStore.open(arguments.path) as store:
        found = _describe(store, arguments.path)
    if arguments.json:
        print_json(found)
        return Exit.OK
    values, share = 100 * found["utilization"], 100 * found["utilization_bytes"]
    writer = found["writer"]
    print_pairs(
        [
            ("path", found["path"]),
            ("records", found["records"]),
            ("generation", found["generation"]),
            ("size", size_text(found["file_bytes"])),
            ("in chunks", size_text(found["stored_bytes"])),
            ("in use", f"{values:.1f} % of the values, {share:.1f} % of the bytes in chunks"),
            ("written by", "no process" if writer is None else f"process {writer}"),
            ("rebalance", _rebalance_text(found)),
        ]
    )
    print_line()
    print_table(
        ["field", "dtype", "shape", "codec", "level"],
        [
            [name, each["dtype"], _shape_text(each), each["codec"], each["level"]]
            for name, each in found["fields"].items()
        ],
    )
    return Exit.OK


def directory_bytes(folder: Path) -> int:
    """Return the size of all files in a directory, except those deleted meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def _writer_of(folder: Path) -> int | str | None:
    """Return the id of the process that is writing to a store, if there is one."""
    lock = folder / "LOCK"
    if not is_locked(lock):
        return None
    text = lock.read_text("ascii", "replace").strip()
    return int(text) if text.isdecimal() else "unknown"


def _describe(store: RecordStore, path: str) -> dict[str, Any]:
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
        # An unfinished copy is stored among the chunks, and none of it is in use.
        "live_bytes": None if unfinished else round(share * stored),
        "utilization": store.utilization,
        "utilization_bytes": share,
        "writer": _writer_of(folder),
        "unfinished_rebalance": unfinished,
        "fields": {name: field_facts(field) for name, field in store.fields.items()},
    }


def _shape_text(field: dict[str, Any]) -> str:
    sizes = ["any"] * field["ragged"] + [str(size) for size in field["shape"]]
    return " x ".join(sizes) or "-"


def _rebalance_text(found: dict[str, Any]) -> str:
    if not found["unfinished_rebalance"]:
        return "none in progress"
    if found["writer"] is not None:
        return "in progress"
    return "interrupted; run `relive records rebalance` to finish it"
