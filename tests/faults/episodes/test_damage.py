"""Flipped bits and cut files of episodes: right data or a typed error, and no value is ever wrong.

`RELIVE_EPISODE_DAMAGE` says how many of them (`make faults`: 12,000).
"""

import multiprocessing
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive import episodes as record
from relive._native import tape_damage
from relive.episodes import LocalDataset, validate
from relive.errors import CorruptError, UnsupportedError
from tests.faults.damage import memory_folder
from tests.faults.episodes.programs import damage as episodes_damage
from tests.faults.episodes.programs.check import files_of
from tests.faults.episodes.programs.damage import (
    Campaign,
    damage_finished,
    damage_unfinished,
    damages,
)

Note = Callable[[str, object], None]
pytestmark = pytest.mark.timeout(7200)

COUNT = int(os.environ.get("RELIVE_EPISODE_DAMAGE", "80"))
SEED = int(os.environ.get("RELIVE_SEED", "1"))
# So many at a time by one process, so that a long campaign does not hide where it ended.
AT_ONCE = 400


@pytest.fixture
def root() -> Iterator[Path]:
    """A root in memory, for one episode."""
    with memory_folder() as folder:
        yield folder / "root"


def _episode(root: Path, *, finish: bool) -> Path:
    folder = root / "000000000000" / "000000000000"
    episodes_damage.write(folder, finish=finish)
    return folder


def _campaign(target: Callable[..., None], folder: Path, count: int) -> Campaign:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["tests.faults.episodes.programs.damage", "av", "relive.store.video"]
    )
    campaign = Campaign(context, target, folder)
    plan = list(damages(folder, (SEED,), count, 0.1))
    for start in range(0, count, AT_ONCE):
        campaign.run(plan[start : start + AT_ONCE])
    assert len(campaign.found) == count
    return campaign


def test_a_finished_episode(root: Path, record_property: Note) -> None:
    folder = _episode(root, finish=True)
    assert validate(root, level="full").ok
    campaign = _campaign(damage_finished, folder, COUNT)
    for damage, wrong, _ in campaign.found:
        assert wrong <= {"error corrupt", "error not-found"}, (damage, wrong)
    assert not [damage for damage, _, told in campaign.found if not told]
    assert validate(root, level="full").ok
    record_property("figure", f"episodes: damage found by validate: {campaign.figures()}")


def test_an_unfinished_episode(root: Path, record_property: Note) -> None:
    folder = _episode(root, finish=False)
    campaign = _campaign(damage_unfinished, folder, COUNT // 2)
    for damage, wrong, told in campaign.found:
        if damage.kind == "tape":
            # One that is cut, and one that is damaged, gives the first records of its signal.
            assert wrong <= {"shorter", "missing"}, (damage, wrong)
            assert told or not wrong or damage.bit is None, (damage, wrong)
        else:
            # Statics have no checksum before the commit; the rest is not needed.
            assert wrong <= {"statics"}, (damage, wrong)
            assert not wrong or damage.file == "static.json", (damage, wrong)
    record_property("figure", f"episodes: damage told by recover: {campaign.figures()}")


def test_a_damaged_tape_keeps_what_is_behind_the_damage(root: Path) -> None:
    folder = _episode(root, finish=False)
    tape = folder / ".state.parquet.tape"
    whole = tape.read_bytes()
    assert tape_damage(tape) is None
    for cut in range(len(whole)):
        tape.write_bytes(whole[:cut])
        assert tape_damage(tape) is None, cut
    tape.write_bytes(whole + bytes(5000))  # as a power cut may leave it
    assert tape_damage(tape) is None
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    tape.write_bytes(flipped)
    at = tape_damage(tape)
    assert at is not None
    assert 24 < at <= len(whole) // 2
    (found,) = record.recover(root).episodes
    assert [f"byte {at}" in problem for problem in found.problems] == [True]
    assert tape.read_bytes() == flipped
    assert 0 < found.signals["state"] < episodes_damage.ROWS
    assert [problem.path for problem in validate(root, level="full").problems] == [str(tape)]


def test_an_episode_of_a_later_version_is_left_to_it(root: Path) -> None:
    folder = _episode(root, finish=False)
    meta = folder / "meta.json"
    meta.write_bytes(meta.read_bytes().replace(b'"schema_version": 1', b'"schema_version": 2'))
    before = files_of(root)
    assert "version 2" in "".join(record.recover(root).problems)
    with pytest.raises(UnsupportedError, match="version 2"):
        record.recover(folder)
    assert files_of(root) == before


def test_edits_that_are_cut_or_damaged(root: Path, record_property: Note) -> None:
    _episode(root, finish=True)
    dataset = LocalDataset(root)
    uid = dataset[0].uid
    dataset.edits.set_static(uid, "task", "place")
    dataset.edits.set_static(uid, "key", b"\xff")
    dataset.edits.trim(uid, None, dataset[0]["state"].timestamps[20])
    log = root / "edits.jsonl"
    whole = log.read_bytes()
    lines = whole.splitlines(keepends=True)
    for cut in range(len(whole) + 1):
        log.write_bytes(whole[:cut])
        edited = LocalDataset(root)
        count = len(edited.edits.history(uid))
        ends = np.cumsum([len(line) for line in lines])
        assert count in {int((ends <= cut).sum()), int((ends <= cut + 1).sum())}, cut
        assert edited[0]["task"] == ("place" if count else "pick")
        edited.edits.drop(uid)  # what was cut off gives way
        edited.refresh()
        assert not len(edited)
        assert len(edited.edits.history(uid)) == count + 1
    rng = random.Random(SEED)  # noqa: S311 - places, not secrets
    found: Counter[str] = Counter()
    for _ in range(COUNT):
        place, bit = rng.randrange(len(whole)), rng.randrange(8)
        flipped = bytearray(whole)
        flipped[place] ^= 1 << bit
        log.write_bytes(flipped)
        assert len(LocalDataset(root, edits=False)) == 1
        try:
            assert len(LocalDataset(root)) <= 1
        except (CorruptError, UnsupportedError):
            found["told"] += 1
            assert [problem.path for problem in validate(root).problems] == [str(log)]
        else:
            found["read"] += 1
    assert not found["read"]
    record_property("figure", f"episodes: flipped bits in edits: {dict(found)}")


def test_files_that_are_gone(root: Path) -> None:
    folder = _episode(root, finish=True)
    for path in sorted(folder.iterdir()):
        kept = shutil.copy(path, root.parent / "kept")
        path.unlink()
        dataset = LocalDataset(root)
        assert len(dataset) == 1
        if path.name == "files.json":
            with pytest.raises(CorruptError, match=r"`files\.json` is missing"):
                _ = dataset[0]
        else:
            _read_around(dataset[0], path)
        assert {problem.path for problem in validate(root, level="full").problems} == {str(path)}
        shutil.copy(kept, path)
    assert validate(root, level="full").ok


def _read_around(episode: record.Episode, gone: Path) -> None:
    """See that all other signals are there."""
    name = gone.name.partition(".")[0]
    for other, signal in episode.signals.items():
        if other != name:
            values: Any = signal.values()
            assert len(values) == len(signal) > 0
