"""Recording episodes into a root that any number of processes may share."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from relive.episodes.layout import reserve_episode
from relive.episodes.write.episode_writer import DiskEpisodeWriter
from relive.episodes.write.options import SpecLike, as_options
from relive.store.atomic import storage_error
from relive.store.paths import absolute_path
from relive.store.queue import Overload

__all__ = ["LocalDatasetWriter"]


class LocalDatasetWriter:
    """Records episodes into a root, which is made where it is missing.

    Several writers, in as many processes, may record into one root at the same time. Pickles by
    its path and options. Each option holds for all episodes, and may be another in `new_episode`.

    Args:
        root: The folder of the dataset.
        video: How cameras are encoded; see `DiskEpisodeWriter`.
        signals: The same for signals by name.
        overload: What becomes of frames that come too fast.
        queue: How many frames may wait for each encoder.
        on_error: What becomes of an episode whose block raises.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        video: SpecLike | None = None,
        signals: Mapping[str, SpecLike] | None = None,
        overload: Overload | None = None,
        queue: int | None = None,
        on_error: str | None = None,
    ) -> None:
        self._path = Path(absolute_path(root, "a dataset"))
        self._options = as_options(
            video=video, signals=signals, overload=overload, queue=queue, on_error=on_error
        )
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error(error, self._path, "created") from error

    @property
    def path(self) -> Path:
        """The folder of the dataset."""
        return self._path

    def new_episode(
        self,
        *,
        video: SpecLike | None = None,
        signals: Mapping[str, SpecLike] | None = None,
        overload: Overload | None = None,
        queue: int | None = None,
        on_error: str | None = None,
        uid: str | None = None,
        created_ts_ns: int | None = None,
    ) -> DiskEpisodeWriter:
        """Begin an episode behind all that are there.

        What is given holds for this one; `signals` are added to those of the dataset. `uid` and
        `created_ts_ns` are for a copy of another episode.
        """
        options = self._options.with_changes(
            video=video, signals=signals, overload=overload, queue=queue, on_error=on_error
        )
        folder = reserve_episode(self._path)
        return DiskEpisodeWriter.reserved(folder, options, uid=uid, created_ts_ns=created_ts_ns)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Do nothing: each episode ends by itself."""

    def __repr__(self) -> str:
        """Give the root, on one line."""
        return f"{type(self).__name__}({os.fspath(self._path)})"
