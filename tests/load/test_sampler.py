"""The order of samples."""

import itertools
import json
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from relive import Sampler, errors
from tests.load.reference import MODES, TAILS, Order, Plan

SHAPES = [(10, 3, 1), (10, 3, 2), (10, 4, 3), (12, 3, 2), (7, 10, 1), (1, 1, 1), (5, 1, 4)]
BEYOND = [(3, 5, 3), (1, 4, 2)]  # a step is larger than an epoch


def listed(batches: list[Any]) -> list[int]:
    return [int(row) for batch in batches for row in batch]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize(("length", "batch", "world"), SHAPES + BEYOND)
def test_ranks_match_the_reference(
    mode: str, tail: str, length: int, batch: int, world: int
) -> None:
    if tail == "drop" and batch * world > length:
        with pytest.raises(errors.InvalidError, match="the sampler has no batches"):
            Sampler(length, batch, mode, world_size=world, tail=tail)
        return
    order = Order(length, mode, seed=3)
    for rank in range(world):
        sampler = Sampler(length, batch, mode, seed=3, rank=rank, world_size=world, tail=tail)
        plan = Plan(length, batch, tail, rank, world)
        for _ in range(15):
            drawn = next(sampler)
            expected = plan.draw()
            assert expected is not None
            positions, real, _ = expected
            assert drawn.dtype == np.int64
            np.testing.assert_array_equal(drawn, order.rows(positions), strict=True)
            if tail == "pad":
                assert sampler.mask is not None
                assert sampler.mask.tolist() == real
            else:
                assert sampler.mask is None
            found = (sampler.position, sampler.omitted, sampler.repeated)
            assert found == (plan.position, plan.omitted, plan.repeated)
            assert sampler.epoch == plan.position // length


@pytest.mark.parametrize("mode", ["shuffle", "block", "sequential"])
@pytest.mark.parametrize("length", [1, 2, 9, 1000, 4097])
def test_every_epoch_is_a_permutation(mode: str, length: int) -> None:
    sampler = Sampler(length, length, mode, seed=1)
    epochs = [next(sampler).tolist() for _ in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(length))
    if mode == "sequential":
        assert epochs == [list(range(length))] * 3
    elif length > 2:
        assert epochs[0] != epochs[1] != epochs[2]
        assert epochs[0] != Sampler(length, length, mode, seed=2).peek(1)[0].tolist()


def test_epoch_of_a_million_rows_is_a_permutation() -> None:
    for mode in ("shuffle", "block"):
        epoch = next(Sampler(1_000_003, 1_000_003, mode, seed=4))
        assert np.array_equal(np.sort(epoch), np.arange(1_000_003))
        assert not np.array_equal(epoch, np.arange(1_000_003))


def test_shuffle_moves_rows_far() -> None:
    epoch = next(Sampler(10_000, 10_000, seed=0))
    assert abs(np.corrcoef(epoch, np.arange(10_000))[0, 1]) < 0.05
    assert np.abs(np.diff(epoch)).mean() == pytest.approx(3333, rel=0.05)


def test_random_draws_evenly_with_replacement() -> None:
    drawn = np.concatenate(list(itertools.islice(Sampler(100, 1000, "random", seed=2), 20)))
    counts = np.bincount(drawn, minlength=100)
    # 200 are expected; a more even result would not be random.
    assert 120 < counts.min() < 190
    assert 210 < counts.max() < 280
    assert len(set(drawn[:100].tolist())) < 90


def test_block_reads_whole_blocks_within_a_window() -> None:
    """Of 64 blocks of 16 rows, four are open at a time, and each is read completely."""
    (epoch,) = Sampler(1024, 1024, "block", window=64, stride=16, seed=5).peek(1)
    for window in epoch.reshape(-1, 64):
        blocks, counts = np.unique(window // 16, return_counts=True)
        assert len(blocks) == 4
        assert counts.tolist() == [16] * 4
        assert window.tolist() != sorted(window.tolist())
    assert epoch.reshape(-1, 64)[:, 0].tolist() != sorted(epoch.reshape(-1, 64)[:, 0].tolist())


@pytest.mark.parametrize("mode", ["shuffle", "sequential", "block"])
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize(("length", "batch", "world"), SHAPES)
def test_ranks_cover_an_epoch_once_in_equal_steps(
    mode: str, tail: str, length: int, batch: int, world: int
) -> None:
    span = batch * world
    if tail == "drop" and span > length:
        batch, world, span = 1, 1, 1
    ranks = [
        Sampler(length, batch, mode, rank=rank, world_size=world, tail=tail, seed=8)
        for rank in range(world)
    ]
    steps = ranks[0].steps_per_epoch
    assert {rank.steps_per_epoch for rank in ranks} == {steps}
    seen: list[int] = []
    for _ in range(steps):
        batches = [next(rank) for rank in ranks]
        masks = [r.mask if r.mask is not None else np.ones(len(b), bool)
                 for r, b in zip(ranks, batches, strict=True)]  # fmt: skip
        seen += [int(row) for b, m in zip(batches, masks, strict=True) for row in b[m]]
    assert {rank.position for rank in ranks} == {ranks[0].position}
    if tail == "wrap":
        assert sorted(seen[:length]) == list(range(length))
        assert len(seen) - length < span
    elif tail == "drop":
        assert len(set(seen)) == len(seen) == length - ranks[0].omitted
        assert ranks[0].omitted == length % span < span
    else:
        assert sorted(seen) == list(range(length))
        assert ranks[0].repeated == (-length % span if tail == "pad" else 0)
        assert ranks[0].position == length


def test_keep_splits_a_short_step_evenly() -> None:
    sizes = []
    for rank in range(4):
        sampler = Sampler(10, 2, rank=rank, world_size=4, tail="keep")
        sizes.append([len(batch) for batch in itertools.islice(sampler, 4)])
    assert sizes == [[2, 0, 2, 0], [2, 1, 2, 1], [2, 0, 2, 0], [2, 1, 2, 1]]


@pytest.mark.parametrize("mode", ["shuffle", "random", "sequential"])
def test_windows_wrap_around(mode: str) -> None:
    sampler = Sampler(10, 4, mode, window=3, stride=2, seed=1)
    batches = list(itertools.islice(sampler, 10))
    assert {batch.shape for batch in batches} == {(4, 3)}
    lines = np.concatenate(batches)
    assert np.array_equal(lines, (lines[:, :1] + np.arange(3)) % 10)
    assert set(lines[:, 0].tolist()) == {0, 2, 4, 6, 8}
    assert sampler.samples_per_epoch == 5
    if mode == "shuffle":
        assert sorted(lines[:5, 0].tolist()) == [0, 2, 4, 6, 8]
    if mode == "sequential":
        assert lines[:, 0].tolist() == [(2 * k) % 10 for k in range(40)]


def test_sequential_windows_wrap_without_a_gap() -> None:
    """Seven rows, every third a start: windows wrap around the end."""
    starts = np.concatenate(
        list(itertools.islice(Sampler(7, 2, "sequential", window=2, stride=3), 6))
    )
    assert starts[:, 0].tolist() == [0, 3, 6, 2, 5, 1, 4, 0, 3, 6, 2, 5]


def test_mask_marks_repeated_samples() -> None:
    sampler = Sampler(5, 3, "sequential", tail="pad")
    assert sampler.mask is None
    assert next(sampler).tolist() == [0, 1, 2]
    assert sampler.mask is not None
    assert sampler.mask.tolist() == [True] * 3
    assert next(sampler).tolist() == [3, 4, 0]
    assert sampler.mask.tolist() == [True, True, False]
    assert sampler.mask.dtype == np.bool_
    assert (sampler.repeated, sampler.omitted, sampler.epoch) == (1, 0, 1)


def test_peek_does_not_consume() -> None:
    sampler = Sampler(10, 3, seed=2, tail="pad")
    next(sampler)
    mask = sampler.mask
    ahead = sampler.peek(5)
    assert sampler.peek(0) == []
    assert sampler.mask is mask
    assert (sampler.position, sampler.repeated) == (3, 0)
    for batch in ahead:
        np.testing.assert_array_equal(next(sampler), batch)


@pytest.mark.parametrize("tail", TAILS)
def test_seek_matches_stepping(tail: str) -> None:
    for step in range(25):
        walked = Sampler(23, 3, seed=6, rank=1, world_size=2, tail=tail)
        sought = Sampler(23, 3, seed=6, rank=1, world_size=2, tail=tail)
        for _ in range(step):
            next(walked)
        next(sought)
        sought.seek(step)
        assert sought.state_dict() == walked.state_dict()
        assert listed(sought.peek(9)) == listed(walked.peek(9))


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("mode", MODES)
def test_state_survives_json_and_pickle(mode: str, tail: str) -> None:
    sampler = Sampler(23, 3, mode, seed=6, tail=tail, window=8 if mode == "block" else None)
    for _ in range(11):
        next(sampler)
    text = json.dumps(sampler.state_dict())
    copy: Sampler = pickle.loads(pickle.dumps(sampler))  # noqa: S301 - our own data
    ahead = listed(sampler.peek(10))
    other = Sampler(23, 3, mode, seed=6, tail=tail, window=8 if mode == "block" else None)
    other.load_state_dict(json.loads(text))
    assert listed(other.peek(10)) == listed(copy.peek(10)) == ahead
    assert other.state_dict() == copy.state_dict() == sampler.state_dict()
    assert repr(other) == repr(copy) == repr(sampler)


def test_state_contains_all_options_of_the_stream() -> None:
    sampler = Sampler(50, 4, "random", seed=9, window=5, stride=2, tail="keep")
    next(sampler)
    assert sampler.state_dict() == {
        "position": 4,
        "omitted": 0,
        "repeated": 0,
        "length": 50,
        "mode": "random",
        "seed": 9,
        "tail": "keep",
        "window": 5,
        "stride": 2,
    }


@pytest.mark.parametrize(
    ("change", "named"),
    [({"length": 51}, "length=50"), ({"mode": "random"}, "mode='shuffle'"), ({"seed": 1}, "seed=0"),
     ({"tail": "keep"}, "tail='wrap'"), ({"window": 3}, "window=None")],
)  # fmt: skip
def test_state_of_another_stream_raises(change: dict[str, Any], named: str) -> None:
    state = Sampler(50, 4).state_dict()
    with pytest.raises(errors.InvalidError, match=f"{named}.* but this sampler has") as caught:
        Sampler(**({"length": 50, "batch_size": 4} | change)).load_state_dict(state)
    assert caught.value.hint


def test_invalid_state_raises() -> None:
    sampler = Sampler(50, 4)
    for name in sampler.state_dict():
        state = sampler.state_dict()
        del state[name]
        if name in {"omitted", "repeated"}:
            sampler.load_state_dict(state)
        else:
            with pytest.raises(errors.InvalidError, match=f"does not have the keys '{name}'"):
                sampler.load_state_dict(state)
    with pytest.raises(errors.InvalidTypeError, match="`state` must be a dict"):
        sampler.load_state_dict([1])  # type: ignore[arg-type]
    for bad in (-1, 2**64):
        with pytest.raises(errors.InvalidError, match="position"):
            sampler.load_state_dict(sampler.state_dict() | {"position": bad})
    with pytest.raises(errors.InvalidTypeError, match="`position` must be an integer"):
        sampler.load_state_dict(sampler.state_dict() | {"position": 1.5})


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"length": 0}, errors.InvalidError, "cannot sample an empty source"),
        ({"length": -1}, errors.InvalidError, "`length` must be at least 0"),
        ({"length": 2**50}, errors.InvalidError, "exceeds the limit of"),
        ({"length": 2**70}, errors.InvalidError, "`length` must be at most"),
        ({"length": 3.0}, errors.InvalidTypeError, "`length` must be an integer, got 3.0"),
        ({"length": True}, errors.InvalidTypeError, "`length` must be an integer, got True"),
        ({"batch_size": 0}, errors.InvalidError, "`batch_size` must be from 1"),
        ({"batch_size": 2**33}, errors.InvalidError, "`batch_size` must be from 1"),
        ({"batch_size": "4"}, errors.InvalidTypeError, "`batch_size` must be an integer"),
        ({"mode": "shufle"}, errors.InvalidError,
         "`mode` must be one of 'shuffle', .*, got 'shufle'"),
        ({"mode": None}, errors.InvalidTypeError, "`mode` must be a string, got None"),
        ({"tail": "cut"}, errors.InvalidError,
         "`tail` must be one of 'wrap', 'drop', 'pad', 'keep', 'error', got 'cut'"),
        ({"tail": 3}, errors.InvalidTypeError, "`tail` must be a string"),
        ({"seed": -1}, errors.InvalidError, "`seed` must be at least 0"),
        ({"seed": 0.5}, errors.InvalidTypeError, "`seed` must be an integer"),
        ({"window": 0}, errors.InvalidError, "`window` and `stride` must be at least 1"),
        ({"window": 2, "stride": 0}, errors.InvalidError, "must be at least 1"),
        ({"window": 11}, errors.InvalidError, "`window` is 11, but the source has only 10 rows"),
        ({"stride": 2}, errors.InvalidError, "`stride` requires `window`"),
        ({"world_size": 0}, errors.InvalidError, "`world_size` must be from 1"),
        ({"rank": 2, "world_size": 2}, errors.InvalidError, "`rank` must be less than"),
        ({"rank": -1}, errors.InvalidError, "`rank` must be at least 0"),
        ({"batch_size": 6, "world_size": 2, "tail": "drop"}, errors.InvalidError,
         "the sampler has no batches: an epoch has 10 samples.* = 12"),
    ],
)  # fmt: skip
def test_invalid_arguments_raise(
    arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Sampler(**({"length": 10, "batch_size": 3} | arguments))


def test_invalid_steps_raise() -> None:
    sampler = Sampler(10, 3)
    with pytest.raises(errors.InvalidError, match="`step` must be at least 0"):
        sampler.seek(-1)
    with pytest.raises(errors.InvalidTypeError, match="`count` must be an integer"):
        sampler.peek(1.5)  # type: ignore[arg-type]
    with pytest.raises(errors.OutOfRangeError, match="exceeds the highest step"):
        sampler.seek(2**62)


def test_numpy_integers_are_integers() -> None:
    sampler = Sampler(np.int64(10), np.uint8(3), seed=np.int32(0))  # type: ignore[arg-type]
    assert listed(sampler.peek(2)) == listed(Sampler(10, 3).peek(2))
    json.dumps(sampler.state_dict())


def test_memory_does_not_grow_with_the_number_of_rows() -> None:
    """Measured in a separate process, by the kernel and by Python."""
    code = """
import json, sys, tracemalloc
from relive import Sampler
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
def use(length, mode):
    samplers = [Sampler(length, 256, mode, seed=s, tail="keep") for s in range(20)]
    for sampler in samplers:
        for batch in sampler.peek(20): assert batch.max() < length
        sampler.seek(3_000_000 // (1 if length > 10 else 1000))
        next(sampler)
found = {}
for mode in ("shuffle", "random", "block", "sequential"):
    use(10, mode)
    tracemalloc.start()
    use(10, mode)
    small, before = tracemalloc.get_traced_memory()[1], resident()
    tracemalloc.reset_peak()
    use(10**9, mode)
    found[mode] = [tracemalloc.get_traced_memory()[1] - small, resident() - before]
    tracemalloc.stop()
json.dump(found, sys.stdout)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for mode, (traced, resident) in json.loads(done.stdout).items():
        # Batches of 256 are larger than batches of ten; a stored order would take 8 GB.
        assert traced < 200_000, mode
        assert resident < 2_000_000, mode
