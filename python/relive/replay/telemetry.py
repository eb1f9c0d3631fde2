"""Recording by parts: a writer of the arrays of one run, and a sink for steps as dicts."""

import contextlib
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from relive._arguments import as_int, as_text
from relive.errors import ClosedError, InvalidError, InvalidTypeError
from relive.replay.config import ReplayConfig
from relive.replay.recorder import ReplayRecorder, ReplayStats
from relive.replay.scalars import TelemetryStore
from relive.replay.storage.layout import database_path, replay_root

if TYPE_CHECKING:
    from relive.replay.migrate.dual import BlobWriter

_STEP_KEYS: Final = frozenset(
    {
        "observation",
        "action",
        "reward",
        "terminated",
        "truncated",
        "frame",
        "info",
        "next_observation",
        "next_frame",
        "extras",
        "env",
        "step_index",
        "ts_ns",
    }
)
_KEYS: Final = _STEP_KEYS | {"run_id", "episode_id", "agent_id", "seed", "timestamp"}


class ReplayWriter:
    """Writes the steps of one run, with their arrays, and returns references to the frames.

    `ReplayRecorder` can do more; this has the names of the program that its layout comes from.

    Args:
        run_id: The id of the run. A run that exists is continued.
        replay_dir: The directory `replay` of a root.
        config: Codecs, the queue, and how often steps are committed.

    Example:
        >>> import numpy as np, tempfile
        >>> from relive.replay import ReplayWriter
        >>> with ReplayWriter("run-1", tempfile.mkdtemp() + "/replay") as writer:
        ...     writer.record_step(frame=np.zeros((4, 4, 3), np.uint8), action=1, reward=0.5)
        ...     writer.mark_episode_end()
        'h5://run-1/frames/0'
    """

    def __init__(
        self,
        run_id: str,
        replay_dir: str | os.PathLike[str],
        *,
        config: ReplayConfig | None = None,
    ) -> None:
        root = replay_root(replay_dir)
        self.recorder = ReplayRecorder(root, run_id, config=config, live=None)
        """The recorder of the run."""

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.recorder.run_id

    @property
    def root(self) -> Path:
        """The directory of the runs."""
        return self.recorder.root

    def record_step(
        self,
        frame: Any = None,
        observation: Any = None,
        action: Any = None,
        reward: float | None = None,
        *,
        terminated: bool = False,
        truncated: bool = False,
        info: Mapping[str, Any] | None = None,
    ) -> str | None:
        """Record one step; return the reference to its frame, or None if it has none."""
        refs = self.recorder.step(
            observation, action, reward, terminated, truncated, frame=frame, info=info
        )
        return None if refs is None or refs.frame is None else refs.frame.to_uri()

    def mark_episode_end(self) -> None:
        """End the open episode, if there is one; the next step begins another."""
        self.recorder.end_episode()

    def flush(self) -> None:
        """Commit everything so far: a kill of this process does not lose it."""
        self.recorder.flush()

    def close(self) -> None:
        """Complete the run."""
        self.recorder.close()

    def __enter__(self) -> Self:
        self.recorder.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.recorder.__exit__(kind, error, trace)


class TelemetrySink:
    """Takes steps as dicts, and writes them in the background.

    The keys of a step are those of `ReplayRecorder.step`, and `run_id`, `episode_id`, `agent_id`,
    `seed` and `timestamp`, a time as ISO-8601. Another `episode_id` than before begins an episode.
    `seed` is that of the episode, and counts in its first step.

    Args:
        store: The database of a root.
        replay_writer: Writes the arrays of its run. Without one only scalars are kept, of any
            number of runs, and the arrays of steps are left out, actions of more than 32 numbers
            too.
        config: The queue, and how often steps are committed; that of the writer, if there is one.

    Example:
        >>> import tempfile
        >>> from relive.replay import TelemetrySink, TelemetryStore
        >>> with TelemetryStore(tempfile.mkdtemp()) as store:
        ...     with TelemetrySink(store) as sink:
        ...         sink.put({"run_id": "run-1", "action": 1, "reward": 0.5, "terminated": True})
        ...     store.recent_steps()[0].reward
        0.5
    """

    def __init__(
        self,
        store: TelemetryStore,
        replay_writer: ReplayWriter | None = None,
        *,
        config: ReplayConfig | None = None,
    ) -> None:
        self._root = store.root
        if store.path.absolute() != database_path(self._root).absolute():
            raise InvalidError(
                f"`{store.path}` is not the database of a root",
                hint="TelemetryStore(root) opens `root/telemetry/telemetry.sqlite`",
            )
        if replay_writer is not None and replay_writer.root.absolute() != self._root.absolute():
            raise InvalidError(
                f"the writer records into `{replay_writer.root}`, not into `{self._root}`"
            )
        self._config = config
        self._writer = replay_writer
        self._recorders: dict[str, ReplayRecorder] = {}
        if replay_writer is not None:
            self._recorders[replay_writer.run_id] = replay_writer.recorder
        self._episodes: dict[tuple[str, int, str], str] = {}
        self._is_closed = False
        self._blobs = _blob_writer(store) if store.keep_blobs else None

    @property
    def stats(self) -> dict[str, ReplayStats]:
        """How many steps of each run were recorded, dropped and are waiting."""
        return {run_id: recorder.stats for run_id, recorder in self._recorders.items()}

    def put(self, payload: Mapping[str, Any]) -> None:
        """Take one step. What happens when the queue is full is set in the config."""
        if self._is_closed:
            raise ClosedError("the sink is closed")
        if not isinstance(payload, Mapping):
            raise InvalidTypeError(f"a step must be a dict, got {payload!r}")
        unknown = payload.keys() - _KEYS
        if unknown:
            names = sorted(as_text("a key of a step", key) for key in unknown)
            raise InvalidError(
                f"a step has the unknown keys {', '.join(map(repr, names))}",
                hint="put further values into `info`",
            )
        recorder = self._recorder(payload)
        values = {key: payload[key] for key in payload.keys() & _STEP_KEYS}
        stream: dict[str, Any] = {
            "env": as_int("env", values.get("env", 0)),
            "agent_id": as_text("`agent_id`", payload.get("agent_id") or ""),
        }
        self._begin(recorder, payload, stream)
        if "timestamp" in payload and "ts_ns" not in payload:
            values["ts_ns"] = _nanoseconds(payload["timestamp"])
        refs = recorder.step(**{**values, **stream})
        if self._blobs is not None and refs is not None:
            self._blobs.put(recorder.run_id, refs.row, payload, recorder.stats.committed)
        if values.get("terminated") or values.get("truncated"):
            self._episodes.pop((recorder.run_id, stream["env"], stream["agent_id"]), None)

    def flush(self) -> None:
        """Commit everything so far: a kill of this process does not lose it."""
        for recorder in self._recorders.values():
            recorder.flush()
        if self._blobs is not None:
            self._blobs.write_all()

    def close(self) -> None:
        """Write everything that waits, and complete the runs. May be called again."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_closed = True
        with contextlib.ExitStack() as stack:  # ends all of them, even if one cannot be completed
            if self._blobs is not None:
                stack.callback(self._blobs.close)
            for run_id in list(self._recorders):
                stack.callback(self._end, run_id, kind, error, trace)

    def _end(self, run_id: str, *block: Any) -> None:
        self._recorders[run_id].__exit__(*block)
        del self._recorders[run_id]  # not after an error: one about a lock lets `close` try again

    def _recorder(self, payload: Mapping[str, Any]) -> ReplayRecorder:
        run_id = payload.get("run_id")
        if run_id is None:
            if self._writer is None:
                raise InvalidError("a step needs a `run_id`")
            return self._writer.recorder
        recorder = self._recorders.get(as_text("`run_id`", run_id))
        if recorder is None:
            if self._writer is not None:
                raise InvalidError(
                    f"the step is of run {run_id!r}, and the writer records {self._writer.run_id!r}"
                )
            recorder = ReplayRecorder(
                self._root, run_id, config=self._config, live=None, arrays=False
            )
            self._recorders[run_id] = recorder
        return recorder

    def _begin(
        self, recorder: ReplayRecorder, payload: Mapping[str, Any], stream: Mapping[str, Any]
    ) -> None:
        """Begin an episode, if a step is the first of one."""
        episode_id, seed = payload.get("episode_id"), payload.get("seed")
        if episode_id is None:
            if seed is not None and not recorder.has_open_episode(**stream):
                recorder.begin_episode(seed=seed, **stream)
            return
        key = (recorder.run_id, stream["env"], stream["agent_id"])
        if self._episodes.get(key) == episode_id:
            return
        recorder.end_episode(**stream)
        recorder.begin_episode(episode_id, seed=seed, **stream)
        self._episodes[key] = episode_id


def _blob_writer(store: TelemetryStore) -> "BlobWriter":
    from relive.replay.migrate.dual import BlobWriter  # only with `keep_blobs`

    return BlobWriter(store.path)


def _nanoseconds(text: Any) -> int:
    """Return a time of ISO-8601 in nanoseconds since 1970; one without a zone is in UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError) as error:
        raise InvalidError(f"`timestamp` must be a time as ISO-8601, got {text!r}") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1000
