"""Everyone who records runs and reads them, behind one small interface.

Packages are imported late: a peer whose package is in another environment is described here and
runs there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pathlib import Path

    from benches.replay.scenes import Step

RUN_ID = "bench-run"
ROWS_SQL = (
    "SELECT step_index, action, reward, terminated, truncated FROM steps "
    "WHERE run_id = ? AND episode_id = ? ORDER BY step_index"
)
"""How the rows of an episode are queried."""


class Writer(ABC):
    """A run that is being recorded."""

    @abstractmethod
    def step(self, step: Step) -> None:
        """Record a step; the caller may write over its arrays afterwards."""

    @abstractmethod
    def close(self) -> None:
        """Finish the run: everything is in its files."""


class Reader(ABC):
    """A recorded run, open."""

    @abstractmethod
    def arrays(self, episode: int, first: int, count: int) -> tuple[Any, Any]:
        """The first `count` frames and observations of an episode, as arrays in memory.

        `first` is the row of its first step in the run. `count` is less than all steps only for
        peers that are given fewer.
        """

    def rows(self, episode: int) -> Any:
        """Step index, action, reward and ends of all steps of an episode."""
        del episode
        message = "has no table to query"
        raise NotImplementedError(message)

    def rewards(self, rows: Any) -> list[float]:
        """The rewards among what `rows` returned."""
        return [row[2] for row in rows]

    @abstractmethod
    def close(self) -> None:
        """Close its files."""


class ReplayPeer(ABC):
    """One way to record runs."""

    name: str
    """What tables call it."""
    family: ClassVar[str]
    """What `--only-peers` calls it."""
    packages: ClassVar[tuple[str, ...]]
    """The distributions whose versions belong to its figures."""
    python: ClassVar[Path | None] = None
    """The interpreter it needs, where that is not ours."""
    hint: ClassVar[str] = ""
    """How that interpreter is made."""
    fewer: int = 1
    """How many times fewer steps it writes and loads, because it is slow; rates are of these."""

    @abstractmethod
    def writer(self, root: Path, steps: int) -> Writer:
        """Begin a run of `steps` steps in `root`, which is an empty folder."""

    @abstractmethod
    def reader(self, root: Path) -> Reader:
        """Open the run in `root`."""


def episode_id(episode: int) -> str:
    """The id of an episode by its number, as relive makes it."""
    return f"{RUN_ID}-ep{episode:04d}"
