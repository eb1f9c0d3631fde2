"""A pack writer that is killed at any moment loses at most the entries of the last second.

`RELIVE_RANDOM_KILLS` sets how many writers are killed (`make faults`: 500, of which a fifth here).
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import relive
from relive.store.pack import recover
from tests.faults.pack.programs import random_writer
from tests.faults.timed_kill import killed, payloads

pytestmark = pytest.mark.timeout(3600)

KILLS = max(int(os.environ.get("RELIVE_RANDOM_KILLS", "25")) // 5, 4)
SEED = int(os.environ.get("RELIVE_SEED", "1"))


def test_killed_at_any_moment(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    written = lost = 0
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        path, seed = folder / "pack", (SEED, number)
        times, killed_at = killed(random_writer.write, path, seed)
        old = sum(each < killed_at - 1 for each in times)
        found = recover(path) if any(folder.iterdir()) else None
        assert found is not None or not times
        entries = 0 if found is None else found.entries
        assert old <= entries <= len(times) + 1, (seed, found)
        if found is not None:
            _check(path, seed, entries)
            assert (found.rest is None) == (len(list(folder.iterdir())) == 1)
        written += len(times)
        lost += max(len(times) - entries, 0)
        shutil.rmtree(folder)
    record_property("figure", f"packs: {KILLS} random kills, {written} entries, {lost} lost")


def _check(path: Path, seed: tuple[int, ...], entries: int) -> None:
    with relive.PackReader.open(path) as reader:
        assert len(reader) == entries
        assert reader.validate("full").ok
        for position, (payload, *_) in zip(range(entries), payloads(seed), strict=False):
            assert bytes(reader.payload(position)) == payload
