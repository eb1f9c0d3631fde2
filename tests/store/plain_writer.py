"""A writer that writes nothing, for tests and programs of its life cycle."""

from collections.abc import Callable
from typing import Any

from relive.store.lifecycle import WriterLifecycle


class Writer(WriterLifecycle):
    """Calls a function with the name of its end."""

    def __init__(self, ended: Callable[[str], object], *, is_part: bool = False) -> None:
        self._ended = ended
        super().__init__(is_part=is_part)

    def sync(self) -> None:
        self._ended("sync")

    def _finish(self) -> None:
        self._ended("close")

    def _remove(self) -> None:
        self._ended("abort")

    def _keep_unfinished(self) -> None:
        self._ended("leave")

    def _destination(self) -> str:
        return "thing"


def in_cycle(writer: Writer) -> list[Any]:
    cycle: list[Any] = [writer]
    cycle.append(cycle)
    return cycle
