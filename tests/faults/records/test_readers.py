"""Readers of a store that is being written see whole states only; writers are one at a time."""

import multiprocessing
import os
import subprocess
import sys
import time
from collections import defaultdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
from tests.faults.records.programs import random_writer as records_random
from tests.faults.records.programs import reader as records_reader
from tests.faults.records.programs.check import goes_on
from tests.faults.records.programs.model import (
    Model,
    Op,
    State,
    apply,
    create,
    digest_of,
    fields,
    random_ops,
    state_of,
    states,
)
from tests.faults.records.programs.syscalls import environment
from tests.processes import running

pytestmark = pytest.mark.timeout(1800)

OPS = int(os.environ.get("RELIVE_READ_OPS", "250"))
READERS: list[dict[str, Any]] = [
    {"io": "mmap", "verify": "first"},
    {"io": "mmap", "verify": "always"},
    {"io": "pread", "verify": "first"},
    {"io": "pread", "verify": "always", "workers": 1},
]


def filled(path: Path, rows: int = 60) -> relive.RecordStore:
    """Make a store with a few records, still open."""
    store = create(path)
    apply(store, Op("extend", keys=tuple((key, 1) for key in range(1, rows + 1))))
    store.flush()
    return store


@pytest.mark.parametrize("seed", [1, 2])
def test_readers_in_other_processes_see_whole_states(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "store"
    model = Model([*fields()])
    ops = list(islice(random_ops((77, seed), 0, model.names), OPS))
    known: dict[State, list[int]] = defaultdict(list)
    for k, state in enumerate(states(model, ops)):
        known[state].append(k)
    create(path).close()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["tests.faults.records.programs.random_writer", "tests.faults.records.programs.reader"]
    )
    end = context.Event()
    pipes = [context.Pipe(duplex=False) for _ in READERS]
    readers = [
        context.Process(target=records_reader.read, args=(path, options, dict(known), end, says))
        for options, (_, says) in zip(READERS, pipes, strict=True)
    ]
    hears, says = context.Pipe(duplex=False)
    writer = context.Process(target=records_random.write, args=(path, (77, seed), says, OPS))
    done = 0
    with running([*readers, writer]):
        for mine in [says, *(says for _, says in pipes)]:
            mine.close()
        try:
            while True:
                done = hears.recv()[0]
        except EOFError:
            writer.join()
        end.set()
        for process in readers:
            process.join()
    assert (done, writer.exitcode) == (OPS, 0)
    assert [process.exitcode for process in readers] == [0] * len(readers)
    for heard, _ in pipes:
        reads, seen, last = heard.recv()
        assert reads >= seen > 3
        assert last == OPS


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_a_reader_keeps_the_generation_that_it_has(io: str, tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = filled(path)
    with relive.RecordStore.open(path, io=io) as reader:
        begun = state_of(reader)
        views = [reader["image"][row] for row in range(60)]
        held = [digest_of(view) for view in views]
        for generation in range(3):
            apply(store, Op("delete", (0, 7 + generation)))
            apply(store, Op("replace", (3,), ((900, generation),)))
            store.rebalance()
            assert state_of(reader) == begun
        store.close()
        # What nobody had looked at before is there as well.
        assert len(reader) == 60
        assert state_of(reader) == begun
        assert [digest_of(view) for view in views] == held
        assert reader.refresh()
        assert len(reader) == 54
        assert state_of(reader) != begun
        assert [digest_of(view) for view in views] == held
        assert not reader.refresh()


def test_a_new_reader_never_misses_a_store_that_is_there(tmp_path: Path) -> None:
    # Generations come and go while it opens one.
    path = tmp_path / "store"
    store = filled(path, 5)
    context = multiprocessing.get_context("forkserver")
    end = context.Event()
    process = context.Process(target=_open_often, args=(path, end))
    with running([process]):
        for version in range(OPS // 6):
            apply(store, Op("replace", (0,), ((1, version),)))
            store.rebalance()
            apply(store, Op("replace", (1,), ((2, version),)))
            store.close()
            store = relive.RecordStore.open(path, "a")
        end.set()
        process.join()
        store.close()
    assert process.exitcode == 0


def _open_often(path: Path, end: Any) -> None:
    count = 0
    while not end.is_set() or count < 20:
        with relive.RecordStore.open(path) as store:
            assert np.asarray(store["key"]).tolist() == [1, 2, 3, 4, 5]
        count += 1
        time.sleep(0.001)  # the writer needs a core, too


def test_a_second_writer_is_told_who_writes(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = filled(path)
    with pytest.raises(relive.errors.LockedError, match=rf"\b{os.getpid()}\b"):
        relive.RecordStore.open(path, "a")
    other = _elsewhere(path)
    assert other.returncode == 1
    assert "LockedError" in other.stderr
    assert str(os.getpid()) in other.stderr
    # It had no effect on the first.
    apply(store, Op("append", keys=((5, 5),)))
    store.close()
    assert _elsewhere(path).returncode == 0


def test_readers_do_not_ask_for_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with filled(path) as store, relive.RecordStore.open(path) as reader:
        assert state_of(reader) == state_of(store)


def test_a_killed_writer_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "store"
    filled(path).close()
    program = "import sys, time, relive; s = relive.RecordStore.open(sys.argv[1], 'a'); "
    process = subprocess.Popen(
        [sys.executable, "-c", program + "print('open', flush=True); time.sleep(600)", path],
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"open\n"
    with pytest.raises(relive.errors.LockedError, match=str(process.pid)):
        relive.RecordStore.open(path, "a")
    with relive.RecordStore.open(path) as reader:
        state = state_of(reader)
    process.kill()
    process.wait()
    process.stdout.close()
    started = time.monotonic()
    goes_on(path, state)
    assert time.monotonic() - started < 30


def _elsewhere(path: Path) -> subprocess.CompletedProcess[str]:
    """Open a store for writing in another process."""
    program = "import sys, relive; relive.RecordStore.open(sys.argv[1], 'a').close()"
    return subprocess.run(
        [sys.executable, "-c", program, str(path)],
        capture_output=True,
        text=True,
        env=environment(),
    )
