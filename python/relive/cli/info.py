"""`relive info`: what is at a path or URI."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from relive._open import find_kind, open  # noqa: A004 - its public name
from relive.cli.arguments import add_json
from relive.cli.command import Command, Exit
from relive.cli.episodes import summary as episodes_any
from relive.cli.output import print_json, print_pairs, shown, size_text
from relive.model.kinds import open_kinds
from relive.model.schema import Field
from relive.store.paths import is_remote


def add_uri(parser: argparse.ArgumentParser) -> None:
    """Add the thing to open."""
    parser.add_argument(
        "path", metavar="PATH", help=f"{open_kinds()}: a path, a URI or a quoted glob pattern"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_uri(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Print what it is, how large, and its fields or signals."""
    kind, places = find_kind(arguments.path)
    source = open(arguments.path)
    local = [path for place in places if not is_remote(place) for path in _paths(kind.name, place)]
    files = [file for path in local for file in _files(path)]
    size = sum(path.stat().st_size for path in files) if local else None
    count = len(files) if local else len(places)
    found = {"path": arguments.path, "kind": kind.name, "files": count, "file_bytes": size}
    pairs = [
        ("path", shown(arguments.path)),
        ("kind", kind.name),
        ("files", count),
        ("size", "-" if size is None else size_text(size)),
    ]
    if episodes_any.is_recorded(source):
        described = episodes_any.describe(source)
        if arguments.json:
            print_json(found | described)
        else:
            print_pairs([*pairs, *episodes_any.describe_pairs(described)])
        return Exit.OK
    if arguments.json:
        print_json(
            found
            | {
                "rows": len(source),
                "fields": {
                    name: {
                        "dtype": str(field.dtype),
                        "shape": list(field.shape),
                        "ragged": field.ragged,
                    }
                    for name, field in source.fields.items()
                },
            }
        )
        return Exit.OK
    print_pairs(
        [
            *pairs,
            ("rows", len(source)),
            *((f"field {shown(name)}", _words(field)) for name, field in source.fields.items()),
        ]
    )
    return Exit.OK


def _paths(kind: str, place: str) -> Sequence[Path]:
    """Give what is at a place; a movie and its index are one thing."""
    if kind != "signal":
        return [Path(place)]
    from relive.episodes.layout import signal_paths

    return signal_paths(place)


def _files(path: Path) -> list[Path]:
    """Give the files of a directory, or the one that it is."""
    return [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]


def _words(field: Field) -> str:
    shape = f" {field.shape}" if field.shape else ""
    ragged = f" ragged{f' {field.ragged}' if field.ragged > 1 else ''}" if field.ragged else ""
    codec = f" {field.codec}" if field.codec != "raw" else ""
    return f"{field.dtype}{shape}{ragged}{codec}"


COMMAND: Final = Command(
    "info",
    "print what is at a path: its kind, its size, its fields or signals",
    "relive info runs.a2pack",
    add_arguments,
    run,
)
