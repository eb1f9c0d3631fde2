"""Golden episodes stay readable, by relive and by a reader that shares no code with it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive.episodes import LocalDataset, recover, validate
from relive.model.signal import Signal as OurSignal
from tests.episodes.by_hand import episode_path
from tests.golden.episodes.assemble import (
    ATTRS,
    CHECKED,
    CLOCKED,
    FIRST,
    FOLDER,
    ROWS,
    SEED_SIGNALS,
    SEED_STATICS,
    SHAPE,
    SIGNALS,
    START,
    STATICS,
    TIMES,
    VIDEO,
    assemble,
    assemble_checked,
    value,
)

pytest.importorskip("av")

from tests.golden.read_episodes import Episode, Signal, read_episode, read_root

UID = "0" * 31 + "1"
CLOSE = 12.0
"""Root mean square error of pictures that were coded with loss."""


@pytest.fixture(scope="module")
def current(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("episodes")
    assemble(root)
    return root


@pytest.fixture(params=["golden", "current"])
def root(request: pytest.FixtureRequest, current: Path) -> Path:
    return FOLDER if request.param == "golden" else current


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file of a dataset."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def alike(ours: OurSignal[Any], theirs: Signal, *, exactly: bool) -> None:
    """Check that both readers return the same signal."""
    assert ours.timestamps.tolist() == theirs.times.tolist()
    assert list(ours.clocks) == list(theirs.clocks)
    for name, clock in theirs.clocks.items():
        assert ours.clock(name).tolist() == clock.tolist()
    assert dict(ours.attrs) == theirs.attrs
    values = ours.values()
    assert values.shape == theirs.values.shape
    if exactly:
        assert values.dtype == theirs.values.dtype
        equal_nan = values.dtype.kind == "f"
        assert np.array_equal(values, theirs.values, equal_nan=equal_nan)
    else:
        assert error_of(values, theirs.values) < 2.0  # one decoder, two colour conversions


def error_of(one: Any, other: Any) -> float:
    return float(np.sqrt(np.mean((np.asarray(one, float) - np.asarray(other, float)) ** 2)))


def check(episode: Episode, names: tuple[str, ...], rows: range) -> None:
    """Check the content of an episode."""
    assert sorted(episode.signals) == sorted(names)
    for name in names:
        signal = episode.signals[name]
        assert signal.times.tolist() == [TIMES[row] for row in rows]
        clocked = name in CLOCKED and names == SIGNALS
        expected_clocks = {"sensor": [10 * row for row in rows]} if clocked else {}
        assert {key: clock.tolist() for key, clock in signal.clocks.items()} == expected_clocks
        for found, row in zip(signal.values, rows, strict=True):
            expected = value(name, row)
            if name == "cam":
                assert error_of(found[: SHAPE[0], : SHAPE[1]], expected) < CLOSE
            else:
                np.testing.assert_array_equal(found, expected)
                if isinstance(expected, np.ndarray):
                    assert found.dtype == expected.dtype


def test_second_reader_matches_the_recorded_values(root: Path) -> None:
    seed, ours, part = (read_episode(episode_path(root, number)) for number in range(3))
    assert (seed.uid, ours.uid, part.uid) == (f"ts-{START}", UID, f"{UID}#1")
    assert seed.statics == SEED_STATICS
    assert ours.statics == part.statics == STATICS
    check(seed, SEED_SIGNALS, range(ROWS))
    check(ours, SIGNALS, range(ROWS))
    check(part, SIGNALS, range(FIRST, ROWS))
    assert ours.signals["/arm/state"].attrs == ATTRS


def test_both_readers_agree(root: Path) -> None:
    dataset = LocalDataset(root, edits=False)
    assert len(dataset) == 3
    for number, episode in enumerate(dataset):
        theirs = read_episode(episode_path(root, number))
        assert episode.uid == theirs.uid
        assert dict(episode.statics) == theirs.statics
        assert list(episode.signals) == sorted(theirs.signals)
        for name, signal in theirs.signals.items():
            alike(episode[name], signal, exactly=name != "cam")


def test_both_readers_agree_on_edits(root: Path) -> None:
    theirs, dataset = read_root(root), LocalDataset(root)
    assert list(dataset.uids) == [each.uid for each in theirs]
    assert list(dataset.uids) == [f"ts-{START}#0", UID, f"{UID}#1"]
    for episode, other in zip(dataset, theirs, strict=True):
        assert dict(episode.statics) == other.statics
        for name, signal in other.signals.items():
            alike(episode[name], signal, exactly=name != "cam")
    assert dataset[0]["task"] == b"\x00"
    assert dataset[0]["state"].timestamps.tolist() == TIMES[2:5]


def test_copied_part_begins_within_a_group_of_frames(root: Path) -> None:
    whole, part = (LocalDataset(root, edits=False)[number] for number in (1, 2))
    assert part["cam"].frames.index.lead == FIRST % 10
    assert part["exact"].frames.index.lead == 0
    for name in VIDEO:
        assert np.array_equal(part[name].values(), whole[name][FIRST:].values())


def test_reading_and_validating_change_no_file() -> None:
    before = contents(FOLDER)
    dataset = LocalDataset(FOLDER)
    for episode in dataset:
        for signal in episode.signals.values():
            signal.values()
    dataset.table()
    report = validate(FOLDER, level="full")
    # One edit is of an episode that does not exist.
    assert [problem.kind for problem in report.problems] == ["unknown-name"]
    assert report.checked == {"episodes": 3, "signals": 3 + 2 * len(SIGNALS)}
    episodes = [str(episode_path(FOLDER, number)) for number in range(3)]
    assert list(report.unchecked) == [*episodes, str(FOLDER / "edits.jsonl")]
    assert recover(FOLDER).episodes == ()
    assert contents(FOLDER) == before


@pytest.mark.parametrize("made", ["golden", "current"])
def test_both_readers_agree_on_checksums(made: str, tmp_path: Path) -> None:
    root = CHECKED if made == "golden" else tmp_path / "root"
    assemble_checked(root)
    before = contents(root)
    (theirs,) = read_root(root)  # compares every file
    (episode,) = LocalDataset(root)
    check(theirs, SIGNALS, range(9))
    assert dict(episode.statics) == theirs.statics == {**STATICS, "task": b"\x00"}
    for name, signal in theirs.signals.items():
        alike(episode[name], signal, exactly=name != "cam")
    report = validate(root, level="full")
    assert (report.problems, report.unchecked) == ((), ())
    assert contents(root) == before
