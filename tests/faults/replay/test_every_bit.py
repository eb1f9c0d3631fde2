"""A flipped bit in a run: the right values or a typed error, and `validate` reports it.

`RELIVE_REPLAY_FLIPS` says how many bits are flipped (`make faults`: 10,000).
"""

import dataclasses
import os
import random
import shutil
import sqlite3
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import h5py
import hdf5plugin  # noqa: F401 - makes the filters of the file known
import numpy as np
import pytest

from relive.errors import ReliveError
from relive.replay import FrameResolver, ReplayRun, TelemetryStore, validate
from tests.faults.attached import Program
from tests.faults.damage import memory_folder
from tests.faults.replay.programs import script
from tests.faults.replay.programs.script import ROOT, RUN

Note = Callable[[str, object], None]
FLIPS = int(os.environ.get("RELIVE_REPLAY_FLIPS", "150"))
SEED = int(os.environ.get("RELIVE_SEED", "1"))
PROGRAM: Final = Program(script.play, [script.__name__])
STATES: Final = {"closed": ("close", "close_again"), "killed": ("close", "resume")}
"""A run that was continued and closed; and one whose recorder was killed, so that some arrays are
in the database, and the last commits in its WAL."""
DATABASE: Final = Path("telemetry", "telemetry.sqlite")
WAL: Final = Path("telemetry", "telemetry.sqlite-wal")
ARRAYS: Final = Path("replay", f"{RUN}.h5")
TABLES: Final = ("runs", "episodes", "steps", "columns", "chunks", "tail", "commits")
MOST_STEPS: Final = 100
_WAL_HEADER: Final = 32
_FRAME_HEADER: Final = 24
pytestmark = pytest.mark.timeout(3600)


class Content(NamedTuple):
    """Everything that can be read of a run; an error in place of what cannot be read."""

    loaded: Any
    recent: Any
    resolved: Any
    tables: Any


@pytest.fixture(scope="module", params=STATES)
def root(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A run, in a folder in memory."""
    with memory_folder() as memory:
        folder = memory / "life"
        folder.mkdir()
        for act in STATES[request.param]:
            assert PROGRAM.run(act, folder).last("done") is not None
        yield folder / ROOT


def test_flipped_bits(root: Path, record_property: Note) -> None:
    right = content_of(root)
    assert not any(isinstance(part, Exception) for part in right)
    outside = _hdf5(root)
    earlier = _earlier(root)
    files = [path for path in (ARRAYS, DATABASE, WAL) if _size(root / path)]
    rng = random.Random(f"{SEED} {len(files)}")  # noqa: S311 - places, not secrets
    counts: Counter[str] = Counter()
    for number in range(FLIPS // len(STATES)):
        path = files[number % len(files)]
        bit = rng.randrange(8 * (root / path).stat().st_size)
        state = shutil.copytree(root, root.with_name("state"))
        _flip(state / path, bit)
        about = f"bit {bit} of {path.name}"
        found = content_of(state)
        problems = _problems(state)
        is_refused = any(isinstance(part, Exception) for part in found)
        # SQLite takes what follows a damaged frame of its WAL for something that was not committed:
        # what is read is right, but steps are missing, which has to be reported.
        is_earlier = path == WAL and any(_equal(found, each) for each in earlier)
        for name, part, wanted in zip(Content._fields, found[:3], right, strict=False):
            is_right = isinstance(part, ReliveError) or _equal(part, wanted)
            assert is_right or is_earlier, f"{about} changed {name}"
        if not problems:
            assert not is_refused, f"{about} was not reported: {found}"
            assert _equal(found.tables, right.tables), f"{about} changed the database unreported"
            # Until a run is closed, its metadata of HDF5 has no checksum, and relive reads without.
            is_open = WAL in files
            assert is_open or _equal(_hdf5(state), outside), f"{about} changed arrays unreported"
        counts["refused"] += is_refused
        counts["reported"] += bool(problems)
        counts["earlier"] += is_earlier and not _equal(found, right)
        counts["all"] += 1
        shutil.rmtree(state)
    assert counts["reported"] > counts["all"] // 20
    record_property(
        "figure",
        f"replay: {counts['all']} bits flipped in {', '.join(path.name for path in files)}: "
        f"{counts['refused']} refused, {counts['reported']} reported, {counts['earlier']} ended "
        "the WAL earlier",
    )


def test_flipped_bits_of_a_file_without_its_database(tmp_path: Path, record_property: Note) -> None:
    # A file of a closed run has checksums of its own.
    (tmp_path / "life").mkdir()
    assert PROGRAM.run("close", tmp_path / "life").last("done") is not None
    path = tmp_path / ARRAYS
    path.parent.mkdir()
    shutil.copy(tmp_path / "life" / ROOT / ARRAYS, path)
    size, right, outside = path.stat().st_size, _alone(path), _hdf5(tmp_path)
    rng = random.Random(SEED)  # noqa: S311 - places, not secrets
    counts: Counter[str] = Counter()
    for _ in range(FLIPS // 5):
        bit = rng.randrange(8 * size)
        _flip(path, bit)
        found = _caught(lambda: _alone(path))
        problems = _problems(path)
        is_refused = isinstance(found, ReliveError)
        assert is_refused or _equal(found, right), f"bit {bit} changed a value"
        if not problems:
            assert not is_refused, f"bit {bit} was not reported: {found!r}"
            assert _equal(_hdf5(tmp_path), outside), f"bit {bit} changed arrays unreported"
        counts["refused"] += is_refused
        counts["reported"] += bool(problems)
        counts["all"] += 1
        _flip(path, bit)
    assert counts["reported"] > counts["all"] // 4
    record_property(
        "figure",
        f"replay: {counts['all']} bits flipped in a file without its database: "
        f"{counts['refused']} refused, {counts['reported']} reported",
    )


def content_of(root: Path) -> Content:
    """Return everything that can be read of a run."""
    return Content(
        _caught(lambda: _loaded(root)),
        _caught(lambda: _recent(root)),
        _caught(lambda: _resolved(root)),
        _caught(lambda: _tables(root)),
    )


def _caught(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (ReliveError, sqlite3.Error, UnicodeDecodeError) as error:
        return error


def _loaded(root: Path) -> list[Any]:
    run = ReplayRun(root, RUN)
    return [
        (episode.episode_id, episode.status, episode.arrays(), episode.final())
        for episode in map(run.episodes.episode_at, range(len(run.episodes)))
    ]


def _alone(path: Path) -> list[Any]:
    run = ReplayRun(path)
    episodes = map(run.episodes.episode_at, range(len(run.episodes)))
    return [
        run.info,
        *((each.episode_id, each.status, each.arrays(), each.final()) for each in episodes),
        *run.steps.to_pylist(),
        *_resolved(path.parent.parent),
    ]


def _recent(root: Path) -> list[Any]:
    with TelemetryStore(root, read_only=True) as store:
        return [dataclasses.asdict(step) for step in store.recent_steps(MOST_STEPS, run_id=RUN)]


def _resolved(root: Path) -> list[Any]:
    fields = ("frames", "observations")
    refs = [f"h5://{RUN}/{name}/{row}" for name in fields for row in range(MOST_STEPS)]
    with FrameResolver(root / "replay") as resolver:
        return resolver.resolve_batch(refs)


def _tables(root: Path) -> list[Any]:
    """Return what SQLite returns, which checks little."""
    connection = sqlite3.connect(f"file:{root / DATABASE}?mode=ro", uri=True)
    try:
        return [
            sorted(connection.execute(f"SELECT * FROM {table}").fetchall(), key=repr)  # noqa: S608
            for table in TABLES  # our names
        ]
    finally:
        connection.close()


def _hdf5(root: Path) -> dict[str, Any]:
    """Return what other programs read."""
    found: dict[str, Any] = {}
    with h5py.File(root / ARRAYS, "r", swmr=True) as file:
        file.visititems(
            lambda name, each: found.update({name: each[()]} if hasattr(each, "shape") else {})
        )
        found["attributes"] = dict(file.attrs)
    return found


def _earlier(root: Path) -> list[Content]:
    """Return what a run is if its WAL ends with any of its commits, or is empty."""
    if not _size(root / WAL):  # readers make an empty one
        return []
    wal = (root / WAL).read_bytes()
    frame = _FRAME_HEADER + struct.unpack_from(">I", wal, 8)[0]
    starts = range(_WAL_HEADER, len(wal) - frame + 1, frame)
    last = [start for start in starts if struct.unpack_from(">I", wal, start + 4)[0]]
    found = []
    for end in [_WAL_HEADER, *(start + frame for start in last)]:  # of a commit
        state = shutil.copytree(root, root.with_name("state"))
        (state / WAL).write_bytes(wal[:end])
        found.append(content_of(state))
        shutil.rmtree(state)
    return found


def _problems(root: Path) -> Any:
    try:
        return validate(root, "full").problems
    except ReliveError as error:
        return [error]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _flip(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0] ^ 1 << bit % 8
        file.seek(bit // 8)
        file.write(bytes([byte]))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Exception):
        return type(one) is type(other)
    if isinstance(one, dict):
        same = isinstance(other, dict) and one.keys() == other.keys()
        return same and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        same = isinstance(other, list | tuple) and len(one) == len(other)
        return same and all(map(_equal, one, other))
    if isinstance(one, np.ndarray | np.generic):
        same = isinstance(other, np.ndarray | np.generic) and one.dtype == other.dtype
        return same and np.array_equal(one, other)
    return not isinstance(other, np.ndarray) and bool(one == other)
