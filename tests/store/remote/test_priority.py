"""Reads ahead of time yield to reads that are waited for."""

import multiprocessing
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from relive.store.prefetch import Prefetch
from relive.store.remote import fork_proxy
from relive.store.remote.priority import ReadAhead, Turns, is_ahead
from relive.store.remote.ranges import Piece
from relive.store.roots import open_root
from tests.servers import Faults, FaultyServer


class Queue:
    """Threads that wait for their turn; `order` has the names of those that got it."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.order: list[str] = []
        self.threads: list[threading.Thread] = []

    def wait(self, name: str, ahead: ReadAhead | None = None) -> None:
        """Let another thread wait for its turn."""
        count = len(self.turns._waiting)
        self.threads.append(threading.Thread(target=self._run, args=(name, ahead)))
        self.threads[-1].start()
        while len(self.turns._waiting) == count:
            time.sleep(0.001)

    def join(self) -> list[str]:
        """Return the order, after all had their turn."""
        for thread in self.threads:
            thread.join(10)
        return self.order

    def _run(self, name: str, ahead: ReadAhead | None) -> None:
        if ahead is None:
            self._take(name)
        else:
            with ahead:
                self._take(name)

    def _take(self, name: str) -> None:
        with self.turns.turn():
            self.order.append(name)


def test_turns_are_in_order_and_reads_ahead_come_last() -> None:
    queue = Queue()
    with queue.turns.turn():
        queue.wait("ahead 1", ReadAhead())
        queue.wait("first")
        queue.wait("ahead 2", ReadAhead())
        queue.wait("second")
    assert queue.join() == ["first", "second", "ahead 1", "ahead 2"]


def test_expected_reads_are_no_longer_ahead() -> None:
    queue, expected = Queue(), ReadAhead()
    with queue.turns.turn():
        queue.wait("ahead", ReadAhead())
        queue.wait("expected", expected)
        queue.wait("last")
        expected.expect()
    assert queue.join() == ["expected", "last", "ahead"]


def test_a_turn_that_is_interrupted_is_given_back() -> None:
    turns = Turns()
    with pytest.raises(KeyboardInterrupt), turns.turn():
        raise KeyboardInterrupt
    with turns.turn():
        pass


def test_contexts_are_nested_and_belong_to_a_thread() -> None:
    outer, inner = ReadAhead(), ReadAhead()
    with outer:
        with inner:
            inner.expect()
            assert not is_ahead()
        assert is_ahead()
        found: list[bool] = []
        thread = threading.Thread(target=lambda: found.append(is_ahead()))
        thread.start()
        thread.join()
        assert found == [False]
    assert not is_ahead()


def test_prefetch_reads_ahead_until_its_consumer_waits() -> None:
    seen: list[tuple[int, bool]] = []
    go = threading.Event()

    def work(number: int) -> int:
        if number:
            seen.append((number, is_ahead()))
            go.wait(10)
            seen.append((number, is_ahead()))
        return number

    results = Prefetch(work, range(2), workers=1, ahead=2)
    assert next(results) == 0
    while not seen:
        time.sleep(0.001)
    threading.Timer(0.2, go.set).start()
    assert next(results) == 1
    assert seen == [(1, True), (1, False)]
    results.close()


def test_reads_ahead_are_split_by_bytes() -> None:
    most = fork_proxy.AHEAD_BYTES
    sizes = [most // 2, most // 2, 1, most * 2, 5, 6]
    pieces = [Piece("a", 0, size, number) for number, size in enumerate(sizes)]
    parts = [[piece.number for piece in part] for part in fork_proxy._parts(pieces)]
    assert parts == [[0, 1], [2], [3], [4, 5]]


def read_in_a_fork(url: str) -> list[Any]:
    """Read in a forked process, which has a prefetch of many parts under way."""
    root = open_root(url)
    root.get("file")  # obstore's threads are running when the process is forked
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply_async(_read_both, (url,)).get(timeout=60)


def _read_both(url: str) -> list[Any]:
    fork_proxy.AHEAD_BYTES = 1  # type: ignore[misc] # every range is a call
    root = open_root(url)
    root.get("file")  # starts the helper process
    done: list[str] = []
    ahead = ReadAhead()

    def read(name: str, count: int) -> None:
        ranges = [("file", 10 * at, 10 * at + 5) for at in range(count)]
        assert [*map(bytes, root.read_ranges(ranges, gap=0))] == [b"01234"] * count
        done.append(name)

    def prefetch() -> None:
        with ahead:
            read("ahead", 10)

    first = threading.Thread(target=prefetch)
    first.start()
    time.sleep(0.35)
    begin = time.monotonic()
    read("waited for", 3)
    waited_s = time.monotonic() - begin
    first.join()
    return [done, waited_s]


@pytest.mark.needs("obstore")
def test_waited_for_reads_overtake_a_prefetch_in_a_forked_process(
    spawned_pool: ProcessPoolExecutor,
) -> None:
    with FaultyServer({"root/file": b"0123456789" * 100}, Faults(wait_s=0.1)) as server:
        work = spawned_pool.submit(read_in_a_fork, f"{server.url}/root")
        done, waited_s = work.result(timeout=90)
    assert done == ["waited for", "ahead"]
    # At most the call that is under way, then one call with all three ranges at once.
    assert waited_s < 0.8
