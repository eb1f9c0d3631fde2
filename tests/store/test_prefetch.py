"""Prefetched results: order, position of errors, and the end of the threads."""

import gc
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Generator, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from relive.errors import ClosedError
from relive.store.prefetch import Prefetch


@pytest.mark.parametrize(("workers", "ahead"), [(1, 1), (1, 5), (3, 1), (4, 9)])
def test_results_come_in_order(workers: int, ahead: int) -> None:
    def slow_where_even(number: int) -> int:
        time.sleep(0.001 * (number % 2 == 0))
        return number * 10

    found = list(Prefetch(slow_where_even, range(50), workers=workers, ahead=ahead))
    assert found == list(range(0, 500, 10))


def test_at_most_ahead_results_are_computed_beyond_the_consumed_one() -> None:
    made: list[int] = []
    results = Prefetch(made.append, range(100), workers=2, ahead=3)
    next(results)
    next(results)
    deadline = time.monotonic() + 5
    while len(made) < 5 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.02)
    assert sorted(made) == [0, 1, 2, 3, 4]
    results.close()


def test_items_are_read_on_the_threads() -> None:
    readers: set[str] = set()

    def items() -> Iterator[int]:
        for number in range(3):
            readers.add(threading.current_thread().name)
            yield number

    assert list(Prefetch(int, items(), name="relive-test")) == [0, 1, 2]
    assert all(name.startswith("relive-test") for name in readers)


def test_error_of_the_function_is_raised_at_its_position() -> None:
    def refuse_two(number: int) -> int:
        if number == 2:
            raise ValueError("two")
        return number

    results = Prefetch(refuse_two, range(4), workers=2, ahead=4)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="two"):
        next(results)
    assert list(results) == [3]


def test_error_of_the_items_is_raised_after_the_results() -> None:
    def items() -> Iterator[int]:
        yield 0
        yield 1
        raise OSError("gone")

    results = Prefetch(int, items(), workers=2, ahead=4)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(OSError, match="gone"):
        next(results)
    assert list(results) == []


def test_close_waits_for_running_calls_and_closes_a_generator() -> None:
    events: list[str] = []

    def items() -> Generator[int]:
        try:
            yield from range(1000)
        finally:
            events.append("closed")

    def work(number: int) -> int:
        time.sleep(0.02)
        events.append("done")
        return number

    results = Prefetch(work, items(), ahead=2)
    next(results)
    results.close()
    assert events[-1] == "closed"
    assert len(events) <= 4
    assert list(results) == []
    results.close()


def test_deleted_iterator_ends_its_threads() -> None:
    results = Prefetch(int, range(1000), workers=2, ahead=2, name="relive-dropped")
    next(results)
    del results
    deadline = time.monotonic() + 5
    while any(thread.name.startswith("relive-dropped") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_interrupt_while_waiting_loses_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    from concurrent.futures import Future

    results = Prefetch(int, range(4))
    assert next(results) == 0
    with monkeypatch.context() as patched:

        def interrupted(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        patched.setattr(Future, "exception", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(results)
    assert list(results) == [1, 2, 3]


def fork_and_continue() -> tuple[int, list[int]]:
    """Fork; return the exit status of the child, and what the parent reads afterwards."""
    results = Prefetch(int, range(4))
    next(results)
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(ClosedError, match="before the process was forked"):
                next(results)
            results.close()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the exit status reports it
            traceback.print_exc()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), list(results)


def test_forked_child_raises(spawned_pool: ProcessPoolExecutor) -> None:
    assert spawned_pool.submit(fork_and_continue).result(timeout=60) == (0, [1, 2, 3])


def test_items_that_count_too_much_wait_for_room() -> None:
    running: list[int] = []
    most: list[int] = []

    def work(item: int) -> int:
        running.append(item)
        most.append(len(running))
        time.sleep(0.002)
        running.remove(item)
        return item

    results = Prefetch(work, range(60), workers=8, ahead=8, size=lambda _: 10, most=30)
    assert list(results) == list(range(60))
    assert max(most) <= 3
    large = Prefetch(work, range(5), workers=4, ahead=4, size=lambda item: 100 * item, most=30)
    assert list(large) == list(range(5))


def test_a_stream_without_room_that_is_left_alone_ends_its_threads() -> None:
    results = Prefetch(abs, range(100), workers=3, ahead=6, name="left", size=lambda _: 9, most=10)
    assert next(results) == 0
    time.sleep(0.05)
    del results
    gc.collect()
    deadline = time.monotonic() + 20
    while any(thread.name.startswith("left") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_python_exits_while_an_item_waits_for_room() -> None:
    program = (
        "from relive.store.prefetch import Prefetch\n"
        "left = Prefetch(abs, range(100), workers=3, ahead=6, size=lambda _: 9, most=10)\n"
        "print(next(left))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "0\n"
