"""A process that reads a record store while another one writes it, and sees that all is whole."""

import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np

import relive
from tests.faults.records.programs.model import State, digest_of, state_of


def read(
    path: Path, options: dict[str, Any], known: dict[State, list[int]], end: Event, said: Connection
) -> None:
    """Refresh and read until `end`; send how often, and how many states were seen.

    Every state must be one of `known`, which has the numbers of operations after which it is so,
    and must not be older than the one before.
    """
    rng = np.random.default_rng()
    reads, seen, last = 0, set(), 0
    with relive.RecordStore.open(path, **options) as store:
        finished = False
        while not finished:
            # What was written before the end is seen by whoever looks again behind it.
            finished = end.is_set()
            store.refresh()
            found = state_of(store)
            newer = [k for k in known.get(found, []) if k >= last]
            assert newer, f"a state that never was, or an older one than {last}"
            last = newer[0]
            seen.add(last)
            _gather_some(store, rng)
            reads += 1
            time.sleep(0.002)  # the writer needs a core, too
    said.send((reads, len(seen), last))


def _gather_some(store: relive.RecordStore, rng: np.random.Generator) -> None:
    """Read in another order, some twice: what one snapshot holds does not change."""
    if not len(store):
        return
    rows = rng.integers(0, len(store), 40)
    batch, again = store.gather(rows), store.gather(rows[::-1])
    for name in store.fields:
        found = [digest_of(batch[name][place]) for place in range(len(rows))]
        turned = [digest_of(again[name][place]) for place in range(len(rows))]
        assert found == turned[::-1], name
        assert found[0] == digest_of(store[name][int(rows[0])]), name


def follow(path: Path, end: Event, said: Connection) -> None:
    """Refresh and read until `end`, whatever becomes of the writers; send the states in order."""
    seen: list[State] = []
    with relive.RecordStore.open(path) as store:
        finished = False
        while not finished:
            finished = end.is_set()
            store.refresh()
            found = state_of(store)
            if not seen or found != seen[-1]:
                seen.append(found)
            time.sleep(0.001)  # the writer needs a core, too
    said.send(seen)
