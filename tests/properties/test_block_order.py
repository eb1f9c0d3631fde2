"""The order of blocks in partitions, compared with lists that are dealt step by step.

`RELIVE_ORDER_EXAMPLES` says how many orders each property is checked with (`make faults`: 3,000).
"""

import itertools
import json
import os
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from relive import Sampler

EXAMPLES = int(os.environ.get("RELIVE_ORDER_EXAMPLES", "50"))
examples = settings(max_examples=EXAMPLES)
worlds = st.integers(1, 5)
batch_sizes = st.integers(1, 7)
shapes = st.tuples(batch_sizes, worlds, st.integers(1, 3))
"""Batch size, ranks, and workers of each rank."""


@st.composite
def orders(draw: st.DrawFn, tails: tuple[str, ...] = ("keep", "wrap")) -> dict[str, Any]:
    """Draw all that an order of blocks depends on."""
    sizes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=12))
    length = sum(sizes)
    assume(length >= 5)  # at least one row per rank
    bounds = np.cumsum([0, *sizes])
    rows_per_step = draw(st.integers(1, 25))
    is_given = draw(st.booleans())
    return {
        "length": length,
        "mode": "block",
        "seed": draw(st.integers(0, 2**63 - 1)),
        "window": draw(st.none() | st.integers(1, 2 * length)),
        "stride": None if is_given else draw(st.integers(1, 9)),
        "blocks": bounds if is_given else None,
        "partitions": draw(st.integers(1, rows_per_step + 3)),
        "rows_per_step": rows_per_step,
        "tail": draw(st.sampled_from(tails)),
    }


def stream(order: dict[str, Any], count: int) -> list[int]:
    """Return the first rows of the global order."""
    sampler = Sampler(batch_size=1, **order)
    return [int(rows[0]) for rows in itertools.islice(sampler, count)]


def shuffled_blocks(order: dict[str, Any], epoch: int) -> list[int]:
    """Return the rows of an epoch in the order of its blocks: windows of one row change nothing."""
    length = order["length"]
    rows = stream(order | {"window": 1, "partitions": 1}, (epoch + 1) * length)
    return rows[epoch * length :]


def deal(order: dict[str, Any], epoch: int) -> list[list[int]]:
    """Return the positions of an epoch that each partition has, step by step."""
    length, rows, count = order["length"], order["rows_per_step"], order["partitions"]
    # With "wrap", the first step of an epoch may have begun in the epoch before.
    skipped = epoch * length % rows if order["tail"] == "wrap" else 0
    partitions: list[list[int]] = [[] for _ in range(count)]
    for step in range(-(-(skipped + length) // rows)):
        taken = range(step * rows, min((step + 1) * rows, skipped + length))
        size = rows if order["tail"] == "wrap" else len(taken)
        for number, partition in enumerate(partitions):
            share = range(number * size // count, (number + 1) * size // count)
            partition += [k - skipped for k in taken if k >= skipped and k - step * rows in share]
    return partitions


def epoch_of_workers(order: dict[str, Any], shape: tuple[int, int, int]) -> list[list[int]]:
    """Return the rows that each rank and worker has in an epoch: every n-th step of its rank."""
    batch, world, workers = shape
    found = []
    for rank, worker in itertools.product(range(world), range(workers)):
        sampler = Sampler(batch_size=batch, rank=rank, world_size=world, **order)
        steps = itertools.islice(sampler, worker, sampler.steps_per_epoch, workers)
        found.append([int(row) for rows in steps for row in rows])
    return found


@examples
@given(orders(), st.integers(0, 3))
def test_partitions_are_dealt_step_by_step(order: dict[str, Any], epoch: int) -> None:
    length = order["length"]
    rows = stream(order, (epoch + 1) * length)[epoch * length :]
    window = Sampler(batch_size=1, **order)._core.window
    blocks = iter(shuffled_blocks(order, epoch))
    for positions in deal(order, epoch):
        for start in range(0, len(positions), window):
            found = [rows[k] for k in positions[start : start + window]]
            assert sorted(found) == sorted(itertools.islice(blocks, len(found)))
    assert next(blocks, None) is None


@examples
@given(orders(tails=("keep",)))
def test_shuffled_blocks_are_whole(order: dict[str, Any]) -> None:
    length = order["length"]
    bounds = order["blocks"]
    if bounds is None:
        bounds = np.append(np.arange(0, length, order["stride"]), length)
    rows = shuffled_blocks(order, 1)
    blocks: npt.NDArray[np.int64] = np.searchsorted(bounds, rows, side="right") - 1
    changes = int(np.count_nonzero(np.diff(blocks)))
    assert changes == len(set(blocks.tolist())) - 1
    assert sorted(rows) == list(range(length))
    for block in set(blocks.tolist()):
        own = [row for row, b in zip(rows, blocks, strict=True) if b == block]
        assert own == list(range(bounds[block], bounds[block + 1]))


@examples
@given(orders(tails=("keep",)), shapes)
def test_sharding_covers_all_rows_exactly_once(
    order: dict[str, Any], shape: tuple[int, int, int]
) -> None:
    found = epoch_of_workers(order, shape)
    assert sorted(itertools.chain(*found)) == list(range(order["length"]))


@examples
@given(orders(), st.lists(st.tuples(shapes, st.integers(0, 12)), min_size=4, max_size=4))
def test_resume_is_exact_three_times_with_other_ranks_workers_and_batches(
    order: dict[str, Any], runs: list[tuple[tuple[int, int, int], int]]
) -> None:
    (batch, world, _), _ = runs[0]
    order |= {"rows_per_step": batch * world}
    found: list[int] = []
    state: Any = None
    for (batch, world, workers), steps in runs:
        # Only the first run has the rows per step; the others take them from the state.
        given = dict(order) if state is None else order | {"rows_per_step": None}
        drawn: dict[tuple[int, int], list[int]] = {}
        states = set()
        for rank, worker in itertools.product(range(world), range(workers)):
            sampler = Sampler(batch_size=batch, rank=rank, world_size=world, **given)
            if state is not None:
                sampler.load_state_dict(json.loads(state))
            for step in range(steps):
                rows = next(sampler)
                if step % workers == worker:
                    drawn[step, rank] = rows.tolist()
            states.add(json.dumps(sampler.state_dict()))
        found += [
            row for step in range(steps) for rank in range(world) for row in drawn[step, rank]
        ]
        (state,) = states
    assert found == stream(order, len(found))


@examples
@given(orders(), shapes, shapes)
def test_one_partition_is_one_order_at_any_world_size(
    order: dict[str, Any], some: tuple[int, int, int], other: tuple[int, int, int]
) -> None:
    order |= {"partitions": 1, "rows_per_step": None}
    expected = stream(order, 2 * order["length"])
    for batch, world, _ in (some, other):
        ranks = [
            Sampler(batch_size=batch, rank=rank, world_size=world, **order) for rank in range(world)
        ]
        found: list[int] = []
        while len(found) < len(expected):
            found += [int(row) for rank in ranks for row in next(rank)]
        assert found[: len(expected)] == expected


@examples
@given(orders(), batch_sizes, worlds, st.integers(1, 4))
def test_ranks_read_only_their_own_partitions(
    order: dict[str, Any], batch: int, world: int, each: int
) -> None:
    """If the world size divides the partitions, a rank has the rows of its own ones."""
    assume(each <= batch)
    order |= {"rows_per_step": batch * world, "partitions": each * world}
    length = order["length"]
    samplers = [
        Sampler(batch_size=batch, rank=rank, world_size=world, **order) for rank in range(world)
    ]
    rows: list[list[int]] = [[] for _ in range(world)]
    while samplers[0].position < 2 * length:
        for rank, sampler in enumerate(samplers):
            rows[rank] += next(sampler).tolist()
    for epoch in range(2):
        order_of_epoch = stream(order, (epoch + 1) * length)[epoch * length :]
        partitions = deal(order, epoch)
        for rank in range(world):
            owned = partitions[rank * each : (rank + 1) * each]
            expected = sorted(order_of_epoch[k] for k in itertools.chain(*owned))
            taken, rows[rank] = rows[rank][: len(expected)], rows[rank][len(expected) :]
            assert sorted(taken) == expected


@examples
@given(orders(), batch_sizes, worlds, st.data())
def test_blocks_ahead_are_those_that_are_needed(
    order: dict[str, Any], batch: int, world: int, data: st.DataObject
) -> None:
    bounds = order["blocks"]
    if bounds is None:
        bounds = np.append(np.arange(0, order["length"], order["stride"]), order["length"])
    rank = data.draw(st.integers(0, world - 1))
    sampler = Sampler(batch_size=batch, rank=rank, world_size=world, **order)
    sampler.seek(data.draw(st.integers(0, 30)))
    blocks, first, until = sampler.blocks_ahead(data.draw(st.integers(1, 8)))
    assert first.tolist() == sorted(first.tolist())
    for _ in range(len(set(first.tolist()))):
        position = sampler.position
        needed = np.searchsorted(bounds, next(sampler), side="right") - 1
        held = blocks[(first <= position) & (position < until)]
        assert set(needed.tolist()) <= set(held.tolist())
