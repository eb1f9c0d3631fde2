"""The order of streams: the core has the steps, windows and blocks that are defined."""

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from relive.model.source import IndexArray  # noqa: TC001 - annotates a variable
from relive.publish.read.stream.order import Order, OrderPlan, PartitionedOrder, Steps
from tests.publish.read.order_model import ModelOrder


@st.composite
def plans(draw: st.DrawFn) -> OrderPlan:
    """Draw the plan of one rank."""
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=20))
    world_size = draw(st.integers(1, min(6, sum(sizes))))
    batch_size = draw(st.integers(1, 30))
    tails = ["keep", "pad"] + ["drop"] * (batch_size * world_size <= sum(sizes))
    rows_per_step = draw(st.sampled_from([batch_size * world_size, draw(st.integers(1, 60))]))
    return OrderPlan(
        bounds=np.cumsum([0, *sizes], dtype=np.int64),
        shuffle=True,
        seed=draw(st.integers(0, 3)),
        window=draw(st.integers(1, sum(sizes) + 5)),
        partitions=draw(st.integers(1, min(7, rows_per_step))),
        rows_per_step=rows_per_step,
        tail=draw(st.sampled_from(tails)),
        batch_size=batch_size,
        rank=0,
        world_size=world_size,
    )


def steps(plan: OrderPlan, order: Order, epoch: int) -> list[tuple[list[object], int]]:
    """Return the windows of each step of an epoch and what is repeated; check their rows."""
    order.cursor = epoch * plan.length, 0, 0
    found: list[tuple[list[object], int]] = []
    while order.cursor[0] < (epoch + 1) * plan.length:
        runs = order.windows()
        drawn = order.draw()
        assert drawn is not None
        rows, padded, _ = drawn
        assert sum(run[3] for run in runs) == len(rows)
        at = 0
        for *window, count in runs:
            blocks = order.window_blocks(*window)
            inside = plan.bounds.searchsorted(rows[at : at + count], side="right") - 1
            assert set(inside.tolist()) <= set(blocks.tolist())
            at += count
        found.append((merged(runs), padded))
    return found


def merged(runs: list[tuple[int, int, int, int]]) -> list[object]:
    """Return the windows with the number of rows in each; runs may be cut differently."""
    found: list[list[int]] = []
    for *window, count in runs:
        if found and found[-1][:3] == window:
            found[-1][3] += count
        else:
            found.append([*window, count])
    return list(map(tuple, found))


@settings(max_examples=100)
@given(plan=plans(), epoch=st.integers(0, 2))
def test_the_core_has_the_windows_of_the_definition(plan: OrderPlan, epoch: int) -> None:
    for rank in range(plan.world_size):
        one = replace(plan, rank=rank)
        core = one.begin((0, 0, 0))
        found = steps(one, core, epoch)
        assert found == steps(one, ModelOrder(one), epoch)
        assert found == steps(one, PartitionedOrder(one), epoch)


@settings(max_examples=50)
@given(plan=plans(), workers=st.integers(1, 4), shuffle=st.booleans())
def test_sharding_produces_no_duplicates_across_workers(
    plan: OrderPlan, workers: int, *, shuffle: bool
) -> None:
    rows: list[IndexArray] = []
    for rank in range(plan.world_size):
        one = replace(plan, rank=rank, shuffle=shuffle)
        for worker in range(workers):
            found = list(Steps(one, (0, 0, 0), (worker, workers), rows=True))
            again = list(Steps(one, (0, 0, 0), (worker, workers), rows=False))
            assert [step.runs for step in found] == [step.runs for step in again]
            assert all(step.rows is None for step in again)
            rows += [step.rows for step in found if step.rows is not None]
    counts = np.bincount(np.concatenate(rows), minlength=plan.length)
    span = plan.batch_size * plan.world_size
    if plan.tail == "keep":
        assert (counts == 1).all()
    elif plan.tail == "drop":
        assert counts.max() == 1
        assert counts.sum() == plan.length // span * span
    else:
        assert counts.min() >= 1
        assert counts.sum() % span == 0
