"""Everyone who records robots and reads them back, behind one small interface.

Packages are imported late: a peer whose package lives in another environment is described
here and runs there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from benches.data import files_under

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    Picture: TypeAlias = "NDArray[np.uint8]"
    Ways: TypeAlias = "dict[str, Callable[[Sequence[int]], Any]]"


class Recorder(ABC):
    """An episode that is being recorded."""

    whole_ticks: bool = False
    """Whether it takes all cameras in one call, which is then that of the last one."""

    @abstractmethod
    def state(self, ts_ns: int, row: NDArray[np.float32]) -> None:
        """Append a state."""

    @abstractmethod
    def frame(self, camera: int, ts_ns: int, picture: Picture) -> None:
        """Append a picture of a camera; the caller may write over it afterwards."""

    @abstractmethod
    def close(self) -> None:
        """Finish the episode: everything is in its files."""


class VectorWriter(ABC):
    """One signal of vectors that is being recorded."""

    append: Callable[[Any, Any], None]
    """Append a row with its time, which `stamp` made."""

    def stamp(self, ts_ns: int) -> Any:
        """A time as this writer takes it."""
        return ts_ns

    @abstractmethod
    def close(self) -> None:
        """Finish the signal: everything is in its file."""


class Camera(ABC):
    """The pictures of one camera of one episode, open."""

    @abstractmethod
    def frame(self, row: int) -> Any:
        """One picture."""

    @abstractmethod
    def batches(self) -> Ways:
        """The ways to read pictures in any order into one array; the fastest is timed."""

    @abstractmethod
    def windows(self) -> Ways:
        """The ways to read some pictures that follow one another into one array."""

    @abstractmethod
    def scan(self, count: int) -> Iterator[Any]:
        """The first `count` pictures, one after the other."""

    def picture(self, given: Any) -> Picture:
        """What was read, as height by width by three bytes."""
        found: Picture = given
        return found


class EpisodePeer(ABC):
    """One library. What it cannot do raises `NotImplementedError`, and is reported so."""

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
    appends: ClassVar[int | None] = None
    """The most rows it is asked to append one by one, where it takes long."""

    def environment(self, folder: Path) -> dict[str, str]:
        """What its interpreter needs in its environment; `folder` is for what that points to."""
        del folder
        return {}

    @abstractmethod
    def recorder(self, root: Path) -> Recorder:
        """Begin the only episode in `root`, which is a new folder."""

    @abstractmethod
    def camera(self, root: Path, camera: int) -> Camera:
        """Open a camera of the episode in `root`."""

    def vector_writer(self, path: Path) -> VectorWriter:
        """Begin a signal of vectors at `path`."""
        raise lacking(path)

    def vectors(self, path: Path) -> Any:
        """Open the signal at `path`; `.time[…]` selects by what `times` makes of times."""
        raise lacking(path)

    def first_value(self, path: Path) -> Any:
        """Open the signal at `path` and give its first record."""
        return self.vectors(path)[0]

    def times(self, times: Sequence[int]) -> Sequence[Any]:
        """Times in nanoseconds as this library takes them."""
        return times

    def time_arrays(self, times: NDArray[np.int64]) -> Any:
        """Many times at once, as this library takes them fastest."""
        return self.times(times.tolist())

    def open_episode(self, root: Path) -> Any:
        """Open the episode in `root`; give length, first and last time of all signals."""
        raise lacking(root)

    def write_many(self, root: Path, episodes: int) -> None:
        """Write `episodes` short episodes without pictures to `root`."""
        raise lacking(root, episodes)

    def open_many(self, root: Path) -> int:
        """Open what `write_many` wrote; give how many episodes there are."""
        raise lacking(root)

    def sizes(self, root: Path) -> dict[str, int]:
        """Bytes of each signal of the episode in `root`, and of what belongs to none."""
        return by_name(root, lambda path: path.name)


def lacking(*_: object) -> NotImplementedError:
    """What a library raises that has no such operation."""
    return NotImplementedError("has no such operation")


def by_name(root: Path, name: Callable[[Path], str]) -> dict[str, int]:
    """Bytes of the files under `root`, by what they belong to."""
    found: dict[str, int] = {}
    for path in sorted(files_under(root)):
        key = name(path)
        found[key] = found.get(key, 0) + path.stat().st_size
    return found


def signal_of(path: Path, names: Sequence[str]) -> str:
    """The signal a file belongs to, by the beginning of its name, or `rest`."""
    return next((name for name in names if path.name.startswith(f"{name}.")), "rest")
