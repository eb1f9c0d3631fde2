"""`relive info`: what is stored at a path or URI."""

import argparse
from pathlib import Path
from typing import Final

from relive._open import find_kind, open_kind
from relive.cli.arguments import add_uri
from relive.cli.command import Exit
from relive.cli.kinds import commands_of
from relive.cli.output import print_json, print_pairs, size_text
from relive.store.paths import is_remote

SUMMARY: Final = "print what is stored at a path: its kind, its size, its fields or signals"
EXAMPLE: Final = "relive info runs.a2pack"

add_arguments = add_uri


def run(arguments: argparse.Namespace) -> Exit:
    """Print the kind, the size, and the fields, signals or episodes."""
    kind, paths = find_kind(arguments.path)
    commands = commands_of(kind)
    facts, pairs = commands.describe(open_kind(kind, paths))
    local = [path for each in paths if not is_remote(each) for path in commands.paths(each)]
    sizes = [size for path in local for file in _files(path) for size in _file_bytes(file)]
    size = sum(sizes) if local else None
    count = len(sizes) if local else len(paths)
    if arguments.json:
        found = {"path": arguments.path, "kind": kind.name, "files": count, "file_bytes": size}
        print_json(found | facts)
    else:
        about = [("files", count), ("size", None if size is None else size_text(size))]
        print_pairs([("path", arguments.path), ("kind", kind.name), *about, *pairs])
    return Exit.FAILED if facts.get("problems") else Exit.OK


def _files(path: Path) -> list[Path]:
    """Return the files in a directory, or the file itself; without what recovery set aside."""
    if not path.is_dir():
        return [path]
    from relive.episodes.layout import SET_ASIDE

    inside = (each for each in path.iterdir() if each.name != SET_ASIDE)
    every = (file for each in inside for file in ([each, *each.rglob("*")]))
    return [file for file in every if file.is_file()]


def _file_bytes(file: Path) -> list[int]:
    """Return the size of a file; nothing if it was deleted meanwhile, as SQLite does."""
    try:
        return [file.stat().st_size]
    except FileNotFoundError:
        return []
