"""Processes that publish versions whose content follows from their number, and are killed."""

import os
import signal
import tempfile
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from relive.errors import ConflictError
from relive.publish.version.names import DatasetId
from relive.publish.write.builder import DatasetBuilder
from relive.store.roots import open_root
from relive.store.roots.root import Root
from tests.publish.version.example_versions import RecordedRoot

ID = DatasetId("lab", "killed")


class Target(NamedTuple):
    """Where to publish, and a folder for temporary files."""

    address: str
    options: dict[str, Any]
    folder: Path

    def open(self) -> Root:
        return open_root(self.address, **self.options)


def content(number: int) -> dict[str, pa.Table]:
    """Return the tables of a version: one of all versions, one that grows, one with leaves."""
    noise = np.random.default_rng(number).integers(0, 2**62, 12_000)
    return {
        "same": pa.table({"n": range(10)}),
        "grows": pa.table({"n": range(number + 1), "text": [f"{n}" for n in range(number + 1)]}),
        "noise": pa.table({"n": noise}),
    }


def build(root: Root, number: int, base: str | None = None) -> DatasetBuilder:
    """Return a builder that has the tables of a version."""
    builder = DatasetBuilder(f"{ID}", root, base)
    for name, table in content(number).items():
        builder.replace_table(name, table)
    return builder


def publish(root: Root, number: int) -> str:
    """Publish a version with a tag, and return its digest."""
    with build(root, number) as builder:
        return builder.publish(tag=f"v{number}", message=f"version {number}")


def publish_and_die(
    target: Target, number: int, pipe: Connection, kill_at: int | None = None
) -> None:
    """Publish when told to; be killed before the n-th request, or by somebody else."""
    _use(target.folder)
    requests = count(1)

    def maybe_die(*_: str) -> None:
        if next(requests) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    root = RecordedRoot(target.open(), maybe_die) if kill_at is not None else target.open()
    with build(root, number) as builder:
        pipe.send("ready")
        pipe.recv()
        builder.publish(tag=f"v{number}", message=f"version {number}")
    pipe.send("published")


def race(target: Target, number: int, rounds: int, barrier: Barrier, pipe: Connection) -> None:
    """Publish versions on top of the same version as another process, at the same moment.

    What became of each is sent: its digest, and what `latest` named if that was a conflict.
    """
    _use(target.folder)
    for each in range(rounds):
        with build(target.open(), 2 * each + number, base="latest") as builder:
            barrier.wait(60)
            try:
                pipe.send((builder.publish(), None))
            except ConflictError as error:
                pipe.send((error.digest, error.current))
            barrier.wait(60)


def _use(folder: Path) -> None:
    tempfile.tempdir = os.fspath(folder)
    os.environ["RELIVE_CACHE_DIR"] = os.fspath(folder / "cache")
