"""The writers that must fulfil the writer contract, and how each is written to and read.

Tests append the numbers 0, 1, 2, …, each as an item of the writer's kind. To test another
writer, add one line to `WRITERS`. Run as a program, this module does what a test cannot do in its
own process: `python -m tests.contracts.writer_contract PROGRAM WRITER PATH`.
"""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from relive.episodes import (
    DiskEpisode,
    DiskEpisodeWriter,
    SimpleSignal,
    SimpleSignalWriter,
    VideoSignal,
    VideoSignalWriter,
    recover,
)
from relive.errors import ClosedError, StorageError
from relive.model.schema import Field
from relive.replay import ReplayRecorder, ReplayRun
from relive.replay import recover as recover_runs
from relive.store import lifecycle, pack
from relive.store.records import RecordStore

End: TypeAlias = Literal["committed", "unfinished"]

DISK_BYTES = 3 << 20
FILE_BYTES = 500_000


@dataclass(frozen=True)
class Kind:
    """A writer with its expected behaviour."""

    open: Callable[[Path], Any]
    """Open a writer for a path where nothing is."""
    append: Callable[[Any, int], object]
    """Append the item of a number."""
    read: Callable[[Path], list[int]]
    """Return the numbers of the items that a reader sees; raises if it sees none."""
    recover: Callable[[Path], object]
    """Finish what is unfinished."""
    calls: tuple[Callable[[Any], object], ...]
    """Other calls that a writer refuses after its end."""
    on_error: End = "unfinished"
    """What an exception in the `with` block leaves."""
    on_interrupt: End = "committed"
    """What Ctrl-C in the `with` block leaves."""
    shares_folder: bool = False
    """Whether several writers write to parts of one target: `abort` removes only one part, and
    opening a part again continues it."""

    def remains(self, folder: Path) -> dict[str, bytes | None]:
        """Return what is in a folder after `abort`, the files that all writers share excepted."""
        found = files_in(folder)
        if self.shares_folder:
            shared = ("telemetry", ".lock")
            found = {name: content for name, content in found.items() if content is not None}
            found = {name: c for name, c in found.items() if not any(s in name for s in shared)}
        return found


def noise(number: int, size: int = 4096) -> npt.NDArray[np.uint8]:
    """Return bytes that do not compress."""
    return np.random.default_rng(number).integers(0, 256, size, np.uint8)


def picture(number: int) -> npt.NDArray[np.uint8]:
    return noise(number, 64 * 64 * 3).reshape(64, 64, 3)


def _append_episode(writer: DiskEpisodeWriter, number: int) -> None:
    # The camera is written first, so each record of `state` has its frame.
    writer.append("cam", picture(number), number)
    writer.append("state", noise(number), number)


def _read_episode(path: Path) -> list[int]:
    episode = DiskEpisode(path)
    found = [episode[name].timestamps.tolist() for name in ("cam", "state") if name in episode]
    return min(found, key=len) if found else []


def _read_pack(path: Path) -> list[int]:
    reader = pack.PackReader.open(path)
    return [int(reader.name(entry) or "") for entry in range(len(reader))]


_SIGNAL_CALLS: tuple[Callable[[Any], object], ...] = (
    lambda writer: writer.flush(),
    lambda writer: writer.sync(),
    lambda writer: writer.describe(unit="m"),
)

WRITERS = {
    "SimpleSignalWriter": Kind(
        open=lambda path: SimpleSignalWriter(path.with_suffix(".parquet")),
        append=lambda writer, number: writer.append(noise(number), number),
        read=lambda path: SimpleSignal(path.with_suffix(".parquet")).timestamps.tolist(),
        recover=lambda path: recover(path.with_suffix(".parquet")),
        calls=_SIGNAL_CALLS,
    ),
    "VideoSignalWriter": Kind(
        open=lambda path: VideoSignalWriter(path.with_suffix(".mp4"), profile="fast"),
        append=lambda writer, number: writer.append(picture(number), number),
        read=lambda path: VideoSignal(
            path.with_suffix(".mp4"), path.with_suffix(".frames.parquet")
        ).timestamps.tolist(),
        recover=lambda path: recover(path.with_suffix(".mp4")),
        calls=_SIGNAL_CALLS,
    ),
    "DiskEpisodeWriter": Kind(
        open=lambda path: DiskEpisodeWriter(path, video="fast"),
        append=_append_episode,
        read=_read_episode,
        recover=recover,
        calls=(
            lambda writer: writer.flush(),
            lambda writer: writer.sync(),
            lambda writer: writer.describe("state", unit="m"),
            lambda writer: writer.set_static("task", "pick"),
        ),
    ),
    "PackWriter": Kind(
        open=pack.PackWriter,
        append=lambda writer, number: writer.append(noise(number), name=str(number)),
        read=_read_pack,
        recover=pack.recover,
        calls=(
            lambda writer: writer.flush(),
            lambda writer: writer.sync(),
            lambda writer: writer.extend([b""]),
        ),
        on_interrupt="unfinished",
    ),
    "RecordStore": Kind(
        open=lambda path: RecordStore.create(
            path, {"n": Field("i8"), "noise": Field("u1", (4096,))}
        ),
        append=lambda store, number: store.append({"n": number, "noise": noise(number)}),
        read=lambda path: RecordStore.open(path)["n"][:].tolist(),
        recover=lambda path: None,
        calls=(
            lambda store: store.flush(),
            lambda store: store.sync(),
            lambda store: store.extend({"n": [1]}),
            lambda store: store.delete([0]),
            lambda store: store.add_field("other", Field("i8")),
        ),
        on_error="committed",
    ),
    "ReplayRecorder": Kind(
        open=lambda path: ReplayRecorder(path, "run", live=None),
        append=lambda recorder, number: recorder.step(noise(number), number, 0.0),
        read=lambda path: ReplayRun(path, "run").steps["action"].to_pylist(),
        recover=recover_runs,
        calls=(
            lambda recorder: recorder.flush(),
            lambda recorder: recorder.sync(),
            lambda recorder: recorder.steps([0], action=[1]),
            lambda recorder: recorder.begin_episode(),
            lambda recorder: recorder.end_episode(),
        ),
        on_error="committed",
        shares_folder=True,
    ),
}


def files_in(folder: Path) -> dict[str, bytes | None]:
    """Return everything in a folder: files with their content, directories with None."""
    return {
        os.fspath(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def wait_for_collected() -> None:
    """Wait until the writers that the garbage collector found in cycles are left."""
    until = time.monotonic() + 60
    while lifecycle._COLLECTED:
        assert time.monotonic() < until
        time.sleep(0.001)


def exit_without_closing(kind: Kind, path: Path) -> None:
    """End the interpreter while a writer is open."""
    writer = kind.open(path)
    for number in range(20):
        kind.append(writer, number)
    sys.modules["__main__"].writer = writer  # type: ignore[attr-defined]


def fork(kind: Kind, path: Path) -> None:
    """Fork while a writer is open: every call in the child raises, and the parent continues."""
    with kind.open(path) as writer:
        kind.append(writer, 0)
        child = os.fork()
        if not child:
            refused = 0
            calls: list[Callable[[Any], object]] = [
                lambda writer: kind.append(writer, 9),
                *kind.calls,
                lambda writer: writer.close(),
                lambda writer: writer.abort(),
                lambda writer: writer.leave(),
            ]
            for call in calls:
                try:
                    call(writer)
                except ClosedError as error:
                    assert "fork" in str(error), error  # noqa: PT017 - not a test
                    refused += 1
            writer.__exit__(None, None, None)
            os._exit(0 if refused == len(calls) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        kind.append(writer, 1)
    assert kind.read(path) == [0, 1]


def fill_files(kind: Kind, path: Path) -> None:
    """Append until the file size limit is reached; print the number of appended items."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, unlimited[1]))
    count = _fill(kind, path)
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    _check_kept(kind, path, count)


def fill_disk(kind: Kind, path: Path) -> None:
    """Append until a disk, mounted for this process only, is full."""
    folder = str(path.parent)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", folder], check=True)
    count = _fill(kind, path)
    subprocess.run(["mount", "-o", f"remount,size={8 * DISK_BYTES}", folder], check=True)
    _check_kept(kind, path, count)


def _fill(kind: Kind, path: Path) -> int:
    count = 0
    try:
        with kind.open(path) as writer:
            while count < 10_000:
                kind.append(writer, count)
                count += 1
                if count == 5:
                    writer.sync()
    except StorageError as error:
        assert isinstance(error, OSError)  # noqa: PT017 - not a test
        return count
    raise AssertionError("the disk was never full")


def _check_kept(kind: Kind, path: Path, count: int) -> None:
    if kind.on_error == "unfinished":
        kind.recover(path)
    found = kind.read(path)
    assert found == list(range(len(found)))
    assert 5 <= len(found) <= count, (found, count)


if __name__ == "__main__":
    _, _program, _writer, _path = sys.argv
    globals()[_program](WRITERS[_writer], Path(_path))
