"""Processes that publish, withdraw, read and delete blobs on one root, until they are stopped."""

import os
import random
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pyarrow as pa

from relive.errors import (
    ConflictError,
    InvalidError,
    NotFoundError,
    VersionWithdrawnError,
)
from relive.publish import collect_garbage, validate
from relive.publish.retention import held_object
from relive.publish.version.catalog import Catalog
from relive.publish.version.names import DatasetId, Reference
from relive.publish.write.builder import DatasetBuilder
from relive.store.roots.root import Root
from tests.faults.publish.programs.publisher import Target

IDS = (DatasetId("lab", "arm"), DatasetId("lab", "leg"))
HELD_S = 3.0
"""How long the leases of these processes are valid."""
TABLES = 24


def table(number: int) -> pa.Table:
    """Return one of a few tables, so that versions share them; some have leaf tables."""
    rows = 12_000 if number % 3 == 0 else 50
    return pa.table({"n": np.random.default_rng(number).integers(0, 2**62, rows)})


def change_something(root: Root, draw: random.Random) -> str:
    """Publish, clone, tag or withdraw a version; return what was done."""
    dataset, catalog = draw.choice(IDS), Catalog(root)
    what = draw.choice(["publish", "publish", "derive", "withdraw", "withdraw", "clone", "tag"])
    try:
        known = [] if what == "publish" else catalog.versions(dataset)
        there = [each.digest for each in known if each.withdrawn is None]
        one = draw.choice(there) if there else None
        if what == "publish" or (what == "derive" and one):
            with DatasetBuilder(f"{dataset}", root, one) as builder:
                for number in draw.sample(range(TABLES), 2):
                    builder.replace_table(f"t{number}", table(number))
                builder.publish(on_conflict="move", set_latest=draw.random() < 0.7)
        elif what == "withdraw" and one:
            catalog.withdraw_old(dataset, "for a test", keep_last=draw.choice([0, 1, 2]))
        elif what == "clone" and one:
            other = IDS[1 - IDS.index(dataset)]
            catalog.clone(Reference(dataset, one), other, on_conflict="move")
        elif what == "tag" and one:
            catalog.tag(Reference(dataset, one), "t", force=True)
            catalog.untag(dataset, "t")
    except (ConflictError, InvalidError, NotFoundError) as error:
        return f"{what}: {type(error).__name__}"
    return what


def publish_things(target: Target, seed: int, pipe: Connection) -> None:
    """Change one thing after the other."""
    draw = random.Random(seed)  # noqa: S311
    root = _prepared(target)
    _repeat(pipe, lambda: change_something(root, draw))


def delete_blobs(target: Target, seed: int, pipe: Connection) -> None:
    """Collect garbage again and again."""
    del seed
    root = _prepared(target)
    _repeat(pipe, lambda: collect_garbage(root, grace_s=0, dry_run=False).deleted)


def read_things(target: Target, seed: int, pipe: Connection) -> None:
    """Read whole versions; what is not withdrawn is complete."""
    draw = random.Random(seed)  # noqa: S311
    root = _prepared(target)
    catalog = Catalog(root)

    def read() -> int:
        try:
            version = catalog.resolve(Reference(draw.choice(IDS), None))
        except NotFoundError:
            return 0
        try:
            problems = validate(version.pinned, "full", root=root).problems
        except VersionWithdrawnError:
            return 0
        if problems:
            try:
                catalog.manifest(version.id, version.digest)
            except VersionWithdrawnError:
                return 0
            # It may have been withdrawn and published again meanwhile.
            problems = validate(version.pinned, "full", root=root).problems
        assert not problems, problems
        return 1

    _repeat(pipe, read)


def _repeat(pipe: Connection, work: Callable[[], Any]) -> None:
    pipe.send("ready")
    pipe.recv()
    done = []
    while not pipe.poll():
        done.append(work())
        time.sleep(0.005)
    pipe.send(done)


def _prepared(target: Target) -> Root:
    tempfile.tempdir = os.fspath(target.folder)
    os.environ["RELIVE_CACHE_DIR"] = os.fspath(target.folder / f"cache-{os.getpid()}")
    held_object.HELD_S = HELD_S  # type: ignore[misc]
    held_object.POLL_S = 0.05  # type: ignore[misc]
    return target.open()
