"""Starts processes that end with their test, and counts the files that this one has open."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path


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


def open_files(folder: Path) -> int:
    """Count the open files in a folder; other threads may have others, and sockets, open."""
    found = 0
    for link in list(Path("/proc/self/fd").iterdir()):
        try:
            found += str(link.readlink()).startswith(f"{folder}/")
        except OSError:
            continue
    return found
