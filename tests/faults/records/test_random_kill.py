"""A store whose writer is killed at any moment is as after k operations, and is gone on with.

`RELIVE_RANDOM_KILLS` says how often (`make faults`: 500 times).
"""

import multiprocessing
import multiprocessing.context
import os
import shutil
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import relive
from tests.faults.records.programs import random_writer as records_random
from tests.faults.records.programs import reader as records_reader
from tests.faults.records.programs import timed_writer
from tests.faults.records.programs.check import goes_on
from tests.faults.records.programs.model import (
    Model,
    State,
    create,
    fields,
    random_ops,
    state_of,
    states,
)
from tests.faults.timed_kill import killed, payloads
from tests.processes import running

Note = Callable[[str, object], None]
pytestmark = pytest.mark.timeout(3600)

KILLS = int(os.environ.get("RELIVE_RANDOM_KILLS", "25"))
SEED = int(os.environ.get("RELIVE_SEED", "1"))
# A store that has lived long enough makes room for another.
ROUNDS = 50


@pytest.mark.parametrize("life", range(-(-KILLS // ROUNDS)))
def test_killed_at_any_moment(life: int, tmp_path: Path, record_property: Note) -> None:
    path = tmp_path / "store"
    model = Model([*fields()])
    done = lost = 0
    rounds = min(ROUNDS, KILLS - life * ROUNDS)
    for number in range(rounds):
        seed = (SEED, life, number)
        had_store = (path / "meta.json").exists()
        said = _killed(path, seed)
        assert (path / "meta.json").exists() or not (had_store or said)
        said = said or [(0, 0)]
        model, found = _survivor(path, model, seed, said)
        done += found
        lost += said[-1][0] - found
    assert done > rounds
    record_property(
        "figure", f"records: {rounds} random kills in {done} operations, {lost} unflushed"
    )


def test_store_that_flushes_itself_loses_at_most_one_second(
    tmp_path: Path, record_property: Note
) -> None:
    kills = max(KILLS // 5, 4)
    appended = lost = 0
    for number in range(kills):
        path, seed = tmp_path / str(number), (SEED, number)
        times, killed_at = killed(timed_writer.write, path, seed)
        old = sum(each < killed_at - 1 for each in times)
        if not (path / "meta.json").exists():
            assert not times
            continue
        with relive.RecordStore.open(path) as store:
            assert store.validate("full").ok
            assert old <= len(store) <= len(times) + 1, (seed, len(store), len(times))
            assert store["number"][:].tolist() == list(range(len(store)))
            for row, (payload, _) in zip(range(len(store)), payloads(seed), strict=False):
                assert store["data"][row] == payload
            lost += max(len(times) - len(store), 0)
        appended += len(times)
        shutil.rmtree(path)
    record_property("figure", f"records: {kills} timed kills, {appended} records, {lost} lost")


def test_readers_outlive_their_writers(tmp_path: Path) -> None:
    path = tmp_path / "store"
    create(path).close()
    context = _context()
    end = context.Event()
    hears, says = context.Pipe(duplex=False)
    reader = context.Process(target=records_reader.follow, args=(path, end, says))
    with running([reader]):
        says.close()
        model = Model([*fields()])
        life = [model.state()]
        for number in range(max(KILLS // 5, 10)):
            seed = (SEED, 1000, number)
            said = _killed(path, seed) or [(0, 0)]
            ops = list(islice(random_ops(seed, len(model.records), model.names), said[-1][0] + 1))
            copy = Model(model.names)
            copy.records = list(model.records)
            wanted = states(copy, ops)
            model, found = _survivor(path, model, seed, said)
            life += wanted[1 : found + 1]
        end.set()
        seen: list[State] = hears.recv()
        reader.join()
    assert reader.exitcode == 0
    assert len(seen) > 5
    # All of them, and in this order.
    rest = iter(life)
    assert all(state in rest for state in seen)
    assert seen[-1] == life[-1]


def _context() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["tests.faults.records.programs.random_writer", "tests.faults.records.programs.reader"]
    )
    return context


def _killed(path: Path, seed: tuple[int, ...]) -> list[tuple[int, int]]:
    """Let a process write, kill it at some moment, and give what it had said."""
    rng = np.random.default_rng((*seed, 2))
    context = _context()
    hears, says = context.Pipe(duplex=False)
    process = context.Process(target=records_random.write, args=(path, seed, says))
    process.start()
    says.close()
    said: list[tuple[int, int]] = []
    if rng.random() < 0.8 and hears.poll(20):
        # Else it may be killed while it opens the store.
        said.append(hears.recv())
    until = time.monotonic() + rng.exponential(0.12)
    while (left := until - time.monotonic()) > 0:
        if hears.poll(left):
            said.append(hears.recv())
    process.kill()
    process.join()
    assert process.exitcode == -9, f"{seed}: it had ended with {process.exitcode}"
    try:
        while True:
            said.append(hears.recv())
    except (EOFError, OSError):
        return said


def _survivor(
    path: Path, model: Model, seed: tuple[int, ...], said: list[tuple[int, int]]
) -> tuple[Model, int]:
    """See that the store is as after k operations; give the model of that, and k."""
    done, safe = said[-1][0], max(safe for _, safe in said)
    if not (path / "meta.json").exists():
        return model, 0
    begun = Model(model.names)
    begun.records = list(model.records)
    ops = list(islice(random_ops(seed, len(model.records), model.names), done + 1))
    wanted = states(begun, ops)
    try:
        with relive.RecordStore.open(path, io="pread" if sum(seed) % 2 else "mmap") as store:
            found = state_of(store)
        fitting = [k for k in range(safe, done + 2) if wanted[k] == found]
        assert fitting, f"not as after {safe} to {done + 1} operations"
        if sum(seed) % 10 == 0:
            copy = shutil.copytree(path, path.with_name("copy"))
            goes_on(copy, found)
            shutil.rmtree(copy)
    except Exception as error:
        error.add_note(f"seed {seed}, said {said[-3:]}, kept in {path}")
        raise
    for op in ops[: fitting[-1]]:
        model.apply(op)
    return model, fitting[-1]
