"""`relive info`: what is at a path or URI."""

import argparse
from pathlib import Path
from typing import Final

from relive._open import find_kind, open  # noqa: A004 - its public name
from relive.cli.arguments import add_json
from relive.cli.command import Command, Exit
from relive.cli.output import print_json, print_pairs, shown, size_text
from relive.model.kinds import open_kinds
from relive.model.schema import Field
from relive.store.remote import is_remote


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
    """Print what it is, how large, and its fields."""
    kind, places = find_kind(arguments.path)
    source = open(arguments.path)
    local = [Path(place) for place in places if not is_remote(place)]
    size = sum(path.stat().st_size for path in local) if local else None
    if arguments.json:
        print_json(
            {
                "path": arguments.path,
                "kind": kind.name,
                "files": len(places),
                "file_bytes": size,
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
            ("path", shown(arguments.path)),
            ("kind", kind.name),
            ("files", len(places)),
            ("size", "-" if size is None else size_text(size)),
            ("rows", len(source)),
            *((f"field {shown(name)}", _words(field)) for name, field in source.fields.items()),
        ]
    )
    return Exit.OK


def _words(field: Field) -> str:
    shape = f" {field.shape}" if field.shape else ""
    return f"{field.dtype}{shape}{' ragged' if field.ragged else ''}"


COMMAND: Final = Command(
    "info",
    "print what is at a path: its kind, its size, its fields",
    "relive info runs.a2pack",
    add_arguments,
    run,
)
