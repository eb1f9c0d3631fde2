"""Records episodes into a dataset that any number of processes may share."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from relive.episodes.layout import create_episode
from relive.episodes.write.episode_writer import DiskEpisodeWriter
from relive.episodes.write.options import SpecLike, as_options
from relive.store.atomic import storage_error
from relive.store.paths import absolute_path
from relive.store.queue import Overload


class LocalDatasetWriter:
    """Records episodes into the directory of a dataset, which is created if it does not exist.

    Several writers, in as many processes, may record into one dataset at the same time. Pickles
    by its path and options, which are the defaults of `new_episode`.

    Args:
        root: The directory of the dataset.
        video: How cameras are encoded; see `DiskEpisodeWriter`.
        signals: The same for signals by name.
        overload: What happens to a frame that is appended when the queue is full.
        queue: The number of frames that may wait for each encoder.
        on_error: What an exception in the `with` block of an episode does.

    Example:
        >>> from relive import LocalDataset, LocalDatasetWriter
        >>> writer = LocalDatasetWriter("kitchen")
        >>> for task in ("pick", "place"):
        ...     with writer.new_episode() as episode:
        ...         episode.set_static("task", task)
        ...         episode.append("height", 0.5, ts_ns=0)
        >>> [episode["task"] for episode in LocalDataset("kitchen")]
        ['pick', 'place']
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
        self._options: dict[str, Any] = {
            "video": video,
            "overload": overload,
            "queue": queue,
            "on_error": on_error,
        }
        as_options(signals=signals, **self._options)
        self._signals = dict(signals or {})
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error(error, self._path, "create") from error

    @property
    def path(self) -> Path:
        """The directory of the dataset."""
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
        """Create an episode after all existing ones.

        The arguments replace those of the dataset for this episode; `signals` are added to those
        of the dataset. `uid` and `created_ts_ns` are for a copy of another episode.
        """
        given = {"video": video, "overload": overload, "queue": queue, "on_error": on_error}
        options = self._options | {key: each for key, each in given.items() if each is not None}
        as_options(signals=signals)
        options["signals"] = {**self._signals, **(signals or {})}
        return create_episode(
            self._path,
            lambda path: DiskEpisodeWriter(path, **options, uid=uid, created_ts_ns=created_ts_ns),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: each episode is closed by itself."""

    def __repr__(self) -> str:
        """Return the path, on one line."""
        return f"{type(self).__name__}({os.fspath(self._path)})"
