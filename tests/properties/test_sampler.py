"""Samplers with any options compared with lists of positions."""

import itertools
import json
import pickle
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from relive import Sampler
from tests.load.reference import MODES, TAILS, Order, Plan

lengths = st.integers(1, 40)
batches = st.integers(1, 9)
worlds = st.integers(1, 4)
seeds = st.integers(0, 2**63 - 1)


@st.composite
def streams(draw: st.DrawFn, tails: tuple[str, ...] = TAILS) -> dict[str, Any]:
    """Draw all options that determine a stream of samples."""
    length = draw(lengths)
    mode = draw(st.sampled_from(MODES))
    window = draw(st.none() | st.integers(1, length))
    stride = draw(st.none() | st.integers(1, 2 * length)) if window or mode == "block" else None
    tail = draw(st.sampled_from(tails))
    return {
        "length": length,
        "mode": mode,
        "seed": draw(seeds),
        "window": window,
        "stride": stride,
        "tail": tail,
    }


def order_of(stream: dict[str, Any]) -> Order:
    return Order(**{name: value for name, value in stream.items() if name != "tail"})


def fits(stream: dict[str, Any], samples: int, span: int) -> bool:
    return stream["tail"] != "drop" or span <= samples


def merged(stream: dict[str, Any], state: Any, batch: int, world: int, count: int) -> list[Any]:
    """Return at least `count` real samples that all ranks together draw from `state` on."""
    ranks = [Sampler(batch_size=batch, rank=r, world_size=world, **stream) for r in range(world)]
    for rank in ranks:
        if state is not None:
            rank.load_state_dict(state)
    samples: list[Any] = []
    while len(samples) < count:
        for rank in ranks:
            drawn = next(rank)
            mask = slice(None) if rank.mask is None else rank.mask
            samples += drawn[mask].tolist()
    return samples


@given(streams(), batches, worlds, st.integers(0, 30))
def test_batches_are_slices_of_one_order(
    stream: dict[str, Any], batch: int, world: int, start: int
) -> None:
    order = order_of(stream)
    assume(fits(stream, order.samples, batch * world))
    for rank in range(world):
        walked = Sampler(batch_size=batch, rank=rank, world_size=world, **stream)
        plan = Plan(order.samples, batch, stream["tail"], rank, world)
        for _ in range(start):
            next(walked)
            plan.draw()
        sought = Sampler(batch_size=batch, rank=rank, world_size=world, **stream)
        sought.seek(start)
        assert sought.state_dict() == walked.state_dict()
        for _ in range(5):
            drawn, expected = next(sought), plan.draw()
            assert expected is not None
            np.testing.assert_array_equal(drawn, order.rows(expected[0]), strict=True)
            assert sought.mask is None or sought.mask.tolist() == expected[1]
        assert sought.cursor == (plan.position, plan.omitted, plan.repeated)


@given(streams(), batches, worlds)
def test_ranks_cover_an_epoch_once(stream: dict[str, Any], batch: int, world: int) -> None:
    assume(stream["mode"] != "random")
    order = order_of(stream)
    assume(fits(stream, order.samples, batch * world))
    plan = Plan(order.samples, batch, stream["tail"], 0, world)
    count = order.samples if stream["tail"] != "drop" else order.samples - order.samples % plan.span
    epoch = merged(stream, None, batch, world, count)[:count]
    expected = [order[k][0].tolist() for k in range(order.samples)]
    assert len({json.dumps(sample) for sample in expected}) == order.samples
    if stream["tail"] == "drop":
        assert len({json.dumps(sample) for sample in epoch}) == count
    else:
        assert sorted(epoch) == sorted(expected)


@given(
    streams(tails=("wrap", "keep")),
    st.tuples(batches, worlds),
    st.tuples(batches, worlds),
    st.integers(0, 20),
)
def test_resume_with_another_batch_and_world_size_is_the_same_stream(
    stream: dict[str, Any], before: tuple[int, int], after: tuple[int, int], steps: int
) -> None:
    order = order_of(stream)
    sampler = Sampler(batch_size=before[0], rank=before[1] - 1, world_size=before[1], **stream)
    for _ in range(steps):
        next(sampler)
    state = json.loads(json.dumps(sampler.state_dict()))
    count = 2 * order.samples
    remaining = [order[sampler.position + k][0].tolist() for k in range(count)]
    assert merged(stream, state, *before, count)[:count] == remaining
    assert merged(stream, state, *after, count)[:count] == remaining


@given(streams(tails=("drop", "pad")), st.sampled_from([(6, 1), (3, 2), (2, 3), (1, 6)]),
       st.sampled_from([(6, 1), (3, 2), (2, 3), (1, 6)]), st.integers(0, 20))  # fmt: skip
def test_resume_with_drop_or_pad_needs_the_same_step(
    stream: dict[str, Any], before: tuple[int, int], after: tuple[int, int], steps: int
) -> None:
    samples = order_of(stream).samples
    assume(fits(stream, samples, 6))
    sampler = Sampler(batch_size=before[0], world_size=before[1], **stream)
    for _ in range(steps):
        next(sampler)
    state = sampler.state_dict()
    count = 2 * samples
    assert (
        merged(stream, state, *before, count)[:count]
        == merged(stream, state, *after, count)[:count]
    )


@given(lengths, st.tuples(batches, worlds), seeds, st.sampled_from(TAILS), st.integers(1, 4))
def test_finite_stream_ends(
    length: int, shape: tuple[int, int], seed: int, tail: str, epochs: int
) -> None:
    batch, world = shape
    assume(tail != "drop" or batch * world <= length)
    for rank in range(world):
        sampler = Sampler(length, batch, seed=seed, rank=rank, world_size=world, tail=tail)
        core = sampler.native(epochs)
        plan = Plan(length, batch, tail, rank, world, epochs=epochs)
        drawn = list(iter(core.draw, None))
        expected = list(iter(plan.draw, None))
        assert len(drawn) == len(expected) == core.total_steps
        assert [len(rows) for rows, _, _ in drawn] == [
            len(positions) for positions, _, _ in expected
        ]
        assert [first for _, _, first in drawn] == [first for _, _, first in expected]


class SamplerMachine(RuleBasedStateMachine):
    """Draws, peeks, seeks and pickles a sampler, and compares it with a list of positions."""

    @initialize(stream=streams(), batch=batches, world=worlds, data=st.data())
    def begin(self, stream: dict[str, Any], batch: int, world: int, data: st.DataObject) -> None:
        self.stream = stream
        self.order = order_of(stream)
        if not fits(stream, self.order.samples, batch * world):
            batch, world = 1, 1
        rank = data.draw(st.integers(0, world - 1))
        self.batch, self.rank, self.world = batch, rank, world
        self.sampler = Sampler(batch_size=batch, rank=rank, world_size=world, **stream)
        self.plan = Plan(self.order.samples, batch, stream["tail"], rank, world)

    @rule(count=st.integers(1, 5))
    def draw(self, count: int) -> None:
        for batch in itertools.islice(self.sampler, count):
            expected = self.plan.draw()
            assert expected is not None
            np.testing.assert_array_equal(batch, self.order.rows(expected[0]), strict=True)

    @rule(count=st.integers(0, 4))
    def peek(self, count: int) -> None:
        before = self.sampler.mask
        ahead = self.sampler.peek(count)
        copy: Sampler = pickle.loads(pickle.dumps(self.sampler))  # noqa: S301 - our own data
        for batch in ahead:
            np.testing.assert_array_equal(next(copy), batch, strict=True)
        assert self.sampler.mask is before

    @rule(step=st.integers(0, 30))
    def seek(self, step: int) -> None:
        self.sampler.seek(step)
        self.plan = Plan(self.order.samples, self.batch, self.stream["tail"], self.rank, self.world)
        for _ in range(step):
            self.plan.draw()

    @rule(batch=batches, world=worlds, data=st.data())
    def pickle_round_trip(self, batch: int, world: int, data: st.DataObject) -> None:
        if not fits(self.stream, self.order.samples, batch * world):
            return
        self.batch, self.world = batch, world
        self.rank = data.draw(st.integers(0, world - 1))
        state = json.loads(json.dumps(self.sampler.state_dict()))
        self.sampler = Sampler(batch_size=batch, rank=self.rank, world_size=world, **self.stream)
        self.sampler.load_state_dict(state)
        self.plan.share(batch, self.rank, world)

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "sampler"):
            plan = self.plan
            assert self.sampler.cursor == (plan.position, plan.omitted, plan.repeated)


TestSamplerMachine = SamplerMachine.TestCase
TestSamplerMachine.settings = settings(max_examples=60, stateful_step_count=12)
