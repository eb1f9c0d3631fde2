"""Whoever reads a root into which several processes record sees whole episodes, and no others.

`RELIVE_EPISODE_READS` says how many episodes each of three writers records (`make faults`: 150).
"""

import multiprocessing
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from relive.episodes import LocalDataset, recover, validate
from tests.faults.episodes.programs import writer as episodes_writer
from tests.processes import running

pytestmark = pytest.mark.timeout(3600)

EPISODES = int(os.environ.get("RELIVE_EPISODE_READS", "6"))
WRITERS = 3


class Reader:
    """Looks at a root again and again."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._dataset = LocalDataset(root)
        self._checked: set[str] = set()
        self.looks = 0

    def look(self) -> None:
        """See that what was there is there, that what came is whole, and that nothing moves."""
        held = self._dataset
        before = [episode.uid for episode in held]
        copy: LocalDataset = pickle.loads(pickle.dumps(held))  # noqa: S301 - its own
        fresh = LocalDataset(self._root)
        for each in fresh.unfinished:
            assert each.reason in {"locked", "left", "empty"}
        # A snapshot stays what it is.
        assert [episode.uid for episode in held] == before
        assert [episode.uid for episode in copy] == before
        held.refresh()
        uids = [episode.uid for episode in held]
        assert set(before) <= {episode.uid for episode in fresh} <= set(uids)
        assert len(set(uids)) == len(uids)
        for episode in held:
            if episode.uid not in self._checked:
                episodes_writer.check(episode)
                self._checked.add(episode.uid)
        self.looks += 1


def test_readers_see_whole_episodes(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["tests.faults.episodes.programs.writer", "av", "relive.store.video"]
    )
    pipes = [context.Pipe(duplex=False) for _ in range(WRITERS)]
    writers = [
        context.Process(
            target=episodes_writer.write, args=(root, 1000 * (number + 1), EPISODES, says)
        )
        for number, (_, says) in enumerate(pipes)
    ]
    end = context.Event()
    hears, says = context.Pipe(duplex=False)
    editor = context.Process(target=episodes_writer.edit, args=(root, end, says))
    with running([*writers, editor]):
        for _, mine in [*pipes, (hears, says)]:
            mine.close()
        reader = Reader(root)
        told: list[tuple[str, str, int, int]] = []
        while any(process.is_alive() for process in writers):
            reader.look()
            # Who recovers while others record leaves theirs alone.
            assert recover(root).problems == ()
            told += [line for heard, _ in pipes for line in _heard(heard)]
        told += [line for heard, _ in pipes for line in _heard(heard)]
        end.set()
        edits = hears.recv()
        editor.join()
    assert [process.exitcode for process in writers] == [-9] * WRITERS
    assert editor.exitcode == 0
    _check_end(root, reader, told, edits)
    ends = Counter(end for end, *_ in told)
    figure = f"{WRITERS} writers, {dict(ends)}, {edits} edits, looked at {reader.looks} times"
    record_property("figure", f"episodes: {figure}")


def _heard(pipe: Connection) -> list[tuple[str, str, int, int]]:
    lines = []
    try:
        while pipe.poll(0):
            lines.append(pipe.recv())
    except EOFError:
        time.sleep(0.001)
    return lines


def _check_end(
    root: Path, reader: Reader, told: list[tuple[str, str, int, int]], edits: int
) -> None:
    assert len(told) == WRITERS * (EPISODES + 1)
    assert reader.looks > 1
    recover(root)
    reader.look()
    dataset = LocalDataset(root, edits=False)
    there = {episode.uid: episode for episode in dataset}
    assert there.keys() == {uid for end, uid, *_ in told if end != "abort"}
    for end, uid, seed, rows in told:
        if end != "abort":
            assert (there[uid]["seed"], there[uid]["rows"]) == (seed, rows)
    assert sum("seen" in episode.statics for episode in LocalDataset(root)) == edits
    report = validate(root, level="full")
    assert not report.problems
    assert report.unfinished == ()
