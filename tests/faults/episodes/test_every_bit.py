"""A small episode with any bit flipped, any file cut, gone or exchanged: never a wrong value.

Everything that is read is right or a typed error, and `validate` at the level `full` reports a
problem. `RELIVE_BITS` is how many bits and lengths of each file are tried (`make faults`: all).
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive.episodes import (
    DiskEpisode,
    LocalDataset,
    LocalDatasetWriter,
    Signal,
    SimpleSignal,
    SimpleSignalWriter,
    VideoSignal,
    VideoSignalWriter,
    VideoSpec,
    validate,
)
from relive.errors import ReliveError
from tests.faults.damage import cuts, exchanges, flips, losses, memory_folder

pytestmark = [pytest.mark.needs("av"), pytest.mark.timeout(7200)]
Note = Callable[[str, object], None]

START = 1_700_000_000_000_000_000
ROWS = 4
EPISODE = Path("000000000000", "000000000000")
OTHER = Path("000000000000", "000000000001")
FILES = (
    *("cam.frames.parquet", "cam.mp4", "files.json", "meta.json", "outcome.json"),
    *("reward.parquet", "state.parquet", "static.json", "text.parquet"),
)
SPEC = VideoSpec(profile="lossless", gop=2)

Reading = dict[str, Any]


def frame(number: int) -> Any:
    return np.full((16, 16, 3), 40 * number + 7, np.uint8)


@pytest.fixture(scope="module")
def recorded() -> Iterator[Path]:
    """A root in memory with two episodes and an edit."""
    with memory_folder() as folder:
        root = folder / "root"
        writer = LocalDatasetWriter(root, signals={"cam": SPEC})
        for number in range(2):
            with writer.new_episode(uid=f"uid{number}") as episode:
                episode.set_static("task", f"pick {number}")
                episode.set_static("key", bytes([number, 255]))
                episode.describe("state", unit="rad", names=["a", "b"])
                for row in range(ROWS):
                    ts_ns = START + 10 * row
                    value = row + 10 * number
                    episode.append("reward", value / 4, ts_ns)
                    state = np.array([value, -value], np.float32)
                    episode.append("state", state, ts_ns, clocks={"sensor": value})
                    episode.append("text", f"note {value % 3}", ts_ns)
                    episode.append("cam", frame(row + number), ts_ns)
        dataset = LocalDataset(root)
        dataset.edits.set_static("uid0", "success", 1)
        dataset.edits.trim("uid0", None, START + 10 * (ROWS - 1))
        assert sorted(path.name for path in (root / EPISODE).iterdir()) == sorted(FILES)
        yield root


def attempt(found: Reading, what: str, read: Callable[[], Any]) -> None:
    """Read something; add what it returned, or nothing if it raised a typed error."""
    with contextlib.suppress(ReliveError):
        found[what] = read()


def read_signal(found: Reading, name: str, signal: Signal[Any]) -> None:
    """Read everything of a signal."""
    ways: dict[str, Callable[[], Any]] = {
        "span": lambda: (len(signal), signal.start_ts, signal.last_ts),
        "form": lambda: (signal.kind, signal.shape, str(signal.dtype)),
        "about": lambda: (signal.name, dict(signal.attrs)),
        "times": lambda: [*signal.timestamps],
        "clocks": lambda: {clock: signal.clock(clock).tolist() for clock in signal.clocks},
        "values": signal.values,
        "one": lambda: signal[1],
        "at": lambda: signal.time[START + 15],
    }
    for what, read in ways.items():
        attempt(found, f"{name} {what}", read)


def read_episode(folder: Path) -> Reading:
    """Read everything of an episode."""
    found: Reading = {}
    try:
        episode = DiskEpisode(folder)
    except ReliveError:
        return found
    attempt(found, "meta", lambda: dict(episode.meta))
    attempt(found, "statics", lambda: dict(episode.statics))
    attempt(found, "uid", lambda: episode.uid)
    found["names"] = list(episode.signals)
    for name in found["names"]:
        read_signal(found, name, episode[name])
    return found


def read_alone(folder: Path) -> Reading:
    """Read the files of signals without the episode."""
    found: Reading = {}
    for name in ("reward", "state", "text"):
        read_signal(found, name, SimpleSignal(folder / f"{name}.parquet"))
    read_signal(found, "cam", VideoSignal(folder / "cam.mp4"))
    return found


def read_root(root: Path) -> Reading:
    """Read what a dataset shows of its episodes."""
    found: Reading = {}
    try:
        dataset = LocalDataset(root)
    except ReliveError:
        return found
    attempt(found, "uids", lambda: list(dataset.uids))
    found["count"] = len(dataset)
    for number in range(2):
        attempt(found, f"{number} statics", partial(_statics, dataset, number))
        attempt(found, f"{number} lengths", partial(_lengths, dataset, number))
    return found


def _statics(dataset: LocalDataset, number: int) -> dict[str, Any]:
    return dict(dataset[number].statics)


def _lengths(dataset: LocalDataset, number: int) -> list[int]:
    return [len(signal) for signal in dataset[number].signals.values()]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and bool(one == other)


class Truth:
    """What an undamaged root contains; and whether a damaged one returns anything else."""

    def __init__(self, root: Path) -> None:
        self._root, self._folder = root, root / EPISODE
        self._episode = read_episode(self._folder)
        self._alone = read_alone(self._folder)
        self._dataset = read_root(root)
        assert [len(self._episode), len(self._alone), len(self._dataset)] == [36, 32, 6]

    def check(self, damage: object, *, alone: bool = True) -> None:
        """Check all that is read, and that validation reports a problem."""
        readings = [
            (read_episode(self._folder), self._episode),
            (read_root(self._root), self._dataset),
        ]
        if alone:
            readings.append((read_alone(self._folder), self._alone))
        for found, expected in readings:
            for what, value in found.items():
                assert same(value, expected[what]), (damage, what, value)
        assert validate(self._folder, level="full").problems, damage


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit(recorded: Path, name: str, record_property: Note) -> None:
    truth = Truth(recorded)
    count = 0
    for damage in flips(recorded / EPISODE / name):
        truth.check(damage)
        count += 1
    record_property("figure", f"episodes: {count} bits of {name}: all found")


@pytest.mark.parametrize("name", FILES)
def test_every_shorter_file(recorded: Path, name: str) -> None:
    truth = Truth(recorded)
    path = recorded / EPISODE / name
    for damage in cuts(path):
        truth.check(damage)
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0")
    truth.check((name, "longer"))
    path.write_bytes(whole)
    assert validate(recorded, level="full").ok


@pytest.mark.parametrize("name", FILES)
def test_every_missing_and_exchanged_file(recorded: Path, name: str) -> None:
    truth = Truth(recorded)
    folder = recorded / EPISODE
    for damage in losses(folder / name):
        truth.check(damage)
    others = [folder / each for each in FILES if each != name]
    for damage in exchanges(folder / name, [*others, recorded / OTHER / name]):
        # A file alone does not know which episode and signal it belongs to.
        truth.check(damage, alone=False)
    assert validate(recorded, level="full").ok


def test_every_flipped_bit_of_edits(recorded: Path) -> None:
    expected = read_root(recorded)
    for damage in flips(recorded / "edits.jsonl"):
        for what, value in read_root(recorded).items():
            assert same(value, expected[what]), (damage, what)
        assert validate(recorded, level="index").problems, damage
    assert read_root(recorded) == expected


@pytest.mark.parametrize("kind", ["columns", "video"])
def test_every_flipped_bit_of_a_signal_alone(kind: str) -> None:
    with memory_folder() as folder:
        if kind == "columns":
            files = [folder / "x.parquet"]
            with SimpleSignalWriter(files[0], attrs={"unit": "m"}) as writer:
                for row in range(ROWS):
                    writer.append(row / 4, START + 10 * row, {"sensor": row})
        else:
            files = [folder / "x.mp4", folder / "x.frames.parquet"]
            with VideoSignalWriter(files[0], files[1], spec=SPEC) as camera:
                for row in range(ROWS):
                    camera.append(frame(row), START + 10 * row)

        def read() -> Reading:
            found: Reading = {}
            is_video = kind == "video"
            read_signal(found, "x", VideoSignal(*files) if is_video else SimpleSignal(files[0]))
            return found

        expected = read()
        report = validate(files[0], level="full")
        assert (report.ok, report.unchecked) == (True, ())
        for path in files:
            for damage in flips(path):
                for what, value in read().items():
                    assert same(value, expected[what]), (damage, what)
                assert validate(files[0], level="full").problems, damage
