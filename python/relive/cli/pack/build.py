"""`relive pack build`: makes a pack of the files in a directory."""

import argparse
import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from relive._arguments import as_text
from relive.cli.arguments import add_errors, add_output, add_workers
from relive.cli.command import Exit
from relive.cli.output import count_text, note, print_result, size_text
from relive.cli.pack.arguments import add_layout
from relive.cli.progress import Progress
from relive.errors import (
    CorruptError,
    InvalidError,
    NotFoundError,
    ReliveError,
    TooLargeError,
    UnsupportedError,
)
from relive.model.schema import codec_name
from relive.store.atomic import storage_error
from relive.store.codec import train_dictionary
from relive.store.pack import PackReader, PackWriter

SUMMARY: Final = "make a pack of the runs, or other files, in a directory"
EXAMPLE: Final = "relive pack build --input runs/ --output runs.a2pack --compress zstd"

_RUN: Final = ".a2run2"
_BATCH_BYTES: Final = 8 << 20
_BATCH_FILES: Final = 1024
_SAMPLE_BYTES: Final = 12 << 20
"""A hundred times the usual size of a dictionary is enough to train it."""
_SAMPLE_FILES: Final = 4096
_MUCH_PADDING: Final = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--input", metavar="DIR", required=True, help="the directory of the files, at any depth"
    )
    add_output(parser, "FILE", "the pack to write")
    add_layout(parser)
    parser.add_argument(
        "--compress",
        choices=("raw", "none", "zstd", "lz4", "deflate", "flate"),
        default="raw",
        help="compress entries, where that makes them smaller (default: raw)",
    )
    parser.add_argument("--level", metavar="N", type=int, help="the compression level")
    parser.add_argument(
        "--dictionary",
        action="store_true",
        help="train a zstd dictionary on the files and compress with it",
    )
    add_workers(parser)
    parser.add_argument(
        "--glob",
        metavar="PATTERN",
        action="append",
        help="pack the files that match, not *.a2run2; may be repeated. Files with another suffix "
        "are stored as bytes",
    )
    add_errors(parser, "a file that is not a run")


def run(arguments: argparse.Namespace) -> Exit:
    """Build the pack."""
    if arguments.dictionary and arguments.compress != "zstd":
        arguments.parser.error("--dictionary needs --compress zstd")
    root, output = Path(arguments.input), Path(arguments.output)
    files = _find(root, arguments.glob, output)
    dictionary = _train(root, files) if arguments.dictionary else None
    writer = PackWriter(
        output,
        align=arguments.align,
        codec=codec_name(arguments.compress),
        level=arguments.level,
        dictionary=dictionary,
        capacity=len(files),
        steps=arguments.steps,
        overwrite=arguments.overwrite,
        workers=arguments.workers,
    )
    try:
        with Progress("packing", len(files)) as progress:
            build = _Build(writer, progress, skip=arguments.errors == "skip")
            for batch in _batches(root, files, build):
                build.add(batch)
                progress(len(writer) + build.skipped)
        writer.close()
    except BaseException:
        # The input files still exist, so there is nothing to recover.
        with contextlib.suppress(ReliveError):
            writer.abort()
        raise
    _print_written(output, build.skipped, as_json=arguments.json)
    return Exit.LOSS if build.skipped else Exit.OK


@dataclass(frozen=True, slots=True)
class _Item:
    name: str
    payload: bytes

    @property
    def kind(self) -> str:
        return "auto" if self.name.endswith(_RUN) else "bytes"


class _Build:
    """Appends files to a pack, and counts those that are left out."""

    def __init__(self, writer: PackWriter, progress: Progress, *, skip: bool) -> None:
        self._writer = writer
        self._progress = progress
        self._skip = skip
        self.skipped = 0

    def add(self, batch: Sequence[_Item]) -> None:
        """Append a batch of files of one kind, in order."""
        before = len(self._writer)
        try:
            self._writer.extend(
                [item.payload for item in batch],
                batch[0].kind,
                names=[item.name for item in batch],
            )
        except (CorruptError, InvalidError, TooLargeError, UnsupportedError):
            # Append the rest one by one, to find out which file failed.
            for item in batch[len(self._writer) - before :]:
                self._add_one(item)

    def _add_one(self, item: _Item) -> None:
        try:
            self._writer.append(item.payload, item.kind, name=item.name)
        except (CorruptError, InvalidError, TooLargeError, UnsupportedError) as error:
            self.refuse(item.name, error)

    def refuse(self, name: str, error: ReliveError) -> None:
        """Count a file that cannot be packed, or raise."""
        message = f"cannot pack `{name}`: {error.message}"
        if not self._skip:
            hint = error.hint or "pass --errors skip to leave such files out"
            raise type(error)(message, hint=hint) from error
        self.skipped += 1
        self._progress.clear()
        note(f"skipped: {message}")


def _find(root: Path, asked: Sequence[str] | None, output: Path) -> list[str]:
    """Return the paths below `root` of the files to pack, sorted by their bytes."""
    patterns = [f"*{_RUN}"] if asked is None else asked
    if not root.is_dir():
        what = "is not a directory" if root.exists() else "does not exist"
        raise NotFoundError(f"`{root}` {what}")
    for pattern in patterns:
        if not pattern or pattern.startswith("/") or ".." in Path(pattern).parts:
            raise InvalidError(f"the pattern `{pattern}` must be a relative path without `..`")
    found = {
        path.relative_to(root).as_posix()
        for pattern in patterns
        for path in root.rglob(pattern)
        if path.is_file() and not _is_output(path, output)
    }
    if not found:
        listed = ", ".join(f"`{pattern}`" for pattern in patterns)
        raise NotFoundError(
            f"no file in `{root}` matches {listed}",
            hint="pass --glob PATTERN to pack other files" if asked is None else None,
        )
    return sorted(found, key=os.fsencode)


def _is_output(path: Path, output: Path) -> bool:
    return path.name == output.name and output.exists() and path.samefile(output)


def _train(root: Path, files: Sequence[str]) -> bytes:
    """Train a dictionary on files spread evenly over all of them."""
    step = max(1, len(files) // _SAMPLE_FILES)
    samples: list[bytes] = []
    room = _SAMPLE_BYTES
    for name in _spread(files[::step]):
        try:
            data = (root / name).read_bytes()
        except OSError:
            continue  # the build reports it
        samples.append(data[:room])
        room -= len(samples[-1])
        if room <= 0:
            break
    return train_dictionary(samples)


def _spread(files: Sequence[str]) -> Iterator[str]:
    # Every 16th file, then their neighbours: any prefix is spread over the whole list.
    for first in range(16):
        yield from files[first::16]


def _batches(root: Path, files: Sequence[str], build: _Build) -> Iterator[list[_Item]]:
    """Read the files in order, in batches of one kind and a few MiB."""
    batch: list[_Item] = []
    size = 0
    for name in files:
        try:
            item = _Item(as_text("the file name", name), (root / name).read_bytes())
        except InvalidError as error:
            build.refuse(name, error)
            continue
        except OSError as error:
            build.refuse(name, storage_error(error, root / name, "read"))
            continue
        full = size + len(item.payload) > _BATCH_BYTES or len(batch) == _BATCH_FILES
        if batch and (full or batch[0].kind != item.kind):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += len(item.payload)
    if batch:
        yield batch


def _print_written(output: Path, skipped: int, *, as_json: bool) -> None:
    with PackReader.open(output) as reader:
        stats = reader.stats
    size = output.stat().st_size
    value = {
        "path": str(output),
        "entries": stats.count,
        "kinds": stats.kind_counts,
        "skipped": skipped,
        "file_bytes": size,
        "payload_bytes": stats.payload_bytes,
        "stored_bytes": stats.stored_bytes,
        "padding_bytes": stats.padding_bytes,
    }
    line = f"{output}: {count_text(stats.count, 'entry')}, {size_text(size)}"
    print_result(value, line, as_json=as_json)
    if stats.padding_bytes > _MUCH_PADDING * size:
        share = stats.padding_bytes / size
        note(f"warning: {share:.0%} of the pack is padding; pass a smaller --align to reduce it")
    if skipped:
        note(f"warning: {count_text(skipped, 'file')} left out")
