"""Tests of threads and processes that every source must pass."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np

from tests.contracts.source_contract import (
    SOURCES,
    Make,
    assert_rows,
    ids,
    ids_in_another_process,
    pickled,
)


def test_pickle_round_trip(make_portable: Make) -> None:
    source = pickled(make_portable(10))
    assert_rows(source, source.gather([7, 0, 7]), [7, 0, 7])
    view = pickled(make_portable(10)[2:][[0, 3]])
    assert ids(view) == [2, 5]


def test_spawned_process_reads_the_same_rows(
    make_portable: Make, spawned_pool: ProcessPoolExecutor
) -> None:
    read = spawned_pool.submit(ids_in_another_process, make_portable(10), [7, 0, 7])
    assert read.result(timeout=120) == [7, 0, 7]


def read_in_a_fork(name: str, rows: list[int]) -> list[int]:
    """Make a source, read from it, and read from it in a forked child."""
    source = SOURCES[name](10)
    source.gather([1])  # state created by the first read is inherited
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def child() -> None:
        sender.send(ids_in_another_process(source, rows))

    process = context.Process(target=child)
    process.start()
    sender.close()
    try:
        if not receiver.poll(60):
            raise TimeoutError("the forked child hangs")
        read: list[int] = receiver.recv()
    finally:
        receiver.close()
        process.join(60)
    assert process.exitcode == 0
    assert_rows(source, source.gather([2]), [2])
    return read


def test_forked_process_reads_the_same_rows(
    make_portable: Make, spawned_pool: ProcessPoolExecutor
) -> None:
    """Forked in a separate process: other tests may load libraries that must not be forked."""
    name = next(name for name, known in SOURCES.items() if known is make_portable)
    assert spawned_pool.submit(read_in_a_fork, name, [7, 0, 7]).result(timeout=120) == [7, 0, 7]


def test_concurrent_reads_from_threads(make: Make) -> None:
    source = make(200)

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(20):
            rows = rng.integers(0, 200, size=33)
            assert_rows(source, source.gather(rows), rows)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(read, seed) for seed in range(8)]:
            done.result(timeout=60)
