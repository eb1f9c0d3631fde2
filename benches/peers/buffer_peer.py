"""Everyone who keeps transitions and draws batches of them, behind one small interface.

Packages are imported late: a peer whose package is in another environment is described here and
runs there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from benches.peers import Setting
    from benches.replay.stacks import Block

BATCH = 256
ALPHA, BETA = 0.6, 0.4
BUFFERS_PYTHON = Path(".venv-buffers/bin/python")
BUFFERS_HINT = (
    "python -m venv .venv-buffers; .venv-buffers/bin/pip install -r benches/replay/buffers.txt"
)


@dataclass(frozen=True)
class Drawn:
    """What a batch has, to be checked."""

    numbers: NDArray[np.int64]
    """The number of each step, which is recorded as its action."""
    observation: Any
    next_observation: Any


class Buffer(ABC):
    """Transitions that are kept, and batches of them."""

    ahead: int = 0
    """How many batches it may hold ready while nothing is drawn."""
    is_filled: bool = False
    """Whether it has all steps already, in files that were kept."""

    @abstractmethod
    def add(self, block: Block) -> None:
        """Add consecutive steps of one environment."""

    def complete(self) -> None:  # noqa: B027 - most have nothing to do
        """All steps were added; from now on batches are drawn."""

    def settings(self) -> Sequence[Setting]:
        """All settings to try; the fastest one is used."""
        return [{}]

    def use(self, setting: Setting) -> None:  # noqa: B027 - most have one setting
        """Draw with these settings."""

    @abstractmethod
    def draw(self) -> Any:
        """The next batch; where there are priorities, those of the batch are then changed."""

    @abstractmethod
    def drawn(self, batch: Any) -> Drawn:
        """The steps of a batch."""

    @abstractmethod
    def array_bytes(self) -> int:
        """The bytes of the arrays that it keeps, in memory or in files."""

    def files(self) -> list[Path]:
        """The files that it reads."""
        return []

    def reopen(self) -> None:
        """Open its files again, so that it has nothing of them in memory."""
        message = "is kept in memory"
        raise NotImplementedError(message)

    def close(self) -> None:  # noqa: B027 - most have nothing to do
        """Close its files."""


class BufferPeer(ABC):
    """One way to keep transitions."""

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
    kind: str
    """Which kind of it: the only argument that it is made of."""
    is_prioritized: bool = False

    @abstractmethod
    def buffer(self, folder: Path, steps: int, shape: tuple[int, ...]) -> Buffer:
        """A buffer for so many steps; `shape` is that of an observation."""


def new_priorities() -> NDArray[np.float64]:
    """Priorities for 64 batches, which repeat: nobody computes them while the clock runs."""
    return np.random.default_rng(1).random((64, BATCH)) + 0.01
