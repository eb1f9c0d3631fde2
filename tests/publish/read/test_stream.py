"""Shuffled and sharded streams: every row once, resumed exactly, whatever changes in between."""

import gc
import itertools
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from relive import errors
from relive.publish.read.batches import InOrderBatches
from relive.publish.read.dataset import PublishedDataset, dataset
from relive.publish.read.stream import blocks, windows
from relive.publish.read.stream.batch_stream import BatchStream
from relive.publish.read.stream.steps import StepBatches
from relive.publish.read.table import Table
from relive.publish.write.builder import DatasetBuilder
from tests.publish.read.sample_tables import as_stored, every_type, in_files, published, write

ROWS = as_stored(every_type())


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> PublishedDataset:
    """A table of three files with row groups of 70 rows, 17 in all, with a split."""
    folder = tmp_path_factory.mktemp("stream")
    builder = DatasetBuilder("test/data", root=folder / "root")
    builder.add_table(
        "main",
        in_files(ROWS, folder / "files", [123, 650], 70),
        splits={"some": [(5, 17), (60, 75), (100, 400), (410, 411), (412, 990)], "none": []},
    )
    builder.publish()
    return dataset("test/data", root=folder / "root")


@pytest.fixture(scope="module")
def table(ds: PublishedDataset) -> Table:
    return ds.table().select(["i", "s", "d"])


def ids(stream: BatchStream, steps: int | None = None) -> list[list[int]]:
    """Return the numbers of the rows of each batch."""
    return [batch.column("i").to_pylist() for batch in itertools.islice(stream, steps)]


def flat(batches: list[list[int]]) -> list[int]:
    return [row for batch in batches for row in batch]


def merged(ranks: list[list[list[int]]]) -> list[int]:
    """Return the rows of all ranks in the global order; all have the same number of steps."""
    assert len({len(rank) for rank in ranks}) == 1
    return [row for step in zip(*ranks, strict=True) for share in step for row in share]


@pytest.mark.parametrize("prefetch", [0, 1, "auto"])
@pytest.mark.parametrize("window", [None, 1, 64, 70, 100, 192, 320, 333, 5000])
def test_every_row_once_in_another_order_each_epoch(
    table: Table, window: int | None, prefetch: Any
) -> None:
    stream = table.batches(64, shuffle=True, seed=3, window=window, prefetch=prefetch)
    epochs = []
    for epoch in range(2):
        stream.set_epoch(epoch)
        batches = list(stream)
        assert [batch.num_rows for batch in batches] == [64] * 15 + [40]
        rows = pa.Table.from_batches(batches)
        assert rows.sort_by("i").equals(ROWS.select(["i", "s", "d"]))
        epochs.append(rows["i"].to_pylist())
    assert epochs[0] != epochs[1]
    assert epochs[0] != sorted(epochs[0])
    again = table.batches(100, shuffle=True, seed=3, window=window)
    assert (flat(ids(again)) == epochs[0]) or window is None or window > 1
    other = table.batches(64, shuffle=True, seed=4, window=window)
    assert flat(ids(other)) != epochs[0]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("partitions", [None, 1, 2, 3, 8])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_ranks_share_an_epoch(
    table: Table, world: int, partitions: int | None, *, shuffle: bool
) -> None:
    options: dict[str, Any] = {"partitions": partitions, "shuffle": shuffle}
    if shuffle:
        options["window"] = 200
    ranks = [ids(table.batches(30, shard=(rank, world), **options)) for rank in range(world)]
    together = merged(ranks)
    assert sorted(together) == list(range(1000))
    for rank in ranks:
        assert all(len(batch) == 30 for batch in rank[:-1])
    if not shuffle and partitions in {None, world}:
        # Each rank reads its own rows, in order.
        for number, rank in enumerate(ranks):
            rows = flat(rank)
            assert rows == list(range(rows[0], rows[0] + len(rows)))
            assert abs(rows[0] - number * 1000 // world) <= 30
    if partitions == 1:
        assert together == flat(ids(table.batches(30 * world, **options)))


def test_with_one_partition_the_order_is_the_same_for_any_world(table: Table) -> None:
    expected = flat(ids(table.batches(60, shuffle=True, seed=1, partitions=1, window=300)))
    for world in (2, 3, 5):
        ranks = [
            ids(
                table.batches(
                    60 // world, shard=(rank, world), shuffle=True, seed=1, partitions=1, window=300
                )
            )
            for rank in range(world)
        ]
        assert merged(ranks) == expected


def test_ranks_read_only_blocks_of_their_own_partitions(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    original = blocks.TableBlocks.read

    def counted(self: blocks.TableBlocks, numbers: Any) -> Any:
        read.extend(numbers)
        return original(self, numbers)

    monkeypatch.setattr(blocks.TableBlocks, "read", counted)
    for rank in range(4):
        list(table.batches(10, shard=(rank, 4), shuffle=True, window=100))
    count = len(table.block_bounds()) - 1
    assert set(read) == set(range(count))
    assert len(read) <= count + 3  # one at each border is read twice
    read.clear()
    list(table.batches(10, shuffle=True, window=100))
    assert sorted(read) == list(range(count))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_resume_is_exact_three_times_with_other_ranks_and_batch_sizes(
    table: Table, seed: int, *, shuffle: bool
) -> None:
    random = np.random.default_rng(seed)
    options: dict[str, Any] = {"shuffle": shuffle, "seed": seed}
    window = int(random.integers(1, 500)) if shuffle else None
    world, size = int(random.integers(1, 6)), int(random.integers(5, 80))
    partitions = [None, 1, 2, 7][int(random.integers(4))]

    def streams(world: int, size: int, **more: Any) -> list[BatchStream]:
        return [
            table.batches(size, shard=(rank, world), **options, **more) for rank in range(world)
        ]

    first = streams(world, size, window=window, partitions=partitions)
    whole = merged([ids(stream) for stream in first])
    found: list[int] = []
    current = streams(world, size, window=window, partitions=partitions)
    for _ in range(3):
        steps = int(random.integers(min(4, -(-(1000 - len(found)) // (size * world)))))
        found += merged([ids(stream, steps) for stream in current])
        states = [stream.state_dict() for stream in current]
        assert all(state == states[0] for state in states)
        state = json.loads(json.dumps(states[0]))
        world, size = int(random.integers(1, 6)), int(random.integers(5, 60))
        current = streams(world, size)
        for stream in current:
            stream.load_state_dict(state)
    found += merged([ids(stream) for stream in current])
    assert found == whole
    for stream in current:
        assert stream.epoch == 1
        stream.set_epoch(1)
    assert sorted(merged([ids(stream) for stream in current])) == list(range(1000))


def test_state_is_that_of_what_was_returned_not_of_what_was_fetched(table: Table) -> None:
    stream = table.batches(10, shuffle=True, window=100)
    states = [stream.state_dict()]
    rows = []
    for batch in stream:
        rows.append(batch.column("i").to_pylist())
        states.append(stream.state_dict())
    assert [state["position"] for state in states] == [10 * step for step in range(101)]
    for step in (0, 1, 17, 99, 100):
        again = table.batches(10, shuffle=True)
        again.load_state_dict(states[step])
        if step < 100:
            assert ids(again) == rows[step:]
        else:
            assert again.epoch == 1


def test_in_order_streams_resume_with_and_without_a_filter(table: Table) -> None:
    condition = pc.bit_wise_and(pc.field("i"), 3) == 1
    matching = [row for row in range(1000) if row & 3 == 1]
    for limit in (None, 100):
        for filtered, rows in ((None, list(range(1000))), (condition, matching)):
            expected = rows[:limit]
            stream = table.batches(16, filter=filtered, limit=limit)
            found = flat(ids(stream, 5))
            state = stream.state_dict()
            stream = table.batches(7, filter=filtered, limit=limit)
            stream.load_state_dict(state)
            found += flat(ids(stream, 2))
            ranks = [table.batches(9, filter=filtered, limit=limit, shard=(r, 2)) for r in (0, 1)]
            for rank in ranks:
                rank.load_state_dict(stream.state_dict())
            assert found + merged([ids(rank) for rank in ranks]) == expected


def test_a_state_of_something_else_is_refused(
    ds: PublishedDataset, table: Table, tmp_path: Path
) -> None:
    state = table.batches(10, shuffle=True, seed=2).state_dict()
    other = published(tmp_path / "root", {"main": [write(ROWS, tmp_path / "a.parquet", 70)]})
    wrong: list[tuple[BatchStream, str]] = [
        (other.table().batches(10, shuffle=True, seed=2), "digest"),
        (ds.table(split="some").batches(10, shuffle=True, seed=2), "split"),
        (table.filter("i > 3").batches(10, shuffle=True, seed=2), "filter"),
        (table.batches(10, shuffle=True), "seed"),
        (table.batches(10, seed=2), "mode"),
        (table.batches(10, shuffle=True, seed=2, tail="pad"), "tail"),
        (table.batches(10, shuffle=True, seed=2, limit=100), "length"),
        (table.batches(10, shuffle=True, seed=2, window=33), "window"),
        (table.batches(10, shuffle=True, seed=2, partitions=3), "partitions"),
    ]
    for stream, name in wrong:
        with pytest.raises(errors.InvalidError, match=f"saved with {name}="):
            stream.load_state_dict(state)
    right = table.batches(10, shuffle=True, seed=2)
    with pytest.raises(errors.InvalidError, match="'position'"):
        right.load_state_dict({key: state[key] for key in state if key != "position"})
    with pytest.raises(errors.InvalidTypeError):
        right.load_state_dict(5)  # type: ignore[arg-type]
    right.load_state_dict(state)
    filtered = table.filter(pc.field("i") > 3).filter("i < 900").batches(10, seed=2)
    kept = json.loads(json.dumps(filtered.state_dict()))
    filtered.load_state_dict(kept)
    with pytest.raises(errors.InvalidError, match="saved with filter="):
        table.filter(pc.field("i") > 4).filter("i < 900").batches(10, seed=2).load_state_dict(kept)


def test_a_window_requires_shuffling(table: Table) -> None:
    with pytest.raises(errors.InvalidError, match="`window` requires shuffle=True"):
        table.batches(10, window=100)


@pytest.mark.parametrize("shuffle", ["no", 1, None])
def test_shuffle_is_a_bool(table: Table, shuffle: Any) -> None:
    with pytest.raises(errors.InvalidTypeError, match="`shuffle` must be True or False"):
        table.batches(10, shuffle=shuffle)
    assert ids(table.batches(500, shuffle=np.False_))[0] == [*range(500)]  # type: ignore[arg-type]


def test_splits_and_limits(ds: PublishedDataset) -> None:
    some = ds.table(split="some").select(["i"])
    expected = [*range(5, 17), *range(60, 75), *range(100, 400), 410, *range(412, 990)]
    both: list[dict[str, Any]] = [{}, {"window": 50, "partitions": 3}]
    for options in both:
        assert sorted(flat(ids(some.batches(37, shuffle=True, **options)))) == expected
    ranks = [ids(some.batches(37, shuffle=True, shard=(rank, 3))) for rank in range(3)]
    assert sorted(merged(ranks)) == expected
    ranks = [ids(some.batches(10, limit=100, shard=(rank, 3))) for rank in range(3)]
    assert sorted(merged(ranks)) == expected[:100]
    assert sorted(flat(ids(some.batches(10, limit=100, shuffle=True)))) == expected[:100]
    for options in ({}, {"shuffle": True}, {"shard": (1, 2)}):
        assert list(ds.table(split="none").batches(10, **options)) == []
        assert list(some.batches(10, limit=0, **options)) == []


@pytest.mark.parametrize(
    "options", [{"shuffle": True, "window": 200}, {"shard": (0, 1), "partitions": 2}]
)
def test_filters_of_streams(table: Table, monkeypatch: pytest.MonkeyPatch, options: Any) -> None:
    read: list[int] = []
    original = blocks.TableBlocks.read

    def counted(self: blocks.TableBlocks, numbers: Any) -> Any:
        read.extend(numbers)
        return original(self, numbers)

    monkeypatch.setattr(blocks.TableBlocks, "read", counted)
    condition = (pc.field("i") >= 400) & (pc.field("s").is_valid())
    batches = list(table.batches(64, columns=["i"], filter=condition, **options))
    assert len(batches) == 16  # steps count rows before the filter
    assert {tuple(batch.schema.names) for batch in batches} == {("i",)}
    rows = sorted(row for batch in batches for row in batch.column(0).to_pylist())
    assert rows == [row for row in range(400, 1000) if row % 3]
    assert min(read) > 4  # statistics exclude the first row groups
    found = flat(ids(table.batches(64, filter=condition, limit=50, **options)))
    assert sorted(found) == rows[:50]


@pytest.mark.parametrize("shuffle", [False, True])
def test_tails(table: Table, *, shuffle: bool) -> None:
    def ranks(tail: str, size: int, world: int, **options: Any) -> list[list[list[int]]]:
        return [
            ids(table.batches(size, shard=(rank, world), shuffle=shuffle, tail=tail, **options))
            for rank in range(world)
        ]

    for world in (1, 3):
        kept = ranks("keep", 90, world)
        assert sorted(merged(kept)) == list(range(1000))
        lasts = [len(rank[-1]) for rank in kept]
        assert max(lasts) - min(lasts) <= 1
        dropped = ranks("drop", 90, world)
        steps = 1000 // (90 * world)
        assert [[len(batch) for batch in rank] for rank in dropped] == [[90] * steps] * world
        assert len(set(merged(dropped))) == 90 * world * steps
        padded = ranks("pad", 90, world)
        assert [[len(batch) for batch in rank] for rank in padded] == [[90] * (steps + 1)] * world
        assert set(merged(padded)) == set(range(1000))
        with pytest.raises(errors.InvalidError, match="last step"):
            ranks("error", 90, world)
        assert len(set(merged(ranks("error", 10, 4)))) == 1000
        with pytest.raises(errors.InvalidError, match="no batches"):
            ranks("drop", 1001, world)
    stream = table.batches(90, shuffle=shuffle, tail="drop")
    assert len(list(stream)) == 11
    assert stream.state_dict()["omitted"] == 10
    assert stream.state_dict()["position"] == 1000


@pytest.mark.parametrize("shuffle", [False, True])
def test_no_rank_is_silently_empty(table: Table, *, shuffle: bool) -> None:
    with pytest.raises(errors.InvalidError, match="5 rows for 8 ranks"):
        table.batches(4, shard=(7, 8), limit=5, shuffle=shuffle)
    ranks = [
        ids(table.batches(4, shard=(rank, 8), limit=5, shuffle=shuffle, tail="pad"))
        for rank in range(8)
    ]
    assert all(len(flat(rank)) == 4 for rank in ranks)
    assert set(merged(ranks)) == set(range(5))
    # The last step may have fewer rows than ranks; all ranks take the same number of steps.
    ranks = [ids(table.batches(4, shard=(r, 8), limit=35, shuffle=shuffle)) for r in range(8)]
    assert [len(rank) for rank in ranks] == [2] * 8
    assert sorted(merged(ranks)) == list(range(35))
    with pytest.raises(errors.InvalidError, match="at most"):
        table.batches(4, partitions=5, shuffle=shuffle)


def test_large_row_groups_count_as_several_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 2000)
    rows = ROWS.select(["i", "s"])
    table = published(tmp_path, {"main": [write(rows, tmp_path / "a.parquet", 400)]}).table()
    bounds = table.block_bounds()
    assert len(bounds) > 6
    assert np.diff(bounds).max() < 200
    found = pa.Table.from_batches(list(table.batches(64, shuffle=True, window=100)))
    assert found.sort_by("i").equals(rows)


def test_every_type_is_read(ds: PublishedDataset) -> None:
    found = pa.Table.from_batches(list(ds.table().batches(64, shuffle=True, window=300)))
    found = found.take(pc.sort_indices(found, sort_keys=[("i", "ascending")]))
    assert repr(found.to_pydict()) == repr(ROWS.to_pydict())
    assert found.schema.equals(ROWS.schema)


def test_block_bounds(ds: PublishedDataset, table: Table) -> None:
    starts = [0, 70, 123, 193, 263, 333, 403, 473, 543, 613, 650, 720, 790, 860, 930, 1000]
    assert table.block_bounds().tolist() == starts
    some = ds.table(split="some")
    assert some.block_bounds()[-1] == len(some)
    filtered = table.filter(pc.field("i") > 190)
    assert filtered.block_bounds().tolist() == [0, 2, *(start - 191 for start in starts[4:])]
    assert ds.table(split="none").block_bounds().tolist() == [0]


@pytest.fixture
def small_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """A table of 40 row groups, of which little is fetched ahead."""
    monkeypatch.setattr(windows, "AHEAD_BYTES", 1000)
    rows = pa.table({"i": np.arange(2000), "x": np.random.default_rng(0).random(2000)})
    return published(tmp_path, {"main": [write(rows, tmp_path / "a.parquet", 50)]}).table()


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("relive-batches")]


def wait_for_no_threads() -> None:
    deadline = time.monotonic() + 20
    while threads() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert threads() == []


def test_threads_end_with_the_stream(small_windows: Table) -> None:
    stream = small_windows.batches(10, shuffle=True, window=100)
    next(stream)
    assert threads()
    stream.close()
    assert threads() == []
    assert list(stream) == []
    with small_windows.batches(10, shuffle=True, window=100) as stream:
        assert sum(batch.num_rows for batch in stream) == 2000
        assert threads() == []
    for number, _ in enumerate(small_windows.batches(10, shuffle=True, window=100)):
        if number == 20:
            break
    del stream
    wait_for_no_threads()


def test_what_is_held_is_bounded(small_windows: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 0
    original = windows.WindowReader.enter

    def watched(self: windows.WindowReader, keys: Any) -> None:
        nonlocal most
        original(self, keys)
        with self._lock:
            held = len(self._windows), len(self._held)
        most = max(most, *held)

    monkeypatch.setattr(windows.WindowReader, "enter", watched)
    assert len(list(small_windows.batches(10, shuffle=True, window=150))) == 200
    assert most <= 9  # of 40 blocks


def test_first_batch_is_fetched_alone(
    small_windows: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    original = blocks.TableBlocks.read

    def counted(self: blocks.TableBlocks, numbers: Any) -> Any:
        read.extend(numbers)
        return original(self, numbers)

    monkeypatch.setattr(blocks.TableBlocks, "read", counted)
    stream = small_windows.batches(10, shuffle=True, window=150, prefetch="auto")
    step = stream._begin()
    assert step is not None
    step.close()
    next(stream)
    assert len(read) <= 4 + 2
    time.sleep(0.2)
    assert len(read) <= 4 + 2
    stream.close()


def test_an_error_ends_the_stream(small_windows: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    original = blocks.TableBlocks.read
    calls: list[int] = []

    def failing(self: blocks.TableBlocks, numbers: Any) -> Any:
        calls.append(1)
        if len(calls) == 5:
            raise errors.StorageError("no")
        return original(self, numbers)

    monkeypatch.setattr(blocks.TableBlocks, "read", failing)
    whole: list[int] = []
    stream = small_windows.batches(10, shuffle=True, window=200)
    with pytest.raises(errors.StorageError):
        whole.extend(row for batch in stream for row in batch.column("i").to_pylist())
    assert list(stream) == []
    state = stream.state_dict()
    assert state["position"] == len(whole)
    stream.load_state_dict(state)  # and continues where it failed
    assert sorted(whole + flat(ids(stream))) == list(range(2000))
    wait_for_no_threads()


def test_ctrl_c_loses_no_row(small_windows: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    original = blocks.TableBlocks.read
    calls: list[int] = []

    def slow(self: blocks.TableBlocks, numbers: Any) -> Any:
        calls.append(1)
        if len(calls) in {1, 4}:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)
        return original(self, numbers)

    monkeypatch.setattr(blocks.TableBlocks, "read", slow)
    stream = small_windows.batches(100, shuffle=True, window=200)
    found: list[int] = []
    interrupts = 0
    while True:
        try:
            batch = next(stream, None)
        except KeyboardInterrupt:
            interrupts += 1
            continue
        if batch is None:
            break
        found += batch.column(0).to_pylist()
    assert interrupts
    assert sorted(found) == list(range(2000))


@pytest.mark.parametrize("kind", [InOrderBatches, StepBatches])
@pytest.mark.parametrize("place", ["next", "_move"])
@pytest.mark.parametrize("at", [1, 2, 7])
def test_ctrl_c_after_a_batch_was_taken_loses_no_row(
    small_windows: Table, monkeypatch: pytest.MonkeyPatch, kind: Any, place: str, at: int
) -> None:
    original = getattr(kind if place == "next" else BatchStream, place)
    calls: list[int] = []

    def interrupted(self: Any) -> Any:
        batch = original(self)
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt
        return batch

    monkeypatch.setattr(kind if place == "next" else BatchStream, place, interrupted)
    is_shuffled = kind is StepBatches
    stream = small_windows.batches(100, shuffle=is_shuffled, window=200 if is_shuffled else None)
    found = [n for _ in range(at - 1) for n in next(stream).column(0).to_pylist()]
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    state = stream.state_dict()
    assert len(found) == 100 * (at - 1)
    for batch in stream:
        found += batch.column(0).to_pylist()
    assert sorted(found) == list(range(2000))
    assert stream.stats()["rows"] == 2000
    again = small_windows.batches(100, shuffle=is_shuffled, window=200 if is_shuffled else None)
    again.load_state_dict(state)
    assert [n for batch in again for n in batch.column(0).to_pylist()] == found[100 * (at - 1) :]


def test_set_epoch_continues_in_the_same_epoch(table: Table) -> None:
    stream = table.batches(100, shuffle=True)
    assert stream.epoch == 0
    stream.set_epoch(2)
    first = ids(stream, 3)
    stream.set_epoch(2)
    rest = ids(stream)
    assert stream.epoch == 3
    assert sorted(flat(first + rest)) == list(range(1000))
    stream.set_epoch(2)
    assert ids(stream) == first + rest
    assert list(stream) == []  # until set_epoch
    with pytest.raises(errors.InvalidError):
        stream.set_epoch(-1)


def test_stats_and_log(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    stream = table.batches(100, shuffle=True)
    with caplog.at_level("INFO", "relive.publish"):
        list(stream)
    stats = stream.stats()
    assert (stats["rows"], stats["batches"]) == (1000, 10)
    assert stats["requests"] > 0
    assert stats["bytes"] > 0
    assert stats["hits"] == 0
    assert stats["stall_s"] > 0
    assert "end of epoch 0" in caplog.text


def environment(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_shard_from_the_environment(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch)
    assert len(flat(ids(table.batches(100, shard="auto")))) == 1000
    expected = ids(table.batches(100, shard=(1, 3)))
    for prefix, others in (("", {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}), ("LOCAL_", {})):
        environment(monkeypatch, **{f"{prefix}RANK": "1", f"{prefix}WORLD_SIZE": "3"}, **others)
        assert ids(table.batches(100, shard="auto")) == expected
        for name, value in (("RANK", "1"), ("WORLD_SIZE", "3")):
            environment(monkeypatch, **{prefix + name: value})
            with pytest.raises(errors.InvalidError, match=f"{prefix}{name} is set") as caught:
                table.batches(100, shard="auto")
            assert "shard=(rank, world_size)" in (caught.value.hint or "")
        for rank, world in (("x", "3"), ("3", "3"), ("-1", "3")):
            environment(monkeypatch, **{f"{prefix}RANK": rank, f"{prefix}WORLD_SIZE": world})
            with pytest.raises(errors.InvalidError, match=f"{prefix}RANK"):
                table.batches(100, shard="auto")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"shard": (2, 2)}, errors.InvalidError),
        ({"shard": (0, 0)}, errors.InvalidError),
        ({"shard": "all"}, errors.InvalidError),
        ({"shard": 3}, errors.InvalidTypeError),
        ({"shard": (0, 1, 2)}, errors.InvalidTypeError),
        ({"window": 0, "shuffle": True}, errors.InvalidError),
        ({"partitions": 0}, errors.InvalidError),
        ({"seed": -1}, errors.InvalidError),
        ({"tail": "wrap"}, errors.InvalidError),
        ({"tail": "drop", "filter": pc.field("i") > 3}, errors.InvalidError),
    ],
    ids=str,
)
def test_wrong_arguments(table: Table, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        table.batches(**options)
