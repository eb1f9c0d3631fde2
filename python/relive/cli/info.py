"""`relive info`: what is stored at a path or URI."""

import argparse
from pathlib import Path
from typing import Final

from relive._open import find_kind, open_kind
from relive.cli.arguments import add_uri
from relive.cli.command import Exit
from relive.cli.kinds import add_published, commands_of, published_options
from relive.cli.output import print_json, print_pairs, size_text
from relive.store.paths import is_remote

SUMMARY: Final = "print what is stored at a path: its kind, its size, its fields or signals"
EXAMPLE: Final = "relive info runs.a2pack"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_uri(parser)
    add_published(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Print the kind, the size, and the fields, signals or episodes."""
    kind, paths = find_kind(arguments.path)
    commands = commands_of(kind)
    found = open_kind(kind, paths, **published_options(arguments, kind, "root"))
    facts, pairs = commands.describe(found)
    local = [path for each in paths if not is_remote(each) for path in commands.paths(each)]
    bytes_of = [size for path in local for file in _files(path) for size in _file_bytes(file)]
    size = sum(bytes_of) if local else None
    count = len(bytes_of) if local else len(paths)
    if arguments.json:
        about = {"path": arguments.path, "kind": kind.name, "files": count, "file_bytes": size}
        print_json(about | facts)
    else:
        sizes = [("files", count), ("size", None if size is None else size_text(size))]
        sizes = [] if kind.reference else sizes
        print_pairs([("path", arguments.path), ("kind", kind.name), *sizes, *pairs])
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
