"""The clock of recordings follows the wall clock at first, and the monotonic clock from then on."""

import subprocess
import sys
import threading
import time

import pytest

from relive.episodes import now_ns

STEPPED = """
import time
wall = time.time_ns
from relive.episodes import now_ns
first = now_ns()
assert abs(first - wall()) < 10**9
time.time_ns = lambda: wall() - 3600 * 10**9   # the clock of the machine is set back
second = now_ns()
assert 0 < second - first < 10**9
"""


def test_now_ns_is_an_integer_near_the_wall_clock() -> None:
    assert type(now_ns()) is int
    assert abs(now_ns() - time.time_ns()) < 3600 * 10**9


def test_now_ns_never_decreases_in_any_thread() -> None:
    seen: list[list[int]] = [[] for _ in range(4)]

    def look(into: list[int]) -> None:
        into.extend(now_ns() for _ in range(5000))

    threads = [threading.Thread(target=look, args=(each,)) for each in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for stamps in seen:
        assert stamps == sorted(stamps)
    assert max(map(max, seen)) - min(map(min, seen)) < 60 * 10**9


def test_now_ns_ignores_changes_of_the_wall_clock() -> None:
    done = subprocess.run([sys.executable, "-c", STEPPED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_now_ns_advances_like_the_monotonic_clock() -> None:
    before, began = now_ns(), time.monotonic_ns()
    time.sleep(0.02)
    assert now_ns() - before == pytest.approx(time.monotonic_ns() - began, abs=5_000_000)
