"""Starts processes that end with their test."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess


@contextmanager
def running(processes: Sequence[BaseProcess]) -> Iterator[None]:
    """Start `processes`, and kill those that still run at the end, even when the test fails."""
    try:
        for process in processes:
            process.start()
        yield
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()
