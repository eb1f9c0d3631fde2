"""Everyone who delivers batches, behind one small interface: one file per peer."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from benches.data import Case

CHECKED_BATCHES = 3

Setting: TypeAlias = "Mapping[str, int | str]"


def nothing() -> None:
    """Do nothing, where a peer has nothing to do."""


@dataclass(frozen=True)
class Stream:
    """An open peer: an endless iterator of batches.

    `ahead` is how many batches it may hold ready while nobody asks; a round
    takes that many before its clock starts. `begin` runs before each round,
    `finish` at the end of the timed part (to wait for a device).
    """

    batches: Iterator[Any]
    to_array: Callable[[Any], NDArray[Any]] | None
    ahead: int = 0
    close: Callable[[], None] = nothing
    begin: Callable[[], None] = nothing
    finish: Callable[[], None] = nothing

    def timed(self, count: int) -> float:
        """Seconds that `count` batches take; the consumer only lets go of each."""
        start = perf_counter()
        for _ in islice(self.batches, count):
            pass
        self.finish()
        return perf_counter() - start

    def check(self, case: Case) -> None:
        """Raise unless the next batches are what the file holds."""
        if self.to_array is not None:
            for batch in islice(self.batches, CHECKED_BATCHES):
                case.check(self.to_array(batch))


class Peer(ABC):
    """One way to deliver batches, with the settings it should be tried at."""

    name: str
    """What tables call it."""
    family: ClassVar[str]
    """What `--only-peers` calls it."""
    packages: ClassVar[tuple[str, ...]]
    """The distributions whose versions belong to its figures."""

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - peers use it
        """All settings to try; the fastest one is timed."""
        return [{}]

    def files(self, case: Case) -> list[Path]:
        """What it reads (a folder stands for all files in it)."""
        return [case.path]

    def prepare(self, case: Case) -> None:  # noqa: B027 - most peers read the file as it is
        """Make its files unless they are there."""

    @abstractmethod
    def open(self, case: Case, setting: Setting) -> Stream:
        """Open `case`; raise whatever comes up when this peer cannot run here."""


def module(name: str) -> Any:
    """Import a peer's module late, so that only its own figures need it."""
    return importlib.import_module(name)


def label(setting: Setting) -> str:
    """A setting in one short string."""
    return " ".join(f"{key}={value}" for key, value in setting.items())
