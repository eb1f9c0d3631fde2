"""`relive pack extract`: writes entries of a pack as files."""

import argparse
import os
from pathlib import Path
from typing import Final

from relive.cli.arguments import add_errors, add_output, print_written
from relive.cli.command import Exit
from relive.cli.output import note
from relive.cli.pack.arguments import (
    add_entries,
    add_pack,
    chosen_entries,
    pack_path,
)
from relive.cli.pack.entries import RUNS
from relive.cli.progress import Progress
from relive.errors import AlreadyExistsError, CorruptError, InvalidError
from relive.store.atomic import storage_error
from relive.store.pack import PackReader
from relive.store.paths import absolute_path

SUMMARY: Final = "write entries of a pack as files"
EXAMPLE: Final = "relive pack extract runs.a2pack --output out/ --indices 0,5,10-20"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_pack(parser)
    add_output(parser, "DIR", "the directory to write to; created if missing")
    add_entries(parser, parser.add_mutually_exclusive_group())
    parser.add_argument(
        "--keep-names",
        action="store_true",
        help="use the names of runs as file names, not run-000000.a2run2 and so on",
    )
    add_errors(parser, "a damaged entry")


def run(arguments: argparse.Namespace) -> Exit:
    """Write the files; nothing is written if one of them cannot be."""
    root = Path(absolute_path(arguments.output, "a folder of files"))
    by_name = arguments.keep_names or bool(arguments.names or arguments.name)
    skipped = 0
    with PackReader.open(pack_path(arguments)) as reader:
        entries = chosen_entries(reader, arguments)
        targets = [root / _file_name(reader, i, by_name=by_name) for i in entries]
        _check(root, targets, overwrite=arguments.overwrite)
        with Progress("extracting", len(targets)) as progress:
            for done, (i, target) in enumerate(zip(entries, targets, strict=True)):
                progress(done)
                try:
                    payload = reader.payload(i)
                except CorruptError as error:
                    if arguments.errors == "raise":
                        raise
                    skipped += 1
                    progress.clear()
                    note(f"skipped: {error.message}")
                    continue
                _write(target, payload, overwrite=arguments.overwrite)
    return print_written(arguments, len(targets) - skipped, "file", skipped)


def _file_name(reader: PackReader, index: int, *, by_name: bool) -> str:
    is_run = reader.kind(index) in RUNS
    name = reader.name(index) if by_name or not is_run else None
    if name is None:
        return f"run-{index:06d}.a2run2" if is_run else f"entry-{index:06d}.bin"
    if "\0" in name or any(part in {"", ".", ".."} for part in name.split("/")):
        raise InvalidError(
            f"entry {index} has the name {name!r}, which is not a valid relative path",
            hint=f"extract it by its position, without --keep-names: --indices {index}"
            if is_run
            else None,
        )
    return name


def _check(root: Path, targets: list[Path], *, overwrite: bool) -> None:
    if root.exists() and not root.is_dir():
        raise AlreadyExistsError(f"`{root}` is a file, but --output must be a directory")
    known = set(targets)
    if len(known) < len(targets):
        twice = next(target for target in targets if targets.count(target) > 1)
        raise InvalidError(f"two entries would be written to `{twice}`")
    inside = root.resolve()
    for target in targets:
        above = next((parent for parent in target.parents if parent in known), None)
        if above is not None:
            raise InvalidError(
                f"`{above}` would be both a file and the parent directory of `{target}`"
            )
        # A symbolic link in the directory may point out of it.
        if not target.resolve().is_relative_to(inside):
            raise InvalidError(
                f"cannot write `{target}`: a symbolic link on its path leads out of `{root}`"
            )
        if not overwrite and os.path.lexists(target):
            raise AlreadyExistsError(f"`{target}` already exists")


def _write(target: Path, payload: memoryview, *, overwrite: bool) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb" if overwrite else "xb") as file:
            file.write(payload)
    except OSError as error:
        raise storage_error(error, target, "write") from error
