"""The order of blocks: blocks of any size, partitions, what is needed ahead."""

import itertools
import json
import pickle
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from relive import ArraySource, DataLoader, Field, Sampler, Source, errors
from relive.load import Concat, Map
from relive.model import Batch
from relive.model.source import Indices

SIZES = [90 + number % 21 for number in range(64)]
BOUNDS = np.cumsum([0, *SIZES])
ROWS = int(BOUNDS[-1])


class Blocked(Source):
    """Rows in blocks, which counts the blocks that are read."""

    def __init__(self, bounds: npt.ArrayLike = BOUNDS) -> None:
        self.bounds = np.asarray(bounds, dtype=np.int64)
        self.rows = ArraySource({"id": np.arange(self.bounds[-1])})
        self.read: set[int] = set()

    @property
    def fields(self) -> Mapping[str, Field]:
        return self.rows.fields

    def __len__(self) -> int:
        return len(self.rows)

    def block_bounds(self) -> npt.NDArray[np.int64]:
        return self.bounds

    def gather(
        self,
        indices: Indices,
        fields: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Batch:
        self.read.update(block_of(np.asarray(indices)).tolist())
        return self.rows.gather(indices, fields, out)


def block_of(rows: npt.ArrayLike) -> npt.NDArray[np.int64]:
    return np.searchsorted(BOUNDS, rows, side="right") - 1


def ids(batches: Sequence[Any]) -> list[int]:
    return [int(row) for batch in batches for row in batch["id"]]


# -- the order ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "batch", "options", "sums"),
    [
        (1000, 37, {}, (1432673323, 1111838565, 3736388811)),
        (1000, 64, {"window": 64, "stride": 16}, (3505485347, 796829245, 3469565939)),
        (997, 50, {"window": 100, "stride": 7}, (2705794033, 1997545096, 1334941315)),
        (100_000, 4096, {"stride": 128}, (292428431, 1635559363, 4144816949)),
        (5, 2, {"window": 3, "stride": 2}, (1260374905, 1326644807, 1739822499)),
    ],
)
def test_the_order_of_equal_blocks_has_not_changed(
    length: int, batch: int, options: dict[str, int], sums: tuple[int, ...]
) -> None:
    """States that were saved before there were partitions continue with the same rows."""
    for tail, expected in zip(("wrap", "keep", "pad"), sums, strict=True):
        sampler = Sampler(length, batch, "block", seed=11, tail=tail, **options)
        found = 0
        for rows in itertools.islice(sampler, 2 * sampler.steps_per_epoch + 1):
            found = zlib.crc32(rows.tobytes(), found)
        assert found == expected


def test_blocks_of_any_size_are_visited_whole() -> None:
    bounds = [0, 3, 3, 8, 9, 16, 20, 20, 26]
    sampler = Sampler(26, 26, "block", blocks=bounds, window=1, seed=2)
    orders = []
    for rows in itertools.islice(sampler, 6):
        parts = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
        firsts = [int(part[0]) for part in parts]
        assert {b for b in bounds if b < 26} >= set(firsts)
        assert sorted(rows.tolist()) == list(range(26))
        orders.append(firsts)
    assert len({tuple(order) for order in orders}) == 6


def test_default_window_has_sixteen_blocks() -> None:
    (epoch,) = Sampler(6400, 6400, "block", blocks=range(0, 6401, 100), seed=5).peek(1)
    for window in epoch.reshape(4, 1600):
        blocks, counts = np.unique(window // 100, return_counts=True)
        assert len(blocks) == 16
        assert set(counts.tolist()) == {100}
        assert window.tolist() != sorted(window.tolist())


@pytest.mark.parametrize("tail", ["keep", "drop", "wrap"])
@pytest.mark.parametrize(("world", "partitions"), [(8, 8), (4, 8), (8, 24), (2, 8), (1, 8)])
def test_ranks_read_only_the_blocks_of_their_partitions(
    tail: str, world: int, partitions: int
) -> None:
    """All ranks together read each row group about once, in every epoch."""
    read = np.zeros((world, 3))
    for rank in range(world):
        sampler = Sampler(
            ROWS, 240 // world, "block", blocks=BOUNDS, window=400, partitions=partitions,
            rank=rank, world_size=world, tail=tail,
        )  # fmt: skip
        found: list[set[int]] = [set(), set(), set()]
        while sampler.epoch < 3:
            epoch = sampler.epoch
            rows = next(sampler)
            if sampler.epoch == epoch:  # not the step that two epochs share
                found[epoch].update(block_of(rows).tolist())
        read[rank] = [sum(SIZES[block] for block in blocks) for blocks in found]
    assert (read > ROWS / world * 0.9).all()
    assert (read.sum(axis=0) < ROWS * 1.25).all()


def test_one_partition_is_the_same_order_at_any_world_size() -> None:
    def merged(batch: int, world: int) -> list[int]:
        options: dict[str, Any] = {"blocks": BOUNDS, "partitions": 1, "world_size": world}
        ranks = [Sampler(ROWS, batch, "block", rank=r, tail="keep", **options)
                 for r in range(world)]  # fmt: skip
        steps = range(2 * ranks[0].steps_per_epoch)
        return [int(row) for _ in steps for rank in ranks for row in next(rank)]

    expected = merged(480, 1)
    assert merged(60, 8) == merged(160, 3) == merged(7, 5) == expected


def test_partitions_default_to_the_world_size_with_blocks() -> None:
    assert Sampler(ROWS, 4, "block", blocks=BOUNDS, world_size=6).partitions == 6
    assert Sampler(ROWS, 4, "block", world_size=6).partitions == 1
    assert Sampler(ROWS, 4, world_size=6).partitions == 1
    assert Sampler(ROWS, 4, "block", world_size=6, partitions=3).partitions == 3


# -- states ------------------------------------------------------------------------------------


def test_state_has_what_the_order_depends_on() -> None:
    sampler = Sampler(ROWS, 5, "block", blocks=BOUNDS, world_size=4, tail="keep")
    next(sampler)
    assert sampler.state_dict() == {
        "position": 20,
        "omitted": 0,
        "repeated": 0,
        "length": ROWS,
        "mode": "block",
        "seed": 0,
        "tail": "keep",
        "window": None,
        "stride": None,
        "partitions": 4,
        "rows_per_step": 20,
        "blocks": sampler.state_dict()["blocks"],
    }
    assert len(sampler.state_dict()["blocks"]) == 16


def test_resume_three_times_with_other_ranks_and_batches() -> None:
    """The rest of the stream is the same rows in the same order, whoever reads them."""
    whole = Sampler(ROWS, 24, "block", blocks=BOUNDS, partitions=4, tail="keep")
    expected = [int(row) for rows in itertools.islice(whole, 700) for row in rows]
    found: list[int] = []
    state: Any = None
    for batch, world, steps in [(6, 4, 50), (5, 3, 70), (31, 1, 100), (3, 8, 90)]:
        ranks = [Sampler(ROWS, batch, "block", blocks=BOUNDS, rank=r, world_size=world, tail="keep")
                 for r in range(world)]  # fmt: skip
        for rank in ranks:
            if state is not None:
                rank.load_state_dict(state)
        found += [int(row) for _ in range(steps) for rank in ranks for row in next(rank)]
        (state,) = {json.dumps(rank.state_dict()) for rank in ranks}
        state = json.loads(state)
        assert (state["partitions"], state["rows_per_step"]) == (4, 24)
    assert found == expected[: len(found)]


def test_state_of_other_partitions_raises_only_if_they_were_passed() -> None:
    options: dict[str, Any] = {"mode": "block", "blocks": BOUNDS}
    state = Sampler(ROWS, 4, world_size=2, **options).state_dict()
    sampler = Sampler(ROWS, 4, world_size=8, **options)
    sampler.load_state_dict(state)
    assert (sampler.partitions, sampler.rows_per_step) == (2, 8)
    copy: Sampler = pickle.loads(pickle.dumps(sampler))  # noqa: S301 - our own data
    assert copy.state_dict() == sampler.state_dict()
    copy.load_state_dict(state | {"partitions": 4})
    assert copy.partitions == 4
    fixed = Sampler(ROWS, 4, world_size=8, partitions=8, **options)
    for own in (fixed, pickle.loads(pickle.dumps(fixed))):  # noqa: S301 - our own data
        with pytest.raises(errors.InvalidError, match=r"partitions=2, but .* partitions=8"):
            own.load_state_dict(state)
        assert own.partitions == 8


def test_state_of_other_blocks_raises() -> None:
    state = Sampler(ROWS, 4, "block", blocks=BOUNDS).state_dict()
    for other in (None, [0, ROWS], [*BOUNDS[:5], *BOUNDS[6:]]):
        with pytest.raises(errors.InvalidError, match="other blocks of rows"):
            Sampler(ROWS, 4, "block", blocks=other).load_state_dict(state)


def test_state_without_partitions_has_one() -> None:
    sampler = Sampler(ROWS, 4, "block", window=300, stride=40)
    rows = sampler.peek(30)
    next(sampler)
    state = sampler.state_dict()
    for name in ("partitions", "rows_per_step", "blocks"):
        del state[name]
    other = Sampler(ROWS, 4, "block", window=300, stride=40)
    other.load_state_dict(state)
    np.testing.assert_array_equal(other.peek(29), rows[1:])


def test_bounds_are_copied() -> None:
    bounds = BOUNDS.copy()
    sampler = Sampler(ROWS, 50, "block", blocks=bounds)
    rows = sampler.peek(4)
    bounds[1:-1] = 1
    copy: Sampler = pickle.loads(pickle.dumps(sampler))  # noqa: S301 - our own data
    np.testing.assert_array_equal(copy.peek(4), rows)
    assert "blocks=<64 blocks>" in repr(sampler)


# -- what is needed ahead ----------------------------------------------------------------------


@pytest.mark.parametrize("tail", ["keep", "wrap", "pad"])
def test_a_reader_that_follows_blocks_ahead_has_every_block_once(tail: str) -> None:
    """It fetches what is listed, drops what is over, and never holds more than two windows."""
    sampler = Sampler(ROWS, 30, "block", blocks=BOUNDS, window=400, rank=5, world_size=8, tail=tail)
    held: dict[int, int] = {}
    fetched = 0
    while sampler.epoch < 2:
        held = {block: until for block, until in held.items() if until > sampler.position}
        listed = zip(*sampler.blocks_ahead(2), strict=True)
        for block, first, until in listed:
            assert first >= sampler.position
            fetched += block not in held
            held[block] = max(held.get(block, 0), until)
        is_last = sampler.position % ROWS + 240 >= ROWS
        assert len(held) <= 13 or (tail == "pad" and is_last)
        assert set(block_of(next(sampler)).tolist()) <= set(held)
    # Two epochs of an eighth of 64 blocks, and those at the borders; with "pad" those of repeats.
    assert fetched <= 2 * (64 / 8 + 2) + (60 if tail == "pad" else 2)


def test_blocks_ahead_do_not_depend_on_the_number_of_rows() -> None:
    bounds = np.arange(10_001) * 10**9
    sampler = Sampler(10**13, 4096, "block", blocks=bounds, window=10**11, world_size=8)
    sampler.seek(10**6)
    begin = time.perf_counter()
    blocks, first, until = sampler.blocks_ahead(50)
    assert time.perf_counter() - begin < 1
    assert len(blocks) in {100, 101, 102}
    assert (first == sampler.position).all()
    assert (until > sampler.position + 10**6).all()


def test_blocks_ahead_of_other_modes_raise() -> None:
    with pytest.raises(errors.InvalidError, match="only a sampler with mode"):
        Sampler(10, 2).blocks_ahead(1)


# -- arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"blocks": [0, 4, 9]}, "must end with the number of rows, 10, got 9"),
        ({"blocks": [1, 10]}, "must begin with 0"),
        ({"blocks": []}, "must begin with 0"),
        ({"blocks": [0, 7, 5, 10]}, "ascending order, got 7 before 5"),
        ({"blocks": [0, -1, 10]}, "must not have negative numbers"),
        ({"blocks": [[0, 10]]}, "must have one dimension, got 2"),
        ({"blocks": [0, 10], "stride": 2}, "`blocks` or `stride`, not both"),
        ({"blocks": [0, 10], "mode": "shuffle"}, 'require mode="block"'),
        ({"partitions": 2, "mode": "shuffle"}, 'require mode="block"'),
        ({"partitions": 0}, "`partitions` must be from 1"),
        ({"partitions": 2**25}, "`partitions` must be from 1 to 16777216, got 33554432"),
        ({"rows_per_step": 0}, "`rows_per_step` must be from 1"),
        ({"blocks": [0, 10], "world_size": 11, "tail": "keep"},
         "some ranks would have no rows: the source has 10 and `world_size` is 11"),
        ({"tail": "error"}, "10 samples are not a multiple of `batch_size` × `world_size` = 3"),
    ],
)  # fmt: skip
def test_invalid_arguments_raise(arguments: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"length": 10, "batch_size": 3, "mode": "block"}
    with pytest.raises(errors.InvalidError, match=text):
        Sampler(**given | arguments)
    with pytest.raises(errors.InvalidTypeError):
        Sampler(10, 3, "block", blocks=[0.0, 10.0])


def test_tail_error_requires_full_steps() -> None:
    sampler = Sampler(12, 2, world_size=2, tail="error")
    assert [len(rows) for rows in sampler.peek(7)] == [2] * 7
    state = sampler.state_dict()
    with pytest.raises(errors.InvalidError, match="the 9 samples that are left"):
        sampler.load_state_dict(state | {"position": 3})
    assert sampler.state_dict() == state
    sampler.load_state_dict(state | {"position": 8})
    assert sampler.position == 8


# -- loaders -----------------------------------------------------------------------------------


def test_loader_takes_the_blocks_of_its_source() -> None:
    read = 0
    seen: list[int] = []
    for rank in range(8):
        source = Blocked()
        options: dict[str, Any] = {"rank": rank, "world_size": 8, "tail": "keep", "epochs": 1}
        with DataLoader(source, batch_size=30, mode="block", window=400, **options) as loader:
            seen += ids(list(loader))
        read += sum(SIZES[block] for block in source.read)
        assert 7 <= len(source.read) <= 11
    assert sorted(seen) == list(range(ROWS))
    assert read < 1.25 * ROWS


@pytest.mark.parametrize("make", [
    lambda source: Map(source, lambda batch: batch),
    lambda source: {"table": source, "label": np.arange(ROWS)},
    Concat,
])  # fmt: skip
def test_sources_of_blocks_have_them_too(make: Any) -> None:
    expected = Sampler(ROWS, 30, "block", blocks=BOUNDS, seed=3).peek(5)
    with DataLoader(make(Blocked()), batch_size=30, mode="block", seed=3) as loader:
        for rows in expected:
            batch = next(loader)
            assert (batch["table"] if "table" in batch else batch["id"]).tolist() == rows.tolist()


def test_blocks_of_joined_sources() -> None:
    joined = Concat(Blocked([0, 3, 10]), Blocked([0, 5]))
    bounds = joined.block_bounds()
    assert bounds is not None
    assert bounds.tolist() == [0, 3, 10, 15]
    assert Concat(Blocked(), Blocked().rows).block_bounds() is None
    assert Blocked()[:10].block_bounds() is None


def test_stride_takes_precedence_over_the_blocks_of_a_source() -> None:
    with DataLoader(Blocked(), batch_size=30, mode="block", stride=16, seed=3) as loader:
        expected = Sampler(ROWS, 30, "block", stride=16, seed=3).peek(1)[0]
        assert next(loader)["id"].tolist() == expected.tolist()
        assert loader.state_dict()["blocks"] is None


def test_loaders_resume_with_other_ranks_and_workers() -> None:
    def open_all(batch: int, world: int, workers: int) -> list[DataLoader]:
        return [
            DataLoader(Blocked(), batch_size=batch, mode="block", rank=rank, world_size=world,
                       workers=workers, tail="keep", window=500)
            for rank in range(world)
        ]  # fmt: skip

    (whole,) = open_all(24, 1, 0)
    whole.load_state_dict(open_all(6, 4, 0)[0].state_dict())
    expected = ids(list(itertools.islice(whole, 400)))
    found: list[int] = []
    state: Any = None
    for batch, world, workers, steps in [(6, 4, 2, 30), (5, 3, 0, 40), (31, 1, 1, 50)]:
        loaders = open_all(batch, world, workers)
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(json.loads(state))
        found += [row for _ in range(steps) for loader in loaders for row in ids([next(loader)])]
        (state,) = {json.dumps(loader.state_dict()) for loader in loaders}
        for loader in loaders:
            loader.close()
    assert found == expected[: len(found)]
    assert json.loads(state)["partitions"] == 4


def test_loader_with_partitions_of_its_own() -> None:
    source = ArraySource({"id": np.arange(1000)})
    options: dict[str, Any] = {"mode": "block", "stride": 10, "window": 50, "partitions": 4}
    seen = []
    for rank in range(4):
        with DataLoader(
            source, batch_size=9, rank=rank, world_size=4, tail="keep", epochs=1, **options
        ) as loader:
            seen.append(ids(list(loader)))
            assert len({row // 10 for row in seen[-1]}) <= 27
    assert sorted(itertools.chain(*seen)) == list(range(1000))
    with pytest.raises(errors.InvalidError, match='require mode="block"'):
        DataLoader(source, partitions=2)


class Growing(Blocked):
    """Blocks to which others are added."""

    def snapshot(self) -> Source:
        return Blocked(self.bounds)


def test_loader_follows_a_source_that_grows_by_blocks() -> None:
    source = Growing([0, 10, 25])
    loader = DataLoader(source, batch_size=5, mode="block", tail="keep", workers=0)
    assert sorted(ids(list(loader.epoch()))) == list(range(25))
    next(loader)
    state = loader.state_dict()
    source.__init__([0, 10, 25, 32])  # type: ignore[misc]
    resumed = DataLoader(source, batch_size=5, mode="block", tail="keep", workers=0)
    resumed.load_state_dict(state)
    rest = ids(list(resumed.epoch()))
    assert len(rest) == 20
    assert sorted(ids(list(resumed.epoch()))) == list(range(32))
