"""`relive pack extract`: entries as files again."""

import argparse
import os
from pathlib import Path
from typing import Final

from relive.cli.arguments import (
    add_choice,
    add_json,
    add_output,
    add_pack,
    choose,
    pack_path,
    skip_or_raise,
)
from relive.cli.command import Command, Exit
from relive.cli.output import count_text, print_json, print_line, say, shown
from relive.cli.pack.entries import RUNS
from relive.cli.progress import Progress
from relive.errors import AlreadyExistsError, CorruptError, InvalidError
from relive.store.atomic import storage_error
from relive.store.pack import PackReader


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_pack(parser)
    add_output(parser, "DIR", "the directory to write to; made where it is not there")
    add_choice(parser, parser.add_mutually_exclusive_group())
    parser.add_argument(
        "--keep-names",
        action="store_true",
        help="call runs by their names too; they are run-000000.a2run2 and so on otherwise",
    )
    skip_or_raise(parser, "an entry that is damaged")
    add_json(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Write the files; nothing is written where one of them may not be."""
    root = Path(arguments.output)
    by_name = arguments.keep_names or bool(arguments.names or arguments.name)
    skipped = 0
    with PackReader.open(pack_path(arguments)) as reader:
        entries = choose(reader, arguments)
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
                    say(f"skipped: {error.message}")
                    continue
                _write(target, payload, overwrite=arguments.overwrite)
    written = len(targets) - skipped
    if arguments.json:
        print_json({"path": str(root), "files": written, "skipped": skipped})
    else:
        print_line(f"{shown(str(root))}: {count_text(written, 'file')}")
    if skipped:
        say(f"warning: {count_text(skipped, 'entry', 'entries')} left out")
    return Exit.LOSS if skipped else Exit.OK


def _file_name(reader: PackReader, index: int, *, by_name: bool) -> str:
    is_run = reader.kind(index) in RUNS
    name = reader.name(index) if by_name or not is_run else None
    if name is None:
        return f"run-{index:06d}.a2run2" if is_run else f"entry-{index:06d}.bin"
    parts = name.split("/")
    if "\0" in name or any(part in {"", ".", ".."} for part in parts):
        raise InvalidError(
            f"the name {name!r} of entry {index} is no path inside of a directory",
            hint=f"--indices {index} without --keep-names gives it a name of its own"
            if is_run
            else None,
        )
    return name


def _check(root: Path, targets: list[Path], *, overwrite: bool) -> None:
    inside = root.resolve()
    if root.exists() and not root.is_dir():
        raise AlreadyExistsError(f"`{root}` is a file, and files are written into a directory")
    known = set(targets)
    if len(known) < len(targets):
        twice = next(target for target in targets if targets.count(target) > 1)
        raise InvalidError(f"two entries would be written to `{twice}`")
    for target in targets:
        above = next((parent for parent in target.parents if parent in known), None)
        if above is not None:
            raise InvalidError(f"`{above}` would be a file and the directory of `{target}`")
    for target in targets:
        # A link that lies in the directory already may lead out of it.
        if not target.resolve().is_relative_to(inside):
            raise InvalidError(f"`{target}` would be written outside of `{root}`")
        if not overwrite and os.path.lexists(target):
            raise AlreadyExistsError(f"`{target}` exists")


def _write(target: Path, payload: memoryview, *, overwrite: bool) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb" if overwrite else "xb") as file:
            file.write(payload)
    except OSError as error:
        raise storage_error(error, target, "written") from error


COMMAND: Final = Command(
    "extract",
    "write entries of a pack as files",
    "relive pack extract runs.a2pack --output out/ --indices 0,5,10-20",
    add_arguments,
    run,
)
